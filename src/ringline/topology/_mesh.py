r"""JAX meshes over slices: slow links on the outer axes, neighbours inside a slice on the inner.

Each slice is a box of chips. An axis that lies inside a slice takes a smaller box of it, and
walks that box so that neighbours on the axis are neighbours on the wires, around a closed ring
where the box has one: any box of an even number of chips that is not a line does,

    0 > 1 > 2 > 3        there along the rows but for their first chip, back down
    ^           v        the first column. Three axes: the first two, walked as a snake,
    7 < 6 < 5 < 4        are the rows.

and so does a whole axis of the slice whose ends are joined.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from jax.sharding import Mesh

_WRAP_3D, _WRAP_2D = 4, 16  # lengths of an axis whose ends are joined are multiples of these


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


def ring_hops(mesh: "Mesh", axis: str) -> int:
    """The most wires between two neighbours on an axis, the last and the first among them.

    1 means that the axis is a physical ring. 0 means that its chips say no coordinates, or that
    the axis leaves a slice.
    """
    import numpy as np

    along = np.moveaxis(mesh.devices, mesh.axis_names.index(axis), 0)
    lines = along.reshape(along.shape[0], -1).T
    if not _have_coords(mesh.devices.flat) or along.shape[0] == 1:
        return 0
    slice_of = [{_slice_of(device) for device in line} for line in lines]
    if any(len(found) > 1 for found in slice_of):
        return 0
    extent = _box([d for d in mesh.devices.flat if _slice_of(d) == _slice_of(lines[0][0])])[1]
    wraps = _wraps(extent)
    return max(
        _distance(_place(here), _place(there), extent, wraps)
        for line in lines
        for here, there in zip(line, np.roll(line, -1))
    )


def _by_slice(devices: list[Any], slices: int | None) -> list[list[Any]]:
    if slices is not None:
        if slices < 1 or len(devices) % slices:
            raise ValueError(f"{len(devices)} devices do not make {slices} equal slices")
        each = len(devices) // slices
        return [devices[i * each : (i + 1) * each] for i in range(slices)]
    groups: dict[Any, list[Any]] = {}
    for device in devices:
        groups.setdefault(_slice_of(device), []).append(device)
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
    if not _have_coords(devices):
        return grid.reshape(sizes)
    start, extent = _box(devices)
    if math.prod(extent) != len(devices):
        return grid.reshape(sizes)
    at = {_minus(_place(device), start): device for device in devices}
    boxes = _boxes(sizes, extent)
    walks = [_walk(box) for box in boxes]
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
    wraps = _wraps(extent)
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


def _walk(box: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Every place of a box, each next to the one before; a closed way where there is one."""
    long = [axis for axis, length in enumerate(box) if length > 1]
    if len(long) < 2 or math.prod(box) % 2:
        return list(_snake(box))
    short = long[-1]
    columns = box[short]
    line = list(_snake(tuple(1 if axis == short else n for axis, n in enumerate(box))))
    if len(line) % 2:  # an even number of columns serves as rows
        grid = [[_with(place, short, row) for place in line] for row in range(columns)]
    else:
        grid = [[_with(place, short, column) for column in range(columns)] for place in line]
    there = [
        place
        for number, row in enumerate(grid)
        for place in (row[1:] if number % 2 == 0 else row[:0:-1])
    ]
    return [grid[0][0], *there, *(row[0] for row in grid[:0:-1])]


def _snake(box: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Every place of a box, each next to the one before: back and forth."""
    if not box:
        yield ()
        return
    for first in range(box[0]):
        rest = list(_snake(box[1:]))
        for place in rest if first % 2 == 0 else reversed(rest):
            yield (first, *place)


def _with(place: tuple[int, ...], axis: int, value: int) -> tuple[int, ...]:
    return (*place[:axis], value, *place[axis + 1 :])


def _divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]


def _have_coords(devices: Any) -> bool:
    return all(getattr(device, "coords", None) is not None for device in devices)


def _slice_of(device: Any) -> int:
    return getattr(device, "slice_index", None) or 0


def _place(device: Any) -> tuple[int, ...]:
    """Where a device is: its chip's coordinates, and its core on the chip."""
    return (*device.coords, getattr(device, "core_on_chip", 0) or 0)


def _box(devices: list[Any]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Where the devices' box starts, and its lengths."""
    columns = list(zip(*(_place(device) for device in devices)))
    return tuple(map(min, columns)), tuple(max(c) - min(c) + 1 for c in columns)


def _minus(place: tuple[int, ...], start: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(p - s for p, s in zip(place, start))


def _wraps(extent: tuple[int, ...]) -> tuple[bool, ...]:
    """Which axes of a slice are closed: a slice in three dimensions all or none."""
    *chips, _ = extent
    if len(chips) > 2 and chips[2] > 1:
        return (all(length % _WRAP_3D == 0 for length in chips),) * len(chips) + (False,)
    return (*(length % _WRAP_2D == 0 for length in chips), False)


def _distance(
    here: tuple[int, ...], there: tuple[int, ...], extent: tuple[int, ...], wraps: tuple[bool, ...]
) -> int:
    total = 0
    for a, b, length, wrap in zip(here, there, extent, wraps):
        way = abs(a - b)
        total += min(way, length - way) if wrap else way
    return total
