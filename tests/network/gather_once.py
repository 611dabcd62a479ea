"""One host's part: gather and scatter over two devices a host, compare with numpy, print OK.

gather_once.py TOPOLOGY MIB
"""

import sys
from functools import partial
from typing import Any

import numpy as np

from ringline.train._distributed import Processes, start


def main() -> None:
    topology: Any = sys.argv[1]
    size = int(float(sys.argv[2]) * 2**20)
    who = Processes.find(None, None, None)
    devices = 2 * who.count
    start(devices, who)
    import jax
    from jax.experimental import multihost_utils
    from jax.sharding import Mesh
    from jax.sharding import PartitionSpec as P

    import ringline

    mesh = Mesh(np.array(jax.devices()), ("x",))
    # A host's payload is `size`; small whole numbers, whose sums are exact.
    whole = (np.arange(who.count * size // 4) % 97).astype(np.float32)
    terms = np.stack([np.roll(whole, device) for device in range(devices)])
    mapped = partial(jax.shard_map, mesh=mesh, check_vma=False)
    gather = jax.jit(
        mapped(
            lambda x: ringline.all_gather(x, "x", topology=topology),
            in_specs=P("x"),
            out_specs=P(),
        )
    )
    scatter = jax.jit(
        mapped(
            lambda x: ringline.reduce_scatter(x[0], "x", topology=topology),
            in_specs=P("x"),
            out_specs=P("x"),
        )
    )
    for shard in gather(whole).addressable_shards:
        np.testing.assert_array_equal(np.asarray(shard.data), whole)
    for shard in scatter(terms).addressable_shards:
        np.testing.assert_array_equal(np.asarray(shard.data), terms.sum(0)[shard.index])
    # Nobody leaves while others still receive from it.
    multihost_utils.sync_global_devices("done")
    print("OK", flush=True)


if __name__ == "__main__":
    main()
