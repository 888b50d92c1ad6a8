"""The tree drawn in the README is the tree of the code."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def drawn() -> set[str]:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    block = next(text for text in re.findall(r"```text\n(.*?)```", readme, re.DOTALL) if "src/fairmile/" in text)
    folders: list[str] = []
    found = set()
    for line in block.splitlines():
        match = re.match(r"^( *)([\w./]+/?)(?: |$)", line)
        if not match:
            continue
        depth, name = len(match.group(1)) // 2, match.group(2)
        folders[depth:] = [name]
        found.add("".join(folders) if all(part.endswith("/") for part in folders[:-1]) else name)
    return found


def real(entry: str) -> bool:
    return (ROOT / entry).exists()


def test_everything_drawn_exists() -> None:
    assert [entry for entry in sorted(drawn()) if not real(entry)] == []


def test_every_folder_and_module_of_the_package_is_drawn() -> None:
    top = ROOT / "src" / "fairmile"
    folders = {f"src/fairmile/{path.name}/" for path in top.iterdir() if path.is_dir() and path.name != "__pycache__"}
    modules = {f"src/fairmile/{path.name}" for path in top.glob("*.py") if path.name != "__main__.py"}
    assert folders | modules <= drawn()
