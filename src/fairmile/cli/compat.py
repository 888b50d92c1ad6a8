"""`fairmile compat`: imports and commands of predecessors."""

from __future__ import annotations

from types import ModuleType

import click

from fairmile.base.registry import Plugin, Registry
from fairmile.cli.lazy import LazyGroup
from fairmile.cli.main import run as run_line
from fairmile.cli.options import DRY_RUN
from fairmile.cli.out import Out, json_output

_REGISTRY: Registry[ModuleType] = Registry("predecessors", {"all": Plugin("fairmile.compat.predecessors")})
_PREDECESSORS = _REGISTRY["all"]


@click.group(cls=LazyGroup)
def compat() -> None:
    """Use Python modules and commands of cloudmesh, HPCFAIR and LAMEC unchanged."""


@compat.command()
@click.option("--commands", is_flag=True, help="Print the folder for PATH, with the commands cms and lamec.")
@json_output(_PREDECESSORS.PublishedPath)
def path(out: Out, commands: bool) -> None:
    """Print the folder for PYTHONPATH with modules of predecessors.

    With it, `from cloudmesh.common.StopWatch import StopWatch`, `from cloudmesh.gpu.gpu import Gpu` and
    `from hpcfair import hpcfair_model` work unchanged, answered by Fairmile.

    \b
    Examples:
      fairmile compat path
      fairmile compat path --commands
    """
    out.show(
        _PREDECESSORS.published_path(), lambda folders: out.line(str(folders.commands if commands else folders.python))
    )


@compat.command()
@click.argument("words", nargs=-1, required=True, metavar="COMMAND...", type=click.UNPROCESSED)
@DRY_RUN
@json_output(_PREDECESSORS.Translation)
def run(out: Out, words: tuple[str, ...], dry_run: bool) -> int:
    """Run a command line of cms or lamec with Fairmile.

    With --dry-run, print the Fairmile command that does the same.

    \b
    Examples:
      fairmile compat run --dry-run -- lamec gen deep ddp
      fairmile compat run --dry-run -- cms ee generate --source=a.in.sh --config=a.yaml --name=a
    """
    translation = _PREDECESSORS.translate(words)
    if dry_run:
        out.show(translation, lambda each: out.line(each.summary()))
        return 0
    return run_line([*translation.command, *(["--json"] if out.as_json else [])])
