"""The conformance suite of reduce-scatter and all-reduce: every backend gives numpy's sums."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from collective_cases import (
    FORMS,
    assert_same_bits,
    form_id,
    mesh_of,
    on_devices,
    on_every_device,
    varied,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

import ringline
from ringline.collectives.measure._shapes import DTYPES, SMALL_SHARDS

forms = pytest.mark.parametrize("form", FORMS, ids=form_id)
permutes = pytest.mark.parametrize(
    "form", [form for form in FORMS if form["implementation"] == "permute"], ids=form_id
)


def scatter(x, **form):
    return ringline.reduce_scatter(x, "x", **form)


def reduce(x, **form):
    return varied(ringline.all_reduce(x, "x", **form))


def terms(shape, dtype="float32", seed=0):
    """Small integers, whose sums are exact in every type."""
    values = np.random.default_rng(seed).integers(0, 2, shape)
    return values.astype(jnp.dtype(dtype))


def summed(x):
    wide = np.asarray(x).astype(np.complex128 if x.dtype.kind == "c" else np.float64)
    return wide.sum(0).astype(np.int32 if x.dtype == np.bool_ else x.dtype)


def assert_scattered(got, whole, dim):
    stripes = np.split(whole, len(got), dim)
    for stripe, want in zip(np.asarray(got), stripes):
        assert_same_bits(stripe, want)


def whole_shape(shape, dim, devices):
    return tuple(size * devices if d == dim % len(shape) else size for d, size in enumerate(shape))


@forms
@pytest.mark.parametrize("devices", [1, 2, 3, 4])
def test_shapes(form, devices):
    """Ranks 1 to 6, negative dims, empty and one-element stripes, shapes that fit no tile."""
    xs = [terms((devices, *whole_shape(shape, dim, devices))) for shape, dim in SMALL_SHARDS]
    dims = [dim for _, dim in SMALL_SHARDS]

    def function(xs):
        scattered = [scatter(x, scatter_dimension=dim, **form) for x, dim in zip(xs, dims)]
        return scattered, [reduce(x, **form) for x in xs]

    scattered, reduced = on_devices(function, devices)(xs)
    for got, x, dim in zip(scattered, xs, dims):
        assert_scattered(got, summed(x), dim)
    for got, x in zip(reduced, xs):
        assert_same_bits(got, on_every_device(summed(x), devices))


@forms
def test_every_dtype(form):
    xs = [terms((4, 8, 3), dtype, seed) for seed, dtype in enumerate(DTYPES)]

    def function(xs):
        return [(scatter(x, **form), reduce(x, **form)) for x in xs]

    for (scattered, reduced), x in zip(on_devices(function, 4)(xs), xs):
        assert_scattered(scattered, summed(x), 0)
        assert_same_bits(reduced, on_every_device(summed(x), 4))


@forms
def test_shapes_that_no_device_count_divides(form):
    """The all-reduce pads; scalars, single elements and empty arrays too."""
    xs = [terms((4, *shape)) for shape in [(), (1,), (3,), (0,), (5, 7), (2, 3, 1)]]
    got = on_devices(lambda xs: [reduce(x, **form) for x in xs], 4)(xs)
    for y, x in zip(got, xs):
        assert_same_bits(y, on_every_device(summed(x), 4))


@forms
def test_untiled_scatters_drop_the_dim(form):
    x = terms((4, 3, 4, 2))
    function = partial(scatter, scatter_dimension=-2, tiled=False, **form)
    got = on_devices(function, 4)(x)
    assert_same_bits(got, np.moveaxis(summed(x), 1, 0))


@permutes
@pytest.mark.parametrize("channels", [1, 2, 3])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_35087_all_devices_hold_the_same_bits(form, channels, dtype):
    """tt-metal 35087: rounding differed by device. Terms of very different sizes round often."""
    random = np.random.default_rng(1)
    x = random.normal(size=(5, 7, 13)) * 10.0 ** random.integers(-3, 3, (5, 7, 13))
    x = x.astype(jnp.dtype(dtype))
    got = np.asarray(on_devices(partial(reduce, channels=channels, **form), 5)(x))
    for y in got[1:]:
        assert_same_bits(y, got[0])
    np.testing.assert_allclose(got[0].astype(np.float64), summed(x).astype(np.float64), rtol=0.1)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_order_of_summation_is_the_schedules(dtype):
    """On a ring of 4 in two directions, first and second half of each stripe."""
    x = np.random.default_rng(2).normal(size=(4, 8)).astype(jnp.dtype(dtype))
    form = {"implementation": "permute", "topology": "ring", "directions": 2}
    got = np.asarray(on_devices(partial(scatter, **form), 4)(x))
    for d in range(4):
        own, up, down, far = (x[(d + hop) % 4, 2 * d : 2 * d + 2] for hop in (0, -1, 1, 2))
        assert_same_bits(got[d, :1], ((own + up) + (down + far))[:1])
        assert_same_bits(got[d, 1:], ((own + (up + far)) + down)[1:])


@permutes
def test_sums_of_negative_zeros_keep_their_sign(form):
    x = np.full((4, 8), -0.0, np.float32)
    got = on_devices(lambda x: (scatter(x, **form), reduce(x, **form)), 4)(x)
    assert all(np.signbit(np.asarray(y)).all() for y in got)


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=4),
    st.data(),
    st.sampled_from(["float32", "bfloat16", "int32", "uint8"]),
    st.integers(1, 6),
    st.sampled_from(FORMS),
)
def test_any_draw_agrees_with_numpy(shape, data, dtype, devices, form):
    dim = data.draw(st.integers(-len(shape), len(shape) - 1))
    channels = data.draw(st.integers(1, max(1, shape[dim])))
    x = terms((devices, *whole_shape(shape, dim, devices)), dtype)

    def function(x):
        reduced = reduce(x, channels=channels, **form)
        return scatter(x, scatter_dimension=dim, channels=channels, **form), reduced

    scattered, reduced = on_devices(function, devices)(x)
    assert_scattered(scattered, summed(x), dim)
    assert_same_bits(reduced, on_every_device(summed(x), devices))


@pytest.mark.parametrize(
    ("topology", "directions", "channels", "count"),
    [("ring", 1, 1, 3), ("ring", 2, 1, 4), ("ring", 2, 2, 8), ("line", 1, 1, 6), ("line", 2, 1, 6)],
)
def test_one_permute_per_step_direction_and_channel(topology, directions, channels, count):
    form = {"topology": topology, "directions": directions, "channels": channels}
    x = np.zeros((4, 16, 2), np.float32)
    for way, permutes in ((scatter, count), (reduce, 2 * count)):
        function = on_devices(partial(way, implementation="permute", **form), 4)
        text = function.lower(x).as_text()
        assert text.count("collective_permute") == permutes
        assert "all_reduce" not in text


@pytest.mark.parametrize("way", [scatter, reduce])
def test_none_takes_the_permutes_for_large_16_bit_floats(way):
    def permutes(shape, dtype):
        given = jax.ShapeDtypeStruct((4, *shape), jnp.dtype(dtype))
        return on_devices(way, 4).lower(given).as_text().count("collective_permute")

    assert permutes((1024, 512), "bfloat16")
    assert not permutes((64, 512), "bfloat16")
    assert not permutes((1024, 512), "float32")


@pytest.mark.parametrize("check_vma", [True, False])
@forms
def test_an_all_reduce_no_longer_varies(form, check_vma):
    x = terms((4, 5))
    body = jax.shard_map(
        partial(ringline.all_reduce, axis_name="x", **form),
        mesh=mesh_of(4),
        in_specs=P("x"),
        out_specs=P(),
        check_vma=check_vma,
    )
    assert_same_bits(jax.jit(body)(x), summed(x)[None])


@forms
def test_a_pytree_is_reduced_leaf_by_leaf(form):
    xs = {"a": terms((4, 4)), "b": (terms((4, 8, 3), "int32"),)}
    got = on_devices(lambda xs: (scatter(xs, **form), reduce(xs, **form)), 4)(xs)
    jax.tree.map(lambda y, x: assert_scattered(y, summed(x), 0), got[0], xs)
    jax.tree.map(lambda y, x: assert_same_bits(y, on_every_device(summed(x), 4)), got[1], xs)


def test_another_order_is_the_one_that_is_compiled(monkeypatch):
    """A valid order made as text: up a line to the last device, stripe by stripe."""
    text = (
        "reduce-scatter line devices=3 directions=2 channels=1 pieces=1\n"
        "0: 0>1 c0 p2[0:1]\n1: 1>2 c0 p2[0:1]\n2: 2<1 c0 p0[0:1], 0>1 c0 p1[0:1]\n"
        "3: 1<0 c0 p0[0:1]\n4: 2<1 c0 p1[0:1]\n"
    )
    schedule = ringline.CollectiveSchedule.from_text(text)
    schedule.validate()
    monkeypatch.setattr("ringline.collectives._reduce_scatter.schedule_for", lambda *_: schedule)
    x = terms((3, 6))
    function = on_devices(partial(scatter, implementation="permute"), 3)
    assert_scattered(function(x), summed(x), 0)
    assert function.lower(x).as_text().count("collective_permute") == 6


def _refused(function, message, x=None):
    with pytest.raises(ValueError, match=re.escape(message)) as raised:
        on_devices(function, 4)(np.zeros((4, 4, 5), np.float32) if x is None else x)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"scatter_dimension": 2}, "scatter_dimension must be in [-2, 1] for an array of rank 2"),
        ({"scatter_dimension": 1}, "dim 1 of shape (4, 5) must divide by the 4 devices, got 5"),
        ({"directions": 3}, "directions must be 1 or 2, got 3"),
        ({"channels": 0}, "channels must be at least 1, got 0"),
        ({"channels": 2}, "channels must be at most the 1 rows of a shard of shape (1, 5)"),
        ({"topology": "star"}, "topology must be 'ring' or 'line', got 'star'"),
        ({"implementation": "nccl"}, "implementation must be None or one of ('xla', 'permute', "),
    ],
)
def test_bad_options_are_refused(form, message):
    _refused(partial(scatter, **form), message)


def test_untiled_needs_a_dim_of_the_devices_size():
    x = np.zeros((4, 8), np.float32)
    _refused(partial(scatter, tiled=False), "must have the 4 devices' size with tiled=False", x)


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"directions": 0}, "directions must be 1 or 2, got 0"),
        ({"channels": 6}, "channels must be at most the 5 rows of a shard of shape (4, 5)"),
        ({"topology": "star"}, "topology must be 'ring' or 'line', got 'star'"),
        ({"implementation": "nccl"}, "implementation must be None or one of ('xla', 'permute', "),
    ],
)
def test_bad_options_of_an_all_reduce_are_refused(form, message):
    _refused(partial(reduce, **form), message)


def test_scalars_cannot_be_scattered():
    _refused(scatter, "a scalar has no dim to scatter; use ringline.all_reduce", np.zeros(4))


@pytest.mark.parametrize("way", [ringline.reduce_scatter, ringline.all_reduce])
def test_a_call_outside_shard_map_is_refused(way):
    with pytest.raises(ValueError, match=f"{way.__name__} over axis 'x' was called outside"):
        way(jnp.zeros(4), "x")
