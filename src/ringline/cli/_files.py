"""The files that a command writes at its end: that they can be written is seen at its start."""

import errno
import os
import stat
import sys
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, get_type_hints

from ringline.cli._flag_types import WRITTEN


def check_files(flags: Any) -> None:
    """See that every file which the flags ask for can be written; leaves nothing.

    Of several processes only the first writes, so the others' places are not looked at.

    Raises:
        ValueError: when one cannot be written.
    """
    number = getattr(flags, "process_id", 0)
    if number is None:
        number = os.environ.get("JAX_PROCESS_ID") or 0
    if str(number) != "0":
        return
    for name, hint in get_type_hints(type(flags), include_extras=True).items():
        path = getattr(flags, name, None)
        if WRITTEN not in getattr(hint, "__metadata__", ()) or path in (None, "-"):
            continue
        try:
            _probe(Path(path))
        except OSError as error:
            raise ValueError(
                f"cannot write {str(path)!r}: {error.strerror}; expected a file in a folder that "
                f"exists and can be written to; change --{name.replace('_', '-')}"
            ) from None


def write_text(target: str | Path, text: str) -> None:
    """Write `text` to a file, or to standard output where `target` is `-`.

    Raises:
        ValueError: when the file cannot be written.
    """
    if target == "-":
        sys.stdout.write(text)
        return
    try:
        _put(Path(target), text)
    except OSError as error:
        raise ValueError(
            f"cannot write {str(target)!r}: {error.strerror}; make room, or give another file"
        ) from error


def _put(path: Path, text: str) -> None:
    if path.exists() and not path.is_file():  # such as /dev/stderr
        path.write_text(text, encoding="utf-8")
        return
    # Beside the target first, so that a full disk leaves no half of a file.
    path = Path(os.path.realpath(path))
    part = path.with_name(f"{path.name}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def _probe(path: Path) -> None:
    """Raise the OSError that writing to `path` would."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        mode = stat.S_IFREG
    else:
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    if stat.S_ISREG(mode):
        with TemporaryFile(dir=os.path.dirname(os.path.realpath(path))):
            pass
