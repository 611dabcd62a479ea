"""The folder of a run: where a new one goes, which one is resumed. None is ever overwritten."""

import re
from pathlib import Path
from tempfile import TemporaryFile

RUNS = Path("runs")
CONFIG = "config.toml"
COMPARISON = "compare.json"


def new_folder(out: str | None, name: str) -> Path:
    """Where a new run goes: `out`, else the next free number in `runs/`. Makes nothing.

    Args:
        out: the folder asked for.
        name: start of the folder's name where none was asked for.

    Raises:
        ValueError: when `out` already holds a run, or is no folder.
    """
    if out is None:
        taken = [
            int(match[1])
            for path in (RUNS.iterdir() if RUNS.is_dir() else ())
            if (match := re.fullmatch(rf"{re.escape(name)}-(\d+)", path.name))
        ]
        return RUNS / f"{name}-{max(taken, default=0) + 1:03d}"
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--out must be a folder, got the file {out}; give another --out")
    if holds_run(folder) or (folder / COMPARISON).exists():
        raise ValueError(
            f"{out} already holds a run, expected a new folder; add --resume to continue that "
            "run, or give another --out"
        )
    return folder


def run_to_resume(out: str | None) -> Path:
    """The folder of the run to go on with: `out`, else the newest in `runs/`.

    Raises:
        ValueError: when there is no run.
    """
    if out is not None:
        if holds_run(Path(out)):
            return Path(out)
        raise ValueError(
            f"{out} holds no run to resume (no {CONFIG}); change --out, or leave --resume out"
        )
    runs = [path for path in (RUNS.iterdir() if RUNS.is_dir() else ()) if holds_run(path)]
    if not runs:
        raise ValueError(f"no run to resume in {RUNS}/; give its folder with --out")
    return max(runs, key=lambda path: (path / CONFIG).stat().st_mtime)


def holds_run(folder: Path) -> bool:
    """Whether a run was started in the folder."""
    return (folder / CONFIG).is_file()


def check_writable(folder: Path) -> None:
    """See now, not after training, whether a run can be written to `folder`; leaves nothing.

    Raises:
        ValueError: when it cannot.
    """
    above = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    try:
        with TemporaryFile(dir=above):
            pass
    except OSError as error:
        raise ValueError(
            f"nothing can be written to {folder} ({above}: {error.strerror}); give another --out"
        ) from None
