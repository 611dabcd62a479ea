"""`pipeline_loss`: the loss of a pipelined model, its gradients made by the schedule itself."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, use_abstract_mesh

from ringline.pipeline._auxiliary import of_rows
from ringline.pipeline._chunk import Remat
from ringline.pipeline._closure import hoist
from ringline.pipeline._explicit import automatic, call_automatic
from ringline.pipeline._inputs import (
    batch_size,
    check_mesh,
    check_rows,
    check_targets,
    fsdp_devices,
    one_microbatch,
)
from ringline.pipeline._layers import StackedLayers, one_layer
from ringline.pipeline._leaves import check_arrays
from ringline.pipeline._loss_terms import Loss, check_loss, loss_terms
from ringline.pipeline._prepare import prepare
from ringline.pipeline._scheduled import Setup, scheduled_loss
from ringline.pipeline._specs import partitioned_dims
from ringline.pipeline._weights import GATHERS, Gather
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

    setup = Setup(
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
        partial(scheduled_loss, setup),
        (jnp.zeros(()), metrics),
        prepared.params,
        (loss_params, with_loss),
        prepared.x,
        targets,
        closed,
    )
    return (value, metrics) if has_aux else value
