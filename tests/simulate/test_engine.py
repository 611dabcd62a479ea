import subprocess
import sys

import pytest

import ringline
from ringline.schedule import (
    Compute,
    Instruction,
    Program,
    Receive,
    ScheduleError,
    Send,
    Value,
    linear,
)
from ringline.simulate import Link, Timeline, peak_live, simulate_program, union


def stripe(owner: int) -> Value:
    return Value("stripe", owner, 0)


def ring_all_gather(devices: int) -> Program:
    """Every device passes on what it got, one direction."""
    rows = []
    for d in range(devices):
        row: list[Instruction] = []
        for step in range(devices - 1):
            row.append(Send(stripe((d - step) % devices), (d + 1) % devices))
            row.append(Receive(stripe((d - step - 1) % devices), (d - 1) % devices))
        rows.append(tuple(row))
    everything = tuple(stripe(d) for d in range(devices))
    return Program(tuple(rows), tuple((s,) for s in everything), (everything,) * devices)


@pytest.mark.parametrize("overlap", [True, False])
def test_a_collective_runs_on_the_same_engine(overlap):
    link = Link(latency_s=1.0, bytes_per_s=100.0)
    run = simulate_program(
        ring_all_gather(4),
        compute_s=lambda device, compute: 0.0,
        link=link,
        size_bytes=lambda value: 200,
        overlap=overlap,
    )
    assert run.makespan_s == 3 * (2.0 + 1.0)
    assert sum(event.bytes for event in run.events) == 4 * 3 * 200
    assert run.bubble_s == 0


def test_links_differ_by_channel():
    values = [Value("stripe", 0, part) for part in range(2)]
    program = Program(
        (
            (Send(values[0], 1, channel=0), Send(values[1], 1, channel=1)),
            (Receive(values[0], 0, channel=0), Receive(values[1], 0, channel=1)),
        ),
        (tuple(values), ()),
    )
    run = simulate_program(
        program,
        compute_s=lambda device, compute: 0.0,
        link=lambda channel: Link(transfer_s=1.0 + channel[2]),
    )
    assert [(e.track, e.channel, e.end_s) for e in run.events] == [
        ("link 0 > 1", 0, 1.0),
        ("link 0 > 1", 1, 2.0),
    ]


def test_latency_overlaps_the_next_transfer_and_busy_time_does_not():
    values = tuple(Value("stripe", 0, part) for part in range(3))
    program = Program(
        (tuple(Send(v, 1) for v in values), tuple(Receive(v, 0) for v in values)), (values, ())
    )
    run = simulate_program(
        program, compute_s=lambda d, c: 0.0, link=Link(transfer_s=1.0, latency_s=5.0)
    )
    assert [event.end_s for event in run.events] == [6.0, 7.0, 8.0]


def test_blocking_devices_wait_for_each_other_where_asynchronous_ones_do_not():
    a, b = Value("stripe", 0, 0), Value("stripe", 1, 0)
    made = Value("stripe", 0, 1)
    program = Program(
        (
            (Send(a, 1), Receive(b, 1), Compute("F", 0, 1, (a,), (made,))),
            (Receive(a, 0), Compute("F", 0, 1, (a,), (made,)), Send(b, 0)),
        ),
        ((a,), (b,)),
    )

    def makespan_s(overlap: bool) -> float:
        return simulate_program(
            program, compute_s=lambda d, c: 10.0, link=Link(transfer_s=1.0), overlap=overlap
        ).makespan_s

    assert makespan_s(True) == 11.0
    assert makespan_s(False) == 22.0


def test_a_wrong_value_in_a_channel_is_named():
    a, b = (Value("stripe", 0, part) for part in range(2))
    program = Program(((Send(a, 1),), (Receive(b, 0),)), ((a,), ()))
    with pytest.raises(ScheduleError, match=r"stage 1 step 0: .* expects stripe\[0,1\]"):
        simulate_program(program, compute_s=lambda device, compute: 0.0)


def test_a_deadlock_is_named():
    a, b = Value("stripe", 0, 0), Value("stripe", 1, 0)
    program = Program(((Receive(b, 1), Send(a, 1)), (Receive(a, 0), Send(b, 0))), ((a,), (b,)))
    with pytest.raises(ScheduleError, match="deadlock"):
        simulate_program(program, compute_s=lambda d, c: 0.0, overlap=False)
    assert simulate_program(program, compute_s=lambda d, c: 0.0).makespan_s == 0


def test_peak_live_counts_until_the_last_read():
    program = linear(2, 3).program()
    assert peak_live(program, "residual") == (3, 3)
    # The loss is part of the last forward: its cotangents wait there for their backwards, and
    # a backward holds the one it reads while it writes its own.
    assert peak_live(program, "cotangent") == (1, 4)


def test_link_refuses_bad_numbers():
    with pytest.raises(ValueError, match="latency_s must be a finite time >= 0, got -1"):
        Link(latency_s=-1)
    with pytest.raises(ValueError, match="bytes_per_s must be > 0, got 0"):
        Link(bytes_per_s=0)


def test_union():
    assert union([]) == []
    assert union([(1, 2), (2, 3), (5, 6), (0, 0.5)]) == [(0, 0.5), (1, 3), (5, 6)]


def test_empty_timeline_has_no_bubble():
    nothing = Timeline("nothing", (), 2)
    assert (nothing.makespan_s, nothing.bubble_rate, nothing.exposed_transfer_s) == (0, 0, 0)


def test_the_call_and_the_package_share_a_name():
    step = ringline.simulate(linear(2, 2), forward_s=1.0, backward_s=2.0)
    assert isinstance(step, Timeline)
    assert step.makespan_s == 9.0


def test_importing_starts_no_jax():
    code = "import sys, ringline.simulate, ringline.trace; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
