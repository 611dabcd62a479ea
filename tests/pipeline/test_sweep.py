"""Every generator, executed at drawn sizes, gives the plain model's loss and gradients.

A few fixed examples run in every test run. `RINGLINE_SWEEP=80` draws that many others.
"""

import os
from functools import cache

import jax
import jax.numpy as jnp
import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from jax import lax
from pipeline_helpers import difference, layer, make_mesh, make_params, square

import ringline
from ringline import schedules

MORE = int(os.environ.get("RINGLINE_SWEEP", "0"))
GENERATORS = (
    "interleaved_one_f_one_b",
    "dualpipe_v",
    "zero_bubble",
    "circular",
    "zero_bubble_v",
    "zero_bubble_h2",
    "eager_one_f_one_b",
    "zero_bubble_h1",
    "one_f_one_b",
    "linear",
)
TOLERANCE = {"float32": 1e-5, "float64": 1e-12}
KEEP = {"again": True, "keep": False, "dots": jax.checkpoint_policies.dots_saveable}


def fragile(params, x):
    """A layer that is 0/0 on zeros, which is what an idle stage holds."""
    return layer(params, x) * (jnp.sum(x * x) / jnp.sum(x * x))


def by_scan(params, x, targets):
    """The plain model; a loop, so that depth costs no compile time."""
    return square((), lax.scan(lambda x, p: (fragile(p, x), None), x, params)[0], targets)


@cache
def reference(layers, rows, dtype):
    """Arguments, and the plain model's loss and gradients."""
    params = make_params(layers, dtype)
    x, targets = jax.random.normal(jax.random.key(1), (2, rows, 2, params["bias"].shape[-1]), dtype)
    step = jax.jit(jax.value_and_grad(by_scan, argnums=(0, 1)))
    return (params, x, targets), jax.device_get(step(params, x, targets))


def make_schedule(name, stages, microbatches, repeats):
    """The schedule; a combination that it is not made for is refused in one line."""
    options = {"stages": stages, "microbatches": microbatches}
    if name not in ("linear", "one_f_one_b", "eager_one_f_one_b"):
        options["repeats"] = repeats
    try:
        return getattr(schedules, name)(**options)
    except ValueError as error:
        reason = str(error)
    assert f"{name}: repeats must be 2, got {repeats}; use " in reason
    assert "\n" not in reason
    assume(False)


@pytest.mark.slow
@settings(
    max_examples=MORE or 8,
    derandomize=not MORE,
    deadline=None,
    phases=[Phase.generate],  # a size compiles for seconds, so looking for a smaller one is slow
    suppress_health_check=list(HealthCheck),
)
@given(
    name=st.sampled_from(GENERATORS),
    stages=st.sampled_from([4, 3, 2, 5, 6, 7, 8, 1]),
    fsdp=st.sampled_from([2, 1]),
    repeats=st.sampled_from([2, 3, 1, 4]),
    microbatches=st.sampled_from([*range(5, 18), *range(1, 5)]),
    dtype=st.sampled_from(list(TOLERANCE)),
    keep=st.sampled_from(list(KEEP)),
    gather=st.sampled_from(["step", "repeat", "use"]),
    extra=st.integers(0, 2),
)
def test_any_size_of_any_schedule(
    name, stages, fsdp, repeats, microbatches, dtype, keep, gather, extra
):
    fsdp = fsdp if stages * fsdp <= 8 else 1
    schedule = make_schedule(name, stages, microbatches, repeats)
    schedule.validate()
    mesh = make_mesh(stages, fsdp)
    with jax.enable_x64(dtype == "float64"):
        # Some chunks have a layer more than others.
        arguments, want = reference(schedule.chunks + extra, fsdp * microbatches, dtype)

        def run(params, x, targets):
            return ringline.pipeline_loss(
                fragile,
                square,
                params,
                (),
                x,
                targets,
                schedule=schedule,
                mesh=mesh,
                gather=gather,
                remat=KEEP[keep],
            )

        got = jax.jit(jax.value_and_grad(run, argnums=(0, 1)))(*arguments)
        assert difference(got, want) <= TOLERANCE[dtype]
        assert got[0].dtype == jnp.dtype(dtype)
