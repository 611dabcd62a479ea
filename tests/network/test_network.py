"""Collectives on hosts whose links are the limit, and those hosts themselves."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from capped_hosts import Hosts, why_not

from ringline.schedule import all_gather
from ringline.topology import Ladder, Line, Ring

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))

PROGRAM = str(Path(__file__).with_name("gather_once.py"))
RINGLINE = [sys.executable, "-c", "import ringline.cli, sys; sys.exit(ringline.cli.main())"]
# Each process its own devices, whatever the tests' own have; one thread is enough for each.
JAX = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
SEND = """
import socket, sys, time
host = int(sys.argv[1])
if host == 1:
    server = socket.create_server(("", 5001))
    connection, _ = server.accept()
    size, started = 0, None
    while data := connection.recv(1 << 20):
        started = started or time.perf_counter()
        size += len(data)
    print(socket.gethostname(), size * 8 / 1e6 / (time.perf_counter() - started))
elif host == 0:
    for _ in range(100):
        try:
            connection = socket.create_connection(("host1", 5001))
            break
        except OSError:
            time.sleep(0.1)
    connection.sendall(bytes(2_000_000))
    connection.close()
"""


def test_links_are_capped_and_count_what_they_carry():
    with Hosts(3, "line", rate_mbit=40) as hosts:
        before = hosts.sent_bytes()
        finished = hosts.run([sys.executable, "-c", SEND, "{host}"], timeout_s=60)
        sent = {link: count - before[link] for link, count in hosts.sent_bytes().items()}
    assert [end.code for end in finished] == [0, 0, 0], finished
    name, rate_mbit = finished[1].output.split()
    assert name == "host1"
    # A machine that does other work may be slower, the cap never lets it be faster.
    assert float(rate_mbit) < 42
    assert set(sent) == {(0, 1), (1, 0), (1, 2), (2, 1)}
    assert 2_000_000 < sent[0, 1] < 2_200_000
    assert max(count for link, count in sent.items() if link != (0, 1)) < 100_000


def test_what_does_not_end_is_killed_and_nothing_is_left():
    with Hosts(2, "ring", rate_mbit=40) as hosts:
        names = [hosts.namespace(host) for host in range(2)]
        finished = hosts.run(["sleep", "600"], timeout_s=0.3)
        assert [end.code for end in finished] == [-9, -9]
        failed = hosts.run(["sh", "-c", "test {host} = 0 || sleep 600"], timeout_s=0.3)
        assert [end.code for end in failed] == [0, -9]
        first = ["sh", "-c", "test {host} = 1 && exit 3; sleep 600"]
        failed = hosts.run(first, timeout_s=60, grace_s=0.1)
        assert [end.code for end in failed] == [-9, 3]
    with pytest.raises(RuntimeError, match="on purpose"), Hosts(2, "ring", rate_mbit=40):
        raise RuntimeError("on purpose")
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    assert not [name for name in names if name in left]


def test_namespaces_of_a_killed_run_are_removed():
    ended = subprocess.Popen(["true"])
    ended.wait()
    stale = f"ringline-{ended.pid}-0"
    subprocess.run(["ip", "netns", "add", stale], check=True)
    with Hosts(2, "line", rate_mbit=40):
        left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    assert stale not in left.split()


@pytest.mark.slow
@pytest.mark.parametrize("topology", [Ring, Line])
def test_both_directions_carry_the_schedules_bytes(topology):
    count, size = 4, 2**19
    schedule, name = all_gather(Ladder(topology(count))), topology(count).name
    with Hosts(count, name, rate_mbit=100) as hosts:
        before = hosts.sent_bytes()
        command = [sys.executable, PROGRAM, name, str(size / 2**20)]
        finished = hosts.run(command, timeout_s=120, env=JAX)
        sent = {link: bytes_ - before[link] for link, bytes_ in hosts.sent_bytes().items()}
    assert [end.code for end in finished] == [0] * count, finished
    assert all("OK" in end.output.splitlines() for end in finished)
    # One all-gather and one reduce-scatter, which sends the same bytes backwards.
    once = schedule.bytes_per_link(count * size)
    for (source, target), bytes_ in sent.items():
        expected = once[2 * source, 2 * target] + once[2 * target, 2 * source]
        assert expected < bytes_ < 1.1 * expected + 200_000, (source, target)


@pytest.mark.slow
def test_the_bench_command_runs_on_several_hosts():
    flags = ["--devices", "8", "--implementation", "auto", "--iters", "2", "--json", "-"]
    command = [*RINGLINE, "bench", "all-gather", "-b", "2MiB", "-e", "2MiB", *flags]
    with Hosts(4, "ring", rate_mbit=100) as hosts:
        finished = hosts.run(command, timeout_s=120, env=JAX)
    assert [end.code for end in finished] == [0] * 4, finished
    first = finished[0].output
    document = json.JSONDecoder().raw_decode(first[first.index('{\n  "collective"') :])[0]
    (row,) = document["rows"]
    assert document["machine"]["processes"] == 4
    assert (row["wrong"], row["per_host"], row["skipped"]) == (0, 2, None)
    # Three stripes of an eighth each way, where a ring of eight devices has three and a half.
    assert row["link_bytes"] == 3 * 2**21 // 8
    assert all("collective" not in end.output for end in finished[1:])


def test_a_user_without_rights_is_told(monkeypatch):
    why_not.cache_clear()
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert why_not() == "needs root"
    why_not.cache_clear()
