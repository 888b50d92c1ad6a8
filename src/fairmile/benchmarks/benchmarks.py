"""The benchmarks of a workspace: which there are, what each asks for, and a new one from nothing."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from string import Template
from typing import Any, cast

from fairmile.base.errors import Conflict, FairmileError, NotFound, UsageError
from fairmile.base.files import write_atomic, write_failure
from fairmile.base.html_tables import rows_table
from fairmile.base.nouns import Noun
from fairmile.base.paths import AnyPath
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result, Results
from fairmile.benchmarks.harness.schema import Field, Schema
from fairmile.benchmarks.program import SCHEMA, SETTINGS, STEP, SUITE, folder_of, load, names
from fairmile.benchmarks.results import (
    BenchmarkDetailsDict,
    BenchmarkDict,
    BenchmarkListDict,
    FieldDict,
    NewBenchmark,
    ParameterDict,
)
from fairmile.catalog.card import Card, as_list
from fairmile.catalog.catalog import Catalog
from fairmile.resolve import Nouns, Target, resolve
from fairmile.runs.record.run import Run

_TEMPLATES = Path(__file__).with_name("templates")
_NAME = re.compile(r"[a-z][a-z0-9_]{0,40}")
_ALL = 1_000_000
KINDS = ("learning", "program")


@dataclass(frozen=True)
class Parameter:
    """What `-p NAME=VALUE` of a benchmark sets."""

    name: str
    default: Any
    meaning: str

    def to_dict(self) -> ParameterDict:
        return {"name": self.name, "default": self.default, "meaning": self.meaning}


@dataclass(frozen=True, repr=False)
class Benchmark(Result):
    """A benchmark as its card describes it; `folder` holds its program if Fairmile includes that."""

    card: Card
    folder: Path | None = None

    @property
    def name(self) -> str:
        return self.folder.name if self.folder is not None else self.card.handle.name

    @property
    def rule(self) -> Mapping[str, Any]:
        """What is measured and when a result counts: metric, direction, target, rule, models, data sets."""
        rule = self.card.get("matchSpec")
        return rule if isinstance(rule, Mapping) else {}

    @property
    def baselines(self) -> list[Mapping[str, Any]]:
        return [each for each in as_list(self.card.get("baselines")) if isinstance(each, Mapping)]

    @property
    def published(self) -> list[Mapping[str, Any]]:
        return [each for each in as_list(self.card.get("evaluationResults")) if isinstance(each, Mapping)]

    def parameters(self) -> list[Parameter]:
        """Return what can be set; a benchmark that runs a program of its own says that in its card alone."""
        if self.folder is None or not (self.folder / f"{SETTINGS}.py").is_file():
            values = self.card.get("hyperparameters")
            return [Parameter(name, value, "") for name, value in values.items()] if isinstance(values, Mapping) else []
        fields = dataclasses.fields(load(self.folder, SETTINGS).Settings)
        return [Parameter(each.name, each.default, each.metadata.get("meaning", "")) for each in fields]

    def schema(self) -> Schema:
        """Return the form of its data, by what a file is; empty where only its data sets' own cards tell."""
        if self.folder is None or not (self.folder / f"{SCHEMA}.py").is_file():
            return {}
        schema: Schema = load(self.folder, SCHEMA).SCHEMA
        return schema

    def step_file(self) -> Path | None:
        """Return the file whose `build(**parameters)` is one training step, for predictions; None where it has none."""
        file = None if self.folder is None else self.folder / f"{STEP}.py"
        return file if file is not None and file.is_file() else None

    def to_dict(self) -> BenchmarkDict:
        known = {"baselines": self.baselines, "published": self.published}
        where = {"handle": str(self.card.handle), "folder": str(self.folder) if self.folder else None}
        about = self.card.text("description")
        return cast(BenchmarkDict, {**self.rule, "name": self.name, **where, "about": about, **known})

    def summary(self) -> str:
        return f"{self.name}: {self.rule.get('metric', '')}, {self.card.text('description').partition('. ')[0]}"


class BenchmarkList(Results[Benchmark]):
    """Benchmarks."""

    def to_dict(self) -> BenchmarkListDict:
        return {"benchmarks": [each.to_dict() for each in self]}

    def summary(self) -> str:
        return f"{len(self)} benchmarks: {', '.join(each.name for each in self)}"

    def _repr_html_(self) -> str:
        columns = ["domain", "metric", "target"]
        return rows_table(["name", *columns], [[each.name, *map(each.rule.get, columns)] for each in self])


@dataclass(frozen=True, repr=False)
class BenchmarkDetails(Result):
    """A benchmark with its parameters and the form of its data."""

    benchmark: Benchmark
    parameters: tuple[Parameter, ...]
    schema: Schema

    def to_dict(self) -> BenchmarkDetailsDict:
        schema = {name: [_field_dict(each) for each in fields] for name, fields in self.schema.items()}
        return {
            **self.benchmark.to_dict(),
            "parameters": [each.to_dict() for each in self.parameters],
            "schema": schema,
        }

    def summary(self) -> str:
        return self.benchmark.summary()


def _field_dict(field: Field) -> FieldDict:
    return {
        "name": field.name,
        "dtype": field.dtype,
        "shape": list(field.shape),
        "meaning": field.meaning,
        "unit": field.unit,
    }


_INTERNAL = "step_of with_step"  # for other parts of Fairmile


class Benchmarks(Noun, internal=_INTERNAL, package=__package__):
    """All benchmarks that the catalog knows, and those in folders."""

    def __init__(self, catalog: Callable[[], Catalog]) -> None:
        self._catalog = catalog

    def ls(self) -> BenchmarkList:
        """Return every benchmark, those that Fairmile includes first."""
        hits = [hit for hit in self._catalog().find("benchmark", limit=_ALL) if not hit.row.gone]
        cards = [self._catalog().get(str(hit.handle)) for hit in hits]
        benchmarks = [Benchmark(card, _own_folder(card)) for card in cards]
        return BenchmarkList(sorted(benchmarks, key=lambda each: (each.folder is None, each.name)))

    @staticmethod
    def with_step() -> list[str]:
        """Return the names of the benchmarks that Fairmile includes and whose training step can be predicted."""
        return [name for name in names() if (SUITE / name / f"{STEP}.py").is_file()]

    def show(self, name: str) -> BenchmarkDetails:
        """Return the benchmark that a name or a folder means, with its parameters and the form of its data."""
        benchmark = self.get(name)
        return BenchmarkDetails(benchmark, tuple(benchmark.parameters()), benchmark.schema())

    def get(self, name: str) -> Benchmark:
        """Return the benchmark that a name or a folder means."""
        return self._of(resolve(name, Nouns(catalog=self._catalog), for_="benchmark"))

    @staticmethod
    def _of(target: Target) -> Benchmark:
        card: Card = target.content
        return Benchmark(
            card, _own_folder(card) if target.path is None else folder_of(str(target.path.absolute().parent))
        )

    def step_of(self, what: str | Target) -> Path:
        """Return the file that builds a training step of a benchmark, or of the benchmark that has a model.

        NotFound says what the card tells instead.
        """
        nouns, without = Nouns(catalog=self._catalog), ("python-file", "description")
        target = resolve(what, nouns, for_="predict", without=without) if isinstance(what, str) else what
        card: Card = target.content
        if card.kind == "model":
            candidates = [each for each in self.ls() if card.iri in as_list(each.rule.get("models"))]
        else:
            candidates = [self._of(target)]
        for each in candidates:
            file = each.step_file()
            if file is not None:
                return file
        count = card.get("parameterCount")
        known = f"; its card states only {count:,} parameters" if isinstance(count, int) else ""
        raise NotFound(
            f"{target.word} has no training step to trace{known}",
            hint="use FILE.py:FUNCTION or a YAML description; see `fairmile predict --help`",
        )

    def validation_of(self, run: Run) -> dict[str, object]:
        """Return what opens the validation data of a run of a benchmark, and its arguments; it is opened elsewhere."""
        asset = run.record.spec.asset
        folder = self.get(asset).folder if "/benchmark/" in asset else None
        if folder is None:
            raise UsageError(
                f"run {run.id} has no validation data: it is not a run of a benchmark that Fairmile trains",
                hint="`fairmile runs ls` lists runs; --data FILE compares on your own inputs",
            )
        given = run.record.captured.inputs.get("data")
        arguments = {
            "folder": str(folder),
            "params": dict(run.params),
            "data": (given.there or given.path) if given is not None else "",
            "seed": run.record.spec.seed or 0,
        }
        return {"call": "fairmile.benchmarks.harness.validation:open_validation", "with": arguments}

    def new(self, name: str, folder: AnyPath, *, kind: str = "learning", dry_run: bool = False) -> NewBenchmark:
        """Write a benchmark that runs as it is into a new folder, and return its files.

        `learning` is a model in PyTorch trained by the harness; `program` is any program that prints its metrics. With
        `dry_run` nothing is written.
        """
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"{name!r} is not a benchmark name",
                hint="use lower-case letters, digits and underscores, starting with a letter",
            )
        if kind not in KINDS:
            raise UsageError(f"no kind of benchmark named {kind!r}", hint=f"there are {' and '.join(KINDS)}")
        place = Path(folder) / name
        if place.exists():
            raise Conflict(f"{place} already exists", hint="choose another name or folder")
        templates = sorted((_TEMPLATES / kind).glob("*.tmpl"))
        if dry_run:
            return NewBenchmark(place, [place / each.stem for each in templates], dry_run=True)
        values = {"name": name, "title": name.replace("_", " ").capitalize()}
        aside = place.with_name(f".{name}.{os.getpid()}.part")
        try:
            aside.mkdir(parents=True)
            for file in templates:
                write_atomic(aside / file.stem, Template(file.read_text(encoding="utf-8")).substitute(values))
            aside.rename(place)
        except OSError as error:
            shutil.rmtree(aside, ignore_errors=True)
            if isinstance(error, FairmileError):
                raise
            raise write_failure(str(place), error) from error
        return NewBenchmark(place, sorted(place.iterdir()))


def _own_folder(card: Card) -> Path | None:
    name = card.handle.name
    return SUITE / name if card.catalog == "builtin" and name in names() else None
