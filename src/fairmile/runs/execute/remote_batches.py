"""A batch on a machine that ssh reaches: it travels once, job arrays execute it there, and its records come back.

Over there, beside the folders of jobs, `.batches/NAME` holds what a batch is made of (see `worker`), the travelling
recorder, and the folders of its runs, which all job arrays of the batch share: what one of them left goes on in the
next. Here, `.far/KEY.json` says of each job array which runs its tasks execute, and of which the records are here.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import tarfile
import tempfile
import zlib
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from fairmile.base.digest import sha256_hex
from fairmile.base.errors import FairmileError, Integrity, Locked, SystemFailure, Transient, Unsupported, UsageError
from fairmile.base.files import Lock, safe_join, write_atomic, write_failure
from fairmile.base.lazy import lazy_pattern
from fairmile.base.quick_dataclass import dataclass
from fairmile.jobs.spec import JobSpec, Resources
from fairmile.jobs.states import State
from fairmile.meter.lines import FILES
from fairmile.runs.execute.batches import ArrayState, Frozen, array_job
from fairmile.runs.execute.carrier import (
    AS_PYTHON,
    RECORDER,
    TRAVEL,
    placed_inputs,
    recorder_file,
    run_state,
    tied,
    travelling_inputs,
)
from fairmile.runs.execute.crew import TAKEN
from fairmile.runs.execute.program import Ending
from fairmile.runs.execute.recorder import finish
from fairmile.runs.execute.worker import BATCH, MEMBERS, Batch
from fairmile.runs.record.crate import INPUTS
from fairmile.runs.record.layout import CARD, FAR, OUTPUT, RECORD, WORK, parse_record, read_record, write_record
from fairmile.runs.record.record import Attempt, JobReference, RunRecord, RunState

if TYPE_CHECKING:
    from fairmile.jobs.judge import TaskStatus
    from fairmile.jobs.machines import Machine
    from fairmile.jobs.queue import Jobs, JobStatus

_WORKER = (
    "-m",
    "fairmile.runs.execute.worker",
)  # what travels; whoever starts anything else needs more than a Python there
_BATCHES, _RUNS, _READY, _START, _TASKS = ".batches", "runs", "ready", "work.sh", "tasks.json"
_ID = lazy_pattern(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_FILES = (RECORD, OUTPUT, CARD, FILES)  # of a run: what comes back
_MOST_BYTES = 1 << 30  # that come at once
_MOST_RUNS = 200
_MOST_TASKS = 100  # whose records come before that is noted
_PATIENCE_S = 600.0
_UNPACK_S = 24 * 3600.0
_START_TEXT = f"""\
#!/bin/sh
here=${{0%/*}}
{AS_PYTHON.replace("ARGUMENTS", f'"$here/{RECORDER}" worker "$here" --tasks "$FAIRMILE_JOB_FOLDER/{_TASKS}" "$@"')}\
echo "fairmile: no Python 3.11 or later found" >&2
exit 3
"""
_UNPACK = f"""\
cd -- "$1" || exit 1
if [ -f {TRAVEL} ]; then tar -xzof {TRAVEL} && rm -f {TRAVEL} || exit 1; fi
mkdir -p -m 700 {_RUNS} && echo there >{_READY}
"""
_TOUCH = 'cd -- "$1" && while read -r name; do : >"$name" || exit 1; done'
# FOLDER PACK KIB, and names of runs as lines: `packed`, `nothing`, or `large` where that is more than so many KiB.
_PACK = f"""\
cd -- "$1/{_RUNS}" || {{ echo nothing; exit 0; }}
pack=$1/$2 most=$3
find "$1" -maxdepth 1 -name '.bring-*' -mtime +0 -exec rm -f {{}} +
set --
while read -r id; do if [ -d "$id" ]; then set -- "$@" "$id"; fi; done
if [ $# = 0 ]; then echo nothing; exit 0; fi
umask 077
find "$@" -maxdepth 1 -type f \\( WHICH \\) >"$pack.list"
size=$(xargs wc -c <"$pack.list" | awk '$2 ~ /[/]/ {{ size += $1 }} END {{ printf "%.0f", size / 1024 }}')
if [ ! -s "$pack.list" ]; then echo nothing
elif [ "$size" -gt "$most" ]; then echo large
else
    tar -czf "$pack" -T "$pack.list"
    if [ $? -le 1 ]; then echo packed; fi # 1: a file grew meanwhile
fi
rm -f "$pack.list"
"""


@dataclass(frozen=True)
class _Array:
    """What is noted here of a job array over there."""

    system: str
    batch: str  # its folder, as seen from that of the jobs
    folder: str  # of the batch on this machine
    tasks: tuple[tuple[str, ...], ...]  # the runs of each
    brought: frozenset[int] = frozenset()

    def missing(self, job: JobStatus) -> list[int]:
        """Return the tasks that have ended, and whose records are not here."""
        return [n for n in range(len(self.tasks)) if n not in self.brought and _status_of(job, n).state.is_end]


class RemoteBatches:
    """Job arrays on machines that ssh reaches, whose runs belong among those below `root`."""

    def __init__(self, root: Path, jobs: Jobs) -> None:
        self._root = root
        self._jobs = jobs

    # There

    def job(
        self,
        frozen: Frozen,
        worker: Sequence[str],
        *,
        count: int,
        at_once: int | None,
        resources: Resources,
        key: str,
    ) -> JobSpec:
        """Return the job array whose tasks execute members over there; the batch is sent unless it is there."""
        machine = self._jobs.machines[frozen.spec.system]
        if tuple(worker[:2]) != _WORKER or list(worker[3:4]) != ["--tasks"]:
            raise Unsupported(
                f"{frozen.spec.system} is reached over ssh and does not share this workspace",
                hint=f"start it there: `ssh {machine.reach.host}`",
            )
        file, rest = worker[4], worker[5:]
        tasks = json.loads((frozen.folder / file).read_bytes())
        ids = [member["id"] for member in Batch.read(frozen.folder).members()]
        if bad := next((id for id in ids if not _ID.fullmatch(id)), None):
            raise UsageError(f"{bad!r} is not a valid run id there", hint="use letters, digits, . _ -")
        batch = self._send(frozen, machine)
        runs = tuple(tuple(ids[number] for number in numbers) for numbers in tasks["tasks"])
        self._write(key, _Array(frozen.spec.system, batch, str(frozen.folder), runs))
        words = ("sh", f"{machine.place.root}/{batch}/{_START}", *rest)
        made = array_job(frozen.spec, words, count=count, at_once=at_once, resources=resources, key=key)
        return made.model_copy(update={"texts": {_TASKS: json.dumps(tasks)}})

    def forget(self, key: str) -> None:
        """Forget a job array that was never submitted."""
        self._file(key).unlink(missing_ok=True)

    def batch_of(self, key: str) -> Path | None:
        """Return the folder on this machine of the batch that a job array over there executes."""
        array = self._read(key)
        return None if array is None else Path(array.folder)

    def touch(self, key: str, names: Sequence[str]) -> None:
        """Make empty files in the folder of a batch over there; nothing for a job array that is not there."""
        array = self._read(key)
        if array is None:
            return
        machine = self._jobs.machines[array.system]
        argv = ["sh", "-c", _TOUCH, "sh", f"{machine.place.root}/{array.batch}"]
        machine.runner.run(argv, input="".join(f"{name}\n" for name in names), timeout_s=_PATIENCE_S)

    def _send(self, frozen: Frozen, machine: Machine) -> str:
        """Bring a batch to a machine unless it is there, and return its folder as seen from that of the jobs."""
        content, batch = (frozen.folder / BATCH).read_bytes(), Batch.read(frozen.folder)
        parts = [os.fsencode(frozen.folder), content, (frozen.folder / MEMBERS).read_bytes()]
        label = sha256_hex(b"\0".join(parts))[:12]
        name = f"{_BATCHES}/{re.sub(r'[^A-Za-z0-9._-]', '_', frozen.folder.name)[:80]}-{label}"
        # Of two that submit it at once, the slower would copy over the recorder that tasks of the other already run.
        with Lock(self._root / FAR / f".send-{label}", timeout_s=_UNPACK_S):
            if not machine.place.read(name, _READY, 0, 1):
                self._bring_over(frozen, batch, machine, name)
        return name

    def _bring_over(self, frozen: Frozen, batch: Batch, machine: Machine, name: str) -> None:
        there = f"{machine.place.root}/{name}"
        files = {MEMBERS: frozen.folder / MEMBERS, RECORDER: recorder_file(self._root / ".recorder")}
        folders = {WORK: batch.code} if batch.code else {}
        for input_name, path in travelling_inputs(batch.shared.captured):
            if os.path.isdir(path):
                folders[f"{INPUTS}/{input_name}"] = path
            else:
                files[f"{INPUTS}/{input_name}"] = Path(path)
        links = placed_inputs(batch.shared.captured, frozen.folder / WORK, WORK, INPUTS)
        texts = {BATCH: _moved(batch, there).text(), _START: _START_TEXT}
        with tempfile.TemporaryDirectory(dir=frozen.folder, prefix=".travel-") as temporary:
            if folders or links:  # as one file, since each that is sent takes a call of its own
                files[TRAVEL] = tied(Path(temporary) / TRAVEL, folders, links)
            machine.place.make(name, texts, files)
        machine.runner.run(["sh", "-c", _UNPACK, "sh", there], timeout_s=_UNPACK_S)

    # Back

    def state(self, key: str, job: JobStatus) -> ArrayState:
        """Return where a job array stands; of a task that counts as ended, the records of its runs are here.

        Where the connection fails, what could not be brought now is brought the next time.
        """
        array = self._read(key)
        if array is None:
            return ArrayState.of(job)
        if array.missing(job):
            with contextlib.suppress(Transient):
                array = self._bring(key, job) or array
        is_over = job.is_over and len(array.brought) == len(array.tasks)
        if is_over:
            self.forget(key)
        return ArrayState(job.id, is_over, array.brought, job.status.sentence)

    def _bring(self, key: str, job: JobStatus) -> _Array | None:
        """Bring the records of tasks that have ended; None where another process is about to, or has."""
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(Lock(self._root / FAR / f".{key}", timeout_s=0.2))
            except Locked:
                return None
            array = self._read(key)
            if array is None:
                return None
            ended = array.missing(job)
            for at in range(0, len(ended), _MOST_TASKS):
                group = ended[at : at + _MOST_TASKS]
                ids = [id for n in group for id in array.tasks[n]]
                for first in range(0, len(ids), _MOST_RUNS):
                    self._fetch(key, array, ids[first : first + _MOST_RUNS])
                for n in group:
                    self._settle(key, array, job, n)
                array = replace(array, brought=array.brought | set(group))
                self._write(key, array)
            return array

    def _fetch(self, key: str, array: _Array, ids: Sequence[str], files: Sequence[str] = _FILES) -> None:
        """Bring what runs left of their records; of one that left too much, only the record itself."""
        machine = self._jobs.machines[array.system]
        there, pack = f"{machine.place.root}/{array.batch}", f".bring-{secrets.token_hex(6)}"
        which = " -o ".join(f"-name '{name}'" for name in files)
        argv = ["sh", "-c", _PACK.replace("WHICH", which), "sh", there, pack, str(_MOST_BYTES >> 10)]
        answer = machine.runner.run(argv, input="".join(f"{id}\n" for id in ids), timeout_s=_PATIENCE_S).stdout.split()
        if answer == ["large"] and len(ids) > 1:
            for half in (ids[: len(ids) // 2], ids[len(ids) // 2 :]):
                self._fetch(key, array, half, files)
        elif answer == ["large"] and files != (RECORD,):
            self._fetch(key, array, ids, (RECORD,))
        elif answer == ["packed"]:
            note = "" if files == _FILES else f"its output and log are too large to copy; they are in {there}"
            try:
                with tempfile.TemporaryDirectory(dir=self._root, prefix=".bring-") as temporary:
                    machine.place.bring(array.batch, pack, Path(temporary) / pack)
                    self._unpack(Path(temporary) / pack, frozenset(ids), key, array.system, note)
            finally:
                with contextlib.suppress(FairmileError):
                    machine.runner.run(["rm", "-f", f"{there}/{pack}"], timeout_s=_PATIENCE_S)
        elif answer != ["nothing"]:
            raise SystemFailure(f"{array.system} did not pack the records in {there}: {' '.join(answer)[:200]!r}")

    def _unpack(self, pack: Path, ids: frozenset[str], key: str, system: str, note: str) -> None:
        """Lay files of records into the folders of their runs, the record itself last; anything else is left alone."""
        records: dict[str, bytes] = {}
        left_bytes = _MOST_BYTES + (_MOST_BYTES >> 6)  # it may have grown while it was packed
        try:
            with tarfile.open(pack, "r:gz") as archive:
                for each in archive:
                    id, _, name = each.name.removeprefix("./").partition("/")
                    left_bytes -= each.size
                    if left_bytes < 0:
                        raise Integrity(f"the records from {system} are larger than announced")
                    stream = archive.extractfile(each) if each.isreg() else None
                    if stream is None or id not in ids or not any(fnmatchcase(name, known) for known in _FILES):
                        continue
                    data = stream.read()
                    if name == RECORD:
                        records[id] = data
                        continue
                    _made(self._root / id)
                    write_atomic(safe_join(self._root, f"{id}/{name}"), data, sync=False)
        except (tarfile.TarError, EOFError, zlib.error) as error:
            raise Integrity(f"the records from {system} are damaged: {error}", hint="try again") from error
        for id, data in records.items():
            record = _checked(data, id, system)
            if record.result is None and record.job is not None and record.job.key != key:
                continue  # a task of another array is at it, whose end brings the record
            if note and record.result is not None:
                record.result.notes.append(f"{note}/{_RUNS}/{id}")
            _made(self._root / id)
            write_record(self._root / id, record)

    def _settle(self, key: str, array: _Array, job: JobStatus, n: int) -> None:
        """Write the ends of runs whose task died before it began one, from what is known of that task."""
        status = _status_of(job, n)
        carried = JobReference(key=key, system=array.system, task=n)
        missing = [id for id in array.tasks[n] if not (self._root / id / RECORD).exists()]
        began = any(self._job_of(id) == carried for id in array.tasks[n])
        # One that was cancelled, or never came to the queue, leaves its runs to the next job.
        if began or not missing or n not in job.tasks or status.state in (State.DONE, State.CANCELLED):
            return
        ends, last = self._printed(job.id, n)
        hint = f"`fairmile job log {job.id} --task {n} --err` shows what it printed"
        try:
            batch = Batch.read(Path(array.folder))
            members = {member["id"]: member for member in batch.members()}
        except SystemFailure:  # the batch was removed here: nobody asks for them
            return
        for id in missing:
            if ends.get(id) == TAKEN or id not in members:
                continue
            record = batch.fresh(members[id], carried)
            began_s = status.started or record.created
            record.attempts = [Attempt(started=began_s, host=status.nodes or array.system)]
            record.captured.recorded_by = f"the scheduler of {array.system}"
            reason = ends.get(id, "").partition(": ")[2] or f"its task ended too early: {last or status.sentence}"
            ending = Ending(run_state(status.state), status.exit_code, status.signal, reason, hint)
            _made(self._root / id)
            record.state = RunState.QUEUED
            write_record(self._root / id, record)
            elapsed_s = max((status.ended or began_s) - began_s, 0.0)
            finish(self._root / id, record, ending, elapsed_s, {"watch": "it did not start"})

    def _printed(self, job: str, n: int) -> tuple[dict[str, str], str]:
        """Return how a task said that its runs ended, and what Fairmile last complained of over there."""
        out = self._jobs.log(job, task=n, tail=True).decode(errors="replace").splitlines()
        errors = self._jobs.log(job, task=n, errors=True, tail=True).decode(errors="replace").splitlines()
        complaints = [line.removeprefix("fairmile: ") for line in errors if line.startswith("fairmile: ")]
        return {id: text for id, _, text in (line.partition(" ") for line in out)}, (complaints or [""])[-1]

    def _job_of(self, id: str) -> JobReference | None:
        try:
            return read_record(self._root / id).job
        except (FileNotFoundError, NotADirectoryError):
            return None

    # What is noted

    def _file(self, key: str) -> Path:
        return safe_join(self._root, f"{FAR}/{key}.json")

    def _write(self, key: str, array: _Array) -> None:
        write_atomic(self._file(key), json.dumps({**vars(array), "brought": sorted(array.brought)}))

    def _read(self, key: str) -> _Array | None:
        file = self._file(key)
        try:
            document = json.loads(file.read_bytes())
            tasks = tuple(tuple(ids) for ids in document["tasks"])
            return _Array(
                document["system"], document["batch"], document["folder"], tasks, frozenset(document["brought"])
            )
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SystemFailure(f"cannot read {file}: {error}") from error


def _moved(batch: Batch, there: str) -> Batch:
    """Return what all members of a batch share, with paths as they are in its folder on another machine."""
    work, values, shared = batch.folder / WORK, {}, batch.shared.copy()
    for name, text in batch.values.items():
        is_inside = Path(text).is_relative_to(work)  # as data that a model wants at a place of its own
        values[name] = f"{there}/{WORK}/{Path(text).relative_to(work)}" if is_inside else text
    for name, _ in travelling_inputs(shared.captured):
        values[f"inputs.{name}"] = f"{there}/{INPUTS}/{name}"
        shared.captured.inputs[name].there = values[f"inputs.{name}"]
    is_placed = any(each.at for each in shared.captured.inputs.values())
    code = f"{there}/{WORK}" if batch.code or is_placed else ""
    return replace(batch, shared=shared, root=Path(f"{there}/{_RUNS}"), code=code, values=values, travelled=True)


def _status_of(job: JobStatus, n: int) -> TaskStatus:
    return job.tasks.get(n, job.status)


def _checked(data: bytes, id: str, system: str) -> RunRecord:
    """Return a record that came from elsewhere."""
    try:
        record = parse_record(data, RECORD)
    except SystemFailure as error:
        raise Integrity(f"the record of run {id} from {system} cannot be read: {error}") from error
    if record.id != id:
        raise Integrity(f"{system} sent the record of another run for {id}")
    return record


def _made(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise write_failure(str(folder), error) from error
