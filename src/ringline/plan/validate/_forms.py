"""Closed forms of bubbles, hops and activations, as their sources state them.

Symbols: p stages, m microbatches, v repeats, s a stage from 0; F, I, W and B = I + W the times of
a whole stage, c the time of a hop.
"""

from collections.abc import Callable
from dataclasses import dataclass

from ringline.plan._rules import steady_hops

# Unequal, and exact in binary, so that equality is equality.
FORWARD, INPUT, WEIGHT, HOP = 1.0, 1.25, 0.75, 1 / 64

Sizes = Callable[[int, int, int], float]
Where = Callable[[int, int, int], bool]


@dataclass(frozen=True, slots=True)
class Form:
    """What one schedule idles, waits for and keeps, for p stages, m microbatches, v repeats.

    Attributes:
        name: the generator in `ringline.schedules`.
        source: where the forms come from.
        idle: idle seconds of the longest stage without transfers.
        hops: how many hops come on top, None where no closed form is claimed.
        kept: (p, m, v, s) -> most chunk activations of stage s, None where none is claimed.
        repeats: the values of v.
        idle_holds: where `idle` holds.
        hops_hold: where `hops` holds.
        kept_holds: where `kept` holds.
        alike: whether it is claimed for F = I = W only.
        makespan: whether `idle` is of the whole step in place of its longest stage.
        forward_only: whether it is of the forward alone.
        hop_s: (v) -> the time of a hop.
        note: added to the name.
    """

    name: str
    source: str
    idle: Sizes
    hops: Sizes | None = None
    kept: Callable[[int, int, int, int], int] | None = None
    repeats: tuple[int, ...] = (1,)
    idle_holds: Where = lambda p, m, v: True
    hops_hold: Where = lambda p, m, v: True
    kept_holds: Where = lambda p, m, v: True
    alike: bool = False
    makespan: bool = False
    forward_only: bool = False
    hop_s: Callable[[int], float] = lambda v: HOP
    note: str = ""


def _ramp(p: int, m: int, v: int) -> float:
    """(p - 1)/v chunks, and for m < p the wait of each further round for the first microbatch."""
    return (p - 1 + (v - 1) * max(0, p - m)) / v


def _whole(p: int, m: int, v: int) -> float:
    return _ramp(p, m, v) * (FORWARD + INPUT + WEIGHT)


def _round_trips(p: int, m: int, v: int) -> int:
    return 2 * (p * v - 1)


_LOOPED = (1, 2, 3, 4)
_GPIPE, _MEGATRON = "GPipe, arXiv 1811.06965", "Megatron-LM, arXiv 2104.04473"
_ZERO_BUBBLE = "Zero Bubble, arXiv 2401.10241"

FORMS = (
    Form("linear", _GPIPE, _whole, lambda p, m, v: 2 * (p - 1), lambda p, m, v, s: m),
    Form("one_f_one_b", _MEGATRON, _whole, steady_hops, lambda p, m, v, s: min(m, p - s)),
    Form(
        "eager_one_f_one_b",
        "1F1B with twice the warm-up",
        _whole,
        lambda p, m, v: 2 * (p - 1),
        lambda p, m, v, s: min(m, 2 * (p - s) - 1),
    ),
    Form(
        "interleaved_one_f_one_b",
        _MEGATRON,
        _whole,
        _round_trips,
        lambda p, m, v, s: min(m * v, 2 * (p - s - 1) + (v - 1) * p + 1),
        _LOOPED,
        hops_hold=lambda p, m, v: m % p == 0 or m < p,
        kept_holds=lambda p, m, v: m % p == 0,
    ),
    Form(
        "circular",
        "Breadth-First, arXiv 2211.05953",
        _whole,
        lambda p, m, v: 2 * (p - 1) if m > p else _round_trips(p, m, v),
        lambda p, m, v, s: m * v,
        _LOOPED,
    ),
    Form(
        "circular",
        "the scan of MaxText and praxis",
        lambda p, m, v: _ramp(p, m, v) * FORWARD,
        lambda p, m, v: p - 1,
        repeats=_LOOPED,
        hops_hold=lambda p, m, v: m >= 2 * p,
        makespan=True,
        forward_only=True,
        hop_s=lambda v: FORWARD / v,
        note=" forward, a hop of one tick",
    ),
    Form(
        "zero_bubble_h1",
        _ZERO_BUBBLE,
        lambda p, m, v: (p - 1) * (FORWARD + INPUT - WEIGHT),
        lambda p, m, v: 4 * (p - 1),
        lambda p, m, v, s: min(m, p),
        idle_holds=lambda p, m, v: m >= p,
        hops_hold=lambda p, m, v: m > p,
    ),
    Form(
        "zero_bubble_h2",
        _ZERO_BUBBLE,
        lambda p, m, v: (p - 1) * (FORWARD + INPUT - 2 * WEIGHT),
        lambda p, m, v: 2 * (p - 1),
        lambda p, m, v, s: min(m, 2 * p - 1),
        idle_holds=lambda p, m, v: m > 2 * p,
        hops_hold=lambda p, m, v: m > 2 * p,
    ),
    Form(
        "zero_bubble_v",
        _ZERO_BUBBLE,
        lambda p, m, v: 0.0,
        kept=lambda p, m, v, s: min(2 * m, 2 * p),
        repeats=(2,),
        idle_holds=lambda p, m, v: m >= 2 * p - 1,
        alike=True,
    ),
    Form(
        "zero_bubble_v",
        _ZERO_BUBBLE,
        lambda p, m, v: (p - 1) * FORWARD / 2,
        lambda p, m, v: 5 * p - 7,
        repeats=(2,),
        idle_holds=lambda p, m, v: m >= p,
        hops_hold=lambda p, m, v: m >= 2 * p - 1,
        alike=True,
        makespan=True,
        note=" step",
    ),
    Form(
        "dualpipe_v",
        "DualPipe, arXiv 2412.19437, on 2p ranks folded to p",
        lambda p, m, v: (p - 1) * FORWARD,
        steady_hops,
        kept=lambda p, m, v, s: 2 * p + 1,
        repeats=(2,),
        idle_holds=lambda p, m, v: m >= 2 * p,
        kept_holds=lambda p, m, v: m >= 2 * p,
        alike=True,
    ),
    Form(
        "zero_bubble_v_half",
        'V-half, arXiv 2405.15362; its "about 1/2 of 1F1B" in exact form, even p from 4 on',
        lambda p, m, v: (1.5 * p - 3) * FORWARD,
        kept=lambda p, m, v, s: p + 2,
        repeats=(2,),
        idle_holds=lambda p, m, v: p % 2 == 0 and p >= 4 and m >= p,
        kept_holds=lambda p, m, v: p % 2 == 0 and p >= 4 and m > p,
        alike=True,
    ),
)
