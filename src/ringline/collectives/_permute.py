"""The `permute` backend: a schedule's sends as `jax.lax.ppermute`, then one pass that puts the
arrivals in place.

Two ways to place them. *Concatenate*: every device has its own order of arrivals, so one
concatenation per device is compiled and `jax.lax.switch` takes the one to run: each byte is
written once. *Update*: each arrival is written into the output at an offset looked up by device:
one code for all devices, so compile time does not grow with their square, and large shards go
slab by slab, so that few arrivals are held.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import takewhile
from types import MappingProxyType
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from ringline.collectives._bits import carried_as, no_change, platform
from ringline.collectives._memory import keeps_memory
from ringline.collectives._plan import Permute, Plan, plan_permutes
from ringline.schedule import CollectiveSchedule

AxisName = str | tuple[str, ...]
Assembly = Literal["concatenate", "update"]

# A switch over n concatenations of n arrivals compiles for half a minute at n = 64.
_MAX_CONCATENATE_DEVICES = 16
# Concatenating holds all arrivals at once: as much again as the result, twice that on a line. Where
# that is fresh memory each of its pages costs a fault, while slabs use theirs again.
_MAX_CONCATENATE_BYTES = 2**24
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
    fits = stripe_bytes * pieces // schedule.pieces <= _MAX_CONCATENATE_BYTES
    return "concatenate" if branches_are_safe and (fits or keeps_memory()) else "update"


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
    plan, bounds = _plan(schedule, x.shape[cut])
    to_bits, from_bits = carried_as(x.dtype)
    if assembly == "concatenate":
        arrivals = _send(to_bits(x), plan, bounds, axis_name, cut)
        return from_bits(_concatenate(arrivals, plan, axis_name, axis, cut))
    return from_bits(_update(x, to_bits, plan, bounds, axis_name, axis, cut, out))


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
    plan, bounds = _plan(schedule, x.shape[cut])
    to_bits, from_bits = carried_as(x.dtype)
    arrivals = _send(to_bits(x), plan, bounds, axis_name, cut)
    places = _places(plan, bounds, axis_name)
    results = [each(from_bits(place.pick(arrivals))) for place in places]
    shape = list(results[0].shape)
    shape[axis] *= schedule.stripes
    placed = [place._replace(arrivals=(number,)) for number, place in enumerate(places)]
    out = _empty(shape, results[0])
    return _write(out, results, placed, width=x.shape[axis], axis=axis, cut=cut)


def _plan(schedule: CollectiveSchedule, rows: int) -> tuple[Plan, tuple[int, ...]]:
    """The permutes, and the rows at which pieces begin and end."""
    plan = plan_permutes(schedule)
    return plan, tuple(rows * piece // plan.pieces for piece in range(plan.pieces + 1))


def _send(
    x: Array, plan: Plan, bounds: Sequence[int], axis_name: AxisName, cut: int
) -> list[Array]:
    """Run all permutes: what this device has in the end, arrival by arrival."""
    arrivals = [x]
    for permute in plan.permutes:
        arrivals.append(_sent(arrivals, permute, plan, bounds, axis_name, cut))
    return arrivals


def _sent(
    arrivals: Sequence[Array],
    permute: Permute,
    plan: Plan,
    bounds: Sequence[int],
    axis_name: AxisName,
    cut: int,
) -> Array:
    """What one permute brings to this device."""
    base = bounds[plan.arrivals[permute.arrival].first]
    start, stop = bounds[permute.first] - base, bounds[permute.stop] - base
    payload = lax.slice_in_dim(arrivals[permute.arrival], start, stop, axis=cut)
    return lax.ppermute(payload, axis_name, permute.pairs) if payload.size else payload


def _concatenate(
    arrivals: list[Array],
    plan: Plan,
    axis_name: AxisName,
    axis: int,
    cut: int,
) -> Array:
    devices = len(plan.members)

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
    x: Array,
    to_bits: Callable[[Array], Array],
    plan: Plan,
    bounds: Sequence[int],
    axis_name: AxisName,
    axis: int,
    cut: int,
    out: Array | None,
) -> Array:
    shape = list(x.shape)
    shape[axis] *= len(plan.members[0])
    places = _places(plan, bounds, axis_name)
    slab_dim, slabs = _slabs(x, axis, cut)
    height = x.shape[slab_dim] // slabs

    def slab(number: int | Array, out: Array) -> Array:
        # Bits are taken inside the loop: the copy of a slab, not of the whole stripe, is alive.
        start = number * height
        stripe = lax.dynamic_slice_in_dim(to_bits(x), start, height, axis=slab_dim)
        write = partial(_write, width=x.shape[axis], axis=axis, cut=cut, base={slab_dim: start})
        arrivals, written = [stripe], 0
        for numbers in plan.steps:
            permutes = [plan.permutes[number] for number in numbers]
            came = [_sent(arrivals, p, plan, bounds, axis_name, cut) for p in permutes]
            if platform() != "cpu":
                # While these travel, what is complete is put in place (on a line, with what the
                # other side brings). No later: the compiler would keep it for the last transfer.
                here = count_landed(len(arrivals))
                out = write(out, arrivals, places[written:here])
                came, out = lax.optimization_barrier((came, out))
                written = here
            arrivals += came
        return write(out, arrivals, places[written:])

    def count_landed(arrivals: int) -> int:
        return sum(1 for _ in takewhile(lambda p: max(p.arrivals) < arrivals, places))

    if out is None or to_bits is not no_change:
        out = _empty(shape, to_bits(x))
    return slab(0, out) if slabs == 1 else lax.fori_loop(0, slabs, slab, out)


class _Place(NamedTuple):
    """Where this device writes one of some arrivals: from row `start` of stripe `number` on."""

    arrivals: tuple[int, ...]
    which: Array
    number: Array
    start: int

    def pick(self, arrivals: Sequence[Array]) -> Array:
        """The one that came to this device."""
        came = [arrivals[index] for index in self.arrivals]
        return came[0] if len(came) == 1 else lax.select_n(self.which, *came)


def _places(plan: Plan, bounds: Sequence[int], axis_name: AxisName) -> list[_Place]:
    here = lax.axis_index(axis_name)

    def on_this_device(table: tuple[int, ...]) -> Array:
        return jnp.array(table, jnp.int32)[here]

    return [
        _Place(p.arrivals, on_this_device(p.which), on_this_device(p.numbers), bounds[p.first])
        for p in plan.placements()
    ]


def _write(
    out: Array,
    arrivals: Sequence[Array],
    places: Sequence[_Place],
    *,
    width: int,
    axis: int,
    cut: int,
    base: Mapping[int, int | Array] = MappingProxyType({}),
) -> Array:
    """Write what came to each place, from the starts `base` of some dims of `out` on."""
    for place in places:
        # All of one type, also where numbers are of 64 bits by default.
        starts = [jnp.asarray(base.get(dim, 0), jnp.int32) for dim in range(out.ndim)]
        starts[cut] = starts[cut] + place.start
        starts[axis] = starts[axis] + place.number * width
        out = lax.dynamic_update_slice(out, place.pick(arrivals), starts)
    return out


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


def _empty(shape: Sequence[int], like: Array) -> Array:
    """An array to be written whole, of the type of `like`, varying over the same mesh axes."""
    out = lax.empty(tuple(shape), like.dtype)
    varying = tuple(jax.typeof(like).manual_axis_type.varying)
    return lax.pcast(out, varying, to="varying") if varying else out
