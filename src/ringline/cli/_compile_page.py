"""The page of a compiled program: one trip of its busiest loop drawn, and the report's tables."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from ringline import trace
from ringline.aot import Compiled
from ringline.aot._report import COLUMNS, collective_rows, summary_lines
from ringline.aot._walk import Context, Step
from ringline.cli._files import write_text
from ringline.simulate import Event, Timeline

_SMALLEST_SHARE = 0.005  # of the loop's body: what is shorter is not drawn
_PHASES = "FBW"


def write_page(
    programs: Sequence[tuple[str, Compiled]],
    path: Path,
    tables: Sequence[tuple[str, Sequence[str], Sequence[Sequence[str]]]] = (),
) -> None:
    """Write the page.

    Args:
        programs: each with its name.
        path: where to.
        tables: further ones: heading, names of columns, rows.

    Raises:
        ValueError: when no program has a loop.
    """
    drawn = [found for name, compiled in programs if (found := loop_timeline(name, compiled))]
    if not drawn:
        raise ValueError(f"the program has no loop to draw; drop --html {path}")
    sections = [
        _table(f"{name} {' '.join(summary_lines(compiled))}", COLUMNS, collective_rows(compiled))
        for name, compiled in programs
    ]
    sections += [_table(*table) for table in tables]
    page = trace.html(drawn, title=f"Compiled for {programs[0][1].target.name}")
    write_text(path, page.replace("</main>", "\n".join([*sections, "</main>"])))


def loop_timeline(name: str, compiled: Compiled) -> Timeline | None:
    """The computations and transfers of one trip of the loop that computes longest, or None.

    Drawn are a stage and its neighbour, which run the same program. Transfers last as long as
    the target's links need, from when they are posted.
    """
    walk = compiled.walk
    bodies = [c for c in walk.contexts() if c.loop and not c.conditional]
    if not bodies:
        return None
    body = max(bodies, key=lambda c: walk.cycles(c.computation) * c.times)
    per_s = compiled.target.clock_hz
    events = [*_computes(walk.steps(body.computation), per_s), *_transfers(compiled, body)]
    title = f"{name}one of {body.times} trips of loop {body.loop}"
    return Timeline(title, tuple(sorted(events, key=lambda e: e.start_s)), devices=2)


def _computes(steps: list[Step], per_s: float) -> list[Event]:
    total = max(1, sum(step.cycles for step in steps))
    phases = iter(_PHASES)
    events = []
    for step in steps:
        if step.cycles < _SMALLEST_SHARE * total:
            continue
        branch = step.instruction.opcode == "conditional"
        kind = next(phases, "W") if branch else step.instruction.opcode
        name, part = step.instruction.name, len(events) // 2
        start_s, duration_s = step.start / per_s, step.cycles / per_s
        events += [
            Event(start_s, duration_s, stage, "compute", kind, name, stage, part)
            for stage in range(2)
        ]
    return events


def _transfers(compiled: Compiled, body: Context) -> list[Event]:
    events = []
    for number, c in enumerate(
        c for c in compiled.collectives if c.computation == body.computation
    ):
        exposed = f"{c.exposed_us:.0f} us exposed" if c.exposed else "hidden"
        start_s, duration_s = c.starts_us / 1e6, c.transfer_us / 1e6
        kind, label = f"{c.kind} over {c.link}", f"{c.name} along {c.axis}, {exposed}"
        event = Event(start_s, duration_s, 0, "transfer", kind, label, 0, number, peer=1)
        events.append(event)
    return events


def _table(heading: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    lead = f'<p class="lead" style="padding: 12px 18px">{escape(heading)}</p>'
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<section aria-label="Report">{lead}{table}</section>'
