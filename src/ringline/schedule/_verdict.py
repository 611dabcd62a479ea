"""`check_collective`: can it hang, and can it overwrite what is in use?"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from ringline.schedule._check import check_program
from ringline.schedule._collective import CollectiveSchedule
from ringline.schedule._flow import Flow, flows_of
from ringline.schedule._hang import Hang, HangAnswer, find_hang
from ringline.schedule._hops import Hops, Injection, hops_of, piece_bytes
from ringline.schedule._program import Program, Value
from ringline.schedule._reuse import Credits, Race, Start, find_races
from ringline.schedule._threads import run_threads

PacketCount = Callable[[Value], int]
Forwarding = Literal["cut-through", "store-and-forward", "threads"]


@dataclass(frozen=True, slots=True)
class FlowControl:
    """How a collective's packets are kept from running over each other.

    Attributes:
        slots: packets that the receiver of a channel holds.
        sender_slots: packets that its forwarding sender holds; half of `slots`, rounded up, if
            not given.
        packet_bytes: the largest payload of a packet.
        injection: `greedy`: a device puts in a packet of its own while a slot is free ahead;
            `bubble`: on a ring, while two are.
        forwarding: `cut-through`: packets go on from slot to slot; `store-and-forward`: routers
            empty the slots into memory and send from there; `threads`: no routers, the device's
            own thread sends and receives, and blocks where slots are full or empty.
        buffers: 1 where packets land in the result itself; more for buffers taken in turns.
        start: who has to have entered a call before a device sends in it.
        credits: how arrivals are counted.
    """

    slots: int = 16
    sender_slots: int | None = None
    packet_bytes: int = 4096
    injection: Injection = "greedy"
    forwarding: Forwarding = "cut-through"
    buffers: int = 1
    start: Start = "all"
    credits: Credits = "counter"

    def __post_init__(self):
        for name in ("slots", "packet_bytes", "buffers"):
            value = getattr(self, name)
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}; change {name}")
        if self.sender_slots is not None and self.sender_slots < 1:
            raise ValueError(
                f"sender_slots must be at least 1, got {self.sender_slots}; change sender_slots"
            )

    @property
    def forwarding_slots(self) -> int:
        """Slots of each forwarding sender."""
        return self.sender_slots or -(-self.slots // 2)

    def memory_bytes(self, channels: int) -> int:
        """What the slots of one directed link take: two senders and a receiver a channel."""
        return channels * (self.slots + 2 * self.forwarding_slots) * self.packet_bytes


@dataclass(frozen=True)
class Verdict:
    """What can go wrong with a schedule under given flow control.

    Attributes:
        program: the collective's.
        flow: slots, packets and rules.
        packets: of the largest piece.
        answers: one for each different ring of queues, empty where there is none.
        races: the first of each kind.
    """

    program: Program
    flow: FlowControl
    packets: int
    answers: tuple[HangAnswer, ...]
    races: tuple[Race, ...]

    @cached_property
    def hang(self) -> Hang | None:
        """The shortest way to stop for good that was found."""
        hangs = [answer.hang for answer in self.answers if answer.hang]
        return min(hangs, key=lambda hang: len(hang.steps), default=None)

    @property
    def can_hang(self) -> bool | None:
        """Whether some order of events stops for good; None where the search left it open."""
        if self.hang:
            return True
        return False if all(answer.decided for answer in self.answers) else None

    @property
    def safe(self) -> bool:
        """Whether no order of events hangs or races."""
        return self.can_hang is False and not self.races

    @property
    def proof(self) -> str:
        """What the answer about hanging rests on."""
        if self.hang:
            if self.hang.threads:
                return self.answers[0].how
            return "a run that stops, " + ("the shortest" if self.hang.shortest else "not minimal")
        if not self.answers:
            return "proved for every size: no ring of queues, so packets never wait in a circle"
        ways = dict.fromkeys(a.how for a in self.answers if self.can_hang or not a.decided)
        return "; ".join(ways or dict.fromkeys(answer.how for answer in self.answers))

    @property
    def states(self) -> int:
        """States that were looked at."""
        return sum(answer.states for answer in self.answers)


def check_collective(
    schedule: CollectiveSchedule | Program,
    gathered_bytes: int,
    flow: FlowControl,
    *,
    max_states: int = 20_000,
) -> Verdict:
    """Decide what can go wrong, for every order of events.

    Three answers, each for all timings:

    * Packets: whether some order of events fills all slots of a ring for good (`find_hang`). A
      ring that starts without waiting for all devices is searched over two calls in a row.
    * Threads: with `forwarding="threads"`, whether devices that run the program's list, one
      instruction after the other, reach their end. One run decides.
    * Reuse: whether a packet or credit can come while its place is in use (`find_races`).

    The search of packets is exhaustive up to `max_states` states of one ring of queues and says
    so; beyond them it samples.

    Args:
        schedule: a collective on a ring or a line, or a program on any links.
        gathered_bytes: T, all stripes together; together with `flow.packet_bytes` the packets.
        flow: slots, packets and rules.
        max_states: bound of the search.

    Raises:
        ScheduleError: when the schedule itself is wrong.

    Example:
        >>> from ringline.schedule import FlowControl, all_gather, check_collective
        >>> from ringline.topology import Ring
        >>> verdict = check_collective(all_gather(Ring(8)), 1 << 20, FlowControl(slots=2))
        >>> verdict.can_hang, len(verdict.hang.steps)
        (True, 24)
        >>> bubble = FlowControl(slots=2, injection="bubble")
        >>> check_collective(all_gather(Ring(8)), 1 << 20, bubble).safe
        True

    References:
        Dally and Seitz, "Deadlock-free message routing in multiprocessor interconnection
        networks" (1987). Puente et al., "The adaptive bubble router" (2001).
    """
    program = schedule if isinstance(schedule, Program) else schedule.program()
    check_program(program)
    hops = hops_of(program, cut_through=flow.forwarding == "cut-through")
    packets = packets_of(program, gathered_bytes, flow)
    most = max((packets(v) for held in program.initial for v in held), default=0)
    races = find_races(hops, buffers=flow.buffers, start=flow.start, credits=flow.credits)
    return Verdict(program, flow, most, _answers(hops, packets, flow, max_states), races)


def packets_of(program: Program, gathered_bytes: int, flow: FlowControl) -> PacketCount:
    """How many packets a piece is."""
    if gathered_bytes < 0:
        raise ValueError(f"gathered_bytes must be >= 0, got {gathered_bytes}; change the size")
    size_bytes = piece_bytes(program, gathered_bytes)
    return lambda value: -(-size_bytes(value) // flow.packet_bytes)


def flows_for(hops: Hops, packets: PacketCount, flow: FlowControl) -> tuple[Flow, ...]:
    return flows_of(
        hops,
        packets=packets,
        slots=flow.slots,
        sender_slots=flow.forwarding_slots,
        injection=flow.injection,
        # Where all meet before a call, nothing of the call before is under way.
        calls=1 if flow.start == "all" else 2,
    )


def _quick(
    hops: Hops, packets: PacketCount, flow: FlowControl, max_states: int
) -> tuple[HangAnswer, ...]:
    """Answers of all rings, or of the threads, with any hang that is found first."""
    if flow.forwarding == "threads":
        return (run_threads(hops.program, packets=packets, slots=flow.slots),)
    return tuple(
        find_hang(one, max_states=max_states, shortest=False)
        for one in flows_for(hops, packets, flow)
    )


def _answers(
    hops: Hops, packets: PacketCount, flow: FlowControl, max_states: int
) -> tuple[HangAnswer, ...]:
    """Answers of all rings; among hangs only the shortest has to be proved so."""
    quick = _quick(hops, packets, flow, max_states)
    best = min((len(a.hang.steps) for a in quick if a.hang), default=None)
    if best is None or any(a.hang and a.hang.shortest and len(a.hang.steps) == best for a in quick):
        return quick
    answers = []
    for one, answer in zip(flows_for(hops, packets, flow), quick):
        least = one.least_moves_to_stop(one.start)
        if least is not None and least < best:
            again = find_hang(one, max_states=max_states)
            if again.hang and len(again.hang.steps) < best:
                answer = again
        answers.append(answer)
    return tuple(answers)


def any_hang(hops: Hops, packets: PacketCount, flow: FlowControl, max_states: int) -> bool | None:
    """Whether something hangs; None where that is open."""
    answers = _quick(hops, packets, flow, max_states)
    if any(answer.hang for answer in answers):
        return True
    return False if all(answer.decided for answer in answers) else None
