"""What repeats in a program becomes a loop: the same steps, less code, the same results."""

from functools import partial
from itertools import chain

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from collective_cases import assert_same_bits, form_id, gather, on_devices, random_bits
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import KERNELS, assert_clean, emulated
from test_reduce_scatter import reduce, scatter, terms

import ringline
from ringline.collectives import _permute, _steps
from ringline.collectives._sections import Number, Rows, find_repeats
from ringline.collectives._steps import gather_steps, sum_steps
from ringline.collectives.kernels import _instructions
from ringline.collectives.kernels._instructions import instructions_of, loops_of
from ringline.collectives.kernels._matmul_plan import plan_gather_matmul, plan_matmul_scatter
from ringline.collectives.kernels._plan import plan_gather, plan_scatter
from ringline.schedule import all_gather, reduce_scatter
from ringline.topology import Line, Ring

PLANS = [
    (plan_gather, all_gather),
    (plan_gather_matmul, all_gather),
    (plan_scatter, reduce_scatter),
    (plan_matmul_scatter, reduce_scatter),
]


@given(st.lists(st.integers(0, 2), max_size=60), st.integers(2, 9))
@settings(max_examples=50)
def test_runs_cover_a_sequence_and_repeat(forms, least):
    runs = find_repeats(forms, [least] * len(forms))
    assert sum(period * repeats for period, repeats in runs) == len(forms)
    at = 0
    for period, repeats in runs:
        assert repeats == 1 or repeats >= least
        turns = [forms[at + turn * period : at + (turn + 1) * period] for turn in range(repeats)]
        assert all(turn == turns[0] for turn in turns)
        at += period * repeats


def written_out(sections, row):
    """The instructions of one device, one after the other, with its numbers."""

    def number(leaf, repeat):
        return row[leaf.start + repeat * leaf.varies] if isinstance(leaf, Number) else leaf

    return list(
        chain.from_iterable(
            jax.tree.map(lambda leaf: number(leaf, repeat), list(section.instructions))  # noqa: B023
            for section in sections
            for repeat in range(section.repeats)
        )
    )


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("topology", [Ring, Line])
@pytest.mark.parametrize(("make", "schedule"), PLANS)
@pytest.mark.parametrize(("devices", "channels"), [(2, 1), (5, 2), (12, 3), (24, 1)])
def test_sections_are_the_steps(make, schedule, devices, channels, topology, directions):
    plan = make(schedule(topology(devices), directions=directions, channels=channels))
    expected = instructions_of(plan)
    rows = Rows(devices)
    sections = loops_of(expected, rows)
    for device in range(devices):
        got = written_out(sections, rows.table()[device])
        want = [jax.tree.map(lambda leaf: int(leaf[device]), one) for one in expected]  # noqa: B023
        assert got == want


@pytest.mark.parametrize("topology", [Ring, Line])
@pytest.mark.parametrize(("make", "schedule"), PLANS)
def test_kernels_do_not_grow_with_the_devices(make, schedule, topology):
    written = []
    for devices in (32, 64):
        plan = make(schedule(topology(devices), directions=2))
        sections = loops_of(instructions_of(plan), Rows(devices))
        written.append(sum(len(section.instructions) for section in sections))
    assert written[1] <= written[0] + 4
    assert written[1] < 120


@pytest.mark.parametrize(
    "form",
    [KERNELS[1], *(pytest.param(KERNELS[other], marks=pytest.mark.slow) for other in (0, 2, 3))],
    ids=form_id,
)
def test_kernels_with_loops_give_what_permutes_give(form, monkeypatch, capsys):
    monkeypatch.setattr(_instructions, "_MIN_REPEATS", 2)
    x, y = random_bits((4, 6, 5), "bfloat16"), terms((4, 8, 6))
    w = jnp.asarray(np.random.default_rng(0).integers(-2, 3, (5, 6)), jnp.float32)
    rows = np.random.default_rng(1).integers(-2, 3, (4, 8, 5)).astype(np.float32)

    def function(given, **form):
        x, y, rows = given
        return (
            gather(x, axis=0, **form),
            scatter(y, scatter_dimension=0, **form),
            ringline.all_gather_matmul(rows, w, "x", **form),
            ringline.matmul_reduce_scatter(rows, w, "x", **form),
        )

    with emulated():
        got = on_devices(partial(function, channels=2, **form), 4)((x, y, rows))
        got = jax.tree.map(np.asarray, got)
    assert_clean(capsys.readouterr().out)
    sends = {**form, "implementation": "permute", "channels": 2}
    want = on_devices(partial(function, **sends), 4)((x, y, rows))
    jax.tree.map(lambda a, b: assert_same_bits(a, np.asarray(b)), got, want)


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("devices", [40, 64, 128])
def test_permutes_do_not_grow_with_the_devices_of_a_ring(devices, directions, monkeypatch):
    emulated = gather_steps(all_gather(Ring(devices), directions=directions))
    assert {section.repeats for section in emulated.sections} == {1}
    monkeypatch.setattr(_steps, "platform", lambda: "tpu")
    for steps in (
        gather_steps(all_gather(Ring(devices), directions=directions)),
        sum_steps(reduce_scatter(Ring(devices), directions=directions)),
    ):
        assert sum(len(section.instructions) for section in steps.sections) <= 6
        assert max(section.repeats for section in steps.sections) >= devices // directions - 4
        assert steps.held == directions


def with_permutes(given, **form):
    x, y, rows, w = given
    form |= {"topology": "ring", "implementation": "permute"}
    return (
        gather(x, axis=1, **form),
        scatter(y, scatter_dimension=0, **form),
        reduce(y, **form),
        ringline.all_gather_matmul(rows, w, "x", **form),
        ringline.matmul_reduce_scatter(rows, w, "x", **form),
    )


@pytest.mark.parametrize("platform", ["cpu", "tpu"])
@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize(("directions", "unroll"), [(1, 2), (2, 1)])
@pytest.mark.parametrize("devices", [7, 8])
def test_permutes_with_loops_give_what_they_give_without(
    devices, directions, unroll, channels, platform, monkeypatch
):
    monkeypatch.setattr(_steps, "_UNROLL", unroll)
    monkeypatch.setattr(_steps, "platform", lambda: "tpu")
    monkeypatch.setattr(_permute, "_MAX_CONCATENATE_DEVICES", 1)
    for module in ("_permute", "_bits"):
        monkeypatch.setattr(f"ringline.collectives.{module}.platform", lambda: platform)
    random = np.random.default_rng(0)
    given = (
        random_bits((devices, 4, 6), "float32"),
        jnp.asarray(random.normal(size=(devices, 2 * devices, 6)), "bfloat16"),
        random.normal(size=(devices, 2 * devices, 6)).astype(np.float32),
        random.normal(size=(devices, 6, 5)).astype(np.float32),
    )
    found = []
    for repeats in (2, 100):
        monkeypatch.setattr(_steps, "_MIN_REPEATS", repeats)
        function = on_devices(
            partial(with_permutes, directions=directions, channels=channels), devices
        )
        text = function.lower(given).as_text()
        found.append((text.count("stablehlo.while"), function(given)))
    (looped, got), (written_out, want) = found
    # In two directions the sums of so few devices have nothing to repeat.
    assert looped >= written_out + (5 if directions == 1 else 3)
    jax.tree.map(lambda a, b: assert_same_bits(a, np.asarray(b)), got, want)
