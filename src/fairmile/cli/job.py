"""`fairmile job`: submit programs to a system, follow them, and read their results."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import click

from fairmile.base.errors import InvalidDocument, Problem
from fairmile.base.files import decode_text, read_text
from fairmile.base.units import format_duration, format_size, parse_time
from fairmile.cli.job_options import job_options, spec_from, submit_options
from fairmile.cli.lazy import LazyGroup
from fairmile.cli.notices import notifies
from fairmile.cli.options import DRY_RUN, SectionedCommand
from fairmile.cli.out import Out, count, json_output, place
from fairmile.jobs.diagnosis import Diagnosis
from fairmile.jobs.job_status import (
    CopiedFiles,
    JobDetails,
    JobList,
    JobLog,
    JobPlan,
    JobStatus,
    PackPlan,
    RemovedJobs,
)
from fairmile.jobs.spec import JobSpec
from fairmile.jobs.states import State
from fairmile.runs.arguments import start_file
from fairmile.runs.ignored import check_arguments
from fairmile.workspace import Workspace

_COLOURS = {State.DONE: "green", State.RUNNING: "green", State.QUEUED: "yellow", State.HELD: "yellow"}
_SHOWN_TASKS = 20
_ENVIRONMENT = click.option(
    "--environment", default="", metavar="ENV", help="Environment to run in; `fairmile env ls` lists them."
)


class _JobCommand(SectionedCommand):
    sections: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "System and resources": SectionedCommand.sections["System and resources"],  # what a job is about comes first
        **SectionedCommand.sections,
    }


@click.group(cls=LazyGroup)
def job() -> None:
    """Submit programs to a system, follow them, and read their results.

    JOB is an id from `fairmile job ls`, or its unique start or end. Jobs keep running
    when you log out. Each job keeps its script, output and status in its own folder.
    """


@job.command(cls=_JobCommand, context_settings={"allow_interspersed_args": False})
@job_options
@submit_options
@_ENVIRONMENT
@click.option("--wait", is_flag=True, help="Wait for the job and print its output; exit with 1 if it fails.")
@DRY_RUN
@json_output(JobStatus, JobList, JobPlan)
@notifies
def submit(out: Out, on: str, environment: str, wait: bool, dry_run: bool, **options: Any) -> int:
    """Submit a program to a system, or start it on this machine.

    --dry-run prints the job script. With --wait, --json prints a list of one job.

    \b
    Examples:
      fairmile job submit -- echo hello
      fairmile job submit --wait train.py --lr 0.1
      fairmile job submit --array 10 --wait -- sh -c 'echo $FAIRMILE_ARRAY_INDEX'
      fairmile job submit --on jureca --software ddp --nodes 2 --time 1:00:00 --account me --dry-run -- python train.py
    """
    workspace = Workspace.open()
    options["argv"] = start_file(options["argv"], Path(), os.environ)
    check_arguments(options["argv"], Path(options["folder"] or ""), os.environ)
    spec = _complete(out, workspace, spec_from(options), on, environment)
    if dry_run:
        out.show(workspace.jobs.plan(spec, system=on), lambda plan: _print_plan(out, plan))
        return 0
    job = workspace.jobs.submit(spec, system=on)
    if not wait:
        out.show(job, lambda job: _print_submitted(out, job))
        return 0
    out.say(f"submitted {job.id}")
    if not out.as_json and spec.array is None:
        with _explain_interrupt(out, [job.id]):
            _print_log(out, workspace.jobs.follow(job.id))
    return _wait_for(workspace, out, [job.id], None)


def _print_plan(out: Out, plan: JobPlan) -> None:
    out.document(plan.script)
    for note in plan.notes:
        out.say(f"note: {note}")


def _print_submitted(out: Out, job: JobStatus, more: str = "") -> None:
    out.line(f"submitted {job.id}{more}")
    out.hint(f"`fairmile job show {job.id}` shows its status")


@job.command(cls=_JobCommand)
@click.argument("file", type=click.Path(path_type=Path, allow_dash=True))
@click.option(
    "--at-once",
    type=click.IntRange(min=1),
    metavar="N",
    help="Number of commands to run concurrently.  [default: number of cores]",
)
@job_options(program=False)
@submit_options
@_ENVIRONMENT
@click.option("--wait", is_flag=True, help="Wait for all commands; exit with 1 if one fails.")
@DRY_RUN
@json_output(JobStatus, JobList, PackPlan)
@notifies
def pack(
    out: Out, file: Path, at_once: int | None, on: str, environment: str, wait: bool, dry_run: bool, **options: Any
) -> int:
    """Run many short commands, one per line of FILE, in one job.

    Each command has its own output and exit code. If the scheduler restarts the job,
    commands that succeeded do not run again. FILE can be - for standard input.

    \b
    Example:
      fairmile job pack commands.txt --at-once 2 --wait
    """
    workspace = Workspace.open()
    commands, spec = _commands(file), spec_from({**options, "name": options["name"] or "pack"})
    spec = _complete(out, workspace, spec, on, environment)
    number = count(len(commands), "command")
    if dry_run:
        plan = workspace.jobs.plan_pack(commands, spec, system=on)
        out.show(plan, lambda plan: out.line(f"would submit {number} as one job on {plan.system}"))
        return 0
    job = workspace.jobs.pack(commands, spec, at_once=at_once, system=on)
    if not wait:
        out.show(job, lambda job: _print_submitted(out, job, f" with {number}"))
        return 0
    out.say(f"submitted {job.id} with {number}")
    return _wait_for(workspace, out, [job.id], None)


def _complete(out: Out, workspace: Workspace, spec: JobSpec, on: str, environment: str) -> JobSpec:
    """Return a job that sees the current folder and runs in the environment; note the files it will not see."""
    spec = spec.model_copy(update={"shows": os.getcwd()})
    if left := workspace.jobs.left_behind(spec, system=on):
        out.say(f"note: not copied to {on}: {left}; copy a file with --input NAME")
    return workspace.jobs.in_environment(spec, workspace.envs, environment, system=on) if environment else spec


def _commands(file: Path) -> list[list[str]]:
    """Return the commands of a file, one per line, quoted as in a shell; `#` starts a comment."""
    commands = []
    for number, line in enumerate(_text(file).split("\n"), 1):
        try:
            words = shlex.split(line, comments=True)
        except ValueError as error:
            problem = Problem(f"unclosed quote: {line.strip()!r}", file=str(file), line=number)
            raise InvalidDocument([problem]) from error
        if words:
            commands.append(words)
    return commands


def _text(file: Path) -> str:
    return decode_text(sys.stdin.buffer.read(), "-") if str(file) == "-" else read_text(file)


@contextmanager
def _explain_interrupt(out: Out, jobs: list[str]) -> Iterator[None]:
    """Say, when somebody interrupts the wait, that the jobs keep running."""
    try:
        yield
    except KeyboardInterrupt:
        out.say(f"{', '.join(jobs)} {'keeps' if len(jobs) == 1 else 'keep'} running")
        out.hint(f"`fairmile job cancel {' '.join(jobs)}` ends {'it' if len(jobs) == 1 else 'them'}")
        raise


def _wait_for(workspace: Workspace, out: Out, jobs: list[str], timeout_s: float | None) -> int:
    with _explain_interrupt(out, jobs):
        ended = workspace.jobs.wait(jobs, timeout_s=timeout_s)
    failed = [each for each in ended if each.is_over and each.state is not State.DONE]
    out.show(ended, lambda ended: _print_ends(workspace, out, ended, failed))
    return 1 if failed or not all(each.is_over for each in ended) else 0


def _print_ends(workspace: Workspace, out: Out, ended: JobList, failed: list[JobStatus]) -> None:
    for each in ended:
        out.line(f"{each.id}: {_state(each, out)}{_because(each)}")
    for each in failed:
        _print_diagnosis(each, workspace.jobs.explain(each.id), out)


def _because(status: JobStatus) -> str:
    sentence, state = status.status.sentence, _words(status.state)
    if sentence.startswith(f"{state} "):
        return sentence.removeprefix(state)
    return f"{', ' if sentence[:1].islower() else ': '}{sentence}" if sentence else ""


def _words(state: State) -> str:
    return state.replace("_", " ")


def _state(status: JobStatus, out: Out) -> str:
    return out.colour(_words(status.state), _COLOURS.get(status.state, "red"))


def _print_diagnosis(status: JobStatus, diagnosis: Diagnosis | None, out: Out) -> None:
    if diagnosis is None:
        return
    if diagnosis.what not in status.status.sentence:
        out.say(f"why: {diagnosis.what}")
    if diagnosis.line:
        out.say(f"output: {diagnosis.line}")
    bad = next((index for index, task in sorted(status.tasks.items()) if task.state is not State.DONE), None)
    out.hint(diagnosis.advice.replace("JOB", status.id if bad is None else f"{status.id} --task {bad}"))


@job.command()
@click.option("--live", is_flag=True, help="List only unfinished jobs.")
@json_output(JobList)
def ls(out: Out, live: bool) -> int:
    """List jobs, newest first.

    \b
    Example:
      fairmile job ls --live
    """
    out.show(Workspace.open().jobs.ls(live=live), lambda jobs: _print_list(out, jobs))
    return 0


def _print_list(out: Out, jobs: JobList) -> None:
    columns = ["job", "system", "scheduler id", "state", "tasks", "submitted", "why"]
    out.table(columns, [_row(each, out) for each in jobs], shrink=["why"])
    if not jobs:
        out.say("no jobs yet")
        out.hint("`fairmile job submit -- PROGRAM …` starts one")


def _row(status: JobStatus, out: Out) -> list[str]:
    done = status.counts().get(State.DONE, 0)
    tasks = f"{done}/{len(status.tasks)}" if status.tasks else ""
    when = datetime.fromtimestamp(status.created, UTC).strftime("%Y-%m-%d %H:%M")
    return [
        status.id,
        place(status.system),
        status.scheduler_id,
        _state(status, out),
        tasks,
        when,
        status.status.sentence,
    ]


@job.command()
@click.argument("job")
@json_output(JobDetails)
def show(out: Out, job: str) -> int:
    """Show the status of a job, its resource usage, and why it failed.

    \b
    Example:
      fairmile job show tides
    """
    out.show(Workspace.open().jobs.show(job), lambda details: _print_details(out, details))
    return 0


def _print_details(out: Out, details: JobDetails) -> None:
    job = details.job
    out.heading(f"{job.id}: {_words(job.state)}")
    out.items(_facts(job))
    bad = {index: task for index, task in job.tasks.items() if task.state not in (State.DONE, State.QUEUED)}
    rows = [[index, _words(task.state), task.exit_code, task.sentence] for index, task in sorted(bad.items())]
    out.table(["task", "state", "exit code", "why"], rows[:_SHOWN_TASKS], shrink=["why"])
    if len(rows) > _SHOWN_TASKS:
        out.say(f"and {len(rows) - _SHOWN_TASKS} more")
    if job.trouble:
        out.say(f"this may be out of date: {job.trouble}")
    _print_diagnosis(job, details.diagnosis, out)


def _facts(job: JobStatus) -> list[tuple[str, str]]:
    status = job.status
    usage = status.usage
    facts = {
        "system": job.system,
        "scheduler id": job.scheduler_id,
        "why": status.sentence,
        "exit code": "" if status.exit_code is None else str(status.exit_code),
        "nodes": status.nodes,
        "restarts": str(status.restarts) if status.restarts else "",
        "attempts": str(job.attempt) if job.attempt > 1 else "",
        "tasks": ", ".join(f"{number} {_words(state)}" for state, number in job.counts().items()),
        "folder": job.folder,
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
@click.option(
    "--task", type=click.IntRange(min=0), metavar="N", help="Print the output of this task of an array or pack."
)
@click.option("--err", "errors", is_flag=True, help="Print stderr instead of stdout.")
@click.option("--follow", "-f", is_flag=True, help="Keep printing until the job ends.")
@json_output(JobLog)
def log(out: Out, job: str, task: int | None, errors: bool, follow: bool) -> int:
    """Print the output of a job, even while it runs. For an array, the default is task 0.

    \b
    Examples:
      fairmile job log tides
      fairmile job log tides --err --follow
    """
    jobs = Workspace.open().jobs
    if follow and not out.as_json:
        _print_log(out, jobs.follow(job, task=task, errors=errors))
    else:
        out.show(jobs.log(job, task=task, errors=errors), lambda text: _print_log(out, [text]))
    return 0


def _print_log(out: Out, pieces: Iterable[bytes]) -> None:
    for piece in pieces:
        out.document(piece)
        sys.stdout.flush()


@job.command()
@click.argument("jobs", metavar="JOB...", nargs=-1, required=True)
@click.option("--timeout", metavar="TIME", help="Stop waiting after this time, such as 90s or 2h.")
@json_output(JobList)
@notifies
def wait(out: Out, jobs: tuple[str, ...], timeout: str | None) -> int:
    """Wait for jobs to end; exit with 1 if one fails.

    \b
    Example:
      fairmile job wait tides --timeout 2h
    """
    return _wait_for(Workspace.open(), out, list(jobs), parse_time(timeout) if timeout else None)


@job.command()
@click.argument("jobs", metavar="JOB...", nargs=-1, required=True)
@DRY_RUN
@json_output(JobList)
def cancel(out: Out, jobs: tuple[str, ...], dry_run: bool) -> int:
    """Cancel queued or running jobs.

    \b
    Example:
      fairmile job cancel tides
    """
    cancelled = Workspace.open().jobs.cancel(jobs, dry_run=dry_run)
    out.show(cancelled, lambda cancelled: _print_cancelled(out, cancelled, dry_run))
    return 0


def _print_cancelled(out: Out, jobs: JobList, dry_run: bool) -> None:
    for each in jobs:
        more = "" if each.is_over else ", would be cancelled" if dry_run else ", cancel requested"
        out.line(f"{each.id}: {_words(each.state)}{more}")


@job.command()
@click.argument("job")
@click.option(
    "--to",
    type=click.Path(path_type=Path),
    default=Path(),
    metavar="FOLDER",
    help="Copy the files into this folder.  [default: the current one]",
)
@DRY_RUN
@json_output(CopiedFiles)
def bring(out: Out, job: str, to: Path, dry_run: bool) -> int:
    """Copy the declared output files of a job from the system it ran on.

    \b
    Example:
      fairmile job bring tides --to results
    """
    copied = Workspace.open().jobs.bring(job, to, dry_run=dry_run)
    out.show(copied, lambda copied: _print_copied(out, copied, dry_run))
    return 0


def _print_copied(out: Out, files: CopiedFiles, dry_run: bool) -> None:
    for path in files:
        out.line(f"{'would copy' if dry_run else 'copied'}  {path}")
    if not files:
        out.say("the job declared no outputs")
        out.hint("`fairmile job submit --output-file NAME …` declares one")


@job.command()
@click.argument("jobs", metavar="JOB...", nargs=-1, required=True)
@DRY_RUN
@json_output(RemovedJobs)
def rm(out: Out, jobs: tuple[str, ...], dry_run: bool) -> int:
    """Remove ended jobs and their folders.

    \b
    Example:
      fairmile job rm tides --dry-run
    """
    removed = Workspace.open().jobs.rm(jobs, dry_run=dry_run)
    out.show(removed, lambda removed: _print_removed(out, removed, dry_run))
    return 0


def _print_removed(out: Out, jobs: RemovedJobs, dry_run: bool) -> None:
    for id in jobs:
        out.line(f"{'would remove' if dry_run else 'removed'}  {id}")
