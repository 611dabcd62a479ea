"""The state of training on the devices of a mesh: what is in it and where each part lies.

Layers are partitioned over stages in the form the pipeline holds them, and every parameter over
the `fsdp` axis beside that; the optimizer's moments lie with their parameters. Batches are
partitioned over `fsdp`.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ringline.pipeline import StackedLayers, stack_layers, unstack_layers
from ringline.schedule import PipelineSchedule
from ringline.train._config import TrainConfig
from ringline.train._model import init_params


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrainState:
    """Everything that a step changes.

    Attributes:
        params: the model's parameters in float32, `layers` stacked for the pipeline.
        opt_state: the optimizer's state.
        step: steps done, int32.
    """

    params: Any
    opt_state: Any
    step: jax.Array


def make_mesh(config: TrainConfig) -> Mesh:
    """A mesh of stages x fsdp over the first devices; neighbours in one process share a stage.

    Raises:
        ValueError: when fewer devices exist than the configuration asks for.
    """
    devices = jax.devices()
    wanted = config.devices
    assert wanted is not None
    if len(devices) < wanted:
        raise ValueError(
            f"the run needs {wanted} devices (stages {config.stages} x fsdp {config.fsdp}), "
            f"{len(devices)} exist ({devices[0].platform}); change --stages, --fsdp or --devices"
        )
    grid = np.array(devices[:wanted]).reshape(config.stages, -1)
    return Mesh(grid, ("stage", "fsdp"))


def init_state(
    config: TrainConfig,
    schedule: PipelineSchedule | None,
    optimizer: optax.GradientTransformation,
) -> TrainState:
    """The state before the first step; a function to jit. `schedule` None keeps layers plain."""
    params = init_params(config, jax.random.key(config.seed))
    if schedule is not None:
        params["layers"] = stack_layers(params["layers"], schedule)
    return TrainState(params, optimizer.init(params), jnp.zeros((), jnp.int32))


def shardings(tree: Any, mesh: Mesh, *, fsdp: bool = True) -> Any:
    """For each leaf of parameters or state (arrays or shapes) where it lies on the mesh.

    With `fsdp` False it lies whole on each device of its stage, as the computation needs it.
    """
    parts = mesh.shape["fsdp"] if fsdp else 1

    def place(leaf, *lead: str | None) -> NamedSharding:
        return NamedSharding(mesh, _spec(leaf.shape, lead, parts))

    def of_node(node):
        if _is_stacked(node):
            return jax.tree.map(lambda leaf: place(leaf, None, "stage"), node)
        return place(node)

    return jax.tree.map(of_node, tree, is_leaf=_is_stacked)


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Where tokens `[batch, length]` lie."""
    return NamedSharding(mesh, PartitionSpec("fsdp"))


def put_batch(tokens: np.ndarray, mesh: Mesh) -> jax.Array:
    """Tokens that every process knows, as one array; each process places its own part."""
    return jax.make_array_from_callback(
        tokens.shape, batch_sharding(mesh), lambda index: tokens[index]
    )


def to_plain(tree: Any, schedule: PipelineSchedule) -> Any:
    """`tree` with stacked layers brought back to `[layers, ...]`, the form of checkpoints."""
    return jax.tree.map(
        lambda node: unstack_layers(node, schedule) if _is_stacked(node) else node,
        tree,
        is_leaf=_is_stacked,
    )


def from_plain(plain: Any, like: Any, schedule: PipelineSchedule) -> Any:
    """The inverse of `to_plain`; `like` is a tree of the stacked form."""
    return jax.tree.map(
        lambda node, part: stack_layers(part, schedule) if _is_stacked(node) else part,
        like,
        plain,
        is_leaf=_is_stacked,
    )


def _is_stacked(node: Any) -> bool:
    return isinstance(node, StackedLayers)


def _spec(shape: tuple[int, ...], lead: tuple[str | None, ...], parts: int) -> PartitionSpec:
    """Partition the largest dimension that `parts` divides, after those that `lead` names."""
    rest = shape[len(lead) :]
    spec: list[str | None] = [None] * len(rest)
    fitting = [dim for dim, size in enumerate(rest) if size % parts == 0]
    if parts > 1 and fitting:
        spec[max(fitting, key=lambda dim: rest[dim])] = "fsdp"
    return PartitionSpec(*lead, *spec)
