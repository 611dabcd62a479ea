"""Move floats as plain bits, so that no compiler touches them on the way.

XLA's CPU compiler carries 16-bit floats through float32 around collectives, which costs time and
turns signalling NaNs into quiet ones.
"""

from collections.abc import Callable

import jax.numpy as jnp
from jax import Array, lax

_CARRIERS = {1: jnp.uint8, 2: jnp.uint16}


def moved_as_bits(move: Callable[[Array], Array], x: Array) -> Array:
    """`move(x)` for a `move` that only copies; small floats travel as unsigned integers."""
    dtype = x.dtype
    if not jnp.issubdtype(dtype, jnp.floating) or jnp.finfo(dtype).bits not in (8, 16):
        return move(x)
    carrier = _CARRIERS[dtype.itemsize]
    return lax.bitcast_convert_type(move(lax.bitcast_convert_type(x, carrier)), dtype)
