"""Every command that the docs show runs."""

import re
import shlex
from pathlib import Path

import pytest

from ringline import cli

DOCS = Path(__file__).parents[2] / "docs"
COMMANDS = re.findall(
    r"^`ringline (.*)`$", (DOCS / "know-before-you-run.md").read_text(), flags=re.MULTILINE
)


def test_there_are_commands():
    assert len(COMMANDS) == 4


@pytest.mark.parametrize("command", COMMANDS)
def test_the_command_runs(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    can_hang = command.startswith("check")
    assert cli.main(shlex.split(command)) == (1 if can_hang else 0)
    assert capsys.readouterr().out


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target
