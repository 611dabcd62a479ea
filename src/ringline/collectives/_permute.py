"""The `permute` backend: a schedule's sends as `jax.lax.ppermute`, then one pass that puts the
arrivals in place.

Two ways to place them. *Concatenate*: every device has its own order of arrivals, so one
concatenation per device is compiled and `jax.lax.switch` takes the one to run: each byte is
written once. *Update*: each arrival is written into the output at an offset looked up by device:
one code for all devices, so compile time does not grow with their square.
"""

from collections.abc import Sequence
from functools import partial
from typing import Literal

import jax
import numpy as np
from jax import Array, lax

from ringline.collectives._plan import Plan, plan_permutes
from ringline.schedule import CollectiveSchedule

AxisName = str | tuple[str, ...]
Assembly = Literal["concatenate", "update"]

# A switch over n concatenations of n arrivals compiles for half a minute at n = 64.
_MAX_CONCATENATE_DEVICES = 16


def choose_assembly(devices: int) -> Assembly:
    """The faster of the two forms that is safe where this is traced, inside `jax.shard_map`."""
    mesh = jax.sharding.get_abstract_mesh()
    # The compiler may put collectives for an automatic axis into a branch, and they hang when
    # the devices of the gathered axis take different branches.
    branches_are_safe = set(mesh.manual_axes) == set(mesh.axis_names)
    fits = devices <= _MAX_CONCATENATE_DEVICES
    return "concatenate" if fits and branches_are_safe and platform() == "cpu" else "update"


def platform() -> str:
    """The platform of the mesh in use: the target's when compiling ahead of time."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return getattr(device, "platform", None) or jax.default_backend()


def permute_all_gather(
    x: Array,
    *,
    axis_name: AxisName,
    axis: int,
    cut: int,
    schedule: CollectiveSchedule,
    assembly: Assembly,
) -> Array:
    """Gather the stripes `x` of all devices along dim `axis`, in the order of `schedule`.

    Args:
        x: this device's stripe.
        axis_name: the mesh axis whose devices are the schedule's.
        axis: the dim that the stripes are joined along.
        cut: the dim along which a stripe is cut into the schedule's pieces.
        schedule: the sends.
        assembly: how the arrivals are put in place.
    """
    plan = plan_permutes(schedule)
    rows = x.shape[cut]
    bounds = tuple(rows * piece // plan.pieces for piece in range(plan.pieces + 1))
    arrivals = _send(x, plan, bounds, axis_name, cut)
    place = _concatenate if assembly == "concatenate" else _update
    return place(arrivals, plan, bounds, axis_name, axis, cut)


def _send(
    x: Array, plan: Plan, bounds: Sequence[int], axis_name: AxisName, cut: int
) -> list[Array]:
    """Run all permutes; the list holds what each device has, arrival by arrival."""
    arrivals = [x]
    for permute in plan.permutes:
        base = bounds[plan.arrivals[permute.arrival].first]
        start, stop = bounds[permute.first] - base, bounds[permute.stop] - base
        payload = lax.slice_in_dim(arrivals[permute.arrival], start, stop, axis=cut)
        if payload.size:
            payload = lax.ppermute(payload, axis_name, permute.pairs)
        arrivals.append(payload)
    return arrivals


def _concatenate(
    arrivals: list[Array],
    plan: Plan,
    bounds: Sequence[int],
    axis_name: AxisName,
    axis: int,
    cut: int,
) -> Array:
    devices = len(plan.arrivals[0].stripes)

    def place(*arrivals: Array, device: int) -> Array:
        stripes = [
            [arrivals[segment.arrival] for segment in segments] for segments in plan.layout(device)
        ]
        if cut == axis:
            return lax.concatenate([part for stripe in stripes for part in stripe], axis)
        whole = [
            stripe[0] if len(stripe) == 1 else lax.concatenate(stripe, cut) for stripe in stripes
        ]
        return lax.concatenate(whole, axis)

    branches = [partial(place, device=device) for device in range(devices)]
    return lax.switch(lax.axis_index(axis_name), branches, *arrivals)


def _update(
    arrivals: list[Array],
    plan: Plan,
    bounds: Sequence[int],
    axis_name: AxisName,
    axis: int,
    cut: int,
) -> Array:
    own = arrivals[0]
    shape = list(own.shape)
    width = shape[axis]
    shape[axis] *= len(plan.arrivals[0].stripes)
    here = lax.axis_index(axis_name)
    # Derived from the stripe so that it varies over the same mesh axes as what is written into it.
    out = lax.broadcast_in_dim(_zero_of(own), shape, ())
    # The own stripe comes last: what reached no device (None below) is written to its place first.
    for array, arrival in reversed(list(zip(arrivals, plan.arrivals))):
        stripes = np.array(
            [d if stripe is None else stripe for d, stripe in enumerate(arrival.stripes)],
            dtype=np.int32,
        )
        starts: list = [0] * own.ndim
        starts[cut] = bounds[arrival.first]
        offset = jax.numpy.asarray(stripes)[here] * width
        starts[axis] = offset + starts[axis]
        out = lax.dynamic_update_slice(out, array, starts)
    return out


def _zero_of(x: Array) -> Array:
    """A zero scalar of the dtype and varying axes of `x`."""
    zero = jax.numpy.zeros((), x.dtype)
    varying = tuple(jax.typeof(x).manual_axis_type.varying)
    return lax.pcast(zero, varying, to="varying") if varying else zero
