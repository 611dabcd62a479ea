"""`pipeline_loss`: the loss of a pipelined model, its gradients made by the schedule itself."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import SymbolicZero
from jax.sharding import Mesh, PartitionSpec, use_abstract_mesh

from ringline.pipeline._auxiliary import of_rows
from ringline.pipeline._buffers import take
from ringline.pipeline._chunk import Remat, chunk_runner, count_of, rematerialised
from ringline.pipeline._closure import Given, hoist, refuse_gradients
from ringline.pipeline._engine import Engine
from ringline.pipeline._explicit import automatic, call_automatic
from ringline.pipeline._inputs import (
    batch_size,
    by_rows,
    check_mesh,
    check_rows,
    check_targets,
    fsdp_devices,
    one_microbatch,
)
from ringline.pipeline._layers import Placement, StackedLayers, one_layer, stack_layers
from ringline.pipeline._leaves import Leaves, check_arrays
from ringline.pipeline._loss_terms import Loss, Terms, check_loss, loss_terms, total_weight
from ringline.pipeline._passes import make_passes
from ringline.pipeline._prepare import prepare
from ringline.pipeline._specs import partitioned_dims
from ringline.pipeline._tables import tick_tables
from ringline.pipeline._weights import GATHERS, Gather, Partition, Places, flat, pick
from ringline.schedule import PipelineSchedule

PyTree = Any


def pipeline_loss(
    layer: Callable[..., PyTree],
    loss: Loss,
    params: PyTree | StackedLayers,
    loss_params: PyTree,
    x: PyTree,
    targets: PyTree,
    *,
    schedule: PipelineSchedule,
    mesh: Mesh,
    axis: str = "stage",
    fsdp_axis: str | None = "fsdp",
    specs: PyTree | None = None,
    gather: Gather = "step",
    remat: Remat = True,
    rng: jax.Array | None = None,
    layer_aux: bool = False,
    has_aux: bool = False,
) -> Any:
    r"""The mean loss of a stack of layers over a batch, forward and backward by one schedule.

    With $f$ the plain loop over layers and $\ell$ the loss of microbatch i,

    $$ L = \frac{\sum_i s_i}{\sum_i n_i}, \qquad (s_i, n_i) = \ell(\phi, f(\theta, x_i), t_i). $$

    `jax.value_and_grad` of a function that calls this gives the gradients of the plain model, in
    `params`, `loss_params` and `x`. They are made in the forward pass, in the order of
    `schedule`, and kept; so memory follows the schedule's peak and not the number of
    microbatches. Without a gradient only the forwards run. Transfers travel while the stage
    computes: an activation behind the backward, a cotangent behind the next forward.

    Args:
        layer: `(layer_params, x) -> x`, the same shapes and dtypes out as in. It may close over
            arrays; one that wants a gradient must be in `params` or `x`.
        loss: `(loss_params, y, targets) -> scalar`, a mean over the rows it is given, or
            `-> (sum, weight)`, whose weights may differ between microbatches (say, valid
            tokens), or `-> (sum, weight, mean)`, whose last part is averaged over microbatches
            whatever their weights. It runs on the last stage. The weight carries no gradient;
            parameters that the loss closes over do.
        params: every leaf `[layers, ...]` in model order, or what `stack_layers` gives.
        loss_params: the loss's own parameters, such as a final norm and a head; `()` for none.
        x: every leaf `[batch, ...]`, such as embedded tokens. Leaves without gradient may
            travel along.
        targets: every leaf `[batch, ...]`; no gradient flows into them.
        schedule: any schedule with a backward: `ringline.schedules.eager_one_f_one_b(...)`,
            `.interleaved_one_f_one_b(...)`, `.zero_bubble_h2(...)`, a table of your own.
        mesh: the devices; `mesh.shape[axis]` must be the schedule's stages. Axes other than
            `axis` and `fsdp_axis` stay automatic inside layers.
        axis: the name of the stage axis.
        fsdp_axis: the axis over which weights and rows of a microbatch are partitioned, where
            the mesh has it; None for no such axis.
        specs: for each leaf (or one for all), the `PartitionSpec` of one layer's parameter over
            `fsdp_axis`; None partitions the largest dimension that divides.
        gather: when partitioned weights are made whole and gradients reduced: "step", once a
            step, the fastest; "repeat", once for each repeat a phase turns to; "use", in every
            operation, the least memory.
        remat: True keeps a chunk's input and runs its forward again in the backward; False keeps
            every intermediate value, weights excluded; a `jax.checkpoint_policies` policy keeps
            each layer's input and what it says.
        rng: a key of `jax.random.key`; the layer is then `(layer_params, x, keys) -> x` with a
            key for each row of x, the same in every layout and when run again; `layer_keys`
            gives the plain loop's.
        layer_aux: the layer gives `(x, auxiliary)`, such as a router's balance loss and load:
            any tree of scalars or arrays. Their sums over the layers become the fourth argument
            of `loss`, to add to what it returns or to report. A microbatch's are computed from
            the rows that one device of the FSDP axis holds, and averaged over those.
        has_aux: the loss gives `(loss, metrics)`, as in `jax.value_and_grad`. Metrics, any tree
            of numbers, have no gradient; they are summed and divided as the loss is: means for
            a mean loss, sums for `(sum, weight)`.

    Returns:
        The scalar L; with `has_aux`, `(L, metrics)`.

    Raises:
        ValueError: a mesh, batch, layer or loss that does not fit, with expected, got and what
            to change.
        ScheduleError: a schedule that is not executable, naming stage and step.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from ringline import pipeline_loss, schedules
        >>> mesh = jax.make_mesh((1,), ("stage",))
        >>> layer = lambda w, x: jnp.tanh(x @ w)
        >>> square = lambda _, y, t: jnp.mean((y - t) ** 2)
        >>> def step(w, x, t):
        ...     return pipeline_loss(layer, square, w, (), x, t, mesh=mesh,
        ...         schedule=schedules.one_f_one_b(stages=1, microbatches=2))
        >>> x, targets = jnp.ones((4, 3)), jnp.zeros((4, 3))
        >>> value, grad = jax.value_and_grad(step)(jnp.ones((2, 3, 3)), x, targets)
        >>> grad.shape
        (2, 3, 3)

    References:
        Narayanan et al., arXiv 2104.04473 (1F1B, interleaved); Qi et al., Zero Bubble Pipeline
        Parallelism, arXiv 2401.10241 (splitting B in I and W).
    """
    check_mesh(mesh, axis, schedule)
    batch = batch_size(x, schedule.microbatches)
    check_targets(targets, batch)
    targets = jax.tree.map(lax.stop_gradient, targets)
    check_arrays("loss_params", loss_params)
    if not schedule.has_backward:
        raise ValueError(
            f"schedule {schedule.name!r} has no backward; use it whole, not its .forward()"
        )
    if gather not in GATHERS:
        raise ValueError(f"gather must be one of {', '.join(GATHERS)}; got {gather!r}")
    schedule.validate()
    fsdp = fsdp_devices(mesh, fsdp_axis, axis)
    check_rows(batch // schedule.microbatches, fsdp, fsdp_axis)
    dims = partitioned_dims(specs, one_layer(params), fsdp_axis, fsdp)
    prepared = prepare(layer, params, x, schedule, mesh, remat, rng, layer_aux)

    def of_carried(loss_params, carried, targets):
        y, sums = prepared.apart(carried)
        return loss(loss_params, y, targets, *((of_rows(sums),) if layer_aux else ()))

    last = one_microbatch(prepared.x, schedule.microbatches)
    target = one_microbatch(targets, schedule.microbatches)
    with use_abstract_mesh(automatic(mesh).abstract_mesh):
        metrics = check_loss(of_carried, has_aux, loss_params, last, target)
    stages = (axis,) if schedule.stages > 1 else ()
    manual = stages + ((fsdp_axis,) if fsdp_axis and fsdp > 1 else ())
    last, target = (one_microbatch(tree, fsdp) for tree in (last, target))
    layer_of, closed = hoist(prepared.layer, mesh, manual, one_layer(prepared.params), last)
    loss_of, with_loss = hoist(of_carried, mesh, manual, loss_params, last, target)

    def of_all(loss_params, carried, targets):
        loss_params, closed = loss_params
        return loss_of(closed)(loss_params, carried, targets)

    setup = _Setup(
        layer=layer_of,
        terms=loss_terms(of_all, has_aux),
        schedule=schedule,
        placed=prepared.placed,
        mesh=automatic(mesh),
        axis=axis,
        fsdp_axis=fsdp_axis if fsdp > 1 else None,
        manual=manual,
        dims=dims if rng is None else (*dims, None),
        gather=gather,
        remat=remat,
    )
    value, metrics = call_automatic(
        partial(_scheduled_loss, setup),
        (jnp.zeros(()), metrics),
        prepared.params,
        (loss_params, with_loss),
        prepared.x,
        targets,
        closed,
    )
    return (value, metrics) if has_aux else value


@dataclass(frozen=True)
class _Setup:
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


def _scheduled_loss(
    setup: _Setup,
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
    setup: _Setup,
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
    setup: _Setup,
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
    setup: _Setup, loss_params: PyTree, y: PyTree, target: PyTree, targets: PyTree
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
