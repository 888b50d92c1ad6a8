"""Every command and every Python block of the documentation runs."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import pytest
from documentation import PAGES, ROOT, blocks, steps

from fairmile.cli.main import command_group, run
from fairmile.jobs.machines import Reach


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as a clone has it, with the examples of the documentation, and an empty home: here is where we are."""
    shutil.copytree(ROOT / "docs" / "examples", tmp_path / "work" / "docs" / "examples")
    (tmp_path / "user").mkdir()
    for name in [name for name in os.environ if name.startswith(("FAIRMILE", "XDG_CONFIG", "XDG_DATA", "XDG_STATE"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


def run_as_typed(command: str, capfd: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Run a command: in this process where it is nothing but our own, else in a shell. Return exit code and output."""
    words = shlex.shlex(command, posix=True, punctuation_chars=True)
    words.whitespace_split = True
    line = list(words)
    capfd.readouterr()
    is_plain = not any(set(word) <= set("();<>|&") for word in line) and "$" not in command
    if line[0] == "fairmile" and is_plain and line[1:3] != ["env", "shell"]:  # which becomes the shell
        code = run(line[1:])
    else:
        code = subprocess.run(["bash", "-c", command], check=False).returncode
    return code, "".join(capfd.readouterr())


# These show some of the same commands. They are followed in one folder, and each command runs for the first of them.
_TOGETHER = (("start.md", "README.md"), ("predict.md", "traces.md"))


def pages_with_commands() -> Iterator[Any]:
    pages = {page.name: page for page in PAGES if any(steps(block) for block in blocks(page, "console"))}
    alone = [(name,) for name in pages if not any(name in each for each in _TOGETHER)]
    for names in (*_TOGETHER, *alone):
        marks = [] if "start.md" in names else [pytest.mark.thorough]
        yield pytest.param([pages[name] for name in names], id="+".join(names), marks=marks)


@pytest.mark.parametrize("pages", pages_with_commands())
def test_every_command_of_a_page_succeeds_and_prints_what_the_page_shows(
    pages: list[Path], place: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    known: dict[str, tuple[int, str]] = {}
    for page in pages:
        ran: dict[str, tuple[int, str]] = {}
        for command, shown in (step for block in blocks(page, "console") for step in steps(block)):
            if not command.startswith(("make ", "git clone", "cd ", "pip install")):
                ran[command] = known.get(command) or run_as_typed(command, capfd)
                check_step(page, command, shown, *ran[command])
        known |= ran


def check_step(page: Path, command: str, shown: list[str], code: int, output: str) -> None:
    ends = re.search(r"  # exit code (\d+)$", command)
    assert code == (int(ends[1]) if ends else 0), f"{page.name}: {command}\n{output}"
    printed = iter(" ".join(line.split()) for line in output.splitlines())
    for line in shown:
        wanted = " ".join(line.split())
        if wanted != "…":
            assert any(_agrees(wanted, text) for text in printed), (
                f"{page.name}: {command} does not print {line!r}\n{output}"
            )


# What differs from one run to the next, and from one machine to the next.
_VARYING = {
    r"…": r".*",
    r"(?<=-)[a-z0-9]{6}\b(?=[:,./` -]|$)": r"[a-z0-9]{6}",  # the end of an id
    r"(?<=sha256 )[0-9a-f]{12}": r"[0-9a-f]{12}",
    r"\d{4}-\d\d-\d\d \d\d:\d\d": r"\d{4}-\d\d-\d\d \d\d:\d\d",
    r"\b[\d.]+ (?:µs|ms|s)\b": r"[\d.]+ (?:µs|ms|s|min|h)\b.*?",
    r"(?<![\w.])\d+\.\d+(?![\w.])": r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)",
}
_PIECE = re.compile("|".join(f"({each})" for each in _VARYING))
_CLOSE = 0.05  # of a number with a decimal point


def _agrees(wanted: str, text: str) -> bool:
    """Tell whether a shown line is a printed one: ids, times and dates may differ, and numbers a little."""
    pattern, numbers, at = "", [], 0
    for piece in _PIECE.finditer(wanted):
        pattern += re.escape(wanted[at : piece.start()]) + list(_VARYING.values())[(piece.lastindex or 1) - 1]
        numbers += [float(piece[0])] if piece.lastindex == len(_VARYING) else []
        at = piece.end()
    match = re.fullmatch(pattern + re.escape(wanted[at:]), text)
    return match is not None and all(
        math.isclose(number, float(printed), rel_tol=_CLOSE)
        for number, printed in zip(numbers, match.groups(), strict=True)
    )


@pytest.mark.parametrize(
    ("shown", "printed", "agrees"),
    [
        ("run train-fi8qdc: done in 2.89 s", "run train-a2b3c4: done in 911 ms", True),
        ("loss 0.0292 (read from its output)", "loss 0.0291 (read from its output)", True),
        ("loss 0.0292 (read from its output)", "loss 0.0392 (read from its output)", False),
        ("sweep train-mj2y2r: 9 done", "sweep train-mj2y2r: 8 done", False),
        ("code train.py sha256 4965b71032b2", "code train.py sha256 0123456789ab", True),
        ("wrote …", "wrote report.html", True),
    ],
)
def test_a_shown_line_stands_for_what_any_machine_prints(shown: str, printed: str, agrees: bool) -> None:
    assert _agrees(shown, printed) is agrees


# Every block for itself, in one process a page.
_RUN_BLOCKS = """
import json, sys
import fairmile
for number, block in enumerate(json.load(sys.stdin), 1):
    exec(compile(block, f"block {number}", "exec"), {"__name__": "__main__", "fm": fairmile})
"""


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.name, marks=[] if page.name == "start.md" else pytest.mark.thorough)
        for page in PAGES
        if blocks(page, "python")
    ],
)
def test_every_python_block_of_a_page_runs(page: Path, place: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _RUN_BLOCKS],
        input=json.dumps(blocks(page, "python")),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{page.name}:\n{done.stderr}"


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
    assert [name for name in names(command_group()) if f"fairmile {name}" not in text] == []


def test_every_setting_of_a_system_is_in_the_documentation() -> None:
    page = (ROOT / "docs" / "systems.md").read_text(encoding="utf-8")
    settings = {field.name for field in fields(Reach)} - {"is_here"}  # which is `host: here`
    assert {name for name in settings if f"`{name}`" not in page} == set()
