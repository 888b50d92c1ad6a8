"""Files of the repository outside the documentation that are pages of the site, and the links to them."""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[2]
_LINK = re.compile(r"(?<=\]\()([^)\s#:]+)(?=[)#])")


def _pages() -> dict[str, str]:
    suite = "src/fairmile/benchmarks/suite"
    benchmarks = sorted((ROOT / suite).glob("*/README.md"))
    return {
        "CONTRIBUTING.md": "about/contributing.md",
        "CHANGELOG.md": "about/changes.md",
        **{f"{suite}/{file.parent.name}/README.md": f"benchmarks/{file.parent.name}.md" for file in benchmarks},
    }


PAGES = _pages()
_SOURCES = {page: file for file, page in PAGES.items()}


def file_pages() -> dict[str, str]:
    """Return the pages by path, as their files have them."""
    return {page: (ROOT / file).read_text(encoding="utf-8") for file, page in PAGES.items()}


def link_pages(page: str, text: str) -> str:
    """Return a page with its links to files of the repository leading to their pages."""
    source = PurePosixPath(_SOURCES.get(page, f"docs/{page}"))

    def lead(match: re.Match[str]) -> str:
        target = os.path.normpath(source.parent / match[0])
        inside = PAGES.get(target) or (target.removeprefix("docs/") if target.startswith("docs/") else "")
        return os.path.relpath(inside, PurePosixPath(page).parent) if inside else match[0]

    return _LINK.sub(lead, text)
