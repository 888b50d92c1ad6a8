"""The source tree, each folder and module with the first sentence of its docstring."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from from_code.files import ROOT
from from_code.markdown import code, page, table

_PACKAGE = ROOT / "src" / "fairmile"
_DEPTH = 2  # folders below that are details of their parents


def tree_page() -> str:
    return page(
        "Source tree",
        "Below `src/fairmile`. `tests/` mirrors the tree, `speed/` measures against peers, `demo/` holds the scripts "
        "of `make demo`. [Extend](../extend/index.md) shows where a new format, scheduler or command goes.",
        table(["path", "contents"], _rows()),
    )


def _rows() -> Iterator[tuple[str, str]]:
    modules = sorted(each for each in _PACKAGE.glob("*.py") if not each.name.startswith("__"))
    packages = sorted(each.parent for each in _PACKAGE.rglob("__init__.py") if each.parent != _PACKAGE)
    for file in modules:
        yield code(file.name), _first_sentence(file)
    for folder in packages:
        path = folder.relative_to(_PACKAGE)
        if len(path.parts) <= _DEPTH:
            yield code(f"{path.as_posix()}/"), _first_sentence(folder / "__init__.py")


def _first_sentence(file: Path) -> str:
    docstring = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return docstring.partition("\n\n")[0]
