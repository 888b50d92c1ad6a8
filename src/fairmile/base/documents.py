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

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_core import core_schema

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass

    from fairmile.base.specifications import Specification
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


_MODELS: dict[type[Specification], type[StrictDocument]] = {}


def model_of(specification: type[Specification]) -> type[StrictDocument]:
    """Return the model of the fields of a specification, with its checks."""
    if specification not in _MODELS:
        _MODELS[specification] = _make_model(specification)
    return _MODELS[specification]


def _make_model(specification: type[Specification]) -> type[StrictDocument]:
    fields = specification.model_fields
    namespace: dict[str, Any] = {
        "__module__": specification.__module__,
        "__qualname__": specification.__qualname__,
        "__doc__": specification.__doc__,
        "__annotations__": {name: each.annotation for name, each in fields.items()},
        "model_config": ConfigDict(populate_by_name=True),
    }
    for name, field in fields.items():
        default = {} if field.is_required() else {"default": field.default}
        if name in specification.file_names:
            namespace[name] = Field(**default, alias=specification.file_names[name])
        elif name in specification.earlier_names:
            keys = AliasChoices(name, specification.earlier_names[name])
            namespace[name] = Field(**default, validation_alias=keys)
        elif default:
            namespace[name] = field.default
    for name, checked in specification._checks.items():
        namespace[name] = field_validator(*checked)(vars(specification)[name])

    def check_whole(self: Any) -> Any:
        specification.of_model(self)
        return self

    namespace["check_whole"] = model_validator(mode="after")(check_whole)
    model: type[StrictDocument] = _Unplugged(specification.__name__, (StrictDocument,), namespace)
    return model


def schema_of(specification: type[Specification], handler: Any) -> Any:
    """Return how pydantic reads a specification that stands in one of its models."""

    def read(given: Any, inner: Any) -> Any:
        return given if isinstance(given, specification) else specification.of_model(inner(given))

    return core_schema.no_info_wrap_validator_function(
        read,
        handler.generate_schema(model_of(specification)),
        serialization=core_schema.plain_serializer_function_ser_schema(_dump_as_asked, info_arg=True),
    )


def _dump_as_asked(value: Specification, asked: Any) -> dict[str, Any]:
    return value.model_dump(
        mode=asked.mode, by_alias=bool(asked.by_alias), exclude_defaults=bool(asked.exclude_defaults)
    )


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
