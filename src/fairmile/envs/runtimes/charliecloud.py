"""Charliecloud: `ch-run` is run in the tests with image folders; `ch-image` is held against written-down text only.

`ch-run` can neither bind read-only nor make the place inside at which something is bound. Both are done before it
starts, in a mount namespace of its own, which needs util-linux 2.36 and, for the places, Linux 5.11; on an older kernel
the places must be in the image.
"""

from __future__ import annotations

from collections.abc import Sequence

from fairmile.envs.runtimes import Container, Identity, Options, Recipe, dockerfile, parse_sha256

# Its arguments: folders to make read-only, --, the image, pairs of what is bound and its place inside, --, the command.
_PREPARE = """\
while [ "$1" != -- ]; do
  mount --bind -- "$1" "$1" && mount -o remount,bind,ro -- "$1" || exit 125; shift
done
image=$2 layer=${TMPDIR:-/tmp}/fairmile-$(id -u); shift 2
if [ -d "$image" ] && mkdir -p -m 700 -- "$layer" && mount -t tmpfs tmpfs "$layer" &&
  mkdir -- "$layer/upper" "$layer/work" &&
  mount -t overlay overlay -o "lowerdir=$image,upperdir=$layer/upper,workdir=$layer/work" "$image"
then while [ "$1" != -- ]; do
  if [ -d "$1" ]; then mkdir -p -- "$image$2"
  elif [ ! -e "$image$2" ]; then mkdir -p -- "$(dirname -- "$image$2")" && : > "$image$2"; fi; shift 2
done; else while [ "$1" != -- ]; do shift; done; fi
shift
exec "$@"
"""
# ch-run would hand on the host's own, which names folders that an image need not have.
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
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
        words = [self.program, "--env-no-expand", f"--set-env=PATH={_PATH}", "--set-env=HOME=/root"]
        words += [f"--bind={bind.source}:{bind.inside}" for bind in container.binds]
        words += [f"--set-env={name}={value}" for name, value in container.variables.items()]
        words += [f"--cd={container.folder}"] if container.folder else []
        words += [*container.options, container.image, "--", *argv]
        if not container.binds:
            return words
        read_only = [bind.source for bind in container.binds if bind.read_only]
        places = [path for bind in container.binds for path in (bind.source, bind.inside)]
        alone = ["unshare", "--user", "--map-current-user", "--keep-caps", "--mount", "sh", "-c", _PREPARE, "sh"]
        return [*alone, *read_only, "--", container.image, *places, "--", *words]

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
        return ["bash", "-o", "pipefail", "-c", _TREE, "bash", image]

    def parse_identity(self, image: str, output: str) -> Identity:
        """Return the digest of the tree or the file."""
        return parse_sha256(image, output)
