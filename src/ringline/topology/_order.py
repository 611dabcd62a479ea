"""Orders of devices whose hops are wires: find one for a ring or a line, and tell what a mesh has.

A collective over an axis sends from each device to the next in the axis's order. Only where those
two are neighbours on the wires does a hop cost what a link costs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ringline.topology._coordinates import (
    box_of,
    closed_axes,
    have_coordinates,
    minus,
    place_of,
    slice_of,
    walk,
    wires,
)
from ringline.topology._shapes import TopologyName

if TYPE_CHECKING:
    from jax.sharding import Mesh

_STEPS = 200_000  # of a search over devices that fill no box


@dataclass(frozen=True, slots=True)
class AxisLinks:
    """What joins the devices along a mesh axis.

    Attributes:
        axis: its name.
        size: how many devices are on it.
        wires: from each place on the axis to the next, the last to the first, the most wires that
            any of the axis's lines of devices has there. 0 where chips say no coordinates or the
            two are in different slices.
        apart: the first two neighbours, the last and the first left out, that no wire joins.
    """

    axis: str
    size: int
    wires: tuple[int, ...]
    apart: tuple[Any, Any] | None = None

    @property
    def topology(self) -> TopologyName | None:
        """What the wires make of the axis: a ring, a line, or nothing that is known."""
        *inside, closing = self.wires
        if any(count != 1 for count in inside):
            return None
        return "ring" if closing == 1 and self.size > 2 else "line"


def axis_links(mesh: "Mesh", axis: str) -> AxisLinks:
    """Tell what joins the devices along `axis`: a ring or line of wires, or more wires a hop.

    Args:
        mesh: its devices' coordinates are read; emulated devices have none.
        axis: one of its axes.

    Raises:
        ValueError: when the mesh has no such axis.

    Example:
        >>> import jax
        >>> axis_links(jax.make_mesh((1,), ("x",)), "x").topology
        'line'
    """
    import numpy as np

    if axis not in mesh.axis_names:
        raise ValueError(f"the mesh has no axis {axis!r}, only {tuple(mesh.axis_names)}")
    along = np.moveaxis(mesh.devices, mesh.axis_names.index(axis), 0)
    lines = along.reshape(along.shape[0], -1).T
    counts = [_hops(list(line), list(mesh.devices.flat)) for line in lines]
    most = tuple(max(column) if min(column) else 0 for column in zip(*counts))
    far = ((i, k) for k, line in enumerate(counts) for i, hop in enumerate(line[:-1]) if hop != 1)
    first = next(far, None)
    apart = None if first is None else (lines[first[1]][first[0]], lines[first[1]][first[0] + 1])
    return AxisLinks(axis, len(most), most, apart)


def ring_order(
    devices: Sequence[Any],
    *,
    topology: TopologyName = "ring",
    slice_devices: Sequence[Any] | None = None,
) -> tuple[Any, ...]:
    """The devices in an order in which each is joined by a wire with the next.

    Devices that fill a box are walked as a snake, around a closed way for a ring. Others are
    searched for such a way.

    Args:
        devices: with `coords`, of one slice.
        topology: `ring`, where the last must be joined with the first too, or `line`.
        slice_devices: all devices of the slice, which tell the axes whose ends are joined; the
            same as `devices` if None.

    Returns:
        The order, for a mesh such as `Mesh(ring_order(devices), ("x",))`.

    Raises:
        ValueError: when there is none, naming two devices that are not connected.

    Example:
        >>> from types import SimpleNamespace as Chip
        >>> chips = [Chip(id=2 * x + y, coords=(x, y, 0)) for x in range(2) for y in range(2)]
        >>> [chip.id for chip in ring_order(chips)]
        [0, 1, 3, 2]
    """
    found = list(devices)
    if topology not in ("ring", "line"):
        raise ValueError(f"topology must be 'ring' or 'line', got {topology!r}")
    if not found or not have_coordinates(found):
        raise ValueError(
            "ring_order needs devices with coordinates, such as TPUs; got "
            f"{found[0] if found else 'none'}; emulated devices are joined in any order"
        )
    if len({slice_of(device) for device in found}) > 1:
        raise ValueError("ring_order takes devices of one slice; slices are joined by a network")
    everyone = list(found if slice_devices is None else slice_devices)
    closed = topology == "ring" and len(found) > 2
    start, extent = box_of(found)
    at = {minus(place_of(device), start): device for device in found}
    boxed = [at.get(place) for place in walk(extent)]
    order = boxed if None not in boxed else found
    if not _joined(order, everyone, closed):
        order = _search(found, everyone, closed) or order
    _require(order, everyone, closed)
    return tuple(order)


def _hops(line: list[Any], everyone: list[Any]) -> list[int]:
    """Wires from each device of a line to the next, the last to the first."""
    if not have_coordinates(everyone):
        return [0] * len(line)
    _, extent = box_of([device for device in everyone if slice_of(device) == slice_of(line[0])])
    wraps = closed_axes(extent)
    return [
        wires(place_of(a), place_of(b), extent, wraps) if slice_of(a) == slice_of(b) else 0
        for a, b in zip(line, [*line[1:], line[0]])
    ]


def _joined(order: list[Any], everyone: list[Any], closed: bool) -> bool:
    hops = _hops(order, everyone)
    return all(hop == 1 for hop in (hops if closed else hops[:-1]))


def _search(devices: list[Any], everyone: list[Any], closed: bool) -> list[Any] | None:
    """A way through all devices by wires, found by trying; None where none is found."""
    _, extent = box_of(everyone)
    wraps = closed_axes(extent)
    places = [place_of(device) for device in devices]
    near = [[j for j, b in enumerate(places) if wires(a, b, extent, wraps) == 1] for a in places]
    left = _STEPS

    def go(way: list[int], seen: set[int]) -> list[int] | None:
        nonlocal left
        left -= 1
        if left < 0:
            return None
        if len(way) == len(devices):
            return way if not closed or way[0] in near[way[-1]] else None
        # Those with the fewest ways on first: they are the hardest to come back to.
        onward = [j for j in near[way[-1]] if j not in seen]
        for j in sorted(onward, key=lambda j: sum(k not in seen for k in near[j])):
            if full := go([*way, j], seen | {j}):
                return full
        return None

    starts = range(1 if closed else len(devices))
    for start in sorted(starts, key=lambda j: len(near[j])):
        if way := go([start], {start}):
            return [devices[j] for j in way]
    return None


def _require(order: list[Any], everyone: list[Any], closed: bool) -> None:
    """Raise ValueError naming the first two devices of the order that no wire joins."""
    hops = _hops(order, everyone)
    if not closed:
        hops = hops[:-1]
    for index, hop in enumerate(hops):
        if hop != 1:
            a, b = order[index], order[(index + 1) % len(order)]
            ask = "ring" if closed else "line"
            turn = " or topology='line'," if closed and index == len(order) - 1 else ""
            raise ValueError(
                f"no order makes a {ask} of these {len(order)} devices: device {a.id} at "
                f"{tuple(a.coords)} is not connected to device {b.id} at {tuple(b.coords)}, which "
                f"is {hop} wires away; take{turn} an even number of chips that fill a box"
            )
