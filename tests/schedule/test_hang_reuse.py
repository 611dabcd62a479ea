"""Races between calls, beside runs of threads under random and under hostile timing."""

import random

import pytest

from ringline.schedule import (
    FlowControl,
    all_gather,
    all_reduce,
    check_collective,
    reduce_scatter,
)
from ringline.schedule._hops import Hops, hops_of
from ringline.schedule._reuse import Start, _Order, find_races
from ringline.topology import Line, Ring

SETTINGS = [
    (buffers, start)
    for buffers in (1, 2)
    for start in ("none", "neighbours", "all")
]  # fmt: skip


def races(topology, *, cut_through=True, **how):
    hops = hops_of(all_gather(topology).program(), cut_through=cut_through)
    return {race.kind for race in find_races(hops, **how)}


def runs_overwrite(hops: Hops, buffers: int, start: Start, choose) -> bool:
    """Run threads in the order `choose` gives and say whether a buffer in use was written."""
    calls = buffers + 2
    order = _Order(hops, calls=calls, start=start)
    rows, place = order.rows, [0] * len(order.rows)
    pending = {  # the last read of what was sent, by (device, call, value)
        (device, call, hop.value): max(
            order.at[device, event._replace(call=call)] for event in order.reads(device, hop.value)
        )
        for hop in hops.all
        for device in [hop.queue.target]
        for call in range(calls)
        if any(True for _ in order.reads(device, hop.value))
    }
    while True:
        ready = [
            device
            for device, row in enumerate(rows)
            if place[device] < len(row)
            and all(place[o] > at for o, at in order._needs(device, row[place[device]]))
        ]
        if not ready:
            assert all(at == len(row) for at, row in zip(place, rows))
            return False
        device = choose(ready)
        event = rows[device][place[device]]
        place[device] += 1
        if event.what != "send":
            continue
        for hop, put_in in order.sends():
            if (put_in.queue, put_in.value) != (event.queue, event.value):
                continue
            target = hop.queue.target
            if buffers == 1:
                entered = sum(
                    e.what == "enter" and e.call <= event.call
                    for e in rows[target][: place[target]]
                )
                if entered <= event.call:
                    return True
            last = pending.get((target, event.call - buffers, hop.value))
            if last is not None and place[target] <= last:
                return True


def all_but_last(victim: int):
    """The victim runs only when nobody else can."""
    return lambda ready: min(ready, key=lambda device: device == victim)


@pytest.mark.parametrize("cut_through", [True, False])
@pytest.mark.parametrize(("buffers", "start"), SETTINGS)
@pytest.mark.parametrize("collective", [all_gather, reduce_scatter, all_reduce])
@pytest.mark.parametrize("topology", [Ring(4), Ring(5), Line(4)])
def test_a_race_is_found_exactly_where_some_timing_overwrites(
    topology, collective, buffers, start, cut_through
):
    hops = hops_of(collective(topology).program(), cut_through=cut_through)
    flagged = bool(find_races(hops, buffers=buffers, start=start))
    hostile = any(
        runs_overwrite(
            hops, buffers, start, lambda ready, v=victim: min(ready, key=lambda d: d == v)
        )
        for victim in range(topology.devices)
    )
    assert hostile == flagged
    if not flagged:
        chance = random.Random(0)
        assert not any(runs_overwrite(hops, buffers, start, chance.choice) for _ in range(20))


@pytest.mark.parametrize("number", [57458, 50686, 52633])
def test_fault_a_fast_peer_overwrites_a_lagging_ones_buffer(number):
    assert races(Ring(8), start="none") == {"skewed start", "buffer reuse"}
    assert races(Ring(8), start="none", buffers=2) == set()
    assert races(Ring(8), start="all") == set()


def test_fault_a_credit_for_the_next_call_is_cleared_by_this_one():
    assert "credit of the last call" in races(Ring(8), start="none", buffers=2, credits="flag")
    assert races(Ring(8), start="none", buffers=2, credits="counter") == set()
    assert races(Ring(8), start="all", credits="flag") == set()


def test_fault_48469_the_barrier_is_a_no_op_on_replay():
    """Without the meeting before each call, only the first call of fresh buffers is safe."""
    with_barrier, without = races(Ring(4), start="all"), races(Ring(4), start="none")
    assert with_barrier == set()
    assert "buffer reuse" in without


def test_fault_19582_one_semaphore_counts_for_several_links():
    assert "shared credit" in races(Ring(4), credits="shared")
    assert races(Line(2), credits="shared") == set()


def test_waiting_for_neighbours_is_not_enough_where_packets_pass_through():
    """Routers carry packets to devices farther away, which may not have entered the call."""
    assert "skewed start" in races(Ring(8), start="neighbours")
    assert races(Ring(8), start="neighbours", cut_through=False) == set()


def test_a_race_says_who_knows_what():
    hops = hops_of(all_gather(Ring(8)).program())
    texts = [str(race) for race in find_races(hops, start="none", credits="flag")]
    assert texts[1] == (
        "buffer reuse: device 0 sends stripe[0,0] of call 1 to device 1, knowing only that "
        "device 1 has sent stripe[1,1] of call 0; it must have used the result of call 0 first"
    )


def test_verdict_holds_races_too():
    flow = FlowControl(injection="bubble", start="none")
    verdict = check_collective(all_gather(Ring(4)), 1 << 20, flow)
    assert verdict.can_hang is False
    assert not verdict.safe
    assert {race.kind for race in verdict.races} == {"skewed start", "buffer reuse"}


def test_one_device_has_nothing_to_race_with():
    assert races(Ring(1), start="none", credits="flag") == set()


def test_buffers_under_one_are_refused():
    with pytest.raises(ValueError, match="buffers must be at least 1, got 0"):
        races(Ring(4), buffers=0)
