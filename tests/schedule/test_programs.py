"""Programs read from text, their lifetimes and slots, and receives moved early."""

import pytest
from hypothesis import given, settings
from schedule_cases import drawn

from ringline import schedules
from ringline.schedule import (
    ScheduleError,
    Value,
    check_program,
    lifetimes,
    merge_backward,
    parse_pipeline,
    parse_program,
    receive_early,
    split_backward,
    value_slots,
)


@settings(max_examples=30, deadline=None)
@given(drawn)
def test_a_program_is_read_back_from_its_text(args):
    case, p, m, v = args
    program = case.make(p, m, v).one_by_one().program()
    assert parse_program(str(program)) == program


@settings(max_examples=30, deadline=None)
@given(drawn)
def test_residual_slots_are_the_peak_activations(args):
    case, p, m, v = args
    schedule = case.make(p, m, v)
    counts = tuple(count for _, count in value_slots(schedule.program()))
    assert counts == schedule.peak_activations()


@settings(max_examples=30, deadline=None)
@given(drawn)
def test_a_slot_is_never_given_to_two_values_at_once(args):
    case, p, m, v = args
    program = case.make(p, m, v).program()
    kinds = ("activation", "cotangent", "handover")
    for alive, (slots, count) in zip(lifetimes(program), value_slots(program, kinds)):
        ends: dict[int, int] = {}
        for value in sorted(slots, key=lambda value: alive[value]):
            start, end = alive[value]
            assert start >= ends.get(slots[value], 0)
            ends[slots[value]] = end
        assert len(ends) == count


@settings(max_examples=30, deadline=None)
@given(drawn)
def test_splitting_and_merging_backwards_undo_each_other(args):
    case, p, m, v = args
    split = split_backward(case.make(p, m, v))
    split.validate()
    assert all(action.op != "B" for row in split.rows for action in row)
    merged = merge_backward(split)
    merged.validate()
    if not any(a.op in "IW" for row in case.make(p, m, v).rows for a in row):
        assert merged == case.make(p, m, v)


def test_joined_actions_begin_and_end_together():
    text = schedules.dualpipe_v(stages=2, microbatches=4).to_csv()
    schedule = parse_pipeline(text)
    joined = schedule.rows[0][schedule.joined[0][0] :][:2]
    assert [str(action) for action in joined] == ["0F3", "3B1"]
    row = schedule.program().rows[0]
    one, two = (next(i for i in row if str(i) == name) for name in ("0F3", "3B1"))
    assert set(two.reads) < set(one.reads)
    assert Value("activation", 1, 3) in two.writes
    assert schedule.one_by_one().to_csv() == text.replace("(", "").replace(";", ",").replace(
        ")OVERLAP_F_B", ""
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0F0,0SEND0", r"stage 0 step 1: cannot read '0SEND0'; expected a cell such as 2F0"),
        ("0F0\n0B0", "stage 1 step 0: chunk 0 is on the wrong stage; stage 0 holds it"),
        ("0F0,0SEND_F0", "stage 0 step 1: 0SEND_F0 is with chunk 1, which no stage"),
        ("(0F0;0SEND_F0)OVERLAP_F_B", "cannot read"),
    ],
)
def test_a_text_that_is_no_program_is_refused(text, message):
    with pytest.raises(ScheduleError, match=message):
        parse_program(text)


def test_a_whole_program_may_not_use_what_it_never_made():
    text = "0F0,0SEND_F0\n1RECV_F0,1B0"
    check_program(parse_program(text, fragment=True))
    with pytest.raises(ScheduleError, match=r"stage 1 step 1: 1B0 reads residual\[1,0\]"):
        check_program(parse_program(text))


def test_early_receives_of_an_order_that_deadlocks_are_refused():
    program = parse_pipeline("0F0,0B0,0F1,0B1\n1F1,1F0,1B1,1B0").program()
    with pytest.raises(ScheduleError, match="deadlock"):
        check_program(program)
    with pytest.raises(ScheduleError, match="stage 0 step 1: 0B0 never finds"):
        receive_early(program)
