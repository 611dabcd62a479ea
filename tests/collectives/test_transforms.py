"""`all_gather` under JAX's transformations gives what `jax.lax.all_gather` gives."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from collective_cases import FORMS, form_id, gather, mesh_of, on_devices
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import ringline

forms = pytest.mark.parametrize("form", FORMS[:4] + FORMS[5:], ids=form_id)
DEVICES = 4


def _builtin(x):
    return lax.all_gather(x, "x", axis=1, tiled=True)


def _ours(form):
    return partial(gather, axis=1, **form)


def _x(seed=0):
    return np.random.default_rng(seed).normal(size=(DEVICES, 3, 4)).astype(np.float32)


def _scaled(gather, x):
    """A function of all shards, not linear, whose value differs by device."""
    here = lax.axis_index("x") + 1.0
    return jnp.sin(gather(jnp.sin(x) * here)) * here


def _assert_agrees(transformed, form, *, check_vma=True):
    """`transformed(gather, x)` is the same with either gather, up to the order of additions."""
    got, want = (
        on_devices(partial(transformed, way), DEVICES, check_vma=check_vma)(_x())
        for way in (_ours(form), _builtin)
    )
    jax.tree.map(partial(np.testing.assert_allclose, rtol=2e-5, atol=1e-6), got, want)


@forms
@pytest.mark.parametrize("check_vma", [True, False])
def test_derivatives(form, check_vma):
    def derivatives(gather, x):
        function = partial(_scaled, gather)
        primal, tangent = jax.jvp(function, (x,), (jnp.cos(x),))
        _, pullback = jax.vjp(function, x)
        (cotangent,) = pullback(jnp.cos(primal))
        _, hessian_vector = jax.jvp(lambda x: pullback_of(function, x), (x,), (jnp.cos(x),))
        return primal, tangent, cotangent, hessian_vector

    def pullback_of(function, x):
        primal, pullback = jax.vjp(function, x)
        return pullback(primal)[0]

    _assert_agrees(derivatives, form, check_vma=check_vma)


@forms
def test_remat_scan_and_vmap(form):
    def repeated(gather, x):
        def layer(x, scale):
            y = jax.vmap(lambda row: jnp.sin(gather(row[None] * scale)[0]))(x)
            return lax.dynamic_slice_in_dim(y, lax.axis_index("x"), x.shape[1], 1), y.sum()

        def loss(x):
            x, sums = lax.scan(jax.checkpoint(layer), x, jnp.arange(1.0, 4.0))
            return (x**2).sum() + sums.sum()

        return jax.value_and_grad(loss)(x)

    _assert_agrees(repeated, form)


@forms
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_vmap_over_any_dim(form, dim):
    def mapped(gather, x):
        batched = jnp.stack([x, 2 * x], dim)
        return jax.vmap(gather, in_axes=dim, out_axes=dim)(batched)

    _assert_agrees(mapped, form)


@forms
def test_jacobians(form):
    def jacobians(gather, x):
        function = partial(_scaled, gather)
        return jax.jacfwd(function)(x), jax.jacrev(function)(x)

    _assert_agrees(jacobians, form)


@forms
def test_gradients_of_16_bit_floats_are_there(form):
    """Moving floats as unsigned bits must not cut the gradient off."""

    def loss(x):
        return (gather(x, axis=1, **form) * 2).astype(jnp.float32).sum()

    got = on_devices(jax.grad(loss), DEVICES)(_x().astype(jnp.bfloat16))
    np.testing.assert_array_equal(np.asarray(got, np.float32), 2.0 * DEVICES)


@forms
def test_the_gradient_goes_back_over_the_same_links(form):
    function = on_devices(jax.grad(lambda x: (gather(x, axis=1, **form) ** 2).sum()), DEVICES)
    text = function.lower(np.zeros((DEVICES, 3, 4), np.float32)).as_text()
    if form.get("topology") == "ring" and form["directions"] == 2:
        assert text.count("collective_permute") == 8
        assert "source_target_pairs = dense<[[0, 3], [1, 0], [2, 1], [3, 2]]>" in text
    if form["implementation"] == "permute":
        assert "reduce_scatter" not in text


def test_derivatives_of_slabs(monkeypatch):
    monkeypatch.setattr("ringline.collectives._permute._MAX_CONCATENATE_BYTES", 16)
    monkeypatch.setattr("ringline.collectives._permute._SLAB_BYTES", 24)

    def derivatives(gather, x):
        function = partial(_scaled, gather)
        primal, tangent = jax.jvp(function, (x,), (jnp.cos(x),))
        return tangent, jax.vjp(function, x)[1](jnp.cos(primal))[0]

    _assert_agrees(derivatives, {"implementation": "permute"})


@forms
def test_replicated_inputs_are_taken_as_lax_takes_them(form):
    def function(way):
        body = jax.shard_map(way, mesh=mesh_of(4), in_specs=P(), out_specs=P("x"))
        return jax.jit(body)(_x()[0])

    np.testing.assert_array_equal(function(_ours(form)), function(_builtin))


@forms
def test_inside_automatic_axes(form):
    """shard_map over one mesh axis with the other one left to the compiler."""
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("x", "y"))
    x = _x()

    def function(way):
        body = jax.shard_map(
            lambda x: way(x[0])[None],
            mesh=mesh,
            in_specs=P("x"),
            out_specs=P("x"),
            axis_names={"x"},
        )
        sharded = jax.device_put(x[:2], jax.NamedSharding(mesh, P("x", None, "y")))
        return jax.jit(jax.value_and_grad(lambda x: (body(x) ** 2).sum()))(sharded)

    got, want = function(_ours(form)), function(_builtin)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5), got, want)


@forms
def test_over_two_axes_in_row_major_order(form):
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("x", "y"))
    x = np.arange(8.0, dtype=np.float32)
    body = jax.shard_map(
        lambda x: ringline.all_gather(x, ("x", "y"), **form),
        mesh=mesh,
        in_specs=P(("x", "y")),
        out_specs=P(("x", "y")),
    )
    np.testing.assert_array_equal(jax.jit(body)(x), np.tile(x, 4))
