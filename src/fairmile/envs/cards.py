"""Environments out of the cards of a catalog, which describe software rather than lock it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

from packaging.requirements import InvalidRequirement, Requirement

from fairmile.base.errors import InvalidDocument, Problem, UsageError
from fairmile.base.words import slug
from fairmile.envs.recipes import builds_of, checks_of
from fairmile.envs.spec import EnvironmentSpec, parse_spec

_CONDA_PIN = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*=\s*([A-Za-z0-9][A-Za-z0-9.*!+_-]*)")
_IN_CONDA = re.compile(r"\$\{?CONDA_PREFIX\b")
_PURL = re.compile(r"pkg:(?P<kind>[a-z0-9.+-]+)/(?P<name>[^@?#]+)(?:@(?P<version>[^?#]+))?(?:[?#].*)?")
_PYTHON = re.compile(r"python\s*(?P<version>[<>=!~]?.*)", re.IGNORECASE)
# Where a problem of the specification stands in the card it was made of.
_FIELDS = {
    "python.packages": "softwareRequirements",
    "conda.packages": "softwareRequirements",
    "python.version": "softwareRequirements",
    "container.digest": "containerImage.sha256",
    "container": "containerImage",
    "variables": "environmentVariables",
}


def spec_from_card(body: Mapping[str, Any]) -> tuple[EnvironmentSpec, tuple[str, ...]]:
    """Return the environment that a card of the kind environment describes, and what of it could not be said.

    Read are `softwareRequirements` (purls of pypi and conda, pip requirements, Python itself, addresses of sources with
    a ready recipe), `runtimePlatform`, `modules`, `environmentVariables` and `containerImage`. Requirements of which
    one pins as conda does, while variables point into $CONDA_PREFIX, are conda packages, though they be written as
    those of pip.
    """
    name = str(body.get("name") or "")
    if not name:
        raise InvalidDocument([Problem("is missing", field="name")])
    variables = _mapping(body.get("environmentVariables"), "environmentVariables")
    sorter = _Requirements()
    for text in _texts(body.get("softwareRequirements"), "softwareRequirements"):
        sorter.add(text)
    sorter.settle(in_conda=any(_IN_CONDA.search(str(value)) for value in variables.values()))
    platform = _PYTHON.fullmatch(str(body.get("runtimePlatform") or "").strip())
    if platform and not sorter.python:
        sorter.python = platform["version"].replace(" ", "")
    data: dict[str, Any] = {
        "modules": _texts(body.get("modules"), "modules"),
        "variables": dict(variables),
    }
    if sorter.conda and not sorter.pip and sorter.python:
        sorter.conda.insert(0, _conda_python(sorter.python))
        sorter.python = ""
    if sorter.conda:
        data["conda"] = {"packages": sorter.conda}
    if sorter.pip or sorter.python:
        # Nobody can edit a card for one machine: where no Python fits, uv downloads one.
        data["python"] = {"version": sorter.python, "packages": sorter.pip, "managed": bool(sorter.python)}
    builds, checks, unknown = builds_of(sorter.sources)
    sorter.notes += [
        f"softwareRequirements: {address} is a source or another asset, which must be added by hand"
        for address in unknown
    ]
    data["builds"] = builds
    data["checks"] = [*checks, *checks_of(sorter.pip)]
    image = body.get("containerImage")
    if image is not None:
        data["container"] = _container(image, sorter.notes)
    if not any(data.values()):
        raise UsageError(
            f"the card {name} names no software, so Fairmile cannot build an environment from it",
            hint="give softwareRequirements, modules, environmentVariables or containerImage",
        )
    description = str(body.get("description") or "")
    return _parsed(name, {"description": description, **data}), tuple(sorter.notes)


class _Requirements:
    """The requirements of a card, each put where it belongs."""

    def __init__(self) -> None:
        self.pip: list[str] = []
        self.conda: list[str] = []
        self.sources: list[str] = []
        self.python = ""
        self.notes: list[str] = []

    def add(self, text: str) -> None:
        purl = _PURL.fullmatch(text)
        if purl is not None:
            self._add_purl(text, purl)
        elif "://" in text:
            self.sources.append(text)
        elif re.match(r"python\s*(?:$|[\s<>=!~])", text, re.IGNORECASE):
            match = _PYTHON.fullmatch(text)
            self.python = match["version"].replace(" ", "") if match else ""
        else:
            self.pip.append(" ".join(text.split()))

    def settle(self, *, in_conda: bool) -> None:
        """Make what was listed for pip what pip understands, or conda's where that is what was meant."""
        listed, self.pip = self.pip, []
        if in_conda and any(_CONDA_PIN.fullmatch(text) for text in listed):
            self.conda += [_for_conda(text) for text in listed]
            self.notes.append(
                "softwareRequirements hold what only conda understands and variables point into $CONDA_PREFIX: "
                "taken as conda packages"
            )
            return
        for text in listed:
            made = _pip(text, self.notes)
            if _is_requirement(made):
                self.pip.append(made)
            else:
                self.notes.append(
                    f"softwareRequirements: {text!r} is not a package that pip or conda knows by that name"
                )

    def _add_purl(self, text: str, purl: re.Match[str]) -> None:
        name, version = unquote(purl["name"]), unquote(purl["version"] or "")
        places: dict[str, Callable[[], None]] = {
            "pypi": lambda: self.pip.append(f"{name}=={version}" if version else name),
            # A channel may stand before the name.
            "conda": lambda: self.conda.append(f"{name.rpartition('/')[2]}{f' {version}.*' if version else ''}"),
        }
        place = places.get(purl["kind"])
        if place is None:
            self.notes.append(f"softwareRequirements: {text} is neither on PyPI nor on conda: skipped")
        else:
            place()


def _container(image: Any, notes: list[str]) -> dict[str, Any]:
    if isinstance(image, Sequence) and not isinstance(image, str):
        if len(image) > 1:
            notes.append(f"containerImage: using the first of {len(image)} images")
        image = image[0] if image else {}
    if isinstance(image, str):
        image, _, digest = image.partition("@")
        return {"image": image, "digest": digest or None}
    fields = _mapping(image, "containerImage")
    name = "/".join(str(fields[key]).strip("/") for key in ("registry", "name") if fields.get(key))
    tag = f":{fields['tag']}" if fields.get("tag") else ""
    digest = str(fields.get("sha256") or "").removeprefix("sha256:")
    return {"image": f"{name}{tag}", "digest": f"sha256:{digest}" if digest else None}


def _pip(text: str, notes: list[str]) -> str:
    """Return a requirement for pip, with a pin of conda's put right."""
    pin = _CONDA_PIN.fullmatch(text)
    if pin is None:
        return text
    made = f"{pin[1]}=={pin[2]}"
    notes.append(f"softwareRequirements: {text!r} uses conda syntax; read as {made!r}")
    return made


def _for_conda(text: str) -> str:
    """Return a requirement as conda writes it: the name, a blank, the versions."""
    return text if _CONDA_PIN.fullmatch(text) else re.sub(r"\s*(?=[<>=!~])", " ", text, count=1)


def _conda_python(version: str) -> str:
    return f"python {version}" if version[:1] in "<>=!~" else f"python {version}.*"


def _is_requirement(text: str) -> bool:
    try:
        Requirement(text)
    except InvalidRequirement:
        return False
    return True


def _mapping(value: Any, field: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidDocument([Problem(f"expected keys with values, found {value!r:.60}", field=field)])
    return value


def _texts(value: Any, field: str) -> list[str]:
    items = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(items, Sequence):
        raise InvalidDocument([Problem(f"expected a list of texts, found {value!r:.60}", field=field)])
    for number, item in enumerate(items):
        if not isinstance(item, str) or not item.strip():
            message = f"expected a text, found {item!r:.60}"
            raise InvalidDocument([Problem(message, field=f"{field}[{number}]")])
    return [item.strip() for item in items]


def _parsed(name: str, data: Mapping[str, Any]) -> EnvironmentSpec:
    given = {key: value for key, value in data.items() if value}
    try:
        return parse_spec({"name": slug(name, keep_case=True)[:64].rstrip("-."), **given})
    except InvalidDocument as error:
        raise InvalidDocument([_in_card(problem) for problem in error.problems]) from error


def _in_card(problem: Problem) -> Problem:
    for ours, theirs in _FIELDS.items():
        if problem.field.startswith(ours):
            return replace(problem, field=theirs + problem.field.removeprefix(ours))
    return problem
