"""The terminal grid of a pipeline schedule: one row per stage, one column per unit of time."""

from ringline.schedule._program import Program
from ringline.schedule._ticks import place_on_ticks


def draw_grid(title: str, program: Program) -> str:
    """Draw a pipeline's program with every operation one unit long and no transfer time.

    A cell holds the action's text form; a dot is a bubble. The first line is the title, the units
    and the part of them that is idle.
    """
    rows = place_on_ticks(program)
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
    return "\n".join([f"{title}; {ticks} units, {idle:.1%} idle", *lines])
