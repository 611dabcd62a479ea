"""Both directions at once where a device runs its transfers one after the other.

XLA on CPUs does: two permutes of a program never run at the same time, so half of every full-duplex
link between hosts idles. With two devices on each host, one sending up and one down in the same
permute, both directions work. The sends are a schedule's on a `Ladder`, where the collective's axis
spans both devices of a host, or on `Rails`, where another mesh axis does.
"""

import warnings
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import jax
import numpy as np
from jax import Array

from ringline.collectives._bits import platform
from ringline.collectives._permute import AxisName
from ringline.schedule import CollectiveSchedule
from ringline.topology import Ladder, Rails
from ringline.topology import topology as make_topology

PerHost = int | str | None
"""How many devices of the axis share a host, or the mesh axis of the two devices that do."""

# Below this the latency of the permutes costs more than the idle direction of the links.
MIN_STRIPE_BYTES = 64 * 1024


class Pairs(NamedTuple):
    """The mesh axes, in the order of the schedule's devices, and the schedule on pairs of them."""

    axis_name: AxisName
    schedule: CollectiveSchedule
    asked_for: bool

    def serve(self, x: Array, stripe_bytes: int) -> bool:
        """Whether stripes of `x`, which varies over the collective's axis, go over the pairs.

        Raises:
            ValueError: when that was asked for and the two devices of a host have the same `x`.
        """
        varies = jax.typeof(x).manual_axis_type.varying
        names = _names(self.axis_name)
        # Where `jax.shard_map` does not check, nothing is known to vary.
        same = bool(varies) and names[-1] not in varies
        if self.asked_for and same:
            raise ValueError(
                f"per_host={names[-1]!r} needs shards that differ over that mesh axis, got the "
                "same on both devices of a host; spread the array over it or leave per_host out"
            )
        return self.asked_for or (not same and stripe_bytes >= MIN_STRIPE_BYTES)


def find_pairs(
    make: Callable[..., CollectiveSchedule],
    axis_name: AxisName,
    *,
    per_host: PerHost,
    topology: str | Sequence[str],
    directions: int | None,
    channels: int,
    implementation: str | None,
    rails: bool = True,
) -> Pairs | None:
    """The pairs that a call uses: those asked for, or those that the mesh has; None for none.

    Args:
        make: the schedule's generator.
        axis_name: the collective's mesh axis or axes.
        per_host: as asked for.
        topology: how the hosts are joined.
        directions: 1 uses no pairs.
        channels: queues of a directed link.
        implementation: as asked for; pairs are looked for with None.
        rails: whether the collective can leave the two devices of a host apart.

    Raises:
        ValueError: when `per_host` asks for what the mesh or the other options do not allow.
    """
    asked_for = per_host is not None
    if asked_for and per_host != 1:
        _check(axis_name, per_host, topology, directions, implementation)
        if isinstance(per_host, str) and not rails:
            raise ValueError(
                f"per_host must be None, 1 or 2 here, got {per_host!r}; put both devices of a host "
                "on the axis, side by side"
            )
    elif implementation is None and directions != 1 and not asked_for:
        per_host = _look(axis_name, topology)
    if per_host in (None, 1) or (isinstance(per_host, str) and not rails):
        return None
    assert isinstance(topology, str)
    return _pairs(make, axis_name, per_host, topology, channels, asked_for)


def built_in_scatter_idles(axis_name: AxisName, stripe_bytes: int) -> bool:
    """Whether neighbour sends beat the built-in reduce-scatter: it leaves half of a link unused."""
    hosts = _hosts_along(axis_name)
    return stripe_bytes >= MIN_STRIPE_BYTES and hosts is not None and _differ(hosts[0])


def _pairs(
    make: Callable[..., CollectiveSchedule],
    axis_name: AxisName,
    per_host: int | str,
    topology: str,
    channels: int,
    asked_for: bool,
) -> Pairs:
    devices = jax.lax.axis_size(axis_name)
    rails = isinstance(per_host, str)
    schedule = _schedule(make, topology, devices if rails else devices // 2, channels, rails)
    names = (*_names(axis_name), per_host) if rails else axis_name
    return Pairs(names, schedule, asked_for)


@lru_cache(maxsize=256)
def _schedule(
    make: Callable[..., CollectiveSchedule], topology: str, hosts: int, channels: int, rails: bool
) -> CollectiveSchedule:
    where = make_topology(topology, hosts)
    return make(Rails(where) if rails else Ladder(where), channels=channels)


def _check(
    axis_name: AxisName,
    per_host: int | str,
    topology: str | Sequence[str],
    directions: int | None,
    implementation: str | None,
) -> None:
    if not isinstance(topology, str):
        raise ValueError(
            f"per_host={per_host!r} needs one topology, got the grid {tuple(topology)}; name one "
            "or leave per_host out"
        )
    if directions == 1:
        raise ValueError(f"per_host={per_host!r} works in both directions, got directions=1; use 2")
    if implementation not in (None, "permute"):
        raise ValueError(
            f"per_host={per_host!r} needs neighbour sends, got implementation={implementation!r}; "
            "use 'permute' or None"
        )
    if isinstance(per_host, str):
        mesh = jax.sharding.get_abstract_mesh()
        others = [n for n in mesh.manual_axes if n not in _names(axis_name) and mesh.shape[n] == 2]
        if per_host not in others:
            raise ValueError(
                f"per_host must name another manual mesh axis of 2 devices, expected one of "
                f"{others}, got {per_host!r}; change per_host or the mesh"
            )
    elif per_host != 2:
        raise ValueError(
            f"per_host must be 1, 2 or the name of a mesh axis, got {per_host!r}; give each host "
            "two devices of the axis"
        )
    elif jax.lax.axis_size(axis_name) % 2:
        raise ValueError(
            f"per_host=2 needs an even number of devices along {axis_name!r}, got "
            f"{jax.lax.axis_size(axis_name)}; change the mesh or per_host"
        )


def _look(axis_name: AxisName, topology: str | Sequence[str]) -> int | str | None:
    """What `per_host` the mesh allows. It decides the speed only: any mesh gets the same values."""
    names, found = _names(axis_name), _hosts_along(axis_name)
    if found is None or not isinstance(topology, str):
        return None
    rows, hosts = found
    if side_by_side(rows):
        return 2
    mesh = jax.sharding.get_abstract_mesh()
    for name in mesh.manual_axes if _differ(rows) else ():
        axis = mesh.axis_names.index(name)
        pair = name not in names and hosts.shape[axis] == 2
        if pair and (hosts.take(0, axis) == hosts.take(1, axis)).all():
            return name
    # On a line, and between two hosts, the built-in has both directions busy.
    if len(np.unique(rows[:, 0])) > 2 and topology == "ring":
        _say_how(names)
    return None


def _hosts_along(axis_name: AxisName) -> tuple[np.ndarray, np.ndarray] | None:
    """The process of each device: [along the axis, the rest], and as the mesh has them.

    None where there is only one process, or no CPU devices, or no way to tell.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if platform() != "cpu" or jax.process_count() == 1 or mesh.size != jax.device_count("cpu"):
        return None
    # The trace knows the mesh's axes, not its devices; CPU devices have no other order than this.
    processes = [device.process_index for device in jax.devices("cpu")]
    hosts = np.reshape(processes, mesh.axis_sizes)
    along = tuple(mesh.axis_names.index(name) for name in _names(axis_name))
    first = np.moveaxis(hosts, along, range(len(along)))
    return first.reshape(jax.lax.axis_size(axis_name), -1), hosts


def side_by_side(hosts: Sequence[int] | np.ndarray) -> bool:
    """Whether the devices on `hosts` are those of several hosts with two each, in order."""
    rows = np.asarray(hosts)
    pairs = len(rows) % 2 == 0 and bool((rows[::2] == rows[1::2]).all())
    return pairs and _differ(rows[::2])


def _differ(hosts: np.ndarray) -> bool:
    """Whether all of a column are different hosts, more than one."""
    ordered = np.sort(hosts, axis=0)
    return len(hosts) > 1 and bool((ordered[1:] != ordered[:-1]).all())


@lru_cache(maxsize=16)
def _say_how(names: tuple[str, ...]) -> None:
    """Once for each axis."""
    axis = names[0] if len(names) == 1 else names
    warnings.warn(
        f"mesh axis {axis!r} does not have two devices of each host to share its work, and a CPU "
        "device sends one way at a time: half of each link idles; start every process with two CPU "
        "devices (jax_num_cpu_devices=2) and put both on this axis, side by side, or on a mesh "
        "axis of their own that the array is spread over",
        stacklevel=5,
    )


def _names(axis_name: AxisName) -> tuple[str, ...]:
    return axis_name if isinstance(axis_name, tuple) else (axis_name,)
