"""Keep what the TPU compiler writes to standard error away from the user's terminal."""

import os
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def quiet() -> Generator[None]:
    """Send the process's standard error, that of native code included, to a file and drop it.

    Exceptions carry what matters. Progress that must be seen meanwhile writes to a copy of the
    descriptor that was made before.
    """
    sys.stderr.flush()
    with tempfile.TemporaryFile() as sink:
        kept = os.dup(2)
        os.dup2(sink.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)
