"""A run carried by a job: how it is handed over, and how its record comes back."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import shlex
import shutil
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import rfc8785

from fairmile.base.errors import FairmileError, SystemFailure, Transient, UsageError
from fairmile.base.files import safe_join, write_atomic, write_failure
from fairmile.base.lazy import lazy
from fairmile.jobs.states import State
from fairmile.runs.execute.executor import PreparedRun
from fairmile.runs.execute.program import Ending
from fairmile.runs.execute.recorder import finish
from fairmile.runs.record.crate import INPUTS
from fairmile.runs.record.layout import OUTPUT, PACK, RECORD, THERE, WORK, WORK_THERE, read_record, record_text
from fairmile.runs.record.record import Attempt, Captured, JobReference, RunRecord
from fairmile.runs.record.run import Run, RunState
from fairmile.runs.record.values import split_coupled

if TYPE_CHECKING:
    from fairmile.jobs.queue import Jobs, JobStatus
    from fairmile.jobs.spec import Beside, JobSpec, Nearby
    from fairmile.runs.record.spec import RunSpec
else:
    Beside = lazy("fairmile.jobs.spec:Beside")
    JobSpec = lazy("fairmile.jobs.spec:JobSpec")

RECORDER = "fairmile-recorder.pyz"
PYTHON = "python3"  # where no environment says which
# Programs of ours, as a command starts them, with the parts of Fairmile that they need.
_PROGRAMS = {
    "fairmile.benchmarks": ("base", "meter", "benchmarks"),
    "fairmile.models.explore.program": ("base", "meter", "benchmarks", "models"),
}
_START = "record.sh"
TRAVEL = "work.tar.gz"  # what goes along, until it has arrived
_MOST_BYTES = 1 << 30
# What the recorder consists of when it travels: pure Python, and two packages besides that are so, too.
# Of a package without names all modules go.
_PACKAGES: dict[str, tuple[str, ...]] = {
    "": ("__init__",),
    "base": (),
    "meter": (),
    "meter/sources": (),
    "systems": ("__init__", "hardware"),
    "runs": ("__init__", "coverage"),
    "runs/record": ("__init__", "crate", "layout", "parts", "record", "values"),
    "runs/execute": (
        *("__init__", "cancellation", "capture", "claims", "crew", "ending", "output_reader", "pair", "printed"),
        *("processes", "program", "recorder", "watching", "worker", "written"),
    ),
}
_MAIN = """\
import sys

from fairmile.runs.execute import pair
from fairmile.runs.execute import recorder
from fairmile.runs.execute import worker

try:
    if sys.argv[1] in ("pair", "worker"):
        sys.exit({"pair": pair, "worker": worker}[sys.argv[1]].start(sys.argv[2:]))
    sys.exit(recorder.start(sys.argv[1:]))
except KeyboardInterrupt:
    sys.exit(130)
"""
# Lines of a shell that become the first Python which is new enough; what it is given stands for ARGUMENTS.
AS_PYTHON = """\
for python in python3 python3.13 python3.12 python3.11; do
    if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        exec "$python" ARGUMENTS
    fi
done
"""
_RECORDING = f'"$FAIRMILE_JOB_FOLDER/{RECORDER}" "$FAIRMILE_JOB_FOLDER/{THERE}" PACKING -- "$@"'
# A machine whose Python is too old runs the program all the same; its scheduler then tells how that ended.
_START_TEXT = f"""\
#!/bin/sh
cd "$FAIRMILE_JOB_FOLDER" || exit 3
if [ -f {TRAVEL} ]; then tar -xzf {TRAVEL} && rm -f {TRAVEL} || exit 3; fi
LATE\
{AS_PYTHON.replace("ARGUMENTS", _RECORDING)}\
echo "fairmile: no Python 3.11 or later found, so nothing is measured" >&2
mkdir -p "$FAIRMILE_JOB_FOLDER/{WORK_THERE}" && cd "$FAIRMILE_JOB_FOLDER/{WORK_THERE}" && exec "$@"
"""
_STATES = {
    State.DONE: "done",
    State.CANCELLED: "cancelled",
    State.TIMED_OUT: "timeout",
    State.LOST: "interrupted",
    State.NODE_FAILED: "interrupted",
    State.PREEMPTED: "interrupted",
}


def local_job(spec: RunSpec, argv: Sequence[str], folder: Path, key: str) -> JobSpec:
    """Return the job that executes a run on a machine which sees the files of this one."""
    recorder = (sys.executable, "-P", "-m", "fairmile.runs.execute.recorder", str(folder), "--")
    return _job(spec, argv, key, recorder=recorder, folder=spec.folder)


def remote_job(
    work: PreparedRun, spec: RunSpec, argv: Sequence[str], record: RunRecord, recorder: Path, key: str
) -> JobSpec:
    """Return the job that executes a run elsewhere: record, recorder, the folder it works in and inputs travel."""
    folder = work.folder
    near = {f"{THERE}/{INPUTS}/{name}": each for name, each in work.nearby.items()}
    late = {name: each for name, each in near.items() if not each.sha256}
    going = {f"{THERE}/{INPUTS}/{name}": path for name, path in travelling_inputs(record.captured)}
    inputs = {name: path for name, path in going.items() if name not in late and not os.path.isdir(path)}
    folders = {name: path for name, path in going.items() if name not in inputs and name not in late}
    if (folder / WORK).is_dir():
        folders[f"{WORK_THERE}"] = str(folder / WORK)
    links = placed_inputs(record.captured, folder / WORK, f"{WORK_THERE}", f"{THERE}/{INPUTS}")
    if folders or links:  # as one file, since each that is sent takes a call of its own
        inputs[TRAVEL] = str(tied(folder / TRAVEL, folders, links))
    texts = {f"{THERE}/{RECORD}": record_text(record), _START: _start_text(late, leaves=work.leaves_outputs)}
    made = _job(spec, argv, key, recorder=("sh", _START), folder="")
    given = {
        "inputs": {**inputs, RECORDER: str(recorder)},
        "nearby": {name: each for name, each in near.items() if name in inputs},
        "texts": texts,
        "outputs": (f"{THERE}/{PACK}",),
    }
    return made.model_copy(update=given)


def _start_text(late: Mapping[str, Nearby], *, leaves: bool) -> str:
    """Return the script that starts a run elsewhere; `late` inputs are there when it does, in folders of other jobs."""
    lines = [f"mkdir -p {THERE}/{INPUTS}"] if late else []
    for name, each in late.items():  # the program tells of one that is missing
        lines.append(f"cp -p -- {shlex.quote(f'../{each.job}/{each.path}')} {shlex.quote(name)}")
    text = _START_TEXT.replace("PACKING", "--pack-record" if leaves else "--pack")
    return text.replace("LATE", "".join(f"{line}\n" for line in lines))


def copy_parts(argv: Sequence[str], work: Path) -> None:
    """Put what a program of ours needs of Fairmile beside it, for a machine that has none."""
    parts = next((_PROGRAMS[word] for word in argv if word in _PROGRAMS), ())
    if not parts:
        return
    own = Path(str(files("fairmile")))
    try:
        for part in parts:
            ignored = shutil.ignore_patterns("__pycache__", "templates")
            shutil.copytree(own / part, work / "fairmile" / part, ignore=ignored, dirs_exist_ok=True)
        shutil.copy(own / "__init__.py", work / "fairmile")
    except OSError as error:
        raise write_failure(str(work), error) from error


def tied(file: Path, folders: Mapping[str, str], links: Mapping[str, str]) -> Path:
    """Put folders into one file, each under a name, and links, each with where it leads; return that file."""
    try:
        # The same contents become the same bytes, which are sent once.
        with (
            open(file, "wb") as stream,
            gzip.GzipFile("", "wb", fileobj=stream, mtime=0) as packed,
            tarfile.open(fileobj=packed, mode="w", dereference=True) as archive,
        ):
            for name, path in folders.items():
                archive.add(path, name, filter=_without_times)
            for name, path in links.items():
                link = tarfile.TarInfo(name)
                link.type, link.linkname = tarfile.SYMTYPE, path
                archive.addfile(link)
    except OSError as error:
        raise write_failure(str(file), error) from error
    return file


def _without_times(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.mtime = 0
    return entry


def remote_values(record: RunRecord) -> dict[str, str]:
    """Return what placeholders stand for elsewhere, as seen from where the program starts; the record notes inputs."""
    up = os.path.relpath(WORK, os.path.join(WORK, record.spec.subfolder))
    values = {"source": up, "run": os.path.join(up, ".."), "python": PYTHON}
    for name, _ in travelling_inputs(record.captured):
        there = os.path.join(up, "..", INPUTS, name)
        record.captured.inputs[name].there = values[f"inputs.{name}"] = there
    return values


def placed_inputs(captured: Captured, here: Path, work: str, inputs: str) -> dict[str, str]:
    """Return links by which a program elsewhere finds inputs where they are in the folder that it was started from.

    `here` is what goes along as its folder: what lies in it already needs no link.
    """
    links = {}
    for name, _ in travelling_inputs(captured):
        at = captured.inputs[name].at
        if at and not os.path.lexists(here / at):
            links[f"{work}/{at}"] = os.path.relpath(f"{inputs}/{name}", os.path.dirname(f"{work}/{at}"))
    return links


def travelling_inputs(captured: Captured) -> list[tuple[str, str]]:
    """Return the inputs that a program elsewhere must be given, by name, with where each is here."""
    return [(name, each.path) for name, each in captured.inputs.items() if each.path and not each.place]


def _job(spec: RunSpec, argv: Sequence[str], key: str, *, recorder: tuple[str, ...], folder: str) -> JobSpec:
    beside = None
    if spec.model_resources is not None:
        argv, model = split_coupled(argv)
        beside = Beside(argv=tuple(model), resources=spec.model_resources)
    return JobSpec(
        argv=tuple(argv),
        beside=beside,
        name=spec.name,
        env=spec.env,
        resources=spec.resources,
        software=spec.software,
        launch=spec.launch,
        recorder=recorder,
        folder=folder,
        key=key,
    )


@cache
def recorder_bytes() -> bytes:
    """Return the recorder as one file that any Python from 3.11 on executes, the same bytes at any time."""
    target = io.BytesIO()
    own = files("fairmile")
    nvml = find_spec("pynvml")  # which takes long to load
    assert nvml is not None and nvml.origin is not None
    with zipfile.ZipFile(target, "w") as archive:

        def add(name: str, data: bytes) -> None:
            # The time of now would make it another file, which travels again and replaces one that somebody is sending.
            entry = zipfile.ZipInfo(name)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)

        for package, modules in _PACKAGES.items():
            folder = own.joinpath(package) if package else own
            for entry in sorted(folder.iterdir(), key=lambda each: each.name):
                stem, _, suffix = entry.name.partition(".")
                if suffix == "py" and (not modules or stem in modules):
                    add(f"fairmile/{package}/{entry.name}".replace("//", "/"), entry.read_bytes())
        for name in ("opened.c", "sitecustomize.py"):  # by which the recorder watches a program
            add(f"fairmile/runs/execute/audit/{name}", own.joinpath("runs/execute/audit", name).read_bytes())
        add("__main__.py", _MAIN.encode())
        # To measure NVIDIA GPUs, where there are any.
        add("pynvml.py", Path(nvml.origin).read_bytes())
        for file in sorted(Path(rfc8785.__file__).parent.glob("*.py")):  # to give members of a batch their identities
            add(f"rfc8785/{file.name}", file.read_bytes())
    return target.getvalue()


def collect(run: Run, jobs: Jobs, arrays: dict[str, JobStatus | None]) -> Run:
    """Return a run that a job carries as it stands now; where it has ended, its record is here and complete.

    `arrays` are the jobs that were asked for before, by their keys.
    """
    carried = run.job
    assert carried is not None
    if carried.task is not None:
        return _of_array(run, carried, carried.task, jobs, arrays)
    job = arrays[carried.key] if carried.key in arrays else jobs.find(carried.key)
    is_remote = bool(jobs.machines[carried.system].reach.host)
    if job is None:
        is_lost = time.time() - run.created > 60
        return run.in_state(RunState.INTERRUPTED) if is_lost else run
    if is_remote and job.is_over:
        try:
            _bring(run.folder, job, jobs)
        except Transient as error:
            return run.in_state(RunState.RUNNING, f"it has ended, but its record is still on {job.system}: {error}")
    record = read_record(run.folder)
    if record.result is not None:
        return Run(record, run.folder)
    if not job.is_over:
        state = RunState.RUNNING if job.state is State.RUNNING else RunState.QUEUED
        return Run(record, run.folder).in_state(state, job.trouble)
    _complete(run.folder, record, job, jobs)
    return Run(record, run.folder)


def _of_array(run: Run, carried: JobReference, task: int, jobs: Jobs, arrays: dict[str, JobStatus | None]) -> Run:
    """Return a run that a task of a job array executes: its recorder wrote its end, or died with the task."""
    if carried.key not in arrays:
        arrays[carried.key] = jobs.find(carried.key)
    job = arrays[carried.key]
    status = job.tasks.get(task, job.status) if job is not None else None
    if status is not None and not status.state.is_end:
        return run
    record = read_record(run.folder)  # it may have ended since it was read, or another task goes on with it
    if record.result is not None or record.job != carried:
        return Run(record, run.folder)
    state = run_state(status.state, "interrupted") if status is not None else "interrupted"
    state = "interrupted" if state == "done" else state  # the task went on without it
    reason = "its job no longer exists" if status is None else f"the task ended: {status.sentence}"
    began = record.attempts[-1].started if record.attempts else record.created
    ended = status.ended if status is not None and status.ended else began
    record.attempts = record.attempts or [Attempt(started=began, host=carried.system)]
    ending = Ending(state, status.exit_code if status is not None else None, "", reason)
    finish(run.folder, record, ending, max(ended - began, 0.0), {"watch": "the recorder was killed"})
    return Run(record, run.folder)


def run_state(state: State, otherwise: str = "failed") -> str:
    """Return the state of a run whose job, or task, ended so."""
    return _STATES.get(state, otherwise)


def _bring(folder: Path, job: JobStatus, jobs: Jobs) -> None:
    """Copy what the recorder left on another machine into the run's folder."""
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".bring-") as temporary:
        try:
            (packed,) = jobs.bring(job.id, Path(temporary))
            with zipfile.ZipFile(packed) as archive:
                members = archive.infolist()
                if sum(each.file_size for each in members) > _MOST_BYTES:
                    raise UsageError(f"run {folder.name} left more than {_MOST_BYTES:,} bytes on {job.system}")
                for each in sorted(members, key=lambda each: each.filename == RECORD):  # the record comes last
                    if not each.is_dir():
                        write_atomic(safe_join(folder, each.filename), archive.read(each))
        except Transient:
            raise
        except (FairmileError, zipfile.BadZipFile, ValueError):
            return  # it never got so far: its scheduler knows how it ended


def _complete(folder: Path, record: RunRecord, job: JobStatus, jobs: Jobs) -> None:
    """Write the end of a run whose recorder could not, from what is known of its job."""
    status = job.status
    why = jobs.explain(job.id)
    reason = why.what if why is not None else status.sentence
    usage = status.usage
    used = {"cpu_s": usage.cpu_s, "max_rss_bytes": usage.max_rss_bytes} if usage is not None else {}
    began = status.started or record.created
    if not record.attempts:
        record.attempts = [Attempt(started=began, host=status.nodes or job.system)]
    state = run_state(job.state)
    exit_code = status.exit_code if status.exit_code is not None else 0 if state == "done" else None
    hint = why.advice if why is not None else ""
    with contextlib.suppress(FairmileError):
        if not (folder / OUTPUT).exists() and (printed := jobs.log(job.id)):
            write_atomic(folder / OUTPUT, printed)
    ending = Ending(state, exit_code, status.signal, reason, hint, {k: v for k, v in used.items() if v is not None})
    elapsed_s = max((status.ended or began) - record.attempts[-1].started, 0.0)
    record.captured.recorded_by = f"the scheduler of {job.system}"
    finish(folder, record, ending, elapsed_s, {"watch": "the recorder was killed during the run"})


def recorder_file(folder: Path) -> Path:
    """Return the travelling recorder as a file below a folder, written where it is not there."""
    data = recorder_bytes()
    file = folder / RECORDER
    try:
        if file.read_bytes() == data:
            return file
    except FileNotFoundError:
        pass
    except OSError as error:
        raise SystemFailure(f"cannot read {file}: {error}") from error
    write_atomic(file, data)
    return file
