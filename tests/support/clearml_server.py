"""As much of a ClearML server as `Task.import_offline_session` talks to, on this machine; it notes what it is told."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TASK = "11111111111111111111111111111111"
PROJECT = "22222222222222222222222222222222"


@dataclass
class ClearMLServer:
    """Where the server is, and what it was told."""

    address: str = ""
    calls: list[tuple[str, Any]] = field(default_factory=list)
    uploaded: list[bytes] = field(default_factory=list)
    task: dict[str, Any] = field(default_factory=lambda: {"id": TASK, "project": PROJECT, "status": "created"})

    def told(self, call: str) -> list[Any]:
        """Return what came with each call of a name."""
        return [body for name, body in self.calls if name == call]


def _token() -> str:
    parts = (
        {"alg": "HS256", "typ": "JWT"},
        {"exp": time.time() + 3600, "api_version": "2.30", "env": "test", "feature_set": "basic"},
    )
    coded = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts]
    return ".".join([*coded, "c2lnbmVk"])


def _answer(server: ClearMLServer, call: str, body: Any) -> dict[str, Any]:
    if call == "auth.login":
        return {"token": _token()}
    if call == "tasks.create":
        server.task.update({"name": body.get("name"), "type": body.get("type")})
        return {"id": TASK}
    if call in ("tasks.get_by_id", "tasks.get_by_id_ex"):
        return {"task": server.task}
    if call == "tasks.get_all":
        return {"tasks": [server.task]}
    if call == "tasks.edit":
        server.task.update({key: value for key, value in body.items() if key != "task"})
        return {"updated": 1, "fields": {}}
    if call == "projects.get_all":
        return {"projects": []}
    if call == "projects.create":
        return {"id": PROJECT}
    if call == "projects.get_by_id":
        return {"project": {"id": PROJECT, "name": "train"}}
    if call == "events.add_batch":
        return {"added": 1, "errors": 0, "errors_info": {}}
    return {"updated": 1, "started": 1, "stopped": 1, "fields": {}}


@contextmanager
def clearml_server() -> Iterator[ClearMLServer]:
    """Serve on a free loopback port as long as the block."""
    state = ClearMLServer()

    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            call = self.path.strip("/").removeprefix("v2.30/").partition("?")[0].rpartition("/")[2]
            if "multipart/form-data" in (self.headers.get("Content-Type") or ""):
                state.uploaded.append(data)
                answer: Any = [self.path]
            else:
                try:
                    body = json.loads(data) if data.strip() else {}
                except ValueError:  # several requests in one, a line each
                    body = [json.loads(line) for line in data.splitlines() if line.strip()]
                state.calls.append((call, body))
                meta = {"id": "1", "trx": "1", "result_code": 200, "result_subcode": 0, "result_msg": "OK"}
                meta |= {"endpoint": {"name": call, "requested_version": "2.30", "actual_version": "2.30"}}
                answer = {"meta": meta, "data": _answer(state, call, body)}
            text = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(text)

        do_GET = do_POST = do_PUT = do_HEAD = _serve

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        state.address = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield state
        finally:
            server.shutdown()
            thread.join()
