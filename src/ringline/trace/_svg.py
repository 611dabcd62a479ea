"""Timelines as one SVG picture, for documents."""

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from ringline.simulate import Event, Timeline
from ringline.trace._axis import ticks
from ringline.trace._format import counts_text, size_text, time_text
from ringline.trace._layout import Layout, as_layouts, kinds_of
from ringline.trace._palette import BACKGROUND, THEMES, Theme, name_of, paint

_LABEL = 64
_MARGIN = 16
_ROW = 26
_LINK = 5
_GAP = 6
_HEAD = 46
_FOOT = 34
_LEGEND = 28
_TEXT: dict[Theme, tuple[str, str, str, str]] = {  # ink, soft ink, lines, idle
    "light": ("#18202b", "#5b6675", "#d9dee6", "#f1f3f6"),
    "dark": ("#e8edf4", "#98a4b3", "#2b3340", "#1d232d"),
}


def svg(
    timelines: Sequence[Timeline] | Timeline,
    path: str | Path | None = None,
    *,
    width: int = 1000,
) -> str:
    """Draw timelines below each other on one time axis.

    A cell is a computation with its microbatch; a thin bar below a stage is a transfer it sends.
    The picture follows the reader's light or dark preference.

    Args:
        timelines: one, or several to compare.
        path: where to write; nowhere if None.
        width: of the picture, in pixels.

    Returns:
        The SVG text.

    Example:
        >>> from ringline import schedules
        >>> from ringline.simulate import simulate
        >>> step = simulate(schedules.linear(2, 2), forward_s=1.0, backward_s=2.0)
        >>> svg(step).startswith("<svg")
        True
    """
    layouts = as_layouts(timelines)
    longest_s = max(layout.timeline.makespan_s for layout in layouts) or 1.0
    scale = (width - _LABEL - 2 * _MARGIN) / longest_s
    body: list[str] = []
    top = float(_MARGIN)
    for layout in layouts:
        top = _draw(body, layout, top, scale, longest_s)
    _legend(body, layouts, top)
    height = top + _LEGEND
    text = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height:g}" '
        f'viewBox="0 0 {width} {height:g}" font-family="system-ui, sans-serif" role="img">\n'
        f"<style>{_style(layouts)}</style>\n"
        f'<rect class="page" width="100%" height="100%"/>\n' + "\n".join(body) + "\n</svg>\n"
    )
    if path is not None:
        Path(path).write_text(text)
    return text


def _draw(body: list[str], layout: Layout, top: float, scale: float, longest_s: float) -> float:
    """Append one timeline's elements; gives the y below it."""
    timeline = layout.timeline
    left = _MARGIN + _LABEL
    facts = f"{layout.caption} · {time_text(timeline.makespan_s)}"
    if not layout.stripes:
        facts = (
            f"{layout.caption} · step {time_text(timeline.makespan_s)} · bubble "
            f"{time_text(timeline.bubble_s)} ({timeline.bubble_rate:.1%}) · activations "
            f"{counts_text(timeline.peak_activations)}"
        )
    body.append(f'<text class="name" x="{_MARGIN}" y="{top + 14:g}">{escape(timeline.name)}</text>')
    body.append(f'<text class="soft" x="{_MARGIN}" y="{top + 31:g}">{escape(facts)}</text>')
    y = top + _HEAD
    for device, row in enumerate(layout.rows):
        end = left + scale * timeline.makespan_s
        what = "device" if layout.stripes or not row else "stage"
        body.append(f'<text class="label" x="{_MARGIN}" y="{y + 17:g}">{what} {device}</text>')
        if row:
            body.append(
                f'<rect class="idle" x="{left}" y="{y:g}" width="{end - left:.2f}" '
                f'height="{_ROW}" rx="3"/>'
            )
            body.extend(_cell(event, layout, left, y, scale) for event in row)
            y += _ROW
        for lane in layout.lanes[device]:
            body.extend(_bar(event, left, y + 1, scale) for event in lane)
            y += _LINK
        y += _GAP
    body.extend(_axis(left, y, scale, longest_s))
    return y + _FOOT


def _cell(event: Event, layout: Layout, left: float, y: float, scale: float) -> str:
    repeat = layout.repeat_of[event.index]
    x, width = left + event.start_s * scale, event.duration_s * scale
    number = str(event.part)
    gap = min(1.0, width / 4)
    text = ""
    narrow = width < 6.5 * len(number) + 2
    if width >= 5 * len(number) + 0.5:
        how, down = (' class="narrow"', 16.5) if narrow else ("", 17.5)
        text = f'<text{how} x="{x + width / 2:.2f}" y="{y + down:g}">{number}</text>'
    title = f"{event.label}: {name_of(event.kind)} of microbatch {event.part}, chunk {event.index}"
    return (
        f'<g class="{event.kind}{repeat}"><title>{escape(title)}, at {time_text(event.start_s)} '
        f'for {time_text(event.duration_s)}</title><rect x="{x:.2f}" y="{y:g}" '
        f'width="{max(width - gap, 0.2):.2f}" height="{_ROW}" rx="{min(3, width / 4):.2g}"/>'
        f"{text}</g>"
    )


def _bar(event: Event, left: float, y: float, scale: float) -> str:
    size = f", {size_text(event.bytes)}" if event.bytes else ""
    what = name_of(event.kind) if event.peer == event.device else f"to stage {event.peer}"
    title = f"{event.label} {what}, {time_text(event.duration_s)}{size}"
    return (
        f'<rect class="{event.kind}" x="{left + event.start_s * scale:.2f}" y="{y:g}" '
        f'width="{max(event.duration_s * scale, 0.2):.2f}" height="{_LINK - 1}">'
        f"<title>{escape(title)}</title></rect>"
    )


def _axis(left: float, y: float, scale: float, longest_s: float) -> Iterator[str]:
    for time_s in ticks(0.0, longest_s, 8):
        x = left + time_s * scale
        yield f'<path class="line" d="M{x:.2f} {y - 2:g}v5"/>'
        yield f'<text class="soft tick" x="{x:.2f}" y="{y + 16:g}">{time_text(time_s)}</text>'


def _legend(body: list[str], layouts: Sequence[Layout], top: float) -> None:
    computes, transfers, repeats = kinds_of(layouts)
    x = float(_MARGIN)
    entries = [(k, [f"{k}{repeat}" for repeat in range(repeats)], 1, 12) for k in computes]
    entries += [(k, [k], 5, _LINK - 1) for k in transfers]
    for kind, classes, down, height in entries:
        for name in classes:
            body.append(
                f'<rect class="{name}" x="{x:g}" y="{top + down:g}" width="12" '
                f'height="{height}" rx="2"/>'
            )
            x += 14
        words = name_of(kind)
        body.append(f'<text class="soft" x="{x + 3:g}" y="{top + 11:g}">{escape(words)}</text>')
        x += 6.4 * len(words) + 20


def _style(layouts: Sequence[Layout]) -> str:
    common = (
        ".name{font-size:15px;font-weight:650}.soft{font-size:12px}.label{font-size:12px}"
        "g text{font-size:11.5px;text-anchor:middle}g .narrow{font-size:8px}"
        ".tick{text-anchor:middle;font-size:11px}"
    )
    light, dark = (_theme(layouts, theme) for theme in THEMES)
    return f"{common}{light}@media(prefers-color-scheme:dark){{{dark}}}"


def _theme(layouts: Sequence[Layout], theme: Theme) -> str:
    ink, soft, line, idle = _TEXT[theme]
    rules = [
        f".page{{fill:{BACKGROUND[theme]}}}.name,.label{{fill:{ink}}}.soft{{fill:{soft}}}",
        f".line{{stroke:{line}}}.idle{{fill:{idle}}}",
    ]
    computes, transfers, repeats = kinds_of(layouts)
    rules += [f".{kind}{{fill:{paint(kind, 0, 1, theme).fill}}}" for kind in transfers]
    for kind in computes:
        for repeat in range(repeats):
            color = paint(kind, repeat, repeats, theme)
            name = f".{kind}{repeat}"
            rules.append(f"{name}{{fill:{color.fill}}}{name} text{{fill:{color.text}}}")
    return "".join(rules)
