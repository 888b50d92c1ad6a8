"""Lessons as text: MyST Markdown in `lessons/NN-name.md`, from which notebooks are made and never edited back.

The notebooks are those that jupytext makes of the text; reading the few forms that lessons use takes a hundredth of
the time of importing it.

An exercise is a code cell with the metadata `exercise: "N.M"` and `start`, what a learner finds there; the source of
the cell is the model solution. The next cell is `fm.course.answer("N.M", value)`. Exercises stand behind everything
else of a lesson, so that no other cell depends on an answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from fairmile.base.errors import NotFound, SystemFailure, UsageError
from fairmile.base.files import write_atomic
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.words import did_you_mean
from fairmile.base.yaml import load

TEXTS = Path(__file__).with_name("lessons")
FILES = Path(__file__).with_name("files")
_HEADING = re.compile(r"^# (.+)$", re.MULTILINE)
_EXERCISE = re.compile(r'^exercise: "([\d.]+)"$', re.MULTILINE)
_CODE = re.compile(r"^```\{code-cell\}[^\n]*\n(?:---\n(.*?)^---\n)?(.*?)^```$", re.DOTALL | re.MULTILINE)
_FRONT = re.compile(r"---\n(.*?)\n---\n", re.DOTALL)
_ANSWERED = re.compile(r"""fm\.course\.answer\(\s*["']([\d.]+)["']""")
LONGEST_S = 300  # for one cell of a learner; the longest of a model solution takes a few seconds


@dataclass(frozen=True)
class Lesson:
    """One lesson, by its text."""

    file: Path

    @property
    def name(self) -> str:
        """Its file name without suffix, such as `02-run`."""
        return self.file.stem

    @property
    def number(self) -> int:
        return int(self.name.partition("-")[0])

    @cached_property
    def text(self) -> str:
        return self.file.read_text(encoding="utf-8")

    @property
    def title(self) -> str:
        match = _HEADING.search(self.text)
        return match[1].partition(" ")[2] if match else self.name

    @property
    def exercises(self) -> tuple[str, ...]:
        """The names of its exercises, such as `2.1`."""
        return tuple(_EXERCISE.findall(self.text))

    @property
    def needs(self) -> dict[str, str]:
        """The modules that it needs, and the extra that installs each."""
        return {str(module): str(extra) for module, extra in self._own.get("needs", {}).items()}

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that lie beside its notebook."""
        return tuple(FILES / name for name in self._own.get("files", ()))

    @property
    def _own(self) -> dict[str, Any]:
        return dict(self._front.get("fairmile") or {})

    @cached_property
    def _front(self) -> dict[str, Any]:
        match = _FRONT.match(self.text)
        return dict(load(match[1], file=str(self.file))) if match else {}

    def solved(self) -> dict[str, Any]:
        """Return the notebook with the model solutions."""
        notebook = self._notebook()
        for cell in notebook["cells"]:
            cell["metadata"].pop("start", None)
        return notebook

    def skeletons(self) -> dict[str, str]:
        """Return what a learner finds in the cell of each exercise."""
        marked = [each["metadata"] for each in self._notebook()["cells"] if "exercise" in each["metadata"]]
        return {metadata["exercise"]: metadata["start"].strip() for metadata in marked}

    def with_answers(self, answers: Mapping[str, str]) -> dict[str, Any]:
        """Return the notebook with these sources of exercises; any other stays empty.

        What such a cell raises does not end the lesson, and one that takes too long is interrupted.
        """
        notebook, skeletons = self.solved(), self.skeletons()
        for cell, following in pairwise(notebook["cells"]):
            exercise = cell["metadata"].get("exercise")
            if exercise:
                cell["source"] = answers.get(exercise, skeletons[exercise])
                cell["metadata"]["tags"] = following["metadata"]["tags"] = ["raises-exception"]
                cell["metadata"]["time_s"] = LONGEST_S
        return notebook

    def _notebook(self) -> dict[str, Any]:
        front = _FRONT.match(self.text)
        cells: list[dict[str, Any]] = []
        end = front.end() if front else 0
        for code in _CODE.finditer(self.text, end):
            cells += _markdown(self.text[end : code.start()])
            metadata = dict(load(code[1], file=str(self.file))) if code[1] else {}
            source = code[2].removesuffix("\n")
            cells.append(
                {"cell_type": "code", "execution_count": None, "metadata": metadata, "outputs": [], "source": source}
            )
            end = code.end()
        cells += _markdown(self.text[end:])
        metadata = {"kernelspec": dict(self._front["kernelspec"])}
        return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def _markdown(text: str) -> list[dict[str, Any]]:
    source = text.strip("\n")
    return [{"cell_type": "markdown", "metadata": {}, "source": source}] if source else []


def lessons() -> list[Lesson]:
    """Return all lessons in their order."""
    return [Lesson(file) for file in sorted(TEXTS.glob("[0-9]*.md"))]


def find_lesson(word: str | int) -> Lesson:
    """Return the lesson with a number, a name or a file name."""
    text = str(word)
    name = Path(text).stem
    known = lessons()
    for each in known:
        if name == each.name or (text.isdecimal() and int(text) == each.number):
            return each
    near = did_you_mean(name, [each.name for each in known])
    raise NotFound(f"no lesson {text!r}", hint="; ".join(filter(None, [near, "`fairmile course ls` lists them"])))


def answered_exercise(source: str) -> str:
    """Return the name of the exercise whose answer a cell shows; an empty text for any other cell."""
    match = _ANSWERED.search(source)
    return match[1] if match else ""


def exercise_sources(notebook: Path) -> dict[str, str]:
    """Return what stands in the cells of the exercises of a notebook, and nothing else of it.

    The pieces of a cell that was split belong together. Where an editor dropped the metadata of cells, the code
    between the text of an exercise and its answer counts.
    """
    try:
        document = json.loads(notebook.read_text(encoding="utf-8"))
        cells = [(cell["cell_type"], cell["metadata"], _text(cell["source"])) for cell in document["cells"]]
        language = _language(document["metadata"])
        marked = [(str(metadata["exercise"]), text) for _, metadata, text in cells if "exercise" in metadata]
    except OSError as error:
        raise SystemFailure(f"cannot read {notebook}: {error.strerror}") from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{notebook} is not a notebook", hint="move it away; `course start` writes it again"
        ) from error
    if language.lower() not in ("python", "ipython"):
        raise UsageError(
            f"{notebook} is a notebook in {language}, and the lesson is in Python",
            hint="choose a Python kernel for it and save it again",
        )
    sources: dict[str, str] = {}
    for name, text in marked:
        sources[name] = f"{sources[name]}\n{text}" if name in sources else text
    return _between_texts_and_answers(cells) | sources


def _between_texts_and_answers(cells: Sequence[tuple[str, Mapping[str, Any], str]]) -> dict[str, str]:
    sources: dict[str, str] = {}
    before: list[str] = []
    for kind, _, text in cells:
        exercise = answered_exercise(text) if kind == "code" else ""
        if exercise:
            sources[exercise] = "\n".join(before)
        before = [*before, text] if kind == "code" and not exercise else []
    return sources


def _text(source: str | list[str]) -> str:
    return source if isinstance(source, str) else "".join(source)


def _language(metadata: Mapping[str, Any]) -> str:
    kernel, info = metadata.get("kernelspec", {}), metadata.get("language_info", {})
    return str(info.get("name") or kernel.get("language") or "python")


def write_notebook(notebook: Mapping[str, Any], file: Path) -> None:
    """Write a notebook; the same one gives the same bytes."""
    for number, cell in enumerate(notebook["cells"]):
        cell["id"] = f"cell-{number}"
    write_atomic(file, json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n")
