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


def take(buffer: PyTree, slot) -> PyTree:
    """Read one slot."""
    return jax.tree.map(lambda b: lax.dynamic_index_in_dim(b, slot, keepdims=False), buffer)


def select(from_buffer, buffer: PyTree, slot, other: PyTree, index) -> PyTree:
    """Slot `slot` of `buffer` where `from_buffer` holds, else entry `index` of `other`."""
    return jax.tree.map(
        lambda b, o: jnp.where(from_buffer, b, o), take(buffer, slot), take(other, index)
    )
