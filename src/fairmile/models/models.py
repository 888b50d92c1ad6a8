"""Models that can be trained and used: the benchmark that judges a model knows how."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairmile.base.digest import merkle_root, scan_tree, sha256_file
from fairmile.base.errors import NotFound, UsageError
from fairmile.base.lazy import lazy
from fairmile.base.words import did_you_mean
from fairmile.catalog.assets import Assets
from fairmile.catalog.card import Card
from fairmile.catalog.catalog import Catalog
from fairmile.catalog.declared import BUILTIN, LOCAL
from fairmile.catalog.verbs import Models as CatalogModels
from fairmile.models.convert.request import Request, check_target
from fairmile.models.formats import ModelDescription, recognise
from fairmile.resolve import Word
from fairmile.runs.record.run import Run
from fairmile.runs.record.values import Value
from fairmile.runs.runs import Runs

if TYPE_CHECKING:
    from fairmile.models.convert.conversion import Conversion, convert_model
else:
    convert_model = lazy("fairmile.models.convert.conversion:convert_model")

_WORK = ("train", "inference")
_WEIGHTS = "checkpoint.pt"
_ALL = 1_000_000


class Models(CatalogModels):
    """Models of every catalog, and runs of them."""

    def __init__(
        self, catalog: Catalog, assets: Assets, runs: Callable[[], Runs], step_of: Callable[[str], Path]
    ) -> None:
        super().__init__(catalog, assets)
        self._runs = runs
        self._step_of = step_of

    def describe(self, name: str | Path) -> ModelDescription:
        """Return what a model file declares: format, inputs, outputs, parameters, operators, sha256.

        `name` is a path or the name of a model in the catalog, whose files are fetched unless the store has them. No
        framework is imported and nothing of the file is executed.
        """
        path, card = self._file_of(name)
        description = recognise(path)
        digest = merkle_root(scan_tree(path)) if path.is_dir() else sha256_file(path)
        return dataclasses.replace(description, digest=digest, card=str(card.handle) if card else "")

    def _file_of(self, name: str | Path) -> tuple[Path, Card | None]:
        """Return the file or folder that a path or the name of a model means, and the card of a name."""
        if isinstance(name, Path) or Word(name).is_path or Path(name).exists():
            return Path(name), None
        asset = self.load(name)
        return (asset.files[0].path if len(asset.files) == 1 else asset.path), asset.card

    def convert(
        self,
        name: str | Path,
        to: str,
        *,
        out: str | Path | None = None,
        weights: str | Path = "",
        replace: bool = False,
        dry_run: bool = False,
        **how: Any,
    ) -> Conversion:
        """Convert a model to another format, prove that it computes the same, and return file, proof, run and card.

        `name` is a file, or a model or benchmark of the catalog; `weights` are those of a run, by its id, or a file.
        `to` is onnx, pytorch, keras, safetensors or openvino. `how` are fields of a Request: `code` (FILE.py:FUNCTION
        or MODULE:CLASS) builds the PyTorch model whose weights a file holds, `params` are its arguments, `inputs`
        describe what goes in (`x=float32[batch,3]`), `data` names a .npz or .npy file with inputs to compare on,
        `trust_pickle` allows to load a pickle, `seed` draws the inputs. Without a proof nothing is published.
        """
        check_target(to)
        request, origin = self._request(name, to, weights, how)
        source = str(name)
        return convert_model(
            self._runs(), self._catalog, request, source, origin, out=out, replace=replace, dry_run=dry_run
        )

    def _request(self, name: str | Path, to: str, weights: str | Path, how: Mapping[str, Any]) -> tuple[Request, str]:
        """Return what the program that converts is asked for, and the id of what the new file is derived from."""
        if how.get("data"):
            how = {**how, "data": str(Path(how["data"]).absolute())}
        if "inputs" in how:
            how = {**how, "inputs": tuple(how["inputs"])}
        code = str(how.get("code") or "")
        if code.rpartition(":")[0].endswith(".py"):
            how = {**how, "code": f"{Path(code.rpartition(':')[0]).absolute()}:{code.rpartition(':')[2]}"}
        if isinstance(name, Path) or Word(name).is_path or Path(name).exists():
            path = Path(name).absolute()
            digest = merkle_root(scan_tree(path)) if path.is_dir() else sha256_file(path)
            format = "" if code else recognise(path).format
            return Request(to, str(path), format, **how), f"urn:sha256:{digest}"
        card = self._catalog.get(name)
        if card.kind == "benchmark" or self._program(card).kind == "benchmark":
            file = str(self._weights(str(weights))) if weights else ""
            step = f"{self._step_of(name)}:build"
            return Request(to, file, **{**how, "code": how.get("code") or step, "takes_settings": True}), card.iri
        path, _ = self._file_of(name)
        return Request(to, str(path.absolute()), recognise(path).format, **how), card.iri

    def run(
        self,
        work: str,
        name: str,
        dataset: str = "",
        *,
        weights: str | Path = "",
        params: dict[str, Value] | None = None,
        again: bool = False,
        **fields: Any,
    ) -> Run:
        """Train a model, or run inference with a trained one, and return the run.

        A model is run by the benchmark that judges it, or by its own command. `weights` are those of an earlier run,
        by its id, or a file; inference needs them. Further `fields` are those of a run, as `seed` and `system`.
        """
        if work not in _WORK:
            near = did_you_mean(work, _WORK)
            raise UsageError(f"cannot run a model for {work!r}", hint=near or "train or inference")
        if work == "inference" and not weights:
            raise UsageError(
                "inference needs weights", hint="set weights=RUN to the run that trained them, or to a file"
            )
        values: dict[str, Value] = {**(params or {})}
        card = self._program(self._catalog.get(name, kind=self.kind))
        if card.kind == "benchmark":
            values["work"] = work
        if weights:
            values["checkpoint"] = str(self._weights(str(weights)))
        return self._runs().run(str(card.handle), dataset, again=again, params=values, **fields)

    def _program(self, model: Card) -> Card:
        """Return what runs a model: the benchmark that makes its own data, else the model's own card.

        Who asks for a model trusts its catalog: a benchmark of another one does not get to run in its place.
        """
        judges = [hit.handle for hit in self._catalog.find("benchmark", limit=_ALL) if not hit.row.gone]
        for card in (self._catalog.get(str(handle)) for handle in judges):
            is_trusted = card.catalog in (model.catalog, BUILTIN, LOCAL)
            if is_trusted and card.get("makesData") is True and model.iri in card.texts("evaluatedMLModel"):
                return card
        return model

    def _weights(self, named: str) -> Path:
        """Return the file of weights that a path or a run means."""
        if Path(named).is_file():
            return Path(named).absolute()
        run = self._runs().get(named)
        file = run.work / _WEIGHTS
        if not file.is_file():
            raise NotFound(f"run {run.id} has no weights: no such file: {file}")
        return file
