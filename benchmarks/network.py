"""Collectives of several hosts whose links are the limit, beside JAX's own, MPICH's and torch's.

    python benchmarks/network.py [--topology ring] [--hosts 4] [--rate-mbit 100] [--sizes 1,4]
        [--rounds 7] [--peers PYTHON] [--out benchmarks/results]

Needs root and iproute2: the hosts are those of `tests/network/capped_hosts.py`. A size is a host's
payload in MB. `--peers` is a Python with `mpich`, `mpi4py` and `torch` (CPU); without it only JAX
is measured. Prints one table of times with the bytes that the links counted, and one of ratios, and
writes `network_<topology><hosts>_<rate>mbit_<date>.json`.
"""

import argparse
import datetime
import json
import os
import platform
import shlex
import sys
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
WORKERS = HERE / "network_workers"
sys.path[:0] = [str(HERE.parent / "tests" / "network"), str(WORKERS)]

from capped_hosts import Hosts, why_not  # noqa: E402
from rounds import read_report  # noqa: E402

_TIMEOUT_S = 900
_QUIET = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "", "TF_CPP_MIN_LOG_LEVEL": "3"}
# MPI as between machines: no shared memory between namespaces, and TCP that asks the kernel for
# the way to a host.
_MPI = {"MPIR_CVAR_NOLOCAL": "1", "MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp"}


class Claim(NamedTuple):
    """`ours` takes at most 1 / `least` of the time of `other`; on rings, lines or both."""

    ours: str
    other: str
    least: float | None = None
    topology: str | None = None


_GATHERS = ("lax.all_gather", "MPICH Allgather", "torch gloo all_gather")
_SCATTERS = ("lax.psum_scatter", "MPICH Reduce_scatter", "torch gloo reduce_scatter")
CLAIMS = (
    Claim("all-gather one direction", "permute of the busiest link", 0.97, "ring"),
    *(Claim("all-gather per host", other, 1.9, "ring") for other in _GATHERS),
    Claim("all-gather per host", "lax.all_gather per host", 1.9, "ring"),
    Claim("all-gather both devices", "lax.all_gather both devices", 1.9, "ring"),
    *(Claim("all-gather both devices", other, None, "ring") for other in _GATHERS),
    Claim("all-gather per host", "permute of the busiest link", 0.97, "line"),
    Claim("all-gather both devices", "permute of the busiest link", None, "line"),
    Claim("all-gather per host", "lax.all_gather", None, "line"),
    Claim("reduce-scatter one direction", "lax.psum_scatter", 1.8, "ring"),
    *(Claim("reduce-scatter per host", other, None) for other in _SCATTERS),
    Claim("reduce-scatter both devices", "lax.psum_scatter both devices", None),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--topology", choices=("ring", "line"), default="ring")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rate-mbit", type=float, default=100)
    parser.add_argument("--sizes", default="1,4")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--peers")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    flags = parser.parse_args()
    reason = why_not()
    if reason is not None:
        sys.exit(f"this machine cannot have hosts with capped links: {reason}")
    load_before = os.getloadavg()[0]
    with Hosts(flags.hosts, flags.topology, rate_mbit=flags.rate_mbit) as hosts:
        reports = [_jax(hosts, flags)]
        if flags.peers:
            reports += [_mpi(hosts, flags), _torch(hosts, flags)]
    rows, ratios = _rows(reports, flags), _ratios(reports, flags)
    print(_table(rows), _ratio_table(ratios), sep="\n\n")
    document = {
        "what": "4-byte floats over TCP, median of interleaved rounds; a round takes as long as "
        "its slowest host, and starts when all are there",
        "command": shlex.join(["python", "benchmarks/network.py", *_given(flags)]),
        "date": datetime.date.today().isoformat(),
        "topology": flags.topology,
        "hosts": flags.hosts,
        "rate_mbit": flags.rate_mbit,
        "machine": {
            "host_cpus": os.cpu_count(),
            "load_average": [load_before, os.getloadavg()[0]],
            "niceness": os.nice(0),
            "python": platform.python_version(),
            "kernel": platform.release(),
            "libraries": [report["library"] for report in reports],
        },
        "rows": rows,
        "ratios": ratios,
    }
    name = f"network_{flags.topology}{flags.hosts}_{flags.rate_mbit:g}mbit_{document['date']}.json"
    (flags.out / name).write_text(json.dumps(document, indent=1) + "\n")
    wrong = sum(row["wrong"] for row in rows)
    sys.exit(f"{wrong} elements were wrong" if wrong else 0)


def _given(flags: argparse.Namespace) -> list[str]:
    given = [f"--topology={flags.topology}", f"--hosts={flags.hosts}"]
    given += [f"--rate-mbit={flags.rate_mbit:g}", f"--sizes={flags.sizes}"]
    return [*given, f"--rounds={flags.rounds}", *(["--peers=PYTHON"] if flags.peers else [])]


def _jax(hosts: Hosts, flags: argparse.Namespace) -> dict[str, Any]:
    worker = [sys.executable, str(WORKERS / "jax_worker.py"), flags.topology]
    return _run(hosts, [*worker, flags.sizes, str(flags.rounds)], env=_QUIET)


def _torch(hosts: Hosts, flags: argparse.Namespace) -> dict[str, Any]:
    worker = [flags.peers, str(WORKERS / "torch_worker.py"), flags.sizes, str(flags.rounds)]
    return _run(hosts, worker)


def _mpi(hosts: Hosts, flags: argparse.Namespace) -> dict[str, Any]:
    """`mpiexec` runs on the first host and reaches the others by what it takes for ssh."""
    names = [f"host{host}" for host in range(flags.hosts)]
    cases = [
        f'{name}) shift; exec {shlex.join(hosts.enter(host))} sh -c "$*";;'
        for host, name in enumerate(names)
    ]
    script = hosts.path("ssh")
    options = 'while [ "${1#-}" != "$1" ]; do shift; done'
    script.write_text("\n".join(["#!/bin/sh", options, 'case "$1" in', *cases, "esac", ""]))
    script.chmod(0o755)
    launch = [str(Path(flags.peers).with_name("mpiexec")), "-launcher", "ssh", "-launcher-exec"]
    launch += [str(script), "-hosts", ",".join(names), "-n", str(flags.hosts)]
    for name, value in _MPI.items():
        launch += ["-genv", name, value]
    worker = [flags.peers, str(WORKERS / "mpi_worker.py"), flags.sizes, str(flags.rounds)]
    return _run(hosts, [*launch, *worker], only=[0])


def _run(hosts: Hosts, command: list[str], **options: Any) -> dict[str, Any]:
    print(f"# {Path(command[1]).stem if len(command) < 7 else 'mpi_worker'}", file=sys.stderr)
    finished = hosts.run(command, timeout_s=_TIMEOUT_S, **options)
    failed = [end for end in finished if end.code]
    if failed:
        sys.exit(f"{command} ended with {failed[0].code}:\n{failed[0].output[-3000:]}")
    return read_report(finished[0].output)


def _rows(reports: list[dict[str, Any]], flags: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    for size in flags.sizes.split(","):
        payload_bytes = round(float(size) * 1e6)
        for report in reports:
            found = report["sizes"][size]
            for name, measured in found["subjects"].items():
                links = [count for host in measured["sent_bytes"] for count in host.values()]
                # What each host sends on a ring of hosts that sends one way; all of it, and useful.
                useful = payload_bytes * (1 if name == "permute" else flags.hosts - 1)
                rows.append(
                    {
                        "name": name,
                        "payload_bytes": payload_bytes,
                        "time_ms": measured["time_s"] * 1e3,
                        "least_ms": measured["least_s"] * 1e3,
                        "most_ms": measured["most_s"] * 1e3,
                        "busbw_mbit": useful * 8 / measured["time_s"] / 1e6,
                        "busiest_link_bytes": max(links),
                        "busiest_link_share": max(links)
                        * 8
                        / measured["time_s"]
                        / 1e6
                        / flags.rate_mbit,
                        "bytes_x_hops": sum(links),
                        "sent_bytes": measured["sent_bytes"],
                        "wrong": found["wrong"],
                    }
                )
    return rows


def _ratios(reports: list[dict[str, Any]], flags: argparse.Namespace) -> list[dict[str, Any]]:
    ratios = []
    for size in flags.sizes.split(","):
        times = {
            name: measured["time_s"]
            for report in reports
            for name, measured in report["sizes"][size]["subjects"].items()
        }
        for claim in CLAIMS:
            if claim.topology in (None, flags.topology) and claim.other in times:
                ratio = times[claim.other] / times[claim.ours]
                ratios.append(
                    {
                        "payload_bytes": round(float(size) * 1e6),
                        "ours": claim.ours,
                        "other": claim.other,
                        "times_as_fast": ratio,
                        "at_least": claim.least,
                        "reached": None if claim.least is None else ratio >= claim.least,
                    }
                )
    return ratios


def _table(rows: list[dict[str, Any]]) -> str:
    head = (
        f"{'payload':>8} {'':<30} {'ms':>8} {'busbw':>8} {'busiest link':>14} {'of rate':>8} "
        f"{'bytes x hops':>13}"
    )
    lines = [
        f"{row['payload_bytes'] / 1e6:>5g} MB {row['name']:<30} {row['time_ms']:>8.1f} "
        f"{row['busbw_mbit']:>8.1f} {row['busiest_link_bytes'] / 1e6:>11.2f} MB "
        f"{row['busiest_link_share']:>8.1%} {row['bytes_x_hops'] / 1e6:>10.1f} MB"
        for row in rows
    ]
    return "\n".join([head, *lines])


def _ratio_table(ratios: list[dict[str, Any]]) -> str:
    lines = []
    for row in ratios:
        wanted = "" if row["at_least"] is None else f">= {row['at_least']:g}"
        verdict = {None: "", True: "reached", False: "NOT REACHED"}[row["reached"]]
        lines.append(
            f"{row['payload_bytes'] / 1e6:>5g} MB {row['ours']:<28} / {row['other']:<28} "
            f"{row['times_as_fast']:>6.3f} {wanted:>7} {verdict}"
        )
    return "\n".join(["times as fast as", *lines])


if __name__ == "__main__":
    main()
