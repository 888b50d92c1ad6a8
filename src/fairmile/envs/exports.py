"""An environment in the forms that other tools read: requirements, a pinned specification, images, shell lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairmile.base.errors import NotFound, UsageError
from fairmile.base.words import did_you_mean
from fairmile.base.yaml import dump
from fairmile.envs.containers import RUNTIMES, Packaged, package
from fairmile.envs.python import pinned
from fairmile.envs.records import Environment, as_text
from fairmile.envs.shells import SHELLS, render
from fairmile.envs.spec import EnvironmentSpec, parse_spec

IMAGES = {"dockerfile": "docker", "apptainer": "apptainer"}
FORMATS = ("requirements", "yaml", "lock", *IMAGES, *SHELLS)


def export(environment: Environment, format: str, *, base: str = "") -> Packaged:
    """Return a ready environment in one of `FORMATS`; what the form cannot say is in `notes`."""
    if format not in FORMATS:
        near = did_you_mean(format, FORMATS)
        raise NotFound(f"no format named {format!r}; {near or 'known: ' + ', '.join(FORMATS)}")
    if base and format not in IMAGES:
        raise UsageError(f"a base image is for {' and '.join(IMAGES)} only")
    if format == "requirements":
        return _requirements(environment)
    if format == "yaml":
        spec, notes = pinned_spec(environment)
        return Packaged("environment.yaml", {"environment.yaml": dump(_short(spec))}, {}, tuple(notes))
    if format == "lock":
        return Packaged("lock.json", {"lock.json": as_text(environment.lock)}, {}, ())
    if format in IMAGES:
        spec, notes = pinned_spec(environment)
        made = package(spec, RUNTIMES[IMAGES[format]](), base=base)
        return Packaged(made.definition, made.texts, made.copies, (*notes, *made.notes))
    text = "".join(f"{line}\n" for line in render(environment.acts, format))
    inside = ("programs run in a container, which shell lines cannot express",) if environment.wrap else ()
    return Packaged(f"activate.{format}", {f"activate.{format}": text}, {}, inside)


def _requirements(environment: Environment) -> Packaged:
    packages = environment.lock.get("python", {}).get("packages", [])
    if not packages:
        raise UsageError(f"{environment.name} has no Python packages")
    left = [part for part in ("modules", "conda", "builds", "container", "variables") if environment.spec.get(part)]
    notes = [f"it also has {' and '.join(left)}, which a requirements file cannot express"] if left else []
    if environment.spec["python"].get("system_packages"):
        notes.append("it also sees the packages of its interpreter, which are not listed")
    text, more = pinned(packages)
    return Packaged("requirements.txt", {"requirements.txt": text}, {}, (*notes, *more))


def pinned_spec(environment: Environment) -> tuple[EnvironmentSpec, list[str]]:
    """Return the specification with every version as it was built, and what could not be pinned."""
    lock, notes = environment.lock, list[str]()
    spec = parse_spec(environment.spec, origin=environment.name)
    update: dict[str, Any] = {}
    if spec.python is not None:
        update["python"] = spec.python.model_copy(update=_pinned_python(environment, notes))
    if spec.conda is not None and "conda" in lock:
        named = {
            each["name"]: f"{each['name']} =={each['version']} {each['build']}" for each in lock["conda"]["packages"]
        }
        update["conda"] = spec.conda.model_copy(update={"packages": tuple(named.values())})
    builds = []
    for build in spec.builds:
        locked: Mapping[str, Any] = lock.get(f"build-{build.name}", {})
        known = {"revision": locked.get("commit"), "sha256": locked.get("sha256")}
        builds.append(build.model_copy(update={key: value for key, value in known.items() if value}))
        if build.folder:
            notes.append(f"{build.name} was built from the folder {build.folder}, which can change")
    update["builds"] = tuple(builds)
    image = lock.get("container", {})
    if spec.container is not None and spec.container.digest is None and image.get("digest_of") == "manifest":
        update["container"] = spec.container.model_copy(update={"digest": image["digest"]})
    return spec.model_copy(update=update), notes


def _pinned_python(environment: Environment, notes: list[str]) -> dict[str, Any]:
    python = environment.lock["python"]
    packages: list[str] = []
    for each in python["packages"]:
        if "tree" in each:
            notes.append(f"{each['name']} {each['version']} was installed from a folder, which can change")
            continue
        where = each.get("from", "")
        if where.startswith("file:"):
            packages.append(where.removeprefix("file://"))
        else:
            commit = f"@{each['commit']}" if "commit" in each else ""
            packages.append(f"{each['name']} @ {where}{commit}" if where else f"{each['name']}=={each['version']}")
    folders = [each for each in environment.spec["python"]["packages"] if each.startswith("/")]
    kept = [each for each in folders if each not in packages]
    return {
        "packages": (*packages, *kept),
        "requirements": None,
        "version": f"=={python['interpreter']['version']}",
    }


def _short(spec: EnvironmentSpec) -> dict[str, Any]:
    return spec.model_dump(mode="json", exclude_defaults=True)
