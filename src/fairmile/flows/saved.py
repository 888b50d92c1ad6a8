"""Flows as assets of a catalog: a card with the file of the flow and the files that its steps need from its folder.

Others find the card, fetch those files into a folder of their own, and run the flow there with their parameters. What
steps take from a catalog, programs and data, is named on the card and fetched when the flow runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fairmile.base.digest import sha256_file, sha256_hex
from fairmile.base.errors import UsageError
from fairmile.base.source_files import is_source
from fairmile.catalog.assets import Assets
from fairmile.catalog.card import Card, id_of
from fairmile.catalog.catalog import Catalog
from fairmile.catalog.change import stated
from fairmile.catalog.declared import LOCAL
from fairmile.catalog.describing.describe import with_address
from fairmile.catalog.exchange.common.media_types import media_type
from fairmile.catalog.identity import DIGEST_VERSION_PREFIX
from fairmile.catalog.kinds import CONTEXT_IRI, KINDS, PROFILE_IRI
from fairmile.flows.files import Source
from fairmile.flows.graph import is_wild, matches, placed
from fairmile.flows.model import FromFiles, Step
from fairmile.flows.plan import FlowPlan, Planner
from fairmile.flows.programs import Program
from fairmile.flows.results import SavedFlow

LANGUAGE = "Fairmile flow"


def save_flow(
    source: Source,
    plan: FlowPlan,
    planner: Planner,
    catalog: Catalog,
    assets: Callable[[], Assets],
    name: str,
    address: str,
    values: Mapping[str, Any],
    dry_run: bool,
) -> SavedFlow:
    """Add the card of a flow to the local catalog, and its files to the store unless they have an address."""
    flow = FlowFiles(source, plan, planner, catalog)
    card = flow_card(flow, source, name=name, address=address, values=values)
    handle = str(Card(card.body, catalog=LOCAL).handle)
    if not dry_run:
        added = catalog.add(card)[0]
        handle = added.stands_as or added.handle
        if not address:
            assets().fetch(handle)
    return SavedFlow(handle, sorted(flow.files), source.flow.params, list(flow.assets), dry_run)


def main_file(card: Card) -> str:
    """Return which file of an asset is its flow; UsageError where it has none."""
    name = id_of(card.get("mainEntity")) or ""
    if name not in {file.name for file in card.files}:
        is_run = bool(card.get("command"))
        raise UsageError(
            f"{card.handle} has no flow file",
            hint=f"`fairmile run {card.handle}` runs its command" if is_run else "`fairmile flow save` saves flows",
        )
    return name


class FlowFiles:
    """What a flow is made of: files below one folder, and assets of catalogs."""

    def __init__(self, source: Source, plan: FlowPlan, planner: Planner, catalog: Catalog) -> None:
        if source.file is None:
            raise UsageError("only a flow in a file can be saved", hint="write it to a YAML or JSON file first")
        self._planner, self._catalog = planner, catalog
        self._folder = source.flow.folder
        self.root = Path(os.path.commonpath([source.file.parent, self._folder]))
        self.main = os.path.relpath(source.file, self.root)
        self.files: dict[str, Path] = {self.main: source.file}
        self.assets: dict[str, None] = {}
        steps = source.flow.steps
        self._made = {
            placed(steps[each.node.step].folder, path) for each in plan.steps.values() for path in each.node.outputs
        }
        self._patterns = [path for path in self._made if is_wild(path)]
        for step in steps.values():
            for each in step.over.values() if isinstance(step.over, Mapping) else ():
                if isinstance(each, FromFiles):
                    self._add_input(step, each.path)
        for node in {planned.node.step: planned.node for planned in plan.steps.values()}.values():
            self._add_program(steps[node.step], planner.program(node))
        for planned in plan.steps.values():
            for text in planned.node.inputs.values():
                self._add_input(steps[planned.node.step], text)

    def _add_program(self, step: Step, program: Program) -> None:
        if program.spec.asset:
            self.assets[program.spec.asset] = None
            return
        own = [step.run] if step.run else [step.over] if isinstance(step.over, str) else []
        for each in (*program.parts["code"], *own):
            path = Path(self._folder, step.folder, each)
            if path.is_relative_to(self.root) or is_source(path.name):
                self._add(path)

    def _add_input(self, step: Step, text: str) -> None:
        path = placed(step.folder, text)
        if path in self._made or any(matches(pattern, path) for pattern in self._patterns):
            return
        paths = list(Path(self._folder).glob(path)) if is_wild(path) else [Path(self._folder, path)]
        for each in paths:
            if each.exists():
                self._add(each)
        if not is_wild(path) and not paths[0].exists():
            self.assets[str(self._catalog.get(text).handle)] = None

    def _add(self, path: Path) -> None:
        path = Path(os.path.abspath(path))
        if not path.is_relative_to(self.root):
            raise UsageError(
                f"{path} lies outside of {self.root}, so others would not have it",
                hint="move it below the folder of the flow, or describe it as an asset",
            )
        for file in [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file()):
            if (name := os.path.relpath(file, self.root)) not in self._made:
                self.files[name] = file


def flow_card(flow: FlowFiles, source: Source, *, name: str, address: str, values: Mapping[str, Any]) -> Card:
    """Return the card of a flow; without an `address` its files are fetched from where they lie."""
    digests = {each: sha256_file(path) for each, path in sorted(flow.files.items())}
    version = DIGEST_VERSION_PREFIX + sha256_hex(repr(digests).encode())[:12]
    body: dict[str, Any] = {
        "@context": CONTEXT_IRI,
        "conformsTo": [PROFILE_IRI],
        "@type": list(KINDS["workflow"].types),
        "name": name or source.flow.name,
        "version": version,
        "programmingLanguage": LANGUAGE,
        "mainEntity": flow.main,
        "distribution": [_entry(each, flow.files[each], digest) for each, digest in digests.items()],
        "input": [_parameter(each, value) for each, value in source.flow.params.items()],
        "step": [{"@type": "HowToStep", "name": each} for each in source.flow.steps],
        "hasPart": list(flow.assets),
    }
    body = {key: value for key, value in body.items() if value}
    if address:
        body = with_address(body, address.rstrip("/") + "/")
    else:
        files = [{**entry, "contentUrl": flow.files[entry["name"]].as_uri()} for entry in body["distribution"]]
        body["distribution"] = files
    return stated(Card(body), values)


def _entry(name: str, path: Path, digest: str) -> dict[str, Any]:
    entry = {"@type": "FileObject", "@id": name, "name": name, "contentSize": f"{path.stat().st_size} B"}
    return {**entry, "encodingFormat": media_type(name) or "application/octet-stream", "sha256": digest}


def _parameter(name: str, value: Any) -> dict[str, Any]:
    return {"@type": "FormalParameter", "name": name, "additionalType": "PropertyValue", "defaultValue": value}
