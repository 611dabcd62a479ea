"""The text form and the terminal grid of a collective schedule."""

import re
from typing import TYPE_CHECKING, Any

from ringline.schedule._errors import ScheduleError
from ringline.topology._hosts import named

if TYPE_CHECKING:
    from ringline.schedule._collective import CollectiveSchedule
    from ringline.schedule._transfer import Transfer

_HEADER = re.compile(
    r"(?P<name>\S+) (?P<topology>\S+) devices=(?P<devices>\d+) directions=(?P<directions>\d+) "
    r"channels=(?P<channels>\d+) pieces=(?P<pieces>\d+)"
)
_TRANSFER = re.compile(
    r"(?P<source>\d+)(?P<arrow>[<>=])(?P<target>\d+) c(?P<channel>\d+) "
    r"(?P<kind>[sp])(?P<stripe>\d+)\[(?P<first>\d+):(?P<stop>\d+)\]"
)
_ARROWS = {1: ">", -1: "<", 0: "="}
_DIRECTIONS = {arrow: direction for direction, arrow in _ARROWS.items()}
_KINDS = {"s": "stripe", "p": "partial"}


def print_text(schedule: "CollectiveSchedule") -> str:
    """One header line, then one line per step."""
    lines = [
        f"{schedule.name} {schedule.topology.name} devices={schedule.devices} "
        f"directions={schedule.directions} channels={schedule.channels} pieces={schedule.pieces}"
    ]
    for step, transfers in enumerate(schedule.by_step()):
        sends = ", ".join(
            f"{t.source}{_ARROWS[t.direction]}{schedule.target(t)} c{t.channel} "
            f"{t.kind[0]}{t.stripe}[{t.first}:{t.stop}]"
            for t in transfers
        )
        lines.append(f"{step}: {sends}")
    return "\n".join(lines) + "\n"


def parse_text(text: str) -> tuple[dict[str, Any], list[tuple[Any, ...]]]:
    """The fields of the header, and the fields of every transfer in order."""
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1)]
    lines = [(number, line) for number, line in lines if line]
    head = _HEADER.fullmatch(lines[0][1]) if lines else None
    if head is None:
        raise ScheduleError(
            "line 1: expected 'all-gather ring devices=4 directions=2 channels=1 pieces=2', got "
            f"{lines[0][1] if lines else ''!r}"
        )
    try:
        where = named(head["topology"], int(head["devices"]))
    except ValueError as error:
        raise ScheduleError(f"line {lines[0][0]}: {error}") from None
    header = {
        "name": head["name"],
        "topology": where,
        **{key: int(head[key]) for key in ("directions", "channels", "pieces")},
    }
    rows = []
    for number, line in lines[1:]:
        step, colon, sends = line.partition(":")
        if not colon or not step.strip().isdigit():
            raise ScheduleError(f"line {number}: expected 'step: transfers', got {line!r}")
        for item in sends.split(",") if sends.strip() else ():
            rows.append(_parse_transfer(number, int(step), item.strip(), where))
    return header, rows


def _parse_transfer(number: int, step: int, item: str, where) -> tuple[Any, ...]:
    match = _TRANSFER.fullmatch(item)
    if match is None:
        raise ScheduleError(
            f"line {number}: expected a transfer like '2>3 c0 s1[0:2]', got {item!r}", step=step
        )
    source, target = int(match["source"]), int(match["target"])
    direction = _DIRECTIONS[match["arrow"]]
    if (
        direction not in where.moves
        or target == source
        or where.neighbour(source, direction) != target
    ):
        raise ScheduleError(
            f"line {number}: device {source} is not connected to device {target} by "
            f"{match['arrow']!r} on a {where.name} of {where.devices}; send to "
            "the neighbour only",
            device=source,
            step=step,
        )
    rest = (int(match[key]) for key in ("channel", "stripe", "first", "stop"))
    return (step, source, direction, *rest, _KINDS[match["kind"]])


def draw_grid(schedule: "CollectiveSchedule") -> str:
    """One row per device, one column per step, what the device sends in the cell."""
    steps = list(schedule.by_step())
    cells = [
        [
            " ".join(_cell(schedule, t) for t in transfers if t.source == device) or "."
            for transfers in steps
        ]
        for device in range(schedule.devices)
    ]
    widths = [max(len(row[step]) for row in cells) for step in range(len(steps))]
    label = len(f"device {schedule.devices - 1}")
    lines = [
        f"{f'device {device}':<{label}} | "
        + " ".join(f"{cell:<{width}}" for cell, width in zip(row, widths))
        for device, row in enumerate(cells)
    ]
    busiest = float(max(schedule.stripes_per_link().values(), default=0))
    head = (
        f"{schedule.name} on a {schedule.topology.name} of {schedule.devices}, "
        f"{_count(schedule.directions, 'direction')}, {_count(schedule.channels, 'channel')}: "
        f"{_count(len(steps), 'step')}, {_count(busiest, 'stripe')} on the busiest link"
    )
    return "\n".join(line.rstrip() for line in [head, *lines])


def _cell(schedule: "CollectiveSchedule", transfer: "Transfer") -> str:
    whole = transfer.stop - transfer.first == schedule.pieces
    pieces = "" if whole else f"[{transfer.first}:{transfer.stop}]"
    sums = "p" if transfer.kind == "partial" else ""
    return f"{_ARROWS[transfer.direction]}{sums}{transfer.stripe}{pieces}"


def _count(number: float, noun: str) -> str:
    return f"{number:g} {noun}" if number == 1 else f"{number:g} {noun}s"
