"""The command of a specification, as it is started and as it is recorded."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from fairmile.base.placeholders import drop_escapes, fill_words
from fairmile.runs.record.record import RecordedSpec
from fairmile.runs.record.values import value_text
from fairmile.systems.hardware import looks_secret

if TYPE_CHECKING:
    from fairmile.runs.record.spec import RunSpec


def is_inside(path: str) -> bool:
    """Tell whether a relative path or pattern stays in the folder it starts from."""
    return bool(path) and not path.startswith(("/", "~")) and "\0" not in path and ".." not in path.split("/")


def python_of(has_environment: bool) -> str:
    """Return what `{python}` stands for on this machine: the interpreter of the run's environment, else our own."""
    return "python" if has_environment else sys.executable


def local_command(spec: RunSpec) -> tuple[str, ...]:
    """Return the command as this machine starts it; what stands for inputs and other braces stay as they are."""
    return fill_words(spec.argv, {"python": python_of(bool(spec.environment)), **value_texts(spec)})


def start_command(spec: RunSpec, values: Mapping[str, str]) -> tuple[str, ...]:
    """Return the words that a program is started with; `values` are what stands for inputs and places."""
    return drop_escapes(fill_words(spec.argv, {**values, **value_texts(spec)}))


def value_texts(spec: RunSpec) -> dict[str, str]:
    """Return what the placeholders of a command stand for, as far as the specification tells."""
    texts = {name: value_text(value) for name, value in spec.params.items()}
    if spec.seed is not None:
        texts["seed"] = str(spec.seed)
    return texts


def recorded_spec(spec: RunSpec) -> RecordedSpec:
    """Return a specification as a record holds it: without variables that look like secrets."""
    recorded = RecordedSpec.from_dict(spec.model_dump(mode="json", exclude_defaults=True))
    recorded.env = {name: text for name, text in recorded.env.items() if not looks_secret(name, text)}
    return recorded
