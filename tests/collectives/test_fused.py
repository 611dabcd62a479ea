"""The fused forms give what a collective and a matmul give one after the other."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from collective_cases import FORMS, assert_same_bits, form_id, mesh_of, on_devices
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import ringline

forms = pytest.mark.parametrize("form", FORMS, ids=form_id)
few_forms = pytest.mark.parametrize("form", [FORMS[0], FORMS[3], FORMS[5]], ids=form_id)


def gather_matmul(operands, **form):
    x, w = operands
    return ringline.all_gather_matmul(x, w, "x", **form)


def matmul_scatter(operands, **form):
    x, w = operands
    return ringline.matmul_reduce_scatter(x, w, "x", **form)


def plain_gather(operands, axis=1):
    x, w = operands
    return lax.all_gather(x, "x", axis=axis, tiled=True) @ w


def plain_scatter(operands, dim=1):
    x, w = operands
    return lax.psum_scatter(x @ w, "x", scatter_dimension=dim, tiled=True)


def operands(devices, x_shape, columns, dtype="float32", seed=0):
    """Small integers, whose products and sums are exact in every type."""
    random = np.random.default_rng(seed)
    x = random.integers(-2, 3, (devices, *x_shape))
    w = random.integers(-2, 3, (devices, x_shape[-1], columns))
    return x.astype(jnp.dtype(dtype)), w.astype(jnp.dtype(dtype))


def wide(y):
    return np.asarray(y).astype(np.float64)


@few_forms
def test_inside_automatic_axes(form):
    """shard_map over one mesh axis with the other one left to the compiler."""
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("x", "y"))
    (x,), (w,) = operands(1, (4, 6), 8)

    def function(gather, scatter):
        def body(x, w):
            return scatter(gather(x, w), w.T)

        mapped = jax.shard_map(
            body, mesh=mesh, in_specs=(P("x"), P()), out_specs=P("x"), axis_names={"x"}
        )
        return jax.jit(jax.value_and_grad(lambda x, w: (mapped(x, w) ** 2).sum(), (0, 1)))(x, w)

    got = function(
        lambda x, w: ringline.all_gather_matmul(x, w, "x", **form),
        lambda x, w: ringline.matmul_reduce_scatter(x, w, "x", **form),
    )
    want = function(
        lambda x, w: lax.all_gather(x, "x", axis=0, tiled=True) @ w,
        lambda x, w: lax.psum_scatter(x @ w, "x", scatter_dimension=0, tiled=True),
    )
    jax.tree.map(np.testing.assert_array_equal, got, want)


@forms
@pytest.mark.parametrize("devices", [1, 2, 3, 4])
def test_values(form, devices):
    cases = [((2 * devices, 3), 0), ((2, devices, 4), 1), ((devices, 3, 5), -3)]
    given = [operands(devices, shape, 6, seed=seed) for seed, (shape, _) in enumerate(cases)]

    def function(given):
        return [
            (
                gather_matmul(ops, axis=dim, **form),
                matmul_scatter(ops, scatter_dimension=dim, **form),
            )
            for ops, (_, dim) in zip(given, cases)
        ]

    for (gathered, scattered), (x, w), (_, dim) in zip(
        on_devices(function, devices)(given), given, cases
    ):
        whole = np.concatenate(x, dim)
        for got, own in zip(gathered, w):
            np.testing.assert_array_equal(got, whole @ own)
        total = sum(x[d] @ w[d] for d in range(devices))
        np.testing.assert_array_equal(np.concatenate(scattered, dim), total)


@forms
def test_26349_shapes_that_fit_no_tile_in_every_type(form):
    """tt-metal 26349: a fused all-gather and matmul was wrong for [1, 1, 32, 512]."""
    given = [
        operands(4, (1, 1, 32, 512), 3),
        operands(4, (1, 8, 32), 5, "bfloat16"),
        operands(4, (4, 7), 1, "float16"),
        operands(4, (4, 3), 2, "int32"),
    ]

    def function(given):
        return [(gather_matmul(ops, **form), matmul_scatter(ops, **form)) for ops in given]

    for (gathered, scattered), (x, w) in zip(on_devices(function, 4)(given), given):
        assert gathered.dtype == scattered.dtype == x.dtype
        for got, own in zip(gathered, w):
            np.testing.assert_array_equal(wide(got), wide(np.concatenate(x, -2)) @ wide(own))
        total = sum(wide(x[d]) @ wide(w[d]) for d in range(4))
        np.testing.assert_array_equal(np.concatenate(wide(scattered), -2), total)


@forms
def test_bfloat16_products_are_accumulated_in_float32(form):
    """1 + 2^-9 is lost in bfloat16 if it is rounded product by product."""
    x = np.ones((4, 4, 257), jnp.bfloat16)
    w = np.full((4, 257, 1), 2.0**-9, jnp.bfloat16)
    w[:, 0] = 1
    gathered = on_devices(partial(gather_matmul, **form), 4)((x, w))
    assert set(np.unique(wide(gathered))) == {1.5}
    exact = {"preferred_element_type": jnp.float32, **form}
    scattered = on_devices(partial(matmul_scatter, **exact), 4)((x, w))
    assert scattered.dtype == jnp.float32
    assert set(np.unique(scattered)) == {6.0}


@few_forms
@pytest.mark.parametrize(
    ("ours", "plain"), [(gather_matmul, plain_gather), (matmul_scatter, plain_scatter)]
)
def test_derivatives(form, ours, plain):
    """First and second derivatives in both operands, under remat."""
    random = np.random.default_rng(3)
    given = tuple(
        random.normal(size=shape).astype(np.float32) for shape in [(4, 2, 4, 3), (4, 3, 5)]
    )

    def derivatives(way, given):
        def function(given):
            return jnp.sin(way(jax.tree.map(jnp.sin, given)) * (lax.axis_index("x") + 1.0))

        def pulled_back(given):
            primal, pullback = jax.vjp(jax.checkpoint(function), given)
            return pullback(primal)[0]

        primal, tangent = jax.jvp(function, (given,), (given,))
        return primal, tangent, jax.jvp(pulled_back, (given,), (given,))

    got, want = (
        on_devices(partial(derivatives, way), 4)(given) for way in (partial(ours, **form), plain)
    )
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4), got, want)


@few_forms
@pytest.mark.parametrize("in_axes", [(2, None), (0, 1), (None, 0)])
def test_vmap(form, in_axes):
    x, w = operands(4, (2, 4, 3), 5)

    def mapped(gather, scatter, given):
        both = tuple(
            op if dim is None else jnp.stack([op, 2 * op], dim) for op, dim in zip(given, in_axes)
        )
        ways = (jax.vmap(way, in_axes=(in_axes,)) for way in (gather, scatter))
        return [way(both) for way in ways]

    ours = partial(mapped, partial(gather_matmul, **form), partial(matmul_scatter, **form))
    got = on_devices(ours, 4)((x, w))
    want = on_devices(partial(mapped, plain_gather, plain_scatter), 4)((x, w))
    jax.tree.map(np.testing.assert_array_equal, got, want)


@few_forms
def test_a_weight_that_all_devices_share_gets_the_gradient_of_all(form):
    x = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
    w = np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32)

    def gradient(way):
        body = jax.shard_map(way, mesh=mesh_of(4), in_specs=(P("x"), P()), out_specs=P("x"))
        return jax.jit(jax.grad(lambda w: (body(x, w) ** 2).sum()))(w)

    got = gradient(partial(ringline.all_gather_matmul, axis_name="x", **form))
    want = gradient(lambda x, w: lax.all_gather(x, "x", tiled=True) @ w)
    np.testing.assert_allclose(got, want, rtol=1e-5)


def test_each_transpose_is_the_other_fused_form():
    form = {"implementation": "permute"}
    given = operands(4, (4, 3), 5)

    def gradient(way):
        def loss(x, w):
            return (way((x, w), **form) ** 2).sum()

        return str(jax.make_jaxpr(on_devices(lambda ops: jax.grad(loss)(*ops), 4))(given))

    for way in (gather_matmul, matmul_scatter):
        text = gradient(way)
        assert text.count("ringline_all_gather_matmul[") == 1
        assert text.count("ringline_matmul_reduce_scatter[") == 1
        assert "ringline_all_gather[" not in text


@pytest.mark.parametrize(
    ("topology", "directions", "way", "permutes", "matmuls"),
    [
        ("ring", 1, gather_matmul, 3, 4),
        ("ring", 1, matmul_scatter, 3, 4),
        # Half of the opposite stripe goes each way; what it is added to is cut in two, too.
        ("ring", 2, gather_matmul, 4, 5),
        ("ring", 2, matmul_scatter, 4, 7),
        # What comes from both sides is one product: no device gets both.
        *(("line", d, way, 6, 4) for d in (1, 2) for way in (gather_matmul, matmul_scatter)),
    ],
)
def test_a_matmul_for_every_stripe_that_lands(topology, directions, way, permutes, matmuls):
    options = {"topology": topology, "directions": directions}
    function = on_devices(partial(way, implementation="permute", **options), 4)
    text = function.lower(operands(4, (8, 3), 5)).as_text()
    assert text.count("collective_permute") == permutes
    assert text.count("stablehlo.dot_general") == matmuls
    assert "all_gather" not in text
    assert "reduce_scatter" not in text


def test_channels_change_nothing():
    x, w = operands(4, (8, 3), 5)
    for way in (gather_matmul, matmul_scatter):
        one, two = (
            on_devices(partial(way, implementation="permute", channels=channels), 4)((x, w))
            for channels in (1, 2)
        )
        assert_same_bits(two, np.asarray(one))


@pytest.mark.parametrize(
    ("way", "form", "message"),
    [
        (gather_matmul, {"axis": -1}, "axis must not be the last dim, which the matmul sums over"),
        (gather_matmul, {"axis": 2}, "axis must be in [-2, 1] for an array of rank 2, got 2"),
        (gather_matmul, {"channels": 9}, "channels must be at most the 6 rows of a shard"),
        (gather_matmul, {"directions": 3}, "directions must be 1 or 2, got 3"),
        (matmul_scatter, {}, "dim 0 of shape (6, 3) must divide by the 4 devices, got 6"),
        (matmul_scatter, {"scatter_dimension": 1}, "scatter_dimension must not be the last dim"),
        (matmul_scatter, {"topology": "star"}, "topology must be 'ring' or 'line', got 'star'"),
        (matmul_scatter, {"implementation": "nccl"}, "implementation must be None or one of"),
    ],
)
def test_bad_options_are_refused(way, form, message):
    with pytest.raises(ValueError, match=re.escape(message)) as raised:
        on_devices(partial(way, **form), 4)(operands(4, (6, 3), 5))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("shapes", [((4, 8, 3), (4, 4, 5)), ((4, 3), (4, 3, 5))])
def test_operands_that_do_not_fit_are_refused(shapes):
    given = tuple(np.zeros(shape, np.float32) for shape in shapes)
    for way in (gather_matmul, matmul_scatter):
        with pytest.raises(ValueError, match=r"expected x of shape \[\.\.\., rows, k\] and w"):
            on_devices(way, 4)(given)


@pytest.mark.parametrize("way", [ringline.all_gather_matmul, ringline.matmul_reduce_scatter])
def test_a_call_outside_shard_map_is_refused(way):
    with pytest.raises(ValueError, match=f"{way.__name__} over axis 'x' was called outside"):
        way(jnp.zeros((4, 2)), jnp.zeros((2, 2)), "x")
