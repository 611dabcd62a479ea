"""Slots in the loop's carry: a leaf `[slots, ...]` for each leaf of what they hold."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

PyTree = Any


def buffers(like: PyTree, slots: int) -> PyTree:
    """`slots` empty slots for values shaped like `like`."""
    return jax.tree.map(lambda leaf: jnp.zeros((slots, *leaf.shape), leaf.dtype), like)


def put(buffer: PyTree, slot, value: PyTree) -> PyTree:
    """Write `value` into one slot."""
    return jax.tree.map(lambda b, v: lax.dynamic_update_index_in_dim(b, v, slot, 0), buffer, value)


def take(buffer: PyTree, slot, axis: int = 0) -> PyTree:
    """Read one slot, counted along `axis`."""
    return jax.tree.map(lambda b: lax.dynamic_index_in_dim(b, slot, axis, keepdims=False), buffer)


def put_if(wanted, buffer: PyTree, slot, value: PyTree, axis: int) -> PyTree:
    """Write `value` into one slot along `axis` where `wanted` holds."""

    def one(b, v):
        old = lax.dynamic_index_in_dim(b, slot, axis, keepdims=False)
        return lax.dynamic_update_index_in_dim(b, jnp.where(wanted, v, old), slot, axis)

    return jax.tree.map(one, buffer, value)


def select(from_buffer, buffer: PyTree, slot, other: PyTree) -> PyTree:
    """Slot `slot` of `buffer` where `from_buffer` holds, else `other`."""
    return jax.tree.map(lambda b, o: jnp.where(from_buffer, b, o), take(buffer, slot), other)
