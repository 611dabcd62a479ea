"""What the readers of tables share: lines, cells, and which stage runs which chunk."""

import re
from collections.abc import Sequence
from pathlib import Path

from ringline.schedule._errors import ScheduleError

COMPOUND = re.compile(r"\(([^;()]+);([^;()]+)\)OVERLAP_F_B")


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
