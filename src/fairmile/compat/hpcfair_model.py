"""`hpcfair.hpcfair_model` as published: list_models, get_metadata, search, load, run, convert,
search_workflows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fairmile.base.errors import UsageError
from fairmile.compat.listing import get_listings
from fairmile.models.convert.conversion import Conversion
from fairmile.models.ready import LoadedModel, ModelFile
from fairmile.runs.record.run import Run
from fairmile.workspace import Workspace

_TENSORFLOW = ("tensorflow", "tf", "keras")
_FORMATS = {
    "pytorch": ("pytorch-exported", "torchscript", "pytorch-state-dict", "safetensors"),
    **dict.fromkeys(_TENSORFLOW, ("keras", "keras-h5", "savedmodel", "tf-checkpoint")),
}


def list_models() -> list[str]:
    """Return the names of all models."""
    return Workspace.open().models.list_models()


def get_metadata(name: str | Sequence[str]) -> dict[str, Any] | list[dict[str, Any]]:
    """Return the listing of one model, or of each in a list."""
    return get_listings(Workspace.open().catalog, name, "model")


def search(pattern: str) -> list[str]:
    """Return the names of the models whose name or keywords match a regular expression."""
    return [hit.row.name for hit in Workspace.open().models.search(regex=pattern, limit=10_000) if not hit.row.gone]


def search_workflows(keyword: str) -> list[str]:
    """Return the names of the workflows that match a keyword."""
    return [hit.row.name for hit in Workspace.open().workflows.search(keyword, limit=10_000) if not hit.row.gone]


def convert(source_format: str, target_format: str, src: str | Path, dest: str | Path = "", **how: Any) -> Conversion:
    """Convert a model file or a model of the catalog, and prove that both compute the same; see `fm.models.convert`.

    The format of a file is recognised by content; one that is not in `source_format` is refused.
    """
    models = Workspace.open().models
    formats = _FORMATS.get(source_format.lower(), (source_format.lower(),))
    if Path(src).exists() and (stated := models.describe(src)).format not in formats:
        raise UsageError(f"{src} is a model in the format {stated.title}, not {source_format}")
    target = target_format.lower()
    return models.convert(src, "keras" if target in _TENSORFLOW else target, out=dest or None, **how)


def run(
    work: str,
    name: str,
    dataset: str = "",
    *,
    config: Mapping[str, Any] | None = None,
    log_dir: str = "",
    **fields: Any,
) -> Run:
    """Train a model, or run inference with it, on a data set; `config` has parameters, `log_dir` takes the output.

    Further `fields` are those of `fm.models.run`, such as `weights`.
    """
    workspace = Workspace.open()
    run = workspace.models.run(work, name, dataset, params=dict(config or {}), **fields)
    if log_dir:
        folder = Path(log_dir)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{run.id}.log").write_bytes(workspace.runs.output(run.id))
    return run


def load(name: str, *, fresh: bool = False) -> LoadedModel | ModelFile:
    """Return a model with its bytes, ready to call: from the store, else fetched; `fresh` fetches anew."""
    return Workspace.open().models.load(name, fresh=fresh)
