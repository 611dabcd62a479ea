"""The search: what wins, what it says of the losers, and what it says when nothing fits."""

import pytest

from ringline.plan import Layout, Work, model, search
from ringline.plan._report import found_json, plan_table
from ringline.plan._why import misfit, verdict, why
from ringline.topology import cluster

SMALL = Work(model("llama3-8b"), cluster("v5p-32"), 32, 2048)


@pytest.fixture(scope="module")
def found():
    return search(SMALL, top=3)


def test_the_best_fit_first(found):
    times = [plan.predicted_s for plan in found.plans]
    assert times == sorted(times)
    assert all(plan.memory.fits for plan in found.plans)
    assert len(found.plans) == 3
    assert found.considered > 1000


def test_do_not_pipeline_when_that_wins(found):
    assert verdict(found).startswith("do not pipeline: ")
    assert found.without_pipeline.predicted_s <= found.with_pipeline.predicted_s


def test_pipeline_when_that_wins():
    slow = Work(model("maxtext-32b"), cluster("4x v4-16"), 32, 512)
    assert verdict(search(slow, top=1)).startswith("pipeline: ")


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ("stages=4,schedule=1f1b", "% more than the best"),
        ("schedule=zb-v", "more than the best"),
        ("schedule=dualpipe", "more than the best"),
        ("stages=2,schedule=dualpipe,repeats=4", "cannot run"),
        ("stages=2,tensor=8", "s against"),
        ("tensor=3", "cannot run"),
        ("data=16", "does not fit"),
        ("stages=16,schedule=zb-h1,remat=full", "cannot run"),
    ],
)
def test_why_a_layout_lost(found, asked, says):
    answer = why(SMALL, found, asked)
    assert says in answer.sentence
    assert "\n" not in answer.sentence


def test_the_best_is_called_the_best(found):
    assert "is the best" in why(SMALL, found, str(found.plans[0].layout)).sentence


def test_nothing_fits_names_the_closest_and_a_knob():
    work = Work(model("llama3-405b"), cluster("v5e-16"), 16, 512)
    nothing = search(work, top=1)
    assert nothing.plans == ()
    text = verdict(nothing)
    assert "nothing fits" in text
    assert "GiB too much" in text
    assert "more chips" in text
    assert nothing.closest is not None
    assert misfit(nothing.closest) in text
    assert found_json(nothing, [])["closest"]["memory_bytes"]["fits"] is False


def test_nothing_divides():
    with pytest.raises(ValueError, match="change the batch"):
        search(Work(model("llama3-8b"), cluster("v5e-16"), 7, 128), constraints={"fsdp": 16})


def test_constraints_hold():
    wanted = {"stages": 4, "remat": "full"}
    for plan in search(SMALL, top=3, constraints=wanted).plans:
        assert plan.layout.stages == 4
        assert plan.layout.remat == "full"


def test_progress_is_told():
    seen = []
    search(SMALL, top=1, constraints={"stages": 1}, progress=lambda share, text: seen.append(share))
    assert seen == sorted(seen)
    assert 0 <= seen[0] <= seen[-1] <= 1


def test_reports(found):
    data = found_json(found, [why(SMALL, found, "stages=2")])
    assert data["plans"][0]["step_s"]["lower"] <= data["plans"][0]["step_s"]["predicted"]
    assert "causal" in data["mfu_convention"]
    assert plan_table(found).row_count == 3
    assert Layout(**data["plans"][0]["layout"]) == found.plans[0].layout
