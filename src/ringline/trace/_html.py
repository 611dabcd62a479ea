"""Timelines as one HTML page that holds all it needs and opens from a file."""

import json
from collections.abc import Sequence
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from ringline.simulate import Timeline
from ringline.trace._format import counts_text, time_text
from ringline.trace._layout import Layout, as_layouts, kinds_of
from ringline.trace._palette import THEMES, name_of, paint

_SCRIPTS = ("model.js", "draw.js", "main.js")


def html(
    timelines: Sequence[Timeline] | Timeline,
    path: str | Path | None = None,
    *,
    title: str = "Timeline of a step",
) -> str:
    """Write timelines as one page to look around in.

    The page asks the network for nothing. It zooms by wheel, pinch and keys, names the event
    under the pointer or the keyboard's focus (microbatch, chunk, times, size, what it waited
    for), and follows the reader's light or dark preference.

    Args:
        timelines: one, or several to compare on one time axis.
        path: where to write; nowhere if None.
        title: of the page.

    Returns:
        The page's text.

    Example:
        >>> from ringline import schedules
        >>> from ringline.simulate import simulate
        >>> step = simulate(schedules.linear(2, 2), forward_s=1.0, backward_s=2.0)
        >>> "http://" in html(step)
        False
    """
    layouts = as_layouts(timelines)
    page = Template(_resource("page.html")).substitute(
        title=escape(title),
        lead=escape(_lead(layouts)),
        follows=_follows(layouts),
        style=_resource("page.css"),
        summary=_summary(layouts),
        data=_json(_data(layouts)),
        script="\n".join(_resource(name) for name in _SCRIPTS),
    )
    if path is not None:
        Path(path).write_text(page, encoding="utf-8")
    return page


@cache
def _resource(name: str) -> str:
    return (files("ringline.trace") / "page" / name).read_text(encoding="utf-8")


def _json(value: dict[str, Any]) -> str:
    """JSON that cannot end the script element it stands in."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


def _lead(layouts: Sequence[Layout]) -> str:
    events = sum(len(layout.timeline.events) for layout in layouts)
    if len(layouts) == 1:
        return f"{layouts[0].timeline.name}, {layouts[0].caption}; {events:,} events"
    what = "loops" if all(layout.instructions for layout in layouts) else "schedules"
    return f"{len(layouts)} {what} on one time axis; {events:,} events"


def _follows(layouts: Sequence[Layout]) -> str:
    """What stays bright with the event that is picked."""
    if all(layout.instructions for layout in layouts):
        return "an instruction"
    return "a stripe" if all(layout.stripes for layout in layouts) else "a microbatch"


def _data(layouts: Sequence[Layout]) -> dict[str, Any]:
    computes, transfers, repeats = kinds_of(layouts)
    return {
        "names": {kind: name_of(kind) for kind in (*computes, *transfers)},
        "legend": {"computes": computes, "transfers": transfers},
        "palette": {
            theme: {
                kind: [
                    {"fill": p.fill, "edge": p.edge, "text": p.text}
                    for repeat in range(shades)
                    for p in (paint(kind, repeat, shades, theme),)
                ]
                for kinds, shades in ((computes, repeats), (transfers, 1))
                for kind in kinds
            }
            for theme in THEMES
        },
        "timelines": [_timeline(layout) for layout in layouts],
    }


def _timeline(layout: Layout) -> dict[str, Any]:
    timeline = layout.timeline
    events = timeline.events
    kinds = sorted({e.kind for e in events})
    reasons = sorted({e.wait for e in events})
    at = {id(event): i for i, event in enumerate(events)}
    kind_at = {kind: i for i, kind in enumerate(kinds)}
    reason_at = {reason: i for i, reason in enumerate(reasons)}
    return {
        "name": timeline.name,
        "caption": layout.caption,
        "devices": timeline.devices,
        "stripes": layout.stripes,
        "instructions": layout.instructions,
        "repeats": layout.repeats,
        "makespan": timeline.makespan_s,
        "lanes": [[[at[id(e)] for e in lane] for lane in lanes] for lanes in layout.lanes],
        "kinds": kinds,
        "reasons": reasons,
        "flows": [[-1 if i is None else i for i in flow] for flow in layout.flows],
        "events": {
            "start": [_short(e.start_s) for e in events],
            "duration": [_short(e.duration_s) for e in events],
            "device": [e.device for e in events],
            "peer": [-1 if e.peer is None else e.peer for e in events],
            "channel": [e.channel for e in events],
            "kind": [kind_at[e.kind] for e in events],
            "label": [e.label for e in events],
            "index": [e.index for e in events],
            "part": [e.part for e in events],
            "repeat": [layout.repeat_of.get(e.index, 0) for e in events],
            "bytes": [e.bytes for e in events],
            "wait": [_short(e.wait_s) for e in events],
            "reason": [reason_at[e.wait] for e in events],
        },
    }


def _short(seconds: float) -> float:
    """Ten digits are more than a screen shows, and half the file."""
    return float(f"{seconds:.10g}")


_EXPOSED = "on a link, not computing"
_NOTES = {
    "Schedule": "",
    "Step": "work and bubble",
    "Bubble": "of the longest stage",
    "Whole-step bubble": "if all stages end together",
    "Exposed transfer": _EXPOSED,
    "Peak activations": "chunks a stage holds",
}


def _summary(layouts: Sequence[Layout]) -> str:
    """The table of numbers, for readers without scripts too."""
    notes = _NOTES
    if all(layout.stripes for layout in layouts):
        notes = {"Collective": "", "Time": "until the last packet has arrived"}
    if all(layout.instructions for layout in layouts):
        notes = {"Loop": "", "Trip": "computing and not", "Exposed transfer": _EXPOSED}
    head = "".join(
        f'<th scope="col">{name}<small>{note}</small></th>' for name, note in notes.items()
    )
    longest_s = max(layout.timeline.makespan_s for layout in layouts) or 1.0
    body = "".join(_summary_row(layout, layouts[0].timeline, longest_s) for layout in layouts)
    return f'<table class="summary"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _summary_row(layout: Layout, first: Timeline, longest_s: float) -> str:
    timeline = layout.timeline
    work = timeline.makespan_s - timeline.makespan_bubble_s
    shares = (work / longest_s, timeline.makespan_bubble_s / longest_s)
    bars = "".join(f'<i style="width:{100 * share:.2f}%"></i>' for share in shares)
    # Trips of two loops are no two ways of doing the same.
    step = "" if layout.instructions else _difference(timeline, first)
    if not layout.stripes:
        step += f'<span class="share" aria-hidden="true">{bars}</span>'
    name = "Trip" if layout.instructions else "Time" if layout.stripes else "Step"
    cells = [(name, time_text(timeline.makespan_s), step)]
    exposed = ("Exposed transfer", time_text(timeline.exposed_transfer_s), "")
    if layout.instructions:
        cells.append(exposed)
    elif not layout.stripes:
        cells += [
            ("Bubble", time_text(timeline.bubble_s), _rate(timeline.bubble_rate)),
            (
                "Whole-step bubble",
                time_text(timeline.makespan_bubble_s),
                _rate(timeline.makespan_bubble_rate),
            ),
            exposed,
            ("Peak activations", counts_text(timeline.peak_activations), ""),
        ]
    body = "".join(
        f'<td data-name="{name}"><b>{value}</b> {more}</td>' for name, value, more in cells
    )
    name = f"{escape(timeline.name)}<small>{layout.caption}</small>"
    return f'<tr><th scope="row">{name}</th>{body}</tr>'


def _rate(rate: float) -> str:
    return f'<span class="rate">{rate:.1%}</span>'


def _difference(timeline: Timeline, first: Timeline) -> str:
    """How much longer or shorter the step is than that of the first timeline."""
    if timeline is first or not first.makespan_s:
        return ""
    change = timeline.makespan_s / first.makespan_s - 1
    kind = "better" if change < -5e-4 else "rate"
    sign = "−" if change < 0 else "+"
    return f'<span class="{kind}">{sign}{abs(change):.1%}</span>'
