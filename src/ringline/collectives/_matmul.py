"""The primitives behind the fused forms: an all-gather or a reduce-scatter with a matmul in it.

Both are linear in each operand. The transpose to the left operand is the other fused form on the
same schedule run backwards; to the right one it is a gather and a matmul. Shape suffixes are left
out: `x` is [..., k] with the stripes along dim `axis`, `w` is [k, m].
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from ringline.collectives._permute import permute_gather_each
from ringline.collectives._permute_sum import rows_of_stripes, sum_blocks
from ringline.collectives._primitive import (
    bind_all_gather,
    bind_reduce_scatter,
    gather_local,
    kernels,
    scatter_local,
    transposed,
    with_effects,
)
from ringline.schedule import CollectiveSchedule

all_gather_matmul_p = Primitive("ringline_all_gather_matmul")
matmul_reduce_scatter_p = Primitive("ringline_matmul_reduce_scatter")


def bind_all_gather_matmul(x: Array, w: Array, **params: Any) -> Array:
    """`gather(x) @ w` in `dtype`; both must vary over the same mesh axes."""
    return all_gather_matmul_p.bind(x, w, **params)


def bind_matmul_reduce_scatter(x: Array, w: Array, **params: Any) -> Array:
    """`scatter(sum(x @ w))` in `dtype`; both must vary over the same mesh axes."""
    return matmul_reduce_scatter_p.bind(x, w, **params)


def _matmul(x: Array, w: Array) -> Array:
    return _contract(x, w, (x.ndim - 1,), (0,))


def _contract(x: Array, w: Array, x_dims: tuple[int, ...], w_dims: tuple[int, ...]) -> Array:
    """Sums of products; of floats under 32 bits they are accumulated, and returned, in float32."""
    common = jnp.promote_types(x.dtype, w.dtype)
    small = jnp.issubdtype(common, jnp.floating) and jnp.finfo(common).bits < 32
    return lax.dot_general(
        x.astype(common),
        w.astype(common),
        ((x_dims, w_dims), ((), ())),
        preferred_element_type=jnp.float32 if small else common,
    )


def _gathered_type(x: Any, w: Any, *, axis: int, schedule: CollectiveSchedule, dtype: Any, **_):
    shape = [*x.shape[:-1], w.shape[1]]
    shape[axis] *= schedule.devices
    return x.update(shape=tuple(shape), dtype=dtype, weak_type=False)


def _scattered_type(x: Any, w: Any, *, axis: int, schedule: CollectiveSchedule, dtype: Any, **_):
    shape = [*x.shape[:-1], w.shape[1]]
    shape[axis] //= schedule.devices
    return x.update(shape=tuple(shape), dtype=dtype, weak_type=False)


def _gather_matmul(x: Array, w: Array, *, dtype: Any, **params: Any) -> Array:
    schedule, implementation = params["schedule"], params["implementation"]
    if implementation == "xla" or schedule.devices == 1 or 0 in (x.size, w.size):
        return _matmul(gather_local(x, **params), w).astype(dtype)
    if implementation == "pallas":
        return kernels().pallas_all_gather_matmul(x, w, dtype=dtype, **params)
    del params["implementation"], params["assembly"]
    return permute_gather_each(x, lambda rows: _matmul(rows, w).astype(dtype), **params)


def _matmul_scatter(x: Array, w: Array, *, dtype: Any, **params: Any) -> Array:
    schedule, axis, cut = params["schedule"], params["axis"], params["cut"]
    if params["implementation"] == "xla" or schedule.devices == 1 or 0 in (x.size, w.size):
        return scatter_local(_matmul(x, w).astype(dtype), **params)
    if params["implementation"] == "pallas":
        return kernels().pallas_matmul_reduce_scatter(x, w, dtype=dtype, **params)
    rows, slice_of = rows_of_stripes(x, axis, cut, schedule.devices)

    def block(stripe: Array, start: int, stop: int) -> Array:
        return _matmul(slice_of(stripe, start, stop), w)

    return sum_blocks(block, rows, cut, params["axis_name"], schedule, dtype)


def _gather_to_x(cotangent, x, w, *, schedule: CollectiveSchedule, dtype: Any, **params):
    back = transposed(schedule)
    return bind_matmul_reduce_scatter(cotangent, w.T, schedule=back, dtype=x.aval.dtype, **params)


def _gather_to_w(cotangent, x, w, *, dtype: Any, **params):
    gathered = bind_all_gather(x, **params)
    return _columns(gathered, cotangent, w.aval.dtype)


def _scatter_to_x(cotangent, x, w, *, schedule: CollectiveSchedule, dtype: Any, **params):
    back = transposed(schedule)
    return bind_all_gather_matmul(cotangent, w.T, schedule=back, dtype=x.aval.dtype, **params)


def _scatter_to_w(cotangent, x, w, *, schedule: CollectiveSchedule, dtype: Any, **params):
    gathered = bind_all_gather(cotangent, schedule=transposed(schedule), **params)
    return _columns(x, gathered, w.aval.dtype)


def _columns(x: Array, y: Array, dtype: Any) -> Array:
    """[..., k] and [..., m] to [k, m]."""
    rows = tuple(range(x.ndim - 1))
    return _contract(x, y, rows, rows).astype(dtype)


def _gather_plain(x: Array, w: Array, *, dtype: Any, **params: Any) -> Array:
    return _matmul(bind_all_gather(x, **params), w).astype(dtype)


def _scatter_plain(x: Array, w: Array, *, dtype: Any, **params: Any) -> Array:
    return bind_reduce_scatter(_matmul(x, w).astype(dtype), **params)


def _batch(primitive, plain, operands, dims, **params):
    (x, w), (x_dim, w_dim) = operands, dims
    if w_dim is None:
        rows = jnp.moveaxis(x, x_dim, 0)
        shifted = params | {"axis": params["axis"] + 1, "cut": params["cut"] + 1}
        return primitive.bind(rows, w, **shifted), 0
    # One matmul for each w: nothing to fuse with one collective for all of them.
    return jax.vmap(partial(plain, **params), in_axes=dims)(x, w), 0


def _register(primitive, implement, abstract_eval, to_x, to_w, plain) -> None:
    primitive.def_effectful_abstract_eval(with_effects(abstract_eval, "multiply"))
    ad.defbilinear(primitive, to_x, to_w)
    batching.primitive_batchers[primitive] = partial(_batch, primitive, plain)
    mlir.register_lowering(primitive, mlir.lower_fun(implement, multiple_results=False))


_register(
    all_gather_matmul_p, _gather_matmul, _gathered_type, _gather_to_x, _gather_to_w, _gather_plain
)
_register(
    matmul_reduce_scatter_p,
    _matmul_scatter,
    _scattered_type,
    _scatter_to_x,
    _scatter_to_w,
    _scatter_plain,
)
