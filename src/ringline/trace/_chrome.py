"""Timelines as Chrome trace events, which ui.perfetto.dev and chrome://tracing open."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ringline.simulate import Event, Timeline
from ringline.trace._layout import Layout, as_layouts
from ringline.trace._palette import name_of

_Thread = tuple[str, int]  # a track, and the number of its lane
_MOST_FLOWS = 10_000_000  # of one timeline


def chrome(timelines: Sequence[Timeline] | Timeline, path: str | Path | None = None) -> str:
    """Write timelines in Chrome's trace format.

    Each timeline is a process, each stage and each link a thread of it. Slices of a thread must
    not overlap, or a viewer drops them: a link on which several transfers are under way at once
    has a thread for each. Times are whole nanoseconds. Arrows (flows) lead from the computation
    that makes a value over the link to the computation that waits for it.

    Args:
        timelines: one, or several to look at together.
        path: where to write; nowhere if None.

    Returns:
        The JSON text.

    Example:
        >>> from ringline import schedules
        >>> from ringline.simulate import simulate
        >>> step = simulate(schedules.linear(2, 2), forward_s=1.0, backward_s=2.0)
        >>> json.loads(chrome(step))["traceEvents"][0]["name"]
        'process_name'

    References:
        Trace Event Format, Google, 2016.
    """
    events = [
        event
        for process, layout in enumerate(as_layouts(timelines), start=1)
        for event in _process(process, layout)
    ]
    text = json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, separators=(",", ":"))
    if path is not None:
        Path(path).write_text(text)
    return text


def _process(process: int, layout: Layout) -> Iterator[dict[str, Any]]:
    timeline = layout.timeline
    yield _name(process, 0, "process_name", f"{timeline.name} ({layout.caption})")
    lane_of = _lanes(layout)
    order = {track: place for place, track in enumerate(_tracks(layout))}
    used = sorted(set(lane_of.values()), key=lambda thread: (order[thread[0]], thread[1]))
    threads = {thread: number for number, thread in enumerate(used, start=1)}
    for (track, lane), thread in threads.items():
        yield _name(process, thread, "thread_name", track if lane == 0 else f"{track} ({lane + 1})")
        yield {
            "ph": "M",
            "pid": process,
            "tid": thread,
            "name": "thread_sort_index",
            "args": {"sort_index": thread},
        }
    thread_of = {index: threads[lane] for index, lane in lane_of.items()}
    for index, thread in thread_of.items():
        yield _complete(process, thread, timeline.events[index])
    yield from _flows(process, thread_of, layout)


def _tracks(layout: Layout) -> Iterator[str]:
    """Every stage that computes, and behind it its links."""
    for device, links in enumerate(layout.links):
        if layout.rows[device]:
            yield f"stage {device}"
        for peer, channel in links:
            yield _link(device, peer, channel)


def _lanes(layout: Layout) -> dict[int, _Thread]:
    """For each event that is drawn, its track and the first lane of it that is free by then."""
    drawn = set(_tracks(layout))
    busy_until: dict[str, list[int]] = {}
    found: dict[int, _Thread] = {}
    for index, event in enumerate(layout.timeline.events):
        track = _track(event)
        if track not in drawn or (event.peer is not None and not event.duration_s):
            continue
        lanes = busy_until.setdefault(track, [])
        start, end = _nanoseconds(event.start_s), _nanoseconds(event.end_s)
        lane = next((n for n, until in enumerate(lanes) if until <= start), len(lanes))
        lanes[lane : lane + 1] = [end]
        found[index] = (track, lane)
    return found


def _track(event: Event) -> str:
    if event.peer is None or event.peer == event.device:
        return event.track
    return _link(event.device, event.peer, event.channel)


def _link(device: int, peer: int, channel: int) -> str:
    if peer == device:
        return f"chips of stage {device}"
    return f"link {device} > {peer}, channel {channel}"


def _nanoseconds(time_s: float) -> int:
    return round(time_s * 1e9)


def _name(process: int, thread: int, what: str, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": process, "tid": thread, "name": what, "args": {"name": name}}


def _complete(process: int, thread: int, event: Event) -> dict[str, Any]:
    what = "chunk" if event.queue == "compute" else "index"
    arguments: dict[str, Any] = {what: event.index, "microbatch": event.part}
    if event.bytes:
        arguments["bytes"] = event.bytes
    if event.wait_s > 0:
        arguments |= {"waited_us": _nanoseconds(event.wait_s) / 1e3, "waited_for": event.wait}
    start, end = _nanoseconds(event.start_s), _nanoseconds(event.end_s)
    return {
        "ph": "X",
        "pid": process,
        "tid": thread,
        "ts": start / 1e3,
        "dur": (end - start) / 1e3,
        "name": event.label,
        "cat": name_of(event.kind),
        "args": arguments,
    }


def _flows(process: int, thread_of: dict[int, int], layout: Layout) -> Iterator[dict[str, Any]]:
    """Start, step and finish of the arrow along each transfer that has all three."""
    events = layout.timeline.events
    for number, (made, sent, read) in enumerate(layout.flows):
        if made is None or read is None:
            continue
        if not events[made].duration_s or not events[read].duration_s:
            continue
        # An end no longer belongs to its slice; what goes on before all of it has come starts
        # the arrow when it goes on.
        last = max(_nanoseconds(events[made].start_s), _nanoseconds(events[made].end_s) - 1)
        start = min(last, _nanoseconds(events[sent].start_s))
        for phase, index in (("s", made), ("t", sent), ("f", read)):
            if index not in thread_of or not events[index].duration_s:
                continue
            time = start if phase == "s" else _nanoseconds(events[index].start_s)
            yield {
                "ph": phase,
                "pid": process,
                "tid": thread_of[index],
                # A whole number: ui.perfetto.dev drops arrows with other identities.
                "id": process * _MOST_FLOWS + number,
                "ts": time / 1e3,
                "name": name_of(events[sent].kind),
                "cat": "transfer",
                **({"bp": "e"} if phase == "f" else {}),
            }
