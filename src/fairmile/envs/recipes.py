"""Ready recipes: how known sources are built, and the checks of known packages; both are data with a date."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from fairmile.base.yaml import load

_FILE = "recipes.yaml"


def builds_of(addresses: Sequence[str]) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[str]]:
    """Return the builds and the checks of sources, and the addresses for which no recipe is known."""
    recipes = _recipes()["sources"]
    known = {address: recipes[key] for address in addresses if (key := _normal(address)) in recipes}
    names = [recipe["build"]["name"] for recipe in known.values()]
    builds, checks = [], []
    for address, recipe in known.items():
        build = {**recipe["build"], "git": address}
        for name, options in recipe.get("with", {}).items():
            if name in names:
                build["options"] = [*build.get("options", ()), *options]
        builds.append(build)
        checks += recipe.get("checks", ())
    # What another build is linked with comes first.
    needed = {name for recipe in known.values() for name in recipe.get("with", {})}
    builds.sort(key=lambda build: build["name"] not in needed)
    return builds, checks, [address for address in addresses if address not in known]


def checks_of(packages: Sequence[str]) -> list[dict[str, Any]]:
    """Return the checks of Python packages, given as requirements."""
    table = _recipes()["packages"]
    names = [canonicalize_name(Requirement(text).name) for text in packages]
    return [check for name in names for check in table.get(name, ())]


def _normal(address: str) -> str:
    return address.rstrip("/").removesuffix(".git")


@cache
def _recipes() -> Mapping[str, Any]:
    text = (files("fairmile.envs") / "data" / _FILE).read_text(encoding="utf-8")
    recipes: Mapping[str, Any] = load(text, file=_FILE)
    return recipes
