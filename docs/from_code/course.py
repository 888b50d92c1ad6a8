"""The lessons of the course as pages: as `make course` executed them, else as their texts; exercises stay empty."""

from __future__ import annotations

import json
import re
from typing import Any

from fairmile.course.lessons import Lesson, lessons
from from_code.files import ROOT
from from_code.notebooks import notebook_page

BUILT = ROOT / "build" / "course"
_FRONT = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)
_CELL = re.compile(r"^```\{code-cell\} ipython3\n(?:---\n(.*?)\n---\n)?(.*?)\n```$", re.MULTILINE | re.DOTALL)
_START = re.compile(r'^exercise: "([\d.]+)"\nstart: \|\n((?:  .*(?:\n|\Z))+)', re.MULTILINE)


def course_pages() -> dict[str, str]:
    """Return the page of each lesson by its path."""
    return {f"course/{lesson.name}.md": _page(lesson) for lesson in lessons()}


def _page(lesson: Lesson) -> str:
    built = BUILT / f"{lesson.name}.ipynb"
    if built.exists():
        return notebook_page(_without_solutions(lesson, json.loads(built.read_text("utf-8"))))
    return _CELL.sub(_shown, _FRONT.sub("", lesson.text))


def _shown(cell: re.Match[str]) -> str:
    start = _START.search(cell[1] or "")
    return f"```python\n{_dedented(start[2]) if start else cell[2]}\n```"


def _without_solutions(lesson: Lesson, notebook: dict[str, Any]) -> dict[str, Any]:
    starts = {name: _dedented(text) for name, text in _START.findall(lesson.text)}
    for cell in notebook["cells"]:
        exercise = cell["metadata"].get("exercise")
        if exercise:
            cell |= {"source": starts[exercise], "outputs": []}
        elif "fm.course.answer(" in "".join(cell["source"]):
            cell["outputs"] = []
    return notebook


def _dedented(text: str) -> str:
    return "\n".join(line.removeprefix("  ") for line in text.rstrip().splitlines())
