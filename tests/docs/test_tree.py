"""The layers that the page on architecture draws are those of the code, and every part of the code says what it is."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_every_folder_and_module_of_the_package_is_in_the_tree_with_its_purpose(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs")
    from from_code.tree import tree_page

    rows = dict(re.findall(r"^\| `([\w./]+)` \| (.*) \|$", tree_page(), re.MULTILINE))
    top = ROOT / "src" / "fairmile"
    folders = {f"{file.parent.name}/" for file in top.glob("*/__init__.py")}
    modules = {path.name for path in top.glob("*.py") if not path.name.startswith("__")}
    assert folders | modules <= set(rows)
    assert [path for path, purpose in rows.items() if len(purpose) < 15] == []


def test_the_layers_are_those_that_imports_keep_to() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    layers = next(each["layers"] for each in contracts if each["type"] == "layers")
    page = (ROOT / "docs" / "concepts" / "architecture.md").read_text(encoding="utf-8")
    assert "\n".join(layers).replace("fairmile.", "") + "\n" in re.findall(r"```text\n(.*?)```", page, re.DOTALL)
