"""`all_gather(..., out=...)`: written over a buffer."""

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
    gather,
    mesh_of,
    on_devices,
    on_every_device,
    random_bits,
)
from jax.sharding import PartitionSpec as P

import ringline

forms = pytest.mark.parametrize("form", [FORMS[0], FORMS[3], FORMS[5]], ids=form_id)


def into(given, **form):
    x, out = given
    return gather(x, out=out, **form)


@forms
@pytest.mark.parametrize("devices", [1, 2, 4])
@pytest.mark.parametrize(("slab_bytes", "concatenated"), [(2**21, 2**22), (2**21, 0), (24, 0)])
def test_what_the_buffer_held_does_not_matter(form, devices, slab_bytes, concatenated, monkeypatch):
    monkeypatch.setattr("ringline.collectives._permute._SLAB_BYTES", slab_bytes)
    monkeypatch.setattr("ringline.collectives._permute._MAX_CONCATENATE_BYTES", concatenated)
    cases = [((2, 6, 5), 1, "bfloat16"), ((3, 4), 0, "float32"), ((0, 2), 1, "int8")]
    xs = [random_bits((devices, *shape), dtype) for shape, _, dtype in cases]
    wholes = [np.concatenate(x, dim) for x, (_, dim, _) in zip(xs, cases)]
    outs = [random_bits((devices, *y.shape), str(y.dtype), 9) for y in wholes]

    def function(given):
        return [into(g, axis=dim, **form) for g, (_, dim, _) in zip(given, cases)]

    for got, want in zip(on_devices(function, devices)(list(zip(xs, outs))), wholes):
        assert_same_bits(got, on_every_device(want, devices))


@pytest.mark.parametrize("concatenated", [2**22, 0])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("implementation", ["permute", "xla"])
def test_a_donated_buffer_is_the_result(implementation, dtype, concatenated, monkeypatch):
    monkeypatch.setattr("ringline.collectives._permute._MAX_CONCATENATE_BYTES", concatenated)
    body = jax.shard_map(
        lambda x, out: ringline.all_gather(x, "x", axis=1, out=out, implementation=implementation),
        mesh=mesh_of(4),
        in_specs=(P(None, "x"), P()),
        out_specs=P(),
        check_vma=False,
    )
    shapes = [jax.ShapeDtypeStruct((8, 16), dtype)] * 2
    text = jax.jit(body, donate_argnums=1).lower(*shapes).compile().as_text()
    assert text is not None
    assert re.search(r"input_output_alias=\{ \{\}: \(1, \{\}", text)


@forms
def test_the_transpose_is_that_of_a_gather(form):
    x = np.random.default_rng(0).integers(-4, 4, (4, 3, 2)).astype(np.float32)
    whole = np.random.default_rng(1).integers(-4, 4, (4, 12, 2)).astype(np.float32)

    def backwards(given, buffer):
        x, cotangent = given
        out = jnp.zeros_like(cotangent) if buffer else None
        return jax.linear_transpose(lambda x: gather(x, out=out, **form), x)(cotangent)[0]

    got, want = (
        on_devices(partial(backwards, buffer=buffer), 4)((x, whole)) for buffer in (True, False)
    )
    np.testing.assert_array_equal(got, want)


@forms
def test_derivatives_do_not_see_the_buffer(form):
    x = np.random.default_rng(0).normal(size=(4, 3, 2)).astype(np.float32)

    def gradients(given):
        def loss(x, out):
            return (jnp.sin(jax.vmap(partial(_row, **form))(x, out)) ** 2).sum()

        return jax.grad(loss, argnums=(0, 1))(*given)

    def plain(x):
        return jax.grad(lambda x: (jnp.sin(gather(x, axis=1)) ** 2).sum())(x)

    got, unused = on_devices(gradients, 4)((x, np.ones((4, 3, 8), np.float32)))
    np.testing.assert_allclose(got, on_devices(plain, 4)(x), rtol=1e-5)
    assert not np.asarray(unused).any()


def _row(x, out, **form):
    return into((x, out), **form)


@pytest.mark.parametrize(
    ("out", "form", "message"),
    [
        (np.zeros((4, 3, 2), np.float32), {}, "out must have the result's shape (12, 2) and type"),
        (np.zeros((4, 12, 2), np.int32), {}, "type float32, got (12, 2) and int32; change out"),
        (np.zeros((4, 12, 2), np.float32), {"sizes": [3] * 4}, "out cannot be combined with"),
    ],
)
def test_a_buffer_that_does_not_fit_is_refused(out, form, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        on_devices(partial(into, **form), 4)((np.zeros((4, 3, 2), np.float32), out))
