"""`ringline compile`: compile a training step for TPU slices without them, and read it back."""

import json
import os
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.console import Console
from rich.table import Table

from ringline.cli._files import write_text
from ringline.cli._flag_types import File, FileOrOutput, Whole, takes

if TYPE_CHECKING:
    from ringline.aot import Compiled, DoesNotFitError
    from ringline.recipes import Recipe

DOES_NOT_FIT, DOES_NOT_TRACE = 1, 1
Say = Callable[[str], None]


@dataclass(frozen=True)
class CompileFlags:
    """Compile a training step for TPU slices that need not exist; show memory and overlap."""

    target: Annotated[str | None, takes("TARGET")] = None
    """Such as '4x v4-16', 'v5e-64' or '2x v5p:4x4x8'; the configuration's own if not given."""
    config: Annotated[str | None, takes("FILE|NAME")] = None
    """A recipe (4x-v4-16, 3x-v4-128, or a TOML file with a [recipe]), or the TOML file of a
    `ringline train` run."""
    schedule: Annotated[
        tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="NAME")
    ] = ()
    """Of a recipe: linear, circular, circular-late-send, 1f1b, eager-1f1b, interleaved, or any
    other schedule's name; may be given several times."""
    microbatches: Whole = None
    """Of a recipe, in place of its own."""
    gather: Annotated[str | None, takes("step|repeat|use")] = None
    """Of a recipe: when weights are gathered over FSDP."""
    function: Annotated[str | None, takes("FILE.py:NAME")] = None
    """Compile your own: NAME(mesh) gives (function, arguments); a module's name serves for
    FILE.py."""
    mesh: Annotated[str | None, takes("AXIS=SIZE,...")] = None
    """The mesh for --function, outermost axis first, such as stage=4,fsdp=8; -1 for the rest."""
    json: FileOrOutput = None
    """Write the report as JSON; `-` for standard output, which then holds nothing else."""
    html: File = None
    """Write a page with the report and a drawing of one trip of the program's longest loop."""
    text: File = None
    """Write the scheduled program itself."""


@dataclass(frozen=True)
class _Run:
    """One compiled program with what is said beside it."""

    compiled: "Compiled"
    title: str = ""
    recipe: "Recipe | None" = None
    way: Any = None


def run(flags: CompileFlags) -> int:
    """Compile, print, write what the flags ask for; gives the exit status."""
    # Nothing here runs on a device: keep JAX from looking for some.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    from ringline.aot import DoesNotFitError
    from ringline.aot._target import require_libtpu
    from ringline.cli._compile_own import UserError

    _check(flags)
    require_libtpu()
    runs: list[_Run] = []
    try:
        with _progress() as say:
            for job in _jobs(flags):
                runs.append(job(say))
    except DoesNotFitError as error:
        return _too_large(error, flags)
    except UserError as error:
        print(f"ringline: error: {error}", file=sys.stderr)
        return DOES_NOT_TRACE
    _write(runs, flags)
    return 0


def _check(flags: CompileFlags) -> None:
    if flags.function and (flags.config or flags.schedule):
        raise ValueError("--function brings its own program; drop --config and --schedule")
    if flags.mesh and not flags.function:
        raise ValueError("--mesh goes with --function; a recipe's mesh follows from its stages")
    if flags.function and not flags.target:
        raise ValueError("--function needs --target, such as --target '4x v4-16'")
    if flags.microbatches is not None and flags.microbatches < 1:
        raise ValueError(f"--microbatches must be at least 1, got {flags.microbatches}")


def _jobs(flags: CompileFlags) -> list[Callable[[Say], _Run]]:
    """What there is to compile."""
    if flags.function:
        from ringline.cli._compile_own import compile_function

        asked, wanted = flags.function, str(flags.target)
        return [lambda say: _Run(compile_function(asked, wanted, flags.mesh, say), asked)]
    config = flags.config
    if config and config.endswith(".toml") and not _is_recipe(config):
        from ringline.cli._compile_own import compile_trainer

        title = f"the trainer's step of {config}"
        return [lambda say: _Run(compile_trainer(config, flags.target, say), title)]
    from ringline.recipes import way_of

    recipe = _recipe(flags)
    ways = [way_of(recipe, name) for name in flags.schedule or (recipe.schedule,)]
    return [lambda say, way=way: _compile_recipe(recipe, way, say) for way in ways]


def _is_recipe(path: str) -> bool:
    from ringline.topology._tables import read_table

    return "recipe" in read_table(path)


def _recipe(flags: CompileFlags) -> "Recipe":
    from ringline.aot import target
    from ringline.recipes import gather_of, read_recipe, recipe_for, retarget

    if flags.config is None:
        recipe = recipe_for(flags.target) if flags.target else read_recipe("4x-v4-16")
    else:
        recipe = read_recipe(flags.config)
        wanted = target(flags.target) if flags.target else recipe.target
        if (wanted.topology, wanted.cluster.slices) != (
            recipe.target.topology,
            recipe.target.cluster.slices,
        ):
            recipe = retarget(recipe, wanted)
    return replace(
        recipe,
        microbatches=flags.microbatches or recipe.microbatches,
        gather=gather_of(flags.gather) if flags.gather else recipe.gather,
    )


def _compile_recipe(recipe: "Recipe", way: Any, say: Say) -> _Run:
    from ringline.aot import compile_for
    from ringline.recipes import program

    mesh = recipe.target.mesh(stage=recipe.stages, fsdp=recipe.fsdp)
    fn, args = program(recipe, way, mesh)
    label = f"{way.name}: "
    compiled = compile_for(recipe.target, fn, *args, mesh=mesh, say=lambda text: say(label + text))
    return _Run(compiled, recipe.title, recipe, way)


def _too_large(error: "DoesNotFitError", flags: CompileFlags) -> int:
    from ringline.aot._report import memory_json

    print(f"ringline: error: {error}", file=sys.stderr)
    if flags.json:
        found = {"target": flags.target, "memory": memory_json(error.memory)}
        write_text(flags.json, json.dumps(found) + "\n")
    return DOES_NOT_FIT


def _write(runs: list[_Run], flags: CompileFlags) -> None:
    documents = [_document(run) for run in runs]
    if flags.json:
        chosen = documents[0] if len(documents) == 1 else documents
        write_text(flags.json, json.dumps(chosen, indent=1) + "\n")
    if flags.text:
        write_text(flags.text, runs[0].compiled.text)
    if flags.json != "-":
        console = Console() if sys.stdout.isatty() else Console(width=140)
        for run in runs:
            _print(run, console)
    if flags.html:  # last, as a program without a loop has none
        _page(runs, flags.html)


def _document(run: _Run) -> dict[str, Any]:
    from ringline.aot import report_json

    document = report_json(run.compiled)
    if run.recipe is None:
        return document
    from ringline.recipes import by_hand, compare, predict

    expected = predict(run.recipe, run.way)
    rows = compare(run.recipe, run.way, expected, run.compiled)
    return document | {
        "recipe": run.recipe.title,
        "schedule": run.way.name,
        "gather": run.recipe.gather,
        "assumes": list(run.recipe.assumes),
        "prediction": {
            "step_s": expected.step_s,
            "loop_s": expected.loop.loop_s,
            "ticks": expected.loop.ticks,
            "relative_to_ideal": expected.relative,
            "mfu": expected.mfu,
            "temporaries_bytes": dict(expected.temporaries_bytes),
            "flops": expected.flops,
            "exposed_transfers_s": expected.exposed_s,
            "by_hand_without_overlap": by_hand(run.recipe),
        },
        "comparison": [
            {
                "what": row.what,
                "unit": row.unit,
                "predicted": row.predicted,
                "program": row.program,
                "difference": row.difference,
                "why": row.why,
            }
            for row in rows
        ],
    }


def _print(run: _Run, console: Console) -> None:
    from ringline.aot import report

    name = f" ({run.way.name})" if run.way else ""
    console.print(f"{run.title}{name}", style="bold", highlight=False, markup=False)
    console.print(report(run.compiled), highlight=False)
    if run.recipe is None:
        return
    from ringline.recipes import by_hand, predict

    expected = predict(run.recipe, run.way)
    table, reasons = _comparison(run)
    console.print(table)
    parts = ", ".join(f"{name} {size / 2**30:.2f}" for name, size in _gib(expected))
    lines = [
        *reasons,
        f"Predicted memory in GiB: {parts}.",
        *_price(run),
        "By hand, without overlap, a step is the following times its computation: "
        + ", ".join(f"{value:.2f} ({name})" for name, value in by_hand(run.recipe).items())
        + ".",
        *(f"Assumed: {text}" for text in run.recipe.assumes),
    ]
    for line in lines:
        console.print(line, highlight=False, markup=False)
    console.print(_every_way(run.recipe))
    console.print()


def _price(run: _Run) -> list[str]:
    """What gathering once a step costs in memory."""
    from ringline.recipes import predict

    recipe = run.recipe
    if recipe is None or recipe.gather != "step" or recipe.fsdp == 1 or not run.way.scheduled:
        return []
    more = predict(recipe, run.way).memory_bytes
    more -= predict(replace(recipe, gather="use"), run.way).memory_bytes
    return [
        f"gather=step keeps FSDP out of the loop for {more / 2**30:.2f} GiB: whole weights and "
        "whole sums of gradients; --gather use gives them back."
    ]


def _every_way(recipe: "Recipe") -> Table:
    """The prediction of the recipe in every order."""
    from ringline.recipes import WAYS, predict, way_of

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("predicted", "ticks", "step", "of ideal", "bubble", "transfers", "MFU", "memory"):
        table.add_column(name, justify="left" if name == "predicted" else "right", no_wrap=True)
    for name in WAYS:
        try:
            way = way_of(recipe, name)
        except ValueError as error:
            table.add_row(name, "", "", "", "", "", "", str(error))
            continue
        found = predict(recipe, way)
        busy = found.loop.busy_s
        table.add_row(
            name,
            str(found.loop.ticks),
            f"{found.step_s * 1e3:.0f} ms",
            f"{found.relative:.2f}",
            f"{(found.loop.loop_s - found.exposed_s) / busy - 1:.1%}",
            f"{found.exposed_s / busy:.1%}",
            f"{found.mfu:.1%}",
            f"{found.memory_bytes / 2**30:.2f} GiB",
        )
    return table


def _gib(expected: Any) -> list[tuple[str, float]]:
    return sorted(expected.temporaries_bytes.items(), key=lambda part: -part[1])


_COLUMNS = ("prediction against program", "predicted", "program", "difference", "")


def _compared(run: _Run) -> list[tuple[str, ...]]:
    """The rows of the prediction beside the program."""
    from ringline.recipes import compare, predict

    assert run.recipe is not None
    rows = compare(run.recipe, run.way, predict(run.recipe, run.way), run.compiled)
    return [
        (
            row.what,
            _number(row.predicted, row.unit),
            _number(row.program, row.unit),
            f"{row.difference:+.1%}",
            row.why,
        )
        for row in rows
    ]


def _comparison(run: _Run) -> tuple[Table, list[str]]:
    """The prediction beside the program, and what explains large differences."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in _COLUMNS[:-1]:
        table.add_column(name, justify="left" if " " in name else "right", no_wrap=True)
    rows = _compared(run)
    for row in rows:
        table.add_row(*row[:-1])
    return table, [f"{row[0]}: {row[-1]}." for row in rows if row[-1]]


def _number(value: float, unit: str) -> str:
    scale = {"bytes": (2**30, " GiB"), "FLOPs": (1e12, " TFLOP"), "s": (1e-3, " ms")}
    divisor, name = scale.get(unit, (1, ""))
    return f"{value / divisor:.4g}{name}"


def _page(runs: list[_Run], path: Path) -> None:
    from ringline.cli._compile_page import write_page

    programs, tables = [], []
    for run in runs:
        name = f"{run.way.name}: " if run.way else ""
        programs.append((name, run.compiled, _branches(run)))
        if run.recipe is not None:
            tables.append((f"{name}prediction against program", _COLUMNS, _compared(run)))
    write_page(programs, path, tables)


def _branches(run: _Run) -> str:
    """What the branches of a tick are, in order; known of schedules that are executed as one."""
    if run.way is None or not run.way.scheduled:
        return ""
    ops = {action.op for row in run.way.schedule.rows for action in row}
    return "FIW" if "W" in ops else "FB"


@contextmanager
def _progress() -> Generator[Say]:
    """Say what is being done on standard error, past what the compiler's noise is kept from."""
    with os.fdopen(os.dup(2), "w") as stream:
        console = Console(file=stream)
        if not os.isatty(stream.fileno()):
            yield lambda text: print(f"ringline: {text}", file=stream, flush=True)
            return
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task("", total=None)
            yield lambda text: bar.update(task, description=text)
