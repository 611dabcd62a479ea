"""The collectives' kernels, compiled for TPU slices: tiles, semaphores and memory that fit."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import ringline
from ringline.aot import compile_for, target
from ringline.collectives.measure._shapes import DTYPES

pytestmark = pytest.mark.usefixtures("libtpu")
CHIPS = ["v4:2x2x1", "v5p:2x2x1", "v5e:2x2", "v6e:2x2", "tpu7x:2x2x1"]


def compiled(name, way, dtype, shape, spec, **options):
    """`way` of an array of `shape` on all devices of a slice."""
    slice_ = target(name)
    mesh = slice_.mesh(x=slice_.device_count)
    out = {ringline.all_gather: P(), ringline.all_reduce: P()}.get(way, spec)
    given = spec if way is ringline.all_gather else P()
    function = jax.shard_map(
        partial(way, axis_name="x", implementation="pallas", **options),
        mesh=mesh,
        in_specs=given,
        out_specs=out,
        check_vma=False,
    )
    x = jax.ShapeDtypeStruct(shape, jnp.dtype(dtype), sharding=NamedSharding(mesh, given))
    return compile_for(slice_, function, x, mesh=mesh)


def kernels(done):
    return done.text.count('custom_call_target="tpu_custom_call"')


@pytest.mark.parametrize("name", CHIPS)
def test_gathers_and_sums_compile(name):
    options = {"topology": "ring", "directions": 2}
    gather = partial(compiled, name, ringline.all_gather, "bfloat16")
    assert kernels(gather((1, 1, 256, 8192), P(None, None, None, "x"), axis=3, **options)) == 1
    assert kernels(gather((1, 1, 8192, 32), P(None, None, "x"), axis=2, **options)) == 1
    scatter = partial(compiled, name, ringline.reduce_scatter, "bfloat16")
    spec = P(None, None, None, "x")
    done = scatter((1, 1, 256, 8192), spec, scatter_dimension=3, channels=2, **options)
    assert kernels(done) == 1
    assert " all-reduce" not in done.text
    reduced = compiled(name, ringline.all_reduce, "float32", (37, 61), None, **options)
    assert kernels(reduced) == 2


@pytest.mark.slow
@pytest.mark.parametrize(("name", "directions"), [("v5e:2x2", 1), *((name, 2) for name in CHIPS)])
def test_lines_compile(name, directions):
    options = {"topology": "line", "directions": directions}
    for way, dim in ((ringline.all_gather, "axis"), (ringline.reduce_scatter, "scatter_dimension")):
        done = compiled(name, way, "float32", (2048, 256), P("x"), **{dim: 0}, **options)
        assert kernels(done) == 1


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_compiles(dtype):
    spec = P(None, "x")
    for shape in ((128, 1024), (3, 20)):
        assert kernels(compiled("v5e:2x2", ringline.all_gather, dtype, shape, spec, axis=1)) == 1
    if "float8" in dtype or dtype == "float16":
        with pytest.raises(ValueError, match=f"'pallas' cannot add {dtype}"):
            compiled("v5e:2x2", ringline.all_reduce, dtype, (12, 20), None)
    else:
        assert kernels(compiled("v5e:2x2", ringline.all_reduce, dtype, (12, 20), None)) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "topology", "dtype"),
    [("v5e:2x2", "line", "float32"), *((name, "ring", "bfloat16") for name in CHIPS)],
)
def test_fused_forms_compile(name, topology, dtype):
    """Rows, sums and columns that fit no tile, in several tiles."""
    slice_ = target(name)
    mesh = slice_.mesh(x=slice_.device_count)

    def block(x, w, v):
        options: dict[str, Any] = {"topology": topology, "implementation": "pallas"}
        hidden = ringline.all_gather_matmul(x, w, "x", **options)
        return ringline.matmul_reduce_scatter(hidden, v, "x", **options)

    specs = (P("x"), P(None, "x"), P("x"))
    function = jax.shard_map(block, mesh=mesh, in_specs=specs, out_specs=P("x"), check_vma=False)
    given = [
        jax.ShapeDtypeStruct(shape, jnp.dtype(dtype), sharding=NamedSharding(mesh, spec))
        for shape, spec in zip(((1048, 200), (200, 1600), (1600, 200)), specs)
    ]
    assert kernels(compile_for(slice_, function, *given, mesh=mesh)) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "topology"), [("v5p:4x4x4", "ring"), ("v6e:8x8", "line"), ("v4:4x4x4", "line")]
)
def test_kernels_of_64_chips_compile(name, topology):
    """Most of their steps are loops, whose numbers are looked up."""
    slice_ = target(name)
    mesh = slice_.mesh(x=slice_.device_count)
    options: dict[str, Any] = {"topology": topology, "implementation": "pallas"}

    def block(x, w):
        hidden = ringline.all_gather_matmul(x, w, "x", **options)
        summed = ringline.matmul_reduce_scatter(hidden, w, "x", **options)
        return ringline.all_reduce(summed, "x", **options)

    function = jax.shard_map(
        block, mesh=mesh, in_specs=(P("x"), P()), out_specs=P(), check_vma=False
    )
    given = [
        jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, spec))
        for shape, spec in (((64 * 16, 256), P("x")), ((256, 256), P()))
    ]
    assert kernels(compile_for(slice_, function, *given, mesh=mesh)) == 4


def test_stripes_that_fit_the_tiles_are_moved_where_they_lie():
    """The only further memory is the copy that makes the result a program's output."""
    shape, spec = (1, 1, 2048, 8192), P(None, None, None, "x")
    for way, dim in ((ringline.all_gather, "axis"), (ringline.reduce_scatter, "scatter_dimension")):
        done = compiled("v5p:2x2x1", way, "bfloat16", shape, spec, **{dim: 3})
        assert done.memory.temporaries_bytes <= 1.01 * done.memory.outputs_bytes
        assert "transpose" not in done.text
