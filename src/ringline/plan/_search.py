"""The search over layouts: closed forms for all of them, the simulator for the best few."""

import bisect
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from ringline import schedules
from ringline.plan._layer import REMATS
from ringline.plan._layout import GATHERS, Layout, matches
from ringline.plan._rules import RULES
from ringline.plan._step import Evaluator, Plan, Work
from ringline.simulate import simulate

# Steps up to this many actions are simulated; larger ones keep their closed form.
_LARGEST_SIMULATION = 6000
Progress = Callable[[float, str], None]


@dataclass(frozen=True)
class Found:
    """What a search found.

    Attributes:
        work: what was asked.
        plans: the best plans that fit, best first.
        considered: layouts that divide the chips, the batch and the layers.
        closest: of those that do not fit, the one that misses by least.
        without_pipeline: the best plan with one stage that fits, or None.
        with_pipeline: the best plan with more stages that fits, or None.
    """

    work: Work
    plans: tuple[Plan, ...]
    considered: int
    closest: Plan | None
    without_pipeline: Plan | None
    with_pipeline: Plan | None


def search(
    work: Work,
    *,
    top: int = 10,
    constraints: dict[str, Any] | None = None,
    progress: Progress | None = None,
) -> Found:
    """The best layouts of `work`.

    Every combination of stages, repeats, microbatches, schedule, rematerialisation, fsdp,
    tensor and data that divides the chips, the batch and the heads is looked at in closed
    form, as far as its bare matmuls and bubble do not already take longer than what was found;
    the best `top` that fit the memory are then simulated and sorted again.

    Args:
        work: model, cluster, batch and length.
        top: how many plans to keep.
        constraints: values that layouts must have.
        progress: called with the share done and what is being done.

    Returns:
        What was found.

    Raises:
        ValueError: when no layout divides the chips, the batch and the layers.
    """
    evaluator = Evaluator(work)
    wanted = constraints or {}
    best = {True: _Best(top), False: _Best(top)}
    closest: tuple[float, Layout] | None = None
    considered = 0
    axes = [
        axes
        for axes in _axes(work)
        if all(
            wanted.get(name, size) == size
            for name, size in zip(("stages", "tensor", "fsdp", "data"), axes)
        )
    ]
    for done, axis in enumerate(axes):
        if progress:
            progress(0.8 * done / len(axes), f"{considered} layouts")
        for layout in _layouts(work, axis):
            if not matches(layout, wanted):
                continue
            considered += 1
            kept = best[layout.pipelined]
            if evaluator.floor_s(layout) >= kept.worst_s:
                continue
            used = evaluator.memory(layout)
            if used.fits:
                kept.add(evaluator.best(layout))
            elif closest is None or used.total_bytes < closest[0]:
                closest = (used.total_bytes, layout)
    if not considered:
        raise ValueError(_nothing(work, wanted))
    finalists = _finalists(best[True].plans, best[False].plans, top)
    simulated = []
    for done, plan in enumerate(finalists):
        if progress:
            progress(0.8 + 0.2 * done / len(finalists), f"simulating {plan.layout}")
        simulated.append(simulated_plan(work, plan))
    simulated.sort(key=lambda plan: plan.predicted_s)
    return Found(
        work,
        tuple(simulated[:top]),
        considered,
        evaluator.best(closest[1]) if closest else None,
        next((plan for plan in simulated if not plan.layout.pipelined), None),
        next((plan for plan in simulated if plan.layout.pipelined), None),
    )


def simulated_plan(
    work: Work, plan: Plan, *, overlap: bool = True, largest: int = _LARGEST_SIMULATION
) -> Plan:
    """`plan` with its bubble and exposed transfers from the simulator instead of closed forms.

    Args:
        work: what is planned.
        plan: its closed form.
        overlap: whether transfers run beside the computations.
        largest: steps with more actions keep their closed form.

    Returns:
        The plan with the simulated pipeline.
    """
    layout = plan.layout
    actions = layout.stages * layout.microbatches * layout.repeats * 2
    if not layout.pipelined or actions > largest:
        return plan
    costs = plan.costs
    generate = getattr(schedules, layout.schedule)
    repeats = {} if RULES[layout.schedule].repeats == "one" else {"repeats": layout.repeats}
    split = RULES[layout.schedule].splits_backward
    schedule = generate(stages=layout.stages, microbatches=layout.microbatches, **repeats)
    step = simulate(
        schedule,
        forward_s=costs.forward_s,
        backward_s=None if split else costs.backward_s,
        input_gradient_s=costs.input_gradient_s if split else None,
        weight_gradient_s=costs.weight_gradient_s if split else None,
        transfer_s=costs.hop_s,
        overlap=overlap,
    )
    busy = max(layout.microbatches * (f + b) for f, b in zip(costs.forward_s, costs.backward_s))
    idle = step.makespan_s - busy
    parts = dict(plan.parts_s)
    before = parts["bubble"] + parts["transfer"]
    # What the bubble would be without transfers is the closed form's; the rest is theirs.
    bubble = min(idle, parts["bubble"])
    parts |= {"bubble": bubble, "transfer": idle - bubble}
    predicted = plan.predicted_s - before + idle
    return replace(
        plan,
        lower_s=min(plan.lower_s, predicted),
        predicted_s=predicted,
        upper_s=max(plan.upper_s, predicted),
        parts_s=parts,
        mfu=work.mfu(predicted),
        simulated=True,
    )


def _axes(work: Work) -> Iterator[tuple[int, int, int, int]]:
    """Every (stages, tensor, fsdp, data) that makes up the chips."""
    chips = work.cluster.chips
    for stages in _divisors(chips):
        if stages > work.model.layers:
            continue
        for tensor in _divisors(chips // stages):
            if tensor > work.cluster.chips_per_slice or work.model.heads % tensor:
                continue
            rest = chips // stages // tensor
            for fsdp in _divisors(rest):
                if work.batch % rest == 0:
                    yield stages, tensor, fsdp, rest // fsdp


def _layouts(work: Work, axes: tuple[int, int, int, int]) -> Iterator[Layout]:
    """Every layout with these axes that runs."""
    stages, tensor, fsdp, data = axes
    gathers = GATHERS if fsdp > 1 else ("step",)
    for microbatches in _divisors(work.batch // (fsdp * data)):
        if stages == 1 and microbatches > 64:
            continue
        for schedule, repeats in _orders(work, stages, microbatches):
            for remat in REMATS:
                if stages > 1 and RULES[schedule].refuses(stages, microbatches, repeats, remat):
                    continue
                for gather in gathers:
                    yield Layout(
                        stages, repeats, microbatches, schedule, remat, fsdp, tensor, data, gather
                    )


def _orders(work: Work, stages: int, microbatches: int) -> Iterator[tuple[str, int]]:
    """Schedules with the repeats worth trying."""
    if stages == 1:
        yield "none", 1
        return
    for rule in RULES.values():
        for v in rule.chunk_repeats(work.model.layers // stages):
            yield rule.name, v


class _Best:
    """The best plans so far, best first."""

    def __init__(self, size: int):
        self.size = size
        self.plans: list[Plan] = []

    @property
    def worst_s(self) -> float:
        """What a plan has to go below to be kept."""
        return self.plans[-1].predicted_s if len(self.plans) == self.size else math.inf

    def add(self, plan: Plan) -> None:
        """Keep `plan` if it is good enough."""
        bisect.insort(self.plans, plan, key=lambda kept: kept.predicted_s)
        del self.plans[self.size :]


def _finalists(piped: list[Plan], alone: list[Plan], top: int) -> list[Plan]:
    """The first `top`, and the first with and without a pipeline."""
    chosen = sorted(piped + alone, key=lambda plan: plan.predicted_s)[:top]
    return chosen + [plans[0] for plans in (piped, alone) if plans and plans[0] not in chosen]


def _divisors(number: int) -> list[int]:
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})


def _nothing(work: Work, wanted: dict[str, Any]) -> str:
    asked = ",".join(f"{key}={value}" for key, value in wanted.items())
    return (
        f"no layout{' with ' + asked if asked else ''} divides {work.cluster.chips} chips, batch "
        f"{work.batch} and the {work.model.layers} layers and {work.model.heads} heads of "
        f"{work.model.name}; change the batch, or ask for less"
    )
