"""Two devices a host: the same bits as the plain computation, whatever the devices are called."""

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from collective_cases import assert_same_bits, on_devices, on_every_device, random_bits
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import ringline
from ringline.collectives import _hosts
from ringline.collectives._hosts import find_pairs
from ringline.schedule import all_gather

HOST, LOCAL = 4, 2


def _on_hosts(function, *, hosts: int = HOST, check_vma: bool = True):
    """Run on a mesh of hosts x 2; arguments and results gain two leading dims."""
    mesh = Mesh(np.array(jax.devices()[: 2 * hosts]).reshape(hosts, LOCAL), ("host", "local"))

    def body(x):
        return function(x[0, 0])[None, None]

    spec = P("host", "local")
    return jax.jit(
        jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=check_vma)
    )


@settings(max_examples=12, deadline=None)
@given(
    topology=st.sampled_from(("ring", "line")),
    hosts=st.integers(1, 4),
    shape=st.sampled_from([((6,), 0), ((3, 5), 1), ((2, 3, 29), 0), ((1, 0, 4), 2)]),
    dtype=st.sampled_from(("bool", "uint8", "bfloat16", "float32")),
    channels=st.integers(1, 2),
)
def test_all_gather_over_the_devices_of_all_hosts(topology, hosts, shape, dtype, channels):
    (shape, dim), devices = shape, 2 * hosts
    shards = random_bits((devices, *shape), dtype)

    def gather(x):
        return ringline.all_gather(
            x, "x", axis=dim, topology=topology, per_host=2, channels=min(channels, shape[dim] or 1)
        )

    expected = np.concatenate(list(shards), axis=dim)
    assert_same_bits(on_devices(gather, devices)(shards), on_every_device(expected, devices))


@pytest.mark.parametrize("topology", ["ring", "line"])
@pytest.mark.parametrize("check_vma", [True, False])
def test_all_gather_over_two_mesh_axes_and_over_that_of_the_hosts(topology, check_vma):
    shards = random_bits((HOST, LOCAL, 3, 5), "float32")

    def everything(x):
        return ringline.all_gather(x, ("host", "local"), axis=1, topology=topology, per_host=2)

    def rail(x):
        return ringline.all_gather(x, "host", topology=topology, per_host="local")

    whole = np.concatenate(list(shards.reshape(-1, 3, 5)), axis=1)
    found = np.asarray(_on_hosts(everything, check_vma=check_vma)(shards))
    assert_same_bits(found, np.broadcast_to(whole, (HOST, LOCAL, *whole.shape)))
    rails = np.concatenate(list(shards), axis=1)
    found = np.asarray(_on_hosts(rail, check_vma=check_vma)(shards))
    assert_same_bits(found, np.broadcast_to(rails, (HOST, *rails.shape)))


@settings(max_examples=8, deadline=None)
@given(
    topology=st.sampled_from(("ring", "line")),
    hosts=st.integers(1, 4),
    channels=st.integers(1, 2),
    sizes=st.booleans(),
)
def test_reduce_scatter_over_the_devices_of_all_hosts(topology, hosts, channels, sizes):
    devices = 2 * hosts
    lengths = [1 + d % 3 for d in range(devices)] if sizes else [3] * devices
    terms = np.random.default_rng(0).integers(-9, 9, (devices, sum(lengths), 5)).astype(np.float32)

    def scatter(x):
        return ringline.reduce_scatter(
            x,
            "x",
            topology=topology,
            per_host=2,
            channels=channels,
            sizes=lengths if sizes else None,
        )

    found = np.asarray(on_devices(scatter, devices)(terms))
    total, start = terms.sum(0), 0
    for device, length in enumerate(lengths):
        np.testing.assert_array_equal(found[device, :length], total[start : start + length])
        start += length


def test_what_came_up_the_rail_is_added_before_the_term_from_across():
    devices = 8
    powers = np.random.default_rng(1).integers(-30, 30, (devices, devices, 4))
    terms = np.exp2(powers).astype(np.float32)

    def scatter(x):
        return ringline.reduce_scatter(x, "x", topology="ring", per_host=2)

    found = np.asarray(on_devices(scatter, devices)(terms))
    for owner in range(devices):
        step = 2 if owner % 2 == 0 else -2
        total = None
        for host in range(HOST - 1, -1, -1):
            device = (owner + step * host) % devices
            own = terms[device, owner]
            total = (own if total is None else own + total) + terms[device ^ 1, owner]
        np.testing.assert_array_equal(found[owner, 0], total)


@pytest.mark.parametrize("topology", ["ring", "line"])
def test_reduce_scatter_over_the_axis_of_the_hosts(topology):
    terms = np.random.default_rng(0).integers(-9, 9, (HOST, LOCAL, 8, 3)).astype(np.float32)

    def scatter(x):
        return ringline.reduce_scatter(x, "host", topology=topology, per_host="local")

    found = np.asarray(_on_hosts(scatter)(terms))
    expected = terms.sum(0).reshape(LOCAL, HOST, 2, 3).swapaxes(0, 1)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("topology", ["ring", "line"])
def test_all_reduce_over_the_devices_of_all_hosts(topology):
    terms = np.random.default_rng(0).integers(-9, 9, (8, 5, 3)).astype(np.float32)

    def reduce(x):
        total = ringline.all_reduce(x, "x", topology=topology, per_host=2)
        return jax.lax.pcast(total, "x", to="varying")

    found = np.asarray(on_devices(reduce, 8)(terms))
    np.testing.assert_array_equal(found, np.broadcast_to(terms.sum(0), found.shape))


def test_the_transposes_are_each_other():
    shards = np.random.default_rng(0).standard_normal((HOST, LOCAL, 2, 3)).astype(np.float32)
    weights = np.random.default_rng(1).standard_normal((HOST * 2, 3)).astype(np.float32)

    def loss(x: Any, per_host: Any):
        whole = ringline.all_gather(x, "host", per_host=per_host, implementation="permute")
        return (whole * weights).sum()

    def gradient(per_host):
        return np.asarray(_on_hosts(lambda x: jax.grad(loss)(x, per_host))(shards))

    np.testing.assert_allclose(gradient("local"), gradient(1), rtol=1e-6)


def test_under_vmap_and_into_a_buffer():
    shards = random_bits((8, 3, 4), "float32")

    def mapped(x):
        return jax.vmap(lambda row: ringline.all_gather(row, "x", per_host=2))(x)

    expected = np.concatenate(list(shards), axis=1)
    assert_same_bits(on_devices(mapped, 8)(shards), on_every_device(expected, 8))

    def into(x):
        out = jnp.zeros((24, 4), x.dtype)
        return ringline.all_gather(x, "x", out=out, per_host=2)

    expected = np.concatenate(list(shards))
    assert_same_bits(on_devices(into, 8)(shards), on_every_device(expected, 8))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"per_host": 3}, "per_host must be 1, 2"),
        ({"per_host": "local"}, "another manual mesh axis of 2 devices"),
        ({"per_host": 2, "directions": 1}, "use 2"),
        ({"per_host": 2, "implementation": "xla"}, "use 'permute' or None"),
        ({"per_host": 2, "topology": ("ring", "line")}, "one topology"),
    ],
)
def test_what_cannot_be_is_refused(options, message):
    axis = ("x", "y") if isinstance(options.get("topology"), tuple) else "x"
    mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("y", "x"))
    gather = jax.shard_map(
        lambda x: ringline.all_gather(x, axis, **options),
        mesh=mesh,
        in_specs=P(("y", "x")),
        out_specs=P(("y", "x")),
    )
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(gather, jnp.zeros(8))


def test_an_all_reduce_cannot_leave_two_devices_apart():
    per_host: Any = "local"

    def reduce(x):
        return ringline.all_reduce(x, "host", per_host=per_host)

    with pytest.raises(ValueError, match="put both devices of a host on the axis"):
        _on_hosts(reduce)(np.zeros((HOST, LOCAL, 2)))


def test_an_odd_axis_and_equal_shards_are_refused():
    with pytest.raises(ValueError, match="even number of devices"):
        on_devices(lambda x: ringline.all_gather(x, "x", per_host=2), 3)(np.zeros((3, 2)))

    def same(x):
        return ringline.all_gather(jax.lax.psum(x, "local"), "host", per_host="local")

    with pytest.raises(ValueError, match="differ over that mesh axis"):
        _on_hosts(same)(np.zeros((HOST, LOCAL, 2)))


def _pretend(monkeypatch, processes):
    """As if the devices belonged to these processes."""
    here = [SimpleNamespace(process_index=process) for process in processes]
    monkeypatch.setattr(jax, "process_count", lambda: len(set(processes)))
    monkeypatch.setattr(jax, "devices", lambda backend=None: here)


def _found(monkeypatch, processes, shape, names, axis, **options):
    """What a call finds in a mesh over these processes."""
    mesh = Mesh(np.array(jax.devices()[: len(processes)]).reshape(shape), names)
    _pretend(monkeypatch, processes)
    monkeypatch.setattr(jax, "device_count", lambda backend=None: len(processes))
    found = []
    asked: dict[str, Any] = {"per_host": None, "topology": "ring", "directions": 2, "channels": 1}
    asked |= {"implementation": None} | options

    def body():
        found.append(find_pairs(all_gather, axis, **asked))
        return jnp.zeros(())

    jax.eval_shape(jax.shard_map(body, mesh=mesh, in_specs=(), out_specs=P()))
    return found[0]


FOUR = [0, 0, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize(
    ("processes", "shape", "axis", "expected"),
    [
        (FOUR, (8, 1), "a", "ring-ladder"),
        (FOUR, (4, 2), ("a", "b"), "ring-ladder"),
        (FOUR, (4, 2), "a", "ring-rails"),
        (FOUR, (4, 2), "b", None),
        (FOUR, (2, 4), "a", None),
        (FOUR, (2, 4), "b", "ring-ladder"),
        ([0] * 8, (8, 1), "a", None),
        ([0, 1, 0, 1], (4, 1), "a", None),
        ([0, 0, 0, 0, 1, 1, 1, 1], (4, 2), "a", "ring-ladder"),
        ([0, 0, 0, 0, 1, 1, 1, 1], (8, 1), "a", None),
        ([0, 0, 1, 1], (2, 2), "a", "ring-rails"),
    ],
)
def test_two_devices_a_host_are_found_in_the_mesh(monkeypatch, processes, shape, axis, expected):
    for directions in (None, 2):
        with monkeypatch.context() as patch:
            found = _found(patch, processes, shape, ("a", "b"), axis, directions=directions)
        assert (found and found.schedule.topology.name) == expected


def test_they_are_not_looked_for_where_something_was_asked_for(monkeypatch):
    for options in (
        {"implementation": "permute"},
        {"directions": 1},
        {"per_host": 1},
        {"topology": ("ring", "ring")},
    ):
        with monkeypatch.context() as patch:
            assert _found(patch, FOUR, (8, 1), ("a", "b"), "a", **options) is None


@pytest.mark.parametrize("processes", [[0, 1, 2, 3], [1, 0, 2, 2], [0, 1, 2, 0, 1, 2]])
def test_other_numbers_of_devices_are_told_how_to_get_both_directions(monkeypatch, processes):
    _hosts._say_how.cache_clear()
    shape, names = (len(processes),), ("alone",)
    with pytest.warns(UserWarning, match="start every process with two CPU devices"):
        assert _found(monkeypatch, processes, shape, names, "alone") is None


def test_small_shards_and_equal_ones_keep_the_built_in(monkeypatch):
    pairs = _found(monkeypatch, FOUR, (4, 2), ("a", "b"), "a")
    assert pairs is not None
    assert not pairs.serve(jnp.zeros(()), 2**16 - 1)
    assert pairs.serve(jnp.zeros(()), 2**16)
