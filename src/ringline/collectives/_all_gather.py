"""`all_gather`: the public function; it checks, chooses the backend and binds the primitive."""

from collections.abc import Sequence
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from ringline.collectives._arguments import (
    Directions,
    Implementation,
    Topology,
    axis_devices,
    canonical_dim,
    check_channels,
    check_flag,
    cut_dim,
    grid_axes,
    schedule_for,
    varying,
    varying_axes,
)
from ringline.collectives._bits import platform
from ringline.collectives._hosts import PerHost, find_pairs
from ringline.collectives._permute import AxisName, choose_assembly
from ringline.collectives._plan import plan_permutes
from ringline.collectives._primitive import bind_all_gather, bind_all_gather_into
from ringline.collectives._uneven import check_sizes
from ringline.schedule import CollectiveSchedule
from ringline.schedule import all_gather as all_gather_schedule


def all_gather(
    x: Any,
    axis_name: AxisName,
    *,
    axis: int = 0,
    tiled: bool = True,
    sizes: Sequence[int] | None = None,
    out: Any = None,
    topology: Topology = "ring",
    directions: Directions | None = None,
    channels: int = 1,
    per_host: PerHost = None,
    implementation: Implementation | None = None,
) -> Any:
    r"""Gather the shards of all devices of a mesh axis, from neighbour to neighbour.

    With $x_d$ the shard of device $d$ of $n$, every device gets
    $y = \mathrm{concatenate}(x_0, \ldots, x_{n-1})$ along `axis` (`tiled=False`: `stack`). For
    shards of $S$ bytes the busiest directed link of a ring carries $(n-1) S / k$ bytes with
    $k$ directions, and $(n-1) S$ on a line.

    A drop-in for `jax.lax.all_gather` (note that `tiled` is True here): any dtype, moved bit by
    bit; works under jit, grad, jvp, vmap, scan and remat; the transpose is
    `ringline.reduce_scatter` over the same links, backwards. The order of the sends is
    `ringline.schedule.all_gather(topology, directions=..., channels=...)`.

    Args:
        x: this device's shard, or a pytree of them.
        axis_name: the mesh axis (or tuple of axes, in row-major order) to gather over.
        axis: the dim to join along; negative counts from the end of the result.
        tiled: join along an existing dim; False makes a new dim of size n at `axis`.
        sizes: how many rows along `axis` of each device's shard count, for shards of different
            lengths: the shards are padded to the longest of them, the result has no padding.
        out: an array of the result's shape and type (a pytree of them) that the result is written
            over. What it held does not matter. Donated by the enclosing `jax.jit`, it spares fresh
            memory, whose page faults are most of the time of a large gather on CPUs. (XLA on CPUs
            writes 16-bit floats only as a whole: they take a copy of the result's size besides.)
        topology: `ring` or `line`, how the devices of the mesh axis are linked. Two devices
            are a line in either case. With two mesh axes, a pair such as `("ring", "line")` is a
            grid: one half of the array goes along the first axis and then the second, the other
            half the other way round, so that no link idles. A single name takes the devices of all
            axes as one ring or line in row-major order.
        directions: how many directions of a link work at the same time. 2 halves a ring's bytes per
            link and its steps, as links are full duplex; on a line, 1 means one sweep after the
            other. None: 2, but 1 for rings of CPU devices, unless with `pallas`: they send one way
            at a time, and two directions are one permute more for even n.
        channels: independent permutes that share each send, for links with several queues.
        per_host: for hosts with two devices each, where a device sends one way at a time (XLA on
            CPUs): one device of a host then sends up and the other down in the same permute, and
            both directions of the links between hosts work at once. 2: the axis has the devices of
            each host side by side; the name of a mesh axis of size 2: that one does, and the shards
            differ over it. `topology` is then that of the hosts. 1: no. None: found in the mesh
            where `implementation` is None too (with a warning that tells how to get there where a
            host has one device), for shards of 64 KiB and more. The values are the same bits.
        implementation: `permute` (the schedule's neighbour sends), `pallas` (the same sends in one
            TPU kernel, each copied straight into the neighbour's result), `xla` (the compiler's own
            all-gather, for which topology, directions and channels mean nothing), or None to
            choose the one measured to be faster: on CPU devices `permute` for shards of 32 KiB
            and more for each of its permutes, unless all dims before `axis` have length 1 (the
            result is then the shards one after the other, which the built-in writes in one pass);
            else `xla`, as no kernel has been timed on TPUs yet. The values are the same bits
            either way.

    Returns:
        The gathered array, the same on every device: `x.shape` with dim `axis` n times as long
        (of length `sum(sizes)`), or with a new dim of size n.

    Raises:
        ValueError: outside `jax.shard_map`; for an unknown axis name; for `axis` out of range;
            for directions other than 1 or 2; for fewer than 1 channel, or more than a shard has
            rows: its length along `axis`, or its longest dim where `axis` is new; for sizes that
            are not one a device, or whose largest is not the shard's length; for `out` of another
            shape or type, or together with sizes or a grid; for an unknown topology or
            implementation; for a `per_host` that the mesh or the other options do not allow; with
            `pallas`, without TPUs or JAX's interpret mode, beside an automatic mesh axis, over a
            grid, or for more copies than a kernel has semaphores.

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
    check_flag(tiled, "tiled")
    devices = axis_devices(axis_name, "all_gather")
    schedule = schedule_for(
        all_gather_schedule, topology, devices, directions, channels, implementation
    )
    grid = grid_axes(all_gather_schedule, topology, axis_name, directions, channels, implementation)
    pairs = find_pairs(
        all_gather_schedule,
        axis_name,
        per_host=per_host,
        topology=topology,
        directions=directions,
        channels=channels,
        implementation=implementation,
    )

    if out is not None and (grid or sizes is not None):
        raise ValueError(
            "out cannot be combined with sizes or a grid, got both; leave one of them out"
        )

    def gather(leaf: Any, buffer: Any = None) -> Array:
        shard = jnp.asarray(leaf)
        dim = canonical_dim(
            axis,
            shard.ndim + (not tiled),
            name="axis",
            scalar="a scalar has no dim to join along; use tiled=False to make one",
            whose="a result",
        )
        rows = shard.shape[dim] if tiled else max(shard.shape, default=1)
        check_channels(channels, rows, shard.shape, f"gathered at dim {dim}")
        lengths = None
        if sizes is not None:
            if not tiled:
                raise ValueError("sizes need a dim to cut, got tiled=False; use tiled=True")
            lengths = check_sizes(sizes, devices, rows, whole=False, shape=shard.shape)
        chosen = implementation or _choose(shard, dim, schedule)
        if not tiled:
            shard = lax.expand_dims(shard, (dim,))
        shard = varying(shard, axis_name)
        axes, sends = axis_name, schedule
        if pairs is not None and pairs.serve(shard, shard.size * shard.dtype.itemsize):
            axes, sends, chosen = pairs.axis_name, pairs.schedule, "permute"
        params: dict[str, Any] = {
            "axis_name": axes,
            "axis": dim,
            "cut": cut_dim(shard.shape, dim, sends.pieces),
            "schedule": sends,
            "implementation": chosen,
            "assembly": choose_assembly(sends, shard.size * shard.dtype.itemsize),
        }
        if buffer is not None:
            return bind_all_gather_into(shard, _buffer(buffer, shard, dim, devices), **params)
        grid_of = () if chosen == "xla" else grid
        return bind_all_gather(shard, grid=grid_of, sizes=lengths, **params)

    if out is None:
        return jax.tree.map(gather, x)
    if (expected := jax.tree.structure(x)) != (got := jax.tree.structure(out)):
        raise ValueError(
            f"out must have an array for each of x, in the same tree, expected {expected}, got "
            f"{got}; change out"
        )
    return jax.tree.map(gather, x, out)


def _buffer(out: Any, shard: Array, dim: int, devices: int) -> Array:
    """`out` as an array that varies as the shard does, if it fits the result."""
    shape = list(shard.shape)
    shape[dim] *= devices
    try:
        found = jnp.asarray(out)
    except TypeError:
        raise ValueError(f"out must be an array, got {out!r}; change out") from None
    if found.shape != tuple(shape) or found.dtype != shard.dtype:
        raise ValueError(
            f"out must have the result's shape {tuple(shape)} and type {shard.dtype}, got "
            f"{found.shape} and {found.dtype}; change out"
        )
    missing = varying_axes(jax.typeof(shard)) - varying_axes(jax.typeof(found))
    return lax.pcast(found, tuple(sorted(missing)), to="varying") if missing else found


# Below this for each permute the one call of the built-in costs less (CPU devices).
_MIN_BYTES_A_PERMUTE = 32 * 1024


def _choose(shard: Array, axis: int, schedule: CollectiveSchedule) -> Implementation:
    """The faster backend for this shard where nothing was asked for by name."""
    if platform() != "cpu" or prod(shard.shape[:axis]) == 1:
        return "xla"
    least = _MIN_BYTES_A_PERMUTE * len(plan_permutes(schedule).permutes)
    return "permute" if shard.size * shard.dtype.itemsize >= least else "xla"
