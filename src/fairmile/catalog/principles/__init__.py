"""The FAIR tests, one file a letter; each test reads the facts of a card and says how far it gets and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fairmile.catalog.principles import accessible, findable, interoperable, reusable
from fairmile.catalog.principles.facts import Facts, Part, Surroundings, Verdict, rules

CHECKS: Mapping[str, Callable[[Facts], Verdict]] = {
    **findable.CHECKS,
    **accessible.CHECKS,
    **interoperable.CHECKS,
    **reusable.CHECKS,
}

__all__ = ["CHECKS", "Facts", "Part", "Surroundings", "Verdict", "rules"]
