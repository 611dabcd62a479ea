"""`CollectiveSchedule`: who sends which stripe to which neighbour at each step, as data.

A *stripe* is one device's share of the array: what it starts with in an all-gather, and what it
ends with in a reduce-scatter. A stripe is cut into equal *pieces*, the unit that moves. A
`Transfer` gives a run of pieces of one stripe to a neighbour: finished, or as the partial sum of
what the sender has of them. What arrives in one step can be sent on from the next step (store and
forward).
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby

from ringline.schedule._check import check_program
from ringline.schedule._collective_text import Header, draw_grid, parse_text, print_text
from ringline.schedule._errors import ScheduleError
from ringline.schedule._holdings import Holdings
from ringline.schedule._program import Program
from ringline.schedule._transfer import ACROSS, DOWN, UP, Transfer, in_order
from ringline.topology import Line, Rails, Ring

# Which collective has which transposed one.
_TRANSPOSED = {
    "all-gather": "reduce-scatter",
    "reduce-scatter": "all-gather",
    "all-reduce": "all-reduce",
}


@dataclass(frozen=True, slots=True)
class CollectiveSchedule:
    """The sends of one collective, by step, direction and channel.

    Attributes:
        name: `all-gather` (every device starts with its stripe and ends with all),
            `reduce-scatter` (every device starts with a term of every stripe and ends with the sum
            of its own stripe) or `all-reduce` (it ends with all sums).
        topology: the ring or line, or the rails or ladder of hosts, whose links are used.
        directions: 1 or 2, how many directions of a link are in use at the same time.
        channels: independent queues of each directed link.
        pieces: how many pieces a stripe is cut into.
        transfers: every send, ordered by step.

    Example:
        >>> from ringline.schedule import all_gather
        >>> from ringline.topology import Ring
        >>> schedule = all_gather(Ring(3), directions=2)
        >>> print(schedule)
        all-gather on a ring of 3, 2 directions, 1 channel: 1 step, 1 stripe on the busiest link
        device 0 | >0 <0
        device 1 | >1 <1
        device 2 | >2 <2
        >>> CollectiveSchedule.from_text(schedule.to_text()) == schedule
        True
    """

    name: str
    topology: Ring | Line | Rails
    directions: int
    channels: int
    pieces: int
    transfers: tuple[Transfer, ...]

    @property
    def devices(self) -> int:
        """How many devices take part, n."""
        return self.topology.devices

    @property
    def stripes(self) -> int:
        """How many stripes each device gathers, or has a term of."""
        return len(self.topology.members(0))

    @property
    def steps(self) -> int:
        """How many steps, each one hop long."""
        return 1 + max((transfer.step for transfer in self.transfers), default=-1)

    def by_step(self) -> Iterator[tuple[Transfer, ...]]:
        """Yield the transfers of each step."""
        steps: list[list[Transfer]] = [[] for _ in range(self.steps)]
        for transfer in self.transfers:
            steps[transfer.step].append(transfer)
        yield from map(tuple, steps)

    def target(self, transfer: Transfer) -> int:
        """The device that receives `transfer`.

        Raises:
            ScheduleError: when the topology has no such link.
        """
        target = self.topology.neighbour(transfer.source, transfer.direction)
        if target is None:
            past = transfer.source + transfer.direction
            raise ScheduleError(
                f"step {transfer.step}: device {transfer.source} is not connected to device "
                f"{past} on a {self.topology.name} of {self.devices}; drop that "
                "send or use a ring",
                device=transfer.source,
                step=transfer.step,
            )
        return target

    def stripes_per_link(self) -> dict[tuple[int, int], Fraction]:
        """Stripes that each directed link (source, target) carries in all.

        On rails and ladders the links are those between hosts, named after the devices of rail 0.
        """
        pieces: Counter[tuple[int, int]] = Counter(dict.fromkeys(self.topology.links(), 0))
        for transfer in self.transfers:
            wire = self.topology.wire(transfer.source, self.target(transfer))
            if wire in pieces:
                pieces[wire] += transfer.stop - transfer.first
        return {link: Fraction(count, self.pieces) for link, count in pieces.items()}

    def bytes_per_link(self, gathered_bytes: int) -> dict[tuple[int, int], float]:
        """Bytes over each directed link when all stripes together are `gathered_bytes`."""
        stripe_bytes = Fraction(gathered_bytes, self.devices)
        return {
            link: float(stripes * stripe_bytes) for link, stripes in self.stripes_per_link().items()
        }

    def busiest_link_bytes(self, gathered_bytes: int) -> float:
        """Bytes over the busiest directed link, which bound the time from below."""
        return max(self.bytes_per_link(gathered_bytes).values(), default=0.0)

    def by_lane(self) -> Iterator[tuple[Transfer, ...]]:
        """Yield the transfers of each step, direction and channel: what one permute does.

        Within a step, up comes before down, both before across, and channels follow in order. This
        is also the order in which a device adds what it is sent. Two devices, and two rails, send
        one way each, so both ways are one permute.
        """
        for transfers in self.by_step():
            ordered = sorted(transfers, key=lambda t: (*self._lane(t), t.source))
            for _, lane in groupby(ordered, key=self._lane):
                yield tuple(lane)

    def _lane(self, transfer: Transfer) -> tuple[int, int]:
        """What sorts transfers into permutes, in their order."""
        order = (UP, DOWN, ACROSS).index(transfer.direction)
        if self.topology.one_permute and transfer.direction == DOWN:
            order = 0
        return (order, transfer.channel)

    def transposed(self) -> "CollectiveSchedule":
        """The schedule of the transposed collective: the same sends, backwards.

        All-gather and reduce-scatter are each other's transpose, all-reduce is its own.
        """
        last = self.steps - 1
        transfers = [
            Transfer(
                last - t.step,
                self.target(t),
                -t.direction,
                t.channel,
                t.stripe,
                t.first,
                t.stop,
                "partial" if t.kind == "stripe" else "stripe",
            )
            for t in self.transfers
        ]
        return CollectiveSchedule(
            name=self._transposed_name(),
            topology=self.topology,
            directions=self.directions,
            channels=self.channels,
            pieces=self.pieces,
            transfers=in_order(transfers),
        )

    def _transposed_name(self) -> str:
        if self.name not in _TRANSPOSED:
            raise ScheduleError(f"name must be one of {tuple(_TRANSPOSED)}, got {self.name!r}")
        return _TRANSPOSED[self.name]

    def program(self) -> Program:
        """Lower to ordered sends, receives and additions for each device.

        In a step a device sends one piece of every lane, then receives one of every lane and adds
        what is a partial sum, and so on: with one slot per channel nothing waits for a later send.
        """
        holdings = Holdings(self.name, self.topology, self.pieces)
        for transfers in self.by_step():
            ordered = sorted(transfers, key=lambda t: (-t.direction, t.channel, t.source))
            for offset in range(max((t.stop - t.first for t in transfers), default=0)):
                moving = [
                    (t, self.target(t), t.first + offset)
                    for t in ordered
                    if t.first + offset < t.stop
                ]
                sent = [holdings.send(t, target, piece) for t, target, piece in moving]
                for value, (t, target, piece) in zip(sent, moving):
                    holdings.receive(t, target, piece, value)
        return holdings.program()

    def validate(self) -> None:
        """Prove that every device ends with what it should, over existing links, without a hang.

        Sums are proved to have each device's term exactly once.

        Raises:
            ScheduleError: with the device and step of the first fault.
        """
        self._validate_fields()
        lanes: set[tuple[int, int, int, int]] = set()
        for transfer in self.transfers:
            self._validate_transfer(transfer)
            lane = (transfer.step, transfer.source, *self._lane(transfer))
            if lane in lanes:
                raise _fault(transfer, "sends twice on one channel; put one of them a step later")
            lanes.add(lane)
        self._validate_forwarding()
        check_program(self.program(), capacity=1)

    def _validate_fields(self) -> None:
        self._transposed_name()
        if self.directions not in (1, 2):
            raise ScheduleError(f"directions must be 1 or 2, got {self.directions}")
        if self.channels < 1 or self.pieces < 1:
            raise ScheduleError(
                f"channels and pieces must be at least 1, got {self.channels} and {self.pieces}"
            )
        steps = [transfer.step for transfer in self.transfers]
        if steps != sorted(steps) or (steps and steps[0] < 0):
            raise ScheduleError("transfers must be ordered by step, from 0; sort them")

    def _validate_transfer(self, transfer: Transfer) -> None:
        if not 0 <= transfer.source < self.devices:
            raise _fault(transfer, f"is not one of the {self.devices} devices")
        if transfer.direction not in self.topology.moves:
            raise _fault(
                transfer,
                f"has direction {transfer.direction}; expected "
                f"{' or '.join(map(str, self.topology.moves))}",
            )
        if not 0 <= transfer.channel < self.channels:
            raise _fault(
                transfer, f"sends on channel {transfer.channel}; expected 0 to {self.channels - 1}"
            )
        if not (0 <= transfer.stripe < self.devices):
            raise _fault(
                transfer, f"sends stripe {transfer.stripe}; expected 0 to {self.devices - 1}"
            )
        if not 0 <= transfer.first < transfer.stop <= self.pieces:
            raise _fault(
                transfer,
                f"sends pieces {transfer.first}:{transfer.stop} of a stripe of {self.pieces}; "
                "expected a run of at least one of them",
            )
        self.target(transfer)

    def _validate_forwarding(self) -> None:
        """A piece must have arrived in an earlier step than the one it is sent in."""
        reduces = self.name != "all-gather"
        ready = {
            (device, device, piece): -1
            for device in range(self.devices)
            for piece in range(self.pieces)
            if not reduces or self.stripes == 1
        }
        # Per device and piece, whose terms the partial sum has, and since which step.
        sums: dict[tuple[int, int, int], tuple[frozenset[int], int]] = {}
        if reduces:
            sums = {
                (device, stripe, piece): (frozenset([device]), -1)
                for device in range(self.devices)
                for stripe in self.topology.members(device)
                for piece in range(self.pieces)
            }
        for transfer in self.transfers:
            for piece in range(transfer.first, transfer.stop):
                if transfer.kind == "partial":
                    self._validate_partial(transfer, piece, sums, ready)
                else:
                    self._validate_stripe(transfer, piece, ready)

    def _validate_stripe(
        self, transfer: Transfer, piece: int, ready: dict[tuple[int, int, int], int]
    ) -> None:
        here = (transfer.source, transfer.stripe, piece)
        if ready.get(here, transfer.step) >= transfer.step:
            raise _fault(
                transfer,
                f"sends piece {piece} of stripe {transfer.stripe}, which has not arrived; "
                "send it in a later step",
            )
        there = (self.target(transfer), transfer.stripe, piece)
        if there in ready:
            raise _fault(
                transfer,
                f"sends piece {piece} of stripe {transfer.stripe} to device {there[0]}, "
                "which has it already; drop that send",
            )
        ready[there] = transfer.step

    def _validate_partial(
        self,
        transfer: Transfer,
        piece: int,
        sums: dict[tuple[int, int, int], tuple[frozenset[int], int]],
        ready: dict[tuple[int, int, int], int],
    ) -> None:
        what = f"its sum of piece {piece} of stripe {transfer.stripe}"
        here = (transfer.source, transfer.stripe, piece)
        if here not in sums:
            raise _fault(transfer, f"sends {what}, which it gave away before; drop that send")
        terms, since = sums.pop(here)
        if since >= transfer.step:
            raise _fault(
                transfer, f"sends {what} while a term of it arrives; send it in a later step"
            )
        there = (self.target(transfer), transfer.stripe, piece)
        if there not in sums:
            raise _fault(
                transfer,
                f"sends {what} to device {there[0]}, which gave its own away before; send it in "
                "an earlier step",
            )
        whole = sums[there][0] | terms
        sums[there] = (whole, transfer.step)
        if len(whole) == self.stripes and there[0] == transfer.stripe:
            ready[there] = transfer.step

    def to_text(self) -> str:
        """The schedule as text that `from_text` reads back.

        Example:
            >>> from ringline.schedule import all_gather
            >>> from ringline.topology import Line
            >>> print(all_gather(Line(2), directions=2).to_text(), end="")
            all-gather line devices=2 directions=2 channels=1 pieces=1
            0: 0>1 c0 s0[0:1], 1<0 c0 s1[0:1]
        """
        steps = [[(t, self.target(t)) for t in transfers] for transfers in self.by_step()]
        return print_text(self._header(), steps)

    @classmethod
    def from_text(cls, text: str) -> "CollectiveSchedule":
        """Read the text form: a header line, then one line `step: transfers` for each step.

        Args:
            text: as printed by `to_text`. Empty lines are skipped. The schedule is not validated.

        Raises:
            ScheduleError: with the first line that cannot be read, or the pair of devices that
                are no neighbours.
        """
        header, transfers = parse_text(text)
        return cls(*header, transfers=tuple(transfers))

    def __str__(self) -> str:
        """A grid: one row per device, one column per step, `>2[0:1]` sends stripe 2's piece 0 up.

        The pieces are left out where the whole stripe is sent.
        """
        busiest = float(max(self.stripes_per_link().values(), default=0))
        return draw_grid(self._header(), list(self.by_step()), busiest)

    def _header(self) -> Header:
        return Header(self.name, self.topology, self.directions, self.channels, self.pieces)


def _fault(transfer: Transfer, message: str) -> ScheduleError:
    return ScheduleError(
        f"step {transfer.step}: device {transfer.source} {message}",
        device=transfer.source,
        step=transfer.step,
    )
