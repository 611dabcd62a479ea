"""The text form and the terminal grid of a collective schedule."""

import re
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from ringline.schedule._errors import ScheduleError
from ringline.schedule._transfer import Transfer
from ringline.topology._hosts import Topology, named

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
_KINDS: dict[str, Literal["stripe", "partial"]] = {"s": "stripe", "p": "partial"}


class Header(NamedTuple):
    """What a collective schedule has beside its transfers."""

    name: str
    topology: Topology
    directions: int
    channels: int
    pieces: int


def print_text(header: Header, steps: Iterable[Iterable[tuple[Transfer, int]]]) -> str:
    """One header line, then one line per step with each transfer and its target."""
    lines = [
        f"{header.name} {header.topology.name} devices={header.topology.devices} "
        f"directions={header.directions} channels={header.channels} pieces={header.pieces}"
    ]
    for step, sends in enumerate(steps):
        cells = ", ".join(
            f"{t.source}{_ARROWS[t.direction]}{target} c{t.channel} "
            f"{t.kind[0]}{t.stripe}[{t.first}:{t.stop}]"
            for t, target in sends
        )
        lines.append(f"{step}: {cells}")
    return "\n".join(lines) + "\n"


def parse_text(text: str) -> tuple[Header, list[Transfer]]:
    """The header, and every transfer in order."""
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
    counts = (int(head[key]) for key in ("directions", "channels", "pieces"))
    transfers = []
    for number, line in lines[1:]:
        step, colon, sends = line.partition(":")
        if not colon or not step.strip().isdigit():
            raise ScheduleError(f"line {number}: expected 'step: transfers', got {line!r}")
        for item in sends.split(",") if sends.strip() else ():
            transfers.append(_parse_transfer(number, int(step), item.strip(), where))
    return Header(head["name"], where, *counts), transfers


def _parse_transfer(number: int, step: int, item: str, where: Topology) -> Transfer:
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
    return Transfer(step, source, direction, *rest, kind=_KINDS[match["kind"]])


def draw_grid(header: Header, steps: Sequence[Sequence[Transfer]], busiest: float) -> str:
    """One row per device, one column per step, what the device sends in the cell.

    `busiest` is how many stripes the busiest link carries.
    """
    devices = header.topology.devices
    cells = [
        [
            " ".join(_cell(t, header.pieces) for t in transfers if t.source == device) or "."
            for transfers in steps
        ]
        for device in range(devices)
    ]
    widths = [max(len(row[step]) for row in cells) for step in range(len(steps))]
    label = len(f"device {devices - 1}")
    lines = [
        f"{f'device {device}':<{label}} | "
        + " ".join(f"{cell:<{width}}" for cell, width in zip(row, widths))
        for device, row in enumerate(cells)
    ]
    head = (
        f"{header.name} on a {header.topology.name} of {devices}, "
        f"{_count(header.directions, 'direction')}, {_count(header.channels, 'channel')}: "
        f"{_count(len(steps), 'step')}, {_count(busiest, 'stripe')} on the busiest link"
    )
    return "\n".join(line.rstrip() for line in [head, *lines])


def _cell(transfer: Transfer, pieces_of_stripe: int) -> str:
    whole = transfer.stop - transfer.first == pieces_of_stripe
    pieces = "" if whole else f"[{transfer.first}:{transfer.stop}]"
    sums = "p" if transfer.kind == "partial" else ""
    return f"{_ARROWS[transfer.direction]}{sums}{transfer.stripe}{pieces}"


def _count(number: float, noun: str) -> str:
    return f"{number:g} {noun}" if number == 1 else f"{number:g} {noun}s"
