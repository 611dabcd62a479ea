import json

import pytest
from trace_helpers import circular_step, gather, linear_step

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
