"""Data sets that scripts are applied to, and workflows that run: assets of the catalog, carried out as flows."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypedDict

from fairmile.base.errors import NotFound, RunFailed, UsageError
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result
from fairmile.base.words import slug
from fairmile.catalog import verbs
from fairmile.catalog.assets import Assets
from fairmile.catalog.card import Card
from fairmile.catalog.catalog import Catalog
from fairmile.flows.flows import Flows
from fairmile.flows.model import Flow, Step
from fairmile.flows.results import FlowStatus
from fairmile.runs.arguments import is_program, start_program, with_options
from fairmile.runs.parameters import check_used, unused_params
from fairmile.runs.record.spec import RunSpec
from fairmile.runs.record.values import Value

_STEP = "apply"
_DATA = "{inputs.data}"
_LONGEST_NAME = 48


class AppliedDict(TypedDict):
    """A data set, the script that was applied to it, where the results are, and the run."""

    dataset: str
    script: str
    folder: str
    files: list[str]
    run: str


@dataclass(frozen=True, repr=False)
class Applied(Result):
    """What a script made of a data set: files below `folder`."""

    dataset: str
    script: str
    folder: Path
    files: list[str]
    run: str

    def __fspath__(self) -> str:
        return str(self.folder)

    def to_dict(self) -> AppliedDict:
        return {
            "dataset": self.dataset,
            "script": self.script,
            "folder": str(self.folder),
            "files": self.files,
            "run": self.run,
        }

    def summary(self) -> str:
        count = "1 file" if len(self.files) == 1 else f"{len(self.files):,} files"
        return f"{self.script} on {self.dataset}: {count} in {self.folder}"


class Datasets(verbs.Datasets):
    """Data sets of every catalog, and scripts that are applied to them."""

    def __init__(
        self, catalog: Catalog, assets: Assets, flows: Callable[[], Flows], environ: Mapping[str, str]
    ) -> None:
        super().__init__(catalog, assets)
        self._flows, self._environ = flows, environ

    def apply(
        self, name: str, script: str | os.PathLike[str], *, to: str | os.PathLike[str] | None = None, **params: Value
    ) -> Applied:
        """Run a script on a data set, and return the folder with the files that it wrote.

        The script is a program here, one of the supporting files of the data set, or an asset with a command. It runs
        in the folder `to`, by default ./NAME-SCRIPT, and is given the folder of the data as its first argument and
        `params` as the options that it declares, such as num_threads=4. The same script, data and parameters do not
        run twice.
        """
        card = self._catalog.get(name, kind=self.kind)
        word = os.fspath(script)
        folder = Path(to or f"{card.handle.name}-{slug(Path(word).stem)}").absolute()
        step = self._step(card, word, folder, params)
        flow = Flow(name=_flow_name(f"{card.handle.name}-{Path(word).stem}"), steps={_STEP: step}, folder=str(folder))
        folder.mkdir(parents=True, exist_ok=True)
        flows = self._flows()
        done = flows.run(flow).step(_STEP)
        if done.state != "done":
            raise RunFailed(
                f"{word} on {card.handle}: {done.reason or done.state}", hint=f"`fairmile runs show {done.run}`"
            )
        files = sorted(str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file())
        return Applied(str(card.handle), word, folder, files, done.run)

    def _step(self, card: Card, word: str, folder: Path, params: Mapping[str, Value]) -> Step:
        inputs = {"data": str(card.handle)}
        file = self._script(card, word)
        if file is None:
            return Step(run=str(self._catalog.get(word).handle), inputs=inputs, params=params, outputs=("*",))
        argv = with_options(start_program([str(file), _DATA], folder, self._environ), params, folder, self._environ)
        spec = RunSpec(argv=argv, params=params, code=(str(file),))
        check_used(unused_params(spec, list(params), self._environ), spec, str(word))
        return Step(command=argv, inputs=inputs, params=params, outputs=("*",), code=(str(file),))

    def _script(self, card: Card, word: str) -> Path | None:
        """Return the file that a word means; None where it may be an asset."""
        here = Path(word).expanduser()
        if is_program(here):
            return here.absolute()
        if word in self.list_supporting_files(str(card.handle)):
            loaded = self._assets.load(str(card.handle), kind=self.kind)
            if word in {file.name for file in loaded.files}:
                return loaded.file(word)
        if here.exists():
            raise UsageError(f"{word} is not a program", hint=f"make it executable with `chmod +x {word}`")
        if here.suffix:
            raise NotFound(
                f"{word}: no such file here, and {card.handle} has no supporting file of that name",
                hint=f"check the path; `fairmile show {card.handle}` lists the files",
            )
        return None


class Workflows(verbs.Workflows):
    """Workflows of every catalog, which run as flows."""

    def __init__(self, catalog: Catalog, assets: Assets, flows: Callable[[], Flows]) -> None:
        super().__init__(catalog, assets)
        self._flows = flows

    def run(self, name: str, *, to: str | os.PathLike[str] | None = None, **params: Value) -> FlowStatus:
        """Run a workflow with these parameters in the folder `to`, by default ./NAME, and return each step's status.

        A workflow whose card has a command instead of a flow is a flow of one step.
        """
        card = self._catalog.get(name, kind=self.kind)
        if not card.get("command") or card.get("mainEntity"):
            return self._flows().run(str(card.handle), params=params, to=to)
        folder = Path(to or card.handle.name).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        step = Step(run=str(card.handle), params=params)
        return self._flows().run(Flow(name=_flow_name(card.handle.name), steps={"run": step}, folder=str(folder)))


def _flow_name(text: str) -> str:
    return slug(text)[:_LONGEST_NAME].strip("-._") or "flow"
