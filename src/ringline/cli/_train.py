"""`ringline train`: the reference trainer, from flags and a TOML file to a folder of results."""

import dataclasses
import importlib.util
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO, get_args, get_origin

import tyro

from ringline.cli._files import write_text
from ringline.cli._flag_types import FileOrOutput
from ringline.train import TrainConfig, merge, read_toml

if TYPE_CHECKING:
    from ringline.train._loop import RunResult

COMPARE_STEPS = 100
INTERRUPTED = 130
_TITLE = """Train a byte-level language model through a pipeline of stages.

Every option below --num-processes is also a key of the --config file, with underscores."""
_LAYOUT = ("schedule", "stages", "repeats", "fsdp", "devices")
_COMMAND: dict[str, tuple[Any, Any, str]] = {
    "config": (str | None, None, "TOML file of settings; flags win over it."),
    "resume": (bool, False, "Go on with the run in --out, else with the newest in runs/."),
    "compare": (
        bool,
        False,
        "Train plainly, through a linear and through a circular pipeline, and compare the losses "
        f"over {COMPARE_STEPS} steps (or --steps).",
    ),
    "json": (FileOrOutput, None, "Write the results there too; - for standard output."),
    "coordinator": (str | None, None, "For several processes: host:port of process 0."),
    "process_id": (int | None, None, "For several processes: the number of this one, from 0."),
    "num_processes": (int | None, None, "For several processes: how many."),
}


def _make_flags() -> type:
    """A class with a field for each flag: the command's own, then the knobs of the configuration.

    A knob is None unless given, so that a flag set to its default still wins over the file. A
    switch exists only in the direction that changes its default: it is given when it differs.
    """
    fields = [_field(name, *entry) for name, entry in _COMMAND.items()]
    for knob in dataclasses.fields(TrainConfig):
        hint: Any = knob.type
        text = knob.metadata["help"]
        if hint is bool:
            fields.append(_field(knob.name, hint, knob.default, text))
        else:
            default = knob.metadata["derived"] or knob.default
            behaviour = f"(default: {default})"
            fields.append(_field(knob.name, hint | None, None, text, behaviour))
    names = {"__doc__": _TITLE, "__module__": __name__}
    return dataclasses.make_dataclass("Train", fields, namespace=names, frozen=True, kw_only=True)


def _field(
    name: str, hint: Any, default: Any, text: str, behaviour: str | None = None
) -> tuple[str, Any, Any]:
    metavar = None if hint in (bool, FileOrOutput) else _metavar(hint)
    note = tyro.conf.arg(
        help=text, metavar=metavar, help_behavior_hint="" if behaviour is None else behaviour
    )
    annotated = Annotated[hint, tyro.conf.FlagCreatePairsOff, note]
    return name, annotated, dataclasses.field(default=default)


def _metavar(hint: Any) -> str:
    names = []
    for option in get_args(hint):
        if get_origin(option) is Literal:
            names += map(str, get_args(option))
        elif option is not type(None):
            names.append({str: "TEXT"}.get(option, option.__name__.upper()))
    return "|".join(names)


Train = _make_flags()


def run(flags: Any) -> int:
    """Train, or compare, as the flags ask; gives the exit status.

    Raises:
        ValueError: for what cannot run, before anything is written.
    """
    given = dict(vars(flags))
    command = {name: given.pop(name) for name in _COMMAND}
    for knob in dataclasses.fields(TrainConfig):
        if knob.type is bool and given[knob.name] == knob.default:
            given[knob.name] = None
    target = command["json"]
    _check_command(command)
    folder = None
    if command["resume"]:
        from ringline.train._folder import run_to_resume

        folder = run_to_resume(given["out"])
    config = _configure(given, command, folder)
    _start(config.resolve(), command)
    stream = sys.stderr if target == "-" else sys.stdout
    if command["compare"]:
        return _compare(config, target, stream)
    return _train(config, folder, target, stream)


def _check_command(command: dict[str, Any]) -> None:
    missing = [name for name in ("optax", "orbax") if not importlib.util.find_spec(name)]
    if missing:
        raise ValueError(
            f"ringline train needs {' and '.join(missing)}, not installed here; run pip install "
            "'ringline[train,plot,demo]'"
        )
    if command["compare"] and command["resume"]:
        raise ValueError("--compare starts anew, got --resume beside it; leave one of them out")


def _configure(given: dict[str, Any], command: dict[str, Any], folder: Path | None) -> TrainConfig:
    """The defaults, under the resumed run's settings, under the file, under the flags."""
    settings: dict[str, Any] = {}
    if command["compare"]:
        settings["steps"] = COMPARE_STEPS
    asked = {name for name, value in given.items() if value is not None}
    file = read_toml(command["config"]) if command["config"] else {}
    if folder is not None:
        from ringline.train._folder import CONFIG

        settings.update(read_toml(folder / CONFIG))
        settings["out"] = str(folder)
        if (asked | set(file)) & set(_LAYOUT):
            # The saved layout is resolved: what followed from the old one must follow anew.
            for name in ("repeats", "fsdp", "devices"):
                settings.pop(name, None)
    settings.update(file)
    return merge(settings, given)


def _start(config: TrainConfig, command: dict[str, Any]) -> None:
    from ringline.train._distributed import Processes, start

    processes = Processes.find(
        command["coordinator"], command["process_id"], command["num_processes"]
    )
    assert config.devices is not None
    start(config.devices, processes)


def _train(config: TrainConfig, folder: Path | None, target: str | None, stream: TextIO) -> int:
    from ringline.train._distributed import is_main
    from ringline.train._loop import train
    from ringline.train._report import summary, write_json

    result = train(config, resume=folder, stream=stream)
    if not is_main():
        return 0
    if not result.finished:
        print(
            f"stopped at step {result.checkpoint_step} of {result.config.steps}, checkpoint saved; "
            f"continue with: ringline train --resume --out {result.folder}",
            file=stream,
        )
        return INTERRUPTED
    files = [*_draw(result), "results.json", "config.toml", "checkpoints/"]
    write_json(result.folder / "results.json", summary(result))
    _give(summary(result), target)
    print(_closing(result, files), file=stream)
    return 0


def _closing(result: "RunResult", files: list[str]) -> str:
    rule = "-" * 60
    return "\n".join(
        [
            rule,
            result.prompt + result.sample,
            rule,
            f"held-out loss: {result.eval_loss:.4f} nats/byte after {len(result.records)} steps",
            f"unigram entropy: {result.unigram_entropy:.4f} nats/byte under the training text's "
            f"byte frequencies ({result.own_entropy:.4f} under its own)",
            f"time: {result.wall_s:.1f} s, of which {result.compile_s:.1f} s to compile",
            f"written to {result.folder}/: {', '.join(files)}",
        ]
    )


def _draw(result: "RunResult") -> list[str]:
    """The pictures of a run; gives the names of those written."""
    from ringline.train._report import plot_loss

    names = ["timeline.html"]
    _timeline(result, result.folder / names[0])
    if importlib.util.find_spec("matplotlib"):
        plot_loss(result, result.folder / "loss.png")
        names.insert(0, "loss.png")
    else:
        print("no loss.png without matplotlib: pip install 'ringline[plot]'", file=sys.stderr)
    return names


def _timeline(result: "RunResult", path: Path) -> None:
    """The schedule's step, with costs that make it as long as the run's typical step.

    A backward is taken as two forwards; a stage works 3 F m of the (1 - bubble) it is busy.
    """
    from statistics import median

    from ringline import trace
    from ringline.simulate import simulate
    from ringline.train._step import BY_AUTODIFF, make_schedule

    config = result.config
    step_s = median(record.step_s for record in result.records)
    forward_s = step_s * (1 - result.bubble) / (3 * config.microbatches)
    schedule = make_schedule(config)
    split = any(action.op == "W" for row in schedule.rows for action in row)
    # What pipeline_loss runs hides its transfers in any case.
    overlap = config.overlap or schedule.name not in BY_AUTODIFF
    timeline = simulate(
        schedule,
        forward_s=forward_s,
        backward_s=None if split else 2 * forward_s,
        input_gradient_s=forward_s if split else None,
        weight_gradient_s=forward_s if split else None,
        overlap=overlap,
    )
    trace.html(timeline, path, title=f"One training step: {timeline.name}")


def _compare(config: TrainConfig, target: str | None, stream: TextIO) -> int:
    from ringline.train._compare import compare, plot_comparison
    from ringline.train._console import Reporter
    from ringline.train._distributed import is_main
    from ringline.train._folder import COMPARISON, check_writable, new_folder
    from ringline.train._report import write_json

    folder = new_folder(config.out, "compare")
    if is_main():
        check_writable(folder)
    comparison = compare(config, Reporter(stream if is_main() else None, config.log_every))
    if not is_main():
        return 0
    folder.mkdir(parents=True, exist_ok=True)
    files = [COMPARISON]
    write_json(folder / COMPARISON, comparison.summary())
    if importlib.util.find_spec("matplotlib"):
        plot_comparison(comparison, folder / "compare.png")
        files.append("compare.png")
    _give(comparison.summary(), target)
    for way, values in comparison.differences().items():
        print(f"{way}: largest difference of the loss {max(values):.2e}", file=stream)
    verdict = "within" if comparison.passed else "ABOVE"
    print(
        f"largest difference over {comparison.config.steps} steps: {comparison.largest():.2e}, "
        f"{verdict} the limit of 1e-4; {comparison.wall_s:.1f} s\n"
        f"written to {folder}/: {', '.join(files)}",
        file=stream,
    )
    return 0 if comparison.passed else 1


def _give(numbers: dict[str, Any], target: str | None) -> None:
    if target is not None:
        write_text(target, json.dumps(numbers, indent=2) + "\n")
