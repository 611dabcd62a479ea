"""Tell the leaves of a tree that have gradients from those that travel along (ids, masks)."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

PyTree = Any


@dataclass(frozen=True, slots=True)
class Leaves:
    """How a tree comes apart into differentiable leaves and others, and together again.

    Attributes:
        structure: the tree's.
        smooth: for each leaf in order, whether it has a gradient.
    """

    structure: Any
    smooth: tuple[bool, ...]

    @classmethod
    def of(cls, tree: PyTree) -> "Leaves":
        """The leaves of `tree`, arrays or shapes."""
        leaves, structure = jax.tree.flatten(tree)
        return cls(structure, tuple(jnp.issubdtype(leaf.dtype, jnp.inexact) for leaf in leaves))

    def split(self, tree: PyTree) -> tuple[list[Any], list[Any]]:
        """The differentiable leaves, and the others."""
        leaves = self.structure.flatten_up_to(tree)
        smooth = [leaf for leaf, is_smooth in zip(leaves, self.smooth) if is_smooth]
        return smooth, [leaf for leaf, is_smooth in zip(leaves, self.smooth) if not is_smooth]

    def join(self, smooth: list[Any], rest: list[Any]) -> PyTree:
        """The tree of those leaves."""
        sources = iter(smooth), iter(rest)
        leaves = [next(sources[0 if is_smooth else 1]) for is_smooth in self.smooth]
        return jax.tree.unflatten(self.structure, leaves)

    def cotangent(self, smooth: list[Any], like: PyTree) -> PyTree:
        """A cotangent for the tree: `smooth` where there are gradients, float0 elsewhere."""
        _, rest = self.split(like)
        return self.join(smooth, [np.zeros(jnp.shape(leaf), jax.dtypes.float0) for leaf in rest])


def check_arrays(name: str, tree: PyTree) -> None:
    """Raise ValueError unless every leaf of the argument called `name` is an array."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if not hasattr(leaf, "shape"):
            raise ValueError(
                f"{name}{jax.tree_util.keystr(path)} is a {type(leaf).__name__}, and every leaf "
                "must be an array; part arrays from the rest with equinox.partition or "
                "flax.nnx.split"
            )


def dtype_of(leaf: Any) -> Any:
    """The type that JAX gives the leaf: of NumPy's float64, float32 unless 64 bits are enabled."""
    return jax.dtypes.canonicalize_dtype(leaf.dtype, allow_extended_dtype=True)
