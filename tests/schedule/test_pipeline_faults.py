"""Faults of order that users of other libraries reported, each by its issue."""

import pytest
from schedule_cases import CASES

from ringline import schedules
from ringline.schedule import (
    Send,
    check_program,
    lifetimes,
    parse_pipeline,
    receive_early,
    value_slots,
)

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@every_case
def test_torchtitan_775_fewer_microbatches_than_stages_do_not_hang(case):
    for m in range(1, 6):
        schedule = case.make(6, m, case.repeats[-1])
        schedule.validate()
        check_program(receive_early(schedule.program()), capacity=0)


@pytest.mark.parametrize("m", [1, 2, 3])
def test_pytorch_171312_gpipe_takes_fewer_microbatches_than_stages(m):
    schedule = schedules.linear(stages=4, microbatches=m)
    schedule.validate()
    assert schedule.peak_activations() == (m,) * 4


@every_case
def test_megatron_750_on_a_ring_of_two_next_and_previous_are_one_peer(case):
    """Forward and backward transfers to the same peer have channels of their own."""
    for v in case.repeats:
        schedule = case.make(2, 5, v)
        program = schedule.program()
        assert {i.peer for _, _, i in program if hasattr(i, "peer")} == {0, 1}
        check_program(program)
        for capacity in (0, 1):
            check_program(receive_early(program), capacity=capacity)


@every_case
def test_maxtext_2739_two_stages_are_enough(case):
    schedule = case.make(2, 2, case.repeats[-1])
    schedule.validate()
    assert schedule.stages == 2


@every_case
def test_pytorch_172668_an_order_exists_that_needs_no_buffers(case):
    """Each send stands beside its receive, so unbuffered sends cannot wait in a circle."""
    program = case.make(4, 6, case.repeats[-1]).program()
    check_program(receive_early(program), capacity=0)


def test_pytorch_172668_receives_before_their_readers_alone_do_hang():
    with pytest.raises(ValueError, match="deadlock"):
        check_program(schedules.one_f_one_b(4, 8).program(), capacity=0)


def test_pytorch_136380_receive_buffers_do_not_grow_with_microbatches():
    for m in (16, 64):
        program = schedules.one_f_one_b(4, m).program()
        for kind in ("activation", "cotangent"):
            counts = [count for _, count in value_slots(program, (kind,))]
            assert max(counts[1:] if kind == "activation" else counts) <= 2


def test_pytorch_193903_send_buffers_end_with_the_send():
    program = schedules.one_f_one_b(4, 8).program()
    for device, alive in enumerate(lifetimes(program)):
        row = program.rows[device]
        for step, instruction in enumerate(row):
            if isinstance(instruction, Send):
                assert alive[instruction.value][1] == step + 1


def test_megatron_1304_no_layer_is_lost_where_stages_do_not_divide_them():
    counts = schedules.one_f_one_b(stages=4, microbatches=8).layers_of_chunks(30)
    assert counts == (8, 8, 7, 7)


def test_megatron_381_an_uneven_split_is_kept_as_asked_for():
    schedule = schedules.linear(4, 8, layers_per_stage=(7, 8, 8, 7))
    assert schedule.layers_of_chunks(30) == (7, 8, 8, 7)
    with pytest.raises(ValueError, match=r"30 layers.*got 28 layers"):
        schedule.layers_of_chunks(28)


def test_deepspeed_1522_a_stage_may_hold_fewer_layers_than_the_others():
    schedule = schedules.zero_bubble_h1(3, 4, layers_per_stage=(1, 5, 5))
    schedule.validate()
    assert schedule.layers_of_chunks(11) == (1, 5, 5)
    with pytest.raises(ValueError, match=r"at least 1 layer in each chunk.*\(0, 5, 5\); keep"):
        schedules.linear(3, 4, layers_per_stage=(0, 5, 5)).layers_of_chunks(10)


def test_torch_interleaved_m_need_not_be_a_multiple_of_anything():
    """The peers want the microbatches in whole rounds; runs of uneven length do as well."""
    for m in (5, 7, 9, 11, 13):
        schedule = schedules.interleaved_one_f_one_b(stages=4, microbatches=m, repeats=3)
        schedule.validate()
        assert parse_pipeline(schedule.to_csv()).rows == schedule.rows
