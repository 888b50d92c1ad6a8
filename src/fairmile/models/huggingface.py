"""A model as a folder that the Hugging Face hub and its libraries read, and its upload by their own client."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

from fairmile.base.errors import Conflict, MissingExtra, Transient, UsageError
from fairmile.base.files import write_atomic
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result
from fairmile.catalog import exchange
from fairmile.catalog.card import Card
from fairmile.models.ready import Ready

_WEIGHTS = "model.safetensors"
_README = "README.md"


class HubFolderDict(TypedDict):
    folder: str
    files: list[str]
    format: str
    url: str


@dataclass(frozen=True, repr=False)
class HubFolder(Result):
    """A folder for the Hugging Face hub; `url` is where it was uploaded to."""

    folder: str
    files: tuple[str, ...]
    format: str
    url: str = ""

    def to_dict(self) -> HubFolderDict:
        return {"folder": self.folder, "files": list(self.files), "format": self.format, "url": self.url}

    def summary(self) -> str:
        return f"{self.folder}: {', '.join(self.files)}" + (f", uploaded to {self.url}" if self.url else "")


def export_folder(model: Ready, card: Card, folder: Path, *, replace: bool = False, dry_run: bool = False) -> HubFolder:
    """Write a folder with the model's card as README.md and its files; weights of PyTorch become safetensors."""
    if folder.exists() and any(folder.iterdir()) and not replace:
        raise Conflict(f"{folder} is not empty", hint="--replace writes into it")
    path, format = model.model_path, model.description.format
    if dry_run:
        return HubFolder(str(folder), _planned_files(model), format)
    folder.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        shutil.copytree(path, folder, dirs_exist_ok=True)
    elif format == "pytorch-state-dict" and not model.description.runs_code:
        _write_safetensors(model, folder / _WEIGHTS)
    else:
        shutil.copyfile(path, folder / (_WEIGHTS if format == "safetensors" else path.name))
    if not (folder / _README).exists():
        for name, text in exchange.write(card, "huggingface").items():
            write_atomic(folder / name, text)
    files = sorted(str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file())
    return HubFolder(str(folder), tuple(files), format)


def _planned_files(model: Ready) -> tuple[str, ...]:
    """Return the files that an export writes."""
    path, format = model.model_path, model.description.format
    if path.is_dir():
        own = {str(each.relative_to(path)) for each in path.rglob("*") if each.is_file()}
    else:
        is_weights = format == "pytorch-state-dict" and not model.description.runs_code
        own = {_WEIGHTS if is_weights or format == "safetensors" else path.name}
    return tuple(sorted({*own, _README}))


def _write_safetensors(model: Ready, target: Path) -> None:
    try:
        from safetensors.torch import save_file
    except ImportError as error:
        raise MissingExtra("safetensors is not installed", "models") from error
    state = model.native
    if not isinstance(state, Mapping) or not all(hasattr(each, "contiguous") for each in state.values()):
        raise UsageError(
            f"{model.model_path}: holds more than weights, which safetensors has no place for",
            hint="save the state dictionary of the model alone",
        )
    # Weights that share memory would be written twice or refused: each becomes a copy of its own.
    save_file({name: each.contiguous().clone() for name, each in state.items()}, target, metadata={"format": "pt"})


def upload_folder(exported: HubFolder, repository: str, environ: Mapping[str, str]) -> HubFolder:
    """Upload a folder to a repository of the hub, which is created unless it exists."""
    try:
        from huggingface_hub import HfApi
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError
    except ImportError as error:
        raise MissingExtra("huggingface_hub is not installed", "huggingface") from error
    token = environ.get("HF_TOKEN") or environ.get("HUGGING_FACE_HUB_TOKEN")
    if not token:
        raise UsageError("no token for Hugging Face", hint="set HF_TOKEN to a token that may write")
    api = HfApi(endpoint=environ.get("HF_ENDPOINT") or None, token=token)
    try:
        api.create_repo(repository, exist_ok=True)
        commit = api.upload_folder(repo_id=repository, folder_path=exported.folder, commit_message="Add model")
    except HFValidationError as error:
        raise UsageError(f"{repository}: not a name of a repository: {error}", hint="expected ORG/NAME") from error
    except (HfHubHTTPError, OSError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise Transient(f"{repository}: the hub refused the upload: {reason}") from error
    return HubFolder(exported.folder, exported.files, exported.format, str(commit.commit_url))
