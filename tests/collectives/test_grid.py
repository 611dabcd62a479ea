"""Collectives over two mesh axes: a grid whose two halves travel the axes in opposite order."""

import re
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from collective_cases import assert_same_bits, random_bits
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jax.stages import Wrapped

import ringline

AXES = ("x", "y")
GRIDS = [((2, 4), ("ring", "ring")), ((2, 2), ("line", "ring")), ((2, 3), ("line", "line"))]
grids = pytest.mark.parametrize(("shape", "topology"), GRIDS, ids=str)


def on_grid(function, shape, *, check_vma=True) -> Wrapped:
    """`function(shards)` on each device of the grid; shards have a leading dim for all devices."""
    devices = np.array(jax.devices()[: np.prod(shape)]).reshape(shape)

    def body(xs):
        return jax.tree.map(lambda y: y[None], function(jax.tree.map(lambda x: x[0], xs)))

    return jax.jit(
        jax.shard_map(
            body, mesh=Mesh(devices, AXES), in_specs=P(AXES), out_specs=P(AXES), check_vma=check_vma
        )
    )


def spread(y):
    return lax.pcast(y, AXES, to="varying")


@grids
@pytest.mark.parametrize("directions", [1, 2])
def test_a_gather_is_in_row_major_order(shape, topology, directions):
    n = int(np.prod(shape))
    form: Any = {"topology": topology, "implementation": "permute", "directions": directions}
    shards = [random_bits((n, *s), "bfloat16") for s in [(3, 5), (1,), (2, 3, 4), (0, 2)]]
    dims = [1, 0, -2, 0]

    def function(shards):
        return [ringline.all_gather(x, AXES, axis=d, **form) for x, d in zip(shards, dims)]

    for got, x, dim in zip(on_grid(function, shape)(shards), shards, dims):
        whole = np.concatenate(x, dim)
        assert_same_bits(got, np.broadcast_to(whole, (n, *whole.shape)))


@grids
def test_sums_and_stripes(shape, topology):
    n = int(np.prod(shape))
    form: Any = {"topology": topology, "implementation": "permute", "directions": 2}
    x = np.random.default_rng(0).integers(-9, 9, (n, 3, 2 * n)).astype(np.float32)

    def function(x):
        scattered = ringline.reduce_scatter(x, AXES, scatter_dimension=1, **form)
        odd = ringline.all_reduce(x[:, :5], AXES, **form)
        return scattered, spread(ringline.all_reduce(x, AXES, **form)), spread(odd)

    scattered, whole, odd = on_grid(function, shape)(x)
    assert_same_bits(scattered, np.stack(np.split(x.sum(0), n, 1)))
    assert_same_bits(whole, np.broadcast_to(x.sum(0), x.shape))
    assert_same_bits(odd, np.broadcast_to(x.sum(0)[:, :5], (n, 3, 5)))


def test_all_devices_hold_the_same_bits():
    x = np.random.default_rng(0).normal(size=(8, 7, 13)).astype(np.float32)
    form: Any = {"topology": ("ring", "ring"), "implementation": "permute", "directions": 2}
    got = np.asarray(on_grid(lambda x: spread(ringline.all_reduce(x, AXES, **form)), (2, 4))(x))
    for y in got[1:]:
        assert_same_bits(y, got[0])


@pytest.mark.parametrize("check_vma", [True, False])
def test_derivatives(check_vma):
    x = np.random.default_rng(0).normal(size=(4, 4, 8)).astype(np.float32)
    form: Any = {"topology": ("ring", "line"), "implementation": "permute", "directions": 2}

    def losses(gather, scatter, reduce, x):
        y = jnp.sin(gather(jnp.sin(x)))
        z = scatter(y) ** 2
        return (z.sum() + (reduce(x) ** 2).sum()) * (lax.axis_index("x") + 1.0)

    ours = (
        partial(ringline.all_gather, axis_name=AXES, **form),
        partial(ringline.reduce_scatter, axis_name=AXES, **form),
        partial(ringline.all_reduce, axis_name=AXES, **form),
    )
    builtin = (
        partial(lax.all_gather, axis_name=AXES, tiled=True),
        partial(lax.psum_scatter, axis_name=AXES, tiled=True),
        partial(lax.psum, axis_name=AXES),
    )
    got, want = (
        on_grid(jax.grad(partial(losses, *ways)), (2, 2), check_vma=check_vma)(x)
        for ways in (ours, builtin)
    )
    np.testing.assert_allclose(got, want, rtol=2e-4, atol=1e-4)


def test_each_half_starts_on_another_axis():
    """So that the links of both axes work at the same time."""
    x = np.zeros((4, 4, 8), np.float32)
    form: Any = {"topology": ("ring", "ring"), "implementation": "permute"}
    function = on_grid(lambda x: ringline.all_gather(x, AXES, **form), (2, 2))
    pairs = re.findall(r"source_target_pairs = dense<(\[\[.*?\]\])>", function.lower(x).as_text())
    along_x, along_y = "[[0, 2], [2, 0], [1, 3], [3, 1]]", "[[0, 1], [1, 0], [2, 3], [3, 2]]"
    assert [_sorted(p) for p in pairs] == [_sorted(p) for p in (along_x, along_y, along_y, along_x)]


def _sorted(pairs):
    return sorted(re.findall(r"\[(\d), (\d)\]", pairs))


@pytest.mark.parametrize(
    ("axis_name", "topology", "message"),
    [
        (
            "x",
            ("ring", "ring"),
            "a grid needs two mesh axes and a topology for each, got axis_name",
        ),
        (AXES, ("ring",), "got axis_name ('x', 'y') and topology ('ring',); use one topology"),
        (AXES, ("ring", "star"), "topology must be 'ring' or 'line', got 'star'"),
    ],
)
@pytest.mark.parametrize("way", [ringline.all_gather, ringline.reduce_scatter, ringline.all_reduce])
def test_what_is_no_grid_is_refused(way, axis_name, topology, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        on_grid(lambda x: way(x, axis_name, topology=topology), (2, 2))(np.zeros((4, 4)))
