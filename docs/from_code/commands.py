"""The reference of commands: usage, help, options and the fields of `--json`, as the command line has them."""

from __future__ import annotations

import inspect
import re

import click

from fairmile.cli.main import COMMANDS, command_group
from fairmile.testing.schemas import result_types
from from_code.markdown import code, codes, directive, page, table, toctree

_CODE = re.compile(r"(?<![\w-])(--?[a-z][\w-]*|\{[\w.|]+\}|<[^>]*>|\*+)")

_NO_DEFAULT = (None, (), [], "")


def command_pages() -> dict[str, str]:
    """Return a page for each word that can follow `fairmile`, and their index."""
    group = command_group()
    context = click.Context(group, info_name="fairmile")
    pages = {
        f"reference/commands/{name}.md": page(f"fairmile {name}", *_describe(command, name, context))
        for name in COMMANDS
        if (command := group.get_command(context, name)) is not None and not command.hidden
    }
    rows = [(f"[`fairmile {name}`]({name}.md)", entry.summary) for name, entry in COMMANDS.items()]
    pages["reference/commands/index.md"] = page(
        "Commands",
        "Every command takes `--json` and `--help`. Data goes to standard output, messages to standard error. "
        "Exit codes: 0 success, 1 the experiment failed, 2 usage or bad input, 3 environment or system, "
        "4 integrity, 130 interrupted. `--debug` adds the traceback of an error.",
        table(["command", "what it does"], rows),
        toctree(COMMANDS),
    )
    return pages


def _describe(command: click.Command, name: str, parent: click.Context, depth: int = 2) -> list[str]:
    """Return the parts of a page about a command, and for a group those of its commands."""
    context = click.Context(command, info_name=name, parent=parent)
    usage = " ".join(command.collect_usage_pieces(context))
    parts = [
        f"```text\n{context.command_path} {usage}\n```",
        _help(command.help or ""),
        directive("program", context.command_path, ""),
        *(_option(each, context) for each in command.params if isinstance(each, click.Option) and not each.hidden),
        _printed(command, context.command_path),
    ]
    if isinstance(command, click.Group):
        for word in command.list_commands(context):
            inner = command.get_command(context, word)
            if inner is not None and not inner.hidden:
                parts += [f"{'#' * depth} {context.command_path} {word}"]
                parts += _describe(inner, word, context, depth + 1)
    return parts


def _help(text: str) -> str:
    """Return help as Markdown: what click keeps as it is (after \\b) becomes a block of text."""
    parts = []
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        if paragraph.startswith("\b"):
            title, _, body = paragraph.removeprefix("\b").strip("\n").partition("\n")
            lines = inspect.cleandoc(body) if title.endswith(":") else f"{title}\n{body}"
            parts.append((f"{title}\n\n" if title.endswith(":") else "") + f"```text\n{lines.rstrip()}\n```")
        else:
            parts.append(_with_code(" ".join(paragraph.split())))
    return "\n\n".join(parts)


def _with_code(text: str) -> str:
    """Return a sentence of help with options, placeholders and the like set as code."""
    pieces = re.split(r"(`[^`]*`)", text)
    marked = [piece if piece.startswith("`") else _CODE.sub(r"`\1`", piece) for piece in pieces]
    return "".join(marked)


def _option(option: click.Option, context: click.Context) -> str:
    takes = "" if option.is_flag or option.count else f" {option.make_metavar(context)}"
    names = [*option.opts, *option.secondary_opts]
    argument = ", ".join(f"{name}{takes}" for name in names)
    text = _with_code(option.help or "")
    if isinstance(option.type, click.Choice):
        text += f" One of {codes(option.type.choices)}."
    if not option.is_flag and "default:" not in text and (default := option.get_default(context)) not in _NO_DEFAULT:
        text += f" Default: {code(default)}."
    return directive("option", argument, text, in_contents=False)


def _printed(command: click.Command, path: str) -> str:
    results = result_types(command)
    if not results:
        return ""
    links = " or ".join(f"{{py:class}}`~{each.__module__}.{each.__name__}`" for each in results)
    file = path.removeprefix("fairmile ").replace(" ", "-")
    return f"With `--json` it prints {links} ([schema](../../schemas/{file}.json))."
