"""The list of attacks in the documentation: each line names a test."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_attack_has_a_test() -> None:
    page = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("- ")]
    named = [re.findall(r" \(`(test_\w+)`\)$", row) for row in rows]
    assert len(rows) > 50 and all(len(names) == 1 for names in named)
    files = [*ROOT.glob("tests/web/*.py"), *ROOT.glob("tests/access/*.py")]
    there = {name for file in files for name in re.findall(r"def (test_\w+)", file.read_text())}
    assert {name for names in named for name in names} <= there
