"""Short texts for values that are objects on a card, so that nobody needs to write JSON.

creator='Ada Lovelace <ada@institute.edu> (0000-0002-1825-0097)'    publisher='An Institute (05v3mvq14)'
variableMeasured='depth [m]'                                         recordSet='lake: time date, depth float [m]'
signature='image float32 1x28x28 -> digit int64 1'                   evaluationResults='accuracy=0.93'
hyperparameters='lr=0.1, layers=3'                                   containerImage='docker.io/org/name:1.0@sha256:…'
input='data text/csv'                                                step='Train the model'

A text that does not have the form of its property is kept as it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from fairmile.base.errors import UsageError
from fairmile.base.lazy import lazy_pattern
from fairmile.catalog.card import as_list, text_of
from fairmile.catalog.describing.columns import data_type, with_unit
from fairmile.catalog.exchange.common.agents import orcid_iri, orcid_is_sound, organisation, person, ror_iri
from fairmile.catalog.identity import is_iri

AGENTS = (
    *("creator", "contributor", "author", "agent", "maintainer", "publisher", "funder", "submitter", "sharedBy"),
    "contactPoint",
)
_AGENT = lazy_pattern(r"^(?P<name>[^<>()]+?)\s*(?:<(?P<email>[^<>\s]+@[^<>\s]+)>)?\s*(?:\((?P<id>[^()\s]+)\))?$")
_PAIR = lazy_pattern(r"\s*([^=,\s][^=,]*?)\s*=\s*([^,]*?)\s*")
_NUMBER = lazy_pattern(r"([^=\s]+)\s*=\s*([+-]?\d[\d.eE+-]*)\s*(\S*)")
_TENSOR = lazy_pattern(r"(\S+)\s+([A-Za-z]\w*)(?:\s+([\w?-]+(?:x[\w?-]+)*))?")
_FIELD_TYPES = {
    "text": "sc:Text",
    "string": "sc:Text",
    "integer": "sc:Integer",
    "int": "sc:Integer",
    "float": "sc:Float",
    "number": "sc:Float",
    "boolean": "sc:Boolean",
    "bool": "sc:Boolean",
    "date": "sc:Date",
    "datetime": "sc:DateTime",
    "image": "sc:ImageObject",
}
_IMAGE = lazy_pattern(
    r"(?:(?P<registry>[\w-]+(?:\.[\w.-]+|:\d+)[\w.:-]*)/)?(?P<name>[\w./-]+?)(?::(?P<tag>[\w.-]+))?@sha256:(?P<sha256>[0-9a-f]{64})"
)
_REQUIREMENT = lazy_pattern(r"[<>=!~;@\[( ]")


def expand(key: str, value: Any) -> Any:
    """Return the value that a text, or each text of a list, means for a property; other values stay as they are."""
    if isinstance(value, list):
        return [expand(key, each) for each in value]
    form = _FORMS.get(key)
    return form(value.strip()) if form is not None and isinstance(value, str) else value


def extended(key: str, before: Any, value: Any) -> list[Any]:
    """Return the values of a property with more of them: one that names an entry that is there completes it."""
    entries = list(as_list(before))
    for new in as_list(expand(key, value)):
        at = next((at for at, old in enumerate(entries) if _is_same(key, old, new)), None)
        if at is None:
            entries.append(new)
        elif isinstance(entries[at], dict) and isinstance(new, dict):
            entries[at] = {**entries[at], **new}
        else:
            entries[at] = new
    return entries


def _is_same(key: str, old: Any, new: Any) -> bool:
    if key in AGENTS and isinstance(new, dict):
        return text_of(old) == new.get("name") or (isinstance(old, dict) and old.get("name") == new.get("name"))
    if key == "softwareRequirements" and isinstance(old, str) and isinstance(new, str):
        return _REQUIREMENT.split(old, maxsplit=1)[0] == _REQUIREMENT.split(new, maxsplit=1)[0]
    return False


def _agent(text: str) -> Any:
    match = _AGENT.match(text)
    if match is None or not (match["email"] or match["id"]):
        return text
    more = {"email": match["email"]} if match["email"] else {}
    word = match["id"] or ""
    orcid, ror = orcid_iri(word), ror_iri(word)
    if orcid:
        if not orcid_is_sound(orcid):
            raise UsageError(f"{word} is not an ORCID: its check digit is wrong", hint="see https://orcid.org")
        return person(name=match["name"], orcid=orcid) | more
    if ror:
        return organisation(match["name"], ror) | more
    if is_iri(word):
        return {"name": match["name"], "url": word} | more
    return {"name": match["name"]} | more if not word else text


def _variable(text: str) -> Any:
    name, unit = with_unit(text)
    return {"@type": "PropertyValue", "name": name, "unitText": unit} if unit else text


def _records(text: str) -> Any:
    name, colon, fields = text.partition(":")
    if not colon or is_iri(text):
        return text
    made = []
    for part in fields.split(","):
        label, unit = with_unit(part)
        words = label.split()
        if len(words) != 2:
            raise UsageError(f"{part.strip()!r} is not NAME TYPE", hint="recordSet='lake: time date, depth float [m]'")
        kind = _FIELD_TYPES.get(words[1].lower()) or data_type(words[1]) or words[1]
        made.append({"@type": "Field", "name": words[0], "dataType": kind} | ({"unitText": unit} if unit else {}))
    return {"@type": "RecordSet", "name": name.strip(), "field": made}


def _result(text: str) -> Any:
    match = _NUMBER.fullmatch(text)
    if match is None:
        return text
    made = {"@type": "PropertyValue", "propertyID": match[1], "value": float(match[2])}
    return made | ({"unitText": match[3]} if match[3] else {})


def _baseline(text: str) -> Any:
    match = _NUMBER.fullmatch(text)
    return {"metric": match[1], "value": float(match[2])} if match else text


def _pairs(text: str) -> dict[str, Any] | None:
    """Return `NAME=VALUE, NAME=VALUE` as a mapping; a name that comes twice has a list. None for another text."""
    matches = [_PAIR.fullmatch(part) for part in text.split(",")]
    made: dict[str, Any] = {}
    for match in matches:
        if match is None or "://" in match[1]:
            return None
        value: Any = match[2]
        made[match[1]] = [*as_list(made[match[1]]), value] if match[1] in made else value
    return made


def _parameters(text: str) -> Any:
    pairs = _pairs(text)
    return text if pairs is None else {key: _scalar(value) for key, value in pairs.items()}


def _scalar(value: Any) -> Any:
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _texts(text: str) -> Any:
    pairs = _pairs(text)
    return text if pairs is None else pairs


def _match_spec(text: str) -> Any:
    pairs = _pairs(text)
    if pairs is None:
        return text
    return {key: as_list(value) if key in ("models", "datasets") else value for key, value in pairs.items()}


def _signature(text: str) -> Any:
    sides = text.split("->")
    if len(sides) != 2:
        return text
    return {side: _tensors(part) for side, part in zip(("inputs", "outputs"), sides, strict=True)}


def _tensors(text: str) -> list[dict[str, Any]]:
    made = []
    for part in text.split(","):
        match = _TENSOR.fullmatch(part.strip())
        if match is None:
            raise UsageError(
                f"{part.strip()!r} is not NAME TYPE SIZExSIZE", hint="as in image float32 1x28x28 -> digit int64 1"
            )
        shape = [int(each) if each.isdigit() else each for each in match[3].split("x")] if match[3] else []
        made.append({"name": match[1], "dtype": match[2], "shape": shape})
    return made


def _image(text: str) -> Any:
    match = _IMAGE.fullmatch(text)
    if match is None:
        return text
    return {"@type": "ContainerImage"} | {key: value for key, value in match.groupdict().items() if value}


def _parameter(text: str) -> Any:
    name, _, media = text.partition(" ")
    if not name or "/" not in media or " " in media.strip():
        return text
    return {"@type": "FormalParameter", "name": name, "encodingFormat": media.strip()}


def _step(text: str) -> Any:
    return {"@type": "HowToStep", "name": text}


_FORMS: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(AGENTS, _agent),
    "variableMeasured": _variable,
    "recordSet": _records,
    "evaluationResults": _result,
    "baselines": _baseline,
    "hyperparameters": _parameters,
    "environmentVariables": _texts,
    "@context": _texts,
    "matchSpec": _match_spec,
    "signature": _signature,
    "containerImage": _image,
    "input": _parameter,
    "output": _parameter,
    "step": _step,
}
