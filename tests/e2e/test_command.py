"""The real command in a process of its own: streams, signals, terminals, and what it imports."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fairmile import __version__

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
COMMAND = Path(sys.executable).parent / "fairmile"
HEAVY = ("pydantic", "rich", "ruamel", "license_expression", "pyoxigraph", "re2", "mlcroissant", "numpy")
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    shutil.copytree(EXAMPLES, tmp_path / "work")
    (tmp_path / "user").mkdir()
    return tmp_path / "work"


@pytest.fixture
def environ(place: Path) -> dict[str, str]:
    dropped = ("FAIRMILE", "XDG", "NO_COLOR", "COLUMNS", "LINES", "PYTHONIOENCODING", "LC_", "LANG")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(dropped)}
    home = {"HOME": str(place.parent / "user"), "FAIRMILE_HOME": str(place.parent / "home")}
    return {**kept, **home, "TERM": "xterm", "LC_ALL": "C.UTF-8"}


@pytest.fixture
def run(place: Path, environ: dict[str, str]) -> Run:
    def call(*arguments: Any, **more: Any) -> subprocess.CompletedProcess[str]:
        settings = {"capture_output": True, "text": True, "cwd": place, "env": environ, "check": False} | more
        if "stdout" in more:
            settings |= {"capture_output": False, "stderr": subprocess.PIPE}
        return subprocess.run([sys.executable, "-m", "fairmile", *arguments], **settings)

    return call


# The command


def test_the_installed_command_and_the_module_are_the_same(place: Path, environ: dict[str, str], run: Run) -> None:
    if not COMMAND.exists():
        pytest.skip("the package is not installed beside this Python")
    for arguments in (["--version"], ["show", "nosuch"]):
        done = subprocess.run([COMMAND, *arguments], capture_output=True, text=True, env=environ, check=False)
        module = run(*arguments)
        assert (done.returncode, done.stdout, done.stderr) == (module.returncode, module.stdout, module.stderr)


def test_the_version_is_told(run: Run) -> None:
    done = run("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"fairmile {__version__}\n", "")


def test_the_help_lists_every_command(run: Run) -> None:
    done = run("--help")
    assert done.returncode == 0
    assert re.findall(r"^  (\w+) +[A-Z]", done.stdout.partition("Commands:")[2], re.MULTILINE) == [
        "search",
        "show",
        "match",
        "catalog",
        "doctor",
    ]


def imported(run: Run, environ: dict[str, str], *arguments: str) -> set[str]:
    """Return the modules that a command imports, by Python's own list."""
    done = run(*arguments, env={**environ, "PYTHONPROFILEIMPORTTIME": "1"})
    assert done.returncode == 0
    modules = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "fairmile.cli.main" in modules
    return modules


def roots(modules: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


def test_the_version_imports_next_to_nothing(run: Run, environ: dict[str, str]) -> None:
    modules = imported(run, environ, "--version")
    assert not roots(modules) & {*HEAVY, "click", "sqlite3", "json", "dataclasses"}
    assert {name for name in modules if name.startswith("fairmile.")} == {"fairmile.cli", "fairmile.cli.main"}


def test_the_help_imports_no_command(run: Run, environ: dict[str, str]) -> None:
    modules = imported(run, environ, "--help")
    assert not roots(modules) & {*HEAVY, "sqlite3"}
    commands = {f"fairmile.cli.{name}" for name in ("search", "show", "match", "catalog", "doctor")}
    assert not modules & {*commands, "fairmile.workspace"}
    assert not any(name.startswith("fairmile.catalog") for name in modules)


def test_a_search_imports_nothing_heavy(run: Run, environ: dict[str, str]) -> None:
    assert run("search", "mnist").returncode == 0
    modules = imported(run, environ, "search", "mnist")
    assert "sqlite3" in modules
    assert not roots(modules) & set(HEAVY)
    assert not modules & {"importlib.metadata", "asyncio", "http.client", "ssl"}


# Streams


def test_a_reader_that_closes_the_pipe_is_no_error(run: Run) -> None:
    for arguments in (["--version"], ["--help"], ["search", "--limit", "1000"], ["search", "--json"]):
        reading, writing = os.pipe()
        os.close(reading)
        done = run(*arguments, stdout=writing)
        os.close(writing)
        assert (done.returncode, "error" in done.stderr, "Traceback" in done.stderr) == (0, False, False), done.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["search", "mnist"], ["search", "mnist", "--json"]])
def test_output_that_cannot_be_written_is_told(run: Run, arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = run(*arguments, stdout=full)
    assert done.returncode == 3
    assert done.stderr.startswith("error: the output cannot be written: ")
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_streams_do_no_harm(place: Path, environ: dict[str, str], closed: str) -> None:
    for arguments, code in (("--version", 0), ("search mnist", 0), ("show nosuch", 2)):
        line = f"{sys.executable} -m fairmile {arguments} {closed}"
        done = subprocess.run(["sh", "-c", line], cwd=place, env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == code
        assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_every_encoding_gets_text_and_valid_json(run: Run, environ: dict[str, str], encoding: str) -> None:
    settings = {**environ, "PYTHONIOENCODING": encoding}
    shown = run("match", "--model", "cosmoflow", env=settings, encoding=encoding)
    assert shown.returncode == 0
    assert f"cosmoflow@1.0  {'x' if encoding == 'ascii' else '×'}  builtin" in shown.stdout
    data = run("match", "--model", "cosmoflow", "--json", env=settings, encoding=encoding)
    assert any("×" in reason["text"] for match in json.loads(data.stdout)["matches"] for reason in match["reasons"])


def test_an_argument_that_is_no_text_is_told(run: Run) -> None:
    done = run("show", b"\xff\xfe", "--json")
    assert done.returncode == 2
    assert "udcff" in json.loads(done.stdout)["error"]["message"]
    assert run("catalog", "check", b"\xff.json").returncode == 2
    assert run("search", b"\xff").returncode == 0


def test_data_and_talk_go_apart(run: Run) -> None:
    done = run("search", "erthquake", "--json")
    assert json.loads(done.stdout)["did_you_mean"] == ["earthquake"]
    assert done.stderr == ""
    done = run("show", "nosuch", "--json")
    assert json.loads(done.stdout)["error"]["exit_code"] == done.returncode == 2
    assert done.stderr.startswith("error: ")


# Signals


def test_an_interruption_ends_with_130_and_no_traceback(place: Path, environ: dict[str, str]) -> None:
    pipe = place / "pipe.json"
    os.mkfifo(pipe)
    arguments = [sys.executable, "-m", "fairmile", "catalog", "add", "pipe.json"]
    process = subprocess.Popen(
        arguments, cwd=place, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    # Opening waits until the command has opened the other end: from then on it waits for data.
    with open(pipe, "wb"):
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "interrupted\n")


# Terminals


class Session:
    """What a command shows at a terminal."""

    def __init__(self, argv: list[str], columns: int, **settings: Any) -> None:
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        process = subprocess.Popen(argv, stdin=slave, stdout=slave, stderr=slave, **settings)
        os.close(slave)
        data = b""
        while True:
            try:
                piece = os.read(master, 65536)
            except OSError:  # the last process at the terminal has left
                break
            if not piece:
                break
            data += piece
        os.close(master)
        self.code = process.wait(timeout=60)
        self.text = data.decode().replace("\r\n", "\n")

    @property
    def plain(self) -> str:
        return re.sub(r"\033\[\d*[mK]", "", self.text)


@pytest.fixture
def terminal(place: Path, environ: dict[str, str]) -> Callable[..., Session]:
    def call(*arguments: str, columns: int = 80, **more: str) -> Session:
        argv = [sys.executable, "-m", "fairmile", *arguments]
        return Session(argv, columns, cwd=place, env={**environ, **more})

    return call


def fill(home: Path, count: int) -> None:
    for number in range(count):
        folder = home / "catalog" / "cards" / "dataset" / f"sample-{number}"
        folder.mkdir(parents=True)
        card = {
            "@context": "https://w3id.org/fairmile/card/1.0/context",
            "@id": f"https://data.example.org/{number}",
            "@type": "Dataset",
            "name": f"sample-{number}",
            "version": "1.0",
        }
        (folder / "1.0.jsonld").write_text(json.dumps(card))


def test_a_terminal_sees_colour_and_progress(terminal: Callable[..., Session], place: Path) -> None:
    fill(place.parent / "home", 600)
    session = terminal("search", "sample-7")
    assert session.code == 0
    assert "\033[1mkind" in session.text
    assert re.search(r"\[█*░*\] [\d,]+ of [\d,]+ ", session.text)
    # The bar is wiped before the table begins.
    assert session.text.rpartition("\r\033[K")[2].startswith("\033[1mkind")
    again = terminal("search", "sample-7")
    assert "█" not in again.text
    assert "sample-7@1.0" in again.text


@pytest.mark.parametrize("setting", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_a_terminal_without_colour_sees_none(terminal: Callable[..., Session], setting: dict[str, str]) -> None:
    assert "\033[" not in terminal("search", "mnist", **setting).text


@pytest.mark.parametrize("columns", [80, 60, 132])
def test_a_list_fits_the_terminal(terminal: Callable[..., Session], columns: int) -> None:
    lines = terminal("search", "mnist", columns=columns).plain.splitlines()
    assert any("mnist@1.0" in line for line in lines)
    assert max(map(len, lines)) <= columns


def test_a_pipe_sees_neither_colour_nor_progress_nor_cuts(run: Run, place: Path) -> None:
    fill(place.parent / "home", 600)
    done = run("search", "cosmology", "kind:model")
    assert "\033" not in done.stdout + done.stderr
    assert "█" not in done.stderr
    assert "…" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) > 100


def test_an_error_at_a_terminal_is_the_same_sentence(terminal: Callable[..., Session]) -> None:
    session = terminal("show", "nosuch")
    assert session.code == 2
    assert session.plain.lstrip("\r").startswith("error: no asset named 'nosuch' in the catalog\n  hint: ")


def test_at_a_terminal_an_interruption_leaves_a_clean_line(place: Path, environ: dict[str, str]) -> None:
    os.mkfifo(place / "pipe.json")
    # The shell's Ctrl-C: a second process opens the pipe, which waits for the first, and interrupts it.
    script = f"{sys.executable} -m fairmile catalog add pipe.json & exec 3>pipe.json; kill -INT $!; wait $!; exit $?"
    session = Session(["bash", "-mc", script], 80, cwd=place, env=environ)
    assert session.code == 130
    assert "interrupted" in session.plain
    assert "Traceback" not in session.plain
