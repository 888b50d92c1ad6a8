"""The part of Zenodo's interface that takes depositions, as https://developers.zenodo.org documents it."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from faults import Recorded

TOKEN = "zenodo-token-that-nobody-may-see"
_DEPOSITIONS = "/api/deposit/depositions"
# What the documentation calls required in a deposition; creators are objects with a name.
_TYPES = {"publication", "poster", "presentation", "dataset", "image", "video", "software", "lesson", "other"}


@dataclass
class Zenodo(Recorded):
    """Depositions by number, and the files in their buckets."""

    depositions: dict[int, dict[str, Any]] = field(default_factory=dict)
    buckets: dict[str, dict[str, bytes]] = field(default_factory=dict)

    def answer(self, line: str, headers: dict[str, str], body: bytes) -> tuple[int, str, bytes]:
        status, document = self._answered(line, headers, body)
        return status, "application/json", json.dumps(document).encode()

    def _answered(self, line: str, headers: dict[str, str], body: bytes) -> tuple[int, Any]:
        if headers.get("authorization") != f"Bearer {TOKEN}":
            return 401, {"status": 401, "message": f"no user for {headers.get('authorization')}"}
        method, _, target = line.partition(" ")
        path, _, query = target.partition("?")
        if path == _DEPOSITIONS and method == "GET":
            size, page = (int(re.search(rf"{name}=(\d+)", query)[1]) for name in ("size", "page"))  # type: ignore[index]
            newest = [self._shown(number, files=False) for number in sorted(self.depositions, reverse=True)]
            return 200, newest[(page - 1) * size : page * size]
        if path == _DEPOSITIONS and method == "POST":
            return self._create(json.loads(body).get("metadata", {}))
        if match := re.fullmatch(rf"{_DEPOSITIONS}/(\d+)", path):
            return 200, self._shown(int(match[1]))
        if match := re.fullmatch(rf"{_DEPOSITIONS}/(\d+)/actions/publish", path):
            return self._publish(int(match[1]))
        if (match := re.fullmatch(r"/api/files/([\w-]+)/(.+)", path)) and method == "PUT":
            self.buckets[match[1]][unquote(match[2])] = body
            md5 = hashlib.md5(body, usedforsecurity=False).hexdigest()
            return 201, {"key": unquote(match[2]), "size": len(body), "checksum": f"md5:{md5}"}
        return 404, {"status": 404, "message": "not found"}

    def _create(self, metadata: dict[str, Any]) -> tuple[int, Any]:
        wrong = [name for name in ("title", "upload_type", "description", "creators") if not metadata.get(name)]
        wrong += ["upload_type"] if metadata.get("upload_type") not in _TYPES else []
        wrong += ["creators"] if not all(each.get("name") for each in metadata.get("creators", [])) else []
        if wrong:
            errors = [{"field": f"metadata.{name}", "message": "Missing data"} for name in wrong]
            return 400, {"status": 400, "message": "Validation error.", "errors": errors}
        number = 1000 + len(self.depositions)
        self.depositions[number] = {"id": number, "metadata": metadata, "submitted": False, "state": "unsubmitted"}
        self.buckets[f"bucket-{number}"] = {}
        return 201, self._shown(number)

    def _publish(self, number: int) -> tuple[int, Any]:
        if not self.buckets[f"bucket-{number}"]:
            return 400, {"status": 400, "message": "Minimum one file must be provided."}
        self.depositions[number] |= {"submitted": True, "state": "done", "doi": f"10.5072/zenodo.{number}"}
        return 202, self._shown(number)

    def _shown(self, number: int, *, files: bool = True) -> dict[str, Any]:
        held = self.buckets[f"bucket-{number}"]
        entries = [
            {"filename": name, "filesize": len(data), "checksum": hashlib.md5(data, usedforsecurity=False).hexdigest()}
            for name, data in held.items()
        ]
        links = {
            "bucket": f"{self.address}/api/files/bucket-{number}",
            "publish": f"{self.address}{_DEPOSITIONS}/{number}/actions/publish",
            "html": f"{self.address}/deposit/{number}",
            "record_html": f"{self.address}/records/{number}",
        }
        return {**self.depositions[number], "links": links} | ({"files": entries} if files else {})
