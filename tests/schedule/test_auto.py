"""The automatic zero-bubble scheduler."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule_cases import bubbles

from ringline.schedule._spans import stage_spans
from ringline.schedules import zero_bubble, zero_bubble_h1, zero_bubble_h2


@settings(max_examples=25, deadline=None)
@given(
    p=st.integers(1, 6),
    m=st.integers(1, 17),
    memory=st.integers(1, 14),
    share=st.sampled_from([0.0, 0.4, 1.0]),
    costs=st.tuples(*[st.floats(0, 4)] * 4),
)
def test_any_costs_and_any_memory_give_a_legal_schedule_within_it(p, m, memory, share, costs):
    f, i, w, c = costs
    schedule = zero_bubble(
        p,
        m,
        max_activations=memory,
        forward_s=f,
        input_gradient_s=i,
        weight_gradient_s=w,
        transfer_s=c,
        weight_share=share,
    )
    schedule.validate()
    for row in schedule.rows:
        kept = 0.0
        for action in row:
            kept += {"F": 1, "I": share - 1, "W": -share}[action.op]
            assert kept <= memory + 1e-6
    if share == 1:
        assert max(schedule.peak_activations()) <= memory


@settings(max_examples=20, deadline=None)
@given(p=st.integers(1, 5), m=st.integers(1, 12), v=st.integers(1, 3), extra=st.integers(0, 4))
def test_repeats(p, m, v, extra):
    longest = -(-m // max(1, m // p))
    schedule = zero_bubble(p, m, v, max_activations=longest + extra)
    schedule.validate()
    assert max(schedule.peak_activations()) <= (longest + extra) * v


@pytest.mark.parametrize(("p", "m", "v"), [(2, 3, 3), (3, 5, 3), (6, 9, 3), (8, 11, 4)])
def test_no_limit_asked_for_is_enough_where_p_does_not_divide_m(p, m, v):
    schedule = zero_bubble(p, m, v)
    schedule.validate()
    most = max(p * v, *zero_bubble_h1(p, m, v).peak_activations())
    assert max(schedule.peak_activations()) <= most


@pytest.mark.parametrize("p", [2, 4, 7])
@pytest.mark.parametrize("costs", [(1, 1, 1, 0), (1, 1.2, 0.8, 0.1), (2, 1, 1, 0)])
def test_it_is_no_worse_than_the_fixed_forms_at_their_memory(p, costs):
    f, i, w, c = costs
    for m in (p, 2 * p + 1, 4 * p):
        for memory, fixed in ((p, zero_bubble_h1), (2 * p - 1, zero_bubble_h2)):
            found = zero_bubble(
                p,
                m,
                max_activations=memory,
                forward_s=f,
                input_gradient_s=i,
                weight_gradient_s=w,
                transfer_s=c,
            )
            best = bubbles(found, f, i, w, c)[0]
            assert best <= bubbles(fixed(p, m), f, i, w, c)[0] + 1e-6


def test_stages_may_cost_different_times():
    """The order found for the true costs is no longer than the one found for equal ones."""
    costs = {"F": (1.0, 1.0, 1.0, 2.0), "I": (1.0, 1.0, 1.0, 2.0), "W": (1.0, 1.0, 1.0, 0.5)}

    def longest_s(schedule):
        spans = stage_spans(schedule.rows, schedule.stage_of, lambda a: costs[a.op][a.chunk])
        return max(end - start for start, end in spans)

    fitted = zero_bubble(
        4,
        12,
        max_activations=6,
        forward_s=costs["F"],
        input_gradient_s=costs["I"],
        weight_gradient_s=costs["W"],
    )
    fitted.validate()
    assert longest_s(fitted) <= longest_s(zero_bubble(4, 12, max_activations=6))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"forward_s": -1}, "forward_s must be finite"),
        ({"transfer_s": float("inf")}, "transfer_s must be finite"),
        ({"weight_gradient_s": (1, 1)}, "one for each of 4 stages, got 2"),
        ({"weight_share": 1.5}, r"weight_share must be finite and in 0..1, got 1.5"),
        ({"max_activations": 0}, "max_activations must be at least 1 "),
        ({"max_activations": 2, "repeats": 2}, "max_activations must be at least 2.5 "),
        ({"max_activations": float("nan")}, "max_activations must be at least 1 "),
    ],
)
def test_bad_input_is_refused_by_name(arguments, message):
    with pytest.raises(ValueError, match=message):
        zero_bubble(stages=4, microbatches=8, **arguments)
