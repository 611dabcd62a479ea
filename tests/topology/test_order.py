"""Orders of devices whose hops are wires, or the two devices that none joins."""

from dataclasses import dataclass
from itertools import pairwise, product

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh

from ringline.topology import axis_links, ring_order


@dataclass(frozen=True)
class Device:
    id: int
    coords: tuple[int, ...]
    slice_index: int = 0
    core_on_chip: int = 0


def box(*shape):
    return [Device(i, place) for i, place in enumerate(product(*map(range, shape)))]


def apart(a, b):
    return sum(abs(p - q) for p, q in zip(a.coords, b.coords))


@settings(max_examples=40, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 3)),
    shuffled=st.randoms(),
    topology=st.sampled_from(["ring", "line"]),
)
def test_every_hop_is_a_wire_or_the_pair_is_named(shape, shuffled, topology):
    devices = box(*shape)
    shuffled.shuffle(devices)
    is_line_of_chips = sum(length > 1 for length in shape) < 2
    possible = topology == "line" or len(devices) < 3
    possible |= len(devices) % 2 == 0 and not is_line_of_chips
    if not possible:
        with pytest.raises(ValueError, match=r"device \d+ at .* is not connected to device \d+"):
            ring_order(devices, topology=topology)
        return
    order = ring_order(devices, topology=topology)
    assert sorted(d.id for d in order) == sorted(d.id for d in devices)
    assert all(apart(a, b) == 1 for a, b in pairwise(order))
    if topology == "ring" and len(devices) > 2:
        assert apart(order[-1], order[0]) == 1


def test_devices_that_fill_no_box_are_searched():
    # A ring of 8 around the hole of a 3 x 3 square.
    devices = [device for device in box(3, 3, 1) if device.coords[:2] != (1, 1)]
    order = ring_order(devices)
    assert all(apart(a, b) == 1 for a, b in zip(order, [*order[1:], order[0]]))


def test_a_whole_axis_whose_ends_are_joined_is_a_ring():
    everyone = box(4, 4, 4)
    column = [device for device in everyone if device.coords[1:] == (2, 3)]
    assert [d.coords[0] for d in ring_order(column, slice_devices=everyone)] == [0, 1, 2, 3]
    with pytest.raises(ValueError, match=r"device 59 .* not connected to device 11 .* 3 wires"):
        ring_order(column)


def test_devices_apart():
    with pytest.raises(ValueError, match="is 2 wires away"):
        ring_order([Device(0, (0, 0, 0)), Device(1, (2, 0, 0))], topology="line")
    with pytest.raises(ValueError, match="one slice"):
        ring_order([Device(0, (0, 0, 0)), Device(1, (1, 0, 0), slice_index=1)])
    with pytest.raises(ValueError, match="coordinates"):
        ring_order(jax.devices()[:4])


def test_what_joins_an_axis():
    square = box(2, 2, 1)
    ring = Mesh(np.array(ring_order(square)), ("x",))
    assert axis_links(ring, "x").topology == "ring"
    # Row-major order of a 2 x 4 is no ring: device 3 is not next to device 4.
    rows = Mesh(np.array(box(2, 4, 1)), ("x",))
    links = axis_links(rows, "x")
    assert links.topology is None
    assert links.wires[3] == 4
    assert links.apart is not None
    assert [device.id for device in links.apart] == [3, 4]
    assert axis_links(Mesh(np.array(jax.devices()[:4]), ("x",)), "x").topology is None
    with pytest.raises(ValueError, match="no axis 'y'"):
        axis_links(ring, "y")
