"""A reduction as one program for all devices: which arrivals each permute's payload is a sum of.

As in a gather, the sends of one step, direction and channel are one permute. Its payload is, on
each device, the device's own term of the stripe that it sends plus the partial sums of that stripe
that came before, in order of arrival.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from ringline.collectives._plan import (
    Arrival,
    apart,
    arrival_of,
    members_of,
    not_one_permute,
    pairs_of,
    same_pieces,
    steps_of,
)
from ringline.schedule import CollectiveSchedule, Transfer


class Addend(NamedTuple):
    """Arrival `arrival` is added on the devices where `present` is true; None for all of them.

    Its pieces begin with number `start`.
    """

    arrival: int
    start: int
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
        steps: the permutes of each step.
    """

    pairs: tuple[tuple[tuple[int, int], ...], ...]
    sums: tuple[Sum, ...]
    arrivals: tuple[Arrival, ...]
    result: Sum
    pieces: int
    steps: tuple[tuple[int, ...], ...]

    @property
    def shares_terms(self) -> bool:
        """Whether a device's own term of a stripe is part of two payloads."""
        terms = {(total.stripes, total.runs[0].first, total.runs[-1].stop) for total in self.sums}
        return len(terms) < len(self.sums)


@lru_cache(maxsize=256)
def plan_sums(schedule: CollectiveSchedule) -> SumPlan:
    """Turn the sends of partial sums in `schedule` into permutes.

    Raises:
        ScheduleError: when the senders of one step, direction and channel send different pieces.
    """
    lanes = [lane for lane in schedule.by_lane() if lane[0].kind == "partial"]
    pairs, sums, arrivals = [], [], []
    step, came_before = -1, ()
    for lane, stripe_of in zip(lanes, _stripes_of(lanes)):
        if lane[0].step != step:
            step, came_before = lane[0].step, tuple(arrivals)
        pairs.append(pairs_of(schedule, lane))
        senders = {t.source for t in lane}
        first, stop = lane[0].first, lane[0].stop
        sums.append(_sum(stripe_of, senders, first, stop, came_before, schedule))
        arrivals.append(arrival_of(schedule, lane))
    everyone = {device: device for device in range(schedule.devices)}
    result = _sum(everyone, set(everyone), 0, schedule.pieces, tuple(arrivals), schedule)
    return SumPlan(
        tuple(pairs), tuple(sums), tuple(arrivals), result, schedule.pieces, steps_of(lanes)
    )


def _stripes_of(lanes: Sequence[tuple[Transfer, ...]]) -> list[dict[int, int]]:
    """For each lane the stripe of which a device computes its own term.

    The same one for lanes that have no sender in common: on a line, what is sent up in step s and
    down in step n - 2 - s. A term is then computed once for both.
    """
    for lane in lanes:
        if not same_pieces(lane):
            raise not_one_permute(lane)
    sent = [((lane[0].first, lane[0].stop), {t.source for t in lane}) for lane in lanes]
    found: list[dict[int, int]] = [{}] * len(lanes)
    for group in apart(sent):
        stripe_of = {t.source: t.stripe for index in group for t in lanes[index]}
        for index in group:
            found[index] = stripe_of
    return found


def _sum(
    stripe_of: Mapping[int, int],
    takes_part: Set[int],
    first: int,
    stop: int,
    arrivals: tuple[Arrival, ...],
    schedule: CollectiveSchedule,
) -> Sum:
    """The sum of stripe `stripe_of[d]` on each device d that takes part."""
    devices = range(schedule.devices)
    wanted = [stripe_of[d] if d in takes_part else -1 for d in devices]
    used = {
        index: tuple(came == stripe for came, stripe in zip(arrival.stripes, wanted))
        for index, arrival in enumerate(arrivals)
    }
    used = {index: present for index, present in used.items() if any(present)}
    ends = {first, stop}
    for index in used:
        ends |= {arrivals[index].first, arrivals[index].stop}
    cuts = sorted(end for end in ends if first <= end <= stop)
    runs = []
    for low, high in pairwise(cuts):
        addends = tuple(
            Addend(
                index, arrivals[index].first, None if sum(present) == len(takes_part) else present
            )
            for index, present in used.items()
            if arrivals[index].first <= low and high <= arrivals[index].stop
        )
        runs.append(Run(low, high, addends))
    # What the others compute goes nowhere.
    members = members_of(schedule)
    return Sum(tuple(members[d].index(stripe_of.get(d, d)) for d in devices), tuple(runs))
