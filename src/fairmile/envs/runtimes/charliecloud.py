"""Charliecloud: `ch-run` is run in the tests with image folders; `ch-image` is held against written-down text only.

Data that is bound read-only is made so in a mount namespace of its own before `ch-run` starts, because `ch-run` has
no such option; this needs `unshare --map-current-user --keep-caps`, of util-linux 2.36 or later.
"""

from __future__ import annotations

from collections.abc import Sequence

from fairmile.envs.runtimes import Container, Identity, Options, Recipe, dockerfile, parse_sha256

_READ_ONLY = (
    'while [ "$1" != -- ]; do mount --bind -- "$1" "$1" && mount -o remount,bind,ro -- "$1" || exit 125; shift; done; '
    'shift; exec "$@"'
)
# An image folder is identified by its names, modes, links and contents, not by times and owners.
_TREE = (
    'if [ -d "$1" ]; then tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --format=gnu '
    '-C "$1" -cf - . | sha256sum; else sha256sum -- "$1"; fi'
)


class Charliecloud:
    """Run programs with `ch-run` in an image folder or a SquashFS file."""

    name = "charliecloud"
    program = "ch-run"
    inherits_variables = True

    def command(self, container: Container, argv: Sequence[str] = ()) -> list[str]:
        """Return `ch-run … IMAGE -- …`; GPU devices are there anyway, their libraries must be in the image."""
        words = [self.program, "--env-no-expand"]
        words += [f"--bind={bind.source}:{bind.inside}" for bind in container.binds]
        words += [f"--set-env={name}={value}" for name, value in container.variables.items()]
        words += [f"--cd={container.folder}"] if container.folder else []
        words += [*container.options, container.image, "--", *argv]
        guarded = [bind.source for bind in container.binds if bind.read_only]
        if not guarded:
            return words
        first = ["unshare", "--user", "--map-current-user", "--keep-caps", "--mount", "sh", "-c", _READ_ONLY, "sh"]
        return [*first, *guarded, "--", *words]

    def definition(self, recipe: Recipe) -> tuple[str, str]:
        """Return a Dockerfile."""
        return "Dockerfile", dockerfile(recipe)

    def build_commands(self, definition: str, image: str, work: str, options: Options) -> list[list[str]]:
        """Return `ch-image build …` and `ch-convert …` into the folder `image`."""
        storage = f"--storage={work}/charliecloud"
        return [
            ["ch-image", storage, *options.program, "build", *options.build, "--tag=made", f"--file={definition}", "."],
            ["ch-convert", storage, "--in-fmt=ch-image", "--out-fmt=dir", "made", image],
        ]

    def pull_commands(self, reference: str, image: str, work: str, options: Options) -> list[list[str]]:
        """Return `ch-image pull …` and `ch-convert …` into the folder `image`."""
        storage = f"--storage={work}/charliecloud"
        return [
            ["ch-image", storage, *options.program, "pull", reference, "brought"],
            ["ch-convert", storage, "--in-fmt=ch-image", "--out-fmt=dir", "brought", image],
        ]

    def stored_as(self, name: str, reference: str, prefix: str) -> str:
        """Return a folder below the prefix."""
        return f"{prefix}/image"

    def identity_command(self, image: str, program_options: Sequence[str]) -> list[str]:
        """Return the argv that prints the digest of an image folder's tree or of an image file."""
        return ["sh", "-c", _TREE, "sh", image]

    def parse_identity(self, image: str, output: str) -> Identity:
        """Return the digest of the tree or the file."""
        return parse_sha256(image, output)
