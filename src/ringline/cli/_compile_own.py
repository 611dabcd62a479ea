"""Programs of the user's own for `ringline compile`: a function in a file, or a training run."""

import importlib.util
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from ringline.aot import Compiled, DoesNotFitError, Target, compile_for, target

Say = Callable[[str], None]


class UserError(Exception):
    """An error of the user's own program, in one line."""


def compile_trainer(path: str, target_name: str | None, say: Say) -> Compiled:
    """The step of a `ringline train` run on the target."""
    from ringline.train._config import merge, read_toml
    from ringline.train._step import make_schedule, step_and_arguments

    if not target_name:
        raise ValueError("the configuration of a run names no target; add --target '4x v4-16'")
    wanted = target(target_name)
    settings = read_toml(path)
    stages = settings.get("stages", merge({}, {}).stages)
    settings.setdefault("fsdp", max(1, wanted.device_count // stages))
    config = merge(settings, {"devices": None}).resolve()
    mesh = wanted.mesh(stage=config.stages, fsdp=config.fsdp or -1)
    step, arguments = step_and_arguments(config, mesh, make_schedule(config))
    return compile_for(wanted, step, *arguments, mesh=mesh, say=say)


def compile_function(asked: str, target_name: str, axes: str | None, say: Say) -> Compiled:
    """The function that `FILE.py:NAME` builds, on the target.

    Raises:
        UserError: when it does not trace, with its own error and line.
    """
    wanted = target(target_name)
    mesh = wanted.mesh(**_axes(axes, wanted))
    place, _, name = asked.rpartition(":")
    if not place:
        raise ValueError(f"--function must be FILE.py:NAME, got {asked!r}")
    module = _module(place)
    build = getattr(module, name, None)
    if not callable(build):
        found = f"no {name!r}" if build is None else f"{name!r} that is no function"
        raise ValueError(f"{place} has {found}; --function must be FILE.py:NAME")
    try:
        made = build(mesh)
        if not isinstance(made, tuple) or len(made) != 2:
            raise ValueError(
                f"{name}(mesh) must give (function, arguments), got {type(made).__name__}"
            )
        fn, args = made
        args = args if isinstance(args, tuple) else (args,)
        return compile_for(wanted, fn, *args, mesh=mesh, say=say)
    except (DoesNotFitError, KeyboardInterrupt):
        raise
    except Exception as error:
        where = _line_in(error, module.__file__)
        if where is None:
            raise
        raise UserError(f"{where}: {type(error).__name__}: {error}") from None


def _axes(asked: str | None, wanted: Target) -> dict[str, int]:
    slices = wanted.cluster.slices
    if asked is None:
        return {"stage": slices, "fsdp": -1} if slices > 1 else {"fsdp": -1}
    axes = {}
    for part in asked.split(","):
        name, _, size = part.partition("=")
        if not name.strip() or not size.strip().lstrip("-").isdigit():
            raise ValueError(f"--mesh must be such as stage=4,fsdp=8, got {asked!r}")
        axes[name.strip()] = int(size)
    return axes


def _module(place: str) -> ModuleType:
    if not place.endswith(".py"):
        sys.path.insert(0, os.getcwd())
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as error:
            if error.name != place.partition(".")[0] and error.name != place:
                raise
            raise ValueError(
                f"there is no module {place!r}; --function must be FILE.py:NAME, or a module's name"
            ) from None
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
