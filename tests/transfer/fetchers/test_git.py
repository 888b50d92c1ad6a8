"""git over file, http (git's own http-backend) and ssh (a real sshd); large files by a small LFS server of our own."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from git_server import GitServer, git_server

from fairmile.base.commands import Here, Result
from fairmile.base.errors import FairmileError, Integrity, NotFound, SystemFailure, Unsupported, UsageError
from fairmile.testing.fetchers import CONTENT, FolderFetcherTests, Served
from fairmile.transfer.credentials import Credentials, Login
from fairmile.transfer.fetchers.git import Git, GitAddress
from fairmile.transfer.lfs import read_pointer
from fairmile.transfer.remote import Context, FolderFetcher
from fairmile.transfer.settings import Settings

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs the program git")


class Recorder:
    """Runs programs here and keeps their arguments."""

    def __init__(self) -> None:
        self.argv: list[str] = []

    def run(self, argv: Sequence[str], **options: Any) -> Result:
        self.argv += argv
        return Here().run(argv, **options)


def make_fetcher(home: Path, runner: Any = None, **environ: str) -> Git:
    home.mkdir(exist_ok=True)
    variables = {"HOME": str(home), "XDG_CONFIG_HOME": str(home / ".config"), **environ}
    return Git(Context(variables, runner or Here(), Credentials(variables), Settings(stall_s=5.0)))


@pytest.fixture
def fetcher(tmp_path: Path) -> Git:
    return make_fetcher(tmp_path / "home")


def git(folder: Path, *arguments: str, input: bytes | None = None) -> str:
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.net", "-c", "protocol.file.allow=always"]
    command = ["git", *identity, *arguments]
    done = subprocess.run(command, cwd=folder, check=True, capture_output=True, input=input)
    return done.stdout.decode().strip()


def commit(folder: Path, message: str = "more") -> str:
    git(folder, "add", "--all", "--force")
    git(folder, "commit", "--quiet", "--allow-empty", "--message", message)
    return git(folder, "rev-parse", "HEAD")


def write(folder: Path, files: Mapping[str, bytes]) -> None:
    for path, data in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """The folder in which repositories lie elsewhere."""
    folder = tmp_path / "there"
    folder.mkdir()
    return folder


@pytest.fixture
def repository(there: Path) -> Path:
    """A repository with two commits; the first one is the tag v1 and the branch old/one."""
    folder = there / "data.git"
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch=main")
    write(folder, {"a.txt": b"old", "sub/deep/b.txt": b"b", "sub/c.txt": b"c"})
    commit(folder)
    git(folder, "tag", "--annotate", "v1", "--message", "one")
    git(folder, "branch", "old/one")
    write(folder, {"a.txt": b"new"})
    commit(folder)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "folder"
    folder.mkdir()
    return folder


@pytest.fixture
def server(there: Path) -> Iterator[GitServer]:
    with git_server(there) as running:
        yield running


def files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): os.readlink(path).encode() if path.is_symlink() else path.read_bytes()
        for path in folder.rglob("*")
        if path.is_symlink() or path.is_file()
    }


def ignore(count: int) -> None:
    pass


# The conformance suite, over all three ways


def publisher(root: Path, address: str) -> Callable[[Mapping[str, bytes]], str]:
    repository = root / "data.git"

    def publish(content: Mapping[str, bytes]) -> str:
        if not repository.exists():
            repository.mkdir(parents=True)
            git(repository, "init", "--quiet")
        for path in repository.iterdir():
            if path.name != ".git":
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        write(repository, content)
        commit(repository)
        return f"{address}/data.git"

    return publish


HOSTILE = (
    "git+ext::sh -c 'touch {mark}'",
    "ext::sh -c touch% {mark}",
    "git+--upload-pack=touch {mark}",
    "git+ssh://-oProxyCommand=touch%20{mark}/x",
    "git+ssh://-oProxyCommand=x@host/x",
    "git+fd::17/foo",
    "git+file:///x@--upload-pack=touch%20{mark}",
    "git+https:///nohost.git",
    "git+ftp://host/x.git",
    "git+https://host/x.git@a..b",
    "git+https://host/x.git@main#../../etc",
    "git+https://host/x.git\n--upload-pack=touch",
)


@pytest.mark.thorough
class TestOverFile(FolderFetcherTests):
    hostile = HOSTILE

    @pytest.fixture
    def served(self, tmp_path: Path) -> Served[FolderFetcher]:
        root = tmp_path / "th ere"
        address = f"git+{root.as_uri()}"
        return Served(make_fetcher(tmp_path / "home"), publisher(root, address), f"{address}/nowhere.git")


class TestOverHttp(FolderFetcherTests):
    hostile = HOSTILE

    @pytest.fixture
    def served(self, tmp_path: Path) -> Iterator[Served[FolderFetcher]]:
        with git_server(tmp_path / "there") as server:
            server.login = "me:hunter2"
            publish = publisher(server.root, server.address.replace("//", "//me:hunter2@"))
            missing = f"{server.address.replace('//', '//me:hunter2@')}/nowhere.git"
            yield Served(make_fetcher(tmp_path / "home"), publish, missing, "hunter2")


@pytest.mark.thorough
class TestOverSsh(FolderFetcherTests):
    hostile = HOSTILE

    @pytest.fixture
    def served(self, tmp_path: Path, sshd: Any) -> Served[FolderFetcher]:
        fetcher = make_fetcher(tmp_path / "home", GIT_SSH_COMMAND=f"ssh -F {sshd.config}")
        root = tmp_path / "there"
        address = f"git+ssh://{sshd.host}{root}"
        return Served(fetcher, publisher(root, address), f"{address}/nowhere.git")


# Addresses


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("git+https://host/x.git", GitAddress("https://host/x.git")),
        ("https://host/x.git", GitAddress("https://host/x.git")),
        ("https://host/x.git@v1#data/raw", GitAddress("https://host/x.git", "v1", "data/raw")),
        ("git+ssh://git@host:2222/~me/x@feature/one", GitAddress("ssh://git@host:2222/~me/x", "feature/one")),
        ("git+file:///srv/a%40b.git@main#/a%20b/", GitAddress("file:///srv/a%40b.git", "main", "a b")),
        ("git+https://me:pw@host/x.git", GitAddress("https://host/x.git", login=Login("me", "pw"))),
    ],
)
def test_an_address_names_repository_revision_and_path(address: str, expected: GitAddress) -> None:
    assert GitAddress.parse(address) == expected
    pinned = GitAddress.parse(expected.pinned("a" * 40))
    assert (pinned.location, pinned.revision, pinned.path) == (expected.location, "a" * 40, expected.path)


def test_a_password_for_ssh_is_refused_without_repeating_it() -> None:
    with pytest.raises(UsageError, match="ssh does not accept") as caught:
        GitAddress.parse("git+ssh://me:hunter2@host/x.git")
    assert "hunter2" not in str(caught.value)


# Revisions


@pytest.mark.parametrize("revision", ["", "@main", "@refs/heads/main"])
def test_the_newest_commit_of_a_branch_comes(fetcher: Git, repository: Path, folder: Path, revision: str) -> None:
    address = f"git+{repository.as_uri()}{revision}"
    [found] = fetcher.find(address)
    assert found.validator == git(repository, "rev-parse", "HEAD")
    fetcher.bring(address, folder, ignore)
    assert files(folder) == {"a.txt": b"new", "sub/deep/b.txt": b"b", "sub/c.txt": b"c"}


@pytest.mark.parametrize("revision", ["v1", "old/one", "COMMIT"])
def test_an_older_revision_comes(fetcher: Git, repository: Path, folder: Path, revision: str) -> None:
    first = git(repository, "rev-parse", "main~1")
    address = f"git+{repository.as_uri()}@{revision.replace('COMMIT', first)}"
    [found] = fetcher.find(address)
    assert found.validator == first
    assert found.address == f"git+{repository.as_uri()}@{first}"
    fetcher.bring(address, folder, ignore)
    assert files(folder)["a.txt"] == b"old"


def test_a_pinned_address_brings_the_same_after_the_branch_went_on(
    fetcher: Git, repository: Path, folder: Path, server: GitServer
) -> None:
    [found] = fetcher.find(f"{server.address}/data.git@main")
    write(repository, {"a.txt": b"newest"})
    commit(repository)
    fetcher.bring(found.address, folder, ignore)
    assert files(folder)["a.txt"] == b"new"


def test_only_one_revision_is_transferred(fetcher: Git, repository: Path, folder: Path) -> None:
    big = os.urandom(2_000_000)
    write(repository, {"big.bin": big})
    commit(repository)
    (repository / "big.bin").unlink()
    commit(repository)
    sizes: list[int] = []

    def look(count: int) -> None:
        sizes.append(sum(path.stat().st_size for path in (folder / ".git").rglob("*")))

    fetcher.bring(f"git+{repository.as_uri()}", folder, look)
    assert 0 < max(sizes) < 1_000_000


@pytest.mark.parametrize("revision", ["nowhere", "deadbeef"])
def test_a_revision_that_is_not_there_is_named(fetcher: Git, repository: Path, folder: Path, revision: str) -> None:
    address = f"git+{repository.as_uri()}@{revision}"
    for attempt in (fetcher.find, lambda address: fetcher.bring(address, folder, ignore)):
        with pytest.raises(NotFound, match=revision):
            attempt(address)


def test_an_empty_repository_has_nothing(fetcher: Git, there: Path) -> None:
    git(there, "init", "--quiet", "--bare", "empty.git")
    with pytest.raises(NotFound, match=r"empty\.git: no commit yet"):
        fetcher.find(f"git+{there.as_uri()}/empty.git")


# Parts of a repository


def test_a_folder_of_a_repository_comes_alone(fetcher: Git, repository: Path, folder: Path) -> None:
    fetcher.bring(f"git+{repository.as_uri()}#sub", folder, ignore)
    assert files(folder) == {"deep/b.txt": b"b", "c.txt": b"c"}


def test_a_file_of_a_repository_comes_alone(fetcher: Git, repository: Path, folder: Path) -> None:
    fetcher.bring(f"git+{repository.as_uri()}@v1#sub/deep/b.txt", folder, ignore)
    assert files(folder) == {"b.txt": b"b"}


def test_a_part_that_is_not_there_is_named(fetcher: Git, repository: Path, folder: Path) -> None:
    with pytest.raises(NotFound, match=r"data\.git: commit .* has no 'sub/none'"):
        fetcher.bring(f"git+{repository.as_uri()}#sub/none", folder, ignore)


def test_links_programs_and_odd_names_come_as_they_are(fetcher: Git, repository: Path, folder: Path) -> None:
    (repository / "link").symlink_to("a.txt")
    write(repository, {"tool": b"#!/bin/sh\n", "unix.dat": b"a\nb\n", ".gitattributes": b"* text eol=crlf ident\n"})
    (repository / "tool").chmod(0o755)
    odd = os.fsdecode(b'odd\xff\t\n"name')
    write(repository, {odd: b"$Id$"})
    commit(repository)
    fetcher.bring(f"git+{repository.as_uri()}", folder, ignore)
    assert os.readlink(folder / "link") == "a.txt"
    assert (folder / "tool").stat().st_mode & 0o111
    assert (folder / "unix.dat").read_bytes() == b"a\nb\n"
    assert (folder / odd).read_bytes() == b"$Id$"


# Nothing runs, nothing leads out


def test_nothing_of_a_repository_is_executed(repository: Path, folder: Path, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()

    def mark(name: str) -> str:
        return f"touch {marks / name}; cat"

    # The user has installed a filter and a hook folder, as one does for large files; a repository asks for them.
    home = tmp_path / "home"
    (home / "hooks").mkdir(parents=True)
    for hook in ("post-checkout", "reference-transaction", "post-merge", "pre-auto-gc", "post-index-change"):
        path = home / "hooks" / hook
        path.write_text(f"#!/bin/sh\n{mark('hook-' + hook)} >/dev/null </dev/null\n")
        path.chmod(0o755)
        shutil.copy(path, repository / ".git" / "hooks" / hook)
    (home / ".gitconfig").write_text(
        f'[filter "marking"]\n\tsmudge = "{mark("smudge")}"\n\tclean = cat\n\trequired = true\n'
        f'[filter "lfs"]\n\tsmudge = "{mark("lfs")}"\n\tclean = cat\n'
        f'[core]\n\thooksPath = {home / "hooks"}\n\tfsmonitor = "{mark("fsmonitor")}"\n'
        f"[init]\n\ttemplateDir = {repository / '.git'}\n"
    )
    write(repository, {".gitattributes": b"*.txt filter=marking ident export-subst\n*.bin filter=lfs\n", "x.bin": b"x"})
    commit(repository)
    # The trap is real: git by itself would call the filter and a hook.
    clone = ["git", "clone", "--quiet", "--template=", repository.as_uri(), str(tmp_path / "clone")]
    environ = {**os.environ, "HOME": str(home), "XDG_CONFIG_HOME": str(home)}
    subprocess.run(clone, env=environ, check=False, capture_output=True)
    assert {"smudge", "hook-reference-transaction"} <= {path.name for path in marks.iterdir()}
    for path in marks.iterdir():
        path.unlink()
    make_fetcher(home).bring(f"git+{repository.as_uri()}", folder, ignore)
    assert files(folder)["a.txt"] == b"new"
    assert list(marks.iterdir()) == []


def test_a_submodule_stays_an_empty_folder(fetcher: Git, repository: Path, folder: Path, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    modules = f'[submodule "m"]\n\tpath = m\n\turl = "ext::sh -c touch% {mark}"\n\tupdate = !touch {mark}\n'
    write(repository, {".gitmodules": modules.encode()})
    head = git(repository, "rev-parse", "HEAD")
    git(repository, "add", ".gitmodules")
    git(repository, "update-index", "--add", "--cacheinfo", f"160000,{head},m")
    git(repository, "commit", "--quiet", "--message", "module")
    fetcher.bring(f"git+{repository.as_uri()}", folder, ignore)
    assert list((folder / "m").iterdir()) == []
    assert not mark.exists()


@pytest.mark.parametrize("name", [".git", ".GIT", "git~1", ".."])
def test_a_tree_with_an_evil_name_is_refused(
    fetcher: Git, repository: Path, folder: Path, tmp_path: Path, name: str
) -> None:
    blob = git(repository, "hash-object", "-w", "--stdin", input=b"evil")
    inner = git(repository, "mktree", input=f"100644 blob {blob}\tconfig\n".encode())
    raw = b"40000 " + name.encode() + b"\0" + bytes.fromhex(inner)
    tree = git(repository, "hash-object", "-t", "tree", "-w", "--literally", "--stdin", input=raw)
    evil = git(repository, "commit-tree", tree, "-m", "evil")
    git(repository, "update-ref", "refs/heads/evil", evil)
    before = set(tmp_path.rglob("config"))
    with pytest.raises(FairmileError, match="invalid path"):
        fetcher.bring(f"git+{repository.as_uri()}@evil", folder, ignore)
    assert {path for path in tmp_path.rglob("config") if path.read_bytes() == b"evil"} == set()
    assert before <= set(tmp_path.rglob("config"))


def test_a_link_in_a_half_filled_folder_is_not_followed(
    fetcher: Git, repository: Path, folder: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "c.txt").write_bytes(b"mine")
    (folder / "sub").symlink_to(outside)
    fetcher.bring(f"git+{repository.as_uri()}", folder, ignore)
    assert (outside / "c.txt").read_bytes() == b"mine"
    assert files(folder)["sub/c.txt"] == b"c"


def test_what_a_killed_git_left_is_no_obstacle(fetcher: Git, repository: Path, folder: Path) -> None:
    git(folder, "init", "--quiet", "--bare", ".git")
    for name in ("index.lock", "shallow.lock", "FETCH_HEAD.lock", "config.lock"):
        (folder / ".git" / name).touch()
    fetcher.bring(f"git+{repository.as_uri()}", folder, ignore)
    assert files(folder)["a.txt"] == b"new"
    assert not (folder / ".git").exists()


# Logins


def test_a_login_comes_from_netrc_and_is_never_an_argument(
    repository: Path, server: GitServer, folder: Path, tmp_path: Path
) -> None:
    server.login = "me:hunter2"
    (tmp_path / "home").mkdir()
    netrc = tmp_path / "home" / ".netrc"
    netrc.write_text("machine 127.0.0.1 login me password hunter2\n")
    netrc.chmod(0o600)
    runner = Recorder()
    fetcher = make_fetcher(tmp_path / "home", runner)
    [found] = fetcher.find(f"git+{server.address}/data.git")
    fetcher.bring(found.address, folder, ignore)
    assert files(folder)["a.txt"] == b"new"
    assert "hunter2" not in " ".join(runner.argv) + found.address


def test_a_login_in_the_address_is_used_and_never_an_argument(
    repository: Path, server: GitServer, folder: Path, tmp_path: Path
) -> None:
    server.login = "me:hunter2"
    runner = Recorder()
    fetcher = make_fetcher(tmp_path / "home", runner)
    fetcher.bring(f"git+{server.address.replace('//', '//me:hunter2@')}/data.git", folder, ignore)
    assert files(folder)["a.txt"] == b"new"
    assert "hunter2" not in " ".join(runner.argv)


def test_without_a_login_the_error_says_what_to_do(
    fetcher: Git, repository: Path, server: GitServer, folder: Path
) -> None:
    server.login = "me:hunter2"
    with pytest.raises(SystemFailure, match=r"data\.git") as caught:
        fetcher.bring(f"git+{server.address}/data.git", folder, ignore)
    assert "netrc" in (caught.value.hint or "")


# Large files


@pytest.fixture
def large(there: Path, tmp_path: Path) -> Path:
    """A bare repository with large files, made and pushed by git-lfs itself."""
    if shutil.which("git-lfs") is None:
        pytest.skip("needs the program git-lfs")
    work, bare = tmp_path / "work", there / "large.git"
    work.mkdir()
    git(there, "init", "--quiet", "--bare", "--initial-branch=main", "large.git")
    git(work, "init", "--quiet", "--initial-branch=main")
    git(work, "lfs", "install", "--local")
    write(work, {".gitattributes": b"*.bin filter=lfs diff=lfs merge=lfs -text\n"})
    write(work, {"big.bin": CONTENT, "sub/same.bin": CONTENT, "sub/other.bin": CONTENT[::-1], "small.txt": b"s"})
    (work / "sub" / "other.bin").chmod(0o755)
    commit(work)
    git(work, "push", "--quiet", bare.as_uri(), "main")
    assert list((bare / "lfs" / "objects").rglob("*")), "git-lfs pushed no object"
    return bare


CONTENTS = {"big.bin": CONTENT, "sub/same.bin": CONTENT, "sub/other.bin": CONTENT[::-1], "small.txt": b"s"}
ATTRIBUTES = {".gitattributes": b"*.bin filter=lfs diff=lfs merge=lfs -text\n"}
BIG = hashlib.sha256(CONTENT).hexdigest()


def test_the_pointer_that_git_lfs_writes_is_understood(large: Path) -> None:
    text = git(large, "cat-file", "blob", "main:big.bin").encode() + b"\n"
    assert read_pointer(text, "big.bin") == (BIG, len(CONTENT))


def test_large_files_come_over_http(fetcher: Git, large: Path, server: GitServer, folder: Path) -> None:
    counted: list[int] = []
    fetcher.bring(f"{server.address}/large.git", folder, counted.append)
    assert files(folder) == CONTENTS | ATTRIBUTES
    assert (folder / "sub" / "other.bin").stat().st_mode & 0o777 == 0o755
    assert sum(counted) == 2 * len(CONTENT) + 1 + len(ATTRIBUTES[".gitattributes"])
    assert len([line for line in server.asked if "/objects/" in line and "batch" not in line]) == 2


def test_large_files_come_from_a_repository_of_this_machine(fetcher: Git, large: Path, folder: Path) -> None:
    fetcher.bring(f"git+{large.as_uri()}", folder, ignore)
    assert files(folder) == CONTENTS | ATTRIBUTES


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("sub", {"same.bin": CONTENT, "other.bin": CONTENT[::-1]}),
        ("sub/other.bin", {"other.bin": CONTENT[::-1]}),
    ],
)
def test_large_files_of_a_part_come_by_the_attributes_above_it(
    fetcher: Git, large: Path, folder: Path, path: str, expected: dict[str, bytes]
) -> None:
    fetcher.bring(f"git+{large.as_uri()}#{path}", folder, ignore)
    assert files(folder) == expected


def test_large_files_come_over_ssh_by_git_lfs_authenticate(
    large: Path, server: GitServer, sshd: Any, folder: Path, tmp_path: Path
) -> None:
    server.ticket = "RemoteAuth hunter2"
    tools = tmp_path / "tools"
    tools.mkdir()
    program = tools / "git-lfs-authenticate"
    program.write_text(
        f"#!{sys.executable}\nimport json, sys\n"
        f"assert sys.argv[1:] == [{str(large)!r}, 'download'], sys.argv\n"
        f"href = {server.address!r} + '/large.git/info/lfs'\n"
        f"print(json.dumps({{'href': href, 'header': {{'Authorization': {server.ticket!r}}}, 'expires_in': 60}}))\n"
    )
    program.chmod(0o755)
    # What a site's administrator would install over there stands in a folder of its own here.
    ssh = tmp_path / "ssh"
    ssh.write_text(
        f"#!{sys.executable}\nimport os, sys\n*options, command = sys.argv[1:]\n"
        f"os.execvp('ssh', ['ssh', '-F', {str(sshd.config)!r}, *options, 'PATH={tools}:$PATH; ' + command])\n"
    )
    ssh.chmod(0o755)
    fetcher = make_fetcher(tmp_path / "home", GIT_SSH_COMMAND=str(ssh))
    fetcher.bring(f"git+ssh://{sshd.host}{large}", folder, ignore)
    assert files(folder) == CONTENTS | ATTRIBUTES
    program.unlink()
    shutil.rmtree(folder)
    folder.mkdir()
    with pytest.raises(SystemFailure, match=r"large\.git has no known LFS server"):
        fetcher.bring(f"git+ssh://{sshd.host}{large}", folder, ignore)


def test_a_login_serves_for_the_large_files_too(large: Path, server: GitServer, folder: Path, tmp_path: Path) -> None:
    server.login = "me:hunter2"
    fetcher = make_fetcher(tmp_path / "home")
    fetcher.bring(f"{server.address.replace('//', '//me:hunter2@')}/large.git", folder, ignore)
    assert files(folder) == CONTENTS | ATTRIBUTES


def test_a_login_of_gits_credential_helper_serves_for_the_large_files(
    large: Path, server: GitServer, folder: Path, tmp_path: Path
) -> None:
    server.login = "me:hunter2"
    home = tmp_path / "home"
    fetcher = make_fetcher(home)
    (home / ".gitconfig").write_text("[credential]\n\thelper = store\n")
    (home / ".git-credentials").write_text(f"{server.address.replace('//', '//me:hunter2@')}\n")
    fetcher.bring(f"{server.address}/large.git", folder, ignore)
    assert files(folder) == CONTENTS | ATTRIBUTES


def test_a_download_that_breaks_off_goes_on_where_it_was(
    fetcher: Git, large: Path, server: GitServer, folder: Path
) -> None:
    server.cut_at, server.busy = [200_000, 100_000, 300_000], 2
    fetcher.bring(f"{server.address}/large.git", folder, ignore)
    assert files(folder) == CONTENTS | ATTRIBUTES
    assert any("bytes=" in line for line in server.asked)


def test_an_interrupted_fetch_goes_on_with_the_bytes_it_has(
    fetcher: Git, large: Path, server: GitServer, folder: Path
) -> None:
    objects = folder / ".git" / "lfs"
    objects.mkdir(parents=True)
    (objects / f"{BIG}.part").write_bytes(CONTENT[:400_000])
    counted: list[int] = []
    fetcher.bring(f"{server.address}/large.git", folder, counted.append)
    assert files(folder) == CONTENTS | ATTRIBUTES
    assert sum(counted) == 200_000 + len(CONTENT) + 1 + len(ATTRIBUTES[".gitattributes"])
    assert f"GET /objects/{BIG} bytes=400000-" in server.asked


@pytest.mark.parametrize("left", [CONTENT[:1_000][::-1], CONTENT[::-1], CONTENT + b"more"])
def test_damaged_leftovers_are_thrown_away(
    fetcher: Git, large: Path, server: GitServer, folder: Path, left: bytes
) -> None:
    objects = folder / ".git" / "lfs"
    objects.mkdir(parents=True)
    (objects / f"{BIG}.part").write_bytes(left)
    fetcher.bring(f"{server.address}/large.git", folder, ignore)
    assert files(folder) == CONTENTS | ATTRIBUTES


def test_a_server_without_ranges_sends_the_whole_again(
    fetcher: Git, large: Path, server: GitServer, folder: Path
) -> None:
    server.cut_at, server.has_ranges = [200_000], False
    fetcher.bring(f"{server.address}/large.git", folder, ignore)
    assert files(folder) == CONTENTS | ATTRIBUTES


def test_a_wrong_byte_is_caught(fetcher: Git, large: Path, server: GitServer, folder: Path) -> None:
    server.flipped = True
    with pytest.raises(Integrity, match=r"sent other content for .*\.bin: its sha256 is not"):
        fetcher.bring(f"{server.address}/large.git", folder, ignore)


def test_a_damaged_object_of_this_machine_is_caught(fetcher: Git, large: Path, folder: Path) -> None:
    [stored] = large.glob(f"lfs/objects/*/*/{BIG}")
    stored.chmod(0o644)
    stored.write_bytes(CONTENT[:-1] + b"!")
    with pytest.raises(Integrity, match="is damaged"):
        fetcher.bring(f"git+{large.as_uri()}", folder, ignore)


@pytest.mark.parametrize("way", ["http", "file"])
def test_a_missing_object_is_named_with_its_file(
    fetcher: Git, large: Path, server: GitServer, folder: Path, way: str
) -> None:
    [stored] = large.glob(f"lfs/objects/*/*/{BIG}")
    stored.unlink()
    address = f"{server.address}/large.git" if way == "http" else f"git+{large.as_uri()}"
    with pytest.raises(NotFound, match=r"big\.bin") as caught:
        fetcher.bring(address, folder, ignore)
    assert "git lfs" in (caught.value.hint or "")


def test_a_pointer_that_is_not_declared_as_one_is_plain_text(fetcher: Git, repository: Path, folder: Path) -> None:
    text = f"version https://git-lfs.github.com/spec/v1\noid sha256:{BIG}\nsize 5\n".encode()
    write(repository, {"example.txt": text})
    commit(repository)
    fetcher.bring(f"git+{repository.as_uri()}", folder, ignore)
    assert files(folder)["example.txt"] == text


def push_with(large: Path, tmp_path: Path, content: Mapping[str, bytes]) -> None:
    write(tmp_path / "work", content)
    commit(tmp_path / "work")
    git(tmp_path / "work", "push", "--quiet", "--no-verify", large.as_uri(), "main")


def test_the_server_that_lfsconfig_names_is_used(
    fetcher: Git, large: Path, server: GitServer, folder: Path, tmp_path: Path
) -> None:
    other = f"{server.address}/elsewhere/lfs"
    push_with(large, tmp_path, {".lfsconfig": f"[lfs]\n\turl = {other}\n".encode()})
    fetcher.bring(f"git+{large.as_uri()}", folder, ignore)
    assert files(folder)["big.bin"] == CONTENT
    assert "POST /elsewhere/lfs/objects/batch" in server.asked


@pytest.mark.parametrize("url", ["file:///etc", "ext::sh -c true", "-oProxyCommand=x", "ssh://-oProxyCommand=x/y"])
def test_an_lfsconfig_cannot_lead_to_this_machine_or_run_anything(
    fetcher: Git, large: Path, folder: Path, tmp_path: Path, url: str
) -> None:
    push_with(large, tmp_path, {".lfsconfig": f'[lfs]\n\turl = "{url}"\n'.encode()})
    with pytest.raises(UsageError):
        fetcher.bring(f"git+{large.as_uri()}", folder, ignore)


def test_a_pointer_with_an_extension_is_refused() -> None:
    text = f"version https://git-lfs.github.com/spec/v1\next-0-x sha256:{BIG}\noid sha256:{BIG}\nsize 5\n"
    with pytest.raises(Unsupported, match=r"x\.bin is a Git LFS pointer with an extension"):
        read_pointer(text.encode(), "x.bin")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "version https://git-lfs.github.com/spec/v1\n",
        f"version https://git-lfs.github.com/spec/v2\noid sha256:{BIG}\nsize 5\n",
        f"version https://git-lfs.github.com/spec/v1\noid sha256:{BIG.upper()}\nsize 5\n",
        f"version https://git-lfs.github.com/spec/v1\noid sha256:{BIG}\nsize -5\n",
        f"version https://git-lfs.github.com/spec/v1\noid sha256:{BIG}\nsize 5\nmore\n",
    ],
)
def test_other_texts_are_no_pointers(text: str) -> None:
    assert read_pointer(text.encode(), "x") is None
