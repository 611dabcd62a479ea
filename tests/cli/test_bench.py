import json
import os
import re
import socket
import subprocess
import sys

import pytest

from ringline import cli
from ringline.cli import _bench

SMALL = ["bench", "all-gather", "-b", "64", "-e", "256", "--iters", "1"]
KEYS = {
    "size_bytes",
    "shape",
    "dim",
    "dtype",
    "topology",
    "directions",
    "channels",
    "time_us",
    "algbw_gb_s",
    "busbw_gb_s",
    "share_of_microbenchmark",
    "wrong",
}


def test_the_table_has_a_row_per_size_and_the_footer(capsys):
    assert cli.main(SMALL) == 0
    out = capsys.readouterr().out
    rows = [line.split() for line in out.splitlines() if not line.startswith("#")]
    assert [row[0] for row in rows] == ["64", "128", "256"]
    (head,) = [line for line in out.splitlines() if line.startswith("#     size(B)")]
    assert "#wrong in place(us) ip busbw ip wrong" in head
    assert "# Out of bounds values : 0 OK" in out
    assert re.search(r"^# Avg bus bandwidth    : [\d.e-]+ GB/s$", out, re.MULTILINE)


@pytest.mark.parametrize(
    ("flags", "redop", "busbw"),
    [
        (_bench.ReduceScatter(begin="64", end="64", iters=1), "sum", "busbw = (n-1)/n size"),
        (_bench.AllReduce(begin="64", end="64", iters=1), "sum", "busbw = 2(n-1)/n size"),
        (_bench.AllGatherMatmul(begin="64", end="64", iters=1, columns=4), "none", "matmul(us)"),
        (_bench.MatmulReduceScatter(begin="64", end="64", iters=1, columns=4), "sum", "before the"),
    ],
    ids=lambda value: getattr(value, "collective", ""),
)
def test_the_other_collectives_have_the_same_table(flags, redop, busbw, capsys):
    assert _bench.run(flags) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"# {flags.collective}, 4 devices on a ring, permute;")
    assert busbw in out
    (row,) = [line.split() for line in out.splitlines() if not line.startswith("#")]
    assert row[0] == "64"
    assert row[3] == redop
    assert "# Out of bounds values : 0 OK" in out


def test_rows_stand_under_their_headings(capsys):
    assert cli.main([*SMALL, "--link-gb-s", "10"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line[:4] in ("#   ", "    ")]
    heading, *rows = lines
    assert "of line" in heading
    for row in rows:
        assert len(row) == len(heading)
        assert len(row.split()) == len(heading.replace("in place", "inplace").split()) - 1 - 3


def test_the_backend_that_the_library_chose_is_told(capsys):
    assert cli.main([*SMALL, "--implementation", "auto", "--json", "-"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {row["backend"] for row in rows} == {"xla"}
    assert {(row["redop"], row["count"]) for row in rows} == {("none", n) for n in (8, 16, 32)}


def test_pairs_of_devices_are_not_for_fused_collectives(capsys):
    assert cli.main(["bench", "all-gather-matmul", "--per-host", "2"]) == 2
    assert "do not share the devices of a host" in capsys.readouterr().err


def test_json_on_standard_output_is_alone_there(capsys):
    assert cli.main([*SMALL, "--topology", "line", "--json", "-", "--link-gb-s", "12.5"]) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert len(document["rows"]) == 3
    for row in document["rows"]:
        assert row.keys() >= KEYS
        assert row["topology"] == "line"
        assert row["wrong"] == 0
        assert row["linkbw_share"] == pytest.approx(row["linkbw_gb_s"] / 12.5)
    assert "#wrong" in captured.err


def test_json_goes_to_a_file(tmp_path, capsys):
    path = tmp_path / "rows.json"
    assert cli.main([*SMALL, "-e", "64", "--json", str(path)]) == 0
    assert len(json.loads(path.read_text())["rows"]) == 1
    assert list(tmp_path.iterdir()) == [path]


def test_a_plot_of_bandwidth_against_size(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    path = tmp_path / "bandwidth.svg"
    sweep = ["-b", "1KiB", "-e", "4KiB", "--iters", "2"]
    assert cli.main(["bench", "all-gather", *sweep, "--plot", str(path)]) == 0
    assert path.read_text().lstrip().startswith("<?xml")
    assert cli.main(["bench", "all-gather", *sweep, "--plot", str(tmp_path / "a.jpg")]) == 2
    assert "--plot must end in .png" in capsys.readouterr().err


def test_cases_over_the_limit_are_named_as_skipped(capsys):
    arguments = ["bench", "all-gather", "--cases", "targeted", "--max-bytes", "8B"]
    assert cli.main([*arguments, "--json", "-"]) == 1
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert len(rows) == 36
    assert all("--max-bytes" in row["skipped"] for row in rows)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--devices", "999"], "999 devices were asked for and"),
        (["--devices", "0"], "devices must be at least 1, got 0"),
        (["--channels", "0"], "channels must be at least 1, got 0"),
        (["--iters", "0"], "iters must be at least 1, got 0"),
        (["-b", "many"], "--begin must be a size like 8, 64KiB or 1G, got 'many'"),
        (["-b", "128", "-e", "64"], "the sweep needs 0 < begin <= end, got 128 and 64"),
        (["-f", "1"], "factor must be at least 2, got 1"),
        (["--link-gb-s", "0"], "line rate must be over 0 GB/s"),
        (["--per-host", "2", "--directions", "1"], "need both directions and an even number"),
        (["--per-host", "2", "--devices", "3"], "need both directions and an even number"),
        (["--json", "/no/such/folder/rows.json"], "cannot write '/no/such/folder/rows.json'"),
    ],
)
def test_bad_flags_end_with_one_line_and_status_2(arguments, message, capsys):
    assert cli.main(["bench", "all-gather", *arguments]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_a_wrong_element_gives_status_1(monkeypatch, capsys):
    monkeypatch.setattr(
        "ringline.collectives.measure._timing.Bench.wrong", lambda self, gathered: 3
    )
    assert cli.main([*SMALL, "-e", "64"]) == 1
    assert "# Out of bounds values : 6 FAILED" in capsys.readouterr().out


@pytest.mark.slow
def test_two_processes_run_the_same_command(tmp_path):
    with socket.create_server(("localhost", 0)) as server:
        port = server.getsockname()[1]
    path = tmp_path / "rows.json"
    flags = ["bench", "reduce-scatter", "-b", "4KiB", "-e", "512KiB", "-f", "128", "--iters", "1"]
    flags += ["--implementation", "auto", "--json", str(path), "--num-processes", "2"]
    flags += ["--coordinator", f"localhost:{port}"]
    program = [sys.executable, "-c", "import ringline.cli, sys; sys.exit(ringline.cli.main())"]
    running = [
        subprocess.Popen(
            [*program, *flags, "--process-id", str(number)],
            env=os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    try:
        (out, error), (quiet, other) = (process.communicate(timeout=120) for process in running)
    finally:
        for process in running:
            process.kill()
    assert [process.returncode for process in running] == [0, 0], error + other
    assert "4 devices of 2 processes on a ring" in out
    assert "#" not in quiet
    small, large = json.loads(path.read_text())["rows"]
    assert (small["wrong"], large["wrong"]) == (0, 0)
    # Small stripes keep the built-in, large ones use both devices of a host.
    assert (small["per_host"], large["per_host"]) == (1, 2)
