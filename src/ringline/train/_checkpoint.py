"""Checkpoints (orbax): written beside the old ones and renamed, so a kill leaves those usable.

Layers are saved in model order, `[layers, ...]`, whatever the schedule: a run may be resumed
with other stages, repeats or devices.
"""

import logging
from pathlib import Path

import jax
import orbax.checkpoint as ocp

from ringline.train._config import TrainConfig
from ringline.train._state import TrainState, from_plain, shardings, to_plain
from ringline.train._step import Engine

KEEP = 2


class CheckpointError(ValueError):
    """A checkpoint that could not be written or does not fit."""


class Checkpoints:
    """The checkpoints of a run, in one folder.

    Args:
        folder: made with the first save.
    """

    def __init__(self, folder: Path):
        self.folder = folder.absolute()
        self._manager: ocp.CheckpointManager | None = None
        logging.getLogger("absl").setLevel(logging.CRITICAL)

    def latest(self) -> int | None:
        """The step of the newest whole checkpoint, or None."""
        return self._open().latest_step() if self.folder.is_dir() else None

    def save(self, engine: Engine, state: TrainState) -> int:
        """Write the state and return its step; the newest two checkpoints are kept.

        Raises:
            CheckpointError: when it could not be written; earlier ones are as they were.
        """
        step = int(state.step)
        before = self.latest()
        if before == step:
            return step
        plain = _plain_of(engine)(state)
        items = ocp.args.Composite(
            state=ocp.args.StandardSave(plain),  # pyrefly: ignore[unexpected-keyword]
            model=ocp.args.JsonSave(engine.config.model_fields()),
        )
        try:
            self._open().save(step, args=items)
        except Exception as error:
            self.close()
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            kept = "none was saved before" if before is None else f"step {before} is still usable"
            raise CheckpointError(
                f"checkpoint of step {step} could not be written to {self.folder}: {reason}; "
                f"{kept}; make room and continue with --resume"
            ) from error
        return step

    def check(self, config: TrainConfig) -> None:
        """See whether there is a checkpoint of this model.

        Raises:
            CheckpointError: when there is none, or it is of another model.
        """
        step = self.latest()
        if step is None:
            raise CheckpointError(f"no checkpoint in {self.folder}; leave --resume out to start")
        items = ocp.args.Composite(model=ocp.args.JsonRestore())
        saved, wanted = self._open().restore(step, args=items)["model"], config.model_fields()
        for name, value in wanted.items():
            if saved.get(name) != value:
                raise CheckpointError(
                    f"checkpoint in {self.folder} is of another model: {name} is "
                    f"{saved.get(name)} there, {value} here; change --{name.replace('_', '-')}, "
                    "or give another --out"
                )

    def restore(self, engine: Engine) -> TrainState:
        """The newest state, on the engine's devices, once `check` has passed."""
        step, manager = self.latest(), self._open()
        shapes = jax.eval_shape(_to_plain(engine), engine.abstract)
        plain = jax.tree.map(
            lambda leaf, place: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place),
            shapes,
            shardings(shapes, engine.mesh),
        )
        restored = manager.restore(
            step, args=ocp.args.Composite(state=ocp.args.StandardRestore(plain))
        )["state"]
        if engine.schedule is None:
            return restored
        places = jax.tree.map(lambda leaf: leaf.sharding, engine.abstract)
        schedule = engine.schedule
        return jax.jit(
            lambda tree: from_plain(tree, engine.abstract, schedule), out_shardings=places
        )(restored)

    def close(self) -> None:
        """Let go of the folder."""
        if self._manager is not None:
            self._manager.close()
            self._manager = None

    def _open(self) -> ocp.CheckpointManager:
        if self._manager is None:
            options = ocp.CheckpointManagerOptions(
                max_to_keep=KEEP,
                cleanup_tmp_directories=True,
                # A step waits for its checkpoint: then what is on disk is what was reported.
                enable_async_checkpointing=False,
            )
            self._manager = ocp.CheckpointManager(self.folder, options=options)
        return self._manager


def _to_plain(engine: Engine):
    def plain(state: TrainState) -> TrainState:
        if engine.schedule is None:
            return state
        return to_plain(state, engine.schedule)

    return plain


def _plain_of(engine: Engine):
    shapes = jax.eval_shape(_to_plain(engine), engine.abstract)
    return jax.jit(_to_plain(engine), out_shardings=shardings(shapes, engine.mesh))
