import json

import pytest
import tyro

from ringline.cli._check import Check, run
from ringline.schedule import all_gather
from ringline.topology import Ring

RING = ("all-gather", "--topology", "ring", "--devices", "8", "--channels", "2", "--slots", "4")


def check(*arguments: str) -> int:
    return run(tyro.cli(Check, args=list(arguments)))


def test_a_ring_that_can_hang_prints_trace_and_cycle_and_gives_1(capsys):
    assert check(*RING) == 1
    out = capsys.readouterr().out
    assert "can hang (a run that stops, the shortest)" in out
    assert "48 moves, then nothing moves any more:" in out
    assert "device 7 puts in packet 0 of stripe[7,0] to packet 5 of stripe[7,0]" in out
    assert "link 7>0 channel 0 is full (6 packets)" in out
    assert "bubble: smallest that hangs 1 channel(s) x 1 + 1 slots" in out
    assert "smallest that is safe 1 channel(s) x 2 + 1 slots" in out


def test_bubble_flow_control_gives_0(capsys):
    assert check(*RING, "--injection", "bubble") == 0
    out = capsys.readouterr().out
    assert "cannot hang (proved for every size" in out
    assert "no races" in out
    assert "no size can hang" in out


@pytest.mark.parametrize("devices", ["4", "8"])
def test_json_on_standard_output_is_all_there_is(capsys, devices):
    assert check("all-gather", "--devices", devices, "--slots", "2", "--json", "-") == 1
    verdict = json.loads(capsys.readouterr().out)
    assert verdict["can_hang"] is True
    assert verdict["safe"] is False
    assert verdict["hang"]["moves"] == len(verdict["hang"]["trace"]) == 3 * int(devices)
    assert len(verdict["hang"]["cycle"]) == int(devices)
    assert verdict["hang"]["cycle"][0]["waits_for"] == [1, 2, 0]
    assert verdict["smallest"]["bubble"]["safe"]["slots"] == 2
    assert verdict["races"] == []


def test_races_are_named_with_their_remedy(capsys):
    flags = ("--topology", "line", "--devices", "4", "--start", "none", "--credits", "flag")
    assert check("all-gather", *flags) == 1
    out = capsys.readouterr().out
    for kind in ("skewed start", "buffer reuse", "credit of the last call"):
        assert f"race, {kind}: device" in out
    assert "--start all" in out
    assert "--credits counter" in out


def test_threads_name_who_waits(capsys):
    flags = ("--devices", "4", "--forwarding", "threads", "--slots", "2")
    assert check("all-gather", *flags) == 1
    assert "device 3 step 2 waits at 3SEND2 for device 0" in capsys.readouterr().out


def test_small_sizes_fit_into_the_slots(capsys):
    assert check("all-gather", "--size", "64KiB") == 0
    assert "too few packets to fill the slots" in capsys.readouterr().out


def test_writes_a_file_beside_the_text(capsys, tmp_path):
    path = tmp_path / "verdict.json"
    assert check("all-gather", "--topology", "line", "--json", str(path)) == 0
    assert json.loads(path.read_text())["safe"] is True
    assert "cannot hang" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--slots", "0"), "slots must be at least 1, got 0"),
        (("--devices", "0"), "a ring needs at least 1 device, got 0"),
        (("--channels", "0"), "channels must be at least 1, got 0"),
        (("--packet", "0"), "--packet must be at least 1, got 0"),
        (("--size", "lots"), "--size must be a size like 8, 64KiB or 1G, got 'lots'"),
        (("--mover", "warmhole"), "unknown data mover 'warmhole'; did you mean 'wormhole'"),
        (("--buffers", "0"), "buffers must be at least 1"),
    ],
)
def test_bad_input(flags, message):
    with pytest.raises(ValueError, match=message):
        check("all-gather", *flags)


def test_a_torus_of_chips(capsys):
    flags = ("--topology", "torus", "--devices", "16", "--rows", "4")
    assert check("all-gather", *flags) == 1
    assert check("all-gather", *flags, "--injection", "bubble") == 0
    assert "on a torus of 16" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--topology", "grid"), "needs --rows that divide its 8 devices, got None"),
        (("--topology", "grid", "--rows", "3"), "needs --rows that divide its 8 devices, got 3"),
        (("--rows", "2"), "--rows is for a grid or a torus, got a ring"),
        (("--topology", "grid", "--rows", "2", "--channels", "2"), "--channels must be 1"),
    ],
)
def test_bad_grids(flags, message):
    with pytest.raises(ValueError, match=message):
        check("all-gather", *flags)


@pytest.mark.parametrize(("collective", "status"), [("reduce-scatter", 0), ("all-reduce", 1)])
def test_reductions(collective, status, capsys):
    """Partial sums stop at every device, so only the second half of an all-reduce can hang."""
    assert check(collective, "--devices", "4", "--slots", "2") == status
    assert f"{collective} of 16,777,216 B" in capsys.readouterr().out


def test_a_schedule_from_a_text_file(tmp_path, capsys):
    path = tmp_path / "mine.txt"
    path.write_text(all_gather(Ring(5), directions=1, channels=2).to_text())
    assert check(str(path), "--slots", "2") == 1
    assert "all-gather of 16,777,216 B on a ring of 5: 2 channel(s)" in capsys.readouterr().out


def test_a_schedule_that_is_wrong_names_the_pair(tmp_path):
    path = tmp_path / "mine.txt"
    path.write_text(
        "all-gather line devices=3 directions=2 channels=1 pieces=1\n0: 2>0 c0 s2[0:1]\n"
    )
    with pytest.raises(ValueError, match="device 2 is not connected to device 0"):
        check(str(path))


def test_unknown_collective_gives_the_nearest():
    with pytest.raises(
        ValueError, match=r"'allgather' is no collective.*; did you mean 'all-gather'"
    ):
        check("allgather")
