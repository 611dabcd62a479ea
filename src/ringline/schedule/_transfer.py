"""`Transfer`: one send of a collective, a run of pieces of one stripe to a neighbour."""

from collections.abc import Iterable
from typing import Literal, NamedTuple

UP, DOWN, ACROSS = 1, -1, 0


class Transfer(NamedTuple):
    """At `step`, `source` sends pieces `first` to `stop - 1` of `stripe` to its neighbour.

    `direction` is +1 (to the next device), -1 (to the previous one) or, on a ladder, 0 (to the
    other device of the host); `channel` is the queue of that link. With the kind `partial` the
    source gives away the sum of its own term and of all that it was sent of these pieces, and the
    target adds that to what it has. The text form is `2>3 c0 s1[0:2]`: device 2 gives device 3,
    over channel 0, pieces 0 and 1 of stripe 1; or `2>3 c0 p1[0:2]` for its partial sum of them.
    """

    step: int
    source: int
    direction: int
    channel: int
    stripe: int
    first: int
    stop: int
    kind: Literal["stripe", "partial"] = "stripe"

    @property
    def lane(self) -> tuple[int, int]:
        """(direction, channel): transfers of different lanes never wait for each other."""
        return (self.direction, self.channel)


def in_order(transfers: Iterable[Transfer]) -> tuple[Transfer, ...]:
    """Transfers by step, then by device, up before down."""
    return tuple(sorted(transfers, key=lambda t: (t.step, t.source, -t.direction)))
