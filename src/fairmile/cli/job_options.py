"""The options that describe a job, the same for every command that takes one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, TypeVar, get_args, overload

import click

from fairmile.base.errors import InvalidDocument, Problem, UsageError
from fairmile.base.lazy import lazy
from fairmile.base.specifications import errors_of, expected_by
from fairmile.base.units import parse_duration, parse_size, parse_time
from fairmile.jobs.launch import Launch

if TYPE_CHECKING:
    from fairmile.jobs.spec import Array, JobSpec, Signal
else:
    Array = lazy("fairmile.jobs.spec:Array")
    JobSpec = lazy("fairmile.jobs.spec:JobSpec")
    Signal = lazy("fairmile.jobs.spec:Signal")

F = TypeVar("F", bound=Callable[..., Any])

_GIB = 1 << 30
_RESOURCES = ("nodes", "tasks_per_node", "cpus_per_task", "gpus_per_node", "partition", "account", "qos", "exclusive")
_COUNT = click.IntRange(min=1)
# Fields of a job whose option has another name, and what the texts of some must look like.
_NAMES = {
    **{"outputs": "output-file", "inputs": "input", "options": "option", "time_s": "time", "memory_gib": "memory"},
    "argv": "PROGRAM",
}
_FORMS = {"name": "at most 64 letters, digits, '.', '_' or '-', the first a letter or digit"}

LAUNCH = click.option(
    "--launch",
    type=click.Choice(get_args(Launch)),
    metavar="LAUNCHER",
    help=f"Launcher that starts the program: {', '.join(get_args(Launch)[:-1])} or {get_args(Launch)[-1]}.",
)
_OF_A_PROGRAM = (
    click.option("--array", metavar="N[%K]", help="Run the program N times, at most K of them concurrently."),
    LAUNCH,
)

_PLACE_OPTIONS = (
    click.option("--on", default="laptop", metavar="SYSTEM", help="System to run on.  [default: this machine]"),
    click.option("--software", multiple=True, metavar="NAME", help="Load this framework, such as ddp; repeatable."),
    click.option("--variant", default="", metavar="NAME", help="Variant of the software, such as container."),
    click.option("--partition", default="", metavar="NAME", help="Submit to this partition or queue."),
    click.option("--account", default="", metavar="NAME", help="Charge this account."),
    click.option("--qos", default="", metavar="NAME", help="Quality of service."),
    click.option("--gpus-per-node", type=click.IntRange(min=0), metavar="N", help="Number of GPUs per node."),
    click.option("--cpus-per-task", type=_COUNT, metavar="N", help="Number of CPUs per task."),
    click.option("--memory", metavar="SIZE", help="Memory per node, such as 64GiB."),
    click.option(
        "--option", multiple=True, metavar="OPTION", help="Pass an option to the scheduler unchanged; repeatable."
    ),
)

_OPTIONS = (
    *_PLACE_OPTIONS,
    click.option("--nodes", type=_COUNT, metavar="N", help="Number of nodes."),
    click.option("--time", metavar="TIME", help="Time limit, such as 1:00:00 or 90m."),
    click.option("--tasks-per-node", type=_COUNT, metavar="N", help="Number of tasks per node."),
    click.option("--exclusive/--shared", default=None, help="Request whole nodes, or share them with other jobs."),
    *_OF_A_PROGRAM,
    click.option(
        "--signal", metavar="NAME@TIME", help="Send a signal this long before the time limit, such as USR1@120s."
    ),
    click.option("--name", default="", metavar="NAME", help="Name to list it under."),
    click.option("--env", multiple=True, metavar="KEY=VALUE", help="Set an environment variable; repeatable."),
    click.option(
        "--requeue/--no-requeue", default=True, help="Restart the job after a node failure, or not.  [default: requeue]"
    ),
)

_SUBMIT_OPTIONS = (
    click.option(
        "--input", "inputs", multiple=True, metavar="[NAME=]FILE", help="Copy a file into the job's folder; repeatable."
    ),
    click.option(
        "--output-file",
        "outputs",
        multiple=True,
        metavar="NAME",
        help="Declare an output file for `job bring` to copy; repeatable.",
    ),
    click.option(
        "--after",
        multiple=True,
        metavar="JOB[:WHEN]",
        help="Start after another job; WHEN is how it ends: ok, failed or any; repeatable.  [default: ok]",
    ),
    click.option(
        "--retries",
        type=click.IntRange(0, 100),
        default=0,
        metavar="N",
        help="Resubmit up to N times after a failure such as a lost node.  [default: 0]",
    ),
    click.option("--key", default="", metavar="KEY", help="Submit at most one job with this key."),
    click.option(
        "--folder",
        default="",
        metavar="FOLDER",
        help="Folder to run in.  [default: the job's folder, which shows the files of the current folder]",
    ),
)


def submit_options(command: F) -> F:
    """Give a command the options of jobs that are submitted."""
    for option in reversed(_SUBMIT_OPTIONS):
        command = option(command)
    return command


def place_options(command: F) -> F:
    """Give a command the options that say where its job runs, and on what; `spec_from` reads them."""
    for option in reversed(_PLACE_OPTIONS):
        command = option(command)
    return command


@overload
def job_options(command: F) -> F: ...
@overload
def job_options(*, program: bool) -> Callable[[F], F]: ...
def job_options(command: F | None = None, *, program: bool = True) -> F | Callable[[F], F]:
    """Give a command the options that describe a job and, unless `program` is False, the program with its own options.

    The command receives `on`, and the rest for `spec_from`.
    """

    def add(command: F) -> F:
        for option in reversed(_OPTIONS):
            command = option(command) if program or option not in _OF_A_PROGRAM else command
        if program:
            words = click.argument("argv", nargs=-1, required=True, metavar="PROGRAM [ARGUMENT]... | -- COMMAND...")
            command = words(command)
        return command

    return add if command is None else add(command)


def spec_from(options: Mapping[str, Any]) -> JobSpec:
    """Return the job that the options describe; raise InvalidDocument with every option that is not valid."""
    problems: list[Problem] = []

    def read(name: str, parse: Callable[[str], Any]) -> Any:
        try:
            return parse(options[name]) if options.get(name) else None
        except (UsageError, ValueError) as error:
            hint = getattr(error, "hint", None) or ""
            problems.append(Problem(_message(error), f"--{name}", hint=hint))
            return None

    resources = {name: options[name] for name in _RESOURCES if options.get(name) is not None}
    given = {
        "argv": options.get("argv") or ("true",),
        "name": options.get("name") or "job",
        "env": dict(_variable(text) for text in options.get("env", ())),
        "software": with_variant(options.get("software", ()), options.get("variant", "")),
        "launch": options.get("launch"),
        "array": read("array", _array),
        "signal": read("signal", _signal),
        "requeue": options.get("requeue", True),
        "inputs": dict(_input(text) for text in options.get("inputs", ())),
        "outputs": tuple(options.get("outputs", ())),
        "after": tuple(_after(text) for text in options.get("after", ())),
        "retries": options.get("retries", 0),
        "key": options.get("key", ""),
        "folder": options.get("folder", ""),
    }
    resources |= {
        "time_s": read("time", parse_time),
        "memory_gib": read("memory", lambda text: parse_size(text) / _GIB),
        "options": tuple(options.get("option", ())),
    }
    if problems:
        raise InvalidDocument(problems)
    try:
        return JobSpec.model_validate({**given, "resources": resources})
    except ValueError as error:
        raise InvalidDocument([_problem(each) for each in errors_of(error)]) from None


def with_variant(software: Sequence[str], variant: str) -> tuple[str, ...]:
    """Return the words of software with the variant that --variant names, as `ddp:container`."""
    if variant and not software:
        raise UsageError("--variant needs software", hint="name it with --software, such as --software ddp")
    return tuple(f"{name}:{variant}" if variant and ":" not in name else name for name in software)


def _message(error: Exception) -> str:
    return str(_problem(errors_of(error)[0]).message) if hasattr(error, "errors") else str(error)


def _problem(error: Mapping[str, Any]) -> Problem:
    place = [str(part) for part in error["loc"]]
    field = place[1] if place[:1] == ["resources"] and place[1:] else next(iter(place), "")
    if error["type"] == "value_error":
        message = str(error["ctx"]["error"])
    else:
        is_form = error["type"] == "string_pattern_mismatch"
        expected = _FORMS.get(field, "one word without spaces or quotes") if is_form else expected_by(error)
        message = f"expected {expected}, found {error['input']!r}"
    name = _NAMES.get(field, field)
    return Problem(message, name if name.isupper() else f"--{name.replace('_', '-')}")


def _array(text: str) -> Array:
    count, _, at_once = text.partition("%")
    if not count.isdecimal() or (at_once and not at_once.isdecimal()):
        raise UsageError(f"{text!r} is not an array", hint="write '100', or '100%8' to run 8 concurrently")
    return Array.model_validate({"count": int(count), "at_once": int(at_once) if at_once else None})


def _signal(text: str) -> Signal:
    name, _, before = text.partition("@")
    given = {"name": name.upper().removeprefix("SIG")}
    return Signal.model_validate({**given, "before_s": parse_duration(before)} if before else given)


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"--env {text!r} is not KEY=VALUE", hint="write --env KEY=VALUE")
    return name, value


def _input(text: str) -> tuple[str, str]:
    name, equals, file = text.partition("=")
    return (name, file) if equals else (PurePath(text).name, text)


def _after(text: str) -> Mapping[str, str]:
    job, _, when = text.partition(":")
    return {"job": job, "condition": when or "ok"}
