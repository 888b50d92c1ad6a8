"""The tree and the layers that the page on architecture draws are those of the code."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def text_blocks() -> list[str]:
    page = (ROOT / "docs" / "concepts" / "architecture.md").read_text(encoding="utf-8")
    return re.findall(r"```text\n(.*?)```", page, re.DOTALL)


def drawn() -> set[str]:
    block = next(text for text in text_blocks() if "src/fairmile/" in text)
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


def test_the_layers_are_those_that_imports_keep_to() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    layers = next(each["layers"] for each in contracts if each["type"] == "layers")
    assert "\n".join(layers).replace("fairmile.", "") + "\n" in text_blocks()
