"""Zero-bubble schedules of fixed form: the backward split into I and W, and W put off."""

from ringline.schedule._actions import Action, rows_of
from ringline.schedule._generators import Layers, groups, looped, require_counts, units
from ringline.schedule._pipeline import PipelineSchedule


def zero_bubble_h1(
    stages: int = 4, microbatches: int = 8, repeats: int = 1, *, layers_per_stage: Layers = None
) -> PipelineSchedule:
    r"""1F1B with the backward split: weight gradients fill what the first stages would wait for.

    With I and W the input- and weight-gradient parts of the backward, the bubble is
    $(p - 1)(F + I - W)/v$, a third of that of 1F1B where F = I = W, at the memory of the first
    stage of 1F1B: every stage keeps $\min(mv, (v - 1)g + p)$ chunk activations, with g = p
    where p divides m (see `interleaved_one_f_one_b`). Stage s delays W by s steps. For v = 1
    and m > p a hop of c adds $4(p - 1)c$. Conditions: $W \le F$ and $W \le I$.

    Args:
        stages: p, at least 1.
        microbatches: m, at least 1.
        repeats: v, chunks of each stage in the looped order of `interleaved_one_f_one_b`.
        layers_per_stage: layers in each chunk, see `PipelineSchedule`.

    Returns:
        The schedule, with I and W in place of B.

    Raises:
        ValueError: for a count below 1.

    Example:
        >>> schedule = zero_bubble_h1(stages=2, microbatches=3)
        >>> print(schedule)
        zero_bubble_h1: 2 stages, 3 microbatches, 1 repeats; 10 units, 10.0% idle
        stage 0 | 0F0 0F1   . 0I0 0W0 0F2 0I1 0W1 0I2 0W2
        stage 1 |   . 1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1W2
        >>> schedule.peak_activations()
        (2, 2)

    References:
        Qi et al., Zero Bubble Pipeline Parallelism, arXiv 2401.10241, section 2.1, figure 2.
    """
    return _delayed("zero_bubble_h1", stages, microbatches, repeats, 1, layers_per_stage)


def zero_bubble_h2(
    stages: int = 4, microbatches: int = 8, repeats: int = 1, *, layers_per_stage: Layers = None
) -> PipelineSchedule:
    r"""As `zero_bubble_h1` with twice the memory and hardly a bubble.

    The longest stage idles $(p - 1)(F + I - 2W)$ for v = 1 and m > 2p, nothing at all where
    F = I = W: every stage works from its first to its last action, and only their starts and
    ends are staggered. Where all stages wait for each other at the end of a step, the makespan
    is what counts, and at F = I = W that is no better than that of `zero_bubble_h1`. A hop of c
    adds $2(p - 1)c$. With more repeats the bubble is v times smaller up to p = 4; from there on
    the ring is not back in time, which costs $(p - 4)F/v$ where F = I = W.

    Every stage keeps $\min(mv, (v - 1)g + 2p - 1)$ chunk activations, with g as in
    `interleaved_one_f_one_b`, and stage s delays W by 2 s steps.

    Args:
        stages: p, at least 1.
        microbatches: m, at least 1.
        repeats: v, chunks of each stage in the looped order of `interleaved_one_f_one_b`.
        layers_per_stage: layers in each chunk, see `PipelineSchedule`.

    Returns:
        The schedule, with I and W in place of B.

    Raises:
        ValueError: for a count below 1.

    Example:
        >>> schedule = zero_bubble_h2(stages=2, microbatches=4)
        >>> print(schedule)
        zero_bubble_h2: 2 stages, 4 microbatches, 1 repeats; 13 units, 7.7% idle
        stage 0 | 0F0 0F1 0F2 0I0 0W0 0F3 0I1 0W1 0I2 0W2 0I3 0W3   .
        stage 1 |   . 1F0 1I0 1F1 1I1 1F2 1I2 1W0 1F3 1I3 1W1 1W2 1W3
        >>> schedule.peak_activations()
        (3, 3)

    References:
        Qi et al., Zero Bubble Pipeline Parallelism, arXiv 2401.10241, section 2.2, figure 3.
    """
    return _delayed("zero_bubble_h2", stages, microbatches, repeats, 2, layers_per_stage)


def _delayed(
    name: str, stages: int, microbatches: int, repeats: int, lead: int, layers: Layers
) -> PipelineSchedule:
    """Each stage behind stage s lets it run `lead` forwards ahead, each before, `lead` W late."""
    require_counts(name, stages=stages, microbatches=microbatches, repeats=repeats)
    longest = len(groups(microbatches, stages)[0])
    rows = []
    for stage in range(stages):
        forward = units(stage, stages, microbatches, repeats, backward=False)
        backward = units(stage, stages, microbatches, repeats, backward=True)
        ahead = (repeats - 1) * longest + lead * (stages - 1 - stage)
        late = lead * stage
        row = [Action(chunk, "F", i) for chunk, i in forward[:ahead]]
        for step in range(len(backward) + late):
            row += [Action(c, "F", i) for c, i in forward[ahead + step : ahead + step + 1]]
            row += [Action(c, "I", i) for c, i in backward[step : step + 1]]
            if step >= late:
                chunk, i = backward[step - late]
                row.append(Action(chunk, "W", i))
        rows.append(row)
    return PipelineSchedule(name, rows_of(rows), microbatches, looped(stages, repeats), layers)
