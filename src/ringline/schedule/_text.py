"""Read a pipeline schedule from its text form: one line per stage, cells separated by commas.

Grammar of a cell:

    cell     = "" | action | transfer | compound | upkeep
    action   = CHUNK op MICROBATCH            2F0, 5I3
    op       = "F" | "B" | "I" | "W"
    transfer = CHUNK ("SEND_F" | "RECV_F" | "SEND_B" | "RECV_B") MICROBATCH
    compound = "(" action ";" action ")OVERLAP_F_B"
    upkeep   = CHUNK ("UNSHARD" | "RESHARD" | "REDUCE_GRAD")

An empty cell is a wait. Waits, transfers and upkeep are no part of a schedule: they follow from
it, and `program()` puts them back. A compound is its two actions, in order.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from ringline.schedule._errors import ScheduleError
from ringline.schedule._pipeline import Action, PipelineSchedule, rows_of

_ACTION = re.compile(r"(\d+)([FBIW])(\d+)")
_COMPOUND = re.compile(r"\(([^;()]+);([^;()]+)\)OVERLAP_F_B")
_DERIVED = re.compile(r"\d+(?:(?:SEND|RECV)_[FB]\d+|UNSHARD|RESHARD|REDUCE_GRAD)")


def parse_pipeline(source: str | Path, *, name: str = "custom") -> PipelineSchedule:
    """The schedule written in `source`: a path, or the text itself.

    The number of microbatches and the stage of each chunk follow from the text.

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
    is_path = isinstance(source, Path) or (source.endswith(".csv") and "\n" not in source)
    text = Path(source).read_text() if is_path else str(source)
    lines = [line for line in text.splitlines() if line.strip()]
    rows = rows_of(_parse_line(line, stage) for stage, line in enumerate(lines))
    microbatches = 1 + max((a.microbatch for row in rows for a in row), default=-1)
    return PipelineSchedule(name, rows, microbatches, _placement(rows))


def _parse_line(line: str, stage: int) -> Iterator[Action]:
    for step, raw in enumerate(line.split(",")):
        cell = raw.strip()
        if not cell or _DERIVED.fullmatch(cell):
            continue
        compound = _COMPOUND.fullmatch(cell)
        for part in compound.groups() if compound else (cell,):
            match = _ACTION.fullmatch(part.strip())
            if match is None:
                raise ScheduleError(
                    f"stage {stage} step {step}: cannot read {cell!r}; expected a cell such as "
                    "2F0 (chunk, one of F B I W, microbatch)",
                    device=stage,
                    step=step,
                )
            yield Action(int(match[1]), match[2], int(match[3]))


def _placement(rows: tuple[tuple[Action, ...], ...]) -> tuple[int, ...]:
    stage_of: dict[int, int] = {}
    for stage, row in enumerate(rows):
        for step, action in enumerate(row):
            held_by = stage_of.setdefault(action.chunk, stage)
            if held_by != stage:
                raise ScheduleError(
                    f"stage {stage} step {step}: {action} is on the wrong stage; chunk "
                    f"{action.chunk} is held by stage {held_by}",
                    device=stage,
                    step=step,
                )
    chunks = 1 + max(stage_of, default=-1)
    missing = [chunk for chunk in range(chunks) if chunk not in stage_of]
    if missing or not chunks:
        raise ScheduleError(
            f"no stage runs chunk {missing[0] if missing else 0}; chunks must be numbered "
            f"0..{max(chunks - 1, 0)} without a gap"
        )
    return tuple(stage_of[chunk] for chunk in range(chunks))
