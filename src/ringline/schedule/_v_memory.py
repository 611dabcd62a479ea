"""V-shaped zero-bubble schedules that trade bubble for memory, from a repeated building block.

With two chunks on each stage a microbatch takes six units of time there at F = I = W: F, I and W
on each arm. A block says when one microbatch runs its F and I on each stage, and the next
microbatch runs the same six units later. It is legal when no stage has two of its four F and I
in the same unit of the six. How long a block holds a stage's two chunks, divided by six, is how
many activations the stage keeps.
"""

from collections.abc import Iterator, Sequence
from itertools import product

from ringline.schedule._actions import Action, rows_of
from ringline.schedule._fill import fill_weights
from ringline.schedule._generators import (
    Layers,
    require_counts,
    require_repeats,
    v_chunks,
    v_placement,
)
from ringline.schedule._pipeline import PipelineSchedule
from ringline.schedule._spans import stage_spans

_PERIOD = 6

# Per stage, when the F and I of one microbatch run: F and I on the arm down, F and I on the arm up.
Block = list[tuple[int, int, int, int]]


def zero_bubble_v_half(
    stages: int = 4, microbatches: int = 8, repeats: int = 2, *, layers_per_stage: Layers = None
) -> PipelineSchedule:
    r"""Two chunks per stage in a V, at about half the activations of 1F1B.

    Every stage keeps at most p + 2 chunk activations, those of p/2 + 1 whole stages, p + 1 for
    odd p. Where F = I = W the bubble is about half that of 1F1B, $(3p/2 - 3)F$ for even p from
    4 on, F the forward of a whole stage, however many microbatches there are.

    Args:
        stages: p, at least 1.
        microbatches: m, at least 1.
        repeats: 2, the two arms of the V.
        layers_per_stage: layers in each chunk, see `PipelineSchedule`.

    Returns:
        The schedule, with I and W in place of B.

    Raises:
        ValueError: for a count below 1, or `repeats` other than 2.

    Example:
        >>> zero_bubble_v_half(stages=8, microbatches=24).peak_activations()
        (10, 10, 10, 10, 10, 10, 10, 10)

    References:
        Qi et al., Pipeline Parallelism with Controllable Memory, arXiv 2405.15362, section 3.
    """
    return _repeated(
        "zero_bubble_v_half", (1, 2, 1, 2), stages, microbatches, repeats, layers_per_stage
    )


def zero_bubble_v_min(
    stages: int = 4, microbatches: int = 8, repeats: int = 2, *, layers_per_stage: Layers = None
) -> PipelineSchedule:
    r"""Two chunks per stage in a V, at about a third of the activations of 1F1B.

    Every stage keeps at most $2\lceil (p + 2)/3 \rceil$ chunk activations. Where F = I = W the
    bubble is at most $(2p - 5/2)F$ from p = 2 on, two thirds of that of 1F1B, F the forward of a
    whole stage. There is no slack in the order: other ratios of F, I and W and every hop cost
    time for each microbatch.

    Args:
        stages: p, at least 1.
        microbatches: m, at least 1.
        repeats: 2, the two arms of the V.
        layers_per_stage: layers in each chunk, see `PipelineSchedule`.

    Returns:
        The schedule, with I and W in place of B.

    Raises:
        ValueError: for a count below 1, or `repeats` other than 2.

    Example:
        >>> zero_bubble_v_min(stages=8, microbatches=24).peak_activations()
        (8, 8, 8, 8, 8, 8, 8, 8)

    References:
        Qi et al., Pipeline Parallelism with Controllable Memory, arXiv 2405.15362, section 3.
    """
    return _repeated(
        "zero_bubble_v_min", (1, 1, 1, 1), stages, microbatches, repeats, layers_per_stage
    )


def _repeated(
    name: str,
    slopes: tuple[int, int, int, int],
    stages: int,
    microbatches: int,
    repeats: int,
    layers: Layers,
) -> PipelineSchedule:
    """The best order of the blocks with these slopes that keep least."""
    require_counts(name, stages=stages, microbatches=microbatches)
    require_repeats(name, repeats, 2, "zero_bubble_h1")
    placement = v_placement(stages)
    blocks = list(_blocks(stages, slopes))
    least = min(map(_peak, blocks))

    def rows(block: Block, early: str, count: int) -> list[list[Action]] | None:
        return fill_weights(
            _orders(block, count),
            placement,
            lambda action: 1.0,
            limit=least,
            patience=0.0,
            early=early,
        )

    def makespans(table: Sequence[Sequence[Action]]) -> tuple[float, float]:
        """Without and with a hop that takes a fifth of an F."""
        spans = (stage_spans(table, placement, lambda action: 1.0, hop) for hop in (0.0, 0.2))
        without, with_hop = (max(end for _, end in ends) for ends in spans)
        return without, with_hop

    # Ends differ, the middle repeats: a few rounds are enough to tell which way is best.
    tried = min(microbatches, 2 * stages + 2)
    ways = [
        (makespans(table), number, early)
        for number, block in enumerate(blocks)
        if _peak(block) == least
        for early in ("", "F", "FI")
        if (table := rows(block, early, tried))
    ]
    found = (rows(blocks[number], early, microbatches) for _, number, early in sorted(ways))
    best = next(table for table in found if table)
    return PipelineSchedule(name, rows_of(best), microbatches, placement, layers)


def _blocks(stages: int, slopes: tuple[int, int, int, int]) -> Iterator[Block]:
    """The legal blocks in which each pass takes `slopes` units from stage to stage.

    They differ in how long a microbatch waits at the three turns: at the bottom of the V going
    down, at the top between forward and backward, and at the bottom coming back.
    """
    down, up, back_down, back_up = slopes
    last = stages - 1
    for turns in product(range(1, _PERIOD + 1), repeat=3):
        bottom = last * down + turns[0]
        top = bottom + last * up + turns[1]
        home = top + last * back_down + turns[2]
        block = [
            (s * down, home + (last - s) * back_up, bottom + (last - s) * up, top + s * back_down)
            for s in range(stages)
        ]
        if all(len({time % _PERIOD for time in times}) == len(times) for times in block):
            yield block


def _peak(block: Block) -> int:
    """The most chunk activations a stage keeps, with each W in the first free unit after its I."""
    peak = 0
    for times in block:
        free = set(range(_PERIOD)) - {time % _PERIOD for time in times}
        lives = []
        for forward, inputs in sorted((times[:2], times[2:]), key=lambda life: life[1]):
            weights = next(
                t for t in range(inputs + 1, inputs + 1 + _PERIOD) if t % _PERIOD in free
            )
            free.remove(weights % _PERIOD)
            lives.append((forward, weights + 1))
        alive = [
            sum((now - start) // _PERIOD - (now - end) // _PERIOD for start, end in lives)
            for now in range(_PERIOD)
        ]
        peak = max(peak, *alive)
    return peak


def _orders(block: Block, microbatches: int) -> list[list[Action]]:
    """Per stage, its F and I by the time that the block repeated gives them."""
    orders = []
    for stage, times in enumerate(block):
        arms = v_chunks(stage, len(block))
        timed = [
            (time + _PERIOD * i, Action(arms[place // 2], "FI"[place % 2], i))
            for place, time in enumerate(times)
            for i in range(microbatches)
        ]
        orders.append([action for _, action in sorted(timed)])
    return orders
