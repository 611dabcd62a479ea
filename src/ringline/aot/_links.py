"""How long a collective keeps the target's links busy, computation aside."""

from typing import Literal

from ringline.aot._target import Target


def transfer_s(
    target: Target, kind: str, link: Literal["ICI", "DCN"], size_bytes: float, group: int
) -> float:
    r"""Seconds of one collective on links that carry nothing else.

    With B bytes, a group of k devices and a rate W into a device: a permute takes $B / W$, an
    all-gather or reduce-scatter $B (k - 1) / (k W)$, an all-reduce twice that, an all-to-all
    what its mean way makes of it; and inside a slice the time of a message's hops. W is the
    share of a device in the network between slices; inside one it is one link for a permute,
    all that a ring through the slice uses for the others.

    Args:
        target: whose links.
        kind: the collective.
        link: which of its networks.
        size_bytes: B.
        group: k.
    """
    cluster, chip = target.cluster, target.cluster.chip
    if group < 2:
        return 0.0
    each = (group - 1) / group
    ways = {"all-reduce": 2 * each, "collective-permute": 1.0}
    if link == "DCN":
        rate = chip.dcn_bytes_per_s / target.devices_per_chip
        return size_bytes * ways.get(kind, each) / rate
    chips = max(2, min(group, cluster.chips_per_slice))
    if kind == "collective-permute":
        return size_bytes / (chip.link_bytes_per_s * cluster.links_per_edge) + chip.hop_latency_s
    rate = cluster.slice_bytes_per_s(chips) / target.devices_per_chip
    hops = cluster.mean_hops(chips)
    ways["all-to-all"] = ways["ragged-all-to-all"] = each * hops
    return size_bytes * ways.get(kind, each) / rate + chip.hop_latency_s * hops
