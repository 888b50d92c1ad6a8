"""Groups that import a command when it is called."""

from __future__ import annotations

import os

import click
import pytest
from cases import for_each

from fairmile.cli.lazy import LazyGroup
from fairmile.cli.main import COMMANDS, Entry, command_group

ENTRIES = {
    "there": Entry("fairmile.cli.doctor", "doctor", "Is there."),
    "nowhere": Entry("fairmile.cli.nowhere", "nowhere", "Cannot be imported."),
}


@pytest.fixture
def group() -> LazyGroup:
    return LazyGroup("tool", entries=ENTRIES)


def context(group: LazyGroup) -> click.Context:
    return click.Context(group, info_name="tool")


def test_commands_are_listed_without_being_imported(group: LazyGroup) -> None:
    page = group.get_help(context(group))
    assert "Is there." in page
    assert "Cannot be imported." in page


def test_commands_are_listed_in_the_order_of_the_table(group: LazyGroup) -> None:
    @group.command()
    def added() -> None:
        """Comes last."""

    @group.command()
    def about() -> None:
        """Comes after that."""

    assert group.list_commands(context(group)) == ["there", "nowhere", "added", "about"]


def test_a_command_is_imported_when_it_is_called(group: LazyGroup) -> None:
    assert isinstance(group.get_command(context(group), "there"), click.Command)
    with pytest.raises(ModuleNotFoundError, match=r"fairmile\.cli\.nowhere"):
        group.get_command(context(group), "nowhere")


def test_nothing_of_an_import_stays_in_the_environment_of_programs(group: LazyGroup) -> None:
    before = dict(os.environ)
    group.get_command(context(group), "there")
    assert dict(os.environ) == before


def test_an_unknown_word_brings_the_nearest(group: LazyGroup) -> None:
    with pytest.raises(click.UsageError, match=r"no command named 'thre'; did you mean 'there'\?"):
        group.resolve_command(context(group), ["thre"])


def test_a_word_near_to_none_brings_all(group: LazyGroup) -> None:
    with pytest.raises(click.UsageError, match="no command named 'xyz'; commands: there, nowhere"):
        group.resolve_command(context(group), ["xyz"])


def test_no_summary_is_cut(group: LazyGroup) -> None:
    words = "A summary that is longer than a line of eighty characters and still must be shown to its very end"

    @group.command(help=words)
    def long() -> None: ...

    page = " ".join(group.get_help(context(group)).split())
    assert words in page
    assert "..." not in page.partition("Commands:")[2]


def test_a_group_without_a_command_shows_its_help_and_fails(
    group: LazyGroup, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(click.exceptions.Exit) as end:
        group.make_context("tool", [])
    captured = capsys.readouterr()
    assert end.value.exit_code == 2
    assert captured.out == ""
    assert "Usage: tool" in captured.err


def test_the_first_page_lists_every_command_in_a_section() -> None:
    page = command_group().get_help(click.Context(command_group(), info_name="fairmile"))
    assert "\nCommands:\n" not in page  # where those without a section would be
    assert [name for name in COMMANDS if f"\n  {name} " not in page] == []


@for_each("name", COMMANDS)
def test_every_entry_of_the_table_leads_to_its_command(name: str) -> None:
    group = LazyGroup("fairmile", entries=COMMANDS)
    command = group.get_command(context(group), name)
    assert isinstance(command, click.Command)
    assert command.name == name
