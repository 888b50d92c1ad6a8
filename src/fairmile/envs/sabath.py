"""Environments out of SABATH model files and environment cards, which describe software rather than lock it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

from packaging.requirements import InvalidRequirement, Requirement

from fairmile.base.errors import InvalidDocument, Problem, UsageError
from fairmile.base.words import slug
from fairmile.envs.spec import EnvironmentSpec, parse_spec

_CONDA_PIN = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*=\s*([A-Za-z0-9][A-Za-z0-9.*!+_-]*)")
_PURL = re.compile(r"pkg:(?P<kind>[a-z0-9.+-]+)/(?P<name>[^@?#]+)(?:@(?P<version>[^?#]+))?(?:[?#].*)?")
_PYTHON = re.compile(r"python\s*(?P<version>[<>=!~]?.*)", re.IGNORECASE)
# Where a problem of the specification stands in the document it was made of.
_FIELDS = {
    "sabath": {
        "python.packages": "requirements.pip",
        "conda.packages": "requirements.pip",
        "python.version": "requirements.python",
        "modules": "requirements.system_modules",
        "variables": "env_vars",
    },
    "card": {
        "python.packages": "softwareRequirements",
        "conda.packages": "softwareRequirements",
        "python.version": "softwareRequirements",
        "container.digest": "containerImage.sha256",
        "container": "containerImage",
        "variables": "environmentVariables",
    },
}


def spec_from_sabath(document: Mapping[str, Any], *, file: str = "") -> tuple[EnvironmentSpec, tuple[str, ...]]:
    """Return the environment that a SABATH model file asks for, and what had to be understood differently.

    A list under `pip` that pins as conda does while `env_vars` point into $CONDA_PREFIX is a list of conda packages.
    """
    name = str(document.get("name") or "")
    if not name:
        raise InvalidDocument([Problem("is missing", field="name", file=file)])
    if "fragments" in document:
        raise UsageError(f"{file or name}: {name} is a data set; an environment is made of the file of a model")
    needs, variables = document.get("requirements"), document.get("env_vars")
    if needs is None and variables is None:
        raise UsageError(
            f"{file or name}: {name} states neither requirements nor env_vars, so no environment can be made of it",
            hint="write an environment file for it; the shortest one is `python: {packages: [numpy]}`",
        )
    needs = _mapping(needs, "requirements", file)
    variables = _mapping(variables, "env_vars", file)
    known = ("python", "pip", "system_modules")
    notes = [f"requirements.{key} is unknown and left out" for key in needs if key not in known]
    python, packages = needs.get("python"), _texts(needs.get("pip"), "requirements.pip", file)
    data: dict[str, Any] = {
        "modules": _texts(needs.get("system_modules"), "requirements.system_modules", file),
        "variables": {str(key): value for key, value in variables.items()},
    }
    if any("$CONDA_PREFIX" in str(value) for value in variables.values()) and _pins_for_conda(packages):
        data["conda"] = {"packages": [*([_conda_python(str(python))] if python else []), *packages]}
        notes.append(
            "requirements.pip holds what only conda understands and env_vars point into $CONDA_PREFIX: "
            "taken as conda packages"
        )
    elif python or packages:
        data["python"] = {
            "version": "" if python is None else python,
            "packages": [_pip(text, f"requirements.pip[{number}]", notes) for number, text in enumerate(packages)],
        }
    return _parsed(name, data, _FIELDS["sabath"], file), tuple(notes)


def spec_from_card(body: Mapping[str, Any]) -> tuple[EnvironmentSpec, tuple[str, ...]]:
    """Return the environment that a card of the kind environment describes, and what of it could not be said.

    Read are `softwareRequirements` (purls of pypi and conda, pip requirements, Python itself), `runtimePlatform`,
    `modules`, `environmentVariables` and `containerImage`.
    """
    name = str(body.get("name") or "")
    if not name:
        raise InvalidDocument([Problem("is missing", field="name")])
    sorter = _Requirements()
    for text in _texts(body.get("softwareRequirements"), "softwareRequirements", ""):
        sorter.add(text)
    platform = _PYTHON.fullmatch(str(body.get("runtimePlatform") or "").strip())
    if platform and not sorter.python:
        sorter.python = platform["version"].replace(" ", "")
    data: dict[str, Any] = {
        "modules": _texts(body.get("modules"), "modules", ""),
        "variables": dict(_mapping(body.get("environmentVariables"), "environmentVariables", "")),
    }
    if sorter.conda and not sorter.pip and sorter.python:
        sorter.conda.insert(0, _conda_python(sorter.python))
        sorter.python = ""
    if sorter.conda:
        data["conda"] = {"packages": sorter.conda}
    if sorter.pip or sorter.python:
        data["python"] = {"version": sorter.python, "packages": sorter.pip}
    image = body.get("containerImage")
    if image is not None:
        data["container"] = _container(image, sorter.notes)
    if not any(data.values()):
        raise UsageError(
            f"the card {name} names no software, so no environment can be made of it",
            hint="give softwareRequirements, modules, environmentVariables or containerImage",
        )
    description = str(body.get("description") or "")
    return _parsed(name, {"description": description, **data}, _FIELDS["card"], ""), tuple(sorter.notes)


class _Requirements:
    """The requirements of a card, each put where it belongs."""

    def __init__(self) -> None:
        self.pip: list[str] = []
        self.conda: list[str] = []
        self.python = ""
        self.notes: list[str] = []

    def add(self, text: str) -> None:
        purl = _PURL.fullmatch(text)
        if purl is not None:
            self._add_purl(text, purl)
        elif "://" in text:
            self.notes.append(f"softwareRequirements: {text} is a source or another asset, which must be added by hand")
        elif re.match(r"python\s*(?:$|[\s<>=!~])", text, re.IGNORECASE):
            match = _PYTHON.fullmatch(text)
            self.python = match["version"].replace(" ", "") if match else ""
        else:
            made = _pip(text, "softwareRequirements", self.notes)
            if _is_requirement(made):
                self.pip.append(made)
            else:
                self.notes.append(f"softwareRequirements: {text!r} is no package that pip or conda knows by that name")

    def _add_purl(self, text: str, purl: re.Match[str]) -> None:
        name, version = unquote(purl["name"]), unquote(purl["version"] or "")
        places: dict[str, Callable[[], None]] = {
            "pypi": lambda: self.pip.append(f"{name}=={version}" if version else name),
            # A channel may stand before the name.
            "conda": lambda: self.conda.append(f"{name.rpartition('/')[2]}{f' {version}.*' if version else ''}"),
        }
        place = places.get(purl["kind"])
        if place is None:
            self.notes.append(f"softwareRequirements: {text} is neither of pypi nor of conda and left out")
        else:
            place()


def _container(image: Any, notes: list[str]) -> dict[str, Any]:
    if isinstance(image, Sequence) and not isinstance(image, str):
        if len(image) > 1:
            notes.append(f"containerImage: the first of {len(image)} images is taken")
        image = image[0] if image else {}
    if isinstance(image, str):
        image, _, digest = image.partition("@")
        return {"image": image, "digest": digest or None}
    fields = _mapping(image, "containerImage", "")
    name = "/".join(str(fields[key]).strip("/") for key in ("registry", "name") if fields.get(key))
    tag = f":{fields['tag']}" if fields.get("tag") else ""
    digest = str(fields.get("sha256") or "").removeprefix("sha256:")
    return {"image": f"{name}{tag}", "digest": f"sha256:{digest}" if digest else None}


def _pip(text: str, field: str, notes: list[str]) -> str:
    """Return a requirement for pip, with a pin of conda's put right."""
    plain = " ".join(text.split())
    pin = _CONDA_PIN.fullmatch(plain)
    if pin is None:
        return plain
    made = f"{pin[1]}=={pin[2]}"
    notes.append(f"{field}: {text!r} pins as conda does; taken as {made!r}")
    return made


def _pins_for_conda(packages: Sequence[str]) -> bool:
    return any(_CONDA_PIN.fullmatch(text.strip()) for text in packages)


def _conda_python(version: str) -> str:
    return f"python {version}" if version[:1] in "<>=!~" else f"python {version}.*"


def _is_requirement(text: str) -> bool:
    try:
        Requirement(text)
    except InvalidRequirement:
        return False
    return True


def _mapping(value: Any, field: str, file: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidDocument([Problem(f"expected keys with values, found {value!r:.60}", field=field, file=file)])
    return value


def _texts(value: Any, field: str, file: str) -> list[str]:
    items = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(items, Sequence):
        raise InvalidDocument([Problem(f"expected a list of texts, found {value!r:.60}", field=field, file=file)])
    for number, item in enumerate(items):
        if not isinstance(item, str) or not item.strip():
            message = f"expected a text, found {item!r:.60}"
            raise InvalidDocument([Problem(message, field=f"{field}[{number}]", file=file)])
    return [item.strip() for item in items]


def _parsed(name: str, data: Mapping[str, Any], fields: Mapping[str, str], file: str) -> EnvironmentSpec:
    given = {key: value for key, value in data.items() if value}
    try:
        return parse_spec({"name": slug(name, keep_case=True)[:64].rstrip("-."), **given}, origin=file)
    except InvalidDocument as error:
        raise InvalidDocument([_in_document(problem, fields) for problem in error.problems]) from error


def _in_document(problem: Problem, fields: Mapping[str, str]) -> Problem:
    for ours, theirs in fields.items():
        if problem.field.startswith(ours):
            return replace(problem, field=theirs + problem.field.removeprefix(ours))
    return problem
