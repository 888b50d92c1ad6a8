"""The FAIR tests, one file per letter; each reads the facts of a card and returns points and evidence."""

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
