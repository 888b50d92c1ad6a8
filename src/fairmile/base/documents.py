"""What users write and Fairmile checks: models of pydantic that are built quickly.

pydantic looks for its plug-ins in the metadata of every installed package when the first model is built. Ours use none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict
from pydantic.plugin import _loader

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)

_FLAG = "_loading_plugins"  # while it is set, pydantic builds without plug-ins, as it does for models of plug-ins


@contextmanager
def without_plugins() -> Iterator[None]:
    """Have what is built in this block use no plug-ins of pydantic; a version that has no such flag is only slower."""
    before = getattr(_loader, _FLAG, None)
    if before is not None:
        setattr(_loader, _FLAG, True)
    try:
        yield
    finally:
        if before is not None:
            setattr(_loader, _FLAG, before)


class _Unplugged(ModelMetaclass):
    def __new__(cls, *words: Any, **options: Any) -> type:
        with without_plugins():
            return super().__new__(cls, *words, **options)


class Document(BaseModel, metaclass=_Unplugged):
    """A model without plug-ins."""


class StrictDocument(Document):
    """A document whose keys are all known, and which does not change."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def steps_in_file(location: Sequence[str | int], data: Any) -> tuple[str | int, ...]:
    """Return where in a file's data an error is: pydantic's location also names the forms that it tried."""
    steps: list[str | int] = []
    here = data
    for place, step in enumerate(location):
        if isinstance(step, int):
            if isinstance(here, list) and step < len(here):
                steps.append(step)
                here = here[step]
        elif isinstance(here, dict):
            if step in here:
                steps.append(step)
                here = here[step]
            elif place == len(location) - 1 and step != "[key]":  # what is missing
                steps.append(step)
    return tuple(steps)


def steps_text(steps: Sequence[str | int]) -> str:
    """Return steps into a document as text: `builds[0].name`."""
    text = ""
    for step in steps:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text
