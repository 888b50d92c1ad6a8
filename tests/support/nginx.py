"""A real nginx on a free loopback port, ended by its pid."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_CONFIG = """
worker_processes 1;
daemon off;
pid {root}/nginx.pid;
error_log {root}/error.log;
events {{ worker_connections 512; }}
http {{
  access_log {root}/access.log;
  client_body_temp_path {root}/t1; proxy_temp_path {root}/t2; fastcgi_temp_path {root}/t3;
  uwsgi_temp_path {root}/t4; scgi_temp_path {root}/t5;
  sendfile on;
  keepalive_requests 100000;
  server {{
    listen 127.0.0.1:{port};
    root {root}/www;
    location /private/ {{ auth_basic "private"; auth_basic_user_file {root}/users; }}
  }}
}}
"""


@dataclass(frozen=True)
class Nginx:
    """A running server: what lies below `www` is at `url(path)`; `/private/` wants the login reader:secret."""

    root: Path
    port: int

    @property
    def www(self) -> Path:
        return self.root / "www"

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}/{path}"

    def requests(self) -> list[str]:
        """Return the lines of the access log."""
        return (self.root / "access.log").read_text().splitlines()

    def sent_bytes(self) -> int:
        """Return the bytes of all bodies, as nginx counts them."""
        return sum(int(line.split('" ')[1].split(" ")[1]) for line in self.requests() if '"GET ' in line)


def program() -> str | None:
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")


@contextlib.contextmanager
def nginx(root: Path) -> Iterator[Nginx]:
    """Run nginx for the length of a block."""
    (root / "www" / "private").mkdir(parents=True)
    (root / "users").write_text("reader:{PLAIN}secret\n")
    os.chmod(root, 0o755)  # its worker runs as another user when started by root
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = root / "nginx.conf"
    user = "user root;\n" if os.getuid() == 0 else ""
    config.write_text(user + _CONFIG.format(root=root, port=port))
    found = program()
    assert found is not None
    process = subprocess.Popen([found, "-c", str(config), "-p", str(root), "-e", str(root / "error.log")])
    try:
        for _ in range(200):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.05)
        yield Nginx(root, port)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(10)
