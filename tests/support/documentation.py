"""The pages of the documentation that are written by hand, and the blocks in them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
_FOLDERS = ("", "tutorials", "concepts", "extend", "figures")  # the others hold what is written from the code
PAGES = [ROOT / "README.md", *(page for each in _FOLDERS for page in sorted((ROOT / "docs" / each).glob("*.md")))]
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str) -> list[str]:
    """Return the blocks of a page in a language."""
    return [body for name, body in _BLOCK.findall(page.read_text(encoding="utf-8")) if name == language]


def steps(block: str) -> list[tuple[str, list[str]]]:
    """Split a console block into commands and the output lines shown under each."""
    found: list[tuple[str, list[str]]] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif found and line.strip():
            found[-1][1].append(line.strip())
    return found


def shown_commands() -> set[str]:
    """Return what pages type after `fairmile`; examples lie beside the user, as in the help."""
    typed = (command for page in PAGES for block in blocks(page, "console") for command, _ in steps(block))
    return {each.removeprefix("fairmile ").replace("docs/examples/", "") for each in typed}
