"""JAX meshes over slices: slow links on the outer axes, neighbours inside a slice on the inner.

Each slice is a box of chips. An axis that lies inside a slice takes a smaller box of it, and
walks that box so that neighbours on the axis are neighbours on the wires, around a closed ring
where the box has one, see `_coordinates.py`.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from ringline.topology._coordinates import (
    box_of,
    closed_axes,
    have_coordinates,
    minus,
    place_of,
    slice_of,
    walk,
)

if TYPE_CHECKING:
    import numpy as np
    from jax.sharding import Mesh


def make_mesh(
    axes: Mapping[str, int],
    *,
    devices: Sequence[Any] | None = None,
    slices: int | None = None,
) -> "Mesh":
    """A mesh over all devices, its first axes across slices and its last inside them.

    The same call works on emulated devices, on those of `ringline.aot.target(...)`, and on a
    real system of several slices. Slices are divided over the axes from the first on, as far as
    they divide its size; what is left of an axis lies inside a slice, in ring order by the chips'
    coordinates.

    Args:
        axes: size of each axis, outermost first, such as `{"stage": 4, "fsdp": 8}`; one may be
            -1, which is what the others leave.
        devices: which devices; all that JAX has if None.
        slices: treat devices that know no slice, such as emulated ones, as so many slices of
            consecutive devices.

    Returns:
        The mesh, with automatic axes.

    Raises:
        ValueError: when the sizes do not make up the devices, or slices are not equal.

    Example:
        >>> import jax
        >>> mesh = make_mesh({"stage": 1, "fsdp": -1})
        >>> mesh.axis_names, mesh.shape["fsdp"] == len(jax.devices())
        (('stage', 'fsdp'), True)
    """
    import jax
    import numpy as np
    from jax.sharding import Mesh

    found = list(jax.devices() if devices is None else devices)
    groups = _by_slice(found, slices)
    sizes = _sizes(axes, len(found), len(groups))
    across = _across(sizes, len(groups))
    inside = [size // part for size, part in zip(sizes, across)]
    grids = np.stack([_arrange(group, inside) for group in groups])
    grid = grids.reshape(*across, *inside)
    count = len(sizes)
    pairs = [axis for i in range(count) for axis in (i, count + i)]
    return Mesh(grid.transpose(pairs).reshape(sizes), tuple(axes))


def _by_slice(devices: list[Any], slices: int | None) -> list[list[Any]]:
    if slices is not None:
        if slices < 1 or len(devices) % slices:
            raise ValueError(f"{len(devices)} devices do not make {slices} equal slices")
        each = len(devices) // slices
        return [devices[i * each : (i + 1) * each] for i in range(slices)]
    groups: dict[Any, list[Any]] = {}
    for device in devices:
        groups.setdefault(slice_of(device), []).append(device)
    sizes = {len(group) for group in groups.values()}
    if len(sizes) != 1:
        raise ValueError(f"slices must be equal, got {sorted(sizes)} devices; pass devices=")
    return [groups[key] for key in sorted(groups)]


def _sizes(axes: Mapping[str, int], devices: int, slices: int) -> list[int]:
    sizes = list(axes.values())
    listing = " x ".join(f"{name} {size}" for name, size in axes.items())
    have = f"{devices} devices" + (f" ({slices} slices)" if slices > 1 else "")
    free = [i for i, size in enumerate(sizes) if size == -1]
    if len(free) > 1 or any(size < 1 and size != -1 for size in sizes):
        raise ValueError(
            f"mesh axes must be at least 1, one of them -1 for the rest; got {listing}"
        )
    known = math.prod(size for size in sizes if size != -1)
    if free and devices % known == 0:
        sizes[free[0]] = devices // known
    if math.prod(sizes) != devices or not sizes:
        raise ValueError(
            f"mesh {listing or 'without axes'} takes {known} devices, but there are {have}; "
            "change an axis"
        )
    return sizes


def _across(sizes: list[int], slices: int) -> list[int]:
    """How many slices each axis crosses, the first axes first."""
    left, across = slices, []
    for size in sizes:
        across.append(math.gcd(size, left))
        left //= across[-1]
    assert left == 1  # the slices divide the devices, whose primes the sizes share out
    return across


def _arrange(devices: list[Any], sizes: list[int]) -> "np.ndarray":
    """The devices of one slice as a grid of `sizes`, by their coordinates where they have any."""
    import numpy as np

    grid = np.empty(len(devices), dtype=object)
    grid[:] = devices
    if not have_coordinates(devices):
        return grid.reshape(sizes)
    start, extent = box_of(devices)
    if math.prod(extent) != len(devices):
        return grid.reshape(sizes)
    at = {minus(place_of(device), start): device for device in devices}
    boxes = _boxes(sizes, extent)
    walks = [walk(box) for box in boxes]
    for index, steps in enumerate(product(*walks)):
        place, scale = (0,) * len(extent), (1,) * len(extent)
        for box, step in zip(reversed(boxes), reversed(steps)):  # the innermost lies closest
            place = tuple(p + k * s for p, k, s in zip(place, scale, step))
            scale = tuple(k * length for k, length in zip(scale, box))
        grid[index] = at[place]
    return grid.reshape(sizes)


def _boxes(sizes: list[int], extent: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The box that each axis takes, innermost axes choosing first."""
    left, boxes = extent, []
    wraps = closed_axes(extent)
    for size in reversed(sizes):
        box = min(
            (found for found in product(*map(_divisors, left)) if math.prod(found) == size),
            key=lambda found: (
                not _is_ring(found, extent, wraps),
                # Whole lengths leave whole lengths, and so neighbours, to the other axes.
                sum(length not in (1, have) for length, have in zip(found, left)),
                max(found),
                found[::-1],
            ),
        )
        boxes.append(box)
        left = tuple(have // length for have, length in zip(left, box))
    return boxes[::-1]


def _is_ring(box: tuple[int, ...], extent: tuple[int, ...], wraps: tuple[bool, ...]) -> bool:
    long = [axis for axis, length in enumerate(box) if length > 1]
    size = math.prod(box)
    if size <= 2:
        return True
    if len(long) == 1:
        return wraps[long[0]] and box[long[0]] == extent[long[0]]
    return size % 2 == 0


def _divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]
