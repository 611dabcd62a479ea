"""Which dimension of each weight is partitioned over the FSDP axis."""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import PartitionSpec

PyTree = Any


def partitioned_dims(
    specs: PyTree | None, layer: PyTree, axis: str | None, size: int
) -> tuple[int | None, ...]:
    """For each leaf of one layer's parameters, its dimension over `axis`, or None.

    Args:
        specs: a `PartitionSpec` for each leaf, or one for all, or None to choose: the largest
            dimension that `size` divides.
        layer: the shapes of one layer's parameters.
        axis: the FSDP axis.
        size: how many devices it has.

    Raises:
        ValueError: for a spec that does not fit its leaf.
    """
    leaves = jax.tree_util.tree_leaves_with_path(layer)
    if size == 1 or axis is None:
        return (None,) * len(leaves)
    if specs is None:
        return tuple(_largest(leaf.shape, size) for _, leaf in leaves)
    is_spec = lambda node: isinstance(node, PartitionSpec)  # noqa: E731
    each = jax.tree.leaves(_for_each(specs, layer, is_spec), is_leaf=is_spec)
    return tuple(_of_spec(path, leaf, spec, axis, size) for (path, leaf), spec in zip(leaves, each))


def _for_each(specs: PyTree, layer: PyTree, is_spec: Callable[[Any], bool]) -> PyTree:
    """The specs with one for each leaf of the layer's parameters."""
    try:
        if all(map(is_spec, jax.tree.leaves(specs, is_leaf=is_spec))):
            return jax.tree.broadcast(specs, layer, is_leaf=is_spec)
    except ValueError:
        pass  # JAX says where the trees differ, over ten lines.
    raise ValueError(
        "specs must be one PartitionSpec, or a tree of them like one layer's params, "
        f"{jax.tree.structure(layer)}; got {specs}"
    )


def _largest(shape: tuple[int, ...], size: int) -> int | None:
    fitting = [dim for dim, length in enumerate(shape) if length and length % size == 0]
    return max(fitting, key=lambda dim: shape[dim], default=None)


def _of_spec(path: Any, leaf: Any, spec: PartitionSpec, axis: str, size: int) -> int | None:
    for dim, names in enumerate(spec):
        if names == axis or names == (axis,):
            if dim >= len(leaf.shape) or leaf.shape[dim] % size:
                raise ValueError(
                    f"params{jax.tree_util.keystr(path)} {list(leaf.shape)} cannot be partitioned "
                    f"by {spec}: dimension {dim} must be a multiple of the {size} devices of "
                    f"{axis!r}; change specs"
                )
            return dim
        if isinstance(names, tuple) and axis in names:
            raise ValueError(
                f"params{jax.tree_util.keystr(path)}: {spec} partitions one dimension over "
                f"{names}; {axis!r} must stand alone in its dimension"
            )
    return None
