"""The TPU kernels, emulated: the conformance suite, under a race detector, and planted faults.

In this emulation a copy is made as late as its waits allow. It knows no missing entry barrier:
that one is looked for in the kernel's text.
"""

import re
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import test_all_gather
import test_fused
import test_reduce_scatter
import test_transforms
from collective_cases import (
    assert_same_bits,
    form_id,
    gather,
    on_devices,
    on_every_device,
    random_bits,
)
from jax._src import callback, effects
from jax._src.core import NamedAxisEffect
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from kernel_cases import KERNELS, assert_clean, emulated, fault_seen
from test_reduce_scatter import assert_scattered, reduce, scatter, summed, terms

import ringline
from ringline import schedule as schedules
from ringline.collectives.kernels import _backend
from ringline.topology import Line, Ring

kernels = pytest.mark.parametrize("form", KERNELS, ids=form_id)
ring, line = KERNELS[1], KERNELS[3]
few = pytest.mark.parametrize("form", [ring, line], ids=form_id)


@pytest.fixture
def chips(capsys):
    """Kernels run here, and none of them races."""
    with emulated():
        yield
    assert_clean(capsys.readouterr().out)


def test_shapes_are_gathered(chips):
    test_all_gather.test_shapes(ring, 4)


@pytest.mark.slow
@pytest.mark.parametrize(("form", "devices"), [(line, 3), (KERNELS[0], 2), (ring, 1)])
def test_more_shapes_are_gathered(chips, form, devices):
    test_all_gather.test_shapes(form, devices)


@pytest.mark.slow
@pytest.mark.parametrize(("form", "devices"), [(ring, 4), (line, 3)])
def test_shapes_are_summed(chips, form, devices):
    test_reduce_scatter.test_shapes(form, devices)


def test_every_dtype_keeps_its_bits(chips):
    test_all_gather.test_every_dtype_keeps_its_bits(ring)
    test_all_gather.test_every_64_bit_dtype_keeps_its_bits(ring)


@kernels
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_all_schedules_and_seeds(form, seed, capsys):
    """Ranks, channels and chips of any number, odd ones too; the sums are those of `permute`."""
    devices, channels = (4, 2) if seed == 1 else (3, 3)
    x = random_bits((devices, 6, 5), "bfloat16", seed)
    y = np.random.default_rng(seed).normal(size=(devices, 12, 6)).astype(np.float32)

    def function(given, **form):
        x, y = given
        return gather(x, axis=0, **form), scatter(y, scatter_dimension=0, **form), reduce(y, **form)

    with emulated(seed):
        got = on_devices(partial(function, channels=channels, **form), devices)((x, y))
        got = jax.tree.map(np.asarray, got)
    assert_clean(capsys.readouterr().out)
    sends = {**form, "implementation": "permute", "channels": channels}
    want = on_devices(partial(function, **sends), devices)((x, y))
    jax.tree.map(lambda a, b: assert_same_bits(a, np.asarray(b)), got, want)


@few
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("shape", "dim"), [((2, 16, 512), 2), ((64, 128), 0)])
def test_slabs_in_place_and_in_blocks(chips, form, dtype, shape, dim, monkeypatch):
    """Terms larger than the chip's memory: their slabs follow each other through the slots."""
    monkeypatch.setattr("ringline.collectives.kernels._layout._VMEM_BYTES", 2**16)
    x = np.random.default_rng(0).normal(size=(4, *shape)).astype(jnp.dtype(dtype))
    got, want = (
        on_devices(partial(scatter, scatter_dimension=dim, **options), 4)(x)
        for options in (form, {**form, "implementation": "permute"})
    )
    assert_same_bits(got, np.asarray(want))


@pytest.mark.parametrize(("shape", "dim"), [((2, 16, 128), 0), ((16, 128), 0), ((8, 256), 1)])
def test_stripes_that_fit_the_tiles_are_gathered_in_place(chips, shape, dim):
    x = random_bits((4, *shape), "float32")
    got = on_devices(partial(gather, axis=dim, **ring), 4)(x)
    assert_same_bits(got, on_every_device(np.concatenate(x, dim), 4))


def test_integers_wrap_around_and_complex_numbers_are_summed(chips):
    xs = [terms((4, 8, 3), dtype) for dtype in ("int4", "uint8", "int16", "uint32", "complex64")]
    xs.append(np.full((4, 4), 100, np.int8))
    got = on_devices(lambda xs: [scatter(x, **ring) for x in xs], 4)(xs)
    for y, x in zip(got, xs):
        whole = x.sum(0, dtype=x.dtype) if x.dtype == np.int8 else summed(x)
        assert_scattered(y, whole, 0)


@few
def test_derivatives(chips, form):
    test_transforms.test_derivatives(form, True)


def _allow_remat(monkeypatch):
    """Only the emulation has effects, and JAX recomputes nothing that has."""
    allowed = effects.EffectTypeSet()
    for kind in (callback.IOEffect, callback.OrderedIOEffect, NamedAxisEffect):
        allowed.add_type(kind)
    monkeypatch.setattr(effects, "remat_allowed_effects", allowed)


def test_remat_scan_and_vmap(chips, monkeypatch):
    _allow_remat(monkeypatch)
    test_transforms.test_remat_scan_and_vmap(ring)
    test_transforms.test_vmap_over_any_dim(ring, 1)


def test_an_unchecked_shard_map_and_a_buffer(chips):
    x = random_bits((4, 3, 5), "float32")

    def into(x):
        return gather(x, out=jnp.zeros((12, 5)), **ring)

    for check_vma in (True, False):
        got = on_devices(into, 4, check_vma=check_vma)(x)
        assert_same_bits(got, on_every_device(np.concatenate(x), 4))


def test_along_one_axis_of_two_and_along_both(chips):
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("x", "y"))
    x = np.arange(16.0, dtype=np.float32).reshape(4, 4)

    def function(x):
        along = partial(ringline.all_gather, implementation="pallas")
        total = ringline.all_reduce(x, "y", implementation="pallas")
        return along(x, "y"), along(x, ("x", "y")), along(x, ("y", "x")), total

    specs = (P("x", None), P(), P(), P("x", None))
    run = jax.shard_map(
        function, mesh=mesh, in_specs=P(("x", "y")), out_specs=specs, check_vma=False
    )
    rows, both, columns, total = map(np.asarray, jax.jit(run)(x))
    np.testing.assert_array_equal(rows, x)
    np.testing.assert_array_equal(both, x)
    np.testing.assert_array_equal(columns, x[[0, 2, 1, 3]])
    np.testing.assert_array_equal(total, x.reshape(2, 2, 4).sum(1))


def fused(given, **form):
    """Both fused forms, one at another dim than the first."""
    x, w = given
    gathered = ringline.all_gather_matmul(x, w, "x", **form)
    return gathered, ringline.matmul_reduce_scatter(x[0], w, "x", **form)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "dtype", "channels"),
    [
        (ring, "float32", 1),
        (KERNELS[2], "float32", 1),
        (KERNELS[0], "bfloat16", 2),
        (line, "bfloat16", 1),
    ],
)
def test_fused_forms(chips, form, dtype, channels, monkeypatch):
    """Several tiles along each dim, pieces that are not equal, rows that fit no tile."""
    sizes = {"_MOST_ROWS": 16, "_MOST_INNER": 128, "_MOST_COLUMNS": 128}
    for name, size in sizes.items():
        monkeypatch.setattr(f"ringline.collectives.kernels._multiply.{name}", size)
    devices = 4 if form is ring else 3
    shape, columns = (
        ((2, 5 * devices, 130), 140) if dtype == "float32" else ((2, 3 * devices, 7), 5)
    )
    given = test_fused.operands(devices, shape, columns, dtype)
    got, want = (
        on_devices(partial(fused, channels=channels, **options), devices)(given)
        for options in (form, {**form, "implementation": "permute"})
    )
    jax.tree.map(lambda a, b: assert_same_bits(a, np.asarray(b)), got, want)


@pytest.mark.slow
def test_fused_forms_accumulate_in_float32(chips):
    test_fused.test_bfloat16_products_are_accumulated_in_float32(ring)


@pytest.mark.slow
def test_fused_forms_have_derivatives(chips, monkeypatch):
    """Of the gather's; its gradient is the other form, and its second derivative itself again."""
    _allow_remat(monkeypatch)
    test_fused.test_derivatives(ring, test_fused.gather_matmul, test_fused.plain_gather)


def printed(capsys):
    return lambda: capsys.readouterr().out


def _plant(monkeypatch, name, change):
    """Have kernels follow a changed plan."""
    plan = getattr(_backend, name)
    monkeypatch.setattr(_backend, name, lambda schedule: change(plan(schedule)))


@pytest.mark.parametrize("form", [KERNELS[0], line], ids=form_id)
def test_a_planted_missing_credit_is_seen(form, monkeypatch, capsys):
    """The values are right: only the race detector sees it."""

    def change(plan):
        credits = ("credit", "allowed")
        return replace(plan, steps=tuple(s for s in plan.steps if s.what not in credits))

    _plant(monkeypatch, "plan_scatter", change)
    x = terms((4, 8, 3))
    run = on_devices(partial(scatter, **form), 4)
    with emulated():
        assert fault_seen(lambda: run(x), np.stack(np.split(x.sum(0), 4)), printed(capsys))


@few
def test_a_planted_shared_semaphore_is_seen(form, monkeypatch, capsys):
    """A wait is over when another copy has landed: which one it is depends on timing."""
    _plant(
        monkeypatch,
        "plan_gather",
        lambda plan: replace(plan, lanes=tuple(lane._replace(place=0) for lane in plan.lanes)),
    )
    x = terms((4, 8, 3))
    run = on_devices(partial(gather, axis=0, channels=2, **form), 4)
    expected = on_every_device(np.concatenate(x), 4)
    with emulated():
        assert any(fault_seen(lambda: run(x), expected, printed(capsys)) for _ in range(3))


def _instructions(jaxpr):
    """The primitives of a kernel and what is inside of them, in order."""
    for eqn in jaxpr.eqns:
        inner = [p for p in eqn.params.values() if hasattr(p, "eqns") or hasattr(p, "jaxpr")]
        for branch in eqn.params.get("branches", ()):
            inner.append(branch)
        yield eqn
        for one in inner:
            yield from _instructions(getattr(one, "jaxpr", one))


def _sends(eqn):
    """Whether it starts a copy to another device."""
    return eqn.primitive.name == "dma_start" and eqn.params["tree"].unflatten(eqn.invars)[3]


@pytest.mark.parametrize(
    ("kernel", "schedule"),
    [
        (make_kernel, make(topology(4)))
        for topology in (Ring, Line)
        for make_kernel, make in (
            (_backend.pallas_all_gather, schedules.all_gather),
            (_backend.pallas_reduce_scatter, schedules.reduce_scatter),
        )
    ],
    ids=lambda value: getattr(value, "__name__", None) or value.topology.name,
)
def test_each_kernel_meets_its_neighbours_before_it_sends(kernel, schedule):
    """Statically: no emulation has a device that is late enough."""
    run = on_devices(partial(kernel, axis_name="x", axis=0, cut=0, schedule=schedule), 4)
    with emulated():
        jaxpr = jax.make_jaxpr(run)(terms((4, 8, 3)))
    found = [eqn for eqn in _instructions(jaxpr.jaxpr) if eqn.primitive.name == "pallas_call"]
    assert len(found) == 1
    names, sent = [], False
    for eqn in _instructions(found[0].params["jaxpr"]):
        sent = sent or bool(_sends(eqn))
        if not sent:
            names.append(eqn.primitive.name)
    assert sent
    order = [names.index(n) for n in ("get_barrier_semaphore", "semaphore_signal")]
    assert names.count("semaphore_signal") == 2
    assert order == sorted(order)
    assert names.index("semaphore_wait") > len(names) - 1 - names[::-1].index("semaphore_signal")


def _refused(function, message, x=None):
    with pytest.raises(ValueError, match=re.escape(message)) as raised:
        on_devices(function, 4)(np.zeros((4, 8, 5), np.float32) if x is None else x)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("way", [gather, scatter, reduce])
def test_devices_that_are_no_tpus_are_refused(way):
    _refused(
        partial(way, **ring), "needs TPU devices, got cpu; use implementation='permute', or emulate"
    )


@pytest.mark.parametrize("way", [scatter, reduce])
@pytest.mark.parametrize("dtype", ["float16", "float8_e5m2"])
def test_types_that_no_kernel_adds_are_refused(chips, way, dtype):
    x = np.zeros((4, 8), jnp.dtype(dtype))
    message = f"implementation 'pallas' cannot add {dtype}, expected float32, bfloat16,"
    _refused(partial(way, **ring), message, x)
    _refused(jax.grad(lambda x: gather(x, **ring).astype(jnp.float32).sum()), message, x)


def test_more_copies_than_semaphores_are_refused(chips):
    x = np.zeros((4, 400, 2), np.float32)
    message = "'pallas' has 400 copy semaphores, got a schedule that needs 807; use fewer channels"
    _refused(partial(gather, channels=100, **ring), message, x)
    _refused(partial(reduce, channels=100, **ring), "use fewer channels", x)


def test_automatic_axes_and_grids_are_refused(chips):
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("x", "y"))

    def run(function, **options):
        spread = jax.shard_map(function, mesh=mesh, in_specs=P("x"), out_specs=P("x"), **options)
        return jax.jit(spread)(jnp.zeros((4, 2)))

    along = partial(ringline.all_gather, implementation="pallas")
    with pytest.raises(ValueError, match="needs all mesh axes to be manual, got 'y' left to"):
        run(lambda x: along(x, "x"), axis_names={"x"})
    with pytest.raises(ValueError, match="the halves of a grid would not go side by side"):
        run(lambda x: along(x, ("x", "y"), topology=("ring", "line")))


def test_types_that_no_kernel_multiplies_are_refused(chips):
    message = "'pallas' cannot multiply int32, expected float32 or bfloat16; use"
    for way in (test_fused.gather_matmul, test_fused.matmul_scatter):
        _refused(partial(way, **ring), message, test_fused.operands(4, (8, 3), 5, "int32"))
