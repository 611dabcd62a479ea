import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringline.schedule import (
    Compute,
    Instruction,
    Program,
    Receive,
    ScheduleError,
    Send,
    Value,
    all_gather,
)
from ringline.simulate import collective_bound_s, collective_s, simulate_collective
from ringline.topology import Line, Mover, Ring, mover

WORMHOLE = mover("wormhole-ethernet")
PLAIN = Mover("plain", packet_bytes=1000, bytes_per_s=1e9, hop_latency_s=1e-6)
KIB = 1 << 10

topologies = st.builds(
    lambda kind, devices: kind(devices), st.sampled_from([Ring, Line]), st.integers(1, 8)
)


@pytest.mark.parametrize(
    ("topology", "hops_s"), [(Line(2), 1e-6 + 1e-6), (Line(3), 2 * (1e-6 + 1e-6))]
)
def test_one_packet_takes_wire_and_latency_at_each_hop(topology, hops_s):
    run = simulate_collective(all_gather(topology), 1000 * topology.devices, mover=PLAIN)
    assert run.time_s == pytest.approx(hops_s)


def test_cut_through_goes_on_packet_by_packet_and_store_and_forward_piece_by_piece():
    schedule, size = all_gather(Line(3)), 3 * 10_000
    through = simulate_collective(schedule, size, mover=PLAIN)
    stored = simulate_collective(schedule, size, mover=PLAIN, forwarding="store-and-forward")
    # The last link carries 20 packets one way or the other; a latency stands before and after.
    assert through.time_s == pytest.approx(20e-6 + 1e-6)
    assert stored.time_s == pytest.approx(20e-6 + 2e-6)


def test_too_few_slots_for_the_round_trip_slow_a_link_down():
    one = replace(PLAIN, sender_slots=1, receiver_slots=1)
    run = simulate_collective(all_gather(Line(2)), 2 * 10_000, mover=one)
    # Each packet waits for the credit of the one before: wire, there and back.
    assert run.time_s == pytest.approx(9 * 3e-6 + 2e-6)


def test_slots_of_one_memory_hold_fewer_large_packets():
    large = WORMHOLE.with_packet(6144)
    assert (large.sender_slots, large.receiver_slots) == (5, 11)


@settings(max_examples=40, deadline=None)
@given(topologies, st.integers(1, 2), st.integers(1, 3), st.integers(0, 300_000))
def test_every_link_carries_what_the_schedule_says(topology, directions, channels, size):
    schedule = all_gather(topology, directions=directions, channels=channels)
    run = simulate_collective(schedule, size, mover=WORMHOLE)
    expected = schedule.bytes_per_link(size)
    stripes = schedule.devices * schedule.pieces
    for link, carried in run.link_bytes.items():
        assert abs(carried - expected[link]) <= stripes
    assert sum(event.bytes for event in run.timeline.events) == sum(run.link_bytes.values())


def test_both_directions_of_a_ring_carry_the_same_and_a_line_mirrors():
    size = 8 * 4 * KIB
    ring = simulate_collective(all_gather(Ring(8)), size, mover=WORMHOLE).link_bytes
    assert len(set(ring.values())) == 1
    line = simulate_collective(all_gather(Line(8)), size, mover=WORMHOLE).link_bytes
    assert all(line[d, d + 1] == line[7 - d, 6 - d] for d in range(7))


@settings(max_examples=30, deadline=None)
@given(topologies, st.integers(1, 2), st.integers(1, 2), st.integers(0, 200_000))
def test_nothing_is_faster_than_the_roofline(topology, directions, channels, size):
    schedule = all_gather(topology, directions=directions, channels=channels)
    run = simulate_collective(schedule, size, mover=WORMHOLE)
    bound_s = collective_bound_s(topology, size, mover=WORMHOLE, directions=directions)
    # Pieces that do not divide make one link carry a few bytes less than its share.
    spare_s = schedule.devices * schedule.pieces / WORMHOLE.bytes_per_s
    assert run.time_s >= bound_s - spare_s


@settings(max_examples=30, deadline=None)
@given(topologies, st.lists(st.integers(0, 1 << 20), min_size=2, max_size=2))
def test_cost_is_monotone_in_size(topology, sizes):
    small, large = sorted(sizes)
    schedule = all_gather(topology)
    assert collective_s(schedule, small, mover=WORMHOLE) <= collective_s(
        schedule, large, mover=WORMHOLE
    )


def test_beyond_the_simulated_sizes_the_cost_goes_on_in_a_line():
    schedule = all_gather(Line(2))
    small, middle, large = (
        collective_s(schedule, size, mover=WORMHOLE, largest_bytes=1 << 18)
        for size in (1 << 18, 1 << 20, 7 << 18)
    )
    assert large - middle == pytest.approx(middle - small)


def test_a_ring_without_bubble_flow_control_stops_in_the_simulation_too():
    with pytest.raises(ScheduleError, match=r"link 0>1 channel 0 has 16 packets that wait for li"):
        simulate_collective(all_gather(Ring(8)), 16 << 20, mover=WORMHOLE, injection="greedy")


def test_a_grid_of_chips_is_a_program_on_more_links():
    """Two rows of two: along the rows first, then both stripes along the columns."""
    stripes = [Value("stripe", d, 0) for d in range(4)]
    rows: list[tuple[Instruction, ...]] = []
    for d in range(4):
        across, down = d ^ 1, d ^ 2
        rows.append(
            (
                Send(stripes[d], across),
                Send(stripes[d], down),
                Receive(stripes[across], across),
                Send(stripes[across], down),
                Receive(stripes[down], down),
                Receive(stripes[down ^ 1], down),
            )
        )
    program = Program(tuple(rows), tuple((s,) for s in stripes), (tuple(stripes),) * 4)
    run = simulate_collective(program, 4 * 5000, mover=PLAIN)
    assert len(run.link_bytes) == 8
    assert run.link_bytes[0, 1] == 5000
    assert run.link_bytes[0, 2] == 10_000
    # The columns are busy from the start, as each chip has its own stripe to send.
    assert run.time_s == pytest.approx(10e-6 + 1e-6)


def test_a_sum_is_sent_when_it_is_made():
    part, total = Value("partial", 0, 0), Value("stripe", 0, 0)
    program = Program(
        (
            (Send(part, 1), Receive(total, 1)),
            (Receive(part, 0), Compute("ADD", 0, 0, (part,), (total,)), Send(total, 0)),
        ),
        ((part,), ()),
    )
    run = simulate_collective(
        program,
        0,
        mover=PLAIN,
        size_bytes=lambda value: 1000,
        compute_s=lambda device, compute: 5e-6,
    )
    assert run.time_s == pytest.approx(2e-6 + 5e-6 + 2e-6)
    assert [event.kind for event in run.timeline.events] == ["SEND", "ADD", "SEND"]


@pytest.mark.parametrize("size", [0, 1, 5, 1001])
def test_fault_uneven_shards_arrive_whole(size):
    run = simulate_collective(all_gather(Ring(5), channels=2), size, mover=PLAIN)
    assert sum(run.link_bytes.values()) == 4 * size


def test_times_are_in_the_timeline():
    run = simulate_collective(all_gather(Ring(4)), 64 * KIB, mover=WORMHOLE)
    assert run.timeline.makespan_s == run.time_s
    assert {event.track for event in run.timeline.events} >= {"link 0 > 1", "link 0 > 3"}
    assert 0 < max(run.utilisation.values()) < 1


def test_negative_size_is_refused():
    with pytest.raises(ValueError, match="gathered_bytes must be >= 0, got -1"):
        simulate_collective(all_gather(Ring(4)), -1, mover=PLAIN)


def test_needs_no_jax():
    code = (
        "import sys, ringline.simulate, ringline.topology; "
        "assert not any(m == 'jax' or m.startswith('jax.') for m in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
