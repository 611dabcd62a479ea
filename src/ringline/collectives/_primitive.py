"""The JAX primitive behind `all_gather`: one linear operation, whatever the backend.

Being a primitive it can move raw bits and still have a gradient. Its transpose adds up, for each
stripe, the cotangents of all devices: the same sends backwards.
"""

from functools import partial

import jax
from jax import Array, lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from ringline.collectives._bits import moved_as_bits
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


def _gather(x: Array, *, implementation: str, assembly: Assembly, **params) -> Array:
    devices = params["schedule"].devices
    if devices == 1 or x.size == 0:
        return lax.concatenate([x] * devices, params["axis"])
    if implementation == "xla":
        return lax.all_gather(x, params["axis_name"], axis=params["axis"], tiled=True)
    return permute_all_gather(x, assembly=assembly, **params)


def _lowered(x: Array, **params) -> Array:
    return moved_as_bits(partial(_gather, **params), x)


def _transpose(cotangent, x, **params):
    # Not as bits: the cotangents are added up on their way back.
    return jax.linear_transpose(partial(_gather, **params), x.aval)(cotangent)


def _batch(operands, dims, *, axis: int, cut: int, **params):
    (x,), (dim,) = operands, dims
    out = all_gather_p.bind(x, axis=axis + (dim <= axis), cut=cut + (dim <= cut), **params)
    return out, dim


all_gather_p.def_abstract_eval(_abstract_eval)
ad.deflinear2(all_gather_p, _transpose)
batching.primitive_batchers[all_gather_p] = _batch
mlir.register_lowering(all_gather_p, mlir.lower_fun(_lowered, multiple_results=False))
