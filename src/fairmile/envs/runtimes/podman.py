"""Podman: run in the tests, as the root of a machine without a registry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from fairmile.envs.runtimes import Container, Gpu, Identity, Options, Recipe, dockerfile, parse_inspected


class Podman:
    """Run programs with `podman run`; images lie in the user's own storage, which is often that of one node."""

    name = "podman"
    program = "podman"
    inherits_variables = False
    # keep-groups lets a program without root reach devices that belong to the groups video and render.
    gpu_options: ClassVar[dict[Gpu, tuple[str, ...]]] = {
        "": (),
        "nvidia": ("--device=nvidia.com/gpu=all",),
        "amd": ("--device=/dev/kfd", "--device=/dev/dri", "--group-add=keep-groups"),
    }

    def command(self, container: Container, argv: Sequence[str] = ()) -> list[str]:
        """Return `podman run …`; the image's own entry point is set aside, as Apptainer and Charliecloud do."""
        # As process 1 of its own a program would not notice the signal that ends a cancelled job.
        words = [
            self.program,
            *container.program_options,
            "run",
            "--rm",
            "--interactive",
            "--entrypoint=",
            "--pid=host",
        ]
        for bind in container.binds:
            mode = ",readonly" if bind.read_only else ""
            words.append(f"--mount=type=bind,source={bind.source},target={bind.inside}{mode}")
        words += [f"--env={name}={value}" for name, value in container.variables.items()]
        words += self.gpu_options[container.gpu]
        words += [f"--workdir={container.folder}"] if container.folder else []
        return [*words, *container.options, container.image, *argv]

    def definition(self, recipe: Recipe) -> tuple[str, str]:
        """Return a Containerfile."""
        return "Containerfile", dockerfile(recipe)

    def build_commands(self, definition: str, image: str, work: str, options: Options) -> list[list[str]]:
        """Return `podman build …`."""
        return [
            [self.program, *options.program, "build", *options.build, f"--tag={image}", f"--file={definition}", "."]
        ]

    def pull_commands(self, reference: str, image: str, work: str, options: Options) -> list[list[str]]:
        """Return `podman pull …`."""
        return [[self.program, *options.program, "pull", "--quiet", reference]]

    def stored_as(self, name: str, reference: str, prefix: str) -> str:
        """Return the name that the image has in its registry, or one of our own for an image that is made here."""
        return reference or f"localhost/fairmile/{name}"

    def identity_command(self, image: str, program_options: Sequence[str]) -> list[str]:
        """Return `podman image inspect …`."""
        return [self.program, *program_options, "image", "inspect", image]

    def parse_identity(self, image: str, output: str) -> Identity:
        """Return the manifest's digest where the image has one, else that of its configuration."""
        return parse_inspected(image, output)
