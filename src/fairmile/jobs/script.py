"""The batch script of a job: header, modules, environment, launcher, signals, and notes of its start and end."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import NotRequired, TypedDict

from fairmile.base.errors import UsageError
from fairmile.base.lazy import lazy_pattern
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result
from fairmile.base.units import format_duration
from fairmile.base.version import __version__
from fairmile.jobs.directives import WRITES_LOGS
from fairmile.jobs.launchers import make_launch
from fairmile.jobs.request import JobFiles, Request
from fairmile.jobs.request_rules import make_request
from fairmile.jobs.schedulers import SCHEDULERS, Scheduler
from fairmile.jobs.spec import JobSpec
from fairmile.systems.blocks import choose_sets, newer_variants
from fairmile.systems.model import System

_LABELS = {
    "partition": "partition",
    "nodes": "nodes",
    "tasks_per_node": "tasks per node",
    "cpus_per_task": "CPUs per task",
    "gpus_per_node": "GPUs per node",
    "memory_gib": "memory per node",
    "time_s": "time",
    "account": "account",
    "qos": "quality of service",
    "launch": "launch",
}
_OPTION_LINE = lazy_pattern(r"^[ \t]*#[ \t]*(?:SBATCH|BSUB|PBS|FLUX|flux)\b.*", re.MULTILINE)
_NOT_STARTED = 78  # the exit code of a job that ended before its program began
# The first names the line that failed: at the time of the ERR trap, DEBUG has already run for that trap's own command.
# Functions inherit neither trap, so what `module` does inside does not count.
_GUARD = f"""\
fairmile_failed() {{
    echo "fairmile: this line failed with exit code $1: $fairmile_before" >&2
    fairmile_why=', "reason": "modules"'
    exit {_NOT_STARTED}
}}
trap 'fairmile_before=$fairmile_line fairmile_line=$BASH_COMMAND' DEBUG
trap 'fairmile_failed $?' ERR"""
_END_OF_GUARD = "trap - ERR DEBUG"

_NOTES = """\
# The job notes in its folder how it starts and ends, for whoever asks when the scheduler has forgotten it.
fairmile_job=${FAIRMILE_JOB_ID//[\\"\\\\]/}
fairmile_started=$FAIRMILE_JOB_FOLDER/started%(suffix)s
fairmile_ended=$FAIRMILE_JOB_FOLDER/ended%(suffix)s
fairmile_signal= fairmile_why=
fairmile_end() {
    fairmile_code=${1:-$?}
    if [ "$BASHPID" != $$ ]; then return; fi # a part of this script that a signal ended before it became a program
    trap '' TERM INT HUP USR1 USR2
    if [ -n "${fairmile_limit:-}" ]; then kill "$fairmile_limit" 2>/dev/null; fi
    printf '{"exit_code": %%s, "time": %%(%%s)T, "job": "%%s"%%s}\\n' "$fairmile_code" -1 \\
        "$fairmile_job" "${fairmile_signal:+, \\"signal\\": \\"$fairmile_signal\\"}$fairmile_why" >"$fairmile_ended"
}
fairmile_attempt=1
if [ -e "$fairmile_started" ]; then
    while read -r _; do fairmile_attempt=$((fairmile_attempt + 1)); done <"$fairmile_started"
    rm -f -- "$fairmile_ended"
fi
printf '{"host": "%%s", "time": %%(%%s)T, "attempt": %%s, "job": "%%s"}\\n' "$HOSTNAME" -1 \\
    "$fairmile_attempt" "$fairmile_job" >>"$fairmile_started\""""
# Behind the traps of signals: bash runs it also when one without a trap ends it, and then knows no code.
_NOTED_EXIT = "trap fairmile_end EXIT"

_SIGNALS = """\
# A signal that reaches this script is passed on to the program.
fairmile_program= fairmile_before=none
fairmile_pass() { eval "$fairmile_told"; } # a text, which costs nothing to read where no signal comes
fairmile_told='
    case $1 in TERM | INT | HUP) fairmile_signal=$1 ;; esac
    fairmile_interrupted=1
    # It may come between the start of the program and the line that notes it.
    if [ "$fairmile_before" != none ] && [ "$!" != "$fairmile_before" ]; then fairmile_program=$!; fi
    if [ -z "$fairmile_program" ]; then
        if [ -n "$fairmile_signal" ]; then exit $((128 + $(kill -l "$1"))); fi
        return
    fi
%(pass)s
'
for fairmile_word in TERM INT HUP USR1 USR2; do
    trap "fairmile_pass $fairmile_word" "$fairmile_word"
done"""
_PASS_TO_GROUP = """\
    kill -s "$1" -- "-$fairmile_program" 2>/dev/null"""
_PASS_BY_WITNESS = """\
    # The witness tells: where it died too, all processes of the job were signalled, and the program must not get the
    # signal twice.
    sleep 0.3
    if [ -n "$fairmile_witness" ] && ! kill -0 "$fairmile_witness" 2>/dev/null; then
        fairmile_witness=
    elif kill -0 "$fairmile_program" 2>/dev/null; then
        if [ "$(ps -o pgid= -p $$ 2>/dev/null | tr -d " ")" = $$ ]; then
            trap "" "$1"
            kill -s "$1" 0
            trap "fairmile_pass $1" "$1"
            fairmile_witness=
        else
            kill -s "$1" "$fairmile_program" 2>/dev/null
        fi
    fi"""

# Processes of this machine are signalled one by one or by groups; schedulers signal all that a job has, by other means.
_START_IN_GROUP = """\
fairmile_before=$!
set -m # the program leads a group of its own, so that it gets what is sent to the group of this script but once
(
    exec %(command)s
) </dev/null &
set +m
fairmile_program=$!"""
_START_WITH_WITNESS = """\
exec 9> >(trap - INT; read -r) # it ends when this script does
fairmile_witness=$! fairmile_before=$!
(
    trap - INT QUIT # which bash has programs in the background ignore
    exec %(command)s
) </dev/null 9>&- &
fairmile_program=$!"""
_WAIT = """\
while :; do
    fairmile_interrupted=
    wait "$fairmile_program"
    fairmile_code=$?
    # A program that stopped before `set +m` stays stopped for bash until it ends, and is not waited for.
    if [ -z "$fairmile_interrupted" ] && kill -0 "$fairmile_program" 2>/dev/null; then
        sleep 0.2
        continue
    fi
    # After a signal the code is that signal's, and a second wait tells the program's. But where both came in the same
    # moment bash may have lost the program's end: it takes it for running, and would wait for it in vain.
    if [ -z "$fairmile_interrupted" ] ||
        { ! kill -0 "$fairmile_program" 2>/dev/null && jobs -rp | grep -qx "$fairmile_program"; }; then
%(end)s        exit "$fairmile_code"
    fi
done"""
# Before it runs a trap, its next line or a $(...), bash makes room for the ends of as many programs as a user may have,
# which costs as much as a fork: so the end is noted here, within the loop, and the time is asked of `printf`.
_NOTED_END = """\
        fairmile_end "$fairmile_code"
        trap - EXIT
"""


class DecidedDict(TypedDict):
    """One value of a job's request, and where it comes from."""

    value: str | int | float | None
    origin: str


class ScriptDict(TypedDict):
    """A batch script as JSON; `file` is there where it was written to one."""

    system: str
    values: dict[str, DecidedDict]
    options: list[str]
    script: str
    notes: list[str]
    file: NotRequired[str]


@dataclass(frozen=True, repr=False)
class Script(Result):
    """A batch script, the values decided for it, what a person should know, and the file it was written to."""

    text: str
    request: Request
    notes: tuple[str, ...]
    file: str = ""

    def to_dict(self) -> ScriptDict:
        """Return the script as `fairmile system script --json` prints it."""
        script: ScriptDict = {
            "system": self.request.system,
            "values": {name: {"value": value, "origin": origin} for name, value, origin in self.request.decided()},
            "options": list(self.request.options),
            "script": self.text,
            "notes": list(self.notes),
        }
        return {**script, "file": self.file} if self.file else script

    def explained(self) -> list[list[str]]:
        """Return each value that was decided: its name, the value in words, and where it comes from."""
        rows = []
        for name, value, origin in self.request.decided():
            if value is None or value == "":
                continue
            text = str(value)
            if isinstance(value, (int, float)):
                text = {"time_s": format_duration(value), "memory_gib": f"{value:g} GiB"}.get(name, text)
            rows.append([_LABELS[name], text, origin])
        return rows

    def summary(self) -> str:
        """Return the system, the partition and the nodes."""
        request = self.request
        partition = f", partition {request.partition}" if request.partition else ""
        return f"{request.system}{partition}, nodes {request.nodes}, {len(self.text.splitlines())} lines"


def make_script(spec: JobSpec, system: System, *, folder: str = "", check_account: bool = False) -> Script:
    """Return the batch script of a job on a system.

    Without a folder it is one for a person to submit: it runs where it is submitted, its logs land there, and it
    notes nothing of its start and end.
    """
    request = make_request(spec, system, check_account=check_account)
    index = ".{index}" if spec.array is not None else ""
    files = JobFiles(folder, spec.folder or folder, stdout=f"out{index}.log", stderr=f"err{index}.log")
    scheduler = SCHEDULERS[system.scheduler.dialect]()
    return Script(write_script(request, files, scheduler, system), request, request.notes)


def write_script(request: Request, files: JobFiles, scheduler: Scheduler, system: System) -> str:
    """Return the text of the script that runs a job and notes in `files.folder` how it started and ended.

    Without a folder nothing is noted, and signals are passed on only where the job asks for one.
    """
    if files.folder and not files.folder.startswith("/"):
        raise UsageError(f"the folder of a job must be an absolute path, not {files.folder!r}")
    header = scheduler.header(request, files)
    for line in header:
        if not line.isprintable():
            raise UsageError(f"the header line {line!r} would hold a control character", hint="change that value")
    parts = [
        ["#!/bin/bash", *header, *_about(system, request)],
        [". /etc/profile"] if system.scheduler.source_profile else [],
        [*_variables(request, files, scheduler)],
    ]
    waits = bool(files.folder) or request.signal is not None
    if files.folder:
        parts.append([_NOTES % {"suffix": ".$FAIRMILE_ARRAY_INDEX" if request.array is not None else ""}])
    passes, starts = _PASS_BY_WITNESS, _START_WITH_WITNESS
    if scheduler.name == "shell":
        passes, starts = _PASS_TO_GROUP, _START_IN_GROUP
    if waits:
        parts.append([_SIGNALS % {"pass": passes}, *([_NOTED_EXIT] if files.folder else [])])
    if request.lines:
        parts.append([_GUARD, *request.lines, _END_OF_GUARD])
    launch = make_launch(request, system)
    parts.append([*_enter(files, scheduler), *launch.prepare])
    command = " ".join(filter(None, [shlex.join(request.spec.recorder), launch.command]))
    end = _NOTED_END if files.folder else ""
    parts.append([starts % {"command": command}, _WAIT % {"end": end}] if waits else [f"exec {command}"])
    _refuse_options(parts[1:])
    return "\n\n".join("\n".join(lines) for lines in parts if lines) + "\n"


def _refuse_options(parts: list[list[str]]) -> None:
    """Refuse a value that brings a line which a scheduler reads as an option, wherever in a script it stands."""
    for text in (line for lines in parts for line in lines):
        match = _OPTION_LINE.search(text)
        if match:
            raise UsageError(
                f"the script would hold the line {match[0].strip()[:80]!r}, which a scheduler reads as an option",
                hint="it comes from a word of the command or a variable; change that value",
            )


def _about(system: System, request: Request) -> Iterator[str]:
    yield f"# Made by Fairmile {__version__} for {system.name}, whose description was {system.compared}."
    software = request.spec.software
    for word, each in zip(software, choose_sets(system, software, request.partition), strict=True):
        if each.age:
            newer = newer_variants(system, word, each)
            yield f"# The lines of {word} are {each.age}" + (f"; newer: {', '.join(newer)}." if newer else ".")


def _variables(request: Request, files: JobFiles, scheduler: Scheduler) -> Iterator[str]:
    """Return the variables that every program sees, and where its output goes."""
    names = ["FAIRMILE_JOB_ID", "FAIRMILE_NODES"]
    if request.array is not None:
        names.insert(1, "FAIRMILE_ARRAY_INDEX")
    for name in names:
        yield f'export {name}="{scheduler.variables[name]}"'
    here = '"$PBS_O_WORKDIR"' if scheduler.name == "pbs" else '"$PWD"'
    yield f"export FAIRMILE_JOB_FOLDER={shlex.quote(files.folder) if files.folder else here}"
    if files.folder and scheduler.name not in WRITES_LOGS:
        yield f"exec >>{_log(files, files.stdout)} 2>>{_log(files, files.stderr)}"


def _log(files: JobFiles, name: str) -> str:
    before, index, after = name.partition("{index}")
    folder = files.folder.rstrip("/")
    number = '"$FAIRMILE_ARRAY_INDEX"' + (shlex.quote(after) if after else "") if index else ""
    return shlex.quote(f"{folder}/{before}") + number


def _enter(files: JobFiles, scheduler: Scheduler) -> list[str]:
    """Return how the script comes to the folder that the program runs in."""
    # PBS starts scripts in the home folder.
    work = shlex.quote(files.work) if files.work else '"$PBS_O_WORKDIR"' if scheduler.name == "pbs" else ""
    return [f'cd -- {work} || {{ fairmile_why=\', "reason": "folder"\'; exit {_NOT_STARTED}; }}'] if work else []
