"""The `ringline` command: find the subcommand, read its flags, run it, report errors in one line.

Each subcommand lives in a module of its own, with a dataclass of flags and `run(flags) -> int`,
and is imported only when asked for.
"""

import os
import re
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass, fields
from difflib import get_close_matches
from importlib import import_module
from io import StringIO

from ringline.cli._flag_names import in_flags

BAD_INPUT, INTERRUPTED = 2, 130


class _Help(Exception):
    """Help was asked for; carries the text."""


@dataclass(frozen=True, slots=True)
class _Command:
    module: str
    flags: str
    summary: str


COMMANDS = {
    "train": _Command("_train", "Train", "train a language model through a pipeline of stages"),
    "schedule": _Command("_schedule", "Schedule", "draw and check a pipeline schedule"),
    "simulate": _Command("_simulate", "Simulate", "time a training step, and draw it"),
    "simulate all-gather": _Command(
        "_simulate_collective", "SimulateAllGather", "time an all-gather packet by packet"
    ),
    "simulate reduce-scatter": _Command(
        "_simulate_collective", "SimulateReduceScatter", "the same for a reduce-scatter"
    ),
    "simulate all-reduce": _Command(
        "_simulate_collective", "SimulateAllReduce", "the same for an all-reduce"
    ),
    "check": _Command("_check", "Check", "decide whether a collective can hang or race"),
    "plan": _Command("_plan", "PlanFlags", "find the best layouts for a model on a cluster"),
    "hardware": _Command("_hardware", "HardwareFlags", "show chips and clusters, with sources"),
    "validate": _Command("_validate", "ValidateFlags", "compare predictions with published runs"),
    "compile": _Command(
        "_compile", "CompileFlags", "compile for TPU slices without them, and read the program back"
    ),
    "bench all-gather": _Command("_bench", "AllGather", "measure the ring and line all-gather"),
    "bench reduce-scatter": _Command("_bench", "ReduceScatter", "the same for a reduce-scatter"),
    "bench all-reduce": _Command("_bench", "AllReduce", "the same for an all-reduce"),
    "bench all-gather-matmul": _Command(
        "_bench", "AllGatherMatmul", "the same for an all-gather fused with a matmul"
    ),
    "bench matmul-reduce-scatter": _Command(
        "_bench", "MatmulReduceScatter", "the same for a matmul fused with a reduce-scatter"
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line `arguments` (default: the process's) and return the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] in ("-h", "--help"):
        print(_usage())
        return 0 if given else BAD_INPUT
    if given[0] == "--version":
        from ringline import __version__

        print(f"ringline {__version__}")
        return 0
    try:
        name, rest = _find(given)
        return _run(name, rest)
    except _Help as text:
        print(text)
        return 0
    except ValueError as error:
        return _fail(str(error))
    except ModuleNotFoundError as error:
        extra = _EXTRA_OF.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        return _fail(f"this needs {error.name}; install it with: pip install 'ringline[{extra}]'")
    except KeyboardInterrupt:
        return _fail("interrupted", INTERRUPTED)
    except BrokenPipeError:  # the reader of our output, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))


_CHOICE = re.compile(r"invalid choice '(.*)' for argument '(.*)'\. Expected one of \((.*)\)")
_EXTRA_OF = {"optax": "train", "orbax": "train", "matplotlib": "plot", "libtpu": "aot"}


def _run(name: str, rest: list[str]) -> int:
    import tyro

    from ringline.cli._files import check_files

    command = COMMANDS[name]
    module = import_module(f"ringline.cli.{command.module}")
    printed = StringIO()
    try:
        with redirect_stderr(printed):
            flags = tyro.cli(
                getattr(module, command.flags),
                args=rest,
                prog=f"ringline {name}",
                config=(tyro.conf.FlagCreatePairsOff,),
            )
    except SystemExit as stop:
        if stop.code != BAD_INPUT:
            raise
        raise ValueError(f"{_one_line(printed.getvalue())}; see ringline {name} --help") from None
    check_files(flags)
    try:
        return module.run(flags)
    except ValueError as error:
        raise ValueError(in_flags(str(error), (field.name for field in fields(flags)))) from error


def _one_line(box: str) -> str:
    """The first message of the parser's box: after the title, up to the next rule."""
    framed = "╭" in box
    lines = [line.strip("│ ") for line in box.splitlines() if not line.startswith(("╭", "╰"))]
    rules = [i for i, line in enumerate(lines) if line and not line.strip("─-")]
    first = 0 if framed or not rules else rules[0] + 1
    last = next((i for i in rules if i > first), len(lines))
    message = " ".join(lines[first:last]).strip(" .") or "these options cannot be read"
    return _CHOICE.sub(_expected, message)


def _expected(choice: re.Match[str]) -> str:
    """Our words for a choice that does not exist, without the None of a flag that is not given."""
    got, flag, names = choice.groups()
    expected = sorted(name for name in re.findall("'(.*?)'", names) if name != "None")
    return f"{flag} must be one of {', '.join(expected)}, got {got!r}; change {flag}"


def _find(given: list[str]) -> tuple[str, list[str]]:
    """The command that `given` starts with, and the arguments after it."""
    for words in (2, 1):
        name = " ".join(given[:words])
        if name in COMMANDS:
            return name, given[words:]
    group = [name for name in COMMANDS if name.startswith(given[0] + " ")]
    if group and given[1:2] in (["-h"], ["--help"]):
        raise _Help("\n".join(f"ringline {name}: {COMMANDS[name].summary}" for name in group))
    if group:
        got = given[1] if len(given) > 1 else "nothing"
        raise ValueError(f"expected one of: {', '.join(group)}; got {got} after {given[0]}")
    near = get_close_matches(given[0], COMMANDS, n=2) or list(COMMANDS)
    raise ValueError(f"no command {given[0]!r}; did you mean {' or '.join(near)}? See --help")


def _usage() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {command.summary}" for name, command in COMMANDS.items()]
    return "\n".join(
        [
            "usage: ringline COMMAND [options]",
            "",
            "Pipelines and ring collectives for JAX, as schedules that are checked, executed,",
            "simulated and drawn.",
            "",
            *lines,
            "",
            "`ringline COMMAND --help` shows a command's options.",
        ]
    )


def _fail(message: str, status: int = BAD_INPUT) -> int:
    print(f"ringline: error: {message}", file=sys.stderr)
    return status
