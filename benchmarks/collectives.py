"""The targeted cases of a collective on a ring and on a line, as a result file and a table.

    python benchmarks/collectives.py [all-gather] [--iters 20] [--max-bytes 4294967296]
        [--out benchmarks/results]

Writes `all_gather_<device><n>_<date>.json` and the same as Markdown. The numbers are medians of
interleaved runs; on a machine that does other work too they say little but how the columns
compare.
"""

import argparse
import datetime
import json
import os
import platform
from pathlib import Path

from ringline.train._distributed import Processes, start

DEVICES = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("collective", nargs="?", default="all-gather")
    parser.add_argument("--iters", type=int, default=20)
    parser.add_argument("--max-bytes", type=int, default=2**32)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    flags = parser.parse_args()
    start(DEVICES, Processes())

    import jax

    from ringline.collectives._measure import Setup, measure, targeted
    from ringline.collectives._operations import OPERATIONS

    operation = OPERATIONS[flags.collective]
    load_before = os.getloadavg()
    rows = []
    for case in sorted(targeted(operation), key=lambda case: case.size_bytes):
        for topology in ("ring", "line"):
            setup = Setup(operation, topology, DEVICES, iters=flags.iters)
            rows.append(measure(case, setup, max_bytes=flags.max_bytes).to_json())
            print(_line(rows[-1]), flush=True)
    today = datetime.date.today().isoformat()
    name = f"{operation.name.replace('-', '_')}_{jax.default_backend()}{DEVICES}_{today}"
    document = {
        "collective": operation.name,
        "date": today,
        "command": f"python benchmarks/collectives.py {operation.name} --iters {flags.iters} "
        f"--max-bytes {flags.max_bytes}",
        "note": "medians of interleaved runs; emulated devices share the host's cores",
        "machine": {
            "backend": jax.default_backend(),
            "device": jax.devices()[0].device_kind,
            "host_cpus": os.cpu_count(),
            "load_average": [load_before[0], os.getloadavg()[0]],
            "jax": jax.__version__,
            "python": platform.python_version(),
        },
        "rows": rows,
    }
    (flags.out / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n")
    (flags.out / f"{name}.md").write_text(_table(document))


_CELLS = (
    ("time_us", ".0f"),
    ("builtin_us", ".0f"),
    ("microbenchmark_us", ".0f"),
    ("busbw_gb_s", ".3f"),
    ("linkbw_gb_s", ".3f"),
    ("share_of_microbenchmark", ".1%"),
    ("wrong", "d"),
)


def _line(row: dict) -> str:
    cells = [
        f"{'x'.join(map(str, row['shape']))} @ {row['dim']}",
        row["dtype"],
        row["topology"],
        *("-" if row[key] is None else format(row[key], form) for key, form in _CELLS),
        row["skipped"] or "",
    ]
    return "| " + " | ".join(cells) + " |"


def _table(document: dict) -> str:
    machine = document["machine"]
    head = [
        f"# {document['collective'].capitalize()}, {DEVICES} {machine['backend']} devices, "
        f"{document['date']}",
        "",
        f"`{document['command']}`; {machine['host_cpus']} cores, load average "
        f"{machine['load_average'][0]:.1f} to {machine['load_average'][1]:.1f}, jax "
        f"{machine['jax']}. {document['note'].capitalize()}. Two directions, one channel. The "
        "permute moves the busiest link's bytes one hop; share is its time over the collective's. "
        "Every element of every device's result is checked.",
        "",
        "| shape @ dim | type | topology | time us | built-in us | permute us | busbw GB/s | "
        "linkbw GB/s | share | wrong | skipped |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    return "\n".join([*head, *(_line(row) for row in document["rows"])]) + "\n"


if __name__ == "__main__":
    main()
