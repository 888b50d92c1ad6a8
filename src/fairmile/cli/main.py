"""The entry point: a lazy table of commands, and the one place where errors become exit codes."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from fairmile import __version__
from fairmile.base.garbage import search_rarely

TYPE_CHECKING = False  # the connection of a fetch is begun before even `typing` is loaded
if TYPE_CHECKING:
    from typing import NoReturn, TextIO

    import click


class Entry:
    """Where a command lives; its module is imported when it is called."""

    def __init__(self, module: str, name: str, summary: str) -> None:
        self.module = module
        self.name = name
        self.summary = summary


_INTERRUPTED = 130
_STARTING = ("run", "sweep", "tune", "job")  # commands that take a program with its arguments
COMMANDS = {
    "search": Entry("fairmile.cli.search", "search", "Search all catalogs for models, data sets and benchmarks."),
    "show": Entry("fairmile.cli.show", "show", "Describe an asset and its FAIR score."),
    "match": Entry("fairmile.cli.match", "match", "Match models and data sets, with reasons."),
    "fetch": Entry("fairmile.cli.fetch", "fetch", "Download assets or URLs into the store."),
    "run": Entry("fairmile.cli.run", "run", "Run a program, an asset or a file, and record it."),
    "rerun": Entry("fairmile.cli.run", "rerun", "Repeat a run from its record, and show what differs."),
    "sweep": Entry("fairmile.cli.sweep", "sweep", "Run a program over all combinations of parameter values."),
    "tune": Entry("fairmile.cli.tune", "tune", "Search a parameter space for the best values."),
    "flow": Entry("fairmile.cli.flow", "flow", "Run a graph of steps, here and on systems."),
    "status": Entry("fairmile.cli.status", "status", "Show active work, its progress and expected end."),
    "compare": Entry("fairmile.cli.compare", "compare", "Compare runs, and tell differences from noise."),
    "report": Entry("fairmile.cli.report", "report", "Write a report of runs as one HTML file."),
    "predict": Entry("fairmile.cli.predict", "predict", "Predict memory, time and scaling before a job runs."),
    "trace": Entry("fairmile.cli.trace", "trace", "Record all ranks of a program, and see where time went."),
    "watch": Entry("fairmile.cli.watch", "watch", "Measure power, energy and load of a program or the machine."),
    "catalog": Entry("fairmile.cli.catalog", "catalog", "Check, add, change and exchange cards; manage sources."),
    "model": Entry("fairmile.cli.model", "model", "Describe model files of all common formats."),
    "store": Entry("fairmile.cli.store", "store", "Manage stored data: list, verify, repair, clean up, pin, pools."),
    "system": Entry("fairmile.cli.system", "system", "Describe machines: partitions, modules, probes, job scripts."),
    "env": Entry("fairmile.cli.env", "env", "Build, check and use software environments."),
    "job": Entry("fairmile.cli.job", "job", "Submit jobs to a system, follow them, and copy their results."),
    "runs": Entry("fairmile.cli.runs", "runs", "List, show, pack, export and import recorded runs."),
    "benchmark": Entry("fairmile.cli.benchmark", "benchmark", "List, create and submit benchmarks; measure storage."),
    "serve": Entry("fairmile.cli.serve", "serve", "Open catalog, runs and flows in the browser."),
    "login": Entry("fairmile.cli.login", "login", "Log in to a Fairmile server."),
    "logout": Entry("fairmile.cli.login", "logout", "Log out of a Fairmile server."),
    "access": Entry("fairmile.cli.access", "access", "Manage accounts of your server and access to its assets."),
    "compat": Entry("fairmile.cli.compat", "compat", "Use modules and commands of cloudmesh, HPCFAIR and LAMEC."),
    "course": Entry("fairmile.cli.course", "course", "Learn Fairmile in notebooks with exercises, without a network."),
    "trust": Entry("fairmile.cli.trust", "trust", "Trust the settings file of a project."),
    "completion": Entry("fairmile.cli.completion", "completion", "Set up shell completion for bash, zsh or fish."),
    "doctor": Entry("fairmile.cli.doctor", "doctor", "Check the installation, and show how to fix what is missing."),
}

_SECTIONS = {
    "Run": ("run", "rerun", "sweep", "tune", "flow", "status"),
    "Results": ("compare", "report", "runs", "serve"),
    "Models and data": ("search", "show", "match", "fetch", "catalog", "model", "store"),
    "Performance": ("predict", "trace", "watch", "benchmark"),
    "Machines and software": ("job", "system", "env"),
    "Sharing": ("login", "logout", "access"),
    "Setup": ("doctor", "course", "completion", "trust", "compat"),
}


def main() -> NoReturn:
    """Run the command line and exit."""
    search_rarely()
    _dial_ahead(sys.argv[1:])
    _prepare_streams()
    code = run(sys.argv[1:])
    if code == _INTERRUPTED:  # who asks twice gets no traceback of what is ending already
        import signal  # no other end needs it

        signal.signal(signal.SIGINT, signal.SIG_IGN)
    # What is written now would fail at exit, with a message of Python's own.
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            _silence(stream)
    _leave(code)


def _leave(code: int) -> NoReturn:
    """End this process as `sys.exit` does, but do not take apart all that was imported, which takes milliseconds."""
    if sys.gettrace() is not None or sys.getprofile() is not None:  # a debugger or profiler waits for the end
        sys.exit(code)
    import atexit
    import threading

    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _dial_ahead(arguments: list[str]) -> None:
    """Begin the connection that a fetch from a web address will ask for: it is made while the command is loaded."""
    if arguments[:1] != ["fetch"] or any(each.startswith(("--sha256", "--help", "-h")) for each in arguments):
        return
    address = next((each for each in arguments if each.startswith(("http://", "https://"))), "")
    if address:
        from fairmile.catalog import OWN_IDS
        from fairmile.transfer.ahead import dial

        if not address.startswith(OWN_IDS):
            dial(address, os.environ)


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit code."""
    options = _own_words(arguments)
    try:
        return _run([each for each in options if each != "--debug"] + arguments[len(options) :])
    except KeyboardInterrupt:
        sys.stderr.write("\r\033[Kinterrupted\n" if sys.stderr.isatty() else "interrupted\n")
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader, a pager perhaps, has seen enough.
        return 0
    except Exception as error:  # noqa: BLE001  the one place where every error is told
        from fairmile.cli.failures import ShownFailure

        if "--debug" in options:
            import traceback

            traceback.print_exc()
        failure = ShownFailure.of(error)
        # Where even this cannot be written, the exit code still tells.
        with suppress(OSError):
            failure.tell(as_json="--json" in options)
        return failure.exit_code


def _own_words(arguments: list[str]) -> list[str]:
    """Return the words that are meant for us: behind `--`, and behind a program that is run, are those of others."""
    starts = bool(arguments) and arguments[0] in _STARTING
    for number, word in enumerate(arguments):
        is_path = word.endswith(".py") or word.startswith(("./", "../", "/", "~/"))
        if word == "--" or (starts and is_path and os.path.isfile(os.path.expanduser(word))):
            return arguments[:number]
    return arguments


def _run(arguments: list[str]) -> int:
    # Answered before anything is imported: a shell prompt may ask for it at every line.
    if arguments in (["--version"], ["-V"]):
        sys.stdout.write(f"fairmile {__version__}\n")
        sys.stdout.flush()
        return 0
    if arguments[:1] == ["__complete"]:
        return _complete(arguments[1:])
    import click

    try:
        with command_group().make_context("fairmile", arguments) as context:
            result = context.command.invoke(context)
        code = result if isinstance(result, int) else 0
    except click.exceptions.Exit as end:
        code = end.exit_code
    except click.exceptions.Abort:
        raise KeyboardInterrupt from None
    sys.stdout.flush()
    return code


def _complete(arguments: list[str]) -> int:
    """Answer the completion of a shell, in which nothing else may appear, whatever fails."""
    _silence(sys.stderr)
    with suppress(Exception):
        from fairmile.cli.complete import answer

        sys.stdout.write("".join(f"{line}\n" for line in answer(arguments)))
    return 0


def command_group() -> click.Group:
    """Return the whole command line; a command is imported when it is called."""
    import click

    from fairmile.cli.lazy import LazyGroup

    @click.group(
        cls=LazyGroup,
        entries=COMMANDS,
        sections=_SECTIONS,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    @click.version_option(__version__, "-V", "--version", message="fairmile %(version)s")
    def fairmile() -> None:
        """Find, run, measure and reproduce AI models for science.

        Every command takes --json. Add --debug to see the traceback of an error.

        \b
        Examples:
          fairmile run train.py --lr 0.1
          fairmile sweep -j 2 train.py --lr 0.1,0.01 --seed 1..3
          fairmile report last -o train.html
          fairmile search cosmology kind:model
          fairmile fetch dataset/mnist --dry-run
        """

    return fairmile


def _prepare_streams() -> None:
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started us
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    # A letter that the terminal does not know must not end a command.
    utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace" if utf8 else "replace")


def _silence(stream: TextIO) -> None:
    """Send what is still buffered nowhere."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
