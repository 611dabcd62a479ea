"""Split whole backwards into I and W, and put adjacent ones together again."""

from collections.abc import Iterator
from dataclasses import replace

from ringline.schedule._actions import Action, cells_of
from ringline.schedule._pipeline import PipelineSchedule


def split_backward(schedule: PipelineSchedule) -> PipelineSchedule:
    """The schedule with an I and a W in place of each B, which is then joined with nothing.

    Example:
        >>> from ringline.schedule import one_f_one_b
        >>> print(split_backward(one_f_one_b(stages=1, microbatches=2)).to_csv(), end="")
        0F0,0I0,0W0,0F1,0I1,0W1
    """
    rows = []
    for cells in _cells(schedule):
        row: list[tuple[Action, ...]] = []
        for cell in cells:
            whole = any(action.op == "B" for action in cell)
            row += [(action,) for action in _parts(cell)] if whole else [cell]
        rows.append(row)
    split, joined = cells_of(rows)
    return replace(schedule, rows=split, joined=joined, written=None)


def merge_backward(schedule: PipelineSchedule) -> PipelineSchedule:
    """The schedule with a B in place of each I that is followed at once by its W.

    A whole backward hands nothing over, so it is the cheaper form where nothing comes between.

    Example:
        >>> from ringline.schedule import zero_bubble_h1
        >>> print(merge_backward(zero_bubble_h1(stages=2, microbatches=2)).to_csv(), end="")
        0F0,0F1,0B0,0B1
        1F0,1I0,1F1,1I1,1W0,1W1
    """
    rows = []
    for cells in _cells(schedule):
        row: list[tuple[Action, ...]] = []
        for cell in cells:
            one = cell[0]
            if one.op == "W" and row and row[-1] == (one._replace(op="I"),):
                row[-1] = (one._replace(op="B"),)
            else:
                row.append(cell)
        rows.append(row)
    merged, joined = cells_of(rows)
    return replace(schedule, rows=merged, joined=joined, written=None)


def _parts(cell: tuple[Action, ...]) -> Iterator[Action]:
    for action in cell:
        if action.op == "B":
            yield from (action._replace(op="I"), action._replace(op="W"))
        else:
            yield action


def _cells(schedule: PipelineSchedule) -> Iterator[list[tuple[Action, ...]]]:
    """Per stage, its actions one by one and the joined ones two by two."""
    for stage, row in enumerate(schedule.rows):
        steps = set(schedule.joined[stage]) if schedule.joined else set()
        yield [
            row[step : step + 1 + (step in steps)]
            for step in range(len(row))
            if step - 1 not in steps
        ]
