"""The part of OpenML's interface that takes flows and runs, with answers as its server gives them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from email import message_from_bytes
from email.policy import HTTP
from urllib.parse import unquote

from faults import Recorded

KEY = "openml-key-that-nobody-may-see"
_NS = 'xmlns:oml="http://openml.org/openml"'


@dataclass
class OpenML(Recorded):
    """Flows by name and version, runs by tag, and the files that came with them."""

    flows: dict[tuple[str, str], dict[str, bytes]] = field(default_factory=dict)
    runs: list[dict[str, bytes]] = field(default_factory=list)

    def answer(self, line: str, headers: dict[str, str], body: bytes) -> tuple[int, str, bytes]:
        status, text = self._answered(line, headers, body)
        return status, "text/xml", text.encode()

    def _answered(self, line: str, headers: dict[str, str], body: bytes) -> tuple[int, str]:
        method, _, path = line.partition(" ")
        if match := re.fullmatch(r"/api/v1/xml/run/list/tag/([^/]+)/limit/1", path):
            tag = f"<oml:tag>{unquote(match[1])}</oml:tag>".encode()
            for number, run in enumerate(self.runs, 1):
                if tag in run["description"]:
                    return 200, f"<oml:runs {_NS}><oml:run><oml:run_id>{number}</oml:run_id></oml:run></oml:runs>"
            return 412, _error(512, "No results")
        if match := re.fullmatch(r"/api/v1/xml/flow/exists/([^/]+)/([^/]+)", path):
            keys = list(self.flows)
            key = (unquote(match[1]), unquote(match[2]))
            known, number = ("true", keys.index(key) + 1) if key in keys else ("false", -1)
            exists = f"<oml:exists>{known}</oml:exists><oml:id>{number}</oml:id>"
            return 200, f"<oml:flow_exists {_NS}>{exists}</oml:flow_exists>"
        fields = form(headers, body)
        if fields.get("api_key") != KEY.encode():
            return 412, _error(103, "Authentication failed")
        if (method, path) == ("POST", "/api/v1/xml/flow/"):
            name, version = (_element(fields["description"], each) for each in ("name", "external_version"))
            self.flows[name, version] = fields
            return 200, f"<oml:upload_flow {_NS}><oml:id>{len(self.flows)}</oml:id></oml:upload_flow>"
        if (method, path) == ("POST", "/api/v1/xml/run/"):
            self.runs.append(fields)
            return 200, f"<oml:upload_run {_NS}><oml:run_id>{len(self.runs)}</oml:run_id></oml:upload_run>"
        return 404, _error(100, "Function not found")


def form(headers: dict[str, str], body: bytes) -> dict[str, bytes]:
    """Return the fields of a form by the standard library's reader of MIME."""
    message = message_from_bytes(b"Content-Type: " + headers["content-type"].encode() + b"\r\n\r\n" + body, policy=HTTP)
    return {
        str(part.get_param("name", header="content-disposition")): bytes(part.get_payload(decode=True))
        for part in message.iter_parts()
    }


def _element(text: bytes, name: str) -> str:
    return re.search(rf"<oml:{name}>([^<]*)<".encode(), text)[1].decode()  # type: ignore[index]


def _error(code: int, message: str) -> str:
    return f"<oml:error {_NS}><oml:code>{code}</oml:code><oml:message>{message}</oml:message></oml:error>"
