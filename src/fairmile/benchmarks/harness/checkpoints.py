"""Checkpoints: one file with weights, optimizer, random states and history, that carries its own digest.

The file is a plain archive of `torch.save` with its SHA-256 as the archive's comment, so that any PyTorch reads it and
a damaged one is noticed. It is only ever read with `weights_only=True`: a file cannot run code.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fairmile.base.errors import Integrity, NotFound, SystemFailure, UsageError
from fairmile.base.files import write_atomic

if TYPE_CHECKING:
    from pathlib import Path

    Array = np.ndarray[Any, Any]
    Weights = dict[str, torch.Tensor]

FILE = "checkpoint.pt"
_FORMAT = 1
_MARK = b"sha256:"
_COMMENT_BYTES = len(_MARK) + 64
_END_OF_ARCHIVE = b"PK\x05\x06"


@dataclass
class Checkpoint:
    """All that a training needs to go on as if it had never stopped."""

    model: Weights
    optimizer: dict[str, Any] = field(default_factory=dict)  # and what else the strategy keeps
    epoch: int = 0  # that ended
    step: int = 0  # optimizer steps taken
    batches: int = 0  # taken of the epoch that has not ended
    taken: torch.Tensor | None = None  # of those batches, for each rank: losses and numbers of samples
    history: list[dict[str, float]] = field(default_factory=list)
    best: dict[str, Any] | None = None  # epoch, scores, and weights where they are not those of `model`
    random: torch.Tensor | None = None  # one row for each rank
    settings: dict[str, Any] = field(default_factory=dict)
    seed: int = 0

    @property
    def best_weights(self) -> Weights:
        weights: Weights | None = self.best.get("model") if self.best else None
        return self.model if weights is None else weights


def save(checkpoint: Checkpoint, file: Path) -> None:
    """Write it aside and rename it, so that a crash leaves the old file or the new one."""
    buffer = io.BytesIO()
    torch.save({"format": _FORMAT, **{name: getattr(checkpoint, name) for name in _NAMES}}, buffer)
    end = buffer.getbuffer().nbytes - 2
    buffer.seek(end)
    buffer.write(_COMMENT_BYTES.to_bytes(2, "little"))
    with buffer.getbuffer() as view:
        digest = hashlib.sha256(view).hexdigest()
    buffer.seek(0, io.SEEK_END)
    buffer.write(_MARK + digest.encode())
    write_atomic(file, buffer.getvalue())


def load(file: Path) -> Checkpoint:
    """Return a checkpoint that `save` wrote, or the weights of a file that holds nothing else."""
    try:
        data = file.read_bytes()
    except FileNotFoundError as error:
        hint = None if file.is_absolute() else "use an absolute path, because each run has its own folder"
        raise NotFound(f"no such file: {file}", hint=hint) from error
    except OSError as error:
        raise SystemFailure(f"cannot read {file}: {error.strerror}") from error
    content, comment = data[:-_COMMENT_BYTES], data[-_COMMENT_BYTES:]
    is_ours = comment.startswith(_MARK)
    if is_ours and hashlib.sha256(content).hexdigest().encode() != comment[len(_MARK) :]:
        raise _damaged(file, "its content does not match its digest")
    document = _read(data, file)
    if isinstance(document, dict) and "format" in document:
        if not is_ours:
            raise _damaged(file, "its digest is missing")
        if document["format"] != _FORMAT:
            raise UsageError(
                f"{file} is a checkpoint of format {document['format']}, but only format {_FORMAT} is supported"
            )
        if missing := [name for name in _NAMES if name not in document]:
            raise _damaged(file, f"it has no {missing[0]}")
        return Checkpoint(**{name: document[name] for name in _NAMES})
    if isinstance(document, dict) and document and all(isinstance(each, torch.Tensor) for each in document.values()):
        return Checkpoint(model=document)
    raise UsageError(f"{file} holds no weights", hint="use checkpoint.pt of an earlier run, or a saved state_dict()")


def check_weights(weights: Mapping[str, Any], model: torch.nn.Module, file: Path) -> None:
    """Refuse weights that belong to another model."""
    wanted, hint = model.state_dict(), "use the parameters of the run that wrote it, above all `model` and sizes"
    missing, extra = [n for n in wanted if n not in weights], [n for n in weights if n not in wanted]
    if missing or extra:
        parts = [f"lacks {some(missing)}"] if missing else []
        parts += [f"has {some(extra)} that this model does not have"] if extra else []
        raise UsageError(f"{file} belongs to another model: it {' and '.join(parts)}", hint=hint)
    for name, tensor in wanted.items():
        if tuple(weights[name].shape) != tuple(tensor.shape):
            shapes = f"{tuple(weights[name].shape)}, expected {tuple(tensor.shape)}"
            raise UsageError(f"{file} belongs to another model: {name} has the shape {shapes}", hint=hint)


def random_state(device: torch.device) -> Array:
    """Return the states of all generators of this process as bytes, always equally many on one kind of device."""
    _, words, position, has_gauss, gauss = np.random.get_state()
    _, state, next_gauss = random.getstate()
    numbers = [float(position), float(has_gauss), gauss, float(next_gauss is not None), next_gauss or 0.0]
    parts = [
        torch.get_rng_state().numpy(),
        np.asarray(words, np.uint32),
        np.asarray(state, np.uint32),
        np.asarray(numbers, np.float64),
    ]
    if device.type == "cuda":
        parts.append(torch.cuda.get_rng_state(device).numpy())
    return np.concatenate([np.ascontiguousarray(part).view(np.uint8) for part in parts])


def set_random_state(data: Array, device: torch.device) -> None:
    """Set all generators of this process to what `random_state` returned."""
    sizes = [torch.get_rng_state().numel(), 624 * 4, 625 * 4, 5 * 8]
    own, words, state, numbers, rest = np.split(np.ascontiguousarray(data), np.cumsum(sizes))
    position, has_gauss, gauss, has_next, next_gauss = np.frombuffer(numbers.tobytes(), np.float64).tolist()
    torch.set_rng_state(torch.from_numpy(own.copy()))
    np.random.set_state(("MT19937", np.frombuffer(words.tobytes(), np.uint32), int(position), int(has_gauss), gauss))
    ints = tuple(int(each) for each in np.frombuffer(state.tobytes(), np.uint32))
    random.setstate((3, ints, next_gauss if has_next else None))
    if device.type == "cuda" and rest.size:
        torch.cuda.set_rng_state(torch.from_numpy(rest.copy()), device)


def _read(data: bytes, file: Path) -> Any:
    try:
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if data.startswith((b"PK", b"\x80")):  # an archive or a pickle, and a whole one
            raise UsageError(
                f"{file} contains more than tensors and plain values, so loading it could run code",
                hint="save the weights alone: torch.save(model.state_dict(), FILE)",
            ) from error
        raise _damaged(file, "it cannot be read") from error
    except (RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        raise _damaged(file, "it cannot be read") from error


def _damaged(file: Path, why: str) -> Integrity:
    return Integrity(
        f"the checkpoint {file} is damaged: {why}", hint=f"restore a copy, or remove {file} and start again"
    )


def some(names: list[str]) -> str:
    """Return the first names, and how many more there are."""
    shown = ", ".join(names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown


_NAMES = tuple(asdict(Checkpoint(model={})))
