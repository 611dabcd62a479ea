"""The README's Python runs, as one program from top to bottom, with nothing set around it."""

import os
import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_python_blocks_run():
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) >= 2
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    run = subprocess.run(
        [sys.executable, "-c", "\n".join(blocks)], env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
