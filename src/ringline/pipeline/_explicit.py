"""Arrays whose sharding is part of their type (explicit mesh axes) go in and come out as such.

Inside the pipeline the stage axis is manual and all others are automatic. `jax.make_mesh` makes
explicit axes unless told otherwise, so both kinds of mesh must serve.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import (
    AxisType,
    Mesh,
    NamedSharding,
    PartitionSpec,
    auto_axes,
    get_abstract_mesh,
)

PyTree = Any


def automatic(mesh: Mesh) -> Mesh:
    """The same mesh with every axis automatic."""
    return Mesh(mesh.devices, mesh.axis_names)


def call_automatic(function: Callable[..., PyTree], like: PyTree, *arguments: PyTree) -> PyTree:
    """Call `function` with automatic axes; the result's leaves are sharded as those of `like`."""
    shardings = [s for leaf in jax.tree.leaves(arguments) if (s := _explicit_sharding(leaf))]
    # Arrays from before `jax.set_mesh` have no sharding in their type, yet the axes are explicit.
    meshes = [*(sharding.mesh for sharding in shardings), get_abstract_mesh()]
    if AxisType.Explicit not in meshes[0].axis_types:
        return function(*arguments)
    nowhere = NamedSharding(meshes[0], PartitionSpec())
    out = jax.tree.map(lambda leaf: _explicit_sharding(leaf) or nowhere, like)
    return auto_axes(function, out_sharding=out)(*arguments)


def _explicit_sharding(leaf: Any) -> NamedSharding | None:
    sharding = jax.typeof(leaf).sharding
    return sharding if AxisType.Explicit in sharding.mesh.axis_types else None
