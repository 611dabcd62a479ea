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
    parser.add_argument("--implementation", default="auto", choices=("auto", "permute", "xla"))
    parser.add_argument("--iters", type=int, default=20)
    parser.add_argument("--max-bytes", type=int, default=2**32)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    flags = parser.parse_args()
    start(DEVICES, Processes())

    import jax

    from ringline.collectives.measure import OPERATIONS

    operation = OPERATIONS[flags.collective]
    load_before = os.getloadavg()
    rows = _rows(operation, flags)
    malloc = {
        k: v for k, v in os.environ.items() if k.startswith(("MALLOC_", "GLIBC_", "LD_PRELOAD"))
    }
    today = datetime.date.today().isoformat()
    document = {
        "collective": operation.name,
        "date": today,
        "command": f"python benchmarks/collectives.py {operation.name} "
        f"--implementation {flags.implementation} --iters {flags.iters} "
        f"--max-bytes {flags.max_bytes}",
        "note": "medians of interleaved runs; emulated devices share the host's cores",
        "machine": {
            "backend": jax.default_backend(),
            "device": jax.devices()[0].device_kind,
            "host_cpus": os.cpu_count(),
            "load_average": [load_before[0], os.getloadavg()[0]],
            "allocator": malloc or "glibc as it is by default",
            "jax": jax.__version__,
            "python": platform.python_version(),
        },
        "rows": rows,
    }
    base = f"{operation.name.replace('-', '_')}_{flags.implementation}"
    allocator = "_hugepages" if "GLIBC_TUNABLES" in malloc else "_malloc" if malloc else ""
    name = f"{base}_{jax.default_backend()}{DEVICES}{allocator}_{today}"
    (flags.out / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n")
    (flags.out / f"{name}.md").write_text(_table(document))


def _rows(operation, flags) -> list[dict]:
    """Every case on a ring and on a line, from the smallest on."""
    from ringline.collectives.measure import Setup, measure, targeted

    implementation = None if flags.implementation == "auto" else flags.implementation
    rows = []
    for case in sorted(targeted(operation), key=lambda case: case.size_bytes):
        for topology in ("ring", "line"):
            setup = Setup(
                operation,
                topology,
                DEVICES,
                implementation=implementation,
                iters=flags.iters,
                bounds=True,
            )
            row = measure(case, setup, max_bytes=flags.max_bytes).to_json()
            row |= _bounds(row)
            rows.append(row | {name: _ratio(row, *of) for name, of in _RATIOS.items()})
            print(_line(rows[-1]), flush=True)
    return rows


_RATIOS = {
    "builtin_over_time": ("builtin_us", "time_us"),
    "in_place_over_chained": ("in_place_us", "chained_us"),
    "in_place_over_bound": ("in_place_us", "in_place_bound_us"),
    "bound_over_chained": ("in_place_bound_us", "chained_us"),
    "builtin_over_bound": ("builtin_us", "bound_us"),
}


def _bounds(row: dict) -> dict[str, float | None]:
    """What the sends and one pass over the result take, each alone: fresh, or in place.

    The n - 1 chained permutes are what a ring sends. On a line they send n - 1 stripes each, of
    the n (n - 1) that have to be sent.
    """
    if not row["chained_us"]:
        return {"bound_us": None, "in_place_bound_us": None}
    devices = row["devices"]
    sends = row["chained_us"]
    if row["topology"] == "line":
        sends *= devices / (devices - 1)
    return {"bound_us": sends + row["fresh_us"], "in_place_bound_us": sends + row["placed_us"]}


def _ratio(row: dict, over: str, under: str) -> float | None:
    return row[over] / row[under] if row[over] and row[under] else None


_CELLS = {
    "time us": ("time_us", ".0f"),
    "built-in us": ("builtin_us", ".0f"),
    "fresh us": ("fresh_us", ".0f"),
    "permute us": ("microbenchmark_us", ".0f"),
    "in place us": ("in_place_us", ".0f"),
    "chained us": ("chained_us", ".0f"),
    "placed us": ("placed_us", ".0f"),
    "built-in / time": ("builtin_over_time", ".2f"),
    "built-in / bound": ("builtin_over_bound", ".2f"),
    "in place / chained": ("in_place_over_chained", ".2f"),
    "bound / chained": ("bound_over_chained", ".2f"),
    "busbw GB/s": ("busbw_gb_s", ".3f"),
    "linkbw GB/s": ("linkbw_gb_s", ".3f"),
    "wrong": ("wrong", "d"),
    "in place wrong": ("in_place_wrong", "d"),
}


def _line(row: dict) -> str:
    cells = [
        f"{'x'.join(map(str, row['shape']))} @ {row['dim']}",
        row["dtype"],
        row["topology"],
        *("-" if row[key] is None else format(row[key], form) for key, form in _CELLS.values()),
        row["skipped"] or "",
    ]
    return "| " + " | ".join(cells) + " |"


def _table(document: dict) -> str:
    machine = document["machine"]
    names = ["shape @ dim", "type", "topology", *_CELLS, "skipped"]
    head = [
        f"# {document['collective'].capitalize()}, {DEVICES} {machine['backend']} devices, "
        f"{document['date']}",
        "",
        f"`{document['command']}`; {machine['host_cpus']} cores, load average "
        f"{machine['load_average'][0]:.1f} to {machine['load_average'][1]:.1f}, jax "
        f"{machine['jax']}, allocator: {machine['allocator']}. {document['note'].capitalize()}. "
        "One channel. The permute moves the busiest link's bytes one hop; fresh writes the "
        "results' fresh memory once and nothing else; chained is n - 1 permutes of a stripe; in "
        "place writes over a donated buffer, placed the own stripe n times over one and nothing "
        "else. Bounds, for whoever sends and then writes: chained + fresh, in place chained + "
        "placed, where a line's chained counts n / (n - 1) times, for all that it has to send. "
        "Every element of every device's result is checked.",
        "",
        "| " + " | ".join(names) + " |",
        "|---" * len(names) + "|",
    ]
    return "\n".join([*head, *(_line(row) for row in document["rows"])]) + "\n"


if __name__ == "__main__":
    main()
