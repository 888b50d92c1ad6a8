"""`fairmile job`: submit programs anywhere, follow them, find them again."""

from __future__ import annotations

import dataclasses
import os
import shlex
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from fairmile.base.errors import InvalidDocument, NotFound, Problem, SystemFailure
from fairmile.base.units import format_duration, format_size, parse_duration
from fairmile.cli.job_options import job_options, spec_from, submit_options
from fairmile.cli.lazy import LazyGroup
from fairmile.cli.out import Out, count, json_option
from fairmile.jobs.diagnosis import Diagnosis
from fairmile.jobs.queue import JobStatus
from fairmile.jobs.spec import JobSpec
from fairmile.jobs.states import State
from fairmile.workspace import Workspace

_COLOURS = {State.DONE: "green", State.RUNNING: "green", State.QUEUED: "yellow", State.HELD: "yellow"}
_SHOWN_TASKS = 20
_LATER = "`fairmile job show {}` tells how it goes"
_ENVIRONMENT = click.option(
    "--environment", default="", metavar="ENV", help="An environment that `fairmile env ls` shows."
)


@click.group(cls=LazyGroup)
def job() -> None:
    """Submit programs anywhere, follow them, find them again.

    JOB is an id that `fairmile job ls` shows, or the start or end of one. Jobs go on
    when you log out; everything about them is in a folder, so any later
    command finds them.
    """


@job.command()
@job_options
@submit_options
@_ENVIRONMENT
@click.option("--wait", is_flag=True, help="Wait for its end and show its output; exit code 1 unless it succeeded.")
@click.option("--dry-run", is_flag=True, help="Print the script; submit nothing.")
@json_option
def submit(out: Out, on: str, environment: str, wait: bool, dry_run: bool, **options: Any) -> int:
    """Submit a program to a system, or start it here.

    \b
    Examples:
      fairmile job submit -- echo hello
      fairmile job submit --array 10 --wait -- sh -c 'echo $FAIRMILE_ARRAY_INDEX'
      fairmile job submit --on jureca --software ddp --nodes 2 --time 1:00:00 --account me --dry-run -- python train.py
    """
    workspace = Workspace.open()
    spec = _here(out, workspace, spec_from(options), on)
    if environment:
        spec = workspace.jobs.equipped(spec, workspace.envs, environment, on=on)
    if dry_run:
        machine = workspace.systems[on]
        script = machine.script(spec)
        away = [f"it cannot be submitted from here: {machine.elsewhere}"] if machine.elsewhere else []
        if out.as_json:
            out.data({"script": script.text, "notes": [*script.notes, *away]})
        else:
            out.document(script.text)
            for note in (*script.notes, *away):
                out.say(f"note: {note}")
        return 0
    status = workspace.jobs.submit(spec, on=on)
    if not wait:
        _told(out, status, f"submitted {status.id}", hint=_LATER.format(status.id))
        return 0
    out.say(f"submitted {status.id}")
    if not out.as_json and spec.array is None:
        with _going_on(out, [status.id]):
            _print(out, workspace.jobs.follow(status.id))
    return _waited(workspace, out, [status.id], None)


@job.command()
@click.argument("file", type=click.Path(path_type=Path, allow_dash=True))
@click.option("--at-once", type=click.IntRange(min=1), help="How many run at the same time.  [default: cores]")
@job_options(program=False)
@submit_options
@_ENVIRONMENT
@click.option("--wait", is_flag=True, help="Wait for the end of all; exit code 1 unless all succeeded.")
@click.option("--dry-run", is_flag=True, help="Say what would be submitted; submit nothing.")
@json_option
def pack(
    out: Out, file: Path, at_once: int | None, on: str, environment: str, wait: bool, dry_run: bool, **options: Any
) -> int:
    """Run many short commands, one a line of FILE, in one job.

    Each has its own output and exit code. Where the scheduler starts the job again,
    those that succeeded are left out.

    \b
    Example:
      fairmile job pack commands.txt --at-once 2 --wait
    """
    workspace = Workspace.open()
    commands, spec = _commands(file), spec_from({**options, "name": options["name"] or "pack"})
    spec = _here(out, workspace, spec, on)
    if environment:
        spec = workspace.jobs.equipped(spec, workspace.envs, environment, on=on)
    told = count(len(commands), "command")
    if dry_run:
        workspace.systems[on].script(spec)  # what the system cannot give is said now too
        if out.as_json:
            out.data({"commands": commands, "system": on, "dry_run": True})
        else:
            out.line(f"would submit {told} as one job on {on}")
        return 0
    status = workspace.jobs.pack(commands, spec, at_once=at_once, on=on)
    if not wait:
        _told(out, status, f"submitted {status.id} with {told}", hint=_LATER.format(status.id))
        return 0
    out.say(f"submitted {status.id} with {told}")
    return _waited(workspace, out, [status.id], None)


def _here(out: Out, workspace: Workspace, spec: JobSpec, on: str) -> JobSpec:
    """Return a job that sees the current folder; what a machine elsewhere will not see of it is said."""
    spec = spec.model_copy(update={"shows": os.getcwd()})
    if left := workspace.jobs.left_behind(spec, on=on):
        out.say(f"note: not carried to {on}: {left}; --input NAME carries one")
    return spec


def _commands(file: Path) -> list[list[str]]:
    """Return the commands of a file, one a line, quoted as in a shell; `#` starts a comment."""
    found = []
    for number, line in enumerate(_text(file).split("\n"), 1):
        try:
            words = shlex.split(line, comments=True)
        except ValueError as error:
            problem = Problem(f"a quote is not closed: {line.strip()!r}", file=str(file), line=number)
            raise InvalidDocument([problem]) from error
        if words:
            found.append(words)
    return found


def _text(file: Path) -> str:
    try:
        data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except FileNotFoundError as error:
        raise NotFound(f"no file {file}") from error
    except OSError as error:
        raise SystemFailure(f"cannot read {file}: {error.strerror}") from error
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InvalidDocument([Problem("is not UTF-8 text", file=str(file), line=line)]) from error


@contextmanager
def _going_on(out: Out, jobs: list[str]) -> Iterator[None]:
    """Say, when whoever waits breaks off, that the jobs do not."""
    try:
        yield
    except KeyboardInterrupt:
        out.say(f"{', '.join(jobs)} {'goes' if len(jobs) == 1 else 'go'} on")
        out.hint(f"`fairmile job cancel {' '.join(jobs)}` ends {'it' if len(jobs) == 1 else 'them'}")
        raise


def _told(out: Out, status: JobStatus, text: str, hint: str = "") -> None:
    if out.as_json:
        out.data(_document(status))
        return
    out.line(text)
    if hint:
        out.hint(hint)


def _document(status: JobStatus) -> dict[str, Any]:
    return dataclasses.asdict(status) | {"state": status.state}


def _waited(workspace: Workspace, out: Out, jobs: list[str], timeout_s: float | None) -> int:
    with _going_on(out, jobs):
        ended = workspace.jobs.wait(jobs, timeout_s=timeout_s)
    failed = [each for each in ended if each.is_over and each.state is not State.DONE]
    if out.as_json:
        out.data({"jobs": [_document(each) for each in ended]})
    else:
        for each in ended:
            out.line(f"{each.id}: {_state(each, out)}{_because(each)}")
        for each in failed:
            _render_diagnosis(each, workspace.jobs.explain(each.id), out)
    return 1 if failed or not all(each.is_over for each in ended) else 0


def _because(status: JobStatus) -> str:
    sentence = status.standing.sentence
    return f"{', ' if sentence[:1].islower() else ': '}{sentence}" if sentence else ""


def _words(state: State) -> str:
    return state.replace("_", " ")


def _state(status: JobStatus, out: Out) -> str:
    return out.colour(_words(status.state), _COLOURS.get(status.state, "red"))


def _render_diagnosis(status: JobStatus, diagnosis: Diagnosis | None, out: Out) -> None:
    if diagnosis is None:
        return
    if diagnosis.what not in status.standing.sentence:
        out.say(f"why: {diagnosis.what}")
    if diagnosis.line:
        out.say(f"it said: {diagnosis.line}")
    bad = next((index for index, task in sorted(status.tasks.items()) if task.state is not State.DONE), None)
    out.hint(diagnosis.advice.replace("JOB", status.id if bad is None else f"{status.id} --task {bad}"))


@job.command()
@click.option("--live", is_flag=True, help="Only those that have not ended.")
@json_option
def ls(out: Out, live: bool) -> int:
    """List jobs, the newest first.

    \b
    Example:
      fairmile job ls --live
    """
    found = Workspace.open().jobs.ls(live=live)
    if out.as_json:
        out.data({"jobs": [_document(each) for each in found]})
        return 0
    columns = ["job", "system", "id there", "state", "tasks", "submitted", "why"]
    out.table(columns, [_row(each, out) for each in found], shrink=["why"])
    if not found:
        out.say("no jobs yet")
        out.hint("`fairmile job submit -- PROGRAM …` starts one")
    return 0


def _row(status: JobStatus, out: Out) -> list[str]:
    done = status.counts().get(State.DONE, 0)
    tasks = f"{done}/{len(status.tasks)}" if status.tasks else ""
    when = datetime.fromtimestamp(status.created, UTC).strftime("%Y-%m-%d %H:%M")
    return [status.id, status.system, status.scheduler_id, _state(status, out), tasks, when, status.standing.sentence]


@job.command()
@click.argument("job")
@json_option
def show(out: Out, job: str) -> int:
    """Show where a job stands, what it used, and why it failed.

    \b
    Example:
      fairmile job show tides
    """
    workspace = Workspace.open()
    status = workspace.jobs.get(job)
    diagnosis = workspace.jobs.explain(status.id)
    if out.as_json:
        out.data(_document(status) | {"diagnosis": dataclasses.asdict(diagnosis) if diagnosis else None})
        return 0
    out.heading(f"{status.id}: {_words(status.state)}")
    out.items(_facts(status))
    bad = {index: task for index, task in status.tasks.items() if task.state not in (State.DONE, State.QUEUED)}
    rows = [[index, _words(task.state), task.exit_code, task.sentence] for index, task in sorted(bad.items())]
    out.table(["task", "state", "exit code", "why"], rows[:_SHOWN_TASKS], shrink=["why"])
    if len(rows) > _SHOWN_TASKS:
        out.say(f"and {len(rows) - _SHOWN_TASKS} more")
    if status.trouble:
        out.say(f"this may be out of date: {status.trouble}")
    _render_diagnosis(status, diagnosis, out)
    return 0


def _facts(status: JobStatus) -> list[tuple[str, str]]:
    standing = status.standing
    usage = standing.usage
    facts = {
        "system": status.system,
        "id there": status.scheduler_id,
        "why": standing.sentence,
        "exit code": "" if standing.exit_code is None else str(standing.exit_code),
        "nodes": standing.nodes,
        "starts again": str(standing.restarts) if standing.restarts else "",
        "attempts": str(status.attempt) if status.attempt > 1 else "",
        "tasks": ", ".join(f"{number} {_words(state)}" for state, number in status.counts().items()),
        "folder": status.folder,
    }
    if usage is not None:
        used = {
            "elapsed": "" if usage.elapsed_s is None else format_duration(usage.elapsed_s),
            "CPU time": "" if usage.cpu_s is None else format_duration(usage.cpu_s),
            "largest memory": "" if usage.max_rss_bytes is None else format_size(usage.max_rss_bytes),
            "energy": "" if usage.energy_j is None else f"{usage.energy_j:,.0f} J",
        }
        facts |= {name: f"{text} ({usage.source})" for name, text in used.items() if text}
    return [(name, text) for name, text in facts.items() if text]


@job.command()
@click.argument("job")
@click.option("--task", type=click.IntRange(min=0), help="The output of one task of an array or pack.")
@click.option("--err", "errors", is_flag=True, help="What it wrote to stderr.")
@click.option("--follow", "-f", is_flag=True, help="Go on until the job has ended.")
@json_option
def log(out: Out, job: str, task: int | None, errors: bool, follow: bool) -> int:
    """Print the output of a job, also while it runs; of an array, that of task 0.

    \b
    Examples:
      fairmile job log tides
      fairmile job log tides --err --follow
    """
    jobs = Workspace.open().jobs
    if out.as_json:
        out.data({"log": jobs.log(job, task=task, errors=errors).decode(errors="replace")})
        return 0
    pieces = jobs.follow(job, task=task, errors=errors) if follow else [jobs.log(job, task=task, errors=errors)]
    _print(out, pieces)
    return 0


def _print(out: Out, pieces: Iterable[bytes]) -> None:
    for piece in pieces:
        out.document(piece)
        sys.stdout.flush()


@job.command()
@click.argument("jobs", metavar="JOB...", nargs=-1, required=True)
@click.option("--timeout", help="Give up waiting after so long, such as 90, 10m or 2h.")
@json_option
def wait(out: Out, jobs: tuple[str, ...], timeout: str | None) -> int:
    """Wait for the end of jobs; the exit code is 1 unless all succeeded.

    \b
    Example:
      fairmile job wait tides --timeout 2h
    """
    return _waited(Workspace.open(), out, list(jobs), parse_duration(timeout) if timeout else None)


@job.command()
@click.argument("jobs", metavar="JOB...", nargs=-1, required=True)
@click.option("--dry-run", is_flag=True, help="Say what would be cancelled; cancel nothing.")
@json_option
def cancel(out: Out, jobs: tuple[str, ...], dry_run: bool) -> int:
    """End jobs that wait or run.

    \b
    Example:
      fairmile job cancel tides
    """
    queue = Workspace.open().jobs
    found = [queue.get(each) for each in jobs] if dry_run else queue.cancel(jobs)
    if out.as_json:
        out.data({"jobs": [_document(each) for each in found]})
        return 0
    for each in found:
        more = "" if each.is_over else ", would be cancelled" if dry_run else ", was asked to end"
        out.line(f"{each.id}: {_words(each.state)}{more}")
    return 0


@job.command()
@click.argument("job")
@click.option("--to", type=click.Path(path_type=Path), default=Path(), help="The folder to put them in.  [default: .]")
@click.option("--dry-run", is_flag=True, help="Say what would be copied; copy nothing.")
@json_option
def bring(out: Out, job: str, to: Path, dry_run: bool) -> int:
    """Copy the declared outputs of a job here, from wherever it ran.

    \b
    Example:
      fairmile job bring tides --to results
    """
    jobs = Workspace.open().jobs
    brought = jobs.bring(job, to, dry_run=dry_run)
    if out.as_json:
        out.data({"files": [str(path) for path in brought]})
        return 0
    for path in brought:
        out.line(f"{'would bring' if dry_run else 'brought'}  {path}")
    if not brought:
        out.say("the job declared no outputs")
        out.hint("`fairmile job submit --output-file NAME …` declares one")
    return 0


@job.command()
@click.argument("jobs", metavar="JOB...", nargs=-1, required=True)
@click.option("--dry-run", is_flag=True, help="Say what would be removed; remove nothing.")
@json_option
def rm(out: Out, jobs: tuple[str, ...], dry_run: bool) -> int:
    """Forget jobs that have ended, with their folders.

    \b
    Example:
      fairmile job rm tides --dry-run
    """
    queue = Workspace.open().jobs
    removed = [queue.get(each).id for each in jobs] if dry_run else queue.rm(jobs)
    if out.as_json:
        out.data({"removed": removed})
        return 0
    for id in removed:
        out.line(f"{'would remove' if dry_run else 'removed'}  {id}")
    return 0
