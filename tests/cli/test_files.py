"""A file that cannot be written is refused before the work whose results it is for."""

import os
import sys
from dataclasses import fields
from importlib import import_module
from typing import get_type_hints

import pytest

from ringline import cli
from ringline.cli import _files
from ringline.cli._flag_types import WRITTEN

REQUIRED = {"schedule": ["linear"], "simulate": ["linear"], "check": ["all-gather"]}


def written():
    """Every command with each of its flags for a file that it writes."""
    for name, command in cli.COMMANDS.items():
        flags = getattr(import_module(f"ringline.cli.{command.module}"), command.flags)
        hints = get_type_hints(flags, include_extras=True)
        for field in fields(flags):
            if WRITTEN in getattr(hints[field.name], "__metadata__", ()):
                yield name, command.module, f"--{field.name.replace('_', '-')}"


def test_every_command_with_results_can_write_them():
    found = {(name, flag) for name, _, flag in written()}
    for name in cli.COMMANDS:
        if name != "schedule":
            assert (name, "--json") in found
    assert {("train", "--json"), ("compile", "--text"), ("bench all-gather", "--plot")} < found
    assert ("train", "--text") not in found


@pytest.mark.parametrize(("command", "module", "flag"), list(written()))
def test_a_place_that_cannot_be_written_is_found_out_first(
    command, module, flag, monkeypatch, capsys
):
    def run(flags):
        raise AssertionError("worked before it looked")

    monkeypatch.setattr(f"ringline.cli.{module}.run", run)
    arguments = [*command.split(), *REQUIRED.get(command, ()), flag, "/no/such/place.svg"]
    assert cli.main(arguments) == cli.BAD_INPUT
    assert capsys.readouterr().err == (
        "ringline: error: cannot write '/no/such/place.svg': No such file or directory; expected a "
        f"file in a folder that exists and can be written to; change {flag}\n"
    )


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        (".", "Is a directory"),
        ("file/page.html", "Not a directory"),
        ("link/page.html", "No such file or directory"),
        ("x" * 300, "File name too long"),
        ("/proc/self/page.html", "No such file or directory"),
    ],
)
def test_what_is_wrong_with_a_place(place, reason, tmp_path, monkeypatch, capsys):
    if place.startswith("/proc") and sys.platform != "linux":
        pytest.skip("/proc is Linux's")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("absent")
    assert cli.main(["simulate", "linear", "--html", place]) == cli.BAD_INPUT
    captured = capsys.readouterr()
    assert f"cannot write {place!r}: {reason}; " in captured.err
    assert captured.out == ""
    assert {path.name for path in tmp_path.iterdir()} == {"file", "link"}


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write anywhere")
def test_files_and_folders_without_permission(tmp_path, capsys):
    tmp_path.joinpath("page.html").touch(mode=0o400)
    assert cli.main(["simulate", "linear", "--html", str(tmp_path / "page.html")]) == 2
    tmp_path.chmod(0o500)
    assert cli.main(["simulate", "linear", "--svg", str(tmp_path / "page.svg")]) == 2
    assert capsys.readouterr().err.count("Permission denied") == 2


def test_of_several_processes_only_the_first_needs_the_place(monkeypatch):
    from ringline.cli._bench import AllGather

    bad = {"json": "/no/such/rows.json", "num_processes": 2, "coordinator": "localhost:1"}
    _files.check_files(AllGather(**bad, process_id=1))
    with pytest.raises(ValueError, match="change --json"):
        _files.check_files(AllGather(**bad, process_id=0))
    monkeypatch.setenv("JAX_PROCESS_ID", "1")
    _files.check_files(AllGather(**bad))


def test_a_file_is_replaced_where_a_link_leads(tmp_path):
    (tmp_path / "link.json").symlink_to("rows.json")
    for text in ("one", "two"):
        _files.write_text(tmp_path / "link.json", text)
        assert (tmp_path / "rows.json").read_text() == text
    assert (tmp_path / "link.json").is_symlink()
    assert len(list(tmp_path.iterdir())) == 2


def test_what_is_no_file_is_written_to_and_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        _files._probe(pipe)
        _files.write_text(pipe, "rows")
        assert os.read(reader, 100) == b"rows"
    finally:
        os.close(reader)
    assert pipe.is_fifo()


def test_a_full_disk_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "rows.json"
    path.write_text("old")

    def full(self, text, encoding):
        self.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_text", full)
    with pytest.raises(ValueError, match="No space left on device; make room"):
        _files.write_text(path, "new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
