"""Memory and compile time of a pipelined step against the number of microbatches.

    python benchmarks/pipeline/memory.py [--out FILE]

For 1F1B (eager) and interleaved 1F1B through `pipeline_loss`, and for autodiff through the
circular loop (`pipeline`), prints the temporary memory of the compiled step per device and the
time to trace and compile. A residual MLP where activations dominate: p = 4 stages, 2 layers a
chunk, rows of 256 positions x 64, one row of each microbatch a device.
"""

import argparse
import json
import os
import statistics
import time
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"
).strip()

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

import ringline
from ringline import schedules

STAGES, DEPTH, WIDTH, LENGTH = 4, 2, 64, 256


def layer(params, x):
    return x + jnp.tanh(x @ params["up"]) @ params["down"]


def loss(params, y, targets):
    return jnp.mean((y - targets) ** 2)


def scheduled(make, repeats):
    def run(mesh, microbatches):
        schedule = make(STAGES, microbatches, repeats)
        return lambda params, x, targets: ringline.pipeline_loss(
            layer, loss, params, (), x, targets, schedule=schedule, mesh=mesh
        )

    return run, repeats


def autodiff(mesh, microbatches):
    schedule = schedules.circular(STAGES, microbatches, 2)
    return lambda params, x, targets: loss(
        (), ringline.pipeline(layer, params, x, schedule=schedule, mesh=mesh), targets
    )


CASES = {
    "eager 1F1B": scheduled(schedules.eager_one_f_one_b, 1),
    "interleaved 1F1B, v = 2": scheduled(schedules.interleaved_one_f_one_b, 2),
    "autodiff through circular, v = 2": (autodiff, 2),
}


def measure(case: str, microbatches: int) -> dict:
    make, repeats = CASES[case]
    mesh = Mesh(np.array(jax.devices()[:STAGES]), ("stage",))
    layers = STAGES * repeats * DEPTH
    shape = jax.ShapeDtypeStruct
    params = {
        "up": shape((layers, WIDTH, 2 * WIDTH), jnp.float32),
        "down": shape((layers, 2 * WIDTH, WIDTH), jnp.float32),
    }
    rows = shape((microbatches, LENGTH, WIDTH), jnp.float32)
    step = jax.jit(jax.value_and_grad(make(mesh, microbatches)))
    began = time.perf_counter()
    compiled = step.trace(params, rows, rows).lower().compile()
    seconds = time.perf_counter() - began
    temporaries = compiled.memory_analysis().temp_size_in_bytes
    return {
        "case": case,
        "microbatches": microbatches,
        "temporaries_mib": round(temporaries / 2**20, 2),
        "trace_and_compile_s": round(seconds, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    out = parser.parse_args().out
    rows = []
    for case in CASES:
        for microbatches in (8, 16, 32, 64):
            runs = [measure(case, microbatches) for _ in range(3)]
            row = runs[0]
            row["trace_and_compile_s"] = statistics.median(
                run["trace_and_compile_s"] for run in runs
            )
            rows.append(row)
            print(
                f"{case:<34} m = {microbatches:<3} {row['temporaries_mib']:>8} MiB"
                f" {row['trace_and_compile_s']:>6} s",
                flush=True,
            )
    at = {(row["case"], row["microbatches"]): row for row in rows}
    ratios = {}
    for case in list(CASES)[:2]:
        few, many = at[case, 16], at[case, 64]
        ratios[f"{case}: memory at m = 64 over m = 16"] = round(
            many["temporaries_mib"] / few["temporaries_mib"], 3
        )
        ratios[f"{case}: compile time at m = 64 over m = 8"] = round(
            many["trace_and_compile_s"] / at[case, 8]["trace_and_compile_s"], 3
        )
        ratios[f"autodiff over {case}: memory at m = 32"] = round(
            at[list(CASES)[2], 32]["temporaries_mib"] / at[case, 32]["temporaries_mib"], 2
        )
    for name, ratio in ratios.items():
        print(f"{name}: {ratio}")
    if out:
        result = {"about": __doc__, "jax": jax.__version__, "rows": rows, "ratios": ratios}
        out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
