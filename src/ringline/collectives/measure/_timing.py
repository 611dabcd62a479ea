"""The functions that a measurement runs, and their times.

The value of an element follows from its place in the whole array, so that a device can make its
own input, and check its result, without a second copy of the array. Where elements are only moved
they are any bits; where they are added or multiplied they are small integers, exact in every type.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jax.stages import Compiled, Wrapped

from ringline.collectives.measure._operations import AXIS, Operation, Way
from ringline.collectives.measure._processes import largest, total, wait_for_all
from ringline.collectives.measure._shapes import Case
from ringline.topology import Line, Rails, Ring

_ROUNDS_BUDGET_S = 20.0
_MIN_ROUNDS = 2
_MAX_SLABS = 64
# Which column of the array a matmul's matrix picks for each column of the result.
_PICK_STRIDE = 5
# Tells the devices' terms of one place apart.
_DEVICE_STRIDE = 40503
_CARRIERS = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}


@dataclass(slots=True)
class Subject:
    """A compiled function and what it is run on.

    Attributes:
        function: the function.
        arguments: the arrays.
        buffer: which argument the function is given to write its result over, if any.
    """

    function: Callable[..., Any]
    arguments: tuple[Array, ...]
    buffer: int | None = None

    def run(self) -> Array:
        """One run to its end; its result is the next run's buffer."""
        result = jax.block_until_ready(self.function(*self.arguments))
        if self.buffer is not None:
            before, after = self.arguments[: self.buffer], self.arguments[self.buffer + 1 :]
            self.arguments = (*before, result, *after)
        return result


def time_interleaved(subjects: Mapping[str, Subject], iters: int) -> dict[str, list[float]]:
    """Run the subjects in turn, so that whatever else the machine does slows all of them alike.

    Args:
        subjects: by name.
        iters: how many rounds; fewer, but two at least, where they would take over 20 s.

    Returns:
        By name, the seconds of each round, of the slowest process.
    """
    # The warm-up, which compiles, is also the estimate.
    one_round_s = float(largest(np.array(sum(_seconds(s) for s in subjects.values()))))
    rounds = max(_MIN_ROUNDS, min(iters, int(_ROUNDS_BUDGET_S / one_round_s)))
    times = [
        [_seconds(subject) for subject in subjects.values()] for _ in range(min(rounds, iters))
    ]
    columns = largest(np.array(times)).T.tolist()
    return dict(zip(subjects, columns))


def _seconds(subject: Subject) -> float:
    wait_for_all()
    started = time.perf_counter()
    subject.run()
    return time.perf_counter() - started


class Bench:
    """Inputs, compiled functions, checks and the microbenchmark of one case of an operation."""

    def __init__(self, operation: Operation, case: Case, topology: Ring | Line | Rails):
        self._operation, self._case, self._topology = operation, case, topology
        self._mesh = Mesh(np.array(jax.devices()[: topology.devices]), (AXIS,))
        self._stripes = P(*(AXIS if dim == case.dim else None for dim in range(len(case.shape))))

    def inputs(self) -> tuple[Array, ...]:
        """What the operation is run on: the array of each device, and the matrix if it has one."""
        shards = self._operation.takes == "shard"
        shape = self._stripe_shape() if shards else self._case.shape

        def make() -> Array:
            here = lax.axis_index(AXIS)
            starts = {self._case.dim: here * shape[self._case.dim]} if shards else {}
            bits = self._bits(shape, starts, jnp.uint32(0) if shards else here)
            made = lax.bitcast_convert_type(bits, jnp.dtype(self._case.dtype))
            return made if shards else made[None]

        array = self._compiled(make, (), self._stripes if shards else P(AXIS))()
        if not self._operation.matmul:
            return (array,)

        def pick() -> Array:
            # One 1 in each column: the product is the array with its columns in another order.
            shape = (self._case.shape[-1],) * 2
            row, column = (lax.broadcasted_iota(jnp.int32, shape, dim) for dim in range(2))
            return (row == column * _PICK_STRIDE % shape[0]).astype(jnp.dtype(self._case.dtype))

        return array, self._compiled(pick, (), P())()

    def compile(self, way: Way) -> Compiled:
        """`way` over all devices, compiled for `inputs`."""
        shards = self._operation.takes == "shard"
        array = self._stripes if shards else P(AXIS)
        specs = (array, P()) if self._operation.matmul else (array,)

        def body(x: Array, *matrix: Array) -> Array:
            return way(x if shards else x[0], *matrix)

        out = P() if self._operation.gives == "whole" else self._stripes
        shapes = [self._case.shape if shards else (self._topology.devices, *self._case.shape)]
        if self._operation.matmul:
            shapes.append((self._case.shape[-1],) * 2)
        given = [
            jax.ShapeDtypeStruct(
                shape, jnp.dtype(self._case.dtype), sharding=NamedSharding(self._mesh, spec)
            )
            for shape, spec in zip(shapes, specs)
        ]
        return self._compiled(body, specs, out).lower(*given).compile()

    def compile_in_place(self, way: Callable[..., Array]) -> Compiled:
        """A gather that writes over the buffer it is given, compiled for a shard and the buffer."""

        def body(shard: Array, out: Array) -> Array:
            return way(shard, out=out)

        given = [
            jax.ShapeDtypeStruct(
                self._case.shape,
                jnp.dtype(self._case.dtype),
                sharding=NamedSharding(self._mesh, spec),
            )
            for spec in (self._stripes, P())
        ]
        gather = self._compiled(body, (self._stripes, P()), P(), donate=1)
        return gather.lower(*given).compile()

    def over_buffer(self, in_place: Compiled, shard: Array) -> Subject:
        """What `compile_in_place` gave, with a buffer."""
        return Subject(in_place, (shard, self.fresh_result(shard).run()), buffer=1)

    def fresh_result(self, shard: Array) -> Subject:
        """Write the whole result's fresh memory once, and nothing else."""

        def fill(shard: Array) -> Array:
            return lax.full(self._case.shape, shard[(0,) * shard.ndim])

        return Subject(self._compiled(fill, self._stripes, P()), (shard,))

    def chained_permutes(self, shard: Array) -> Subject:
        """n - 1 permutes of a stripe, each to the next neighbour, one after the other."""
        hops = self._hops(range(self._topology.devices))

        def chain(shard: Array) -> Array:
            for _ in range(self._topology.devices - 1):
                shard = lax.ppermute(shard, AXIS, hops)
            return shard

        return Subject(self._compiled(chain, self._stripes, self._stripes), (shard,))

    def placed(self, shard: Array) -> Subject:
        """Write the own stripe n times over a buffer of the result's shape, and nothing else."""
        dim, devices = self._case.dim, self._topology.devices
        carrier = _carrier(self._case.dtype)
        to_bits = self._compiled(
            lambda stripe: lax.bitcast_convert_type(stripe, carrier), self._stripes, self._stripes
        )

        def place(stripe: Array, out: Array) -> Array:
            for hop in range(devices):
                number = (lax.axis_index(AXIS) + hop) % devices
                start = number * stripe.shape[dim]
                out = lax.dynamic_update_slice_in_dim(out, stripe, start, axis=dim)
            return out

        stripe = to_bits(shard)
        over = self._compiled(place, (self._stripes, P()), P(), donate=1)
        return Subject(over, (stripe, self.fresh_result(stripe).run()), buffer=1)

    @property
    def input_bytes(self) -> int:
        """Of all devices' arrays together."""
        copies = 1 if self._operation.takes == "shard" else self._topology.devices
        return copies * self._case.size_bytes

    def host_bytes(self, compiled: Compiled) -> int:
        """Memory that all emulated devices of this process take for one run, inputs and all."""
        sizes = compiled.memory_analysis()
        if sizes is None:
            return 0
        made = sizes.output_size_in_bytes - sizes.alias_size_in_bytes + sizes.temp_size_in_bytes
        devices = self._topology.devices // jax.process_count()
        return devices * (sizes.argument_size_in_bytes + made)

    def wrong(self, result: Array) -> int:
        """Elements of every device's result whose bits are not what they should be."""
        whole = self._operation.gives == "whole"
        shape = self._case.shape if whole else self._stripe_shape()
        # Slab by slab, because the bits to compare with take as much memory as what they are for.
        dim = max(range(len(shape)), key=lambda dim: shape[dim])
        rows = shape[dim]
        slabs = next(count for count in range(min(rows, _MAX_SLABS), 0, -1) if rows % count == 0)
        slab = list(shape)
        slab[dim] = rows // slabs

        def count(mine: Array) -> Array:
            first = {} if whole else {self._case.dim: lax.axis_index(AXIS) * shape[self._case.dim]}

            def add(number: Array, wrong: Array) -> Array:
                start = number * slab[dim]
                starts = first | {dim: first.get(dim, 0) + start}
                expected = self._expected(tuple(slab), starts)
                bits = lax.bitcast_convert_type(mine, expected.dtype)
                bits = lax.dynamic_slice_in_dim(bits, start, slab[dim], axis=dim)
                return wrong + jnp.sum(bits != expected, dtype=jnp.int32)

            return lax.fori_loop(0, slabs, add, jnp.int32(0))[None]

        counts = self._compiled(count, P() if whole else self._stripes, P(AXIS))(result)
        return total(sum(int(shard.data[0]) for shard in counts.addressable_shards))

    def microbenchmark(self, link_bytes: int) -> Subject:
        """One permute to the next neighbour of `link_bytes` on each device."""
        carrier = _carrier(self._case.dtype)
        elements = max(1, link_bytes // jnp.dtype(carrier).itemsize)
        # One sender on each link: of two devices a host, the first.
        senders = range(0, self._topology.devices, 2 if isinstance(self._topology, Rails) else 1)
        hops = self._hops(senders)
        permute = self._compiled(lambda x: lax.ppermute(x, AXIS, hops), P(AXIS), P(AXIS))
        fill = self._compiled(lambda: jnp.ones((elements,), carrier), (), P(AXIS))
        return Subject(permute, (fill(),))

    def _hops(self, senders: Iterable[int]) -> list[tuple[int, int]]:
        """(device, next neighbour) of each sender that has one."""
        return [
            (device, neighbour)
            for device in senders
            if (neighbour := self._topology.neighbour(device, 1)) is not None
        ]

    def bare_matmul(self) -> Subject:
        """The operation's matmul on each device, with nothing to wait for."""
        dtype = jnp.dtype(self._case.dtype)
        shape, columns = self._case.shape, self._case.shape[-1]
        fill = self._compiled(lambda: jnp.ones((1, *shape), dtype), (), P(AXIS))
        matrix = self._compiled(lambda: jnp.ones((columns, columns), dtype), (), P())
        matmul = self._compiled(lambda x, w: x @ w, (P(AXIS), P()), P(AXIS))
        return Subject(matmul, (fill(), matrix()))

    def _stripe_shape(self) -> tuple[int, ...]:
        shape = list(self._case.shape)
        shape[self._case.dim] //= self._topology.devices
        return tuple(shape)

    def _expected(self, shape: tuple[int, ...], starts: Mapping[int, Any]) -> Array:
        """Bits of a block of the result that begins at `starts`, by dim."""
        if not self._operation.sums:
            return self._bits(shape, starts, jnp.uint32(0), result=True)
        dtype, carrier = jnp.dtype(self._case.dtype), _carrier(self._case.dtype)

        def add(device: Array, total: Array) -> Array:
            bits = self._bits(shape, starts, device, result=True)
            return total + lax.bitcast_convert_type(bits, dtype)

        total = lax.fori_loop(0, self._topology.devices, add, jnp.zeros(shape, dtype))
        return lax.bitcast_convert_type(total, carrier)

    def _bits(
        self, shape: tuple[int, ...], starts: Mapping[int, Any], device: Array, result: bool = False
    ) -> Array:
        """Bits of a block of `device`'s array; of the `result`, with the columns a matmul picks."""
        carrier = _carrier(self._case.dtype)
        place = jnp.zeros((), jnp.uint32)
        stride = 1
        last = len(shape) - 1
        for dim in reversed(range(len(shape))):
            index = lax.broadcasted_iota(jnp.uint32, shape, dim)
            if dim in starts:
                index = index + lax.convert_element_type(starts[dim], jnp.uint32)
            if dim == last and result and self._operation.matmul:
                index = index * jnp.uint32(_PICK_STRIDE) % jnp.uint32(self._case.shape[-1])
            place = place + index * jnp.uint32(stride % 2**32)
            stride *= self._case.shape[dim]
        place = place + lax.convert_element_type(device, jnp.uint32) * jnp.uint32(_DEVICE_STRIDE)
        # A multiplicative hash (Knuth, vol. 3, 6.4): neighbours differ in the bits that are kept.
        mixed = place * jnp.uint32(2654435761)
        if self._operation.sums or self._operation.matmul:
            small = (mixed >> 30).astype(jnp.dtype(self._case.dtype))
            return lax.bitcast_convert_type(small, carrier)
        return (mixed >> (32 - 8 * jnp.dtype(carrier).itemsize)).astype(carrier)

    def _compiled(
        self, function: Callable, in_specs: Any, out_specs: Any, donate: int | None = None
    ) -> Wrapped:
        # Unchecked: a gathered result is the same on all devices, which the check cannot know.
        mapped = jax.shard_map(
            function, mesh=self._mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
        )
        return jax.jit(mapped, donate_argnums=donate)


def _carrier(dtype: str) -> Any:
    """The unsigned integer type of as many bits as `dtype`."""
    width = jnp.dtype(dtype).itemsize
    if width not in _CARRIERS:
        raise ValueError(f"element types of 1, 2 or 4 bytes can be measured, got {dtype}")
    return _CARRIERS[width]
