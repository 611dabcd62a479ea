"""The tables give every value a slot of its own from its making to its last read."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringline import schedules
from ringline.pipeline._tables import tick_tables

MAKERS = [
    schedules.linear,
    schedules.circular,
    schedules.one_f_one_b,
    schedules.eager_one_f_one_b,
    schedules.interleaved_one_f_one_b,
    schedules.zero_bubble_h1,
    schedules.zero_bubble_h2,
]
WITH_REPEATS = [schedules.circular, schedules.interleaved_one_f_one_b]


def replay(schedule, tables):
    """Run the tables on names instead of arrays; every read must find the right name."""
    stages, m = schedule.stages, schedule.microbatches
    chunk_at = {(s, schedule.repeat_of[c]): c for c, s in enumerate(schedule.stage_of)}
    held = [{kind: {} for kind in tables.slots} for _ in range(stages)]
    travelling = [None] * stages
    ran = set()
    last = schedule.chunks - 1

    def reads(phase, kind, row, stage, want):
        name = f"{phase}.reads.{kind}"
        if name not in row:
            return
        got = held[stage][kind].get(row[name])
        assert got == want or (kind == "activation" and want[1] == 0)

    for tick in range(tables.ticks):
        rows = [{k: int(v[tick, s]) for k, v in tables.rows.items()} for s in range(stages)]
        outputs, outputs_residual, seeds = ([None] * stages for _ in range(3))
        for stage, row in enumerate(rows):
            if row["F.repeat"] >= 0:
                chunk, i = chunk_at[stage, row["F.repeat"]], row["F.microbatch"]
                reads("F", "activation", row, stage, ("activation", chunk, i))
                outputs[stage] = ("activation", chunk + 1, i)
                ran.add(("F", chunk, i))
                outputs_residual[stage] = ("residual", chunk, i)
                if chunk == last:
                    seeds[stage] = ("cotangent", chunk, i)
                assert row["F.output"] == (i if chunk == last else m)
            # Written in any case, to where nobody needs what was there.
            if "F.makes.residual" in row:
                held[stage]["residual"][row["F.makes.residual"]] = outputs_residual[stage]
            if "F.makes.cotangent" in row:
                held[stage]["cotangent"][row["F.makes.cotangent"]] = seeds[stage]
        arrive(tables, rows, travelling, held, "cotangent", stages)
        travelling, handovers = [None] * stages, [None] * stages
        for stage, row in enumerate(rows):
            if row.get("B.repeat", -1) >= 0:
                chunk, i = chunk_at[stage, row["B.repeat"]], row["B.microbatch"]
                reads("B", "cotangent", row, stage, ("cotangent", chunk, i))
                reads("B", "residual", row, stage, ("residual", chunk, i))
                reads("B", "activation", row, stage, ("activation", chunk, i))
                travelling[stage] = ("cotangent", chunk - 1, i)
                ran.add(("I" if row["B.op"] else "B", chunk, i))
                if row["B.op"]:
                    handovers[stage] = ("handover", chunk, i)
            if "B.makes.handover" in row:
                held[stage]["handover"][row["B.makes.handover"]] = handovers[stage]
            if "B.makes.cotangent" in row:
                held[stage]["cotangent"][row["B.makes.cotangent"]] = travelling[stage]
            if row.get("W.repeat", -1) >= 0:
                chunk, i = chunk_at[stage, row["W.repeat"]], row["W.microbatch"]
                reads("W", "handover", row, stage, ("handover", chunk, i))
                reads("W", "residual", row, stage, ("residual", chunk, i))
                reads("W", "activation", row, stage, ("activation", chunk, i))
                ran.add(("W", chunk, i))
            if "F.makes.activation" in row:
                held[stage]["activation"][row["F.makes.activation"]] = outputs[stage]
        arrive(tables, rows, outputs, held, "activation", stages)
    want = {(a.op, a.chunk, a.microbatch) for row in schedule.rows for a in row}
    assert ran == want


def arrive(tables, rows, sent, held, kind, stages):
    for offset in tables.senders.get(kind, {}):
        for stage in range(stages):
            slot = rows[stage][f"arrives.{kind}.{offset}"]
            assert slot < tables.places[kind]
            held[stage][kind][slot] = sent[(stage - offset) % stages]


@settings(max_examples=40, deadline=None)
@given(
    make=st.sampled_from(MAKERS),
    stages=st.integers(1, 5),
    microbatches=st.integers(1, 9),
    repeats=st.integers(1, 3),
    keep_inputs=st.booleans(),
)
def test_every_read_finds_its_value(make, stages, microbatches, repeats, keep_inputs):
    schedule = make(stages, microbatches, repeats if make in WITH_REPEATS else 1)
    replay(schedule, tick_tables(schedule, keep_inputs=keep_inputs))


@pytest.mark.parametrize("make", [schedules.zero_bubble_v, schedules.dualpipe_v])
@pytest.mark.parametrize("keep_inputs", [False, True])
def test_every_read_finds_its_value_in_v_shapes(make, keep_inputs):
    schedule = make(4, 8)
    replay(schedule, tick_tables(schedule, keep_inputs=keep_inputs))


@pytest.mark.parametrize("keep_inputs", [False, True])
def test_a_busy_stage_needs_no_place_for_what_nobody_keeps(keep_inputs):
    for schedule in (schedules.eager_one_f_one_b(4, 8), schedules.interleaved_one_f_one_b(4, 8, 2)):
        tables = tick_tables(schedule, keep_inputs=keep_inputs)
        for kind in {"activation", "residual"} & tables.slots.keys():
            assert tables.places[kind] == tables.slots[kind]


@pytest.mark.parametrize("repeats", [1, 2, 3])
def test_slots_do_not_grow_with_microbatches(repeats):
    few = tick_tables(schedules.interleaved_one_f_one_b(4, 16, repeats), keep_inputs=True)
    many = tick_tables(schedules.interleaved_one_f_one_b(4, 64, repeats), keep_inputs=True)
    assert few.slots == many.slots


@pytest.mark.parametrize(
    ("schedule", "ticks"),
    [
        (schedules.linear(4, 8).forward(), 8 + 3),
        (schedules.circular(4, 8, 2).forward(), 16 + 3),
        (schedules.eager_one_f_one_b(4, 8), 8 + 2 * 3),
        (schedules.interleaved_one_f_one_b(4, 8, 2), 16 + 2 * 3 + 4),
    ],
    ids=str,
)
def test_ticks_are_the_fewest(schedule, ticks):
    assert tick_tables(schedule).ticks == ticks
