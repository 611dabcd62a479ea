"""Can packets stop for good? Search one ring of queues for a state in which nothing moves.

How far each answer reaches:

* No ring of queues, as on a line: packets never wait in a circle. Proved for every size, number
  of slots and order of events.
* Bubble flow control with at least two slots: proved for every size and number of calls by an
  invariant whose every step is checked (`_bubble.py`).
* Greedy injection: A* over the states that slots and credits allow, with a lower bound on the
  moves to a stop. A stop found is the shortest. "None" is exhaustive for the given number of
  packets and calls.
* Where the search meets its bound of states, random runs follow: `decided` is then False.
"""

import heapq
import random
from dataclasses import dataclass

from ringline.schedule._bubble import prove_bubble
from ringline.schedule._flow import Flow, Move, State
from ringline.schedule._hops import Queue
from ringline.schedule._program import Value

_RANDOM_RUNS = 100
_SAMPLED_MOVES = 2


@dataclass(frozen=True, slots=True)
class Step:
    """A packet takes the wire of `queue`: the device's own, or one that goes on.

    Attributes:
        queue: the channel of the link.
        value: whose packet it is.
        packet: its number within the value.
        own: whether the device puts it in.
    """

    queue: Queue
    value: Value
    packet: int
    own: bool

    def __str__(self) -> str:
        verb = "puts in" if self.own else "passes on"
        return f"device {self.queue.source} {verb} packet {self.packet} of {self.value}"


@dataclass(frozen=True, slots=True)
class Wait:
    """Why a queue does not move.

    Attributes:
        queue: whose receiver is full.
        value: of its oldest packet, None where the receiver is empty.
        held: packets in the receiver and in the sender behind it.
        ahead: the queue whose slot the packet waits for.
    """

    queue: Queue
    value: Value | None
    held: int
    ahead: Queue

    def __str__(self) -> str:
        if self.value is None:
            return (
                f"device {self.queue.source} waits for a second free slot on {self.queue}, "
                "which has one"
            )
        return (
            f"{self.queue} is full ({self.held} packets), its oldest packet of {self.value} "
            f"waits for a slot of {self.ahead}"
        )


@dataclass(frozen=True, slots=True)
class Hang:
    """A way to stop for good: the moves, then who waits for whom, around the ring.

    Attributes:
        steps: the moves from the start.
        waits: one for each queue of the ring, each waiting for the next.
        shortest: whether no run with fewer moves stops.
        threads: who waits for whom where it is the devices' threads that stop, in words.
    """

    steps: tuple[Step, ...]
    waits: tuple[Wait, ...]
    shortest: bool
    threads: str = ""

    def lines(self) -> list[str]:
        """The steps as text, runs of one device's own packets in one line."""
        lines: list[str] = []
        run: list[Step] = []
        for step in (*self.steps, None):
            if run and (step is None or (step.queue, step.own) != (run[-1].queue, run[-1].own)):
                more = f" to packet {run[-1].packet} of {run[-1].value}" if len(run) > 1 else ""
                lines.append(f"{run[0]}{more}")
                run = []
            if step is not None:
                run.append(step)
        return lines


@dataclass(frozen=True, slots=True)
class HangAnswer:
    """What the search of one ring of queues found.

    Attributes:
        hang: how it stops, None where no run does.
        decided: whether the answer holds for every run.
        how: what it rests on, in words.
        states: states that were looked at.
    """

    hang: Hang | None
    decided: bool
    how: str
    states: int


def find_hang(flow: Flow, *, max_states: int = 100_000, shortest: bool = True) -> HangAnswer:
    """Decide whether any order of events on `flow` stops for good.

    Args:
        flow: one ring of queues.
        max_states: bound of the search.
        shortest: whether a hang has to be the shortest; without, any will do, which is quicker.
    """
    least_moves = flow.least_moves_to_stop(flow.start)
    if least_moves is None:
        return HangAnswer(
            None, True, "exhaustive: too few packets to fill the slots of the ring", 1
        )
    if flow.injection == "bubble" and flow.slots >= 2:
        return HangAnswer(None, True, *prove_bubble(flow, max_states=max_states // 5))
    moves = _put_in_first(flow)
    if moves is not None and (not shortest or len(moves) == least_moves):
        return HangAnswer(_hang(flow, moves, len(moves) == least_moves), True, "found", len(moves))
    return _search(flow, max_states)


def _put_in_first(flow: Flow) -> tuple[Move, ...] | None:
    """One run in which devices put in what they can before anything is passed on."""
    state, moves = flow.start, []
    while True:
        move = None
        for move in flow.moves(state):
            if move.inject:
                break
        if move is None:
            return None if flow.finished(state) else tuple(moves)
        moves.append(move)
        state = flow.after(state, move)


def _search(flow: Flow, max_states: int) -> HangAnswer:
    """A*: states in the order of moves made plus moves that a stop takes at least."""
    start = flow.start
    came: dict[State, tuple[int, State | None, Move | None]] = {start: (0, None, None)}
    frontier = [(flow.least_moves_to_stop(start) or 0, 0, 0, start)]
    count = 0
    while frontier:
        _, _, _, state = heapq.heappop(frontier)
        done = came[state][0]
        moves = list(flow.moves(state))
        if not moves and not flow.finished(state):
            return HangAnswer(_hang(flow, _path(came, state), True), True, "found", len(came))
        for move in moves:
            after = flow.after(state, move)
            if after in came and came[after][0] <= done + 1:
                continue
            least = flow.least_moves_to_stop(after)
            if least is None:
                continue
            came[after] = (done + 1, state, move)
            count += 1
            heapq.heappush(frontier, (done + 1 + least, -done, count, after))
        if len(came) > max_states:
            return _sample(flow, len(came))
    return HangAnswer(None, True, "exhaustive: every state that can lead to a stop", len(came))


def _path(came: dict, state: State) -> tuple[Move, ...]:
    moves = []
    at: State | None = state
    while at is not None:
        _, at, move = came[at]
        if move is not None:
            moves.append(move)
    return tuple(reversed(moves))


def _sample(flow: Flow, states: int) -> HangAnswer:
    """Random runs, where there are too many states for all of them: a few moves for each state."""
    choose = random.Random(0)
    runs = moved = 0
    while moved < _SAMPLED_MOVES * states and runs < _RANDOM_RUNS:
        state, moves = flow.start, []
        while options := list(flow.moves(state)):
            moves.append(choose.choice(options))
            state = flow.after(state, moves[-1])
        if not flow.finished(state):
            return HangAnswer(_hang(flow, tuple(moves), False), True, "found by chance", states)
        runs += 1
        moved += len(moves)
    how = f"sampled: none in {states} states and {runs} random runs, others are open"
    return HangAnswer(None, False, how, states)


def _hang(flow: Flow, moves: tuple[Move, ...], shortest: bool) -> Hang:
    replay = flow.named(moves)
    waits = []
    for at, queue in enumerate(flow.queues):
        ahead = (at + 1) % len(flow.queues)
        receiver = replay.receivers[at]
        held = len(receiver) + len(replay.senders[ahead])
        value = receiver[0][0] if receiver else None
        waits.append(Wait(queue, value, held, flow.queues[ahead]))
    return Hang(tuple(Step(*step) for step in replay.steps), tuple(waits), shortest)
