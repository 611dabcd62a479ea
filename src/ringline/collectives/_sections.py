"""Steps of one program for all devices, with repeats found.

A schedule over many devices repeats itself: the same steps, with other stripes. *Instructions* are
steps whose numbers stand in the leaves of a tree, one number for each device; two of them have the
same form where their trees are the same but for the leaves. A run of steps whose forms repeat
becomes one *section*, that is compiled once, as a loop.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import numpy as np

_MAX_PERIOD = 64

STATIC = {"static": True}
"""Metadata of a field that is part of an instruction's form, and no number."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Number:
    """Where in a device's row a number is found; one place further on in each repeat if it varies.

    Attributes:
        start: the place of the first.
        varies: from repeat to repeat.
    """

    start: int
    varies: bool


class Section(NamedTuple, Generic[T]):
    """Instructions whose leaves are `Number`s, or plain ones where all devices have the same."""

    instructions: tuple[T, ...]
    repeats: int


class Rows:
    """Numbers that differ from device to device or from repeat to repeat, a row for each device.

    All devices run one program; each reads its own row.
    """

    def __init__(self, devices: int):
        self._columns: list[np.ndarray] = [np.zeros(devices, np.int32)]
        self._starts: dict[bytes, int] = {}

    def number(self, *repeats: Any) -> Any:
        """The place of a number, given for each repeat by device; itself where it is a constant."""
        found = np.array(repeats, np.int32)
        if (found == found.flat[0]).all():
            return int(found.flat[0])
        varies = not (found == found[0]).all()
        found = found if varies else found[:1]
        start = self._starts.setdefault(found.tobytes(), len(self._columns))
        if start == len(self._columns):
            self._columns += list(found)
        return Number(start, varies)

    def table(self) -> np.ndarray:
        """`[devices, numbers]`."""
        return np.stack(self._columns, 1)


def read(row: Any, number: Any, repeat: Any) -> Any:
    """A number of the device whose row it is."""
    if not isinstance(number, Number):
        return number
    return row[number.start + (repeat if number.varies else 0)]


def sections_of(
    instructions: Sequence[T], least: Sequence[int], rows: Rows
) -> tuple[Section[T], ...]:
    """The same in sections, whose numbers are put into `rows`.

    Args:
        instructions: registered dataclasses.
        least: for each, how often it must come before a loop is worth it.
        rows: where the numbers go.
    """
    known: dict[Any, int] = {}
    forms = [known.setdefault(jax.tree.structure(one), len(known)) for one in instructions]
    sections, start = [], 0
    for period, repeats in find_repeats(forms, least):
        stop = start + period * repeats
        turns = [instructions[at : at + period] for at in range(start, stop, period)]
        body = tuple(jax.tree.map(rows.number, *same) for same in zip(*turns))
        sections.append(Section(body, repeats))
        start = stop
    return tuple(sections)


def find_repeats(forms: Sequence[int], least: Sequence[int]) -> list[tuple[int, int]]:
    """Cut a sequence into runs of `period` forms that come `repeats` times, as long as can be."""
    count = len(forms)
    # alike[p][i]: from i on, how many forms are those p places later.
    alike = {}
    for period in range(1, min(_MAX_PERIOD, count) + 1):
        run = [0] * (count + 1)
        for at in range(count - period - 1, -1, -1):
            run[at] = run[at + 1] + 1 if forms[at] == forms[at + period] else 0
        alike[period] = run
    found, at, single = [], 0, 0
    while at < count:
        choices = [(run[at] // period + 1, period) for period, run in alike.items()]
        long = [
            (repeats * period, -period, repeats)
            for repeats, period in choices
            if repeats >= min(least[at : at + period])
        ]
        if not long:
            at, single = at + 1, single + 1
            continue
        if single:
            found.append((single, 1))
            single = 0
        length, negative, repeats = max(long)
        found.append((-negative, repeats))
        at += length
    return [*found, (single, 1)] if single else found
