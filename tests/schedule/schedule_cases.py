"""The pipeline generators with what each takes and keeps, shared by the tests of this folder."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import strategies as st

from ringline import schedules
from ringline.schedule import PipelineSchedule
from ringline.schedule._spans import stage_spans

ORACLES = Path(__file__).resolve().parents[3] / "shared" / "oracles"
needs_oracles = pytest.mark.skipif(not ORACLES.exists(), reason=f"no schedule tables in {ORACLES}")


@dataclass(frozen=True)
class Case:
    """A generator by name, the repeats it takes, and the peak activations its docstring gives."""

    name: str
    repeats: tuple[int, ...]
    peak: Callable[[int, int, int, int], int]

    def make(self, stages: int, microbatches: int, repeats: int) -> PipelineSchedule:
        return getattr(schedules, self.name)(
            stages=stages, microbatches=microbatches, repeats=repeats
        )


def longest_run(p: int, m: int) -> int:
    return -(-m // max(1, m // p))


CASES = (
    Case("linear", (1,), lambda p, m, v, s: m),
    Case("circular", (1, 2, 3, 4), lambda p, m, v, s: m * v),
    Case("one_f_one_b", (1,), lambda p, m, v, s: min(m, p - s)),
    Case("eager_one_f_one_b", (1,), lambda p, m, v, s: min(m, 2 * (p - s) - 1)),
    Case(
        "interleaved_one_f_one_b",
        (1, 2, 3, 4),
        lambda p, m, v, s: min(m * v, 2 * (p - s - 1) + (v - 1) * longest_run(p, m) + 1),
    ),
    Case(
        "zero_bubble_h1",
        (1, 2, 3, 4),
        lambda p, m, v, s: min(m * v, (v - 1) * longest_run(p, m) + p),
    ),
    Case(
        "zero_bubble_h2",
        (1, 2, 3, 4),
        lambda p, m, v, s: min(m * v, (v - 1) * longest_run(p, m) + 2 * p - 1),
    ),
    Case("zero_bubble_v", (2,), lambda p, m, v, s: min(2 * m, 2 * p)),
    Case("dualpipe_v", (2,), lambda p, m, v, s: min(2 * m, 2 * p + 1)),
    Case("zero_bubble_v_half", (2,), lambda p, m, v, s: min(2 * m, p + 2 - p % 2)),
    Case("zero_bubble_v_min", (2,), lambda p, m, v, s: min(2 * m, 2 * -(-(p + 2) // 3))),
)

drawn = st.sampled_from(CASES).flatmap(
    lambda case: st.tuples(
        st.just(case), st.integers(1, 8), st.integers(1, 17), st.sampled_from(case.repeats)
    )
)


def bubbles(
    schedule: PipelineSchedule,
    forward_s: float = 1.0,
    input_s: float = 1.0,
    weight_s: float = 1.0,
    hop_s: float = 0.0,
) -> tuple[float, float]:
    """The idle time of the longest stage and of the makespan, costs being those of a stage."""
    costs = {"F": forward_s, "B": input_s + weight_s, "I": input_s, "W": weight_s}
    spans = stage_spans(
        schedule.rows, schedule.stage_of, lambda a: costs[a.op] / schedule.repeats, hop_s
    )
    work_s = schedule.microbatches * (forward_s + input_s + weight_s)
    longest_s = max(end - start for start, end in spans)
    makespan_s = max(end for _, end in spans) - min(start for start, _ in spans)
    return longest_s - work_s, makespan_s - work_s
