"""Pages of the documentation that are written from the code: nothing in them can name what does not exist."""

from __future__ import annotations

from pathlib import Path

from from_code.calls import calls_page
from from_code.cards import card_page
from from_code.commands import command_pages
from from_code.course import course_pages
from from_code.fair import fair_page
from from_code.files import file_pages
from from_code.plugins import plugin_page
from from_code.python import python_pages
from from_code.schemas import schema_page
from from_code.settings import settings_page
from from_code.systems import system_page
from from_code.tree import tree_page


def reference_pages() -> dict[str, str]:
    """Return every generated page by its path below the documentation."""
    return {
        **python_pages(),
        **command_pages(),
        **course_pages(),
        **file_pages(),
        "reference/settings.md": settings_page(),
        "reference/schemas.md": schema_page(),
        "reference/cards.md": card_page(),
        "reference/commands-and-calls.md": calls_page(),
        "reference/fair.md": fair_page(),
        "reference/systems.md": system_page(),
        "reference/plugins.md": plugin_page(),
        "reference/tree.md": tree_page(),
    }


def write_reference(docs: Path) -> None:
    """Write the generated pages and remove those of earlier times; a page that stays the same keeps its date."""
    pages = reference_pages()
    for path, text in pages.items():
        file = docs / path
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")
    for folder in ("reference/python", "reference/commands", "benchmarks", "course", "about"):
        for file in (docs / folder).glob("*.md"):
            if f"{folder}/{file.name}" not in pages:
                file.unlink()
