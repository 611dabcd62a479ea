"""`all_gather_matmul` and `matmul_reduce_scatter`: the public functions."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from ringline.collectives._arguments import (
    Directions,
    Implementation,
    axis_devices,
    axis_names,
    canonical_dim,
    check_channels,
    cut_dim,
    schedule_for,
    stripe_shape,
    varying_axes,
)
from ringline.collectives._bits import platform
from ringline.collectives._matmul import bind_all_gather_matmul, bind_matmul_reduce_scatter
from ringline.collectives._permute import AxisName, choose_assembly
from ringline.schedule import all_gather as all_gather_schedule
from ringline.schedule import reduce_scatter as reduce_scatter_schedule
from ringline.topology import TopologyName


def all_gather_matmul(
    x: Array,
    w: Array,
    axis_name: AxisName,
    *,
    axis: int = -2,
    preferred_element_type: Any = None,
    topology: TopologyName = "ring",
    directions: Directions | None = None,
    channels: int = 1,
    implementation: Implementation | None = None,
) -> Array:
    r"""`all_gather(x) @ w`, each stripe multiplied as soon as it lands.

    On a line two arrivals that no device gets both of are multiplied as one, when both landed.

    With $x_d$ the rows that device $d$ of $n$ holds, every device gets

    $$ y = \mathrm{concatenate}(x_0, \ldots, x_{n-1}) \, w $$

    with its own $w$: the first matmul of a tensor-parallel block. While one stripe is multiplied
    the next ones are on their way, in the order of `ringline.schedule.all_gather`.

    Products of 16-bit floats are accumulated in float32 and rounded once. Works under jit, grad,
    jvp, vmap, scan and remat: the gradient of `x` is `matmul_reduce_scatter` over the same links
    backwards; that of `w` gathers `x` again, so that no gathered copy is kept.

    Args:
        x: this device's rows, `[..., k]`.
        w: this device's matrix, `[k, m]`.
        axis_name: the mesh axis (or tuple of axes, in row-major order) to gather over.
        axis: the dim of `x` to join along, any but the last; negative counts from the end.
        preferred_element_type: of the result; by default the type that `x @ w` has.
        topology: `ring` or `line`, how the devices of the mesh axis are linked.
        directions: how many directions of a link work at the same time. None: 2, but 1 for rings of
            CPU devices, as in `ringline.all_gather`.
        channels: independent permutes that share each send.
        implementation: `permute` (neighbour sends with a matmul a stripe), `pallas` (the same in
            one TPU kernel, for float32 and bfloat16), `xla` (the compiler's all-gather, then one
            matmul), or None: `permute` on TPU devices, where the compiler runs sends beside
            matmuls, else `xla`. No kernel has been timed on TPUs yet.

    Returns:
        `[..., m]`, with dim `axis` n times as long as that of `x`.

    Raises:
        ValueError: outside `jax.shard_map`; for an unknown axis name; for operands whose shapes do
            not fit; for `axis` out of range or the last dim; for directions other than 1 or 2; for
            fewer than 1 channel, or more than a shard has rows; for an unknown topology or
            implementation; with `pallas`, where `ringline.all_gather` refuses it, and for types
            other than float32 and bfloat16.

    Example:
        >>> import jax, jax.numpy as jnp, ringline
        >>> from jax.sharding import PartitionSpec as P
        >>> mesh = jax.sharding.Mesh(jax.devices()[:1], ("x",))
        >>> def first(x, w):
        ...     return ringline.all_gather_matmul(x, w, "x", topology="ring")
        >>> first = jax.shard_map(
        ...     first, mesh=mesh, in_specs=(P("x"), P(None, "x")), out_specs=P(None, "x")
        ... )
        >>> jax.jit(first)(jnp.ones((4, 2)), jnp.ones((2, 6))).shape
        (4, 6)

    References:
        Wang et al., "Overlap communication with dependent computation via decomposition in large
        deep learning models" (ASPLOS 2023).
    """
    devices = axis_devices(axis_name, "all_gather_matmul")
    schedule = schedule_for(
        all_gather_schedule, topology, devices, directions, channels, implementation, grids=False
    )
    x, w = _operands(x, w, axis_name)
    dim = _rows_dim(axis, x.ndim, "axis")
    check_channels(channels, x.shape[dim], x.shape, f"gathered at dim {dim}")
    dtype = _result_type(preferred_element_type, x, w)
    stripe = (*x.shape[:-1], w.shape[1])
    return bind_all_gather_matmul(
        x,
        w,
        axis_name=axis_name,
        axis=dim,
        cut=cut_dim(stripe[:-1], dim, schedule.pieces),
        schedule=schedule,
        implementation=implementation or ("permute" if platform() == "tpu" else "xla"),
        assembly=choose_assembly(schedule, _bytes(x.shape, x.dtype)),
        dtype=dtype,
    )


def matmul_reduce_scatter(
    x: Array,
    w: Array,
    axis_name: AxisName,
    *,
    scatter_dimension: int = -2,
    preferred_element_type: Any = None,
    topology: TopologyName = "ring",
    directions: Directions | None = None,
    channels: int = 1,
    implementation: Implementation | None = None,
) -> Array:
    r"""`reduce_scatter(x @ w)`, each stripe multiplied when its sum is about to leave.

    With $x_d$ and $w_d$ what device $d$ of $n$ holds, device $i$ gets stripe $i$ of
    $\sum_d x_d w_d$ cut into $n$ stripes of rows: the second matmul of a tensor-parallel block.
    While sums travel, in the order of `ringline.schedule.reduce_scatter`, the products that they
    will be added to are computed.

    Products of 16-bit floats are accumulated, and added to the sum that arrived, in float32; the
    sum is rounded to the type of the result when it is sent on. `preferred_element_type=float32`
    keeps it in float32 on the way, for twice the bytes. Works under jit, grad, jvp, vmap, scan and
    remat: the gradient of `x` is `all_gather_matmul` over the same links backwards; that of
    `w` gathers the cotangent.

    Args:
        x: this device's columns, `[..., k]`.
        w: this device's rows of the matrix, `[k, m]`.
        axis_name: the mesh axis (or tuple of axes, in row-major order) to sum over.
        scatter_dimension: the dim of `x` to cut into stripes, any but the last; negative counts
            from the end.
        preferred_element_type: of the result; by default the type that `x @ w` has.
        topology: `ring` or `line`, how the devices of the mesh axis are linked.
        directions: how many directions of a link work at the same time. None: 2, but 1 for rings of
            CPU devices, as in `ringline.all_gather`.
        channels: independent permutes that share each send.
        implementation: `permute` (neighbour sends with a matmul a stripe), `pallas` (the same in
            one TPU kernel, for float32 and bfloat16, which adds the sums that arrive as it finishes
            each product), `xla` (one matmul, then the compiler's reduce-scatter), or None: `xla`.
            No kernel has been timed on TPUs yet.

    Returns:
        `[..., m]`, with dim `scatter_dimension` n times shorter than that of `x`.

    Raises:
        ValueError: outside `jax.shard_map`; for an unknown axis name; for operands whose shapes do
            not fit; for `scatter_dimension` out of range, the last dim, or of a size that does not
            divide by n; for directions other than 1 or 2; for fewer than 1 channel, or more than a
            stripe has rows; for an unknown topology or implementation; with `pallas`, where
            `ringline.all_gather` refuses it, and for types other than float32 and bfloat16.

    Example:
        >>> import jax, jax.numpy as jnp, ringline
        >>> from jax.sharding import PartitionSpec as P
        >>> mesh = jax.sharding.Mesh(jax.devices()[:1], ("x",))
        >>> def second(x, w):
        ...     return ringline.matmul_reduce_scatter(x, w, "x", topology="line")
        >>> second = jax.shard_map(
        ...     second, mesh=mesh, in_specs=(P(None, "x"), P("x")), out_specs=P("x")
        ... )
        >>> jax.jit(second)(jnp.ones((4, 6)), jnp.ones((6, 2))).shape
        (4, 2)

    References:
        Wang et al., "Overlap communication with dependent computation via decomposition in large
        deep learning models" (ASPLOS 2023).
    """
    devices = axis_devices(axis_name, "matmul_reduce_scatter")
    schedule = schedule_for(
        reduce_scatter_schedule,
        topology,
        devices,
        directions,
        channels,
        implementation,
        grids=False,
    )
    x, w = _operands(x, w, axis_name)
    dim = _rows_dim(scatter_dimension, x.ndim, "scatter_dimension")
    stripe = stripe_shape(x.shape, dim, devices)
    check_channels(channels, stripe[dim], stripe, f"scattered at dim {dim}")
    dtype = _result_type(preferred_element_type, x, w)
    return bind_matmul_reduce_scatter(
        x,
        w,
        axis_name=axis_name,
        axis=dim,
        cut=cut_dim(stripe[:-1], dim, schedule.pieces),
        schedule=schedule,
        implementation=implementation or "xla",
        assembly=choose_assembly(schedule, _bytes((*stripe[:-1], w.shape[1]), dtype)),
        dtype=dtype,
    )


def _operands(x: Array, w: Array, axis_name: AxisName) -> tuple[Array, Array]:
    """The operands as arrays that vary over the same mesh axes."""
    x, w = jnp.asarray(x), jnp.asarray(w)
    if x.ndim < 2 or w.ndim != 2 or x.shape[-1] != w.shape[0]:
        raise ValueError(
            f"expected x of shape [..., rows, k] and w of shape [k, m], got {x.shape} and "
            f"{w.shape}; reshape one of them"
        )
    if jnp.promote_types(x.dtype, w.dtype) == jnp.bool_:
        raise ValueError("expected numbers to multiply and add, got bool; convert x or w")
    axes = varying_axes(jax.typeof(x)) | varying_axes(jax.typeof(w)) | set(axis_names(axis_name))

    def spread(operand: Array) -> Array:
        missing = tuple(sorted(axes - varying_axes(jax.typeof(operand))))
        return lax.pcast(operand, missing, to="varying") if missing else operand

    return spread(x), spread(w)


def _result_type(preferred: Any, x: Array, w: Array) -> Any:
    """The type asked for, or that of `x @ w`."""
    if preferred is None:
        return jnp.promote_types(x.dtype, w.dtype)
    try:
        return jnp.dtype(preferred)
    except TypeError:
        raise ValueError(
            f"preferred_element_type must be an element type such as jnp.float32, got "
            f"{preferred!r}; change it"
        ) from None


def _rows_dim(dim: int, ndim: int, name: str) -> int:
    found = canonical_dim(dim, ndim, name=name, scalar="", whose="an array")
    if found == ndim - 1:
        raise ValueError(
            f"{name} must not be the last dim, which the matmul sums over, got {dim} for rank "
            f"{ndim}; change {name}"
        )
    return found


def _bytes(shape: tuple[int, ...], dtype: Any) -> int:
    return jax.ShapeDtypeStruct(shape, dtype).size * jnp.dtype(dtype).itemsize
