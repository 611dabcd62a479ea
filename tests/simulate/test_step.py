import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringline.schedule import PipelineSchedule, ScheduleError, circular, linear, parse_pipeline
from ringline.simulate import simulate

GRID = [(p, v, m) for p in (2, 3, 4, 8) for v in (1, 2, 3, 4) for m in (1, 5, 8, 9)]
GRID += [(8, 1, 32), (8, 2, 32)]


def one_forward_one_backward(stages: int, microbatches: int) -> PipelineSchedule:
    """Warm up with p - 1 - s forwards, alternate, drain."""
    rows = []
    for stage in range(stages):
        ahead = min(stages - 1 - stage, microbatches)
        row = [f"{stage}F{i}" for i in range(ahead)]
        for i in range(microbatches - ahead):
            row += [f"{stage}F{i + ahead}", f"{stage}B{i}"]
        row += [f"{stage}B{i}" for i in range(microbatches - ahead, microbatches)]
        rows.append(",".join(row))
    return parse_pipeline("\n".join(rows), name="1f1b")


@pytest.mark.parametrize(("stages", "repeats", "microbatches"), GRID)
@pytest.mark.parametrize("transfer_s", [0.0, 0.0625])
def test_bubble_equals_the_closed_form(stages, repeats, microbatches, transfer_s):
    """Around the ring a microbatch takes p (F/v + c); a stage has m F/v to do meanwhile."""
    p, v, m, c = stages, repeats, microbatches, transfer_s
    step = simulate(circular(p, m, v), forward_s=1.0, backward_s=2.0, transfer_s=c)
    late = sum(max(0.0, p * c - (m - p) * cost / v) for cost in (1.0, 2.0))
    expected = (p - 1) * 3.0 / v + 2 * (p - 1) * c + (v - 1) * late
    assert step.bubble_s == pytest.approx(expected, abs=1e-9)
    assert step.makespan_bubble_s == pytest.approx(expected, abs=1e-9)
    assert step.makespan_s == pytest.approx(3.0 * m + expected, abs=1e-9)
    assert step.bubble_rate == pytest.approx(expected / step.makespan_s, abs=1e-9)
    assert step.peak_activations == (m * v,) * p


@pytest.mark.parametrize("stages", [2, 4, 8])
@pytest.mark.parametrize("rounds", [1, 2, 4])
def test_one_forward_one_backward_pays_for_every_round(stages, rounds):
    c, microbatches = 0.125, stages * rounds
    step = simulate(
        one_forward_one_backward(stages, microbatches),
        forward_s=1.0,
        backward_s=2.0,
        transfer_s=c,
    )
    hops = 2 * (stages - 1) * rounds + 2 * (stages - 2)
    assert step.bubble_s == pytest.approx((stages - 1) * 3.0 + hops * c, abs=1e-9)
    assert step.peak_activations == tuple(stages - s for s in range(stages))


def test_without_overlap_every_tick_pays_for_its_transfer():
    p, m, c = 4, 16, 0.5
    schedule = linear(p, m).forward()
    step = simulate(schedule, forward_s=1.0, transfer_s=c, overlap=False)
    assert step.makespan_s == (m + p - 1) * 1.0 + (m + p - 2) * c
    assert simulate(schedule, forward_s=1.0, transfer_s=c).makespan_s == m + p - 1 + (p - 1) * c


def test_a_transfer_longer_than_the_compute_sets_the_pace():
    p, m, c = 2, 10, 3.0
    step = simulate(linear(p, m).forward(), forward_s=1.0, transfer_s=c)
    assert step.makespan_s == 1.0 + m * c + 1.0
    waiting = [e for e in step.events if e.queue == "transfer" and e.wait]
    assert waiting[0].wait == "the link to stage 1"
    assert step.exposed_transfer_per_stage_s == (m * c - (m - 1), m * c - (m - 1))


def test_costs_of_each_stage():
    step = simulate(linear(3, 4), forward_s=[1.0, 2.0, 1.0], backward_s=[2.0, 4.0, 2.0])
    assert step.work_per_stage_s == (12.0, 24.0, 12.0)
    assert step.makespan_bubble_s == step.makespan_s - 24.0


def test_chunks_share_their_stage_by_layers():
    schedule = circular(2, 4, 2, layers_per_stage=(3, 1, 1, 1))
    events = simulate(schedule, forward_s=1.0, backward_s=2.0).events
    forward = {e.index: e.duration_s for e in events if e.kind == "F"}
    assert forward == {0: 0.75, 1: 0.5, 2: 0.25, 3: 0.5}


def test_split_backward():
    text = "0F0,0F1,0I0,0W0,0I1,0W1\n1F0,1I0,1F1,1I1,1W0,1W1"
    step = simulate(
        parse_pipeline(text), forward_s=1.0, input_gradient_s=1.0, weight_gradient_s=1.0
    )
    assert (step.makespan_s, step.bubble_s, step.peak_activations) == (7.0, 1.0, (2, 2))
    whole = simulate(linear(2, 2), forward_s=1.0, input_gradient_s=1.0, weight_gradient_s=1.0)
    assert whole.makespan_s == 9.0


def test_a_wait_names_the_value_and_where_it_comes_from():
    step = simulate(linear(2, 1), forward_s=1.0, backward_s=2.0, transfer_s=0.5)
    first = next(e for e in step.events if e.device == 1 and e.kind == "F")
    assert (first.wait_s, first.wait) == (1.5, "activation[1,0] from stage 0")
    last = step.events[-1]
    assert (last.label, last.wait_s) == ("0B0", 4.0)
    assert last.wait == "cotangent[0,0] from stage 1"


@given(
    stages=st.integers(1, 4),
    microbatches=st.integers(1, 6),
    repeats=st.integers(1, 3),
    forward_s=st.floats(0, 4),
    transfer_s=st.floats(0, 4),
    overlap=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_longer_costs_never_shorten_a_step(
    stages, microbatches, repeats, forward_s, transfer_s, overlap
):
    schedule = circular(stages, microbatches, repeats)

    def makespan_s(forward_s: float, transfer_s: float) -> float:
        step = simulate(
            schedule,
            forward_s=forward_s,
            backward_s=2.0,
            transfer_s=transfer_s,
            overlap=overlap,
        )
        assert step.makespan_s + 1e-9 >= max(step.work_per_stage_s)
        assert step.exposed_transfer_s <= step.makespan_s + 1e-9
        return step.makespan_s

    base = makespan_s(forward_s, transfer_s)
    assert makespan_s(forward_s + 1, transfer_s) >= base - 1e-9
    assert makespan_s(forward_s, transfer_s + 1) >= base - 1e-9


def test_equal_inputs_give_equal_timelines():
    def step():
        return simulate(circular(4, 8, 2), forward_s=1.0, backward_s=2.0, transfer_s=0.1)

    assert step() == step()


BAD = [
    ({"forward_s": -1.0, "backward_s": 1.0}, "forward_s must be a finite time >= 0, got -1.0"),
    ({"forward_s": float("nan"), "backward_s": 1.0}, "forward_s must be a finite time"),
    ({"forward_s": [1.0, 1.0], "backward_s": 1.0}, "one for each of 4 stages, got 2"),
    ({"forward_s": 1.0}, "backward_s is missing"),
    ({"forward_s": 1.0, "input_gradient_s": 1.0}, "backward_s is missing"),
    ({"forward_s": 1.0, "backward_s": 1.0, "weight_gradient_s": 1.0}, "give backward_s, or both"),
    ({"forward_s": 1.0, "backward_s": 1.0, "transfer_s": -0.1}, "transfer_s must be a finite time"),
]


@pytest.mark.parametrize(("costs", "message"), BAD)
def test_bad_costs_are_refused_in_one_line(costs, message):
    with pytest.raises(ValueError, match=message) as caught:
        simulate(linear(4, 8), **costs)
    assert "\n" not in str(caught.value)


def test_split_schedule_needs_split_costs():
    schedule = parse_pipeline("0F0,0I0,0W0")
    with pytest.raises(ValueError, match="splits its backward"):
        simulate(schedule, forward_s=1.0, backward_s=2.0)


def test_a_schedule_that_cannot_run_names_stage_and_step():
    schedule = parse_pipeline("0F0,0B0\n1B0,1F0")
    with pytest.raises(ScheduleError, match="stage 1 step 0: 1B0 reads") as caught:
        simulate(schedule, forward_s=1.0, backward_s=2.0)
    assert caught.value.device == 1
