"""The all-gather on a ring and on a line, and on those of hosts with two devices each."""

from ringline.schedule._collective import CollectiveSchedule
from ringline.schedule._on_rails import on_rails
from ringline.schedule._transfer import DOWN, UP, Transfer, in_order
from ringline.topology import Ladder, Line, Rails, Ring


def all_gather(
    topology: Ring | Line | Rails, *, directions: int = 2, channels: int = 1
) -> CollectiveSchedule:
    r"""Each device's stripe travels to all others, from neighbour to neighbour.

    With n devices and stripes of S bytes:

    | topology | directions | steps | busiest directed link |
    |---|---|---|---|
    | ring | 1 | n - 1 | (n - 1) S |
    | ring | 2 | ceil((n - 1) / 2) | (n - 1) S / 2 |
    | line | 2 | n - 1 | (n - 1) S |
    | line | 1 | 2 (n - 1) | (n - 1) S |

    A ring with two directions sends each stripe half of the way round each way; for even n the
    device opposite is equally far both ways, so its stripe is cut in two and each half takes one.
    A line needs both directions: with `directions=2` they run at once, with `directions=1` the
    sweep up comes first and the sweep down after it. Device d sends d + 1 stripes up and n - d
    down, and none past an end. Two devices have one link between them: a line of one step
    whatever the directions. One device has nothing to do.

    `Ladder` and `Rails` are h hosts with two devices each, for devices that send one way at a time:

    | topology | steps | busiest directed link between hosts | on each device |
    |---|---|---|---|
    | ring-rails | h - 1 | (h - 1) S | the stripes of its own rail |
    | line-rails | 2 (h - 1) | 2 (h - 1) S | the same |
    | ring-ladder | h | (h - 1) S | all stripes, half of them from across |
    | line-ladder | 2 h - 1 | 2 (h - 1) S | the same |

    Rail 0 is the ring (or line) of hosts with one direction; rail 1 is its mirror image, so that
    the two never send the same way and both directions of every link work at once. A ladder has as
    many channels again, for what goes across.

    Args:
        topology: ring or line of n devices, or rails or a ladder of h hosts.
        directions: 1 or 2, how many directions of a link work at the same time.
        channels: independent queues of each directed link; a stripe is spread over them.

    Returns:
        The schedule, with `channels` pieces in a stripe (twice that where a stripe is halved).

    Raises:
        ValueError: when directions is not 1 or 2, or 1 on rails, or channels is under 1.

    Example:
        >>> print(all_gather(Ring(4), directions=2))
        all-gather on a ring of 4, 2 directions, 1 channel: 2 steps, 1.5 stripes on the busiest link
        device 0 | >0 <0 >3[0:1] <1[1:2]
        device 1 | >1 <1 >0[0:1] <2[1:2]
        device 2 | >2 <2 >1[0:1] <3[1:2]
        device 3 | >3 <3 >2[0:1] <0[1:2]

    References:
        Chan, Heimlich, Purkayastha, van de Geijn, "Collective communication: theory, practice,
        and experience" (2007): the bucket algorithms.
    """
    if directions not in (1, 2):
        raise ValueError(f"directions must be 1 or 2, got {directions!r}")
    if channels < 1:
        raise ValueError(f"channels must be at least 1, got {channels!r}")
    if isinstance(topology, Rails):
        if directions == 1:
            raise ValueError(f"a {topology.name} works both ways at once, got 1; use directions=2")
        hosts = all_gather(topology.hosts, directions=1, channels=channels)
        pieces, transfers = hosts.pieces, on_rails(topology, hosts.transfers, channels)
        channels *= 2 if isinstance(topology, Ladder) else 1
    elif isinstance(topology, Ring) and topology.devices > 2:
        pieces, transfers = _ring(topology.devices, directions, channels)
    else:
        pieces, transfers = channels, _line(topology.devices, directions, channels)
    return CollectiveSchedule(
        name="all-gather",
        topology=topology,
        directions=directions,
        channels=channels,
        pieces=pieces,
        transfers=in_order(transfers),
    )


def _ring(devices: int, directions: int, channels: int) -> tuple[int, list[Transfer]]:
    halved = directions == 2 and devices % 2 == 0
    share = 2 if halved else 1
    steps = devices // 2 if directions == 2 else devices - 1
    transfers = []
    for step in range(steps):
        for direction in (UP, DOWN)[:directions]:
            # The last hop of an even ring ends at the opposite device: half from each side.
            half = halved and step == steps - 1
            skip = 1 if half and direction == DOWN else 0
            count = 1 if half else share
            for source in range(devices):
                stripe = (source - direction * step) % devices
                for channel in range(channels):
                    first = channel * share + skip
                    transfers.append(
                        Transfer(step, source, direction, channel, stripe, first, first + count)
                    )
    return channels * share, transfers


def _line(devices: int, directions: int, channels: int) -> list[Transfer]:
    transfers = []
    for direction in (UP, DOWN):
        # Two devices have nothing to pass on: neither of them uses its link both ways.
        later = directions == 1 and direction == DOWN and devices > 2
        start = devices - 1 if later else 0
        for source in range(devices):
            if not 0 <= source + direction < devices:
                continue
            behind = source if direction == UP else devices - 1 - source
            for hop in range(behind + 1):
                for channel in range(channels):
                    stripe = source - direction * hop
                    transfers.append(
                        Transfer(
                            start + hop, source, direction, channel, stripe, channel, channel + 1
                        )
                    )
    return transfers
