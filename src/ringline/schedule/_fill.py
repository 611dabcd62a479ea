"""Put the weight gradients into fixed orders of F and I, where a stage would wait or is full."""

import heapq
from collections.abc import Callable, Sequence

from ringline.schedule._actions import Action

_SOON_S = 1e-9


def fill_weights(
    orders: Sequence[Sequence[Action]],
    stage_of: Sequence[int],
    duration_s: Callable[[Action], float],
    *,
    hop_s: float = 0.0,
    limit: float = float("inf"),
    weight_share: float = 1.0,
    patience: float = 1.0,
    swap: bool = False,
    early: str = "",
) -> list[list[Action]] | None:
    """Rows with every W, as a run in time puts them; None if the limit leaves no way on.

    Each stage follows its order, but for `swap` and `early`. A W runs, oldest first, when the
    next action has to wait for at least `patience` times as long as the W takes, when it is not
    known yet how long, and when the next is an F that would exceed the limit.

    Args:
        orders: per stage, its F and I.
        stage_of: for each chunk, its stage.
        duration_s: the time of an action.
        hop_s: the time from one stage to another.
        limit: the most chunk activations that a stage may keep.
        weight_share: the part of an activation that is kept after I, for W.
        patience: how much of a W has to fit into a wait.
        swap: whether a stage that is full may run the next I before the F whose turn it is.
        early: the operations, of F and I, that a stage may take out of turn rather than wait or
            run a W; an F not before an I of its own chunk, so that no chunk runs further ahead.
    """
    return _Fill(
        orders, stage_of, duration_s, hop_s, limit, weight_share, patience, swap, early
    ).rows()


class _Fill:
    def __init__(
        self,
        orders: Sequence[Sequence[Action]],
        stage_of: Sequence[int],
        duration_s: Callable[[Action], float],
        hop_s: float,
        limit: float,
        weight_share: float,
        patience: float,
        swap: bool,
        early: str,
    ):
        self.orders = [list(order) for order in orders]
        self.stage_of = stage_of
        self.duration_s = duration_s
        self.hop_s = hop_s
        self.limit = limit + 1e-6
        self.weight_share = weight_share
        self.patience = patience
        self.swap = swap
        self.early = early
        stages = len(orders)
        self.position = [0] * stages
        self.pending: list[list[Action]] = [[] for _ in range(stages)]
        self.done_w = [0] * stages
        self.kept = [0.0] * stages
        self.free_s = [0.0] * stages
        self.out: list[list[Action]] = [[] for _ in range(stages)]
        self.ready_s: dict[Action, float] = {}
        self.wake = [(0.0, stage) for stage in range(stages)]

    def rows(self) -> list[list[Action]] | None:
        while self.wake:
            now, stage = heapq.heappop(self.wake)
            if now >= self.free_s[stage] - _SOON_S:
                action = self._choose(stage, now)
                if action:
                    self._run(stage, action, now)
        actions = sum(len(order) + sum(a.op == "I" for a in order) for order in self.orders)
        return self.out if sum(map(len, self.out)) == actions else None

    def _choose(self, stage: int, now: float) -> Action | None:
        action = self._in_turn(stage, now)
        if self.early and (action is None or action.op == "W"):
            return self._out_of_turn(stage, now) or action
        return action

    def _in_turn(self, stage: int, now: float) -> Action | None:
        waiting = self.done_w[stage] < len(self.pending[stage])
        weights = self.pending[stage][self.done_w[stage]] if waiting else None
        if self.position[stage] == len(self.orders[stage]):
            return weights
        action = self.orders[stage][self.position[stage]]
        if action.op == "F" and self.kept[stage] + 1 > self.limit:
            swapped = self._swapped(stage, now) if self.swap else None
            return swapped or weights
        ready_s = self._ready_s(action)
        if ready_s is None:
            return weights
        wait_s = ready_s - now
        if wait_s <= _SOON_S:
            return action
        if weights and wait_s >= self.patience * self.duration_s(weights) - _SOON_S:
            return weights
        heapq.heappush(self.wake, (ready_s, stage))
        return None

    def _swapped(self, stage: int, now: float) -> Action | None:
        """The next I of the stage, if it is ready; it takes the turn of the F before it."""
        order, turn = self.orders[stage], self.position[stage]
        place = next((q for q in range(turn + 1, len(order)) if order[q].op == "I"), None)
        ready = place is not None and self._is_ready(order[place], now)
        return self._move(stage, place) if place is not None and ready else None

    def _out_of_turn(self, stage: int, now: float) -> Action | None:
        """The next I of a chunk, else the next F of one, that is ready and may go first."""
        order, turn = self.orders[stage], self.position[stage]
        full = self.kept[stage] + 1 > self.limit
        for op in "IF":
            if op not in self.early or (op == "F" and full):
                continue
            passed: set[int] = set()
            for place in range(turn, len(order)):
                action = order[place]
                if op == "I" and action.op == "F":
                    continue
                first = action.op == op and action.chunk not in passed and place > turn
                if first and self._is_ready(action, now):
                    return self._move(stage, place)
                passed.add(action.chunk)
        return None

    def _is_ready(self, action: Action, now: float) -> bool:
        ready_s = self._ready_s(action)
        return ready_s is not None and ready_s <= now + _SOON_S

    def _ready_s(self, action: Action) -> float | None:
        return 0.0 if action[:2] == (0, "F") else self.ready_s.get(action)

    def _move(self, stage: int, place: int) -> Action:
        order, turn = self.orders[stage], self.position[stage]
        order.insert(turn, order.pop(place))
        return order[turn]

    def _run(self, stage: int, action: Action, now: float) -> None:
        end_s = now + self.duration_s(action)
        self.free_s[stage] = end_s
        self.out[stage].append(action)
        heapq.heappush(self.wake, (end_s, stage))
        chunk, op, microbatch = action
        if op == "W":
            self.done_w[stage] += 1
            self.kept[stage] -= self.weight_share
            return
        self.position[stage] += 1
        if op == "I":
            self.pending[stage].append(Action(chunk, "W", microbatch))
        self.kept[stage] += 1 if op == "F" else self.weight_share - 1
        target = self._next(action)
        if target:
            reader = self.stage_of[target.chunk]
            self.ready_s[target] = end_s + (self.hop_s if reader != stage else 0.0)
            heapq.heappush(self.wake, (max(self.ready_s[target], self.free_s[reader]), reader))
            heapq.heappush(self.wake, (max(now, self.free_s[reader]), reader))

    def _next(self, action: Action) -> Action | None:
        """The action that this one's result goes to."""
        chunk, op, microbatch = action
        if op == "F":
            last = chunk == len(self.stage_of) - 1
            return Action(chunk, "I", microbatch) if last else Action(chunk + 1, "F", microbatch)
        return Action(chunk - 1, "I", microbatch) if chunk else None
