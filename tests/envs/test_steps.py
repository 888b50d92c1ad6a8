"""The tools that a step is given: commands in a shell where what came before is loaded."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fairmile.base.commands import Here
from fairmile.base.errors import NotFound, SystemFailure
from fairmile.envs.shells import Assign, ModuleLine
from fairmile.envs.steps import KINDS, Tools


@pytest.fixture
def make_tools(tmp_path: Path) -> Callable[..., Tools]:
    def bring(address: str, sha256: str | None) -> Path:
        raise AssertionError("nothing is fetched here")

    def unpack(archive: Path, folder: Path) -> None:
        raise AssertionError("nothing is unpacked here")

    def make(**given: object) -> Tools:
        return Tools(Here(), bring, unpack, tmp_path, tmp_path, os.environ, **given)  # type: ignore[arg-type]

    return make


def test_a_command_sees_what_came_before_and_its_words_stay_whole(make_tools: Callable[..., Tools]) -> None:
    tools = make_tools(acts=(Assign("A", "x y"),))
    assert tools.run(["printf", "%s|", "a b", "$A", "'"]).stdout == "a b|$A|'|"
    assert tools.run(["sh", "-c", "echo $A"]).stdout == "x y\n"


def test_every_line_is_told_with_the_command_before_it(make_tools: Callable[..., Tools]) -> None:
    lines: list[str] = []
    make_tools(on_line=lines.append).run(["sh", "-c", "echo one; echo two >&2"])
    assert lines[0] == "$ sh -c 'echo one; echo two >&2'"
    assert sorted(lines[1:]) == ["one", "two"]


def test_a_failure_names_the_command_and_its_last_lines(make_tools: Callable[..., Tools]) -> None:
    with pytest.raises(SystemFailure, match=r"`sh -c .*` ended with exit code 4:\nwhy"):
        make_tools().run(["sh", "-c", "echo why; exit 4"])


def test_a_module_line_that_fails_ends_the_command_before_it_starts(make_tools: Callable[..., Tools]) -> None:
    tools = make_tools(acts=(ModuleLine("module load no-such-module/0"),))
    done = tools.run(["echo", "started"], check=False)
    assert done.exit_code == 3
    assert "started" not in done.stdout


def test_what_is_built_for_a_group_can_be_written_by_it(make_tools: Callable[..., Tools]) -> None:
    assert make_tools(umask=0o002).run(["sh", "-c", "umask"]).stdout.strip() == "0002"


def test_every_part_of_a_specification_has_its_steps() -> None:
    assert KINDS.names() == ["modules", "conda", "python", "builds", "container"]
    with pytest.raises(NotFound, match="did you mean 'python'"):
        KINDS["pyhton"]
