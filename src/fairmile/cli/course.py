"""`fairmile course`: the lessons, the notebooks of a learner, and the judgement of the answers."""

from __future__ import annotations

from pathlib import Path

import click

from fairmile.cli.lazy import LazyGroup
from fairmile.cli.options import DRY_RUN
from fairmile.cli.out import Out, count, json_output
from fairmile.course.course import BuiltCourse, CheckedCourse, LessonList, StartedCourse
from fairmile.workspace import Workspace

_FOLDER = click.argument("folder", metavar="FOLDER", type=click.Path(path_type=Path))
_LESSONS = click.argument("lessons", nargs=-1, metavar="[LESSON...]")
_COLOURS = {"right": "green", "wrong": "red", "failed": "red", "given": "yellow"}


@click.group(cls=LazyGroup)
def course() -> None:
    """Learn Fairmile in notebooks, from the first run to a submission, without a network.

    `fairmile course start FOLDER` writes the notebooks.
    """


@course.command("ls")
@json_output(LessonList)
def list_lessons(out: Out) -> None:
    """List the lessons.

    \b
    Examples:
      fairmile course ls
      fairmile course ls --json
    """
    out.show(Workspace.open().course.ls(), lambda lessons: _print_lessons(out, lessons))


def _print_lessons(out: Out, lessons: LessonList) -> None:
    rows = [
        (each.lesson.name, each.lesson.title, len(each.lesson.exercises), " ".join(each.to_dict()["needs"]))
        for each in lessons
    ]
    out.table(("lesson", "title", "exercises", "needs"), rows)


@course.command()
@_FOLDER
@_LESSONS
@DRY_RUN
@json_output(StartedCourse)
def start(out: Out, folder: Path, lessons: tuple[str, ...], dry_run: bool) -> None:
    """Write the notebooks with empty exercises into a folder; keep what is there.

    LESSON is a number or a name, such as 2 or 02-run; without it, all lessons are written.

    \b
    Examples:
      fairmile course start course --dry-run
      fairmile course start course
      fairmile course start course 1 2
    """
    started = Workspace.open().course.start(folder, lessons, dry_run=dry_run)
    out.show(started, lambda started: _print_started(out, started))


def _print_started(out: Out, started: StartedCourse) -> None:
    for each in started:
        out.line(f"{'would write' if started.dry_run else 'wrote'}  {each}")
    for each in started.kept:
        out.line(f"kept   {each}")
    if not started.dry_run:
        out.hint(f"open the notebooks in Jupyter; `fairmile course check {started.folder}` judges the answers")


@course.command()
@_FOLDER
@_LESSONS
@DRY_RUN
@json_output(CheckedCourse)
def check(out: Out, folder: Path, lessons: tuple[str, ...], dry_run: bool) -> int:
    """Execute lessons with your answers and judge them; the exit code is 1 until all are right.

    Fairmile executes its own lesson with the cells of your exercises in it, as a recorded run in
    FOLDER/checked. Lessons without any answer are not executed. Check only answers that you would run yourself.

    \b
    Examples:
      fairmile course check course --dry-run
      fairmile course check course
      fairmile course check course 2
    """
    checked = Workspace.open().course.check(folder, lessons, dry_run=dry_run)
    out.show(checked, lambda checked: _print_checked(out, checked))
    return 0 if dry_run or checked.is_complete else 1


def _print_checked(out: Out, checked: CheckedCourse) -> None:
    rows = [
        (each.exercise, each.lesson, out.colour(each.verdict, _COLOURS.get(each.verdict, "dim")), each.reason)
        for each in checked
    ]
    out.table(("exercise", "lesson", "answer", "reason"), rows)
    if not checked.dry_run:
        right = sum(each.verdict == "right" for each in checked)
        out.line(f"{right} of {count(len(checked), 'answer')} right")


@course.command()
@_FOLDER
@_LESSONS
@json_output(BuiltCourse)
def build(out: Out, folder: Path, lessons: tuple[str, ...]) -> None:
    """Execute lessons with their model solutions, and write them as notebooks and pages.

    A lesson that did not change since it was built is not executed again. All of them
    take some minutes.

    \b
    Examples:
      fairmile course build pages
      fairmile course build pages 2
    """
    built = Workspace.open().course.build(folder, lessons, on_built=lambda name: out.say(f"built {name}"))
    out.show(built, lambda built: _print_built(out, built))


def _print_built(out: Out, built: BuiltCourse) -> None:
    for each in built:
        out.line(f"wrote  {each}")
