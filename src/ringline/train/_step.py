"""The compiled functions of a run: one training step and one evaluation of a batch."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ringline.pipeline import pipeline, pipeline_loss
from ringline.schedule import PipelineSchedule, named_schedule, place_on_ticks
from ringline.train import _model
from ringline.train._config import TrainConfig
from ringline.train._optimizer import make_optimizer
from ringline.train._state import TrainState, batch_sharding, init_state, shardings

LossFunction = Callable[[_model.Params, jax.Array], jax.Array]

# Schedules whose backward autodiff makes, through `pipeline`; the others run by `pipeline_loss`.
BY_AUTODIFF = ("linear", "circular")


@dataclass(frozen=True)
class Engine:
    """What a loop over steps needs.

    Attributes:
        config: the resolved configuration.
        mesh: the devices.
        schedule: the pipeline's order, or None for the plain loop over layers.
        abstract: shapes and places of the state.
        init: `() -> TrainState`.
        step: `(state, tokens) -> (state, loss)`, compiled; it takes over the state's memory.
        evaluate: `(params, tokens) -> loss`, jitted.
    """

    config: TrainConfig
    mesh: Mesh
    schedule: PipelineSchedule | None
    abstract: TrainState
    init: Callable[[], TrainState]
    step: Callable[[TrainState, jax.Array], tuple[TrainState, jax.Array]]
    evaluate: Any


def make_schedule(config: TrainConfig) -> PipelineSchedule:
    """The schedule that the configuration asks for.

    Raises:
        ValueError: when it cannot be made with these sizes, or cannot place the layers.
    """
    schedule = named_schedule(
        config.schedule,
        stages=config.stages,
        microbatches=config.microbatches,
        repeats=config.repeats,
    )
    schedule.layers_of_chunks(config.layers)
    return schedule


def bubble_share(schedule: PipelineSchedule, overlap: bool) -> float:
    """Share of a stage's ticks in which it could run a forward (or a backward) and does not.

    With v chunks a stage, m microbatches and T ticks, 1 - v m / T. Where autodiff makes the
    backward it has the same share; where the schedule does, T counts ticks of one forward and
    one backward each.

    Example:
        >>> from ringline import schedules
        >>> round(bubble_share(schedules.linear(stages=4, microbatches=8), overlap=False), 3)
        0.273
        >>> round(bubble_share(schedules.eager_one_f_one_b(stages=4, microbatches=8), False), 3)
        0.429
    """
    if schedule.name in BY_AUTODIFF:
        schedule, phases = schedule.forward(), ("F",)
    else:
        schedule, phases = schedule.one_by_one(), ("F", "BI", "W")
    placed = place_on_ticks(schedule.program(), phases=phases, hop=2 if overlap else 1)
    ticks = 1 + max(row[-1].tick for row in placed)
    return 1 - schedule.repeats * schedule.microbatches / ticks


def build(config: TrainConfig, mesh: Mesh, schedule: PipelineSchedule | None) -> Engine:
    """Trace and compile the functions of a run, so that what cannot run fails here.

    Args:
        config: resolved.
        mesh: with the axes `stage` and `fsdp`.
        schedule: None for the plain loop over layers.
    """
    step, (abstract, tokens) = step_and_arguments(config, mesh, schedule)
    init = partial(init_state, config, schedule, make_optimizer(config))
    places = jax.tree.map(lambda leaf: leaf.sharding, abstract)
    return Engine(
        config=config,
        mesh=mesh,
        schedule=schedule,
        abstract=abstract,
        init=jax.jit(init, out_shardings=places),
        step=step.lower(abstract, tokens).compile(),
        evaluate=jax.jit(
            _loss(config, mesh, schedule), out_shardings=NamedSharding(mesh, PartitionSpec())
        ),
    )


def step_and_arguments(
    config: TrainConfig, mesh: Mesh, schedule: PipelineSchedule | None
) -> tuple[Any, tuple[TrainState, jax.ShapeDtypeStruct]]:
    """The jitted training step, and the shapes and places of its arguments, state and tokens.

    Args:
        config: resolved.
        mesh: with the axes `stage` and `fsdp`; of devices that are here, or of a target's.
        schedule: None for the plain loop over layers.
    """
    optimizer = make_optimizer(config)
    loss = _loss(config, mesh, schedule)
    shapes = jax.eval_shape(partial(init_state, config, schedule, optimizer))
    places = shardings(shapes, mesh)
    abstract = jax.tree.map(
        lambda leaf, place: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place),
        shapes,
        places,
    )
    tokens = jax.ShapeDtypeStruct(
        (config.batch, config.seq + 1), jnp.int32, sharding=batch_sharding(mesh)
    )

    def step(state: TrainState, tokens_BL: jax.Array) -> tuple[TrainState, jax.Array]:
        value, gradients = jax.value_and_grad(loss)(state.params, tokens_BL)
        updates, opt_state = optimizer.update(gradients, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        return TrainState(params, opt_state, state.step + 1), value

    whole = NamedSharding(mesh, PartitionSpec())
    jitted = jax.jit(step, donate_argnums=0, out_shardings=(places, whole))
    return jitted, (abstract, tokens)


def _loss(config: TrainConfig, mesh: Mesh, schedule: PipelineSchedule | None) -> LossFunction:
    """The mean loss of parameters and tokens `[batch, length + 1]`."""
    if schedule is not None and schedule.name not in BY_AUTODIFF:
        return _scheduled_loss(config, mesh, schedule)
    apply_layers = _apply_layers(config, mesh, schedule)

    def loss(params, tokens_BL):
        # Once a step, before the loop over ticks, which would gather them in every tick.
        params = lax.with_sharding_constraint(params, shardings(params, mesh, fsdp=False))
        return _model.loss(config, params, tokens_BL, apply_layers)

    return loss


def _scheduled_loss(config: TrainConfig, mesh: Mesh, schedule: PipelineSchedule) -> LossFunction:
    """The same, with the backward in the schedule's own order and the head on the last stage."""

    def loss(params, tokens_BL):
        x_BLD = _model.embed(config, params, tokens_BL[:, :-1])
        return pipeline_loss(
            partial(_model.layer, config),
            _model.head_loss,
            params["layers"],
            {name: part for name, part in params.items() if name != "layers"},
            lax.with_sharding_constraint(x_BLD, batch_sharding(mesh)),
            tokens_BL[:, 1:],
            schedule=schedule,
            mesh=mesh,
            gather=config.gather,
            remat=config.remat == "full",
        )

    return loss


def _apply_layers(
    config: TrainConfig, mesh: Mesh, schedule: PipelineSchedule | None
) -> _model.ApplyLayers:
    if schedule is None:
        return _model.plain_layers(config)

    layer = partial(_model.layer, config)
    # The head's work is spread over the stages too, rather than done again on each.
    everywhere = config.batch % mesh.size == 0
    after = PartitionSpec(("fsdp", "stage") if everywhere else "fsdp")

    def apply(layers, x_BLD: jax.Array) -> jax.Array:
        # Said explicitly, or the compiler may prefer to cut activations by d_model.
        x_BLD = lax.with_sharding_constraint(x_BLD, batch_sharding(mesh))
        y_BLD = pipeline(
            layer,
            layers,
            x_BLD,
            schedule=schedule,
            mesh=mesh,
            overlap=config.overlap,
            remat=config.remat == "full",
        )
        return lax.with_sharding_constraint(y_BLD, NamedSharding(mesh, after))

    return apply
