"""Prove a kernel's steps: that they end, and that nothing is written or counted too early.

Devices never choose, so one greedy run decides whether the steps end. It also gives every event a
vector clock: of two events of different devices one is certain to come first only where signals,
copies and credits lead from it to the other. For every timing, then:

* a copy starts only after its target has entered the kernel;
* it lands only where all earlier reads and writes are over, and later ones wait for it;
* no two copies, loads or calls are under way that a semaphore could take for each other;
* every signal is taken, so that all semaphores are zero at the end.
"""

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from ringline.collectives.kernels._plan import KernelPlan, Lane, Step
from ringline.schedule import ScheduleError

Region = tuple[str, int, int]
Accesses = dict[tuple[Region, int], list["_Access"]]


class Event(NamedTuple):
    """What a device does: a step's `what`, or `signal`, `meet` and `end` of a call."""

    what: str
    lane: int
    call: int
    slab: int
    run: int = 0
    addend: int = 0

    def __str__(self) -> str:
        return f"{self.what} lane {self.lane} (slab {self.slab}, call {self.call})"


class _Access(NamedTuple):
    """From event number `start` to event number `done` of its device."""

    start: int
    done: int


def check_kernel(plan: KernelPlan, *, slabs: int = 3, calls: int = 2) -> None:
    """Raise `ScheduleError` at the first fault of a kernel's steps.

    Args:
        plan: the kernel.
        slabs: how often its steps are run in a call; sums only, a gather has one slab.
        calls: how many calls follow each other, with the same semaphores.

    Raises:
        ScheduleError: with the device of the fault.
    """
    _Proof(plan, slabs if plan.sums else 1, calls).check()


class _Proof:
    def __init__(self, plan: KernelPlan, slabs: int, calls: int):
        self.plan = plan
        self.rows = [_events(plan, device, slabs, calls) for device in range(plan.devices)]
        self.at = [{event: place for place, event in enumerate(row)} for row in self.rows]
        self.credits = self._matched_credits()
        self.clocks: list[list[list[int]]] = [[] for _ in self.rows]

    def check(self) -> None:
        self._run()
        for device in range(self.plan.devices):
            self._check_own_semaphores(device)
            self._check_arrivals(device)
        accesses = [self._accesses(device) for device in range(self.plan.devices)]
        for source, send in self._all("send"):
            self._check_send(source, send, accesses)
        for device, signal in self._all("signal"):
            self._check_barrier(device, signal)

    def _all(self, what: str) -> Iterator[tuple[int, Event]]:
        for device, row in enumerate(self.rows):
            for event in row:
                if event.what == what:
                    yield device, event

    def _fault(self, device: int, message: str) -> ScheduleError:
        return ScheduleError(f"device {device}: {message}", device=device)

    def _target(self, source: int, event: Event) -> int:
        target = self.plan.lanes[event.lane].target[source]
        if target is None:
            raise self._fault(source, f"{event} has no target; leave the device out of it")
        return target

    def _find(self, device: int, event: Event, why: str) -> int:
        found = self.at[device].get(event)
        if found is None:
            raise self._fault(device, f"{why} lacks its {event}; add that step")
        return found

    def _matched_credits(self) -> dict[tuple[int, Event], tuple[int, int]]:
        """For each wait for a credit, the device and number of the event that gives it."""
        given: dict[tuple[int, int, int], list[int]] = defaultdict(list)
        for device, event in self._all("credit"):
            lane = self.plan.lanes[event.lane]
            source = lane.origin[device]
            if source is None:
                raise self._fault(device, f"{event} goes to nobody; leave the device out of it")
            given[device, source, lane.place].append(self.at[device][event])
        matched = {}
        taken: dict[tuple[int, int, int], int] = defaultdict(int)
        for device, event in self._all("allowed"):
            key = (self._target(device, event), device, self.plan.lanes[event.lane].place)
            number = taken[key]
            taken[key] += 1
            if number >= len(given[key]):
                raise self._fault(device, f"{event} waits for a credit that is never given")
            matched[device, event] = (key[0], given[key][number])
        for (device, source, place), places in given.items():
            if taken[device, source, place] != len(places):
                raise self._fault(device, f"a credit for slot {place} is left over at the end")
        return matched

    def _run(self) -> None:
        """Give every event its clock; an event waits where another has to come first."""
        moved = True
        while moved:
            moved = False
            for device in range(len(self.rows)):
                while self._advance(device):
                    moved = True
        for device, row in enumerate(self.rows):
            done = len(self.clocks[device])
            if done < len(row):
                raise self._fault(device, f"deadlock: {row[done]} is never reached by the others")

    def _advance(self, device: int) -> bool:
        clocks, row = self.clocks[device], self.rows[device]
        if len(clocks) == len(row):
            return False
        clock = list(clocks[-1]) if clocks else [0] * len(self.rows)
        for other, place in self._needs(device, row[len(clocks)]):
            if len(self.clocks[other]) <= place:
                return False
            clock = [max(pair) for pair in zip(clock, self.clocks[other][place])]
        clock[device] = len(clocks) + 1
        clocks.append(clock)
        return True

    def _needs(self, device: int, event: Event) -> Iterator[tuple[int, int]]:
        if event.what == "meet":
            for target in self.plan.partners(device)[1]:
                signal = Event("signal", event.lane, event.call, event.slab)
                yield target, self._find(target, signal, "the start")
        elif event.what == "arrive":
            source = self.plan.lanes[event.lane].origin[device]
            if source is None:
                raise self._fault(device, f"{event} waits for what nobody sends")
            yield source, self._find(source, event._replace(what="send"), "a copy")
        elif event.what == "allowed":
            yield self.credits[device, event]

    def _check_own_semaphores(self, device: int) -> None:
        """Sends, loads and sums of one place: none starts while another is under way."""
        opened: dict[tuple[str, int], Event] = {}
        closes = {"sent": "send", "loaded": "load"}
        for event in self.rows[device]:
            place = self._place(event)
            if event.what in ("send", "load"):
                for kind in ("send", "load"):
                    if (kind, place) in opened:
                        raise self._fault(
                            device, f"{event} starts while {opened[kind, place]} is under way"
                        )
                opened[event.what, place] = event
            elif event.what in closes:
                begun = opened.pop((closes[event.what], place), None)
                if begun is None or begun._replace(what=event.what) != event:
                    raise self._fault(device, f"{event} waits for what was not started")
            elif self._changes_buffer(event) and {("send", place), ("load", place)} & set(opened):
                raise self._fault(device, f"{event} changes a buffer that is in use")
            elif event.what == "end" and opened:
                raise self._fault(device, f"{next(iter(opened.values()))} is never waited for")

    def _changes_buffer(self, event: Event) -> bool:
        return self.plan.sums and event.what in ("add", "multiply")

    def _place(self, event: Event) -> int:
        if event.lane < len(self.plan.lanes):
            return self.plan.lanes[event.lane].place
        return self.plan.places

    def _check_arrivals(self, device: int) -> None:
        """What is read has arrived; copies that land on one semaphore come one by one."""
        landed: dict[int, Event] = {}
        for event in self.rows[device]:
            for needed in self._reads(device, event):
                arrival = Event("arrive", needed, event.call, event.slab)
                if self.at[device].get(arrival, len(self.rows[device])) > self.at[device][event]:
                    raise self._fault(device, f"{event} reads what has not arrived")
            if event.what != "arrive":
                continue
            lane = self.plan.lanes[event.lane]
            before = landed.get(lane.place)
            landed[lane.place] = event
            source = lane.origin[device]
            assert source is not None
            if before and self._known(source, event._replace(what="send"), device, before):
                continue
            if before:
                raise self._fault(
                    device,
                    f"{event} and {before} count on one semaphore, and the later one can land "
                    "first; give them a semaphore each, or a credit between them",
                )

    def _reads(self, device: int, event: Event) -> list[int]:
        """The lanes whose arrivals an event of the device reads."""
        if event.what not in ("send", "add", "multiply"):
            return []
        if event.lane == len(self.plan.lanes):
            return []
        lane = self.plan.lanes[event.lane]
        if event.what == "send":
            return [] if lane.source is None else [lane.source]
        if event.what == "add":
            return [lane.runs[event.run].addends[event.addend].arrival]
        if not self.plan.sums:
            return [event.lane]
        addends = [addend for run in lane.runs for addend in run.addends]
        return [a.arrival for a in addends if a.present is None or a.present[device]]

    def _known(self, device: int, event: Event, other: int, before: Event) -> bool:
        """Whether `before` of device `other` is certain to come before `event` of `device`."""
        clock = self.clocks[device][self._find(device, event, "a copy")]
        return self.at[other][before] < clock[other]

    def _check_send(self, source: int, send: Event, accesses: list[Accesses]) -> None:
        lane = self.plan.lanes[send.lane]
        target = self._target(source, send)
        arrive = self._find(target, send._replace(what="arrive"), "a copy")
        known = self.clocks[source][self.at[source][send]][target]
        entered = self.at[target].get(Event("signal", 0, send.call, 0))
        if entered is None or entered >= known:
            raise self._fault(
                source, f"{send} may come before device {target} has entered the kernel"
            )
        for region in self._regions(lane, source):
            for access in accesses[target][region, send.call]:
                if access.done >= known and access.start <= arrive:
                    raise self._fault(
                        source,
                        f"{send} may overwrite what device {target} still uses "
                        f"({self.rows[target][access.start]}); wait for a credit",
                    )

    def _check_barrier(self, device: int, signal: Event) -> None:
        """Its word for this call is not taken for that of the call before."""
        meet = Event("meet", 0, signal.call - 1, 0)
        for source in self.plan.partners(device)[0] if signal.call else ():
            if not self._known(device, signal, source, meet):
                raise self._fault(device, f"{signal} may reach device {source} before its {meet}")

    def _regions(self, lane: Lane, device: int) -> list[Region]:
        if self.plan.sums:
            return [("slot", lane.place, 0)]
        return [("out", lane.stripe[device], piece) for piece in range(lane.first, lane.stop)]

    def _accesses(self, device: int) -> Accesses:
        """Reads and writes of what others write to on this device, by region and call."""
        found: Accesses = defaultdict(list)
        for place, event in enumerate(self.rows[device]):
            done, regions = place, []
            needed = self._reads(device, event)
            if self.plan.sums and event.what != "send":
                regions = [("slot", self.plan.lanes[lane].place, 0) for lane in needed]
            elif event.what == "send" and needed:
                regions = self._regions(self.plan.lanes[event.lane], device)
                done = self._find(device, event._replace(what="sent"), "a copy")
            elif event.what == "multiply" and needed:
                lane = self.plan.lanes[event.lane]
                stripe, pieces = lane.received[device], range(lane.first, lane.stop)
                regions = [("out", stripe, piece) for piece in pieces]
            elif event.what == "load" and not self.plan.sums:
                regions = [("out", device, piece) for piece in range(self.plan.pieces)]
                done = self._find(device, event._replace(what="loaded"), "a copy")
            elif event.what == "end" and not self.plan.sums:
                regions = [
                    ("out", stripe, piece)
                    for stripe in range(self.plan.devices)
                    for piece in range(self.plan.pieces)
                ]
            for region in regions:
                found[region, event.call].append(_Access(place, done))
        return found


def _events(plan: KernelPlan, device: int, slabs: int, calls: int) -> list[Event]:
    row = []
    for call in range(calls):
        for slab in range(slabs):
            for step in plan.steps:
                if step.who[device] and runs_in(step, slab, slabs):
                    row += _parts(step, call, slab)
        row.append(Event("end", 0, call, slabs - 1))
    return row


def _parts(step: Step, call: int, slab: int) -> list[Event]:
    if step.what == "enter":
        return [Event("signal", 0, call, slab), Event("meet", 0, call, slab)]
    if step.what == "store":
        return []
    return [Event(step.what, step.lane, call, slab, step.run, step.addend)]


def runs_in(step: Step, slab: int, slabs: int) -> bool:
    """Whether a step is done in this slab."""
    first, last = slab == 0, slab == slabs - 1
    return {"all": True, "first": first, "not first": not first, "not last": not last}[step.slabs]
