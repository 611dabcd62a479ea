"""The JAX primitives behind the collectives: linear operations, whatever the backend.

Being primitives they can move raw bits and still have a gradient. All-gather and reduce-scatter are
each other's transpose on the same schedule run backwards, all-reduce is its own.
"""

from collections.abc import Callable
from functools import lru_cache, partial, reduce
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from ringline.collectives._arguments import (
    GridAxis,
    axis_names,
    cut_dim,
    stripe_shape,
    varying_axes,
)
from ringline.collectives._bits import carried_as
from ringline.collectives._grid import grid_gather, grid_scatter
from ringline.collectives._permute import Assembly, AxisName, permute_all_gather
from ringline.collectives._permute_sum import permute_reduce_scatter
from ringline.collectives._uneven import compact, padded
from ringline.schedule import CollectiveSchedule

Grid = tuple[GridAxis, ...]

all_gather_p = Primitive("ringline_all_gather")
all_gather_into_p = Primitive("ringline_all_gather_into")
reduce_scatter_p = Primitive("ringline_reduce_scatter")
all_reduce_p = Primitive("ringline_all_reduce")


def bind_all_gather(
    x: Array,
    *,
    axis_name: AxisName,
    axis: int,
    cut: int,
    schedule: CollectiveSchedule,
    implementation: str,
    assembly: Assembly,
    grid: Grid = (),
    sizes: tuple[int, ...] | None = None,
) -> Array:
    """Gather stripes along dim `axis`, pieces cut along dim `cut`; `x` must vary over the axis.

    The sends are those along the axes of `grid` if it has any, else those of `schedule`. With
    `sizes` the result has only that many rows of each stripe.
    """
    return all_gather_p.bind(
        x,
        axis_name=axis_name,
        axis=axis,
        cut=cut,
        schedule=schedule,
        implementation=implementation,
        assembly=assembly,
        grid=grid,
        sizes=sizes,
    )


def bind_all_gather_into(
    x: Array,
    out: Array,
    *,
    axis_name: AxisName,
    axis: int,
    cut: int,
    schedule: CollectiveSchedule,
    implementation: str,
    assembly: Assembly,
) -> Array:
    """As `bind_all_gather`, written over `out`, whose contents do not matter."""
    return all_gather_into_p.bind(
        x,
        out,
        axis_name=axis_name,
        axis=axis,
        cut=cut,
        schedule=schedule,
        implementation=implementation,
        assembly=assembly,
    )


def bind_reduce_scatter(
    x: Array,
    *,
    axis_name: AxisName,
    axis: int,
    cut: int,
    schedule: CollectiveSchedule,
    implementation: str,
    assembly: Assembly,
    grid: Grid = (),
    sizes: tuple[int, ...] | None = None,
) -> Array:
    """Sum up the stripes along dim `axis`; `assembly` is the transposed all-gather's.

    With `sizes` the stripes in `x` have these lengths, and the result that of the longest.
    """
    return reduce_scatter_p.bind(
        x,
        axis_name=axis_name,
        axis=axis,
        cut=cut,
        schedule=schedule,
        implementation=implementation,
        assembly=assembly,
        grid=grid,
        sizes=sizes,
    )


def bind_all_reduce(
    x: Array,
    *,
    axis_name: AxisName,
    schedule: CollectiveSchedule,
    grid: Grid,
    implementation: str,
    assembly: Assembly,
) -> Array:
    """Sum up `x` of all devices; where `jax.shard_map` checks it, the result no longer varies.

    The sends are those along the axes of `grid` if it has any, else those of `schedule`.
    """
    return all_reduce_p.bind(
        x,
        axis_name=axis_name,
        schedule=schedule,
        grid=grid,
        implementation=implementation,
        assembly=assembly,
    )


def kernels() -> Any:
    """The `pallas` backend, when it is asked for: the kernels' language takes long to import."""
    import ringline.collectives.kernels as found

    return found


def with_effects(
    abstract_eval: Callable[..., Any], does: Literal["carry", "add", "multiply"]
) -> Callable[..., Any]:
    """`abstract_eval`, which also checks that kernels can serve, and tells their effects."""

    def evaluate(*avals: Any, **params: Any) -> tuple[Any, frozenset[Any]]:
        aval, schedule = abstract_eval(*avals, **params), params["schedule"]
        if params["implementation"] != "pallas" or schedule.stripes == 1:
            return aval, frozenset()
        given = reduce(jnp.promote_types, (x.dtype for x in avals))
        kernels().check_pallas(schedule, does, given, aval.dtype, grid=bool(params.get("grid")))
        # Interpreted kernels of one program must run in one order on all devices.
        return aval, kernels().interpret_effects()

    return evaluate


def _gather_shape(x: Any, *, axis: int, schedule: CollectiveSchedule, sizes: Any, **_: Any) -> Any:
    shape = list(x.shape)
    shape[axis] = shape[axis] * schedule.stripes if sizes is None else sum(sizes)
    return x.update(shape=tuple(shape))


def _scatter_shape(x: Any, *, axis: int, schedule: CollectiveSchedule, sizes: Any, **_: Any) -> Any:
    shape = list(x.shape)
    shape[axis] = shape[axis] // schedule.stripes if sizes is None else max(sizes)
    return x.update(shape=tuple(shape))


def _reduce_type(x: Any, *, axis_name: AxisName, **_: Any) -> Any:
    left = varying_axes(x) - set(axis_names(axis_name))
    return x.update(manual_axis_type=x.manual_axis_type.update(varying=left))


def _gather(x: Array, *, grid: Grid, sizes: tuple[int, ...] | None, **params: Any) -> Array:
    if not grid and sizes is None:
        return gather_local(x, **params)
    # As bits through all steps: what is between them would quieten signalling NaNs.
    to_bits, from_bits = carried_as(x.dtype)
    whole = _over_axes(grid_gather, gather_local, to_bits(x), grid, params)
    return from_bits(whole if sizes is None else compact(whole, sizes, params["axis"]))


def _scatter(x: Array, *, grid: Grid, sizes: tuple[int, ...] | None, **params: Any) -> Array:
    terms = x if sizes is None else padded(x, sizes, params["axis"])
    return _over_axes(grid_scatter, scatter_local, terms, grid, params)


def _gather_into(x: Array, out: Array, *, implementation: str, **params: Any) -> Array:
    if implementation == "permute" and params["schedule"].devices > 1 and x.size:
        return permute_all_gather(x, out=out, **params)
    return gather_local(x, implementation=implementation, **params)


def _gather_into_jvp(primals, tangents, **params):
    """What the buffer held has no part in the result."""
    y = bind_all_gather_into(*primals, **params)
    if type(tangents[0]) is ad.Zero:
        return y, ad.Zero(jax.typeof(y).to_tangent_aval())
    return y, bind_all_gather(tangents[0], **params)


def _transpose_gather_into(cotangent, x, out, *, schedule: CollectiveSchedule, **params):
    back = bind_reduce_scatter(cotangent, schedule=transposed(schedule), **params)
    return back, ad.Zero(out.aval) if ad.is_undefined_primal(out) else None


def _batch_gather_into(operands, dims, *, axis: int, cut: int, **params):
    size = next(x.shape[dim] for x, dim in zip(operands, dims) if dim is not None)
    x, out = (
        jnp.broadcast_to(x[None], (size, *x.shape)) if dim is None else jnp.moveaxis(x, dim, 0)
        for x, dim in zip(operands, dims)
    )
    return bind_all_gather_into(x, out, axis=axis + 1, cut=cut + 1, **params), 0


def _over_axes(
    on_grid: Callable[..., Array],
    along: Callable[..., Array],
    x: Array,
    grid: Grid,
    params: dict[str, Any],
) -> Array:
    """`along` one axis, or `on_grid` with it along each of two."""
    if not grid or x.size == 0:
        return along(x, **params)
    backend = {name: params[name] for name in ("implementation", "assembly")}
    return on_grid(x, params["axis"], grid, along, **backend)


def gather_local(x: Array, *, implementation: str, **params: Any) -> Array:
    """The all-gather with its backend's operations, which cannot be differentiated."""
    stripes = params["schedule"].stripes
    if stripes == 1 or x.size == 0:
        return lax.concatenate([x] * stripes, params["axis"])
    if implementation == "permute":
        return permute_all_gather(x, **params)
    if implementation == "pallas":
        return kernels().pallas_all_gather(x, **params)
    to_bits, from_bits = carried_as(x.dtype)
    axis_name, axis = params["axis_name"], params["axis"]
    return from_bits(lax.all_gather(to_bits(x), axis_name, axis=axis, tiled=True))


def scatter_local(
    x: Array, *, axis: int, schedule: CollectiveSchedule, implementation: str, **params: Any
) -> Array:
    """The reduce-scatter with its backend's operations."""
    if schedule.stripes == 1 or x.size == 0:
        return lax.slice_in_dim(x, 0, x.shape[axis] // schedule.stripes, axis=axis)
    axis_name = params["axis_name"]
    if implementation == "permute":
        return permute_reduce_scatter(
            x, axis_name=axis_name, axis=axis, cut=params["cut"], schedule=schedule
        )
    if implementation == "pallas":
        return kernels().pallas_reduce_scatter(x, axis=axis, schedule=schedule, **params)
    return lax.psum_scatter(x, axis_name, scatter_dimension=axis, tiled=True)


def _reduce(
    x: Array,
    *,
    axis_name: AxisName,
    schedule: CollectiveSchedule,
    grid: Grid,
    implementation: str,
    assembly: Assembly,
) -> Array:
    devices = schedule.devices
    if devices == 1 or x.size == 0:
        return x
    if implementation == "xla":
        return lax.psum(x, axis_name)
    # Any dim will do for the stripes; where none divides, they are cut from the elements in order.
    axis = next((dim for dim, size in enumerate(x.shape) if size % devices == 0), None)
    whole = x
    if axis is None:
        axis, flat = 0, x.reshape(-1)
        whole = lax.pad(flat, flat.dtype.type(0), [(0, -x.size % devices, 0)])
    params = {
        "axis_name": axis_name,
        "axis": axis,
        "cut": cut_dim(stripe_shape(whole.shape, axis, devices), axis, schedule.pieces),
        "schedule": schedule,
        "implementation": implementation,
        "assembly": assembly,
    }
    stripe = _over_axes(grid_scatter, scatter_local, whole, grid, params)
    summed = _over_axes(grid_gather, gather_local, stripe, grid, params)
    return summed if whole is x else summed[: x.size].reshape(x.shape)


@lru_cache(maxsize=256)
def transposed(schedule: CollectiveSchedule) -> CollectiveSchedule:
    """The same sends backwards."""
    return schedule.transposed()


def _backwards(schedule: CollectiveSchedule, grid: Grid) -> dict[str, Any]:
    return {
        "schedule": transposed(schedule),
        "grid": tuple(GridAxis(axis.name, transposed(axis.schedule)) for axis in grid),
    }


def _transpose_gather(cotangent, x, *, schedule: CollectiveSchedule, grid: Grid, **params):
    return (bind_reduce_scatter(cotangent, **_backwards(schedule, grid), **params),)


def _transpose_scatter(cotangent, x, *, schedule: CollectiveSchedule, grid: Grid, **params):
    return (bind_all_gather(cotangent, **_backwards(schedule, grid), **params),)


def _transpose_reduce(cotangent, x, *, axis_name: AxisName, **params):
    if varying_axes(x.aval) >= set(axis_names(axis_name)):
        return (lax.pcast(cotangent, axis_name, to="varying"),)
    # Unchecked, jax.lax.psum too takes each device's result for a value of its own.
    return (bind_all_reduce(cotangent, axis_name=axis_name, **params),)


def _batch_stripes(primitive, operands, dims, *, axis: int, cut: int, **params):
    (x,), (dim,) = operands, dims
    out = primitive.bind(x, axis=axis + (dim <= axis), cut=cut + (dim <= cut), **params)
    return out, dim


def _batch_reduce(operands, dims, **params):
    (x,), (dim,) = operands, dims
    return all_reduce_p.bind(x, **params), dim


def _register(primitive, implement, abstract_eval, transpose, batch, does) -> None:
    primitive.def_effectful_abstract_eval(with_effects(abstract_eval, does))
    ad.deflinear2(primitive, transpose)
    batching.primitive_batchers[primitive] = batch
    mlir.register_lowering(primitive, mlir.lower_fun(implement, multiple_results=False))


_register(
    all_gather_p,
    _gather,
    _gather_shape,
    _transpose_gather,
    partial(_batch_stripes, all_gather_p),
    "carry",
)
_register(
    reduce_scatter_p,
    _scatter,
    _scatter_shape,
    _transpose_scatter,
    partial(_batch_stripes, reduce_scatter_p),
    "add",
)
_register(all_reduce_p, _reduce, _reduce_type, _transpose_reduce, _batch_reduce, "add")

all_gather_into_p.def_effectful_abstract_eval(with_effects(lambda x, out, **_: out, "carry"))
ad.primitive_jvps[all_gather_into_p] = _gather_into_jvp
ad.primitive_transposes[all_gather_into_p] = _transpose_gather_into
batching.primitive_batchers[all_gather_into_p] = _batch_gather_into
mlir.register_lowering(all_gather_into_p, mlir.lower_fun(_gather_into, multiple_results=False))
