"""Timelines as Chrome trace events, which ui.perfetto.dev and chrome://tracing open."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ringline.simulate import Event, Timeline
from ringline.trace._layout import Layout, as_layouts
from ringline.trace._palette import name_of

_MICROSECONDS = 1e6


def chrome(timelines: Sequence[Timeline] | Timeline, path: str | Path | None = None) -> str:
    """Write timelines in Chrome's trace format.

    Each timeline is a process, each stage and each link a thread of it. Arrows (flows) lead from
    the computation that makes a value over the link to the computation that waits for it.

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
    threads: dict[str, int] = {}
    for device, links in enumerate(layout.links):
        if layout.rows[device]:
            threads[f"stage {device}"] = len(threads) + 1
        for peer, channel in links:
            threads[_link(device, peer, channel)] = len(threads) + 1
    for track, thread in threads.items():
        yield _name(process, thread, "thread_name", track)
        yield {
            "ph": "M",
            "pid": process,
            "tid": thread,
            "name": "thread_sort_index",
            "args": {"sort_index": thread},
        }
    for event in timeline.events:
        thread = threads.get(_track(event))
        if thread is not None:
            yield _complete(process, thread, event)
    yield from _flows(process, threads, layout)


def _track(event: Event) -> str:
    if event.peer is None:
        return event.track
    return _link(event.device, event.peer, event.channel)


def _link(device: int, peer: int, channel: int) -> str:
    return f"link {device} > {peer}, channel {channel}"


def _name(process: int, thread: int, what: str, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": process, "tid": thread, "name": what, "args": {"name": name}}


def _complete(process: int, thread: int, event: Event) -> dict[str, Any]:
    what = "chunk" if event.queue == "compute" else "index"
    arguments: dict[str, Any] = {what: event.index, "microbatch": event.part}
    if event.bytes:
        arguments["bytes"] = event.bytes
    if event.wait_s > 0:
        arguments |= {"waited_us": event.wait_s * _MICROSECONDS, "waited_for": event.wait}
    return {
        "ph": "X",
        "pid": process,
        "tid": thread,
        "ts": event.start_s * _MICROSECONDS,
        "dur": event.duration_s * _MICROSECONDS,
        "name": event.label,
        "cat": name_of(event.kind),
        "args": arguments,
    }


def _flows(process: int, threads: dict[str, int], layout: Layout) -> Iterator[dict[str, Any]]:
    """Start, step and finish of the arrow along each transfer."""
    for number, flow in enumerate(layout.flows):
        made, sent, read = (None if i is None else layout.timeline.events[i] for i in flow)
        if made is None or sent is None or read is None:
            continue
        inside_s = made.end_s - 1e-3 * made.duration_s  # an end no longer belongs to its slice
        places = (("s", made, inside_s), ("t", sent, sent.start_s), ("f", read, read.start_s))
        for phase, event, time_s in places:
            if (thread := threads.get(_track(event))) is None:
                continue
            yield {
                "ph": phase,
                "pid": process,
                "tid": thread,
                "id": f"{process}.{number}",
                "ts": time_s * _MICROSECONDS,
                "name": name_of(sent.kind),
                "cat": "transfer",
                **({"bp": "e"} if phase == "f" else {}),
            }
