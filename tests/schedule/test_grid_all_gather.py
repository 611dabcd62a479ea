import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringline.schedule import (
    FlowControl,
    all_gather,
    check_collective,
    check_program,
    grid_all_gather,
    relabel,
    snake_order,
)
from ringline.simulate import collective_bound_s, simulate_collective
from ringline.topology import Line, Ring, mover

WORMHOLE = mover("wormhole-ethernet")
axes = st.builds(lambda kind, n: kind(n), st.sampled_from([Ring, Line]), st.integers(1, 4))


@settings(max_examples=40, deadline=None)
@given(axes, axes, st.integers(1, 2), st.booleans(), st.sampled_from([None, 1]))
def test_every_device_ends_with_every_stripe(down, across, directions, halves, capacity):
    program = grid_all_gather(down, across, directions=directions, halves=halves)
    check_program(program, capacity=capacity)
    assert program.devices == down.devices * across.devices


@settings(max_examples=20, deadline=None)
@given(axes, axes, st.integers(1, 2), st.integers(0, 100_000))
def test_sends_only_along_the_axes_and_never_beats_the_roofline(down, across, directions, size):
    program = grid_all_gather(down, across, directions=directions)
    run = simulate_collective(program, size, mover=WORMHOLE)
    for source, target in run.link_bytes:
        (r0, c0), (r1, c1) = divmod(source, across.devices), divmod(target, across.devices)
        assert (r0 == r1) != (c0 == c1)
        line, ends = (across, (c0, c1)) if r0 == r1 else (down, (r0, r1))
        assert ends[1] in (line.neighbour(ends[0], 1), line.neighbour(ends[0], -1))
    bound_s = collective_bound_s((down, across), size, mover=WORMHOLE, directions=directions)
    spare_s = program.devices * 8 / WORMHOLE.bytes_per_s
    assert run.time_s >= bound_s - spare_s


def test_two_halves_use_all_links_at_once():
    run_s = [
        simulate_collective(
            grid_all_gather(Ring(4), Ring(4), halves=halves), 4 << 20, mover=WORMHOLE
        ).time_s
        for halves in (True, False)
    ]
    assert run_s[0] < 0.75 * run_s[1]


def test_a_torus_hangs_without_bubbles_and_a_grid_does_not():
    torus, grid = grid_all_gather(Ring(4), Ring(4)), grid_all_gather(Line(4), Line(4))
    greedy, bubble = FlowControl(slots=4), FlowControl(slots=4, injection="bubble")
    assert check_collective(torus, 16 << 20, greedy).can_hang
    assert check_collective(torus, 16 << 20, bubble).safe
    assert check_collective(grid, 16 << 20, greedy).safe


@pytest.mark.parametrize(("rows", "columns"), [(2, 2), (2, 4), (4, 4), (3, 4), (4, 3), (8, 4)])
def test_a_snake_is_a_ring_of_neighbours(rows, columns):
    order = snake_order(rows, columns)
    assert sorted(order) == list(range(rows * columns))
    for here, there in zip(order, order[1:] + order[:1]):
        (r0, c0), (r1, c1) = divmod(here, columns), divmod(there, columns)
        assert abs(r0 - r1) + abs(c0 - c1) == 1
    check_program(relabel(all_gather(Ring(rows * columns)).program(), order), capacity=1)


def test_a_grid_with_odd_sides_has_no_ring():
    with pytest.raises(ValueError, match="one even side, got 3 x 3"):
        snake_order(3, 3)


def test_relabel_refuses_what_is_no_permutation():
    with pytest.raises(ValueError, match="order must name each of 4 devices once"):
        relabel(all_gather(Ring(4)).program(), (0, 1, 2, 2))
