"""A conversion as a run: planned, executed in a process of its own, proved, and only then published with a card."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from fairmile.base import errors
from fairmile.base.digest import content_sha256
from fairmile.base.errors import Conflict, FairmileError, MissingExtra, RunFailed, Unsupported
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result
from fairmile.catalog.catalog import Catalog
from fairmile.envs.envs import Envs
from fairmile.envs.spec import EnvironmentSpec, PythonSpec
from fairmile.models.convert.request import (
    NO_TELEMETRY,
    TARGETS,
    ProofDict,
    Request,
    function_words,
    parse_input,
    rounding_words,
)
from fairmile.runs.record.run import Run
from fairmile.runs.record.spec import Input, MetricSpec, RunSpec
from fairmile.runs.runs import Runs

_PROGRAM = "fairmile.models.convert.program"
_RESULT = "proof.json"
_WORST = "worst.npz"
_FORMATS = {
    "onnx": "ONNX",
    "pytorch": "PyTorch",
    "keras": "Keras",
    "savedmodel": "SavedModel",
    "safetensors": "safetensors",
    "openvino": "OpenVINO",
    "tf-checkpoint": "TensorFlow checkpoint",
}


TENSORFLOW = EnvironmentSpec(
    name="tensorflow",
    python=PythonSpec(
        version=">=3.10,<3.14",
        packages=(
            "tensorflow-cpu==2.21.0; platform_machine == 'x86_64'",
            "tensorflow==2.21.0; platform_machine != 'x86_64'",
            "keras==3.15.1",
        ),
    ),
)


class ConversionDict(TypedDict):
    source: str
    to: str
    file: str
    way: str
    proof: ProofDict | None
    run: str
    worst: NotRequired[str]
    sha256: NotRequired[str]
    card: NotRequired[str]
    notes: NotRequired[list[str]]


@dataclass(frozen=True, repr=False)
class Conversion(Result):
    """A converted model: its file, the way it took, the proof, the run, and the card of the new file."""

    source: str
    to: str
    file: str  # published only if the proof holds
    way: str = ""
    proof: ProofDict | None = None  # None for a plan
    run: str = ""
    worst: str = ""  # the inputs on which source and result differ most, where the proof does not hold
    sha256: str = ""
    card: str = ""
    notes: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        return self.proof is not None and self.proof["holds"]

    def to_dict(self) -> ConversionDict:
        data: ConversionDict = {
            "source": self.source,
            "to": self.to,
            "file": self.file,
            "way": self.way,
            "proof": self.proof,
            "run": self.run,
        }
        if self.worst:
            data["worst"] = self.worst
        if self.sha256:
            data["sha256"] = self.sha256
        if self.card:
            data["card"] = self.card
        if self.notes:
            data["notes"] = list(self.notes)
        return data

    def summary(self) -> str:
        if self.proof is None:
            return f"would convert {self.source} to {self.file}"
        verdict = "the same within tolerance" if self.holds else "not the same"
        return f"{self.source} to {_FORMATS[self.to]}: {verdict}"


def convert_model(
    runs: Runs,
    catalog: Catalog,
    request: Request,
    source: str,
    origin: str,
    *,
    out: str | Path | None,
    replace: bool,
    dry_run: bool,
    tensorflow: Callable[[], tuple[str, ...]],
    notes: tuple[str, ...] = (),
) -> Conversion:
    """Convert what a request names, and publish the file with its card if the proof holds.

    `source` is the name under which the model was asked for, `origin` the id of what the new file is derived from;
    `tensorflow` returns the command of a Python that has TensorFlow.
    """
    is_file = Path(source).exists()
    title = Path(source).stem if is_file else source.rpartition("/")[2].partition("@")[0]
    target = target_file(title, request, out)
    if dry_run:
        return Conversion(source, request.to, str(target), notes=notes)
    check_packages(request.to)
    if target.exists() and not replace:
        raise Conflict(f"{target} already exists", hint="--replace overwrites it, -o names another file")
    if request.to == "savedmodel" and not request.is_of_weights:
        request = dataclasses.replace(request, python=tensorflow())
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", f"convert-{title}-{request.to}")[:64]
    run, written = _execute(runs, request, name)
    if request.data_set and request.data_set not in [each["inputs"] for each in written["proof"]["cases"]]:
        notes = (f"{request.data_set}, which its card names, has no arrays that fit the inputs of the model",)
    conversion = Conversion(source, request.to, str(target), written["way"], written["proof"], run.id, notes=notes)
    if not conversion.holds:
        return dataclasses.replace(conversion, worst=str(run.work / _WORST))
    _publish(run, written, target)
    conversion = dataclasses.replace(conversion, sha256=content_sha256(target))
    return dataclasses.replace(conversion, card=_add_card(catalog, conversion, origin, title))


def check_packages(to: str) -> None:
    """Refuse a conversion whose packages are not installed."""
    packages = {"onnx": "models", "onnxruntime": "models", "safetensors": "models"}
    for package, extra in (packages | {"openvino": "openvino"} if to == "openvino" else packages).items():
        if importlib.util.find_spec(package) is None:
            raise MissingExtra(f"converting to {_FORMATS[to]} needs {package}", extra)


def tensorflow_command(envs: Envs, environment: str) -> tuple[str, ...]:
    """Return the command of a Python that has TensorFlow: that of a named environment, or of one that is built."""
    if environment:
        return envs.shell(environment, ("python",)).argv
    try:
        envs.build(TENSORFLOW)
        return envs.shell(TENSORFLOW, ("python",)).argv
    except FairmileError as error:
        last = re.sub(
            r"^(?:hint|error|cause): ", "", error.message.strip().splitlines()[-1].strip(), flags=re.IGNORECASE
        )
        raise Unsupported(
            f"SavedModel needs TensorFlow, which could not be installed: {last}",
            hint="name an environment that has TensorFlow and Keras: --environment ENV; `fairmile env build` makes one",
        ) from error


def target_file(title: str, request: Request, out: str | Path | None) -> Path:
    """Return where a converted model goes: as stated, or into this folder under the name of its source."""
    if out is not None:
        return Path(out)
    suffix = ".pt" if request.to == "pytorch" and request.is_of_weights else TARGETS[request.to]
    return Path(f"{title}{suffix}")


def _execute(runs: Runs, request: Request, name: str) -> tuple[Run, Mapping[str, Any]]:
    """Run a conversion and return its run and what its program wrote; errors of the program are raised here."""
    for number, text in enumerate(request.inputs):
        parse_input(text, number)
    inputs = {"source": Input(path=request.source)} if request.source else {}
    for what, path in (("data", request.data), ("map", request.map)):
        if path:
            inputs[what] = Input(path=path)
    code = request.code.rpartition(":")[0]
    if request.data_set:
        inputs["data_set"] = Input(asset=request.data_set)
    words = ("data_set_path={inputs.data_set}",) if request.data_set else ()
    spec = RunSpec(
        name=name,
        argv=(sys.executable, "-m", _PROGRAM, request.to_json(), *words),
        inputs=inputs,
        code=(str(Path(code).absolute()),) if code.endswith(".py") else (),
        outputs=("model*", "model*/**/*", _RESULT, _WORST),
        metrics={
            "largest_difference": MetricSpec(better="lower"),
            "typical_difference": MetricSpec(better="lower"),
            "tolerance": MetricSpec(),
            "function_difference": MetricSpec(better="lower"),
            "source_rounding": MetricSpec(better="lower"),
            "result_rounding": MetricSpec(better="lower"),
            "rounding_ratio": MetricSpec(better="lower"),
        },
        env=dict(NO_TELEMETRY),
        seed=request.seed,
        watch_s=0,
        tags=("conversion",),
    )
    run = runs.run(spec)
    file = run.work / _RESULT
    written: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {}
    if "error" in written:
        raise error_again(written["error"])
    if "proof" not in written:
        raise RunFailed(f"the conversion failed: {last_line(runs, run)}", hint=f"fairmile runs log {run.id}")
    return run, written


def error_again(error: Mapping[str, Any]) -> FairmileError:
    """Return the error that the program met."""
    kind = getattr(errors, str(error["type"]), FairmileError)
    kind = errors.Unsupported if kind is errors.MissingExtra else kind  # which makes its hint itself
    made: FairmileError = kind(error["message"], hint=error.get("hint") or None)
    return made


def last_line(runs: Runs, run: Run) -> str:
    lines = [line for line in runs.output(run.id).decode(errors="replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else run.reason or "it printed nothing"


def _publish(run: Run, written: Mapping[str, Any], target: Path) -> None:
    """Copy the proved files of a run to where they were asked for; the last one is the file that names the others."""
    made = Path(written["file"])
    for each in sorted(run.work.glob(f"{made.stem}.*"), key=lambda file: file.name == made.name):
        destination = target if each.name == made.name else target.with_name(target.stem + each.suffix)
        destination.parent.mkdir(parents=True, exist_ok=True)
        if each.is_dir():
            _copy_folder(each, destination)
        else:
            shutil.copyfile(each, destination)


def _copy_folder(source: Path, target: Path) -> None:
    """Copy a SavedModel aside and put it in place; another folder that is not one is never overwritten."""
    if target.exists() and not (target / "saved_model.pb").is_file():
        raise Conflict(f"{target} exists and is no SavedModel", hint="-o names another folder")
    with tempfile.TemporaryDirectory(dir=target.absolute().parent, prefix=".savedmodel-") as aside:
        shutil.copytree(source, Path(aside, "new"))
        if target.exists():
            target.rename(Path(aside, "old"))
        Path(aside, "new").rename(target)


def _add_card(catalog: Catalog, conversion: Conversion, origin: str, title: str) -> str:
    """Add a card of the new file, derived from its source, and return its handle."""
    digest = conversion.sha256
    proof = conversion.proof
    proved = "" if proof is None else f" Function: {function_words(proof)}."
    if proof is not None and (rounding := rounding_words(proof)):
        proved += f" Rounding beside float64: {rounding}."
    properties = {
        "name": f"{title} ({_FORMATS[conversion.to]})",
        "version": digest[:12],
        "wasDerivedFrom": origin,
        "description": f"{title} in {_FORMATS[conversion.to]} format, converted by run {conversion.run}.{proved}",
    }
    described = catalog.describe(conversion.file, kind="model", set=properties, add=True)
    return described.added
