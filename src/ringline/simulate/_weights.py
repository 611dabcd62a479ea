"""Gathers of weights and reductions of gradients over the chips of a stage, in its program."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from ringline.schedule import Compute, Instruction, Program, Value

GatherEvery = Literal["step", "use"]


@dataclass(frozen=True, slots=True)
class GroupCollective(Compute):
    """Communication among the chips that share a stage: `GATHER` or `REDUCE` of one chunk."""

    @property
    def queue(self) -> tuple[str, int, int]:
        """Those of a stage run one after the other, beside its computations."""
        return ("group", -1, 0)


def with_weights(program: Program, *, gather: GatherEvery | None, reduce: bool) -> Program:
    """`program` with the gathers and reductions that sharded weights need.

    Args:
        program: of a pipeline.
        gather: `step`: a chunk's weights are gathered once, before its first operation; `use`:
            for each forward and each backward (of I and W for I alone), one ahead of the
            computation, into one of two buffers; None for no gathers.
        reduce: whether a chunk's gradients are reduced behind its last backward.

    Returns:
        The program with more instructions, and more values that computations read and write.
    """
    rows = program.rows
    if gather is not None:
        rows = tuple(tuple(_gathered(row, gather)) for row in rows)
    if reduce:
        rows = tuple(tuple(_reduced(row)) for row in rows)
    return replace(program, rows=rows)


def _gathered(row: tuple[Instruction, ...], every: GatherEvery) -> Iterator[Instruction]:
    have: set[int] = set()
    # A gather writes over the weights of the use before the last, so it waits for that to end.
    freed: deque[tuple[Value, ...]] = deque([(), ()])
    for number, step in enumerate(row):
        if not isinstance(step, Compute) or (every == "use" and step.op == "W"):
            yield step
            continue
        if every == "step":
            weights = Value("weights", step.index, 0)
            if step.index not in have:
                have.add(step.index)
                yield GroupCollective("GATHER", step.index, 0, (), (weights,))
            yield replace(step, reads=(*step.reads, weights))
            continue
        weights, done = Value("weights", step.index, number), Value("freed", step.index, number)
        yield GroupCollective("GATHER", step.index, step.part, freed.popleft(), (weights,))
        freed.append((done,))
        yield replace(step, reads=(*step.reads, weights), writes=(*step.writes, done))


def _reduced(row: tuple[Instruction, ...]) -> Iterator[Instruction]:
    last = {
        step.index: number
        for number, step in enumerate(row)
        if isinstance(step, Compute) and step.op in ("B", "W")
    }
    for number, step in enumerate(row):
        if not isinstance(step, Compute) or last.get(step.index) != number:
            yield step
            continue
        gradients = Value("gradients", step.index, 0)
        yield replace(step, writes=(*step.writes, gradients))
        yield GroupCollective("REDUCE", step.index, 0, (gradients,), ())
