"""What the collectives' tests share: ways to gather, runs on a mesh, comparison by bits."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jax.stages import Wrapped

import ringline

FORMS: tuple[dict[str, Any], ...] = (
    {"implementation": "xla"},
    {"implementation": None},
    {"implementation": "permute", "topology": "ring", "directions": 1},
    {"implementation": "permute", "topology": "ring", "directions": 2},
    {"implementation": "permute", "topology": "line", "directions": 1},
    {"implementation": "permute", "topology": "line", "directions": 2},
)
"""Every backend, with the schedules it has."""


def form_id(form: dict[str, Any]) -> str:
    return "-".join(str(value) for value in form.values())


def mesh_of(devices: int) -> Mesh:
    return Mesh(np.array(jax.devices()[:devices]), ("x",))


def on_devices(function: Callable, devices: int, *, check_vma: bool = True) -> Wrapped:
    """Run `function(shards)` on each device; arguments and results gain a leading device dim."""

    def body(shards):
        return jax.tree.map(lambda y: y[None], function(jax.tree.map(lambda x: x[0], shards)))

    return jax.jit(
        jax.shard_map(
            body, mesh=mesh_of(devices), in_specs=P("x"), out_specs=P("x"), check_vma=check_vma
        )
    )


def gather(x: Any, **form: Any) -> Any:
    return ringline.all_gather(x, "x", **form)


def varied(x: Any) -> Any:
    """`x` as a value of its own on each device, which `on_devices` can stack."""
    return jax.tree.map(lambda leaf: lax.pcast(leaf, "x", to="varying"), x)


def random_bits(shape: Sequence[int], dtype: str, seed: int = 0) -> np.ndarray:
    """Any bit pattern of `dtype`: signalling NaNs, infinities and denormals too."""
    target = jnp.dtype(dtype)
    random = np.random.default_rng(seed)
    if target == np.bool_:
        return random.integers(0, 2, shape).astype(bool)
    if target.itemsize == 1 and "int4" in dtype:
        return random.integers(0, 8, shape).astype(target)
    whole = random.integers(0, 256, (*shape, target.itemsize), dtype=np.uint8)
    return whole.view(target)[..., 0] if whole.size else np.zeros(shape, target)


def assert_same_bits(actual: Any, expected: np.ndarray) -> None:
    actual = np.asarray(actual)
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    np.testing.assert_array_equal(
        np.ascontiguousarray(actual).view(np.uint8), np.ascontiguousarray(expected).view(np.uint8)
    )


def on_every_device(expected: np.ndarray, devices: int) -> np.ndarray:
    return np.broadcast_to(expected, (devices, *expected.shape))
