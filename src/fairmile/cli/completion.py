"""`fairmile completion`: set up completion in a shell, and undo it."""

from __future__ import annotations

import click

from fairmile.cli.lazy import LazyGroup
from fairmile.cli.options import DRY_RUN
from fairmile.cli.out import Out, json_output
from fairmile.completion import Completion, CompletionScript, install, script, uninstall

_SHELL = click.option(
    "--shell", default="", metavar="SHELL", help="Shell: bash, zsh or fish.  [default: your login shell]"
)


@click.group(cls=LazyGroup)
def completion() -> None:
    """Complete commands, options and names with the Tab key in bash, zsh or fish."""


@completion.command("install")
@_SHELL
@DRY_RUN
@json_output(Completion)
def install_(out: Out, shell: str, dry_run: bool) -> None:
    """Set up completion for your shell.

    Adds a marked block to ~/.bashrc or ~/.zshrc, or a file for fish. Running it again
    changes nothing.

    \b
    Examples:
      fairmile completion install --shell zsh --dry-run
    """
    out.show(install(shell, dry_run=dry_run), lambda done: _print_change(out, done, "installed"))


@completion.command("uninstall")
@_SHELL
@DRY_RUN
@json_output(Completion)
def uninstall_(out: Out, shell: str, dry_run: bool) -> None:
    """Remove what `install` wrote.

    \b
    Examples:
      fairmile completion uninstall --shell zsh --dry-run
    """
    out.show(uninstall(shell, dry_run=dry_run), lambda done: _print_change(out, done, "removed"))


@completion.command()
@_SHELL
@json_output(CompletionScript)
def show(out: Out, shell: str) -> None:
    """Print the completion script of a shell, to install it yourself.

    \b
    Examples:
      fairmile completion show --shell bash
    """
    out.show(script(shell), lambda script: out.document(script.script))


def _print_change(out: Out, done: Completion, verb: str) -> None:
    for file in done.changed:
        out.line(f"{'would change' if done.dry_run else 'changed'} {file}")
    if not done.changed:
        out.say(f"nothing to do: completion for {done.shell} is {verb}")
    elif not done.dry_run:
        out.hint(f"open a new {done.shell} to use it" if verb == "installed" else f"open a new {done.shell}")
