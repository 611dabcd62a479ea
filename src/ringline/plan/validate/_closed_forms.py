"""Every closed form of a bubble beside the simulator, over a grid of p, v and m."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ringline import schedules
from ringline.plan.validate._figure import Figure, Options, Report, check
from ringline.simulate import simulate

# Unequal, and exact in binary, so that equality is equality.
_FORWARD, _INPUT, _WEIGHT, _HOP = 1.0, 1.25, 0.75, 1 / 64
_WHOLE = _INPUT + _WEIGHT


@dataclass(frozen=True, slots=True)
class Form:
    """A bubble without transfers and what transfers add, for p stages, m microbatches, v repeats.

    Attributes:
        name: the generator in `ringline.schedules`.
        bubble: the idle seconds of the longest stage without transfers.
        hops: how many hops come on top, None where no closed form is claimed.
        holds: where the forms hold.
        repeated: whether the schedule takes repeats.
        source: where they come from.
    """

    name: str
    bubble: Callable[[int, int, int], float]
    hops: Callable[[int, int, int], float]
    holds: Callable[[int, int, int], bool]
    repeated: bool
    source: str


def _fill(p: int, m: int, v: int) -> float:
    return (p - 1) * (_FORWARD + _WHOLE) / v


FORMS = (
    Form(
        "linear",
        _fill,
        lambda p, m, v: 2 * (p - 1),
        lambda p, m, v: True,
        False,
        "arXiv 1811.06965",
    ),
    Form(
        "one_f_one_b",
        _fill,
        lambda p, m, v: 2 * (p - 1) * m / p + 2 * (p - 2),
        lambda p, m, v: m % p == 0,
        False,
        "arXiv 2104.04473",
    ),
    Form(
        "eager_one_f_one_b",
        _fill,
        lambda p, m, v: 2 * (p - 1),
        lambda p, m, v: True,
        False,
        "1F1B with twice the warm-up",
    ),
    Form(
        "interleaved_one_f_one_b",
        _fill,
        lambda p, m, v: 2 * (p * v - 1),
        lambda p, m, v: v > 1 and m % p == 0,
        True,
        "arXiv 2104.04473",
    ),
    Form(
        "circular",
        _fill,
        lambda p, m, v: 2 * (p - 1) if m > p else 2 * (p * v - 1),
        lambda p, m, v: v > 1 and m >= p,
        True,
        "arXiv 2211.05953",
    ),
    Form(
        "zero_bubble_h1",
        lambda p, m, v: (p - 1) * (_FORWARD + _INPUT - _WEIGHT),
        lambda p, m, v: 4 * (p - 1),
        lambda p, m, v: m > p,
        False,
        "arXiv 2401.10241",
    ),
    Form(
        "zero_bubble_h2",
        lambda p, m, v: (p - 1) * (_FORWARD + _INPUT - 2 * _WEIGHT),
        lambda p, m, v: 2 * (p - 1),
        lambda p, m, v: m > 2 * p,
        False,
        "arXiv 2401.10241",
    ),
)


@check("closed-forms")
def closed_forms(options: Options) -> Report:
    """The largest difference of each form over the grid p 2-8, v 1-4 and some m up to 32."""
    figures = []
    for form in FORMS:
        for hop_s, what in ((0.0, "bubble"), (_HOP, "bubble with transfers")):
            points = list(_differences(form, hop_s))
            worst = max(points, key=abs)
            figures.append(
                Figure(
                    f"{form.name}, {what}, largest difference at {len(points)} points",
                    worst,
                    0.0,
                    "s",
                    1e-9,
                    relative=False,
                )
            )
    return Report(
        "closed-forms",
        "Closed forms of bubbles against the simulator, exactly",
        "; ".join(sorted({form.source for form in FORMS})),
        tuple(figures),
        (
            "Microbatches here: 1, 2, 3, 4, p, p + 1, 2p, 2p + 1, 16 and 32. A hop takes 1/64 of "
            "a stage's forward; circular needs (m - p) F / v >= p c beside m > p, or its ring "
            "waits for the transfers.",
        ),
    )


def _differences(form: Form, hop_s: float) -> Iterator[float]:
    for p in range(2, 9):
        for v in range(1, 5) if form.repeated else (1,):
            for m in sorted({1, 2, 3, 4, p, p + 1, 2 * p, 2 * p + 1, 16, 32}):
                if form.holds(p, m, v):
                    yield _difference(form, p, m, v, hop_s)


def _difference(form: Form, p: int, m: int, v: int, hop_s: float) -> float:
    repeats = {"repeats": v} if form.repeated else {}
    schedule = getattr(schedules, form.name)(stages=p, microbatches=m, **repeats)
    step = simulate(
        schedule,
        forward_s=_FORWARD,
        input_gradient_s=_INPUT,
        weight_gradient_s=_WEIGHT,
        transfer_s=hop_s,
    )
    hops = form.hops(p, m, v) * hop_s if hop_s else 0.0
    return step.bubble_s - form.bubble(p, m, v) - hops
