"""The `permute` backend: a schedule's sends as `jax.lax.ppermute`, then one pass that puts the
arrivals in place.

Two ways to place them. *Concatenate*: every device has its own order of arrivals, so one
concatenation per device is compiled and `jax.lax.switch` takes the one to run: each byte is
written once. *Update*: each arrival is written into the output at an offset looked up by device:
one code for all devices, over many of which a ring's steps are a loop, and large shards go slab by
slab, so that few arrivals are held.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from ringline.collectives._bits import carried_as, no_change, platform
from ringline.collectives._memory import keeps_memory
from ringline.collectives._plan import Permute, plan_permutes
from ringline.collectives._steps import AxisName, GatherStep, Value, gather_steps
from ringline.schedule import CollectiveSchedule

Assembly = Literal["concatenate", "update"]

# A switch over n concatenations of n arrivals compiles for half a minute at n = 64.
_MAX_CONCATENATE_DEVICES = 16
# Concatenating holds all arrivals at once: as much again as the result, twice that on a line. Where
# that is fresh memory each of its pages costs a fault, while slabs use theirs again.
_MAX_CONCATENATE_BYTES, _MAX_KEPT_BYTES = 2**24, 2**30
_SLAB_BYTES = 2**21


def choose_assembly(schedule: CollectiveSchedule, stripe_bytes: int) -> Assembly:
    """The faster of the two forms that is safe where this is traced, inside `jax.shard_map`."""
    if platform() != "cpu" or schedule.devices > _MAX_CONCATENATE_DEVICES:
        return "update"
    mesh = jax.sharding.get_abstract_mesh()
    # The compiler may put collectives for an automatic axis into a branch, and they hang when
    # the devices of the gathered axis take different branches.
    branches_are_safe = set(mesh.manual_axes) == set(mesh.axis_names)
    # A reduce-scatter's transpose gathers with the same sends; an all-reduce gathers in the end.
    sent = [lane[0] for lane in schedule.by_lane()]
    gathers = [first for first in sent if first.kind == sent[-1].kind]
    pieces = schedule.pieces + sum(first.stop - first.first for first in gathers)
    most = _MAX_KEPT_BYTES if keeps_memory() else _MAX_CONCATENATE_BYTES
    fits = stripe_bytes * pieces // schedule.pieces <= most
    return "concatenate" if branches_are_safe and fits else "update"


def permute_all_gather(
    x: Array,
    *,
    axis_name: AxisName,
    axis: int,
    cut: int,
    schedule: CollectiveSchedule,
    assembly: Assembly,
    out: Array | None = None,
) -> Array:
    """Gather the stripes `x` of all devices along dim `axis`, in the order of `schedule`.

    Args:
        x: this device's stripe.
        axis_name: the mesh axis whose devices are the schedule's.
        axis: the dim that the stripes are joined along.
        cut: the dim along which a stripe is cut into the schedule's pieces.
        schedule: the sends.
        assembly: how the arrivals are put in place.
        out: a buffer of the result's shape and type to update. Where all is written at once, or
            in another type, nothing is to be read from it: the compiler gives its memory, when it
            is donated, to the result.
    """
    to_bits, from_bits = carried_as(x.dtype)
    if assembly == "concatenate":
        return from_bits(_concatenate(to_bits(x), axis_name, axis, cut, schedule))
    return from_bits(_update(x, to_bits, axis_name, axis, cut, schedule, out))


def permute_gather_each(
    x: Array,
    each: Callable[[Array], Array],
    *,
    axis_name: AxisName,
    axis: int,
    cut: int,
    schedule: CollectiveSchedule,
) -> Array:
    """Gather `each(stripe)` of all devices, where `each` works on rows of a stripe as they land.

    Args:
        x: this device's stripe.
        each: maps any rows of a stripe, keeping the dims `axis` and `cut`.
        axis_name: the mesh axis whose devices are the schedule's.
        axis: the dim that the results are joined along.
        cut: the dim along which a stripe is cut into the schedule's pieces.
        schedule: the sends.
    """
    to_bits, from_bits = carried_as(x.dtype)
    one = jax.eval_shape(each, x)
    shape = list(one.shape)
    shape[axis] *= schedule.stripes
    where = _Where(rows_at(x.shape[cut], schedule.pieces), x.shape[axis], axis, cut)

    def put(out: Array, came: Array, number: Any, first: int) -> Array:
        return where.write(out, each(from_bits(came)), number, first)

    kind = one.manual_axis_type  # None where jax.shard_map checks nothing
    out = _empty(shape, one.dtype, kind.varying if kind else ())
    return _run(to_bits(x), out, where, put, axis_name, schedule)


def rows_at(rows: int, pieces: int) -> tuple[int, ...]:
    """The rows at which the pieces of a stripe begin, and where the last ends."""
    return tuple(rows * piece // pieces for piece in range(pieces + 1))


class _Where(NamedTuple):
    """Where things lie in a result: the rows at which pieces begin, and a stripe's width.

    Attributes:
        rows: along dim `cut`.
        width: along dim `axis`.
        axis: the dim that the stripes are joined along.
        cut: the dim along which a stripe is cut into pieces.
        base: starts of some dims of the result.
    """

    rows: Sequence[int]
    width: int
    axis: int
    cut: int
    base: Mapping[int, int | Array] = MappingProxyType({})

    def write(self, out: Array, came: Array, number: Any, first: int) -> Array:
        """Write pieces from `first` on of stripe `number`."""
        # All of one type, also where numbers are of 64 bits by default.
        starts = [jnp.asarray(self.base.get(dim, 0), jnp.int32) for dim in range(out.ndim)]
        starts[self.cut] = starts[self.cut] + self.rows[first]
        starts[self.axis] = starts[self.axis] + number * self.width
        return lax.dynamic_update_slice(out, came, starts)

    def sent(self, arrival: Array, permute: Permute, axis_name: AxisName) -> Array:
        """What a permute of an arrival's pieces brings to this device."""
        begin = self.rows[permute.start]
        start, stop = self.rows[permute.first] - begin, self.rows[permute.stop] - begin
        payload = lax.slice_in_dim(arrival, start, stop, axis=self.cut)
        return lax.ppermute(payload, axis_name, permute.pairs) if payload.size else payload


Put = Callable[[Array, Array, Any, int], Array]
"""(result, what came, stripe number, first piece) to the result with what came in it."""


def _run(
    x: Array,
    out: Array,
    where: _Where,
    put: Put,
    axis_name: AxisName,
    schedule: CollectiveSchedule,
    *,
    in_steps: bool = False,
) -> Array:
    """Send the stripe `x` round and `put` into `out` what has come, also from others.

    With `in_steps` what one step brings is in place before the next one's transfers arrive. Else
    the compiler may keep it for later.
    """
    steps = gather_steps(schedule)

    def step(one: GatherStep, state: tuple[Array, list[Array]], value: Value) -> Any:
        out, arrivals = state
        came = [where.sent(arrivals[-sent.arrival], sent, axis_name) for sent in one.permutes]
        for place in one.places:
            here = [arrivals[-arrival] for arrival in place.arrivals]
            which = jnp.int32(value(place.which))
            picked = here[0] if len(here) == 1 else lax.select_n(which, *here)
            out = put(out, picked, value(place.number), place.first)
        if in_steps and came:
            came, out = lax.optimization_barrier((came, out))
        return out, [*arrivals, *came][-steps.held :]

    return steps.run(step, (out, [x]), axis_name)[0]


def _concatenate(
    x: Array, axis_name: AxisName, axis: int, cut: int, schedule: CollectiveSchedule
) -> Array:
    plan = plan_permutes(schedule)
    where = _Where(rows_at(x.shape[cut], plan.pieces), x.shape[axis], axis, cut)
    arrivals = [x]
    for permute in plan.permutes:
        arrivals.append(where.sent(arrivals[permute.arrival], permute, axis_name))

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

    branches = [partial(place, device=device) for device in range(len(plan.members))]
    return lax.switch(lax.axis_index(axis_name), branches, *arrivals)


def _update(
    x: Array,
    to_bits: Callable[[Array], Array],
    axis_name: AxisName,
    axis: int,
    cut: int,
    schedule: CollectiveSchedule,
    out: Array | None,
) -> Array:
    shape = list(x.shape)
    shape[axis] *= schedule.stripes
    rows = rows_at(x.shape[cut], schedule.pieces)
    slab_dim, slabs = _slabs(x, axis, cut)
    height = x.shape[slab_dim] // slabs

    def slab(number: int | Array, out: Array) -> Array:
        # Bits are taken inside the loop: the copy of a slab, not of the whole stripe, is alive.
        start = number * height
        stripe = lax.dynamic_slice_in_dim(to_bits(x), start, height, axis=slab_dim)
        where = _Where(rows, x.shape[axis], axis, cut, {slab_dim: start})
        in_steps = platform() != "cpu"
        return _run(stripe, out, where, where.write, axis_name, schedule, in_steps=in_steps)

    if out is None or to_bits is not no_change:
        out = _empty(shape, to_bits(x).dtype, jax.typeof(x).manual_axis_type.varying)
    return slab(0, out) if slabs == 1 else lax.fori_loop(0, slabs, slab, out)


def _slabs(x: Array, axis: int, cut: int) -> tuple[int, int]:
    """The dim along which a large stripe is cut, and into how many equal slabs.

    One slab after the other is sent, so that the arrivals of only one are alive. Elsewhere than
    on emulated devices all are sent at once, and each is put in place while others travel.
    """
    if platform() != "cpu":
        return 0, 1
    wanted = max(1, x.size * x.dtype.itemsize // _SLAB_BYTES)
    free = [dim for dim in range(x.ndim) if dim not in (axis, cut)]
    if wanted == 1 or not free:
        return 0, 1
    dim = max(free, key=lambda d: x.shape[d])
    counts = range(min(wanted, x.shape[dim]), min(8 * wanted, x.shape[dim]) + 1)
    return dim, next((count for count in counts if x.shape[dim] % count == 0), 1)


def _empty(shape: Sequence[int], dtype: Any, varying: Collection[str]) -> Array:
    """An array to be written whole, that varies over some mesh axes."""
    out = lax.empty(tuple(shape), dtype)
    return lax.pcast(out, tuple(varying), to="varying") if varying else out
