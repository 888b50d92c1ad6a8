"""Every Python name that the documentation mentions exists, and every usage line tells what may be left out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from documentation import PAGES

import fairmile
from fairmile.cli.main import command_group
from fairmile.workspace import Workspace

_PATH = re.compile(r"\bfm((?:\.[A-Za-z_]\w*)+)")


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    folder = tmp_path_factory.mktemp("names")
    return Workspace.open(environ={"HOME": str(folder), "FAIRMILE_HOME": str(folder)}, cwd=folder)


def real(workspace: Workspace, path: list[str]) -> bool:
    """Tell whether a name of `fm` exists, and a second one below it."""
    if path[0] not in fairmile.__all__ and path[0] != "__version__":
        return False
    owner = getattr(workspace, path[0]) if hasattr(workspace, path[0]) else getattr(fairmile, path[0])
    fields = getattr(owner, "model_fields", {})
    return len(path) < 2 or hasattr(owner, path[1]) or path[1] in fields


def named(page: Path) -> Iterator[list[str]]:
    """Yield the names that a page mentions, as `fm.noun.method`."""
    for match in _PATH.finditer(page.read_text(encoding="utf-8")):
        yield match[1].split(".")[1:3]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_python_name_exists(page: Path, workspace: Workspace) -> None:
    assert [".".join(["fm", *path]) for path in named(page) if not real(workspace, path)] == []


def commands(group: click.Group, path: str = "fairmile") -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield f"{path} {name}", command
        if isinstance(command, click.Group):
            yield from commands(command, f"{path} {name}")


def test_usage_lines_put_in_brackets_what_may_be_left_out() -> None:
    wrong = []
    for name, command in commands(command_group()):
        for each in command.params:
            if isinstance(each, click.Argument):
                shown = each.make_metavar(click.Context(command))
                if shown.startswith("[") == each.required:
                    wrong.append(f"{name} {shown}: {'required' if each.required else 'optional'}")
    assert wrong == []
