"""Shared options and the sections of help pages."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import pytest
from cases import for_each

from fairmile.cli.main import command_group
from fairmile.cli.options import SectionedCommand, write_sections

# These options mean the same wherever they are.
SHARED = (
    "--dry-run",
    "--json",
    "--wait/--leave",
    "--notify",
    "--account",
)


def commands(command: click.Command, path: str = "") -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield path, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        assert inner is not None
        yield from commands(inner, f"{path} {name}".strip())


ALL = dict(commands(command_group()))


def options(command: click.Command) -> list[click.Option]:
    return [each for each in command.params if isinstance(each, click.Option) and not each.hidden]


@for_each("name", ALL)
def test_the_help_of_an_option_is_a_sentence_that_says_whether_it_repeats(name: str) -> None:
    for option in options(ALL[name]):
        record = option.get_help_record(click.Context(ALL[name]))
        assert record is not None
        text, flag = record[1], option.opts[-1]
        assert re.match(r"[A-Z]", text), f"{flag}: {text}"
        assert re.search(r"[.…]( {2}\[[^\[\]]+\])*$", text), f"{flag}: {text}"
        assert "(default" not in text, f"{flag}: {text}"
        assert option.multiple == ("repeatable" in text), f"{flag}: {text}"


@for_each("flags", SHARED)
def test_an_option_that_several_commands_share_has_one_sentence(flags: str) -> None:
    named = flags.split("/")[0]
    sentences = {
        name: option.help
        for name, command in ALL.items()
        for option in options(command)
        if named in option.opts and "/".join([*option.opts[-1:], *option.secondary_opts]) == flags
    }
    assert len(sentences) > 1
    assert len(set(sentences.values())) == 1, sentences


@pytest.mark.parametrize("name", ["run", "sweep run", "tune run", "job submit", "predict memory"])
def test_a_command_with_many_options_lists_each_once_in_a_section(name: str) -> None:
    command = ALL[name]
    assert isinstance(command, SectionedCommand)
    page = command.get_help(click.Context(command, info_name=name, help_option_names=["-h", "--help"]))
    titles = re.findall(r"^(\w[\w ]+):$", page, re.MULTILINE)
    assert titles[-1] == "General" and len(titles) >= 3
    options_at = page.index(f"\n{titles[0]}:\n")  # behind the text and its examples
    shown = re.findall(r"^  (-\S+)", page[options_at:], re.MULTILINE)
    assert len(shown) == len(set(shown)) == len(options(command)) + 1  # --help is not a parameter of its own


def test_sections_share_the_width_of_their_first_column() -> None:
    formatter = click.HelpFormatter(width=60)
    write_sections(formatter, {"One": [("a", "First.")], "None": [], "Two": [("longer", "Second.")]})
    assert formatter.getvalue() == "One:\n  a       First.\n\nTwo:\n  longer  Second.\n"
