"""A kernel's steps as instructions: the stripes, semaphores and slots they work on, as numbers."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import numpy as np

from ringline.collectives._sections import STATIC, Rows, Section, sections_of
from ringline.collectives.kernels._plan import KernelPlan, Slabs, Step, What

# Shorter runs are written out, their numbers as constants; but the code of a matmul is large.
_MIN_REPEATS, _MIN_MATMULS = 8, 2


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Copy:
    """A lane as its steps see it: a remote copy, or what ends on this device.

    Attributes:
        place: the semaphore, and for sums the slot.
        first: of the pieces.
        stripe: what is sent, or summed.
        received: the stripe that is sent here.
        target: whom it is sent to.
        origin: who sends here.
        pieces: how many.
        remote: whether anything is sent.
        passes_on: whether it is what another lane brought.
    """

    place: Any
    first: Any
    stripe: Any
    received: Any
    target: Any
    origin: Any
    pieces: int = field(metadata=STATIC)
    remote: bool = field(metadata=STATIC)
    passes_on: bool = field(metadata=STATIC)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Addend:
    """Whether an arrival is added, its slot, and where in it the run's pieces begin."""

    present: Any
    place: Any
    at: Any


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Sum:
    """Pieces of a sum: their number, where they begin in the stripe and in the buffer."""

    first: Any
    at: Any
    addends: tuple[Addend, ...]
    pieces: int = field(metadata=STATIC)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Instruction:
    """A step: what the devices of `who` do with a copy, some sums, and arrivals to wait for."""

    who: Any
    copy: Copy
    sums: tuple[Sum, ...]
    awaited: tuple["Instruction", ...]
    what: What = field(metadata=STATIC)
    slabs: Slabs = field(metadata=STATIC)

    @property
    def in_one_slab(self) -> bool:
        """Whether it is done where there is one slab only, the first and the last."""
        return self.slabs in ("all", "first")


@dataclass(frozen=True, slots=True)
class Entry:
    """What a device does when a kernel begins.

    Attributes:
        sources: whether the first, second ... device that sends here exists, and which it is.
        targets: how many devices this one sends to.
    """

    sources: tuple[tuple[Any, Any], ...]
    targets: Any


def loops_of(instructions: Sequence[Instruction], rows: Rows) -> tuple[Section[Instruction], ...]:
    """The same in sections, whose numbers are put into `rows`."""
    least = [_MIN_MATMULS if one.what == "multiply" else _MIN_REPEATS for one in instructions]
    return sections_of(instructions, least, rows)


def instructions_of(plan: KernelPlan) -> list[Instruction]:
    """The steps of a plan, with what they work on."""
    return [_instruction(plan, step) for step in plan.steps]


def entry_of(plan: KernelPlan, rows: Rows) -> Entry:
    """How the devices of a plan begin."""
    partners = [plan.partners(device) for device in range(plan.devices)]
    most = max(len(sources) for sources, _ in partners)
    sources = [
        (
            rows.number([len(sources) > k for sources, _ in partners]),
            rows.number([sources[k] if len(sources) > k else 0 for sources, _ in partners]),
        )
        for k in range(most)
    ]
    return Entry(tuple(sources), rows.number([len(targets) for _, targets in partners]))


def copy_of(plan: KernelPlan, number: int) -> Copy:
    """The lane of that number; one past the last is this device's own stripe."""
    same = partial(np.full, plan.devices)
    if number == len(plan.lanes):
        here = np.arange(plan.devices)
        nobody = same(0)
        return Copy(same(number), nobody, here, here, nobody, nobody, plan.pieces, False, False)
    lane = plan.lanes[number]
    return Copy(
        place=same(lane.place),
        first=same(lane.first),
        stripe=np.array(lane.stripe),
        received=np.array(lane.received),
        target=_filled(lane.target),
        origin=_filled(lane.origin),
        pieces=lane.stop - lane.first,
        remote=any(lane.senders),
        passes_on=lane.source is not None,
    )


def _instruction(plan: KernelPlan, step: Step) -> Instruction:
    sums: tuple[Sum, ...] = ()
    if step.what == "add":
        sums = (_sum(plan, step.lane, step.run, (step.addend,)),)
    elif step.what == "multiply" and plan.sums:
        runs = plan.lanes[step.lane].runs
        most = max(len(run.addends) for run in runs)
        sums = tuple(
            _sum(plan, step.lane, number, range(len(run.addends)), most)
            for number, run in enumerate(runs)
        )
    who = np.array(step.who)
    return Instruction(who, copy_of(plan, step.lane), sums, (), step.what, step.slabs)


def _sum(
    plan: KernelPlan, number: int, run_number: int, addends: Sequence[int], most: int = 1
) -> Sum:
    """A run's sum; absent addends up to `most` make all runs of a lane one form."""
    same = partial(np.full, plan.devices)
    lane = plan.lanes[number]
    run = lane.runs[run_number]
    found = []
    for addend in (run.addends[index] for index in addends):
        arrival = plan.lanes[addend.arrival]
        present = same(True) if addend.present is None else np.array(addend.present)
        found.append(Addend(present, same(arrival.place), same(run.first - arrival.first)))
    found += [Addend(same(False), same(0), same(0))] * (most - len(found))
    return Sum(same(run.first), same(run.first - lane.first), tuple(found), run.stop - run.first)


def _filled(values: Sequence[int | None]) -> np.ndarray:
    """Devices, with 0 for none."""
    return np.array([value or 0 for value in values])
