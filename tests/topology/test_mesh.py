"""Meshes over slices: stages across them, rings by coordinates inside them."""

import math
from dataclasses import dataclass
from itertools import product

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringline.topology import axis_links, make_mesh


@dataclass(frozen=True)
class Device:
    """What a mesh needs of a TPU device."""

    id: int
    slice_index: int
    coords: tuple[int, ...]
    core_on_chip: int = 0


def slices_of(count, shape, cores=1):
    places = [place[::-1] for place in product(*map(range, shape[::-1]))]
    return [
        Device(1000 * s + i, s, place, core)
        for s in range(count)
        for i, (place, core) in enumerate(product(places, range(cores)))
    ]


@pytest.mark.parametrize(
    ("count", "shape", "axes"),
    [
        (4, (2, 2, 2), {"stage": 4, "fsdp": 8}),
        (3, (4, 4, 4), {"stage": 3, "fsdp": 64}),
        (3, (4, 4, 4), {"stage": 3, "fsdp": 16, "tensor": 4}),
        (2, (4, 4, 4), {"stage": 4, "fsdp": 32}),
        (1, (2, 4, 1), {"fsdp": 8}),
        (1, (16, 16, 1), {"fsdp": 16, "tensor": 16}),
        (1, (3, 4, 1), {"fsdp": 12}),
    ],
)
def test_inner_axes_are_physical_rings(count, shape, axes):
    mesh = make_mesh(axes, devices=slices_of(count, shape))
    inner = [name for name in axes if name != "stage"]
    assert {axis_links(mesh, name).topology for name in inner} == {"ring"}


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_every_device_once_and_slices_on_the_first_axes(data):
    shape = data.draw(st.tuples(*[st.sampled_from([1, 2, 3, 4])] * 3))
    count = data.draw(st.sampled_from([1, 2, 3, 4]))
    cores = data.draw(st.sampled_from([1, 2]))
    devices = slices_of(count, shape, cores)
    inside = math.prod(shape) * cores
    inner = data.draw(st.sampled_from([d for d in range(1, inside + 1) if inside % d == 0]))
    mesh = make_mesh({"stage": count, "fsdp": -1, "tensor": inner}, devices=devices)
    assert sorted(d.id for d in mesh.devices.flat) == sorted(d.id for d in devices)
    for stage, of_stage in enumerate(mesh.devices):
        assert {d.slice_index for d in of_stage.flat} == {stage}


def test_an_axis_takes_what_slices_the_one_before_left():
    mesh = make_mesh({"stage": 2, "data": 2, "fsdp": 8}, devices=slices_of(4, (2, 2, 2)))
    of = np.vectorize(lambda d: d.slice_index)(mesh.devices)
    assert of[:, :, 0].tolist() == [[0, 1], [2, 3]]
    assert axis_links(mesh, "data").topology is None


def test_two_stages_share_a_slice():
    mesh = make_mesh({"stage": 4, "fsdp": 4}, devices=slices_of(2, (2, 2, 2)))
    of = np.vectorize(lambda d: d.slice_index)(mesh.devices)
    assert of[:, 0].tolist() == [0, 0, 1, 1]


def test_emulated_devices_serve_the_same_call():
    mesh = make_mesh({"stage": 2, "fsdp": -1}, slices=2)
    assert mesh.devices.ravel().tolist() == jax.devices()
    assert mesh.shape == {"stage": 2, "fsdp": 4}


@pytest.mark.parametrize(
    ("axes", "says"),
    [
        ({"stage": 5, "fsdp": 8}, "takes 40 devices, but there are 32 devices (4 slices)"),
        ({"stage": 3, "fsdp": -1}, "change an axis"),
        ({"stage": -1, "fsdp": -1}, "one of them -1"),
        ({"stage": 0, "fsdp": 8}, "must be at least 1"),
        ({}, "mesh without axes"),
    ],
)
def test_what_does_not_fit(axes, says):
    with pytest.raises(ValueError, match=r".") as error:
        make_mesh(axes, devices=slices_of(4, (2, 2, 2)))
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_slices_that_the_first_axis_cannot_take_go_to_the_next():
    mesh = make_mesh({"stage": 3, "data": 4}, devices=slices_of(4, (3, 1, 1)))
    assert [d.slice_index for d in mesh.devices[0]] == [0, 1, 2, 3]


def test_unequal_slices():
    with pytest.raises(ValueError, match="slices must be equal"):
        make_mesh({"stage": 3}, devices=slices_of(2, (2, 1, 1))[:3])
