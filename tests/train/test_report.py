import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
from train_helpers import SMALL

from ringline.train._compare import Comparison, plot_comparison
from ringline.train._loop import RunResult
from ringline.train._metrics import (
    Peak,
    append_records,
    find_peak,
    make_record,
    read_records,
)
from ringline.train._model import flops_per_token
from ringline.train._report import _running_mean, plot_loss, summary, write_json

PEAK = Peak(1e9, "given")


def _records(count):
    return [make_record(SMALL, step + 1, 3.0 - step / 10, 0.5, PEAK, 0.2) for step in range(count)]


def _result(records):
    return RunResult(
        config=SMALL,
        folder=Path("runs/a"),
        corpus="words (the end is held out)",
        records=records,
        finished=True,
        eval_loss=2.0,
        unigram_entropy=3.0,
        own_entropy=2.9,
        prompt="a",
        sample="b",
        peak=PEAK,
        bubble=0.2,
        compile_s=1.0,
        wall_s=2.0,
        checkpoint_step=len(records),
    )


def test_a_record_in_numbers_and_as_a_line():
    record = make_record(SMALL, 14, 2.31, 0.5, PEAK, 0.19)
    assert record.tokens_per_s == SMALL.batch * SMALL.seq / 0.5
    assert record.mfu == pytest.approx(record.tokens_per_s * flops_per_token(SMALL) / 1e9)
    assert record.line().startswith("step: 14 loss: 2.3100 tokens/s: 128 step_s: 0.500 mfu: ")
    assert record.line().endswith("bubble: 0.190")


def test_records_are_kept_up_to_the_checkpoint_and_a_cut_line_is_dropped(tmp_path):
    path = tmp_path / "steps.jsonl"
    assert read_records(path, 9) == []
    append_records(path, _records(3))
    append_records(path, _records(5)[3:])
    with path.open("a") as file:
        file.write('{"step": 6, "lo')
    assert read_records(path, 9) == _records(5)
    assert read_records(path, 4) == _records(4)


def test_a_stated_peak_counts_every_device():
    peak = find_peak(SMALL)
    assert peak.flops_per_s == 4e12
    assert "x 4 devices" in peak.source


def test_a_summary_is_json(tmp_path):
    write_json(tmp_path / "results.json", summary(_result(_records(4))))
    numbers = json.loads((tmp_path / "results.json").read_text())
    assert numbers["losses"] == [3.0, 2.9, 2.8, 2.7]
    assert numbers["config"]["d_model"] == SMALL.d_model
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]


def test_the_running_mean_of_a_line_is_the_line():
    line = np.linspace(5, 1, 200)
    np.testing.assert_allclose(_running_mean(line.tolist()), line)
    assert _running_mean([1.0]).tolist() == [1.0]


@pytest.mark.skipif(not importlib.util.find_spec("matplotlib"), reason="needs the extra plot")
@pytest.mark.parametrize("count", [1, 30])
def test_plots_are_pictures(tmp_path, count):
    plot_loss(_result(_records(count)), tmp_path / "loss.png")
    losses = [record.loss for record in _records(6)]
    ways = {"plain": losses, "linear": losses, "circular": [x + 1e-6 for x in losses]}
    comparison = Comparison(SMALL, "words", ways, 1.0)
    assert comparison.largest() == pytest.approx(1e-6, rel=1e-3)
    plot_comparison(comparison, tmp_path / "compare.png")
    for name in ("loss.png", "compare.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
