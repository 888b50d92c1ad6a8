"""Whether the identity of a run covers all that its program could read; only then an earlier result may stand for it.

Covered are

- what git tracks (the commit and the digest of what differs from it), and small files beside it, which are digested;
- declared inputs and code, files that the command names, and in a folder without git the modules that they import;
- declared outputs, which are results, and the caches of tools, which change none.

Anything else in the folder of a run, or below the root of its repository, is not: data that git ignores, large
untracked files, submodules, links that lead out. Neither is a path that the command, a parameter or a variable names
outside of it, or that stands in quotes in the program. Where a run was watched (see `execute/watching`), of these only
count what the program really opened.

It needs nothing but the standard library and `base`, as the recorder does, which looks again when the program ended.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import MappingProxyType

from fairmile.base.commands import Here
from fairmile.base.digest import sha256_hex
from fairmile.base.digest_cache import Stamp
from fairmile.base.git import Repository
from fairmile.base.lazy import lazy_pattern
from fairmile.base.paths import find_program
from fairmile.base.source_files import is_cache
from fairmile.runs.execute import capture
from fairmile.runs.record.record import Captured, CapturedCode, GitState, RecordedSpec

MOST = 5  # of what is not covered so many are named
_MOST_MATCHES = 10_000
_LONGEST_TEXT = 64 << 10
_PATH = lazy_pattern(r"(?:^|(?<=[\s'\"=:,;|&<>()]))(?:~?/|~|[^\s'\"=:,;|&<>()]*\.\.(?:/|$))[^\s'\"=:,;|&<>()]*")
_QUOTED = lazy_pattern(rb"""['"]((?:~?/|\.\./)[^'"\n]{1,300}|\.\.)['"]""")
_SCRATCH = ("/tmp", "/var/tmp", "/dev", "/proc", "/sys")
_SYSTEM = ("/usr/", "/bin/", "/sbin/", "/lib")
# What a terminal, a login or a job is called, and where somebody stands: no program computes with it.
_SESSION = lazy_pattern(
    r"_|PWD|OLDPWD|SHLVL|TERM\w*|COLORTERM|COLUMNS|LINES|LS_COLORS|PS[0-4]|PROMPT_\w+|HIST\w+|LESS\w*|PAGER|EDITOR|VISUAL"
    r"|MAIL|DISPLAY|WINDOWID|WAYLAND_\w+|SSH_\w+|XDG_(?:SESSION|RUNTIME|SEAT|VTNR)\w*|DBUS_\w+|GPG_\w+|TMUX\w*|STY"
    r"|VSCODE_\w+|PYTEST_\w+|COV_\w+|FAIRMILE\w*|INVOCATION_ID|JOURNAL_STREAM|VIRTUAL_ENV_PROMPT"
    r"|(?:SLURM|PBS|LSB|SGE|FLUX|PMI|PMIX|PALS)\w*(?:ID|LIST|NAME|HOST|FILE|ADDR|DIR|TIME|COOKIE|SOCK|PORT|DAEMON)\w*"
)


def find_uncovered(
    spec: RecordedSpec,
    captured: Captured,
    argv: Sequence[str],
    runs: Path,
    folder: Path | None = None,
    program: Iterable[bytes] = (),
) -> list[str]:
    """Return, of what a program could read and no digest covers, the first few, as paths.

    `spec` and `captured` are those of its record, `argv` its command without placeholders, `runs` the folder of all
    runs, `program` the content of its files. Relative paths of the command start at `folder`.
    """
    cover = Cover(spec, captured, runs)
    uncovered: dict[str, None] = {}
    quoted = {os.fsdecode(name) for data in program for name in _QUOTED.findall(data)}
    for name in [*_named(spec, argv), *sorted(name for name in quoted if name.rstrip("/") not in _SCRATCH)]:
        path = os.path.normpath(os.path.join(spec.folder or folder or "/", os.path.expanduser(name)))
        if not cover.covers_named(path):
            uncovered[path] = None
    uncovered |= dict.fromkeys(islice(cover.loose(captured.code.git), MOST))
    return list(uncovered)[:MOST]


def find_left(
    spec: RecordedSpec, captured: Captured, runs: Path, there: Mapping[str, Stamp] = MappingProxyType({})
) -> list[str]:
    """Return, of the files that a program left or changed and did not declare, the first few.

    Those that were `there` before, and have the same stamp, are none of them.
    """
    before = captured.code.git
    now = capture.git_state(before.root) if before is not None else None
    cover = Cover(spec, captured, runs)
    in_home = os.path.join(cover.top, ".cache")  # of a user: both may be emptied at any time
    caches = tuple(os.path.join(each, "") for each in (in_home, os.environ.get("XDG_CACHE_HOME")) if each)
    loose = (path for path in _loose_files(cover, now) if not path.startswith(caches))
    left = [*islice((path for path in loose if path not in there or stamp_of(path) != there[path]), MOST)]
    left += changed_files(spec, captured, replace(captured, code=CapturedCode(git=now)), runs)
    commits = [(each.commit, each.diff_sha256) for each in (before, now) if each is not None]
    if before is not None and len(set(commits)) > 1:
        left.append(f"{before.root} (tracked files)")
    return left[:MOST]


def changed_files(spec: RecordedSpec, before: Captured, now: Captured, runs: Path) -> list[str]:
    """Return the untracked files that were not captured twice with the same content, declared outputs apart."""
    digests = [
        {each.name: each.sha256 for each in (captured.code.git.untracked if captured.code.git is not None else ())}
        for captured in (before, now)
    ]
    changed = sorted({name for name, _ in digests[0].items() ^ digests[1].items()})
    if not changed:
        return []
    cover = Cover(spec, now, runs)
    return [name for name in changed if not cover.covers(os.path.join(cover.root, name))][:MOST]


def variables_digest(env: Mapping[str, str]) -> str:
    """Return a digest of all variables that a program sees, but those of a terminal, a login or a single job."""
    lines = (f"{name}={env[name]}" for name in sorted(env) if not _SESSION.fullmatch(name))
    return sha256_hex("\0".join(lines).encode(errors="surrogateescape"))


def find_led_out(root: str) -> Iterator[str]:
    """Yield tracked files of a repository whose content git does not watch: links out of it, and hidden changes."""
    own, common = capture.git_folders(Path(root))
    env = {"GIT_WORK_TREE": root, "GIT_OBJECT_DIRECTORY": str(common / "objects"), "GIT_OPTIONAL_LOCKS": "0"}
    listed = Repository(own, Here(), timeout_s=60).run("ls-files", "-s", "-v", "-z", cwd=Path(root), env=env)
    for line in listed.split("\0"):
        head, _, name = line.partition("\t")
        path = os.path.join(root, name)
        leads_out = head[2:8] == "120000" and not _is_below(os.path.realpath(path), os.path.realpath(root))
        is_hidden = head[:1].islower() or head[:1] == "S"  # git was told to take it for unchanged
        if leads_out or (is_hidden and os.path.lexists(path)):
            yield name


def find_newer(argv: Sequence[str], env: Mapping[str, str], folder: str, covered: Sequence[str], since: float) -> str:
    """Return a part of the software that changed after `since`; empty where none is seen.

    Looked at are the program itself, and folders from which Python imports without installing: those of `PYTHONPATH`
    and of packages in development mode, unless they are below one of `covered`.
    """
    program = find_program(os.path.join(folder, argv[0]) if "/" in argv[0] else argv[0], env.get("PATH"))
    if program and _changed(os.path.realpath(program)) > since:
        return program
    folders = [os.path.join(folder, each) for each in env.get("PYTHONPATH", "").split(os.pathsep) if each]
    for source in [*folders, *capture.development_folders(argv, env)]:
        if any(_is_below(os.path.realpath(source), os.path.realpath(each)) for each in covered):
            continue
        newest = max(((_changed(file), file) for file in _sources(source)), default=(0.0, ""))
        if newest[0] > since:
            return newest[1]
    return ""


def find_loose(cover: Cover, git: GitState | None) -> list[str] | None:
    """Return all files in the folder of a run, or in its repository, that are not covered; None for too many."""
    files = list(islice(_loose_files(cover, git), _MOST_MATCHES + 1))
    return files if len(files) <= _MOST_MATCHES else None


def _loose_files(cover: Cover, git: GitState | None) -> Iterator[str]:
    """Yield what is not covered; a link to a folder stands for the files in there."""
    for path in cover.loose(git):
        if os.path.islink(path) and os.path.isdir(path):
            yield from _files_behind(path)
        else:
            yield path


def stamp_of(path: str) -> Stamp | None:
    """Return the stamp of a file; None where it cannot be asked for."""
    try:
        return Stamp.of(os.stat(path))
    except OSError:
        return None


def names_digest(names: Iterable[str]) -> str:
    """Return a digest of the names of files."""
    return sha256_hex("\0".join(sorted(names)).encode(errors="surrogateescape"))


def _files_behind(link: str) -> Iterator[str]:
    for top, folders, names in os.walk(link):
        folders[:] = [name for name in folders if not is_cache(os.path.join(top, name))]
        yield from (os.path.join(top, name) for name in names)


class Cover:
    """What of a run is covered: everything below some paths, and all that its outputs match."""

    def __init__(self, spec: RecordedSpec, captured: Captured, runs: Path) -> None:
        self.root = captured.code.root
        self.folder = spec.folder
        paths = [*(each.path for each in captured.code.files), *(each.path for each in captured.inputs.values())]
        below = [os.path.normpath(path) for path in paths if path]
        # Our own files are nothing that a program reads, unless it stands among them.
        own = [str(each) for each in (runs.parent, runs) if not _is_below(self.folder, str(each))]
        self._below = frozenset((*below, *own))
        self._folders = tuple(f"{each.rstrip('/')}/" for each in self._below)
        outputs = spec.outputs if self.folder else ()
        self._matched = frozenset(_matches(Path(self.folder), outputs) if outputs else ())

    @property
    def top(self) -> str:
        """The folder that is looked at as a whole: the repository, or where the program works."""
        return self.root or self.folder

    def is_inside(self, path: str) -> bool:
        """Tell whether a path is in the folder of a run, or in its repository."""
        return any(_is_below(path, each) for each in (self.root, self.folder) if each)

    def is_loose(self, path: str, git: GitState | None) -> bool:
        """Tell whether a file in the folder of a run, or in its repository, is not covered."""
        if self.covers(path):
            return False
        if not self.root or not _is_below(path, self.root) or git is None or git.dirty is None:
            return True
        name = os.path.relpath(path, self.root)
        return any(name == each or (each.endswith("/") and name.startswith(each)) for each in git.loose)

    def covers(self, path: str, *, is_file: bool = False) -> bool:
        """Tell whether a file, or all below a folder, is covered or a cache."""
        if path in self._below or path.startswith(self._folders) or is_cache(path, is_file=is_file):
            return True
        while self._matched and len(path) > len(self.folder):
            if path in self._matched:
                return True
            path = os.path.dirname(path)
        return False

    def covers_named(self, path: str) -> bool:
        """Tell whether what is at a path that a person named is covered; what is looked at as a whole is."""
        try:
            status = os.stat(path)
        except (OSError, ValueError):
            return True  # there is nothing to read
        if path == "/" or path.startswith(_SYSTEM) or stat.S_ISCHR(status.st_mode):
            return True
        is_program = stat.S_ISREG(status.st_mode) and status.st_mode & stat.S_IXUSR and "/bin/" in path
        return bool(is_program) or self.covers(path) or self.is_inside(path)

    def loose(self, git: GitState | None) -> Iterator[str]:
        """Yield what is not covered in the repository and in the folder of a run."""
        if git is not None and git.dirty is None:  # git was not asked, as in the repository of another user, or failed
            yield self.root
        for name in git.loose if git is not None else ():
            path = os.path.join(self.root, name.rstrip("/"))
            yield from self._walk(path) if name.endswith("/") else () if self.covers(path) else (path,)
        if self.folder and not (self.root and _is_below(self.folder, self.root)):
            yield from self._walk(self.folder)

    def _walk(self, folder: str) -> Iterator[str]:
        """Yield the files below a folder that are not covered; a link inside of it is as what it leads to."""
        if folder != self.folder and self.covers(folder):
            return
        try:
            with os.scandir(folder) as items:
                entries = list(items)
        except OSError:
            yield folder
            return
        for item in entries:
            if item.is_dir(follow_symlinks=False):
                yield from self._walk(item.path)
            elif not self.covers(item.path, is_file=not item.is_symlink()):
                top = self.folder or self.root
                if not (item.is_symlink() and _is_below(os.path.realpath(item.path), os.path.realpath(top))):
                    yield item.path


def _named(spec: RecordedSpec, argv: Sequence[str]) -> Iterator[str]:
    """Yield what looks like a path outside the folder in the command, the parameters and the variables that are set."""
    values = [*spec.params.values(), *spec.env.values()]
    for text in [*argv, *(value for value in values if isinstance(value, str))]:
        yield from _PATH.findall(text[:_LONGEST_TEXT])


def _matches(work: Path, patterns: Sequence[str]) -> Iterator[str]:
    for pattern in patterns:
        try:
            yield from map(str, islice(work.glob(pattern), _MOST_MATCHES))
        except (ValueError, NotImplementedError, OSError):  # the recorder says so
            continue


def _sources(folder: str) -> Iterator[str]:
    for top, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not is_cache(os.path.join(top, name))]
        yield from (os.path.join(top, name) for name in names if name.endswith((".py", ".so", ".pth")))


def _changed(path: str) -> float:
    try:
        return os.stat(path).st_ctime
    except OSError:
        return 0.0


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")
