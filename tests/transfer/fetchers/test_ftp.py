from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fairmile.base.commands import Here
from fairmile.base.errors import FairmileError, NotFound, SystemFailure, Transient, UsageError
from fairmile.testing.fetchers import CONTENT, RangeFetcherTests, Served, read
from fairmile.transfer.credentials import Credentials
from fairmile.transfer.fetchers import ftp
from fairmile.transfer.fetchers.ftp import Ftp
from fairmile.transfer.remote import Context, RangeFetcher, Remote
from fairmile.transfer.settings import Settings

SERVER = """
import json, sys
from pyftpdlib.authorizers import DummyAuthorizer
from pyftpdlib.handlers import FTPHandler, TLS_FTPHandler
from pyftpdlib.servers import FTPServer

options = json.loads(sys.argv[1])
authorizer = DummyAuthorizer()
if options["user"]:
    authorizer.add_user(options["user"], options["password"], options["root"])
else:
    authorizer.add_anonymous(options["root"])

class Handler(TLS_FTPHandler if options["certificate"] else FTPHandler):
    proto_cmds = {k: v for k, v in FTPHandler.proto_cmds.items() if k not in options["without"]}
    if options["certificate"]:
        proto_cmds = {k: v for k, v in TLS_FTPHandler.proto_cmds.items() if k not in options["without"]}
        certfile = options["certificate"]
        tls_data_required = True

    def handle(self):
        if options["implicit"]:
            self.secure_connection(self.ssl_context)
        super().handle()

    def pre_process_command(self, line, cmd, arg):
        print(line, flush=True)
        super().pre_process_command(line, cmd, arg)

Handler.authorizer = authorizer
server = FTPServer(("127.0.0.1", 0), Handler)
print(server.address[1], flush=True)
server.serve_forever(handle_exit=False)
"""


@dataclass
class There:
    """A server and the folder that it serves; `said` are the commands it got."""

    port: int
    root: Path
    said: list[str] = field(default_factory=list)
    scheme: str = "ftp"

    def address(self, path: str) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}{(self.root / path).as_uri().removeprefix(self.root.as_uri())}"

    def publish(self, files: Mapping[str, bytes]) -> str:
        place = self.root / f"set {abs(hash(tuple(sorted(files))))}"
        for path, data in files.items():
            target = place / path
            target.parent.mkdir(parents=True, exist_ok=True)
            aside = self.root.parent / "aside"
            aside.write_bytes(data)
            aside.replace(target)
        return self.address(f"{place.name}/{next(iter(files))}" if len(files) == 1 else place.name)


@contextmanager
def serving(root: Path, **options: Any) -> Iterator[There]:
    """Start a server of pyftpdlib: `without` lacks commands, `user` and `password` are its only login."""
    pytest.importorskip("pyftpdlib")
    root.mkdir(exist_ok=True)
    given = {"root": str(root), "without": [], "user": "", "password": "", "certificate": "", "implicit": False}
    argv = [sys.executable, "-W", "ignore", "-c", SERVER, json.dumps(given | options)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        there = There(int(process.stdout.readline()), root, scheme="ftps" if options.get("certificate") else "ftp")
        lines = process.stdout
        listener = threading.Thread(target=lambda: there.said.extend(line.rstrip() for line in lines))
        listener.start()
        try:
            yield there
        finally:
            process.terminate()
            listener.join()


@contextmanager
def vsftpd(folder: Path, certificate: str = "") -> Iterator[There]:
    """Start vsftpd, which has no MLSD and wants the control connection's TLS session on each data connection."""
    program = shutil.which("vsftpd", path="/usr/sbin:/usr/local/sbin:/usr/bin:/bin")
    if program is None:
        pytest.skip("needs the program vsftpd")
    root = folder / "there"
    root.mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    tls = f"rsa_cert_file={certificate}\nforce_anon_logins_ssl=YES\nforce_anon_data_ssl=YES\nallow_anon_ssl=YES\n"
    (folder / "vsftpd.conf").write_text(
        f"listen=YES\nlisten_address=127.0.0.1\nlisten_port={port}\nbackground=NO\nrun_as_launching_user=YES\n"
        f"anonymous_enable=YES\nno_anon_password=YES\nanon_root={root}\nforce_dot_files=YES\nseccomp_sandbox=NO\n"
        "xferlog_enable=NO\nanon_world_readable_only=NO\n"
        + (f"ssl_enable=YES\nrequire_ssl_reuse=YES\n{tls}" if certificate else "")
    )
    with subprocess.Popen([program, str(folder / "vsftpd.conf")], stderr=subprocess.DEVNULL) as process:
        try:
            _wait_for(port, process)
            yield There(port, root, scheme="ftps" if certificate else "ftp")
        finally:
            process.terminate()


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 30
    while process.poll() is None and time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    pytest.fail("vsftpd does not answer")


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file with a key and its certificate for 127.0.0.1."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the program openssl")
    folder = tmp_path_factory.mktemp("certificate")
    argv = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=test"]
    argv += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(folder / "key"), "-out", str(folder / "cert")]
    subprocess.run(argv, check=True, capture_output=True)
    (folder / "both").write_bytes((folder / "key").read_bytes() + (folder / "cert").read_bytes())
    return str(folder / "both")


Make = Callable[..., Ftp]


@pytest.fixture
def make() -> Iterator[Make]:
    """Return what makes a fetcher, given its environment and settings; all are closed at the end."""
    made: list[Ftp] = []

    def one(environ: Mapping[str, str] = {}, **settings: Any) -> Ftp:
        made.append(Ftp(Context(environ, Here(), Credentials({"HOME": "/nowhere", **environ}), Settings(**settings))))
        return made[-1]

    yield one
    for each in made:
        each.close()


class TestAgainstPyftpdlib(RangeFetcherTests):
    @pytest.fixture
    def served(self, tmp_path: Path, make: Make) -> Iterator[Served[RangeFetcher]]:
        with serving(tmp_path / "there") as there:
            yield Served(make(), there.publish, there.address("nowhere"))


@pytest.mark.thorough
class TestAgainstVsftpdWhichHasNoMlsd(RangeFetcherTests):
    @pytest.fixture
    def served(self, tmp_path: Path, make: Make) -> Iterator[Served[RangeFetcher]]:
        with vsftpd(tmp_path) as there:
            yield Served(make(), there.publish, there.address("nowhere"))


@pytest.mark.thorough
class TestOverTlsWithALogin(RangeFetcherTests):
    @pytest.fixture
    def served(self, tmp_path: Path, make: Make, certificate: str) -> Iterator[Served[RangeFetcher]]:
        pytest.importorskip("OpenSSL")
        with serving(tmp_path / "there", certificate=certificate, user="ann", password="s3cr:et@") as there:
            fetcher = make({"SSL_CERT_FILE": certificate})
            yield Served(
                fetcher,
                lambda files: there.publish(files).replace("//", "//ann:s3cr%3Aet%40@"),
                there.address("nowhere").replace("//", "//ann:s3cr%3Aet%40@"),
                secret="s3cr",
            )


def test_vsftpd_over_tls_gets_the_session_it_wants(tmp_path: Path, make: Make, certificate: str) -> None:
    fetcher = make({"SSL_CERT_FILE": certificate})
    with vsftpd(tmp_path, certificate) as there:
        remote = fetcher.find(there.publish({"data.bin": CONTENT}))[0]
        assert read(fetcher.open(remote, 7, 70_000)) == CONTENT[7:70_000]
        assert read(fetcher.open(remote, 0, None)) == CONTENT
        fetcher.close()


def test_a_port_for_tls_from_the_first_byte_is_known(
    tmp_path: Path, make: Make, certificate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("OpenSSL")
    with serving(tmp_path / "there", certificate=certificate, implicit=True) as there:
        monkeypatch.setattr(ftp, "_IMPLICIT_TLS_PORT", there.port)
        fetcher = make({"SSL_CERT_FILE": certificate})
        remote = fetcher.find(there.publish({"data.bin": CONTENT}))[0]
        assert read(fetcher.open(remote, 7, None)) == CONTENT[7:]


def test_a_certificate_that_nobody_vouches_for_is_refused(tmp_path: Path, make: Make, certificate: str) -> None:
    pytest.importorskip("OpenSSL")
    with serving(tmp_path / "there", certificate=certificate) as there:
        with pytest.raises(SystemFailure, match="certificate cannot be trusted") as caught:
            make().find(there.address("x"))
        assert "SSL_CERT_FILE" in str(caught.value.hint)


def test_one_login_serves_many_ranges(tmp_path: Path, make: Make) -> None:
    with serving(tmp_path / "there") as there:
        fetcher = make()
        remote = fetcher.find(there.publish({"data.bin": CONTENT * 20}))[0]
        for start in range(0, 600_000, 100_000):
            assert len(read(fetcher.open(remote, start, start + 1_000))) == 1_000
        left = fetcher.open(remote, 0, None)
        left.readinto(memoryview(bytearray(10)))
        left.close()
        assert read(fetcher.open(remote, 5, 10)) == CONTENT[5:10]
    assert [line for line in there.said if line.startswith("USER")] == ["USER anonymous"]


def test_a_connection_that_the_server_closed_meanwhile_is_replaced(tmp_path: Path, make: Make) -> None:
    fetcher = make()
    with serving(tmp_path / "there") as there:
        address = there.publish({"data.bin": CONTENT})
        fetcher.find(address)
        waiting = next(iter(fetcher._idle.values()))[0]
        assert waiting.ftp.sock is not None
        waiting.ftp.sock.shutdown(socket.SHUT_RDWR)
        assert fetcher.find(address)[0].size_bytes == len(CONTENT)


def test_the_login_of_netrc_is_used_and_the_one_in_an_address_goes_first(tmp_path: Path, make: Make) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login ann password right\n")
    netrc.chmod(0o600)
    with serving(tmp_path / "there", user="ann", password="right") as there:
        address = there.publish({"data.bin": CONTENT})
        fetcher = make({"NETRC": str(netrc)})
        assert fetcher.find(address)[0].size_bytes == len(CONTENT)
        assert fetcher.find(address.replace("//", "//ann@"))[0].size_bytes == len(CONTENT)
        remote = make().find(address.replace("//", "//ann:right@"))[0]
        assert "right" not in remote.address
        with pytest.raises(SystemFailure, match="refuses the login") as caught:
            make({"NETRC": str(netrc)}).find(address.replace("//", "//ann:wr0ng@"))
        assert "netrc" in str(caught.value.hint)
        assert "wr0ng" not in str(caught.value)


def test_a_server_that_cannot_start_in_the_middle_sends_the_whole_and_says_so(tmp_path: Path, make: Make) -> None:
    with serving(tmp_path / "there", without=["REST"]) as there:
        fetcher = make()
        remote = fetcher.find(there.publish({"data.bin": CONTENT}))[0]
        body = fetcher.open(remote, 1_000, 2_000)
        assert (body.start, body.is_whole) == (0, True)
        assert read(body) == CONTENT


def test_a_server_without_sizes_and_times_still_serves_a_file(tmp_path: Path, make: Make) -> None:
    with serving(tmp_path / "there", without=["SIZE", "MDTM", "MLSD"]) as there:
        fetcher = make()
        remote = fetcher.find(there.publish({"data.bin": CONTENT}))[0]
        assert (remote.path, remote.size_bytes, remote.validator) == ("data.bin", None, "")
        assert read(fetcher.open(remote, 3, None)) == CONTENT[3:]
        with pytest.raises(NotFound):
            fetcher.open(fetcher.find(there.address("nowhere"))[0], 0, None)


def test_a_path_starts_where_the_login_leads_to_unless_it_is_written_absolute(tmp_path: Path, make: Make) -> None:
    with serving(tmp_path / "there") as there:
        address = there.publish({"data.bin": CONTENT})
        fetcher = make()
        place, _, path = address.removeprefix("ftp://").partition("/")
        absolute = f"ftp://{place}/%2F{path}"
        remote = fetcher.find(absolute)[0]
        assert remote.address == absolute
        assert read(fetcher.open(remote, 0, 9)) == CONTENT[:9]
        assert fetcher.find(address + ";type=i")[0].path == "data.bin"


def test_an_empty_folder_has_nothing_to_fetch(tmp_path: Path, make: Make) -> None:
    with serving(tmp_path / "there") as there, pytest.raises(NotFound, match="has no files"):
        make().find(there.address(""))


def test_names_that_are_no_utf8_come_as_they_are(tmp_path: Path, make: Make) -> None:
    with vsftpd(tmp_path) as there:
        name = b"caf\xe9".decode("utf-8", "surrogateescape")
        address = there.publish({f"a/{name}": b"1", "b": b"2"})
        fetcher = make()
        found = fetcher.find(address)
        assert [remote.path for remote in found] == [f"a/{name}", "b"]
        assert read(fetcher.open(found[0], 0, None)) == b"1"
        fetcher.close()


def test_a_link_in_circles_ends(tmp_path: Path, make: Make) -> None:
    with vsftpd(tmp_path) as there:
        (there.root / "a").mkdir()
        (there.root / "a" / "round").symlink_to("../a")
        fetcher = make()
        with pytest.raises(FairmileError):
            fetcher.find(there.address("a"))
        fetcher.close()


@pytest.mark.parametrize(
    "address",
    [
        "ftp://host/a%0d%0aDELE%20b",
        "ftp://host/a\nDELE b",
        "ftp://a%0aPASS:b@host/c",
        "ftp://a:b%0d@host/c",
        "ftp://host/%00",
        "ftp://ho st/a",
        "ftp:///a",
        "ftp://host:port/a",
        "ftp://host/\ud800",
        "ftp:host/a",
        "http://host/a",
    ],
)
def test_an_address_that_would_smuggle_a_command_or_means_nothing_is_refused(make: Make, address: str) -> None:
    fetcher = make()
    with pytest.raises(UsageError):
        fetcher.find(address)
    with pytest.raises(UsageError):
        fetcher.open(Remote(address, "a"), 0, None)


class Scripted:
    """A server that answers from a table; `data` goes out on the data connection, `end` is said after it."""

    def __init__(
        self, answers: Mapping[str, str], data: bytes = b"", end: str = "226 done", connections: int = 1
    ) -> None:
        self.answers, self.data, self.end, self.connections = answers, data, end, connections
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        for _ in range(self.connections):
            with suppress(ConnectionError):  # a client may leave without hearing the server out
                self._serve_one()

    def _serve_one(self) -> None:
        defaults = {"USER": "230 in", "PWD": '257 "/"', "TYPE": "200 ok", "NOOP": "200 ok"}
        with self._listener.accept()[0] as control, socket.create_server(("127.0.0.1", 0)) as passive:
            port = passive.getsockname()[1]
            defaults["PASV"] = f"227 (127,0,0,1,{port // 256},{port % 256})"
            control.sendall(b"220 hello\r\n")
            with control.makefile("r", encoding="latin-1") as lines:
                for line in lines:
                    command = line.split()[0]
                    answer = self.answers.get(command) or defaults.get(command) or "502 unknown"
                    control.sendall(answer.encode() + b"\r\n")
                    if answer.startswith("150"):
                        with passive.accept()[0] as data:
                            data.sendall(self.data)
                        control.sendall(self.end.encode() + b"\r\n")


def test_a_transfer_that_the_server_breaks_off_is_no_end_of_the_file(make: Make) -> None:
    with closing(Scripted({"SIZE": "213 10", "RETR": "150 here"}, b"12345", "426 broke off")) as server:
        fetcher = make()
        body = fetcher.open(Remote(f"ftp://127.0.0.1:{server.port}/x", "x"), 0, None)
        with pytest.raises(Transient, match="broke off"):
            read(body)
        fetcher.close()


def test_a_server_that_says_more_than_it_was_asked_is_not_misunderstood(make: Make) -> None:
    answers = {"SIZE": "213 5", "MDTM": "213 20240101000000", "RETR": "150 here"}
    with closing(Scripted(answers, b"12345", "226 done\r\n226 really", connections=2)) as server:
        fetcher = make()
        for _ in range(2):
            body = fetcher.open(Remote(f"ftp://127.0.0.1:{server.port}/x", "x"), 0, None)
            assert (body.total_bytes, body.validator) == (5, "5-20240101000000")
            assert read(body) == b"12345"
        fetcher.close()


def test_a_server_that_says_nothing_is_given_up(make: Make) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(Transient, match="stopped responding"),
    ):
        make(stall_s=0.2).find(f"ftp://127.0.0.1:{silent.getsockname()[1]}/x")


def test_nobody_listening_is_worth_a_retry(make: Make) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with pytest.raises(Transient, match="connection failed"):
        make().find(f"ftp://127.0.0.1:{port}/x")


@pytest.mark.parametrize("name", ["../../escape", "/etc/passwd", ".."])
def test_a_listed_name_that_leaves_the_folder_is_refused(make: Make, name: str) -> None:
    listing = f"type=file;size=1;modify=20240101000000; {name}\r\n".encode()
    with closing(Scripted({"CWD": "250 ok", "MLSD": "150 here"}, listing)) as server:
        fetcher = make()
        with pytest.raises(SystemFailure, match="not a plain name"):
            fetcher.find(f"ftp://127.0.0.1:{server.port}/folder/")
        fetcher.close()


def test_what_the_server_says_is_shown_in_one_printable_line(make: Make) -> None:
    with closing(Scripted({"SIZE": "550 \x1b[31mno\x07" + "!" * 2000, "CWD": "550 no"})) as server:
        fetcher = make()
        with pytest.raises(NotFound) as caught:
            fetcher.find(f"ftp://127.0.0.1:{server.port}/x")
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 500
        fetcher.close()
