"""Rings and lines of 40 emulated devices, in a process of their own: written out, and as loops."""

import os
import subprocess
import sys
import textwrap

import pytest

DEVICES = 40
PROGRAM = textwrap.dedent("""
    import sys
    from functools import partial

    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import PartitionSpec as P

    import ringline
    from ringline.collectives import _steps

    topology, directions, channels = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    _steps.platform = lambda: sys.argv[4]
    mesh = jax.sharding.Mesh(jax.devices(), ("x",))
    n = mesh.size
    form = {"axis_name": "x", "topology": topology, "directions": directions,
            "channels": channels, "implementation": "permute"}
    random = np.random.default_rng(0)
    x = random.integers(-9, 9, (2 * n, 6)).astype(np.float32)
    y = random.integers(-9, 9, (n, 2 * n, 6)).astype(np.float32)
    w = random.integers(-3, 3, (6, 4)).astype(np.float32)
    place = np.arange(x.size, dtype=np.float32).reshape(x.shape)
    loops = []

    def run(function, given, out, *arguments):
        whole = jax.jit(jax.shard_map(function, mesh=mesh, in_specs=given, out_specs=out))
        loops.append("stablehlo.while" in whole.lower(*arguments).as_text())
        return np.asarray(whole(*arguments))

    def same(found, wanted):
        np.testing.assert_array_equal(found, np.broadcast_to(wanted, found.shape))

    gather = partial(ringline.all_gather, **form)
    same(run(lambda x: gather(x)[None], P("x"), P("x"), x), x)
    scatter = partial(ringline.reduce_scatter, **form)
    same(run(lambda y: scatter(y[0]), P("x"), P("x"), y), y.sum(0))
    reduce = partial(ringline.all_reduce, **form)
    same(run(lambda y: reduce(y[0]), P("x"), P(), y), y.sum(0))
    fused = partial(ringline.all_gather_matmul, **form)
    same(run(lambda x, w: fused(x, w)[None], (P("x"), P()), P("x"), x, w), x @ w)
    fused = partial(ringline.matmul_reduce_scatter, **form)
    same(run(lambda y, w: fused(y[0], w), (P("x"), P()), P("x"), y, w), y.sum(0) @ w)
    slope = jax.grad(lambda x: jnp.sum(gather(x) * place))
    same(run(slope, P("x"), P("x"), x), n * place)
    print(loops)
""")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("topology", "directions", "channels", "platform"),
    [
        ("ring", 1, 1, "tpu"),
        ("ring", 2, 1, "tpu"),
        ("ring", 2, 2, "tpu"),
        ("ring", 2, 1, "cpu"),
        ("line", 2, 1, "tpu"),
    ],
)
def test_40_devices_agree_with_numpy(topology, directions, channels, platform):
    flags = f"--xla_force_host_platform_device_count={DEVICES}"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, topology, str(directions), str(channels), platform],
        env=os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split("\n")[0] == str([(topology, platform) == ("ring", "tpu")] * 6)
