"""Bubbles against the closed forms that the generators' docstrings give."""

import pytest
from schedule_cases import bubbles

from ringline import schedules

COSTS = ((1.0, 1.0, 1.0), (1.0, 1.2, 0.8), (1.5, 1.25, 1.0))
HOP_S = 0.05
MICROBATCHES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 14, 16, 17, 24, 32)

grid = pytest.mark.parametrize("p", range(2, 9))


def near(value: float):
    return pytest.approx(value, abs=1e-9)


@grid
@pytest.mark.parametrize("costs", COSTS)
def test_linear_and_eager_pay_the_hops_once_a_step(p, costs):
    f, i, w = costs
    for m in MICROBATCHES:
        for hop_s in (0.0, HOP_S):
            expected = near((p - 1) * (f + i + w) + 2 * (p - 1) * hop_s)
            assert bubbles(schedules.linear(p, m), *costs, hop_s=hop_s)[0] == expected
            assert bubbles(schedules.eager_one_f_one_b(p, m), *costs, hop_s=hop_s)[0] == expected


@grid
@pytest.mark.parametrize("costs", COSTS)
def test_one_f_one_b_pays_the_hops_all_the_time(p, costs):
    f, i, w = costs
    for m in MICROBATCHES:
        schedule = schedules.one_f_one_b(p, m)
        assert bubbles(schedule, *costs)[0] == near((p - 1) * (f + i + w))
        if m % p == 0:
            hops = 2 * (p - 1) * m / p + 2 * (p - 2)
            expected = (p - 1) * (f + i + w) + hops * HOP_S
            assert bubbles(schedule, *costs, hop_s=HOP_S)[0] == near(expected)


@grid
@pytest.mark.parametrize("v", [1, 2, 3, 4])
@pytest.mark.parametrize("costs", COSTS)
def test_circular_divides_the_bubble_by_the_repeats(p, v, costs):
    f, i, w = costs
    for m in (m for m in MICROBATCHES if m >= p):
        schedule = schedules.circular(p, m, v)
        assert bubbles(schedule, *costs)[0] == near((p - 1) * (f + i + w) / v)
        if m == p or p * HOP_S <= (m - p) * f / v:
            hops = 2 * (p - 1) if m > p else 2 * (p * v - 1)
            expected = (p - 1) * (f + i + w) / v + hops * HOP_S
            assert bubbles(schedule, *costs, hop_s=HOP_S)[0] == near(expected)


@grid
@pytest.mark.parametrize("v", [1, 2, 3, 4])
@pytest.mark.parametrize("costs", COSTS)
def test_interleaved_divides_the_bubble_by_the_repeats_for_any_m_from_p_on(p, v, costs):
    f, i, w = costs
    for m in (m for m in MICROBATCHES if m >= p):
        schedule = schedules.interleaved_one_f_one_b(p, m, v)
        assert bubbles(schedule, *costs)[0] == near((p - 1) * (f + i + w) / v)
        if m % p == 0:
            expected = (p - 1) * (f + i + w) / v + 2 * (p * v - 1) * HOP_S
            assert bubbles(schedule, *costs, hop_s=HOP_S)[0] == near(expected)


@grid
@pytest.mark.parametrize("costs", COSTS)
def test_zero_bubble_h1_and_h2(p, costs):
    f, i, w = costs
    for m in (m for m in MICROBATCHES if m >= p):
        h1 = schedules.zero_bubble_h1(p, m)
        assert bubbles(h1, *costs)[0] == near((p - 1) * (f + i - w))
        if m > p:
            expected = (p - 1) * (f + i - w) + 4 * (p - 1) * HOP_S
            assert bubbles(h1, *costs, hop_s=HOP_S)[0] == near(expected)
        if m > 2 * p:
            h2 = schedules.zero_bubble_h2(p, m)
            assert bubbles(h2, *costs)[0] == near((p - 1) * (f + i - 2 * w))
            expected = (p - 1) * (f + i - 2 * w) + 2 * (p - 1) * HOP_S
            assert bubbles(h2, *costs, hop_s=HOP_S)[0] == near(expected)
            if f == i == w:
                assert bubbles(h2, *costs)[1] == near(bubbles(h1, *costs)[1])


@grid
@pytest.mark.parametrize("v", [2, 3, 4])
def test_zero_bubble_h1_divides_the_bubble_by_the_repeats(p, v):
    for m in (m for m in MICROBATCHES if m >= p):
        for f, i, w in COSTS:
            schedule = schedules.zero_bubble_h1(p, m, v)
            assert bubbles(schedule, f, i, w)[0] == near((p - 1) * (f + i - w) / v)


@grid
def test_zero_bubble_v_idles_only_in_the_makespan(p):
    for m in (m for m in MICROBATCHES if m >= p):
        longest_s, makespan_s = bubbles(schedules.zero_bubble_v(p, m))
        assert makespan_s == near((p - 1) / 2)
        if m >= 2 * p - 1:
            assert longest_s == near(0)


@grid
def test_v_half_and_v_min_keep_their_bubble_however_many_microbatches_there_are(p):
    for m in (m for m in MICROBATCHES if m >= p):
        half_s = bubbles(schedules.zero_bubble_v_half(p, m))[0]
        if p % 2 == 0 and p > 2:
            assert half_s == near(1.5 * p - 3)
        assert half_s <= 1.5 * (p - 1)
        assert bubbles(schedules.zero_bubble_v_min(p, m))[0] <= 2 * p - 2.5
