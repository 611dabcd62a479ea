"""Can a packet land in a buffer still in use? Vector clocks over several calls of a `Program`.

A device is one thread: it enters a call, sends and receives in the program's order, uses the
result, and enters the next call. A receive comes after the send it takes, and nothing else
orders two devices: slots and credits do not, as routers empty them whatever the thread does.
So of two events one is certain to come first only where a chain of these orders leads from one
to the other, which vector clocks decide at once for every timing: fast and slow devices, and
devices that have not even entered the call.

A write is a race unless a chain leads from the last read of the buffer to it; so is a credit that
can come before the last one of its place is taken.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from ringline.schedule._hops import Hop, Hops, Queue
from ringline.schedule._program import Compute, Receive, Send, Value

Start = Literal["none", "neighbours", "all"]
Credits = Literal["counter", "flag", "shared"]
RaceKind = Literal["skewed start", "buffer reuse", "credit of the last call", "shared credit"]


class Event(NamedTuple):
    """What a thread does: `what` is enter, start, send, receive, compute or use."""

    call: int
    what: str
    value: Value | None = None
    queue: Queue | None = None
    reads: tuple[Value, ...] = ()

    def __str__(self) -> str:
        match self.what:
            case "enter":
                return f"entered call {self.call}"
            case "start":
                return f"started call {self.call}"
            case "use":
                return f"used the result of call {self.call}"
            case _:
                done = {"send": "sent", "receive": "received"}.get(self.what, "computed")
                return f"{done} {self.value} of call {self.call}"


@dataclass(frozen=True, slots=True)
class Race:
    """Two events that no chain orders, though one of them has to come first.

    Attributes:
        kind: which fault it is.
        device: whose buffer or credit is at stake.
        source: the device whose packet comes too early.
        value: what it carries.
        call: of the packet, from 0.
        before: what `device` should have done first.
        known: the last thing of `device` that is certain to have happened, None for nothing.
    """

    kind: RaceKind
    device: int
    source: int
    value: Value
    call: int
    before: Event
    known: Event | None

    def __str__(self) -> str:
        known = f"has {self.known}" if self.known else "exists"
        return (
            f"{self.kind}: device {self.source} sends {self.value} of call {self.call} to device "
            f"{self.device}, knowing only that device {self.device} {known}; it must have "
            f"{self.before} first"
        )


def find_races(
    hops: Hops, *, buffers: int = 1, start: Start = "all", credits: Credits = "counter"
) -> tuple[Race, ...]:
    """The first race of each kind, for all timings and any number of calls.

    Args:
        hops: the schedule, as packets see it.
        buffers: 1 where packets land in the result of the call, so the call before has to be
            done with it; 2 or more for buffers that the collective keeps and takes in turns.
        start: who has to have entered a call before a device sends in it: nobody, the devices it
            exchanges packets with, or all.
        credits: how arrivals are counted: a counter for each queue; a flag for each value, which
            the receiver clears; or one counter of a device for all its queues.

    Returns:
        The races, empty where every order is safe. Calls repeat, so what holds from one call to
        the next, and over `buffers` calls, holds for all.
    """
    if buffers < 1:
        raise ValueError(f"buffers must be at least 1, got {buffers}; change buffers")
    order = _Order(hops, calls=buffers + 2, start=start)
    races: dict[RaceKind, Race] = {}
    for race in (*_overwrites(order, buffers), *_credits(order, credits)):
        races.setdefault(race.kind, race)
    return tuple(races.values())


class _Order:
    """What is certain to come before what."""

    def __init__(self, hops: Hops, *, calls: int, start: Start):
        self.hops = hops
        self.rows = [_thread(hops, device, calls) for device in range(hops.program.devices)]
        self.at = {
            (device, event): place
            for device, row in enumerate(self.rows)
            for place, event in enumerate(row)
        }
        self.origin = {
            (further.queue, further.value): hop
            for hop in hops.all
            if not hop.forwarded
            for further in _path(hops, hop)
        }
        self.start = start
        self.clocks: list[list[list[int]]] = [[] for _ in self.rows]
        self._run()

    def sends(self) -> Iterator[tuple[Hop, Hop]]:
        """Each hop of one call with the hop by which its device put the value in."""
        for hop in self.hops.all:
            yield hop, self.origin[hop.queue, hop.value]

    def send_of(self, hop: Hop, call: int) -> tuple[int, int]:
        """Device and place of the send that puts `hop`'s value in during `call`."""
        event = Event(call, "send", hop.value, hop.queue, (hop.value,))
        return hop.queue.source, self.at[hop.queue.source, event]

    def reads(self, device: int, value: Value) -> Iterator[Event]:
        """What `device` does in call 0 with a value that it was sent."""
        if value in self.hops.program.final[device]:
            yield Event(0, "use")
        for event in self.rows[device]:
            if event.call == 0 and value in event.reads:
                yield event

    def known(self, send: tuple[int, int], device: int) -> int:
        """How many events of `device` are certain to come before `send`."""
        return self.clocks[send[0]][send[1]][device]

    def race(
        self, kind: RaceKind, hop: Hop, put_in: Hop, call: int, device: int, before: Event
    ) -> Race | None:
        """A race unless `before` of `device` comes before the send of `put_in`."""
        known = self.known(self.send_of(put_in, call), device)
        if self.at[device, before] < known:
            return None
        last = self.rows[device][known - 1] if known else None
        return Race(kind, device, put_in.queue.source, hop.value, call, before, last)

    def _run(self) -> None:
        """Give every event its clock; a thread waits where another has to come first."""
        moved = True
        while moved:
            moved = False
            for device in range(len(self.rows)):
                while self._advance(device):
                    moved = True

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
        if event.what == "receive":
            assert event.queue is not None
            assert event.value is not None
            put_in = self.origin[event.queue, event.value]
            yield self.send_of(put_in, event.call)
        elif event.what == "start":
            for other in self._meets(device):
                yield other, self.at[other, Event(event.call, "enter")]

    def _meets(self, device: int) -> set[int]:
        if self.start == "all":
            return set(range(len(self.rows))) - {device}
        if self.start == "neighbours":
            ends = {end for hop in self.hops.all for end in (hop.queue[:2],) if device in end}
            return {end for pair in ends for end in pair} - {device}
        return set()


def _thread(hops: Hops, device: int, calls: int) -> list[Event]:
    """What a device's thread does; packets that only pass by are the routers' business."""
    events = []
    for call in range(calls):
        events += [Event(call, "enter"), Event(call, "start")]
        for instruction in hops.program.rows[device]:
            match instruction:
                case Send():
                    queue = Queue(device, instruction.peer, instruction.channel)
                    if not hops.by_queue[queue][instruction.value].forwarded:
                        value = instruction.value
                        events.append(Event(call, "send", value, queue, (value,)))
                case Receive():
                    queue = Queue(instruction.peer, device, instruction.channel)
                    events.append(Event(call, "receive", instruction.value, queue))
                case Compute():
                    made = instruction.writes[0] if instruction.writes else None
                    events.append(Event(call, "compute", made, None, instruction.reads))
        events.append(Event(call, "use"))
    return events


def _path(hops: Hops, hop: Hop) -> Iterator[Hop]:
    """`hop` and those that the packet goes on to from slot to slot."""
    at: Hop | None = hop
    while at is not None:
        yield at
        at = None if at.onward is None else hops.by_queue[at.onward][hop.value]


def _overwrites(order: _Order, buffers: int) -> Iterator[Race]:
    """Writes into a buffer that its device may still use, or may not have given away yet."""
    for hop, put_in in order.sends():
        device = hop.queue.target
        if buffers == 1:
            race = order.race("skewed start", hop, put_in, 0, device, Event(0, "enter"))
            if race:
                yield race
        for read in order.reads(device, hop.value):
            race = order.race("buffer reuse", hop, put_in, buffers, device, read)
            if race:
                yield race


def _credits(order: _Order, credits: Credits) -> Iterator[Race]:
    """Credits that can come before the one that stands in their place has been taken."""
    if credits == "counter":
        return
    for hop, put_in in order.sends():
        device = hop.queue.target
        taken = Event(0, "receive", hop.value, hop.queue)
        if credits == "flag":
            race = order.race("credit of the last call", hop, put_in, 1, device, taken)
            if race:
                yield race
            continue
        waits = [e for e in order.rows[device] if e.what == "receive" and e.call == 0]
        mine = waits.index(taken)
        for other in (e for e in waits[:mine] if e.queue != hop.queue):
            race = order.race("shared credit", hop, put_in, 0, device, other)
            if race:
                yield race
