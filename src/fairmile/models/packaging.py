"""Models in container images: the model and what runs it inside, its data bound in from outside."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import TypedDict

from fairmile.base.errors import Conflict, Unsupported
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result
from fairmile.envs.containers import RUNTIMES, Packaged, package
from fairmile.envs.runtimes import Bind, Container, Options
from fairmile.envs.spec import EnvironmentSpec, PythonSpec
from fairmile.models.formats.description import ModelDescription

BASE = "docker.io/library/python:3.12-slim"
_MODEL, _DATA = "/model", "/data"
_PACKAGES = {
    "onnx": ("onnxruntime",),
    **dict.fromkeys(("torchscript", "pytorch-exported"), ("torch",)),
    **dict.fromkeys(("keras", "keras-h5"), ("keras", "torch")),
    "skops": ("scikit-learn", "skops"),
    **dict.fromkeys(("sklearn-pickle", "pickle"), ("scikit-learn", "joblib")),
    "savedmodel": ("tensorflow",),
}


class ModelPackageDict(TypedDict):
    model: str
    runtime: str
    folder: str
    files: list[str]
    text: str
    notes: list[str]
    image: str
    build: list[list[str]]
    run: list[str]


@dataclass(frozen=True, repr=False)
class ModelPackage(Result):
    """The build folder of a model's image, the commands that build it there, and the one that runs the model.

    `run` reads `inputs.npz` from the folder of data and writes `predictions.npz` there.
    """

    model: str
    runtime: str
    folder: str
    files: tuple[str, ...]
    text: str  # of the definition
    notes: tuple[str, ...]
    image: str
    build: tuple[tuple[str, ...], ...]
    run: tuple[str, ...]

    def to_dict(self) -> ModelPackageDict:
        return {
            "model": self.model,
            "runtime": self.runtime,
            "folder": self.folder,
            "files": list(self.files),
            "text": self.text,
            "notes": list(self.notes),
            "image": self.image,
            "build": [list(each) for each in self.build],
            "run": list(self.run),
        }

    def summary(self) -> str:
        return f"{self.model} for {self.runtime} in {self.folder}"

    def shell_lines(self) -> list[str]:
        """Return the lines that build the image and run the model."""
        return [f"cd {shlex.quote(self.folder)}", *(shlex.join(each) for each in (*self.build, self.run))]


def package_model(
    described: ModelDescription,
    path: Path,
    folder: Path,
    data: Path,
    *,
    runtime: str,
    base: str,
    install: bool,
    options: Sequence[str],
    replace: bool,
    dry_run: bool,
) -> ModelPackage:
    """Write the build folder of an image that holds a model, and return it with the commands to build and run it."""
    if folder.exists() and any(folder.iterdir()) and not replace and not dry_run:
        raise Conflict(f"{folder} is not empty", hint="--replace writes into it, -o names another folder")
    with_runtime = RUNTIMES[runtime]()
    inside = f"{_MODEL}/{path.name}"
    python = PythonSpec(packages=requirements(described)) if install else None
    spec = EnvironmentSpec(name=_title(path), python=python)
    packaged: Packaged = package(spec, with_runtime, base=base, files={inside: path})
    folder, data = folder.absolute(), data.absolute()
    image = with_runtime.stored_as(spec.name, "", str(folder))
    argv = ["python3", "-m", "fairmile.models.inference", inside, f"{_DATA}/inputs.npz", f"{_DATA}/predictions.npz"]
    container = Container(image, (Bind(str(data), _DATA, read_only=False),), options=tuple(options))
    build = with_runtime.build_commands(packaged.definition, image, str(folder), Options())
    if not dry_run:
        folder.mkdir(parents=True, exist_ok=True)
        packaged.write(folder)
    return ModelPackage(
        described.card or described.path,
        runtime,
        str(folder),
        tuple(packaged.files),
        packaged.texts[packaged.definition],
        (*packaged.notes, _offline(base, install)),
        image,
        tuple(map(tuple, build)),
        (*with_runtime.command(container, [*argv, *(["--trust-pickle"] if described.runs_code else [])]),),
    )


def _offline(base: str, install: bool) -> str:
    fetched = f"{base} and packages of Python" if install else base
    return f"the build downloads {fetched}: without network, use --base with an image that is stored there" + (
        " and has the packages, and --no-install" if install else ""
    )


def requirements(described: ModelDescription) -> tuple[str, ...]:
    """Return what a model needs to run, in the versions that are installed here."""
    if described.format not in _PACKAGES:
        raise Unsupported(
            f"{described.path}: a {described.title} holds no model that runs by itself",
            hint="convert it to onnx first: `fairmile model convert FILE --code FILE.py:FUNCTION --to onnx`",
        )
    return tuple(_pinned(each) for each in ("fairmile", "numpy", *_PACKAGES[described.format]))


def _pinned(name: str) -> str:
    try:
        return f"{name}=={metadata.version(name).partition('+')[0]}"
    except metadata.PackageNotFoundError:
        return name


def _title(path: Path) -> str:
    letters = [each if each.isalnum() else "-" for each in path.stem.lower()]
    return "".join(letters).strip("-")[:40] or "model"
