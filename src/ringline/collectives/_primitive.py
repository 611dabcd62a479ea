"""The JAX primitive behind `all_gather`: one linear operation, whatever the backend.

Being a primitive it can move raw bits and still have a gradient. Its transpose adds up, for each
stripe, the cotangents of all devices: the same sends backwards.
"""

from functools import partial

import jax
from jax import Array, lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from ringline.collectives._bits import carried_as
from ringline.collectives._permute import Assembly, AxisName, permute_all_gather
from ringline.schedule import CollectiveSchedule

all_gather_p = Primitive("ringline_all_gather")


def bind_all_gather(
    x: Array,
    *,
    axis_name: AxisName,
    axis: int,
    cut: int,
    schedule: CollectiveSchedule,
    implementation: str,
    assembly: Assembly,
) -> Array:
    """Gather stripes along dim `axis`, pieces cut along dim `cut`; `x` must vary over the axis."""
    return all_gather_p.bind(
        x,
        axis_name=axis_name,
        axis=axis,
        cut=cut,
        schedule=schedule,
        implementation=implementation,
        assembly=assembly,
    )


def _abstract_eval(x, *, axis: int, schedule: CollectiveSchedule, **_):
    shape = list(x.shape)
    shape[axis] *= schedule.devices
    return x.update(shape=tuple(shape))


def _gather(x: Array, *, implementation: str, as_bits: bool, assembly: Assembly, **params) -> Array:
    devices = params["schedule"].devices
    if devices == 1 or x.size == 0:
        return lax.concatenate([x] * devices, params["axis"])
    if implementation == "permute":
        return permute_all_gather(x, assembly=assembly, as_bits=as_bits, **params)
    to_bits, from_bits = carried_as(x.dtype, as_bits=as_bits)
    axis_name, axis = params["axis_name"], params["axis"]
    return from_bits(lax.all_gather(to_bits(x), axis_name, axis=axis, tiled=True))


def _transpose(cotangent, x, **params):
    # Not as bits: the cotangents are added up on their way back.
    gather = partial(_gather, as_bits=False, **params)
    return jax.linear_transpose(gather, x.aval)(cotangent)


def _batch(operands, dims, *, axis: int, cut: int, **params):
    (x,), (dim,) = operands, dims
    out = all_gather_p.bind(x, axis=axis + (dim <= axis), cut=cut + (dim <= cut), **params)
    return out, dim


all_gather_p.def_abstract_eval(_abstract_eval)
ad.deflinear2(all_gather_p, _transpose)
batching.primitive_batchers[all_gather_p] = _batch
mlir.register_lowering(
    all_gather_p, mlir.lower_fun(partial(_gather, as_bits=True), multiple_results=False)
)
