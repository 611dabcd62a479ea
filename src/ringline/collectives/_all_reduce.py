"""`all_reduce`: the public function."""

from typing import Any, Literal

import jax
from jax import Array

from ringline.collectives._arguments import (
    Directions,
    Implementation,
    Topology,
    axis_devices,
    check_channels,
    choose_sum,
    grid_axes,
    number,
    schedule_for,
    varying,
)
from ringline.collectives._hosts import find_pairs
from ringline.collectives._permute import AxisName, choose_assembly
from ringline.collectives._primitive import bind_all_reduce
from ringline.schedule import all_reduce as all_reduce_schedule


def all_reduce(
    x: Any,
    axis_name: AxisName,
    *,
    topology: Topology = "ring",
    directions: Directions | None = None,
    channels: int = 1,
    per_host: Literal[1, 2] | None = None,
    implementation: Implementation | None = None,
) -> Any:
    r"""Sum the arrays of all devices of a mesh axis; every device gets the sum.

    With $x_d$ the array of device $d$ of $n$, every device gets $\sum_d x_d$, as a reduce-scatter
    and then an all-gather of the sums: $2 (n-1)/n \, T$ bytes leave each device for an array of $T$
    bytes. Each element is summed on one device and copied, so with `permute` all devices hold the
    same bits, whatever the directions and channels.

    A drop-in for `jax.lax.psum`: where `jax.shard_map` checks it, the result does not vary over the
    axis. It works under jit, grad, jvp, vmap, scan and remat. The sends, and the order of
    summation, are `ringline.schedule.all_reduce(topology, directions=..., channels=...)`. The
    stripes lie along the first dim that divides by $n$; where there is none, the elements in
    row-major order are padded with zeros. Each addition rounds to the type of `x`.

    Args:
        x: this device's array of any shape, or a pytree of them. Booleans are counted.
        axis_name: the mesh axis (or tuple of axes, in row-major order) to sum over.
        topology: `ring` or `line`, how the devices of the mesh axis are linked. Two devices
            are a line in either case. With two mesh axes, a pair such as `("ring", "line")` is a
            grid: one half of the array goes along the first axis and then the second, the other
            half the other way round, so that no link idles. A single name takes the devices of all
            axes as one ring or line in row-major order.
        directions: how many directions of a link work at the same time. On a line, 1 means one
            sweep after the other. None: 2, but 1 for rings of CPU devices unless with
            `pallas`, as in `ringline.all_gather`.
        channels: independent permutes that share each send, for links with several queues.
        per_host: 2 where the axis has the two devices of each host side by side, to use both
            directions of the links between hosts at once, as in `ringline.all_gather`; 1 for not;
            None to find out where `implementation` is None too.
        implementation: `permute` (the schedule's neighbour sends), `pallas` (the same sends and
            sums as TPU kernels, with the same bits for the same directions), `xla` (the
            compiler's own all-reduce, whose
            order of summation is its own, and for which topology, directions and channels mean
            nothing), or None to choose the one measured to be faster: on CPU
            devices `permute` for 16-bit floats of 1 MiB and more, else `xla` (no kernel has been
            timed on TPUs yet).

    Returns:
        The sum, of `x`'s shape, the same on every device.

    Raises:
        ValueError: outside `jax.shard_map`; for an unknown axis name; for directions other than 1
            or 2; for fewer than 1 channel, or more than a stripe has elements; for an unknown
            topology or implementation; for a `per_host` that the mesh or the other options do not
            allow; with `pallas`, where `ringline.reduce_scatter` refuses it.

    Example:
        >>> import jax, jax.numpy as jnp, ringline
        >>> from jax.sharding import PartitionSpec as P
        >>> mesh = jax.sharding.Mesh(jax.devices()[:1], ("x",))
        >>> def total(part):
        ...     return ringline.all_reduce(part.sum(), "x", topology="ring")
        >>> jax.jit(jax.shard_map(total, mesh=mesh, in_specs=P("x"), out_specs=P()))(jnp.ones(6))
        Array(6., dtype=float32)

    References:
        Chan, Heimlich, Purkayastha, van de Geijn, "Collective communication: theory, practice,
        and experience" (2007): the bucket algorithms.
    """
    devices = axis_devices(axis_name, "all_reduce")
    schedule = schedule_for(
        all_reduce_schedule, topology, devices, directions, channels, implementation
    )
    grid = grid_axes(all_reduce_schedule, topology, axis_name, directions, channels, implementation)
    pairs = find_pairs(
        all_reduce_schedule,
        axis_name,
        per_host=per_host,
        topology=topology,
        directions=directions,
        channels=channels,
        implementation=implementation,
        rails=False,
    )

    def reduce(leaf: Any) -> Array:
        term = number(leaf)
        elements = -(-term.size // devices)
        check_channels(channels, elements, term.shape, f"summed over {devices} devices")
        chosen, sends = implementation or choose_sum(term), schedule
        term = varying(term, axis_name)
        if pairs is not None and pairs.serve(term, elements * term.dtype.itemsize):
            chosen, sends = "permute", pairs.schedule
        return bind_all_reduce(
            term,
            axis_name=axis_name,
            schedule=sends,
            grid=grid,
            implementation=chosen,
            assembly=choose_assembly(sends, elements * term.dtype.itemsize),
        )

    return jax.tree.map(reduce, x)
