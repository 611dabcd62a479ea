import re
import runpy
import sys
from pathlib import Path

import pytest

pytest.importorskip("equinox")
pytest.importorskip("flax")

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_layers.py"


@pytest.mark.slow
def test_both_libraries_train_like_the_plain_loop(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), "--stages", "4"])
    monkeypatch.setenv("XLA_FLAGS", "")
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    pattern = r"(Flax NNX|Equinox) +loss (\S+) to (\S+) +largest error (\S+)"
    rows = re.findall(pattern, capsys.readouterr().out)
    assert [name for name, *_ in rows] == ["Flax NNX", "Equinox"]
    for _, first, last, error in rows:
        assert float(last) < float(first)
        assert float(error) < 1e-5
