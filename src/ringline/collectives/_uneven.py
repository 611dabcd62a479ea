"""Shards of different lengths: padded to the longest to move, compact at the other end."""

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from jax import Array, lax


def check_sizes(
    sizes: Sequence[int], devices: int, length: int, *, whole: bool, shape: tuple[int, ...]
) -> tuple[int, ...]:
    """The sizes as a tuple, if they fit the dim of `length` that they cut.

    Args:
        sizes: one a device.
        devices: how many there are.
        length: of the dim: of the longest shard, or of all of them together.
        whole: whether the dim holds all shards.
        shape: of the array, for messages.
    """
    found = tuple(sizes) if isinstance(sizes, Iterable) else (sizes,)
    if len(found) != devices or not all(map(_is_length, found)):
        raise ValueError(
            f"sizes must be {devices} lengths of at least 0, one for each device, got {found}; "
            "change sizes"
        )
    expected, what = (sum(found), "sum") if whole else (max(found), "largest")
    if expected != length:
        raise ValueError(
            f"the {what} of sizes must be the {length} rows of an array of shape {shape}, got "
            f"{expected}; change sizes or pad the array"
        )
    return found


def _is_length(size: Any) -> bool:
    whole = isinstance(size, int | np.integer) and not isinstance(size, bool)
    return whole and int(size) >= 0


def compact(x: Array, sizes: Sequence[int], axis: int) -> Array:
    """Leave out the padding after each shard; all shards in `x` are as long as the longest."""
    longest = max(sizes)
    kept = [
        lax.slice_in_dim(x, device * longest, device * longest + size, axis=axis)
        for device, size in enumerate(sizes)
    ]
    return lax.concatenate(kept, axis)


def padded(x: Array, sizes: Sequence[int], axis: int) -> Array:
    """Pad each shard in `x` with zeros to the length of the longest."""
    longest = max(sizes)
    stops = accumulate(sizes)
    parts = [
        _pad(lax.slice_in_dim(x, stop - size, stop, axis=axis), longest - size, axis)
        for stop, size in zip(stops, sizes)
    ]
    return lax.concatenate(parts, axis)


def _pad(x: Array, rows: int, axis: int) -> Array:
    config: list[Any] = [(0, 0, 0)] * x.ndim
    config[axis] = (0, rows, 0)
    return lax.pad(x, x.dtype.type(0), config)
