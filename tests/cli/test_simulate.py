import json

import pytest
import tyro

from ringline.cli._simulate import Simulate, run


def simulate(*arguments: str) -> int:
    return run(tyro.cli(Simulate, args=list(arguments)))


def test_prints_the_grid_and_the_numbers(capsys):
    assert simulate("linear", "--stages", "2", "--microbatches", "2") == 0
    out = capsys.readouterr().out
    assert "stage 0 |F0 F1 .........B1--- B0---" in out
    assert "9 s" in out
    assert "3 s (33.3%)" in out


def test_json_on_standard_output_is_all_there_is(capsys):
    simulate("circular", "--transfer", "0.2", "--compare", "linear", "--json", "-")
    circular, linear = json.loads(capsys.readouterr().out)
    assert circular["schedule"] == "circular"
    assert circular["bubble_s"] == pytest.approx(4.5 + 6 * 0.2)
    assert linear["bubble_s"] == pytest.approx(9 + 6 * 0.2)
    assert circular["peak_activations"] == [16, 16, 16, 16]


def test_repeats_go_to_the_schedules_that_have_several(capsys):
    simulate("linear", "--repeats", "4", "--compare", "circular", "--json", "-")
    linear, circular = json.loads(capsys.readouterr().out)
    assert (linear["bubble_s"], circular["bubble_s"]) == (9.0, 2.25)


def test_no_overlap_and_costs_of_each_stage(capsys):
    simulate(
        *("linear", "--stages", "2", "--microbatches", "2", "--no-overlap"),
        *("--forward", "1", "2", "--backward", "2", "4", "--transfer", "1", "--json", "-"),
    )
    (step,) = json.loads(capsys.readouterr().out)
    assert step["work_per_stage_s"] == [6.0, 12.0]
    assert step["makespan_s"] == 1 + 1 + 2 * 2 + 4 + 1 + 4 + 1 + 2


def test_split_schedules_take_half_of_the_backward_for_each_part(capsys):
    simulate("zero-bubble-h1", "--json", "-")
    (step,) = json.loads(capsys.readouterr().out)
    assert step["bubble_s"] == 3.0


def test_a_csv_file_is_a_schedule(tmp_path, capsys):
    table = tmp_path / "mine.csv"
    table.write_text("0F0,0B0\n1F0,1B0\n")
    simulate(str(table), "--json", "-")
    assert json.loads(capsys.readouterr().out)[0]["schedule"] == "mine"


def test_writes_every_picture(tmp_path):
    files = {kind: tmp_path / f"out.{kind}" for kind in ("trace", "html", "svg", "json")}
    flags = [part for kind, path in files.items() for part in (f"--{kind}", str(path))]
    simulate("circular", "--compare", "linear", *flags)
    assert json.loads(files["trace"].read_text())["traceEvents"]
    assert files["html"].read_text().startswith("<!doctype html>")
    assert files["svg"].read_text().startswith("<svg")
    assert [step["stages"] for step in json.loads(files["json"].read_text())] == [4, 4]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["circlar"], "no schedule is called 'circlar'; expected circular"),
        (["linear", "--repeats", "2"], "linear"),
        (["absent.csv"], "cannot read 'absent.csv': No such file"),
        (["linear", "--stages", "0"], "stages must be a whole number of at least 1"),
        (["linear", "--forward", "1", "2"], "one for each of 4 stages, got 2"),
        (["linear", "--forward"], "one for each of 4 stages, got 0"),
        (["linear", "--transfer", "-1"], "transfer_s must be a finite time >= 0"),
        (["linear", "--input-gradient", "1"], "give backward_s, or input_gradient_s and"),
    ],
)
def test_bad_flags_give_one_line(arguments, message):
    with pytest.raises(ValueError, match=message) as caught:
        simulate(*arguments)
    assert "\n" not in str(caught.value)


def test_compare_may_be_given_several_times(capsys):
    for compared in ("--compare 1f1b --compare circular", "--compare 1f1b circular"):
        assert simulate("linear", *compared.split(), "--json", "-") == 0
        names = [one["schedule"] for one in json.loads(capsys.readouterr().out)]
        assert names == ["linear", "one_f_one_b", "circular"]
