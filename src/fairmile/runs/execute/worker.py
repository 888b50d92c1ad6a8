"""Executes members of a batch: many runs whose code, inputs and environment were prepared once.

A batch is a folder:

    batch.json     what all of them share: the record as far as it is known, variables, where runs are kept
    members.jsonl  one line a member: its id, what its specification says otherwise, its command, files of its own
    tasks-N.json   which members each task of the N-th job executes

The folder of a member's run is made when it starts, so that a member without one has not been begun. Like the recorder
this needs nothing but the standard library, `base` and `meter`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cache, cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from fairmile.base.errors import FairmileError, SystemFailure
from fairmile.base.files import Holder, write_failure
from fairmile.base.quick_dataclass import dataclass
from fairmile.runs.execute import capture
from fairmile.runs.execute.cancellation import BEFORE, cancel_name, watcher
from fairmile.runs.execute.claims import claim, claim_prepared, is_done
from fairmile.runs.execute.crew import CANCELLED, TAKEN, Ended, Order, execute_all
from fairmile.runs.execute.recorder import execute
from fairmile.runs.record.layout import WORK
from fairmile.runs.record.record import JobReference, RunRecord, RunState, TrialReference

BATCH, MEMBERS = "batch.json", "members.jsonl"
MEMBER = "FAIRMILE_MEMBER"  # stands in a launcher's command for that of a member
_MOST_LINKS = 200  # files that are linked one by one into the folder of a member; of more code only the top
_INTERRUPTED = 130
_UNWRITTEN_S = 5.0  # a folder without a record that is as old was left by a process that died
_AT_JOB, _RESUME = "FAIRMILE_BATCH_JOB", "FAIRMILE_RESUME"

# Called while a member runs; it returns why the program is to be stopped, or nothing.
Look = Callable[[], str]


@dataclass(frozen=True)
class Batch:
    """What the members of a batch share."""

    folder: Path
    shared: RunRecord  # the record of each of them, as far as it is the same
    root: Path  # where runs are kept
    env: Mapping[str, str]  # on top of what this process has
    code: str  # a folder whose files each member finds where it starts; empty: none
    wrapper: tuple[str, ...] = (MEMBER,)  # the command that a member's own stands in
    values: Mapping[str, str] = field(default_factory=dict)  # what placeholders stand for that members still have
    travelled: bool = False  # it lies on another machine than whoever decides what is executed
    own: frozenset[str] = frozenset()  # files and folders below `code` of which each member has its own

    @classmethod
    def read(cls, folder: Path) -> Batch:
        """Read what was prepared in a folder."""
        try:
            document = json.loads((folder / BATCH).read_bytes())
        except (OSError, ValueError) as error:
            raise SystemFailure(f"cannot read {folder / BATCH}: {error}") from error
        shared = RunRecord.from_dict(document["document"], f"document in {folder / BATCH}")
        root, wrapper = Path(document["root"]), tuple(document["around"])
        more = {"values": document.get("values", {}), "travelled": document.get("travelled", False)}
        more["own"] = frozenset(document.get("own", ()))
        return cls(folder, shared, root, document["env"], document["code"], wrapper, **more)

    def text(self) -> str:
        """Return what batch.json holds."""
        return json.dumps(
            {
                "document": self.shared.to_dict(),
                "root": str(self.root),
                "env": dict(self.env),
                "around": list(self.wrapper),
                "code": self.code,
                "values": dict(self.values),
                "travelled": self.travelled,
                "own": sorted(self.own),
            }
        )

    def members(self) -> list[Mapping[str, Any]]:
        """Return all members; each has `id`, `spec` and `argv`."""
        return [self.member(number) for number in range(len(self._lines))]

    def member(self, number: int) -> Mapping[str, Any]:
        """Return one member; the others, which may be many and long, are not looked at."""
        try:
            member: Mapping[str, Any] = json.loads(self._lines[number])
        except (LookupError, ValueError) as error:
            raise SystemFailure(f"cannot read member {number} in {self.folder / MEMBERS}: {error}") from error
        return member

    @cached_property
    def _lines(self) -> list[bytes]:
        try:
            return (self.folder / MEMBERS).read_bytes().splitlines()
        except OSError as error:
            raise SystemFailure(f"cannot read {self.folder / MEMBERS}: {error}") from error

    def execute(
        self,
        member: Mapping[str, Any],
        *,
        job: JobReference | None = None,
        trial: TrialReference | None = None,
        mended: bool = False,
        look: Look | None = None,
        then: Callable[[RunRecord], None] | None = None,
    ) -> RunRecord | None:
        """Execute a member to its end and return its record; None where another process does so at this moment.

        One that is done is left as it is; one that did not come to its end goes on in its folder. `job` and `trial` go
        into its record, and `then` may add to it what the end shows, before that is written. The record of one that may
        have been `mended` tells what runs now, and not what ran before.
        """
        folder = self.root / member["id"]
        with self._claimed(folder, member, job, trial) as record:
            if record is None or is_done(record):
                return record
            if mended:
                now = self.fresh(member)
                record.spec, record.captured, record.identity = now.spec, now.captured, now.identity
            return self._execute(folder, member, record, look, then)

    def _execute(
        self,
        folder: Path,
        member: Mapping[str, Any],
        record: RunRecord,
        look: Look | None,
        then: Callable[[RunRecord], None] | None,
    ) -> RunRecord:
        """Execute a member that was claimed."""
        work = folder / WORK
        values = {f"{{{name}}}": text for name, text in self.values.items()}
        values |= {"{run}": str(folder), "{source}": record.spec.folder or str(work)}
        argv = [_filled(word, values) for word in member["argv"]]
        argv = [word for part in self.wrapper for word in (argv if part == MEMBER else [part])]
        env = {**os.environ, **self.env, **member.get("env", {})}
        env.pop(_RESUME, None)  # of a run that this process is part of
        if record.attempts:
            env[_RESUME] = "1"
        shows = bool(self.code) and not record.spec.folder
        if shows:
            _show(self._shown, Path(self.code), work, is_fresh=not record.attempts)
        _lay(member.get("files", {}), work)
        record.argv = argv
        record = execute(folder, record, argv=argv, env=env, look=look, then=then)
        if shows and record.state is RunState.DONE:
            _drop_unchanged(self._shown, Path(self.code), work)
        return record

    @cached_property
    def _shown(self) -> list[tuple[str, str]]:
        """What each member finds where it starts: names, and whether it is a link, a copy, or a folder of its own."""
        code = Path(self.code)
        files = sum(len(files) for _, _, files in os.walk(code))
        above = {str(folder) for name in self.own for folder in PurePosixPath(name).parents}
        return list(_entries(code, "", self.own, self.own | above, is_deep=files <= _MOST_LINKS))

    @contextlib.contextmanager
    def _claimed(
        self, folder: Path, member: Mapping[str, Any], job: JobReference | None, trial: TrialReference | None
    ) -> Iterator[RunRecord | None]:
        """Give the record of a member to go on with; None while somebody is at it."""
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            with self._begun(folder, member, job, trial) as record:
                yield record
            return
        except OSError as error:
            raise write_failure(str(folder), error) from error
        yield self.fresh(member, job, trial)

    def fresh(
        self, member: Mapping[str, Any], job: JobReference | None = None, trial: TrialReference | None = None
    ) -> RunRecord:
        """Return the record of a member that has not begun, with the job and the trial where there are such."""
        record = self.shared.copy()
        record.id, record.created = member["id"], time.time()
        record.spec = record.spec.changed(member["spec"])
        record.job, record.trial = job or record.job, trial or record.trial
        record.identity = capture.identity(record.spec, record.captured)
        return record

    @contextlib.contextmanager
    def _begun(
        self, folder: Path, member: Mapping[str, Any], job: JobReference | None, trial: TrialReference | None
    ) -> Iterator[RunRecord | None]:
        """Give the record of a member that was begun before; None while somebody is at it."""

        def fresh() -> RunRecord | None:  # whoever made the folder is about to write it, or died before
            age_s = time.time() - folder.stat().st_mtime
            return None if age_s < _UNWRITTEN_S else self.fresh(member)

        def is_replaced(record: RunRecord, holder: Holder) -> bool:
            me = Holder.me()
            is_elsewhere = (holder.host, holder.place) != (me.host, me.place)
            # By its scheduler, or by who knows from there that the job before is over, but cannot write that here.
            return is_elsewhere and job is not None and (self.travelled or record.job == job)

        with claim(folder, fresh=fresh, is_replaced=is_replaced) as record:
            if record is not None and not is_done(record):
                record.job, record.trial = job or record.job, trial or record.trial
            yield record


def _filled(word: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        word = word.replace(name, value)
    return word


def _entries(
    code: Path, inside: str, own: Collection[str], made: Collection[str], *, is_deep: bool
) -> Iterator[tuple[str, str]]:
    """Yield what a member finds below a folder, each with `link`, `copy` or `folder`; a folder before what it holds.

    Unless `is_deep`, only the folders in `made` are made; all others are links.
    """
    with os.scandir(code / inside) as entries:
        ordered = sorted(entries, key=lambda entry: entry.name)
    for entry in ordered:
        name = f"{inside}/{entry.name}" if inside else entry.name
        if entry.is_dir(follow_symlinks=False) and (is_deep or name in made):
            yield name, "folder"
            yield from _entries(code, name, own, made, is_deep=is_deep)
        else:
            yield name, "copy" if name in own and entry.is_file(follow_symlinks=False) else "link"


def _show(entries: Iterable[tuple[str, str]], code: Path, work: Path, *, is_fresh: bool) -> None:
    """Let a member find what was frozen for all of them; what it writes, and what it changes of its own, stays its own.

    What an earlier attempt left is kept. With `is_fresh` there was none: a copy that lies there may have been cut short
    by a crash, and is made anew.
    """
    try:
        work.mkdir(parents=True, exist_ok=True)
        for name, kind in entries:
            target = os.path.join(work, name)
            with contextlib.suppress(FileExistsError):
                if kind == "folder":
                    os.mkdir(target)
                elif kind == "link":
                    os.symlink(os.path.join(code, name), target)
                else:
                    if is_fresh and os.path.lexists(target):
                        os.unlink(target)
                    _write_copy(os.path.join(code, name), target)
    except OSError as error:
        raise write_failure(str(work), error) from error


def _write_copy(source: str, target: str) -> None:
    """Write a file anew, with the times of its source, by which it is known as unchanged; it may be there already."""
    data, status = _small_file(source)
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, status.st_mode & 0o777)
    with open(descriptor, "wb") as stream:
        stream.write(data)
        stream.flush()
        os.utime(descriptor, ns=(status.st_atime_ns, status.st_mtime_ns))


@cache  # all of them together are a few MiB, and thousands of members have each
def _small_file(path: str) -> tuple[bytes, os.stat_result]:
    with open(path, "rb") as stream:
        return stream.read(), os.fstat(stream.fileno())


def _drop_unchanged(entries: Iterable[tuple[str, str]], code: Path, work: Path) -> None:
    """Remove the copies that a member left as they were, so that its folder holds what it made."""
    for name, kind in entries:
        if kind != "copy":
            continue
        with contextlib.suppress(OSError):
            before, now = os.stat(code / name), os.lstat(work / name)
            if (before.st_size, before.st_mtime_ns) == (now.st_size, now.st_mtime_ns):
                os.unlink(work / name)


def _lay(files: Mapping[str, str], work: Path) -> None:
    """Write the files that are a member's own, such as its script."""
    for name, text in files.items():
        target = work / name
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)  # it may be a link to what all members share
            target.write_text(text)
            target.chmod(0o755 if text.startswith("#!") else 0o644)
        except OSError as error:
            raise write_failure(str(target), error) from error


# The processes themselves


def start(arguments: Sequence[str]) -> int:
    """`worker FOLDER --feed | --runs | --tasks FILE [--at-once N] -- [LAUNCHER… FAIRMILE_MEMBER]`; an exit code.

    What is to be executed comes as lines: with --feed numbers of members, with --runs runs that were prepared.
    """
    given, launch = list(arguments[: (cut := list(arguments).index("--"))]), list(arguments[cut + 1 :])
    folder = Path(given[0]).absolute()
    try:
        if given[1] == "--feed":
            batch = _launched(Batch.read(folder), launch)
            job = _job(os.environ.pop(_AT_JOB, ""))  # no business of the programs
            return _feed(lambda number: _ended(batch, number, job))
        if given[1] == "--runs":
            return _feed(execute_order)
        at_once = int(given[given.index("--at-once") + 1]) if "--at-once" in given else 1
        return _task(folder, given[2], at_once, launch)
    except (FairmileError, OSError) as problem:
        sys.stderr.write(f"fairmile: {problem}\n")
        return getattr(problem, "exit_code", 3)


def look_at_machine(folder: Path) -> None:
    """Find out what every run below a folder records of this machine, for processes that are forked from this one."""
    capture.hardware([folder])
    capture.software(os.environ)
    capture.variables(os.environ)


def _feed(execute_one: Callable[[Any], Ended]) -> int:
    """Execute what comes as lines, one after the other, and answer each with how it ended."""
    # Whoever feeds us says when we end, also where it runs behind a shell that has its processes ignore that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for line in sys.stdin.buffer:
        ended = execute_one(json.loads(line))
        try:
            os.write(1, json.dumps(vars(ended)).encode() + b"\n")
        except BrokenPipeError:  # nobody is there any more to ask for another one
            return 0
        if ended.state == CANCELLED:
            return _INTERRUPTED
    return 0


def execute_order(order: Mapping[str, Any], look: Look | None = None) -> Ended:
    """Execute a run that was prepared, as an order describes it; one that another process executes is left to that."""
    folder = Path(order["folder"])
    try:
        with claim_prepared(folder, RunRecord.from_dict(order["record"], "an order")) as record:
            if record is None:
                return Ended(0, folder.name, TAKEN)
            if not is_done(record):
                record.argv = list(order["argv"])
                how = {name: order[name] for name in ("argv", "env", "given")}
                record = execute(folder, record, look=look, **how)
    except (FairmileError, OSError) as error:
        return Ended(0, folder.name, "failed", str(error))
    assert record.result is not None
    return Ended(0, folder.name, str(record.result.state), record.result.reason)


def _ended(batch: Batch, number: int, job: JobReference | None) -> Ended:
    """Execute a member; one in a job array, which has others beside it, is ended by a file."""
    member = batch.member(number)
    file = batch.folder / cancel_name(member["id"], job.key) if job is not None else None
    if file is not None and file.exists():
        return Ended(number, member["id"], CANCELLED, BEFORE)
    try:
        record = batch.execute(member, job=job, look=watcher(file) if file is not None else None)
    except (FairmileError, OSError) as error:  # a full disk ends one member after the other, each with its reason
        return Ended(number, member["id"], "failed", str(error))
    if record is None or record.result is None:
        return Ended(number, member["id"], TAKEN)
    return Ended(number, member["id"], str(record.result.state), record.result.reason)


def _task(folder: Path, file: str, at_once: int, launch: Sequence[str]) -> int:
    """Execute the members of one task of a job array."""
    try:
        listed = json.loads((folder / file).read_bytes())
        index = int(os.environ.get("FAIRMILE_ARRAY_INDEX") or 0)
        numbers = listed["tasks"][index]
    except (OSError, ValueError, LookupError) as error:
        raise SystemFailure(f"cannot read the tasks in {folder / file}: {error}") from error
    job = JobReference(key=listed["key"], system=listed["system"], task=index)
    batch, failed = _launched(Batch.read(folder), launch), 0
    if at_once > 1:
        os.environ[_AT_JOB] = json.dumps(job.to_dict())
        orders = (Order(folder, number, batch.member(number)["id"]) for number in numbers)
        ends: Generator[Ended] = execute_all(orders, at_once, start, launch=launch)
    else:
        ends = (_ended(batch, number, job) for number in numbers)
    with contextlib.closing(ends):
        for ended in ends:
            sys.stdout.write(f"{ended.id} {ended.state}{': ' if ended.reason else ''}{ended.reason}\n")
            sys.stdout.flush()
            failed += ended.state != "done"
            if ended.state == CANCELLED and not (folder / cancel_name(ended.id, job.key)).exists():
                return _INTERRUPTED
    return 1 if failed else 0


def _job(text: str) -> JobReference | None:
    return JobReference.from_dict(json.loads(text), _AT_JOB) if text else None


def _launched(batch: Batch, launch: Sequence[str]) -> Batch:
    return replace(batch, wrapper=tuple(launch)) if launch else batch


if __name__ == "__main__":
    try:
        sys.exit(start(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
