"""Every command and every Python block of the documentation runs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import click
import pytest

from fairmile.cli.main import _group
from fairmile.jobs.machines import Reach

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str) -> list[str]:
    return [body for name, body in _BLOCK.findall(page.read_text(encoding="utf-8")) if name == language]


def steps(block: str) -> list[tuple[str, list[str]]]:
    """Split a console block into commands and the output lines shown under each."""
    found: list[tuple[str, list[str]]] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif found and line.strip():
            found[-1][1].append(line.strip())
    return found


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder as a clone has it, with the examples of the documentation, and an empty home."""
    shutil.copytree(ROOT / "docs" / "examples", tmp_path / "work" / "docs" / "examples")
    return tmp_path / "work"


def environment(place: Path) -> dict[str, str]:
    home = place.parent / "user"
    home.mkdir(exist_ok=True)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("FAIRMILE", "XDG"))}
    return {**kept, "HOME": str(home), "PATH": path, "NO_COLOR": "1"}


PAGES_WITH_COMMANDS = [page for page in PAGES if any(steps(block) for block in blocks(page, "console"))]


@pytest.mark.parametrize("page", PAGES_WITH_COMMANDS, ids=lambda page: page.name)
def test_every_command_of_a_page_succeeds_and_prints_what_the_page_shows(page: Path, place: Path) -> None:
    for block in blocks(page, "console"):
        for command, shown in steps(block):
            if command.startswith(("make ", "git clone", "cd ", "pip install")):
                continue
            done = subprocess.run(
                ["bash", "-c", command], cwd=place, env=environment(place), capture_output=True, text=True, check=False
            )
            ends = re.search(r"  # exit code (\d+)$", command)
            code = int(ends[1]) if ends else 0
            assert done.returncode == code, f"{page.name}: {command}\n{done.stdout}{done.stderr}"
            printed = iter(" ".join(line.split()) for line in (done.stdout + done.stderr).splitlines())
            for line in shown:
                wanted = " ".join(line.split())
                if wanted != "…":
                    assert any(_agrees(wanted, text) for text in printed), (
                        f"{page.name}: {command} does not print {line!r}"
                    )


def _agrees(wanted: str, text: str) -> bool:
    """In a shown line, … stands for whatever is there."""
    pattern = ".*".join(re.escape(part.strip()) for part in wanted.split("…"))
    return re.fullmatch(pattern, text) is not None


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=lambda page: page.name)
def test_every_python_block_of_a_page_runs(page: Path, place: Path) -> None:
    for block in blocks(page, "python"):
        program = block if "import fairmile" in block or "from fairmile" in block else f"import fairmile as fm\n{block}"
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=place,
            env=environment(place),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{page.name}:\n{block}\n{done.stderr}"


def test_every_public_name_is_on_the_python_page() -> None:
    import fairmile

    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    missing = [name for name in fairmile.__all__ if f"`fm.{name}" not in page]
    assert not missing


def names(group: click.Group, path: str = "") -> Iterator[str]:
    """Return every command below a group, as it is typed."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from names(command, f"{path}{name} ")
        else:
            yield f"{path}{name}"


def test_every_command_is_in_the_documentation() -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert [name for name in names(_group()) if f"fairmile {name}" not in text] == []


def test_every_setting_of_a_system_is_in_the_documentation() -> None:
    page = (ROOT / "docs" / "systems.md").read_text(encoding="utf-8")
    assert [field.name for field in fields(Reach) if f"`{field.name}`" not in page] == []
