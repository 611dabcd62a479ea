"""Schedules on the V placement: chunks go down the stages and come back up."""

from collections.abc import Iterable, Iterator

from ringline.schedule._actions import Action, cells_of, rows_of
from ringline.schedule._fill import fill_weights
from ringline.schedule._generators import (
    Layers,
    require_counts,
    require_repeats,
    v_chunks,
    v_placement,
    without_padding,
)
from ringline.schedule._pipeline import PipelineSchedule


def zero_bubble_v(
    stages: int = 4, microbatches: int = 8, repeats: int = 2, *, layers_per_stage: Layers = None
) -> PipelineSchedule:
    r"""Two chunks per stage in a V, the backward split: no bubble at the memory of 1F1B.

    The first stage holds the first and the last chunk, so the first backward starts where the
    first forward did and all stages drain together. Where F = I = W the longest stage idles 0
    and the makespan is $(p - 1)F/2$ above the work, F the forward of a whole stage, for
    $m \ge 2p - 1$. Every stage keeps $\min(2m, 2p)$ chunk activations: those of p whole
    stages.

    With $m < 2p - 1$ the order is that of 2p - 1 microbatches with the missing ones left out,
    and each W where a stage would wait; down to m = p the makespan bubble stays $(p - 1)F/2$.

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
        >>> schedule = zero_bubble_v(stages=2, microbatches=3)
        >>> print(schedule)
        zero_bubble_v: 2 stages, 3 microbatches, 2 repeats; 19 units, 5.3% idle
        stage 0 | 0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 3F2 3I2 3W2 0I1 0W1 0I2 0W2   .
        stage 1 |   . 1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1I1 2I2 1I2 1W1 2W2 1W2
        >>> schedule.peak_activations()
        (4, 4)

    References:
        Qi et al., Zero Bubble Pipeline Parallelism, arXiv 2401.10241, section 6, figure 6.
    """
    require_counts("zero_bubble_v", stages=stages, microbatches=microbatches)
    require_repeats("zero_bubble_v", repeats, 2, "zero_bubble_h1")
    padded = max(microbatches, 2 * stages - 1)
    cells = [[(a,) for a in _zero_bubble_v_row(stage, stages, padded)] for stage in range(stages)]
    rows, _ = cells_of(without_padding(cells, microbatches))
    placement = v_placement(stages)
    if microbatches < padded:
        rows = _weights_anew(rows, placement)
    return PipelineSchedule("zero_bubble_v", rows, microbatches, placement, layers_per_stage)


def _weights_anew(
    rows: Iterable[Iterable[Action]], placement: tuple[int, ...]
) -> tuple[tuple[Action, ...], ...]:
    """The rows with each W where its stage would wait, at F = I = W."""
    orders = [[action for action in row if action.op != "W"] for row in rows]
    filled = fill_weights(orders, placement, lambda action: 1.0, limit=len(placement), patience=0.0)
    assert filled, "leaving microbatches out cannot exceed the memory of the whole order"
    return rows_of(filled)


def dualpipe_v(
    stages: int = 4, microbatches: int = 8, repeats: int = 2, *, layers_per_stage: Layers = None
) -> PipelineSchedule:
    r"""DualPipe cut in half: a V in which forwards of one arm run beside backwards of the other.

    In the steady state every forward is joined with a whole backward of the other arm, so that
    the transfers of one hide behind the computation of the other; W is split off only where
    that fills a bubble, at both ends. Every stage keeps $\min(2m, 2p + 1)$ chunk activations.
    With F the forward of a whole stage, F = I = W, and a joined pair as long as its two parts,
    the longest stage idles $(p - 1)F$; what the form gains is a pair that takes less.

    The order is made for $m \ge 2p$, since an arm's forwards meet the other's backwards only
    then; with fewer it is the order of 2p microbatches with the missing ones left out.

    Args:
        stages: p, at least 1.
        microbatches: m, at least 1.
        repeats: 2, the two arms of the V.
        layers_per_stage: layers in each chunk, see `PipelineSchedule`.

    Returns:
        The schedule, with B, and at the ends I and W.

    Raises:
        ValueError: for a count below 1, or `repeats` other than 2.

    Example:
        >>> schedule = dualpipe_v(stages=2, microbatches=4)
        >>> print(schedule.to_csv().splitlines()[1])
        1F0,2F0,1F1,2F1,1F2,2B0,(2F2;1B0)OVERLAP_F_B,(1F3;2B1)OVERLAP_F_B,(2F3;1B1)OVERLAP_F_B,2B2,1B2,2I3,1I3,2W3,1W3
        >>> schedule.peak_activations()
        (5, 5)

    References:
        DeepSeek-V3, arXiv 2412.19437, section 3.2.1; the V form: Qi, Wan et al., DualPipe could
        be better without the Dual, 2025.
    """
    require_counts("dualpipe_v", stages=stages, microbatches=microbatches)
    require_repeats("dualpipe_v", repeats, 2, "interleaved_one_f_one_b")
    padded = max(microbatches, 2 * stages)
    cells = [list(_dualpipe_v_row(stage, stages, padded)) for stage in range(stages)]
    rows, joined = cells_of(without_padding(cells, microbatches))
    placement = v_placement(stages)
    return PipelineSchedule("dualpipe_v", rows, microbatches, placement, layers_per_stage, joined)


class _Arms:
    """One stage's two chunks, and the next microbatch of each operation on each."""

    def __init__(self, stage: int, stages: int):
        self.chunks = v_chunks(stage, stages)
        self.done: dict[tuple[str, int], int] = {(op, arm): 0 for op in "FI" for arm in (0, 1)}
        self.put_off: list[tuple[int, int]] = []

    def left(self, op: str, arm: int, microbatches: int) -> int:
        return microbatches - self.done[op, arm]

    def forward(self, arm: int) -> Action:
        return Action(self.chunks[arm], "F", self._next("F", arm))

    def whole(self, arm: int) -> Action:
        return Action(self.chunks[arm], "B", self._next("I", arm))

    def inputs(self, arm: int) -> Action:
        """The input gradient, with its weight gradient put off."""
        microbatch = self._next("I", arm)
        self.put_off.append((self.chunks[arm], microbatch))
        return Action(self.chunks[arm], "I", microbatch)

    def weights(self) -> Action:
        """The weight gradient that was put off the longest."""
        chunk, microbatch = self.put_off.pop(0)
        return Action(chunk, "W", microbatch)

    def _next(self, op: str, arm: int) -> int:
        microbatch = self.done[op, arm]
        self.done[op, arm] += 1
        return microbatch


def _zero_bubble_v_row(stage: int, stages: int, microbatches: int) -> Iterator[Action]:
    arms = _Arms(stage, stages)
    behind = stages - 1 - stage
    for _ in range(2 * behind + 1):
        yield arms.forward(0)
    for _ in range(stage):
        yield arms.forward(1)
        yield arms.forward(0)
    for _ in range(behind + 1):
        yield from (arms.forward(1), arms.inputs(1), arms.weights())
    while arms.left("F", 1, microbatches):
        if arms.left("F", 0, microbatches):
            yield arms.forward(0)
        yield from (arms.inputs(0), arms.weights())
        yield from (arms.forward(1), arms.inputs(1), arms.weights())
    while arms.left("I", 1, microbatches):
        yield from (arms.inputs(0), arms.inputs(1))
    while arms.left("I", 0, microbatches):
        yield from (arms.inputs(0), arms.weights())
    while arms.put_off:
        yield arms.weights()


def _dualpipe_v_row(stage: int, stages: int, microbatches: int) -> Iterator[tuple[Action, ...]]:
    """The cells of one stage, a forward and a backward that run as one in the same cell."""
    arms = _Arms(stage, stages)
    behind = stages - 1 - stage
    for _ in range(2 * behind):
        yield (arms.forward(0),)
    for _ in range(stage + 1):
        yield from ((arms.forward(0),), (arms.forward(1),))
    for _ in range(behind):
        yield from ((arms.inputs(1),), (arms.weights(),), (arms.forward(1),))
    while arms.left("F", 0, microbatches):
        one = (arms.forward(0), arms.whole(1))
        # The turn of the V makes its own first cotangent, right after the forward before it.
        alone = behind == 0 and one[1].microbatch == 0
        yield from zip(one) if alone else (one,)
        yield (arms.forward(1), arms.whole(0))
    for _ in range(behind):
        yield (arms.whole(1),)
        yield (arms.forward(1), arms.whole(0))
    # From half way through the drain on, weight gradients are put off; odd stages begin that
    # with arm 1, even ones with arm 0, so that neighbours hand over in turn.
    half = (stage + 1) // 2
    for step in range(stage + 1):
        yield (arms.inputs(1) if step >= half + (stage % 2 == 0) else arms.whole(1),)
        yield (arms.inputs(0) if step >= half else arms.whole(0),)
    for _ in range(behind):
        yield from ((arms.weights(),), (arms.inputs(0),))
    while arms.put_off:
        yield (arms.weights(),)
