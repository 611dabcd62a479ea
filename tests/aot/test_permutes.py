"""The collectives as permutes, compiled for TPU slices: what is sent, and over many chips loops."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import ringline
from ringline.aot import compile_for, target

pytestmark = pytest.mark.usefixtures("libtpu")
SHAPE = (64 * 16, 256)
STRIPE = 16 * 256 * 2


def permutes(form, given, out):
    """The permutes of a collective of `SHAPE` in bfloat16 over 64 chips."""
    slice_ = target("v5p:4x4x4")
    mesh = slice_.mesh(x=slice_.device_count)
    function = jax.shard_map(form, mesh=mesh, in_specs=given, out_specs=out, check_vma=False)
    x = jax.ShapeDtypeStruct(SHAPE, jnp.bfloat16, sharding=NamedSharding(mesh, given))
    found = compile_for(slice_, function, x, mesh=mesh).collectives
    assert {one.kind for one in found} == {"collective-permute"}
    assert all(one.times_known and one.asynchronous for one in found)
    return found


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize(
    ("collective", "given", "out", "phases"),
    [
        (ringline.all_gather, P("x"), P(), 1),
        pytest.param(ringline.reduce_scatter, P(), P("x"), 1, marks=pytest.mark.slow),
        pytest.param(ringline.all_reduce, P(), P(), 2, marks=pytest.mark.slow),
    ],
)
def test_a_ring_of_64_chips_is_a_loop_that_sends_every_stripe(
    collective, given, out, phases, directions
):
    form = partial(
        collective, axis_name="x", topology="ring", directions=directions, implementation="permute"
    )
    found = permutes(form, given, out)
    assert sum(one.bytes * one.times_per_step for one in found) == phases * 63 * STRIPE
    assert len(found) <= phases * directions * 6
    assert max(one.times_per_step for one in found) >= 14
