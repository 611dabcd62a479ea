"""Breadth-first schedules: all forwards, then all backwards in reverse."""

from ringline.schedule._actions import Action, rows_of
from ringline.schedule._generators import Layers, looped, require_counts, require_repeats
from ringline.schedule._pipeline import PipelineSchedule


def linear(
    stages: int = 4, microbatches: int = 8, repeats: int = 1, *, layers_per_stage: Layers = None
) -> PipelineSchedule:
    r"""All forwards, then all backwards in reverse: fill and drain, known as GPipe.

    With F and B the time of a forward and a backward of one stage and p stages, the longest
    stage idles $(p - 1)(F + B)$ and every stage keeps m activations. A hop of c between stages
    adds $2(p - 1)c$.

    Args:
        stages: p, at least 1.
        microbatches: m, at least 1; it need not be a multiple of p.
        repeats: 1; `circular` is this order for more.
        layers_per_stage: see `PipelineSchedule`.

    Returns:
        The schedule, forward and backward.

    Raises:
        ValueError: for a count below 1, or `repeats` other than 1.

    Example:
        >>> print(linear(stages=2, microbatches=3))
        linear: 2 stages, 3 microbatches, 1 repeats; 8 units, 25.0% idle
        stage 0 | 0F0 0F1 0F2   .   . 0B2 0B1 0B0
        stage 1 |   . 1F0 1F1 1F2 1B2 1B1 1B0   .

    References:
        Huang et al., GPipe, arXiv 1811.06965, figure 2c.
    """
    require_repeats("linear", repeats, 1, "circular")
    return _breadth_first("linear", stages, microbatches, 1, layers_per_stage)


def circular(
    stages: int = 4, microbatches: int = 8, repeats: int = 2, *, layers_per_stage: Layers = None
) -> PipelineSchedule:
    r"""Every stage holds `repeats` chunks and data goes around the ring once for each.

    All microbatches go through a stage's first chunk before any goes through its second
    (breadth first); the backward is the exact reverse. With F and B the time of the whole
    stage, the longest stage idles $(p - 1)(F + B)/v$ when $m \ge p$, v times less than
    `linear`, for v times the transfers; every stage keeps m v activations. A hop of c adds
    $2(p - 1)c$ where $p c \le (m - p)F/v$, and $2(pv - 1)c$ where $m = p$.

    Args:
        stages: p, at least 1.
        microbatches: m, at least 1; below p the ring waits for itself.
        repeats: v, at least 1; one repeat is `linear`.
        layers_per_stage: layers in each chunk, see `PipelineSchedule`.

    Returns:
        The schedule, forward and backward.

    Raises:
        ValueError: for a count below 1.

    Example:
        >>> print(circular(stages=2, microbatches=2, repeats=2).forward())
        circular: 2 stages, 2 microbatches, 2 repeats; 5 units, 20.0% idle
        stage 0 | 0F0 0F1 2F0 2F1   .
        stage 1 |   . 1F0 1F1 3F0 3F1

    References:
        Lamy-Poirier, Breadth-First Pipeline Parallelism, arXiv 2211.05953, section 3.
    """
    return _breadth_first("circular", stages, microbatches, repeats, layers_per_stage)


def _breadth_first(
    name: str, stages: int, microbatches: int, repeats: int, layers_per_stage: Layers
) -> PipelineSchedule:
    require_counts(name, stages=stages, microbatches=microbatches, repeats=repeats)
    rows = []
    for stage in range(stages):
        forward = [
            Action(repeat * stages + stage, "F", microbatch)
            for repeat in range(repeats)
            for microbatch in range(microbatches)
        ]
        backward = [Action(a.chunk, "B", a.microbatch) for a in reversed(forward)]
        rows.append(forward + backward)
    return PipelineSchedule(
        name, rows_of(rows), microbatches, looped(stages, repeats), layers_per_stage
    )
