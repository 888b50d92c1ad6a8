"""The command line as a whole: exit codes, errors, help, and `--json` everywhere."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from cases import for_each
from documentation import shown_commands

from fairmile import __version__
from fairmile.catalog import OWN_IDS
from fairmile.cli.main import _dial_ahead, command_group, run
from fairmile.transfer.ahead import taken
from fairmile.workspace import Workspace

# A card with a file that every machine has, in the store.
STOCKED = [
    """catalog update lake-temperatures --set 'distribution=[{"name":"lake.csv","contentUrl":"file:///etc/passwd"}]'""",
    "fetch lake-temperatures",
]
BUILT = ["env build tides.yaml"]
RUN = ["job submit --name tides --output-file level.txt --wait -- sh -c 'echo 2.5 > level.txt'"]
RECORDED = [
    f"run --name {name} --again --metric 'loss=(.+)' -- echo 0.{n}" for name in ("surge", "tides") for n in (1, 2)
]
TRACED = ["trace record --skip 2 --steps 5 -o first -- python train.py"]
SWEPT = ["sweep --name rates -p n=1,2 --every 0 -- echo {n}"]
FLOWN = ["flow run tide-flow.yaml"]
STUDIED = ["tune tide-study.yaml --trials 1"]
# A plain script, which the examples of `run`, `sweep` and `tune` start.
SCRIPT = """\
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--seed", type=int, default=0)
print("loss:", parser.parse_args().lr)
"""
# What must have happened before the example of a command can be typed.
BEFORE = {
    "catalog rm": ["catalog update lake-temperatures --set version=1.1"],
    "catalog source rm": ["catalog source add group ./shared-cards"],
    "store verify": STOCKED,
    "store pin": STOCKED,
    "store unpin": [*STOCKED, "store pin lake-temperatures --as paper-2026"],
    "store push": STOCKED,
    "store pull": [*STOCKED, "store push lake-temperatures ./usb-disk"],
    "store pool rm": ["store pool add scratch ./scratch"],
    "system rm": ["system add my-cluster.yaml"],
    **{f"env {name}": BUILT for name in ("show", "verify", "repair", "rm", "shell", "export", "kernel")},
    **{f"job {name}": RUN for name in ("show", "log", "wait", "cancel", "bring", "rm")},
    **{f"runs {name}": RECORDED for name in ("show", "log", "cancel", "rm", "pack", "unpack", "export")},
    **dict.fromkeys(("rerun", "compare", "report"), RECORDED),
    **{f"trace {name}": TRACED for name in ("analyze", "replay", "export")},
    **{f"sweep {name}": SWEPT for name in ("show", "cancel", "rm")},
    **{f"flow {name}": FLOWN for name in ("status", "log", "watch")},
    **{f"tune {name}": STUDIED for name in ("show", "stop")},
    "benchmark compare": ["run qsvr -p splits=2 -p seeds=2 -p rows=12 -p reads=4 -p sweeps=10"],
    "benchmark ensemble": ["sweep waves.py --seed 1,2"],
    "benchmark submit": ["run --name cosmoflow -- cat cosmoflow-mllog.txt"],
    "course check": ["course start course 1"],
    "runs import": [*RECORDED, "runs export last -o tides.crate.zip"],
    "runs project": [f"run --name tides -p epochs={n} -- sleep 0.{{epochs}}" for n in (1, 2, 3)],
}


@pytest.fixture(autouse=True)
def _activated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The `python` of the examples is the one that has fairmile, as in an activated environment."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


ALL = dict(commands(command_group()))


def examples(command: click.Command) -> list[str]:
    return re.findall(r"^ +fairmile (.+)$", (command.help or "").partition("Example")[2], re.MULTILINE)


# Until it is interrupted, with accounts or with Slurm's accounting: others test their examples.
SERVING = {name for name in ALL if name.startswith(("access ", "login", "logout", "serve", "system usage"))}


def stories() -> dict[str, list[str]]:
    """Return the commands that one preparation serves; what removes comes last."""
    prepared: dict[str, list[str]] = {}
    names = [name for name in ALL if name not in SERVING]
    for name in sorted(names, key=lambda name: name.endswith((" rm", " stop", " cancel", " unpack"))):
        shared = BEFORE.get(name) in (BUILT, RUN, RECORDED, TRACED, SWEPT, STUDIED)
        prepared.setdefault(BEFORE[name][-1] if shared else name, []).append(name)
    return {names[0]: names for names in prepared.values()}


# Tests of these parts show them at work, too, and they take long: what a page of the documentation runs is left to it.
LONG = ("predict", "trace", "benchmark", "tune")
# What needs a service, or minutes; other tests run these.
ELSEWHERE = re.compile(r"--hub|--upload|--counters|^course build [a-z]+$|^course check (?!.*--dry-run)")


def to_run(names: list[str]) -> list[tuple[str, list[str]]]:
    """Return the lines to type for commands, each with its command."""
    elsewhere = shown_commands() | {line for lines in BEFORE.values() for line in lines}
    lines = [
        (name, line)
        for name in names
        for line in [each for each in examples(ALL[name]) if not ELSEWHERE.search(each)] or [name]
        if not (name.startswith(LONG) and line.removesuffix(" --json") in elsewhere)
    ]
    return [(name, shlex.split(line)) for name, line in lines]


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(names, id=first, marks=[pytest.mark.thorough] if first.startswith(LONG) else [])
        for first, names in stories().items()
    ],
)
def test_every_example_of_the_help_works_and_prints_valid_json(
    lake: Callable[..., Any], place: Path, names: list[str]
) -> None:
    if not names[0].startswith("trace"):
        (place / "train.py").write_text(SCRIPT)
    if names[0] == "catalog convert":
        (place / "tide.csv").write_text("hour,level\n0,2.5\n1,2.75\n")
    lines = to_run(names)
    for line in BEFORE.get(names[0], ()) if lines else ():
        assert lake(*shlex.split(line)).code == 0
    for name, words in lines:
        at = len(name.split()) if words[: len(name.split())] == name.split() else 1  # `sweep` is `sweep run`
        result = lake(*words[:at], "--json", *words[at:])
        assert result.code == 0, f"fairmile {shlex.join(words)}\n{result.err}"
        assert isinstance(result.json, dict), words
        assert "error" not in result.json, words


@for_each("name", ALL)
def test_every_command_prints_its_usage_errors_as_json_too(fairmile: Callable[..., Any], name: str) -> None:
    result = fairmile(*name.split(), "--zzz", "--json")
    assert result.code == 2
    assert result.json["error"]["message"] == "no such option '--zzz'"
    assert result.json["error"]["exit_code"] == 2
    assert result.err.startswith("error: no such option '--zzz'\n  hint: ")


@for_each("name", ALL)
def test_every_command_has_a_help_page(fairmile: Callable[..., Any], name: str) -> None:
    result = fairmile(*name.split(), "--help")
    assert result.code == 0
    assert result.out.startswith(f"Usage: fairmile {name}")
    assert "--json" in result.out
    assert result.err == ""
    # A command to be copied must not be folded; everything else fits.
    prose = [line for line in result.out.splitlines() if not line.startswith("    fairmile ")]
    assert max(map(len, prose)) <= 80


@for_each("name", [name for name, command in ALL.items() if command.params[1:]])
def test_every_command_that_takes_something_shows_an_example(name: str) -> None:
    assert examples(ALL[name])


def test_the_examples_of_the_first_page_work(lake: Callable[..., Any], place: Path) -> None:
    (place / "train.py").write_text(SCRIPT)
    found = examples(command_group())
    assert len(found) == 5
    for line in found:
        assert lake(*shlex.split(line)).code == 0


def test_the_version_is_told(fairmile: Callable[..., Any]) -> None:
    for option in ("--version", "-V"):
        assert fairmile(option) == (0, f"fairmile {__version__}\n", "")


def test_without_a_command_the_help_goes_to_stderr_and_the_call_fails(fairmile: Callable[..., Any]) -> None:
    for arguments in ((), ("catalog",), ("catalog", "source")):
        result = fairmile(*arguments)
        assert result.code == 2
        assert result.out == ""
        assert result.err.startswith("Usage: fairmile")


@pytest.mark.parametrize(
    "line, message",
    [
        ("serach", "no command named 'serach'; did you mean 'search'?"),
        ("catalog chek", "no command named 'chek'; did you mean 'check'?"),
        ("catalog source list", "no command named 'list'; did you mean 'ls'?"),
        ("runs delete x", "no command named 'delete'; did you mean 'rm'?"),
        ("benchmark run mnist", "no command named 'run'; did you mean `fairmile run mnist`?"),
        ("runs status", "no command named 'status'; did you mean `fairmile status`?"),
        ("help run", "no command named 'help'; did you mean `fairmile run --help`?"),
        ("runs help", "no command named 'help'; did you mean `fairmile runs --help`?"),
        ("version", "no command named 'version'; did you mean `fairmile --version`?"),
        ("list", "no command named 'list'; did you mean `fairmile runs ls`?"),
        ("logs last", "no command named 'logs'; did you mean `fairmile runs log last`?"),
        ("download mnist", "no command named 'download'; did you mean 'fetch'?"),
        ("train.py", "no command named 'train.py'; did you mean `fairmile run train.py`?"),
        ("python train.py", "no command named 'python'; did you mean `fairmile run python train.py`?"),
        ("catalog source frobnicate", "no command named 'frobnicate'; commands: add, ls, rm"),
        ("search --limt 3", "no such option '--limt'; did you mean '--limit'?"),
        ("search -x", "no such option '-x'"),
        ("runs ls --sort lr", "no such option '--sort'"),
        ("--json search", "no such option '--json'"),
    ],
)
def test_a_wrong_word_is_one_sentence_with_a_hint(fairmile: Callable[..., Any], line: str, message: str) -> None:
    result = fairmile(*line.split())
    assert result.code == 2
    first, second, *rest = result.err.splitlines()
    assert first == f"error: {message}"
    assert second.startswith("  hint: ")
    assert rest == []


def test_an_option_of_a_program_before_it_is_answered_with_where_it_goes(fairmile: Callable[..., Any]) -> None:
    result = fairmile("run", "--lr", "0.1", "train.py")
    assert result.err.splitlines() == [
        "error: no such option '--lr'",
        "  hint: `-p lr=…` sets a parameter of an asset; a program's go after it: `fairmile run train.py --lr …`",
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("run mnist epochs=1", "no data set is named 'epochs=1'"),
        ("run mnist epochs=1 seed=2", "got unexpected extra argument (seed=2)"),
    ],
)
def test_a_parameter_without_its_option_is_answered_with_it(
    fairmile: Callable[..., Any], line: str, message: str
) -> None:
    result = fairmile(*line.split())
    last = line.split()[-1]
    assert result.err.splitlines() == [f"error: {message}", f"  hint: `-p {last}` sets a parameter"]


@pytest.mark.parametrize("verb", ["run", "sweep"])
def test_a_mistyped_program_is_answered_with_the_nearest(fairmile: Callable[..., Any], place: Path, verb: str) -> None:
    (place / "train.py").write_text("import sys; print(sys.argv)")
    result = fairmile(verb, "trian.py", "--lr", "0.1,0.2")
    assert result.code == 2
    assert result.err.splitlines() == ["error: no such file: trian.py", "  hint: did you mean train.py?"]


# Here the sentence is the parser's own; ours to see to are its form and that it names what is wrong.
@pytest.mark.parametrize(
    "line, named",
    [
        ("search --limit 0", "--limit"),
        ("search --limit 10001", "10001"),
        ("search --limit -1", "-1"),
        ("search --limit many", "many"),
        ("search --limit", "--limit"),
        ("match --limit 1001", "1001"),
        ("show", "NAME"),
        ("show a b", "(b)"),
        ("show mnist --view nosuch", "nosuch"),
        ("catalog export mnist", "--to"),
        ("catalog add", "FILE|URL..."),
        ("catalog publish lake.jsonld", "lake.jsonld"),
        ("catalog source add group . --type cloud", "cloud"),
    ],
)
def test_a_wrong_value_is_one_sentence_with_a_hint(fairmile: Callable[..., Any], line: str, named: str) -> None:
    result = fairmile(*line.split())
    assert result.code == 2
    first, second, *rest = result.err.splitlines()
    assert first.startswith("error: ")
    assert first[7].islower()
    assert not first.endswith(".")
    assert named in first
    assert second.startswith("  hint: ")
    assert rest == []


def test_an_option_before_the_command_is_told_where_it_belongs(fairmile: Callable[..., Any]) -> None:
    assert "`fairmile COMMAND --json`" in fairmile("--json", "search").err


def test_an_error_shows_no_traceback_unless_asked(fairmile: Callable[..., Any]) -> None:
    assert "Traceback" not in fairmile("show", "nosuch").err
    result = fairmile("show", "nosuch", "--debug")
    assert result.code == 2
    assert "Traceback (most recent call last)" in result.err
    assert result.err.splitlines()[-2] == "error: 'nosuch' is not a file here or an asset of the catalog"


def test_behind_two_dashes_nothing_is_an_option(fairmile: Callable[..., Any]) -> None:
    result = fairmile("show", "--", "--debug")
    assert result.code == 2
    assert "'--debug'" in result.err
    assert "Traceback" not in result.err
    assert fairmile("show", "--", "--json").out == ""


def test_a_fault_of_ours_is_told_and_not_shown(fairmile: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(**_: Any) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(Workspace, "open", fault)
    result = fairmile("doctor", "--json")
    assert result.code == 3
    assert result.err.splitlines()[0] == "error: ZeroDivisionError: division by zero"
    assert "Traceback" not in result.err
    assert result.json["error"]["type"] == "ZeroDivisionError"


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, click.Abort])
def test_an_interruption_ends_with_130(
    fairmile: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, interruption: type[BaseException]
) -> None:
    def interrupted(**_: Any) -> None:
        raise interruption

    monkeypatch.setattr(Workspace, "open", interrupted)
    assert fairmile("doctor") == (130, "", "interrupted\n")


def test_a_reader_that_has_seen_enough_is_no_error(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone:
        encoding = "utf-8"

        def isatty(self) -> bool:
            return False

        def write(self, _: str) -> None:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", Gone())
    assert run(["search", "mnist"]) == 0


def test_settings_with_a_mistake_are_told_with_file_and_line(fairmile: Callable[..., Any], place: Path) -> None:
    (place / "fairmile.yaml").write_text("catalog:\n  base: ''\nhme: /x\n")
    result = fairmile("search", "lake")
    assert result.code == 2
    assert f"{place}/fairmile.yaml:3 hme: no such setting; did you mean 'home'?" in result.err
    assert "Traceback" not in result.err


@pytest.mark.parametrize("text", ["a: [", "- 1\n", "\ttab"])
def test_settings_that_cannot_be_read_are_told(fairmile: Callable[..., Any], place: Path, text: str) -> None:
    (place / "fairmile.yaml").write_text(text)
    result = fairmile("search", "lake")
    assert result.code == 2
    assert f"error: {place}/fairmile.yaml" in result.err


def test_settings_that_are_no_text_are_told(fairmile: Callable[..., Any], place: Path) -> None:
    (place / "fairmile.yaml").write_bytes(b"\xff\xfe\x00")
    result = fairmile("search", "lake", "--json")
    assert result.code == 3
    assert str(place / "fairmile.yaml") in result.json["error"]["message"]


def test_from_a_folder_that_is_gone_the_reason_is_told(
    fairmile: Callable[..., Any], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = place / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    result = fairmile("search", "mnist")
    assert result.code == 3
    assert result.err.startswith("error: the current folder no longer exists\n  hint: ")


def test_a_home_that_is_a_file_still_allows_to_search(
    fairmile: Callable[..., Any], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIRMILE_HOME", str(place / "lake.jsonld"))
    assert "mnist@1.0" in fairmile("search", "mnist").out
    before = (place / "lake.jsonld").read_bytes()
    for arguments in (
        ["catalog", "add", "codemeta.json"],
        ["catalog", "reindex"],
        ["catalog", "update", "dataset/mnist", "--add", "keywords=x"],
        ["catalog", "source", "add", "group", "./shared-cards"],
    ):
        result = fairmile(*arguments)
        assert result.code == 3, arguments
        assert result.err.startswith("error: "), arguments
        assert "bug in fairmile" not in result.err
    assert (place / "lake.jsonld").read_bytes() == before


@pytest.mark.parametrize(
    ("line", "is_begun"),
    [
        ("fetch URL", True),
        ("fetch URL --to out", True),
        ("fetch --to out --json URL", True),
        ("fetch", False),
        ("fetch dataset/mnist", False),
        ("fetch URL --sha256 00", False),  # what is there is known by its digest: nobody need be asked
        ("fetch URL --sha256=00", False),
        ("fetch URL --help", False),
        ("fetch -h URL", False),
        ("show URL", False),
        ("", False),
    ],
)
def test_a_fetch_from_a_web_address_begins_to_connect_before_anything_is_loaded(
    line: str, is_begun: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()
        _dial_ahead(shlex.split(line.replace("URL", f"http://{host}:{port}/data.bin")))
        connection = taken(host, port, 20)
    assert (connection is not None) is is_begun
    if connection is not None:
        connection.close()


def test_nobody_is_dialled_for_the_id_of_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    def dial(address: str, environ: object) -> None:
        raise AssertionError(address)

    monkeypatch.setattr("fairmile.transfer.ahead.dial", dial)
    _dial_ahead(["fetch", f"{OWN_IDS}card/x"])
    with pytest.raises(AssertionError):
        _dial_ahead(["fetch", "https://example.org/x"])


def test_who_interrupts_twice_gets_no_traceback() -> None:
    script = (
        "import atexit, os, signal\nfrom fairmile.cli import main\nmain.run = lambda words: 130\n"
        "atexit.register(os.kill, os.getpid(), signal.SIGINT)\nmain.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "")


def test_the_end_waits_for_threads_and_does_what_was_registered_for_it() -> None:
    script = (
        "import atexit, threading, time\nfrom fairmile.cli import main\n"
        "def late():\n    time.sleep(0.2)\n    print('thread')\n"
        "def work(words):\n    threading.Thread(target=late).start()\n    print('work', end=' ')\n    return 7\n"
        "main.run = work\natexit.register(print, 'end')\nmain.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout.split(), done.stderr) == (7, ["work", "thread", "end"], "")


def test_a_profiler_of_a_command_prints_its_table() -> None:
    argv = [sys.executable, "-m", "cProfile", "-m", "fairmile", "--version"]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0
    assert "function calls" in done.stdout
