"""Chips and clusters: the names people use, and what is said about names that are wrong."""

import math

import pytest

from ringline.topology import chip, chips, cluster
from ringline.topology._chips import slice_shape

NAMED = {
    "4x v4-16": (4, (2, 2, 2), 32),
    "v4-128": (1, (4, 4, 4), 64),
    "3x v4-128": (3, (4, 4, 4), 192),
    "2x v5p-128": (2, (4, 4, 4), 128),
    "v5p-1024": (1, (8, 8, 8), 512),
    "v5e-64": (1, (8, 8), 64),
    "v5litepod-16": (1, (4, 4), 16),
    "2×v5p_16": (2, (2, 2, 2), 16),
    "TPU v5 lite 16": (1, (4, 4), 16),
    "v6e-256": (1, (16, 16), 256),
    "Trillium-8": (1, (2, 4), 8),
    "tpu7x-128": (1, (4, 4, 4), 64),
    "v5p:4x4x8": (1, (4, 4, 8), 128),
    "8x h100": (1, (8,), 8),
    "64x H100": (8, (8,), 64),
    "h200-16": (2, (8,), 16),
    "4 x a100": (1, (4,), 4),
    "4x 8x h100": (4, (8,), 32),
    "4x8 h100": (4, (8,), 32),
    "t3000": (1, (2, 4), 8),
    "2x galaxy": (2, (8, 4), 64),
    "16k H100": (2048, (8,), 16384),
    "16,384x H100": (2048, (8,), 16384),
    "2 nodes of 8 H100": (2, (8,), 16),
    "8x NVIDIA A100 40GB": (1, (8,), 8),
    "A100-40GB x 8": (1, (8,), 8),
    "16 A100s": (2, (8,), 16),
    "v5e 64": (1, (8, 8), 64),
    "v6e-64 x 2": (2, (8, 8), 128),
    "2 slices of v5p-64": (2, (2, 4, 4), 64),
    "2048 h800": (256, (8,), 2048),
}


@pytest.mark.parametrize("name", NAMED)
def test_names_that_people_use(name):
    found = cluster(name)
    assert (found.slices, found.shape, found.chips) == NAMED[name]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("v4-17", "multiple"),
        ("v4-12", "nearest: v4-4"),
        ("4x v4", "says no size"),
        ("v5e pod", "v5e:2x4"),
        ("-3 h100", "'h100'"),
        ("1e3 h100", "'h100'"),
        ("64x h10", "'h100'"),
        ("v5q-8", "'v5p'"),
        ("v5e-512", "v5e-256"),
        ("9x a100", "use 8 or 16"),
        ("v5p:3x2x2", "no topology"),
        ("0x h100", "at least 1"),
        ("t3000-8", "fixed size"),
        ("", "known"),
    ],
)
def test_wrong_names_are_refused_with_a_way_out(name, says):
    with pytest.raises(ValueError, match=says) as error:
        cluster(name)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", chips())
def test_every_number_has_a_source(name):
    found = chip(name)
    assert len(found.sources) == 9
    assert all(found.sources.values())
    assert 0 < found.matmul_efficiency <= 1
    assert found.link_bytes_per_s <= found.link_nominal_bytes_per_s


def test_wraparound_needs_whole_axes():
    assert cluster("v5e-256").wraps == (True, True)
    assert cluster("v5e-64").wraps == (False, False)
    assert cluster("v5p-128").wraps == (True, True, True)
    assert cluster("v4-32").wraps == (False, False, False)


def test_a_ring_gathers_at_twice_the_rate_of_a_line():
    ring, line = cluster("v5e:16x16"), cluster("v5e:8x8")
    assert ring.slice_bytes_per_s(16) == 2 * line.slice_bytes_per_s(8)
    assert ring.mean_hops(16) == 4


@pytest.mark.parametrize("chips", [8, 16, 32, 64, 128, 256])
def test_slices_hold_their_chips(chips):
    for name in ("v4", "v5e"):
        assert math.prod(slice_shape(chip(name), chips)) == chips


def test_a_cluster_file(tmp_path):
    path = tmp_path / "ours.toml"
    path.write_text(
        '[cluster]\nname = "ours"\nchip = "v5p"\nslices = 3\nshape = [2, 5]\n'
        "wraps = [false, true]\nlinks_per_edge = 2\n"
    )
    found = cluster(str(path))
    assert (found.name, found.chips, found.chip.name) == ("ours", 30, "v5p")
    assert found.slice_bytes_per_s(10) == 3 * 2 * 90e9


def test_a_cluster_file_with_its_own_chip(tmp_path):
    path = tmp_path / "new.toml"
    path.write_text(
        '[cluster]\nshape = [4]\n[chip]\nname = "x1"\nnetwork = "mesh"\n'
        "bf16_flops_per_s = 1e12\nint8_ops_per_s = 1e12\nhbm_gib = 8\nhbm_bytes_per_s = 1e11\n"
        "link_bytes_per_s = 1e9\nlink_nominal_bytes_per_s = 1e9\ndcn_bytes_per_s = 1e8\n"
        "hop_latency_s = 1e-6\nmatmul_efficiency = 0.8\n"
    )
    assert cluster(str(path)).chip.sources["hbm_gib"] == str(path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[cluster]\nchip = "v5p"\nslices = -2\nshape = [4]\n', "line 3, key 'slices'"),
        ('[cluster]\nchip = "v5p"\n', "line 1, key 'shape'"),
        ('[cluster]\nchip = "v5q"\nshape = [4]\n', "line 2, key 'chip'.*'v5p'"),
        ('[cluster]\nchip = "v5p"\nshape = [4]\nslice = 2\n', "line 4.*did you mean 'slices'"),
        ('[cluster]\nchip = "v5p"\nshape = [4]\nwraps = [1]\n', "line 4, key 'wraps'"),
        (
            "[cluster]\nshape = [4]\n[chip]\nnetwork = 'mesh'\nbf16_flops_per_s = inf\n",
            "line 5.*finite",
        ),
        ("[cluster\n", "is not TOML.*line 1"),
        ("[nothing]\n", "unknown key"),
        ("[cluster]\nshape = [4]\n[chip]\nnetwork = 'mesh'\nhbm_gib = -1\n", "key 'bf16_flops"),
    ],
)
def test_faults_of_a_file_name_line_and_key(tmp_path, text, says):
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=says) as error:
        cluster(str(path))
    assert "bad.toml" in str(error.value)
    assert "\n" not in str(error.value).strip()


def test_a_missing_file():
    with pytest.raises(ValueError, match="cannot read nowhere"):
        cluster("nowhere.toml")
