"""How little the programs of somebody else see: no variable but harmless ones, and in a container no network.

In a container nothing but the folder of the run can be written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from fairmile.base.commands import Here
from fairmile.base.digest import sha256_hex
from fairmile.base.errors import Unsupported, UsageError
from fairmile.base.files import write_atomic
from fairmile.base.words import slug
from fairmile.envs.containers import RUNTIMES, pick
from fairmile.envs.spec import load_spec, parse_spec
from fairmile.runs.record.spec import Input

_FOLDER = ".containers"
_ALONE = ("--network=none", "--cap-drop=all", "--security-opt=no-new-privileges", "--read-only", "--tmpfs=/tmp")
# Charliecloud is not among them: it leaves programs on the network.
_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "podman": _ALONE,
    "docker": _ALONE,
    "apptainer": ("--containall", "--net", "--network=none"),
}


def isolating_runtime() -> str:
    """Return the program on this machine that can isolate another one; empty where there is none."""
    try:
        return pick(Here(), list(_OPTIONS)).name
    except Unsupported:
        return ""


def isolated_environment(image: str, inputs: Mapping[str, Input], root: Path) -> str:
    """Write the environment that runs programs in an image, cut off from all else, and return its file.

    `image` is a reference, the path of an image, or an environment file with a container. Inputs can be read inside.
    """
    given = Path(image)
    if image.endswith((".yaml", ".yml")):
        spec = load_spec(given)
    else:
        name = slug(given.name, keep_case=True)[:40] or "image"
        spec = parse_spec({"name": name, "container": {"image": str(given.absolute()) if given.exists() else image}})
    if spec.container is None:
        raise UsageError(f"{image} is not a container image", hint="pass an image, or an environment file with one")
    wanted = spec.container.runtime
    runtime = RUNTIMES[wanted]() if wanted else pick(Here(), list(_OPTIONS))
    if runtime.name not in _OPTIONS:
        raise Unsupported(f"{runtime.name} cannot run a program without network", hint=f"use {', '.join(_OPTIONS)}")
    container = spec.container.model_copy(
        update={
            "runtime": runtime.name,
            "options": (*spec.container.options, *_OPTIONS[runtime.name]),
            "binds": (
                *spec.container.binds,
                *(str(Path(each.path).absolute()) for each in inputs.values() if each.path),
            ),
        }
    )
    text = json.dumps(spec.model_copy(update={"container": container}).model_dump(mode="json", exclude_defaults=True))
    file = root / _FOLDER / f"{sha256_hex(text.encode())[:16]}.yaml"
    write_atomic(file, text)
    return str(file)
