"""The smallest configurations that hang, and the smallest that are safe."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from ringline.schedule._collective import CollectiveSchedule
from ringline.schedule._hops import Hops, Injection, hops_of, pieces_of
from ringline.schedule._program import Program, Value
from ringline.schedule._verdict import FlowControl, any_hang, flows_for, packets_of


@dataclass(frozen=True, slots=True)
class Configuration:
    """Channels and slots, and what they take of memory at one directed link."""

    channels: int
    flow: FlowControl

    @property
    def memory_bytes(self) -> int:
        """Memory of the slots of one directed link."""
        return self.flow.memory_bytes(self.channels)


@dataclass(frozen=True, slots=True)
class Smallest:
    """The smallest configurations around a given one, for one injection rule.

    Attributes:
        injection: the rule.
        hangs: the least memory that can hang, None where none does.
        safe: the least memory that cannot, None where none up to `most_slots` is.
    """

    injection: Injection
    hangs: Configuration | None
    safe: Configuration | None


def smallest_configurations(
    schedule_for: Callable[[int], CollectiveSchedule | Program],
    gathered_bytes: int,
    flow: FlowControl,
    *,
    most_channels: int = 4,
    most_slots: int = 1024,
    max_states: int = 2_000,
) -> tuple[Smallest, Smallest]:
    """The smallest channels x slots that hang, and that are safe, greedy and with bubbles.

    Args:
        schedule_for: the schedule with a number of channels.
        gathered_bytes: T, all stripes together.
        flow: packets and rules; its slots are what is varied, senders at half of the receiver's.
        most_channels: how many channels to try.
        most_slots: how many slots of a receiver to try.
        max_states: bound of each search; what stays open counts as unsafe.
    """
    through = flow.forwarding == "cut-through"
    tried = {
        channels: hops_of(_program(schedule_for(channels)), cut_through=through)
        for channels in range(1, most_channels + 1)
    }
    found = []
    for injection in ("greedy", "bubble"):
        rule = replace(flow, injection=injection, sender_slots=None)
        hangs: list[Configuration] = []
        safe: list[Configuration] = []
        for channels, hops in tried.items():
            bounds = _slots_that(hops, gathered_bytes, rule, most_slots, max_states)
            for slots, kind in zip(bounds, (hangs, safe)):
                if slots is not None:
                    kind.append(Configuration(channels, replace(rule, slots=slots)))
        least = [min(kind, key=_size, default=None) for kind in (hangs, safe)]
        found.append(Smallest(injection, *least))
    return found[0], found[1]


def _program(schedule: CollectiveSchedule | Program) -> Program:
    return schedule if isinstance(schedule, Program) else schedule.program()


def _size(configuration: Configuration) -> tuple[int, int]:
    return (configuration.memory_bytes, configuration.channels)


def _slots_that(
    hops: Hops,
    gathered_bytes: int,
    rule: FlowControl,
    most_slots: int,
    max_states: int,
) -> tuple[int | None, int | None]:
    """The fewest slots that can hang, and the fewest that are safe."""
    packets = packets_of(hops.program, gathered_bytes, rule)

    def hang_with(slots: int) -> bool | None:
        # States with many slots take long, and only so many are worth it here.
        bound = max(50, max_states // slots)
        return any_hang(hops, packets, replace(rule, slots=slots), bound)

    safe = _least_safe(hops, packets, rule, most_slots, hang_with)
    hangs = next((slots for slots in range(1, min(safe or 9, 9)) if hang_with(slots)), None)
    return hangs, safe


def smallest_hanging_bytes(
    schedule: CollectiveSchedule | Program, flow: FlowControl, *, max_states: int = 2_000
) -> int | None:
    """The least size T from which on every size can hang with `flow`, None where none does.

    There every piece has as many packets as a hang needs; a little below, only some have.
    """
    program = _program(schedule)
    hops = hops_of(program, cut_through=flow.forwarding == "cut-through")
    count = program.devices * pieces_of(program)
    for packets in range(1, flow.slots + flow.forwarding_slots + 1):
        size = count * ((packets - 1) * flow.packet_bytes + 1)
        if any_hang(hops, packets_of(program, size, flow), flow, max_states):
            return size
    return None


def _least_safe(
    hops: Hops,
    packets: Callable[[Value], int],
    flow: FlowControl,
    most_slots: int,
    hang_with: Callable[[int], bool | None],
) -> int | None:
    """The fewest slots without a hang: from where the packets cannot fill a ring, downwards."""
    if flow.forwarding == "threads":
        # A send waits for its receive while a value does not fit, by one packet or by many.
        most = max((packets(v) for held in hops.program.initial for v in held), default=1)
        return next((slots for slots in (1, most) if hang_with(slots) is False), None)
    if flow.injection == "bubble":
        return next((slots for slots in (1, 2) if hang_with(slots) is False), None)

    def too_few(slots: int) -> bool:
        flows = flows_for(hops, packets, replace(flow, slots=slots))
        return all(one.least_moves_to_stop(one.start) is None for one in flows)

    if not too_few(most_slots):
        return None
    low, high = 1, most_slots
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if too_few(middle) else (middle + 1, high)
    while low > 1 and hang_with(low - 1) is False:
        low -= 1
    return low
