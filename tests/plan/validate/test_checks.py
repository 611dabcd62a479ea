"""The figures of `ringline validate`, and the numbers they have to reach."""

from dataclasses import replace
from pathlib import Path

import pytest

from ringline.plan.validate import CHECKS, Figure, Options, Report, _closed_forms, markdown
from ringline.plan.validate._bubbles import run_figures, runs
from ringline.plan.validate._forms import FORMS
from ringline.plan.validate._narayanan import ROWS, gpt
from ringline.plan.validate._vtrain import read_runs, split, vtrain

VTRAIN = (
    Path(__file__).resolve().parents[4]
    / "shared"
    / "oracles"
    / "measured"
    / "vtrain_ground_truth_single.csv"
)


@pytest.mark.parametrize(
    "name", ["source-arithmetic", "published-steps", "korthikanti", "narayanan"]
)
def test_quick_checks_pass(name):
    report = CHECKS[name](Options())
    assert report.figures
    assert report.failures == ()
    assert report.as_json()["passed"]


def test_korthikantis_points_are_predicted_from_two():
    report = CHECKS["korthikanti"](Options())
    rows = [figure for figure in report.figures if figure.unit == "s"]
    assert sum(figure.fit for figure in rows) == 2
    test = [abs(figure.error) for figure in rows if not figure.fit]
    assert len(test) == 6
    assert sum(test) / 6 < 0.05
    assert max(test) < 0.0887


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]}B")
def test_the_blind_rows_are_self_consistent(row):
    billions, heads, hidden, layers, tensor, stages, gpus, batch, _ = row
    counted = gpt(billions, heads, hidden, layers).parameters / 1e9
    assert counted == pytest.approx(billions, rel=0.04)
    assert gpus % (tensor * stages) == 0
    assert batch % (gpus // (tensor * stages)) == 0


def test_bubbles_of_the_zero_bubble_paper():
    run = next(run for run in runs() if run.name == "6_2B-m24")
    figures = run_figures(run)
    assert len(figures) == 7
    assert all(figure.passes in (True, None) for figure in figures)


@pytest.mark.slow
def test_bubbles_of_its_runs_on_eight_stages():
    small = [run for run in runs() if run.whole("stages") == 8]
    assert len(small) == 6
    for run in small:
        assert [figure for figure in run_figures(run) if figure.passes is False] == []


@pytest.mark.slow
def test_closed_forms_hold_exactly_over_the_whole_grid():
    doing = []
    report = CHECKS["closed-forms"](Options(progress=doing.append))
    assert report.failures == ()
    assert len(doing) == len(FORMS)
    assert any("896 points" in figure.name for figure in report.figures)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: f"{form.name}{form.note}")
def test_closed_forms_hold_at_three_stages(form, monkeypatch):
    monkeypatch.setattr(_closed_forms, "_STAGES", (3, 4))
    monkeypatch.setattr(_closed_forms, "_MICROBATCHES", (1, 2, 3, 4, 7, 9))
    figures = _closed_forms.form_figures(form)
    assert figures
    assert all(figure.passes for figure in figures)


def test_a_wrong_form_is_found(monkeypatch):
    monkeypatch.setattr(_closed_forms, "_STAGES", (3,))
    linear = replace(FORMS[0], idle=lambda p, m, v: 1.0, kept=lambda p, m, v, s: m + 1)
    assert [figure.passes for figure in _closed_forms.form_figures(linear)] == [False] * 3


@pytest.mark.slow
@pytest.mark.skipif(not VTRAIN.exists(), reason="vTrain's measurements are not beside the project")
def test_vtrains_steps():
    report = vtrain(Options(VTRAIN))
    assert report.failures == ()
    fitted, rest = split(read_runs(VTRAIN))
    assert len(fitted) <= 200
    assert len(fitted) + len(rest) == 1440


def test_vtrain_is_skipped_without_its_file():
    assert "--vtrain" in vtrain(Options()).skipped


@pytest.mark.parametrize(
    ("text", "says"),
    [("a,b\n1,2\n", "line 2.*expected the columns"), ("", "more than 150 rows")],
)
def test_faults_of_a_measurement_file(tmp_path, text, says):
    path = tmp_path / "runs.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=says):
        read_runs(path)
    with pytest.raises(ValueError, match="cannot read"):
        read_runs(tmp_path / "none.csv")


def test_figures_judge_tolerance_and_bounds():
    assert Figure("a", 1.05, 1.0, tolerance=0.1).passes
    assert not Figure("a", 1.2, 1.0, tolerance=0.1).passes
    assert Figure("a", 0.02, 0.0, tolerance=0.05, relative=False).passes
    assert not Figure("a", 1.0, 1.0, bounds=(1.1, 1.2)).passes
    assert Figure("a", 1.0, 2.0).passes is None
    failing = Report("x", "y", "z", (Figure("a", 2.0, 1.0, tolerance=0.1),))
    assert not failing.as_json()["passed"]
    assert failing.as_json()["summary"]["test"]["largest_error"] == 1.0


def test_the_page_keeps_fit_rows_apart():
    report = Report(
        "x",
        "what",
        "a | b",
        (
            Figure("a row", 1.1, 1.0, "s", 0.2),
            Figure("another", 2.0, 1.0, "s", fit=True),
            Figure("mean error", 0.3, 0.0, tolerance=0.2, relative=False),
        ),
        ("why",),
    )
    skipped = Report("y", "other", "z", skipped="give a file")
    page = markdown([report, skipped], command="make it")
    test, fit = page.split("### Fit rows")
    assert "| a row | 1.1 | 1 | s | +10.00% | 20% | holds |" in test
    assert "| mean error | 0.3 |  | 0.2 | **off** |" in test
    assert "| another | 2 | 1 | s | +100.00% |  |  |" in fit
    assert r"a \| b" in page
    assert "Skipped: give a file." in page
    assert "| [x](#x) | what | 1 of 2 | 10.0% of 1 | 100.0% of 1 |" in page
