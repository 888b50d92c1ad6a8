"""Models that can be trained and used: the benchmark that judges a model knows how."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairmile.base.digest import content_sha256
from fairmile.base.errors import NotFound, UsageError
from fairmile.base.lazy import lazy
from fairmile.base.progress import Watch
from fairmile.base.words import did_you_mean
from fairmile.catalog.assets import Assets
from fairmile.catalog.card import Card, as_list, id_of
from fairmile.catalog.catalog import Catalog
from fairmile.catalog.declared import BUILTIN, LOCAL
from fairmile.catalog.verbs import Models as CatalogModels
from fairmile.models.convert.request import NO_TELEMETRY, Request, check_target
from fairmile.models.explore.request import Exploring
from fairmile.models.formats import ModelDescription, recognise
from fairmile.models.huggingface import HubFolder, export_folder, upload_folder
from fairmile.models.packaging import BASE, ModelPackage, package_model
from fairmile.models.ready import LoadedModel, ModelFile, check_loadable
from fairmile.resolve import Word
from fairmile.runs.record.run import Run
from fairmile.runs.record.spec import Input, RunSpec
from fairmile.runs.record.values import Value
from fairmile.runs.runs import Runs

if TYPE_CHECKING:
    from fairmile.envs.envs import Envs
    from fairmile.jobs.spec import Resources
    from fairmile.models.convert.conversion import Conversion, convert_model, tensorflow_command
    from fairmile.models.explore.exploration import Place, explore_model, plan_exploration
    from fairmile.models.explore.results import Exploration, ExplorationDict
else:
    Exploration = lazy("fairmile.models.explore.results:Exploration")
    Place = lazy("fairmile.models.explore.exploration:Place")
    Resources = lazy("fairmile.jobs.spec:Resources")
    explore_model = lazy("fairmile.models.explore.exploration:explore_model")
    plan_exploration = lazy("fairmile.models.explore.exploration:plan_exploration")
    convert_model = lazy("fairmile.models.convert.conversion:convert_model")
    tensorflow_command = lazy("fairmile.models.convert.conversion:tensorflow_command")

_DATA = ("validatedOn", "testedOn", "evaluatedOn", "trainedOn")  # terms of a card
_WORK = ("train", "inference")
_WEIGHTS = "checkpoint.pt"
_ALL = 1_000_000


class Models(CatalogModels, package=__package__):
    """Models of every catalog, and runs of them."""

    def __init__(
        self,
        catalog: Catalog,
        assets: Assets,
        runs: Callable[[], Runs],
        step_of: Callable[[str], Path],
        validation_of: Callable[[Run], Mapping[str, object]],
        foresee: Callable[[Exploring, ExplorationDict, Path], ExplorationDict],
        envs: Callable[[], Envs],
        environ: Mapping[str, str],
    ) -> None:
        super().__init__(catalog, assets)
        self._envs, self._environ = envs, environ
        self._runs = runs
        self._step_of = step_of
        self._validation_of = validation_of
        self._foresee = foresee

    def describe(self, name: str | Path) -> ModelDescription:
        """Return what a model file declares: format, inputs, outputs, parameters, operators, sha256.

        `name` is a path or the name of a model in the catalog, whose files are fetched unless the store has them. No
        framework is imported and nothing of the file is executed.
        """
        model = self.load(name)
        path = model.model_path
        description = recognise(path)
        handle = str(model.card.handle) if isinstance(model, LoadedModel) else ""
        return dataclasses.replace(description, digest=content_sha256(path), card=handle)

    def load(  # type: ignore[override]  # takes paths as well
        self,
        name: str | Path,
        *,
        trust_pickle: bool = False,
        into: Any = None,
        fresh: bool = False,
        pool: str | None = None,
        access_granted: bool = False,
        progress: bool | Watch = True,
    ) -> LoadedModel | ModelFile:
        """Return a model ready to call with arrays: one of the catalog, or of a file or folder of any known format.

        Its framework is imported when it is first called, or when `native` is asked for. Pickles, which can run any
        code, are loaded only with `trust_pickle`. `into` is a module of PyTorch that takes the weights of a file that
        holds nothing else. A model of the catalog is fetched unless the store has it; see `fm.datasets.load` for the
        other options.
        """
        if _is_path(name):
            return ModelFile(Path(name), trust_pickle=trust_pickle, into=into)
        options: dict[str, Any] = {"fresh": fresh, "pool": pool, "access_granted": access_granted}
        asset = super().load(str(name), progress=progress, **options)
        return LoadedModel(asset, trust_pickle=trust_pickle, into=into)

    def apply(self, name: str | Path, *arrays: Any, trust_pickle: bool = False, into: Any = None, **named: Any) -> Any:
        """Return the outputs of a model for arrays, given in the order of its inputs or by their names.

        `fm.models.run("inference", name, FILE)` does the same for a file of arrays, and records it.
        """
        return self.load(name, trust_pickle=trust_pickle, into=into)(*arrays, **named)

    def convert(
        self,
        name: str | Path,
        to: str,
        *,
        out: str | Path | None = None,
        weights: str | Path = "",
        validate_on: str = "",
        environment: str = "",
        replace: bool = False,
        dry_run: bool = False,
        **how: Any,
    ) -> Conversion:
        """Convert a model to another format, prove that it computes the same, and return file, proof, run and card.

        `name` is a file, or a model or benchmark of the catalog; `weights` are those of a run, by its id, or a file.
        `to` is onnx, pytorch, keras, savedmodel, safetensors, openvino or tf-checkpoint. `validate_on` names a run of a
        benchmark, by default that of `weights`: source and result are compared and scored on its validation data. `how`
        are fields of a Request: `code` (FILE.py:FUNCTION or MODULE:CLASS) builds the PyTorch model whose weights a file
        holds, `params` are its arguments, `inputs` describe what goes in (`x=float32[batch,3]`), `data` names a .npz or
        .npy file with inputs to compare on, `map` a file with names and layouts in TensorFlow, `trust_pickle` allows to
        load a pickle, `seed` draws the inputs. Without a proof nothing is published.

        Source and result are also compared on the data set that the card of a model names, if the store has it. A
        SavedModel is written by TensorFlow, in an `environment` that has it, or in one that is built for it.
        """
        check_target(to)
        request, origin = self._request(name, to, weights, how)
        judge = self._judge(validate_on, weights)
        data_set, notes = self._card_data(name, request)
        request = dataclasses.replace(request, judge=judge, data_set=data_set)
        source = str(name)
        return convert_model(
            self._runs(), self._catalog, request, source, origin, out=out, replace=replace,
            dry_run=dry_run, notes=notes,
            tensorflow=lambda: tensorflow_command(self._envs(), environment),
        )  # fmt: skip

    def _judge(self, validate_on: str, weights: str | Path) -> dict[str, object]:
        """Return what opens the validation data of a run: the one that is named, else the one that has the weights."""
        if not validate_on and (not weights or _is_path(weights)):
            return {}
        return dict(self._validation_of(self._runs().get(validate_on or str(weights))))

    def _request(self, name: str | Path, to: str, weights: str | Path, how: Mapping[str, Any]) -> tuple[Request, str]:
        """Return what the program that converts is asked for, and the id of what the new file is derived from."""
        files = {what: Path(how[what]).absolute() for what in ("data", "map") if how.get(what)}
        for what, given in files.items():
            if not given.is_file():
                raise NotFound(f"{how[what]}: no such file", hint=f"check the path given for {what}")
        how = {**how, **{what: str(given) for what, given in files.items()}}
        if "inputs" in how:
            how = {**how, "inputs": tuple(how["inputs"])}
        code = str(how.get("code") or "")
        if code.rpartition(":")[0].endswith(".py"):
            how = {**how, "code": f"{Path(code.rpartition(':')[0]).absolute()}:{code.rpartition(':')[2]}"}
        if _is_path(name):
            path = Path(name).absolute()
            if not path.exists():
                raise NotFound(f"{name}: no such file or folder")
            format = "" if code else recognise(path).format
            return Request(to, str(path), format, **how), f"urn:sha256:{content_sha256(path)}"
        card = self._catalog.get(str(name))
        if card.kind == "benchmark" or self._program(card).kind == "benchmark":
            file = str(self._weights(str(weights))) if weights else ""
            step = f"{self._step_of(str(name))}:build"
            return Request(to, file, **{**how, "code": how.get("code") or step, "takes_settings": True}), card.iri
        path = self.load(name).model_path
        return Request(to, str(path.absolute()), recognise(path).format, **how), card.iri

    def _card_data(self, name: str | Path, request: Request) -> tuple[str, tuple[str, ...]]:
        """Return the data set that the card of a model names and the store has, and a note where it has none.

        Data sets that judge the model come first. A model of a benchmark is compared on the data of a run instead.
        """
        if _is_path(name) or request.takes_settings or request.copies_weights:
            return "", ()
        card = self._catalog.get(str(name))
        handles: dict[str, None] = {}
        for iri in filter(None, (id_of(each) for term in _DATA for each in as_list(card.get(term)))):
            with suppress(NotFound):
                handles[str(self._catalog.get(iri, kind="dataset").handle)] = None
        here = next(filter(self._assets.has, handles), "")
        if here or not handles:
            return here, ()
        first = next(iter(handles))
        return "", (f"not compared on {first}, which its card names: `fairmile fetch {first}` brings it",)

    def explore(
        self,
        name: str | Path,
        *,
        runtime: Sequence[str] = (),
        precision: Sequence[str] = ("fp32",),
        batch: Sequence[int] = (),
        threads: Sequence[int] = (),
        device: str = "cpu",
        best: str = "latency",
        max_loss: float = 0.01,
        time_s: float = 120.0,
        weights: str | Path = "",
        again: bool = False,
        system: str = "",
        resources: Resources | None = None,
        software: Sequence[str] = (),
        environment: str = "",
        dry_run: bool = False,
        **how: Any,
    ) -> Exploration:
        """Measure which runtime, precision, batch size and number of threads run a model best, and return the order.

        `best` is latency, throughput, energy or size. Each combination is a process of its own; they take turns until
        the order is decided or `time_s` is over. A combination whose outputs lose more than `max_loss` is measured,
        but never recommended. `how` are fields of a Request, as for `convert`; the file `data` may have an array
        `targets`, by whose metric the loss is then judged. `fm.reports.write_page` writes the result as a page.
        Combinations of PyTorch on a GPU have a prediction beside.

        On a `system` it is a job, whose end is awaited; `resources`, `software` and `environment` are those of a run.
        """
        request, _ = self._request(name, "onnx", weights, how)
        asked = Exploring(
            request,
            tuple(runtime),
            tuple(precision),
            tuple(batch),
            tuple(threads),
            device,
            best,
            max_loss,
            time_s,
        )
        place = Place(system, resources or Resources(), tuple(software), environment)
        if dry_run:
            return plan_exploration(self._runs(), asked, str(name), place)
        explored = explore_model(self._runs(), asked, str(name), place, again=again)
        return Exploration(self._foresee(asked, explored.data, self._runs().get(explored.run).work))

    def export(
        self,
        name: str | Path,
        folder: str | Path,
        *,
        upload: str = "",
        replace: bool = False,
        trust_pickle: bool = False,
        dry_run: bool = False,
    ) -> HubFolder:
        """Write a model as a folder that the Hugging Face hub and its libraries read: README.md and the files.

        Weights of PyTorch become safetensors. `upload` names a repository of the hub, as ORG/NAME, that the folder is
        uploaded to by the hub's own client, with the token in HF_TOKEN. With `dry_run`, nothing is written or uploaded.
        """
        model = self.load(name, trust_pickle=trust_pickle)
        check_loadable(model.description, model.model_path, trust_pickle=trust_pickle)  # who gets it would load it
        card = model.card if isinstance(model, LoadedModel) else self._catalog.describe(name, kind="model").card
        exported = export_folder(model, card, Path(folder), replace=replace, dry_run=dry_run)
        return upload_folder(exported, upload, self._environ) if upload and not dry_run else exported

    def package(
        self,
        name: str | Path,
        folder: str | Path,
        *,
        runtime: str = "podman",
        base: str = BASE,
        data: str | Path = "data",
        install: bool = True,
        options: Sequence[str] = (),
        trust_pickle: bool = False,
        replace: bool = False,
        dry_run: bool = False,
    ) -> ModelPackage:
        """Write a folder that builds a container image of a model, and return the commands to build and run it.

        The image holds the model and the packages that run it, but no data: the folder `data` is bound in, with
        `inputs.npz`, and gets `predictions.npz`. `runtime` is podman, docker, apptainer or charliecloud. `base` is an
        image with Python, or with all packages where `install` is off. `options` go to the runtime when it runs.
        """
        described = self.describe(name)
        path = Path(described.path)
        check_loadable(described, path, trust_pickle=trust_pickle)
        return package_model(
            described, path, Path(folder), Path(data), runtime=runtime, base=base, install=install, options=options,
            replace=replace, dry_run=dry_run,
        )  # fmt: skip

    def run(
        self,
        work: str,
        name: str | Path,
        dataset: str | Path = "",
        *,
        weights: str | Path = "",
        params: dict[str, Value] | None = None,
        again: bool = False,
        trust_pickle: bool = False,
        **fields: Any,
    ) -> Run:
        """Train a model, or run inference with a trained one, and return the run.

        A model is run by the benchmark that judges it, or by its own command. `weights` are those of an earlier run,
        by its id, or a file. Further `fields` are those of a run, as `seed` and `system`.

        Without `weights`, inference calls the model's own file with the arrays of the file `dataset`, .npy or .npz; the
        outputs are `predictions.npz` of the run. A pickle then needs `trust_pickle=True`.
        """
        if work not in _WORK:
            near = did_you_mean(work, _WORK)
            raise UsageError(f"cannot run a model for {work!r}", hint=near or "train or inference")
        if work == "inference" and not weights:
            return self._infer(name, dataset, trust_pickle=trust_pickle, again=again, params=params or {}, **fields)
        values: dict[str, Value] = {**(params or {})}
        card = self._program(self._catalog.get(str(name), kind=self.kind))
        if card.kind == "benchmark":
            values["work"] = work
        if weights:
            values["checkpoint"] = str(self._weights(str(weights)))
        return self._runs().run(str(card.handle), str(dataset), again=again, params=values, **fields)

    def _infer(self, name: str | Path, data: str | Path, *, trust_pickle: bool, again: bool, **fields: Any) -> Run:
        """Run a model's own file over a file of arrays, in a process of its own."""
        if not isinstance(data, (str, Path)):
            raise UsageError("a recorded inference takes a file of arrays", hint="use fm.models.apply for arrays")
        if not Path(data).is_file() or not str(data):
            raise UsageError(
                "inference needs weights or a file of arrays",
                hint="set weights=RUN to the run that trained them, or pass an .npy or .npz file for the model's file",
            )
        model = self.load(name)
        path, file = model.model_path.absolute(), Path(data).absolute()
        check_loadable(recognise(path), path, trust_pickle=trust_pickle)
        inputs = {"model": Input(path=str(path)), "data": Input(path=str(file))}
        files = ["{inputs.model}", "{inputs.data}", "predictions.npz"]
        argv = [sys.executable, "-m", "fairmile.models.inference", *files]
        argv += ["--trust-pickle"] if trust_pickle else []
        handle = str(model.card.handle) if isinstance(model, LoadedModel) else ""
        spec = {"name": "inference", "argv": argv, "inputs": inputs, "outputs": ("predictions.npz",), "asset": handle}
        spec["env"] = dict(NO_TELEMETRY)
        return self._runs().run(RunSpec(**{**spec, **fields}), again=again)

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


def _is_path(name: str | Path) -> bool:
    """Tell a file or folder from a name of the catalog."""
    return isinstance(name, Path) or Word(name).is_path or Path(name).exists()
