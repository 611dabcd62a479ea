"""Errors of the library name the flag that a user of the command can change."""

import pytest

from ringline import cli


def test_keys_of_a_file_keep_their_names(tmp_path, capsys):
    path = tmp_path / "mine.toml"
    path.write_text("[mine]\npacket_bytes = 0\n")
    assert cli.main(["simulate", "all-gather", "--mover", str(path)]) == 2
    err = capsys.readouterr().err
    assert "key 'packet_bytes' of [mine]" in err
    assert err.rstrip().endswith("change packet_bytes")


@pytest.mark.parametrize(
    ("arguments", "starts", "ends"),
    [
        ("simulate linear --transfer -1", "--transfer must be", "change --transfer"),
        ("simulate linear --forward nan", "--forward must be", "change --forward"),
        (
            "simulate zb-h1 --input-gradient 1",
            "schedule 'zero_bubble_h1' splits",
            "give --input-gradient and --weight-gradient instead of --backward",
        ),
        ("simulate linear --stages 0", "linear: --stages must be", "got 0"),
        ("simulate all-gather --packet 0", "--packet must be", "change --packet"),
        ("simulate all-reduce --slots 0", "--slots must be", "change --slots"),
        ("check all-gather --slots 0", "--slots must be", "change --slots"),
        ("check all-gather --sender-slots 0", "--sender-slots must be", "change --sender-slots"),
        (
            "simulate all-gather --slots 4 --injection greedy -b 1MiB -e 1MiB",
            "the packets stop for good",
            "use --injection bubble or more slots",
        ),
        ("check all-gather --packet 0", "--packet must be", "got 0"),
        ("schedule interleaved --microbatches 0", "interleaved_one_f_one_b: --microb", "got 0"),
    ],
)
def test_the_flag_is_named(arguments, starts, ends, capsys):
    assert cli.main(arguments.split()) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"ringline: error: {starts}")
    assert err.rstrip().endswith(ends)
    assert err.count("\n") == 1
