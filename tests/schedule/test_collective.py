import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringline.schedule import (
    CollectiveSchedule,
    ScheduleError,
    Transfer,
    all_gather,
    check_program,
)
from ringline.topology import Line, Ring

schedules = st.builds(
    lambda kind, devices, directions, channels: all_gather(
        kind(devices), directions=directions, channels=channels
    ),
    st.sampled_from([Ring, Line]),
    st.integers(1, 9),
    st.integers(1, 2),
    st.integers(1, 3),
)


@settings(max_examples=40, deadline=None)
@given(schedules, st.sampled_from([None, 1, 2]))
def test_every_device_ends_with_every_stripe(schedule, capacity):
    schedule.validate()
    check_program(schedule.program(), capacity=capacity)


@settings(max_examples=40, deadline=None)
@given(schedules)
def test_text_form_round_trips(schedule):
    assert CollectiveSchedule.from_text(schedule.to_text()) == schedule


@settings(max_examples=40, deadline=None)
@given(schedules)
def test_grid_shows_every_send_once(schedule):
    head, *rows = str(schedule).splitlines()
    assert len(rows) == schedule.devices
    assert sum(len(re.findall("[<>]", row)) for row in rows) == len(schedule.transfers)
    assert head.startswith(f"all-gather on a {type(schedule.topology).__name__.lower()}")


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("devices", range(1, 10))
@pytest.mark.parametrize("kind", [Ring, Line])
@pytest.mark.parametrize("directions", [1, 2])
def test_steps_and_busiest_link_follow_the_formulas(kind, devices, directions, channels):
    schedule = all_gather(kind(devices), directions=directions, channels=channels)
    hops = devices - 1
    if kind is Ring and devices > 2:
        steps = hops if directions == 1 else -(-hops // 2)
        stripes = hops / directions
    else:
        steps = hops * (3 - directions) if devices > 2 else hops
        stripes = hops
    assert schedule.steps == steps
    assert max(map(float, schedule.stripes_per_link().values()), default=0) == stripes
    assert schedule.busiest_link_bytes(1000 * devices) == pytest.approx(1000 * stripes)


def test_both_directions_of_a_ring_carry_the_same_bytes():
    """tt-metal 11845: workers were not balanced between the directions."""
    for devices in range(3, 10):
        carried = all_gather(Ring(devices), directions=2).stripes_per_link()
        assert set(map(float, carried.values())) == {(devices - 1) / 2}


def test_a_line_sends_only_what_is_needed():
    carried = all_gather(Line(5), directions=2).stripes_per_link()
    for device in range(4):
        assert carried[device, device + 1] == device + 1
        assert carried[device + 1, device] == 4 - device


def test_channels_share_the_bytes_of_a_link():
    """tt-metal 24503: one link and two links showed the same bandwidth and nobody could see why."""
    schedule = all_gather(Ring(5), directions=1, channels=4)
    lanes = [t.channel for t in schedule.transfers if t.source == 0]
    assert [lanes.count(channel) for channel in range(4)] == [4] * 4


def test_a_ring_of_two_is_a_line():
    """tt-metal 6088, 12770, 30296: a ring of two hung."""
    assert (
        all_gather(Ring(2), directions=2).transfers == all_gather(Line(2), directions=2).transfers
    )


def test_two_devices_are_done_in_one_step():
    """One direction at a time would be two sweeps, but neither device passes anything on."""
    for directions in (1, 2):
        schedule = all_gather(Line(2), directions=directions)
        assert schedule.steps == 1
        assert [len(lane) for lane in schedule.by_lane()] == [2]


def test_one_device_has_nothing_to_do():
    schedule = all_gather(Ring(1))
    assert schedule.transfers == ()
    assert schedule.steps == 0
    assert schedule.busiest_link_bytes(64) == 0
    schedule.validate()
    assert str(schedule).splitlines()[1] == "device 0 |"


@pytest.mark.parametrize("directions", [0, 3, -1])
def test_directions_other_than_one_or_two_are_refused(directions):
    with pytest.raises(ValueError, match="directions must be 1 or 2, got"):
        all_gather(Ring(4), directions=directions)


def test_no_channels_are_refused():
    with pytest.raises(ValueError, match="channels must be at least 1, got 0"):
        all_gather(Ring(4), channels=0)


def _edited(topology, **changes):
    """A good schedule with the first transfer of device 1 changed."""
    good = all_gather(topology, directions=1)
    transfers = list(good.transfers)
    index = next(i for i, t in enumerate(transfers) if t.source == 1)
    transfers[index] = transfers[index]._replace(**changes)
    return CollectiveSchedule("all-gather", topology, 1, 1, good.pieces, tuple(transfers))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stripe": 3}, "step 0: device 1 sends piece 0 of stripe 3, which has not arrived"),
        ({"channel": 2}, "step 0: device 1 sends on channel 2; expected 0 to 0"),
        ({"direction": 2}, "step 0: device 1 has direction 2; expected 1 or -1"),
        ({"stop": 9}, "step 0: device 1 sends pieces 0:9 of a stripe of 1"),
        ({"stripe": 7}, "step 0: device 1 sends stripe 7; expected 0 to 3"),
        ({"source": 7}, "step 0: device 7 is not one of the 4 devices"),
        ({"source": 0}, "step 0: device 0 sends twice on one channel"),
    ],
)
def test_validate_names_the_first_fault(changes, message):
    with pytest.raises(ScheduleError, match=re.escape(message)) as raised:
        _edited(Ring(4), **changes).validate()
    assert raised.value.step == 0


def test_a_missing_send_is_found():
    good = all_gather(Ring(4), directions=1)
    short = CollectiveSchedule("all-gather", Ring(4), 1, 1, 1, good.transfers[:-1])
    with pytest.raises(ScheduleError, match="ends without stripe"):
        short.validate()


def test_a_stripe_sent_to_a_device_that_has_it_is_found():
    good = all_gather(Line(3), directions=2)
    twice = (*good.transfers, Transfer(2, 0, 1, 0, 0, 0, 1))
    with pytest.raises(ScheduleError, match="which has it already"):
        CollectiveSchedule("all-gather", Line(3), 2, 1, 1, twice).validate()


def test_devices_that_are_no_neighbours_are_refused_with_the_pair_named():
    """tt-metal 13693, 20491: "device 4 is not connected to device 6"."""
    text = "all-gather line devices=8 directions=1 channels=1 pieces=1\n0: 4>6 c0 s4[0:1]\n"
    with pytest.raises(ScheduleError, match="device 4 is not connected to device 6"):
        CollectiveSchedule.from_text(text)
    past_the_end = CollectiveSchedule(
        "all-gather", Line(4), 1, 1, 1, (Transfer(0, 3, 1, 0, 3, 0, 1),)
    )
    with pytest.raises(ScheduleError, match="device 3 is not connected to device 4"):
        past_the_end.validate()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: expected 'all-gather ring devices=4"),
        ("all-gather star devices=4 directions=1 channels=1 pieces=1", "line 1: topology must be"),
        ("all-gather ring devices=0 directions=1 channels=1 pieces=1", "line 1: a ring needs at"),
        (
            "all-gather ring devices=4 directions=1 channels=1 pieces=1\nx: 0>1 c0 s0[0:1]",
            "line 2: expected 'step: transfers', got 'x: 0>1 c0 s0[0:1]'",
        ),
        (
            "all-gather ring devices=4 directions=1 channels=1 pieces=1\n\n0: 0>1 c0 s0",
            "line 3: expected a transfer like '2>3 c0 s1[0:2]', got '0>1 c0 s0'",
        ),
    ],
)
def test_unreadable_text_is_refused_with_its_line(text, message):
    with pytest.raises(ScheduleError, match=re.escape(message)):
        CollectiveSchedule.from_text(text)
