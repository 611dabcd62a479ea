"""Auxiliary values that layers give beside their activations, such as a router's balance loss.

They travel with the activation: each row of a microbatch carries the sum over the layers that it
has passed. So every schedule runs them, and they have gradients like any other leaf.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

PyTree = Any


def with_auxiliary(
    layer: Callable[..., tuple[PyTree, PyTree]], auxiliary: PyTree, x: PyTree
) -> tuple[Callable[..., PyTree], PyTree]:
    """Make a layer `(params, x, ...) -> (x, auxiliary)` one that carries sums along.

    Args:
        layer: the layer.
        auxiliary: the shapes of what it gives beside x.
        x: leaves `[batch, ...]`.

    Returns:
        The layer `(params, (x, sums), ...) -> (x, sums)`, and `(x, zeros)`.
    """
    batch = jax.tree.leaves(x)[0].shape[0]

    def carrying(params, carried, *rest):
        x, sums = carried
        x, values = layer(params, x, *rest)
        return x, jax.tree.map(lambda total, v: total + jnp.asarray(v, total.dtype), sums, values)

    zeros = jax.tree.map(lambda v: jnp.zeros((batch, *v.shape), _sum_dtype(v.dtype)), auxiliary)
    return carrying, (x, zeros)


def of_rows(sums: PyTree) -> PyTree:
    """The sums over layers of one microbatch, whose rows all carry the same."""
    return jax.tree.map(lambda leaf: leaf[0], sums)


def mean_over_rows(sums: PyTree) -> PyTree:
    """The mean over the microbatches of a batch, leaves `[batch, ...]`."""
    return jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), sums)


def _sum_dtype(dtype: Any) -> Any:
    # Whole numbers too: a leaf without gradient would travel unchanged.
    return jnp.promote_types(dtype, jnp.float32)
