"""`reduce_scatter` and `all_reduce` under JAX's transformations give what the built-ins give."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from collective_cases import FORMS, form_id, on_devices, varied
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import ringline

forms = pytest.mark.parametrize("form", [FORMS[0], FORMS[3], FORMS[5]], ids=form_id)
DEVICES = 4


def _scatter(form):
    return partial(ringline.reduce_scatter, axis_name="x", scatter_dimension=1, **form)


def _reduce(form):
    return partial(ringline.all_reduce, axis_name="x", **form)


def _builtin_scatter(x):
    return lax.psum_scatter(x, "x", scatter_dimension=1, tiled=True)


def _builtin_reduce(x):
    return lax.psum(x, "x")


WAYS = {"reduce_scatter": (_scatter, _builtin_scatter), "all_reduce": (_reduce, _builtin_reduce)}
ways = pytest.mark.parametrize(("ours", "builtin"), WAYS.values(), ids=WAYS)


def _x(seed=0):
    return np.random.default_rng(seed).normal(size=(DEVICES, 3, 8)).astype(np.float32)


def _assert_agrees(transformed, ours, builtin, *, check_vma=True):
    def run(way):
        varying = varied if check_vma else lambda x: x
        function = lambda x: varying_leaves(transformed(way, x), varying)  # noqa: E731
        return on_devices(function, DEVICES, check_vma=check_vma)(_x())

    def varying_leaves(tree, varying):
        return jax.tree.map(
            lambda y: y if "x" in jax.typeof(y).manual_axis_type.varying else varying(y), tree
        )

    got, want = run(ours), run(builtin)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=2e-5, atol=1e-5), got, want)


@forms
@ways
@pytest.mark.parametrize("check_vma", [True, False])
def test_derivatives(form, ours, builtin, check_vma):
    def derivatives(way, x):
        def function(x):
            return jnp.sin(way(jnp.sin(x) * (lax.axis_index("x") + 1.0)))

        def pulled_back(x):
            primal, pullback = jax.vjp(function, x)
            return pullback(primal)[0]

        primal, tangent = jax.jvp(function, (x,), (jnp.cos(x),))
        return primal, tangent, *jax.jvp(pulled_back, (x,), (jnp.cos(x),))

    _assert_agrees(derivatives, ours(form), builtin, check_vma=check_vma)


@forms
@ways
def test_remat_scan_and_vmap(form, ours, builtin):
    def repeated(way, x):
        def layer(x, scale):
            y = jax.vmap(lambda row: jnp.sin(way(row[None] * scale)[0]))(x)
            return x + 0.1 * y.sum(1, keepdims=True), y.sum()

        def loss(x):
            x, sums = lax.scan(jax.checkpoint(layer), x, jnp.array([0.1, 0.2, 0.3]))
            return (x**2).sum() + sums.sum()

        return jax.value_and_grad(loss)(x)

    _assert_agrees(repeated, ours(form), builtin)


@forms
@ways
@pytest.mark.parametrize("dim", [0, 2])
def test_vmap_over_any_dim(form, ours, builtin, dim):
    def mapped(way, x):
        return jax.vmap(way, in_axes=dim, out_axes=dim)(jnp.stack([x, 2 * x], dim))

    _assert_agrees(mapped, ours(form), builtin)


@forms
@ways
def test_inside_automatic_axes(form, ours, builtin):
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("x", "y"))
    x = _x()[:2]

    def function(way):
        body = jax.shard_map(
            lambda x: way(x[0])[None],
            mesh=mesh,
            in_specs=P("x"),
            out_specs=P("x"),
            axis_names={"x"},
        )
        sharded = jax.device_put(x, jax.NamedSharding(mesh, P("x", None, "y")))
        return jax.jit(jax.value_and_grad(lambda x: (body(x) ** 2).sum()))(sharded)

    got, want = function(ours(form)), function(builtin)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5), got, want)


def test_each_transpose_is_the_other_on_the_same_schedule():
    form = FORMS[3]
    x = np.zeros((DEVICES, 3, 8), np.float32)
    scatter = on_devices(jax.grad(lambda x: (_scatter(form)(x) ** 2).sum()), DEVICES)
    gather_jaxpr = str(jax.make_jaxpr(scatter)(x))
    assert gather_jaxpr.count("ringline_reduce_scatter[") == 1
    assert gather_jaxpr.count("ringline_all_gather[") == 1
    text = scatter.lower(x).as_text()
    assert text.count("collective_permute") == 8
    assert "all_gather" not in text


def test_the_gradient_of_a_checked_all_reduce_moves_nothing():
    def loss(x):
        return (_reduce(FORMS[3])(x) ** 2).sum()

    gradient = on_devices(jax.grad(loss), DEVICES)
    text = gradient.lower(_x()).as_text()
    assert text.count("collective_permute") == 8  # of the forward pass
    np.testing.assert_allclose(gradient(_x()), np.broadcast_to(2 * _x().sum(0), _x().shape), 1e-4)
