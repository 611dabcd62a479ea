"""The functions that a measurement runs, and their times.

The value of an element follows from its place in the gathered array, so that a device can make
its own shard, and check all that it gathered, without a second copy of the array.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jax.stages import Compiled, Wrapped

from ringline.collectives._shapes import Case
from ringline.topology import Line, Ring

AXIS = "devices"
_ROUNDS_BUDGET_S = 20.0
_MIN_ROUNDS = 2
_MAX_SLABS = 64
_CARRIERS = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}


class Subject(NamedTuple):
    """A compiled function and what it is run on."""

    function: Callable[[Array], Any]
    argument: Array


def time_interleaved(subjects: Mapping[str, Subject], iters: int) -> dict[str, list[float]]:
    """Run the subjects in turn, so that whatever else the machine does slows all of them alike.

    Args:
        subjects: by name.
        iters: how many rounds; fewer, but two at least, where they would take over 20 s.

    Returns:
        By name, the seconds of each round.
    """
    # The warm-up, which compiles, is also the estimate.
    one_round_s = sum(_seconds(subject) for subject in subjects.values())
    rounds = max(_MIN_ROUNDS, min(iters, int(_ROUNDS_BUDGET_S / one_round_s)))
    times: dict[str, list[float]] = {name: [] for name in subjects}
    for _ in range(min(rounds, iters)):
        for name, subject in subjects.items():
            times[name].append(_seconds(subject))
    return times


def _seconds(subject: Subject) -> float:
    started = time.perf_counter()
    jax.block_until_ready(subject.function(subject.argument))
    return time.perf_counter() - started


class Bench:
    """Shards, gathers, checks and the microbenchmark of one case on the first devices."""

    def __init__(self, case: Case, topology: Ring | Line):
        self._case, self._topology = case, topology
        self._mesh = Mesh(np.array(jax.devices()[: topology.devices]), (AXIS,))
        self._spec = P(*(AXIS if dim == case.dim else None for dim in range(len(case.shape))))

    def shards(self) -> Array:
        """The sharded array that is gathered."""
        shape = list(self._case.shape)
        shape[self._case.dim] //= self._topology.devices

        def make() -> Array:
            start = lax.axis_index(AXIS) * shape[self._case.dim]
            bits = self._bits(tuple(shape), {self._case.dim: start})
            dtype = jnp.dtype(self._case.dtype)
            return lax.bitcast_convert_type(bits, dtype)

        return self._compiled(make, (), self._spec)()

    def gather(self, way: Callable[[Array], Array]) -> Compiled:
        """`way` over all devices, compiled; each device holds the whole result."""
        shards = jax.ShapeDtypeStruct(
            self._case.shape,
            jnp.dtype(self._case.dtype),
            sharding=NamedSharding(self._mesh, self._spec),
        )
        return self._compiled(lambda shard: way(shard), self._spec, P()).lower(shards).compile()

    def host_bytes(self, compiled: Compiled) -> int:
        """Memory that all emulated devices together take for one run, inputs and results too."""
        sizes = compiled.memory_analysis()
        if sizes is None:
            return 0
        held = sizes.argument_size_in_bytes + sizes.output_size_in_bytes
        return self._topology.devices * (held + sizes.temp_size_in_bytes)

    def wrong(self, gathered: Array) -> int:
        """Elements of every device's result whose bits are not what they should be."""

        # Slab by slab, because the bits to compare with take as much memory as what they are for.
        dim = max(range(len(self._case.shape)), key=lambda dim: self._case.shape[dim])
        rows = self._case.shape[dim]
        slabs = next(count for count in range(min(rows, _MAX_SLABS), 0, -1) if rows % count == 0)
        slab = list(self._case.shape)
        slab[dim] = rows // slabs

        def count(whole: Array) -> Array:
            def add(number: Array, wrong: Array) -> Array:
                start = number * slab[dim]
                expected = self._bits(tuple(slab), {dim: start})
                bits = lax.bitcast_convert_type(whole, expected.dtype)
                bits = lax.dynamic_slice_in_dim(bits, start, slab[dim], axis=dim)
                return wrong + jnp.sum(bits != expected, dtype=jnp.int32)

            return lax.fori_loop(0, slabs, add, jnp.int32(0))[None]

        counts = self._compiled(count, P(), P(AXIS))(gathered)
        return int(np.asarray(counts, np.int64).sum())

    def microbenchmark(self, link_bytes: int) -> Subject:
        """One permute to the next neighbour of `link_bytes` on each device."""
        carrier = _carrier(self._case.dtype)
        elements = max(1, link_bytes // jnp.dtype(carrier).itemsize)
        hops = [
            (device, neighbour)
            for device in range(self._topology.devices)
            if (neighbour := self._topology.neighbour(device, 1)) is not None
        ]
        permute = self._compiled(lambda x: lax.ppermute(x, AXIS, hops), P(AXIS), P(AXIS))
        fill = self._compiled(lambda: jnp.ones((elements,), carrier), (), P(AXIS))
        return Subject(permute, fill())

    def _bits(self, shape: tuple[int, ...], starts: Mapping[int, Any]) -> Array:
        """Bits of the elements of a block of the gathered array that begins at `starts`, by dim."""
        carrier = _carrier(self._case.dtype)
        place = jnp.zeros((), jnp.uint32)
        stride = 1
        for dim in reversed(range(len(shape))):
            index = lax.broadcasted_iota(jnp.uint32, shape, dim)
            if dim in starts:
                index = index + lax.convert_element_type(starts[dim], jnp.uint32)
            place = place + index * jnp.uint32(stride % 2**32)
            stride *= self._case.shape[dim]
        # A multiplicative hash (Knuth, vol. 3, 6.4): neighbours differ in the bits that are kept.
        mixed = place * jnp.uint32(2654435761)
        return (mixed >> (32 - 8 * jnp.dtype(carrier).itemsize)).astype(carrier)

    def _compiled(self, function: Callable, in_specs: Any, out_specs: Any) -> Wrapped:
        # Unchecked: a gathered result is the same on all devices, which the check cannot know.
        mapped = jax.shard_map(
            function, mesh=self._mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
        )
        return jax.jit(mapped)


def _carrier(dtype: str) -> Any:
    """The unsigned integer type of as many bits as `dtype`."""
    width = jnp.dtype(dtype).itemsize
    if width not in _CARRIERS:
        raise ValueError(f"element types of 1, 2 or 4 bytes can be measured, got {dtype}")
    return _CARRIERS[width]
