"""Gathers of weights and reductions of gradients beside a pipeline's computations."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringline import schedules
from ringline.simulate import simulate, union

SCHEDULES = (
    schedules.linear(3, 4),
    schedules.interleaved_one_f_one_b(4, 8, 2),
    schedules.zero_bubble_v(3, 6),
    schedules.dualpipe_v(2, 4),
)


def step(schedule, **costs):
    return simulate(schedule, forward_s=1.0, input_gradient_s=1.0, weight_gradient_s=1.0, **costs)


def test_once_a_step_is_seen_at_both_ends_only():
    schedule = schedules.interleaved_one_f_one_b(4, 8, 2)
    plain = step(schedule).makespan_s
    sharded = step(schedule, gather_s=0.5, reduce_s=0.5)
    # The first chunk's half before the first forward, the last chunk's behind the last backward.
    assert sharded.makespan_s == pytest.approx(plain + 0.25 + 0.25)
    kinds = [event.kind for event in sharded.events if event.peer == event.device]
    assert (kinds.count("GATHER"), kinds.count("REDUCE")) == (8, 8)
    assert sharded.exposed_transfer_s == pytest.approx(0.75)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule.name)
def test_for_each_use_hides_while_it_is_shorter_than_the_operation(schedule):
    plain = step(schedule).makespan_s
    hidden = step(schedule, gather_s=0.5, gather_every="use").makespan_s
    shown = step(schedule, gather_s=4.0, gather_every="use").makespan_s
    assert hidden <= plain + 2.0
    uses = max(sum(action.op != "W" for action in row) for row in schedule.rows)
    assert shown >= uses * 4.0 / schedule.repeats


@pytest.mark.parametrize("every", ["step", "use"])
def test_without_overlap_everything_adds_up(every):
    schedule = schedules.linear(1, 4)
    times = step(schedule, gather_s=0.5, gather_every=every, reduce_s=0.25, overlap=False)
    gathers = {"step": 1, "use": 8}[every]
    assert times.makespan_s == pytest.approx(4 * 3 + gathers * 0.5 + 0.25)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule.name)
def test_two_buffers_and_one_gather_at_a_time(schedule):
    times = step(schedule, gather_s=3.0, gather_every="use")
    for stage in range(schedule.stages):
        gathers = [e for e in times.events if e.kind == "GATHER" and e.device == stage]
        spans = [(e.start_s, e.end_s) for e in gathers]
        assert sum(end - start for start, end in union(spans)) == pytest.approx(
            sum(e.duration_s for e in gathers)
        )
        uses = [e for e in times.events if e.peer is None and e.device == stage and e.kind != "W"]
        for gather, use, before in zip(gathers[2:], uses[2:], uses):
            assert before.end_s <= gather.start_s + 1e-12
            assert gather.end_s <= use.start_s + 1e-12


def test_costs_of_stages_and_wrong_ones():
    schedule = schedules.linear(2, 2)
    sharded = step(schedule, gather_s=(0.0, 1.0), reduce_s=(2.0, 0.0))
    lasting = {
        (e.kind, e.device)
        for e in sharded.events
        if e.kind in ("GATHER", "REDUCE") and e.duration_s
    }
    assert lasting == {("GATHER", 1), ("REDUCE", 0)}
    with pytest.raises(ValueError, match="gather_s must be a finite time"):
        step(schedule, gather_s=-1.0)
    with pytest.raises(ValueError, match="gather_every must be 'step' or 'use'"):
        step(schedule, gather_s=1.0, gather_every="tick")


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(SCHEDULES),
    st.floats(0.0, 3.0),
    st.floats(0.0, 3.0),
    st.floats(0.0, 1.0),
    st.sampled_from(["step", "use"]),
    st.booleans(),
)
def test_a_faster_link_never_slows_a_step(schedule, gather_s, reduce_s, factor, every, overlap):
    slow, fast = (
        step(
            schedule,
            gather_s=gather_s * share,
            reduce_s=reduce_s * share,
            gather_every=every,
            transfer_s=0.1 * share,
            overlap=overlap,
        ).makespan_s
        for share in (1.0, factor)
    )
    assert fast <= slow * (1 + 1e-12)
