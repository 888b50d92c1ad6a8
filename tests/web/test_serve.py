"""`fairmile serve` as a process and as a call."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from fairmile.base.errors import Conflict, UsageError
from fairmile.web.access import OwnerAccess
from fairmile.web.errors import Refused
from fairmile.web.serve import PORT, ServeSettings, Serving, serve
from fairmile.workspace import Workspace


def test_the_command_prints_its_address_serves_and_ends_when_interrupted(tmp_path: Path) -> None:
    environ = {**os.environ, "FAIRMILE_HOME": str(tmp_path / "home"), "HOME": str(tmp_path)}
    command = [sys.executable, "-m", "fairmile", "serve", "--no-browser", "--port", "0"]
    with subprocess.Popen(
        command, env=environ, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        try:
            address = process.stdout.readline().strip()
            assert httpx.get(f"{address}api/search", trust_env=False, timeout=300).json()["results"]
        finally:  # its end is waited for, whatever happened
            process.send_signal(signal.SIGINT)
        assert process.wait() == 130
        assert process.stderr.read() == "interrupted\n"


def test_a_taken_port_is_named_when_it_was_asked_for_and_passed_over_when_not(workspace: Workspace) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(Conflict, match="cannot listen on"):
            serve(workspace, ServeSettings(port=taken.getsockname()[1]), wait=False)
    with serve(workspace, wait=False) as first, serve(workspace, wait=False) as second:
        assert PORT <= first.port < second.port
        assert json.loads(httpx.get(f"{second.address}api/search", trust_env=False, timeout=300).text)["results"]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_other_machines_are_served_only_encrypted_and_with_accounts(workspace: Workspace, host: str) -> None:
    with pytest.raises(UsageError, match="must be encrypted"):
        serve(workspace, ServeSettings(host=host), wait=False)


def test_a_certificate_needs_its_key(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="belong together"):
        ServeSettings(cert=tmp_path / "cert.pem")


def test_the_kernel_says_whose_connection_it_is() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with socket.create_connection(listener.getsockname()) as connection:
            scope = {"client": connection.getsockname(), "server": listener.getsockname()}
            assert OwnerAccess().identify(scope) is not None


def test_who_hangs_up_at_once_is_refused() -> None:
    """Of a connection that its sender has closed, the kernel says that it was the superuser's."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with socket.create_connection(listener.getsockname()) as connection:
            scope = {"client": connection.getsockname(), "server": listener.getsockname()}
        with pytest.raises(Refused, match="for the user who started it"):
            OwnerAccess().identify(scope)


def test_who_takes_a_port_over_from_the_owner_is_looked_up_again(server: Serving) -> None:
    """What was found out belongs to a connection: its port is somebody else's a moment later."""
    asked = f"GET /api/search HTTP/1.1\r\nHost: localhost:{server.port}\r\n\r\n".encode()
    with pytest.MonkeyPatch.context() as patch, socket.create_connection(("127.0.0.1", server.port)) as first:
        first.sendall(asked)
        assert first.recv(20).split()[1] == b"200"
        patch.setattr("fairmile.web.access.uid_of_peer", lambda *_: 4711)
        first.sendall(asked)
        with socket.create_connection(("127.0.0.1", server.port)) as second:
            second.sendall(asked)
            assert second.recv(20).split()[1] == b"403"


@pytest.mark.parametrize(("here", "elsewhere"), [(4711, 4712), (4712, 4711)])
def test_another_user_gets_nothing_even_from_a_port_with_which_the_owner_reached_another_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: int, elsewhere: int
) -> None:
    line = "   1: 0100007F:C350 0100007F:{:04X} 01 00000000:00000000 00:00000000 00000000  {} 0 1 1 0 20 4 30 10 -1\n"
    table = tmp_path / "tcp"
    table.write_text("  sl  local_address rem_address st\n" + line.format(9999, elsewhere) + line.format(8765, here))
    monkeypatch.setattr("fairmile.web.access._TABLES", {socket.AF_INET: table})
    scope = {"client": ("127.0.0.1", 0xC350), "server": ("127.0.0.1", 8765)}
    if here == 4712:
        assert OwnerAccess(uid=4712).identify(scope) is not None
    else:
        with pytest.raises(Refused, match="for the user who started it"):
            OwnerAccess(uid=4712).identify(scope)


def test_a_certificate_that_is_not_there_is_named_also_where_it_is_given_as_text() -> None:
    with pytest.raises(UsageError, match=r"^nope\.pem: no such file"):
        ServeSettings(cert="nope.pem", key="key.pem")
