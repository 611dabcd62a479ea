"""Every generator, for any number of stages, microbatches and repeats."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule_cases import CASES, drawn

from ringline import schedules
from ringline.schedule import (
    Action,
    ScheduleError,
    check_program,
    named_schedule,
    parse_pipeline,
    place_on_ticks,
    receive_early,
    schedule_names,
)

PHASES = (("FBIW",), ("F", "BIW"), ("F", "BI", "W"))


@settings(max_examples=50, deadline=None)
@given(drawn)
def test_a_schedule_validates_has_every_action_once_and_keeps_what_its_formula_says(args):
    case, p, m, v = args
    schedule = case.make(p, m, v)
    schedule.validate()
    assert (schedule.stages, schedule.microbatches, schedule.repeats) == (p, m, v)
    actions = [action for row in schedule.rows for action in row]
    assert len(actions) == len(set(actions))
    for ops in ("F", "BI", "BW"):
        done = {(a.chunk, a.microbatch) for a in actions if a.op in ops}
        assert done == {(chunk, i) for chunk in range(p * v) for i in range(m)}
    for stage, peak in enumerate(schedule.peak_activations()):
        assert peak <= case.peak(p, m, v, stage)


@settings(max_examples=50, deadline=None)
@given(drawn)
def test_peak_is_exactly_the_formula_where_p_divides_m(args):
    case, p, m, v = args
    schedule = case.make(p, m * p, v)
    if "_v" in case.name and m < 3:
        return  # made for more microbatches, they may keep less
    expected = tuple(case.peak(p, m * p, v, stage) for stage in range(p))
    assert schedule.peak_activations() == expected


@settings(max_examples=50, deadline=None)
@given(drawn, st.sampled_from(PHASES))
def test_a_schedule_can_be_placed_on_ticks(args, phases):
    case, p, m, v = args
    schedule = case.make(p, m, v)
    placed = place_on_ticks(schedule.program(), phases=phases)
    assert [len(row) for row in placed] == [len(row) for row in schedule.rows]


@settings(max_examples=50, deadline=None)
@given(drawn)
def test_with_early_receives_no_run_hangs_whatever_channels_hold(args):
    case, p, m, v = args
    program = receive_early(case.make(p, m, v).program())
    for capacity in (0, 1, None):
        check_program(program, capacity=capacity)


@settings(max_examples=50, deadline=None)
@given(drawn)
def test_the_text_form_gives_the_schedule_back(args):
    case, p, m, v = args
    schedule = case.make(p, m, v)
    assert parse_pipeline(schedule.to_csv(), name=case.name) == schedule


@settings(max_examples=50, deadline=None)
@given(drawn, st.data())
def test_a_schedule_with_one_fault_is_rejected_with_stage_and_step(args, data):
    case, p, m, v = args
    schedule = case.make(p, m, v)
    rows = [list(row) for row in schedule.rows]
    stage = data.draw(st.integers(0, p - 1))
    row = rows[stage]
    step = data.draw(st.integers(0, len(row) - 1))
    fault = data.draw(st.sampled_from(["leave out", "twice", "too early", "other microbatch"]))
    action = row[step]
    if fault == "leave out":
        del row[step]
    elif fault == "twice":
        row.append(action)
    elif fault == "too early":
        backward = next(i for i, a in enumerate(row) if a.op in "BI")
        row.insert(0, row.pop(backward))
    else:
        row[step] = action._replace(microbatch=m)
    broken = type(schedule)(
        "broken", tuple(map(tuple, rows)), m, schedule.stage_of, directions=schedule.directions
    )
    if not broken.has_backward:
        return  # without its only backward it is a forward pass, which is legal
    with pytest.raises(ScheduleError, match=r"stage \d+ step \d+: ") as caught:
        broken.validate()
    assert caught.value.device == stage
    assert caught.value.step is not None


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("count", [0, -1, 2.0, True])
def test_a_count_that_is_no_count_is_refused(case, count):
    for what in ("stages", "microbatches"):
        arguments = {"stages": 2, "microbatches": 2, what: count}
        with pytest.raises(ValueError, match=f"{case.name}: {what} must be a whole number"):
            getattr(schedules, case.name)(**arguments)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_repeats_that_an_order_is_not_made_for_are_refused_by_name(case):
    with pytest.raises(ValueError, match="repeats"):
        case.make(2, 2, 5 if len(case.repeats) == 1 else 0)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_layers_may_differ_from_stage_to_stage(case):
    chunks = 3 * case.repeats[-1]
    layers = tuple(range(1, chunks + 1))
    schedule = getattr(schedules, case.name)(
        stages=3, microbatches=4, repeats=case.repeats[-1], layers_per_stage=layers
    )
    assert schedule.layers_of_chunks(sum(layers)) == layers


def test_actions_of_one_microbatch_flow_down_and_back_up():
    schedule = schedules.one_f_one_b(stages=3, microbatches=1)
    assert schedule.rows == tuple((Action(s, "F", 0), Action(s, "B", 0)) for s in range(3))


def test_every_generator_is_found_by_its_name():
    every = {name for name in vars(schedules) if not name.startswith("_")}
    assert {name.replace("-", "_") for name in schedule_names()} == every
    for name in schedule_names():
        assert named_schedule(name, stages=2, microbatches=3).name == name.replace("-", "_")
