"""The terminal grid of a pipeline schedule: one row per stage, one column per unit of time."""

from typing import TYPE_CHECKING

from ringline.schedule._ticks import place_on_ticks

if TYPE_CHECKING:
    from ringline.schedule._pipeline import PipelineSchedule


def grid(schedule: "PipelineSchedule") -> str:
    """Draw the schedule with every operation one unit long and no transfer time.

    A cell holds the action's text form; a dot is a bubble.
    """
    rows = place_on_ticks(schedule.program())
    ticks = 1 + max((row[-1].tick for row in rows if row), default=-1)
    cells = [["."] * ticks for _ in rows]
    for row, placed in zip(cells, rows):
        for item in placed:
            row[item.tick] = str(item.compute)
    width = max((len(cell) for row in cells for cell in row), default=1)
    label = len(f"stage {len(rows) - 1}")
    idle = sum(row.count(".") for row in cells) / max(1, len(rows) * ticks)
    lines = [
        f"{f'stage {stage}':<{label}} | " + " ".join(f"{cell:>{width}}" for cell in row)
        for stage, row in enumerate(cells)
    ]
    head = (
        f"{schedule.name}: {schedule.stages} stages, {schedule.microbatches} microbatches, "
        f"{schedule.repeats} repeats; {ticks} units, {idle:.1%} idle"
    )
    return "\n".join([head, *lines])
