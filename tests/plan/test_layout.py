"""Layouts: their text form, and why some cannot run."""

import pytest

from ringline.plan import RULES, Layout, model, parse_constraints
from ringline.plan._layout import with_values
from ringline.plan._rules import NOT_CONSIDERED
from ringline.topology import cluster


def test_text_and_back():
    layout = Layout(4, 2, 8, "circular", "full", 16, 2, 1, "step")
    assert with_values(Layout(), parse_constraints(str(layout))) == layout


def test_short_names_of_schedules():
    assert parse_constraints("schedule=1F1B")["schedule"] == "one_f_one_b"
    assert parse_constraints("schedule=zb-h1")["schedule"] == "zero_bubble_h1"
    assert parse_constraints("schedule=interleaved")["schedule"] == "interleaved_one_f_one_b"
    assert parse_constraints("TP=8,pp=2") == {"tensor": 8, "stages": 2}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("stage=4", "'stages'"),
        ("stages=four", "whole number"),
        ("stages=0", "whole number"),
        ("schedule=linaer", "'linear'"),
        ("remat=ful", "'full'"),
        ("stages", r"write for example stages=\.\.\."),
        ("", "fixes nothing"),
    ],
)
def test_wrong_texts(text, says):
    with pytest.raises(ValueError, match=says):
        parse_constraints(text)


@pytest.mark.parametrize(
    ("layout", "says"),
    [
        (Layout(fsdp=8), "= 8 chips, but v5e-16 has 16"),
        (Layout(fsdp=16, microbatches=4), "does not divide"),
        (Layout(stages=16, repeats=4, microbatches=16, schedule="circular"), "more than the 32"),
        (Layout(stages=16, microbatches=16), "need a schedule"),
        (Layout(fsdp=16, schedule="linear"), "needs stages"),
        (Layout(16, 2, 16, "linear"), "one repeat"),
        (Layout(16, 1, 16, "circular"), "at least 2"),
        (Layout(4, 2, 6, "interleaved_one_f_one_b", fsdp=4), "multiple of stages"),
        (Layout(4, 1, 8, "zero_bubble_h1", "full", 4), "splits the backward"),
        (Layout(4, 1, 4, "zero_bubble_h1", "none", 4), "at least 5"),
    ],
)
def test_what_cannot_run_says_why(layout, says):
    assert says in (layout.refuses(model("llama3-8b"), cluster("v5e-16"), 96) or "")


def test_what_can_run():
    assert Layout(fsdp=16).refuses(model("llama3-8b"), cluster("v5e-16"), 96) is None


@pytest.mark.parametrize("name", RULES)
def test_every_rule_has_a_generator(name):
    from ringline import schedules

    assert callable(getattr(schedules, name))


def test_every_schedule_is_planned_or_says_why_not():
    from ringline import schedules

    every = {name for name in vars(schedules) if not name.startswith("_")}
    assert every == set(RULES) | set(NOT_CONSIDERED)
    with pytest.raises(ValueError, match=r"is not planned, .*ringline simulate"):
        parse_constraints("schedule=zero-bubble-v-half")
