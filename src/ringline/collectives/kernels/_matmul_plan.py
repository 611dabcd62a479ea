"""The steps of the kernels with a matmul in them: products beside copies that are on their way."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import groupby

from ringline.collectives.kernels._plan import KernelPlan, Step, plan_gather, plan_scatter
from ringline.schedule import CollectiveSchedule


@lru_cache(maxsize=256)
def plan_gather_matmul(schedule: CollectiveSchedule) -> KernelPlan:
    """The kernel of an all-gather with a matmul for each stripe, beside the copies of the next.

    Raises:
        ScheduleError: when the senders of one lane pass on different arrivals.
    """
    plan = plan_gather(schedule)
    own, everyone = len(plan.lanes), (True,) * plan.devices
    times = [lane[0].step for lane in schedule.by_lane() if lane[0].kind == "stripe"]
    moves = [step for step in plan.steps if step.what in ("arrive", "send", "sent")]
    last = max(place for place, step in enumerate(moves) if step.what == "send")
    steps = [Step("enter", own, everyone)]
    waiting = [Step("multiply", own, everyone)]
    for _, group in groupby(_timed(moves[: last + 1], times), key=lambda pair: pair[0]):
        landed = []
        for _, step in group:
            steps.append(step)
            landed += _products([step])
        steps += waiting
        waiting = landed
    steps += waiting
    for step in moves[last + 1 :]:
        steps += [step, *_products([step])]
    return replace(plan, steps=tuple(steps))


def _timed(moves: Sequence[Step], times: Sequence[int]) -> list[tuple[int, Step]]:
    """Each step with the schedule's step of the next send."""
    timed, time = [], 0
    for step in reversed(moves):
        time = times[step.lane] if step.what == "send" else time
        timed.append((time, step))
    return timed[::-1]


def _products(moves: Sequence[Step]) -> list[Step]:
    """The products of what has arrived."""
    return [step._replace(what="multiply") for step in moves if step.what == "arrive"]


@lru_cache(maxsize=256)
def plan_matmul_scatter(schedule: CollectiveSchedule) -> KernelPlan:
    """The kernel of a matmul with a reduce-scatter: each product is formed when its sum leaves.

    Raises:
        ScheduleError: when the senders of one lane send different pieces.
    """
    plan = plan_scatter(schedule)
    steps: list[Step] = []
    credits: list[Step] = []
    product = None
    for step in plan.steps:
        if step.what == "loaded":
            product = step._replace(what="multiply")
        elif step.what == "credit":
            credits.append(step)
        elif step.what not in ("load", "add"):
            if product is not None and step.what != "arrive":
                steps += [product, *credits]
                product, credits = None, []
            if step.what != "store":
                steps.append(step)
    return replace(plan, steps=tuple(steps))
