import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringline.schedule import (
    CollectiveSchedule,
    Compute,
    FlowControl,
    Receive,
    ScheduleError,
    Send,
    all_gather,
    all_reduce,
    check_collective,
    check_program,
    reduce_scatter,
)
from ringline.topology import Line, Ring

schedules = st.builds(
    lambda make, kind, devices, directions, channels: make(
        kind(devices), directions=directions, channels=channels
    ),
    st.sampled_from([reduce_scatter, all_reduce]),
    st.sampled_from([Ring, Line]),
    st.integers(1, 9),
    st.integers(1, 2),
    st.integers(1, 3),
)


def _sums(schedule):
    """Run the program on symbols: per device and (stripe, piece), the expression of its sum."""
    program = schedule.program()
    held = [
        {v: f"a{device}" for v in values if v.kind != "stripe"}
        for device, values in enumerate(program.initial)
    ]
    channels = {}
    at = [0] * program.devices
    while any(at[d] < len(row) for d, row in enumerate(program.rows)):
        for device, row in enumerate(program.rows):
            while at[device] < len(row):
                match row[at[device]]:
                    case Send(value, peer, channel):
                        lane = channels.setdefault((device, peer, channel), [])
                        lane.append(held[device][value])
                    case Receive(value, peer, channel):
                        lane = channels.get((peer, device, channel), [])
                        if not lane:
                            break
                        held[device][value] = lane.pop(0)
                    case Compute("add", reads=(left, right), writes=(value,)):
                        held[device][value] = f"({held[device][left]}+{held[device][right]})"
                at[device] += 1
    return [
        {(v.index, v.part): held[device][v] for v in values}
        for device, values in enumerate(program.final)
    ]


@settings(max_examples=40, deadline=None)
@given(schedules, st.sampled_from([None, 1, 2]))
def test_every_term_is_added_once(schedule, capacity):
    schedule.validate()
    check_program(schedule.program(), capacity=capacity)
    if schedule.devices > 1:
        for sums in _sums(schedule):
            for text in sums.values():
                terms = sorted(map(int, re.findall(r"a(\d+)", text)))
                assert terms == list(range(schedule.devices))


@settings(max_examples=40, deadline=None)
@given(schedules)
def test_text_form_and_transpose_round_trip(schedule):
    assert CollectiveSchedule.from_text(schedule.to_text()) == schedule
    schedule.transposed().validate()
    assert schedule.transposed().transposed() == schedule
    assert str(schedule).count("p") >= sum(t.kind == "partial" for t in schedule.transfers)


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("kind", [Ring, Line])
@pytest.mark.parametrize("devices", range(1, 8))
def test_a_reduce_scatter_costs_what_the_all_gather_does(kind, devices, directions):
    gather = all_gather(kind(devices), directions=directions)
    reduce = reduce_scatter(kind(devices), directions=directions)
    assert reduce.steps == gather.steps
    assert sorted(reduce.stripes_per_link().values()) == sorted(gather.stripes_per_link().values())
    whole = all_reduce(kind(devices), directions=directions)
    assert whole.steps == 2 * gather.steps
    if devices > 1:
        per_link = devices - 1 if kind is Ring and devices > 2 else devices
        assert set(whole.stripes_per_link().values()) == {per_link}


def test_35087_the_order_of_summation_is_the_documented_one():
    """tt-metal 35087: a reduction rounded differently from device to device."""
    ring = _sums(reduce_scatter(Ring(4), directions=2))
    for d in range(4):
        up, down, far = (d - 1) % 4, (d + 1) % 4, (d + 2) % 4
        assert ring[d][d, 0] == f"((a{d}+a{up})+(a{down}+a{far}))"
        assert ring[d][d, 1] == f"((a{d}+(a{up}+a{far}))+a{down})"
    odd = _sums(reduce_scatter(Ring(5), directions=2))
    for d in range(5):
        near = [(d + hop) % 5 for hop in (-1, -2, 1, 2)]
        assert odd[d][d, 0] == "((a{}+(a{}+a{}))+(a{}+a{}))".format(d, *near)
    one_way = _sums(reduce_scatter(Ring(4), directions=1))
    assert one_way[1][1, 0] == "(a1+(a2+(a3+a0)))"
    line = _sums(reduce_scatter(Line(4), directions=2))
    assert [line[d][d, 0] for d in range(4)] == [
        "(a0+(a1+(a2+a3)))",
        "((a1+a0)+(a2+a3))",
        "((a2+(a1+a0))+a3)",
        "(a3+(a2+(a1+a0)))",
    ]
    assert _sums(reduce_scatter(Line(4), directions=1)) == line


@settings(max_examples=20, deadline=None)
@given(schedules)
def test_an_all_reduce_has_one_order_for_all_devices(schedule):
    if schedule.name == "all-reduce" and schedule.devices > 1:
        first, *others = _sums(schedule)
        assert all(sums == first for sums in others)


def test_packets_of_a_reduce_scatter_never_wait_in_a_circle():
    """Sums are formed in memory, so nothing goes on from slot to slot."""
    flow = FlowControl(slots=1)
    assert check_collective(reduce_scatter(Ring(4)), 1 << 16, flow).safe
    assert check_collective(all_reduce(Line(4)), 1 << 16, flow).safe


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0: 0>1 c0 p1[0:1]\n1: 1>2 c0 p0[0:1]", "ends without stripe"),
        ("0: 0>1 c0 p1[0:1]\n1: 0>1 c0 p1[0:1]", "which it gave away before; drop that send"),
        ("0: 0>1 c0 p2[0:1], 1>2 c0 p2[0:1]", "while a term of it arrives; send it in a later"),
        ("0: 1>2 c0 p2[0:1]\n1: 0>1 c0 p2[0:1]", "to device 1, which gave its own away before"),
        ("0: 0>1 c0 s1[0:1]", "sends piece 0 of stripe 1, which has not arrived"),
    ],
)
def test_a_wrong_reduction_is_refused_by_name(text, message):
    head = "reduce-scatter line devices=3 directions=2 channels=1 pieces=1\n"
    with pytest.raises(ScheduleError, match=re.escape(message)):
        CollectiveSchedule.from_text(head + text).validate()


def test_an_unknown_collective_is_refused():
    text = "all-shuffle line devices=2 directions=2 channels=1 pieces=1\n"
    with pytest.raises(ScheduleError, match=r"name must be one of .*, got 'all-shuffle'"):
        CollectiveSchedule.from_text(text).validate()
