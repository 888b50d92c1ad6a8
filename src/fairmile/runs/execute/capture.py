"""What is found when a run starts: code, inputs, software and the machine it runs on.

Nothing here needs more than the standard library and `base`, so that it also works on a machine to which only the
recorder was sent. What cannot change while a process lives is found once. No program is started but git, and that
only where the code lies in a repository.
"""

from __future__ import annotations

import os
import pwd
import re
import stat
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from fairmile.base.commands import Here
from fairmile.base.digest import ManifestEntry, canonical_json, merkle_root, sha256_hex
from fairmile.base.digest_cache import DigestCache
from fairmile.base.errors import FairmileError, NotFound, SystemFailure
from fairmile.base.git import Repository
from fairmile.base.lazy import lazy_pattern
from fairmile.base.paths import find_program
from fairmile.base.source_files import NOT_CODE, is_cache, is_source
from fairmile.runs.record.record import (
    Captured,
    CapturedCode,
    CapturedEnvironment,
    CapturedInput,
    CodeFile,
    GitState,
    RecordedSpec,
)
from fairmile.systems.hardware import hardware, passed_on, scheduler, software, variables

__all__ = [
    "agent",
    "code",
    "development_folders",
    "environment",
    "git_folders",
    "git_root",
    "git_state",
    "hardware",
    "identity",
    "inputs",
    "passed_on",
    "scheduler",
    "software",
    "variables",
]

_MIB = 1 << 20
_MOST_CODE_BYTES = 64 * _MIB
_MOST_DIFF_BYTES = 1_000_000
_MOST_UNTRACKED = 200
_MOST_UNTRACKED_BYTES = _MIB
_WORTH_THREADS_BYTES = 256 * _MIB
_LINK_MODE = 0o120000
_GIT_S, _SHIM_S = 60.0, 30.0
_MOST_LOOSE = 50
# Kinds of lines for what differs from the commit, with the fields before the name of the file.
_CHANGED = {"1": 7, "2": 8, "u": 9}
_SYSTEM_PROGRAMS = ("/usr/", "/bin/", "/sbin/", "/lib")
_PYTHON = lazy_pattern(r"(?:python|pypy)[0-9.]*")
_PYTHON_IN_SHELL = lazy_pattern(r"(?:^|[\s;&|(])((?:[\w./~-]*/)?python[0-9.]*)(?=\s|$)", re.MULTILINE)
_IMPORT = lazy_pattern(r"^\s*(?:import|from)\s+([\w.]+(?: as \w+)?(?:\s*,\s*[\w.]+(?: as \w+)?)*)", re.MULTILINE)
_MOST_IMPORTED = 500
_SHELLS = frozenset({"bash", "sh", "dash", "zsh", "ksh"})
# Programs that start the one that is meant.
_LAUNCHERS = _SHELLS | {
    *("mpirun", "mpiexec", "mpiexec.hydra", "srun", "jsrun", "aprun", "ibrun", "flux", "orterun", "prterun"),
    *("env", "nice", "nohup", "time", "timeout", "numactl", "taskset", "stdbuf", "nsys", "ncu", "perf", "strace"),
    *("apptainer", "singularity", "podman", "docker", "ch-run"),
}


def _read(path: Path, most_bytes: int) -> str:
    """Return the beginning of a file as text, empty where it cannot be read."""
    try:
        with open(path, "rb", buffering=0) as stream:
            return stream.read(most_bytes).decode(errors="replace").strip()
    except (OSError, ValueError):
        return ""


# The environment of Python


def environment(argv: Sequence[str], env: Mapping[str, str], folder: str | Path = ".") -> CapturedEnvironment:
    """Return which Python a command runs in a folder and the packages it sees, found without starting it.

    Empty where the command runs no Python.
    """
    interpreter = _interpreter(argv, env, folder)
    if not interpreter:
        return CapturedEnvironment()
    version, sites = _python_places(interpreter, _changed(interpreter), env.get("HOME", ""))
    lock = _lock(tuple((site, _changed(site)) for site in sites))
    return CapturedEnvironment(python=version, interpreter=interpreter, lock=list(lock))


def _changed(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


def _interpreter(argv: Sequence[str], env: Mapping[str, str], folder: str | Path = ".") -> str:
    """Return the Python that a command runs, itself or through a launcher, a shell or the first line of a script."""
    found = _on_path(argv, env)
    version = env.get("PYENV_VERSION", "")
    return _behind_shim(found, _changed(found), os.fspath(folder), env.get("PATH", os.defpath), version)


@lru_cache(maxsize=64)
def _behind_shim(interpreter: str, _mtime_ns: int, folder: str, path: str, pyenv_version: str) -> str:
    """Return the Python that a version manager's script of its name starts, which depends on the folder."""
    if not interpreter or _read(Path(interpreter), 2) != "#!":
        return interpreter
    env = {**os.environ, "PATH": path, "PYENV_VERSION": pyenv_version}
    try:
        words = [interpreter, "-c", "import sys; print(sys.executable)"]
        return Here().run(words, cwd=folder, env=env, timeout_s=_SHIM_S).stdout.strip()
    except (SystemFailure, OSError):
        return ""


def _on_path(argv: Sequence[str], env: Mapping[str, str]) -> str:
    path = env.get("PATH", os.defpath)
    if not argv:
        return ""
    program = os.path.basename(argv[0])
    words = argv if program in _LAUNCHERS or ":" in argv else argv[:1]  # a colon parts a solver from its model
    word = next((word for word in words if _PYTHON.fullmatch(os.path.basename(word))), "")
    if not word and program in _SHELLS:
        word = next((match[1] for text in argv[1:] if (match := _PYTHON_IN_SHELL.search(text))), "")
    if word:
        return find_program(word, path)
    script = find_program(argv[0], path)
    return _of_script(script, _changed(script), path) if script else ""


@lru_cache(maxsize=256)
def _of_script(script: str, _mtime_ns: int, path: str) -> str:
    first = _read(Path(script), 512)
    if not first.startswith("#!"):
        return ""
    # Where the path of an environment is too long for the kernel, installers write a line for sh instead.
    match = re.match(r"#!\s*(?:/usr/bin/env\s+(?:-S\s+)?)?(\S*python[0-9.]*)", first)
    match = match or re.search(r"^'''exec' \"?(\S*?python[0-9.]*)\"? ", first, re.MULTILINE)
    return find_program(match[1], path) if match else ""


@lru_cache(maxsize=64)
def _python_places(interpreter: str, _mtime_ns: int, home: str) -> tuple[str, tuple[str, ...]]:
    """Return the version of an interpreter and the folders in which its packages lie."""
    prefix = Path(interpreter).parent.parent
    settings = dict(re.findall(r"^(\S+)\s*=\s*(.*?)\s*$", _read(prefix / "pyvenv.cfg", 65_536), re.MULTILINE))
    if not settings and not Path(interpreter).samefile(sys.executable):
        prefix = Path(os.path.realpath(interpreter)).parent.parent
    version = settings.get("version") or ".".join(settings.get("version_info", "").split(".")[:3])
    sites: list[Path] = []
    if interpreter == sys.executable:
        version = sys.version.split()[0]
        sites = [Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")]
    elif not version:
        version = _base_version(Path(interpreter), prefix)
    minor = ".".join(version.split(".")[:2])
    for library in ("lib", "lib64", "local/lib"):
        sites += [prefix / library / f"python{minor}" / kind for kind in ("site-packages", "dist-packages")]
    if str(prefix) == "/usr":
        sites += [Path("/usr/lib/python3/dist-packages"), Path(f"/usr/local/lib/python{minor}/dist-packages")]
    if home and not settings:
        sites.append(Path(home) / f".local/lib/python{minor}/site-packages")
    if settings.get("include-system-site-packages", "").lower() == "true" and settings.get("home"):
        base = Path(settings["home"]) / f"python{minor}"
        sites += [Path(each) for each in _python_places(str(base), _changed(str(base)), home)[1]]
    there = dict.fromkeys(os.path.realpath(site) for site in sites if site.is_dir())
    return version, tuple(there)


def _base_version(interpreter: Path, prefix: Path) -> str:
    for record in prefix.glob("conda-meta/python-[0-9]*.json"):
        return record.name.split("-")[1]
    match = re.search(r"(\d+\.\d+)$", os.path.basename(os.path.realpath(interpreter)))
    if match:
        return match[1]
    matches = (re.fullmatch(r"python(\d+)\.(\d+)", folder.name) for folder in (prefix / "lib").glob("python*"))
    versions = [(int(match[1]), int(match[2])) for match in matches if match]
    return "{}.{}".format(*max(versions)) if versions else ""


@lru_cache(maxsize=64)
def _lock(sites: tuple[tuple[str, int], ...]) -> tuple[str, ...]:
    return tuple(sorted({package for site, changed in reversed(sites) for package in _packages(site, changed)}))


@lru_cache(maxsize=64)
def _packages(site: str, _mtime_ns: int) -> tuple[str, ...]:
    """Return name==version of every package in a folder, as the names of their records tell."""
    pattern = re.compile(r"(.+?)-([^-]+)(?:-py[0-9.]+)?\.(?:dist|egg)-info")
    try:
        matches = [match for name in os.listdir(site) if (match := pattern.fullmatch(name))]
    except OSError:
        return ()
    return tuple(f"{re.sub(r'[-_.]+', '-', match[1]).lower()}=={match[2]}" for match in matches)


def development_folders(argv: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """Return the folders outside its own from which the Python of a command imports, as `pip install -e` sets up."""
    from urllib.parse import unquote

    interpreter = _interpreter(argv, env)
    sites = _python_places(interpreter, _changed(interpreter), env.get("HOME", ""))[1] if interpreter else ()
    folders: dict[str, None] = {}
    for site in sites:
        for name in os.listdir(site):
            if name.endswith((".pth", ".egg-link")):
                lines = _read(Path(site, name), _MIB).splitlines()
                folders |= dict.fromkeys(line for line in lines if os.path.isabs(line) and os.path.isdir(line))
            elif name.endswith(".dist-info"):
                text = _read(Path(site, name, "direct_url.json"), 65_536)
                place = (
                    re.search(r'"url":\s*"file://([^"]+)"', text) if re.search(r'"editable":\s*true', text) else None
                )
                folders |= {unquote(place[1]): None} if place else {}
    return list(folders)


def agent() -> dict[str, str]:
    """Return who runs it: the user of the system and, where git knows it, the name of the person."""
    uid = os.geteuid()
    return dict(_agent(uid, os.environ.get("HOME", "")))


@lru_cache(maxsize=8)
def _agent(uid: int, home: str) -> tuple[tuple[str, str], ...]:
    try:
        user = pwd.getpwuid(uid).pw_name
    except KeyError:  # a container often runs as a number alone
        user = str(uid)
    name = ""
    for file in (Path(home) / ".gitconfig", Path(home) / ".config/git/config") if home else ():
        name = name or _git_settings(str(file), _changed(str(file))).get("user.name", "")
    return (("user", user), *((("name", name),) if name else ()))


# Digests


def _walk(root: str, prefix: str = "", seen: frozenset[str] = frozenset()) -> Iterator[tuple[str, os.stat_result]]:
    """Yield each file below a folder; one that a link leads to from outside the tree counts as lying in it."""
    with os.scandir(root) as items:
        for item in items:
            if item.name in NOT_CODE:
                continue
            if item.is_dir(follow_symlinks=False):
                yield from _walk(item.path, f"{prefix}{item.name}/", seen)
            elif item.is_symlink() and item.is_dir():
                real = os.path.realpath(item.path)
                if real not in seen and not (root + "/").startswith(real.rstrip("/") + "/"):
                    yield from _walk(real, f"{prefix}{item.name}/", seen | {real})
            elif item.is_file() or item.is_symlink():
                yield prefix + item.name, item.stat(follow_symlinks=False)


def _tree(root: Path, digests: DigestCache) -> tuple[str, int, int]:
    """Return digest, bytes and number of the files below a folder; the digest is that of the store.

    Folders called .git and __pycache__ do not count.
    """
    try:
        files = list(_walk(os.path.realpath(root)))
    except OSError as error:
        raise SystemFailure(f"cannot list the folder {error.filename}: {error.strerror}") from error
    top = os.path.realpath(root)
    total = sum(status.st_size for _, status in files)

    def entry(each: tuple[str, os.stat_result]) -> ManifestEntry:
        return _entry(top, each[0], each[1], digests)

    if total > _WORTH_THREADS_BYTES:
        from concurrent.futures import ThreadPoolExecutor  # which every worker would load

        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            entries = list(pool.map(entry, files))
    else:
        entries = [entry(each) for each in files]
    return merkle_root(entries), sum(each.size_bytes for each in entries), len(entries)


def _entry(top: str, path: str, status: os.stat_result, digests: DigestCache) -> ManifestEntry:
    file = os.path.join(top, path)
    if stat.S_ISLNK(status.st_mode):
        text, real = os.readlink(file), os.path.realpath(file)
        if not text.startswith("/") and real.startswith(top.rstrip("/") + "/"):
            data = os.fsencode(text)
            return ManifestEntry(path, len(data), sha256_hex(data), _LINK_MODE)
    try:
        status = os.stat(file)
        digest = digests.of(file, status)
    except OSError as error:
        raise SystemFailure(f"cannot read {file}: {error.strerror}") from error
    return ManifestEntry(path, status.st_size, digest, 0o755 if status.st_mode & stat.S_IXUSR else 0o644)


def inputs(
    spec_inputs: Mapping[str, Mapping[str, Any]], cache: Path | None = None, *, folder: Path | None = None
) -> dict[str, CapturedInput]:
    """Return path, asset, digest, size and number of files of everything that goes in; a folder's digest is its root.

    Relative paths start at `folder`. Digests of large files are kept in the file `cache`, so that what did not
    change is not read again. What has no path keeps the digest that it came with, which may be empty.
    """
    digests = DigestCache(cache)
    captured: dict[str, CapturedInput] = {}
    for name, given in spec_inputs.items():
        asset, path = str(given.get("asset") or ""), str(given.get("path") or "")
        if not path:
            captured[name] = CapturedInput(asset=asset, sha256=str(given.get("sha256") or ""))
            continue
        there = Path(folder or "", path).absolute()
        if there.is_dir():
            digest, size, files = _tree(there, digests)
        elif there.is_file():
            status = there.stat()
            digest, size, files = digests.of(str(there), status), status.st_size, 1
        else:
            raise NotFound(f"input {name!r} does not exist: {there}", hint="check the path, or fetch it first")
        captured[name] = CapturedInput(path=str(there), asset=asset, sha256=digest, size_bytes=size, files=files)
    digests.save()
    return captured


def digest(path: str | Path, digests: DigestCache) -> str:
    """Return the sha256 of a file, or of the tree that a folder is; empty where there is neither."""
    try:
        status = os.stat(path)
    except OSError:
        return ""
    try:
        return _tree(Path(path), digests)[0] if stat.S_ISDIR(status.st_mode) else digests.of(str(path), status)
    except OSError as error:
        raise SystemFailure(f"cannot read {path}: {error.strerror}") from error


# Code


def program_files(argv: Sequence[str], folder: Path, extra: Sequence[str] = ()) -> dict[str, Path]:
    """Return the files that are a program, by name: sources and programs that its command names, and what they import.

    Other files that a command names may be data; `extra` are part of the program in any case.
    """
    named = {
        path: word
        for word, path in _named_files(argv, folder)
        if is_source(path.name) or os.access(path, os.X_OK) or word == argv[0]
    }
    files = {word: path for path, word in named.items()} | {each: Path(folder, each) for each in extra}
    return files | dict(_imported(named, folder))


def code(argv: Sequence[str], folder: Path, extra: Sequence[str | Path] = ()) -> CapturedCode:
    """Return what program this is: the state of its git repository, and the digest of each file that is part of it.

    Files are those that words of the command name, also as in --config=FILE, a module after `-m` that lies in
    `folder`, `extra` files and folders, and outside of a repository the modules that a script imports from beside it.
    The repository is that of `extra`, else of `folder`, else of the files.
    """
    digests = DigestCache()
    files: dict[str, CodeFile] = {}
    for each in extra:
        path = Path(folder, each).absolute()
        if not path.exists():
            raise NotFound(f"the code {path} does not exist")
        _add_file(files, str(each), path, digests)
    named = {str(path): word for word, path in _named_files(argv, folder)}
    for path_text, word in named.items():
        _add_file(files, word, Path(path_text), digests)
    if not any(map(git_root, (os.path.abspath(folder), *(os.path.dirname(path) for path in named)))):
        scripts = {Path(path): files[path].name for path in named}
        for name, file in _imported(scripts, folder):
            _add_file(files, name, file, digests)
    starts = [*(Path(folder, each) for each in extra), folder, *(Path(path).parent for path in named)]
    roots = (root for start in starts if (root := git_root(os.path.abspath(start))))
    root = next(roots, None)
    return CapturedCode(git=git_state(root, digests) if root is not None else None, files=list(files.values()))


def _add_file(files: dict[str, CodeFile], word: str, path: Path, digests: DigestCache) -> None:
    if str(path) in files:
        return
    name = path.name if os.path.isabs(word) else os.path.normpath(word)
    if name.startswith("..") or name == ".":
        name = path.name
    taken = {each.name for each in files.values()}
    while name in taken:  # another file of that name, from another folder
        name = f"more/{name}"
    if path.is_dir():
        digest, size, count = _tree(path, digests)
        files[str(path)] = CodeFile(name=name, path=str(path), sha256=digest, size_bytes=size, files=count)
        return
    try:
        status = path.stat()
        digest = digests.of(str(path), status)
    except OSError as error:
        raise SystemFailure(f"cannot read {path}: {error.strerror}") from error
    files[str(path)] = CodeFile(name=name, path=str(path), sha256=digest, size_bytes=status.st_size)


def _named_files(argv: Sequence[str], folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the words of a command that name files which may be its code, with their paths."""
    for number, word in enumerate(argv):
        candidates = [word, word.partition("=")[2]] if "=" in word else [word]
        if number and argv[number - 1] == "-m" and _PYTHON.match(os.path.basename(argv[number - 2])):
            stem = word.replace(".", "/")
            candidates = [f"{stem}.py", f"{stem}/__main__.py"]
        for text in candidates:
            path = os.path.abspath(os.path.join(folder, text)) if text and len(text) < 4096 else ""
            if path and "\0" not in path and _is_code(path, number):
                yield text, Path(path)
                break


def _imported(scripts: Mapping[Path, str], folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the modules that Python scripts, given with their names, find beside them or in `folder` and import.

    They are named as the scripts see them. What is imported by a computed name is not found.
    """
    waiting = [
        (path, top, start)
        for path, name in scripts.items()
        for top, start in {path.parent: os.path.dirname(name), folder: ""}.items()
        if path.suffix == ".py"
    ]
    seen = set(scripts)
    while waiting and len(seen) < _MOST_IMPORTED:
        file, top, start = waiting.pop()
        for words in _IMPORT.findall(_read(file, _MOST_UNTRACKED_BYTES)):
            for path in (each for word in words.split(",") for each in _module(top, word)):
                if path not in seen:
                    seen.add(path)
                    waiting.append((path, top, start))
                    yield os.path.join(start, path.relative_to(top)), path


def _module(top: Path, word: str) -> list[Path]:
    """Return the files of the module or package in a folder that an import names."""
    name = word.strip().lstrip(".").partition(" ")[0].partition(".")[0]
    if name and (top / f"{name}.py").is_file():
        return [top / f"{name}.py"]
    return sorted((top / name).rglob("*.py")) if name and (top / name / "__init__.py").is_file() else []


def _is_code(path: str, number: int) -> bool:
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return False
    if not stat.S_ISREG(status.st_mode) or status.st_size > _MOST_CODE_BYTES or not os.access(path, os.R_OK):
        return False
    # Interpreters and what the system brings are part of the environment and not of the code.
    is_program = status.st_mode & stat.S_IXUSR and (number == 0 or "/bin/" in path)
    of_system = path.startswith(_SYSTEM_PROGRAMS) or bool(_PYTHON.fullmatch(os.path.basename(path)))
    return not (is_program and of_system)


def git_root(folder: str) -> str | None:
    """Return the nearest folder, upwards, that holds a git repository."""
    while True:
        if os.path.lexists(os.path.join(folder, ".git")):
            return folder
        above = os.path.dirname(folder)
        if above == folder:
            return None
        folder = above


def git_state(root: str, digests: DigestCache | None = None) -> GitState:
    """Return commit, branch, remote and what differs from the commit.

    `loose` are files and folders, these with a slash at the end, whose content nothing of that tells.
    """
    own, common = git_folders(Path(root))
    remote = _remote(common)
    try:
        # As git itself: what lies in the repository of another user may have been put there to be run.
        if own.stat().st_uid != os.geteuid():
            commit, branch = _head(own, common)
            return GitState(root=root, commit=commit, branch=branch, remote=remote)
        return replace(_git_state(Path(root), own, common, digests or DigestCache()), remote=remote)
    except FairmileError as error:  # no git here, a repository that git refuses, or one too large to look through
        commit, branch = _head(own, common)
        return GitState(root=root, commit=commit, branch=branch, problem=error.message, remote=remote)
    except OSError:
        return GitState(root=root)


def _git_state(root: Path, own: Path, common: Path, digests: DigestCache) -> GitState:
    git = Repository(own, Here(), timeout_s=_GIT_S)
    env = {"GIT_WORK_TREE": str(root), "GIT_OBJECT_DIRECTORY": str(common / "objects"), "GIT_OPTIONAL_LOCKS": "0"}
    options = ("--porcelain=v2", "--branch", "--untracked-files=all", "--ignored=matching", "-z")
    text = git.run("status", *options, cwd=root, env=env)
    facts: dict[str, str] = {}
    changed: list[str] = []
    untracked: list[str] = []
    ignored: list[str] = []
    fields = iter(text.split("\0"))
    for field in fields:
        kind, _, rest = field.partition(" ")
        if kind == "#":
            key, _, value = rest.partition(" ")
            facts[key] = value
        elif kind == "?":
            untracked.append(rest)
        elif kind == "!":
            ignored.append(rest)
        elif kind in _CHANGED:
            changed.append(rest.split(" ", _CHANGED[kind])[-1])
            if kind == "2":  # a renamed file: its old name is a field of its own
                next(fields, "")
    commit = facts.get("branch.oid", "")
    commit = "" if commit.startswith("(") else commit
    branch = facts.get("branch.head", "")
    state = GitState(root=str(root), commit=commit, branch="" if branch.startswith("(") else branch)
    state.dirty = bool(changed or untracked)
    if changed and commit:
        diff = git.run(
            *("diff", "--binary", "--no-color", "--no-ext-diff", "--no-textconv", "--no-renames", "HEAD", "--"),
            cwd=root,
            env=env,
        )
        state.diff_sha256 = sha256_hex(diff.encode())
        if len(diff) <= _MOST_DIFF_BYTES:
            state.diff = diff
    digested: set[str] = set()
    if untracked:
        state.untracked = _untracked(root, untracked, digests)
        state.untracked_files = len(untracked)
        digested = {each.name for each in state.untracked}
    loose = [
        name
        for name in (*untracked, *ignored)
        if name not in digested and not is_cache(os.path.join(root, name.rstrip("/")))
    ]
    loose += [*_submodules(root), *(changed if not commit else [])]
    state.loose = sorted(loose)[:_MOST_LOOSE]
    return state


def _submodules(root: Path) -> Iterator[str]:
    """Yield the submodules that are checked out: a commit names them, but not what was changed or ignored in them."""
    for name in re.findall(r"^\s*path\s*=\s*(\S.*?)\s*$", _read(root / ".gitmodules", _MIB), re.MULTILINE):
        if os.path.lexists(root / name / ".git"):
            yield f"{name}/"


def _untracked(root: Path, names: Sequence[str], digests: DigestCache) -> list[CodeFile]:
    """Return the small files that git does not know, those that look like programs first."""
    files: list[CodeFile] = []
    ordered = sorted(names, key=lambda name: (not is_source(name), name))
    for name in ordered[:_MOST_UNTRACKED]:
        path = root / name
        try:
            status = path.stat()
            if stat.S_ISREG(status.st_mode) and status.st_size <= _MOST_UNTRACKED_BYTES:
                digest = digests.of(str(path), status)
                files.append(CodeFile(name=name, sha256=digest, size_bytes=status.st_size))
        except OSError:
            continue
    return files


def git_folders(root: Path) -> tuple[Path, Path]:
    """Return where a work tree keeps its own state, and where the repository keeps what all work trees share."""
    own = root / ".git"
    if own.is_file():
        own = root / _read(own, 4096).removeprefix("gitdir:").strip()
    shared = _read(own / "commondir", 4096)
    return own, (own / shared if shared else own)


def _head(own: Path, common: Path) -> tuple[str, str]:
    """Return commit and branch as the files of a repository tell them."""
    head = _read(own / "HEAD", 4096)
    if not head.startswith("ref: "):
        return head, ""
    ref = head.removeprefix("ref: ")
    packed = re.search(
        rf"^([0-9a-f]{{40,64}}) {re.escape(ref)}$", _read(common / "packed-refs", 8 * _MIB), re.MULTILINE
    )
    commit = _read(common / ref, 4096) or (packed[1] if packed else "")
    return commit, ref.removeprefix("refs/heads/")


def _remote(common: Path) -> str:
    """Return the address of a repository's remote, without a login."""
    settings = _git_settings(str(common / "config"), _changed(str(common / "config")))
    urls = {key: value for key, value in settings.items() if re.fullmatch(r"remote\..+\.url", key)}
    url = urls.get("remote.origin.url") or next(iter(urls.values()), "")
    # A login or a token in the address is nobody's business.
    return re.sub(r"(?<=://)[^/\s]*@", lambda match: "git@" if match[0] == "git@" else "", url.partition("?")[0])


@lru_cache(maxsize=64)
def _git_settings(file: str, _mtime_ns: int) -> dict[str, str]:
    """Return the settings of a git configuration file, as section.name or section.part.name."""
    settings: dict[str, str] = {}
    section = ""
    for line in _read(Path(file), _MIB).splitlines():
        line = line.strip()
        head = re.fullmatch(r'\[\s*([\w.-]+)\s*(?:"((?:[^"\\]|\\.)*)")?\s*\]', line)
        if head:
            section = head[1].lower() + (f".{head[2]}" if head[2] is not None else "")
            continue
        key, equals, value = line.partition("=")
        if section and equals and not line.startswith(("#", ";")):
            settings.setdefault(f"{section}.{key.strip().lower()}", value.strip().strip('"'))
    return settings


# Identity


def identity(spec: RecordedSpec, captured: Captured) -> str:
    """Return the digest of all that went into a run, the same on every machine and in every folder.

    Counted are the command, parameters, seed, the variables that the specification sets, code, inputs and the
    environment; not the hardware. Empty where an input has no digest.
    """
    inputs = captured.inputs
    if any(not each.sha256 for each in inputs.values()) or spec.inputs.keys() - inputs.keys():
        return ""
    replaced = _replacements(spec, captured)
    material = {
        "argv": [_placeless(word, replaced, number) for number, word in enumerate(spec.argv)],
        "params": {name: _plain(value) for name, value in spec.params.items()},
        "seed": _plain(spec.seed),
        "env": {name: _placeless(text, replaced) for name, text in spec.env.items()},
        "code": _code_material(captured.code),
        "inputs": {name: each.sha256 for name, each in inputs.items()},
        "environment": _environment_material(captured.environment),
    }
    if spec.coupled:
        material["coupled"] = True
    return sha256_hex(canonical_json(material))


def _replacements(spec: RecordedSpec, captured: Captured) -> list[tuple[str, str]]:
    """Return the paths that a command may hold, the longest first, each with what stands for it."""
    replacements: dict[str, str] = {}
    git = captured.code.git
    if git is not None and git.root:
        replacements[git.root] = "{root}"
    if spec.folder:
        replacements[os.path.abspath(spec.folder)] = "{folder}"
    replacements |= {file.path: f"{{{file.sha256}}}" for file in captured.code.files if file.path}
    replacements |= {given.path: f"{{{given.sha256}}}" for given in captured.inputs.values() if given.path}
    return sorted(replacements.items(), key=lambda item: -len(item[0]))


def _placeless(word: str, replaced: Sequence[tuple[str, str]], number: int = -1) -> str:
    if number == 0 and _PYTHON.fullmatch(os.path.basename(word)):
        return "python"  # which one it is, the environment tells
    for path, mark in replaced:
        if path in word:
            word = re.sub(rf"(?<![\w.-]){re.escape(path)}(?![\w.-])", mark, word)
    return word


def _code_material(program: CapturedCode) -> dict[str, Any]:
    git = program.git or GitState()
    return {
        "commit": git.commit,
        "diff": git.diff_sha256,
        # Outputs often lie beside the code, unknown to git: only what looks like a program counts.
        "new": {each.name: each.sha256 for each in git.untracked if is_source(each.name)},
        "files": sorted([file.name, file.sha256] for file in program.files),
        "sources": sorted(source.sha256 for source in program.sources),
    }


def _environment_material(seen: CapturedEnvironment) -> str:
    if seen.digest:
        return seen.digest
    lines = [seen.python, *seen.lock]
    return sha256_hex("\n".join(lines).encode()) if any(lines) else ""


def _plain(value: Any) -> Any:
    """Return a number that canonical JSON refuses as a text that no other value has."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 1 << 53:
        return {"int": str(value)}
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return {"float": str(value)}
    return value
