"""When each stage starts and ends under given costs: the plain event model of the literature.

Every stage runs its actions in order, each as soon as what it reads is there; a hop to another
stage takes a fixed time and keeps nobody busy. `ringline.simulate` times whole programs on links;
this is what generators search with.
"""

from collections.abc import Callable, Iterable, Sequence

Action = tuple[int, str, int]


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
        >>> stage_spans(schedule.rows, schedule.stage_of, lambda a: 1.0 if a[1] == "F" else 2.0)
        [(0.0, 12.0), (1.0, 10.0)]
    """
    table = [list(row) for row in rows]
    last = len(stage_of) - 1
    # When an activation or a cotangent is made, by the chunk and microbatch that read it.
    ready: dict[tuple[str, int, int], float] = {}
    waiting: dict[tuple[str, int, int], int] = {}
    position = [0] * len(table)
    start = [0.0] * len(table)
    now = [0.0] * len(table)
    todo = list(range(len(table)))
    while todo:
        stage = todo.pop()
        row = table[stage]
        while position[stage] < len(row):
            action = row[position[stage]]
            chunk, op, microbatch = action
            arrival_s = 0.0
            if (op == "F" and chunk > 0) or (op in "BI" and chunk < last):
                source = chunk - 1 if op == "F" else chunk + 1
                key = ("F" if op == "F" else "B", chunk, microbatch)
                made_s = ready.get(key)
                if made_s is None:
                    waiting[key] = stage
                    break
                arrival_s = made_s + (hop_s if stage_of[source] != stage else 0.0)
            begin_s = max(now[stage], arrival_s)
            if position[stage] == 0:
                start[stage] = begin_s
            now[stage] = begin_s + duration_s(action)
            position[stage] += 1
            if op != "W":
                target = chunk + 1 if op == "F" else chunk - 1
                key = ("F" if op == "F" else "B", target, microbatch)
                ready[key] = now[stage]
                if key in waiting:
                    todo.append(waiting.pop(key))
    assert all(p == len(row) for p, row in zip(position, table)), "the order deadlocks"
    return list(zip(start, now))
