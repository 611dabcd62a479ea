"""Memory of a step whose activations dominate, compiled for 4 slices of v4 2x2x2.

    python benchmarks/aot/activations.py [--microbatches 32] [--out FOLDER]

Eight layers of a 28k MLP, 1024 wide, over 4 stages x 2 repeats, one sequence of 2048 tokens of
each microbatch a device, and nothing computed again (remat=False), so that what the backward needs
of every microbatch is kept. Autodiff through the circular loop keeps it for every tick; the
schedule of interleaved 1F1B for as many as are under way. Needs libtpu, no TPU.
"""

import argparse
import json
import os
from dataclasses import replace
from datetime import date
from importlib.metadata import version
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax

import ringline
from ringline.aot import DoesNotFitError, compile_for
from ringline.recipes import layer, loss, program, read_recipe, way_of


def main() -> None:
    """Compile both and write one file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--microbatches", type=int, default=32)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    asked = parser.parse_args()
    recipe = replace(
        read_recipe("4x-v4-16"),
        microbatches=asked.microbatches,
        layers_per_chunk=1,
        d_model=1024,
        length=2048,
        sequences_per_device=1,
    )
    mesh = recipe.target.mesh(stage=recipe.stages, fsdp=recipe.fsdp)
    rows = {}
    for name in ("circular", "interleaved"):
        way = way_of(recipe, name)
        _, arguments = program(recipe, way, mesh)

        def step(weights, x, targets, way=way):
            options = {"schedule": way.schedule, "mesh": mesh, "remat": False}
            if way.scheduled:
                return ringline.pipeline_loss(layer, loss, weights, (), x, targets, **options)
            return loss((), ringline.pipeline(layer, weights, x, **options), targets)

        try:
            memory = compile_for(
                recipe.target, jax.value_and_grad(step), *arguments, mesh=mesh
            ).memory
        except DoesNotFitError as error:
            memory = error.memory
        rows[name] = round(memory.temporaries_bytes / 2**30, 2)
        print(f"{name}: {rows[name]} GiB of temporaries", flush=True)
    ratio = round(rows["circular"] / rows["interleaved"], 2)
    print(f"autodiff over scheduled: {ratio}")
    document = {
        "about": __doc__,
        "jax": version("jax"),
        "libtpu": version("libtpu"),
        "microbatches": asked.microbatches,
        "temporaries_gib": rows,
        "autodiff_over_scheduled": ratio,
    }
    path = asked.out / f"aot_activations_{date.today()}.json"
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
