"""A faster link, and a shorter computation, never slow a step."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringline import schedules
from ringline.schedule import all_gather, all_reduce, reduce_scatter
from ringline.simulate import Link, simulate, simulate_collective, simulate_program
from ringline.topology import Line, Ring, mover

steps = st.one_of(
    st.builds(schedules.linear, stages=st.integers(1, 5), microbatches=st.integers(1, 8)),
    st.builds(
        schedules.circular,
        stages=st.integers(2, 4),
        microbatches=st.sampled_from([4, 8]),
        repeats=st.integers(1, 3),
    ),
    st.builds(schedules.one_f_one_b, stages=st.integers(1, 5), microbatches=st.integers(1, 8)),
    st.builds(schedules.zero_bubble_h1, stages=st.integers(1, 5), microbatches=st.integers(1, 8)),
    st.builds(schedules.dualpipe_v, stages=st.integers(1, 4), microbatches=st.integers(1, 8)),
    st.builds(
        schedules.interleaved_one_f_one_b,
        stages=st.sampled_from([2, 4]),
        microbatches=st.sampled_from([4, 8]),
        repeats=st.integers(2, 3),
    ),
)
times_s = st.floats(0.0, 3.0)
no_more = 1 + 1e-12


@settings(max_examples=50, deadline=None)
@given(steps, times_s, times_s, times_s, st.floats(0.0, 1.0), st.booleans())
def test_a_faster_link_never_slows_a_step(
    schedule, forward_s, gradient_s, transfer_s, factor, overlap
):
    slow, fast = (
        simulate(
            schedule,
            forward_s=forward_s,
            input_gradient_s=gradient_s,
            weight_gradient_s=gradient_s / 2,
            transfer_s=c,
            overlap=overlap,
        ).makespan_s
        for c in (transfer_s, transfer_s * factor)
    )
    assert fast <= slow * no_more


@settings(max_examples=30, deadline=None)
@given(steps, times_s, times_s, times_s, st.floats(0.0, 1.0), st.booleans())
def test_cost_is_monotone_in_the_work(schedule, forward_s, gradient_s, transfer_s, factor, overlap):
    more, less = (
        simulate(
            schedule,
            forward_s=forward_s * share,
            input_gradient_s=gradient_s,
            weight_gradient_s=gradient_s / 2,
            transfer_s=transfer_s,
            overlap=overlap,
        ).makespan_s
        for share in (1.0, factor)
    )
    assert less <= more * no_more


@settings(max_examples=30, deadline=None)
@given(steps, st.integers(0, 10_000), st.integers(0, 10_000), times_s)
def test_cost_is_monotone_in_what_is_sent(schedule, size, more, latency_s):
    small, large = (
        simulate_program(
            schedule.program(),
            compute_s=lambda stage, compute: 1.0,
            link=Link(latency_s=latency_s, bytes_per_s=1e4),
            size_bytes=lambda value, b=b: b,
        ).makespan_s
        for b in (size, size + more)
    )
    assert small <= large * no_more


faster_movers = st.tuples(
    st.sampled_from(
        ["bytes_per_s", "inject_bytes_per_s", "hop_latency_s", "packet_gap_s", "least_packet_s"]
    ),
    st.floats(1.0, 4.0),
)


def _slow_and_fast_s(schedule, size, faster):
    what, factor = faster
    slow = mover("wormhole-ethernet")
    value = getattr(slow, what)
    faster = replace(slow, **{what: value * factor if what.endswith("per_s") else value / factor})
    return tuple(simulate_collective(schedule, size, mover=one).time_s for one in (slow, faster))


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from([all_gather, reduce_scatter, all_reduce]),
    st.integers(2, 8),
    st.integers(1, 300_000),
    faster_movers,
)
def test_a_faster_link_never_slows_a_line(make, devices, size, faster):
    slow_s, fast_s = _slow_and_fast_s(make(Line(devices)), size, faster)
    assert fast_s <= slow_s * no_more


@settings(max_examples=20, deadline=None)
@given(st.integers(3, 8), st.integers(1, 300_000), faster_movers)
def test_a_faster_link_slows_a_ring_by_no_more_than_a_tenth(devices, size, faster):
    """Senders of a ring take turns by time, so a run may fall out of step: see the docstring."""
    slow_s, fast_s = _slow_and_fast_s(all_gather(Ring(devices)), size, faster)
    assert fast_s <= slow_s * 1.10


def test_an_instant_link_is_the_limit():
    schedule = schedules.circular(stages=4, microbatches=8, repeats=2)
    step = simulate(schedule, forward_s=1.0, backward_s=2.0)
    assert step.makespan_s == pytest.approx(24 + 4.5)
