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
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path, PurePosixPath
from selectors import EVENT_READ, DefaultSelector
from typing import Any

from fairmile.base.errors import Conflict, FairmileError, SystemFailure
from fairmile.base.files import Holder, write_failure
from fairmile.runs.execute import capture
from fairmile.runs.execute.recorder import check_no_orphan, execute
from fairmile.runs.record.layout import WORK, read_record
from fairmile.runs.record.record import JobReference, RunRecord, RunState, TrialReference

BATCH, MEMBERS = "batch.json", "members.jsonl"
MEMBER = "FAIRMILE_MEMBER"  # stands in a launcher's command for that of a member
_MOST_LINKS = 200  # files that are linked one by one into the folder of a member; of more code only the top
TAKEN = "taken"  # somebody else executes it at this moment
_CANCELLED = "cancelled"
_INTERRUPTED = 130
_PATIENCE_S = 30.0  # for programs that were asked to end
_AT_JOB, _RESUME = "FAIRMILE_BATCH_JOB", "FAIRMILE_RESUME"

# Called while a member runs; it returns why the program is to be stopped, or nothing.
Look = Callable[[], str]


@dataclass(frozen=True)
class Ended:
    """How a member ended; `state` is that of its run, or `taken` where another process executes it."""

    number: int
    id: str
    state: str
    reason: str = ""


@dataclass(frozen=True)
class Batch:
    """What the members of a batch share."""

    folder: Path
    shared: RunRecord  # the record of each of them, as far as it is the same
    root: Path  # where runs are kept
    env: Mapping[str, str]  # on top of what this process has
    code: str  # a folder whose files each member finds where it starts; empty: none
    around: tuple[str, ...] = (MEMBER,)
    values: Mapping[str, str] = field(default_factory=dict)  # what placeholders stand for that members still have
    travelled: bool = False  # it lies on another machine than whoever decides what is executed
    own: frozenset[str] = frozenset()  # files and folders below `code` of which each member has its own

    @classmethod
    def read(cls, folder: Path) -> Batch:
        """Read what was prepared in a folder."""
        try:
            said = json.loads((folder / BATCH).read_bytes())
        except (OSError, ValueError) as error:
            raise SystemFailure(f"cannot read {folder / BATCH}: {error}") from error
        shared = RunRecord.from_dict(said["document"], f"document in {folder / BATCH}")
        root, around = Path(said["root"]), tuple(said["around"])
        more = {"values": said.get("values", {}), "travelled": said.get("travelled", False)}
        more["own"] = frozenset(said.get("own", ()))
        return cls(folder, shared, root, said["env"], said["code"], around, **more)

    def text(self) -> str:
        """Return what batch.json holds."""
        return json.dumps(
            {
                "document": self.shared.to_dict(),
                "root": str(self.root),
                "env": dict(self.env),
                "around": list(self.around),
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
            found: Mapping[str, Any] = json.loads(self._lines[number])
        except (LookupError, ValueError) as error:
            raise SystemFailure(f"cannot read member {number} in {self.folder / MEMBERS}: {error}") from error
        return found

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
        record = self._claimed(folder, member, job, trial)
        if record is None or _is_done(record):
            return record
        if mended:
            now = self.fresh(member)
            record.spec, record.captured, record.identity = now.spec, now.captured, now.identity
        work = folder / WORK
        values = {f"{{{name}}}": text for name, text in self.values.items()}
        values |= {"{run}": str(folder), "{source}": record.spec.folder or str(work)}
        argv = [_filled(word, values) for word in member["argv"]]
        argv = [word for part in self.around for word in (argv if part == MEMBER else [part])]
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

    def _claimed(
        self, folder: Path, member: Mapping[str, Any], job: JobReference | None, trial: TrialReference | None
    ) -> RunRecord | None:
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            return self._begun(folder, member, job, trial)
        except OSError as error:
            raise write_failure(str(folder), error) from error
        return self.fresh(member, job, trial)

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

    def _begun(
        self, folder: Path, member: Mapping[str, Any], job: JobReference | None, trial: TrialReference | None
    ) -> RunRecord | None:
        """Return the record of a member that was begun before, or None while somebody is at it."""
        try:
            record = read_record(folder)
        except FileNotFoundError:  # whoever made the folder is about to write it, or died before
            age_s = time.time() - folder.stat().st_mtime
            return None if age_s < 5 else self.fresh(member, job, trial)
        if _is_done(record):
            return record
        if record.result is None and record.attempts:
            holder = Holder.parse(record.attempts[-1].holder, 0)
            me = Holder.me()
            is_elsewhere = (holder.host, holder.place) != (me.host, me.place)
            # By its scheduler, or by who knows from there that the job before is over, but cannot write that here.
            started_again = job is not None and (self.travelled or record.job == job)
            if not holder.is_dead_here() and not (started_again and is_elsewhere):
                return None
        try:
            check_no_orphan(folder, record.id)
        except Conflict:
            return None
        record.job, record.trial = job or record.job, trial or record.trial
        return record


def _is_done(record: RunRecord) -> bool:
    return record.result is not None and record.result.state is RunState.DONE


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
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
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


# A pool of processes on this machine


def pool(folder: Path, numbers: Iterable[int], at_once: int, *, launch: Sequence[str] = ()) -> Generator[Ended]:
    """Execute members by their numbers, so many at once, each process one after the other; yield how each ended.

    A process that dies takes only its member with it; one that cannot even begin is a SystemFailure. Where this process
    is killed, the others end what they are at, and begin nothing more; where it is asked to end, they are, too.
    """
    waiting = iter(numbers)
    with _asked_to_end(), DefaultSelector() as selector, _Crew(folder, launch) as crew:

        def begin() -> None:
            if (number := next(waiting, None)) is not None:
                fed = crew.hire()
                fed.give(number)
                selector.register(fed.answers, EVENT_READ, fed)

        for _ in range(at_once):
            begin()
        while selector.get_map():
            for key, _ in selector.select():
                fed: _Fed = key.data
                for ended in fed.take():
                    yield ended
                    # Who was told to stop takes nothing more: another one does.
                    number = None if ended.state == _CANCELLED else next(waiting, None)
                    if number is not None:
                        fed.give(number)
                    else:
                        fed.finish()
                if fed.is_over:
                    selector.unregister(fed.answers)
                    exit_code = crew.dismiss(fed)
                    if fed.number is not None and exit_code > 1 and not fed.has_answered:
                        raise SystemFailure(
                            f"a worker of {folder} ended with exit code {exit_code} before it did anything",
                            hint="it printed why",
                        )
                    if fed.number is not None:
                        yield Ended(fed.number, _id(folder, fed.number), "interrupted", "its worker died")
                    begin()


def _id(folder: Path, number: int) -> str:
    return str(Batch.read(folder).member(number)["id"])


@contextlib.contextmanager
def _asked_to_end() -> Iterator[None]:
    """Leave the block with SystemExit where this process is asked to end; only a main thread may listen."""

    def leave(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    try:
        before = signal.getsignal(signal.SIGTERM)
        is_ours = before is signal.SIG_DFL
        if is_ours:
            signal.signal(signal.SIGTERM, leave)
    except ValueError:
        is_ours = False
    try:
        yield
    finally:
        if is_ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


class _Crew:
    """The processes of a pool; where its block is left early, all of them end, with their programs."""

    def __init__(self, folder: Path, launch: Sequence[str]) -> None:
        self._folder, self._launch = folder, launch
        self._members: list[_Fed] = []

    def __enter__(self) -> _Crew:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:  # also where whoever takes what is yielded has had enough
            for fed in self._members:
                fed.signal(signal.SIGINT if kind is KeyboardInterrupt else signal.SIGTERM)
        for fed in self._members:
            fed.finish()
        until = time.monotonic() + _PATIENCE_S
        for fed in self._members:
            if kind is not None and not fed.has_ended(until - time.monotonic()):
                fed.signal(signal.SIGINT)  # which a program cannot ignore for long
            fed.close()

    def hire(self) -> _Fed:
        fed = _Fed(self._folder, self._launch)
        self._members.append(fed)
        return fed

    def dismiss(self, fed: _Fed) -> int:
        """Let one go that has ended, and return its exit code, below 0 where a signal ended it."""
        self._members.remove(fed)
        return fed.close()


class _Fed:
    """A process that executes the members whose numbers it is given."""

    def __init__(self, folder: Path, launch: Sequence[str]) -> None:
        argv = [sys.executable, "-P", *_own_module(), str(folder), "--feed", "--", *launch]
        # A session of its own: what is typed to end this process is passed on once, by us.
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        assert self._process.stdin is not None and self._process.stdout is not None
        self._orders, self.answers = self._process.stdin, self._process.stdout
        os.set_blocking(self.answers.fileno(), False)
        self._rest = b""
        self.number: int | None = None  # what it is at
        self.has_answered = False
        self.is_over = False

    def give(self, number: int) -> None:
        self.number = number
        with contextlib.suppress(BrokenPipeError):  # it is dead, and seen to be so when its answers end
            self._orders.write(b"%d\n" % number)
            self._orders.flush()

    def finish(self) -> None:
        """Let it end after what it is at."""
        with contextlib.suppress(BrokenPipeError):
            self._orders.close()

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def has_ended(self, within_s: float) -> bool:
        try:
            self._process.wait(max(within_s, 0.0))
        except subprocess.TimeoutExpired:
            return False
        return True

    def close(self) -> int:
        """Wait for its end and return its exit code."""
        self.finish()
        exit_code = self._process.wait()
        self.answers.close()
        return exit_code

    def take(self) -> Iterator[Ended]:
        """Yield what it has said since the last time."""
        data = os.read(self.answers.fileno(), 1 << 16)
        if not data:
            self.is_over = True
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self.number, self.has_answered = None, True
            yield Ended(**json.loads(line))


def _own_module() -> list[str]:
    """Return how Python starts this module: by name, or out of the one file that a travelling recorder is."""
    path = sys.modules["__main__"].__spec__
    travelling = path is not None and path.name == "__main__" and sys.argv[0].endswith(".pyz")
    return [sys.argv[0], "worker"] if travelling else ["-m", "fairmile.runs.execute.worker"]


# The processes themselves


def start(arguments: Sequence[str]) -> int:
    """`worker FOLDER --feed | --tasks FILE [--at-once N] -- [LAUNCHER… FAIRMILE_MEMBER]`; returns an exit code."""
    given, launch = list(arguments[: (cut := list(arguments).index("--"))]), list(arguments[cut + 1 :])
    folder = Path(given[0]).absolute()
    try:
        if given[1] == "--feed":
            return _feed(folder, launch)
        at_once = int(given[given.index("--at-once") + 1]) if "--at-once" in given else 1
        return _task(folder, given[2], at_once, launch)
    except (FairmileError, OSError) as problem:
        sys.stderr.write(f"fairmile: {problem}\n")
        return getattr(problem, "exit_code", 3)


def _feed(folder: Path, launch: Sequence[str]) -> int:
    # Whoever feeds us says when we end, also where it runs behind a shell that has its processes ignore that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    batch = _launched(Batch.read(folder), launch)
    job = _job(os.environ.pop(_AT_JOB, ""))  # no business of the programs
    for line in sys.stdin.buffer:
        ended = _ended(batch, int(line), job)
        try:
            os.write(1, json.dumps(vars(ended)).encode() + b"\n")
        except BrokenPipeError:  # nobody is there any more to ask for another one
            return 0
        if ended.state == _CANCELLED:
            return _INTERRUPTED
    return 0


def _ended(batch: Batch, number: int, job: JobReference | None) -> Ended:
    member = batch.member(number)
    try:
        record = batch.execute(member, job=job)
    except (FairmileError, OSError) as error:  # a full disk ends one member after the other, each with its reason
        return Ended(number, member["id"], "failed", str(error))
    if record is None or record.result is None:
        return Ended(number, member["id"], TAKEN)
    return Ended(number, member["id"], str(record.result.state), record.result.reason)


def _task(folder: Path, file: str, at_once: int, launch: Sequence[str]) -> int:
    """Execute the members of one task of a job array."""
    try:
        said = json.loads((folder / file).read_bytes())
        index = int(os.environ.get("FAIRMILE_ARRAY_INDEX") or 0)
        numbers = said["tasks"][index]
    except (OSError, ValueError, LookupError) as error:
        raise SystemFailure(f"cannot read the tasks in {folder / file}: {error}") from error
    job = JobReference(key=said["key"], system=said["system"], task=index)
    batch, failed = _launched(Batch.read(folder), launch), 0
    if at_once > 1:
        os.environ[_AT_JOB] = json.dumps(job.to_dict())
        ends: Generator[Ended] = pool(folder, numbers, at_once, launch=launch)
    else:
        ends = (_ended(batch, number, job) for number in numbers)
    with contextlib.closing(ends):
        for ended in ends:
            sys.stdout.write(f"{ended.id} {ended.state}{': ' if ended.reason else ''}{ended.reason}\n")
            sys.stdout.flush()
            failed += ended.state != "done"
            if ended.state == _CANCELLED:
                return _INTERRUPTED
    return 1 if failed else 0


def _job(text: str) -> JobReference | None:
    return JobReference.from_dict(json.loads(text), _AT_JOB) if text else None


def _launched(batch: Batch, launch: Sequence[str]) -> Batch:
    return replace(batch, around=tuple(launch)) if launch else batch


if __name__ == "__main__":
    try:
        sys.exit(start(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
