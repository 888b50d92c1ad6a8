from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from fairmile.base.commands import Here
from fairmile.base.digest import scan_tree
from fairmile.base.errors import FairmileError, NotFound, SystemFailure, Transient, UsageError
from fairmile.testing.fetchers import CONTENT, RangeFetcherTests, Served, read
from fairmile.transfer.credentials import Credentials
from fairmile.transfer.fetchers.ssh import Ssh
from fairmile.transfer.remote import Context, RangeFetcher, Remote
from fairmile.transfer.settings import Settings
from fairmile.transfer.sftp import SftpLocation


@pytest.fixture
def make() -> Iterator[Callable[..., Ssh]]:
    """Return what makes a fetcher, given the settings of ssh; all are closed at the end."""
    made: list[Ssh] = []

    def one(config: Path, environ: Mapping[str, str] = os.environ, **settings: Any) -> Ssh:
        made.append(Ssh(Context(environ, Here(), Credentials({}), Settings(**settings)), config=config))
        return made[-1]

    yield one
    for each in made:
        each.close()


@pytest.fixture
def fetcher(make: Callable[..., Ssh], sshd: Any) -> Ssh:
    return make(sshd.config)


def publisher(root: Path, scheme: str = "ssh") -> Callable[[Mapping[str, bytes]], str]:
    def publish(files: Mapping[str, bytes]) -> str:
        place = root / f"set {abs(hash(tuple(sorted(files))))}"
        for path, data in files.items():
            target = place / path
            target.parent.mkdir(parents=True, exist_ok=True)
            aside = root / "aside"
            aside.write_bytes(data)
            aside.replace(target)
        shown = place / next(iter(files)) if len(files) == 1 else place
        return shown.as_uri().replace("file://", f"{scheme}://there")

    return publish


class TestOverSsh(RangeFetcherTests):
    @pytest.fixture
    def served(self, tmp_path: Path, fetcher: Ssh) -> Served[RangeFetcher]:
        return Served(fetcher, publisher(tmp_path), f"ssh://there{tmp_path}/nowhere")


@pytest.mark.thorough
class TestAServerThatOffersOnlySftp(RangeFetcherTests):
    @pytest.fixture(scope="class")
    def only_sftp(self, sshd: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
        yield from another_server(sshd, tmp_path_factory.mktemp("only-sftp"), "ForceCommand internal-sftp\n")

    @pytest.fixture
    def served(self, tmp_path: Path, only_sftp: Path, make: Callable[..., Ssh]) -> Served[RangeFetcher]:
        return Served(make(only_sftp), publisher(tmp_path, "sftp"), f"sftp://there{tmp_path}/nowhere")


def another_server(sshd: Any, folder: Path, more: str) -> Iterator[Path]:
    """Start a second ssh server with the keys of the first one and more settings; yield the settings to reach it."""
    old = sshd.config.parent
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = (old / "sshd_config").read_text().splitlines()
    kept = [line for line in settings if line.split()[0] not in ("Port", "Subsystem")]
    subsystem = "" if "Subsystem" in more else "Subsystem sftp internal-sftp\n"
    (folder / "sshd_config").write_text("\n".join(kept) + f"\nPort {port}\n{subsystem}{more}")
    key = (old / "host_key.pub").read_text()
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {key}")
    config = folder / "ssh_config"
    lines = (
        line for line in sshd.config.read_text().splitlines() if line.split()[0] not in ("Port", "UserKnownHostsFile")
    )
    config.write_text("\n".join(lines) + f"\n  Port {port}\n  UserKnownHostsFile {folder}/known_hosts\n")
    server = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/usr/bin:/bin")
    assert server is not None
    with subprocess.Popen([server, "-D", "-f", str(folder / "sshd_config")], stderr=subprocess.DEVNULL) as process:
        try:
            deadline = time.monotonic() + 30
            while process.poll() is None and time.monotonic() < deadline:
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.05)
            yield config
        finally:
            process.terminate()


def processes() -> set[int]:
    """Return the children of this process."""
    own, found = str(os.getpid()), set()
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        if fields[1] == own:
            found.add(int(entry.parent.name))
    return found


def test_files_are_sorted_as_a_manifest_sorts_them_and_links_and_modes_are_kept(fetcher: Ssh, tmp_path: Path) -> None:
    for name in ("a/z", "a.txt", "a-b", "b/c/d", "é", "tool", "new\nline", os.fsdecode(b"caf\xe9")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("content")
    (tmp_path / "tool").chmod(0o700)
    (tmp_path / "b" / "up").symlink_to("../a.txt")
    (tmp_path / "folder").symlink_to("b")
    found = fetcher.find(f"ssh://there{tmp_path}")
    assert [(each.path, each.size_bytes, each.mode) for each in found] == [
        (each.path, each.size_bytes, each.mode) for each in scan_tree(tmp_path)
    ]
    by_path = {each.path: each for each in found}
    assert read(fetcher.open(by_path["b/up"], 0, None)) == b"../a.txt"
    assert read(fetcher.open(by_path["new\nline"], 0, None)) == b"content"
    assert read(fetcher.open(by_path[os.fsdecode(b"caf\xe9")], 0, None)) == b"content"


def test_many_folders_and_many_files_in_one_are_listed(fetcher: Ssh, tmp_path: Path) -> None:
    names = [f"one/{number}" for number in range(700)] + [f"many/{number}/x" for number in range(150)]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert sorted(each.path for each in fetcher.find(f"ssh://there{tmp_path}")) == sorted(names)


def test_a_link_that_is_named_itself_is_followed(fetcher: Ssh, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"x")
    (tmp_path / "latest").symlink_to(tmp_path / "data")
    remote = fetcher.find(f"ssh://there{tmp_path}/latest")[0]
    assert (remote.path, remote.size_bytes, remote.mode) == ("latest", 1, 0o644)


@pytest.mark.parametrize("target", ["/etc/passwd", "../outside", "deep/../../outside"])
def test_a_link_that_leads_out_is_refused(fetcher: Ssh, tmp_path: Path, target: str) -> None:
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "link").symlink_to(target)
    with pytest.raises(UsageError, match="leads out"):
        fetcher.find(f"ssh://there{tmp_path}/inside")


def test_pipes_are_refused(fetcher: Ssh, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for address in (f"ssh://there{tmp_path}/pipe", f"ssh://there{tmp_path}"):
        with pytest.raises(UsageError, match="neither a file"):
            fetcher.find(address)


def test_an_empty_folder_has_nothing_to_fetch(fetcher: Ssh, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="has no files"):
        fetcher.find(f"ssh://there{tmp_path}")


def test_a_path_may_start_in_the_users_own_folder(fetcher: Ssh, tmp_path: Path) -> None:
    (tmp_path / "a b").write_bytes(b"x")
    home = os.path.expanduser("~")
    address = f"ssh://there/~/{os.path.relpath(tmp_path, home)}/a%20b"
    remote = fetcher.find(address)[0]
    assert remote.address == address
    assert read(fetcher.open(remote, 0, None)) == b"x"
    assert SftpLocation.parse("ssh://there/~", ["ssh"]).path == b"."


def test_one_connection_serves_many_ranges(fetcher: Ssh, tmp_path: Path) -> None:
    before = processes()
    remote = fetcher.find(publisher(tmp_path)({"data.bin": CONTENT}))[0]
    mine = processes() - before
    for start in range(0, 600_000, 100_000):
        assert read(fetcher.open(remote, start, start + 100_000)) == CONTENT[start : start + 100_000]
    with pytest.raises(NotFound):
        fetcher.find(f"ssh://there{tmp_path}/nowhere")
    assert len(mine) == 1
    assert processes() - before == mine
    fetcher.close()
    assert processes() == before


def test_a_connection_that_broke_meanwhile_is_replaced(fetcher: Ssh, tmp_path: Path) -> None:
    before = processes()
    remote = fetcher.find(publisher(tmp_path)({"data.bin": CONTENT}))[0]
    (pid,) = processes() - before
    os.kill(pid, 9)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert read(fetcher.open(remote, 0, None)) == CONTENT


def test_a_file_that_grew_or_shrank_since_it_was_found_shows_it(fetcher: Ssh, tmp_path: Path) -> None:
    remote = fetcher.find(publisher(tmp_path)({"data.bin": CONTENT}))[0]
    for data in (CONTENT[:1_000], CONTENT * 2):
        publisher(tmp_path)({"data.bin": data})
        body = fetcher.open(remote, 500, 2_000)
        assert body.total_bytes == len(data)
        assert body.validator != remote.validator
        assert read(body) == data[500:2_000]


def test_a_file_of_unknown_size_is_read_to_its_end(fetcher: Ssh, tmp_path: Path) -> None:
    address = publisher(tmp_path)({"data.bin": CONTENT})
    assert read(fetcher.open(Remote(address, "data.bin"), 11, None)) == CONTENT[11:]
    assert read(fetcher.open(Remote(address, "data.bin"), 11, 10**9)) == CONTENT[11:]


def test_what_is_no_file_cannot_be_opened(fetcher: Ssh, tmp_path: Path) -> None:
    with pytest.raises(FairmileError):
        fetcher.open(Remote(f"ssh://there{tmp_path}", "x"), 0, None)


HOSTILE = [
    "ssh://-oProxyCommand=touch%20{mark}/a",
    "ssh://-oProxyCommand=touch {mark}/a",
    "ssh://-F{mark}@there/a",
    "ssh://-oProxyCommand=touch${{IFS}}{mark}@there/a",
    "ssh://%2DoProxyCommand%3Dtouch@there/a",
    "ssh://a`touch {mark}`@there/a",
    "ssh://there;touch${{IFS}}{mark}/a",
    "ssh://there$(touch {mark})/a",
    "ssh://the\nre/a",
    "ssh://there:22;x/a",
    "ssh://there:-1/a",
    "ssh://there:999999/a",
    "ssh://ann:secret@there/a",
    "ssh:///a",
    "ssh://@there@there/a",
    "there:/a",
    "ann@there:a",
    "ssh:there/a",
    "http://there/a",
    "ssh://there/a%00b",
    "ssh://there/\ud800",
]


@pytest.mark.parametrize("template", HOSTILE)
def test_an_address_that_would_become_an_option_or_a_command_is_refused(
    fetcher: Ssh, tmp_path: Path, template: str
) -> None:
    address = template.replace("{mark}", str(tmp_path / "mark")).replace("{{", "{").replace("}}", "}")
    with pytest.raises(UsageError) as caught:
        fetcher.find(address)
    with pytest.raises(UsageError):
        fetcher.open(Remote(address, "a"), 0, None)
    assert "secret" not in str(caught.value)
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize(
    "name", ["$(touch mark)", "`touch mark`", "a;touch mark", "a\ntouch mark", "'\"\\", "-rf", "~"]
)
def test_no_shell_over_there_reads_a_path(fetcher: Ssh, tmp_path: Path, name: str) -> None:
    with pytest.raises(NotFound):
        fetcher.find(f"ssh://there{tmp_path}/{name}")
    (tmp_path / name).write_bytes(b"x")
    remote = fetcher.find(f"ssh://there{tmp_path}/{name}")[0]
    assert remote.path == name
    assert read(fetcher.open(remote, 0, None)) == b"x"
    assert not (tmp_path / "mark").exists() and not Path("mark").exists()


def test_addresses_keep_user_host_and_port_apart() -> None:
    place = SftpLocation.parse("sftp://ann%40lab@[::1]:2222/a%20b", ["ssh", "sftp"])
    assert place == ("sftp", "ann@lab", "::1", "2222", b"/a b")
    assert place.options == ["-l", "ann@lab", "-p", "2222"]
    assert place.address(place.path) == "sftp://ann%40lab@[::1]:2222/a%20b"
    assert SftpLocation.parse("ssh://Host-1.example", ["ssh"]).path == b"."


def test_a_host_that_does_not_answer_is_worth_a_retry(make: Callable[..., Ssh], sshd: Any) -> None:
    with pytest.raises(Transient, match=r"connection to there failed: .*refused") as caught:
        make(sshd.config).find("ssh://there:1/a")
    assert "sftp -o BatchMode=yes there" in str(caught.value.hint)


def test_a_refused_key_is_said_and_nobody_is_asked(make: Callable[..., Ssh], sshd: Any, tmp_path: Path) -> None:
    stranger = tmp_path / "config"
    stranger.write_text(sshd.config.read_text().replace("user_key", "no_such_key"))
    with pytest.raises(Transient, match="Permission denied"):
        make(stranger, environ={"PATH": os.environ["PATH"]}).find("ssh://there/a")


def test_a_missing_ssh_is_said(make: Callable[..., Ssh], sshd: Any, tmp_path: Path) -> None:
    with pytest.raises(SystemFailure, match="cannot run 'ssh'"):
        make(sshd.config, environ={"PATH": str(tmp_path)}).find("ssh://there/a")


def test_what_may_not_be_read_is_said_with_a_way_out(
    make: Callable[..., Ssh], sshd: Any, tmp_path: Path, unprivileged: list[str]
) -> None:
    (tmp_path / "shut").write_bytes(b"x")
    (tmp_path / "shut").chmod(0)
    service = tmp_path / "service"
    server = next(
        (p for p in ("/usr/lib/openssh/sftp-server", "/usr/libexec/openssh/sftp-server") if Path(p).exists()), ""
    )
    if not server:
        pytest.skip("needs the program sftp-server")
    service.write_text(f"#!/bin/sh\nexec {' '.join(unprivileged)} {server}\n")
    service.chmod(0o755)
    for config in another_server(sshd, tmp_path, f"Subsystem sftp {service}\n"):
        fetcher = make(config)
        with pytest.raises(SystemFailure, match="cannot be read") as caught:
            fetcher.open(fetcher.find(f"ssh://there{tmp_path}/shut")[0], 0, None)
        assert "ask its owner" in str(caught.value.hint)
        fetcher.close()


# A service of our own making stands in for servers that break or bend the rules.
SERVICE = """
import os, struct, sys, time
def string(data): return struct.pack(">I", len(data)) + data
def packet(kind, number, content=b""):
    data = struct.pack(">BI", kind, number) + content
    os.write(1, struct.pack(">I", len(data)) + data)
def exact(count):
    data = b""
    while len(data) < count:
        piece = os.read(0, count - len(data))
        if not piece: sys.exit(0)
        data += piece
    return data
FILE = bytes(range(256)) * 1000
def requests():
    while True:
        length, kind, number = struct.unpack(">IBI", exact(9))
        yield kind, number, exact(length - 5)
for kind, number, content in requests():
    if kind == 1: packet(2, 3)
    elif kind in (17, 8): packet(105, number, struct.pack(">IQI", 5, len(FILE), MODE))
    elif kind in (3, 11): packet(102, number, string(b"h"))
    elif kind == 4: packet(101, number, struct.pack(">I", 0) + string(b"") * 2)
    elif kind == 5:
        offset, length = struct.unpack(">QI", content[5:])
        read(number, offset, length)
    elif kind == 12: listing(number)
"""


@pytest.fixture
def bent(make: Callable[..., Ssh], sshd: Any, tmp_path: Path) -> Iterator[Callable[..., Ssh]]:
    """Return what makes a fetcher whose server runs the service above with the given Python before it."""
    servers: list[Iterator[Path]] = []

    def one(script: str, **settings: Any) -> Ssh:
        (tmp_path / "service.py").write_text("MODE = 0o100644\n" + script + SERVICE)
        folder = tmp_path / "bent"
        folder.mkdir()
        server = another_server(sshd, folder, f"Subsystem sftp {sys.executable} {tmp_path}/service.py\n")
        servers.append(server)
        return make(next(server), **settings)

    yield one
    for server in servers:
        for _ in server:
            pass


FILE = bytes(range(256)) * 1000


def test_a_server_that_sends_less_than_asked_for_or_in_another_order_is_understood(bent: Callable[..., Ssh]) -> None:
    fetcher = bent("""
waiting = []
def read(number, offset, length):
    waiting.append((number, FILE[offset : offset + min(length, 7000)]))
    if len(waiting) == 2 or offset + length >= len(FILE) or length < 32768:
        while waiting:
            packet(103, *(lambda n, d: (n, string(d)))(*waiting.pop()))
""")
    remote = fetcher.find("ssh://there/x")[0]
    assert read(fetcher.open(remote, 5, None)) == FILE[5:]


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("os = __import__('os'); os.write(1, b'Welcome to the machine!\\n')", "violates the sftp protocol"),
        ("__import__('sys').exit(3)", "connection to there failed"),
        ("def read(number, offset, length): packet(103, number, string(b'x' * (length + 1)))", "were asked for"),
        ("def read(number, offset, length): packet(103, number, string(b''))", "were asked for"),
        ("def read(number, offset, length): packet(99, number)", "kind 99"),
        ("def read(number, offset, length): os.write(1, b'\\xff' * 9)", "announces a packet of"),
        ("def read(number, offset, length): packet(101, number, struct.pack('>I', 4) + string(b'\\x1b[31mno'))", "no"),
        ("def read(number, offset, length): sys.exit()", "connection to there failed"),
        ("def read(number, offset, length): pass", "sent nothing for 1 s"),
        ("MODE = 0o40755\ndef listing(number): packet(104, number, struct.pack('>I', 5))", "cut off"),
        (
            "MODE = 0o40755\ndef listing(number): "
            "packet(104, number, struct.pack('>I', 1) + string(b'../x') + string(b'') + struct.pack('>I', 0))",
            "lists a file named",
        ),
    ],
)
def test_a_server_that_breaks_the_rules_is_an_error_that_says_so(
    bent: Callable[..., Ssh], script: str, says: str
) -> None:
    fetcher = bent(script + "\n", stall_s=1.0)
    with pytest.raises(FairmileError, match=says) as caught:
        read(fetcher.open(fetcher.find("ssh://there/x")[0], 0, None))
    assert str(caught.value).isprintable()


def test_a_body_that_waits_is_woken_up(bent: Callable[..., Ssh]) -> None:
    fetcher = bent("def read(number, offset, length): pass\n", stall_s=600.0)
    body = fetcher.open(fetcher.find("ssh://there/x")[0], 0, None)
    body.interrupt()
    with pytest.raises(Transient):
        read(body)
