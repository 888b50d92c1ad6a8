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
import time
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
    # Switches of Python too: unbuffered output, say, would hide what a buffer does at the end.
    dropped = ("FAIRMILE", "XDG", "NO_COLOR", "COLUMNS", "LINES", "PYTHON", "LC_", "LANG")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(dropped) or key == "PYTHONPATH"}
    home = {"HOME": str(place.parent / "user"), "FAIRMILE_HOME": str(place.parent / "home")}
    return {**kept, **home, "TERM": "xterm", "LC_ALL": "C.UTF-8"}


@pytest.fixture
def run(place: Path, environ: dict[str, str]) -> Run:
    def call(*arguments: Any, **more: Any) -> subprocess.CompletedProcess[str]:
        settings: dict[str, Any] = {"capture_output": True, "text": True, "cwd": place, "env": environ, **more}
        if "stdout" in more:
            settings |= {"capture_output": False, "stderr": subprocess.PIPE}
        return subprocess.run([sys.executable, "-m", "fairmile", *arguments], check=False, **settings)

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
    assert re.findall(r"^  ([a-z]+) +[A-Z]", done.stdout.partition("Run:")[2], re.MULTILINE) == [
        "run",
        "rerun",
        "sweep",
        "tune",
        "flow",
        "status",
        "compare",
        "report",
        "runs",
        "serve",
        "search",
        "show",
        "match",
        "fetch",
        "catalog",
        "model",
        "store",
        "predict",
        "trace",
        "watch",
        "benchmark",
        "job",
        "system",
        "env",
        "login",
        "logout",
        "access",
        "doctor",
        "course",
        "completion",
        "trust",
        "compat",
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
    ours = {"fairmile.base", "fairmile.base.garbage", "fairmile.base.version", "fairmile.cli", "fairmile.cli.main"}
    assert {name for name in modules if name.startswith("fairmile.")} == ours


def test_the_help_imports_no_command(run: Run, environ: dict[str, str]) -> None:
    modules = imported(run, environ, "--help")
    assert not roots(modules) & {*HEAVY, "sqlite3"}
    commands = {
        f"fairmile.cli.{name}" for name in ("search", "show", "match", "catalog", "system", "env", "job", "doctor")
    }
    assert not modules & {*commands, "fairmile.workspace"}
    parts = ("catalog", "systems", "envs", "jobs")
    assert not any(name.startswith(tuple(f"fairmile.{part}" for part in parts)) for name in modules)


def test_a_search_imports_nothing_heavy(run: Run, environ: dict[str, str]) -> None:
    assert run("search", "mnist").returncode == 0
    modules = imported(run, environ, "search", "mnist")
    assert "sqlite3" in modules
    assert not roots(modules) & set(HEAVY)
    assert not modules & {"importlib.metadata", "asyncio", "http.client", "ssl"}


def test_looking_at_runs_imports_nothing_that_checks_specifications(run: Run, environ: dict[str, str]) -> None:
    id = run("run", "--json", "--", "true")
    assert id.returncode == 0, id.stderr
    for arguments in (("runs", "ls"), ("status",), ("runs", "show", json.loads(id.stdout)["id"])):
        assert not roots(imported(run, environ, *arguments)) & {*HEAVY, "packaging"}, arguments
    modules = imported(run, environ, "run", "--again", "--", "true")
    assert not {name for name in modules if name.startswith(("fairmile.envs.", "fairmile.store.objects", "packaging"))}


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
    assert done.stderr.startswith("error: cannot write the output: ")
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
@pytest.mark.thorough
def test_closed_streams_do_no_harm(place: Path, environ: dict[str, str], closed: str) -> None:
    for arguments, code in (("--version", 0), ("search mnist", 0), ("show nosuch", 2)):
        line = f"{sys.executable} -m fairmile {arguments} {closed}"
        done = subprocess.run(["sh", "-c", line], cwd=place, env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == code
        assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
@pytest.mark.thorough
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


# Terminals and signals


# Whoever starts the tests may ignore interruptions, and children inherit that. Opening the terminal makes it
# the one whose Ctrl-C reaches the command.
START = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
if os.isatty(0):
    os.close(os.open(os.ttyname(0), os.O_RDWR))
os.execv(sys.executable, [sys.executable, "-m", "fairmile", *sys.argv[1:]])
"""


class Session:
    """A command at a terminal, and what it shows."""

    def __init__(self, *arguments: str, columns: int, **settings: Any) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        argv = [sys.executable, "-c", START, *arguments]
        streams: dict[str, Any] = {"stdin": slave, "stdout": slave, "stderr": slave}
        self._process = subprocess.Popen(argv, start_new_session=True, **streams, **settings)
        os.close(slave)

    def type(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def end(self) -> tuple[int, str]:
        """Return the exit code and all that was shown."""
        data = b""
        while True:
            try:
                piece = os.read(self._master, 65536)
            except OSError:  # the last process at the terminal has left
                break
            if not piece:
                break
            data += piece
        os.close(self._master)
        return self._process.wait(timeout=60), data.decode().replace("\r\n", "\n")


def plain(text: str) -> str:
    return re.sub(r"\033\[\d*[mK]", "", text)


@pytest.fixture
def terminal(place: Path, environ: dict[str, str]) -> Callable[..., Session]:
    def start(*arguments: str, columns: int = 80, **more: str) -> Session:
        return Session(*arguments, columns=columns, cwd=place, env={**environ, **more})

    return start


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
    code, shown = terminal("search", "sample-7").end()
    assert code == 0
    assert "\033[1mkind" in shown
    assert re.search(r"\[█*░*\] [\d,]+ of [\d,]+ ", shown)
    # The bar is wiped before the table begins.
    assert shown.rpartition("\r\033[K")[2].startswith("\033[1mkind")
    code, again = terminal("search", "sample-7").end()
    assert code == 0
    assert "█" not in again
    assert "sample-7@1.0" in again


@pytest.mark.parametrize("setting", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=["NO_COLOR", "TERM=dumb"])
@pytest.mark.thorough
def test_a_terminal_without_colour_sees_none(terminal: Callable[..., Session], setting: dict[str, str]) -> None:
    code, shown = terminal("search", "mnist", **setting).end()
    assert code == 0
    assert "mnist@1.0" in shown
    assert "\033[" not in shown


@pytest.mark.parametrize("columns", [132, 80, 60])
@pytest.mark.thorough
def test_a_list_fits_the_terminal(terminal: Callable[..., Session], columns: int) -> None:
    code, shown = terminal("search", "mnist", columns=columns).end()
    lines = plain(shown).splitlines()
    assert code == 0
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
    code, shown = terminal("show", "nosuch").end()
    assert code == 2
    assert (
        plain(shown).lstrip("\r").startswith("error: 'nosuch' is not a file here or an asset of the catalog\n  hint: ")
    )


def test_ctrl_c_ends_with_130_and_a_clean_line(terminal: Callable[..., Session], place: Path) -> None:
    os.mkfifo(place / "pipe.json")
    session = terminal("catalog", "add", "pipe.json")
    # Opening waits until the command has opened the other end: from then on it waits for data.
    with open(place / "pipe.json", "wb"):
        time.sleep(1)  # until it waits in the read itself; a signal just before that is seen only after it
        session.type(b"\x03")
        code, shown = session.end()
    assert code == 130
    assert plain(shown).replace("^C", "").strip("\r\n") == "interrupted"


def test_an_interruption_elsewhere_ends_with_130_and_one_word(place: Path, environ: dict[str, str]) -> None:
    os.mkfifo(place / "pipe.json")
    argv = [sys.executable, "-c", START, "catalog", "add", "pipe.json", "--json"]
    settings: dict[str, Any] = {"cwd": place, "env": environ, "stdin": subprocess.DEVNULL, "text": True}
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **settings)
    with open(place / "pipe.json", "wb"):
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "interrupted\n")
    assert not list((place.parent / "home").rglob("*.jsonld"))
