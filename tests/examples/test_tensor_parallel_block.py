import re
import runpy
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "tensor_parallel_block.py"


def test_the_block_agrees_with_one_device_on_a_ring_and_on_a_line(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), "--devices", "4"])
    monkeypatch.setenv("XLA_FLAGS", "")
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    rows = re.findall(r"(\w+) +(\w+) +largest error (\S+)", capsys.readouterr().out)
    ways = [(topology, way) for topology, way, _ in rows]
    assert ways == [("ring", "permute"), ("ring", "xla"), ("line", "permute"), ("line", "xla")]
    assert all(float(error) < 1e-4 for *_, error in rows)
