"""Real ssh servers on this machine, which can go away and return, and a wire whose bytes are counted."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Self

import psutil
import pytest


class SshServer:
    """An ssh server on a free loopback port: `ssh -F config host` reaches it without a password."""

    def __init__(self, folder: Path) -> None:
        self.host, self.config, self._folder = "there", folder / "ssh_config", folder
        server = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin:/usr/local/sbin")
        keygen = shutil.which("ssh-keygen")
        if server is None or keygen is None or shutil.which("ssh") is None:
            pytest.skip("needs the programs sshd, ssh and ssh-keygen")
        self._server = server
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)
        for name in ("host_key", "user_key"):
            subprocess.run([keygen, "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
        shutil.copy(folder / "user_key.pub", folder / "authorized_keys")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        (folder / "sshd_config").write_text(
            f"Port {self.port}\nListenAddress 127.0.0.1\nHostKey {folder}/host_key\nPidFile none\n"
            f"AuthorizedKeysFile {folder}/authorized_keys\nStrictModes no\nUsePAM no\nPasswordAuthentication no\n"
            "PermitRootLogin prohibit-password\nSubsystem sftp internal-sftp\nMaxStartups 100\n"
            # The one that quantum computers cannot break takes half of the time of a connection.
            "KexAlgorithms curve25519-sha256\n"
            # A shell that ssh starts at level 1 reads the start files of whoever runs the tests, which may do anything.
            f"SetEnv SHLVL=1 PATH={sys.base_prefix}/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin\n"
        )
        host_key = (folder / "host_key.pub").read_text()
        (folder / "known_hosts").write_text(f"[127.0.0.1]:{self.port} {host_key}")
        self.config.write_text(
            f"Host {self.host}\n  HostName 127.0.0.1\n  Port {self.port}\n  IdentityFile {folder}/user_key\n"
            f"  IdentitiesOnly yes\n  UserKnownHostsFile {folder}/known_hosts\n  StrictHostKeyChecking yes\n"
        )
        self.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        # Its sessions outlive it and would hold a pipe open: what it says goes to a file.
        with open(self._folder / "log", "ab") as log:
            argv = [self._server, "-D", "-e", "-f", str(self._folder / "sshd_config")]
            self._process = subprocess.Popen(argv, stderr=log)
        deadline = time.monotonic() + 60
        while self._process.poll() is None and time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.05)
        self._process.kill()
        self._process.wait()
        pytest.fail(f"the ssh server does not answer: {(self._folder / 'log').read_text(errors='replace')}")

    def stop(self) -> None:
        """Take the server away with its connections; what was started over them goes on."""
        own = [each for each in psutil.Process(self._process.pid).children(True) if each.name().startswith("sshd")]
        self._process.kill()
        self._process.wait()
        for each in own:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()

    def freeze(self) -> None:
        """Have the server and its connections stop responding without an end, as a host does that hangs."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Have it go on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        server = psutil.Process(self._process.pid)
        for each in [server, *(each for each in server.children(True) if each.name().startswith("sshd"))]:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.send_signal(number)

    def through(self, wire: Wire, config: Path) -> None:
        """Write ssh settings that reach this server by way of a wire."""
        text = self.config.read_text().replace(f"Port {self.port}\n", f"Port {wire.port}\n")
        config.write_text(f"{text}  HostKeyAlias [127.0.0.1]:{self.port}\n")


class Wire:
    """Passes connections on to a port of this machine, and counts the bytes in both directions."""

    def __init__(self, to: int) -> None:
        self._to = to
        self.bytes = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._to))
                for source, target in ((near, far), (far, near)):
                    threading.Thread(target=self._pass, args=(source, target), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(1 << 16):
                self.bytes += len(piece)
                target.sendall(piece)
            target.shutdown(socket.SHUT_WR)
