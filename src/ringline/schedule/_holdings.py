"""What each device holds while a collective's transfers are lowered to a `Program`.

A partial sum is another value after each addition and on each device, so its name says both:
`partial@2` is device 2's own term, `partial@2+1` the sum once one arrival was added. The sum of all
terms is the `stripe`.
"""

from ringline.schedule._program import Compute, Instruction, Program, Receive, Send, Value
from ringline.schedule._transfer import Transfer
from ringline.topology import Line, Rails, Ring


class Holdings:
    """The instructions so far, and the name of each partial sum that a device holds."""

    def __init__(self, name: str, topology: Ring | Line | Rails, pieces: int):
        self.name, self.topology, self.pieces = name, topology, pieces
        self.rows: list[list[Instruction]] = [[] for _ in range(topology.devices)]
        # (device, stripe, piece) -> additions so far, and the terms that are in the sum.
        self.sums: dict[tuple[int, int, int], tuple[int, tuple[int, ...]]] = {}

    def send(self, transfer: Transfer, target: int, piece: int) -> Value:
        """Let the source send `piece`; returns the value that moves."""
        value = Value("stripe", transfer.stripe, piece)
        if transfer.kind == "partial":
            value = self._sum(transfer.source, transfer.stripe, piece)
        send = Send(value, target, transfer.channel, step=transfer.step)
        self.rows[transfer.source].append(send)
        return value

    def receive(self, transfer: Transfer, target: int, piece: int, value: Value) -> None:
        """Let the target receive `value`, and add it where it is a partial sum."""
        row = self.rows[target]
        row.append(Receive(value, transfer.source, transfer.channel, step=transfer.step))
        if transfer.kind != "partial":
            return
        here = (target, transfer.stripe, piece)
        before = self._sum(*here)
        additions, terms = self.sums.get(here, (0, (target,)))
        _, arrived = self.sums.get(
            (transfer.source, transfer.stripe, piece), (0, (transfer.source,))
        )
        self.sums[here] = (additions + 1, (*terms, *arrived))
        row.append(Compute("add", transfer.stripe, piece, (before, value), (self._sum(*here),)))

    def program(self) -> Program:
        """All instructions, with what the collective starts and ends with."""
        devices = range(self.topology.devices)
        own = [self._stripe(device) for device in devices]
        everything = [
            tuple(value for member in self.topology.members(device) for value in own[member])
            for device in devices
        ]
        starts = own
        if self.name != "all-gather" and len(self.topology.members(0)) > 1:
            starts = [
                tuple(
                    Value(f"partial@{device}", stripe, piece)
                    for stripe in self.topology.members(device)
                    for piece in range(self.pieces)
                )
                for device in devices
            ]
        ends = own if self.name == "reduce-scatter" else everything
        return Program(tuple(map(tuple, self.rows)), tuple(starts), tuple(ends))

    def _stripe(self, stripe: int) -> tuple[Value, ...]:
        return tuple(Value("stripe", stripe, piece) for piece in range(self.pieces))

    def _sum(self, device: int, stripe: int, piece: int) -> Value:
        additions, terms = self.sums.get((device, stripe, piece), (0, (device,)))
        if sorted(terms) == list(self.topology.members(stripe)):
            return Value("stripe", stripe, piece)
        mark = f"+{additions}" if additions else ""
        return Value(f"partial@{device}{mark}", stripe, piece)
