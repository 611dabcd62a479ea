"""`ringline plan`, `ringline hardware` and `ringline validate` as a user calls them."""

import json
from dataclasses import replace

import pytest

from ringline.cli import _hardware, _plan, _validate, main

SMALL = _plan.PlanFlags(model="llama3-8b", cluster="v5p-16", batch=16, length=1024, top=2)


def small(**changes) -> _plan.PlanFlags:
    return replace(SMALL, **changes)


def test_plan_prints_a_table_a_verdict_and_why(capsys):
    assert _plan.run(small(why=("stages=2,schedule=1f1b",))) == 0
    out = capsys.readouterr().out
    assert "llama3-8b on v5p-16" in out
    assert "do not pipeline" in out
    assert "why: " in out


def test_plan_as_json(capsys, tmp_path):
    assert _plan.run(small(json="-")) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["plans"][0]["memory_bytes"]["fits"]
    assert _plan.run(small(json=str(tmp_path / "plan.json"))) == 0
    assert json.loads((tmp_path / "plan.json").read_text()) == printed


def test_plan_says_when_nothing_fits(capsys):
    assert main(["plan", "--model", "llama3-405b", "--cluster", "v5e-16", "--batch", "16"]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("ringline: error: nothing fits; closest: ")
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_a_layout_that_does_not_divide_is_bad_input(capsys):
    assert _plan.run(small(why=("stages=3",))) == 2
    assert "why: stages=3 cannot run: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model": "lama3-8b"}, "'llama3-8b'"),
        ({"cluster": "4x v5q-16"}, "'v5p'"),
        ({"batch": 0}, "--batch"),
        ({"length": -1}, "--length"),
        ({"batch": 3, "why": ("stage=2",)}, "'stages'"),
    ],
)
def test_plan_refuses_in_one_line(changes, says):
    with pytest.raises(ValueError, match=says) as error:
        _plan.run(small(**changes))
    assert "\n" not in str(error.value)


def test_hardware(capsys):
    assert _hardware.run(_hardware.HardwareFlags()) == 0
    assert "tpu7x" in capsys.readouterr().out
    assert _hardware.run(_hardware.HardwareFlags("v5p")) == 0
    assert "source" in capsys.readouterr().out
    assert _hardware.run(_hardware.HardwareFlags("4x v4-16")) == 0
    assert "171,875" in capsys.readouterr().out
    assert _hardware.run(_hardware.HardwareFlags("4x v4-16", json="-")) == 0
    assert json.loads(capsys.readouterr().out)["chips"] == 32
    with pytest.raises(ValueError, match="did you mean"):
        _hardware.run(_hardware.HardwareFlags("v5q"))


def test_validate(capsys, tmp_path):
    path = tmp_path / "report.json"
    flags = _validate.ValidateFlags(only=(("source-arithmetic", "vtrain"),), json=str(path))
    assert _validate.run(flags) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "within their tolerance" in out
    assert "skipped" in out
    names = [report["name"] for report in json.loads(path.read_text())]
    assert names == ["source-arithmetic", "vtrain"]
    with pytest.raises(ValueError, match="korthikanti"):
        _validate.run(_validate.ValidateFlags(only=(("korthikant",),)))


def test_validate_says_what_it_does_and_writes_a_page(capsys, tmp_path):
    page = tmp_path / "accuracy.md"
    assert _validate.run(_validate.ValidateFlags(only=(("korthikanti",),), markdown=page)) == 0
    assert "check 1 of 1: korthikanti" in capsys.readouterr().err
    text = page.read_text()
    assert text.index("### Test rows") < text.index("### Fit rows")


def test_validate_reads_its_file_before_any_check(capsys):
    assert main(["validate", "--vtrain", "no.csv"]) == 2
    captured = capsys.readouterr()
    assert captured.err == (
        "ringline: error: cannot read no.csv: No such file or directory; give vTrain's CSV file\n"
    )
    assert captured.out == ""
