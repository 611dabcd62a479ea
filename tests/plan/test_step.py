"""Step times: bounds in order, closed forms against the simulator, monotone in links and size."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringline import schedules
from ringline.plan import RULES, Calibration, Evaluator, Layout, Work, model
from ringline.plan._links import Links, Placement, placements
from ringline.plan._memory import memory, stage_layers
from ringline.plan._search import simulated_plan
from ringline.topology import cluster

LLAMA = model("llama3-8b")
V5P = cluster("2x v5p-16")
LAYOUTS = [
    Layout(fsdp=16),
    Layout(fsdp=8, data=2, remat="full"),
    Layout(fsdp=4, tensor=4, microbatches=2, gather="step"),
    Layout(2, 1, 8, "one_f_one_b", "full", 8),
    Layout(4, 1, 8, "eager_one_f_one_b", "selective", 4),
    Layout(4, 1, 8, "zero_bubble_h1", "none", 4, gather="step"),
    Layout(4, 2, 8, "circular", "full", 4),
    Layout(4, 2, 8, "interleaved_one_f_one_b", "full", 2, 2),
    Layout(16, 1, 16, "linear", "full"),
]
layouts = pytest.mark.parametrize("layout", LAYOUTS, ids=str)


def work(**changes) -> Work:
    return replace(Work(LLAMA, V5P, 128, 2048), **changes)


@layouts
def test_bounds_are_in_order_and_parts_add_up(layout):
    plan = simulated_plan(work(), Evaluator(work()).best(layout))
    assert 0 < plan.lower_s <= plan.predicted_s <= plan.upper_s
    assert sum(plan.parts_s.values()) == pytest.approx(plan.predicted_s)
    assert all(part >= 0 for part in plan.parts_s.values())
    assert 0 < plan.mfu < 1


@pytest.mark.parametrize("name", [name for name in RULES if name != "zero_bubble_h2"])
def test_closed_forms_are_the_simulators_for_equal_stages(name):
    """Nearly: the head makes the last stage slower, and its W longer, than the others'."""
    repeats = 1 if RULES[name].repeats == "one" else 2
    layout = Layout(4, repeats, 8, name, "none", 4)
    plan = Evaluator(work()).best(layout)
    timed = simulated_plan(work(), plan)
    assert timed.simulated
    assert timed.predicted_s == pytest.approx(
        plan.predicted_s, rel=0.06 if RULES[name].splits_backward else 0.03
    )


@pytest.mark.parametrize("name", RULES)
def test_activations_in_flight_are_those_of_the_schedule(name):
    rule = RULES[name]
    for p, m in ((2, 8), (4, 16)):
        v = 1 if rule.repeats == "one" else 2
        repeats = {"repeats": v} if v > 1 else {}
        schedule = getattr(schedules, name)(stages=p, microbatches=m, **repeats)
        assert max(schedule.peak_activations()) == rule.in_flight(p, m, v)


@settings(max_examples=30, deadline=None)
@given(
    layout=st.sampled_from(LAYOUTS),
    faster=st.sampled_from(["link_bytes_per_s", "dcn_bytes_per_s", "hbm_bytes_per_s"]),
    factor=st.floats(1.0, 20.0),
)
def test_a_faster_link_never_slows_a_step(layout, faster, factor):
    chip = replace(V5P.chip, **{faster: getattr(V5P.chip, faster) * factor})
    slow, fast = Evaluator(work()), Evaluator(work(cluster=replace(V5P, chip=chip)))
    assert fast.best(layout).predicted_s <= slow.best(layout).predicted_s * (1 + 1e-9)
    for place in placements(layout, V5P):
        for name in ("lower_s", "predicted_s", "upper_s"):
            times = [getattr(evaluator.plan(layout, place), name) for evaluator in (fast, slow)]
            assert times[0] <= times[1] * (1 + 1e-9)


@settings(max_examples=30, deadline=None)
@given(layout=st.sampled_from(LAYOUTS), times=st.integers(2, 5), what=st.sampled_from("bl"))
def test_a_larger_step_is_never_faster(layout, times, what):
    change = {"batch": 128 * times} if what == "b" else {"length": 2048 * times}
    small, large = (Evaluator(w).best(layout) for w in (work(), work(**change)))
    assert large.predicted_s >= small.predicted_s
    assert large.memory.total_bytes >= small.memory.total_bytes


def test_memory_counts_every_byte_of_the_state():
    layout = Layout(fsdp=16, remat="full")
    evaluator = Evaluator(work())
    used = evaluator.memory(layout)
    assert used.optimizer_bytes == pytest.approx(8 * LLAMA.parameters / 16, rel=1e-4)
    assert used.gradients_bytes == pytest.approx(4 * LLAMA.parameters / 16, rel=1e-4)
    gathered = evaluator.memory(replace(layout, gather="step"))
    assert gathered.gradients_bytes == pytest.approx(4 * LLAMA.parameters, rel=1e-4)
    assert gathered.total_bytes > used.total_bytes


def test_rematerialisation_saves_memory():
    evaluator = Evaluator(work())
    sizes = [
        evaluator.memory(Layout(fsdp=16, remat=remat)).activations_bytes
        for remat in ("none", "selective", "full")
    ]
    assert sizes[0] > sizes[1] > sizes[2]


def test_layers_that_do_not_divide_go_to_the_first_chunks():
    assert stage_layers(LLAMA, Layout(stages=5, microbatches=5)) == (7, 7, 6, 6, 6)
    assert stage_layers(LLAMA, Layout(stages=3, repeats=2)) == (11, 11, 10)
    for stages, repeats, name in (
        (2, 3, "circular"),
        (4, 2, "circular"),
        (7, 4, "circular"),
        (5, 2, "zero_bubble_v"),
        (3, 2, "dualpipe_v"),
    ):
        counts = stage_layers(LLAMA, Layout(stages=stages, repeats=repeats, schedule=name))
        order = getattr(schedules, name)(stages, stages, repeats)
        chunks = order.layers_of_chunks(LLAMA.layers)
        held = [
            sum(n for n, stage in zip(chunks, order.stage_of) if stage == s) for s in range(stages)
        ]
        assert list(counts) == held


def test_axes_over_slices():
    found = list(placements(Layout(2, 1, 2, "linear", fsdp=8, data=2), cluster("4x v4-16")))
    assert found[0] == Placement(stage=2, data=2)
    assert all(p.stage * p.data * p.fsdp == 4 for p in found)
    assert list(placements(Layout(tensor=16), cluster("2x v5e-8"))) == []
    with pytest.raises(ValueError, match="tensor stays in a slice"):
        Evaluator(Work(LLAMA, cluster("2x v5e-8"), 16, 128)).best(Layout(tensor=16))


def test_collectives_meet_their_bounds():
    links = Links(V5P, Calibration())
    full = 1e9
    assert links.gather_s(full, 8, 1) >= 7 / 8 * full / (3 * 90e9)
    assert links.gather_s(full, 1, 1) == 0
    assert links.reduce_s(full, 8, 1) == 2 * links.gather_s(full, 8, 1)
    assert links.gather_s(full, 4, 2) >= full / 4 / 2 / V5P.chip.dcn_bytes_per_s


def test_experts_are_spread_and_exchanged():
    moe = Work(model("mixtral-8x7b"), cluster("v5p-64"), 64, 2048)
    plan = Evaluator(moe).best(Layout(fsdp=32, remat="full"))
    assert plan.parts_s["experts"] > 0
    shape = Evaluator(moe).shape(Layout(fsdp=32))
    assert shape.expert_group == 8
    used = memory(moe.model, moe.cluster.chip, moe.calibration, Layout(fsdp=32), shape, 32)
    assert used.optimizer_bytes == pytest.approx(8 * moe.model.parameters / 32, rel=1e-3)
