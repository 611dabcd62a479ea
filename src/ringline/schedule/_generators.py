"""What the generators share: checks of counts, placement, the order of units, dropping padding."""

from collections.abc import Iterable
from itertools import pairwise

from ringline.schedule._actions import Action

Layers = int | tuple[int, ...] | None


def require_counts(name: str, **counts: int) -> None:
    """Raise ValueError unless every count is a whole number of at least 1."""
    for what, count in counts.items():
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise ValueError(f"{name}: {what} must be a whole number of at least 1, got {count!r}")


def require_repeats(name: str, repeats: int, wanted: int, instead: str) -> None:
    """Raise ValueError unless `repeats` is the only number that this order is made for."""
    if repeats != wanted:
        raise ValueError(
            f"{name}: repeats must be {wanted}, got {repeats!r}; use {instead} for other numbers"
        )


def looped(stages: int, repeats: int) -> tuple[int, ...]:
    """The looped placement: chunk c on stage c mod p (a ring when v > 1)."""
    return tuple(chunk % stages for chunk in range(stages * repeats))


def v_placement(stages: int) -> tuple[int, ...]:
    """The V placement: chunk c on stage c, and on 2p - 1 - c from p on."""
    return (*range(stages), *reversed(range(stages)))


def v_chunks(stage: int, stages: int) -> tuple[int, int]:
    """The chunks that a stage holds in the V placement: on the arm down, on the arm up."""
    return stage, 2 * stages - 1 - stage


def groups(microbatches: int, stages: int) -> list[range]:
    """The microbatches cut into runs of at least `stages` each, as even as they come.

    A stage takes one run through a chunk before it turns to its next chunk. A run as long as
    the pipeline comes back to the first stage just when that is done with it; a shorter one
    would make it wait. With fewer microbatches than stages there is one run.
    """
    count = max(1, microbatches // stages)
    base, extra = divmod(microbatches, count)
    starts = [run * base + min(run, extra) for run in range(count + 1)]
    return [range(start, end) for start, end in pairwise(starts)]


def units(
    stage: int, stages: int, microbatches: int, repeats: int, *, backward: bool
) -> list[tuple[int, int]]:
    """The (chunk, microbatch) of a stage in depth-first order, which is the same for all stages.

    Runs of microbatches in order; in a run every chunk in turn, the last one first for the
    backward.
    """
    rounds = range(repeats - 1, -1, -1) if backward else range(repeats)
    return [
        (repeat * stages + stage, microbatch)
        for run in groups(microbatches, stages)
        for repeat in rounds
        for microbatch in run
    ]


def without_padding(
    rows: Iterable[Iterable[tuple[Action, ...]]], microbatches: int
) -> list[list[tuple[Action, ...]]]:
    """Rows of cells made for more microbatches, cut down.

    Microbatches wait for each other only through the order of a row, so leaving some out of
    every row keeps a legal order legal.
    """
    kept = [
        [tuple(action for action in cell if action.microbatch < microbatches) for cell in row]
        for row in rows
    ]
    return [[cell for cell in row if cell] for row in kept]
