"""What TPU kernels carry arrays as: words of 8, 16 or 32 bits to move, and types they can add."""

from typing import Literal

import jax.numpy as jnp
from jax import Array, lax

_BITS = {8: jnp.uint8, 16: jnp.uint16}
_MULTIPLIED = ("float32", "bfloat16")
_ADDED = ("float32", "bfloat16", "int32", "uint32")


def to_parts(x: Array) -> Array:
    """`x` as words of at most 32 bits: `[parts, *x.shape]`, with several parts for wide types.

    Floats of 16 bits become integers too: what packs and places them may quieten signalling NaNs.
    """
    dtype = x.dtype
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return lax.concatenate([to_parts(lax.real(x)), to_parts(lax.imag(x))], 0)
    if dtype == jnp.bool_:
        return x.astype(jnp.uint8)[None]
    if jnp.issubdtype(dtype, jnp.integer):
        if jnp.iinfo(dtype).bits == 64:
            return jnp.moveaxis(lax.bitcast_convert_type(x, jnp.uint32), -1, 0)
        return (x if jnp.iinfo(dtype).bits >= 8 else x.astype(_whole(dtype)))[None]
    if jnp.issubdtype(dtype, jnp.floating):
        bits = jnp.finfo(dtype).bits
        if bits == 64:
            return jnp.moveaxis(lax.bitcast_convert_type(x, jnp.uint32), -1, 0)
        if bits == 32:
            return x[None]
        return lax.bitcast_convert_type(x, _BITS[bits])[None]
    raise AssertionError(dtype)


def from_parts(parts: Array, dtype) -> Array:
    """The array of type `dtype` that `to_parts` took apart."""
    if jnp.issubdtype(dtype, jnp.complexfloating):
        half, real = parts.shape[0] // 2, jnp.finfo(dtype).dtype
        return lax.complex(from_parts(parts[:half], real), from_parts(parts[half:], real))
    if parts.shape[0] == 2:
        return lax.bitcast_convert_type(jnp.moveaxis(parts, 0, -1), dtype)
    if jnp.issubdtype(dtype, jnp.floating) and parts.dtype != dtype:
        return lax.bitcast_convert_type(parts[0], dtype)
    return parts[0].astype(dtype)


def to_terms(x: Array) -> Array:
    """`x` as terms of a type that kernels add: `[parts, *x.shape]`.

    Small integers are summed as 32-bit ones, which are the same modulo their size.
    """
    if x.dtype == jnp.complex64:
        return jnp.stack([lax.real(x), lax.imag(x)])
    if x.dtype.name in _ADDED:
        return x[None]
    signed = jnp.issubdtype(x.dtype, jnp.signedinteger)
    return x.astype(jnp.int32 if signed else jnp.uint32)[None]


def from_terms(terms: Array, dtype) -> Array:
    """The sums of type `dtype` that `to_terms` took apart."""
    if dtype == jnp.complex64:
        return lax.complex(terms[0], terms[1])
    return terms[0].astype(dtype)


def check_type(does: Literal["carry", "add", "multiply"], dtype) -> None:
    """Refuse a type that kernels cannot carry, add or multiply."""
    name = jnp.dtype(dtype).name
    small = jnp.issubdtype(dtype, jnp.integer) and jnp.iinfo(dtype).bits < 32
    serves = {
        "carry": jnp.issubdtype(dtype, jnp.number) or dtype == jnp.bool_,
        "add": small or dtype == jnp.complex64 or name in _ADDED,
        "multiply": name in _MULTIPLIED,
    }
    if not serves[does]:
        expected = {
            "carry": "a number",
            "add": f"{', '.join(_ADDED)}, complex64 or a smaller integer",
            "multiply": " or ".join(_MULTIPLIED),
        }
        raise ValueError(
            f"implementation 'pallas' cannot {does} {name}, expected {expected[does]}; use "
            "implementation='permute' or another type"
        )


def _whole(dtype) -> type:
    return jnp.int8 if jnp.issubdtype(dtype, jnp.signedinteger) else jnp.uint8
