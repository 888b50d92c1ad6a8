"""A simulation of the Globus transfer service, its auth service and a collection's HTTPS server, on loopback.

It speaks the REST calls that the SDK makes, with documents shaped as in the service's reference. A transfer goes on
by some files each time its state is asked for.
"""

from __future__ import annotations

import json
import shutil
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit


@dataclass
class Task:
    """A transfer with the files that it still has to copy."""

    id: str
    todo: list[tuple[Path, Path]]
    files: int
    status: str = "ACTIVE"
    moved: int = 0
    skipped: int = 0
    more: dict[str, Any] = field(default_factory=dict)

    def go_on(self) -> None:
        if self.status != "ACTIVE":
            return
        moved, most = 0, max(1, len(self.todo) // 4)
        while self.todo and moved < most:
            source, target = self.todo.pop(0)
            if target.is_file() and target.read_bytes() == source.read_bytes():
                self.skipped += 1
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
            self.moved += source.stat().st_size
            moved += 1
        if moved:
            return
        self.status = "SUCCEEDED"


class GlobusService:
    """Collections, each a local folder; `token` is what calls to the service must show."""

    def __init__(self) -> None:
        self.collections: dict[str, Path] = {}
        self.https: set[str] = set()  # collections with an HTTPS server
        self.token = "transfer-token"
        self.https_token = "https-token"
        self.tasks: dict[str, Task] = {}
        self.submitted: list[dict[str, Any]] = []
        self.granted: list[str] = []  # what the auth service was asked for
        self.listed_at_once = 100_000
        self.answers: list[tuple[int, dict[str, Any]]] = []  # sent instead of the next answers
        self.lose_answers = 0  # submissions that are taken but never answered
        handler = type("Handler", (_Handler,), {"there": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def environ(self) -> dict[str, str]:
        return {"GLOBUS_SDK_SERVICE_URL_TRANSFER": f"{self.url}/", "GLOBUS_SDK_SERVICE_URL_AUTH": f"{self.url}/"}


@contextmanager
def globus_service() -> Iterator[GlobusService]:
    service = GlobusService()
    try:
        yield service
    finally:
        service.stop()


class _Handler(BaseHTTPRequestHandler):
    there: GlobusService
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16  # head and body in one packet

    def log_message(self, *_: Any) -> None: ...

    def do_GET(self) -> None:
        parts = [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")]
        if parts[0] == "data":
            self._file(parts)
            return
        if not self._is_allowed():
            return
        query = {key: values[0] for key, values in parse_qs(urlsplit(self.path).query).items()}
        calls: dict[str, Callable[..., None]] = {"endpoint": self._endpoint, "task": self._task}
        if parts[1] == "submission_id":
            self._answer(200, {"DATA_TYPE": "submission_id", "value": str(uuid.uuid4())})
        elif parts[1] == "operation":
            (self._stat if parts[4] == "stat" else self._ls)(parts[3], query)
        else:
            calls[parts[1]](parts[2])

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path.startswith("/v2/oauth2/token"):
            form = {key: values[0] for key, values in parse_qs(data.decode()).items()}
            self.there.granted.append(form["grant_type"])
            token = self.there.token if "transfer" in form.get("scope", "transfer") else self.there.https_token
            answer = {"access_token": token, "scope": "x", "expires_in": 3600, "token_type": "Bearer"}
            self._answer(
                200, answer | {"resource_server": "transfer.api.globus.org", "refresh_token": "r", "other_tokens": []}
            )
        elif self._is_allowed():
            self._submit(json.loads(data))

    def _is_allowed(self) -> bool:
        if self.there.answers:
            self._answer(*self.there.answers.pop(0))
            return False
        if self.headers.get("Authorization") == f"Bearer {self.there.token}":
            return True
        self._error(401, "AuthenticationFailed", "Token is not active")
        return False

    def _answer(self, status: int, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _error(self, status: int, code: str, message: str) -> None:
        self._answer(status, {"code": code, "message": message, "request_id": "r", "resource": self.path})

    def _local(self, collection: str, path: str) -> Path | None:
        root = self.there.collections.get(collection)
        if root is None:
            self._error(404, "EndpointNotFound", f"No such endpoint '{collection}'")
            return None
        found = root / path.strip("/")
        if not found.exists():
            self._error(404, "ClientError.NotFound", f"Directory '{path}' not found on endpoint '{collection}'")
            return None
        return found

    def _endpoint(self, collection: str) -> None:
        if self._local(collection, "/") is not None:
            server = f"{self.there.url}/data/{collection}" if collection in self.there.https else None
            self._answer(200, {"DATA_TYPE": "endpoint", "id": collection, "https_server": server})

    def _stat(self, collection: str, query: dict[str, str]) -> None:
        found = self._local(collection, query["path"])
        if found is not None:
            self._answer(200, _document(found))

    def _ls(self, collection: str, query: dict[str, str]) -> None:
        found = self._local(collection, query["path"])
        if found is not None:
            offset, limit = int(query.get("offset", 0)), int(query.get("limit", 100_000))
            entries = [_document(each) for each in sorted(found.iterdir())][offset : offset + limit]
            self._answer(200, {"DATA_TYPE": "file_list", "path": query["path"], "DATA": entries})

    def _submit(self, asked: dict[str, Any]) -> None:
        there = self.there
        known = next((task for task in there.tasks.values() if task.more["submission"] == asked["submission_id"]), None)
        if known is None:
            there.submitted.append(asked)
            source_root = there.collections[asked["source_endpoint"]]
            target_root = there.collections[asked["destination_endpoint"]]
            pairs: list[tuple[Path, Path]] = []
            for item in asked["DATA"]:
                source, target = (
                    source_root / item["source_path"].strip("/"),
                    target_root / item["destination_path"].strip("/"),
                )
                inside = sorted(source.rglob("*")) if item.get("recursive") else [source]
                pairs += [(each, target / each.relative_to(source)) for each in inside if each.is_file()]
            known = Task(str(uuid.uuid4()), pairs, len(pairs), more={"submission": asked["submission_id"]})
            there.tasks[known.id] = known
        if there.lose_answers:
            there.lose_answers -= 1
            self._error(400, "Lost", "the answer got lost")
            return
        self._answer(202, {"DATA_TYPE": "transfer_result", "code": "Accepted", "task_id": known.id, "message": "ok"})

    def _task(self, name: str) -> None:
        task = self.there.tasks.get(name)
        if task is None:
            self._error(404, "TaskNotFound", f"No such task '{name}'")
            return
        task.go_on()
        state = {"task_id": task.id, "status": task.status, "bytes_transferred": task.moved, "files": task.files}
        self._answer(200, {"DATA_TYPE": "task", **state, "files_skipped": task.skipped, **task.more})

    def _file(self, parts: list[str]) -> None:
        found = self.there.collections[parts[1]].joinpath(*parts[2:])
        if self.headers.get("Authorization") != f"Bearer {self.there.https_token}":
            self._answer(401, {})
            return
        data = found.read_bytes()
        start, stop = 0, len(data)
        if "Range" in self.headers:
            first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
            start, stop = int(first), int(last) + 1 if last else len(data)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(data)}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(stop - start))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data[start:stop])

    do_HEAD = do_GET


def _document(path: Path) -> dict[str, Any]:
    status = path.lstat()
    kind = "dir" if path.is_dir() else "file"
    target = str(path.readlink()) if path.is_symlink() else None
    return {
        "DATA_TYPE": "file",
        "name": path.name,
        "type": kind,
        "size": status.st_size,
        "last_modified": str(status.st_mtime_ns),
        "link_target": target,
    }
