"""The text form of a pipeline schedule: one line per stage, cells separated by commas.

Grammar of a cell:

    cell     = "" | action | transfer | compound | upkeep
    action   = CHUNK op MICROBATCH            2F0, 5I3
    op       = "F" | "B" | "I" | "W"
    transfer = CHUNK ("SEND_F" | "RECV_F" | "SEND_B" | "RECV_B") MICROBATCH
    compound = "(" action ";" action ")OVERLAP_F_B"
    upkeep   = CHUNK ("UNSHARD" | "RESHARD" | "REDUCE_GRAD")

An empty cell is a wait. Waits, transfers and upkeep are no part of a schedule: they follow from
it, and `program()` puts them back. Transfers that a table has are kept beside the schedule for
`validate()`, read by `parse_program`. A compound is its two actions, in order and joined.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ringline.schedule._actions import Action, cells_of
from ringline.schedule._errors import ScheduleError
from ringline.schedule._parse_program import parse_program
from ringline.schedule._program import Program
from ringline.schedule._table import COMPOUND, read_lines, stages_of_chunks, unreadable

_ACTION = re.compile(r"(\d+)([FBIW])(\d+)")
_TRANSFER = re.compile(r"\d(?:SEND|RECV)_[FB]\d")
_DERIVED = re.compile(r"\d+(?:(?:SEND|RECV)_[FB]\d+|UNSHARD|RESHARD|REDUCE_GRAD)")


class Table(NamedTuple):
    """What a text says of a `PipelineSchedule`: the fields of the same names."""

    rows: tuple[tuple[Action, ...], ...]
    microbatches: int
    stage_of: tuple[int, ...]
    joined: tuple[tuple[int, ...], ...]
    directions: int
    written: Program | None


def parse_table(source: str | Path, microbatches: int | None = None) -> Table:
    """Read a path, or the text itself; without `microbatches`, as many as the text names."""
    lines = read_lines(source)
    rows, joined = cells_of(_parse_line(line, stage) for stage, line in enumerate(lines))
    if microbatches is None:
        microbatches = 1 + max((a.microbatch for row in rows for a in row), default=-1)
    stage_of = _placement_of([[a.chunk for a in row] for row in rows])
    return Table(
        rows,
        microbatches,
        stage_of,
        joined,
        directions=2 if _is_mirrored(rows, len(stage_of)) else 1,
        written=_written(lines),
    )


def print_table(rows: Sequence[Sequence[Action]], joined: Sequence[Sequence[int]]) -> str:
    """One line per stage, its actions separated by commas."""
    lines = []
    for stage, row in enumerate(rows):
        cells = list(map(str, row))
        for step in reversed(joined[stage] if joined else ()):
            cells[step : step + 2] = [f"({cells[step]};{cells[step + 1]})OVERLAP_F_B"]
        lines.append(",".join(cells) + "\n")
    return "".join(lines)


def _written(lines: list[str]) -> Program | None:
    """The program of a table that has transfers of its own."""
    transfers = any(_TRANSFER.search(line) for line in lines)
    return parse_program("\n".join(lines)) if transfers else None


def _parse_action(cell: str) -> Action | None:
    """The action written in `cell`, or None if it is something else."""
    match = _ACTION.fullmatch(cell.strip())
    return Action(int(match[1]), match[2], int(match[3])) if match else None


def _parse_line(line: str, stage: int) -> Iterator[tuple[Action, ...]]:
    for step, raw in enumerate(line.split(",")):
        cell = raw.strip()
        if not cell or _DERIVED.fullmatch(cell):
            continue
        compound = COMPOUND.fullmatch(cell)
        parts = tuple(map(_parse_action, compound.groups() if compound else (cell,)))
        if not all(parts):
            raise unreadable(cell, stage, step, "2F0 (chunk, one of F B I W, microbatch)")
        yield tuple(action for action in parts if action)


def _is_mirrored(rows: Sequence[Sequence[Action]], chunks: int) -> bool:
    if chunks != 2 * len(rows):
        return False
    half = len(rows)
    return all(
        row == tuple(Action((a.chunk + half) % chunks, a.op, a.microbatch) for a in mirror)
        for row, mirror in zip(rows, reversed(rows))
    )


def _placement_of(rows: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The stage of each chunk, from the chunks that each stage's steps name.

    Raises:
        ScheduleError: for a chunk on two stages, or on none.
    """
    stage_of = stages_of_chunks(rows)
    chunks = 1 + max(stage_of, default=-1)
    missing = [chunk for chunk in range(chunks) if chunk not in stage_of]
    if missing or not chunks:
        raise ScheduleError(
            f"no stage runs chunk {missing[0] if missing else 0}; chunks must be numbered "
            f"0..{max(chunks - 1, 0)} without a gap"
        )
    return tuple(stage_of[chunk] for chunk in range(chunks))
