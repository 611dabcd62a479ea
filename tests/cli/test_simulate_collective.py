import json

import pytest
import tyro

from ringline.cli._simulate_collective import SimulateAllGather, SimulateAllReduce, run


def simulate(*arguments: str) -> int:
    return run(tyro.cli(SimulateAllGather, args=list(arguments)))


def test_prints_the_columns_of_nccl_tests_and_the_link(capsys):
    assert simulate("--topology", "line", "--devices", "4", "--packet", "6144", "-e", "1MiB") == 0
    out = capsys.readouterr().out
    assert "algbw" in out
    assert "1,048,576" in out
    assert "5 sender and 11 receiver slots" in out
    assert "6 directed links" in out


def test_json_holds_the_published_line_of_four(capsys):
    simulate("--topology", "line", "--devices", "4", "--packet", "6144", "--json", "-")
    rows = json.loads(capsys.readouterr().out)
    published_us = {1 << 16: 14.16, 1 << 20: 77.50, 1 << 22: 278.65, 1 << 24: 1081.98}
    for row in rows:
        if row["size_bytes"] in published_us:
            assert row["time_s"] * 1e6 == pytest.approx(published_us[row["size_bytes"]], rel=0.04)
        assert row["time_s"] >= row["bound_s"]
    assert rows[-1]["linkbw_bytes_per_s"] == pytest.approx(11.63e9, rel=0.01)


def test_fewer_slots_cost_time(capsys):
    times = []
    for slots in ("2", "4", "16"):
        simulate("--slots", slots, "-b", "256KiB", "-e", "256KiB", "--json", "-")
        times.append(json.loads(capsys.readouterr().out)[0]["time_s"])
    assert times == sorted(times, reverse=True)
    assert times[0] > 1.5 * times[-1]


def test_large_sizes_are_marked(capsys):
    simulate("--topology", "line", "--devices", "2", "-b", "64MiB", "-e", "64MiB")
    out = capsys.readouterr().out
    assert "67,108,864*" in out
    assert "slope from 8 to 16 MiB" in out


def test_files_of_the_last_run(tmp_path, capsys):
    paths = {kind: tmp_path / f"run.{kind}" for kind in ("trace", "html", "svg", "json")}
    flags = [word for kind, path in paths.items() for word in (f"--{kind}", str(path))]
    assert simulate("--devices", "4", "-e", "64KiB", *flags) == 0
    assert "link 0 > 1" in paths["trace"].read_text()
    assert all(path.stat().st_size > 100 for path in paths.values())


def test_greedy_injection_that_hangs_says_so():
    with pytest.raises(ValueError, match=r"stop for good.*use injection='bubble'"):
        simulate("-b", "16MiB", "--injection", "greedy")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("-b", "4M", "-e", "1M"), "expected 0 < --begin <= --end"),
        (("--factor", "1"), "--factor of at least 2"),
        (("--devices", "0"), "needs at least 1 device"),
        (("--packet", "0"), "packet must be at least 1"),
    ],
)
def test_bad_input(flags, message):
    with pytest.raises(ValueError, match=message):
        simulate(*flags)


def test_a_grid_of_chips(capsys):
    simulate("--topology", "grid", "--rows", "2", "-e", "64KiB", "--json", "-")
    (row,) = json.loads(capsys.readouterr().out)
    assert row["time_s"] >= row["bound_s"] > 0


def test_an_all_reduce_takes_two_passes(capsys):
    sizes = ("-b", "1MiB", "-e", "1MiB", "--devices", "4", "--json", "-")
    simulate(*sizes)
    (gather,) = json.loads(capsys.readouterr().out)
    run(tyro.cli(SimulateAllReduce, args=list(sizes)))
    (reduce,) = json.loads(capsys.readouterr().out)
    assert reduce["bound_s"] == pytest.approx(2 * gather["bound_s"])
    assert reduce["bound_s"] <= reduce["time_s"]
    assert reduce["busbw_bytes_per_s"] == pytest.approx(2 * 3 / 4 * (1 << 20) / reduce["time_s"])
