"""`pipeline`: run a stack of layers through the stages, differentiable by ordinary autodiff."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from ringline.pipeline._auxiliary import mean_over_rows
from ringline.pipeline._buffers import buffers, put, select, take
from ringline.pipeline._chunk import (
    Layer,
    Remat,
    chunk_runner,
    count_of,
    of_repeat,
    own_places,
    rematerialised,
)
from ringline.pipeline._explicit import automatic, call_automatic
from ringline.pipeline._inputs import (
    batch_size,
    check_mesh,
    join_batch,
    split_batch,
)
from ringline.pipeline._layers import Placement, StackedLayers, stack_layers
from ringline.pipeline._prepare import prepare
from ringline.pipeline._tables import TickTables, tick_tables
from ringline.pipeline._travel import row_of, send, store_arrivals
from ringline.schedule import PipelineSchedule

PyTree = Any


def pipeline(
    layer: Callable[..., PyTree],
    params: PyTree | StackedLayers,
    x: PyTree,
    *,
    schedule: PipelineSchedule,
    mesh: Mesh,
    axis: str = "stage",
    overlap: bool = False,
    remat: Remat = True,
    rng: jax.Array | None = None,
    layer_aux: bool = False,
) -> PyTree:
    r"""Apply a stack of layers, its stages on different devices, to a batch in microbatches.

    Gives what the plain loop gives,

    $$ x_{l+1} = \mathrm{layer}(\theta_l, x_l), \quad l = 0 \dots \text{layers} - 1, $$

    and differentiates like it. Stage s runs its chunks in the order of `schedule`; the backward,
    made by autodiff, is the exact reverse. Bubbles run nothing. Only the stage axis is manual:
    other axes of the mesh stay automatic, so weights partitioned over an `fsdp` axis, or
    activations over a `tensor` axis, work as in any jitted function.

    Args:
        layer: `(layer_params, x) -> x`, the same shapes and dtypes out as in.
        params: every leaf `[layers, ...]` in model order, or what `stack_layers` gives.
        x: every leaf `[batch, ...]`. Leaves without gradient (ids, masks) may travel along.
        schedule: `ringline.schedules.linear(...)` or `.circular(...)`; its forward rows count.
        mesh: the devices; `mesh.shape[axis]` must be the schedule's stages.
        axis: the name of the stage axis.
        overlap: send each result one tick late, which frees the transfer from the compute of
            the tick it travels in. Costs p - 1 more ticks for each repeat that waits for the
            ring. Worth it where the links between stages are slow.
        remat: True keeps a chunk's input and runs its forward again in the backward; False keeps
            everything; a `jax.checkpoint_policies` policy keeps each layer's input and what it
            says.
        rng: a key of `jax.random.key`; the layer is then `(layer_params, x, keys) -> x` with a
            key for each row of x, the same in every layout and when run again; `layer_keys`
            gives the plain loop's.
        layer_aux: the layer gives `(x, auxiliary)`, such as a router's balance loss: any tree
            of scalars or arrays.

    Returns:
        The activations after the last layer, every leaf `[batch, ...]`, on every stage. With
        `layer_aux`, `(activations, auxiliary)`: sums over the layers, means over microbatches.

    Raises:
        ValueError: a mesh without the axis, or of another size than the stages; layers that the
            schedule cannot place; microbatches that do not divide the batch; a layer that
            changes shapes, dtypes or structure.
        ScheduleError: a schedule that is not executable, naming stage and step.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from ringline import pipeline, schedules
        >>> mesh = jax.make_mesh((1,), ("stage",))
        >>> layer = lambda w, x: jnp.tanh(x @ w)
        >>> params = jnp.stack([jnp.eye(3) * k for k in (1.0, 2.0)])
        >>> y = pipeline(layer, params, jnp.ones((4, 3)), mesh=mesh,
        ...              schedule=schedules.circular(stages=1, microbatches=2, repeats=2))
        >>> y.shape
        (4, 3)

    References:
        Huang et al., GPipe, arXiv 1811.06965; Lamy-Poirier, Breadth-First Pipeline Parallelism,
        arXiv 2211.05953; Xu et al., GSPMD, arXiv 2105.04663, section 3.3 (the shifting loop).
    """
    check_mesh(mesh, axis, schedule)
    batch_size(x, schedule.microbatches)
    schedule.forward().validate()
    prepared = prepare(layer, params, x, schedule, mesh, remat, rng, layer_aux)
    placed, again = prepared.placed, remat is True
    layer = rematerialised(prepared.layer, remat)
    run = partial(_run, layer, schedule, placed, automatic(mesh), axis, overlap, again)
    y, sums = prepared.apart(call_automatic(run, prepared.x, prepared.params, prepared.x))
    return (y, mean_over_rows(sums)) if layer_aux else y


def _run(
    layer: Layer,
    schedule: PipelineSchedule,
    placed: Placement,
    mesh: Mesh,
    axis: str,
    overlap: bool,
    again: bool,
    params: PyTree | StackedLayers,
    x: PyTree,
) -> PyTree:
    """Stack the weights, split the batch, run the loop on every stage, take the last's output."""
    stacked = params if isinstance(params, StackedLayers) else stack_layers(params, schedule)
    # A copy for each stage, rather than one that the stages share: the gradient of a shared one
    # is a sum over a manual axis, which XLA:CPU cannot do in bfloat16.
    copies = jax.tree.map(
        lambda leaf: jnp.broadcast_to(leaf, (schedule.stages, *leaf.shape)),
        split_batch(x, schedule.microbatches),
    )
    tables = tick_tables(schedule.forward(), hop=2 if overlap else 1)
    loop = partial(_loop, layer, tables, placed, schedule.stages, axis, overlap, again)
    if schedule.stages > 1:
        loop = jax.shard_map(
            loop,
            mesh=mesh,
            in_specs=(PartitionSpec(None, axis), PartitionSpec(axis)),
            out_specs=PartitionSpec(axis),
            axis_names={axis},
            check_vma=False,
        )
    outputs = jax.jit(loop)(stacked.places, copies)
    return join_batch(jax.tree.map(lambda leaf: leaf[schedule.stage_of[-1]], outputs))


def _loop(
    layer: Layer,
    tables: TickTables,
    placed: Placement,
    stages: int,
    axis: str,
    overlap: bool,
    again: bool,
    local: tuple[PyTree, ...],
    copies: PyTree,
) -> PyTree:
    """The body of one stage: scan over ticks. Leaves of `copies` are `[1, microbatches, ...]`."""
    # One stage is no mesh axis to be manual over: XLA refuses sums over a manual axis of size 1.
    stage = lax.axis_index(axis) if stages > 1 else 0
    x = jax.tree.map(lambda leaf: leaf[0], copies)
    places = own_places(local)
    run_chunk = chunk_runner(layer, placed)
    zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape[1:], leaf.dtype), x)
    slots = tables.slots.get("activation", 0)
    senders = tables.senders.get("activation", {})

    def tick(carry, rows):
        inbox, outputs, previous = carry
        row = row_of(rows, stage)
        arrived = send(previous, senders, axis, stages) if overlap else {}
        slot, repeat = row["F.reads.activation"], row["F.repeat"]
        taken = select(slot < slots, inbox, slot, take(x, row["F.microbatch"]))

        def chunk(places, repeat, taken):
            def run():
                return run_chunk(of_repeat(places, repeat), count_of(placed, repeat, stage), taken)

            return lax.cond(repeat >= 0, run, lambda: zero)

        # Around the condition, so that what autodiff keeps of a tick is the chunk's input and
        # not the weights that it picks.
        y = (jax.checkpoint(chunk, prevent_cse=False) if again else chunk)(places, repeat, taken)
        if overlap:
            # The transfer begins before the chunk runs and is waited for after it, and likewise
            # in the backward.
            y, arrived = lax.optimization_barrier((y, arrived))
        else:
            arrived = send(y, senders, axis, stages)
        if "F.makes.activation" in row:
            inbox = put(inbox, row["F.makes.activation"], y)
        inbox = store_arrivals(inbox, row, "activation", arrived)
        outputs = put(outputs, row["F.output"], y)
        return (inbox, outputs, y if overlap else ()), None

    inbox = buffers(zero, tables.places.get("activation", 1))
    # One place more than needed: what nobody wants is written there.
    outputs = buffers(zero, len(jax.tree.leaves(x)[0]) + 1)
    carry = (inbox, outputs, zero if overlap else ())
    (_, outputs, _), _ = lax.scan(tick, carry, jax.tree.map(jnp.asarray, tables.rows))
    return jax.tree.map(lambda leaf: leaf[None, :-1], outputs)
