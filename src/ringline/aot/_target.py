"""`Target`: TPU slices to compile for, none of which need to be there."""

import os
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringline.aot._quiet import quiet
from ringline.topology import Cluster, cluster, make_mesh
from ringline.topology._tables import nearest, read_table

if TYPE_CHECKING:
    from jax.sharding import Mesh

_DATA = Path(__file__).parent / "data" / "tpu.toml"


@dataclass(frozen=True, slots=True)
class Target:
    """Slices of TPU chips, and how the compiler sees one device of them.

    Attributes:
        name: as the user wrote it.
        cluster: chips, slices and links.
        config: the compiler's name for how a chip's cores are used.
        devices_per_chip: how many devices JAX counts for a chip.
        limit_bytes: memory of a device that a program can use.
        clock_hz: cycles per second of a core.

    Example:
        >>> four = target("4x v4-16")
        >>> four.topology, four.cluster.slices, four.device_count
        ('v4:2x2x2', 4, 32)
    """

    name: str
    cluster: Cluster
    config: str
    devices_per_chip: int
    limit_bytes: float
    clock_hz: float

    @property
    def topology(self) -> str:
        """The compiler's name for one slice."""
        # In three dimensions it takes flat slices as 2x2x1, and aborts on some programs for 1x2x2.
        shape = self.cluster.shape
        if len(shape) == 3:
            shape = tuple(sorted(shape, key=lambda length: length == 1))
        return f"{self.cluster.chip.name}:{'x'.join(map(str, shape))}"

    @property
    def device_count(self) -> int:
        """How many devices JAX counts."""
        return self.cluster.chips * self.devices_per_chip

    def devices(self) -> tuple[Any, ...]:
        """The devices, as JAX knows them; no array can live on them.

        Raises:
            ModuleNotFoundError: without libtpu.
            ValueError: when the compiler knows no such slice.
        """
        return _devices(self.topology, self.cluster.slices, self.config)

    def mesh(self, **axes: int) -> "Mesh":
        """A mesh over the devices, outermost axis first: `target.mesh(stage=4, fsdp=8)`.

        See `ringline.topology.make_mesh`, which this calls.

        Raises:
            ValueError: when the axes do not make up the target's devices or slices.
        """
        try:
            return make_mesh(axes, devices=self.devices())
        except ValueError as error:
            raise ValueError(f"target {self.name!r}: {error}") from None


def target(name: str) -> Target:
    """The target called `name`, such as `4x v4-16`, `v5e-64` or `2x v5p:4x4x8`.

    Raises:
        ValueError: for an unknown name, with the nearest ones; for chips that are no TPUs.

    Example:
        >>> target("v6e-256").topology
        'v6e:16x16'
    """
    known = {table.name: table for table in read_table(_DATA).tables()}
    found = cluster(name)
    if found.chip.name not in known:
        raise ValueError(
            f"target {name!r}: the compiler for TPUs knows no {found.chip.name}"
            f"{nearest(found.chip.name, known)}"
        )
    table = known[found.chip.name]
    return Target(
        name=name,
        cluster=found,
        config=table.text("config"),
        devices_per_chip=table.whole("devices_per_chip"),
        limit_bytes=table.number("limit_gib") * 2**30,
        clock_hz=table.number("clock_hz"),
    )


def require_libtpu() -> None:
    """Raise ModuleNotFoundError with what to install unless libtpu is there."""
    if find_spec("libtpu") is None:
        raise ModuleNotFoundError(
            "compiling for TPUs needs libtpu; install it with: pip install 'ringline[aot]'",
            name="libtpu",
        )


@cache
def _devices(topology: str, slices: int, config: str) -> tuple[Any, ...]:
    require_libtpu()
    # On a machine without TPUs, ask no metadata server, and share the library with other runs.
    if not any(Path("/dev").glob("accel*")) and not Path("/dev/vfio").exists():
        os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
        os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    from jax.errors import JaxRuntimeError
    from jax.experimental import topologies

    with quiet():
        try:
            described = topologies.get_topology_desc(
                platform="tpu",
                topology_name=topology,
                num_slices=slices,
                chip_config_name=config,
            )
        except JaxRuntimeError as error:
            message = str(error).splitlines()[0]
            raise ValueError(
                f"the compiler refuses {topology} in {slices} slices: {message}"
            ) from None
    return tuple(described.devices)
