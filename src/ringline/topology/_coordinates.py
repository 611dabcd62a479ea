r"""Where chips are: boxes of them, walks through a box from neighbour to neighbour, distances.

Any box of an even number of chips that is not a line has a closed walk,

    0 > 1 > 2 > 3        there along the rows but for their first chip, back down
    ^           v        the first column. Three axes: the first two, walked as a snake,
    7 < 6 < 5 < 4        are the rows.

and so does a whole axis of a slice whose ends are joined.
"""

import math
from collections.abc import Iterator
from typing import Any

_WRAP_3D, _WRAP_2D = 4, 16  # lengths of an axis whose ends are joined are multiples of these


def walk(box: tuple[int, ...]) -> list[tuple[int, ...]]:
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


def have_coordinates(devices: Any) -> bool:
    """Whether all devices say where they are."""
    return all(getattr(device, "coords", None) is not None for device in devices)


def slice_of(device: Any) -> int:
    """The number of the slice that a device is in."""
    return getattr(device, "slice_index", None) or 0


def place_of(device: Any) -> tuple[int, ...]:
    """Where a device is: its chip's coordinates, and its core on the chip."""
    return (*device.coords, getattr(device, "core_on_chip", 0) or 0)


def box_of(devices: list[Any]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Where the devices' box starts, and its lengths."""
    columns = list(zip(*(place_of(device) for device in devices)))
    return tuple(map(min, columns)), tuple(max(c) - min(c) + 1 for c in columns)


def minus(place: tuple[int, ...], start: tuple[int, ...]) -> tuple[int, ...]:
    """A place as seen from `start`."""
    return tuple(p - s for p, s in zip(place, start))


def closed_axes(extent: tuple[int, ...]) -> tuple[bool, ...]:
    """Which axes of a slice are closed: a slice in three dimensions all or none."""
    *chips, _ = extent
    if len(chips) > 2 and chips[2] > 1:
        return (all(length % _WRAP_3D == 0 for length in chips),) * len(chips) + (False,)
    return (*(length % _WRAP_2D == 0 for length in chips), False)


def wires(
    here: tuple[int, ...], there: tuple[int, ...], extent: tuple[int, ...], wraps: tuple[bool, ...]
) -> int:
    """How many wires a message between two places takes, where axes that wrap are closed."""
    total = 0
    for a, b, length, wrap in zip(here, there, extent, wraps):
        way = abs(a - b)
        total += min(way, length - way) if wrap else way
    return total
