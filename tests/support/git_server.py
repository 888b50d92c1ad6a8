"""A web server of git repositories: git's own http-backend, and a small LFS server beside it.

The LFS part answers the batch API as its specification describes it, out of the `lfs/objects` folders that git-lfs
itself fills; it can also be told to misbehave.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote


class GitServer:
    """Repositories below `root`, offered at `address`; `asked` lists each request with its range."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.login = ""  # USER:PASSWORD that git and the batch API want to see
        self.ticket = ""  # what the batch API wants to see as Authorization instead, as after git-lfs-authenticate
        self.cut_at: list[int] = []  # bytes after which the next downloads break off
        self.busy = 0  # how many times the batch API answers that it is busy
        self.flipped = False  # send one wrong byte
        self.has_ranges = True
        self.asked: list[str] = []
        handler = type("Handler", (_Handler,), {"there": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def object(self, sha256: str) -> Path | None:
        return next(self.root.glob(f"**/lfs/objects/{sha256[:2]}/{sha256[2:4]}/{sha256}"), None)


@contextmanager
def git_server(root: Path) -> Iterator[GitServer]:
    server = GitServer(root)
    try:
        yield server
    finally:
        server.stop()


class _Handler(BaseHTTPRequestHandler):
    there: GitServer
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16  # head and body in one packet

    def log_message(self, *_: Any) -> None: ...

    def do_GET(self) -> None:
        there = self.there
        there.asked.append(f"GET {self.path} {self.headers.get('Range', '')}".strip())
        if self.path.startswith("/objects/"):
            self._object(self.path.rpartition("/")[2])
        elif self._is_allowed():
            self._backend(b"")

    def do_POST(self) -> None:
        there = self.there
        there.asked.append(f"POST {self.path}")
        if self.headers.get("Transfer-Encoding") == "chunked":
            data = b""
            while size := int(self.rfile.readline(), 16):
                data += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if not self._is_allowed():
            return
        if self.path.endswith("/objects/batch"):
            if there.busy:
                there.busy -= 1
                self._answer(503, b"", {"Retry-After": "0"})
            else:
                self._batch(json.loads(data))
        else:
            self._backend(data)

    def _is_allowed(self) -> bool:
        there, shown = self.there, self.headers.get("Authorization", "")
        wanted = f"Basic {base64.b64encode(there.login.encode()).decode()}" if there.login else ""
        if there.ticket and self.path.endswith("/objects/batch"):
            wanted = there.ticket
        if not wanted or shown == wanted:
            return True
        self._answer(401, b"", {"WWW-Authenticate": 'Basic realm="git"'})
        return False

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _batch(self, question: dict[str, Any]) -> None:
        assert question["operation"] == "download"
        answers = []
        for wanted in question["objects"]:
            if self.there.object(wanted["oid"]) is None:
                answers.append({**wanted, "error": {"code": 404, "message": "Object does not exist"}})
            else:
                action = {"href": f"{self.there.address}/objects/{wanted['oid']}", "header": {"X-Seen": "yes"}}
                answers.append({**wanted, "actions": {"download": action}})
        body = json.dumps({"transfer": "basic", "objects": answers}).encode()
        self._answer(200, body, {"Content-Type": "application/vnd.git-lfs+json"})

    def _object(self, sha256: str) -> None:
        there, file = self.there, self.there.object(sha256)
        if file is None or self.headers.get("X-Seen") != "yes":
            self._answer(404, b"", {})
            return
        data = file.read_bytes()
        if there.flipped:
            data = bytes([data[0] ^ 1]) + data[1:]
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").split("-")[0])
        headers = {"Content-Length": str(len(data))}
        self.send_response(206 if start and there.has_ranges else 200)
        if start and there.has_ranges:
            headers = {
                "Content-Length": str(len(data) - start),
                "Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}",
            }
            data = data[start:]
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        cut = there.cut_at.pop(0) if there.cut_at else None
        self.wfile.write(data[:cut])
        self.close_connection = cut is not None

    def _backend(self, data: bytes) -> None:
        path, _, query = self.path.partition("?")
        environ = {
            **os.environ,
            "GIT_PROJECT_ROOT": str(self.there.root),
            "GIT_HTTP_EXPORT_ALL": "1",
            "REQUEST_METHOD": self.command,
            "PATH_INFO": unquote(path),
            "QUERY_STRING": query,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(len(data)),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": "safe.directory",
            "GIT_CONFIG_VALUE_0": "*",
        }
        done = subprocess.run(["git", "http-backend"], input=data, env=environ, capture_output=True, check=False)
        head, _, body = done.stdout.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n") if ": " in line)
        status = int(headers.pop("Status", "200").split()[0])
        self._answer(status, body, headers)
