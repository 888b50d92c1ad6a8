"""The notebooks of the tutorials run, and what is stored of them is what they show."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

nbclient = pytest.importorskip("nbclient", reason="needs pip install 'fairmile[notebooks]'")
nbformat = pytest.importorskip("nbformat", reason="needs pip install 'fairmile[notebooks]'")

ROOT = Path(__file__).parents[2]
NOTEBOOKS = [pytest.param(file, id=file.name) for file in sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))]
_KIND = re.compile(r"<(\w+)[: ]")


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def texts(cell: Any) -> list[str]:
    """Return what each output of a cell is at a prompt."""
    data = [output.get("data", {}).get("text/plain", "") for output in cell["outputs"]]
    return [text if isinstance(text, str) else "".join(text) for text in data]


def outline(cell: Any) -> list[tuple[str, str]]:
    """Return the kind of each output of a cell, and the class of what it shows; a bar that is over may be missing."""
    kinds = [output["output_type"] for output in cell["outputs"]]
    classes = [match[1] if (match := _KIND.match(text)) else "" for text in texts(cell)]
    return [(kind, name) for kind, name in zip(kinds, classes, strict=True) if kind != "display_data"]


@pytest.mark.parametrize("file", NOTEBOOKS)
def test_what_is_stored_was_executed_in_order_and_is_short(file: Path) -> None:
    cells = code_cells(json.loads(file.read_text(encoding="utf-8")))
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    for cell in cells:
        kinds = [output["output_type"] for output in cell["outputs"]]
        assert "stream" not in kinds, f"prints: {cell['outputs']}"
        assert ("error" in kinds) == ("raises-exception" in cell["metadata"].get("tags", []))
        assert [text for text in texts(cell) if _KIND.match(text) and len(text) > 200] == []
    errors = [output for cell in cells for output in cell["outputs"] if output["output_type"] == "error"]
    assert [len(each["traceback"]) for each in errors] == [3] * len(errors)  # line, message, hint


@pytest.mark.thorough
@pytest.mark.parametrize("file", NOTEBOOKS)
def test_a_notebook_runs_and_shows_what_is_stored(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ipykernel", reason="needs pip install 'fairmile[notebooks]'")
    folder = tmp_path / "docs" / file.parent.name
    shutil.copytree(ROOT / "docs" / "examples", tmp_path / "docs" / "examples")
    folder.mkdir()
    for name in [
        name
        for name in os.environ
        if name.startswith(("FAIRMILE", "XDG_CONFIG", "XDG_DATA", "XDG_STATE", "JUPYTER", "IPYTHON"))
    ]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    stored = nbformat.read(file, as_version=4)
    notebook = nbformat.read(file, as_version=4)
    nbclient.NotebookClient(
        notebook, timeout=500, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    ).execute()
    assert [outline(cell) for cell in code_cells(notebook)] == [outline(cell) for cell in code_cells(stored)]
