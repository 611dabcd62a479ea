"""The automatic zero-bubble schedule: the best order found for given costs and memory."""

import math
from collections.abc import Iterator, Sequence
from itertools import product

from ringline.schedule._actions import Action, rows_of
from ringline.schedule._fill import fill_weights
from ringline.schedule._generators import Layers, groups, looped, require_counts, units
from ringline.schedule._pipeline import PipelineSchedule
from ringline.schedule._spans import stage_spans
from ringline.schedule._zero_bubble import zero_bubble_h1, zero_bubble_h2

# What the search varies; the best few ways found with the first patience are tried with the rest.
_SWAPS = (False, True)
_FIRST_PATIENCE = 0.3
_PATIENCES = (0.0, 0.6, 1.0)

Cost = float | Sequence[float]


def zero_bubble(
    stages: int = 4,
    microbatches: int = 8,
    repeats: int = 1,
    *,
    max_activations: float | None = None,
    forward_s: Cost = 1.0,
    input_gradient_s: Cost = 1.0,
    weight_gradient_s: Cost = 1.0,
    transfer_s: float = 0.0,
    weight_share: float = 1.0,
    layers_per_stage: Layers = None,
) -> PipelineSchedule:
    r"""The zero-bubble schedule with the least bubble found under a memory limit.

    Each stage takes forwards and input gradients in turn after a warm-up. How many forwards
    the warm-up has, and how much of a weight gradient must fit into a wait before it is put
    there, is searched by running the candidates in time; so are `zero_bubble_h1` and
    `zero_bubble_h2`, where they fit. What is made least is the span of the longest stage, and
    among equals the makespan.

    With F, I, W the times of a stage and c of a hop, the bubble is near 0 where the first
    stage can keep busy until the first cotangent returns and the last stage has weight
    gradients left for as long at the end: $(p - 1)(F + I + 2c)$ of forwards and of weight
    gradients, about 2p activations where F = I = W. Under p activations it is that of
    `zero_bubble_h1`.

    Args:
        stages: p, at least 1.
        microbatches: m, at least 1.
        repeats: v, chunks of each stage in the looped order of `interleaved_one_f_one_b`.
        max_activations: the most that a stage may keep, in activations of the whole stage for
            one microbatch; None for p, or what `zero_bubble_h1` keeps where that is more: with
            repeats, where p does not divide m.
        forward_s: F, the time of a stage's forward; one number or one for each stage.
        input_gradient_s: I, the same for the part of the backward that the stage before needs.
        weight_gradient_s: W, the same for the rest of the backward.
        transfer_s: c, the time of a hop from one stage to another.
        weight_share: the part of an activation that stays after I until W. 1 counts an
            activation until its W, as `peak_activations` does; a transformer layer of hidden
            size h, a heads and sequence s keeps $32h / (34h + 5as)$ of it.
        layers_per_stage: layers in each chunk, see `PipelineSchedule`.

    Returns:
        The schedule, with I and W in place of B.

    Raises:
        ValueError: for a count below 1, a cost that is negative or not one for each stage, a
            share outside 0..1, or a limit too low for the first backward to be reached.

    Example:
        >>> schedule = zero_bubble(stages=4, microbatches=12, max_activations=7)
        >>> schedule.peak_activations()
        (7, 7, 7, 7)
        >>> zero_bubble(stages=4, microbatches=12).peak_activations()
        (4, 4, 4, 4)

    References:
        Qi et al., Zero Bubble Pipeline Parallelism, arXiv 2401.10241, section 3 and appendix G.
    """
    require_counts("zero_bubble", stages=stages, microbatches=microbatches, repeats=repeats)
    costs = {
        "F": _per_stage("forward_s", forward_s, stages),
        "I": _per_stage("input_gradient_s", input_gradient_s, stages),
        "W": _per_stage("weight_gradient_s", weight_gradient_s, stages),
    }
    _require("transfer_s", transfer_s, 0, math.inf)
    _require("weight_share", weight_share, 0, 1)
    longest = len(groups(microbatches, stages)[0])
    if max_activations is None:
        limit = max(stages * repeats, (repeats - 1) * longest + stages)
    else:
        limit = max_activations * repeats
    least = min(microbatches * repeats, (repeats - 1) * longest + 1)
    if not limit >= least:
        raise ValueError(
            f"zero_bubble: max_activations must be at least {least / repeats:g} for the first "
            f"backward to be reached, got {max_activations}; raise it or use fewer repeats"
        )
    placement = looped(stages, repeats)

    def duration_s(action: Action) -> float:
        return costs[action.op][placement[action.chunk]] / repeats

    def badness(rows: Sequence[Sequence[Action]]) -> tuple[float, float]:
        spans = stage_spans(rows, placement, duration_s, transfer_s)
        # Rounded, so that equal spans compare as equal.
        longest_s = float(f"{max(end - start for start, end in spans):.9g}")
        return longest_s, max(end for _, end in spans)

    def run(leads: tuple[int, ...], swap: bool, patience: float) -> list[list[Action]] | None:
        return fill_weights(
            _orders(leads, microbatches, repeats),
            placement,
            duration_s,
            hop_s=transfer_s,
            limit=limit,
            weight_share=weight_share,
            patience=patience,
            swap=swap,
        )

    ways = product(_leads(costs, transfer_s, repeats, (repeats - 1) * longest, limit), _SWAPS)
    tried = {way: badness(rows) for way in ways if (rows := run(*way, _FIRST_PATIENCE))}
    good = sorted(tried, key=lambda way: tried[way])[:3]
    found = [run(*way, patience) for way in good for patience in (_FIRST_PATIENCE, *_PATIENCES)]
    best = min(
        (*(f for f in found if f), *_fixed(stages, microbatches, repeats, limit)), key=badness
    )
    return PipelineSchedule("zero_bubble", rows_of(best), microbatches, placement, layers_per_stage)


def _fixed(
    stages: int, microbatches: int, repeats: int, limit: float
) -> Iterator[Sequence[Sequence[Action]]]:
    """The orders of fixed form that keep no more than `limit` chunk activations."""
    for make in (zero_bubble_h1, zero_bubble_h2):
        schedule = make(stages, microbatches, repeats)
        if max(schedule.peak_activations()) <= limit:
            yield schedule.rows


def _leads(
    costs: dict[str, tuple[float, ...]], hop_s: float, repeats: int, base: int, limit: float
) -> list[tuple[int, ...]]:
    """How many chunk forwards each stage runs before its first backward, in several ways.

    Either so many that they last until the first cotangent returns, or one or two for each
    stage behind, and a few more or less; each also with one less at each further stage, so that
    a limit that stops the first stages does not make the others run into it together.
    """
    stages = len(costs["F"])
    returns = []
    for stage in range(stages):
        behind_s = sum(costs["F"][stage + 1 :]) + sum(costs["I"][stage + 1 :])
        round_s = behind_s / repeats + 2 * hop_s * (stages - 1 - stage)
        forward_s = costs["F"][stage] / repeats
        returns.append(math.ceil(min(round_s / forward_s, limit)) if forward_s else int(limit))
    behind = [stages - 1 - stage for stage in range(stages)]
    most = max(base + 1, int(limit))
    ways = {
        tuple(
            max(base + 1, min(most - taper * stage, base + 1 + lead + more))
            for stage, lead in enumerate(leads)
        )
        for leads in (returns, behind, [2 * b for b in behind])
        for more in (-1, 0, 1)
        for taper in (0, 1)
    }
    return sorted(ways)


def _orders(leads: Sequence[int], microbatches: int, repeats: int) -> list[list[Action]]:
    """Per stage, its lead of forwards, then one input gradient, one forward, and so on."""
    stages = len(leads)
    orders = []
    for stage, lead in enumerate(leads):
        forward = units(stage, stages, microbatches, repeats, backward=False)
        backward = units(stage, stages, microbatches, repeats, backward=True)
        order = [Action(chunk, "F", i) for chunk, i in forward[:lead]]
        for step, (chunk, i) in enumerate(backward):
            order.append(Action(chunk, "I", i))
            order += [Action(c, "F", j) for c, j in forward[lead + step : lead + step + 1]]
        orders.append(order)
    return orders


def _per_stage(name: str, cost: Cost, stages: int) -> tuple[float, ...]:
    costs = tuple(cost) if isinstance(cost, Sequence) else (cost,) * stages
    if len(costs) != stages:
        raise ValueError(
            f"zero_bubble: {name} must be one number or one for each of {stages} stages, got "
            f"{len(costs)}"
        )
    for value in costs:
        _require(name, value, 0, math.inf)
    return costs


def _require(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high or math.isinf(value):
        raise ValueError(f"zero_bubble: {name} must be finite and in {low}..{high}, got {value}")
