"""The reduce-scatter and the all-reduce on a ring and on a line."""

from ringline.schedule._all_gather import all_gather
from ringline.schedule._collective import CollectiveSchedule
from ringline.topology import Line, Rails, Ring


def reduce_scatter(
    topology: Ring | Line | Rails, *, directions: int = 2, channels: int = 1
) -> CollectiveSchedule:
    r"""Partial sums of each stripe travel to the device that owns it, growing on the way.

    It is the all-gather backwards, so steps and bytes on each link are the all-gather's: where
    that spreads a stripe from its owner, this collects the terms from the farthest devices first.

    The order of summation is part of the schedule. With $a_i$ device i's term of stripe d and all
    indices taken round the ring, the owner d ends with

    $$ s_d = (a_d + (a_{d-1} + (a_{d-2} + \ldots))) + (a_{d+1} + (a_{d+2} + \ldots)) $$

    where the first bracket came up, from the devices before d, and the second came down. On a
    ring with two directions each brings half of the devices; for even n the opposite device's term
    comes down for the first half of every channel's share of a stripe, and up for the second half.
    On a ring with one direction all terms come down. On a line, devices 0 to d - 1 come up and the
    rest down. So the order is the same on every device, counted in hops from the owner, and
    does not depend on timing.

    On rails the hosts take the place of devices: rail 0 sums as a ring with one direction or a line
    does, rail 1 as its mirror image. On a ladder $a_{i'}$, the term of the other device of device
    i's host, is added after what device i had from along the rail.

    Args:
        topology: ring or line of n devices, or rails or a ladder of hosts with two each.
        directions: 1 or 2, how many directions of a link work at the same time.
        channels: independent queues of each directed link; a stripe is spread over them.

    Returns:
        The schedule, with `channels` pieces in a stripe (twice that where a stripe is halved).

    Raises:
        ValueError: when directions is not 1 or 2, or 1 on rails, or channels is under 1.

    Example:
        >>> print(reduce_scatter(Ring(3)))
        reduce-scatter on a ring of 3, 2 directions, 1 channel: 1 step, 1 stripe on the busiest link
        device 0 | >p1 <p2
        device 1 | >p2 <p0
        device 2 | >p0 <p1

    References:
        Chan, Heimlich, Purkayastha, van de Geijn, "Collective communication: theory, practice,
        and experience" (2007): the bucket algorithms.
    """
    return all_gather(topology, directions=directions, channels=channels).transposed()


def all_reduce(
    topology: Ring | Line | Rails, *, directions: int = 2, channels: int = 1
) -> CollectiveSchedule:
    """The reduce-scatter, then the all-gather of the sums.

    With n devices and stripes of S bytes it takes the steps of both. Each directed link carries
    (n - 1) S on a ring (with `directions=1` the terms come down and the sums go up) and n S on a
    line. A sum is formed on one device, in the order of `reduce_scatter`, and copied: every device
    ends with the same bits.

    Args:
        topology: ring or line of n devices, or rails or a ladder of hosts with two each.
        directions: 1 or 2, how many directions of a link work at the same time.
        channels: independent queues of each directed link; a stripe is spread over them.

    Returns:
        The schedule, with `channels` pieces in a stripe (twice that where a stripe is halved).

    Raises:
        ValueError: when directions is not 1 or 2, or 1 on rails, or channels is under 1.

    Example:
        >>> print(all_reduce(Line(3)))
        all-reduce on a line of 3, 2 directions, 1 channel: 4 steps, 3 stripes on the busiest link
        device 0 | >p2 >p1     >0    .
        device 1 | .   >p2 <p0 >1 <1 >0 <2
        device 2 | <p0 <p1     <2    .
    """
    gather = all_gather(topology, directions=directions, channels=channels)
    reduce = gather.transposed()
    began = reduce.steps
    later = [t._replace(step=t.step + began) for t in gather.transfers]
    return CollectiveSchedule(
        name="all-reduce",
        topology=topology,
        directions=directions,
        channels=gather.channels,
        pieces=gather.pieces,
        transfers=(*reduce.transfers, *later),
    )
