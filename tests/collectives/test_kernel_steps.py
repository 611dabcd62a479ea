"""The steps of the TPU kernels are proved for every timing, and the proof finds planted faults."""

from dataclasses import replace

import pytest
from kernel_check import check_kernel

from ringline.collectives.kernels._matmul_plan import plan_gather_matmul, plan_matmul_scatter
from ringline.collectives.kernels._plan import plan_gather, plan_scatter
from ringline.schedule import ScheduleError, all_gather, reduce_scatter
from ringline.topology import Line, Ring

SHAPES = [
    (topology, directions, channels)
    for topology in (Ring, Line)
    for directions in (1, 2)
    for channels in (1, 2, 3)
]


def gather(topology=Ring, devices=4, **options):
    return plan_gather(all_gather(topology(devices), **options))


def scatter(topology=Ring, devices=4, **options):
    return plan_scatter(reduce_scatter(topology(devices), **options))


def gather_matmul(topology=Ring, devices=4, **options):
    return plan_gather_matmul(all_gather(topology(devices), **options))


def matmul_scatter(topology=Ring, devices=4, **options):
    return plan_matmul_scatter(reduce_scatter(topology(devices), **options))


def without(plan, *whats):
    return replace(plan, steps=tuple(step for step in plan.steps if step.what not in whats))


def sharing(plan, first, second):
    """The plan with one semaphore for two of its copies."""
    lanes = list(plan.lanes)
    lanes[second] = lanes[second]._replace(place=lanes[first].place)
    return replace(plan, lanes=tuple(lanes))


@pytest.mark.parametrize(("topology", "directions", "channels"), SHAPES)
@pytest.mark.parametrize("devices", [2, 3, 4, 5, 8])
def test_steps_end_and_nothing_comes_too_early(devices, topology, directions, channels):
    options = {"directions": directions, "channels": channels}
    check_kernel(gather(topology, devices, **options))
    for slabs in (1, 3):
        check_kernel(scatter(topology, devices, **options), slabs=slabs)


@pytest.mark.parametrize(("topology", "directions", "channels"), SHAPES)
@pytest.mark.parametrize("devices", [2, 3, 4, 5])
def test_everything_is_multiplied_once_it_has_arrived(devices, topology, directions, channels):
    options = {"directions": directions, "channels": channels}
    gathered = gather_matmul(topology, devices, **options)
    check_kernel(gathered)
    check_kernel(matmul_scatter(topology, devices, **options), slabs=1)
    for device in range(devices):
        own = [(device, piece) for piece in range(gathered.pieces)]
        for step in gathered.steps:
            if step.what == "multiply" and step.who[device] and step.lane < len(gathered.lanes):
                lane = gathered.lanes[step.lane]
                own += [(lane.received[device], p) for p in range(lane.first, lane.stop)]
        assert sorted(own) == [(s, p) for s in range(devices) for p in range(gathered.pieces)]


def test_copies_are_on_their_way_while_products_are_formed():
    """All sends of a step are started before the products of the step before."""
    steps = [(step.what, step.lane) for step in gather_matmul(Ring, 4).steps]
    own = ("multiply", 4)
    assert steps.index(own) > max(steps.index(("send", lane)) for lane in (0, 1))
    assert steps.index(("multiply", 0)) > max(steps.index(("send", lane)) for lane in (2, 3))


@pytest.mark.parametrize("make", [gather, scatter, gather_matmul, matmul_scatter])
@pytest.mark.parametrize("topology", [Ring, Line])
def test_a_missing_entry_barrier_is_found(make, topology):
    with pytest.raises(ScheduleError, match=r"before device \d has entered the kernel"):
        check_kernel(without(make(topology), "enter"), slabs=1, calls=1)


@pytest.mark.parametrize("topology", [Ring, Line])
@pytest.mark.parametrize("directions", [1, 2])
def test_missing_credits_are_found(topology, directions):
    plan = without(scatter(topology, 5, directions=directions), "credit", "allowed")
    with pytest.raises(ScheduleError, match=r"the later one can land first|may overwrite"):
        check_kernel(plan)


@pytest.mark.parametrize(
    ("what", "message"), [("credit", "never given"), ("allowed", "is left over at the end")]
)
def test_credits_that_do_not_balance_are_found(what, message):
    with pytest.raises(ScheduleError, match=message):
        check_kernel(without(scatter(devices=5), what))


@pytest.mark.parametrize("topology", [Ring, Line])
def test_a_shared_semaphore_is_found(topology):
    plan = gather(topology, directions=2)
    with pytest.raises(ScheduleError, match=r"semaphore|under way"):
        check_kernel(sharing(plan, 0, len(plan.lanes) - 1))


@pytest.mark.parametrize(
    ("make", "what", "message"),
    [
        (gather, "arrive", "reads what has not arrived"),
        (gather, "sent", "send lane 0 .* is never waited for"),
        (gather, "loaded", "load lane 4 .* is never waited for"),
        (gather_matmul, "arrive", "reads what has not arrived"),
        (matmul_scatter, "arrive", "reads what has not arrived"),
        (matmul_scatter, "sent", "changes a buffer"),
        (scatter, "arrive", "reads what has not arrived"),
        (scatter, "sent", "starts while"),
        (scatter, "loaded", "starts while|changes a buffer"),
    ],
)
def test_a_missing_wait_is_found(make, what, message):
    with pytest.raises(ScheduleError, match=message):
        check_kernel(without(make(devices=5, directions=1), what))
