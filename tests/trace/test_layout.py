from itertools import pairwise

import pytest
from trace_helpers import circular_step, gather, linear_step, program, split_step

from ringline.schedule import all_gather, all_reduce, one_f_one_b
from ringline.simulate import simulate, simulate_collective
from ringline.topology import Ring, mover
from ringline.trace._layout import Layout, as_layouts
from ringline.trace._palette import THEMES, contrast, paint


def test_rows_and_lanes_hold_every_event_once():
    for step in (linear_step(), circular_step(), split_step(), gather()):
        layout = Layout(step)
        drawn = [event for row in layout.rows for event in row]
        drawn += [event for lanes in layout.lanes for lane in lanes for event in lane]
        assert len(drawn) == len(step.events)
        for lanes in layout.lanes:
            for lane in lanes:
                assert all(a.end_s <= b.start_s for a, b in pairwise(lane))


def test_links_that_are_never_busy_together_share_a_lane():
    assert {len(lanes) for lanes in Layout(linear_step()).lanes} == {1}
    slow = simulate(one_f_one_b(4, 8), forward_s=1.0, backward_s=2.0, transfer_s=1.5)
    assert {len(lanes) for lanes in Layout(slow).lanes} == {1, 2}


def test_flows_join_maker_transfer_and_reader():
    layout = Layout(circular_step())
    events = layout.timeline.events
    assert len(layout.flows) == 2 * 7 * 8
    for made, sent, read in layout.flows:
        assert made is not None
        assert read is not None
        assert events[made].end_s <= events[sent].start_s
        assert events[sent].end_s <= events[read].start_s
        assert abs(events[made].index - events[read].index) == 1


def test_transfers_of_one_link_at_once_have_lanes_of_their_own():
    hardware = mover("wormhole-ethernet")
    for schedule in (all_gather(Ring(8)), all_reduce(Ring(4))):
        layout = Layout(simulate_collective(schedule, 1 << 19, mover=hardware).timeline)
        assert layout.stripes
        assert all(len(lanes) > 2 for lanes in layout.lanes)
        assert not any(layout.rows)
        for lanes in layout.lanes:
            for lane in lanes:
                assert all(a.end_s <= b.start_s for a, b in pairwise(lane))


def test_caption():
    assert Layout(circular_step()).caption == "4 stages, 8 microbatches, 2 repeats"
    assert Layout(gather()).caption == "2 devices"
    assert Layout(program()).caption == "the program of every device"


def test_the_links_of_every_device_of_a_ring_are_in_the_same_order():
    step = simulate_collective(all_gather(Ring(4)), 1 << 12, mover=mover("wormhole-ethernet"))
    peers = [[peer for peer, _ in links] for links in Layout(step.timeline).links]
    assert peers == [[1, 3], [2, 0], [3, 1], [0, 2]]


def test_nothing_to_draw_is_refused():
    with pytest.raises(ValueError, match="expected at least one timeline"):
        as_layouts([])


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("kind", ["F", "B", "I", "W", "SEND", "X"])
def test_text_can_be_read_on_every_shade(kind, theme):
    for repeats in (1, 2, 4, 8):
        shades = [paint(kind, repeat, repeats, theme) for repeat in range(repeats)]
        assert len({shade.fill for shade in shades}) == repeats
        assert all(contrast(shade.text, shade.fill) >= 4.5 for shade in shades)
