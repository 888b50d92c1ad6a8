"""What a user declares of values that weights decide, where nobody can know them before a training."""

from __future__ import annotations

from collections.abc import Sequence

from fairmile.base.errors import UsageError
from fairmile.base.quick_dataclass import dataclass

FACTS = "balanced-routing, selected=SHARE"


@dataclass(frozen=True)
class Assumptions:
    """Declared facts; where one is missing, random values decide."""

    selected: float | None = None  # share of elements that masks select
    is_balanced: bool = False  # whether a router gives every expert as many words

    @property
    def words(self) -> str:
        """Say in a clause what was assumed."""
        facts = ["balanced routing"] if self.is_balanced else []
        if self.selected is not None:
            facts.append(f"masks that select {self.selected:.0%}")
        facts = facts or ["random values"]
        return f"{' and '.join(facts)} {'was' if facts == ['balanced routing'] else 'were'} assumed"


def parse_assumptions(facts: Sequence[str]) -> Assumptions:
    """Return what facts such as `balanced-routing` and `selected=0.15` declare."""
    selected, is_balanced = None, False
    for fact in facts:
        name, _, value = fact.partition("=")
        if fact == "balanced-routing":
            is_balanced = True
        elif name == "selected":
            selected = _share(fact, value)
        else:
            raise UsageError(f"cannot assume {fact!r}", hint=f"known facts are {FACTS}")
    return Assumptions(selected, is_balanced)


def _share(fact: str, value: str) -> float:
    try:
        share = float(value)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise UsageError(f"cannot assume {fact!r}", hint="use a share from 0 to 1, as in selected=0.15")
    return share
