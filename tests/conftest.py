"""Every test runs on eight emulated CPU devices, compiled fast rather than well."""

import os
from importlib.util import find_spec

import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("PJRT_NPROC", "16")
os.environ["XLA_FLAGS"] = " ".join(
    [
        os.environ.get("XLA_FLAGS", ""),
        "--xla_force_host_platform_device_count=8",
        "--xla_backend_optimization_level=0",
        "--xla_llvm_disable_expensive_passes=true",
    ]
).strip()

# Now, so that no test starts JAX with other devices.
import jax

jax.devices()


@pytest.fixture(scope="session")
def libtpu():
    """Skip where the TPU compiler is not installed."""
    if find_spec("libtpu") is None:
        pytest.skip("libtpu is not installed: pip install 'ringline[aot]'")
