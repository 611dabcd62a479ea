"""The text form of pipeline schedules, and what validation says about wrong ones."""

import pytest

from ringline.schedule import PipelineSchedule, ScheduleError, parse_pipeline

GOOD = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"


def test_text_and_file_are_read_alike(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text(GOOD)
    assert parse_pipeline(path) == parse_pipeline(str(path)) == PipelineSchedule.from_csv(GOOD)
    path.write_text(GOOD, encoding="utf-8-sig")
    assert parse_pipeline(path) == PipelineSchedule.from_csv(GOOD)
    assert parse_pipeline(path).to_csv() == GOOD


def test_waits_transfers_and_upkeep_are_left_out():
    text = "0UNSHARD,0F0,,0F1,0B0,0B1,0REDUCE_GRAD,0RESHARD\n,1F0,1B0,1F1,1B1"
    assert parse_pipeline(text).to_csv() == GOOD


@pytest.mark.parametrize(
    ("text", "stage", "step", "message"),
    [
        ("0F0,0X0\n1F0", 0, 1, "cannot read '0X0'"),
        ("0F0,0F\n1F0", 0, 1, "cannot read '0F'"),
        ("0F0,(0F1;1B0)OVERLAP\n1F0", 0, 1, "cannot read"),
        ("0F0\n1F0,0F1", 1, 1, "chunk 0 is on the wrong stage"),
        ("0F0\n2F0", None, None, "no stage runs chunk 1"),
        ("", None, None, "no stage runs chunk 0"),
    ],
)
def test_a_text_that_is_no_table_is_refused(text, stage, step, message):
    with pytest.raises(ScheduleError, match=message) as caught:
        parse_pipeline(text)
    assert (caught.value.device, caught.value.step) == (stage, step)


@pytest.mark.parametrize(
    ("text", "stage", "step", "message"),
    [
        ("0F0,0B0,0F0\n1F0,1B0", 0, 2, "0F0 is here a second time, first at step 0"),
        ("0B0,0F0\n1F0,1B0", 0, 0, "0B0 comes before 0F0"),
        ("0F0,0I0,0W0\n1F0,1W0,1I0", 1, 1, "1W0 comes before 1I0"),
        ("0F0,0B0\n1F0", 1, 1, "the row ends without 1B0"),
        ("0F0,0F1,0B0\n1F0,1F1,1B0,1B1", 0, 3, "the row ends without 0B1"),
        ("0F0,0I0,0W0,0B0\n1F0,1B0", 0, 3, "whole backward beside a split one"),
        ("0F0,0I0\n1F0,1B0", 0, 2, "the row ends without 0W0"),
        ("0F0,0B0,0F1,0B1\n1F1,1F0,1B1,1B0", 0, 1, "deadlock, no stage can go on"),
    ],
)
def test_validation_names_the_stage_and_the_step_of_the_row(text, stage, step, message):
    schedule = parse_pipeline(text)
    with pytest.raises(ScheduleError, match=f"stage {stage} step {step}: .*{message}") as caught:
        schedule.validate()
    assert (caught.value.device, caught.value.step) == (stage, step)
    assert "\n" not in str(caught.value)


def test_a_microbatch_that_every_stage_drops_shows_when_the_number_is_given():
    parse_pipeline(GOOD).validate()
    with pytest.raises(ScheduleError, match="stage 0 step 4: the row ends without 0F2"):
        parse_pipeline(GOOD, microbatches=3).validate()


def test_forward_only_is_legal():
    parse_pipeline("0F0,0F1\n1F0,1F1").validate()


WRITTEN = "0F0,0SEND_F0,{},0RECV_B0,0B0,0RECV_B1,0B1\n{},1F0,1B0,1SEND_B0,1F1,1B1,1SEND_B1"


def test_transfers_of_a_text_are_checked_as_they_stand():
    late = WRITTEN.format("0F1,0SEND_F1", "1RECV_F0").replace("1F1", "1RECV_F1,1F1")
    assert parse_pipeline(late).to_csv() == GOOD
    parse_pipeline(late).validate()
    parse_pipeline(late).validate(capacity=1)
    with pytest.raises(ScheduleError, match="stage 0 step 3: deadlock"):
        parse_pipeline(late).validate(capacity=0)
    early = WRITTEN.format("0F1,0SEND_F1", "1RECV_F0,1RECV_F1")
    parse_pipeline(early).validate(capacity=0)


@pytest.mark.parametrize(
    ("send", "receives", "message"),
    [
        ("0F1", "1RECV_F0,1RECV_F1", "deadlock, no stage can go on"),
        ("0F1,0SEND_F1", "1RECV_F0", r"stage 1 step 4: 1F1 reads activation\[1,1\]"),
        ("0SEND_F1,0F1", "1RECV_F0,1RECV_F1", r"stage 0 step 2: 0SEND_F1 reads"),
        ("0F1,0SEND_F1", "1RECV_F1,1RECV_F0", r"stage 1 step 0: 1RECV_F1 expects"),
    ],
)
def test_wrong_transfers_of_a_text_are_rejected(send, receives, message):
    schedule = parse_pipeline(WRITTEN.format(send, receives))
    with pytest.raises(ScheduleError, match=message):
        schedule.validate()
