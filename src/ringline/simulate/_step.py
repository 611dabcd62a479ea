"""`simulate`: the time of one training step through a pipeline schedule."""

import math
from collections.abc import Sequence
from typing import get_args

from ringline.schedule import Compute, PipelineSchedule
from ringline.simulate._engine import simulate_program
from ringline.simulate._link import Link
from ringline.simulate._timeline import Timeline
from ringline.simulate._weights import GatherEvery, with_weights

Cost = float | Sequence[float]


def simulate(
    schedule: PipelineSchedule,
    *,
    forward_s: Cost,
    backward_s: Cost | None = None,
    input_gradient_s: Cost | None = None,
    weight_gradient_s: Cost | None = None,
    transfer_s: float = 0.0,
    overlap: bool = True,
    gather_s: Cost = 0.0,
    gather_every: GatherEvery = "step",
    reduce_s: Cost = 0.0,
) -> Timeline:
    """When every stage runs what, and what the step costs.

    With p equal stages, m microbatches, v repeats and overlapping transfers of c <= F/v and B/v
    the bubble of the linear and the circular schedule is

        (p - 1) (F + B) / v + 2 (p - 1) c + (v - 1) (late(F) + late(B))

    where late(T) = max(0, p c - (m - p) T / v) is what a microbatch that goes around the ring
    comes too late for the stage's next chunk: nothing when m is well above p.

    Args:
        schedule: the order of every stage.
        forward_s: F, the time in which a stage takes one microbatch through all its layers; one
            number, or one for each stage. The chunks of a stage share it by their layers.
        backward_s: B, the same for the whole backward, where the schedule does not split it.
        input_gradient_s: I, the part of the backward that the stage before waits for. With
            `weight_gradient_s` it takes the place of `backward_s`, and B = I + W.
        weight_gradient_s: W, the rest of the backward.
        transfer_s: c, how long one activation or cotangent keeps a link busy, from stage to
            stage, each direction by itself.
        overlap: whether transfers run beside the computations. If not, the sender waits until
            its transfer is done.
        gather_s: the time to gather the weights of a whole stage over the chips that share them
            (FSDP); its chunks share it by their layers. 0 for weights that lie there whole.
        gather_every: `step`: each chunk's weights are gathered once, before its first operation;
            `use`: for each forward and backward, one ahead. With `overlap` beside the
            computations, one gather or reduction of a stage at a time.
        reduce_s: the time to reduce the gradients of a whole stage, each chunk's behind its last
            backward.

    Returns:
        The events, with `makespan_s`, `bubble_s`, `exposed_transfer_s`, `peak_activations`.

    Raises:
        ValueError: for a cost that is missing, negative, or not one for each stage.
        ScheduleError: when the schedule cannot run to its end.

    Example:
        >>> from ringline import schedules
        >>> linear = schedules.linear(stages=4, microbatches=8)
        >>> simulate(linear, forward_s=1.0, backward_s=2.0).bubble_s
        9.0
        >>> circular = schedules.circular(stages=4, microbatches=8, repeats=2)
        >>> simulate(circular, forward_s=1.0, backward_s=2.0).bubble_s
        4.5

    References:
        Huang et al., GPipe, arXiv 1811.06965. Lamy-Poirier, Breadth-First Pipeline
        Parallelism, arXiv 2211.05953.
    """
    stages = schedule.stages
    given = {
        "F": _per_stage("forward_s", forward_s, stages),
        "B": _per_stage("backward_s", backward_s, stages),
        "I": _per_stage("input_gradient_s", input_gradient_s, stages),
        "W": _per_stage("weight_gradient_s", weight_gradient_s, stages),
    }
    if given["B"] is None and given["I"] is not None and given["W"] is not None:
        given["B"] = tuple(i + w for i, w in zip(given["I"], given["W"]))
    elif given["B"] is not None and (given["I"] or given["W"]):
        raise ValueError(
            "got backward_s beside input_gradient_s or weight_gradient_s; give backward_s, or "
            "both parts instead of it"
        )
    _require_costs(schedule, given)
    given["GATHER"] = _per_stage("gather_s", gather_s, stages)
    given["REDUCE"] = _per_stage("reduce_s", reduce_s, stages)
    if gather_every not in get_args(GatherEvery):
        raise ValueError(f"gather_every must be 'step' or 'use', got {gather_every!r}; change it")
    share = _shares(schedule)
    duration_s = {
        (op, chunk): costs[stage] * share[chunk]
        for op, costs in given.items()
        if costs is not None
        for chunk, stage in enumerate(schedule.stage_of)
    }

    def compute_s(stage: int, compute: Compute) -> float:
        return duration_s[compute.op, compute.index]

    program = with_weights(
        schedule.program(),
        gather=gather_every if any(given["GATHER"] or ()) else None,
        reduce=any(given["REDUCE"] or ()),
    )
    return simulate_program(
        program,
        compute_s=compute_s,
        link=Link(transfer_s=transfer_s),
        overlap=overlap,
        name=schedule.name,
    )


def _per_stage(name: str, cost: Cost | None, stages: int) -> tuple[float, ...] | None:
    """`cost` as one finite number >= 0 for each stage."""
    if cost is None:
        return None
    costs = tuple(cost) if isinstance(cost, Sequence) else (cost,) * stages
    if len(costs) != stages:
        raise ValueError(
            f"{name} must be one number or one for each of {stages} stages, got {len(costs)}; "
            f"change {name} or the schedule's stages"
        )
    for value in costs:
        if not 0 <= value < math.inf:
            raise ValueError(f"{name} must be a finite time >= 0, got {value}; change {name}")
    return tuple(float(value) for value in costs)


def _require_costs(schedule: PipelineSchedule, given: dict[str, tuple[float, ...] | None]) -> None:
    """Raise where the schedule runs an operation that has no cost."""
    ops = {action.op for row in schedule.rows for action in row}
    if "B" in ops and given["B"] is None:
        raise ValueError(
            f"schedule {schedule.name!r} runs a backward (B) but backward_s is missing; give "
            "backward_s, or input_gradient_s and weight_gradient_s"
        )
    if ops & {"I", "W"} and (given["I"] is None or given["W"] is None):
        raise ValueError(
            f"schedule {schedule.name!r} splits its backward (I and W) but a part's cost is "
            "missing; give input_gradient_s and weight_gradient_s instead of backward_s"
        )


def _shares(schedule: PipelineSchedule) -> tuple[float, ...]:
    """Per chunk, its share of its stage's layers."""
    layers = schedule.layers_per_stage
    weights = (1,) * schedule.chunks if layers is None or isinstance(layers, int) else layers
    of_stage = [0] * schedule.stages
    for weight, stage in zip(weights, schedule.stage_of):
        of_stage[stage] += weight
    return tuple(weight / of_stage[stage] for weight, stage in zip(weights, schedule.stage_of))
