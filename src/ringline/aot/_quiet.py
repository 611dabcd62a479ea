"""Keep what the TPU compiler writes to standard error away from the user's terminal."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager

# Nothing of this process runs once the compiler has aborted it, so another one speaks for it: it
# waits for a word on its standard input, and looks at what was written when there comes none.
_WITNESS = r"""
import os, re, sys
if not os.read(0, 1):
    said = os.pread(int(sys.argv[1]), 1 << 24, 0).decode(errors="replace")
    found = re.search(r"^F\d{4} .*?\] (.*)|\*\*\* (SIG(?:ABRT|SEGV|BUS|FPE|ILL)) ", said, re.M)
    if found:
        why = (found[1] or found[2]).strip()
        print(f"ringline: error: the TPU compiler crashed ({why}); "
              "try another mesh, shape of slice or program", flush=True)
"""


@contextmanager
def quiet(*, may_crash: bool = False) -> Generator[None]:
    """Send the process's standard error, that of native code included, to a file and drop it.

    Exceptions carry what matters. Progress that must be seen meanwhile writes to a copy of the
    descriptor that was made before.

    Args:
        may_crash: say why in one line if native code ends the process.
    """
    sys.stderr.flush()
    with tempfile.TemporaryFile() as sink:
        kept = os.dup(2)
        witness = _witness(sink.fileno(), kept) if may_crash else None
        os.dup2(sink.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)
            if witness:
                witness.communicate(b".")


def _witness(sink: int, terminal: int) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-I", "-S", "-c", _WITNESS, str(sink)]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=terminal, stderr=sink, pass_fds=[sink]
    )
