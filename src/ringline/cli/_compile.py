"""`ringline compile`: compile a training step for TPU slices without them, and read it back."""

import importlib.util
import json
import os
import sys
import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from ringline.aot import Compiled, DoesNotFitError, Target
    from ringline.aot.recipes import Recipe

DOES_NOT_FIT, DOES_NOT_TRACE = 1, 1
Say = Callable[[str], None]
File = Annotated[Path | None, tyro.conf.arg(metavar="FILE")]


@dataclass(frozen=True)
class CompileFlags:
    """Compile a training step for TPU slices that need not exist; show memory and overlap."""

    target: str | None = None
    """Such as '4x v4-16', 'v5e-64' or '2x v5p:4x4x8'; the configuration's own if not given."""
    config: Annotated[str | None, tyro.conf.arg(metavar="FILE|NAME")] = None
    """A recipe (4x-v4-16, 3x-v4-128, or a TOML file with a [recipe]), or the TOML file of a
    `ringline train` run."""
    schedule: Annotated[
        tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="NAME")
    ] = ()
    """Of a recipe: linear, circular, circular-late-send, 1f1b, eager-1f1b, interleaved, or any
    other schedule's name; may be given several times."""
    microbatches: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """Of a recipe, in place of its own."""
    gather: Annotated[str | None, tyro.conf.arg(metavar="step|repeat|use")] = None
    """Of a recipe: when weights are gathered over FSDP."""
    function: Annotated[str | None, tyro.conf.arg(metavar="FILE.py:NAME")] = None
    """Compile your own: NAME(mesh) gives (function, arguments); a module's name serves for
    FILE.py."""
    mesh: Annotated[str | None, tyro.conf.arg(metavar="AXIS=SIZE,...")] = None
    """The mesh for --function, outermost axis first, such as stage=4,fsdp=8; -1 for the rest."""
    json: Annotated[str | None, tyro.conf.arg(metavar="FILE|-")] = None
    """Write the report as JSON; `-` for standard output, which then holds nothing else."""
    html: File = None
    """Write a page that draws one tick of the compiled program, and the step as predicted."""
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

    _check(flags)
    require_libtpu()
    runs: list[_Run] = []
    try:
        with _progress() as say:
            for job in _jobs(flags):
                runs.append(job(say))
    except DoesNotFitError as error:
        return _too_large(error, flags)
    except _UserError as error:
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
        return [lambda say: _function(flags, say)]
    if flags.config and flags.config.endswith(".toml") and not _is_recipe(flags.config):
        return [lambda say: _trainer(flags, say)]
    from ringline.aot.recipes import way_of

    recipe = _recipe(flags)
    ways = [way_of(recipe, name) for name in flags.schedule or (recipe.schedule,)]
    return [lambda say, way=way: _compile_recipe(recipe, way, say) for way in ways]


def _is_recipe(path: str) -> bool:
    from ringline.topology._tables import read_table

    return "recipe" in read_table(path)


def _recipe(flags: CompileFlags) -> "Recipe":
    from ringline.aot import target
    from ringline.aot.recipes import gather_of, read_recipe, recipe_for, retarget

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
    from ringline.aot.recipes import program

    mesh = recipe.target.mesh(stage=recipe.stages, fsdp=recipe.fsdp)
    fn, args = program(recipe, way, mesh)
    label = f"{way.name}: "
    compiled = compile_for(recipe.target, fn, *args, mesh=mesh, say=lambda text: say(label + text))
    return _Run(compiled, recipe.title, recipe, way)


def _trainer(flags: CompileFlags, say: Say) -> _Run:
    """The step of a `ringline train` run on the target."""
    import time

    from jax.errors import JaxRuntimeError

    from ringline.aot import read_compiled, target
    from ringline.aot._quiet import quiet
    from ringline.train._config import merge, read_toml
    from ringline.train._step import build, make_schedule

    if not flags.target:
        raise ValueError("the configuration of a run names no target; add --target '4x v4-16'")
    wanted = target(flags.target)
    settings = read_toml(str(flags.config))
    stages = settings.get("stages", merge({}, {}).stages)
    settings.setdefault("fsdp", max(1, wanted.device_count // stages))
    config = merge(settings, {"devices": None}).resolve()
    mesh = wanted.mesh(stage=config.stages, fsdp=config.fsdp or -1)
    say(f"compiling the trainer's step for {wanted.name}")
    started = time.monotonic()
    try:
        with quiet():
            engine = build(config, mesh, make_schedule(config))
    except JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        message = str(error).splitlines()[0].partition("HBM, ")[2].partition(" HLO module")[0]
        raise _UserError(f"the step does not fit {wanted.name}: {message}") from None
    took = time.monotonic() - started
    compiled = read_compiled(wanted, engine.step, mesh=mesh, compile_s=took)
    return _Run(compiled, f"the trainer's step of {flags.config}")


class _UserError(Exception):
    """An error of the user's own program, in one line."""


def _function(flags: CompileFlags, say: Say) -> _Run:
    from ringline.aot import DoesNotFitError, compile_for, target

    wanted = target(str(flags.target))
    mesh = wanted.mesh(**_axes(flags, wanted))
    place, _, name = str(flags.function).rpartition(":")
    if not place:
        raise ValueError(f"--function must be FILE.py:NAME, got {flags.function!r}")
    module = _module(place)
    build = getattr(module, name, None)
    if build is None:
        raise ValueError(f"{place} has no {name!r}; --function must be FILE.py:NAME")
    try:
        made = build(mesh)
        if not isinstance(made, tuple) or len(made) != 2:
            raise ValueError(
                f"{name}(mesh) must give (function, arguments), got {type(made).__name__}"
            )
        fn, args = made
        args = args if isinstance(args, tuple) else (args,)
        return _Run(compile_for(wanted, fn, *args, mesh=mesh, say=say), str(flags.function))
    except (DoesNotFitError, KeyboardInterrupt):
        raise
    except Exception as error:
        where = _line_in(error, module.__file__)
        if where is None:
            raise
        raise _UserError(f"{where}: {type(error).__name__}: {error}") from None


def _axes(flags: CompileFlags, wanted: "Target") -> dict[str, int]:
    slices = wanted.cluster.slices
    if flags.mesh is None:
        return {"stage": slices, "fsdp": -1} if slices > 1 else {"fsdp": -1}
    axes = {}
    for part in flags.mesh.split(","):
        name, _, size = part.partition("=")
        if not name.strip() or not size.strip().lstrip("-").isdigit():
            raise ValueError(f"--mesh must be such as stage=4,fsdp=8, got {flags.mesh!r}")
        axes[name.strip()] = int(size)
    return axes


def _module(place: str) -> ModuleType:
    if not place.endswith(".py"):
        sys.path.insert(0, os.getcwd())
        return importlib.import_module(place)
    path = Path(place)
    if not path.exists():
        raise ValueError(f"{place} does not exist; --function must be FILE.py:NAME")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    sys.path.insert(0, str(path.parent))
    spec.loader.exec_module(module)
    return module


def _line_in(error: BaseException, path: str | None) -> str | None:
    """The innermost line of the user's file that the error went through, as `file:line`."""
    frames = traceback.extract_tb(error.__traceback__)
    own = (
        [frame for frame in frames if path and os.path.samefile(frame.filename, path)]
        if all(os.path.exists(f.filename) for f in frames)
        else [frame for frame in frames if frame.filename == path]
    )
    return f"{own[-1].filename}:{own[-1].lineno}" if own else None


def _too_large(error: "DoesNotFitError", flags: CompileFlags) -> int:
    from ringline.aot._report import memory_json

    print(f"ringline: error: {error}", file=sys.stderr)
    if flags.json:
        _put(flags.json, json.dumps({"target": flags.target, "memory": memory_json(error.memory)}))
    return DOES_NOT_FIT


def _write(runs: list[_Run], flags: CompileFlags) -> None:
    documents = [_document(run) for run in runs]
    if flags.json:
        chosen = documents[0] if len(documents) == 1 else documents
        _put(flags.json, json.dumps(chosen, indent=1))
    if flags.html:
        _page(runs, flags.html)
    if flags.text:
        flags.text.write_text(runs[0].compiled.text, encoding="utf-8")
    if flags.json != "-":
        console = Console() if sys.stdout.isatty() else Console(width=140)
        for run in runs:
            _print(run, console)


def _put(path: str, text: str) -> None:
    if path == "-":
        print(text)
    else:
        Path(path).write_text(text + "\n", encoding="utf-8")


def _document(run: _Run) -> dict[str, Any]:
    from ringline.aot import report_json

    document = report_json(run.compiled)
    if run.recipe is None:
        return document
    from ringline.aot.recipes import compare, predict, source_arithmetic

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
            "by_hand_without_overlap": source_arithmetic(run.recipe),
        },
        "comparison": [
            asdict(row) | {"difference": row.difference, "why": row.why} for row in rows
        ],
    }


def _print(run: _Run, console: Console) -> None:
    from ringline.aot import report

    name = f" ({run.way.name})" if run.way else ""
    console.print(f"{run.title}{name}", style="bold", highlight=False, markup=False)
    console.print(report(run.compiled), highlight=False)
    if run.recipe is None:
        return
    from ringline.aot.recipes import compare, predict, source_arithmetic

    expected = predict(run.recipe, run.way)
    console.print(_comparison(compare(run.recipe, run.way, expected, run.compiled)))
    parts = ", ".join(f"{name} {size / 2**30:.2f}" for name, size in _gib(expected))
    lines = [
        f"Predicted memory in GiB: {parts}.",
        *_price(run),
        f"Predicted step {expected.step_s * 1e3:.0f} ms, MFU {expected.mfu:.1%}: the loop takes "
        f"{expected.relative:.2f} of its computation alone; by hand, without overlap, "
        f"{source_arithmetic(run.recipe):.2f}.",
        *(f"Assumed: {text}" for text in run.recipe.assumes),
    ]
    for line in lines:
        console.print(line, highlight=False, markup=False)
    console.print()


def _price(run: _Run) -> list[str]:
    """What gathering once a step costs in memory."""
    from ringline.aot.recipes import predict

    recipe = run.recipe
    if recipe is None or recipe.gather != "step" or recipe.fsdp == 1 or not run.way.scheduled:
        return []
    more = predict(recipe, run.way).memory_bytes
    more -= predict(replace(recipe, gather="use"), run.way).memory_bytes
    return [
        f"gather=step keeps FSDP out of the loop for {more / 2**30:.2f} GiB: whole weights and "
        "whole sums of gradients; --gather use gives them back."
    ]


def _gib(expected: Any) -> list[tuple[str, float]]:
    return sorted(expected.temporaries_bytes.items(), key=lambda part: -part[1])


def _comparison(rows: list[Any]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("prediction against program", "predicted", "program", "difference"):
        table.add_column(name, justify="left" if "against" in name else "right", no_wrap=True)
    table.add_column("")
    for row in rows:
        numbers = (_number(row.predicted, row.unit), _number(row.program, row.unit))
        table.add_row(row.what, *numbers, f"{row.difference:+.1%}", row.why)
    return table


def _number(value: float, unit: str) -> str:
    scale = {"bytes": (2**30, " GiB"), "FLOPs": (1e12, " TFLOP"), "s": (1e-3, " ms")}
    divisor, name = scale.get(unit, (1, ""))
    return f"{value / divisor:.4g}{name}"


def _page(runs: list[_Run], path: Path) -> None:
    from ringline import trace
    from ringline.cli._compile_page import loop_timeline, predicted_timeline

    ticks = [found for run in runs if (found := loop_timeline(run.compiled)) is not None]
    steps = [predicted_timeline(run.recipe, run.way) for run in runs if run.recipe is not None]
    if not ticks and not steps:
        raise ValueError(f"the program has no loop to draw; drop --html {path}")
    trace.html([*ticks, *steps], path, title=f"Compiled for {runs[0].compiled.target.name}")


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
