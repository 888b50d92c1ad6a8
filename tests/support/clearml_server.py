"""As much of a ClearML server as takes tasks, on this machine; requests must fit the schemas of ClearML's package."""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from faults import Recorded, serving

TASK = "11111111111111111111111111111111"
PROJECT = "22222222222222222222222222222222"
KEY, SECRET = "access-key", "clearml-secret-that-nobody-may-see"


@dataclass
class ClearMLServer(Recorded):
    """Where the server is, and what it was told."""

    calls: list[tuple[str, Any]] = field(default_factory=list)
    uploaded: list[bytes] = field(default_factory=list)
    tasks: list[dict[str, Any]] = field(default_factory=list)
    strict: bool = False  # check logins, and requests against the schemas

    def told(self, call: str) -> list[Any]:
        """Return what came with each call of a name."""
        return [body for name, body in self.calls if name == call]

    def answer(self, line: str, headers: dict[str, str], body: bytes) -> tuple[int, str, bytes]:
        path = line.partition(" ")[2]
        call = re.sub(r"^v[\d.]+/", "", path.strip("/")).partition("?")[0].rpartition("/")[2]
        login = f"Basic {base64.b64encode(f'{KEY}:{SECRET}'.encode()).decode()}"
        allowed = headers.get("authorization", "").startswith(login if call == "auth.login" else "Bearer ")
        if self.strict and not allowed:
            refused = {"meta": {"result_code": 401, "result_msg": f"Unauthorized {headers.get('authorization')}"}}
            return 401, "application/json", json.dumps(refused).encode()
        if "multipart/form-data" in headers.get("content-type", ""):
            self.uploaded.append(body)
            return 200, "application/json", json.dumps([path]).encode()
        try:
            told: Any = json.loads(body) if body.strip() else {}
        except ValueError:  # several requests in one, a line each
            told = [json.loads(each) for each in body.splitlines() if each.strip()]
        if self.strict:
            check(call, told)
        self.calls.append((call, told))
        meta = {"id": "1", "trx": "1", "result_code": 200, "result_subcode": 0, "result_msg": "OK"}
        meta |= {"endpoint": {"name": call, "requested_version": "2.30", "actual_version": "2.30"}}
        return 200, "application/json", json.dumps({"meta": meta, "data": self._data(call, told)}).encode()

    def _data(self, call: str, body: Any) -> dict[str, Any]:
        if call == "auth.login":
            return {"token": _token()}
        if call == "tasks.create":
            self.tasks.append({"project": PROJECT, **body, "id": TASK, "status": "created"})
            return {"id": TASK}
        if call in ("tasks.get_by_id", "tasks.get_by_id_ex"):
            return {"task": self.tasks[-1]}
        if call == "tasks.get_all":
            return {"tasks": [each for each in self.tasks if re.search(body.get("name", ""), each["name"])]}
        if call == "projects.get_all":
            return {"projects": []}
        if call == "projects.create":
            return {"id": PROJECT}
        if call == "projects.get_by_id":
            return {"project": {"id": PROJECT, "name": "train"}}
        if call == "events.add_batch":
            return {"added": 1, "errors": 0, "errors_info": {}}
        if call == "tasks.edit":
            self.tasks[-1].update({key: value for key, value in body.items() if key != "task"})
        ends = {"tasks.started": "in_progress", "tasks.completed": "completed", "tasks.failed": "failed"}
        if call in ends:
            self.tasks[-1]["status"] = ends[call]
        return {"updated": 1, "started": 1, "stopped": 1, "fields": {}}


def check(call: str, document: Any) -> None:
    """Compare a request with the schema that ClearML's package has for the call."""
    import jsonschema

    service, _, action = call.partition(".")
    module = import_module(f"clearml.backend_api.services.v2_13.{service}")
    each = getattr(module, "".join(word.capitalize() for word in action.split("_")) + "Request")
    if action == "add_batch":
        each = module.AddRequest
    for one in document if isinstance(document, list) else [document]:
        jsonschema.validate(one, each._schema)
        unknown = set(one) - set(each._schema.get("properties", one))
        assert not unknown, f"{call} does not know {unknown}"


def _token() -> str:
    parts = (
        {"alg": "HS256", "typ": "JWT"},
        {"exp": time.time() + 3600, "api_version": "2.30", "env": "test", "feature_set": "basic"},
    )
    coded = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts]
    return ".".join([*coded, "c2lnbmVk"])


@contextmanager
def clearml_server(*, strict: bool = False) -> Iterator[ClearMLServer]:
    """Serve on a free loopback port as long as the block."""
    state = ClearMLServer(strict=strict)
    with serving(state):
        yield state
