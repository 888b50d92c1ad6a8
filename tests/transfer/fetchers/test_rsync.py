from __future__ import annotations

import itertools
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest

from fairmile.base.commands import Here, Result
from fairmile.base.digest import scan_tree
from fairmile.base.errors import NotFound, SystemFailure, Transient, UsageError
from fairmile.testing.fetchers import CONTENT, FolderFetcherTests, Served
from fairmile.transfer.credentials import Credentials
from fairmile.transfer.fetchers.rsync import Rsync
from fairmile.transfer.remote import Context, FolderFetcher
from fairmile.transfer.settings import Settings

pytestmark = pytest.mark.skipif(shutil.which("rsync") is None, reason="needs the program rsync")


def fetcher(environ: Mapping[str, str] = os.environ, config: Path | None = None, runner: Any = None) -> Rsync:
    return Rsync(Context(environ, runner or Here(), Credentials(environ), Settings()), config=config)


@contextmanager
def daemon(folder: Path, more: str = "") -> Iterator[str]:
    """Serve `folder/there` as the module `data` and yield its address."""
    (folder / "there").mkdir(exist_ok=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (folder / "rsyncd.conf").write_text(
        f"use chroot = no\nmotd file = {folder}/motd\nuid = {os.getuid()}\ngid = {os.getgid()}\n"
        f"[data]\npath = {folder}/there\nread only = yes\n{more}"
    )
    (folder / "motd").write_text("-rw-r--r-- 1 2020/01/01 00:00:00 not a file but a greeting\n")
    argv = ["rsync", "--daemon", "--no-detach", f"--config={folder}/rsyncd.conf", "--address=127.0.0.1"]
    with subprocess.Popen([*argv, f"--port={port}", "--log-file=/dev/null"]) as process:
        try:
            deadline = time.monotonic() + 30
            while process.poll() is None and time.monotonic() < deadline:
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.02)
            yield f"rsync://127.0.0.1:{port}/data"
        finally:
            process.terminate()


def publisher(root: Path, base: str) -> Callable[[Mapping[str, bytes]], str]:
    stamps = itertools.count(1_700_000_000)  # rsync takes files of the same size and second for the same

    def publish(files: Mapping[str, bytes]) -> str:
        place = root / f"set {abs(hash(tuple(sorted(files))))}"
        for path, data in files.items():
            target = place / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
            stamp = next(stamps)
            os.utime(target, (stamp, stamp))
        shown = place / next(iter(files)) if len(files) == 1 else place
        return base + shown.as_uri().removeprefix(root.as_uri())

    return publish


class TestADaemon(FolderFetcherTests):
    hostile: ClassVar[tuple[str, ...]] = (
        "rsync://-e,touch%20{mark}/data/x",
        "rsync://-e touch {mark}/data/x",
        "rsync://127.0.0.1/--rsh=touch {mark}/x",
        "rsync://127.0.0.1/a\n#list/x",
        "rsync://127.0.0.1/data/a%0ab",
        "rsync://127.0.0.1/data/a%00b",
        "rsync://127.0.0.1/data/a%5C*b",
        "rsync://ann:secret@127.0.0.1/data/x",
        "rsync://127.0.0.1/",
        "rsync://127.0.0.1/#list",
        "rsync:data/x",
        "-e touch {mark}",
    )

    @pytest.fixture
    def served(self, tmp_path: Path) -> Iterator[Served[FolderFetcher]]:
        with daemon(tmp_path) as address:
            yield Served(fetcher(), publisher(tmp_path / "there", address), f"{address}/nowhere")


@pytest.mark.thorough
class TestOverSsh(FolderFetcherTests):
    hostile: ClassVar[tuple[str, ...]] = (
        "rsync+ssh://-oProxyCommand=touch%20{mark}/x",
        "rsync+ssh://-oProxyCommand=touch${IFS}{mark}@there/x",
        "rsync+ssh://there;touch${IFS}{mark}/x",
        "rsync+ssh://the`touch {mark}`re/x",
        "rsync+ssh://there/$(touch {mark})",
        "rsync+ssh://there/;touch {mark}",
        "rsync+ssh://there/a%0atouch {mark}",
        "rsync+ssh://there/' ; touch {mark} ; '",
        "there:/x",
    )

    @pytest.fixture
    def served(self, tmp_path: Path, sshd: Any) -> Served[FolderFetcher]:
        there = tmp_path / "there"
        there.mkdir()
        base = f"rsync+ssh://there{there}"
        return Served(fetcher(config=sshd.config), publisher(there, base), f"{base}/nowhere")


def test_files_links_and_modes_are_told_beforehand_and_come(tmp_path: Path) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    here.mkdir()
    for name in ("a/z", "a.txt", "a-b", "é", "tool", "new\nline", "lit\\#012", os.fsdecode(b"caf\xe9"), "x -> y"):
        (there / name).parent.mkdir(parents=True, exist_ok=True)
        (there / name).write_text("content")
    (there / "tool").chmod(0o700)
    (there / "shut").write_text("x")
    (there / "shut").chmod(0o400)
    (there / "a" / "up").symlink_to("../a.txt")
    (there / "l -> k").symlink_to("q -> r")
    with daemon(tmp_path) as address:
        found = fetcher().find(address)
        expected = list(scan_tree(there))
        assert [(each.path, each.size_bytes, each.mode) for each in found] == [
            (each.path, each.size_bytes, each.mode) for each in expected
        ]
        assert all(each.validator for each in found)
        fetcher().bring(address, here, lambda _: None)
    assert list(scan_tree(here)) == expected


@pytest.mark.parametrize("target", ["/etc/passwd", "../outside"])
def test_a_link_that_leads_out_is_refused(tmp_path: Path, target: str) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "link").symlink_to(target)
    with daemon(tmp_path, "munge symlinks = no\n") as address, pytest.raises(UsageError, match="leads out"):
        fetcher().find(address)


def test_pipes_are_refused(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    os.mkfifo(tmp_path / "there" / "pipe")
    with daemon(tmp_path) as address, pytest.raises(UsageError, match="'pipe' is neither"):
        fetcher().find(address)


def test_a_link_that_is_named_itself_must_be_named_as_a_folder(tmp_path: Path) -> None:
    (tmp_path / "there" / "a").mkdir(parents=True)
    (tmp_path / "there" / "a" / "data").write_bytes(b"x")
    (tmp_path / "there" / "latest").symlink_to("a")
    with daemon(tmp_path) as address:
        with pytest.raises(UsageError, match="symbolic link") as caught:
            fetcher().find(f"{address}/latest")
        assert "add a '/'" in str(caught.value.hint)
        assert [each.path for each in fetcher().find(f"{address}/latest/")] == ["data"]


def test_an_empty_folder_has_nothing_to_fetch(tmp_path: Path) -> None:
    with daemon(tmp_path) as address, pytest.raises(NotFound, match="has no files"):
        fetcher().find(address)


@pytest.mark.parametrize("name", ["w[x]", "a*b", "wh?t", "back\\slash", "sp ace", "-e"])
def test_wildcards_in_an_address_mean_themselves(tmp_path: Path, sshd: Any, name: str) -> None:
    there = tmp_path / "there"
    (there / name).mkdir(parents=True)
    (there / name / "data").write_bytes(b"x")
    for other in ("wx", "ab", "aXb", "what"):
        (there / other).mkdir()
        (there / other / "wrong").write_bytes(b"x")
    quoted = (there / name).as_uri().removeprefix(there.as_uri())
    with daemon(tmp_path) as address:
        for number, base in enumerate((address, f"rsync+ssh://there{there}")):
            here = tmp_path / f"here {number}"
            here.mkdir()
            rsync = fetcher(config=sshd.config)
            assert [each.path for each in rsync.find(base + quoted)] == ["data"]
            rsync.bring(base + quoted, here, lambda _: None)
            assert [each.path for each in scan_tree(here)] == ["data"]


def test_the_password_of_a_module_comes_from_netrc_and_is_not_told(tmp_path: Path) -> None:
    (tmp_path / "secrets").write_text("ann:right\n")
    (tmp_path / "secrets").chmod(0o600)
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login ann password right\n")
    (tmp_path / "netrc").chmod(0o600)
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "data").write_bytes(b"x")
    with daemon(tmp_path, f"auth users = ann\nsecrets file = {tmp_path}/secrets\n") as address:
        found = fetcher({**os.environ, "NETRC": str(tmp_path / "netrc")}).find(address)
        assert [each.path for each in found] == ["data"]
        (tmp_path / "netrc").write_text("machine 127.0.0.1 login ann password wr0ng\n")
        with pytest.raises(SystemFailure, match="auth failed") as caught:
            fetcher({**os.environ, "NETRC": str(tmp_path / "netrc")}).find(address)
        assert "wr0ng" not in f"{caught.value} {caught.value.hint}"
        assert "netrc" in str(caught.value.hint)


def test_a_user_in_the_address_keeps_the_login_of_another_one_out(tmp_path: Path) -> None:
    (tmp_path / "netrc").write_text("machine host login ann password right\n")
    (tmp_path / "netrc").chmod(0o600)
    seen: list[tuple[list[str], dict[str, str]]] = []

    class Recorder(Here):
        def run(self, argv: Any, **more: Any) -> Result:
            seen.append((list(argv), more["env"]))
            return Result(tuple(argv), 23, "", "", 0.0)

    for user in ("", "ann@", "bob@"):
        with pytest.raises(NotFound):
            fetcher({"NETRC": str(tmp_path / "netrc")}, runner=Recorder()).find(f"rsync://{user}host/data/x")
    assert [argv[-1] for argv, _ in seen] == [f"rsync://{user}@host/data/x" for user in ("ann", "ann", "bob")]
    assert ["RSYNC_PASSWORD" in env for _, env in seen] == [True, True, False]


def test_an_interrupted_file_goes_on_where_it_ended(tmp_path: Path) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    there.mkdir()
    here.mkdir()
    data = os.urandom(4 << 20)
    (there / "data.bin").write_bytes(data)
    (here / "data.bin").write_bytes(data[: 3 << 20])
    with daemon(tmp_path) as address:
        log: list[str] = []

        class Recorder(Here):
            def run(self, argv: Any, **more: Any) -> Result:
                extra = ["--stats", "--no-human-readable"] if "--inplace" in argv else []
                result = super().run([argv[0], *extra, *argv[1:]], **more)
                log.append(result.stdout)
                return result

        counted: list[int] = []
        fetcher(runner=Recorder()).bring(address, here, counted.append)
    assert (here / "data.bin").read_bytes() == data
    literal = next(line for line in log[-1].splitlines() if line.startswith("Literal data:"))
    assert 1 << 20 <= int(literal.split()[2]) < 1.1 * (1 << 20)
    assert sum(counted) == 1 << 20


def test_what_is_gone_at_the_source_does_not_stay(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "data").write_bytes(CONTENT)
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "gone").write_bytes(b"x")
    with daemon(tmp_path) as address:
        fetcher().bring(address, tmp_path / "here", lambda _: None)
    assert os.listdir(tmp_path / "here") == ["data"]


def test_a_server_that_does_not_answer_is_worth_a_retry(sshd: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with pytest.raises(Transient, match="refused"):
        fetcher().find(f"rsync://127.0.0.1:{port}/data/x")
    with pytest.raises(Transient, match="refused"):
        fetcher(config=sshd.config).find("rsync+ssh://there:1/x")


def test_a_module_that_is_not_there_is_said(tmp_path: Path) -> None:
    with daemon(tmp_path) as address, pytest.raises(SystemFailure, match="Unknown module 'other'"):
        fetcher().find(address.replace("/data", "/other"))


def test_settings_of_ssh_with_awkward_names_are_passed_on(tmp_path: Path, sshd: Any) -> None:
    (tmp_path / "data").write_bytes(b"x")
    config = tmp_path / 'it\'s "my" config'
    shutil.copy(sshd.config, config)
    assert [each.path for each in fetcher(config=config).find(f"rsync+ssh://there{tmp_path}/data")] == ["data"]
