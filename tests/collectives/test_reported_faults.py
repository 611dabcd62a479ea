"""Faults reported against other collectives, each a test. Numbers are tt-metal's issues."""

import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from collective_cases import (
    FORMS,
    assert_same_bits,
    form_id,
    gather,
    on_devices,
    on_every_device,
    random_bits,
    varied,
)
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import ringline

FORMS = tuple(form for form in FORMS if form["implementation"] == "permute")
forms = pytest.mark.parametrize("form", FORMS, ids=form_id)


def _check(shards, dims, form, devices):
    """Gather each leaf at its dim and compare all bits."""

    def function(shards):
        return [gather(x, axis=dim, **form) for x, dim in zip(shards, dims)]

    for got, x, dim in zip(on_devices(function, devices)(shards), shards, dims):
        assert_same_bits(got, on_every_device(np.concatenate(x, dim), devices))


@pytest.mark.parametrize("devices", [3, 4])
def test_6448_19730_17385_two_directions_are_right_for_every_dim_negative_too(devices):
    dims = range(-4, 4)
    x = random_bits((devices, 2, 3, 5, 7), "bfloat16")
    _check([x] * len(dims), dims, {"implementation": "permute", "directions": 2}, devices)


@forms
def test_7714_a_loop_of_a_hundred_calls_ends(form):
    """Output of one call decides the input of the next, so no call can be dropped."""

    def looped(x):
        def call(_, x):
            y = gather(x, axis=3, **form)
            return lax.dynamic_slice_in_dim(y, 1, x.shape[3], 3) + 1

        return lax.fori_loop(0, 100, call, x)

    x = np.arange(4 * 32 * 64, dtype=np.float32).reshape(4, 1, 1, 32, 64)
    expected = x[0]
    for call in range(100):
        whole = np.concatenate(x if call == 0 else [expected] * 4, 3)
        expected = whole[..., 1 : 1 + 64] + 1
    assert_same_bits(on_devices(looped, 4)(x), on_every_device(expected, 4))


@forms
def test_5396_57458_50686_52633_delays_of_single_devices_change_nothing(form):
    """Late and early devices: nobody overwrites what a lagging one has not read yet."""

    def delay(x, device, call):
        time.sleep(0.002 * ((5 * int(device) + 3 * int(call)) % 4))
        return x

    def calls(x):
        here = lax.axis_index("x")

        def call(x, number):
            shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
            x = jax.pure_callback(delay, shape, x, here, number)
            y = gather(x, axis=0, **form)
            return x + y[:2] * 0 + here, y

        return lax.scan(call, x, jnp.arange(8))[1]

    x = random_bits((4, 2, 3), "uint32") >> 8
    steps = np.arange(8, dtype=np.uint32)[:, None, None]
    expected = np.concatenate([x[d][None] + steps * d for d in range(4)], 1)
    got = on_devices(lambda x: calls(x.astype(jnp.int32)), 4, check_vma=False)(x)
    assert_same_bits(np.asarray(got).astype(np.uint32), on_every_device(expected, 4))


@forms
def test_6088_12770_30296_a_ring_of_two_is_a_line(form):
    _check([random_bits((2, 3, 5), "float32")] * 2, [0, 1], form, 2)


@forms
def test_48072_a_ring_of_odd_length_ends(form):
    _check([random_bits((5, 2, 3), "float32")], [1], form, 5)


@forms
def test_33426_a_transposed_mesh_gives_the_same(form):
    x = np.arange(64, dtype=np.int32).reshape(8, 8)

    def gathered(mesh, name):
        body = jax.shard_map(
            lambda x: ringline.all_gather(x, name, axis=0, **form),
            mesh=mesh,
            in_specs=P(name),
            out_specs=P(),
            check_vma=False,
        )
        return jax.jit(body)(x)

    devices = np.array(jax.devices()).reshape(2, 4)
    for name in ("a", "b"):
        assert_same_bits(gathered(Mesh(devices, ("a", "b")), name), x)
        assert_same_bits(gathered(Mesh(devices.T, ("b", "a")), name), x)


@pytest.mark.parametrize(
    ("shape", "dim"),
    [
        pytest.param((1, 1, 30, 32), 2, id="21964-dim-not-a-multiple-of-the-tile"),
        pytest.param((30, 32), 0, id="22654-rank-2"),
        pytest.param((1, 1, 32, 29), 3, id="29238-last-dim-not-a-multiple-of-64-bytes"),
        pytest.param((1, 1, 8, 32), 2, id="14567-inside-a-tile"),
    ],
)
def test_shapes_that_fit_no_tile(shape, dim):
    x = random_bits((4, *shape), "bfloat16")
    for form in FORMS:
        _check([x], [dim], form, 4)


@forms
def test_48469_the_second_call_of_a_compiled_function_waits_too(form):
    function = on_devices(partial(gather, axis=0, **form), 4)
    for seed in range(3):
        x = random_bits((4, 3, 2), "float32", seed)
        assert_same_bits(function(x), on_every_device(np.concatenate(x, 0), 4))


@forms
def test_19582_one_call_does_not_disturb_the_next(form):
    """Two independent gathers, and one of the result of another."""
    x, y = random_bits((4, 2, 3), "float32"), random_bits((4, 3, 1), "int8")

    def function(shards):
        x, y = (gather(leaf, **form) for leaf in shards)
        return x, y, gather(x, axis=1, **form)

    got = on_devices(function, 4)([x, y])
    whole = np.concatenate(x)
    for actual, want in zip(got, [whole, np.concatenate(y), np.tile(whole, (1, 4))]):
        assert_same_bits(actual, on_every_device(want, 4))


def _both(x, form):
    """A reduce-scatter, and an all-reduce of the same terms."""
    scattered = ringline.reduce_scatter(x, "x", **form)
    return scattered, varied(ringline.all_reduce(x, "x", **form))


@forms
def test_7714_a_loop_of_a_hundred_reductions_ends(form):
    def looped(x):
        def call(_, x):
            stripe, whole = _both(x, form)
            return (whole - jnp.tile(stripe, (4, 1))) % 7

        return lax.fori_loop(0, 100, call, x)

    x = np.random.default_rng(0).integers(0, 7, (4, 8, 3)).astype(np.int32)
    expected = x
    for _ in range(100):
        whole = expected.sum(0)
        stripes = np.split(whole, 4)
        expected = np.stack([(whole - np.tile(stripe, (4, 1))) % 7 for stripe in stripes])
    assert_same_bits(on_devices(looped, 4)(x), expected.astype(np.int32))


@forms
def test_5396_57458_50686_52633_delays_change_no_sum(form):
    """The bits of a float sum depend on the order alone, whoever is late."""

    def delay(x, device, call):
        time.sleep(0.002 * ((5 * int(device) + 3 * int(call)) % 4))
        return x

    def calls(x, late):
        def call(x, number):
            shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
            here = lax.axis_index("x")
            sent = jax.pure_callback(delay, shape, x, here, number) if late else x
            return x * 1.5, _both(sent, form)

        return lax.scan(call, x, jnp.arange(6))[1]

    x = np.random.default_rng(0).normal(size=(4, 8, 3)).astype(np.float32)
    late, prompt = (
        on_devices(partial(calls, late=late), 4, check_vma=False)(x) for late in (True, False)
    )
    jax.tree.map(lambda a, b: assert_same_bits(a, np.asarray(b)), late, prompt)


@forms
@pytest.mark.parametrize("devices", [2, 5])
def test_6088_12770_30296_48072_rings_of_two_and_of_odd_length_add_up(form, devices):
    x = np.random.default_rng(0).integers(-9, 9, (devices, 2 * devices, 3)).astype(np.float32)
    scattered, whole = on_devices(partial(_both, form=form), devices)(x)
    assert_same_bits(scattered, np.stack(np.split(x.sum(0), devices)))
    assert_same_bits(whole, on_every_device(x.sum(0), devices))


@forms
def test_48469_19582_reductions_do_not_disturb_the_next_ones(form):
    """A second call of the compiled function, and independent calls in one program."""

    def function(xs):
        return [_both(x, form) for x in xs]

    compiled = on_devices(function, 4)
    for seed in range(2):
        random = np.random.default_rng(seed)
        xs = [random.integers(0, 9, (4, 4, width)).astype(np.int32) for width in (1, 3)]
        for (stripe, whole), x in zip(compiled(xs), xs):
            assert_same_bits(stripe, np.stack(np.split(x.sum(0), 4)).astype(np.int32))
            assert_same_bits(whole, on_every_device(x.sum(0).astype(np.int32), 4))
