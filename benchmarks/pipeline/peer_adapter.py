"""ringline behind the interface of a side-by-side driver: `build(d, a)` for each choice.

The driver (any program with the same contract) hands over dimensions `d` and options `a`, and a
module `bench_common` with weights, batch and the layer; each build gives back
`(name, jitted_step, arguments, check)`, with `step(*arguments) -> (loss, gradients)`.
"""

from functools import partial

import bench_common as common
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import ringline
from ringline import schedules


def build(d, a, *, gather="step", schedule=None):
    """A step with `pipeline_loss`: eager 1F1B, or interleaved 1F1B for several repeats."""
    rest = d.devices // d.stages
    mesh = Mesh(np.array(jax.devices()).reshape(d.stages, rest), ("stage", "fsdp"))
    if schedule is None:
        make = schedules.eager_one_f_one_b if d.repeats == 1 else schedules.interleaved_one_f_one_b
        schedule = make(d.stages, d.micro, d.repeats)
    partitioned = a.axis == "fsdp" and rest > 1

    def spec(name):
        dim = common.FSDP_DIM[name]
        return P(*[None] * dim, "fsdp") if partitioned and dim is not None else P()

    specs = {name: spec(name) for name in common.shapes(d)}
    params = ringline.stack_layers(common.weights(d), schedule, mesh, specs=specs)
    batch = NamedSharding(mesh, P("fsdp"))
    x, targets, positions, segments = (jax.device_put(leaf, batch) for leaf in common.batch(d))

    def layer(w, carried):
        x, positions, segments = carried
        return common.layer_fn(w, x, positions, segments), positions, segments

    def loss(_, y, targets):
        return jnp.mean((y[0] - targets) ** 2)

    def step(params, x, targets, positions, segments):
        def scalar(params):
            return ringline.pipeline_loss(
                layer,
                loss,
                params,
                (),
                (x, positions, segments),
                targets,
                schedule=schedule,
                mesh=mesh,
                specs=specs,
                gather=gather,
            )

        return jax.value_and_grad(scalar)(params)

    def check(out):
        gradients = ringline.unstack_layers(out[1], schedule)
        return common.compare(out[0], jax.tree.map(np.asarray, gradients), d)

    name = f"ringline-{schedule.name}-{gather}"
    return name, jax.jit(step), (params, x, targets, positions, segments), check


build_repeat = partial(build, gather="repeat")
build_use = partial(build, gather="use")
