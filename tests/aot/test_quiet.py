"""What native code writes is kept away; why it ends the process is said in one line."""

import subprocess
import sys

import pytest

BEGIN = "import os; from ringline.aot._quiet import quiet\nwith quiet(may_crash=True):\n"
FATAL = "F1130 16:49:18.1 53 emitter.cc:1568] Check failed: bound == 4 (0 vs. 4) "


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (f"    os.write(2, b'noise\\n{FATAL}\\n')\n    os.abort()", "Check failed: bound == 4"),
        ("    os.write(2, b'*** SIGSEGV received by PID 1 ***\\n')\n    os.abort()", "SIGSEGV"),
    ],
)
def test_a_crash_is_one_line(body, said):
    ended = subprocess.run([sys.executable, "-c", BEGIN + body], capture_output=True, text=True)
    assert ended.returncode != 0
    (line,) = ended.stderr.splitlines()
    assert line.startswith("ringline: error: the TPU compiler crashed")
    assert said in line


@pytest.mark.parametrize(
    "body", ["    os.write(2, b'F1130 a] noise')", "    os.kill(os.getpid(), 9)"]
)
def test_what_is_no_crash_says_nothing(body):
    ended = subprocess.run([sys.executable, "-c", BEGIN + body], capture_output=True, text=True)
    assert ended.stderr == ""
