"""Run a schedule's forwards and backwards on every stage, as a loss with a gradient of its own."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import SymbolicZero
from jax.sharding import Mesh, PartitionSpec

from ringline.pipeline._buffers import take
from ringline.pipeline._chunk import Remat, chunk_runner, count_of, rematerialised
from ringline.pipeline._closure import Given, refuse_gradients
from ringline.pipeline._engine import Engine
from ringline.pipeline._inputs import by_rows
from ringline.pipeline._layers import Placement, StackedLayers, stack_layers
from ringline.pipeline._leaves import Leaves
from ringline.pipeline._loss_terms import Terms, total_weight
from ringline.pipeline._passes import make_passes
from ringline.pipeline._tables import tick_tables
from ringline.pipeline._weights import GATHERS, Gather, Partition, Places, flat, pick
from ringline.schedule import PipelineSchedule

PyTree = Any


@dataclass(frozen=True)
class Setup:
    """Everything that is no array."""

    layer: Given
    terms: Callable[[PyTree, PyTree, PyTree], Terms]
    schedule: PipelineSchedule
    placed: Placement
    mesh: Mesh
    axis: str
    fsdp_axis: str | None
    manual: tuple[str, ...]  # the mesh axes that the loop handles itself
    dims: tuple[int | None, ...]
    gather: Gather
    remat: Remat


def scheduled_loss(
    setup: Setup,
    params: PyTree | StackedLayers,
    loss_params: PyTree,
    x: PyTree,
    targets: PyTree,
    closed: list[Any],
) -> tuple[jax.Array, PyTree]:
    """The loss with its custom gradient, made by the schedule and scaled by what comes in.

    Beside the loss come the metrics, which have no gradient.
    """
    stacked = params if isinstance(params, StackedLayers) else stack_layers(params, setup.schedule)
    x = by_rows(x, setup.schedule.microbatches)
    targets = by_rows(targets, setup.schedule.microbatches)
    like = jax.tree.map(jax.typeof, (stacked.places, loss_params, x))

    @jax.custom_vjp
    def scalar(*arguments):
        return _means(_run(setup, setup.schedule.forward(), False, *arguments))

    def forward(places, loss_params, x, targets, closed):
        refuse_gradients(closed)
        wants_dx = any(leaf.perturbed for leaf in jax.tree.leaves(x))
        arguments = (places, loss_params, x, targets, closed)
        values = jax.tree.map(lambda leaf: leaf.value, arguments)
        result = _run(setup, setup.schedule, wants_dx, *values)
        gradients = flat(result["weights"]), result["loss_params"], result["x"]
        return _means(result), (gradients, result["weight"])

    def backward(kept, cotangents):
        gradients, weight = kept
        g, _ = cotangents
        if isinstance(g, SymbolicZero):
            g = jnp.zeros(())
        out = []
        for leaves, example in zip(gradients, like):
            parts = Leaves.of(example)
            wanted = parts.split(example)[0]
            leaves = leaves or [jnp.zeros(leaf.shape, leaf.dtype) for leaf in wanted]
            scaled = [(d * (g / weight)).astype(leaf.dtype) for d, leaf in zip(leaves, wanted)]
            out.append(parts.cotangent(scaled, example))
        return (*out, None, None)

    scalar.defvjp(forward, backward, symbolic_zeros=True)
    return scalar(stacked.places, loss_params, x, targets, closed)


def _means(result: dict[str, Any]) -> tuple[jax.Array, PyTree]:
    """The loss and the metrics, from their sums."""
    weight = result["weight"]
    return result["loss"] / weight, jax.tree.map(lambda leaf: leaf / weight, result["metrics"])


def _run(
    setup: Setup,
    schedule: PipelineSchedule,
    wants_dx: bool,
    places: tuple[PyTree, ...],
    loss_params: PyTree,
    x: PyTree,
    targets: PyTree,
    closed: list[Any],
) -> dict[str, Any]:
    """Run the schedule on every stage; sums over stages, microbatches and rows."""
    fsdp = setup.fsdp_axis
    stage_axis = setup.axis if schedule.stages > 1 else None
    w_leaves, x_leaves = Leaves.of(places[0]), Leaves.of(x)
    split = [w_leaves.split(params) for params in places]
    smooth, fixed = [pair[0] for pair in split], [pair[1] for pair in split]

    def weight_spec(dim):
        own = [] if dim is None or fsdp is None else [None] * dim + [fsdp]
        return PartitionSpec(None, stage_axis, *own)

    smooth_dims = [d for d, is_smooth in zip(setup.dims, w_leaves.smooth) if is_smooth]
    smooth_specs = [[weight_spec(dim) for dim in smooth_dims]] * len(places)
    rows_spec = PartitionSpec(fsdp)
    specs = {name: PartitionSpec() for name in ("loss", "weight", "metrics")}
    if schedule.has_backward:
        specs |= {
            "weights": smooth_specs,
            "loss_params": PartitionSpec(),
            "x": PartitionSpec(stage_axis, fsdp),
        }
    loop = partial(_on_stage, setup, schedule, wants_dx, w_leaves, x_leaves, smooth_dims)
    if setup.manual:
        loop = jax.shard_map(
            loop,
            mesh=setup.mesh,
            in_specs=(
                smooth_specs,
                PartitionSpec(None, stage_axis),
                PartitionSpec(),
                rows_spec,
                rows_spec,
                PartitionSpec(),
            ),
            out_specs=specs,
            axis_names=set(setup.manual),
            check_vma=False,
        )
    result = jax.jit(loop)(smooth, fixed, loss_params, x, targets, closed)
    if schedule.has_backward:
        result["x"] = [leaf[schedule.stage_of[0]] for leaf in result["x"]] if wants_dx else []
    return result


def _on_stage(
    setup: Setup,
    schedule: PipelineSchedule,
    wants_dx: bool,
    w_leaves: Leaves,
    x_leaves: Leaves,
    dims: list[int | None],
    smooth: Places,
    fixed: Places,
    loss_params: PyTree,
    x: PyTree,
    targets: PyTree,
    closed: list[Any],
) -> dict[str, Any]:
    """One stage's part: its weights, leaves `[repeats, 1, ...]` by place, and its rows."""
    stage = lax.axis_index(setup.axis) if schedule.stages > 1 else 0
    depth = setup.placed.depth
    stored = [[leaf[:, 0] for leaf in place] for place in smooth]
    own_fixed = [[leaf[:, 0] for leaf in place] for place in fixed]
    run_chunk = chunk_runner(rematerialised(setup.layer(closed), setup.remat), setup.placed)

    def fixed_of(repeat):
        count = jnp.asarray(count_of(setup.placed, repeat, stage), jnp.int32)
        return [*flat(pick(own_fixed, repeat)), count]

    def run(w, fixed, x, rest):
        *fixed, count = fixed
        each, other = len(w) // depth, len(fixed) // depth
        layers = [
            w_leaves.join(w[i * each : (i + 1) * each], fixed[i * other : (i + 1) * other])
            for i in range(depth)
        ]
        return x_leaves.split(run_chunk(layers, count, x_leaves.join(x, rest)))

    keep_inputs = setup.remat is True or not schedule.has_backward
    tables = tick_tables(schedule, keep_inputs=keep_inputs)
    partition = Partition(setup.fsdp_axis, tuple(dims))
    weights = GATHERS[setup.gather](partition, stored, tables.rows)
    shapes = partial(jax.tree.map, lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype))
    whole = jax.eval_shape(lambda: partition.gather(pick(stored, 0)))
    one, target = jax.eval_shape(lambda both: take(both, 0, axis=1), (x, targets))
    head, terms = _head(setup, loss_params, one, target, targets)
    passes = make_passes(
        run,
        flat(whole),
        shapes(fixed_of(0)),
        *x_leaves.split(one),
        keep_inputs=keep_inputs,
        split="W.repeat" in tables.rows,
    )
    engine = Engine(
        tables=tables,
        passes=passes,
        head=head,
        terms=terms,
        weights=weights,
        fixed=fixed_of,
        x_leaves=x_leaves,
        keep_inputs=keep_inputs,
        axis=setup.axis,
        stages=schedule.stages,
        microbatches=schedule.microbatches,
        stage=stage,
        wants_dx=wants_dx,
    )
    result = engine.run(x, targets, loss_params)
    if setup.manual:
        totals = ("loss", "weight", "metrics", "loss_params")
        result |= {name: lax.psum(result[name], setup.manual) for name in totals if name in result}
    if schedule.has_backward:
        result["weights"] = [[leaf[:, None] for leaf in place] for place in result["weights"]]
        result["x"] = [leaf[None] for leaf in result["x"]]
    return result


def _head(
    setup: Setup, loss_params: PyTree, y: PyTree, target: PyTree, targets: PyTree
) -> tuple[Callable[[PyTree, PyTree, PyTree], tuple[Any, Any]], Terms]:
    """The loss as `(loss_params, y, target) -> (sum, (weight, metrics))`, and its terms' shapes.

    Where a part is averaged over microbatches whatever their weights, it goes into the sum
    times the mean weight of a microbatch, which the targets tell beforehand.
    """
    example = jax.eval_shape(setup.terms, loss_params, y, target)
    share = None
    if example.mean is not None:
        share = total_weight(setup.terms, loss_params, y, targets) / setup.schedule.microbatches
        if setup.fsdp_axis:
            share = lax.pmean(share, setup.fsdp_axis)

    def head(loss_params, y, target):
        total, weight, mean, metrics = setup.terms(loss_params, y, target)
        if mean is not None:
            total = total + share * mean
        return total, (weight, metrics)

    return head, example
