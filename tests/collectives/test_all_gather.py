"""The conformance suite: every backend gives the bits that numpy's concatenate gives."""

import re
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from collective_cases import (
    FORMS,
    assert_same_bits,
    form_id,
    gather,
    mesh_of,
    on_devices,
    on_every_device,
    random_bits,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

import ringline
from ringline.collectives.measure._shapes import DTYPES, SMALL_SHARDS
from ringline.schedule import all_gather
from ringline.topology import topology as make_topology

forms = pytest.mark.parametrize("form", FORMS, ids=form_id)


@forms
@pytest.mark.parametrize("devices", [1, 2, 3, 4, 8])
def test_shapes(form, devices):
    shards = [random_bits((devices, *shape), "float32") for shape, _ in SMALL_SHARDS]
    dims = [dim for _, dim in SMALL_SHARDS]

    def function(shards):
        return [gather(x, axis=dim, **form) for x, dim in zip(shards, dims)]

    for got, x, dim in zip(on_devices(function, devices)(shards), shards, dims):
        assert_same_bits(got, on_every_device(np.concatenate(x, dim), devices))


@forms
def test_every_dtype_keeps_its_bits(form):
    """tt-metal 27114: float32 and uint32; bfloat16's signalling NaNs and the rest besides."""
    shards = [random_bits((4, 3, 10), dtype, seed) for seed, dtype in enumerate(DTYPES)]
    for got, x in zip(on_devices(partial(gather, axis=1, **form), 4)(shards), shards):
        assert_same_bits(got, on_every_device(np.concatenate(x, 1), 4))


@forms
def test_every_64_bit_dtype_keeps_its_bits(form):
    with jax.enable_x64(True):
        dtypes = ["int64", "uint64", "float64", "complex128"]
        shards = [random_bits((4, 3, 2), dtype) for dtype in dtypes]
        for got, x in zip(on_devices(partial(gather, axis=0, **form), 4)(shards), shards):
            assert_same_bits(got, on_every_device(np.concatenate(x, 0), 4))


@forms
def test_untiled_gathers_stack_along_a_new_dim(form):
    shards = [
        random_bits((4,), "float32"),
        random_bits((4, 5), "bfloat16"),
        random_bits((4, 3, 2), "int32"),
    ]

    def function(shards):
        return [
            gather(x, axis=axis, tiled=False, **form)
            for x in shards
            for axis in range(-x.ndim - 1, x.ndim + 1)
        ]

    expected = [np.stack(list(x), axis) for x in shards for axis in range(-x.ndim, x.ndim)]
    for got, want in zip(on_devices(function, 4)(shards), expected, strict=True):
        assert_same_bits(got, on_every_device(want, 4))


@pytest.mark.parametrize("channels", [2, 3])
@pytest.mark.parametrize("topology", ["ring", "line"])
def test_channels_change_nothing(topology, channels):
    shards = [random_bits((4, 7, 3), "bfloat16"), random_bits((4, 3, 3), "float32")]
    form = {"implementation": "permute", "topology": topology, "channels": channels}
    for got, x in zip(on_devices(partial(gather, axis=0, **form), 4)(shards), shards):
        assert_same_bits(got, on_every_device(np.concatenate(x, 0), 4))


@pytest.mark.parametrize("form", FORMS[2:], ids=form_id)
def test_the_update_form_places_what_the_concatenate_form_does(form, monkeypatch):
    """More devices than the concatenating form takes: the one that TPUs and large n use."""
    monkeypatch.setattr("ringline.collectives._permute._MAX_CONCATENATE_DEVICES", 1)
    shards = [random_bits((5, *shape), "bfloat16") for shape, _ in SMALL_SHARDS]
    dims = [dim for _, dim in SMALL_SHARDS]

    def function(shards):
        return [gather(x, axis=dim, **form) for x, dim in zip(shards, dims)]

    for got, x, dim in zip(on_devices(function, 5)(shards), shards, dims):
        assert_same_bits(got, on_every_device(np.concatenate(x, dim), 5))


@pytest.mark.parametrize("form", FORMS[2:], ids=form_id)
@pytest.mark.parametrize("dtype", ["bfloat16", "int32"])
def test_large_shards_go_slab_by_slab(form, dtype, monkeypatch):
    monkeypatch.setattr("ringline.collectives._permute._MAX_CONCATENATE_BYTES", 16)
    monkeypatch.setattr("ringline.collectives._permute._SLAB_BYTES", 24)
    shards = [random_bits((4, *shape), dtype) for shape in [(2, 6, 5), (12, 3, 1), (7, 1), (31,)]]
    dims = [2, 2, 1, 0]

    def function(shards):
        return [gather(x, axis=dim, **form) for x, dim in zip(shards, dims)]

    compiled = on_devices(function, 4)
    assert "while" in compiled.lower(shards).as_text()
    for got, x, dim in zip(compiled(shards), shards, dims):
        assert_same_bits(got, on_every_device(np.concatenate(x, dim), 4))


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=4),
    st.data(),
    st.sampled_from(DTYPES),
    st.integers(1, 6),
    st.sampled_from(FORMS),
)
def test_any_draw_agrees_with_numpy(shape, data, dtype, devices, form):
    dim = data.draw(st.integers(-len(shape), len(shape) - 1))
    channels = data.draw(st.integers(1, max(1, shape[dim])))
    x = random_bits((devices, *shape), dtype)
    got = on_devices(partial(gather, axis=dim, channels=channels, **form), devices)(x)
    assert_same_bits(got, on_every_device(np.concatenate(x, dim), devices))


def test_the_permute_backend_sends_what_the_schedule_says(monkeypatch):
    """Another valid order, made as text, is the one that is compiled."""
    text = (
        "all-gather ring devices=3 directions=2 channels=1 pieces=1\n"
        "0: 0>1 c0 s0[0:1]\n1: 1>2 c0 s1[0:1]\n2: 2>0 c0 s2[0:1]\n"
        "3: 1<0 c0 s1[0:1], 2<1 c0 s2[0:1], 0<2 c0 s0[0:1]\n"
    )
    schedule = ringline.CollectiveSchedule.from_text(text)
    schedule.validate()
    monkeypatch.setattr("ringline.collectives._all_gather.schedule_for", lambda *_: schedule)
    x = random_bits((3, 2, 2), "float32")
    function = on_devices(partial(gather, implementation="permute"), 3)
    assert_same_bits(function(x), on_every_device(np.concatenate(x, 0), 3))
    assert function.lower(x).as_text().count("collective_permute") == 4


@pytest.mark.parametrize("form", FORMS[2:], ids=form_id)
@pytest.mark.parametrize("devices", [2, 3, 4, 6])
def test_elsewhere_each_step_places_what_the_last_one_brought(form, devices, monkeypatch):
    monkeypatch.setattr("ringline.collectives._permute.platform", lambda: "tpu")
    x = random_bits((devices, 4, 6), "bfloat16")
    function = on_devices(partial(gather, axis=1, **form), devices)
    assert_same_bits(function(x), on_every_device(np.concatenate(x, 1), devices))
    steps = all_gather(make_topology(form["topology"], devices), directions=form["directions"])
    assert function.lower(x).as_text().count("optimization_barrier") == steps.steps


@pytest.mark.parametrize(
    ("topology", "directions", "channels", "permutes"),
    [
        ("ring", 1, 1, 3),
        ("ring", 2, 1, 4),
        ("ring", 2, 2, 8),
        ("line", 1, 1, 6),
        ("line", 2, 1, 6),
    ],
)
def test_one_permute_per_step_direction_and_channel(topology, directions, channels, permutes):
    form = {"topology": topology, "directions": directions, "channels": channels}
    function = on_devices(partial(gather, implementation="permute", **form), 4)
    text = function.lower(np.zeros((4, 8, 2), np.float32)).as_text()
    assert text.count("collective_permute") == permutes
    assert "all_gather" not in text


def test_none_takes_the_permutes_where_they_are_faster():
    x = np.zeros((4, 64, 1024), np.float32)
    text = {dim: on_devices(partial(gather, axis=dim), 4).lower(x).as_text() for dim in (0, 1)}
    assert "collective_permute" in text[1]
    assert "collective_permute" not in text[0]


def test_a_pytree_is_gathered_leaf_by_leaf():
    shards = {"a": random_bits((4, 2), "float32"), "b": (random_bits((4, 1, 3), "int8"),)}
    got = on_devices(gather, 4)(shards)
    jax.tree.map(
        lambda y, x: assert_same_bits(y, on_every_device(np.concatenate(x), 4)), got, shards
    )


def _refused(function, message, x=None):
    with pytest.raises(ValueError, match=re.escape(message)) as raised:
        on_devices(function, 4)(np.zeros((4, 3, 5), np.float32) if x is None else x)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("axis", [2, 7, -3])
def test_a_dim_out_of_range_is_refused(axis):
    _refused(
        partial(gather, axis=axis), f"axis must be in [-2, 1] for a result of rank 2, got {axis}"
    )


def test_a_dim_out_of_range_of_the_new_rank_is_refused():
    _refused(partial(gather, axis=3, tiled=False), "axis must be in [-3, 2] for a result of rank 3")


def test_a_scalar_cannot_be_tiled():
    _refused(gather, "a scalar has no dim to join along; use tiled=False", np.zeros(4))


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"directions": 3}, "directions must be 1 or 2, got 3"),
        ({"directions": 0}, "directions must be 1 or 2, got 0"),
        ({"channels": 0}, "channels must be at least 1, got 0"),
        ({"channels": 4}, "channels must be at most the 3 rows of a shard of shape (3, 5)"),
        ({"topology": "star"}, "topology must be 'ring' or 'line', got 'star'"),
        ({"implementation": "nccl"}, "implementation must be None or one of ('xla', 'permute', "),
    ],
)
@pytest.mark.parametrize("implementation", ["xla", "permute", None])
def test_a_bad_option_is_refused_by_every_backend(form, message, implementation):
    _refused(partial(gather, **{"implementation": implementation, **form}), message)


def test_an_unknown_axis_name_is_refused():
    _refused(lambda x: ringline.all_gather(x, "y"), "unknown axis name 'y', expected one of")
    listed: Any = ["x"]
    _refused(lambda x: ringline.all_gather(x, listed), "unknown axis name ['x'], expected one of")


def test_a_call_outside_shard_map_is_refused():
    with pytest.raises(ValueError, match=r"axis 'x' was called outside jax.shard_map"):
        ringline.all_gather(jnp.zeros(3), "x")
    with pytest.raises(ValueError, match=r"axis 'x' was called outside jax.shard_map"):
        jax.vmap(lambda x: ringline.all_gather(x, "x"), axis_name="x")(jnp.zeros((3, 2)))


def test_an_automatic_axis_is_refused():
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("x", "y"))
    function = jax.shard_map(
        lambda x: ringline.all_gather(x, "y"),
        mesh=mesh,
        in_specs=P("x"),
        out_specs=P("x"),
        axis_names={"x"},
    )
    with pytest.raises(ValueError, match="mesh axis 'y' is automatic here"):
        jax.jit(function)(jnp.zeros((4, 2)))


def test_eager_calls_inside_shard_map_work():
    x = random_bits((2, 3), "bfloat16")
    function = jax.shard_map(
        lambda x: gather(x[0], implementation="permute")[None],
        mesh=mesh_of(2),
        in_specs=P("x"),
        out_specs=P("x"),
    )
    assert_same_bits(function(x), on_every_device(np.concatenate(x), 2))
