"""How much one archive may unpack to, wherever it is unpacked."""

from __future__ import annotations

from fairmile.base.quick_dataclass import dataclass
from fairmile.base.units import format_size


@dataclass(frozen=True)
class Limits:
    """How much one archive may unpack to.

    More than `ratio` bytes for each packed byte are taken for a trap, but only beyond `ratio_from_bytes`.
    """

    total_bytes: int = 16 << 40
    files: int = 10_000_000
    ratio: float = 200.0
    ratio_from_bytes: int = 1 << 30

    def excess(self, size_bytes: int, packed_bytes: int) -> str:
        """Return in words which limit a content of this size breaks; empty where it breaks none."""
        if size_bytes > self.total_bytes:
            return self.total_excess(size_bytes)
        if size_bytes > self.ratio_from_bytes and size_bytes > self.ratio * packed_bytes:
            return f"its content is more than {self.ratio:g} times as large as the archive"
        return ""

    def total_excess(self, size_bytes: int) -> str:
        """Return in words that a content of this size is too large as such; empty where it is not."""
        return f"it holds more than {format_size(self.total_bytes)}" if size_bytes > self.total_bytes else ""
