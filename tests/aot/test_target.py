"""Targets by the names people use, and what is said about others."""

import pytest

from ringline.aot import target

NAMED = {
    "4x v4-16": ("v4:2x2x2", 4, 32),
    "3x v4-128": ("v4:4x4x4", 3, 192),
    "2x v5p-128": ("v5p:4x4x4", 2, 128),
    "v5e-64": ("v5e:8x8", 1, 64),
    "v6e-256": ("v6e:16x16", 1, 256),
    "tpu7x-128": ("tpu7x:4x4x4", 1, 128),
    "v5p:2x2x4": ("v5p:2x2x4", 1, 16),
    "v4-8": ("v4:2x2x1", 1, 4),
    "v5p:1x2x2": ("v5p:2x2x1", 1, 4),
    "v5p-4": ("v5p:2x1x1", 1, 2),
    "v5e:1x4": ("v5e:1x4", 1, 4),
    "2x v5litepod-16": ("v5e:4x4", 2, 32),
}


@pytest.mark.parametrize("name", NAMED)
def test_names_that_people_use(name):
    found = target(name)
    assert (found.topology, found.cluster.slices, found.device_count) == NAMED[name]
    assert found.limit_bytes <= found.cluster.chip.hbm_bytes * 1.01 / found.devices_per_chip


@pytest.mark.parametrize("name", NAMED)
def test_the_compiler_knows_them(libtpu, name):
    found = target(name)
    devices = found.devices()
    assert len(devices) == found.device_count
    assert len({getattr(d, "slice_index", 0) for d in devices}) == found.cluster.slices


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("4x v4-15", "expected a multiple"),
        ("v9-64", "did you mean"),
        ("64x h100", "knows no h100"),
        ("t3000", "knows no wormhole"),
        ("", "unknown cluster"),
    ],
)
def test_names_that_are_no_target(name, says):
    with pytest.raises(ValueError, match=r".") as error:
        target(name)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_a_mesh_on_a_target(libtpu):
    mesh = target("4x v4-16").mesh(stage=4, fsdp=-1)
    assert mesh.shape == {"stage": 4, "fsdp": 8}
    with pytest.raises(ValueError, match="target '4x v4-16': mesh stage 3"):
        target("4x v4-16").mesh(stage=3, fsdp=8)
