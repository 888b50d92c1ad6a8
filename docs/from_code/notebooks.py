"""Executed notebooks as pages: their texts, their code and what it showed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from docutils import nodes
from myst_parser.parsers.sphinx_ import MystParser

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class NotebookParser(MystParser):
    """Reads a notebook as the Markdown that it amounts to."""

    supported = ("notebook",)

    def parse(self, inputstring: str, document: nodes.document) -> None:
        super().parse(notebook_page(json.loads(inputstring)), document)


def notebook_page(notebook: dict[str, Any]) -> str:
    """Return a notebook as Markdown; what its cells showed is as it was when it was executed."""
    return "\n\n".join(part for cell in notebook["cells"] for part in _cell(cell)) + "\n"


def _cell(cell: dict[str, Any]) -> Iterator[str]:
    text = "".join(cell["source"]).strip()
    if cell["cell_type"] == "markdown":
        yield text
        return
    yield _block("python", text)
    for output in cell["outputs"]:
        yield _output(output)


def _output(output: dict[str, Any]) -> str:
    if output["output_type"] == "stream":
        return _block("text", "".join(output["text"]))
    if output["output_type"] == "error":
        return _block("text", _COLOUR.sub("", "\n".join(output["traceback"])))
    shown = output["data"]
    for kind in ("text/html", "image/svg+xml"):
        if kind in shown:
            return _block("{raw} html", f'<div class="cell-output">{"".join(shown[kind])}</div>')
    if "image/png" in shown:
        data = "".join(shown["image/png"]).replace("\n", "")
        return _block(
            "{raw} html", f'<div class="cell-output"><img alt="figure" src="data:image/png;base64,{data}"></div>'
        )
    return _block("text", "".join(shown["text/plain"]))


def _block(language: str, text: str) -> str:
    fence = "`" * max(3, *(len(ticks) + 1 for ticks in re.findall("`+", text)), 3)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"
