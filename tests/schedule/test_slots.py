"""Slot allocation: no overlap, no waste, lowest slot first."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringline.schedule import allocate_slots

INTERVALS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(1, 12)).map(lambda p: (p[0], p[0] + p[1])),
    max_size=40,
)


@settings(max_examples=50, deadline=None)
@given(INTERVALS)
def test_no_two_values_share_a_slot_and_the_count_is_the_peak(intervals):
    slots, count = allocate_slots(intervals)
    times = range(max((end for _, end in intervals), default=0))
    alive = [[i for i, (start, end) in enumerate(intervals) if start <= t < end] for t in times]
    for present in alive:
        held = [slots[i] for i in present]
        assert len(held) == len(set(held))
    assert count == max((len(present) for present in alive), default=0)
    assert all(0 <= slot < count for slot in slots)


def test_an_interval_may_start_where_another_ends():
    assert allocate_slots([(4, 6), (0, 4), (6, 7)]) == ((0, 0, 0), 1)


def test_the_lowest_free_slot_is_taken():
    assert allocate_slots([(0, 2), (0, 2), (0, 9), (2, 4), (3, 5)])[0] == (0, 1, 2, 0, 1)


@pytest.mark.parametrize("interval", [(3, 3), (4, 2)])
def test_an_interval_of_no_length_is_refused(interval):
    with pytest.raises(ValueError, match="start < end"):
        allocate_slots([interval])
