"""Where jobs keep their files: a folder of this machine, or one of a machine that ssh reaches."""

from __future__ import annotations

import base64
import contextlib
import mmap
import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from fairmile.base.commands import Result, Runner
from fairmile.base.digest import sha256_file
from fairmile.base.errors import Integrity, NotFound, SystemFailure
from fairmile.base.files import safe_join, write_failure, written_aside
from fairmile.base.lazy import lazy_pattern
from fairmile.jobs.spec import Nearby

Notes = dict[str, str]
_STAGED = ".staged"
_PATIENCE_S = 60.0
_UPLOAD_S = 24 * 3600.0
_MARK = "fairmile-file:"


class JobFolders(Protocol):
    """The folder below which every job of a system has a folder of its own."""

    @property
    def root(self) -> str:
        """The folder, as an absolute path."""
        ...

    def make(
        self,
        job: str,
        texts: Mapping[str, str],
        inputs: Mapping[str, Path],
        nearby: Mapping[str, Nearby] = MappingProxyType({}),
    ) -> str:
        """Make a job's folder with these files in it and return its path; inputs that are there do not move again.

        `nearby` names what an earlier job left there of these inputs, which then need not be here.
        """
        ...

    def look(self, jobs: Sequence[str]) -> dict[str, Notes]:
        """Return what the scripts of many jobs noted: their files `started*` and `ended*`, by name."""
        ...

    def read(self, job: str, name: str, offset: int, most_bytes: int) -> bytes:
        """Return a piece of a file; nothing where there is none. A negative offset counts from the end."""
        ...

    def bring(self, job: str, name: str, target: Path) -> None:
        """Copy a file out of a job's folder."""
        ...

    def forget(self, job: str, *, keep_parts: bool = False) -> None:
        """Remove what the script of a job noted, before it runs once more; the ends of its parts may stay."""
        ...

    def remove(self, job: str) -> None:
        """Remove a job's folder."""
        ...


_NOTE = lazy_pattern(r"(?:started|ended)(?:\.[0-9]+)?")
# The same for a shell; programs may have files of their own that begin so.
_EACH_NOTE = (
    'for f in started started.* ended ended.*; do [ -f "$f" ] || continue; '
    "n=${f#started}; n=${n#ended}; case ${n#.} in *[!0-9]*) continue ;; esac; "
)


class LocalJobFolders:
    """A folder of this machine, or of a file system that it shares with the nodes."""

    def __init__(self, root: Path) -> None:
        self._root = str(root.absolute())

    @property
    def root(self) -> str:
        """See `JobFolders.root`."""
        return self._root

    def make(
        self,
        job: str,
        texts: Mapping[str, str],
        inputs: Mapping[str, Path],
        nearby: Mapping[str, Nearby] = MappingProxyType({}),
    ) -> str:
        """See `JobFolders.make`; files of this machine are copied, wherever they lie."""
        folder = Path(self.root, job)
        try:
            if not os.path.isdir(folder):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for name, source in inputs.items():
                self._lay(folder, name, source)
            for name, text in texts.items():
                target = safe_join(folder, name)
                if "/" in name:
                    target.parent.mkdir(parents=True, exist_ok=True)
                _write_private(target, text.encode(errors="surrogateescape"))
        except OSError as error:
            raise write_failure(str(folder), error) from error
        return str(folder)

    @staticmethod
    def _lay(folder: Path, name: str, source: Path) -> None:
        target = safe_join(folder, name)
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
        else:
            shutil.copyfile(source, target)
            shutil.copymode(source, target)

    def look(self, jobs: Sequence[str]) -> dict[str, Notes]:
        """See `JobFolders.look`."""
        notes: dict[str, Notes] = {}
        for job in jobs:
            folder = os.path.join(self.root, job)
            with contextlib.suppress(FileNotFoundError):
                with os.scandir(folder) as entries:
                    names = [entry.name for entry in entries if _NOTE.fullmatch(entry.name) and entry.is_file()]
                notes[job] = {name: _text(f"{folder}/{name}") for name in names}
        return notes

    def read(self, job: str, name: str, offset: int, most_bytes: int) -> bytes:
        """See `JobFolders.read`."""
        try:
            with open(safe_join(Path(self.root, job), name), "rb") as stream:
                size = os.fstat(stream.fileno()).st_size
                stream.seek(max(size + offset, 0) if offset < 0 else offset)
                return stream.read(most_bytes)
        except FileNotFoundError:
            return b""

    def bring(self, job: str, name: str, target: Path) -> None:
        """See `JobFolders.bring`."""
        source = safe_join(Path(self.root, job), name)
        if not source.exists():
            raise NotFound(f"job {job} left no file {name!r} behind", hint=f"its folder is {self.root}/{job}")
        if source.is_file():
            with written_aside(target) as aside:
                shutil.copyfile(source, aside)
            return
        try:
            shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
        except OSError as error:
            raise write_failure(str(target), error) from error

    def forget(self, job: str, *, keep_parts: bool = False) -> None:
        """See `JobFolders.forget`."""
        folder = Path(self.root, job)
        for name in os.listdir(folder):
            if name in ("started", "ended") or (_NOTE.fullmatch(name) and not keep_parts):
                (folder / name).unlink(missing_ok=True)

    def remove(self, job: str) -> None:
        """See `JobFolders.remove`."""
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(safe_join(Path(self.root), job))


class RemoteJobFolders:
    """A folder of a machine that a runner reaches.

    Input files are kept there under their sha256, so that the next job that needs one finds it.
    """

    def __init__(self, root: str, runner: Runner) -> None:
        self._given = root
        self._runner = runner
        self._root = ""

    @property
    def root(self) -> str:
        """The folder as an absolute path, which only the machine itself knows; made at the first call."""
        if not self._root:
            answer = self._sh(f"mkdir -p -- {_home_path(self._given)} && cd -- {_home_path(self._given)} && pwd -P")
            self._root = answer.stdout.strip()
            if not self._root.startswith("/"):
                raise SystemFailure(f"cannot determine {self._given} on the other machine: {answer.stdout[:200]!r}")
        return self._root

    def make(
        self,
        job: str,
        texts: Mapping[str, str],
        inputs: Mapping[str, Path],
        nearby: Mapping[str, Nearby] = MappingProxyType({}),
    ) -> str:
        """See `JobFolders.make`."""
        folder = f"{self.root}/{job}"
        lines = [f"umask 077; mkdir -p -- {shlex.quote(folder)} && cd -- {shlex.quote(folder)} || exit 1; umask 022"]
        for name, source in self._files(inputs):
            kept = self._stage(source, near := nearby.get(name))
            mode = "755" if os.access(source, os.X_OK) else "644"
            if near is not None:
                left = shlex.quote(f"{self.root}/{near.job}/{near.path}")
                mode = f"$(if [ -x {left} ]; then echo 755; else echo {mode}; fi)"
            # A copy, since a job may write into what it was given.
            lines.append(
                _inside(name) + f"cp -- {kept} {shlex.quote('./' + name)} && chmod {mode} {_word(name)} || exit 1"
            )
        body = ""
        lines.append("umask 077")  # a script names what the program is given, secrets among it
        for name, text in texts.items():
            data = text.encode(errors="surrogateescape")
            lines.append(_inside(name) + f"rm -f -- {_word(name)} && head -c {len(data)} > {_word(name)} || exit 1")
            body += text
        self._sh("\n".join(lines), input=body.encode(errors="surrogateescape"))
        return folder

    @staticmethod
    def _files(inputs: Mapping[str, Path]) -> list[tuple[str, Path]]:
        files: list[tuple[str, Path]] = []
        for name, source in inputs.items():
            if source.is_dir():
                inner = sorted(path for path in source.rglob("*") if path.is_file())
                files += [(f"{name}/{path.relative_to(source).as_posix()}", path) for path in inner]
            else:
                files.append((name, source))
        return files

    def _stage(self, source: Path, near: Nearby | None) -> str:
        """Bring a file over unless it is there, and return its quoted path."""
        digest = near.sha256 if near is not None else sha256_file(source)
        folder = f"{self.root}/{_STAGED}"
        kept = shlex.quote(f"{folder}/{digest}")
        left = ""
        if near is not None:  # a copy, since that job may be retried and write into its file
            path = shlex.quote(f"{self.root}/{near.job}/{near.path}")
            left = (
                f'mkdir -p -- {shlex.quote(folder)} && a={kept}.$$ && cp -- {path} "$a" && chmod u+w "$a" && '
                f'if [ "$(sha256sum < "$a" | cut -c1-64)" = {digest} ]; then mv -- "$a" {kept} && echo there; '
                'else rm -f -- "$a"; fi || '
            )
        if self._sh(f"{{ test -f {kept} && touch -- {kept} && echo there; }} || {{ {left}true; }}").stdout.strip():
            return kept
        if near is not None and not (source.is_file() and sha256_file(source) == digest):
            raise NotFound(f"{source.name}, which job {near.job} left on that system, is gone there")
        with open(source, "rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            data = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
            try:
                answer = self._sh(
                    f"mkdir -p -- {shlex.quote(folder)} && find {shlex.quote(folder)} -name '*.*' -mtime +1 -delete; "
                    f'umask 077; a={kept}.$$; cat > "$a" && d=$(sha256sum < "$a" | cut -c1-64) && echo "$d"; '
                    f'if [ "$d" = {digest} ]; then mv -- "$a" {kept}; else rm -f -- "$a"; fi',
                    input=data,
                    timeout_s=_UPLOAD_S,
                )
            finally:
                if isinstance(data, mmap.mmap):
                    data.close()
        if answer.stdout.split()[:1] != [digest]:
            raise Integrity(f"{source} arrived damaged", hint="try again; if it happens again, check the disk there")
        return kept

    def look(self, jobs: Sequence[str]) -> dict[str, Notes]:
        """See `JobFolders.look`."""
        script = (
            f'while read -r job; do cd -- {shlex.quote(self.root)}/"$job" 2>/dev/null || continue; {_EACH_NOTE}'
            f'printf "%s%s/%s\\n" {_MARK} "$job" "$f"; cat -- "$f"; echo; done; done; exit 0'
        )
        answer = self._sh(script, input="".join(f"{job}\n" for job in jobs).encode())
        notes: dict[str, Notes] = {job: {} for job in jobs}
        for part in answer.stdout.split(_MARK)[1:]:
            path, _, text = part.partition("\n")
            job, _, name = path.partition("/")
            notes.setdefault(job, {})[name] = text
        return notes

    def read(self, job: str, name: str, offset: int, most_bytes: int) -> bytes:
        """See `JobFolders.read`."""
        path = shlex.quote(f"{self.root}/{job}/{name}")
        start = f"-c {-offset}" if offset < 0 else f"-c +{offset + 1}"
        # base64 keeps the bytes whole on their way through a text.
        answer = self._sh(f"[ -f {path} ] && tail {start} -- {path} | head -c {most_bytes} | base64; exit 0")
        return base64.b64decode(answer.stdout)

    def bring(self, job: str, name: str, target: Path) -> None:
        """See `JobFolders.bring`."""
        path = f"{self.root}/{job}/{name}"
        answer = self._sh(f"cd -- {shlex.quote(path)} 2>/dev/null && find . -type f -print0 | base64; exit 0")
        if answer.stdout:
            for each in base64.b64decode(answer.stdout).decode(errors="surrogateescape").split("\0")[:-1]:
                inner = each.removeprefix("./")
                self._bring_file(job, f"{name}/{inner}", safe_join(target, inner))
        else:
            self._bring_file(job, name, target)

    def _bring_file(self, job: str, name: str, target: Path) -> None:
        path = f"{self.root}/{job}/{name}"
        # Its name would be escaped where it has newlines or backslashes, and the digest with it.
        answer = self._sh(f"[ -f {shlex.quote(path)} ] && sha256sum < {shlex.quote(path)} | cut -c1-64; exit 0")
        digest = answer.stdout.strip()
        if not digest:
            raise NotFound(f"job {job} left no file {name!r} behind", hint=f"its folder is {self.root}/{job}")
        with written_aside(target) as aside:
            with open(aside, "wb") as stream:
                offset = 0
                while piece := self.read(job, name, offset, 8 << 20):
                    stream.write(piece)
                    offset += len(piece)
            if sha256_file(aside) != digest:
                raise Integrity(f"{path} changed while it was copied", hint="copy it again when the job has ended")

    def forget(self, job: str, *, keep_parts: bool = False) -> None:
        """See `JobFolders.forget`."""
        rest = "" if keep_parts else f'; {_EACH_NOTE}rm -f -- "$f"; done'
        self._sh(f"cd -- {shlex.quote(f'{self.root}/{job}')} && rm -f -- started ended{rest}; exit 0")

    def remove(self, job: str) -> None:
        """See `JobFolders.remove`."""
        self._sh(f"rm -rf -- {shlex.quote(f'{self.root}/{job}')}")

    def _sh(self, script: str, *, input: bytes | mmap.mmap | None = None, timeout_s: float = _PATIENCE_S) -> Result:
        return self._runner.run(["sh", "-c", script], input=input, timeout_s=timeout_s)


def _home_path(folder: str) -> str:
    """Return the folder as a word of a shell, seen from the home folder unless absolute."""
    return shlex.quote(folder) if folder.startswith("/") else f'"$HOME"/{shlex.quote(folder)}'


def _word(name: str) -> str:
    return shlex.quote(f"./{name}")


def _text(file: str) -> str:
    with open(file, "rb") as stream:
        return stream.read().decode(errors="replace")


def _write_private(target: Path, data: bytes) -> None:
    """Write a file that only its owner may read: a script names what the program is given, secrets among it."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(target)
    fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as stream:
        stream.write(data)


def _inside(name: str) -> str:
    folder = os.path.dirname(name)
    return f"mkdir -p -- {_word(folder)} && " if folder else ""
