"""The one place that runs other programs, on this machine or on another one over ssh."""

from __future__ import annotations

import contextlib
import os
import selectors
import shlex
import shutil
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from mmap import mmap
from pathlib import Path
from threading import Thread
from typing import IO, Protocol, Self

from fairmile.base.errors import SystemFailure, Transient, UsageError
from fairmile.base.lazy import lazy_pattern
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.signals import asked_to_end, end_deferred

_MIB = 1 << 20
_READ = 1 << 16
_LONGEST_LINE = _MIB
_TAIL_LINES = 20
_QUIET_S = 0.5  # how long to listen on after a program ended while its daemons keep its output open
_CONNECT_S, _ALIVE_S = 15, 15
_BURY_EVERY_S = 0.25
_VARIABLE = lazy_pattern(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Result:
    """How a program ended and what it printed; a negative `exit_code` is the signal that ended it."""

    argv: tuple[str, ...]
    exit_code: int
    stdout: str
    stderr: str
    duration_s: float


@dataclass(frozen=True)
class Left:
    """A process that was left to itself; `began` (in ticks of its machine) tells it from a later one of its number."""

    pid: int
    began: int
    host: str


class MissingProgram(SystemFailure):
    """The machine lacks a program, or all that the program needs to start: nothing was done."""


class Runner(Protocol):
    """Run a program to its end, wherever that may be."""

    def run(
        self,
        argv: Sequence[str],
        *,
        cwd: str | Path | None = None,
        env: Mapping[str, str] | None = None,
        input: str | bytes | mmap | None = None,
        timeout_s: float | None = None,
        check: bool = True,
        on_line: Callable[[str], None] | None = None,
        on_wait: Callable[[], None] | None = None,
    ) -> Result:
        """Run `argv` without a shell and return its result.

        `env` adds to the environment that is there. `on_line` gets each line of both streams as it comes, `on_wait`
        is called at least ten times a second while the program runs; an error in either ends the program. With
        `check` an exit code other than 0 raises SystemFailure; a missing program or a timeout always does.
        """
        ...


class Here:
    """Run programs on this machine.

    Of each output stream the last `capture_bytes` are kept; what is left out before them is said in a first line.
    After a timeout, Ctrl-C, TERM or HUP the whole process group gets TERM and, `grace_s` later, KILL.
    """

    def __init__(self, *, capture_bytes: int = 64 * _MIB, grace_s: float = 5.0) -> None:
        self.capture_bytes = capture_bytes
        self.grace_s = grace_s

    @asked_to_end()
    def run(
        self,
        argv: Sequence[str],
        *,
        cwd: str | Path | None = None,
        env: Mapping[str, str] | None = None,
        input: str | bytes | mmap | None = None,
        timeout_s: float | None = None,
        check: bool = True,
        on_line: Callable[[str], None] | None = None,
        on_wait: Callable[[], None] | None = None,
    ) -> Result:
        """Run `argv` here; see `Runner.run`."""
        command = _checked(argv, env)
        with _Process(command, cwd, env, self.capture_bytes, self.grace_s, on_line, on_wait) as process:
            result = process.finish(_bytes(input), timeout_s)
        if check and result.exit_code != 0:
            raise _failed(result, "")
        return result

    def start(self, argv: Sequence[str], *, cwd: str | Path | None = None, without: Collection[str] = ()) -> Left:
        """Start `argv` in a session of its own and leave it: it reads nothing, and what it prints is lost.

        Variables named in `without` are not handed on.
        """
        env = {name: value for name, value in os.environ.items() if name not in without}
        program, *words = _checked(argv, None)
        process = _popen((_where(program, env.get("PATH")), *words), cwd, env, subprocess.DEVNULL)
        left = Left(process.pid, _began(process.pid), os.uname().nodename)  # as long as it is listed for certain
        _burial.leave(process)
        return left


class _Burial:
    """Collects the ends of processes that were left, since nobody but their parent can, and they would stay listed."""

    def __init__(self) -> None:
        self._left: deque[subprocess.Popen[bytes]] = deque()
        self._thread: Thread | None = None

    def leave(self, process: subprocess.Popen[bytes]) -> None:
        self._left.append(process)
        if self._thread is None or not self._thread.is_alive():  # in a fork of this process it is not
            self._thread = Thread(target=self._bury, name="fairmile-burial", daemon=True)
            self._thread.start()

    def _bury(self) -> None:
        while self._left:
            time.sleep(_BURY_EVERY_S)
            for _ in range(len(self._left)):
                process = self._left.popleft()
                if process.poll() is None:
                    self._left.append(process)


_burial = _Burial()


@lru_cache(maxsize=64)
def _where(program: str, path: str | None) -> str:
    """Return the file of a program, which is looked for once; the name itself where that tells not enough."""
    file = shutil.which(program, path=path)
    return file if file is not None and os.path.isabs(file) else program


def _began(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as stream:
            return int(stream.read().rpartition(b")")[2].split()[19])
    except (OSError, IndexError):
        return 0 if os.path.exists("/proc/self/stat") else -1


class Ssh:
    """Run programs on another machine, with the system's own ssh and its settings, never asking for a password.

    The variables of `env` are visible in the process list over there. With `shared`, a folder of the user alone, all
    calls share one connection, which stays open for a minute after the last. After a timeout, Ctrl-C, TERM or HUP the
    process group over there is ended as well, over a second connection.
    """

    def __init__(
        self,
        host: str,
        *,
        options: Sequence[str] = (),
        config: Path | None = None,
        shared: Path | None = None,
        capture_bytes: int = 64 * _MIB,
        grace_s: float = 5.0,
    ) -> None:
        if not host or host.startswith("-") or any(c.isspace() or not c.isprintable() for c in host):
            raise UsageError(
                f"{host!r} is not a host name", hint="give HOST, USER@HOST or an alias of the ssh settings"
            )
        self.host = host
        self.options = tuple(options)
        self.config = config
        self.shared = shared
        self.capture_bytes = capture_bytes
        self.grace_s = grace_s

    def argv(self, command: str) -> list[str]:
        """Return the argv that has the other machine's shell run `command`."""
        # ssh takes the first value it meets for an option, so the caller's come before our defaults.
        config = ["-F", str(self.config)] if self.config is not None else []
        defaults = ["-o", f"ConnectTimeout={_CONNECT_S}", "-o", f"ServerAliveInterval={_ALIVE_S}"]
        if self.shared is not None:
            master = ("ControlMaster=auto", f"ControlPath={self.shared}/%C", "ControlPersist=60")
            defaults += [word for option in master for word in ("-o", option)]
        return ["ssh", "-T", *config, "-o", "BatchMode=yes", *self.options, *defaults, "--", self.host, command]

    @asked_to_end()
    def run(
        self,
        argv: Sequence[str],
        *,
        cwd: str | Path | None = None,
        env: Mapping[str, str] | None = None,
        input: str | bytes | mmap | None = None,
        timeout_s: float | None = None,
        check: bool = True,
        on_line: Callable[[str], None] | None = None,
        on_wait: Callable[[], None] | None = None,
    ) -> Result:
        """Run `argv` over there; see `Runner.run`. A connection that fails raises Transient."""
        command = _checked(argv, env)
        if "=" in command[0]:
            raise UsageError(f"{command[0]!r} would set a variable over there instead of running a program")
        mark = f"fairmile-{os.urandom(8).hex()}:"
        ssh_argv = self.argv(f"exec sh -c {shlex.quote(_remote_script(command, cwd, env, mark))}")
        process = _Process(ssh_argv, None, None, self.capture_bytes, self.grace_s, on_line, on_wait, mark=mark)
        try:
            with process:
                ended = process.finish(_bytes(input), timeout_s, shown=command, where=f" on {self.host}")
        except _Overdue as error:
            if self._end_there(process.notes):
                raise
            raise Transient(
                f"{self.host} stopped responding: {error}",
                hint=f"check that `ssh -o BatchMode=yes {self.host} true` works, then try again",
            ) from error
        except BaseException:
            self._end_there(process.notes)
            raise
        result = Result(command, ended.exit_code, ended.stdout, ended.stderr, ended.duration_s)
        if process.notes.get("missing") == "folder":
            raise SystemFailure(f"cannot run {command[0]!r} in {cwd} on {self.host}: no such folder")
        if process.notes.get("missing") == "program":
            raise MissingProgram(
                f"no program {command[0]!r} on {self.host}", hint="install it there, or load its module first"
            )
        if result.exit_code == 255 and "exit" not in process.notes:
            message = _tail(result.stderr) or "ssh gave no reason"
            self._end_there(process.notes)  # else a retry would run beside what the lost connection left behind
            raise Transient(
                f"the connection to {self.host} failed: {message}",
                hint=f"check that `ssh -o BatchMode=yes {self.host} true` works, then try again",
            )
        if check and result.exit_code != 0:
            raise _failed(result, f" on {self.host}")
        return result

    def _end_there(self, notes: Mapping[str, str]) -> bool:
        """End what a command has left over there, and tell whether that machine answers."""
        group = notes.get("group", "")
        if not group.isdigit() or "exit" in notes:
            return bool(notes)
        # kill reports an empty group as an error; then nothing is left to do.
        script = (
            f"kill -TERM -{group} 2>/dev/null || exit 0; n=0; "
            f"while [ $n -lt {max(1, round(self.grace_s * 10))} ] && kill -0 -{group} 2>/dev/null; "
            f"do sleep 0.1; n=$((n+1)); done; kill -KILL -{group} 2>/dev/null; exit 0"
        )
        there = Here(grace_s=1.0)
        command = self.argv(f"exec sh -c {shlex.quote(script)}")
        # Best effort: the first error is the one to report, so the exit code of this one is not looked at.
        try:
            return there.run(command, timeout_s=self.grace_s + _CONNECT_S, check=False).exit_code == 0
        except SystemFailure:
            return False


class _Overdue(SystemFailure):
    """A program was stopped since its time was up."""


def _checked(argv: Sequence[str], env: Mapping[str, str] | None) -> tuple[str, ...]:
    command = tuple(argv)
    if not command or not command[0]:
        raise UsageError("no program to run: the command is empty")
    if command[0].startswith("-"):
        raise UsageError(f"{command[0]!r} is an option, not a program")
    for text in (*command, *(env or {}).values()):
        if "\0" in text:
            raise UsageError(f"a NUL character cannot be part of a command: {text[:60]!r}")
        try:
            os.fsencode(text)
        except UnicodeEncodeError as error:
            raise UsageError(f"an unpaired surrogate cannot be part of a command: {text[:60]!r}") from error
    for name in env or {}:
        if not _VARIABLE.fullmatch(name):
            raise UsageError(f"{name!r} is not a name for an environment variable")
    return command


def _bytes(text: str | bytes | mmap | None) -> bytes | mmap | None:
    return text.encode() if isinstance(text, str) else text


def _remote_script(command: tuple[str, ...], cwd: str | Path | None, env: Mapping[str, str] | None, mark: str) -> str:
    """Return the sh script that runs `command` and notes on stderr its process group and its exit code.

    The notes tell what ssh's exit code alone cannot: a program's own 255 from a broken connection, and what to
    end after a timeout.
    """
    # `env` also keeps the shell from taking the program's name for one of its own words.
    words = ["env", *(f"{name}={value}" for name, value in (env or {}).items()), *command]
    there = inside = ""
    if cwd is not None:
        folder = shlex.quote(str(cwd))
        there = f"[ -d {folder} ] || {{ echo {mark}missing:folder >&2; exit 1; }}; "
        inside = f"cd -- {folder} && "
    if not env or "PATH" not in env:
        program = shlex.quote(command[0])
        inside += f"{{ command -v {program} >/dev/null 2>&1 || {{ echo {mark}missing:program >&2; exit 127; }}; }} && "
    return f"echo {mark}group:$$ >&2; {there}{inside}{shlex.join(words)}; s=$?; echo {mark}exit:$s >&2; exit $s"


class _Stream:
    """One output of a program: its last bytes, and its lines as they come."""

    def __init__(self, most_bytes: int, on_line: Callable[[str], None] | None) -> None:
        self._most = most_bytes
        self._on_line = on_line
        self._kept: deque[bytes] = deque()
        self._size = 0
        self._dropped = 0
        self._rest = b""

    def feed(self, data: bytes) -> None:
        if not data:
            return
        self._kept.append(data)
        self._size += len(data)
        while self._size - len(self._kept[0]) >= self._most:
            gone = self._kept.popleft()
            self._size -= len(gone)
            self._dropped += len(gone)
        if self._on_line is None:
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._tell(line)
        if len(self._rest) > _LONGEST_LINE:
            self.close()

    def close(self) -> None:
        rest, self._rest = self._rest, b""
        if rest:
            self._tell(rest)

    def text(self) -> str:
        data = b"".join(self._kept)
        excess = max(0, len(data) - self._most)
        dropped = self._dropped + excess
        note = f"[the first {dropped} bytes are left out]\n" if dropped else ""
        return note + data[excess:].decode(errors="replace")

    def _tell(self, line: bytes) -> None:
        if self._on_line is not None:
            self._on_line(line.removesuffix(b"\r").decode(errors="replace"))


class _Notes:
    """Take the lines that our own remote script wrote out of a stream and pass the rest on."""

    def __init__(self, mark: str, stream: _Stream) -> None:
        self.values: dict[str, str] = {}
        self._mark = mark.encode()
        self._stream = stream
        self._rest = b""

    def feed(self, data: bytes) -> None:
        self._rest += data
        while (at := self._rest.find(self._mark)) >= 0:
            end = self._rest.find(b"\n", at)
            if end < 0:
                break
            key, _, value = self._rest[at + len(self._mark) : end].decode(errors="replace").partition(":")
            self.values[key] = value.strip()
            self._stream.feed(self._rest[:at])
            self._rest = self._rest[end + 1 :]
        # Hold back only what may be the start of a mark.
        at = self._rest.find(self._mark)
        if at < 0:
            at = len(self._rest)
            for length in range(min(len(self._mark) - 1, at), 0, -1):
                if self._rest.endswith(self._mark[:length]):
                    at -= length
                    break
        self._stream.feed(self._rest[:at])
        self._rest = self._rest[at:]

    def close(self) -> None:
        self._stream.feed(self._rest)
        self._rest = b""
        self._stream.close()


class _Process:
    """A running program with its own process group, which leaving the block ends."""

    def __init__(
        self,
        argv: Sequence[str],
        cwd: str | Path | None,
        env: Mapping[str, str] | None,
        capture_bytes: int,
        grace_s: float,
        on_line: Callable[[str], None] | None,
        on_wait: Callable[[], None] | None,
        *,
        mark: str = "",
    ) -> None:
        self.argv = tuple(argv)
        self._on_wait = on_wait
        self._grace_s = grace_s
        self._began = time.monotonic()
        self._out = _Stream(capture_bytes, on_line)
        self._err = _Stream(capture_bytes, on_line)
        self._notes = _Notes(mark, self._err) if mark else None
        try:
            with end_deferred():
                self._popen = _popen(self.argv, cwd, dict(os.environ) | dict(env) if env else None, subprocess.PIPE)
        except BaseException as error:
            if hasattr(self, "_popen"):
                self.__exit__(type(error))
            raise

    @property
    def notes(self) -> Mapping[str, str]:
        return self._notes.values if self._notes is not None else {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is not None or self._popen.poll() is None:
                self._kill()
        finally:
            for pipe in (self._popen.stdin, self._popen.stdout, self._popen.stderr):
                if pipe is not None:
                    _close_quietly(pipe)

    def finish(
        self, data: bytes | mmap | None, timeout_s: float | None, *, shown: tuple[str, ...] = (), where: str = ""
    ) -> Result:
        """Feed `data`, collect the output until the program ends, and return its result."""
        deadline = self._began + timeout_s if timeout_s is not None else float("inf")
        try:
            self._exchange(data or b"", deadline)
            self._popen.wait(None if timeout_s is None else max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._kill()
            message = _tail(self._err.text())
            raise _Overdue(
                f"{_short(shown or self.argv)!r}{where} did not finish within {timeout_s:g} s and was stopped"
                + (f"; its last output: {message}" if message else ""),
                hint="allow more time, or check what it waits for",
            ) from None
        for stream in (self._out, self._notes or self._err):
            stream.close()
        took = time.monotonic() - self._began
        return Result(self.argv, self._popen.returncode, self._out.text(), self._err.text(), took)

    def _exchange(self, data: bytes | mmap, deadline: float) -> None:
        """Move bytes in both directions until both outputs are closed, or the program ended and fell silent."""
        # A map of a file must not be closed while somebody still holds a view of it.
        with memoryview(data) as left, selectors.DefaultSelector() as selector:
            self._move(left, selector, deadline)

    def _move(self, left: memoryview, selector: selectors.BaseSelector, deadline: float) -> None:
        popen = self._popen
        assert popen.stdin is not None and popen.stdout is not None and popen.stderr is not None
        ended_at = float("inf")
        selector.register(popen.stderr, selectors.EVENT_READ, self._notes or self._err)
        if self._notes is None:
            selector.register(popen.stdout, selectors.EVENT_READ, self._out)
        os.set_blocking(popen.stdin.fileno(), False)
        selector.register(popen.stdin, selectors.EVENT_WRITE)
        still_open, listening = 2, self._notes is None
        while still_open:
            now = time.monotonic()
            if now >= deadline:
                raise subprocess.TimeoutExpired(self.argv, deadline - self._began)
            if ended_at == float("inf") and popen.poll() is not None:
                ended_at = now
            if self._on_wait is not None:
                self._on_wait()
            ready = selector.select(min(0.1, max(0.0, deadline - now)))
            if not ready and now - ended_at > _QUIET_S:
                return
            for key, _ in ready:
                if key.data is None:
                    left = _write_some(popen.stdin, left)
                    if not left:
                        selector.unregister(popen.stdin)
                        _close_quietly(popen.stdin)
                elif chunk := os.read(key.fd, _READ):
                    key.data.feed(chunk)
                else:
                    selector.unregister(key.fileobj)
                    still_open -= 1
            # A line of output must not be seen before the note on what to end if its reader fails.
            if not listening and (self.notes or still_open < 2):
                selector.register(popen.stdout, selectors.EVENT_READ, self._out)
                listening = True

    def _kill(self) -> None:
        """End the process group: TERM, then KILL for whatever is left of it after the grace."""
        try:
            self._signal(signal.SIGTERM)
            deadline = time.monotonic() + self._grace_s
            while self._group_lives() and time.monotonic() < deadline:
                time.sleep(0.02)
        finally:  # also for who does not want to wait that long
            self._signal(signal.SIGKILL)
            self._popen.wait()

    def _group_lives(self) -> bool:
        self._popen.poll()  # reaps the first process: as a zombie it would still count as alive
        return self._signal(0)

    def _signal(self, number: int) -> bool:
        try:
            os.killpg(self._popen.pid, number)
        except ProcessLookupError:
            return False
        except PermissionError:  # only processes of another user are left, such as a set-uid program
            return False
        return True


def _popen(
    argv: Sequence[str], cwd: str | Path | None, env: Mapping[str, str] | None, streams: int
) -> subprocess.Popen[bytes]:
    # What a C library such as MPI put into the environment of this process is meant for this process alone: os.environ
    # does not have it, while a program started without an environment would.
    env = dict(os.environ) if env is None else env  # of os.environ itself it would take each name and value twice
    try:
        return subprocess.Popen(
            argv, cwd=cwd, env=env, stdin=streams, stdout=streams, stderr=streams, start_new_session=True
        )
    except OSError as error:
        if cwd is not None and not os.path.isdir(cwd):
            raise SystemFailure(f"cannot run {argv[0]!r} in {cwd}: no such folder") from error
        if isinstance(error, FileNotFoundError):
            raise MissingProgram(
                f"no program {argv[0]!r} on this machine", hint="install it, or load its module first"
            ) from error
        raise SystemFailure(f"cannot run {argv[0]!r}: {error.strerror}") from error


def _write_some(pipe: IO[bytes], data: memoryview) -> memoryview:
    try:
        return data[os.write(pipe.fileno(), data[:_READ]) :] if data else data
    except BlockingIOError:
        return data
    except BrokenPipeError:  # the program needs no more input, which is its right
        return data[:0]


def _close_quietly(pipe: IO[bytes]) -> None:
    with contextlib.suppress(BrokenPipeError):
        pipe.close()


def _failed(result: Result, where: str) -> SystemFailure:
    code = result.exit_code
    try:
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    except ValueError:
        how = f"was ended by signal {-code}"
    message = _tail(result.stderr)
    return SystemFailure(f"{_short(result.argv)!r}{where} {how}" + (f": {message}" if message else ""))


def _tail(text: str) -> str:
    return "\n".join(text.rstrip().splitlines()[-_TAIL_LINES:])


def _short(argv: tuple[str, ...]) -> str:
    text = shlex.join(argv)
    return text if len(text) <= 200 else text[:197] + "..."
