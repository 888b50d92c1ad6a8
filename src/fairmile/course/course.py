"""The course: lists lessons, gives a learner the notebooks, and judges the answers in them."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from fairmile.base.errors import MissingExtra, NotFound, RunFailed, SystemFailure, UsageError
from fairmile.base.files import write_atomic
from fairmile.base.lazy import lazy
from fairmile.base.nouns import Noun
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result, Results
from fairmile.base.units import format_size
from fairmile.base.version import __version__
from fairmile.course.answers import Answer, given_answers
from fairmile.course.checks import as_data, judge
from fairmile.course.lessons import Lesson, exercise_sources, find_lesson, lessons, write_notebook

if TYPE_CHECKING:
    from fairmile.course.build import build_lesson
    from fairmile.runs.record.run import Run
    from fairmile.runs.record.spec import RunSpec
    from fairmile.runs.runs import Runs
    from fairmile.sweeps.notebooks import notebook_argv
else:
    build_lesson = lazy("fairmile.course.build:build_lesson")
    RunSpec = lazy("fairmile.runs.record.spec:RunSpec")
    notebook_argv = lazy("fairmile.sweeps.notebooks:notebook_argv")

_WORKSPACE = "workspace"  # where a lesson keeps its runs, beside its notebook
_CHECKED = "checked"  # where answers are judged, below the folder of the learner
_LEAST_FREE_BYTES = 200 << 20
Verdict = Literal["right", "wrong", "failed", "empty", "given"]


class LessonDict(TypedDict):
    number: int
    name: str
    title: str
    exercises: list[str]
    needs: list[str]


class LessonsDict(TypedDict):
    lessons: list[LessonDict]


class StartedCourseDict(TypedDict):
    folder: str
    files: list[str]
    kept: list[str]
    dry_run: bool


class JudgedDict(TypedDict):
    """How one answer was judged; `reason` is empty where it is right."""

    exercise: str
    lesson: str
    verdict: Verdict
    reason: str
    run: str | None


class CheckedCourseDict(TypedDict):
    folder: str
    answers: list[JudgedDict]
    dry_run: bool


class BuiltCourseDict(TypedDict):
    folder: str
    files: list[str]


class ReadinessDict(TypedDict):
    lesson: str
    fairmile: str
    python: str
    free_bytes: int
    workspace: str


@dataclass(frozen=True, repr=False)
class LessonRow(Result):
    """A lesson in the list."""

    lesson: Lesson

    def to_dict(self) -> LessonDict:
        return {
            "number": self.lesson.number,
            "name": self.lesson.name,
            "title": self.lesson.title,
            "exercises": list(self.lesson.exercises),
            "needs": sorted(set(self.lesson.needs.values())),
        }


class LessonList(Results[LessonRow]):
    """The lessons of the course."""

    def to_dict(self) -> LessonsDict:
        return {"lessons": [each.to_dict() for each in self]}

    def summary(self) -> str:
        return f"{len(self)} lessons"


class StartedCourse(Results[Path]):
    """The files that a learner got; what was there already is kept as it is."""

    def __init__(self, folder: Path, files: Iterable[Path], kept: Sequence[Path], *, dry_run: bool = False) -> None:
        super().__init__(files)
        self.folder = folder
        self.kept = tuple(kept)
        self.dry_run = dry_run

    def to_dict(self) -> StartedCourseDict:
        return {
            "folder": str(self.folder),
            "files": [str(each) for each in self],
            "kept": [str(each) for each in self.kept],
            "dry_run": self.dry_run,
        }

    def summary(self) -> str:
        return f"{self.folder}, {len(self)} files"


class BuiltCourse(Results[Path]):
    """The notebooks and pages of executed lessons."""

    def __init__(self, folder: Path, files: Iterable[Path] = ()) -> None:
        super().__init__(files)
        self.folder = folder

    def to_dict(self) -> BuiltCourseDict:
        return {"folder": str(self.folder), "files": [str(each) for each in self]}

    def summary(self) -> str:
        return f"{self.folder}, {len(self)} files"


@dataclass(frozen=True, repr=False)
class Judged(Result):
    """The answer to one exercise, and how it was judged."""

    exercise: str
    lesson: str
    verdict: Verdict
    reason: str = ""
    run: str | None = None

    def to_dict(self) -> JudgedDict:
        return {
            "exercise": self.exercise,
            "lesson": self.lesson,
            "verdict": self.verdict,
            "reason": self.reason,
            "run": self.run,
        }

    def summary(self) -> str:
        return f"{self.exercise} {self.verdict}" + (f", {self.reason}" if self.reason else "")


class CheckedCourse(Results[Judged]):
    """The answers of a learner, judged."""

    def __init__(self, folder: Path, answers: Iterable[Judged], *, dry_run: bool = False) -> None:
        super().__init__(answers)
        self.folder = folder
        self.dry_run = dry_run

    def to_dict(self) -> CheckedCourseDict:
        return {
            "folder": str(self.folder),
            "answers": [each.to_dict() for each in self],
            "dry_run": self.dry_run,
        }

    @property
    def is_complete(self) -> bool:
        """Whether every answer is right."""
        return all(each.verdict == "right" for each in self)

    def summary(self) -> str:
        return f"{sum(each.verdict == 'right' for each in self)} of {len(self)} right"


@dataclass(frozen=True, repr=False)
class Readiness(Result):
    """What a lesson runs with, once nothing is missing."""

    lesson: str
    python: str
    free_bytes: int
    workspace: Path

    def to_dict(self) -> ReadinessDict:
        return {
            "lesson": self.lesson,
            "fairmile": __version__,
            "python": self.python,
            "free_bytes": self.free_bytes,
            "workspace": str(self.workspace),
        }

    def summary(self) -> str:
        return f"{self.lesson} can run, with Fairmile {__version__} and Python {self.python}"


class Course(Noun, package=__package__):
    """The course: lessons as notebooks, with exercises that are judged."""

    def __init__(self, runs: Callable[[], Runs]) -> None:
        self._runs = runs

    def ls(self) -> LessonList:
        """Return the lessons in their order."""
        return LessonList(map(LessonRow, lessons()))

    def start(self, folder: str | Path, chosen: Sequence[str | int] = (), *, dry_run: bool = False) -> StartedCourse:
        """Write the notebooks, with empty exercises, and their files into a folder; what is there stays as it is."""
        place = Path(folder)
        wanted = _chosen(chosen)
        files = dict.fromkeys(file for lesson in wanted for file in lesson.files)
        targets = [*(place / f"{lesson.name}.ipynb" for lesson in wanted), *(place / file.name for file in files)]
        kept = [target for target in targets if target.exists()]
        started = StartedCourse(place, [each for each in targets if each not in kept], kept, dry_run=dry_run)
        if dry_run:
            return started
        for lesson in wanted:
            if (target := place / f"{lesson.name}.ipynb") not in kept:
                write_notebook(lesson.with_answers({}), target)
        for file in files:
            if (target := place / file.name) not in kept:
                write_atomic(target, file.read_bytes())
        return started

    def check(self, folder: str | Path, chosen: Sequence[str | int] = (), *, dry_run: bool = False) -> CheckedCourse:
        """Execute lessons with the answers of a learner, and judge them; each such lesson is a recorded run.

        Of the learner's notebooks only the cells of the exercises count. A lesson without any answer is not executed.
        """
        place = Path(folder)
        if place.is_file():
            raise UsageError(
                f"{place} is a file; expected the folder of the notebooks",
                hint=f"`fairmile course check {place.parent}` judges those beside it",
            )
        wanted = _chosen(chosen)
        found = [lesson for lesson in wanted if (place / f"{lesson.name}.ipynb").is_file()]
        if found and chosen and len(found) < len(wanted):
            missing = next(lesson for lesson in wanted if lesson not in found)
            raise NotFound(
                f"{place} has no {missing.name}.ipynb",
                hint=f"`fairmile course start {place} {missing.number}` writes it",
            )
        if not found:
            raise NotFound(
                f"{place} has no notebook of the course", hint=f"`fairmile course start {place}` writes them"
            )
        answers = [each for lesson in found for each in self._check_lesson(lesson, place, dry_run=dry_run)]
        return CheckedCourse(place, answers, dry_run=dry_run)

    def answer(self, exercise: str, value: Any) -> Answer:
        """Show the answer to an exercise in its notebook, where `check` finds it."""
        given = as_data(value)
        judge(exercise, given)  # one that no lesson has is an error here
        return Answer(exercise, given)

    def ready(self, number: int) -> Readiness:
        """Prepare this notebook for a lesson, or raise what is missing and the command that installs it.

        From here on, the workspace is the folder `workspace` beside the notebook, so that yours stays as it is, and
        `python` is the Python of the notebook, also where nobody activated its environment.
        """
        lesson = find_lesson(number)
        for module, extra in lesson.needs.items():
            if find_spec(module) is None:
                raise MissingExtra(f"lesson {lesson.number} needs {module}", extra)
        for file in lesson.files:
            if not Path(file.name).exists():
                raise NotFound(f"{file.name} is not in this folder", hint="`fairmile course start .` writes it")
        free = shutil.disk_usage(Path.cwd()).free
        if free < _LEAST_FREE_BYTES:
            raise SystemFailure(
                f"only {format_size(free)} are free in {Path.cwd()}; the course needs {format_size(_LEAST_FREE_BYTES)}",
                hint="remove files, or copy the notebooks to another disk",
            )
        workspace = Path.cwd() / _WORKSPACE
        os.environ["FAIRMILE_HOME"] = str(workspace)
        programs, path = str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)
        if path.partition(os.pathsep)[0] != programs:
            os.environ["PATH"] = f"{programs}{os.pathsep}{path}"
        version = ".".join(map(str, sys.version_info[:3]))
        return Readiness(lesson.name, version, free, workspace)

    def execute(self, lesson: str | int, folder: str | Path, answers: Mapping[str, str] | None = None) -> Run:
        """Execute a lesson in a folder as a recorded run: with model solutions, or with the sources of `answers`.

        The run leaves NAME-executed.ipynb in the folder, also where a cell fails.
        """
        chosen = find_lesson(lesson)
        place = Path(folder).absolute()
        place.mkdir(parents=True, exist_ok=True)
        for file in chosen.files:
            shutil.copyfile(file, place / file.name)
        notebook = place / f"{chosen.name}.ipynb"
        write_notebook(chosen.solved() if answers is None else chosen.with_answers(answers), notebook)
        argv = notebook_argv(notebook.name)
        spec = RunSpec(
            name=f"course-{chosen.name}", argv=argv, folder=str(place), outputs=(argv[-1],), tags=("course",)
        )
        return self._runs().run(spec, again=True)

    def build(
        self, folder: str | Path, chosen: Sequence[str | int] = (), *, on_built: Callable[[str], None] = lambda _: None
    ) -> BuiltCourse:
        """Execute lessons with their model solutions, and write each as a notebook and as a page of one file.

        A lesson that did not change since it was built is not executed again. `on_built` gets the name of each.
        """
        place = Path(folder).absolute()
        place.mkdir(parents=True, exist_ok=True)
        built = BuiltCourse(place)
        for lesson in _chosen(chosen):
            built.extend(build_lesson(self.execute, lesson, place))
            on_built(lesson.name)
        return built

    def _check_lesson(self, lesson: Lesson, place: Path, *, dry_run: bool) -> Iterator[Judged]:
        sources = exercise_sources(place / f"{lesson.name}.ipynb")
        empty = {name for name, text in lesson.skeletons().items() if sources.get(name, "").strip() in ("", text)}
        given = {name: source for name, source in sources.items() if name in lesson.exercises and name not in empty}
        values: Mapping[str, Any] = {}
        run = None
        if given and not dry_run:
            folder = place / _CHECKED / lesson.name
            shutil.rmtree(folder, ignore_errors=True)
            run = self.execute(lesson.name, folder, given)
            values = given_answers(folder / notebook_argv(lesson.name)[-1], run)
        for name in lesson.exercises:
            if name in given:
                yield _judged(name, lesson, values, run)
            else:
                reason = "there is no answer yet" if name in sources else "the notebook has no cell for this exercise"
                yield Judged(name, lesson.name, "empty", reason)


def _judged(name: str, lesson: Lesson, values: Mapping[str, Any], run: Run | None) -> Judged:
    if run is None:
        return Judged(name, lesson.name, "given")
    log = f"`fairmile runs log {run.id}` shows why"
    value = values.get(name, RunFailed(f"the lesson ended before it showed this answer ({run.reason}); {log}"))
    if isinstance(value, RunFailed):
        return Judged(name, lesson.name, "failed", str(value), run.id)
    problem = judge(name, value)
    return Judged(name, lesson.name, "wrong" if problem else "right", problem, run.id)


def _chosen(words: Sequence[str | int]) -> list[Lesson]:
    return list(dict.fromkeys(map(find_lesson, words))) if words else lessons()
