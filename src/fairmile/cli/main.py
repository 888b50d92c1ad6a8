"""The entry point: a lazy table of commands, and the one place where errors become exit codes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from fairmile import __version__

if TYPE_CHECKING:
    import click

    from fairmile.base.errors import FairmileError


class Entry(NamedTuple):
    """Where a command lives; its module is imported when it is called."""

    module: str
    name: str
    summary: str


COMMANDS = {
    "search": Entry("fairmile.cli.search", "search", "Find assets in every catalog."),
    "show": Entry("fairmile.cli.show", "show", "Describe an asset; --fair tells how FAIR it is and what to do."),
    "match": Entry("fairmile.cli.match", "match", "Tell which data sets a model accepts, and the reverse, and why."),
    "catalog": Entry("fairmile.cli.catalog", "catalog", "Check, add, change, exchange cards; manage sources."),
    "doctor": Entry("fairmile.cli.doctor", "doctor", "Show settings with their origin, catalogs, and what is missing."),
}


def main() -> NoReturn:
    """Run the command line and exit."""
    arguments = sys.argv[1:]
    # Answered before anything is imported: a shell prompt may ask for it at every line.
    if arguments in (["--version"], ["-V"]):
        sys.stdout.write(f"fairmile {__version__}\n")
        sys.exit(0)
    sys.exit(run(arguments))


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit code."""
    import click

    from fairmile.base.errors import FairmileError

    debug = "--debug" in arguments
    arguments = [each for each in arguments if each != "--debug"]
    try:
        result = _group().main(arguments, prog_name="fairmile", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.exceptions.Abort:
        sys.stderr.write("interrupted\n")
        return 130
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return 130
    except click.ClickException as error:
        error.show(sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader, a pager perhaps, has seen enough.
        sys.stderr.close()
        return 0
    except FairmileError as error:
        if debug:
            raise
        _explain(error, as_json="--json" in arguments)
        return error.exit_code
    except Exception as error:
        if debug:
            raise
        sys.stderr.write(
            f"error: {type(error).__name__}: {error}\n"
            "  hint: this is a fault of fairmile; run the command again with --debug and report what it prints\n"
        )
        return 3


def _explain(error: FairmileError, *, as_json: bool) -> None:
    from fairmile.base.errors import InvalidDocument

    problems = [str(problem) for problem in error.problems] if isinstance(error, InvalidDocument) else [str(error)]
    for line in problems:
        sys.stderr.write(f"error: {line}\n")
    if error.hint:
        sys.stderr.write(f"  hint: {error.hint}\n")
    if as_json:
        import json

        facts = {"type": type(error).__name__, "message": str(error), "hint": error.hint or ""}
        sys.stdout.write(json.dumps({"error": facts}) + "\n")


def _group() -> click.Group:
    import click

    from fairmile.cli.lazy import LazyGroup

    @click.group(cls=LazyGroup, entries=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
    @click.version_option(__version__, "-V", "--version", message="fairmile %(version)s")
    def fairmile() -> None:
        """From the name of an AI model for science to a result that anyone can find, rerun and trust.

        Every command takes --json; --debug shows a traceback where an error is explained in one sentence.
        """

    return fairmile
