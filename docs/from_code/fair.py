"""The FAIR tests and indicators, with their weights."""

from __future__ import annotations

from fairmile.catalog.principles.facts import rules
from from_code.markdown import page, table


def fair_page() -> str:
    """Return the reference of the FAIR score."""
    tests = [
        (each["id"], each["title"], str(each["weight"]), each.get("points", ""), ", ".join(each["maps_to"]))
        for each in rules()["tests"]
    ]
    indicators = [(each["id"], each["statement"]) for each in rules()["indicators"]]
    return page(
        "FAIR tests",
        "`fairmile show NAME --fair` runs these tests. The score is the weighted share of points over the tests that "
        "apply. Tests about files count the share that passes. [FAIR score](../fair.md) says how to raise it.",
        "## Tests",
        table(["test", "passes if", "weight", "points", "related indicators"], tests),
        "## Indicators",
        "`--view indicators` judges the 47 indicators from the tests.",
        table(["indicator", "statement"], indicators),
    )
