"""Hosts on one machine, joined only to their neighbours by links of a known rate.

A host is a Linux network namespace; a link is a veth pair between two of them, and each of its
directions has a cap of its own. What a host sends farther than one hop its neighbours pass on, over
the same capped links. A command runs on every host with the host's name, its own /etc/hosts and the
variables that tell JAX who takes part.

    with Hosts(4, "ring", rate_mbit=100) as hosts:
        before = hosts.sent_bytes()
        finished = hosts.run(["python", "job.py"], timeout_s=60)

This needs root, iproute2 and util-linux: `why_not()` says what is missing.
"""

import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ringline.topology import topology as make_topology

_PREFIX = "ringline"
_TOOLS = ("ip", "tc", "nsenter", "unshare", "mount", "hostname")
_UP, _DOWN = "right", "left"
_DIRECTION = {_UP: 1, _DOWN: -1}
# What a bucket may hold: a few packets, so that the cap also holds over a short time.
_BURST_BYTES = 16 * 1024
# Packets below this (acknowledgements) go first: behind data they would slow the other direction.
_SMALL_BYTES = 128
_QUEUE_PACKETS = 1000
_COORDINATOR_PORT = 29511


@functools.cache
def why_not() -> str | None:
    """What keeps this machine from having such hosts, None if nothing does."""
    if sys.platform != "linux":
        return f"needs Linux network namespaces, this is {sys.platform}"
    if os.geteuid() != 0:
        return "needs root"
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        return f"needs {', '.join(missing)} (iproute2 and util-linux)"
    try:
        with Hosts(2, "line", rate_mbit=10):
            return None
    except subprocess.CalledProcessError as error:
        return f"cannot make network namespaces: {error.stderr.strip().splitlines()[-1:]}"


@dataclass(frozen=True, slots=True)
class Finished:
    """How a host's command ended; -9 where it was killed because it did not end."""

    code: int
    output: str


class Hosts:
    """`count` hosts on a ring or a line; a context manager that leaves nothing behind."""

    def __init__(self, count: int, topology: str, *, rate_mbit: float):
        self.count, self.rate_mbit = count, rate_mbit
        self.topology = make_topology(topology, count)
        self._processes: list[subprocess.Popen] = []
        self._folder: tempfile.TemporaryDirectory | None = None

    def __enter__(self) -> "Hosts":
        _remove_forgotten()
        self._folder = tempfile.TemporaryDirectory(prefix=f"{_PREFIX}-")
        try:
            self._make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._kill()
        for host in range(self.count):
            _remove(self.namespace(host))
        if self._folder is not None:
            self._folder.cleanup()

    def namespace(self, host: int) -> str:
        return f"{_PREFIX}-{os.getpid()}-{host}"

    @staticmethod
    def address(host: int) -> str:
        return f"10.91.{host}.1"

    def run(
        self,
        command: Sequence[str],
        *,
        timeout_s: float,
        only: Sequence[int] | None = None,
        env: Mapping[str, str] | None = None,
        grace_s: float = 5.0,
    ) -> list[Finished]:
        """Run `command` on the hosts at once.

        Args:
            command: with arguments; `{host}` in one of them is the host's number.
            timeout_s: what has not ended by then is killed.
            only: on these hosts; on all of them if not given.
            env: more variables. Each host also has JAX_COORDINATOR_ADDRESS, JAX_PROCESS_ID and
                JAX_NUM_PROCESSES.
            grace_s: how long the others may go on after one has failed.
        """
        chosen = range(self.count) if only is None else only
        logs = [self.path(f"log-{host}") for host in chosen]
        for host, log in zip(chosen, logs):
            self._start(host, command, env or {}, log)
        started, failed = time.monotonic(), None
        while None in (codes := [process.poll() for process in self._processes]):
            now = time.monotonic()
            if failed is None and any(codes):
                failed = now
            if now - started > timeout_s or (failed is not None and now - failed > grace_s):
                break
            time.sleep(0.02)
        ended = self._kill()
        return [Finished(code, log.read_text(errors="replace")) for code, log in zip(ended, logs)]

    def sent_bytes(self) -> dict[tuple[int, int], int]:
        """Bytes that left over each directed link (source, target) so far, headers and all."""
        sent = {}
        for host, name, neighbour in self._ends():
            shown = _ip("-n", self.namespace(host), "-s", "-j", "link", "show", name)
            sent[host, neighbour] = json.loads(shown)[0]["stats64"]["tx"]["bytes"]
        return sent

    def _ends(self) -> Iterator[tuple[int, str, int]]:
        """(host, interface, neighbour) of every end of a link."""
        for host in range(self.count):
            for name, direction in _DIRECTION.items():
                neighbour = self.topology.neighbour(host, direction)
                if neighbour is not None:
                    yield host, name, neighbour

    def path(self, name: str) -> Path:
        """A file of that name in a folder that goes when the hosts go."""
        assert self._folder is not None
        return Path(self._folder.name) / name

    def _make(self) -> None:
        for host in range(self.count):
            _ip("netns", "add", self.namespace(host))
        for host, name, neighbour in self._ends():
            if name == _UP:
                here, there = self.namespace(host), self.namespace(neighbour)
                peer = ("peer", "name", _DOWN, "netns", there)
                _ip("link", "add", _UP, "netns", here, "type", "veth", *peer)
        for host in range(self.count):
            self._configure(host)
        for host, name, neighbour in self._ends():
            self._cap(host, name)
            self._route(host, name, neighbour)
        names = "".join(f"{self.address(h)} {_name(h)}\n" for h in range(self.count))
        self.path("hosts").write_text(f"127.0.0.1 localhost\n{names}")

    def _configure(self, host: int) -> None:
        settings = {
            "ip_forward": 1,
            "conf/all/rp_filter": 0,
            "conf/default/rp_filter": 0,
            # A connection that was idle keeps its window, as between the steps of a long run.
            "tcp_slow_start_after_idle": 0,
        }
        set_all = "; ".join(f"echo {v} > /proc/sys/net/ipv4/{k}" for k, v in settings.items())
        _output("nsenter", f"--net=/run/netns/{self.namespace(host)}", "sh", "-ec", set_all)
        inside = ("-n", self.namespace(host))
        _ip(*inside, "link", "set", "lo", "up")
        interfaces = [name for end, name, _ in self._ends() if end == host]
        for name in interfaces:
            _ip(*inside, "link", "set", name, "up")
        # Not on the loopback interface, which libraries that look for a network pass over.
        _ip(*inside, "address", "add", f"{self.address(host)}/32", "dev", (interfaces or ["lo"])[0])

    def _cap(self, host: int, name: str) -> None:
        """One bucket for both classes of packets; the small ones are served first."""
        rate, burst = f"{self.rate_mbit}mbit", str(_BURST_BYTES)
        least = f"{self.rate_mbit / 2}mbit"
        whole = ("rate", rate, "ceil", rate, "burst", burst, "cburst", burst)
        share = ("rate", least, "ceil", rate, "burst", burst, "cburst", burst)
        dev = ("dev", name)
        tc = functools.partial(_output, "tc", "-n", self.namespace(host))
        tc("qdisc", "add", *dev, "root", "handle", "1:", "htb", "default", "3")
        tc("class", "add", *dev, "parent", "1:", "classid", "1:1", "htb", *whole)
        for number in (2, 3):
            htb = ("classid", f"1:{number}", "htb", *share, "prio", str(number - 2))
            tc("class", "add", *dev, "parent", "1:1", *htb)
            queue = ("pfifo", "limit", str(_QUEUE_PACKETS))
            tc("qdisc", "add", *dev, "parent", f"1:{number}", *queue)
        # The length field of the IP header, two bytes in: no bit above the small ones.
        mask = f"{0xFFFF ^ (_SMALL_BYTES - 1):#06x}"
        small = ("u32", "match", "u16", "0", mask, "at", "2", "flowid", "1:2")
        tc("filter", "add", *dev, "parent", "1:", "protocol", "ip", *small)

    def _route(self, host: int, name: str, neighbour: int) -> None:
        """To all hosts that are nearer this way; halfway round a ring, up."""
        source = ("src", self.address(host))
        gateway = ("via", self.address(neighbour), "onlink")
        for other in range(self.count):
            if other == host or self._way(host, other) != name:
                continue
            how = () if other == neighbour else gateway
            target = ("route", "add", f"{self.address(other)}/32", *how, "dev", name)
            _ip("-n", self.namespace(host), *target, *source)

    def _way(self, host: int, other: int) -> str:
        up = other - host
        if self.topology.neighbour(self.count - 1, 1) is None:
            return _UP if up > 0 else _DOWN
        up %= self.count
        return _UP if up <= self.count - up else _DOWN

    def enter(self, host: int) -> list[str]:
        """What to put before a command so that it runs on `host`."""
        names = f"mount --bind {self.path('hosts')} /etc/hosts"
        # A fresh /sys shows the interfaces of this host, which some libraries look for there.
        first = f'{names} && mount -t sysfs sys /sys && hostname {_name(host)} && exec "$@"'
        inside = ("unshare", "--uts", "--mount", "sh", "-c", first, "sh")
        return ["nsenter", f"--net=/run/netns/{self.namespace(host)}", *inside]

    def _start(self, host: int, command: Sequence[str], env: Mapping[str, str], log: Path) -> None:
        argv = [*self.enter(host), *(part.replace("{host}", str(host)) for part in command)]
        who = {
            "JAX_COORDINATOR_ADDRESS": f"{self.address(0)}:{_COORDINATOR_PORT}",
            "JAX_PROCESS_ID": str(host),
            "JAX_NUM_PROCESSES": str(self.count),
        }
        clean = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
        with log.open("w") as out:
            process = subprocess.Popen(
                argv,
                env=clean | who | dict(env),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._processes.append(process)

    def _kill(self) -> list[int]:
        """End what runs, and forget all: who waits for peers heeds no other signal."""
        codes = []
        for process in self._processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            codes.append(process.wait())
        self._processes = []
        return codes


def _name(host: int) -> str:
    return f"host{host}"


def _remove(namespace: str) -> None:
    """Kill what is left in a namespace and delete it; fine if there is none."""
    listed = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True)
    for pid in listed.stdout.split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    subprocess.run(["ip", "netns", "delete", namespace], capture_output=True)


def _remove_forgotten() -> None:
    """Namespaces of a run that was itself killed."""
    for line in _ip("netns", "list").splitlines():
        prefix, _, rest = line.split(" ")[0].partition("-")
        pid = rest.partition("-")[0]
        if prefix == _PREFIX and pid.isdigit() and not Path(f"/proc/{pid}").exists():
            _remove(f"{prefix}-{rest}")


def _ip(*arguments: str) -> str:
    return _output("ip", *arguments)


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
