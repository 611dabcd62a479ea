"""The collectives compiled for four TPU chips in a ring: what overlaps, and what memory they move.

    python benchmarks/aot/collectives.py [--target v5p:2x2x1] [--out FOLDER]

Needs libtpu (`pip install 'ringline[aot]'`), no TPU. For each form: the order in which permutes
start (S) and are waited for (D), computation that they span, and bytes of device memory by the
compiler's cost analysis over those of the built-in. And how long collectives of 64 devices take to
trace and compile: an all-gather over emulated ones, and each of the five, with permutes and as
a kernel, for a slice of v5p; and the compiler alone, for the permutes of an all-reduce written out.

What permutes can reach by that count, in bytes of a shard: the analysis counts each permute's two
ends at its start and again when it is done, 4 x 3; putting four shards in place reads and writes
each, 8. That is 20 over the built-in's 13, 1.54. A second direction cuts one shard in two, which
costs 2 more, 1.69, and 1 more, 1.62, even if one pass both cut and placed it; the rest, 4, is one
arrival that the compiler fetches into on-chip memory ahead of its placement and back from it, which
is no device memory but is counted. A kernel that writes into the neighbour's output has none of it.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from datetime import date
from functools import partial
from importlib.metadata import version
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import ringline
from ringline.aot import read_compiled, target
from ringline.aot._quiet import quiet
from ringline.schedule import all_reduce
from ringline.topology import Line, Ring

SHAPES = [((8192, 8192), 0), ((8192, 8192), 1), ((1, 1, 2048, 32768), 3)]
FORMS = {
    "built-in": None,
    "ring, one direction": {"directions": 1},
    "ring, two directions": {"directions": 2},
    "line": {"topology": "line"},
    "pallas, two directions": {"implementation": "pallas", "directions": 2},
}
_MANY = """
import time, jax, jax.numpy as jnp, ringline
from jax.sharding import PartitionSpec as P
mesh = jax.sharding.Mesh(jax.devices(), ("x",))
gather = lambda x: ringline.all_gather(x, "x", axis=0, topology={topology!r}, \
implementation="permute")
whole = jax.shard_map(gather, mesh=mesh, in_specs=P("x"), out_specs=P(), check_vma=False)
x = jax.ShapeDtypeStruct((64 * 128, 128), jnp.float32)
began = time.perf_counter()
jax.jit(whole).lower(x).compile()
print(time.perf_counter() - began)
"""


def main() -> None:
    """Compile every form and write one file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="v5p:2x2x1")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    asked = parser.parse_args()
    slices = target(asked.target)
    mesh = slices.mesh(x=slices.device_count)
    rows = []
    for shape, dim in SHAPES:
        rows += gathers(slices, mesh, shape, dim)
    rows += matmuls(slices, mesh)
    many = {name: compile_many(name) for name in ("ring", "line")}
    for name, seconds in many.items():
        print(f"64 emulated devices, {name}: traced and compiled in {seconds:.1f} s")
    chips = many_chips()
    document = {
        "about": __doc__,
        "target": slices.name,
        "libtpu": version("libtpu"),
        "jax": version("jax"),
        "rows": rows,
        "compile_s_of_64_devices": many,
        "compile_s_of_64_v5p_chips": chips,
    }
    name = re.sub(r"\W+", "-", asked.target)
    path = asked.out / f"aot_collectives_{name}_{date.today()}.json"
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def gathers(slices, mesh, shape, dim) -> list[dict]:
    """The all-gather of one bfloat16 shape in every form."""
    rows, base = [], None
    spec = P(*("x" if d == dim else None for d in range(len(shape))))
    for name, options in FORMS.items():
        if options is None:
            gather = partial(lax.all_gather, axis_name="x", axis=dim, tiled=True)
        else:
            options = {"implementation": "permute"} | options
            gather = partial(ringline.all_gather, axis_name="x", axis=dim, **options)
        row = measured(slices, mesh, gather, [(shape, spec)], P())
        base = base or row
        row |= {"what": f"all-gather {list(shape)} @ {dim}", "form": name}
        row["bytes_over_builtin"] = round(row["bytes"] / base["bytes"], 2)
        rows.append(row)
        print(
            f"{row['what']:<34} {name:<22} {row['order']:<14} bytes x {row['bytes_over_builtin']}",
            flush=True,
        )
    return rows


def matmuls(slices, mesh) -> list[dict]:
    """The fused forms, 8192 x 8192 x 2048 on each chip: computation that each permute spans."""
    x, w = (8192, 8192), (8192, 8192)
    products = 2 * 8192 * 8192 * 8192 // slices.device_count
    forms = {
        "all_gather_matmul": (ringline.all_gather_matmul, P("x"), P(None, "x"), P(None, "x")),
        "matmul_reduce_scatter": (
            ringline.matmul_reduce_scatter,
            P(None, "x"),
            P("x"),
            P("x"),
        ),
    }
    rows = []
    for name, (function, x_spec, w_spec, out) in forms.items():
        for topology in ("ring", "line"):
            options = {"implementation": "permute", "topology": topology, "directions": 2}
            fused = partial(function, axis_name="x", **options)
            row = measured(slices, mesh, fused, [(x, x_spec), (w, w_spec)], out)
            row["flops_over_least"] = round(row["flops"] / products, 2)
            rows.append(row | {"what": name, "form": f"{topology}, two directions"})
            spans = ", ".join(f"{us:.0f}" for us in row["spans_compute_us"])
            print(
                f"{name:<24} {topology} {row['order']} spans us: {spans}; "
                f"FLOPs x {row['flops_over_least']}",
                flush=True,
            )
    return rows


def compiled_in(mesh, function, arguments, out) -> tuple:
    """`function` of bfloat16 arrays inside shard_map, compiled, and the seconds it took."""
    mapped = jax.shard_map(
        function,
        mesh=mesh,
        in_specs=tuple(spec for _, spec in arguments),
        out_specs=out,
        check_vma=False,
    )
    shapes = [
        jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, spec))
        for shape, spec in arguments
    ]
    began = time.perf_counter()
    with quiet():
        compiled = jax.jit(mapped).lower(*shapes).compile()
    return compiled, time.perf_counter() - began


def measured(slices, mesh, function, arguments, out) -> dict:
    """Compile `function` for the target, and read it."""
    compiled, took = compiled_in(mesh, function, arguments, out)
    costs = compiled.cost_analysis()
    found = read_compiled(slices, compiled, mesh=mesh, compile_s=took)
    permutes = [c for c in found.collectives if c.kind == "collective-permute"]
    entry = found.text[found.text.index("ENTRY") :]
    order = re.findall(r" collective-permute-(start|done)\(", entry)
    return {
        "order": "".join({"start": "S", "done": "D"}[word] for word in order),
        "bytes": costs["bytes accessed"],
        "flops": costs.get("flops", 0.0),
        "permuted_bytes": sum(c.bytes for c in permutes),
        "temporaries_bytes": found.memory.temporaries_bytes,
        "spans_compute_us": [round(c.spans_compute_us, 1) for c in permutes],
        "transfer_us": [round(c.transfer_us, 1) for c in permutes],
        "compile_s": round(took, 1),
    }


def many_chips() -> dict[str, float]:
    """Seconds to trace and compile each collective for 64 chips, in both directions."""
    slices = target("v5p:4x4x4")
    mesh = slices.mesh(x=slices.device_count)
    rows, w = ((64 * 1024, 1024), P("x")), ((1024, 1024), P())
    whole = (rows[0], P())
    forms = {
        "all_gather": (ringline.all_gather, [rows], P()),
        "reduce_scatter": (ringline.reduce_scatter, [whole], P("x")),
        "all_reduce": (ringline.all_reduce, [whole], P()),
        "all_gather_matmul": (ringline.all_gather_matmul, [rows, w], P()),
        "matmul_reduce_scatter": (ringline.matmul_reduce_scatter, [whole, w], P("x")),
    }
    found = {}
    for name, (function, arguments, out) in forms.items():
        for topology in ("ring", "line"):
            for implementation in ("permute", "pallas"):
                options = {"topology": topology, "implementation": implementation}
                form = partial(function, axis_name="x", **options)
                took = compiled_in(mesh, form, arguments, out)[1]
                found[f"{name}, {topology}, {implementation}"] = round(took, 2)
                print(f"64 chips, {name}, {topology}, {implementation}: {took:.1f} s", flush=True)
    for topology in (Ring, Line):
        form = partial(permutes_alone, all_reduce(topology(64), directions=2))
        took = compiled_in(mesh, form, [rows], P("x"))[1]
        name = f"permutes of an all_reduce and nothing else, {topology.__name__.lower()}"
        found[name] = round(took, 2)
        print(f"64 chips, {name}: {took:.1f} s", flush=True)
    return found


def permutes_alone(schedule, x):
    """All sends of a schedule, written out: what the compiler takes for them."""
    for lane in schedule.by_lane():
        x = lax.ppermute(x, "x", [(t.source, schedule.target(t)) for t in lane])
    return x


def compile_many(topology: str) -> float:
    """Seconds to trace and compile over 64 emulated devices, in a process of their own."""
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=64"}
    done = subprocess.run(
        [sys.executable, "-c", _MANY.format(topology=topology)],
        env=os.environ | flags,
        capture_output=True,
        text=True,
        check=True,
    )
    return round(float(done.stdout.split()[-1]), 2)


if __name__ == "__main__":
    main()
