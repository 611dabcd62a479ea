"""`Action`: one operation of a pipeline, on one chunk and one microbatch."""

from collections.abc import Iterable
from typing import NamedTuple


class Action(NamedTuple):
    """Operation `op` on `chunk` for `microbatch`; its text form is `2F0`.

    With one repeat a chunk's number is its stage's.
    """

    chunk: int
    op: str
    microbatch: int

    def __str__(self) -> str:
        return f"{self.chunk}{self.op}{self.microbatch}"


def rows_of(rows: Iterable[Iterable[Action]]) -> tuple[tuple[Action, ...], ...]:
    """Freeze rows built as lists."""
    return tuple(tuple(row) for row in rows)


def cells_of(
    rows: Iterable[Iterable[tuple[Action, ...]]],
) -> tuple[tuple[tuple[Action, ...], ...], tuple[tuple[int, ...], ...]]:
    """Rows, and the steps joined with the next, from cells of one action or two joined ones."""
    flat, joined = [], []
    for row in rows:
        actions: list[Action] = []
        steps = []
        for cell in row:
            steps += [len(actions)] if len(cell) == 2 else []
            actions += cell
        flat.append(tuple(actions))
        joined.append(tuple(steps))
    return tuple(flat), tuple(joined) if any(joined) else ()
