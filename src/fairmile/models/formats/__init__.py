"""Model files of all formats, recognised by content: no framework is imported, and nothing of a file is executed.

One module for each format, or for formats that share a container. `FORMATS` lists them in the order in which a file is
tried, the most particular first.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from fairmile.base.errors import FairmileError, NotFound, UsageError
from fairmile.base.quick_named_tuple import NamedTuple
from fairmile.models.formats import folders, keras, onnx, pickles, safetensors, skops, tensorflow, torch_zip
from fairmile.models.formats.description import ModelDescription, TensorSpec
from fairmile.models.formats.source import Source, open_source

__all__ = ["FORMATS", "Format", "ModelDescription", "TensorSpec", "recognise"]

_MOST_LISTED = 50  # files of a folder that are looked at for a hint


class Format(NamedTuple):
    """One format: its display name, the function that recognises it, and the function that describes it."""

    title: str
    recognises: Callable[[Source], bool]
    read: Callable[[Source], ModelDescription]


def _read_mlflow(source: Source) -> ModelDescription:
    return folders.read_mlflow(source, recognise)


# A folder of one format may lie in a folder of another: what is described by a file of its own comes first.
FORMATS = {
    "mlflow": Format("MLflow folder", folders.recognises_mlflow, _read_mlflow),
    "huggingface": Format("Hugging Face folder", folders.recognises_huggingface, folders.read_huggingface),
    "savedmodel": Format("TensorFlow SavedModel", tensorflow.recognises_saved, tensorflow.read_saved),
    "tf-checkpoint": Format("TensorFlow checkpoint", tensorflow.recognises_checkpoint, tensorflow.read_checkpoint),
    "safetensors": Format("safetensors", safetensors.recognises, safetensors.read),
    "pytorch-exported": Format("PyTorch exported program", torch_zip.recognises_export, torch_zip.read_export),
    "torchscript": Format("TorchScript", torch_zip.recognises_script, torch_zip.read_script),
    "pytorch-state-dict": Format("PyTorch state dictionary", torch_zip.recognises_state, torch_zip.read_state),
    "keras": Format("Keras 3", keras.recognises_zip, keras.read_zip),
    "skops": Format("skops", skops.recognises, skops.read),
    "keras-h5": Format("Keras HDF5", keras.recognises_hdf5, keras.read_hdf5),
    "sklearn-pickle": Format("pickle of scikit-learn", pickles.recognises, pickles.read),
    "pickle": Format("pickle", pickles.recognises, pickles.read),
    "onnx": Format("ONNX", onnx.recognises, onnx.read),
}


def recognise(path: str | Path) -> ModelDescription:
    """Return what a model file or folder is, and what it declares; UsageError where it is none or damaged."""
    path = Path(path)
    if not path.exists():
        raise NotFound(f"{path}: no such file or folder")
    if not path.is_file() and not path.is_dir():  # reading a pipe or a device may never end
        raise UsageError(f"{path}: neither a file nor a folder", hint="name the file of a model, or its folder")
    with open_source(path) as source:
        for format in FORMATS.values():
            if format.recognises(source):
                description = format.read(source)
                return replace(description, title=FORMATS[description.format].title)
    inside = _model_files(path) if path.is_dir() else []
    raise UsageError(
        f"{path}: not a model in a known format",
        hint=f"name the file of the model: {', '.join(inside)}"
        if inside
        else f"known: {', '.join(each.title for each in FORMATS.values())}",
    )


def _model_files(folder: Path) -> list[str]:
    """Return the first files of a folder that are models, by their paths."""
    names: list[str] = []
    for file in sorted(folder.iterdir())[:_MOST_LISTED]:
        if not file.is_file():
            continue
        with suppress(FairmileError, OSError), open_source(file) as source:
            if any(format.recognises(source) for format in FORMATS.values()):
                names.append(str(file))
    return names[:3]
