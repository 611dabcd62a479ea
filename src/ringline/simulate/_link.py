"""What one transfer costs on a link between neighbours."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Link:
    """One direction of a link, seen by one channel: it carries one transfer at a time, in order.

    A transfer of b bytes keeps the channel busy for

        transfer_s + b / bytes_per_s

    and arrives `latency_s` after that. The latency is on the wire, so the next transfer may
    already be under way meanwhile; the busy time is not, so transfers queue behind each other.

    Attributes:
        transfer_s: busy time of any transfer, whatever its size.
        latency_s: time on the wire.
        bytes_per_s: rate of the channel.

    Example:
        >>> Link(latency_s=1e-6, bytes_per_s=12.5e9).busy_s(125_000)
        1e-05
    """

    transfer_s: float = 0.0
    latency_s: float = 0.0
    bytes_per_s: float = math.inf

    def __post_init__(self):
        for name in ("transfer_s", "latency_s"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise ValueError(f"{name} must be a finite time >= 0, got {value}; change {name}")
        if not self.bytes_per_s > 0:
            raise ValueError(
                f"bytes_per_s must be > 0, got {self.bytes_per_s}; use math.inf for no limit"
            )

    def busy_s(self, size_bytes: int) -> float:
        """How long a transfer of `size_bytes` keeps the channel."""
        return self.transfer_s + size_bytes / self.bytes_per_s
