"""Groups whose commands are imported when they are called, and that know the nearest word."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from fairmile.base.words import did_you_mean
from fairmile.cli.options import write_sections

if TYPE_CHECKING:
    from fairmile.cli.main import Entry

# What people type by habit, and its name here.
_HABITS = {"list": "ls", "delete": "rm", "remove": "rm", "logs": "log", "download": "fetch", "install": "fetch"}

# Long enough for any summary: what does not fit is folded, not cut.
_SUMMARY = 200


class LazyGroup(click.Group):
    """A group over a table of commands; listing them imports none."""

    def __init__(
        self,
        *args: Any,
        entries: Mapping[str, Entry] | None = None,
        sections: Mapping[str, Sequence[str]] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._entries = dict(entries or {})
        self._sections = dict(sections or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self._entries, *self.commands]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = self._entries.get(cmd_name)
        if entry is None:
            return super().get_command(ctx, cmd_name)
        command: click.Command = getattr(importlib.import_module(entry.module), entry.name)
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            click.echo(ctx.get_help(), err=True)
            ctx.exit(2)
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        word = args[0]
        names = self.list_commands(ctx)
        if word not in names and not word.startswith("-"):
            meant = _did_you_mean(ctx, args, names)
            ctx.fail(f"no command named {word!r}; {meant or 'commands: ' + ', '.join(names)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = {name: entry.summary for name, entry in self._entries.items()}
        rows |= {name: command.get_short_help_str(_SUMMARY) for name, command in self.commands.items()}
        sections = {title: [(name, rows.pop(name)) for name in names] for title, names in self._sections.items()}
        write_sections(formatter, {**sections, "Commands": list(rows.items())})


def _did_you_mean(ctx: click.Context, args: Sequence[str], names: Sequence[str]) -> str:
    """Return which command was probably meant, here or elsewhere; empty if none is near."""
    word, *rest = args
    name = _HABITS.get(word, word)
    if name in names:
        return f"did you mean {name!r}?"
    root, line = ctx.find_root(), list[str]()
    if word == "help":
        line = [ctx.command_path, *rest[:1], "--help"]
    elif isinstance(root.command, click.Group) and name in root.command.list_commands(root):
        line = [root.command_path, name, *rest]
    elif ctx is not root:
        pass
    elif word == "version":
        line = [ctx.command_path, "--version"]
    elif name in ("ls", "log", "rm"):
        line = [ctx.command_path, "runs", name, *rest]
    elif any(each.endswith(".py") for each in args):
        line = [ctx.command_path, "run", *args]
    return f"did you mean `{' '.join(line)}`?" if line else did_you_mean(word, names)
