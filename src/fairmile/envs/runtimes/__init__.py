"""Container runtimes: each builds argv and definitions and parses output; none starts a program."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, Literal, Protocol

from fairmile.base.errors import SystemFailure, UsageError
from fairmile.base.quick_dataclass import dataclass
from fairmile.envs.shells import pieces

Gpu = Literal["", "nvidia", "amd"]
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Bind:
    """A file or folder of the system that programs in the container see at `inside`."""

    source: str
    inside: str
    read_only: bool = True

    def __post_init__(self) -> None:
        for text in (self.source, self.inside):
            # No runtime can quote these in its option.
            if not text.startswith("/") or not text.isprintable() or any(sign in text for sign in ":,\"'\\"):
                raise UsageError(
                    f"{text!r} cannot be bound into a container",
                    hint="a bind is written FOLDER:INSIDE or FOLDER:INSIDE:rw with absolute paths "
                    "without colons, commas and quotes",
                )
        if self.inside.rstrip("/") == "":
            raise UsageError(f"{self.source} cannot be bound over the whole container", hint="name a folder inside it")


@dataclass(frozen=True)
class Container:
    """An image and how programs are run in it.

    `options` go to the runtime as they are, `program_options` before its verb.
    """

    image: str
    binds: tuple[Bind, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    gpu: Gpu = ""
    folder: str = ""  # where the program starts, inside
    options: tuple[str, ...] = ()
    program_options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Options:
    """What a user adds to the commands that make or bring an image."""

    program: tuple[str, ...] = ()  # before the verb
    build: tuple[str, ...] = ()


@dataclass(frozen=True)
class Recipe:
    """What an image is made of: a base, files of the build folder, shell lines that run once, variables."""

    base: str
    files: tuple[tuple[str, str], ...] = ()  # (name in the build folder, path inside)
    lines: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Identity:
    """What an image is by content.

    `digest` is that of the manifest a registry serves, of an image's configuration, of an image file or of an
    image folder's tree, as `kind` says; `reference` runs exactly this image.
    """

    digest: str
    kind: Literal["manifest", "configuration", "file", "tree"]
    reference: str


class Runtime(Protocol):
    """A program that runs others in an image."""

    name: str
    program: str
    # Whether programs see the variables of the shell that starts the runtime without being told so.
    inherits_variables: bool

    def command(self, container: Container, argv: Sequence[str] = ()) -> list[str]:
        """Return the argv that runs `argv` in the image; without `argv`, what stands before it."""
        ...

    def definition(self, recipe: Recipe) -> tuple[str, str]:
        """Return the file name and the text of the definition from which the runtime builds an image."""
        ...

    def build_commands(self, definition: str, image: str, work: str, options: Options) -> list[list[str]]:
        """Return the commands that make `image` from a definition, run in the folder that its files lie in."""
        ...

    def pull_commands(self, reference: str, image: str, work: str, options: Options) -> list[list[str]]:
        """Return the commands that bring an image of a registry to this system; `work` is for what is in between."""
        ...

    def stored_as(self, name: str, reference: str, prefix: str) -> str:
        """Return what `image` is to be: a name in the runtime's own storage, or a file or folder below `prefix`."""
        ...

    def identity_command(self, image: str, program_options: Sequence[str]) -> list[str]:
        """Return the argv that prints what `parse_identity` reads."""
        ...

    def parse_identity(self, image: str, output: str) -> Identity:
        """Return what the image is by content."""
        ...


def split_reference(reference: str) -> tuple[str, str]:
    """Return an image reference without its digest, and the digest or an empty text.

    >>> split_reference("docker.io/library/python:3.12")
    ('docker.io/library/python:3.12', '')
    """
    name, at, digest = reference.partition("@")
    if not at:
        return name, ""
    if not _DIGEST.fullmatch(digest) or not name:
        raise UsageError(
            f"{reference!r} is not an image reference: what follows '@' is not a digest",
            hint="a digest is sha256: and 64 hexadecimal digits",
        )
    return name, digest


def parse_inspected(image: str, output: str) -> Identity:
    """Return the identity in what `podman image inspect` and `docker image inspect` print."""
    try:
        (description,) = json.loads(output)
        identifier = str(description["Id"]).removeprefix("sha256:")
        listed: list[Any] = description.get("RepoDigests") or []
    except (ValueError, KeyError, TypeError) as error:
        raise SystemFailure(f"the description of the image {image} cannot be read: {output.strip()[:200]!r}") from error
    if not _SHA256.fullmatch(identifier):
        raise SystemFailure(f"the description of the image {image} names no image id: {identifier[:80]!r}")
    name, digest = split_reference(image)
    references = [str(each) for each in listed if _DIGEST.fullmatch(str(each).partition("@")[2])]
    # The same image may have been pulled under several names: the one asked for says which digest is meant.
    wanted = _without_tag(name)
    references.sort(key=lambda each: (digest not in each, each.partition("@")[0] != wanted))
    if references:
        return Identity(references[0].partition("@")[2], "manifest", references[0])
    return Identity(f"sha256:{identifier}", "configuration", f"sha256:{identifier}")


def parse_sha256(image: str, output: str) -> Identity:
    """Return the identity in what `sha256sum` prints, for an image file or, from its standard input, a tree."""
    word = output.split()[0].lstrip("\\") if output.split() else ""
    if not _SHA256.fullmatch(word):
        raise SystemFailure(f"the digest of the image {image} cannot be read: {output.strip()[:200]!r}")
    return Identity(f"sha256:{word}", "tree" if output.split()[1:] == ["-"] else "file", image)


def dockerfile(recipe: Recipe) -> str:
    """Return the definition that Podman, Docker and Charliecloud build from."""
    lines = [f"FROM {_word(recipe.base)}"]
    lines += [f"COPY {json.dumps([name, inside])}" for name, inside in recipe.files]
    lines += [f"ENV {name}={_docker_quote(value)}" for name, value in recipe.variables.items()]
    lines += [f"RUN {one_line(line)}" for line in recipe.lines]
    lines += [f"LABEL {name}={_docker_quote(value, literal=True)}" for name, value in recipe.labels.items()]
    return "\n".join(lines) + "\n"


def _without_tag(name: str) -> str:
    host, slash, rest = name.rpartition("/")
    return host + slash + rest.partition(":")[0]


def _word(text: str) -> str:
    if not text or not text.isprintable() or any(sign.isspace() for sign in text):
        raise UsageError(f"{text!r} is not a name of an image")
    return text


def one_line(text: str) -> str:
    """Return a line as it is, or raise UsageError when it is none or goes on after its end."""
    if not text.strip() or not text.isprintable() or text.endswith("\\"):
        raise UsageError(f"expected one whole line for the shell, found {text!r}")
    return text


def double_quoted(text: str, special: str, reference: str, *, literal: bool = False) -> str:
    """Return a value between double quotes: `special` signs escaped, references to variables kept unless `literal`."""
    one_line(f"{text} ")
    signs = {ord(sign): f"\\{sign}" for sign in special}
    cut = [(False, text)] if literal else pieces(text)
    return '"' + "".join(reference % part if refers else part.translate(signs) for refers, part in cut) + '"'


def _docker_quote(text: str, *, literal: bool = False) -> str:
    # A backslash before any other sign would stay in the value.
    return double_quoted(text, '\\"$', "${%s}", literal=literal)
