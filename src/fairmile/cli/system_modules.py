"""`fairmile system modules` and `eval`: module blocks, made and kept up to date."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import click

from fairmile.base.errors import NotFound, SystemFailure, UsageError
from fairmile.base.files import write_atomic, write_failure
from fairmile.cli.out import Out, count, json_option
from fairmile.systems.blocks import Block, Evaluation, evaluate, module_block
from fairmile.workspace import Workspace

_LARGEST = 4 << 20
_PARTITION = click.option(
    "--partition", default="", metavar="NAME", help="Take the lines that are right there; default: where jobs of it go."
)


@click.command()
@click.argument("system")
@click.argument("software", nargs=-1, required=True)
@_PARTITION
@json_option
def modules(system: str, software: tuple[str, ...], partition: str, out: Out) -> int:
    """Print the module lines of frameworks on a system, between the markers that `eval` knows.

    The lines are exactly those that the system's file gives, and work together. Where
    published rules say otherwise, or nobody verified them, that is told on stderr.

    \b
    Examples:
      fairmile system modules deep ddp
      fairmile system modules jureca ddp --partition dc-mi200
    """
    block = module_block(Workspace.open().systems.registry[system], software, partition)
    if out.as_json:
        out.data({**_facts(block), "text": block.text, "lines": list(block.lines), "notes": list(block.notes)})
        return 0
    out.document(block.text)
    _tell(block.notes, out)
    return 0


@click.command("eval")
@click.argument("script", type=click.Path(path_type=Path))
@click.option("--to", default="", metavar="SYSTEM", help="Move every block to this system.")
@click.option("--add", multiple=True, metavar="SOFTWARE", help="Add this to every block; may be repeated.")
@click.option("--remove", multiple=True, metavar="SOFTWARE", help="Take this out of every block; may be repeated.")
@_PARTITION
@click.option("--write", is_flag=True, help="Change the file; without it, only the difference is shown.")
@json_option
def eval_(
    script: Path, to: str, add: tuple[str, ...], remove: tuple[str, ...], partition: str, write: bool, out: Out
) -> int:
    """Bring the module blocks of a script up to date, and show what that changes.

    Nothing outside the markers is touched. When a script moves to another system, what
    its #SBATCH lines ask for and the new system would refuse is told with line numbers.

    \b
    Examples:
      fairmile system eval train.sh
      fairmile system eval train.sh --to jureca --add horovod --remove heat
    """
    text = _read(script)
    registry = Workspace.open().systems.registry
    found = evaluate(text, registry, to=to, add=add, remove=remove, partition=partition, file=str(script))
    written = write and found.changed
    if written:
        _write(script, found.text.encode("utf-8", "surrogateescape"))
    if out.as_json:
        told = {"file": str(script), "changed": found.changed, "written": written, "diff": found.diff}
        out.data({**told, "blocks": [_facts(block) for block in found.blocks], "notes": list(found.notes)})
        return 0
    _render(script, found, write, out)
    return 0


def _render(script: Path, found: Evaluation, write: bool, out: Out) -> None:
    if not found.changed:
        out.say(f"{script}: nothing to change")
    elif write:
        named = "; ".join(" ".join([block.system, *block.software]) for block in found.blocks)
        out.line(f"changed {script}: {count(len(found.blocks), 'block')} ({named})")
    else:
        out.document(found.diff.encode("utf-8", "surrogateescape"))
    _tell(found.notes, out)
    if found.changed and not write:
        out.hint("--write changes the file")


def _read(script: Path) -> str:
    try:
        if not stat.S_ISREG(script.stat().st_mode):  # opening a pipe would wait for ever
            raise UsageError(f"{script} is no regular file, so it cannot be a script")
        with script.open("rb") as stream:
            data = stream.read(_LARGEST + 1)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFound(f"no file {script}") from error
    except OSError as error:
        raise SystemFailure(f"cannot read {script}: {error.strerror}") from error
    if len(data) > _LARGEST:
        raise UsageError(f"{script} is larger than {_LARGEST >> 20} MiB, which no script is")
    # Whatever stands outside the markers comes back byte for byte, readable text or not.
    return data.decode("utf-8", "surrogateescape")


def _write(script: Path, data: bytes) -> None:
    """Write a script; links, owner, group and mode stay as they are, and what is read-only stays as a whole."""
    file = script.resolve()
    status, folder = file.stat(), file.parent.stat()
    if not status.st_mode & stat.S_IWUSR or not os.access(file, os.W_OK):
        raise SystemFailure(f"{script} is read-only, so it stays as it is", hint=f"chmod u+w {script}, or copy it")
    group = folder.st_gid if folder.st_mode & stat.S_ISGID else os.getegid()
    if status.st_nlink == 1 and (status.st_uid, status.st_gid) == (os.geteuid(), group):
        write_atomic(file, data)
        return
    # A new file in its place would part it from its other names, or belong to somebody else.
    try:
        with file.open("r+b") as stream:
            stream.write(data)
            stream.truncate()
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        raise write_failure(str(file), error) from error


def _facts(block: Block) -> dict[str, object]:
    return {"system": block.system, "software": list(block.software)}


def _tell(notes: tuple[str, ...], out: Out) -> None:
    for note in notes:
        out.say(f"note: {note}")
