"""Check what a user hands to the pipeline, before anything is compiled."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from ringline.pipeline._leaves import dtype_of
from ringline.schedule import PipelineSchedule

PyTree = Any


def check_mesh(mesh: Mesh, axis: str, schedule: PipelineSchedule) -> None:
    """Raise ValueError unless the mesh has the axis, with one place for each stage."""
    if not isinstance(schedule, PipelineSchedule):
        raise ValueError(
            "schedule must be a PipelineSchedule such as ringline.schedules.circular(stages=4, "
            f"microbatches=8), got {schedule!r}"
        )
    if not isinstance(mesh, Mesh):
        raise ValueError(
            f"mesh must be a jax.sharding.Mesh of devices, got {mesh!r}; make one with "
            f"jax.make_mesh(({schedule.stages},), ({axis!r},))"
        )
    if axis not in mesh.shape:
        raise ValueError(
            f"the mesh has no axis {axis!r}, only {tuple(mesh.shape)}; pass axis= with the name "
            "of the stage axis"
        )
    if mesh.shape[axis] != schedule.stages:
        raise ValueError(
            f"schedule {schedule.name!r} has {schedule.stages} stages, but mesh axis {axis!r} "
            f"has {mesh.shape[axis]} devices; make the two equal"
        )


def fsdp_devices(mesh: Mesh, fsdp_axis: str | None, axis: str) -> int:
    """The size of the FSDP axis, 1 without. Only the name it has by default may be missing."""
    if fsdp_axis == axis:
        raise ValueError(
            f"fsdp_axis and axis are both {axis!r}; name another axis of the mesh, or None for none"
        )
    if fsdp_axis is None or (fsdp_axis == "fsdp" and fsdp_axis not in mesh.shape):
        return 1
    if fsdp_axis not in mesh.shape:
        raise ValueError(
            f"the mesh has no axis {fsdp_axis!r}, only {tuple(mesh.shape)}; pass fsdp_axis= with "
            "the name of one, or None for none"
        )
    return mesh.shape[fsdp_axis]


def batch_size(x: PyTree, microbatches: int) -> int:
    """The leading axis that all leaves of `x` share, checked against the microbatches."""
    leaves = jax.tree_util.tree_leaves_with_path(x)
    if not leaves:
        raise ValueError("x has no array; every leaf must be [batch, ...]")
    sizes = {jax.tree_util.keystr(path): jnp.shape(leaf)[:1] for path, leaf in leaves}
    if len(set(sizes.values())) > 1 or () in sizes.values():
        listing = ", ".join(f"x{path} {size}" for path, size in sizes.items())
        raise ValueError(f"every leaf of x must have the same leading batch axis, got {listing}")
    (batch,) = next(iter(sizes.values()))
    if batch % microbatches or not batch:
        raise ValueError(
            f"{microbatches} microbatches must divide the batch, got a batch of {batch}; change "
            "the batch size or the schedule's microbatches"
        )
    return batch


def by_rows(x: PyTree, microbatches: int) -> PyTree:
    """From `[batch, ...]` to `[batch / microbatches, microbatches, ...]`, without a copy.

    Microbatch i has the rows i, i + m, i + 2m, ... of the batch: one that is partitioned over
    devices stays where it is, while consecutive rows would have to move.
    """
    return jax.tree.map(lambda leaf: jnp.reshape(leaf, (-1, microbatches, *leaf.shape[1:])), x)


def split_batch(x: PyTree, microbatches: int) -> PyTree:
    """From `[batch, ...]` to `[microbatches, batch / microbatches, ...]`, see `by_rows`."""
    return jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), by_rows(x, microbatches))


def join_batch(y: PyTree) -> PyTree:
    """The inverse of `split_batch`."""
    return jax.tree.map(
        lambda leaf: jnp.reshape(jnp.swapaxes(leaf, 0, 1), (-1, *leaf.shape[2:])), y
    )


def check_targets(targets: PyTree, batch: int) -> None:
    """Raise ValueError unless every leaf of the targets has the batch axis."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(targets):
        if jnp.shape(leaf)[:1] != (batch,):
            raise ValueError(
                f"targets{jax.tree_util.keystr(path)} must be [batch, ...] with the batch of x, "
                f"{batch}; got {list(jnp.shape(leaf))}"
            )


def check_rows(rows: int, devices: int, axis: str | None) -> None:
    """Raise ValueError unless the devices of the FSDP axis divide a microbatch's rows."""
    if rows % devices:
        raise ValueError(
            f"the {devices} devices of mesh axis {axis!r} must divide the rows of a microbatch, "
            f"got {rows}; use a larger batch, fewer microbatches, or fsdp_axis=None"
        )


def one_microbatch(x: PyTree, microbatches: int) -> PyTree:
    """The shapes and dtypes of one microbatch of `x`."""

    def shape_of(leaf):
        rows = leaf.shape[0] // microbatches
        return jax.ShapeDtypeStruct((rows, *leaf.shape[1:]), dtype_of(leaf))

    return jax.tree.map(shape_of, x)


def check_layer(
    layer: Callable[..., PyTree], params: PyTree, given: PyTree, *rest: PyTree, layer_aux: bool
) -> PyTree:
    """Raise ValueError unless the layer gives back what it takes: structure, shapes, dtypes.

    Args:
        layer: `(layer_params, x, *rest) -> x`, or `-> (x, auxiliary)` with `layer_aux`.
        params: the shapes of one layer's parameters.
        given: the shapes of one microbatch.
        rest: the shapes of further arguments.
        layer_aux: whether the layer gives auxiliary values.

    Returns:
        The shapes of the auxiliary values; `()` without.
    """
    got, auxiliary = jax.eval_shape(layer, params, given, *rest), ()
    if layer_aux:
        if not (isinstance(got, tuple) and len(got) == 2):
            raise ValueError(
                "with layer_aux=True the layer must return (x, auxiliary), got "
                f"{jax.tree.structure(got)}; return a pair, or leave layer_aux out"
            )
        got, auxiliary = got
    if jax.tree.structure(got) != jax.tree.structure(given):
        raise ValueError(
            "the layer must return the structure it takes: expected "
            f"{jax.tree.structure(given)}, got {jax.tree.structure(got)}"
            + ("" if layer_aux else "; auxiliary values beside x need layer_aux=True")
        )
    pairs = zip(jax.tree_util.tree_leaves_with_path(given), jax.tree.leaves(got))
    for (path, before), after in pairs:
        if (before.shape, before.dtype) != (after.shape, after.dtype):
            raise ValueError(
                f"the layer changes x{jax.tree_util.keystr(path)} from {before.dtype}"
                f"{list(before.shape)} to {after.dtype}{list(after.shape)}; a layer between "
                "stages must keep shapes and dtypes"
            )
    return auxiliary
