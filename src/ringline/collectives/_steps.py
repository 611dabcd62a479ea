"""The permutes of a plan as steps: what travels at once, and what is done while it does.

Steps count arrivals backwards, 1 for the last that came before, and hold only as many as are
still used. So the steps of a ring are alike, and over many devices become a loop.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import pairwise, takewhile
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ringline.collectives._bits import platform
from ringline.collectives._plan import Permute, plan_permutes
from ringline.collectives._sections import STATIC, Number, Rows, Section, read, sections_of
from ringline.collectives._sum_plan import Run, Sum, plan_sums
from ringline.schedule import CollectiveSchedule

# Fewer steps are written out: they compile fast, and the compiler may move what is between them.
# On emulated devices all are: they too compile fast, and loops there copy and convert more.
_MIN_REPEATS = 16
# Two at a time: what comes in one turn and goes on in the next is not copied.
_UNROLL = 2

AxisName = str | tuple[str, ...]
_Pieces = tuple[int, int]

T = TypeVar("T")
State = TypeVar("State")
Value = Callable[[Any], Any]
"""From a step's number, one of its leaves, to that of this device."""


class Steps(NamedTuple, Generic[T]):
    """Sections of steps, and what they need.

    Attributes:
        sections: the steps; `held` of a step only makes those differ that hold other shapes.
        table: of their numbers, `[devices, numbers]`.
        held: how many arrivals a step holds.
        shares_terms: of a reduction, whether some terms are part of two payloads.
    """

    sections: tuple[Section[T], ...]
    table: np.ndarray
    held: int
    shares_terms: bool = False

    def run(
        self,
        step: Callable[[T, State, Value], State],
        state: State,
        axis_name: AxisName,
    ) -> State:
        """Do all steps, each of which makes a state of the one before; inside `jax.shard_map`."""
        here = lax.axis_index(axis_name)

        def once(instructions: Sequence[T], state: State, value: Value) -> State:
            for one in instructions:
                state = step(one, state, value)
            return state

        def constant(number: Any) -> Any:
            # Each from a column of its own: from one row they compile for several times as long.
            if not isinstance(number, Number):
                return number
            return jnp.asarray(self.table[:, number.start])[here]

        for instructions, repeats in self.sections:
            if repeats == 1:
                state = once(instructions, state, constant)
                continue
            row = jnp.asarray(self.table)[here]

            def turn(repeat: Array, state: State, instructions=instructions, row=row) -> State:
                return once(instructions, state, partial(read, row, repeat=repeat))

            state = lax.fori_loop(0, repeats, turn, state, unroll=_UNROLL)
        return state


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Place:
    """Where a device writes one of some arrivals.

    Attributes:
        which: of `arrivals`.
        number: of the stripe, among those that the device gathers.
        arrivals: of which it has one.
        first: the stripe's piece from which on it is written.
    """

    which: Any
    number: Any
    arrivals: tuple[int, ...] = field(metadata=STATIC)
    first: int = field(metadata=STATIC)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class GatherStep:
    """What a gather sends, what it puts in place meanwhile, and the pieces of what it holds."""

    places: tuple[Place, ...]
    permutes: tuple[Permute, ...] = field(metadata=STATIC)
    held: tuple[_Pieces, ...] = field(metadata=STATIC)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Term:
    """A device's own term of some pieces of a stripe."""

    stripe: Any
    first: int = field(metadata=STATIC)
    stop: int = field(metadata=STATIC)


class Payload(NamedTuple):
    """A sum, run by run, that is sent; with no pairs it is the result."""

    pairs: tuple[tuple[int, int], ...]
    runs: tuple[Run, ...]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SumStep:
    """The sums that a reduction sends, and for each run of the next ones the own term.

    Attributes:
        terms: those of the next step, payload by payload.
        payloads: made of the terms of the step before.
        held: the pieces of the arrivals that it holds.
    """

    terms: tuple[tuple[Term, ...], ...]
    payloads: tuple[Payload, ...] = field(metadata=STATIC)
    held: tuple[_Pieces, ...] = field(metadata=STATIC)


def gather_steps(schedule: CollectiveSchedule) -> Steps[GatherStep]:
    """The steps of a gather; the last only puts in place."""
    return _gather_steps(schedule, _least_repeats())


def sum_steps(schedule: CollectiveSchedule) -> Steps[SumStep]:
    """The steps of a reduction: the first makes terms, the last makes the result."""
    return _sum_steps(schedule, _least_repeats())


def _least_repeats() -> int | None:
    return None if platform() == "cpu" else _MIN_REPEATS


@lru_cache(maxsize=256)
def _gather_steps(schedule: CollectiveSchedule, least: int | None) -> Steps[GatherStep]:
    plan = plan_permutes(schedule)
    waiting = list(plan.placements())
    came, steps = 1, []
    for numbers in (*plan.steps, ()):
        # What is complete; on a line most of it waits for what the other side brings.
        landed = list(takewhile(lambda p: max(p.arrivals) < came, waiting))  # noqa: B023
        del waiting[: len(landed)]
        places = tuple(
            Place(
                np.array(placement.which),
                np.array(placement.numbers),
                tuple(came - arrival for arrival in placement.arrivals),
                placement.first,
            )
            for placement in landed
        )
        permutes = [plan.permutes[number] for number in numbers]
        sends = tuple(sent._replace(arrival=came - sent.arrival) for sent in permutes)
        steps.append((came, places, sends))
        came += len(numbers)
    assert not waiting
    used = [0]
    for _, places, sends in steps:
        used += [arrival for place in places for arrival in place.arrivals]
        used += [sent.arrival for sent in sends]
    held = max(used)
    made = [
        GatherStep(places, sends, _held(plan.arrivals[:came], held))
        for came, places, sends in steps
    ]
    return _in_sections(made, schedule.devices, held, least)


@lru_cache(maxsize=256)
def _sum_steps(schedule: CollectiveSchedule, least: int | None) -> Steps[SumStep]:
    plan = plan_sums(schedule)
    sums, pairs = (*plan.sums, plan.result), (*plan.pairs, ())
    came, used, steps = 0, [0], []
    for here, after in pairwise(((), *plan.steps, (len(plan.sums),), ())):
        payloads = tuple(Payload(pairs[number], _runs(sums[number], came)) for number in here)
        used += [a.arrival for payload in payloads for run in payload.runs for a in run.addends]
        steps.append((payloads, _terms([sums[number] for number in after]), came))
        came += len(here)
    held = max(used)
    made = [
        SumStep(terms, payloads, _held(plan.arrivals[:came], held))
        for payloads, terms, came in steps
    ]
    # A term that several steps share cannot stay over a loop's turns.
    found = _in_sections(made, schedule.devices, held, None if plan.shares_terms else least)
    return found._replace(shares_terms=plan.shares_terms)


def _terms(sums: Sequence[Sum]) -> tuple[tuple[Term, ...], ...]:
    return tuple(
        tuple(Term(np.array(total.stripes), run.first, run.stop) for run in total.runs)
        for total in sums
    )


def _runs(total: Sum, came: int) -> tuple[Run, ...]:
    return tuple(
        run._replace(
            addends=tuple(a._replace(arrival=came - a.arrival) for a in run.addends),
        )
        for run in total.runs
    )


def _held(came: Sequence[Any], held: int) -> tuple[_Pieces, ...]:
    return tuple((arrival.first, arrival.stop) for arrival in came[max(0, len(came) - held) :])


def _in_sections(steps: Sequence[T], devices: int, held: int, least: int | None) -> Steps[T]:
    rows = Rows(devices)
    sections = sections_of(steps, [least or len(steps) + 1] * len(steps), rows)
    return Steps(sections, rows.table(), held)
