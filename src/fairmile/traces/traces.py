"""The verbs over traces: record a program, explain where its time went, ask what would be if, write other formats."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict

from fairmile.base.errors import Conflict, NotFound, UsageError
from fairmile.base.nouns import Noun
from fairmile.base.results import Results
from fairmile.base.words import did_you_mean
from fairmile.costs.collectives.formulas import algorithms as known_algorithms
from fairmile.costs.collectives.formulas import collective_name
from fairmile.costs.collectives.times import CollectiveModel
from fairmile.runs.record.run import Run
from fairmile.systems.model import Partition
from fairmile.traces.analyze import TraceAnalysis, analyze
from fairmile.traces.counted import is_counted, traffic_of, without_times
from fairmile.traces.events import EventTable
from fairmile.traces.export import write_chakra, write_chrome, write_otf2
from fairmile.traces.of_runs import traces_of
from fairmile.traces.reading import read_traces
from fairmile.traces.record import plan_recording, record
from fairmile.traces.replay import AlgorithmModel, Replay, Replayed, WhatIf

Paths = str | Path | Run | Iterable[str | Path]
_PATH = re.compile(r"[./*?\[]")  # what no id of a run has
EXPORTS = ("chrome", "otf2", "chakra")


class ExportedDict(TypedDict):
    """`Exported` as JSON holds it."""

    written: list[str]
    dry_run: bool


class Exported(Results[Path]):
    """The files that an export wrote; with `dry_run` those it would write."""

    def __init__(self, files: Iterable[Path] = (), *, dry_run: bool = False) -> None:
        super().__init__(files)
        self.dry_run = dry_run

    def to_dict(self) -> ExportedDict:
        return {"written": [str(each) for each in self], "dry_run": self.dry_run}

    def summary(self) -> str:
        return f"{'would write ' if self.dry_run else ''}{', '.join(map(str, self))}"


class Traces(Noun, package=__package__):
    """Record, read, analyze, replay and export traces of any framework.

    Wherever traces are named, a run or the id of one stands for what it recorded.
    """

    record = staticmethod(record)
    plan_recording = staticmethod(plan_recording)

    def __init__(self, partition_of: Callable[[str], Partition], run_of: Callable[[str], Run]) -> None:
        self._partition_of = partition_of
        self._run_of = run_of

    def read(self, paths: Paths, *, format: str | None = None) -> EventTable:
        """Return the events of all traces: files, folders, patterns or runs; see `read_traces`."""
        return read_traces(self._files(paths), format=format)

    def analyze(self, paths: Paths, *, format: str | None = None, system: str = "") -> TraceAnalysis:
        """Return where time went on every rank; `system` is the one whose network was used.

        Recordings with counters add memory traffic; times come from the other traces, if there are any.
        """
        files = self._files(paths)
        counted = [folder for each in files if is_counted(folder := Path(each))]
        timed = [each for each in files if Path(each) not in counted]
        model = self._model(system)
        analysis = analyze(read_traces(timed or counted, format=format), model=model)
        if not counted:
            return analysis
        if timed:
            inside = analyze(read_traces(counted), model=model)
            return replace(analysis, traffic=traffic_of(counted, inside.operators))
        return without_times(analysis, traffic_of(counted, analysis.operators))

    def replay(
        self,
        paths: Paths,
        change: WhatIf | Mapping[str, Any],
        *,
        format: str | None = None,
        system: str = "",
        to: str = "",
        algorithms: Mapping[str, str] | None = None,
    ) -> Replayed:
        """Predict the step time in a what-if scenario, such as `{"bandwidth": 4}`.

        `system` is the one that was traced, `to` the one to move to; `algorithms` fix how collectives are done there.
        """
        change = change if isinstance(change, WhatIf) else WhatIf(**change)
        named = {collective_name(name): _known(name, algorithm) for name, algorithm in (algorithms or {}).items()}
        measured_by, wanted = self._model(system), self._model(to or system)
        if named:
            if wanted is None:
                raise UsageError("--algorithm needs the network of the traced system", hint="add --on SYSTEM")
            change = replace(change, model=AlgorithmModel(wanted.topology, named), measured_by=measured_by)
        elif to:
            change = replace(change, model=wanted, measured_by=measured_by)
        return Replay(self.read(paths, format=format)).run(change)

    def export(
        self,
        paths: Paths,
        target: str | Path,
        *,
        to: str = "chrome",
        format: str | None = None,
        dry_run: bool = False,
    ) -> Exported:
        """Write traces of all ranks as one Chrome (Perfetto) file, an OTF2 archive or Chakra files in a folder.

        With `dry_run` nothing is read or written.
        """
        target = Path(target)
        if to not in EXPORTS:
            raise UsageError(f"no export format named {to!r}", hint=f"known: {', '.join(EXPORTS)}")
        if target.exists():
            raise Conflict(f"{target} already exists", hint="choose another name")
        if dry_run:
            return Exported([target], dry_run=True)
        table = self.read(paths, format=format)
        if to == "chakra":
            return Exported(write_chakra(table, target))
        if to == "otf2":
            return Exported([write_otf2(table, target)])
        write_chrome(table, target)
        return Exported([target])

    def _files(self, paths: Paths) -> list[str | Path]:
        """Return paths of traces; a word that is no path is the id of a run."""
        if isinstance(paths, Run):
            return list(traces_of(paths))
        files: list[str | Path] = []
        for each in [paths] if isinstance(paths, str | Path) else paths:
            run = None
            if isinstance(each, str) and not _PATH.search(each) and not Path(each).exists():
                with contextlib.suppress(NotFound):
                    run = self._run_of(each)
            files += [each] if run is None else traces_of(run)
        return files

    def _model(self, system: str) -> CollectiveModel | None:
        return CollectiveModel.from_partition(self._partition_of(system)) if system else None


def _known(collective: str, algorithm: str) -> str:
    known = known_algorithms(collective)
    if algorithm not in known:
        hint = did_you_mean(algorithm, known) or f"known: {', '.join(known)}"
        raise UsageError(f"no algorithm named {algorithm!r} for {collective}", hint=hint)
    return algorithm
