"""Where JAX's numbers are of 64 bits by default, everything works as elsewhere."""

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
)
from kernel_cases import KERNELS, emulated

import ringline
from ringline.collectives import _permute

few = pytest.mark.parametrize("form", [FORMS[0], FORMS[3], FORMS[5]], ids=form_id)


@pytest.fixture(autouse=True)
def wide():
    with jax.enable_x64(True):
        yield


def everything(x, **form):
    """All collectives of rows of whole numbers, and derivatives."""
    w = jnp.arange(15.0).reshape(5, 3)
    ways = {
        "scatter": partial(ringline.reduce_scatter, axis_name="x", **form),
        "scatter columns": partial(
            ringline.reduce_scatter, axis_name="x", scatter_dimension=1, sizes=(1, 2, 0, 2), **form
        ),
        "reduce": partial(ringline.all_reduce, axis_name="x", **form),
        "gather": partial(ringline.all_gather, axis_name="x", axis=1, **form),
        "gather matmul": lambda x: ringline.all_gather_matmul(x, w, "x", axis=0, **form),
        "matmul scatter": lambda x: ringline.matmul_reduce_scatter(x, w, "x", **form),
    }
    found = {name: way(x) for name, way in ways.items()}
    slopes = {
        name: jax.grad(lambda x: (way(x) ** 2).sum())(x)  # noqa: B023
        for name, way in ways.items()
    }
    return found, slopes


@few
def test_sums_and_derivatives(form):
    x = np.random.default_rng(0).integers(-5, 5, (4, 8, 5)).astype(np.float64)
    run = partial(on_devices, devices=4, check_vma=False)
    got = run(partial(everything, **form))(x)
    want = run(partial(everything, implementation="xla"))(x)
    jax.tree.map(np.testing.assert_array_equal, got, want)


def test_large_sums_where_the_library_chooses():
    x = np.ones((4, 1024, 512), jax.numpy.bfloat16)
    got = on_devices(lambda x: ringline.reduce_scatter(x, "x"), 4)(x)
    assert (np.asarray(got) == 4).all()


@few
@pytest.mark.parametrize("given", [False, True], ids=["fresh", "out"])
def test_large_gathers_slab_by_slab(form, given, monkeypatch):
    monkeypatch.setattr(_permute, "_MAX_CONCATENATE_BYTES", 0)
    monkeypatch.setattr(_permute, "_SLAB_BYTES", 64)
    for dtype in ("bfloat16", "int64"):
        x = random_bits((4, 3, 8, 5), dtype)

        def function(shard):
            out = np.zeros((3, 8, 20), shard.dtype) if given else None
            return gather(shard, axis=2, out=out, **form)

        assert_same_bits(on_devices(function, 4)(x), on_every_device(np.concatenate(x, 2), 4))


@pytest.mark.slow
def test_kernels():
    x = np.random.default_rng(0).integers(-5, 5, (4, 8, 5)).astype(np.float32)

    def function(x, **form):
        w = jnp.ones((5, 3), jnp.float32)
        return (
            gather(x, axis=0, **form),
            ringline.all_reduce(x, "x", **form),
            ringline.matmul_reduce_scatter(x, w, "x", **form),
        )

    with emulated():
        got = on_devices(partial(function, **KERNELS[1]), 4)(x)
        got = jax.tree.map(np.asarray, got)
    want = on_devices(partial(function, implementation="xla"), 4, check_vma=False)(x)
    jax.tree.map(np.testing.assert_array_equal, got, want)
