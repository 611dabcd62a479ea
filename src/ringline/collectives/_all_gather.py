"""`all_gather`: the public function; it checks, chooses the backend and binds the primitive."""

from functools import lru_cache
from math import prod
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
from jax import Array, lax

from ringline.collectives._permute import AxisName, choose_assembly, platform
from ringline.collectives._primitive import bind_all_gather
from ringline.schedule import CollectiveSchedule
from ringline.schedule import all_gather as all_gather_schedule
from ringline.topology import TopologyName
from ringline.topology import topology as make_topology

Implementation = Literal["xla", "permute"]
IMPLEMENTATIONS: tuple[Implementation, ...] = get_args(Implementation)


def all_gather(
    x: Any,
    axis_name: AxisName,
    *,
    axis: int = 0,
    tiled: bool = True,
    topology: TopologyName = "ring",
    directions: Literal[1, 2] = 2,
    channels: int = 1,
    implementation: Implementation | None = None,
) -> Any:
    r"""Gather the shards of all devices of a mesh axis, from neighbour to neighbour.

    With $x_d$ the shard of device $d$ of $n$, every device gets
    $y = \mathrm{concatenate}(x_0, \ldots, x_{n-1})$ along `axis` (`tiled=False`: `stack`). For
    shards of $S$ bytes the busiest directed link of a ring carries $(n-1) S / k$ bytes with
    $k$ directions, and $(n-1) S$ on a line.

    A drop-in for `jax.lax.all_gather` (note that `tiled` is True here): any dtype, moved bit by
    bit; works under jit, grad, jvp, vmap, scan and remat; the transpose adds up cotangents over
    the same links, backwards. The order of the sends is
    `ringline.schedule.all_gather(topology, directions=..., channels=...)`.

    Args:
        x: this device's shard, or a pytree of them.
        axis_name: the mesh axis (or tuple of axes, in row-major order) to gather over.
        axis: the dim to join along; negative counts from the end of the result.
        tiled: join along an existing dim; False makes a new dim of size n at `axis`.
        topology: `ring` or `line`, how the devices of the mesh axis are linked. Two devices
            are a line in either case.
        directions: how many directions of a link work at the same time. Two is the default:
            links are full duplex, so it halves a ring's bytes per link and its steps, and costs
            nothing where they are not (the same bytes are sent in the same number of permutes,
            one more for even n). On a line, 1 means one sweep after the other.
        channels: independent permutes that share each send, for links with several queues.
        implementation: `permute` (the schedule's neighbour sends), `xla` (the compiler's own
            all-gather, for which topology, directions and channels mean nothing), or None to
            choose the one measured to be faster: on CPU devices `permute` for shards of 64 KiB
            and more unless all dims before `axis` have length 1 (the result is then the shards
            one after the other, which the built-in writes in one pass); else `xla`. The values
            are the same bits either way.

    Returns:
        The gathered array, the same on every device: `x.shape` with dim `axis` n times as long,
        or with a new dim of size n.

    Raises:
        ValueError: outside `jax.shard_map`; for an unknown axis name; for `axis` out of range;
            for directions other than 1 or 2; for fewer than 1 channel, or more than a shard has
            rows: its length along `axis`, or its longest dim where `axis` is new; for an unknown
            topology or implementation.

    Example:
        >>> import jax, jax.numpy as jnp, ringline
        >>> from jax.sharding import PartitionSpec as P
        >>> mesh = jax.sharding.Mesh(jax.devices()[:1], ("x",))
        >>> def gather(shard):
        ...     return ringline.all_gather(shard, "x", axis=1, topology="ring")
        >>> spread = jax.shard_map(gather, mesh=mesh, in_specs=P(None, "x"), out_specs=P("x"))
        >>> jax.jit(spread)(jnp.ones((2, 3))).shape
        (2, 3)

    References:
        Chan, Heimlich, Purkayastha, van de Geijn, "Collective communication: theory, practice,
        and experience" (2007): the bucket algorithms.
    """
    devices = _axis_devices(axis_name)
    schedule = _schedule(topology, devices, directions, channels)
    if implementation is not None and implementation not in IMPLEMENTATIONS:
        raise ValueError(
            f"implementation must be None or one of {IMPLEMENTATIONS}, got {implementation!r}"
        )

    def gather(leaf: Any) -> Array:
        shard = jnp.asarray(leaf)
        dim = _canonical_axis(axis, shard.ndim + (not tiled))
        rows = shard.shape[dim] if tiled else max(shard.shape, default=1)
        if channels > max(rows, 1):
            raise ValueError(
                f"channels must be at most the {rows} rows of a shard of shape {shard.shape} "
                f"gathered at dim {dim}, got {channels}; use fewer channels"
            )
        chosen = implementation or _choose(shard, dim)
        if not tiled:
            shard = lax.expand_dims(shard, (dim,))
        return bind_all_gather(
            _varying(shard, axis_name),
            axis_name=axis_name,
            axis=dim,
            cut=_cut_dim(shard.shape, dim, schedule.pieces),
            schedule=schedule,
            implementation=chosen,
            assembly=choose_assembly(devices, shard.size * shard.dtype.itemsize),
        )

    return jax.tree.map(gather, x)


# Below this the one call of the built-in costs less than several permutes (CPU devices).
_PERMUTE_MIN_BYTES = 64 * 1024


def _choose(shard: Array, axis: int) -> Implementation:
    """The faster backend for this shard where nothing was asked for by name."""
    contiguous = prod(shard.shape[:axis]) == 1
    large = shard.size * shard.dtype.itemsize >= _PERMUTE_MIN_BYTES
    return "permute" if platform() == "cpu" and large and not contiguous else "xla"


@lru_cache(maxsize=256)
def _schedule(
    topology: TopologyName, devices: int, directions: int, channels: int
) -> CollectiveSchedule:
    where = make_topology(topology, devices)
    return all_gather_schedule(where, directions=directions, channels=channels)


def _axis_devices(axis_name: AxisName) -> int:
    """How many devices the axis has here; it must be a manual axis of a `jax.shard_map`.

    An axis that `jax.vmap(axis_name=...)` makes is no mesh axis and counts as outside.
    """
    mesh = jax.sharding.get_abstract_mesh()
    names = axis_name if isinstance(axis_name, tuple) else (axis_name,)
    if not mesh.manual_axes:
        raise ValueError(
            f"all_gather over axis {axis_name!r} was called outside jax.shard_map; wrap the "
            "caller in jax.shard_map over a mesh with that axis"
        )
    for name in names:
        if name not in mesh.axis_names:
            raise ValueError(
                f"unknown axis name {name!r}, expected one of the mesh axes {mesh.manual_axes}; "
                "change axis_name or the mesh"
            )
        if name not in mesh.manual_axes:
            raise ValueError(
                f"mesh axis {name!r} is automatic here, expected one of the manual axes "
                f"{mesh.manual_axes}; add it to jax.shard_map's axis_names"
            )
    return lax.axis_size(axis_name)


def _canonical_axis(axis: int, ndim: int) -> int:
    if ndim == 0:
        raise ValueError("a scalar has no dim to join along; use tiled=False to make one")
    if not -ndim <= axis < ndim:
        raise ValueError(
            f"axis must be in [{-ndim}, {ndim - 1}] for a result of rank {ndim}, got {axis}; "
            "change axis"
        )
    return axis % ndim


def _cut_dim(shape: tuple[int, ...], axis: int, pieces: int) -> int:
    """The dim to cut pieces along: the gathered one (one concatenation), the longest if short."""
    if shape[axis] >= pieces:
        return axis
    return max(range(len(shape)), key=lambda dim: shape[dim])


def _varying(x: Array, axis_name: AxisName) -> Array:
    """`x` marked as differing from device to device, as `jax.shard_map` checks it."""
    names = axis_name if isinstance(axis_name, tuple) else (axis_name,)
    varying = jax.typeof(x).manual_axis_type.varying
    missing = tuple(name for name in names if name not in varying)
    return lax.pcast(x, missing, to="varying") if missing else x
