"""One environment built in its place: step after step, each finished one marked, `record.json` last of all."""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import shutil
import signal
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fairmile.base.digest import manifest_text, merkle_root
from fairmile.base.errors import FairmileError, SystemFailure
from fairmile.base.files import Lock, write_atomic, write_failure
from fairmile.base.patterns import compile_linear
from fairmile.base.quick_dataclass import dataclass
from fairmile.envs.records import LEASE_S, acts_data, as_text
from fairmile.envs.sealing import FILE, installed_files
from fairmile.envs.shells import Act, Assign
from fairmile.envs.spec import CheckSpec, EnvironmentSpec
from fairmile.envs.steps import Step, Tools, build_mark

_KEPT_LINES = 200  # of what a check prints
_SHOWN_LINES = 20
_ALL_MAY_WRITE = 0o222
REMOVAL_S = 30.0  # to wait for whoever holds the lock of what is to be removed


@dataclass(frozen=True)
class Design:
    """A specification with its steps and the digest of all that goes in."""

    spec: EnvironmentSpec
    steps: tuple[Step, ...]
    digest: str
    platform: str

    def acts(self, prefix: Path, until: int | None = None) -> tuple[Act, ...]:
        """Return what is done in a shell once the first `until` steps, or all of them, have run."""
        of_steps = (act for step in self.steps[:until] for act in step.use(prefix).acts)
        return (*of_steps, *(Assign(name, value) for name, value in self.spec.variables.items()))

    def wrap(self, prefix: Path) -> tuple[str, ...]:
        return tuple(word for step in self.steps for word in step.use(prefix).wrap)


class Building:
    """A build under way, by whoever holds the lock of the environment."""

    def __init__(self, design: Design, folder: Path, tools: Tools, lock: Lock, version: str) -> None:
        self._design = design
        self._folder = folder
        self._prefix = folder / "prefix"
        self._lock = lock
        self._version = version
        self._root_mode = stat.S_IMODE(folder.parent.stat().st_mode)
        self._log = folder / "log.txt"
        self._tell = tools.on_line
        # Who may write to the folder of all environments may also go on with a build that was cut off.
        umask = ~self._root_mode & 0o077 if self._root_mode & stat.S_IWGRP else None
        self._tools = replace(tools, on_line=self._take, work=folder / "work", umask=umask)

    def build(self) -> None:
        """Build what is missing, check it, and say that it is ready; raises with the reason kept beside it."""
        self._begin()
        began = time.time()
        at = "begin"
        try:
            done: list[dict[str, Any]] = []
            for number, step in enumerate(self._design.steps):
                at = step.name
                done.append(self._step(number, step))
            at = "checks"
            checks = self.check()
            at = "end"
            self._finish(began, done, checks)
        except Exception as error:
            failed = _as_own_error(error)
            failed.hint = failed.hint or f"the log is {self._log}"
            failure = {"at": at, "message": failed.message, "hint": failed.hint, "when": _now()}
            # What kept the build from writing may keep this from being written: the first reason is the one to tell.
            with contextlib.suppress(FairmileError, OSError):
                self._write("failure.json", failure)
                self._take(f"failed: {failed.message}")
            if failed is not error and isinstance(error, OSError):
                raise failed from error
            raise

    def check_again(self, record: Mapping[str, Any]) -> None:
        """Check an environment that is ready anew, and note what its checks say now; it stays ready when they fail."""
        work = self._tools.work
        try:
            make_shared(work, self._root_mode)
            checks = self.check()
        except FairmileError as error:
            raise SystemFailure(
                f"{self._design.spec.name} is ready, but a new check fails: {error.message}",
                hint="correct the check, or change the specification, which makes another environment",
            ) from error
        except OSError as error:
            raise write_failure(str(work), error) from error
        finally:
            shutil.rmtree(work, ignore_errors=True)
        self._write("record.json", {**record, "checks": checks, "spec": self._design.spec.model_dump(mode="json")})

    def check(self) -> list[dict[str, Any]]:
        """Run every check in the finished environment and return what each said; the first that fails raises."""
        design = self._design
        tools = replace(self._tools, acts=design.acts(self._prefix))
        wrap = design.wrap(self._prefix)
        return [run_check(each, tools, wrap) for each in design.spec.checks]

    def _begin(self) -> None:
        folder = self._folder
        end_leftovers(build_mark(self._tools.work))
        try:
            if folder.exists() and folder.stat().st_uid != os.getuid():
                # The leftovers of somebody else's build cannot be gone on with, only replaced.
                remove_tree(folder)
            for each in (folder, self._prefix, folder / "steps", folder / "work", folder / "uses"):
                make_shared(each, self._root_mode)
            (folder / "failure.json").unlink(missing_ok=True)
            self._log.touch()
            self._log.chmod(self._root_mode & 0o666 | 0o600)
        except OSError as error:
            raise write_failure(str(folder), error) from error
        spec = self._design.spec
        begun = {"name": spec.name, "digest": self._design.digest, "spec": spec.model_dump(mode="json")}
        self._write("spec.json", begun)

    def _write(self, name: str, value: Any) -> None:
        # The umask of whoever builds must not shut out the group that shares the folder above.
        write_atomic(self._folder / name, as_text(value), mode=self._root_mode & 0o666 | 0o600)

    def _step(self, number: int, step: Step) -> dict[str, Any]:
        mark = self._folder / "steps" / f"{number:02}-{step.name}.json"
        if mark.exists():
            self._take(f"{step.name}: finished before")
            mark_content: dict[str, Any] = json.loads(mark.read_text(encoding="utf-8"))
            return mark_content
        self._take(f"{step.name}: {step.describe()}")
        began = time.monotonic()
        tools = replace(self._tools, acts=self._design.acts(self._prefix, number))
        lock = step.run(self._prefix, tools)
        done = {
            "name": step.name,
            "words": step.describe(),
            "duration_s": round(time.monotonic() - began, 3),
            "lock": dict(lock),
        }
        self._write(f"steps/{mark.name}", done)
        return done

    def _finish(self, began: float, done: Sequence[Mapping[str, Any]], checks: Sequence[Mapping[str, Any]]) -> None:
        folder, design = self._folder, self._design
        shutil.rmtree(folder / "work", ignore_errors=True)
        share_read_only(self._prefix, self._root_mode)
        files = installed_files(self._prefix)
        write_atomic(folder / FILE, manifest_text(files), mode=self._root_mode & 0o666 | 0o600)
        locked = {"digest": design.digest, "platform": design.platform}
        self._write("lock.json", {**locked, **{each["name"]: each["lock"] for each in done}})
        record = {
            "name": design.spec.name,
            "digest": design.digest,
            "platform": design.platform,
            "spec": design.spec.model_dump(mode="json"),
            "fairmile": self._version,
            "who": getpass.getuser(),
            "machine": os.uname().nodename,
            "began": datetime.fromtimestamp(began, UTC).isoformat(timespec="seconds"),
            "ended": _now(),
            "steps": [{key: each[key] for key in ("name", "words", "duration_s")} for each in done],
            "checks": list(checks),
            "acts": acts_data(design.acts(self._prefix)),
            "wrap": list(design.wrap(self._prefix)),
            "size_bytes": _size(self._prefix),
            "files": len(files),
            "tree": merkle_root(files),
        }
        if self._lock.lost:
            raise SystemFailure(
                f"the build of {design.spec.name} was taken over by another process while this one was suspended",
                hint="wait for the other one",
            )
        self._write("record.json", record)
        with contextlib.suppress(SystemFailure):  # what belongs to somebody else stays; this environment is ready
            remove_tree(aside_of(folder))

    def _take(self, line: str) -> None:
        with open(self._log, "a", encoding="utf-8", errors="replace") as stream:
            stream.write(line + "\n")
        self._tell(line)


def run_check(check: CheckSpec, tools: Tools, wrap: Sequence[str]) -> dict[str, Any]:
    """Run one check and return what it said; SystemFailure with its last lines when it fails."""
    # An image need not have bash.
    argv = ["sh" if wrap else "bash", "-c", check.run] if isinstance(check.run, str) else list(check.run)
    shown = check.run if isinstance(check.run, str) else " ".join(check.run)
    kept: list[str] = []

    def take(line: str) -> None:
        tools.on_line(line if kept else f"$ {shown}")  # as it was written, not as the shell is called
        kept.append(line)

    began = time.monotonic()
    try:
        done = replace(tools, on_line=take).run([*wrap, *argv], cwd=tools.work, check=False, timeout_s=check.timeout_s)
    except SystemFailure as error:
        if time.monotonic() - began < check.timeout_s:
            raise
        raise SystemFailure(
            f"the check `{shown}` did not finish within {check.timeout_s:g} s:\n{_last(kept)}",
            hint="check what it waits for, or raise `timeout_s`",
        ) from error
    output, last = "\n".join(kept[1:][-_KEPT_LINES:]), _last(kept)
    hint = "the environment is not ready; correct the specification or the check and build again"
    if done.exit_code != 0:
        raise SystemFailure(f"the check `{shown}` ended with exit code {done.exit_code}:\n{last}", hint=hint)
    if check.expect and not compile_linear(check.expect).search(output):
        raise SystemFailure(f"the check `{shown}` did not print /{check.expect}/:\n{last}", hint=hint)
    return {"run": check.run, "expect": check.expect, "output": output, "duration_s": round(done.duration_s, 3)}


def _last(lines: Sequence[str]) -> str:
    """Return the last lines that a check printed; the first one is its command."""
    return "\n".join(lines[1:][-_SHOWN_LINES:]) or "it printed nothing"


def _as_own_error(error: Exception) -> FairmileError:
    """Return an error in words for a person, whatever it was."""
    if isinstance(error, FairmileError):
        return error
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return SystemFailure(f"the build cannot continue: {where}{error.strerror or error}")
    return SystemFailure(f"the build failed with an internal error: {type(error).__name__}: {error}")


def end_leftovers(mark: str, *, deadline_s: float = 30.0) -> None:
    """End the programs of a killed build that still run here, known by a variable: they would write beside us."""
    deadline = time.monotonic() + deadline_s
    while left := [pid for pid in _own_processes() if mark.encode() in _variables(pid)]:
        if time.monotonic() > deadline:
            raise SystemFailure(f"processes of an earlier build do not end: {', '.join(map(str, left))}")
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _own_processes() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]
    except OSError:
        return []


def _variables(pid: int) -> list[bytes]:
    """Return the environment of a process, nothing where it has ended or is somebody else's."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as stream:
            return stream.read().split(b"\0")
    except OSError:
        return []


def aside_of(folder: Path) -> Path:
    """Return where an environment waits for the build that replaces it."""
    return folder.with_name(f".{folder.name}")


@contextlib.contextmanager
def set_aside(folder: Path, lock: Path) -> Iterator[None]:
    """Make room for a new build of an environment; where the block fails, the old one is back, with the new log."""
    aside = aside_of(folder)
    with Lock(lock, timeout_s=REMOVAL_S, lease_s=LEASE_S):
        remove_tree(aside)
        folder.rename(aside)
    try:
        yield
    except BaseException:
        with Lock(lock, timeout_s=REMOVAL_S, lease_s=LEASE_S):
            if not (folder / "record.json").exists():  # else somebody else has built it meanwhile
                with contextlib.suppress(OSError):
                    (folder / "log.txt").replace(aside / "log.txt")
                remove_tree(folder)
                aside.rename(folder)
        raise


def make_shared(folder: Path, root_mode: int) -> None:
    """Make a folder that whoever may use the folder of all environments may use too, whatever the umask."""
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(root_mode | stat.S_IRWXU)


def share_read_only(prefix: Path, root_mode: int) -> None:
    """Let everybody read what was built who may read the folder above, and nobody change it."""
    for at, folders, files in os.walk(prefix, topdown=False):
        for name in (*files, *folders):
            _settle(os.path.join(at, name), root_mode)
    _settle(str(prefix), root_mode)


def _settle(path: str, root_mode: int) -> None:
    mode = os.lstat(path).st_mode
    if stat.S_ISLNK(mode):
        return
    wanted = stat.S_IMODE(mode) & ~_ALL_MAY_WRITE
    for shift in (3, 6):  # the group, then everybody else, see what its owner sees
        if root_mode << shift & 0o500:
            wanted |= (mode & 0o500) >> shift
    os.chmod(path, wanted)


def remove_tree(folder: Path) -> None:
    """Remove a folder though what lies in it is read-only; what another process removes meanwhile is not a fault."""
    for at, _, _ in os.walk(folder):
        try:
            os.chmod(at, stat.S_IMODE(os.stat(at).st_mode) | stat.S_IRWXU)
        except OSError:
            continue  # of another user; then removing it fails below, with the reason
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        return
    except OSError as error:
        raise SystemFailure(f"cannot remove {error.filename or folder}: {error.strerror}") from error


def _size(folder: Path) -> int:
    return sum(os.lstat(os.path.join(at, name)).st_size for at, _, files in os.walk(folder) for name in files)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
