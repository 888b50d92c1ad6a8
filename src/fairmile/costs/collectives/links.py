"""What bytes travel over: one connection as latency and bandwidth, and how a node's ranks are wired to each other."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

from fairmile.base.errors import UsageError
from fairmile.base.quick_dataclass import dataclass

Kind = Literal["NVSwitch", "all to all", "cube mesh", "PCIe", "fat tree", "shared memory"]


@dataclass(frozen=True)
class Link:
    """A connection by the model of Hockney, or of LogGP where `gap_s` is known.

    A message of n bytes arrives after alpha + n beta. A sender may begin its next message after gap + n beta, where
    Hockney's model has gap = alpha: it is busy until the message has arrived.
    """

    alpha_s: float
    beta_s_per_byte: float
    gamma_s_per_byte: float = 0.0  # of reducing one byte into another
    gap_s: float | None = None
    eager_limit_bytes: float = math.inf  # above it a message waits for one round trip before it leaves

    def __post_init__(self) -> None:
        for name in ("alpha_s", "beta_s_per_byte", "gamma_s_per_byte"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise UsageError(f"{name} of a link is {value!r}, expected a number that is not negative")

    @property
    def bytes_per_s(self) -> float:
        return 1.0 / self.beta_s_per_byte if self.beta_s_per_byte else math.inf

    def message_s(self, size_bytes: float) -> float:
        """Return the time from the begin of sending to the arrival of the last byte."""
        handshake_s = 2 * self.alpha_s if size_bytes > self.eager_limit_bytes else 0.0
        return self.alpha_s + handshake_s + size_bytes * self.beta_s_per_byte

    def interval_s(self, size_bytes: float) -> float:
        """Return the time after which the same sender can begin another message that does not depend on this one."""
        if self.gap_s is None:
            return self.message_s(size_bytes)
        return self.gap_s + size_bytes * self.beta_s_per_byte

    def reduced_s(self, size_bytes: float) -> float:
        """Return the time until a message has arrived and is reduced into what the receiver has."""
        return self.message_s(size_bytes) + size_bytes * self.gamma_s_per_byte

    def shared_by(self, streams: float) -> Link:
        """Return the link as one of several senders at once sees it."""
        return replace(self, beta_s_per_byte=self.beta_s_per_byte * max(1.0, streams))


@dataclass(frozen=True)
class Topology:
    """Nodes of equally many ranks: `intra` is what one rank sends with inside its node, `inter` one network adapter.

    `rails` counts the adapters of a node. With more ranks than rails a rank gets its share of them.
    """

    ranks_per_node: int
    intra: Link
    inter: Link
    kind: Kind = "fat tree"
    rails: int = 1

    def __post_init__(self) -> None:
        if self.ranks_per_node < 1 or self.rails < 1:
            raise UsageError(
                f"a node has {self.ranks_per_node} ranks and {self.rails} adapters, expected at least one of each"
            )

    def nodes(self, ranks: int) -> int:
        """Return how many nodes so many ranks fill."""
        return -(-ranks // self.ranks_per_node)

    def spread(self, ranks: int, nodes: int) -> Topology:
        """Return the same wiring with these ranks spread evenly over so many nodes."""
        return replace(self, ranks_per_node=max(1, -(-ranks // nodes)))

    @property
    def inter_shared(self) -> Link:
        """The network as each rank of a node sees it when all of them send at once."""
        return self.inter.shared_by(self.ranks_per_node / self.rails)

    @property
    def inter_ring(self) -> Link:
        """The network as rings that enter and leave a node once see it: they use all adapters in turn."""
        used = min(self.rails, self.ranks_per_node)
        beta = self.inter.beta_s_per_byte / used
        if self.ranks_per_node > 1:
            beta = max(beta, self.intra.beta_s_per_byte)
        return replace(self.inter, beta_s_per_byte=beta)
