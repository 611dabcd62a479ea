import json
from collections import defaultdict
from itertools import pairwise

import pytest
from trace_helpers import circular_step, gather, linear_step, split_step

from ringline import schedules
from ringline.schedule import all_gather, all_reduce
from ringline.simulate import Link, simulate, simulate_collective, simulate_program
from ringline.topology import Ring, mover
from ringline.trace import chrome


def test_one_slice_for_each_event_in_microseconds():
    step = circular_step()
    events = json.loads(chrome(step))["traceEvents"]
    slices = [e for e in events if e["ph"] == "X"]
    assert len(slices) == len(step.events)
    assert sum(e["dur"] for e in slices) == pytest.approx(
        sum(e.duration_s for e in step.events) * 1e6
    )
    last = max(slices, key=lambda e: e["ts"])
    assert (last["name"], last["args"]["microbatch"]) == ("0B0", 0)
    first = next(e for e in slices if e["name"] == "1F0")
    assert first["args"]["waited_us"] == pytest.approx(0.7e6)
    assert first["args"]["waited_for"] == "activation[1,0] from stage 0"


def test_every_thread_is_named_and_used():
    events = json.loads(chrome([linear_step(), circular_step()]))["traceEvents"]
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    used = {(e["pid"], e["tid"]) for e in events if e["ph"] != "M"}
    assert named == used
    names = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert len(names) == 2


def test_flows_start_in_the_maker_and_end_in_the_reader():
    events = json.loads(chrome(linear_step()))["traceEvents"]
    slices = [e for e in events if e["ph"] == "X"]
    flows = [e for e in events if e["ph"] in "stf"]
    assert len(flows) == 3 * 2 * 3 * 8  # three points, two directions, three hops, microbatches

    def inside(flow):
        return [
            s
            for s in slices
            if s["tid"] == flow["tid"] and s["ts"] - 1e-6 <= flow["ts"] < s["ts"] + s["dur"]
        ]

    assert all(inside(flow) for flow in flows)
    times = {}
    for flow in flows:
        times.setdefault(flow["id"], []).append(flow["ts"])
    assert all(points == sorted(points) for points in times.values())


def test_sizes_of_a_collective():
    events = json.loads(chrome(gather()))["traceEvents"]
    assert {e["args"]["bytes"] for e in events if e["ph"] == "X"} == {3 * 2**20}


def test_writes_the_file(tmp_path):
    path = tmp_path / "trace.json"
    assert chrome(linear_step(), path) == path.read_text()


def ring_of_packets():
    hardware = mover("wormhole-ethernet")
    return simulate_collective(all_gather(Ring(8)), 1 << 20, mover=hardware).timeline


def all_reduce_of_packets():
    hardware = mover("wormhole-ethernet")
    return simulate_collective(all_reduce(Ring(4)), 1 << 18, mover=hardware).timeline


def late_arrivals():
    """Transfers that are under way while the next one starts."""
    return simulate_program(
        schedules.linear(3, 4).program(),
        compute_s=lambda stage, compute: 1e-6 / 3,
        link=Link(transfer_s=1e-7 / 3, latency_s=5e-6),
    )


def joined_pairs():
    schedule = schedules.dualpipe_v(3, 8)
    return simulate(
        schedule,
        forward_s=1 / 3,
        input_gradient_s=1 / 7,
        weight_gradient_s=1 / 9,
        transfer_s=1e-3 / 7,
    )


def sharded_weights():
    return simulate(
        schedules.circular(3, 6, 2),
        forward_s=1 / 3,
        backward_s=2 / 3,
        transfer_s=0.01,
        gather_s=0.3,
        gather_every="use",
        reduce_s=0.2,
    )


TIMELINES = (
    sharded_weights,
    linear_step,
    circular_step,
    split_step,
    gather,
    ring_of_packets,
    all_reduce_of_packets,
    late_arrivals,
    joined_pairs,
)


@pytest.fixture(scope="module", params=TIMELINES, ids=lambda make: make.__name__)
def drawn(request):
    timeline = request.param()
    return timeline, json.loads(chrome([timeline, timeline]))


def test_every_event_has_the_fields_of_the_format(drawn):
    _, document = drawn
    assert document["displayTimeUnit"] in ("ms", "ns")
    for event in document["traceEvents"]:
        assert event["ph"] in "MXstf"
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert isinstance(event["name"], str)
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name", "thread_sort_index")
            assert set(event["args"]) == {"name"} or set(event["args"]) == {"sort_index"}
        else:
            assert event["ts"] >= 0
            assert event["ts"] * 1e3 == pytest.approx(round(event["ts"] * 1e3), abs=1e-3)
        if event["ph"] == "X":
            assert event["dur"] >= 0
        if event["ph"] in "stf":
            assert isinstance(event["id"], int)
            assert event.get("bp") == ("e" if event["ph"] == "f" else None)


def test_slices_of_a_thread_never_overlap(drawn):
    _, document = drawn
    threads = defaultdict(list)
    for event in document["traceEvents"]:
        if event["ph"] == "X":
            start = round(event["ts"] * 1e3)
            threads[event["pid"], event["tid"]].append((start, start + round(event["dur"] * 1e3)))
    assert threads
    for spans in threads.values():
        assert all(one[1] <= two[0] for one, two in pairwise(sorted(spans)))


def test_nothing_that_takes_time_is_left_out(drawn):
    timeline, document = drawn
    slices = [event for event in document["traceEvents"] if event["ph"] == "X"]
    pipeline = any(e.kind == "F" for e in timeline.events)
    wanted = [e for e in timeline.events if e.duration_s > 0 or (pipeline and e.peer is None)]
    assert len(slices) == 2 * len(wanted)
    named = {(e["pid"], e["tid"]) for e in document["traceEvents"] if e["name"] == "thread_name"}
    assert {(e["pid"], e["tid"]) for e in slices} == named


def test_a_flow_is_whole_and_inside_slices(drawn):
    _, document = drawn
    slices = defaultdict(list)
    flows = defaultdict(list)
    for event in document["traceEvents"]:
        if event["ph"] == "X":
            slices[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
        elif event["ph"] in "stf":
            flows[event["id"]].append(event)
    for points in flows.values():
        assert [point["ph"] for point in points] in (["s", "t", "f"], ["s", "f"])
        assert [p["ts"] for p in points] == sorted(p["ts"] for p in points)
        for point in points:
            spans = slices[point["pid"], point["tid"]]
            assert any(start <= point["ts"] < end for start, end in spans)
