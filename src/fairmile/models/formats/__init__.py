"""Model files of all formats, recognised by content: no framework is imported, and nothing of a file is executed.

One module for each format, or for formats that share a container. `FORMATS` lists them in the order in which a file is
tried, the most particular first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from fairmile.base.errors import NotFound, UsageError
from fairmile.models.formats import onnx, safetensors
from fairmile.models.formats.description import ModelDescription, TensorSpec
from fairmile.models.formats.source import Source, open_source

__all__ = ["FORMATS", "Format", "ModelDescription", "TensorSpec", "recognise"]


class Format(NamedTuple):
    """One format: its name in words, how a file of it is told, and what reads its declarations."""

    title: str
    recognises: Callable[[Source], bool]
    read: Callable[[Source], ModelDescription]


FORMATS = {
    "safetensors": Format("safetensors", safetensors.recognises, safetensors.read),
    "onnx": Format("ONNX", onnx.recognises, onnx.read),
}


def recognise(path: str | Path) -> ModelDescription:
    """Return what a model file or folder is, and what it declares; UsageError where it is none or damaged."""
    path = Path(path)
    if not path.exists():
        raise NotFound(f"{path}: no such file or folder")
    with open_source(path) as source:
        for format in FORMATS.values():
            if format.recognises(source):
                description = format.read(source)
                return replace(description, title=FORMATS[description.format].title)
    raise UsageError(
        f"{path}: not a model in a known format",
        hint=f"known: {', '.join(each.title for each in FORMATS.values())}",
    )
