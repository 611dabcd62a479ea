"""`reduce_scatter`: the public function."""

from collections.abc import Sequence
from math import prod
from typing import Any

import jax
from jax import Array, lax

from ringline.collectives._arguments import (
    Directions,
    Implementation,
    Topology,
    axis_devices,
    canonical_dim,
    check_channels,
    check_flag,
    choose_sum,
    cut_dim,
    grid_axes,
    number,
    schedule_for,
    stripe_shape,
    varying,
)
from ringline.collectives._hosts import PerHost, built_in_scatter_idles, find_pairs
from ringline.collectives._permute import AxisName, choose_assembly
from ringline.collectives._primitive import bind_reduce_scatter
from ringline.collectives._uneven import check_sizes
from ringline.schedule import reduce_scatter as reduce_scatter_schedule


def reduce_scatter(
    x: Any,
    axis_name: AxisName,
    *,
    scatter_dimension: int = 0,
    tiled: bool = True,
    sizes: Sequence[int] | None = None,
    topology: Topology = "ring",
    directions: Directions | None = None,
    channels: int = 1,
    per_host: PerHost = None,
    implementation: Implementation | None = None,
) -> Any:
    r"""Sum the arrays of all devices of a mesh axis; each device keeps its stripe of the sum.

    With $x_d$ the array of device $d$ of $n$, device $i$ gets stripe $i$ of $\sum_d x_d$ cut into
    $n$ equal stripes along `scatter_dimension`. For an array of $T$ bytes the busiest directed link
    of a ring carries $(n-1)/n \, T / k$ bytes with $k$ directions, and $(n-1)/n \, T$ on a line.

    A drop-in for `jax.lax.psum_scatter` (note that `tiled` is True here). It works under jit, grad,
    jvp, vmap, scan and remat; the transpose is `ringline.all_gather` over the same links,
    backwards. The sends, and the order of summation, are
    `ringline.schedule.reduce_scatter(topology, directions=..., channels=...)`: with `permute` the
    bits of the sum follow from the terms and the order. Each addition rounds to the type of `x`,
    but CPUs may add to a product, made in the same program, before that is rounded.

    Args:
        x: this device's array, or a pytree of them.
        axis_name: the mesh axis (or tuple of axes, in row-major order) to sum over.
        scatter_dimension: the dim to cut into stripes; negative counts from the end.
        tiled: keep that dim, n times shorter; False drops it, and it must have size n.
        sizes: how many rows each device's stripe has, for stripes of different lengths: the result
            is padded with zeros to the longest.
        topology: `ring` or `line`, how the devices of the mesh axis are linked. Two devices
            are a line in either case. With two mesh axes, a pair such as `("ring", "line")` is a
            grid: one half of the array goes along the first axis and then the second, the other
            half the other way round, so that no link idles. A single name takes the devices of all
            axes as one ring or line in row-major order.
        directions: how many directions of a link work at the same time. On a line, 1 means one
            sweep after the other. None: 2, but 1 for rings of CPU devices unless with
            `pallas`, as in `ringline.all_gather`.
        channels: independent permutes that share each send, for links with several queues.
        per_host: 2, or the mesh axis of the two devices of each host, to use both directions of the
            links between hosts at once, as in `ringline.all_gather`; 1 for not; None to find out
            where `implementation` is None too.
        implementation: `permute` (the schedule's neighbour sends), `pallas` (the same sends and
            sums as TPU kernels, with the same bits for the same directions), `xla` (the
            compiler's own reduce-scatter,
            whose order of summation is its own, and for which topology, directions and channels
            mean nothing), or None to choose the one measured to be faster: on CPU
            devices `permute` for 16-bit floats of 1 MiB and more, and for stripes of 64 KiB and
            more between processes, else `xla` (no kernel has been timed on TPUs yet).

    Returns:
        This device's stripe of the sum: `x.shape` with dim `scatter_dimension` n times shorter (of
        length `max(sizes)`), or without it.

    Raises:
        ValueError: outside `jax.shard_map`; for an unknown axis name; for `scatter_dimension` out
            of range or of a size that does not divide by n; for directions other than 1 or 2; for
            fewer than 1 channel, or more than a stripe has rows; for sizes that are not one a
            device, or whose sum is not the dim's size; for an unknown topology or implementation;
            for a `per_host` that the mesh or the other options do not allow; with `pallas`, where
            `ringline.all_gather` refuses it, and for 64-bit types and floats of 8 bits or float16.

    Example:
        >>> import jax, jax.numpy as jnp, ringline
        >>> from jax.sharding import PartitionSpec as P
        >>> mesh = jax.sharding.Mesh(jax.devices()[:1], ("x",))
        >>> def scatter(term):
        ...     return ringline.reduce_scatter(term, "x", scatter_dimension=1, topology="ring")
        >>> summed = jax.shard_map(scatter, mesh=mesh, in_specs=P("x"), out_specs=P(None, "x"))
        >>> jax.jit(summed)(jnp.ones((2, 3))).shape
        (2, 3)

    References:
        Chan, Heimlich, Purkayastha, van de Geijn, "Collective communication: theory, practice,
        and experience" (2007): the bucket algorithms.
    """
    check_flag(tiled, "tiled")
    devices = axis_devices(axis_name, "reduce_scatter")
    schedule = schedule_for(
        reduce_scatter_schedule, topology, devices, directions, channels, implementation
    )
    grid = grid_axes(
        reduce_scatter_schedule, topology, axis_name, directions, channels, implementation
    )
    pairs = find_pairs(
        reduce_scatter_schedule,
        axis_name,
        per_host=per_host,
        topology=topology,
        directions=directions,
        channels=channels,
        implementation=implementation,
    )

    def scatter(leaf: Any) -> Array:
        term = number(leaf)
        dim = canonical_dim(
            scatter_dimension,
            term.ndim,
            name="scatter_dimension",
            scalar="a scalar has no dim to scatter; use ringline.all_reduce",
            whose="an array",
        )
        lengths = None
        if sizes is None:
            stripe = stripe_shape(term.shape, dim, devices)
        else:
            rows = term.shape[dim]
            lengths = check_sizes(sizes, devices, rows, whole=True, shape=term.shape)
            stripe = (*term.shape[:dim], max(lengths), *term.shape[dim + 1 :])
        if not tiled and stripe[dim] != 1:
            raise ValueError(
                f"dim {dim} of shape {term.shape} must have the {devices} devices' size with "
                f"tiled=False, got {term.shape[dim]}; use tiled=True"
            )
        rows = stripe[dim] if tiled else max(stripe)
        check_channels(channels, rows, stripe, f"scattered at dim {dim}")
        stripe_bytes = prod(stripe) * term.dtype.itemsize
        sends_win = implementation is None and built_in_scatter_idles(axis_name, stripe_bytes)
        chosen = "permute" if sends_win else implementation or choose_sum(term)
        term = varying(term, axis_name)
        axes, sends = axis_name, schedule
        if pairs is not None and pairs.serve(term, stripe_bytes):
            axes, sends, chosen = pairs.axis_name, pairs.schedule, "permute"
        out = bind_reduce_scatter(
            term,
            axis_name=axes,
            axis=dim,
            cut=cut_dim(stripe, dim, sends.pieces),
            schedule=sends,
            implementation=chosen,
            assembly=choose_assembly(sends, stripe_bytes),
            grid=() if chosen == "xla" else grid,
            sizes=lengths,
        )
        return out if tiled else lax.squeeze(out, (dim,))

    return jax.tree.map(scatter, x)
