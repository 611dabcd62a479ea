"""A reduction as one program for all devices: which arrivals each permute's payload is a sum of.

As in a gather, the sends of one step, direction and channel are one permute. Its payload is, on
each device, the device's own term of the stripe that it sends plus the partial sums of that stripe
that came before, in order of arrival.
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from ringline.collectives._plan import (
    Arrival,
    arrival_of,
    members_of,
    not_one_permute,
    pairs_of,
    same_pieces,
)
from ringline.schedule import CollectiveSchedule, Transfer


class Addend(NamedTuple):
    """Arrival `arrival` is added on the devices where `present` is true; None for all of them."""

    arrival: int
    present: tuple[bool, ...] | None


class Run(NamedTuple):
    """Pieces `first` to `stop - 1` of a sum: the own term, then `addends` in this order."""

    first: int
    stop: int
    addends: tuple[Addend, ...]


class Sum(NamedTuple):
    """On device d the sum of its stripe number `stripes[d]`, run by run."""

    stripes: tuple[int, ...]
    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True)
class SumPlan:
    """The permutes of a reduction: permute i sends `sums[i]` along `pairs[i]`.

    Attributes:
        pairs: (source, target) of each permute.
        sums: the payload of each permute.
        arrivals: what each permute brings.
        result: the sum that each device ends with, of its own stripe.
        pieces: how many pieces a stripe is cut into.
    """

    pairs: tuple[tuple[tuple[int, int], ...], ...]
    sums: tuple[Sum, ...]
    arrivals: tuple[Arrival, ...]
    result: Sum
    pieces: int


@lru_cache(maxsize=256)
def plan_sums(schedule: CollectiveSchedule) -> SumPlan:
    """Turn the sends of partial sums in `schedule` into permutes.

    Raises:
        ScheduleError: when the senders of one step, direction and channel send different pieces.
    """
    pairs, sums, arrivals = [], [], []
    step, came_before = -1, ()
    for lane in schedule.by_lane():
        if lane[0].kind != "partial":
            continue
        if lane[0].step != step:
            step, came_before = lane[0].step, tuple(arrivals)
        pairs.append(pairs_of(schedule, lane))
        sums.append(_sum_sent(schedule, lane, came_before))
        arrivals.append(arrival_of(schedule, lane))
    everyone = {device: device for device in range(schedule.devices)}
    result = _sum(everyone, 0, schedule.pieces, tuple(arrivals), schedule)
    return SumPlan(tuple(pairs), tuple(sums), tuple(arrivals), result, schedule.pieces)


def _sum_sent(
    schedule: CollectiveSchedule, lane: tuple[Transfer, ...], arrivals: tuple[Arrival, ...]
) -> Sum:
    if not same_pieces(lane):
        raise not_one_permute(lane)
    senders = {t.source: t.stripe for t in lane}
    return _sum(senders, lane[0].first, lane[0].stop, arrivals, schedule)


def _sum(
    stripe_of: dict[int, int],
    first: int,
    stop: int,
    arrivals: tuple[Arrival, ...],
    schedule: CollectiveSchedule,
) -> Sum:
    """The sum of stripe `stripe_of[d]` on each device d that takes part."""
    devices = range(schedule.devices)
    used = {
        index: tuple(arrival.stripes[d] == stripe_of.get(d, -1) for d in devices)
        for index, arrival in enumerate(arrivals)
        if any(arrival.stripes[d] == stripe for d, stripe in stripe_of.items())
    }
    ends = {first, stop}
    for index in used:
        ends |= {arrivals[index].first, arrivals[index].stop}
    cuts = sorted(end for end in ends if first <= end <= stop)
    runs = []
    for low, high in pairwise(cuts):
        addends = tuple(
            Addend(index, None if sum(present) == len(stripe_of) else present)
            for index, present in used.items()
            if arrivals[index].first <= low and high <= arrivals[index].stop
        )
        runs.append(Run(low, high, addends))
    # What the others compute goes nowhere.
    members = members_of(schedule)
    return Sum(tuple(members[d].index(stripe_of.get(d, d)) for d in devices), tuple(runs))
