"""The shapes that tests and benchmarks of the collectives share."""

from dataclasses import dataclass
from math import prod

import jax.numpy as jnp

TARGET_DEVICES = 4
"""The targeted cases are for rings and lines of four devices."""


@dataclass(frozen=True, slots=True)
class Case:
    """A gathered shape, the dim that is gathered and the element type."""

    shape: tuple[int, ...]
    dim: int
    dtype: str

    @property
    def size_bytes(self) -> int:
        """Bytes of the gathered array, T."""
        return prod(self.shape) * jnp.dtype(self.dtype).itemsize

    def __str__(self) -> str:
        return f"{list(self.shape)} dim {self.dim} {self.dtype}"


_LAST_DIM = [
    *((1, 1, rows, columns) for rows in (32, 2048) for columns in (4096, 8192, 16384, 32768)),
    (1, 1, 32768, 16384),
    (1, 1, 32768, 32768),
    (1, 1, 1024, 128),
    (1, 1, 4096, 128),
]
_ROWS_DIM = [
    *((1, 1, 128, columns) for columns in (1024, 2048, 4096, 8192)),
    (1, 1, 8192, 32),
    (1, 1, 16384, 32),
]

TARGETED_SHAPES: tuple[tuple[tuple[int, ...], int], ...] = (
    *((shape, 3) for shape in _LAST_DIM),
    *((shape, 2) for shape in _ROWS_DIM),
)
"""Gathered shapes and dims of matmul outputs that 4-chip machines gather in decoder LMs."""

TARGETED: tuple[Case, ...] = tuple(
    Case(shape, dim, dtype) for shape, dim in TARGETED_SHAPES for dtype in ("bfloat16", "float32")
)

SMALL_SHARDS: tuple[tuple[tuple[int, ...], int], ...] = (
    ((6,), 0),
    ((1,), 0),
    ((0,), 0),
    ((3, 5), 1),
    ((3, 5), -2),
    ((1, 7), 0),
    ((8, 32), 0),
    ((2, 3, 29), 2),
    ((2, 3, 29), 0),
    ((1, 1, 32, 33), 3),
    ((1, 0, 4), 2),
    ((1, 2, 1, 3, 2), -3),
    ((2, 1, 3, 1, 2, 3), 4),
)
"""Shapes and dims of one device's shard: ranks 1 to 6, unaligned, one element, empty."""

DTYPES: tuple[str, ...] = (
    "bool",
    "int4",
    "uint4",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3b11fnuz",
    "float16",
    "bfloat16",
    "float32",
    "complex64",
)
"""Element types without the 64-bit ones, which need `jax_enable_x64`."""
