"""What users write and Fairmile checks: models of pydantic that are built quickly.

pydantic looks for its plug-ins in the metadata of every installed package when the first model is built. Ours use none,
and what reads metadata takes as long to import as a tenth of all else.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)

_LOADER = "pydantic.plugin._loader"
_NO_PLUGINS: Any = ModuleType(_LOADER)  # in the place of the one that reads the metadata of packages
_NO_PLUGINS.get_plugins = tuple


@contextmanager
def without_plugins() -> Iterator[None]:
    """Have what is built in this block use no plug-ins of pydantic; a version with another loader is only slower."""
    before = sys.modules.get(_LOADER)
    sys.modules[_LOADER] = _NO_PLUGINS
    try:
        yield
    finally:
        if before is None:
            sys.modules.pop(_LOADER, None)
        elif before is not _NO_PLUGINS:  # which the block of another thread takes away
            sys.modules[_LOADER] = before


class _Unplugged(ModelMetaclass):
    def __new__(cls, *words: Any, **options: Any) -> type:
        with without_plugins():
            return super().__new__(cls, *words, **options)


class Document(BaseModel, metaclass=_Unplugged):
    """A model without plug-ins, which is built when it is first used: a command uses few of those that it imports."""

    model_config = ConfigDict(defer_build=True)

    @classmethod
    def model_rebuild(cls, *, _parent_namespace_depth: int = 2, **options: Any) -> bool | None:
        with without_plugins():
            return super().model_rebuild(_parent_namespace_depth=_parent_namespace_depth + 1, **options)


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
