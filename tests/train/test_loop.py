import dataclasses
import io
import itertools

import pytest
from train_helpers import small, text_corpus

from ringline.train import _loop, read_toml, train
from ringline.train._folder import RUNS, new_folder, run_to_resume


@pytest.fixture
def config(tmp_path):
    text = tmp_path / "words.txt"
    corpus = text_corpus()
    text.write_bytes(corpus.train.tobytes() + corpus.held_out.tobytes())
    return small(text=str(text), out=str(tmp_path / "whole"))


@pytest.fixture
def stop_after(monkeypatch):
    def install(steps):
        asked = itertools.count(1)
        monkeypatch.setattr(_loop, "any_process", lambda wanted: next(asked) >= steps)

    return install


@pytest.mark.slow
def test_a_resumed_run_equals_one_never_stopped(config, tmp_path, stop_after, monkeypatch):
    whole = train(config)
    parted = dataclasses.replace(config, out=str(tmp_path / "parted"))
    with monkeypatch.context():
        stop_after(4)
        first = train(parted)
        assert not first.finished
        assert first.checkpoint_step == 4
        assert first.eval_loss is None
    monkeypatch.undo()
    second = train(parted, resume=tmp_path / "parted")
    assert second.finished
    assert [r.step for r in second.records] == list(range(1, 7))
    assert [r.loss for r in second.records] == [r.loss for r in whole.records]
    assert second.eval_loss == whole.eval_loss
    assert second.sample == whole.sample


@pytest.mark.slow
def test_a_run_learns_reports_and_leaves_its_files(config, tmp_path):
    stream = io.StringIO()
    result = train(config, stream=stream)
    lines = [line for line in stream.getvalue().splitlines() if line.startswith("step: ")]
    assert len(lines) == 6
    assert lines[0].split()[::2] == ["step:", "loss:", "tokens/s:", "step_s:", "mfu:", "bubble:"]
    assert result.records[-1].loss < result.records[0].loss
    assert result.finished
    assert len(result.sample) > 0
    saved = read_toml(tmp_path / "whole" / "config.toml")
    assert saved["repeats"] == 2
    assert sorted(p.name for p in (tmp_path / "whole" / "checkpoints").iterdir()) == ["3", "6"]
    with pytest.raises(ValueError, match=r"already holds a run.*--resume"):
        train(config)


def test_what_cannot_run_leaves_nothing(config, tmp_path):
    with pytest.raises(ValueError, match="needs at least 4 layers"):
        train(dataclasses.replace(config, layers=3))
    assert not (tmp_path / "whole").exists()


def test_a_new_run_takes_the_next_number(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert new_folder(None, "kjv") == RUNS / "kjv-001"
    (RUNS / "kjv-007").mkdir(parents=True)
    (RUNS / "kjv-notes").mkdir()
    assert new_folder(None, "kjv") == RUNS / "kjv-008"


def test_the_newest_run_is_resumed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="no run to resume"):
        run_to_resume(None)
    (RUNS / "a").mkdir(parents=True)
    (RUNS / "a" / "config.toml").write_text("")
    assert run_to_resume(None) == RUNS / "a"
    with pytest.raises(ValueError, match="holds no run to resume"):
        run_to_resume("elsewhere")
