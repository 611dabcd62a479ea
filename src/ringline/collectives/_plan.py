"""A gather as one program for all devices: permutes of whole steps, then where each piece lies.

A permute runs on every device at once and moves one array per device. So the sends of one step,
direction and channel become one permute if all its senders pass on the same *arrival*: their own
stripe (arrival 0) or what an earlier permute brought (arrivals 1, 2, ...). Which stripe an arrival
is differs from device to device and is known from the schedule.
"""

from collections.abc import Hashable, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple

from ringline.schedule import CollectiveSchedule, ScheduleError, Transfer


@dataclass(frozen=True, slots=True)
class Arrival:
    """Pieces `first` to `stop - 1` of stripe `stripes[d]` on device d; None where nothing came."""

    stripes: tuple[int | None, ...]
    first: int
    stop: int

    @property
    def devices(self) -> frozenset[int]:
        """Where something came."""
        return frozenset(d for d, stripe in enumerate(self.stripes) if stripe is not None)


class Permute(NamedTuple):
    """Send pieces `first` to `stop - 1` of arrival `arrival` along `pairs` of (source, target).

    The arrival's own pieces begin with number `start`.
    """

    pairs: tuple[tuple[int, int], ...]
    arrival: int
    start: int
    first: int
    stop: int


class Segment(NamedTuple):
    """Pieces `first` to `stop - 1` of a stripe are found in arrival `arrival`."""

    arrival: int
    first: int
    stop: int


class Placement(NamedTuple):
    """Arrivals of the same pieces, no two on the same device, put in place as one.

    Device d has the one numbered `which[d]` of `arrivals`: pieces from `first` on of stripe number
    `numbers[d]` of those it gathers. Where none of them came it is the own stripe's place, to be
    written over.
    """

    arrivals: tuple[int, ...]
    which: tuple[int, ...]
    numbers: tuple[int, ...]
    first: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The permutes of a schedule in order; permute i gives arrival i + 1.

    `members` are, for each device, the stripes that it gathers, in the order they are joined;
    `steps` are the numbers of the permutes of each step.
    """

    permutes: tuple[Permute, ...]
    arrivals: tuple[Arrival, ...]
    pieces: int
    members: tuple[range, ...]
    steps: tuple[tuple[int, ...], ...]

    def layout(self, device: int) -> tuple[tuple[Segment, ...], ...]:
        """For each stripe in order, the segments that make it up on `device`."""
        return tuple(self._segments(device, stripe) for stripe in self.members[device])

    def placements(self) -> tuple[Placement, ...]:
        """Where all arrivals go, the own stripe first, then in the order in which they land.

        What a line brings from one side in step s and from the other in step n - s never comes to
        the same device: that makes n placements of 2 n - 1 arrivals. Where a placement brings
        nothing to some device, the own stripe comes last.
        """
        came = [((arrival.first, arrival.stop), arrival.devices) for arrival in self.arrivals]
        own, *landed = sorted(apart(came), key=max)
        on_all = all(
            sum(len(self.arrivals[index].devices) for index in group) == len(self.members)
            for group in landed
        )
        ordered = (own, *landed) if on_all else (*landed, own)
        return tuple(self._placement(group) for group in ordered)

    def _placement(self, group: list[int]) -> Placement:
        which, numbers = [], []
        for device, members in enumerate(self.members):
            came = [self.arrivals[index].stripes[device] for index in group]
            here = next(((i, s) for i, s in enumerate(came) if s is not None), (0, device))
            which.append(here[0])
            numbers.append(members.index(here[1]))
        return Placement(tuple(group), tuple(which), tuple(numbers), self.arrivals[group[0]].first)

    def _segments(self, device: int, stripe: int) -> tuple[Segment, ...]:
        found = sorted(
            (
                Segment(index, arrival.first, arrival.stop)
                for index, arrival in enumerate(self.arrivals)
                if arrival.stripes[device] == stripe
            ),
            key=lambda segment: segment.first,
        )
        stops = [0, *(segment.stop for segment in found)]
        assert [segment.first for segment in found] == stops[:-1], (device, stripe, found)
        assert stops[-1] == self.pieces, (device, stripe, found)
        return tuple(found)


def apart(items: Sequence[tuple[Hashable, Set[int]]]) -> list[list[int]]:
    """Group items (kind, devices) of one kind of which no two have a device in common.

    Those with most devices choose first: an end of a line is left for what misses only that end.
    """
    groups: list[tuple[Hashable, set[int], list[int]]] = []
    for index in sorted(range(len(items)), key=lambda index: -len(items[index][1])):
        kind, devices = items[index]
        for of_kind, taken, group in groups:
            if of_kind == kind and not taken & devices:
                group.append(index)
                taken |= devices
                break
        else:
            groups.append((kind, set(devices), [index]))
    return [group for _, _, group in groups]


@lru_cache(maxsize=256)
def plan_permutes(schedule: CollectiveSchedule) -> Plan:
    """Turn the sends of finished stripes in `schedule` into permutes.

    Raises:
        ScheduleError: when the senders of one step, direction and channel pass on different
            arrivals, so that no single permute can serve them.
    """
    own = Arrival(tuple(range(schedule.devices)), 0, schedule.pieces)
    arrivals, permutes = [own], []
    step, came_before = -1, (own,)
    lanes = [lane for lane in schedule.by_lane() if lane[0].kind == "stripe"]
    for lane in lanes:
        if lane[0].step != step:
            step, came_before = lane[0].step, tuple(arrivals)
        permute, arrival = _permute(schedule, lane, came_before)
        permutes.append(permute)
        arrivals.append(arrival)
    return Plan(
        tuple(permutes), tuple(arrivals), schedule.pieces, members_of(schedule), steps_of(lanes)
    )


def _permute(
    schedule: CollectiveSchedule, lane: tuple[Transfer, ...], arrivals: tuple[Arrival, ...]
) -> tuple[Permute, Arrival]:
    first, stop = lane[0].first, lane[0].stop
    fitting = [
        index
        for index, arrival in enumerate(arrivals)
        if arrival.first <= first
        and stop <= arrival.stop
        and all(arrival.stripes[t.source] == t.stripe for t in lane)
    ]
    if not (same_pieces(lane) and fitting):
        raise not_one_permute(lane)
    found, pairs = fitting[-1], pairs_of(schedule, lane)
    permute = Permute(pairs, found, arrivals[found].first, first, stop)
    return permute, arrival_of(schedule, lane)


def steps_of(lanes: Sequence[tuple[Transfer, ...]]) -> tuple[tuple[int, ...], ...]:
    """The numbers of the lanes of each step."""
    by_step = groupby(range(len(lanes)), key=lambda number: lanes[number][0].step)
    return tuple(tuple(numbers) for _, numbers in by_step)


def members_of(schedule: CollectiveSchedule) -> tuple[range, ...]:
    """For each device, the stripes it has to do with, in the order they are joined."""
    return tuple(schedule.topology.members(device) for device in range(schedule.devices))


def pairs_of(
    schedule: CollectiveSchedule, lane: tuple[Transfer, ...]
) -> tuple[tuple[int, int], ...]:
    """(source, target) of each transfer of one lane."""
    return tuple((t.source, schedule.target(t)) for t in lane)


def arrival_of(schedule: CollectiveSchedule, lane: tuple[Transfer, ...]) -> Arrival:
    """What the permute of one lane brings to each device."""
    stripes: list[int | None] = [None] * schedule.devices
    for transfer in lane:
        stripes[schedule.target(transfer)] = transfer.stripe
    return Arrival(tuple(stripes), lane[0].first, lane[0].stop)


def same_pieces(lane: tuple[Transfer, ...]) -> bool:
    """Whether all transfers of a lane are of the same pieces, as one permute needs."""
    return len({(t.first, t.stop) for t in lane}) == 1


def not_one_permute(lane: tuple[Transfer, ...]) -> ScheduleError:
    """The error for a lane that no single permute can serve."""
    return ScheduleError(
        f"step {lane[0].step}: the senders of direction {lane[0].direction} channel "
        f"{lane[0].channel} pass on different arrivals, got {[t[4:] for t in lane]}; one "
        "permute needs the same hop of all of them, put the others in another step or channel",
        step=lane[0].step,
    )
