"""Every order of the two recipes, predicted and compiled for its slices with the TPU compiler.

    python benchmarks/aot/recipes.py [RECIPE ...] [--out FOLDER]

Needs libtpu (`pip install 'ringline[aot]'`), no TPU. One program takes the compiler about a
minute of one core. For each order: the prediction, the program's memory and FLOPs, and every
transfer in its loops with the computation that it spans.
"""

import argparse
import contextlib
import io
import json
from datetime import date
from importlib.metadata import version
from pathlib import Path

from ringline.cli._compile import CompileFlags, run
from ringline.recipes import WAYS, recipe_names


def main() -> None:
    """Compile what is asked for and write one file for each recipe."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipes", nargs="*", default=recipe_names())
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    asked = parser.parse_args()
    for recipe in asked.recipes:
        rows = [condensed(way, compiled(recipe, way)) for way in WAYS]
        path = asked.out / f"aot_{recipe}_{date.today()}.json"
        path.write_text(json.dumps(collected(recipe, rows), indent=1) + "\n", encoding="utf-8")


def compiled(recipe: str, way: str) -> dict:
    """The report of one order."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        run(CompileFlags(config=recipe, schedule=(way,), json="-"))
    return json.loads(out.getvalue())


def collected(recipe: str, rows: list[dict]) -> dict:
    """The file of one recipe."""
    return {
        "about": __doc__,
        "recipe": recipe,
        "libtpu": version("libtpu"),
        "jax": version("jax"),
        "rows": rows,
    }


def condensed(way: str, document: dict) -> dict:
    """What is worth keeping of a report: the prediction, and the loops' transfers."""
    memory = {k: v for k, v in document["memory"].items() if k != "largest"}
    if not memory["fits"]:
        return {"schedule": way, "memory": memory}
    fields = ("name", "kind", "link", "axis", "bytes", "times_per_step", "spans_compute_us")
    fields += ("transfer_us", "exposed", "posted", "ended")
    return {
        "schedule": way,
        "compile_s": round(document["compile_s"], 1),
        "memory": memory,
        "flops": document["flops"],
        "prediction": document["prediction"],
        "comparison": document["comparison"],
        "in_loops": [
            {name: c[name] for name in fields} for c in document["collectives"] if c["in_loop"]
        ],
    }


if __name__ == "__main__":
    main()
