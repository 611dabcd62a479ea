"""The sends of hosts with two devices each, from those of a ring or line of hosts."""

from collections.abc import Iterable

from ringline.schedule._transfer import ACROSS, Transfer
from ringline.topology import Ladder, Rails


def on_rails(topology: Rails, transfers: Iterable[Transfer], channels: int) -> list[Transfer]:
    """Both rails' sends: `transfers` on rail 0, and on rail 1 their mirror image.

    Where rail 0 sends up, rail 1 sends down at the same time, so each step keeps both directions of
    the links busy. On a ladder each device also hands what it has to the other one of its host: its
    own stripe first, then every arrival in the step after it. That is on channels of its own, so
    no packet turns a corner from slot to slot, and rings of queues stay on one rail.

    Args:
        topology: rails or a ladder.
        transfers: of an all-gather over `topology.hosts` that uses one direction at a time, so
            that each channel has one piece of every stripe.
        channels: how many.
    """
    sends = [
        sent
        for transfer in transfers
        for sent in (_on_rail(topology, transfer, rail) for rail in range(2))
    ]
    return sends + (_across(topology, sends, channels) if isinstance(topology, Ladder) else [])


def _on_rail(topology: Rails, transfer: Transfer, rail: int) -> Transfer:
    last = topology.hosts.devices - 1
    mirrored = rail == 1

    def device(host: int) -> int:
        return 2 * (last - host if mirrored else host) + rail

    return transfer._replace(
        source=device(transfer.source),
        direction=-transfer.direction if mirrored else transfer.direction,
        stripe=device(transfer.stripe),
    )


def _across(topology: Ladder, sends: list[Transfer], channels: int) -> list[Transfer]:
    own = [
        Transfer(0, device, ACROSS, channels + channel, device, channel, channel + 1)
        for device in range(topology.devices)
        for channel in range(channels)
    ]
    arrivals = []
    for sent in sends:
        target = topology.neighbour(sent.source, sent.direction)
        assert target is not None, sent
        arrivals.append(
            sent._replace(
                step=sent.step + 1,
                source=target,
                direction=ACROSS,
                channel=channels + sent.channel,
            )
        )
    return own + arrivals
