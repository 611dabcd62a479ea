"""Move floats as plain bits, so that no compiler touches them on the way.

XLA's CPU compiler carries 16-bit floats through float32 around collectives, which costs time and
turns signalling NaNs into quiet ones.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

_CARRIERS = {1: jnp.uint8, 2: jnp.uint16}


def carried_as(dtype: Any) -> tuple[Callable[[Array], Array], Callable[[Array], Array]]:
    """Functions to what arrays of `dtype` are moved as, and back.

    On a CPU small floats move as integers; elsewhere all move as they are. That cuts
    derivatives off, so it belongs inside a primitive.
    """
    small = jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits in (8, 16)
    if not small or platform() != "cpu":
        return no_change, no_change
    carrier = _CARRIERS[jnp.dtype(dtype).itemsize]
    return (
        partial(lax.bitcast_convert_type, new_dtype=carrier),
        partial(lax.bitcast_convert_type, new_dtype=dtype),
    )


def platform() -> str:
    """The platform of the mesh in use: the target's when compiling ahead of time."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return getattr(device, "platform", None) or jax.default_backend()


def no_change(x: Array) -> Array:
    """What is moved as it is."""
    return x
