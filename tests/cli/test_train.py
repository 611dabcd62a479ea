import dataclasses
import json

import pytest
import tyro

from ringline import cli
from ringline.cli._train import COMPARE_STEPS, Train, _configure
from ringline.train import TrainConfig

SMALL = [
    *("--d-model", "16", "--heads", "2", "--kv-heads", "1", "--d-ff", "32", "--layers", "4"),
    *("--seq", "16", "--batch", "4", "--microbatches", "2", "--stages", "2", "--fsdp", "2"),
    *("--eval-batches", "1", "--sample-bytes", "4", "--peak-tflops", "1", "--steps", "3"),
]


def _config(*arguments):
    given = dict(vars(tyro.cli(Train, args=list(arguments))))
    command = {name: given.pop(name) for name in ("config", "compare")}
    given = {k: v for k, v in given.items() if k in TrainConfig.__dataclass_fields__}
    for knob in dataclasses.fields(TrainConfig):
        if knob.type is bool and given[knob.name] == knob.default:
            given[knob.name] = None
    return _configure(given, command, None)


def test_without_flags_the_defaults_hold():
    assert _config() == TrainConfig()


def test_a_flag_equal_to_the_default_still_wins_over_the_file(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("stages = 2\noverlap = true\nsteps = 5\n")
    config = _config("--config", str(path), "--stages", "4")
    assert (config.stages, config.overlap, config.steps) == (4, True, 5)


def test_compare_has_steps_of_its_own():
    assert _config("--compare").steps == COMPARE_STEPS
    assert _config("--compare", "--steps", "7").steps == 7


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--text", "none.txt"], "none.txt cannot be read"),
        (["--text", "empty.txt"], "is empty"),
        (["--text", "short.txt"], "holds 20 bytes, expected at least 34"),
        (["--layers", "3"], "needs at least 4 layers"),
        (["--microbatches", "3"], "multiple of microbatches = 3, got 4"),
        (["--devices", "3"], "devices must be stages x fsdp"),
        (["--stages", "64", "--layers", "128"], "exist"),
        (["--config", "bad.toml"], "unknown key 'stags'; did you mean stages"),
        (["--resume", "--out", "none"], "holds no run to resume"),
        (["--out", "short.txt"], "must be a folder"),
        (["--out", "old"], "already holds a run"),
        (["--json", "none/results.json"], "cannot write 'none/results.json'"),
        (["--compare", "--resume"], "leave one of them out"),
        (["--process-id", "1"], "need --coordinator"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_one_line_and_leaves_nothing(tmp_path, monkeypatch, capsys, flags, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.txt").touch()
    (tmp_path / "short.txt").write_text("x" * 20)
    (tmp_path / "bad.toml").write_text("stags = 3\n")
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "config.toml").touch()
    before = sorted(tmp_path.rglob("*"))
    assert cli.main(["train", *SMALL, *flags]) == cli.BAD_INPUT
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("ringline: error: ")
    assert error.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.slow
def test_a_run_writes_its_files_and_resumes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = tmp_path / "слово.txt"
    text.write_text("В начале было Слово, и Слово было у Бога. " * 40, encoding="utf-8")
    assert cli.main(["train", *SMALL, "--text", str(text), "--json", "results.json"]) == 0
    out = capsys.readouterr().out
    (folder,) = (tmp_path / "runs").iterdir()
    names = {path.name for path in folder.iterdir()}
    assert {"config.toml", "results.json", "timeline.html", "checkpoints"} <= names
    results = json.loads((tmp_path / "results.json").read_text())
    assert results == json.loads((folder / "results.json").read_text())
    assert results["finished"]
    assert len(results["losses"]) == 3
    assert f"held-out loss: {results['eval_loss']:.4f}" in out
    assert f"unigram entropy: {results['unigram_entropy']:.4f}" in out
    assert "http://" not in (folder / "timeline.html").read_text(encoding="utf-8")

    assert cli.main(["train", "--resume", "--steps", "5", "--json", "-"]) == 0
    captured = capsys.readouterr()
    again = json.loads(captured.out)
    assert len(again["losses"]) == 5
    assert again["losses"][:3] == results["losses"]
    assert "held-out loss" in captured.err


@pytest.mark.slow
def test_compare_writes_curves_that_agree(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = tmp_path / "text.txt"
    text.write_bytes(bytes(range(256)) * 20)
    flags = ["--compare", "--text", str(text), "--out", "check"]
    assert cli.main(["train", *SMALL, *flags]) == 0
    results = json.loads((tmp_path / "check" / "compare.json").read_text())
    assert set(results["losses"]) == {"plain", "linear", "circular"}
    assert results["passed"]
    assert results["largest_difference"] <= 1e-4
    assert "within the limit of 1e-4" in capsys.readouterr().out
    assert cli.main(["train", *SMALL, *flags]) == cli.BAD_INPUT
