"""The page of a compiled program: one trip of its busiest loop drawn, and the report's tables."""

from collections.abc import Sequence
from dataclasses import replace
from html import escape
from pathlib import Path

from ringline import trace
from ringline.aot import Compiled
from ringline.aot._report import COLUMNS, FOOTNOTE, collective_rows, summary_lines
from ringline.aot._walk import Context, Step
from ringline.cli._files import write_text
from ringline.simulate import Event, Timeline
from ringline.trace._format import time_text

_SMALLEST_SHARE = 0.005  # of the loop's body: what is shorter is not drawn


def write_page(
    programs: Sequence[tuple[str, Compiled, str]],
    path: Path,
    tables: Sequence[tuple[str, Sequence[str], Sequence[Sequence[str]]]] = (),
) -> None:
    """Write the page.

    Args:
        programs: each with its name, and the operations that the branches of a trip are, in
            order, such as FB; empty where that is not known.
        path: where to.
        tables: further ones: heading, names of columns, rows.

    Raises:
        ValueError: when no program has a loop.
    """
    drawn = [found for program in programs if (found := loop_timeline(*program))]
    if not drawn:
        raise ValueError(f"the program has no loop to draw; drop --html {path}")
    sections = []
    for name, compiled, _ in programs:
        first, *others = summary_lines(compiled)
        lines = [name + first, *others]
        sections.append(_table(lines, COLUMNS, collective_rows(compiled), note=FOOTNOTE))
    sections += [_table([heading], columns, rows) for heading, columns, rows in tables]
    page = trace.html(drawn, title=f"Compiled for {programs[0][1].target.name}")
    write_text(path, page.replace("</main>", "\n".join([*sections, "</main>"])))


def loop_timeline(name: str, compiled: Compiled, branches: str = "") -> Timeline | None:
    """The computations and transfers of one trip of the loop that computes longest, or None.

    Drawn is one device: all run the same program. Events are instructions, of no chunk and no
    microbatch (both -1). Transfers last as long as the target's links need, from when they are
    posted.
    """
    walk = compiled.walk
    bodies = [c for c in walk.contexts() if c.loop and not c.conditional]
    if not bodies:
        return None
    body = max(bodies, key=lambda c: walk.cycles(c.computation) * c.times)
    per_s = compiled.target.clock_hz
    steps = walk.steps(body.computation)
    events = [*_computes(steps, per_s, branches), *_transfers(compiled, body)]
    trips = f"one of {body.times} trips" if body.times > 1 else "one trip"
    title = f"{name}{trips} of loop {body.loop}"
    return Timeline(title, tuple(sorted(events, key=lambda e: e.start_s)), devices=1)


def _computes(steps: list[Step], per_s: float, branches: str) -> list[Event]:
    total = max(1, sum(step.cycles for step in steps))
    drawn = [step for step in steps if step.cycles >= _SMALLEST_SHARE * total]
    conditionals = [step for step in drawn if step.instruction.opcode == "conditional"]
    known = len(conditionals) == len(branches)
    kinds = iter(branches if known else ["conditional"] * len(conditionals))
    events = []
    for step in drawn:
        opcode = step.instruction.opcode
        kind = next(kinds) if opcode == "conditional" else opcode
        name, start_s, duration_s = step.instruction.name, step.start / per_s, step.cycles / per_s
        events.append(Event(start_s, duration_s, 0, "compute", kind, name, -1, -1))
    return events


def _transfers(compiled: Compiled, body: Context) -> list[Event]:
    events = []
    for c in compiled.collectives:
        if c.computation != body.computation:
            continue
        exposed = f"{time_text(c.exposed_us / 1e6)} exposed" if c.exposed else "hidden"
        start_s, duration_s = c.starts_us / 1e6, c.transfer_us / 1e6
        kind, label = f"{c.kind} over {c.link}", f"{c.name} along {c.axis}, {exposed}"
        event = Event(start_s, duration_s, 0, "transfer", kind, label, -1, -1, peer=0)
        events.append(replace(event, bytes=round(c.bytes)))
    return events


def _table(
    lines: Sequence[str], columns: Sequence[str], rows: Sequence[Sequence[str]], note: str = ""
) -> str:
    """A section: lines of text, a table whose first column names the row, a note."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in columns)
    body = "".join(f"<tr>{_row(row, columns)}</tr>" for row in rows)
    lead = "".join(f'<p class="lead">{escape(line)}</p>' for line in lines)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    foot = f'<p class="lead">{escape(note)}</p>' if note else ""
    return f'<section class="report" aria-label="Report">{lead}{table}{foot}</section>'


def _row(row: Sequence[str], columns: Sequence[str]) -> str:
    cells = "".join(
        f'<td data-name="{escape(name)}">{escape(cell)}</td>'
        for name, cell in zip(columns[1:], row[1:])
    )
    return f'<th scope="row">{escape(row[0])}</th>{cells}'
