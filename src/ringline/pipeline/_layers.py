"""Put a stack of layers onto stages: from `[layers, ...]` to places of `[repeats, stages, ...]`."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ringline.pipeline._leaves import check_arrays, dtype_of
from ringline.schedule import PipelineSchedule

PyTree = Any


@partial(jax.tree_util.register_dataclass, data_fields=["places"], meta_fields=["layers"])
@dataclass(frozen=True)
class StackedLayers:
    """Layer parameters in the form the stages hold them, each chunk where it is used.

    A chunk of several layers has as many places, and each place keeps arrays of its own: the
    loop then uses a layer's weights where they lie, without slicing them out.

    Attributes:
        places: for each place of a chunk in order, one layer's parameters with leaves
            `[repeats, stages, ...]`. A place beyond a smaller chunk's layers is padding: it is
            never used and its gradients are zero.
        layers: how many layers the model has.

    Made by `stack_layers`; `pipeline` and `pipeline_loss` take it in place of plain parameters,
    and gradients come in the same form, so an optimizer can keep its state in it.
    """

    places: tuple[PyTree, ...]
    layers: int


@dataclass(frozen=True, slots=True)
class Placement:
    """Which layer stands where.

    Attributes:
        layers: how many layers the model has.
        layer_at: `[repeats, stages, depth]`, the layer at each place; padding is -1.
    """

    layers: int
    layer_at: np.ndarray

    @property
    def depth(self) -> int:
        """Layers of the largest chunk."""
        return self.layer_at.shape[2]

    @property
    def counts(self) -> np.ndarray:
        """`[repeats, stages]`, how many layers each chunk has."""
        return (self.layer_at >= 0).sum(axis=2)

    @property
    def is_reshape(self) -> bool:
        """Whether stacking is a plain reshape: looped placement and equal chunks."""
        return (
            bool((self.layer_at.ravel() == np.arange(self.layers)).all())
            if (self.layer_at.size == self.layers)
            else False
        )


def placement(schedule: PipelineSchedule, layers: int) -> Placement:
    """Where each of `layers` layers goes under `schedule`.

    Raises:
        ValueError: when the schedule cannot place that many layers.
    """
    counts = schedule.layers_of_chunks(layers)
    layer_at = np.full((schedule.repeats, schedule.stages, max(counts)), -1)
    first = 0
    for chunk, count in enumerate(counts):
        place = schedule.repeat_of[chunk], schedule.stage_of[chunk]
        layer_at[place][:count] = np.arange(first, first + count)
        first += count
    return Placement(layers, layer_at)


def placement_of(params: PyTree | StackedLayers, schedule: PipelineSchedule) -> Placement:
    """Where the layers of `params` go, plain or stacked.

    Raises:
        ValueError: when the schedule cannot place them, or they were stacked for another.
    """
    if not isinstance(params, StackedLayers):
        return placement(schedule, layer_count(params))
    placed = placement(schedule, params.layers)
    shape = *jax.tree.leaves(params.places)[0].shape[:2], len(params.places)
    if placed.layer_at.shape != shape:
        raise ValueError(
            f"stacked params have [repeats, stages, places] = {list(shape)}, but schedule "
            f"{schedule.name!r} needs {list(placed.layer_at.shape)}; stack them with this schedule"
        )
    return placed


def one_layer(params: PyTree | StackedLayers) -> PyTree:
    """The shapes and dtypes of one layer's parameters."""
    if isinstance(params, StackedLayers):
        tree, leading = params.places[0], 2
    else:
        layer_count(params)
        tree, leading = params, 1
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape[leading:], dtype_of(leaf)), tree
    )


def stack_layers(
    params: PyTree,
    schedule: PipelineSchedule,
    mesh: Mesh | None = None,
    *,
    axis: str = "stage",
    specs: PyTree | None = None,
) -> StackedLayers:
    """Bring layer parameters into the form the stages hold, and onto their devices.

    `pipeline` does this by itself for plain parameters. Doing it once, before training, saves
    moving the weights of a circular schedule in every step.

    Args:
        params: every leaf `[layers, ...]`, in model order.
        schedule: decides which stage holds which layers.
        mesh: where to put them; None leaves them where they are.
        axis: the mesh's stage axis.
        specs: for each leaf (or one for all), the `PartitionSpec` of one layer's parameter,
            such as `P("fsdp", None)`; None for not partitioned.

    Returns:
        The stacked parameters.

    Raises:
        ValueError: when leaves disagree about the number of layers, or the schedule cannot
            place them.

    Example:
        >>> import jax.numpy as jnp
        >>> from ringline import schedules
        >>> schedule = schedules.circular(stages=2, microbatches=2, repeats=2)
        >>> stacked = stack_layers({"w": jnp.zeros((8, 3, 3))}, schedule)
        >>> len(stacked.places), stacked.places[0]["w"].shape
        (2, (2, 2, 3, 3))
    """
    placed = placement(schedule, layer_count(params))

    def stack(params: PyTree) -> StackedLayers:
        places = range(placed.depth)
        return StackedLayers(
            tuple(jax.tree.map(partial(_at_place, placed, i), params) for i in places),
            placed.layers,
        )

    if mesh is None:
        return stack(params)
    is_spec = lambda node: isinstance(node, PartitionSpec)  # noqa: E731
    each = jax.tree.broadcast(specs or PartitionSpec(), params, is_leaf=is_spec)
    shardings = jax.tree.map(
        lambda spec: NamedSharding(mesh, PartitionSpec(None, axis, *spec)), each, is_leaf=is_spec
    )
    out = StackedLayers((shardings,) * placed.depth, placed.layers)
    return jax.jit(stack, out_shardings=out)(params)


def _at_place(placed: Placement, place: int, leaf: Any) -> Any:
    """From `[layers, ...]`, the layers of one place of every chunk: `[repeats, stages, ...]`."""
    if placed.is_reshape:
        return jnp.reshape(leaf, placed.layer_at.shape + leaf.shape[1:])[:, :, place]
    return jnp.take(jnp.asarray(leaf), np.maximum(placed.layer_at[:, :, place], 0), axis=0)


def unstack_layers(stacked: StackedLayers, schedule: PipelineSchedule) -> PyTree:
    """Bring stacked parameters (or their gradients) back to `[layers, ...]` in model order.

    Args:
        stacked: what `stack_layers` gave for the same schedule, or gradients of that.
        schedule: the schedule they were stacked for.

    Returns:
        The parameters, every leaf `[layers, ...]`.

    Example:
        >>> import jax.numpy as jnp
        >>> from ringline import schedules
        >>> schedule = schedules.circular(stages=2, microbatches=2, repeats=2)
        >>> params = {"w": jnp.arange(4.0)}
        >>> unstack_layers(stack_layers(params, schedule), schedule)["w"].tolist()
        [0.0, 1.0, 2.0, 3.0]
    """
    placed = placement_of(stacked, schedule)
    order = np.argsort(placed.layer_at.ravel())[-placed.layers :]

    def unstack(*leaves):
        together = jnp.stack(leaves, axis=2)
        flat = jnp.reshape(together, (-1, *together.shape[3:]))
        return flat if placed.is_reshape else jnp.take(flat, order, axis=0)

    return jax.tree.map(unstack, *stacked.places)


def layer_count(params: PyTree) -> int:
    """The length of the leading axis that all leaves share.

    Raises:
        ValueError: when there is no leaf, one is no array, or the leaves disagree.
    """
    leaves = jax.tree_util.tree_leaves_with_path(params)
    if not leaves:
        raise ValueError("params has no array; every leaf must be [layers, ...]")
    check_arrays("params", params)
    first_path, first = leaves[0]
    for path, leaf in leaves:
        if not jnp.ndim(leaf) or not jnp.ndim(first) or leaf.shape[0] != first.shape[0]:
            raise ValueError(
                "every leaf of params must have the same leading layer axis; got "
                f"{jax.tree_util.keystr(first_path)} {jnp.shape(first)} and "
                f"{jax.tree_util.keystr(path)} {jnp.shape(leaf)}; stack the layers with jnp.stack"
            )
    return first.shape[0]
