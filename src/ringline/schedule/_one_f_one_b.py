"""1F1B schedules: after a warm-up every stage does one forward, one backward, and so on."""

from ringline.schedule._actions import Action, rows_of
from ringline.schedule._generators import (
    Layers,
    groups,
    looped,
    require_counts,
    require_repeats,
    units,
)
from ringline.schedule._pipeline import PipelineSchedule


def one_f_one_b(
    stages: int = 4, microbatches: int = 8, repeats: int = 1, *, layers_per_stage: Layers = None
) -> PipelineSchedule:
    r"""One forward, one backward; every stage starts its backwards as early as it can.

    Stage s runs $p - 1 - s$ forwards ahead, so it keeps $\min(m, p - s)$ activations however
    large m is. The bubble is that of `linear`, $(p - 1)(F + B)$. A hop of c is waited for in
    the steady state too: it adds $[2(p - 1)m/p + 2(p - 2)]c$ where p divides m, which is what
    `eager_one_f_one_b` avoids.

    Args:
        stages: p, at least 1.
        microbatches: m, at least 1.
        repeats: 1; `interleaved_one_f_one_b` takes more.
        layers_per_stage: see `PipelineSchedule`.

    Returns:
        The schedule, forward and backward.

    Raises:
        ValueError: for a count below 1, or `repeats` other than 1.

    Example:
        >>> schedule = one_f_one_b(stages=2, microbatches=3)
        >>> print(schedule)
        one_f_one_b: 2 stages, 3 microbatches, 1 repeats; 8 units, 25.0% idle
        stage 0 | 0F0 0F1   . 0B0 0F2 0B1   . 0B2
        stage 1 |   . 1F0 1B0 1F1 1B1 1F2 1B2   .
        >>> schedule.peak_activations()
        (2, 1)

    References:
        Narayanan et al., arXiv 2006.09503 (PipeDream-Flush); arXiv 2104.04473, section 2.2.
    """
    require_repeats("one_f_one_b", repeats, 1, "interleaved_one_f_one_b")
    return _alternating("one_f_one_b", stages, microbatches, 1, 1, layers_per_stage)


def eager_one_f_one_b(
    stages: int = 4, microbatches: int = 8, repeats: int = 1, *, layers_per_stage: Layers = None
) -> PipelineSchedule:
    r"""1F1B with twice the warm-up, so that no stage waits for a transfer in the steady state.

    Stage s runs $2(p - 1 - s)$ forwards ahead and keeps $\min(m, 2(p - s) - 1)$ activations.
    The bubble is that of `linear`, $(p - 1)(F + B)$; a hop of $c \le F$ adds only
    $2(p - 1)c$, once for the whole step.

    Args:
        stages: p, at least 1.
        microbatches: m, at least 1.
        repeats: 1; `interleaved_one_f_one_b` takes more.
        layers_per_stage: see `PipelineSchedule`.

    Returns:
        The schedule, forward and backward.

    Raises:
        ValueError: for a count below 1, or `repeats` other than 1.

    Example:
        >>> schedule = eager_one_f_one_b(stages=3, microbatches=8)
        >>> print(*schedule.rows[0][:8])
        0F0 0F1 0F2 0F3 0F4 0B0 0F5 0B1
        >>> schedule.peak_activations()
        (5, 3, 1)

    References:
        Zhuang et al., On Optimizing the Communication of Model Parallelism, arXiv 2211.05322,
        section 4.
    """
    require_repeats("eager_one_f_one_b", repeats, 1, "interleaved_one_f_one_b")
    return _alternating("eager_one_f_one_b", stages, microbatches, 1, 2, layers_per_stage)


def interleaved_one_f_one_b(
    stages: int = 4, microbatches: int = 8, repeats: int = 2, *, layers_per_stage: Layers = None
) -> PipelineSchedule:
    r"""1F1B over `repeats` chunks per stage: the bubble of 1F1B, v times smaller.

    Microbatches go in runs of g through a stage's chunks in turn. With F and B the time of a
    whole stage the bubble is $(p - 1)(F + B)/v$ where $m \ge p$; a hop of c adds
    $2(pv - 1)c$ where p divides m. Stage s runs $(v - 1)g + 2(p - 1 - s)$ chunk forwards ahead
    and keeps one more, or m v if that is less.

    A run is at least p long where there are that many microbatches, and runs are as even as m
    allows: g = p where p divides m, otherwise $\lceil m / \lfloor m/p \rfloor \rceil$. So m
    need not be a multiple of p; what it costs is g - p more chunk activations for each further
    repeat. With $m < p$ the ring waits for itself, as `circular` does.

    Args:
        stages: p, at least 1.
        microbatches: m, at least 1.
        repeats: v, at least 1; one repeat is `eager_one_f_one_b`.
        layers_per_stage: layers in each chunk, see `PipelineSchedule`.

    Returns:
        The schedule, forward and backward.

    Raises:
        ValueError: for a count below 1.

    Example:
        >>> schedule = interleaved_one_f_one_b(stages=2, microbatches=2, repeats=2)
        >>> print(schedule)
        interleaved_one_f_one_b: 2 stages, 2 microbatches, 2 repeats; 10 units, 20.0% idle
        stage 0 | 0F0 0F1 2F0 2F1   . 2B0   . 2B1 0B0 0B1
        stage 1 |   . 1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1   .
        >>> schedule.peak_activations()
        (4, 3)

    References:
        Narayanan et al., arXiv 2104.04473, section 2.2.
    """
    return _alternating(
        "interleaved_one_f_one_b", stages, microbatches, repeats, 2, layers_per_stage
    )


def _alternating(
    name: str, stages: int, microbatches: int, repeats: int, lead: int, layers: Layers
) -> PipelineSchedule:
    """Stage s runs `lead` forwards ahead for each stage behind it, then one F, one B in turn."""
    require_counts(name, stages=stages, microbatches=microbatches, repeats=repeats)
    longest = len(groups(microbatches, stages)[0])
    rows = []
    for stage in range(stages):
        forward = units(stage, stages, microbatches, repeats, backward=False)
        backward = units(stage, stages, microbatches, repeats, backward=True)
        ahead = (repeats - 1) * longest + lead * (stages - 1 - stage)
        row = [Action(chunk, "F", i) for chunk, i in forward[:ahead]]
        for step, (chunk, i) in enumerate(backward):
            row += [Action(c, "F", j) for c, j in forward[ahead + step : ahead + step + 1]]
            row.append(Action(chunk, "B", i))
        rows.append(row)
    return PipelineSchedule(name, rows_of(rows), microbatches, looped(stages, repeats), layers)
