"""What the collectives' public functions share: their options, and the checks of them."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ringline.collectives._bits import platform
from ringline.collectives._permute import AxisName
from ringline.schedule import CollectiveSchedule
from ringline.topology import TopologyName
from ringline.topology import topology as make_topology

Implementation = Literal["xla", "permute", "pallas"]
Directions = Literal[1, 2]
Topology = TopologyName | tuple[TopologyName, TopologyName]
IMPLEMENTATIONS: tuple[Implementation, ...] = get_args(Implementation)


class GridAxis(NamedTuple):
    """One of the two mesh axes of a grid, and the schedule along it."""

    name: str
    schedule: CollectiveSchedule


def schedule_for(
    make: Callable[..., CollectiveSchedule],
    topology: Topology,
    devices: int,
    directions: Directions | None,
    channels: int,
    implementation: Implementation | None,
    *,
    grids: bool = True,
) -> CollectiveSchedule:
    """`make`'s schedule for the options of a call; of a grid, along all of its devices in order.

    Raises:
        ValueError: for options of another type, an implementation that does not exist, or a grid
            where there must be none.
    """
    if directions is not None:
        check_whole(directions, "directions")
    check_whole(channels, "channels")
    _check_implementation(implementation)
    if isinstance(topology, str):
        return _schedule(make, topology, devices, directions, channels, implementation)
    pair = isinstance(topology, tuple) and all(isinstance(kind, str) for kind in topology)
    if not (grids and pair and topology):
        grid = ", or a pair of them such as ('ring', 'line') for a grid" if grids else ""
        raise ValueError(
            f"topology must be 'ring' or 'line'{grid}, got {topology!r}; change topology"
        )
    return _schedule(make, topology[0], devices, directions, channels, implementation)


def default_directions(
    topology: str, devices: int, implementation: Implementation | None
) -> Directions:
    """Two; one on a ring where a device sends one way at a time: two are one permute more."""
    one_way = platform() == "cpu" and implementation != "pallas"
    return 1 if one_way and topology == "ring" and devices > 2 else 2


def _schedule(
    make: Callable[..., CollectiveSchedule],
    topology: TopologyName,
    devices: int,
    directions: Directions | None,
    channels: int,
    implementation: Implementation | None,
) -> CollectiveSchedule:
    if directions is None:
        directions = default_directions(topology, devices, implementation)
    return _made(make, topology, devices, directions, channels)


@lru_cache(maxsize=256)
def _made(
    make: Callable[..., CollectiveSchedule],
    topology: TopologyName,
    devices: int,
    directions: Directions,
    channels: int,
) -> CollectiveSchedule:
    return make(make_topology(topology, devices), directions=directions, channels=channels)


def check_whole(value: Any, name: str) -> None:
    """Refuse what is no whole number, and a bool."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
        raise ValueError(f"{name} must be a whole number, got {value!r}; change {name}")


def check_flag(value: Any, name: str) -> None:
    """Refuse what is not a bool."""
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"{name} must be True or False, got {value!r}; change {name}")


def _is_grid(topology: Topology, axis_name: AxisName) -> bool:
    """Whether a call is over a grid: a topology for each of two mesh axes.

    Raises:
        ValueError: when topologies and axes are not two each.
    """
    if isinstance(topology, str):
        return False
    names = axis_names(axis_name)
    if len(topology) != 2 or len(names) != 2:
        raise ValueError(
            f"a grid needs two mesh axes and a topology for each, got axis_name {names} and "
            f"topology {tuple(topology)}; use one topology for one axis"
        )
    return True


def grid_axes(
    make: Callable[..., CollectiveSchedule],
    topology: Topology,
    axis_name: AxisName,
    directions: Directions | None,
    channels: int,
    implementation: Implementation | None,
) -> tuple[GridAxis, ...]:
    """The two axes of a grid with `make`'s schedule along each; none where it is no grid."""
    if not _is_grid(topology, axis_name):
        return ()

    def along(name: str, kind: Topology) -> GridAxis:
        devices = lax.axis_size(name)
        schedule = schedule_for(make, kind, devices, directions, channels, implementation)
        return GridAxis(name, schedule)

    kinds = topology if isinstance(topology, tuple) else (topology,)
    return tuple(along(name, kind) for name, kind in zip(axis_names(axis_name), kinds))


def _check_implementation(implementation: str | None) -> None:
    """Refuse a backend that does not exist."""
    if implementation is not None and implementation not in IMPLEMENTATIONS:
        raise ValueError(
            f"implementation must be None or one of {IMPLEMENTATIONS}, got {implementation!r}"
        )


# From this size on neighbour sends of 16-bit floats beat the built-in reductions of CPU devices,
# which carry them as float32.
_PERMUTE_SUM_MIN_BYTES = 2**20


def choose_sum(x: Array) -> Implementation:
    """The backend measured to be the faster one for a sum of arrays like `x`."""
    halves = x.dtype in (jnp.bfloat16, jnp.float16)
    large = x.size * x.dtype.itemsize >= _PERMUTE_SUM_MIN_BYTES
    return "permute" if platform() == "cpu" and halves and large else "xla"


def check_channels(channels: int, rows: int, shape: tuple[int, ...], what: str) -> None:
    """Refuse more channels than there are rows to share out."""
    if channels > max(rows, 1):
        raise ValueError(
            f"channels must be at most the {rows} rows of a shard of shape {shape} "
            f"{what}, got {channels}; use fewer channels"
        )


def axis_devices(axis_name: AxisName, caller: str) -> int:
    """How many devices the axis has here; it must be a manual axis of a `jax.shard_map`.

    An axis that `jax.vmap(axis_name=...)` makes is no mesh axis and counts as outside.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if not mesh.manual_axes:
        raise ValueError(
            f"{caller} over axis {axis_name!r} was called outside jax.shard_map; wrap the "
            "caller in jax.shard_map over a mesh with that axis"
        )
    names = axis_names(axis_name)
    if not names or any(names.count(name) > 1 for name in names):
        raise ValueError(
            f"axis_name must be a mesh axis or several different ones, got {axis_name!r}; use one "
            f"of {mesh.manual_axes}"
        )
    for name in names:
        if name not in mesh.axis_names:
            raise ValueError(
                f"unknown axis name {name!r}, expected one of the mesh axes {mesh.manual_axes}, or "
                "a tuple of them; change axis_name or the mesh"
            )
        if name not in mesh.manual_axes:
            raise ValueError(
                f"mesh axis {name!r} is automatic here, expected one of the manual axes "
                f"{mesh.manual_axes}; add it to jax.shard_map's axis_names"
            )
    return lax.axis_size(axis_name)


def axis_names(axis_name: AxisName) -> tuple[str, ...]:
    """One name or several, as a tuple."""
    return axis_name if isinstance(axis_name, tuple) else (axis_name,)


def canonical_dim(dim: int, ndim: int, *, name: str, scalar: str, whose: str) -> int:
    """`dim` counted from the front.

    Args:
        dim: negative counts from the end.
        ndim: the rank it counts in.
        name: of the argument, for messages.
        scalar: what to say when there is no dim at all.
        whose: what has that rank, for messages.
    """
    check_whole(dim, name)
    if ndim == 0:
        raise ValueError(scalar)
    if not -ndim <= dim < ndim:
        raise ValueError(
            f"{name} must be in [{-ndim}, {ndim - 1}] for {whose} of rank {ndim}, got {dim}; "
            f"change {name}"
        )
    return dim % ndim


def number(leaf: Any) -> Array:
    """`leaf` as an array that can be summed: booleans are counted, as in `jax.lax.psum`."""
    array = jnp.asarray(leaf)
    return array.astype(jnp.int32) if array.dtype == jnp.bool_ else array


def cut_dim(shape: tuple[int, ...], axis: int, pieces: int) -> int:
    """The dim to cut pieces along: the stripes' one (one concatenation), the longest if short."""
    if shape[axis] >= pieces:
        return axis
    return max(range(len(shape)), key=lambda dim: shape[dim])


def stripe_shape(shape: tuple[int, ...], dim: int, devices: int) -> tuple[int, ...]:
    """The shape of one of `devices` equal stripes along `dim`."""
    if shape[dim] % devices:
        raise ValueError(
            f"dim {dim} of shape {shape} must divide by the {devices} devices, got {shape[dim]}; "
            "pad it or change scatter_dimension"
        )
    return (*shape[:dim], shape[dim] // devices, *shape[dim + 1 :])


def varying(x: Array, axis_name: AxisName) -> Array:
    """`x` marked as differing from device to device, as `jax.shard_map` checks it."""
    missing = tuple(n for n in axis_names(axis_name) if n not in varying_axes(jax.typeof(x)))
    return lax.pcast(x, missing, to="varying") if missing else x


def varying_axes(aval: Any) -> frozenset[str]:
    """The mesh axes over which a value may differ; none where `jax.shard_map` does not check."""
    return aval.manual_axis_type.varying
