"""Where the files of a flow lie: in its folder, and on remote systems that steps left outputs on.

An output stays on the system that made it while only steps there take it. It comes home when a step somewhere else
takes it, and when it is a result of the flow. Between two remote systems it goes by way of home.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from fairmile.base.errors import Integrity, NotFound
from fairmile.base.files import safe_join
from fairmile.flows.graph import is_wild, matches, placed
from fairmile.flows.model import Flow
from fairmile.flows.plan import ASSET, PlannedStep, Planner, Round
from fairmile.flows.state import Entry, FlowState
from fairmile.jobs.spec import Nearby
from fairmile.runs.runs import Runs


class Places:
    """Finds the files of one flow and moves them; `is_remote` tells which systems share no files with us."""

    def __init__(self, planner: Planner, state: FlowState, runs: Runs, is_remote: Callable[[str], bool]) -> None:
        self._planner, self._state, self._runs, self.is_remote = planner, state, runs, is_remote
        self._flow: Flow = planner.flow
        self._folder: Path = planner.folder

    def bring_inputs(self, planned: PlannedStep, round: Round) -> None:
        """Bring home what a step takes, unless it runs where that lies."""
        system = self._flow.steps[planned.node.step].system
        for path, digest in planned.inputs.items():
            entry = round.away.get(path)
            if entry is not None and entry.on != system:
                self._bring(entry, path, digest)

    def bring_outputs(self, entry: Entry) -> None:
        """Bring home what a step gave, except for what may stay where it is."""
        for path in self._homeward(entry):
            self._bring(entry, path, entry.outputs[path])

    def _homeward(self, entry: Entry) -> Iterator[str]:
        step = entry.step.partition("[")[0]
        for path in entry.outputs if entry.on else ():
            # A file of an earlier run must not stay beside a newer one elsewhere.
            if not self._planner.may_stay(step, path) or os.path.lexists(self._folder / path):
                yield path

    def _bring(self, entry: Entry, path: str, digest: str) -> None:
        target = safe_join(self._folder, path)
        if self._planner.digest(str(target)) == digest:
            return
        run = self._runs.find(entry.run)
        if run is None:
            raise NotFound(f"{path} is gone: run {entry.run}, which made it, was removed")
        self._runs.bring_output(run, self._own_name(entry.step, path), target)
        if self._planner.digest(str(target)) != digest:
            raise Integrity(f"{path} on {entry.on} is not what `{entry.step}` wrote", hint=f"--again {entry.step}")

    def _own_name(self, node: str, path: str) -> str:
        """Return a path of the flow as the step that gives it names it."""
        folder = self._flow.steps[node.partition("[")[0]].folder
        return os.path.relpath(path, folder) if folder else path

    def nearby(self, entry: Entry, path: str) -> Nearby | None:
        """Return where an output lies on the system of its step."""
        run = self._runs.find(entry.run)
        return self._runs.output_there(run, self._own_name(entry.step, path)) if run is not None else None

    def late(self, planned: PlannedStep, others: list[PlannedStep]) -> dict[str, Nearby] | None:
        """Return, by path, where inputs will lie that steps before make on the same remote system.

        None while one of these is not submitted yet.
        """
        step = self._flow.steps[planned.node.step]
        taken = [placed(step.folder, text) for text in planned.node.inputs.values()]
        files: dict[str, Nearby] = {}
        for other in others:
            folder = self._flow.steps[other.node.step].folder
            newest = self._state.newest.get(other.name)
            for output in other.node.outputs:
                path = placed(folder, output)
                if not any(path == each or (is_wild(each) and matches(each, path)) for each in taken):
                    continue
                run = self._runs.find(newest.run) if newest is not None else None
                there = self._runs.output_there(run, output) if run is not None else None
                if there is None:
                    return None
                files[path] = there.model_copy(update={"sha256": ""})
        return files

    def note_gone(self, planned: PlannedStep, round: Round) -> None:
        """Have steps run again the next time whose outputs are no longer where they left them."""
        looked_at, paths = set(), list(planned.inputs)
        while paths:
            entry = round.away.get(path := paths.pop())
            if entry is None or path in looked_at:
                continue
            looked_at.add(path)
            if entry.step in self._state.done and not self._is_there(entry, path):
                self._state.note(Entry(entry.step, "gone", reason=f"output {path} is gone from {entry.on}"))
                paths += entry.inputs  # which that step needs when it runs again

    def _is_there(self, entry: Entry, path: str) -> bool:
        run = self._runs.find(entry.run)
        return run is not None and self._runs.has_output(run, self._own_name(entry.step, path))


def own_inputs(planned: PlannedStep) -> Iterator[tuple[str, str]]:
    """Yield the files that a step takes, each with its digest; assets are none."""
    for path, digest in planned.inputs.items():
        if not digest.startswith(ASSET):
            yield path, digest
