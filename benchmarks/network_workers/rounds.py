"""How every worker of `benchmarks/network.py` measures, whatever library it measures.

No library is imported here: the workers run under different Pythons.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path

MARK = "RESULT "


def sent_bytes() -> dict[str, int]:
    """By interface between hosts, the bytes that this host sent, headers and all."""
    sent = {}
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, colon, counters = line.strip().partition(":")
        if colon and name != "lo":
            sent[name] = int(counters.split()[8])
    return sent


def run_rounds(
    subjects: dict[str, Callable[[], object]],
    rounds: int,
    barrier: Callable[[], object],
) -> dict[str, dict]:
    """Run the subjects in turn, after one run of each to warm up.

    Returns:
        By subject, the `seconds` of this host in each round and the bytes it `sent` in all rounds,
        by interface.
    """
    for run in subjects.values():
        run()
    found = {name: {"seconds": [], "sent": dict.fromkeys(sent_bytes(), 0)} for name in subjects}
    for _ in range(rounds):
        for name, run in subjects.items():
            barrier()
            before, started = sent_bytes(), time.perf_counter()
            run()
            found[name]["seconds"].append(time.perf_counter() - started)
            # What this host passes on for others has left when all have what they need.
            barrier()
            for interface, count in sent_bytes().items():
                found[name]["sent"][interface] += count - before[interface]
    return found


def merge(found: list[dict[str, dict]], rounds: int) -> dict[str, dict]:
    """All hosts' rounds as one: a round takes as long as the slowest host."""
    merged = {}
    for name in found[0]:
        hosts = [host[name] for host in found]
        slowest = sorted(max(times) for times in zip(*(host["seconds"] for host in hosts)))
        merged[name] = {
            "time_s": slowest[len(slowest) // 2],
            "least_s": slowest[0],
            "most_s": slowest[-1],
            "sent_bytes": [
                {interface: count / rounds for interface, count in host["sent"].items()}
                for host in hosts
            ],
        }
    return merged


def report(document: object) -> None:
    """Print what `read_report` finds in the output."""
    print(MARK + json.dumps(document), flush=True)


def read_report(output: str) -> dict:
    """What a worker reported.

    Raises:
        ValueError: with the end of the output when it reported nothing.
    """
    for line in output.splitlines():
        if line.startswith(MARK):
            return json.loads(line.removeprefix(MARK))
    raise ValueError(f"the worker reported nothing; its output ends with:\n{output[-3000:]}")
