"""Schedules of hosts with two devices each: proved, and as fast as the hosts' links allow."""

import pytest

from ringline.schedule import (
    CollectiveSchedule,
    FlowControl,
    ScheduleError,
    all_gather,
    all_reduce,
    check_collective,
    reduce_scatter,
)
from ringline.simulate import simulate_collective
from ringline.topology import Ladder, Line, Rails, Ring, mover

HOSTS = range(1, 7)
KINDS = [(shape, chain) for shape in (Rails, Ladder) for chain in (Ring, Line)]


@pytest.mark.parametrize("make", [all_gather, reduce_scatter, all_reduce])
@pytest.mark.parametrize(("shape", "chain"), KINDS)
@pytest.mark.parametrize("channels", [1, 3])
def test_valid_and_read_back(make, shape, chain, channels):
    for hosts in HOSTS:
        schedule = make(shape(chain(hosts)), channels=channels)
        schedule.validate()
        assert CollectiveSchedule.from_text(schedule.to_text()) == schedule
        assert schedule.transposed().transposed() == schedule
        assert str(schedule).startswith(f"{schedule.name} on a {schedule.topology.name} of")


@pytest.mark.parametrize(("shape", "chain"), KINDS)
def test_steps_and_busiest_link_follow_the_formulas(shape, chain):
    for hosts in HOSTS:
        schedule = all_gather(shape(chain(hosts)))
        # Two hosts have one link: a ring of them is a line.
        ring = chain is Ring and hosts > 2
        stripes = (hosts - 1) * (1 if ring else 2)
        assert max(map(float, schedule.stripes_per_link().values()), default=0) == stripes
        both_at_once = ring or hosts == 2
        hops = (hosts - 1) * (1 if both_at_once else 2)
        assert schedule.steps == hops + (shape is Ladder)


@pytest.mark.parametrize("chain", [Ring, Line])
def test_every_byte_crosses_only_the_links_that_it_has_to(chain):
    for hosts in HOSTS:
        carried = all_gather(Ladder(chain(hosts))).stripes_per_link()
        # 2 x hosts stripes, each to all other hosts once.
        assert sum(carried.values()) == 2 * hosts * (hosts - 1)


@pytest.mark.parametrize(("shape", "chain"), KINDS)
def test_no_device_sends_both_ways_between_hosts_in_a_step(shape, chain):
    schedule = all_gather(shape(chain(5)))
    for lane in schedule.by_lane():
        assert len({transfer.source for transfer in lane}) == len(lane)
        assert len({schedule.target(transfer) for transfer in lane}) == len(lane)
    hops = [lane for lane in schedule.by_lane() if lane[0].direction != 0]
    assert len(hops) == schedule.steps - (shape is Ladder)


@pytest.mark.parametrize(("shape", "chain"), KINDS)
def test_simulated_at_the_links_rate(shape, chain):
    schedule, size = all_gather(shape(chain(4))), 16 << 20
    wormhole = mover("wormhole-ethernet")
    run = simulate_collective(schedule, size, mover=wormhole)
    busiest = schedule.busiest_link_bytes(size)
    carried = {link: run.link_bytes[link] for link in schedule.topology.links()}
    assert carried == schedule.bytes_per_link(size)
    bound_s = busiest / wormhole.bytes_per_s
    assert bound_s < run.time_s
    # On a ladder what goes across comes on top.
    assert shape is Ladder or run.time_s < 1.3 * bound_s


@pytest.mark.parametrize(("shape", "chain"), KINDS)
def test_cannot_hang(shape, chain):
    flow = FlowControl(injection="bubble")
    assert check_collective(all_gather(shape(chain(3))), 1 << 16, flow).safe


def test_faults_are_named():
    gather = all_gather(Ladder(Ring(3)))
    with pytest.raises(ScheduleError, match="must be ordered by step"):
        replaced(gather, gather.transfers[::-1]).validate()
    twice = gather.transfers[0]._replace(direction=-1)
    with pytest.raises(ScheduleError, match="sends twice on one channel"):
        replaced(gather, (gather.transfers[0], twice, *gather.transfers[1:])).validate()
    rails = all_gather(Rails(Ring(3)))
    across = replaced(rails, (rails.transfers[0]._replace(direction=0),))
    with pytest.raises(ScheduleError, match="has direction 0; expected 1 or -1"):
        across.validate()
    with pytest.raises(ScheduleError, match="even number"):
        CollectiveSchedule.from_text(
            "all-gather ring-rails devices=3 directions=2 channels=1 pieces=1"
        )
    with pytest.raises(ValueError, match="use directions=2"):
        all_gather(Rails(Ring(3)), directions=1)


def replaced(schedule, transfers) -> CollectiveSchedule:
    return CollectiveSchedule(
        schedule.name, schedule.topology, 2, schedule.channels, schedule.pieces, tuple(transfers)
    )
