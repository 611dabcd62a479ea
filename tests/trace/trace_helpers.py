"""Timelines that several tests draw."""

from ringline.schedule import Program, Receive, Send, Value, circular, linear, zero_bubble_h1
from ringline.simulate import Event, Link, Timeline, simulate, simulate_program


def linear_step() -> Timeline:
    return simulate(linear(4, 8), forward_s=1.0, backward_s=2.0, transfer_s=0.2)


def circular_step() -> Timeline:
    return simulate(circular(4, 8, 2), forward_s=1.0, backward_s=2.0, transfer_s=0.2)


def split_step() -> Timeline:
    return simulate(
        zero_bubble_h1(4, 8),
        forward_s=1.0,
        input_gradient_s=1.0,
        weight_gradient_s=1.0,
        transfer_s=0.1,
    )


def program() -> Timeline:
    """A trip of a compiled program's loop: instructions of one device."""
    events = (
        Event(0.0, 1e-3, 0, "compute", "fusion", "a_very_long_name_of_a_fusion.1", -1, -1),
        Event(0.5e-3, 2e-3, 0, "transfer", "all-gather over ICI", "all-gather.1", -1, -1, peer=0),
        Event(2.5e-3, 1e-3, 0, "compute", "conditional", "conditional.1", -1, -1),
    )
    return Timeline("one of 3 trips of loop while.1", events, devices=1)


def gather() -> Timeline:
    """A collective: transfers only, with sizes."""
    own = tuple(Value("stripe", d, 0) for d in range(2))
    program = Program(
        ((Send(own[0], 1), Receive(own[1], 1)), (Send(own[1], 0), Receive(own[0], 0))),
        tuple((value,) for value in own),
    )
    return simulate_program(
        program,
        compute_s=lambda device, compute: 0.0,
        link=Link(bytes_per_s=1e9),
        size_bytes=lambda value: 3 * 2**20,
        name="all-gather",
    )
