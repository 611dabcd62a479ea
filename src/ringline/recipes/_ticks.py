r"""When the loop of a compiled pipeline is where: the time of a step, tick by tick.

The loop waits in every tick for both transfers, even those that carry nothing that is needed, so
stages keep step with their neighbours. With $e_s$ the end of the tick before on stage s, c a
transfer's time and F, B what runs in the tick (0 in a bubble),

$$ g_s = \max(e_s + F, e_{s+1} + c), \qquad e'_s = \max(g_s + B, g_{s-1} + c). $$

The cotangent of the tick before travels behind F, the activation of this one behind B.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ringline.schedule import PipelineSchedule, place_on_ticks

PHASES = ("F", "BI", "W")


@dataclass(frozen=True, slots=True)
class TickTimes:
    """How long the loop takes.

    Attributes:
        ticks: how many.
        loop_s: from its start until the last stage is done.
        busy_s: what the busiest stage computes in it.
    """

    ticks: int
    loop_s: float
    busy_s: float


def scheduled_loop(
    schedule: PipelineSchedule, costs_s: Mapping[str, float], transfer_s: float
) -> TickTimes:
    """The loop of `pipeline_loss`.

    Args:
        schedule: the order.
        costs_s: seconds of one chunk's operations, by their letter.
        transfer_s: one transfer, each direction by itself.
    """
    work, ticks = _work(schedule, PHASES, 1)
    stages = schedule.stages
    end = [0.0] * stages
    for tick in range(ticks):
        ran = [
            [sum(costs_s[op] for op in work.get((stage, tick, phase), "")) for phase in range(3)]
            for stage in range(stages)
        ]
        middle = [end[s] + ran[s][0] for s in range(stages)]
        for s, there in _pairs(schedule, 1):
            middle[s] = max(middle[s], end[there] + transfer_s)
        done = [middle[s] + ran[s][1] + ran[s][2] for s in range(stages)]
        for s, there in _pairs(schedule, -1):
            done[s] = max(done[s], middle[there] + transfer_s)
        end = done
    return TickTimes(ticks, max(end), _busy(work, costs_s, stages))


def autodiff_loop(
    schedule: PipelineSchedule, costs_s: Mapping[str, float], transfer_s: float, late_send: bool
) -> TickTimes:
    """The loops of `pipeline`, forward and then, by autodiff, backward.

    A tick computes and then sends, or with `late_send` sends what the tick before made while it
    computes.

    Args:
        schedule: the order; its forwards count.
        costs_s: seconds of one chunk's F and B.
        transfer_s: one transfer.
        late_send: whether transfers run beside the computation.
    """
    work, ticks = _work(schedule.forward(), ("F",), 2 if late_send else 1)
    stages = schedule.stages
    total = 0.0
    for op, order, neighbour in (("F", range(ticks), -1), ("B", reversed(range(ticks)), 1)):
        end = [0.0] * stages
        for tick in order:
            ran = [costs_s[op] if (s, tick, 0) in work else 0.0 for s in range(stages)]
            done = [e + r for e, r in zip(end, ran)]
            sent = end if late_send else done
            end = list(done)
            for s, there in _pairs(schedule, neighbour):
                end[s] = max(end[s], sent[there] + transfer_s)
        total += max(end)
    each = {"F": costs_s["F"] + costs_s["B"]}
    return TickTimes(ticks, total, _busy(work, each, stages))


def _work(
    schedule: PipelineSchedule, phases: Sequence[str], hop: int
) -> tuple[dict[tuple[int, int, int], str], int]:
    """What runs at each stage, tick and phase, and the number of ticks."""
    placed = place_on_ticks(schedule.one_by_one().program(), tuple(phases), hop)
    work: dict[tuple[int, int, int], str] = {}
    for stage, row in enumerate(placed):
        for item in row:
            place = stage, item.tick, item.phase
            work[place] = work.get(place, "") + item.compute.op
    return work, 1 + max(row[-1].tick for row in placed if row)


def _pairs(schedule: PipelineSchedule, offset: int) -> set[tuple[int, int]]:
    """Stages with the one that sends to them: forward from before, backward (1) from after."""
    crossing = {(a, b) for a, b in zip(schedule.stage_of, schedule.stage_of[1:]) if a != b}
    return {(b, a) for a, b in crossing} if offset < 0 else crossing


def _busy(
    work: Mapping[tuple[int, int, int], str], costs_s: Mapping[str, float], stages: int
) -> float:
    totals = [0.0] * stages
    for (stage, _, _), ops in work.items():
        totals[stage] += sum(costs_s[op] for op in ops)
    return max(totals)
