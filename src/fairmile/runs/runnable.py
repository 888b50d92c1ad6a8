"""What is to be run, in the words of a specification."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fairmile.base.errors import InvalidDocument, Problem
from fairmile.base.lazy import lazy
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.specifications import errors_of, expected_by, known_fields
from fairmile.base.words import did_you_mean
from fairmile.base.yaml import Located
from fairmile.runs.execute.materials import Material

if TYPE_CHECKING:
    from fairmile.runs.record.spec import RunSpec
else:
    RunSpec = lazy("fairmile.runs.record.spec:RunSpec")


@dataclass(frozen=True)
class Runnable:
    """What will be run, and what has to be there first."""

    spec: RunSpec
    sources: tuple[str, ...] = ()  # assets and addresses whose files go into the folder it runs in
    notes: tuple[str, ...] = ()
    where: str = ""  # where the command stands, for messages, unless a person typed it
    declared: frozenset[str] = frozenset()  # parameters that a card says its program has
    materials: tuple[Material, ...] = ()  # what it finds at places of its folder
    is_complete: bool = False  # its placeholders are filled and its parameters used already


def checked_spec(given: Mapping[str, Any], file: str = "", located: Located | None = None) -> RunSpec:
    """Return a specification, or every reason why it is none."""
    try:
        return RunSpec.model_validate(given)
    except ValueError as error:
        problems = []
        for each in errors_of(error):
            place = ".".join(str(part) for part in each["loc"])
            message, hint = str(each["msg"]).removeprefix("Value error, "), ""
            if each["type"] == "extra_forbidden":
                message, hint = "no such field", did_you_mean(each["loc"][-1], known_fields(RunSpec, each["loc"][:-1]))
            elif each["type"] == "missing":
                message = "is missing"
            elif each["type"] != "value_error":
                message = f"expected {expected_by(each)}, found {each['input']!r}"
            line = located.line([part for part in each["loc"] if part != "argv"]) if located is not None else None
            problems.append(Problem(message, place, file=file, line=line, hint=hint))
        raise InvalidDocument(problems) from None


def merged(one: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields with those of a person on top; mappings are joined."""
    both = dict(one)
    for name, value in changes.items():
        both[name] = {**both[name], **value} if isinstance(value, Mapping) and name in both else value
    return both
