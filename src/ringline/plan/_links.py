"""Where the axes of a layout lie on a cluster, and what communication over them costs."""

import math
from dataclasses import dataclass
from functools import lru_cache

from ringline.plan._calibration import Calibration
from ringline.plan._layout import Layout
from ringline.topology import Cluster

_DCN_LATENCY_S = 1e-4  # of a message between slices: an assumption, no published figure found


@dataclass(frozen=True, slots=True)
class Placement:
    """How many parts of each axis lie in different slices; the rest lies inside a slice.

    Attributes:
        stage: parts of the stage axis across slices.
        data: parts of the data axis across slices.
        fsdp: parts of the fsdp axis across slices.
    """

    stage: int = 1
    data: int = 1
    fsdp: int = 1


@dataclass(frozen=True, slots=True)
class Links:
    """Times of transfers and collectives on a cluster."""

    cluster: Cluster
    how: Calibration

    def gather_s(self, full_bytes: float, inside: int, across: int) -> float:
        r"""All-gather of `full_bytes` over `inside` chips of each of `across` slices.

        Inside: $\frac{k-1}{k} V / r$ and the latency of its hops. Across: every chip brings its
        share $V / k$ of the other slices' data through its own port. Both go on together; a
        reduce-scatter costs the same.
        """
        times = [0.0]
        if inside > 1:
            rate = self.cluster.slice_bytes_per_s(inside) * self.how.link_efficiency
            times.append((inside - 1) / inside * full_bytes / rate + self._latency_s(inside))
        times.append(self.across_s(full_bytes, inside, across))
        return max(times)

    def across_s(self, full_bytes: float, inside: int, across: int) -> float:
        """The part of such a gather that goes between slices."""
        if across == 1:
            return 0.0
        share = full_bytes / inside * (across - 1) / across
        return share / self.cluster.chip.dcn_bytes_per_s + _DCN_LATENCY_S

    def reduce_s(self, full_bytes: float, inside: int, across: int) -> float:
        """All-reduce: a reduce-scatter and an all-gather."""
        return 2 * self.gather_s(full_bytes, inside, across)

    def hop_s(self, size_bytes: float, *, across: bool) -> float:
        """One chip's send to a neighbour, inside a slice or across."""
        chip = self.cluster.chip
        if across:
            return size_bytes / chip.dcn_bytes_per_s + _DCN_LATENCY_S
        rate = chip.link_bytes_per_s * self.cluster.links_per_edge * self.how.link_efficiency
        return size_bytes / rate + chip.hop_latency_s

    def exchange_s(self, sent_bytes: float, inside: int, across: int) -> float:
        """All-to-all in which every chip sends `sent_bytes` in all."""
        times = [0.0]
        if inside > 1:
            rate = self.cluster.slice_bytes_per_s(inside) * self.how.link_efficiency
            share = (inside - 1) / inside * self.cluster.mean_hops(inside)
            times.append(sent_bytes * share / rate + self.cluster.chip.hop_latency_s)
        if across > 1:
            times.append(sent_bytes * (across - 1) / across / self.cluster.chip.dcn_bytes_per_s)
        return max(times)

    def _latency_s(self, chips: int) -> float:
        hops = 1 if self.cluster.chip.network == "switch" else chips - 1
        return self.how.collective_s + self.cluster.chip.hop_latency_s * hops


def placements(layout: Layout, cluster: Cluster) -> tuple[Placement, ...]:
    """The ways to lay the slices along the axes, each axis in turn taking what it can."""
    return _placements(layout.stages, layout.data, layout.fsdp, cluster.slices)


@lru_cache(maxsize=4096)
def _placements(stages: int, data: int, fsdp: int, slices: int) -> tuple[Placement, ...]:
    sizes = {"stage": stages, "data": data, "fsdp": fsdp}
    found: dict[Placement, None] = {}
    for order in (("stage", "data", "fsdp"), ("data", "stage", "fsdp"), ("fsdp", "data", "stage")):
        left = slices
        parts = {}
        for axis in order:
            parts[axis] = math.gcd(sizes[axis], left)
            left //= parts[axis]
        if left == 1:
            found[Placement(**parts)] = None
    return tuple(found)
