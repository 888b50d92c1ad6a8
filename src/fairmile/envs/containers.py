"""Containers: programs run in an image that is known by its digest, with data bound in from outside.

Podman and Charliecloud are run in the tests; Apptainer and Docker are held against written-down text.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypedDict

from fairmile.base.commands import Runner
from fairmile.base.digest import canonical_json, merkle_root, scan_tree, sha256_hex
from fairmile.base.errors import Integrity, NotFound, SystemFailure, Unsupported, UsageError
from fairmile.base.files import write_atomic
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.registry import Plugin, Registry
from fairmile.base.results import Result
from fairmile.base.strict_json import load_json
from fairmile.base.words import slug
from fairmile.envs.inputs import at_home
from fairmile.envs.runtimes import Bind, Container, Gpu, Identity, Options, Recipe, Runtime, split_reference
from fairmile.envs.shells import pieces
from fairmile.envs.spec import ContainerSpec, EnvironmentSpec, PythonSpec, holds_login
from fairmile.envs.steps import Step, Tools, Use

RUNTIMES: Registry[Callable[[], Runtime]] = Registry(
    "container runtime",
    {
        "apptainer": Plugin("fairmile.envs.runtimes.apptainer:Apptainer"),
        "podman": Plugin("fairmile.envs.runtimes.podman:Podman"),
        "charliecloud": Plugin("fairmile.envs.runtimes.charliecloud:Charliecloud"),
        "docker": Plugin("fairmile.envs.runtimes.docker:Docker"),
    },
    entry_points="fairmile.container_runtimes",
)
_RECORD = "container.json"
# These stand in a command line for what only the shell on the node knows; no real path has such a name.
_HERE = "/@here@"
_ALSO = "/@also@"
_OURS = "/@ours@"
_VARIABLES = "--@variables@"
# Variables that say where things lie outside; all others are seen inside, as those of a job are. A runtime that hands
# on all it has sets the first ones itself, and the others are taken away before it starts.
_NOT_NEEDED = ("OLDPWD", "HOSTNAME", "SHELL", "TMPDIR", "BASH_ENV", "ENV", "LD_PRELOAD", "XDG_RUNTIME_DIR")
_OUTSIDE = "|".join(("PATH", "HOME", "PWD", "SHLVL", "_", *_NOT_NEEDED))
_INSIDE = "/opt/fairmile"


def pick(runner: Runner, wanted: Sequence[str] = ()) -> Runtime:
    """Return the first container runtime that the system has, of those `wanted` or else of all, in their order."""
    runtimes = [RUNTIMES[name]() for name in wanted or RUNTIMES.names()]
    programs = [program for runtime in runtimes for program in _programs(runtime)]
    test = 'for each; do if command -v "$each" >/dev/null 2>&1; then printf "%s\\n" "$each"; fi; done'
    there = runner.run(["sh", "-c", test, "sh", *programs]).stdout.split()
    for runtime in runtimes:
        for program in _programs(runtime):
            if program in there:
                runtime.program = program
                return runtime
    raise Unsupported(
        f"this system has no container runtime: none of the programs {', '.join(programs)} was found",
        hint="load a module that provides one, or run on another system",
    )


def wrap(runtime: Runtime, container: Container, prefix: Path | None = None) -> tuple[str, ...]:
    """Return what stands before a program's argv so that it runs in the container, in the folder it is started in.

    That folder is bound at its own place and can be written, and so is what FAIRMILE_BIND names, if it is set. The
    variables of the job are seen inside, but for those that say where things lie outside. With `prefix` the
    environment's own folder is bound read-only, and its programs are found first.
    """
    own = [Bind(_HERE, _HERE, read_only=False), Bind(_ALSO, _ALSO, read_only=False)]
    lines = ['export USER="${USER:-$(id -un)}"']  # Charliecloud does not run without it
    first: tuple[str, ...] = ()
    if prefix is not None:
        own.insert(0, Bind(str(prefix), str(prefix)))
        # The image has a PATH of its own, which is not known here: ours goes in front of it once inside.
        case = f"case $each in {shlex.quote(f'{prefix}/')}*) ours=$ours$each:;; esac"
        lines += ["ours= IFS=:; set -f", f"for each in $PATH; do {case}; done", "unset IFS; set +f"]
        first = ("sh", "-c", 'PATH=$1$PATH; export PATH; shift; exec "$@"', "sh", _OURS)
    inherited = () if runtime.inherits_variables else (_VARIABLES,)
    if runtime.inherits_variables:
        lines.append(f"unset {' '.join(_NOT_NEEDED)}")
    words = runtime.command(
        replace(
            container,
            binds=(*container.binds, *own),
            folder=container.folder or _HERE,
            options=(*inherited, *container.options),
        ),
        first,
    )
    lines.append(f'exec {" ".join(_shell_word(word) for word in words)} "$@"')
    return ("sh", "-c", "\n".join(lines), "sh")


def parse_bind(text: str) -> Bind:
    """Return the bind that FOLDER, FOLDER:INSIDE or FOLDER:INSIDE:rw stands for; it is read-only unless rw says so."""
    source, *rest = text.split(":")
    mode = rest.pop() if len(rest) > 1 or (rest and rest[-1] in ("ro", "rw")) else "ro"
    if len(rest) > 1 or mode not in ("ro", "rw"):
        raise UsageError(f"{text!r} is not a bind", hint="write FOLDER, FOLDER:INSIDE or FOLDER:INSIDE:rw")
    source = str(at_home(source))
    return Bind(source, rest[0] if rest else source, read_only=mode == "ro")


def make_steps(spec: EnvironmentSpec, tools: Tools) -> Sequence[Step]:
    """Return the step that brings the image of a specification, or makes it from its definition."""
    if spec.container is None:
        return []
    wanted = spec.container.runtime
    try:
        runtime = pick(tools.runner, [wanted] if wanted is not None else ())
    except Unsupported:
        if wanted is None:
            raise
        runtime = RUNTIMES[wanted]()  # a plan can be made where the runtime is not
    has_prefix = bool(spec.conda or spec.python or spec.builds)
    return [ContainerStep(spec.name, spec.container, runtime, tools.runner, bind_prefix=has_prefix)]


class ContainerStep:
    """Have the image at hand, know it by its digest, and run programs in it.

    An image of a registry is brought when the system does not have it. A tag is resolved to the digest it has now,
    which is kept beside the prefix's other files and used from then on.
    """

    name = "container"

    def __init__(
        self, environment: str, spec: ContainerSpec, runtime: Runtime, runner: Runner, *, bind_prefix: bool = False
    ) -> None:
        self._spec = spec
        self._environment = environment
        self._runtime = runtime
        self._runner = runner
        self._bind_prefix = bind_prefix
        self._binds = tuple(parse_bind(text) for text in spec.binds)
        self._options = Options(spec.program_options, spec.build_options)
        self._reference = _reference(spec)

    def describe(self) -> str:
        """Return where the image comes from and what runs it, in one line."""
        if self._spec.definition is not None:
            return f"build an image from {self._spec.definition} with {self._runtime.name}"
        if _is_path(self._reference):
            return f"use the image {self._reference} with {self._runtime.name}"
        pinned = "" if split_reference(self._reference)[1] else ", whose tag names no digest"
        return f"pull the image {self._reference}{pinned} with {self._runtime.name}"

    def material(self) -> Any:
        """Return the image by its digest, or by its name where that is all there is, and how it is run."""
        how = self._spec.model_dump(mode="json", exclude={"image", "definition", "digest", "runtime"})
        return {"runtime": self._runtime.name, **self._image_material, **how}

    def run(self, prefix: Path, tools: Tools) -> Mapping[str, Any]:
        """Bring or make the image and return what it is by content."""
        image = self._made(prefix, tools) if self._spec.definition else self._brought(prefix, tools)
        identity = self._identity(tools.runner, image)
        if identity is None:
            raise SystemFailure(f"{self._runtime.name} does not know the image {image}, which was just loaded")
        digest, kind = self._checked_digest(identity)
        lock: dict[str, Any] = {
            "runtime": self._runtime.name,
            "asked_for": self._spec.definition or self._reference,
            "image": identity.reference,
            "digest": digest,
            "digest_of": kind,
            "content": {"of": identity.kind, "digest": identity.digest},
        }
        if self._spec.definition is None and not _is_path(self._reference) and "@" not in self._reference:
            keep = f"set digest: {digest} to pin this image" if digest else "set container.digest to pin this image"
            lock["unpinned"] = f"{self._reference} may change; {keep}"
        write_atomic(prefix / _RECORD, json.dumps(lock, indent=1) + "\n")
        return lock

    def use(self, prefix: Path) -> Use:
        """Return the command that stands before each program."""
        spec = self._spec
        gpu: Gpu = "nvidia" if spec.gpus is True else spec.gpus or ""
        container = Container(
            self._image(prefix), self._binds, gpu=gpu, options=spec.options, program_options=spec.program_options
        )
        return Use(wrap=wrap(self._runtime, container, prefix if self._bind_prefix else None))

    @cached_property
    def _image_material(self) -> dict[str, Any]:
        if self._spec.definition is not None:
            file = Path(self._spec.definition)
            if not file.is_file():
                raise NotFound(f"no definition {file}", hint="container.definition must name a file")
            return {
                "definition": file.name,
                "files": merkle_root(scan_tree(file.parent)),
                "runtime": self._runtime.name,
            }
        if self._spec.digest is not None:
            return {"digest": self._spec.digest}
        if _is_path(self._reference):
            identity = self._identity(self._runner, self._reference)
            if identity is None:
                raise NotFound(f"no image {self._reference}", hint="container.image must be a path or a reference")
            return {"digest": identity.digest}
        return {"image": self._reference}

    def _made(self, prefix: Path, tools: Tools) -> str:
        file = Path(str(self._spec.definition))
        name = f"{slug(self._environment)}:{sha256_hex(canonical_json(self._image_material))[:16]}"
        image = self._runtime.stored_as(name, "", str(prefix))
        for argv in self._runtime.build_commands(str(file), image, str(tools.work), self._options):
            tools.run(argv, cwd=file.parent)
        return image

    def _brought(self, prefix: Path, tools: Tools) -> str:
        if _is_path(self._reference):
            return self._reference
        image = self._runtime.stored_as("", self._reference, str(prefix))
        if self._identity(tools.runner, image) is None:
            for argv in self._runtime.pull_commands(self._reference, image, str(tools.work), self._options):
                tools.run(argv)
        return image

    def _image(self, prefix: Path) -> str:
        try:
            text = (prefix / _RECORD).read_text(encoding="utf-8")
        except FileNotFoundError:
            if _is_path(self._reference):
                return self._reference
            return self._runtime.stored_as(slug(self._environment), self._reference, str(prefix))
        return str(load_json(text, file=str(prefix / _RECORD))["image"])

    def _identity(self, runner: Runner, image: str) -> Identity | None:
        command = self._runtime.identity_command(image, self._spec.program_options)
        result = runner.run(command, check=False)
        if result.exit_code != 0 or not result.stdout.strip():
            return None
        return self._runtime.parse_identity(image, result.stdout)

    def _checked_digest(self, identity: Identity) -> tuple[str | None, str]:
        """Return what `container.digest` may say for this very image, or None where nobody knows it, and of what."""
        wanted = self._spec.digest or (None if _is_path(self._reference) else split_reference(self._reference)[1])
        if not _is_path(self._reference) and identity.kind in ("file", "tree") and self._spec.definition is None:
            # What was made of a registry's image has a digest of its own; the registry's was checked on the way.
            return wanted or None, "manifest"
        if wanted and identity.digest != wanted:
            raise Integrity(
                f"the image {self._reference} has the digest {identity.digest} of its {identity.kind}, "
                f"the specification says {wanted}",
                hint="use the intended image, or update container.digest",
            )
        return identity.digest, identity.kind


class PackagedDict(TypedDict):
    """An exported environment as JSON; `folder` is where its files were written, or would be."""

    files: list[str]
    text: str
    notes: list[str]
    folder: str | None


@dataclass(frozen=True, repr=False)
class Packaged(Result):
    """The build folder of an image: the definition's name, texts by name, files and folders to copy, and remarks.

    `folder` is where it was written, or would be.
    """

    definition: str
    texts: Mapping[str, str]
    copies: Mapping[str, Path]
    notes: tuple[str, ...]
    folder: str | None = None

    def to_dict(self) -> PackagedDict:
        """Return the export as `fairmile env export --json` prints it."""
        text = self.texts[self.definition]
        return {"files": self.files, "text": text, "notes": list(self.notes), "folder": self.folder}

    def summary(self) -> str:
        """Return the files, and the folder they were written to."""
        return ", ".join(self.files) + (f" in {self.folder}" if self.folder is not None else "")

    @property
    def files(self) -> list[str]:
        """The names of all files and folders, texts first."""
        return [*self.texts, *self.copies]

    def write(self, folder: Path) -> Path:
        """Write the build folder and return its definition, from which `container.definition` builds."""
        for name, text in self.texts.items():
            write_atomic(folder / name, text)
        for name, source in self.copies.items():
            if source.is_dir():
                shutil.copytree(source, folder / name, symlinks=True, dirs_exist_ok=True)
            else:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, folder / name)
        return folder / self.definition


def package(
    spec: EnvironmentSpec, runtime: Runtime, *, base: str = "", files: Mapping[str, Path] | None = None
) -> Packaged:
    """Return the definition of an image that holds an environment and the `files` of a model (path inside → source).

    Data does not belong in an image: it is bound in when a program runs. What an image cannot hold, such as modules,
    is left out and said in `notes`.
    """
    notes: list[str] = []
    base = base or (_reference(spec.container) if spec.container is not None else "")
    if not base:
        raise UsageError(
            "an image needs a base, but the specification has no container.image",
            hint="name one with --base, such as docker.io/library/debian:12",
        )
    if not _is_path(base) and not split_reference(base)[1]:
        notes.append(f"the base {base} is not pinned by a digest: the same definition may build another image")
    texts: dict[str, str] = {}
    copies = {f"files/{number}": source for number, source in enumerate((files or {}).values())}
    placed = list(zip(copies, files or {}, strict=True))
    lines: list[str] = []
    if spec.conda is not None:
        channels = " ".join(f"--channel {shlex.quote(text)}" for text in spec.conda.channels)
        packages = " ".join(shlex.quote(text) for text in spec.conda.packages)
        lines.append(f"$(command -v micromamba || command -v conda) install --yes --name base {channels} {packages}")
        notes.append("the base must have micromamba or conda, which installs the conda packages")
    if spec.python is not None:
        lines += _python_lines(spec.python, texts, copies, placed)
    if spec.modules:
        notes.append(f"the modules {', '.join(spec.modules)} belong to the system and are not in the image")
    if spec.builds:
        names = ", ".join(build.name for build in spec.builds)
        notes.append(f"{names}: source builds are not in the image; their prefix is bound into it")
    notes += _needed_of_base(spec.variables)
    recipe = Recipe(base, tuple(placed), tuple(lines), spec.variables, {"fairmile.environment": spec.name})
    name, text = runtime.definition(recipe)
    return Packaged(name, {name: text, **texts}, copies, tuple(notes))


def _python_lines(
    python: PythonSpec, texts: dict[str, str], copies: dict[str, Path], placed: list[tuple[str, str]]
) -> list[str]:
    wanted = [f"{text}\n" for text in python.packages if not text.startswith("/")]
    if python.requirements is not None:
        wanted.append(Path(python.requirements).read_text(encoding="utf-8"))
    install = "python3 -m pip install --no-cache-dir"
    lines = []
    if wanted:
        texts["requirements.txt"] = "".join(wanted)
        if holds_login(texts["requirements.txt"]):
            raise UsageError(
                "the requirements contain an address with a login, which would stay in the image",
                hint="leave the login to pip's own settings",
            )
        placed.append(("requirements.txt", f"{_INSIDE}/requirements.txt"))
        lines.append(f"{install} -r {_INSIDE}/requirements.txt")
    local = [text for text in python.packages if text.startswith("/")]
    local += [python.project] if python.project is not None else []
    for number, path in enumerate(local):
        name, extras = f"packages/{number}/{Path(path).name}", ""
        if path == python.project and python.extras:
            extras = f"[{','.join(python.extras)}]"
        copies[name] = Path(path)
        placed.append((name, f"{_INSIDE}/{name}"))
        lines.append(f"{install} {shlex.quote(f'{_INSIDE}/{name}{extras}')}")
    return lines


def _needed_of_base(variables: Mapping[str, str]) -> Iterator[str]:
    for name, value in variables.items():
        unknown = [text for refers, text in pieces(value) if refers and text not in variables]
        if unknown:
            yield f"{name} refers to {', '.join(unknown)}, which the base image must set"


def _reference(spec: ContainerSpec) -> str:
    if spec.image is None:
        return ""
    if spec.image.startswith(("/", "~")):
        return str(at_home(spec.image))
    name, digest = split_reference(spec.image)
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._:/-]*", name):
        raise UsageError(f"{spec.image!r} is neither an image reference nor an absolute path")
    if digest and spec.digest and digest != spec.digest:
        raise UsageError(f"container.image names {digest}, but container.digest says {spec.digest}")
    digest = digest or spec.digest or ""
    return f"{name}@{digest}" if digest else name


def _is_path(image: str) -> bool:
    return image.startswith("/")


def _programs(runtime: Runtime) -> list[str]:
    # Singularity takes the same words and is what many systems still have.
    return [runtime.program, "singularity"] if runtime.program == "apptainer" else [runtime.program]


def _shell_word(word: str) -> str:
    """Return a word for the shell in which the stand-ins become what the shell knows."""
    if word == _VARIABLES:
        rule = f"n ~ /^[A-Za-z_][A-Za-z0-9_]*$/ && n !~ /^({_OUTSIDE})$/"
        return f"""$(awk 'BEGIN {{ for (n in ENVIRON) if ({rule}) print "--env=" n }}')"""
    if word == _OURS:
        return '"$ours"'
    if _ALSO in word:
        return f'${{FAIRMILE_BIND:+"{word.replace(_ALSO, "$FAIRMILE_BIND")}"}}'
    if _HERE in word:
        return f'"{word.replace(_HERE, "$PWD")}"'
    return shlex.quote(word)
