"""Docker: its command lines and definitions are held against written-down text; it is not run in the tests."""

from __future__ import annotations

from typing import ClassVar

from fairmile.envs.runtimes import Gpu, Recipe, dockerfile
from fairmile.envs.runtimes.podman import Podman


class Docker(Podman):
    """Run programs with `docker run`, whose words are those of Podman but for GPUs."""

    name = "docker"
    program = "docker"
    gpu_options: ClassVar[dict[Gpu, tuple[str, ...]]] = {
        "": (),
        "nvidia": ("--gpus=all",),
        "amd": ("--device=/dev/kfd", "--device=/dev/dri", "--group-add=video"),
    }

    def definition(self, recipe: Recipe) -> tuple[str, str]:
        """Return a Dockerfile."""
        return "Dockerfile", dockerfile(recipe)
