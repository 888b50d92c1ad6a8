"""The lessons of the course as pages: as `make course` executed them, else without outputs; exercises stay empty."""

from __future__ import annotations

import json
from typing import Any

from fairmile.course.lessons import Lesson, lessons
from from_code.files import ROOT
from from_code.notebooks import notebook_page

BUILT = ROOT / "build" / "course"
_NOTE = "```{note}\nThis page was built without outputs: run `make course`, then `make docs`.\n```"


def course_pages() -> dict[str, str]:
    """Return the page of each lesson by its path."""
    return {f"course/{lesson.name}.md": _page(lesson) for lesson in lessons()}


def _page(lesson: Lesson) -> str:
    built = BUILT / f"{lesson.name}.ipynb"
    if built.exists():
        return notebook_page(_without_solutions(lesson, json.loads(built.read_text("utf-8"))))
    title, _, text = notebook_page(_without_solutions(lesson, lesson.solved())).partition("\n")
    return f"{title}\n\n{_NOTE}\n{text}"


def _without_solutions(lesson: Lesson, notebook: dict[str, Any]) -> dict[str, Any]:
    skeletons = lesson.skeletons()
    for cell in notebook["cells"]:
        exercise = cell["metadata"].get("exercise")
        if exercise:
            cell |= {"source": skeletons[exercise], "outputs": []}
        elif "fm.course.answer(" in "".join(cell["source"]):
            cell["outputs"] = []
    return notebook
