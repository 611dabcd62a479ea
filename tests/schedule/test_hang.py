"""The search for hangs beside plain exhaustive search and beside the packet simulator."""

import heapq
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringline.schedule import (
    FlowControl,
    ScheduleError,
    all_gather,
    check_collective,
    smallest_configurations,
    smallest_hanging_bytes,
)
from ringline.schedule._bubble import prove_bubble
from ringline.schedule._flow import Flow, flows_of
from ringline.schedule._hang import find_hang
from ringline.schedule._hops import Injection, hops_of
from ringline.simulate import simulate_collective
from ringline.topology import Line, Mover, Ring

PACKET = 1000


def flows(topology, packets, slots, sender_slots, injection: Injection = "greedy", directions=2):
    hops = hops_of(all_gather(topology, directions=directions).program())
    return flows_of(
        hops,
        packets=lambda value: packets,
        slots=slots,
        sender_slots=sender_slots,
        injection=injection,
    )


def check(topology, packets, *, channels=1, **flow):
    """A verdict with `packets` packets a piece."""
    schedule = all_gather(topology, channels=channels)
    size = schedule.devices * schedule.pieces * packets * PACKET
    return check_collective(schedule, size, FlowControl(packet_bytes=PACKET, **flow))


def plain_shortest_hang(flow: Flow) -> int | None:
    """Packets put on wires by the shortest run that stops, trying every single move.

    Unlike the search, taking a packet to memory and moving it on are moves of their own here, at
    any time; they cost nothing.
    """
    count = len(flow.queues)
    least_free = 2 if flow.injection == "bubble" else 1
    start = ((0, (), ()),) * count

    def moves(state) -> Iterator[tuple[int, tuple]]:
        for i, (injected, sender, receiver) in enumerate(state):
            mine, ahead = flow.lengths[i], (i + 1) % count
            free = flow.slots - len(receiver)

            def put(changes):
                new = list(state)
                for at, node in changes.items():
                    new[at] = node
                return tuple(new)

            if injected < len(mine) and free >= least_free:
                yield 1, put({i: (injected + 1, sender, (*receiver, mine[injected] - 1))})
            if sender and free >= 1:
                yield 1, put({i: (injected, sender[1:], (*receiver, sender[0] - 1))})
            if receiver and receiver[0] == 0:
                yield 0, put({i: (injected, sender, receiver[1:])})
            if receiver and receiver[0] and len(state[ahead][1]) < flow.sender_slots:
                there = state[ahead]
                moved = (there[0], (*there[1], receiver[0]), there[2])
                yield 0, put({i: (injected, sender, receiver[1:]), ahead: moved})

    best = {start: 0}
    heap = [(0, 0, start)]
    number = 0
    while heap:
        done, _, state = heapq.heappop(heap)
        if best[state] < done:
            continue
        options = list(moves(state))
        empty = all(
            node[0] == len(mine) and not node[1] and not node[2]
            for node, mine in zip(state, flow.lengths)
        )
        if not options and not empty:
            return done
        for cost, after in options:
            if best.get(after, 1 << 30) > done + cost:
                best[after] = done + cost
                number += 1
                heapq.heappush(heap, (done + cost, number, after))
    return None


@pytest.mark.parametrize("injection", ["greedy", "bubble"])
@pytest.mark.parametrize(
    ("topology", "directions", "packets", "slots", "sender_slots"),
    [
        (Ring(3), 1, 1, 1, 1),
        (Ring(3), 1, 2, 1, 1),
        (Ring(3), 1, 2, 2, 1),
        (Ring(3), 1, 3, 2, 1),
        (Ring(3), 1, 3, 1, 2),
        (Ring(3), 2, 3, 1, 1),
        (Ring(4), 2, 1, 1, 1),
        (Ring(4), 2, 2, 1, 1),
        (Ring(4), 1, 1, 2, 1),
    ],
)
def test_agrees_with_trying_every_single_move(
    topology, directions, packets, slots, sender_slots, injection
):
    for flow in flows(topology, packets, slots, sender_slots, injection, directions):
        answer = find_hang(flow)
        assert answer.decided
        expected = plain_shortest_hang(flow)
        found = len(answer.hang.steps) if answer.hang else None
        assert found == expected


@pytest.mark.parametrize("devices", [4, 8])
@pytest.mark.parametrize("slots", [2, 4, 16])
def test_ring_hangs_without_bubble_flow_control_and_not_with_it(devices, slots):
    greedy = check(Ring(devices), 32, slots=slots)
    assert greedy.can_hang is True
    assert not greedy.safe
    bubble = check(Ring(devices), 32, slots=slots, injection="bubble")
    assert bubble.safe
    assert "proved for every size" in bubble.proof


@pytest.mark.parametrize("devices", [4, 8])
def test_every_filling_of_a_small_ring_keeps_a_free_slot(devices):
    (flow, *_) = flows(Ring(devices), 9, 2, 1, "bubble")
    how, states = prove_bubble(flow, max_states=20_000)
    assert "all" in how
    assert states > 40


def test_bubble_flow_control_needs_two_slots():
    verdict = check(Ring(4), 8, slots=1, injection="bubble")
    assert verdict.hang is not None
    assert verdict.hang.steps == ()
    assert str(verdict.hang.waits[0]) == (
        "device 0 waits for a second free slot on link 0>1 channel 0, which has one"
    )


def test_the_shortest_trace_fills_every_slot_and_names_the_cycle():
    verdict = check(Ring(8), 16, channels=2, slots=4)
    hang = verdict.hang
    assert hang is not None
    assert hang.shortest
    assert len(hang.steps) == 8 * (4 + 2)
    assert hang.lines()[0] == (
        "device 0 puts in packet 0 of stripe[0,0] to packet 5 of stripe[0,0]"
    )
    assert len(hang.lines()) == 8
    assert [wait.queue.source for wait in hang.waits] == list(range(8))
    assert all(a.ahead == b.queue for a, b in zip(hang.waits, hang.waits[1:] + hang.waits[:1]))
    assert str(hang.waits[7]) == (
        "link 7>0 channel 0 is full (6 packets), its oldest packet of stripe[7,0] waits for a "
        "slot of link 0>1 channel 0"
    )


@settings(max_examples=40, deadline=None)
@given(
    st.integers(3, 8),
    st.integers(1, 2),
    st.integers(1, 12),
    st.integers(1, 6),
    st.sampled_from(["greedy", "bubble"]),
)
def test_what_is_safe_for_the_checker_arrives_in_the_simulator(
    devices, channels, packets, slots, injection
):
    schedule = all_gather(Ring(devices), channels=channels)
    size = schedule.devices * schedule.pieces * packets * PACKET
    flow = FlowControl(slots=slots, packet_bytes=PACKET, injection=injection)
    verdict = check_collective(schedule, size, flow, max_states=2000)
    mover = Mover(
        "test",
        packet_bytes=PACKET,
        sender_slots=flow.forwarding_slots,
        receiver_slots=slots,
        bytes_per_s=1e9,
        hop_latency_s=3e-7,
    )
    try:
        simulate_collective(schedule, size, mover=mover, injection=injection)
    except ScheduleError:
        assert verdict.can_hang is not False


@settings(max_examples=30, deadline=None)
@given(st.integers(3, 8), st.integers(1, 8), st.integers(1, 4))
def test_more_packets_never_make_a_hanging_ring_safe(devices, packets, slots):
    if check(Ring(devices), packets, slots=slots).can_hang:
        assert check(Ring(devices), packets + 1, slots=slots).can_hang


@pytest.mark.parametrize("devices", [1, 2, 5, 8])
@pytest.mark.parametrize("slots", [1, 3])
def test_a_line_is_safe_at_every_size(devices, slots):
    verdict = check(Line(devices), 1000, slots=slots)
    assert verdict.safe
    assert verdict.proof.startswith("proved for every size: no ring of queues")


@pytest.mark.parametrize("number", [6088, 12770, 30296])
def test_fault_a_ring_of_two_hangs(number):
    assert check(Ring(2), 100, slots=1).safe


def test_fault_hangs_for_some_channel_and_buffer_configurations():
    """More channels at the same size mean fewer packets each, so some settings fit by luck."""
    schedule_for = lambda channels: all_gather(Ring(4), directions=1, channels=channels)  # noqa: E731
    size = 4 * 12 * PACKET
    verdicts = {
        (channels, slots): check_collective(
            schedule_for(channels), size, FlowControl(slots=slots, packet_bytes=PACKET)
        ).can_hang
        for channels in (1, 2, 3)
        for slots in (2, 4, 8)
    }
    assert verdicts == {
        (1, 2): True, (1, 4): True, (1, 8): True,
        (2, 2): True, (2, 4): True, (2, 8): False,
        (3, 2): True, (3, 4): False, (3, 8): False,
    }  # fmt: skip


def test_fault_48072_ring_hangs_where_the_line_works():
    assert check(Ring(4), 64, slots=4).can_hang
    assert check(Line(4), 64, slots=4).safe


def test_smallest_configurations_are_at_the_edge():
    flow = FlowControl(packet_bytes=PACKET)
    size = 8 * 2 * 12 * PACKET
    greedy, bubble = smallest_configurations(
        lambda channels: all_gather(Ring(8), channels=channels), size, flow
    )
    assert greedy.hangs is not None
    assert (greedy.hangs.channels, greedy.hangs.flow.slots) == (1, 1)
    assert bubble.safe is not None
    assert (bubble.safe.channels, bubble.safe.flow.slots) == (1, 2)
    assert greedy.safe is not None
    schedule = all_gather(Ring(8), channels=greedy.safe.channels)
    assert check_collective(schedule, size, greedy.safe.flow).safe
    fewer = replace(greedy.safe.flow, slots=greedy.safe.flow.slots - 1)
    assert check_collective(schedule, size, fewer).can_hang


def test_smallest_size_that_hangs_is_at_the_edge():
    schedule, flow = all_gather(Ring(8)), FlowControl(slots=4, packet_bytes=PACKET)
    size = smallest_hanging_bytes(schedule, flow)
    assert size is not None
    assert check_collective(schedule, size, flow).can_hang
    one_packet_less = size - schedule.devices * schedule.pieces
    assert check_collective(schedule, one_packet_less, flow).safe
    assert smallest_hanging_bytes(schedule, replace(flow, injection="bubble")) is None
    assert smallest_hanging_bytes(all_gather(Line(8)), flow) is None


@pytest.mark.parametrize("topology", [Ring(4), Line(3)])
def test_threads_that_block_hang_once_a_value_does_not_fit(topology):
    fits = check(topology, 4, slots=4, forwarding="threads")
    assert fits.can_hang is False
    more = check(topology, 5, slots=4, forwarding="threads")
    assert more.hang is not None
    assert "device 0 step 4 waits" in more.hang.threads
    assert "for device 1" in more.hang.threads
    assert "decided by one run" in more.proof


def test_store_and_forward_needs_no_bubbles():
    assert check(Ring(8), 100, slots=1, forwarding="store-and-forward").safe


def test_a_search_that_meets_its_bound_says_so():
    schedule = all_gather(Ring(8), directions=1)
    flow = FlowControl(slots=4, packet_bytes=PACKET, start="neighbours", buffers=2)
    verdict = check_collective(schedule, 8 * 4 * PACKET, flow, max_states=500)
    assert verdict.can_hang is None
    assert not verdict.safe
    assert "sampled" in verdict.proof


@pytest.mark.parametrize(
    ("flow", "message"),
    [
        ({"slots": 0}, "slots must be at least 1, got 0; change slots"),
        ({"packet_bytes": 0}, "packet_bytes must be at least 1"),
        ({"sender_slots": 0}, "sender_slots must be at least 1"),
    ],
)
def test_bad_input(flow, message):
    with pytest.raises(ValueError, match=message):
        FlowControl(**flow)
