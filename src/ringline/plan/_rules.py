"""What the planner knows of each schedule in closed form: bubble, exposed hops, activations."""

from collections.abc import Callable
from dataclasses import dataclass

Count = Callable[[int, int, int], float]


@dataclass(frozen=True, slots=True)
class Rule:
    """A schedule for p stages, m microbatches and v repeats.

    Attributes:
        name: the generator's name in `ringline.schedules`.
        repeats: the repeats it takes: `one`, `two` for a V, or `many` for two and more.
        bubble: (p, m, v, F, I, W) -> idle seconds of the step (its makespan), F, I and W the
            times of the heaviest stage for one microbatch, recomputation in I.
        exposed_hops: hops of the critical path that no computation hides.
        in_flight: most chunk activations that a stage holds.
        least_microbatches: the fewest microbatches for which the forms hold.
        source: where the forms come from.
        splits_backward: whether it runs I and W apart.
        multiple_of_stages: whether m must be a multiple of p.
    """

    name: str
    repeats: str
    bubble: Callable[[int, int, int, float, float, float], float]
    exposed_hops: Count
    in_flight: Count
    least_microbatches: Callable[[int], int]
    source: str
    splits_backward: bool = False
    multiple_of_stages: bool = False

    @property
    def folded(self) -> bool:
        """Whether the first stage holds the first and the last chunk: a V."""
        return self.repeats == "two"

    def chunk_repeats(self, layers_per_stage: int) -> tuple[int, ...]:
        """The repeats worth trying where a stage has so many layers."""
        tried = {"one": (1,), "two": (2,), "many": (2, 4, 8)}[self.repeats]
        return tuple(v for v in tried if v <= layers_per_stage)

    def refuses(self, stages: int, microbatches: int, repeats: int, remat: str) -> str | None:
        """Why these numbers do not go with the schedule, or None."""
        if self.repeats == "one" and repeats != 1:
            return f"{self.name} has one repeat, got repeats={repeats}"
        if self.repeats == "two" and repeats != 2:
            return f"{self.name} has two repeats, the arms of its V, got repeats={repeats}"
        if self.repeats == "many" and repeats < 2:
            return f"{self.name} needs repeats of at least 2, got {repeats}"
        least = self.least_microbatches(stages)
        if microbatches < least:
            return f"{self.name} with {stages} stages needs at least {least} microbatches"
        if self.multiple_of_stages and microbatches % stages:
            return f"{self.name} needs microbatches to be a multiple of stages={stages}"
        if self.splits_backward and remat != "none":
            return f"{self.name} splits the backward, which saves nothing with remat={remat}"
        return None


def _whole(p: int, m: int, v: int, f: float, i: float, w: float) -> float:
    return (p - 1) * (f + i + w) / v


def _split(p: int, m: int, v: int, f: float, i: float, w: float) -> float:
    return (p - 1) * max(0.0, f + i - w)


def _v(p: int, m: int, v: int, f: float, i: float, w: float) -> float:
    """Exact for F <= I; else a lower bound."""
    return (p - 1) * max(i / 2, i - w, f / 2, f - w)


def _joined_v(p: int, m: int, v: int, f: float, i: float, w: float) -> float:
    """Exact for F = I = W and near it; pairs of F and B take as long as both."""
    return (p - 1) * (f + max(0.0, i - w) / 2)


def steady_hops(p: int, m: int, v: int) -> float:
    """Hops of 1F1B: 2 (p - 1) m / p + 2 (p - 2) where p divides m, and what lies between."""
    return 2 * (p - 1) + 2 * max(0, -(-(m - 2) * (p - 1) // p))


_SYNCHRONISED = (
    "one jitted step waits for all stages, so its makespan keeps the H1 bubble: it pays in "
    "memory for nothing here"
)

RULES: dict[str, Rule] = {
    rule.name: rule
    for rule in (
        Rule(
            "linear",
            "one",
            _whole,
            lambda p, m, v: 2 * (p - 1),
            lambda p, m, v: m,
            lambda p: 1,
            "arXiv 1811.06965",
        ),
        Rule(
            "circular",
            "many",
            _whole,
            lambda p, m, v: 2 * (p - 1) if m > p else 2 * (p * v - 1),
            lambda p, m, v: m * v,
            lambda p: p,
            "arXiv 2211.05953",
        ),
        Rule(
            "one_f_one_b",
            "one",
            _whole,
            steady_hops,
            lambda p, m, v: min(m, p),
            lambda p: 1,
            "arXiv 2104.04473",
        ),
        Rule(
            "eager_one_f_one_b",
            "one",
            _whole,
            lambda p, m, v: 2 * (p - 1),
            lambda p, m, v: min(m, 2 * p - 1),
            lambda p: 1,
            "1F1B with twice the warm-up",
        ),
        Rule(
            "interleaved_one_f_one_b",
            "many",
            _whole,
            lambda p, m, v: 2 * (p * v - 1),
            lambda p, m, v: min(m * v, 2 * (p - 1) + (v - 1) * p + 1),
            lambda p: p,
            "arXiv 2104.04473",
            multiple_of_stages=True,
        ),
        Rule(
            "zero_bubble_h1",
            "one",
            _split,
            lambda p, m, v: 4 * (p - 1),
            lambda p, m, v: p,
            lambda p: p + 1,
            "arXiv 2401.10241",
            splits_backward=True,
        ),
        Rule(
            "zero_bubble_h2",
            "one",
            _split,
            lambda p, m, v: 2 * (p - 1),
            lambda p, m, v: 2 * p - 1,
            lambda p: 2 * p + 1,
            f"arXiv 2401.10241; {_SYNCHRONISED}",
            splits_backward=True,
        ),
        Rule(
            "zero_bubble_v",
            "two",
            _v,
            lambda p, m, v: 5 * p - 7,
            lambda p, m, v: min(2 * m, 2 * p),
            lambda p: 2 * p - 1,
            "arXiv 2401.10241; the makespan, hops counted in the simulator",
            splits_backward=True,
        ),
        Rule(
            "dualpipe_v",
            "two",
            _joined_v,
            steady_hops,
            lambda p, m, v: 2 * p + 1,
            lambda p: 2 * p,
            "arXiv 2412.19437; a joined pair of F and B takes as long as both",
            splits_backward=True,
        ),
    )
}

NOT_CONSIDERED = {
    "zero_bubble": "its order is searched for given costs, so it has no closed form to rank by",
    "zero_bubble_v_half": "its bubble has a closed form for F = I = W only",
    "zero_bubble_v_min": "without F = I = W its bubble grows with every microbatch",
}
