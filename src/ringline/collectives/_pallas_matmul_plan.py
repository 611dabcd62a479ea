"""The steps of the kernels with a matmul in them: products beside copies that are on their way."""

from dataclasses import replace
from functools import lru_cache
from itertools import groupby

from ringline.collectives._pallas_plan import KernelPlan, Step, plan_gather, plan_scatter
from ringline.schedule import CollectiveSchedule


@lru_cache(maxsize=256)
def plan_gather_matmul(schedule: CollectiveSchedule) -> KernelPlan:
    """The kernel of an all-gather with a matmul for each stripe, beside the copies of the next.

    Raises:
        ScheduleError: when the senders of one lane pass on different arrivals.
    """
    plan = plan_gather(schedule)
    own, everyone = len(plan.lanes), (True,) * plan.devices
    arrives = {step.lane: step for step in plan.steps if step.what == "arrive"}
    times = [lane[0].step for lane in schedule.by_lane() if lane[0].kind == "stripe"]
    steps = [Step("enter", own, everyone)]
    waiting = [Step("multiply", own, everyone)]
    for _, group in groupby(range(own), key=times.__getitem__):
        landed = []
        for index in group:
            source = plan.lanes[index].source
            if source in arrives:
                steps.append(arrives.pop(source))
                landed.append(steps[-1]._replace(what="multiply"))
            steps.append(Step("send", index, plan.lanes[index].senders))
        steps += waiting
        waiting = landed
    steps += waiting
    for step in arrives.values():
        steps += [step, step._replace(what="multiply")]
    steps += [Step("sent", index, lane.senders) for index, lane in enumerate(plan.lanes)]
    return replace(plan, steps=tuple(steps))


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
