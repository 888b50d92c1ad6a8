"""Lessons executed with their model solutions, each as a notebook and as a page that loads nothing from elsewhere."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from html import escape
from importlib import resources
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fairmile.base.errors import MissingExtra, RunFailed
from fairmile.base.version import __version__
from fairmile.course.answers import given_answers
from fairmile.course.checks import judge
from fairmile.course.lessons import Lesson, lessons
from fairmile.runs.record.run import Run, RunState
from fairmile.sweeps.notebooks import notebook_argv

_LOOK = """
.cell { margin: 14px 0; }
.output_area { overflow-x: auto; margin: 8px 0; }
.output_area img { max-width: 100%; background: #fff; border-radius: 6px; }
.output_area svg { max-width: 100%; height: auto; }
.output_area pre { background: none; padding: 2px 14px; }
.prompt, .anchor-link { display: none; }
.highlight .k, .highlight .kn, .highlight .ow { color: var(--c3); }
.highlight .s1, .highlight .s2, .highlight .sa, .highlight .si { color: var(--good); }
.highlight .mi, .highlight .mf { color: var(--c1); }
.highlight .c1 { color: var(--muted); }
"""


def build_lesson(execute: Callable[[str, Path], Run], lesson: Lesson, folder: Path) -> tuple[Path, Path]:
    """Return NAME.ipynb and NAME.html of a folder; a lesson that changed since they were written is executed."""
    target, digest = folder / f"{lesson.name}.ipynb", _digest(lesson)
    if _built_digest(target) != digest:
        # Outside of any repository, since all of that would be the code of the runs.
        with TemporaryDirectory(prefix="fairmile-course-") as scratch:
            notebook = _executed(execute, lesson, Path(scratch) / lesson.name)
        notebook["metadata"] |= {"fairmile": {"digest": digest}}
        target.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    page = folder / f"{lesson.name}.html"
    page.write_text(_page(lesson, target), encoding="utf-8")
    return target, page


def _executed(execute: Callable[[str, Path], Run], lesson: Lesson, work: Path) -> Any:
    """Return the executed notebook of a lesson, or raise RunFailed where it does not show what it should."""
    run = execute(lesson.name, work)
    executed = work / notebook_argv(lesson.name)[-1]
    if run.state is not RunState.DONE:
        raise RunFailed(f"lesson {lesson.name}: {run.reason}", hint=f"`fairmile runs log {run.id}` shows its output")
    wrong = {name: text for name, value in given_answers(executed, run).items() if (text := judge(name, value))}
    if wrong:
        raise RunFailed(f"model solutions are not right: {wrong}")
    return json.loads(executed.read_text(encoding="utf-8"))


def _digest(lesson: Lesson) -> str:
    """Return the digest of what a lesson is made of."""
    parts = [lesson.text.encode(), *(file.read_bytes() for file in lesson.files), __version__.encode()]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def _built_digest(notebook: Path) -> str:
    try:
        return str(json.loads(notebook.read_text(encoding="utf-8"))["metadata"]["fairmile"]["digest"])
    except (OSError, ValueError, LookupError, TypeError):
        return ""


def _page(lesson: Lesson, notebook: Path) -> str:
    known = lessons()
    links = [f'<a href="{each.name}.html">{escape(each.title)}</a>' for each in known]
    body, _ = _exporter().from_filename(str(notebook))
    style = resources.files("fairmile.reports").joinpath("page.css").read_text("utf-8") + _LOOK
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; img-src data:; style-src 'unsafe-inline'\">\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(lesson.title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
        f"<nav>{' '.join(links)}</nav>\n<section>\n{body}\n</section>\n</main>\n</body>\n</html>\n"
    )


def _exporter() -> Any:
    try:
        from nbconvert import HTMLExporter
    except ImportError as error:
        raise MissingExtra("pages of the course need nbconvert", "course") from error
    exporter: Any = HTMLExporter  # its constructor has no types
    return exporter(template_name="basic")
