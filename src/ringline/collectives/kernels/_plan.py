"""A collective as the steps of one TPU kernel: the copies of a schedule, and what waits for what.

A *lane* of the schedule (one step, direction and channel) is one remote copy: each of its senders
starts it, each of its targets finds it landed. The kernel of every device runs the same list of
steps; a step says which devices do it.

*Gather*: a stripe is written to its final place in the neighbour's result, where nothing else is
ever written. So no copy needs a credit, and each has a semaphore of its own.

*Reduction*: a sum lands in a slot of its queue (a direction and channel), is added, and gives its
slot back: the receiver then sends a credit, without which the next copy into that slot does not
start. A large array is summed in slabs, one run of the list after the other.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

from ringline.collectives._plan import Arrival, plan_permutes
from ringline.collectives._sum_plan import Run, plan_sums
from ringline.schedule import CollectiveSchedule

What = Literal[
    "enter",
    "load",
    "loaded",
    "send",
    "sent",
    "arrive",
    "add",
    "multiply",
    "credit",
    "allowed",
    "store",
]
Slabs = Literal["all", "first", "not first", "not last"]
Who = tuple[bool, ...]
SLOTS = 2


class Lane(NamedTuple):
    """One remote copy for each of its senders.

    Attributes:
        target: per device, whom it sends to; None where it sends nothing.
        stripe: per device, which stripe it sends or sums; its own where it takes no part.
        source: the lane whose arrival is passed on as it is; None for what is this device's own.
        first: of the pieces that are sent.
        stop: one past the last of them.
        place: the semaphore, and for sums the slot, of the copy.
        runs: for sums, which arrivals are added to the own term.
    """

    target: tuple[int | None, ...]
    stripe: tuple[int, ...]
    source: int | None
    first: int
    stop: int
    place: int
    runs: tuple[Run, ...] = ()

    @property
    def senders(self) -> Who:
        """The devices that send."""
        return tuple(target is not None for target in self.target)

    @property
    def origin(self) -> tuple[int | None, ...]:
        """Per device, who sends to it."""
        back = {target: device for device, target in enumerate(self.target) if target is not None}
        return tuple(back.get(device) for device in range(len(self.target)))

    @property
    def received(self) -> tuple[int, ...]:
        """Per device, which stripe it is sent; its own where none."""
        return tuple(
            device if source is None else self.stripe[source]
            for device, source in enumerate(self.origin)
        )


class Step(NamedTuple):
    """One thing that the devices of `who` do.

    | what | meaning |
    |---|---|
    | `enter` | tell those who send here that this kernel has begun; wait for the targets' word |
    | `load`, `loaded` | start, or wait for, the copy of the own term into the lane's buffer |
    | `send`, `sent` | start the remote copy; wait until it has been read |
    | `arrive` | wait for what `lane` brings |
    | `add` | add addend `addend` of run `run` to the lane's buffer |
    | `multiply` | multiply what `lane` brought, or the own rows of its sum and add arrivals |
    | `credit`, `allowed` | give the slot of `lane` back to its sender; wait for that |
    | `store` | write the sum to the result |

    Lane number `len(lanes)` stands for what ends on the device: its own copy, or its sum.
    """

    what: What
    lane: int
    who: Who
    run: int = 0
    addend: int = 0
    slabs: Slabs = "all"


@dataclass(frozen=True, slots=True)
class KernelPlan:
    """The lanes and the steps of one kernel.

    Attributes:
        devices: how many take part.
        pieces: of a stripe.
        places: how many semaphores, and slots, the lanes share out.
        lanes: the remote copies; for a sum one more, the result, that is sent nowhere.
        steps: in the order in which a device does them.
    """

    devices: int
    pieces: int
    places: int
    lanes: tuple[Lane, ...]
    steps: tuple[Step, ...]

    @property
    def sends(self) -> tuple[Lane, ...]:
        """The lanes that are remote copies."""
        return tuple(lane for lane in self.lanes if any(lane.senders))

    @property
    def sums(self) -> bool:
        """Whether it is a reduction."""
        return len(self.sends) < len(self.lanes)

    @property
    def largest(self) -> int:
        """Pieces of the largest copy."""
        return max(lane.stop - lane.first for lane in self.sends)

    def partners(self, device: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The devices that send to `device`, and those it sends to."""
        sources = {lane.origin[device] for lane in self.lanes} - {None}
        targets = {lane.target[device] for lane in self.lanes} - {None}
        return tuple(sorted(s for s in sources if s is not None)), tuple(
            sorted(t for t in targets if t is not None)
        )


@lru_cache(maxsize=256)
def plan_gather(schedule: CollectiveSchedule) -> KernelPlan:
    """The kernel of an all-gather: copies straight into the neighbour's result.

    Raises:
        ScheduleError: when the senders of one lane pass on different arrivals.
    """
    plan = plan_permutes(schedule)
    devices, own = schedule.devices, len(plan.permutes)
    lanes = tuple(
        Lane(
            _targets(permute.pairs, devices),
            tuple(
                device if stripe is None else stripe
                for device, stripe in enumerate(plan.arrivals[permute.arrival].stripes)
            ),
            permute.arrival - 1 if permute.arrival else None,
            permute.first,
            permute.stop,
            place,
        )
        for place, permute in enumerate(plan.permutes)
    )
    everyone = (True,) * devices
    steps = [Step("load", own, everyone), Step("enter", own, everyone)]
    awaited = [_none(devices)] * len(lanes)

    def arrive(index: int, who: Who) -> None:
        who = _without(_both(who, _arrives(plan.arrivals[index + 1])), awaited[index])
        if any(who):
            awaited[index] = tuple(map(max, awaited[index], who))
            steps.append(Step("arrive", index, who))

    for index, lane in enumerate(lanes):
        # Devices that keep an arrival to themselves wait for it at the end.
        if lane.source is not None:
            arrive(lane.source, lane.senders)
        steps.append(Step("send", index, lane.senders))
    for index in range(len(lanes)):
        arrive(index, everyone)
    steps += [Step("sent", index, lane.senders) for index, lane in enumerate(lanes)]
    steps.append(Step("loaded", own, everyone))
    return KernelPlan(devices, schedule.pieces, len(lanes), lanes, tuple(steps))


@lru_cache(maxsize=256)
def plan_scatter(schedule: CollectiveSchedule) -> KernelPlan:
    """The kernel of a reduce-scatter: sums land in slots, and credits give the slots back.

    Raises:
        ScheduleError: when the senders of one lane send different pieces.
    """
    plan = plan_sums(schedule)
    devices = schedule.devices
    queues = _queues(schedule)
    lanes = [
        Lane(
            _targets(pairs, devices),
            total.stripes,
            None,
            total.runs[0].first,
            total.runs[-1].stop,
            place,
            total.runs,
        )
        for pairs, total, place in zip(plan.pairs, plan.sums, _places(queues))
    ]
    places = SLOTS * (1 + max(queues))
    lanes.append(
        Lane((None,) * devices, plan.result.stripes, None, 0, plan.pieces, places, plan.result.runs)
    )
    steps = _scatter_steps(lanes, plan.arrivals, queues)
    return KernelPlan(devices, plan.pieces, places, tuple(lanes), tuple(steps))


def _scatter_steps(
    lanes: Sequence[Lane], arrivals: Sequence[Arrival], queues: Sequence[int]
) -> list[Step]:
    last = len(lanes) - 1
    everyone = (True,) * len(lanes[0].target)
    # In a queue, a lane's buffer is that of the lane SLOTS before it.
    follows = {index: _next_in_queue(queues, index, SLOTS) for index in range(last)}
    leads = {after: before for before, after in follows.items() if after is not None}
    steps = [
        Step("load", index, lanes[index].senders) for index in range(last) if index not in leads
    ]
    steps += [Step("load", last, everyone), Step("enter", last, everyone, slabs="first")]
    uses = _Uses(lanes, arrivals)
    freed: set[int] = set()
    for index, lane in enumerate(lanes):
        who = lane.senders if index < last else everyone
        steps.append(Step("loaded", index, who))
        for run, made in enumerate(lane.runs):
            for addend, used in enumerate(made.addends):
                steps += uses.steps(index, run, addend, used.arrival, who)
        if index == last:
            break
        before = _before_in_place(lanes, index)
        steps.append(Step("allowed", index, _both(who, before)))
        steps.append(Step("allowed", index, _without(who, before), slabs="not first"))
        steps.append(Step("send", index, who))
        # The buffer of the lane before this one in its queue has most likely been read by now.
        ahead = _next_in_queue(queues, index, 1)
        if ahead in leads:
            freed.add(leads[ahead])
            steps.append(Step("sent", leads[ahead], lanes[leads[ahead]].senders))
            steps.append(Step("load", ahead, lanes[ahead].senders))
    steps.append(Step("store", last, everyone))
    steps += [
        Step("sent", index, lanes[index].senders) for index in range(last) if index not in freed
    ]
    return [step for step in steps if any(step.who)]


class _Uses:
    """Where each arrival is added, for the waits before the first use and credits after the last.

    Which use of an arrival is the first differs by device: on a line a device adds what came to
    its own stripe or to one that it passes on.
    """

    def __init__(self, lanes: Sequence[Lane], arrivals: Sequence[Arrival]):
        self.lanes = lanes
        self.arrivals = arrivals
        self.places: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
        for index, lane in enumerate(lanes):
            takes_part = lane.senders if any(lane.senders) else (True,) * len(lane.senders)
            for run, made in enumerate(lane.runs):
                for addend, used in enumerate(made.addends):
                    for device in _marked(_both(takes_part, used.present)):
                        place = (index, run, addend)
                        self.places.setdefault((used.arrival, device), []).append(place)

    def steps(self, lane: int, run: int, addend: int, arrival: int, who: Who) -> list[Step]:
        """Wait for an arrival, add it, and give its slot back."""
        place = (lane, run, addend)
        found = [self.places.get((arrival, device), []) for device in range(len(who))]
        adds = tuple(place in places for places in found)
        first = tuple(places[:1] == [place] for places in found)
        final = tuple(places[-1:] == [place] for places in found)
        origin = self.lanes[arrival].origin
        again = _after_in_place(self.lanes, arrival)
        back = tuple(source is not None and again[source] for source in origin)
        return [
            Step("arrive", arrival, first),
            Step("add", lane, adds, run, addend),
            Step("credit", arrival, _both(final, back)),
            Step("credit", arrival, _without(final, back), slabs="not last"),
        ]


def _targets(pairs: Sequence[tuple[int, int]], devices: int) -> tuple[int | None, ...]:
    found = dict(pairs)
    return tuple(found.get(device) for device in range(devices))


def _arrives(arrival: Arrival) -> Who:
    return tuple(stripe is not None for stripe in arrival.stripes)


def _queues(schedule: CollectiveSchedule) -> list[int]:
    """The queue of each lane of sums: its direction and channel, numbered as they come."""
    lanes = [lane[0] for lane in schedule.by_lane() if lane[0].kind == "partial"]
    # Where both directions are one lane, they are one queue.
    keys = [lane.lane[schedule.topology.one_permute :] for lane in lanes]
    names = list(dict.fromkeys(keys))
    return [names.index(key) for key in keys]


def _places(queues: Sequence[int]) -> list[int]:
    """The slot of each lane: those of a queue take its slots in turn."""
    seen: dict[int, int] = {}
    places = []
    for queue in queues:
        count = seen.get(queue, 0)
        seen[queue] = count + 1
        places.append(queue * SLOTS + count % SLOTS)
    return places


def _next_in_queue(queues: Sequence[int], lane: int, further: int) -> int | None:
    same = [index for index, queue in enumerate(queues) if queue == queues[lane]]
    at = same.index(lane) + further
    return same[at] if at < len(same) else None


def _before_in_place(lanes: Sequence[Lane], lane: int) -> Who:
    """The devices that have sent to the same slot before."""
    return _senders_to(lanes[lane].place, lanes[:lane], len(lanes[lane].target))


def _after_in_place(lanes: Sequence[Lane], lane: int) -> Who:
    """The devices that will send to the same slot again."""
    return _senders_to(lanes[lane].place, lanes[lane + 1 :], len(lanes[lane].target))


def _senders_to(place: int, lanes: Sequence[Lane], devices: int) -> Who:
    marks = [lane.senders for lane in lanes if lane.place == place]
    return tuple(any(mark[device] for mark in marks) for device in range(devices))


def _none(devices: int) -> Who:
    return (False,) * devices


def _both(who: Who, other: Who | None) -> Who:
    return who if other is None else tuple(a and b for a, b in zip(who, other))


def _without(who: Who, other: Who) -> Who:
    return tuple(a and not b for a, b in zip(who, other))


def _marked(who: Who) -> list[int]:
    return [device for device, does in enumerate(who) if does]
