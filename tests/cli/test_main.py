"""The command finds its subcommands, and says in one line what is wrong."""

import pytest

from ringline.cli import COMMANDS, main


@pytest.mark.parametrize("arguments", [["--help"], ["-h"]])
def test_help_names_every_command(arguments, capsys):
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert all(f"  {name} " in out for name in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_no_default_that_means_nothing(command, capsys):
    with pytest.raises(SystemExit) as stop:
        main([*command.split(), "--help"])
    assert stop.value.code == 0
    out = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert f"usage: ringline {command} " in out
    assert "None" not in out
    assert "(default: )" not in out


def test_no_command_shows_help_and_fails(capsys):
    assert main([]) == 2
    assert "usage: ringline COMMAND" in capsys.readouterr().out


def test_help_of_a_group(capsys):
    assert main(["bench", "--help"]) == 0
    assert "ringline bench all-gather" in capsys.readouterr().out


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("ringline 0.")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["tarin"], ["'tarin'", "train"]),
        (["bench"], ["bench all-gather", "got nothing"]),
        (["schedule"], ["Name of a schedule", "--help"]),
        (["schedule", "circluar"], ["'circluar'", "circular"]),
        (["schedule", "circular", "--repeats", "0"], ["repeats", "at least 1", "got 0"]),
        (["schedule", "linear", "--stagez", "3"], ["--stagez", "--help"]),
        (["schedule", "linear", "--stages", "x"], ["--stages", "'x'"]),
        (
            ["bench", "all-gather", "--per-host", "3"],
            ["error: --per-host must be one of 1, 2, got '3'; change --per-host; see"],
        ),
        (
            ["train", "--remat", "most"],
            ["--remat must be one of full, none, got 'most'; change --remat; see ringline train"],
        ),
        (
            ["simulate", "linear", "--gather-every", "day"],
            ["--gather-every must be one of step, use, got 'day'; change --gather-every"],
        ),
        (["schedule", "missing.csv"], ["missing.csv", "No such file"]),
    ],
    ids=str,
)
def test_bad_input_is_one_line(arguments, words, capsys):
    assert main(arguments) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert err.startswith("ringline: error: ")
    for word in words:
        assert word in err


def test_schedule_prints_the_grid_and_the_text_form(capsys):
    assert main(["schedule", "circular", "--stages", "2", "--microbatches", "2"]) == 0
    out = capsys.readouterr().out
    assert "stage 0 | 0F0 0F1 2F0 2F1" in out
    assert "activations kept per stage: 4, 4" in out
    assert main(["schedule", "1f1b", "--stages", "2", "--microbatches", "2", "--csv"]) == 0
    assert capsys.readouterr().out == "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"


def test_a_schedule_that_is_no_text(tmp_path, capsys):
    path = tmp_path / "noise.csv"
    path.write_bytes(b"\xff\xfe\x00")
    assert main(["schedule", str(path)]) == 2
    assert "is no text" in capsys.readouterr().err
