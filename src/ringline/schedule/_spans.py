"""When each stage starts and ends under given costs: the plain event model of the literature.

Every stage runs its actions in order, each as soon as what it reads is there; a hop to another
stage takes a fixed time and keeps nobody busy. `ringline.simulate` times whole programs on links;
this is what generators search with.
"""

from collections.abc import Callable, Iterable, Sequence

from ringline.schedule._actions import Action


def stage_spans(
    rows: Iterable[Sequence[Action]],
    stage_of: Sequence[int],
    duration_s: Callable[[Action], float],
    hop_s: float = 0.0,
) -> list[tuple[float, float]]:
    """Start and end of each stage; the rows must be a legal order.

    Args:
        rows: per stage, its (chunk, op, microbatch) in order.
        stage_of: for each chunk, its stage.
        duration_s: the time of an action.
        hop_s: the time from one stage to another.

    Example:
        >>> from ringline.schedule import linear
        >>> schedule = linear(stages=2, microbatches=3)
        >>> stage_spans(schedule.rows, schedule.stage_of, lambda a: 1.0 if a.op == "F" else 2.0)
        [(0.0, 12.0), (1.0, 10.0)]
    """
    table = [list(row) for row in rows]
    position = [0] * len(table)
    start_s = [0.0] * len(table)
    now_s = [0.0] * len(table)
    made_s: dict[Action, float] = {}
    waiting: dict[Action, int] = {}
    todo = list(range(len(table)))
    while todo:
        stage = todo.pop()
        row = table[stage]
        while position[stage] < len(row):
            action = row[position[stage]]
            maker = _maker(action, len(stage_of))
            arrival_s = 0.0
            if maker:
                if maker not in made_s:
                    waiting[maker] = stage
                    break
                arrival_s = made_s[maker] + hop_s * (stage_of[maker.chunk] != stage)
            begin_s = max(now_s[stage], arrival_s)
            if position[stage] == 0:
                start_s[stage] = begin_s
            now_s[stage] = begin_s + duration_s(action)
            position[stage] += 1
            done = _as_backward(action)
            made_s[done] = now_s[stage]
            if done in waiting:
                todo.append(waiting.pop(done))
    assert all(p == len(row) for p, row in zip(position, table)), "the order deadlocks"
    return list(zip(start_s, now_s))


def _maker(action: Action, chunks: int) -> Action | None:
    """The action of the neighbouring chunk whose result this one reads; None for an end."""
    chunk, op, microbatch = action
    if op == "F":
        return Action(chunk - 1, "F", microbatch) if chunk > 0 else None
    if op in "BI":
        return Action(chunk + 1, "B", microbatch) if chunk < chunks - 1 else None
    return None


def _as_backward(action: Action) -> Action:
    """The action with I called B: both give the cotangent."""
    return action._replace(op="B") if action.op == "I" else action
