"""Pieces of Markdown as MyST reads it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; a bar or a line break inside a cell stays inside it."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(_cell(each) for each in line) + " |" for line in lines)


def code(text: object) -> str:
    return f"`{text}`"


def codes(texts: Iterable[object]) -> str:
    return ", ".join(code(each) for each in texts)


def directive(name: str, argument: str, body: str, *, depth: int = 3, in_contents: bool = True) -> str:
    """Return a directive; one that holds others needs more colons than they have."""
    fence = ":" * depth
    options = "" if in_contents else ":no-contents-entry:\n\n"
    return f"{fence}{{{name}}} {argument}\n{options}{body}\n{fence}"


def toctree(pages: Iterable[str]) -> str:
    return "```{toctree}\n:maxdepth: 1\n\n" + "\n".join(pages) + "\n```"


def page(title: str, *parts: str) -> str:
    return "\n\n".join([f"# {title}", *(part for part in parts if part)]) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
