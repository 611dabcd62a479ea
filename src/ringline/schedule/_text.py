"""Read a pipeline schedule from its text form: one line per stage, cells separated by commas.

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

from ringline.schedule._errors import ScheduleError
from ringline.schedule._pipeline import Action, PipelineSchedule, cells_of
from ringline.schedule._program import Program

_ACTION = re.compile(r"(\d+)([FBIW])(\d+)")
COMPOUND = re.compile(r"\(([^;()]+);([^;()]+)\)OVERLAP_F_B")
_TRANSFER = re.compile(r"\d(?:SEND|RECV)_[FB]\d")
_DERIVED = re.compile(r"\d+(?:(?:SEND|RECV)_[FB]\d+|UNSHARD|RESHARD|REDUCE_GRAD)")


def parse_pipeline(
    source: str | Path, *, name: str = "custom", microbatches: int | None = None
) -> PipelineSchedule:
    """The schedule written in `source`: a path, or the text itself.

    The stage of each chunk follows from the text, and so does a table of two directions: row s
    is row p - 1 - s with each chunk c called c + p (modulo 2p).

    Args:
        source: a path to a .csv file, or its text.
        name: of the schedule.
        microbatches: how many there must be; None for as many as the text names.

    Raises:
        ScheduleError: for a cell that is not of the grammar, a chunk that two stages run, or one
            that none runs, naming stage and step. `validate()` checks the rest.
        OSError: for a path that cannot be read.

    Example:
        >>> from ringline.schedule import linear, parse_pipeline
        >>> schedule = parse_pipeline("0F0,0F1,0B0,0B1\\n1F0,1B0,1F1,1B1")
        >>> schedule.stages, schedule.microbatches, schedule.peak_activations()
        (2, 2, (2, 1))
        >>> original = linear(stages=3, microbatches=5)
        >>> parse_pipeline(original.to_csv(), name="linear") == original
        True
    """
    lines = read_lines(source)
    rows, joined = cells_of(_parse_line(line, stage) for stage, line in enumerate(lines))
    if microbatches is None:
        microbatches = 1 + max((a.microbatch for row in rows for a in row), default=-1)
    stage_of = placement_of([[a.chunk for a in row] for row in rows])
    return PipelineSchedule(
        name,
        rows,
        microbatches,
        stage_of,
        joined=joined,
        directions=2 if _is_mirrored(rows, len(stage_of)) else 1,
        written=_written(lines),
    )


def _written(lines: list[str]) -> Program | None:
    """The program of a table that has transfers of its own."""
    from ringline.schedule._parse_program import parse_program

    transfers = any(_TRANSFER.search(line) for line in lines)
    return parse_program("\n".join(lines)) if transfers else None


def read_lines(source: str | Path) -> list[str]:
    """The lines of a path or of the text itself, without empty ones."""
    is_path = isinstance(source, Path) or (source.endswith(".csv") and "\n" not in source)
    text = _read(Path(source)) if is_path else str(source)
    return [line for line in text.splitlines() if line.strip()]


def unreadable(cell: str, stage: int, step: int, example: str) -> ScheduleError:
    """The error for a cell that is not of the grammar."""
    return ScheduleError(
        f"stage {stage} step {step}: cannot read {cell!r}; expected a cell such as {example}",
        device=stage,
        step=step,
    )


def parse_action(cell: str) -> Action | None:
    """The action written in `cell`, or None if it is something else."""
    match = _ACTION.fullmatch(cell.strip())
    return Action(int(match[1]), match[2], int(match[3])) if match else None


def _parse_line(line: str, stage: int) -> Iterator[tuple[Action, ...]]:
    for step, raw in enumerate(line.split(",")):
        cell = raw.strip()
        if not cell or _DERIVED.fullmatch(cell):
            continue
        compound = COMPOUND.fullmatch(cell)
        parts = tuple(map(parse_action, compound.groups() if compound else (cell,)))
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


def placement_of(rows: Sequence[Sequence[int]]) -> tuple[int, ...]:
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


def stages_of_chunks(rows: Sequence[Sequence[int]]) -> dict[int, int]:
    """The stage of each chunk that is named at all; ScheduleError for a chunk on two stages."""
    stage_of: dict[int, int] = {}
    for stage, row in enumerate(rows):
        for step, chunk in enumerate(row):
            held_by = stage_of.setdefault(chunk, stage)
            if held_by != stage:
                raise ScheduleError(
                    f"stage {stage} step {step}: chunk {chunk} is on the wrong stage; stage "
                    f"{held_by} holds it",
                    device=stage,
                    step=step,
                )
    return stage_of


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ScheduleError(
            f"{path} is no text: byte {error.start} cannot be read as UTF-8; expected lines of "
            "cells such as 0F0,0B0"
        ) from None
