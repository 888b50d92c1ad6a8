"""git+https://, git+ssh://, git+file:// and https://….git: the files of one revision, Git LFS content included.

An address is REPOSITORY[@REVISION][#PATH]. The revision is a branch, a tag or a full commit; the path is a folder or
file within the repository. Nothing that lies in the repository is executed, and a submodule stays an empty folder.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shlex
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from fairmile.base.digest import sha256_file
from fairmile.base.errors import FairmileError, Integrity, NotFound, SystemFailure, Transient, UsageError
from fairmile.base.files import safe_join, write_failure
from fairmile.base.git import Repository, refuse_commands
from fairmile.base.quick_dataclass import dataclass
from fairmile.transfer.credentials import Login, shown_address, without_login
from fairmile.transfer.http import Client
from fairmile.transfer.lfs import POINTER_BYTES, LfsServer, OnBytes, Pointer, read_pointer
from fairmile.transfer.remote import Context, Remote

_SCHEMES = ("https", "http", "ssh", "file", "git")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_STAGED = re.compile(r"100(?:644|755) [0-9a-f]+ 0\t(.+)")
_ESCAPE = re.compile(r"\\([0-7]{3}|.)")
_LETTERS = {"a": "\a", "b": "\b", "t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r"}
_PASSED_ON = (
    *("HOME", "XDG_CONFIG_HOME", "SSH_AUTH_SOCK", "GIT_SSH", "GIT_SSH_COMMAND", "GIT_SSL_CAINFO", "GIT_SSL_NO_VERIFY"),
    *("http_proxy", "https_proxy", "all_proxy", "no_proxy", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
)
# Asks the system's ssh to notice a connection that died, and never to ask for a password.
_SSH = "ssh -o BatchMode=yes -o ServerAliveInterval=15 -o ConnectTimeout=15"
_ASK_S = 60.0
_LFS_STEPS = "check that `git lfs ls-files` works in a clone of it, or set lfs.url in its .lfsconfig"
_LOGIN_STEPS = (
    "it does not exist or requires a login: add one to ~/.netrc, or set up an ssh key or git's credential helper"
)


@dataclass(frozen=True)
class GitAddress:
    """A repository, a revision of it (empty: its default branch) and a path within it (empty: all of it)."""

    location: str
    revision: str = ""
    path: str = ""
    login: Login | None = None

    @classmethod
    def parse(cls, address: str) -> GitAddress:
        shown = shown_address(address)
        text, _, path = address.partition("#")
        text = text.removeprefix("git+")
        refuse_commands(text, shown_address)
        if any(sign.isspace() or not sign.isprintable() for sign in text):
            raise UsageError(
                f"the address {shown!r} contains a space or a control character", hint="write %20 for a space"
            )
        parts = urlsplit(text)
        if parts.scheme not in _SCHEMES or not parts.path.strip("/") or (parts.scheme == "file") == bool(parts.netloc):
            raise UsageError(
                f"{shown!r} is not an address of a git repository",
                hint="expected git+https://HOST/REPOSITORY[@REVISION][#PATH], or ssh or file instead of https",
            )
        if (parts.hostname or "").startswith("-") or (parts.username or "").startswith("-"):
            raise UsageError(f"{shown!r}: a host or user cannot start with a dash")
        if parts.scheme == "ssh" and parts.password is not None:
            raise UsageError(f"{shown!r} contains a password, which ssh does not accept", hint="set up an ssh key")
        # A path may hold an @ as %40; a revision comes after the last plain one.
        folder, at, revision = parts.path.rpartition("@")
        if at:
            parts = parts._replace(path=folder)
        revision, path = unquote(revision) if at else "", unquote(path).strip("/")
        if revision.startswith("-") or (at and not revision) or re.search(r"[\s:^~?*\[\\\x00-\x1f]|\.\.|@\{", revision):
            raise UsageError(f"{shown!r}: {revision!r} names no revision", hint="give a branch, a tag or a full commit")
        if path and (set(path.split("/")) & {"", ".", "..", ".git"} or "\0" in path):
            raise UsageError(f"{shown!r}: {path!r} is not a path within a repository")
        location, login = urlunsplit(parts), None
        if parts.scheme in ("http", "https"):
            location, login = without_login(location)
        return cls(location, revision, path, login)

    def pinned(self, commit: str) -> str:
        """Return the address of exactly this commit, without any login."""
        return f"git+{self.location}@{commit}" + (f"#{quote(self.path)}" if self.path else "")

    @property
    def scheme(self) -> str:
        return urlsplit(self.location).scheme

    @property
    def host(self) -> str:
        return urlsplit(self.location).hostname or ""

    @property
    def shown(self) -> str:
        return shown_address(self.location)


class Git:
    """Brings the files of one revision of a git repository."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._logins: dict[str, Login] = {}

    def find(self, address: str) -> list[Remote]:
        """Return one entry for the whole tree: its address is pinned to the commit, which is its validator too."""
        place = self._place(address)
        with TemporaryDirectory(prefix="fairmile-git-") as folder, _explained(place):
            commit = _Checkout(place, Path(folder) / "git", self._context).commit()
        return [Remote(place.pinned(commit), ".", validator=commit)]

    def bring(self, address: str, folder: Path, on_bytes: OnBytes) -> None:
        place = self._place(address)
        # No tree can hold an entry of this name, so nothing can collide with it or get hold of it.
        own = folder / ".git"
        with _explained(place):
            checkout = _Checkout(place, own, self._context, folder)
            checkout.check_out()
        pointers, plain_bytes = checkout.pointers()
        if plain_bytes:
            on_bytes(plain_bytes)
        if pointers:
            objects = own / "lfs"
            objects.mkdir(exist_ok=True)
            wanted = {pointer: paths[0] for pointer, paths in pointers.items()}
            with closing(Client(self._context)) as client:
                checkout.lfs_source(client).bring(wanted, objects, on_bytes)
            for pointer, paths in pointers.items():
                _put(objects / pointer.sha256, [safe_join(folder, path) for path in paths])
        shutil.rmtree(own)

    def _place(self, address: str) -> GitAddress:
        """Read an address; the login of an earlier one serves for the pinned address that has none."""
        place = GitAddress.parse(address)
        if place.login is not None:
            self._logins[place.location] = place.login
        return replace(place, login=self._logins.get(place.location))


class _Checkout:
    """Our own copy of one revision, and the folder that its files go to."""

    def __init__(self, place: GitAddress, own: Path, context: Context, folder: Path | None = None) -> None:
        self._place = place
        self._context = context
        self._folder = folder or own
        self._revision = ""
        self._index = own / "index"
        self._prefix = ""
        self._login: Login | None = None
        environ = context.environ
        env = {name: environ[name] for name in _PASSED_ON if name in environ}
        if place.scheme in ("http", "https"):
            self._login = place.login or context.credentials.login(place.host)
            if self._login is not None:
                # Through the environment, since arguments of a program can be seen by every user of the machine.
                root = urlunsplit(urlsplit(place.location)._replace(path="/"))
                env |= {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": f"http.{root}.extraHeader"}
                env |= {"GIT_CONFIG_VALUE_0": f"Authorization: {_basic(self._login)}"}
        self._git = Repository(own, context.runner, env=env, shown=shown_address)
        for lock in own.rglob("*.lock"):  # a git that was killed left it; nobody else works in this folder
            lock.unlink()
        self._git.create()
        self._ssh = ""
        if place.scheme == "ssh":
            given = shlex.quote(env["GIT_SSH"]) if "GIT_SSH" in env else self._config("core.sshCommand")
            self._ssh = env.get("GIT_SSH_COMMAND") or given or _SSH
            self._git = Repository(own, context.runner, env={**env, "GIT_SSH_COMMAND": self._ssh}, shown=shown_address)

    def commit(self) -> str:
        """Ask which commit the revision means, without fetching it."""
        place, wanted = self._place, self._place.revision
        names = [f"refs/tags/{wanted}^{{}}", f"refs/tags/{wanted}", f"refs/heads/{wanted}", wanted] if wanted else []
        if not wanted or _COMMIT.fullmatch(wanted):
            names = ["HEAD"]
        lines = self._git.run("ls-remote", "--quiet", "--", place.location, *names).splitlines()
        refs = {name: commit for commit, _, name in (line.partition("\t") for line in lines)}
        if _COMMIT.fullmatch(wanted):
            return wanted
        resolved = next((refs[name] for name in names if name in refs), None)
        if resolved is None:
            what = f"branch or tag {wanted!r}" if wanted else "commit yet"
            raise NotFound(f"no {what}", hint="name a branch, a tag or a full commit")
        return resolved

    def check_out(self) -> None:
        """Fetch the revision and write its files; large ones are still the pointers to their content."""
        git, path = self._git, self._place.path
        self._revision = git.fetch(self._place.location, self._place.revision or "HEAD")
        git.run("read-tree", self._revision)
        if path:
            line = git.run("ls-tree", "--full-tree", self._revision, "--", path)
            entry, _, _ = line.partition("\t")
            mode, kind, name = entry.split() if entry else ("", "", "")
            if kind not in ("tree", "blob"):
                raise NotFound(f"commit {self._revision[:12]} has no {path!r}", hint="check the part after the #")
            self._index = git.folder / "index-part"
            self._prefix = f"{path}/" if kind == "tree" else path[: path.rfind("/") + 1]
            self._index.unlink(missing_ok=True)
            if kind == "tree":
                self._run("read-tree", name)
            else:
                self._run("update-index", "--add", "--cacheinfo", f"{mode},{name},{path.rpartition('/')[2]}")
        self._run("checkout-index", "--all", "--force", "--quiet")

    def pointers(self) -> tuple[dict[Pointer, list[str]], int]:
        """Return the paths of the files whose content LFS holds, and how many bytes all the other files have."""
        paths: dict[Pointer, list[str]] = {}
        plain_bytes = 0
        suspects: list[tuple[str, Pointer, int]] = []
        for path in self._files():
            status = os.lstat(self._folder / path)
            plain_bytes += status.st_size
            if status.st_size < POINTER_BYTES:
                pointer = read_pointer((self._folder / path).read_bytes(), path)
                if pointer is not None:
                    suspects.append((path, pointer, status.st_size))
        for (path, pointer, size), is_lfs in zip(
            suspects, self._are_lfs([path for path, _, _ in suspects]), strict=True
        ):
            if is_lfs:
                paths.setdefault(pointer, []).append(path)
                plain_bytes -= size
        return paths, plain_bytes

    def lfs_source(self, client: Client) -> LfsServer | _LocalLfs:
        """Return what holds the large files: what .lfsconfig names, else what belongs to the repository's address."""
        place, url = self._place, ""
        if self._git.run("ls-tree", "--full-tree", self._revision, "--", ".lfsconfig"):
            url = self._config("lfs.url", "--blob", f"{self._revision}:.lfsconfig")
            place = GitAddress.parse(url) if url else place
        retries = self._context.settings.retries
        if place.scheme == "file":
            if url:
                raise UsageError(f"{self._place.shown}: its .lfsconfig names the folder {url!r} of this machine")
            return _LocalLfs(Path(unquote(urlsplit(place.location).path)))
        if place.scheme == "ssh":
            answer = self._authenticate(place)
            return LfsServer(answer["href"].rstrip("/"), client, answer.get("header") or {}, retries)
        stem = place.location.rstrip("/")
        if not url:
            stem += "/info/lfs" if stem.endswith(".git") else ".git/info/lfs"
        login = self._http_login(place)
        return LfsServer(stem, client, {"Authorization": _basic(login)} if login else {}, retries)

    def _run(self, *arguments: str, on_line: Callable[[str], None] | None = None) -> str:
        env = {"GIT_INDEX_FILE": str(self._index), "GIT_WORK_TREE": str(self._folder)}
        return self._git.run(*arguments, cwd=self._folder, env=env, on_line=on_line)

    def _config(self, key: str, *where: str) -> str:
        return self._git.run("config", *where, "--default", "", "--get", key).strip()

    def _files(self) -> list[str]:
        lines: list[str] = []
        self._run("ls-files", "--stage", on_line=lines.append)
        return [_unquoted(match[1]) for match in map(_STAGED.fullmatch, lines) if match]

    def _are_lfs(self, paths: Sequence[str]) -> list[bool]:
        """Tell for each path whether the repository says that LFS holds its content; else a pointer is mere text."""
        if not paths:
            return []
        self._git.attributes.unlink()
        names = b"".join(os.fsencode(self._prefix + path) + b"\0" for path in paths)
        fields = self._git.run("check-attr", "--cached", "--stdin", "-z", "filter", input=names).split("\0")
        return [value == "lfs" for value in fields[2::3]]

    def _http_login(self, place: GitAddress) -> Login | None:
        """Return the login for an LFS server: that of the repository when it is the same host, else git's own."""
        if place.host == self._place.host and self._login is not None:
            return self._login
        parts = urlsplit(place.location)
        question = f"protocol={parts.scheme}\nhost={parts.netloc}\npath={parts.path.lstrip('/')}\n\n"
        try:
            lines = self._git.run("credential", "fill", input=question).splitlines()
        except FairmileError:  # git has none, and must not ask for it
            return None
        answer = dict(line.split("=", 1) for line in lines if "=" in line)
        return Login(answer.get("username", ""), answer.get("password", ""))

    def _authenticate(self, place: GitAddress) -> Mapping[str, Any]:
        """Ask the other machine over ssh where its LFS server is and what to show there."""
        parts = urlsplit(place.location)
        user = f"{unquote(parts.username)}@" if parts.username else ""
        port = ["-p", str(parts.port)] if parts.port else []
        command = shlex.join(["git-lfs-authenticate", unquote(parts.path), "download"])
        argv = [*shlex.split(self._ssh or _SSH), *port, "--", f"{user}{parts.hostname}", command]
        done = self._context.runner.run(argv, timeout_s=_ASK_S, check=False)
        try:
            answer = json.loads(done.stdout) if not done.exit_code else None
        except ValueError:
            answer = None
        if not isinstance(answer, dict) or not isinstance(answer.get("href"), str):
            lines = (done.stderr or done.stdout).strip().splitlines()
            reason = f": {shown_address(lines[-1])}" if lines else ""
            raise SystemFailure(f"{place.shown} has no known LFS server{reason}", hint=_LFS_STEPS)
        return answer


class _LocalLfs:
    """The LFS objects that a repository on this machine holds."""

    def __init__(self, repository: Path) -> None:
        self._places = [repository / "lfs" / "objects", repository / ".git" / "lfs" / "objects"]

    def bring(self, wanted: Mapping[Pointer, str], place: Path, on_bytes: OnBytes) -> None:
        for pointer, path in wanted.items():
            name = pointer.sha256
            inside = Path(name[:2]) / name[2:4] / name
            source = next((each / inside for each in self._places if (each / inside).is_file()), None)
            if source is None:
                raise NotFound(
                    f"no content for {path} (sha256 {name}) in {self._places[0].parent}",
                    hint="run `git lfs fetch --all` in that repository",
                )
            part = place / f"{name}.part"
            try:
                shutil.copyfile(source, part)
                if sha256_file(part) != name:
                    raise Integrity(f"{source} is damaged: its sha256 does not match", hint="run `git lfs fsck` there")
                os.replace(part, place / name)
            except OSError as error:
                raise write_failure(str(part), error) from error
            on_bytes(pointer.size_bytes)


def _put(source: Path, targets: Sequence[Path]) -> None:
    """Put a file in the place of all targets; it is gone afterwards."""
    try:
        for number, target in enumerate(targets, 1):
            aside = source
            if number < len(targets):
                aside = source.with_suffix(".copy")
                shutil.copyfile(source, aside)
            os.chmod(aside, stat.S_IMODE(os.lstat(target).st_mode))
            os.replace(aside, target)
    except OSError as error:
        raise write_failure(str(targets[0]), error) from error


def _unquoted(text: str) -> str:
    """Return the path that git writes in quotes, with octal numbers for the bytes of unusual letters."""
    if not text.startswith('"'):
        return text

    def plain(match: re.Match[str]) -> str:
        sign = match[1]
        return chr(int(sign, 8)) if len(sign) == 3 else _LETTERS.get(sign, sign)

    return os.fsdecode(_ESCAPE.sub(plain, text[1:-1]).encode("latin-1"))


def _basic(login: Login) -> str:
    return "Basic " + base64.b64encode(f"{login.user}:{login.password}".encode()).decode()


@contextmanager
def _explained(place: GitAddress) -> Iterator[None]:
    """Have each error say which repository it is about."""
    try:
        yield
    except (NotFound, Transient, SystemFailure) as error:
        hint = error.hint or (_LOGIN_STEPS if "could not read" in str(error).lower() else None)
        raise type(error)(f"{place.shown}: {error}", hint=hint) from error
