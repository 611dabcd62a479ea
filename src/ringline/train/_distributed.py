"""Start JAX for a run: emulated devices where there are no accelerators, and several processes.

Nothing in this module may be called after JAX has started its devices.
"""

import contextlib
import glob
import os
import socket
from dataclasses import dataclass

import jax
import numpy as np

_ACCELERATOR_FILES = ("/dev/nvidia[0-9]*", "/dev/accel*", "/dev/vfio/[0-9]*", "/dev/kfd")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class Processes:
    """Which processes make up the run; from flags, else from JAX_COORDINATOR_ADDRESS,
    JAX_PROCESS_ID and JAX_NUM_PROCESSES.

    Attributes:
        coordinator: `host:port` of process 0, or None for a run of one process.
        process_id: this process, 0 to count - 1.
        count: how many processes.
    """

    coordinator: str | None = None
    process_id: int = 0
    count: int = 1

    @staticmethod
    def find(coordinator: str | None, process_id: int | None, count: int | None) -> "Processes":
        """Flags where they are given, else the environment.

        Raises:
            ValueError: when only a part of the three is known, or the id is out of range.
        """
        env = os.environ
        coordinator = coordinator or env.get("JAX_COORDINATOR_ADDRESS")
        if process_id is None:
            process_id = _integer("JAX_PROCESS_ID")
        if count is None:
            count = _integer("JAX_NUM_PROCESSES")
        if coordinator is None and process_id is None and count in (None, 1):
            return Processes()
        if coordinator is None or process_id is None or count is None:
            raise ValueError(
                "several processes need --coordinator, --process-id and --num-processes (or "
                "JAX_COORDINATOR_ADDRESS, JAX_PROCESS_ID and JAX_NUM_PROCESSES), got "
                f"{coordinator}, {process_id} and {count}; give all three"
            )
        if not 0 <= process_id < count:
            raise ValueError(
                f"process id must lie in 0..{count - 1}, got {process_id}; change --process-id"
            )
        return Processes(coordinator, process_id, count)


def start(devices: int, processes: Processes) -> None:
    """Start JAX with `devices` devices over all processes, emulated on CPUs if need be.

    Raises:
        ValueError: when the devices do not spread evenly over the processes, or this host's
            name leads to an address that no other host can reach.
    """
    if devices % processes.count:
        raise ValueError(
            f"devices must be a multiple of the processes, got {devices} and {processes.count}; "
            "change --devices or --num-processes"
        )
    if not _platforms() and not _has_accelerator():
        # Without this, an installed libtpu looks for a TPU and complains at length.
        jax.config.update("jax_platforms", "cpu")
    # Refused when JAX has started already; the mesh is checked against the devices that exist.
    with contextlib.suppress(RuntimeError):
        jax.config.update("jax_num_cpu_devices", devices // processes.count)
    if processes.coordinator is None or processes.count == 1:
        return
    _check_address(processes.coordinator)
    if _platforms() == "cpu":
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        processes.coordinator,
        num_processes=processes.count,
        process_id=processes.process_id,
        initialization_timeout=120,
    )


def is_main() -> bool:
    """Whether this process prints and writes."""
    return jax.process_index() == 0


def barrier(name: str, timeout_s: float) -> None:
    """Wait until every process is here.

    Raises:
        ValueError: when some do not come in time; the message names them.
    """
    if jax.process_count() == 1:
        return
    from jax._src import distributed  # The public barriers can neither time out nor name ranks.

    client = distributed.global_state.client
    assert client is not None
    try:
        client.wait_at_barrier(name, int(timeout_s * 1000))
    except jax.errors.JaxRuntimeError as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"processes did not all reach {name!r} within {timeout_s:.0f} s: {reason}; look at "
            "the output of those processes and start all of them again"
        ) from None


def any_process(flag: bool) -> bool:
    """Whether `flag` holds in any process; every process must ask."""
    if jax.process_count() == 1:
        return flag
    from jax.experimental import multihost_utils

    return bool(np.any(multihost_utils.process_allgather(np.array(flag))))


def _check_address(coordinator: str) -> None:
    """Gloo binds to what this host's name means; loopback hangs the other hosts for minutes."""
    host = coordinator.rsplit(":", 1)[0].strip("[]")
    if host in _LOOPBACK:
        return
    name = socket.gethostname()
    try:
        address = socket.gethostbyname(name)
    except OSError:
        address = "no address"
    if not address[0].isdigit() or address.startswith("127."):
        raise ValueError(
            f"this host's name {name!r} means {address}, which other hosts cannot reach; give "
            "the name its network address in /etc/hosts"
        )


def _has_accelerator() -> bool:
    return any(glob.glob(pattern) for pattern in _ACCELERATOR_FILES)


def _platforms() -> str | None:
    return getattr(jax.config, "jax_platforms")  # noqa: B009 - a setting, unknown to checkers


def _integer(variable: str) -> int | None:
    text = os.environ.get(variable)
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{variable} must be a whole number, got {text!r}; change it") from None
