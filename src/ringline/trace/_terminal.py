"""Timelines in the terminal: one row per stage, time from left to right, and a table of numbers."""

from collections.abc import Sequence

from rich.console import Console
from rich.style import Style
from rich.table import Table
from rich.text import Text

from ringline.simulate import Event, Timeline
from ringline.trace._format import counts_text, time_text
from ringline.trace._layout import Layout, as_layouts, kinds_of
from ringline.trace._palette import name_of, paint

_PLAIN_WIDTH = 240


def terminal(timelines: Sequence[Timeline] | Timeline, *, console: Console | None = None) -> None:
    """Print timelines as grids on one scale.

    On a terminal a cell is coloured by its operation, shaded by its chunk, and holds its
    microbatch; elsewhere the operation is a letter before the microbatch. Where a cell is too
    narrow for that, the letter alone is left.

    Args:
        timelines: one, or several to compare.
        console: where to print; standard output if None.

    Example:
        >>> from ringline import schedules
        >>> from ringline.simulate import simulate
        >>> step = simulate(schedules.linear(2, 2), forward_s=1.0, backward_s=2.0)
        >>> terminal(step, console=Console(force_terminal=False, width=60))
        linear: 2 stages, 2 microbatches; one column is 333.3 ms
        stage 0 |F0 F1 .........B1--- B0---
        stage 1 |...F0 F1 B1--- B0--- ......
        F forward  B backward  . idle
    """
    console = console or Console()
    colored = console.is_terminal
    layouts = as_layouts(timelines)
    column_s = _column_s(layouts, console, colored)
    for layout in layouts:
        console.print(
            Text.assemble(
                (layout.timeline.name, "bold"),
                f": {layout.caption}; one column is {time_text(column_s)}",
            ),
            soft_wrap=True,
        )
        for device, row in enumerate(layout.rows):
            label = f"stage {device:<{len(str(len(layout.rows) - 1))}} |"
            line = _line(row, layout, column_s, colored)
            line.rstrip()
            console.print(Text().append(label, "dim").append_text(line), soft_wrap=True)
    console.print(_legend(layouts, colored), soft_wrap=True)


def summary(timelines: Sequence[Timeline] | Timeline) -> Table:
    """The numbers of each timeline as a table for a rich console."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("\nschedule", overflow="fold")
    for name in ("\nstep", "\nbubble", "whole-step\nbubble", "exposed\ntransfer"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("peak\nactivations", overflow="fold")
    for layout in as_layouts(timelines):
        timeline = layout.timeline
        table.add_row(
            timeline.name,
            time_text(timeline.makespan_s),
            f"{time_text(timeline.bubble_s)} ({timeline.bubble_rate:.1%})",
            f"{time_text(timeline.makespan_bubble_s)} ({timeline.makespan_bubble_rate:.1%})",
            time_text(timeline.exposed_transfer_s),
            counts_text(timeline.peak_activations),
        )
    return table


def _column_s(layouts: Sequence[Layout], console: Console, colored: bool) -> float:
    """The time of one column: all cells wide enough for their text, if the width allows."""
    longest_s = max(layout.timeline.makespan_s for layout in layouts) or 1.0
    room = max(8, (console.width if colored else _PLAIN_WIDTH) - len("stage 00 |"))
    cells = [e.duration_s for layout in layouts for row in layout.rows for e in row]
    shortest_s = min((duration_s for duration_s in cells if duration_s > 0), default=longest_s)
    digits = max(len(str(layout.parts - 1)) for layout in layouts)
    wanted = digits + (1 if colored else 2)
    return max(shortest_s / wanted, longest_s / room)


def _line(row: Sequence[Event], layout: Layout, column_s: float, colored: bool) -> Text:
    """One stage's row. Empty columns are idle."""
    line = Text()
    idle = "·" if colored else "."
    for event in row:
        start = max(round(event.start_s / column_s), len(line))
        width = max(0, round(event.end_s / column_s) - start)
        line.append(idle * (start - len(line)), "dim")
        if colored:
            line.append_text(_colored_cell(event, width, layout))
        else:
            line.append(_plain_cell(event, width))
    columns = round(layout.timeline.makespan_s / column_s)
    return line.append(idle * (columns - len(line)), "dim")


def _colored_cell(event: Event, width: int, layout: Layout) -> Text:
    color = paint(event.kind, layout.repeat_of[event.index], layout.repeats)
    number = str(event.part)
    text = (number if len(number) < width else "").ljust(max(0, width - 1))
    style = Style(color=color.text, bgcolor=color.fill)
    edge = Style(color=color.edge, bgcolor=color.fill)
    return Text(text, style).append("▕" if width > 0 else "", edge)


def _plain_cell(event: Event, width: int) -> str:
    name = f"{event.kind}{event.part}"
    if len(name) < width:
        return name.ljust(width - 1, "-") + " "
    return event.kind[:1] * width


def _legend(layouts: Sequence[Layout], colored: bool) -> Text:
    computes, _, repeats = kinds_of(layouts)
    legend = Text()
    for kind in computes:
        for repeat in range(repeats if colored else 1):
            color = paint(kind, repeat, repeats)
            swatch = Style(color=color.text, bgcolor=color.fill) if colored else Style()
            legend.append(f" {kind} " if colored else kind, swatch)
        legend.append(f" {name_of(kind)}  ")
    return legend.append("· idle" if colored else ". idle")
