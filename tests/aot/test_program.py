"""A compiled program read back: instructions, loops, costs, FLOPs, collectives."""

import jax
import jax.numpy as jnp
import pytest

from ringline.aot import target
from ringline.aot._collectives import find_collectives
from ringline.aot._groups import replica_groups
from ringline.aot._hlo import parse, shape_bytes
from ringline.aot._links import transfer_s
from ringline.aot._walk import Walk

SIZE = 256 * 128 * 2
TARGET = target("2x v4-8")


def found(program, mesh):
    module = parse(program)
    return find_collectives(module, Walk(module, TARGET), TARGET, mesh)


def test_loops_and_branches_are_counted(program):
    module = parse(program)
    walk = Walk(module, TARGET)
    assert walk.cycles("body") == 1_050_000  # the branch that computes
    assert walk.cycles(module.entry) == 5 * 1_050_000 + 2100
    assert walk.flops(module.entry) == 5 * 2 * 256 * 512 * 128
    by_name = {context.computation: context for context in walk.contexts()}
    assert (by_name["body"].loop, by_name["body"].times) == ("while.1", 5)
    assert by_name["stage"].conditional
    assert not by_name["body"].conditional


def test_collectives_of_a_program(program, two_slices):
    gather, permute, hidden, sums = found(program, two_slices)
    assert (gather.kind, gather.link, gather.axis, gather.bytes) == (
        *("all-gather", "ICI", "fsdp"),
        SIZE,
    )
    assert (gather.in_loop, gather.times_per_step, gather.asynchronous) == (None, 1, False)
    assert gather.exposed
    assert (permute.kind, permute.axis, permute.bytes) == ("collective-permute", "fsdp", SIZE / 4)
    assert permute.spans_compute_us == pytest.approx(2.0)
    assert (hidden.kind, hidden.link, hidden.axis) == ("collective-permute", "DCN", "stage")
    assert (hidden.in_loop, hidden.times_per_step) == ("while.1", 5)
    assert hidden.spans_compute_us == pytest.approx(1000.0)  # 1.05 M cycles at 1.05 GHz
    assert hidden.transfer_us == pytest.approx(SIZE / 1.6e9 * 1e6)
    assert not hidden.exposed
    assert (sums.kind, sums.link, sums.axis, sums.bytes) == ("all-reduce", "DCN", "stage", 256)
    assert sums.spans_compute_us == 0
    assert sums.exposed_us == sums.transfer_us > 0


def test_a_loop_of_unknown_length_counts_once_and_says_so(program, two_slices):
    gather, _, hidden, _ = found(program.replace("direction=LT", "direction=NE"), two_slices)
    assert (hidden.times_per_step, hidden.times_known) == (1, False)
    assert gather.times_known


def test_a_receive_posted_late_spans_nothing(program, two_slices):
    early = program.index("  %recv.1 =")
    end = program.index("  %conditional.1")
    late = program[end : program.index("  %send-done.1")]
    moved = program.replace(program[early:end] + late, late + program[early:end])
    hidden = found(moved, two_slices)[2]
    assert hidden.spans_compute_us == 0
    assert hidden.exposed


def test_without_the_compilers_cycles_flops_and_bytes_count(program):
    module = parse(program.replace("estimated_cycles", "no"))
    walk = Walk(module, TARGET)
    flops, written = 2 * 256 * 512 * 128, SIZE
    seconds = max(flops / (275e12 * 0.9), written / 1200e9)
    assert walk.cycles("stage") == pytest.approx(seconds * 1.05e9, abs=1)


def test_an_estimate_that_is_none_is_not_counted(program):
    without = program.replace("estimated_cycles", "no")
    more = without.replace('"no":"2100"', f'"estimated_cycles":"{2**63 - 1}"')
    assert more != without
    walks = [Walk(parse(text), TARGET) for text in (without, more)]
    assert not walks[1].has_cycles
    assert walks[0].cycles("main") == walks[1].cycles("main") > 0


def test_a_program_without_a_mesh_still_reads(program):
    assert {c.axis for c in found(program, None)} == {"?"}


def test_a_text_that_is_no_program():
    with pytest.raises(ValueError, match="no ENTRY"):
        parse("HloModule nothing")


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ("bf16[2,3]{1,0:T(8,128)(2,1)}", 12),
        ("(f32[4]{0}, u32[], token[])", 20),
        ("pred[7]", 7),
        ("s4[16]", 8),
        ("c64[2]", 16),
        ("f8e4m3fn[3]", 3),
    ],
)
def test_bytes_of_shapes(shape, size):
    assert shape_bytes(shape) == size


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("{{0,1},{2,3}}, dimensions={0}", [(0, 1), (2, 3)]),
        ("{}", []),
        ("[2,2]<=[4]", [(0, 1), (2, 3)]),
        ("[2,4]<=[4,2]T(1,0)", [(0, 2, 4, 6), (1, 3, 5, 7)]),
        ("mesh['a'=4] {'a'}, dimensions={0}", [(0, 1, 2, 3)]),
        ("mesh['a'=2,'b'=3] {'b'}", [(0, 1, 2), (3, 4, 5)]),
        ("mesh['a'=2,'b'=2,'c'=2] {'a','c'}", [(0, 1, 4, 5), (2, 3, 6, 7)]),
        ("mesh['a'=8] {'a':(2)2}", [(0, 2), (1, 3), (4, 6), (5, 7)]),
    ],
)
def test_groups_of_devices(text, groups):
    assert replica_groups(f"replica_groups={text}") == groups


def test_transfers_follow_the_links():
    four = target("4x v4-16")
    size = 1e9
    assert transfer_s(four, "collective-permute", "DCN", size, 2) == pytest.approx(size / 1.6e9)
    assert transfer_s(four, "all-reduce", "DCN", size, 4) == pytest.approx(1.5 * size / 1.6e9)
    gather = transfer_s(four, "all-gather", "ICI", size, 8)
    assert gather == pytest.approx(size * 7 / 8 / (3 * 45e9), rel=1e-3)
    assert transfer_s(four, "all-reduce", "ICI", size, 8) == pytest.approx(2 * gather, rel=1e-3)
    assert transfer_s(four, "all-gather", "ICI", size, 1) == 0


PRODUCTS = {
    "matmul": (lambda a, b: a @ b, (64, 128), (128, 256), 2 * 64 * 128 * 256),
    "batched": (
        lambda a, b: jnp.einsum("bij,bjk->bik", a, b),
        *((4, 64, 128), (4, 128, 256)),
        2 * 4 * 64 * 128 * 256,
    ),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_flops_of_products(libtpu, name):
    from ringline.aot import compile_for

    fn, left, right, flops = PRODUCTS[name]
    shapes = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in (left, right)]
    assert compile_for("v5e-1", fn, *shapes).flops == flops
