"""What is known of the steps of a flow, as files in a folder of its own: readable after a kill at any moment.

    flow.json     the name of the flow, its file, when it was first used, the parameters given to its last run
    steps.jsonl   one line for each thing that happened to a step, the newest last: `begun` with the id of its run
                  before that is handed to anybody, then how it ended with its key and the digests of what came out
    programs.json what the commands, the code and the environments were, by digest, so that a plan can say what changed
    active.json   is there while the flow is carried out: since when, and how many steps it has to take
    cancel        is there while somebody wants the flow to stop
    lock          who carries the flow out, as a lease that is renewed

Lines are only added, so that a line cut short by a kill is the last one, and is passed over. A state with many more
lines than steps is written anew before the next start.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import field
from functools import cached_property
from pathlib import Path
from typing import IO, Any, Literal

from fairmile.base.digest import sha256_hex
from fairmile.base.errors import Conflict, DiskFailure, Locked, SystemFailure
from fairmile.base.files import Lock, write_atomic, write_failure
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.words import slug

FLOW = "flow.json"
_STEPS, _PROGRAMS, _ACTIVE, _CANCEL, _LOCK = "steps.jsonl", "programs.json", "active.json", "cancel", "lock"
_SLACK = 4  # lines for each step before the file is written anew
_LEASE_S = 60.0
BAD = ("failed", "timeout", "interrupted", "cancelled")  # ends without success
Via = Literal["", "ahead", "pilot"]


@dataclass(slots=True)
class Entry:
    """The newest of a step: `state` is begun, done, failed, timeout, cancelled, interrupted, skipped or gone.

    A `gone` step was done, but its outputs are no longer on the system that it left them on.
    """

    step: str
    state: str
    key: str = ""  # the digest of all that went in
    run: str = ""  # the id of its run
    program: str = ""  # the digest of command, code and environment; `programs.json` has them
    params: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)  # path or asset → sha256
    outputs: Mapping[str, str] = field(default_factory=dict)  # path → sha256
    metrics: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""
    on: str = ""  # the system that has its outputs, where they are not all here
    via: Via = ""  # how a run that has begun was handed over
    at: float = 0.0
    tries: int = 0
    elapsed_s: float | None = None

    @property
    def is_done(self) -> bool:
        return self.state == "done"

    @property
    def is_bad(self) -> bool:
        """Whether it ended without success."""
        return self.state in BAD

    def line(self) -> bytes:
        """Return the entry as its line."""
        fields = ((name, getattr(self, name)) for name in self.__slots__)
        return (json.dumps({name: value for name, value in fields if value or name == "state"}) + "\n").encode()


class FlowState:
    """The state of one flow."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._stream: IO[bytes] | None = None
        self._began, self._announced = 0.0, 0
        self._reload()

    @property
    def id(self) -> str:
        return self.folder.name

    # Reading

    @property
    def document(self) -> dict[str, Any]:
        """What `flow.json` says of the flow; empty where it has never run."""
        try:
            document = json.loads((self.folder / FLOW).read_bytes())
        except (OSError, ValueError):
            return {}
        return document if isinstance(document, dict) else {}

    def _reload(self) -> None:
        self.newest: dict[str, Entry] = {}
        self.done: dict[str, Entry] = {}  # the last good end of each step, also where it has begun anew since
        self._lines, self._mark = 0, ""
        for entry in self._read():
            self._take(entry)
        self.programs: dict[str, Mapping[str, Any]] = self._read_programs()

    def _read(self) -> Iterator[Entry]:
        try:
            with open(self.folder / _STEPS, "rb") as stream:
                data = stream.read()
                complete = data.rfind(b"\n") + 1  # what a writer is at comes next time
                self._mark = f"{os.fstat(stream.fileno()).st_ino:x}-{complete}"
        except FileNotFoundError:
            return
        except OSError as error:
            raise SystemFailure(f"cannot read {self.folder / _STEPS}: {error.strerror}") from error
        lines = data.split(b"\n")
        try:  # at once takes a third of the time
            yield from [Entry(**fields) for fields in json.loads(b"[%s]" % b",".join(filter(None, lines)))]
            return
        except (ValueError, TypeError):  # a line that a kill cut short
            pass
        for line in lines:
            with contextlib.suppress(ValueError, TypeError):
                yield Entry(**json.loads(line))

    @cached_property
    def started(self) -> float:
        """When whoever carries the flow out began, as the state was read; 0 where nobody does."""
        try:
            return float(json.loads((self.folder / _ACTIVE).read_bytes())["started"])
        except (OSError, ValueError, KeyError, TypeError):
            return 0.0

    @property
    def mark(self) -> str:
        """How far the journal was read: it changes with each line, and when the file is written anew."""
        return self._mark

    def names_since(self, mark: str) -> list[str] | None:
        """Return the steps that lines after a mark are about; None where the file was written anew since."""
        file, _, size = mark.partition("-")
        if file != self._mark.partition("-")[0] or not size.isdigit():
            return None
        try:
            with open(self.folder / _STEPS, "rb") as stream:
                stream.seek(int(size))
                lines = stream.read().split(b"\n")
        except OSError:
            return None
        names = []
        for line in lines:
            with contextlib.suppress(ValueError, TypeError, KeyError):
                names.append(json.loads(line)["step"])
        return names

    def _take(self, entry: Entry) -> None:
        self._lines += 1
        self.newest[entry.step] = entry
        if entry.is_done:
            self.done[entry.step] = entry
        elif entry.state == "gone":
            self.done.pop(entry.step, None)

    def _read_programs(self) -> dict[str, Mapping[str, Any]]:
        try:
            programs = json.loads((self.folder / _PROGRAMS).read_bytes())
        except (OSError, ValueError):  # plans then say less of what changed
            return {}
        return programs if isinstance(programs, dict) else {}

    # Writing

    def note(self, entry: Entry, *, sync: bool = False) -> None:
        """Add what happened to a step; with `sync` it is on the disk when this returns."""
        entry.at = time.time()
        self._write(entry, sync=sync)

    def confirm(self, name: str) -> None:
        """Add that the last good end of a step still stands, for those who follow the flow."""
        self._write(self.done[name])

    def _write(self, entry: Entry, *, sync: bool = False) -> None:
        if self._stream is None:
            raise RuntimeError("only the process that runs the flow may write its state")
        try:
            self._stream.write(entry.line())
            self._stream.flush()
            if sync:
                os.fsync(self._stream.fileno())
        except OSError as error:
            raise write_failure(str(self.folder / _STEPS), error) from error
        self._take(entry)

    def keep_programs(self, programs: Mapping[str, Mapping[str, Any]]) -> None:
        """Keep what programs consist of, beside those that steps still refer to."""
        used = {entry.program for entry in (*self.newest.values(), *self.done.values())}
        kept = {digest: each for digest, each in self.programs.items() if digest in used} | dict(programs)
        if kept != self.programs:
            write_atomic(self.folder / _PROGRAMS, json.dumps(kept), sync=False)
            self.programs = kept

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Be the one who carries the flow out; Conflict names who does where somebody else is at it."""
        lock = Lock(self.folder / _LOCK, timeout_s=0.5, lease_s=_LEASE_S)
        try:
            with lock:
                self._reload()
                self._compact()
                (self.folder / _CANCEL).unlink(missing_ok=True)
                with open(self.folder / _STEPS, "ab") as self._stream:
                    self._end_line()
                    yield
        except Locked as error:
            who = str(error).partition(" is locked by ")[2].partition(";")[0] or "another process"
            raise Conflict(
                f"flow {self.id} is being run by {who}",
                hint=f"`fairmile flow watch {self.id}` follows it, `fairmile flow cancel {self.id}` ends it",
            ) from error
        finally:
            if self._stream is not None:
                (self.folder / _ACTIVE).unlink(missing_ok=True)
            self._stream = None

    def announce(self, steps: int) -> None:
        """Note that this many steps are to be taken, for those who ask how far the flow is."""
        if self._announced != steps:
            self._announced = steps
            self._began = self._began or time.time()
            document = {"started": self._began, "steps": steps}
            with contextlib.suppress(DiskFailure):  # which stops no step
                write_atomic(self.folder / _ACTIVE, json.dumps(document), sync=False)

    def _end_line(self) -> None:
        """End a line that a kill cut short, so that the next one stands alone."""
        assert self._stream is not None
        if self._stream.tell():
            with open(self.folder / _STEPS, "rb") as written:
                written.seek(-1, os.SEEK_END)
                if written.read(1) != b"\n":
                    self._stream.write(b"\n")

    def _compact(self) -> None:
        if self._lines <= _SLACK * len(self.newest) + 100:
            return
        entries = [*self.done.values(), *(each for each in self.newest.values() if not each.is_done)]
        write_atomic(self.folder / _STEPS, b"".join(each.line() for each in entries))
        self._lines = len(entries)

    # Stopping

    def ask_to_stop(self) -> None:
        """Ask whoever carries the flow out to stop."""
        write_atomic(self.folder / _CANCEL, "", sync=False)

    @property
    def is_asked_to_stop(self) -> bool:
        return (self.folder / _CANCEL).exists()

    @property
    def holder(self) -> str:
        """Who carries the flow out, such as `process 4711 on laptop`; empty where nobody does."""
        try:
            with Lock(self.folder / _LOCK, timeout_s=0.0, lease_s=_LEASE_S):
                return ""
        except Locked as error:
            return str(error).partition(" is locked by ")[2].partition(";")[0] or "another process"


@dataclass(frozen=True)
class ActiveFlow:
    """A flow that runs, or ran when its process was killed, with the number of steps that ended and that run."""

    id: str
    started: float
    steps: int
    ended: int
    running: int
    is_held: bool


def active_flows(root: Path) -> Iterator[ActiveFlow]:
    """Yield the flows below a folder that have not come to their end."""
    for file in sorted(root.glob(f"[!.]*/{_ACTIVE}")):
        with contextlib.suppress(OSError, ValueError, KeyError, SystemFailure):  # it ends at this moment
            document = json.loads(file.read_bytes())
            state = FlowState(file.parent)
            recent = [each for each in state.newest.values() if each.at >= document["started"]]
            running = sum(each.state == "begun" for each in recent)
            counts = (document["steps"], len(recent) - running, running)
            yield ActiveFlow(state.id, document["started"], *counts, bool(state.holder))


def folder_of(root: Path, name: str, folder: str, file: Path | None) -> Path:
    """Return the folder of the state of a flow: one for each file, and for a flow of a program one for each place."""
    place = str(file) if file is not None else f"{os.path.abspath(folder)}\0{name}"
    return root / f"{slug(name)[:48] or 'flow'}-{sha256_hex(os.fsencode(place))[:8]}"


def open_state(
    folder: Path, name: str, place: str, file: Path | None, params: Mapping[str, Any] | None = None
) -> FlowState:
    """Return the state of a flow, whose folder is made where there is none; `params` are those of this run."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise write_failure(str(folder), error) from error
    state = FlowState(folder)
    before = state.document
    if not before or before.get("params", {}) != (params or {}):
        document = {"name": name, "file": str(file or ""), "folder": place, "created": time.time()}
        write_atomic(folder / FLOW, json.dumps({**document, **before, "params": params or {}}))
    return state
