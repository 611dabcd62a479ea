"""What JAX and ringline do on one host of `benchmarks/network.py`: two CPU devices a host.

    jax_worker.py TOPOLOGY SIZES_MB ROUNDS

A size is the payload of a host: what it puts into an all-gather, and gets out of a reduce-scatter.
Meshes: `one`: one device of each host; `all`: both, side by side on one axis; `pairs`: hosts x 2.
"""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from rounds import merge, report, run_rounds

from ringline.train._distributed import Processes, start

PER_HOST = 2
_STRIDE, _VALUES = 7919, 61


def main() -> None:
    topology, sizes, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
    who = Processes.find(None, None, None)
    start(who.count * PER_HOST, who)
    import jax
    from jax.experimental import multihost_utils

    document: dict[str, Any] = {"library": f"jax {jax.__version__}", "sizes": {}}
    barrier = partial(multihost_utils.sync_global_devices, "round")
    for size in sizes.split(","):
        elements = round(float(size) * 1e6) // 4 // (who.count * PER_HOST) * who.count * PER_HOST
        subjects = _subjects(topology, who.count, elements)
        found = run_rounds(subjects.runs, rounds, barrier)
        everyone = _exchange(found, who)
        if who.process_id == 0:
            document["sizes"][size] = {
                "payload_bytes": elements * 4,
                "subjects": merge(everyone, rounds),
                "wrong": subjects.wrong,
            }
    if who.process_id == 0:
        report(document)


def _exchange(found: dict[str, dict], who: Any) -> list[dict[str, dict]]:
    """Every host's rounds, in all hosts: names are the same everywhere, numbers travel."""
    from jax.experimental import multihost_utils

    interfaces = ["right", "left"]
    numbers = np.array(
        [
            [*entry["seconds"], *(entry["sent"].get(name, 0) for name in interfaces)]
            for entry in found.values()
        ],
        # As bits, because 64-bit floats would be rounded on the way.
    ).view(np.uint32)
    gathered = np.asarray(multihost_utils.process_allgather(numbers))
    hosts = np.ascontiguousarray(gathered).view(np.float64)
    return [
        {
            name: {"seconds": list(row[:-2]), "sent": dict(zip(interfaces, row[-2:]))}
            for name, row in zip(found, host)
        }
        for host in hosts
    ]


class _Subjects:
    """Compiled functions on inputs whose results are checked once, element by element."""

    def __init__(self) -> None:
        self.runs: dict[str, Callable[[], object]] = {}
        self.wrong = 0

    def add(
        self,
        name: str,
        mesh: Any,
        count: int,
        body: Callable,
        out: Any,
        expected: Callable[[int], np.ndarray] | None = None,
    ) -> None:
        """`body` on `count` elements a device; `expected` by the device's place in the mesh."""
        import jax
        import jax.numpy as jnp
        from jax import lax
        from jax.sharding import PartitionSpec as P

        axes = mesh.axis_names

        def make() -> Any:
            place = lax.axis_index(axes).astype(jnp.uint32)
            index = lax.iota(jnp.uint32, count) + place * jnp.uint32(_STRIDE)
            return (index % _VALUES).astype(jnp.float32)

        mapped = partial(jax.shard_map, mesh=mesh, check_vma=False)
        x = jax.jit(mapped(make, in_specs=(), out_specs=P(axes)))()
        run = jax.jit(mapped(body, in_specs=P(axes), out_specs=out))
        self.runs[name] = lambda: jax.block_until_ready(run(x))
        if expected is None:
            return
        places = list(mesh.devices.flat)
        for shard in run(x).addressable_shards:
            right = expected(places.index(shard.device))
            self.wrong += int((np.asarray(shard.data) != right).sum())


def _filled(count: int, place: int) -> np.ndarray:
    return ((np.arange(count) + place * _STRIDE) % _VALUES).astype(np.float32)


def _gathered(count: int, members: Callable[[int], range], place: int) -> np.ndarray:
    return np.concatenate([_filled(count, member) for member in members(place)])


def _summed(count: int, members: Callable[[int], range], place: int) -> np.ndarray:
    total = sum(_filled(count, member) for member in members(place))
    return np.split(total, len(members(place)))[members(place).index(place)]


def _subjects(topology: str, hosts: int, elements: int) -> _Subjects:
    import jax
    from jax import lax
    from jax.sharding import Mesh
    from jax.sharding import PartitionSpec as P

    import ringline

    devices = np.array(jax.devices())
    one, every = Mesh(devices[::PER_HOST], ("x",)), Mesh(devices, ("x",))
    pairs = Mesh(devices.reshape(hosts, PER_HOST), ("host", "local"))

    gather = partial(ringline.all_gather, topology=topology)
    scatter = partial(ringline.reduce_scatter, topology=topology)
    lax_gather = partial(lax.all_gather, tiled=True)
    lax_scatter = partial(lax.psum_scatter, tiled=True)
    one_way = {"directions": 1, "implementation": "permute"}

    def everyone(devices: int) -> Callable[[int], range]:
        return lambda place: range(devices)

    def rail(place: int) -> range:
        return range(place % PER_HOST, hosts * PER_HOST, PER_HOST)

    # Name, mesh, axis, elements of a host's part on one device, whose parts it deals with.
    single = ("", one, "x", elements, everyone(hosts))
    both = (" both devices", every, "x", elements // PER_HOST, everyone(hosts * PER_HOST))
    shared = (" per host", pairs, "host", elements // PER_HOST, rail)
    found = _Subjects()
    last = hosts if topology == "ring" else hosts - 1
    hops = [(host, (host + 1) % hosts) for host in range(last)]
    for name, factor in (("permute", 1), ("permute of the busiest link", hosts - 1)):
        found.add(name, one, factor * elements, lambda x: lax.ppermute(x, "x", hops), P("x"))
    gathers = [("all-gather one direction", partial(gather, **one_way), single)]
    gathers += [("all-gather", gather, where) for where in (both, shared)]
    gathers += [("lax.all_gather", lax_gather, where) for where in (single, both, shared)]
    for name, way, (suffix, mesh, axis, count, members) in gathers:
        right = partial(_gathered, count, members)
        out = P("local") if mesh is pairs else P()
        found.add(name + suffix, mesh, count, partial(way, axis_name=axis), out, right)
    scatters = [("reduce-scatter one direction", partial(scatter, **one_way), single)]
    scatters += [("reduce-scatter", scatter, where) for where in (both, shared)]
    scatters += [("lax.psum_scatter", lax_scatter, where) for where in (single, both, shared)]
    for name, way, (suffix, mesh, axis, count, members) in scatters:
        terms = count * len(members(0))
        right = partial(_summed, terms, members)
        out = P(mesh.axis_names)
        found.add(name + suffix, mesh, terms, partial(way, axis_name=axis), out, right)
    return found


if __name__ == "__main__":
    main()
