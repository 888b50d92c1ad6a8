"""Apptainer, and Singularity under its own name: held against written-down text; neither is run in the tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from fairmile.base.errors import UsageError
from fairmile.envs.runtimes import Container, Gpu, Identity, Options, Recipe, double_quoted, one_line, parse_sha256

_FROM_REGISTRY = "docker://"


class Apptainer:
    """Run programs with `apptainer exec` in an image file, a sandbox folder or an image of a registry."""

    name = "apptainer"
    inherits_variables = True
    gpu_options: ClassVar[dict[Gpu, tuple[str, ...]]] = {"": (), "nvidia": ("--nv",), "amd": ("--rocm",)}

    def __init__(self, program: str = "apptainer") -> None:
        self.program = program

    def command(self, container: Container, argv: Sequence[str] = ()) -> list[str]:
        """Return `apptainer exec …`; the home folder stays outside, so that nobody's own packages slip in."""
        words = [self.program, *container.program_options, "exec", "--no-home", *self.gpu_options[container.gpu]]
        for bind in container.binds:
            words.append(f"--bind={bind.source}:{bind.inside}:{'ro' if bind.read_only else 'rw'}")
        for name, value in container.variables.items():
            if "," in value:
                raise UsageError(f"Apptainer cannot pass {name}, whose value has a comma", hint="export it instead")
            words.append(f"--env={name}={value}")
        words += [f"--pwd={container.folder}"] if container.folder else []
        return [*words, *container.options, _address(container.image), *argv]

    def definition(self, recipe: Recipe) -> tuple[str, str]:
        """Return a definition file."""
        exports = [f"export {name}={_double_quoted(value)}" for name, value in recipe.variables.items()]
        address = _address(recipe.base)
        agent = "docker" if address.startswith(_FROM_REGISTRY) else "localimage"
        # What %environment sets is not there yet while %post runs.
        post = ["set -eu", *exports, *(one_line(line) for line in recipe.lines)] if recipe.lines else []
        parts = [
            f"Bootstrap: {agent}\nFrom: {address.removeprefix(_FROM_REGISTRY)}\n",
            _section("files", [f"{name} {inside}" for name, inside in recipe.files]),
            _section("environment", exports),
            _section("post", post),
            _section("labels", [f"{name} {one_line(value)}" for name, value in recipe.labels.items()]),
        ]
        return "image.def", "\n".join(part for part in parts if part)

    def build_commands(self, definition: str, image: str, work: str, options: Options) -> list[list[str]]:
        """Return `apptainer build …` into the file `image`."""
        return [[self.program, *options.program, "build", "--force", *options.build, image, definition]]

    def pull_commands(self, reference: str, image: str, work: str, options: Options) -> list[list[str]]:
        """Return `apptainer pull …` into the file `image`."""
        return [[self.program, *options.program, "pull", "--force", image, _address(reference)]]

    def stored_as(self, name: str, reference: str, prefix: str) -> str:
        """Return a file below the prefix."""
        return f"{prefix}/image.sif"

    def identity_command(self, image: str, program_options: Sequence[str]) -> list[str]:
        """Return the argv that prints the digest of the image file."""
        return ["sha256sum", "--", image]

    def parse_identity(self, image: str, output: str) -> Identity:
        """Return the digest of the file."""
        return parse_sha256(image, output)


def _address(image: str) -> str:
    """Return a path as it is, and an image of a registry with the scheme that Apptainer wants."""
    return image if image.startswith("/") or "://" in image else _FROM_REGISTRY + image


def _section(name: str, lines: Sequence[str]) -> str:
    return "".join([f"%{name}\n", *(f"    {line}\n" for line in lines)]) if lines else ""


def _double_quoted(text: str) -> str:
    """Return a value for the shell in which nothing but references to variables means anything."""
    return double_quoted(text, '\\"`$', "${%s:-}")
