"""How a schedule becomes one program for all devices: what is sent, placed and multiplied once."""

from collections import defaultdict
from itertools import product

import pytest

from ringline.collectives._arguments import default_directions
from ringline.collectives._memory import keeps_memory
from ringline.collectives._permute import choose_assembly
from ringline.collectives._plan import apart, plan_permutes
from ringline.collectives._sum_plan import plan_sums
from ringline.schedule import all_gather, all_reduce, reduce_scatter
from ringline.topology import Ladder, Line, Rails, Ring

SCHEDULES = [
    *(
        all_gather(shape(devices), directions=directions, channels=channels)
        for shape, devices, directions, channels in product(
            (Ring, Line), (2, 3, 4, 5, 8), (1, 2), (1, 3)
        )
    ),
    *(
        all_gather(pairs(shape(hosts)), channels=channels)
        for pairs, shape, hosts, channels in product(
            (Rails, Ladder), (Ring, Line), (2, 3, 4), (1, 2)
        )
    ),
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_every_piece_of_every_stripe_is_placed_once(schedule):
    plan = plan_permutes(schedule)
    for device, members in enumerate(plan.members):
        written = defaultdict(list)
        for place in plan.placements():
            arrival = plan.arrivals[place.arrivals[place.which[device]]]
            for piece in range(arrival.first, arrival.stop):
                written[place.numbers[device], piece].append(arrival.stripes[device])
            assert place.first == arrival.first
        for (number, stripe), piece in product(enumerate(members), range(plan.pieces)):
            found = written.pop((number, piece))
            # What came to others only is written over by the own stripe, the last.
            assert found == [stripe] or (stripe == device and found[-1] == stripe)
        assert not written


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("devices", range(2, 17))
def test_a_line_places_and_multiplies_as_many_stripes_as_it_has(devices, directions):
    gather = plan_permutes(all_gather(Line(devices), directions=directions))
    assert len(gather.permutes) == (2 * (devices - 1) if devices > 2 else 1)
    assert len(gather.placements()) == devices
    scatter = plan_sums(reduce_scatter(Line(devices), directions=directions))
    assert len({total.stripes for total in (*scatter.sums, scatter.result)}) == devices
    assert scatter.shares_terms == (devices > 2)
    assert not plan_sums(reduce_scatter(Ring(devices), directions=directions)).shares_terms


def test_what_meets_on_a_device_stays_apart():
    items = [("a", {0, 1}), ("a", {1, 2}), ("b", {2}), ("a", {2}), ("a", {0})]
    assert apart(items) == [[0, 3], [1, 4], [2]]


@pytest.mark.parametrize(
    ("topology", "devices", "implementation", "directions"),
    [
        ("ring", 4, None, 1),
        ("ring", 4, "permute", 1),
        ("ring", 4, "pallas", 2),
        ("ring", 2, None, 2),
        ("line", 4, None, 2),
    ],
)
def test_a_ring_of_devices_that_send_one_way_at_a_time_uses_one_direction(
    topology, devices, implementation, directions
):
    assert default_directions(topology, devices, implementation) == directions


def test_two_directions_are_the_default_elsewhere(monkeypatch):
    monkeypatch.setattr("ringline.collectives._arguments.platform", lambda: "tpu")
    assert default_directions("ring", 4, "permute") == 2


@pytest.mark.parametrize(
    ("environment", "kept"),
    [
        ({}, False),
        ({"MALLOC_MMAP_MAX_": "0"}, False),
        ({"MALLOC_TRIM_THRESHOLD_": "100000000000"}, False),
        ({"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "0"}, False),
        ({"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "100000000000"}, True),
        ({"LD_PRELOAD": "/usr/lib/libjemalloc.so.2"}, True),
        ({"LD_PRELOAD": "/usr/lib/libother.so"}, False),
    ],
)
def test_an_allocator_that_keeps_memory_is_known_by_the_environment(environment, kept, monkeypatch):
    for name in ("MALLOC_MMAP_MAX_", "MALLOC_TRIM_THRESHOLD_", "LD_PRELOAD"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert keeps_memory() is kept
    # Of several processes each may have another environment, and all need one program.
    monkeypatch.setattr("jax.process_count", lambda: 2)
    assert keeps_memory() is False


@pytest.mark.parametrize(
    ("schedule", "stripe_bytes", "kept", "assembly"),
    [
        (all_gather(Ring(4), directions=1), 2**22, False, "concatenate"),
        (all_gather(Ring(4), directions=1), 2**22 + 1, False, "update"),
        (all_gather(Ring(4), directions=2), 2**22, False, "concatenate"),
        (all_gather(Line(4)), 2**21, False, "concatenate"),
        (all_gather(Line(4)), 2**22, False, "update"),
        (reduce_scatter(Line(4)), 2**22, False, "update"),
        (all_reduce(Ring(4), directions=1), 2**22, False, "concatenate"),
        (all_gather(Line(4)), 2**27, True, "concatenate"),
        (all_gather(Line(4)), 2**28, True, "update"),
        (all_gather(Ring(32)), 4, True, "update"),
        (all_gather(Ring(1)), 4, False, "concatenate"),
    ],
)
def test_arrivals_are_concatenated_where_their_memory_costs_little(
    schedule, stripe_bytes, kept, assembly, monkeypatch
):
    monkeypatch.setattr("ringline.collectives._permute.keeps_memory", lambda: kept)
    assert choose_assembly(schedule, stripe_bytes) == assembly
