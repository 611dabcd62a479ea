from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ringline
from ringline.collectives.measure import _measure
from ringline.collectives.measure._measure import Setup, measure, sweep, targeted
from ringline.collectives.measure._operations import (
    ALL_GATHER,
    ALL_GATHER_MATMUL,
    ALL_REDUCE,
    MATMUL_REDUCE_SCATTER,
    OPERATIONS,
    REDUCE_SCATTER,
)
from ringline.collectives.measure._shapes import TARGETED, Case
from ringline.collectives.measure._timing import Bench
from ringline.topology import Ring

SMALL = Case((1, 1, 8, 12), 3, "bfloat16")


@pytest.mark.parametrize(
    ("setup", "link_bytes"),
    [
        (Setup(topology="ring", directions=1, iters=2), 144),
        (Setup(topology="ring", directions=2, iters=2), 72),
        (Setup(topology="line", directions=2, iters=2), 144),
        (Setup(topology="ring", directions=2, iters=2, implementation=None), 72),
        (Setup(topology="ring", devices=1, iters=2), 0),
    ],
)
def test_bandwidths_follow_their_definitions(setup, link_bytes):
    """accelerator-microbenchmarks PR 20: (n-1)/n was missing in the formula."""
    row = measure(SMALL, setup)
    assert row.wrong == 0
    assert row.size_bytes == 192
    assert row.link_bytes == link_bytes
    assert row.iters == 2
    assert row.skipped is None
    assert row.time_us is not None
    time_s = row.time_us / 1e6
    n = setup.devices
    assert row.algbw_gb_s == pytest.approx(192 / time_s / 1e9)
    assert row.busbw_gb_s == pytest.approx((n - 1) / n * 192 / time_s / 1e9)
    assert row.linkbw_gb_s == pytest.approx(link_bytes / time_s / 1e9)
    if n > 1:
        assert row.microbenchmark_us is not None
        assert row.share_of_microbenchmark == pytest.approx(row.microbenchmark_us / row.time_us)
    assert row.builtin_us is not None


def test_every_element_is_checked():
    bench = Bench(ALL_GATHER, SMALL, Ring(4))
    (shards,) = bench.inputs()
    whole = np.asarray(shards)
    assert len(np.unique(whole.view(np.uint16))) == whole.size
    assert bench.wrong(jnp.asarray(whole)) == 0
    damaged = whole.copy()
    damaged.view(np.uint16)[0, 0, 7, 11] ^= 1
    assert bench.wrong(jnp.asarray(damaged)) == 4  # on each of the four devices


@pytest.mark.parametrize("operation", [REDUCE_SCATTER, ALL_REDUCE], ids=lambda o: o.name)
def test_every_element_of_a_sum_is_checked(operation):
    bench = Bench(operation, SMALL, Ring(4))
    (terms,) = bench.inputs()
    summed = np.asarray(terms).astype(np.float32).sum(0)
    assert len({tuple(term.ravel()) for term in np.asarray(terms).astype(np.float32)}) == 4
    assert bench.wrong(jnp.asarray(summed, jnp.bfloat16)) == 0
    summed[0, 0, 7, 11] += 1
    copies = 4 if operation is ALL_REDUCE else 1
    assert bench.wrong(jnp.asarray(summed, jnp.bfloat16)) == copies


@pytest.mark.parametrize("operation", [ALL_GATHER_MATMUL, MATMUL_REDUCE_SCATTER])
def test_every_element_of_a_product_is_checked(operation):
    case = Case((8, 12), 0, "float32")
    bench = Bench(operation, case, Ring(4))
    arrays, matrix = (np.asarray(given) for given in bench.inputs())
    product = arrays @ matrix if operation is ALL_GATHER_MATMUL else (arrays @ matrix).sum(0)
    assert bench.wrong(jnp.asarray(product)) == 0
    product[7, 11] += 1
    assert bench.wrong(jnp.asarray(product)) == (4 if operation is ALL_GATHER_MATMUL else 1)


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
@pytest.mark.parametrize("dtype", ["bfloat16", "int32"])
def test_every_collective_is_measured_and_right(operation, dtype):
    columns = 12 if operation.matmul else None
    (case,) = sweep(1536, 1536, 2, dtype, 4, columns)
    row = measure(case, Setup(operation=operation, directions=2, iters=2))
    assert row.collective == operation.name
    assert row.skipped is None
    assert row.wrong == 0
    assert row.time_us is not None
    rounds = 2 if operation is ALL_REDUCE else 1
    time_s = row.time_us / 1e6
    assert row.busbw_gb_s == pytest.approx(rounds * 3 / 4 * case.size_bytes / time_s / 1e9)
    assert row.link_bytes == rounds * 3 / 8 * case.size_bytes
    assert row.builtin_us is not None
    assert (row.matmul_us is not None) == operation.matmul


def test_matmuls_take_the_targeted_cases_that_gather_rows():
    assert len(targeted(ALL_GATHER)) == 36
    assert {case.dim for case in targeted(ALL_GATHER_MATMUL)} == {2}


def test_a_wrong_gather_is_reported():
    def reversed_order(shard, **_):
        return jax.lax.all_gather(shard, "devices", axis=3, tiled=True)[..., ::-1]

    operation = replace(ALL_GATHER, ours=lambda dim, **_: reversed_order)
    wrong = measure(SMALL, Setup(operation=operation, iters=1)).wrong
    assert wrong is not None
    assert wrong > 300


@pytest.mark.parametrize(
    ("case", "setup", "limits", "reason"),
    [
        (SMALL, Setup(), {"max_bytes": 100}, "192 bytes are more than the 100 of --max-bytes"),
        (SMALL, Setup(devices=8), {}, r"dim 3 of \(1, 1, 8, 12\) does not divide by 8 devices"),
        (SMALL, Setup(channels=4), {}, "4 channels are more than the 3 rows of a shard"),
    ],
)
def test_what_cannot_be_measured_is_skipped_with_the_reason(case, setup, limits, reason):
    row = measure(case, setup, **limits)
    assert row.time_us is None
    assert row.wrong is None
    with pytest.raises(ValueError, match=reason):
        raise ValueError(row.skipped)


def test_a_case_larger_than_the_memory_is_skipped_with_both_numbers(monkeypatch):
    monkeypatch.setattr(_measure, "available_bytes", lambda: 100)
    monkeypatch.setattr(Bench, "host_bytes", lambda self, compiled: 1536)
    row = measure(SMALL, Setup())
    assert row.skipped == "needs 1536 bytes of memory, 100 are available"


def test_what_alone_does_not_fit_is_skipped_alone(monkeypatch):
    needed = iter([500, 3000, 4000])
    monkeypatch.setattr(_measure, "available_bytes", lambda: 1000)
    monkeypatch.setattr(Bench, "host_bytes", lambda self, compiled: next(needed))
    row = measure(SMALL, Setup(iters=1))
    assert row.builtin_us is None
    assert row.in_place_us is None
    assert row.in_place_wrong is None
    assert row.wrong == 0
    assert row.skipped == (
        "the built-in only: needs 3000 bytes of memory, 1192 are available; "
        "in place only: needs 4000 bytes of memory, 1192 are available"
    )


@pytest.mark.parametrize("most", [2**29, 0], ids=["interleaved", "one by one"])
@pytest.mark.parametrize("implementation", ["permute", "xla", None])
def test_a_gather_is_measured_in_place(implementation, most, monkeypatch):
    monkeypatch.setattr(_measure, "_INTERLEAVED_MAX_BYTES", most)
    row = measure(SMALL, Setup(iters=2, implementation=implementation, bounds=True))
    assert row.in_place_wrong == 0
    assert row.in_place_us is not None
    assert row.in_place_busbw_gb_s == pytest.approx(3 / 4 * 192 / row.in_place_us / 1e3)
    assert row.chained_us is not None
    assert row.fresh_us is not None
    sums = measure(SMALL, Setup(operation=ALL_REDUCE, iters=2, bounds=True))
    assert (sums.in_place_us, sums.in_place_wrong, sums.chained_us) == (None, None, None)


def test_a_wrong_element_of_a_gather_in_place_is_reported():
    def spoiled(shard, out=None, **_):
        whole = ringline.all_gather(shard, "devices", axis=3)
        return whole if out is None else whole[..., ::-1]

    operation = replace(ALL_GATHER, ours=lambda dim, **_: spoiled)
    row = measure(SMALL, Setup(operation=operation, iters=1))
    assert row.wrong == 0
    assert row.in_place_wrong is not None
    assert row.in_place_wrong > 300


def test_the_sweep_doubles_and_rounds_to_whole_elements():
    sizes = [case.size_bytes for case in sweep(8, 100, 2, "float32", 4)]
    assert sizes == [16, 32, 64]
    assert [case.size_bytes for case in sweep(8, 64, 2, "bfloat16", 4)] == [8, 16, 32, 64]


@pytest.mark.parametrize(
    ("end", "factor", "message"),
    [
        (4, 2, "the sweep needs 0 < begin <= end, got 8 and 4 bytes"),
        (16, 1, "factor must be at least 2, got 1"),
    ],
)
def test_a_sweep_that_never_ends_is_refused(end, factor, message):
    with pytest.raises(ValueError, match=message):
        sweep(8, end, factor, "float32", 4)


def test_the_targeted_cases_are_18_shapes_of_two_types():
    assert len(TARGETED) == len(set(TARGETED)) == 36
    assert len({(case.shape, case.dim) for case in TARGETED}) == 18
    assert all(case.shape[case.dim] % 4 == 0 for case in TARGETED)
    assert max(case.size_bytes for case in TARGETED) == 4 * 2**30


@pytest.mark.slow
@pytest.mark.parametrize("topology", ["ring", "line"])
@pytest.mark.parametrize(
    "case",
    [case for case in TARGETED if case.size_bytes <= 2**24],
    ids=str,
)
def test_targeted_cases_are_right_in_every_element(case, topology):
    row = measure(case, Setup(topology=topology, iters=1))
    assert row.skipped is None
    assert row.wrong == 0


@pytest.mark.slow
def test_the_largest_targeted_case_fits_24_gib():
    case = Case((1, 1, 32768, 32768), 3, "bfloat16")
    jax.clear_caches()  # what the tests before have compiled counts against the 24 GiB too
    row = measure(case, Setup(iters=1, in_place=False))
    if row.skipped and row.wrong is None:
        pytest.skip(row.skipped)
    assert row.wrong == 0
