"""The interface of a platform that takes runs: one refusal, one sentence; patience where the platform asks for it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fairmile.base.errors import Conflict, Integrity, SystemFailure, Transient, UsageError
from fairmile.transfer.credentials import shown_address
from fairmile.transfer.http import Busy, Client, pause_s, retry_after
from fairmile.transfer.remote import Context
from fairmile.transfer.wire import Head

_PATIENT = frozenset({429, 503})  # such a request was not executed, so it may be sent again
_LONGEST_WAIT_S = 120.0
_ANSWER_S = 120.0  # a platform may work on a large file before it answers
_LONGEST_REASON = 300
AGAIN = "run the command again: it goes on with what is there"


class Service:
    """Sends requests to one server; a key goes to no other, and stands in no message."""

    def __init__(
        self, name: str, base: str, context: Context, *, secrets: Sequence[str], headers: Mapping[str, str], fix: str
    ) -> None:
        self.name, self.base = name, base.rstrip("/")
        self.shown = shown_address(self.base)
        self.headers = dict(headers)
        self._secrets, self._fix = secrets, fix
        self._retries = context.settings.retries
        settings = replace(context.settings, stall_s=max(context.settings.stall_s, _ANSWER_S))
        self._client = Client(context._replace(settings=settings))

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def send(
        self, method: str, address: str, body: bytes | Sequence[bytes | Path] = b"", headers: Mapping[str, str] = {}
    ) -> bytes:
        """Send a request to a path of the server, or an address that it gave, and return the body of the answer."""
        head, data = self.answer(method, address, body, headers)
        if head.status >= 300:
            raise self.refusal(head, _reason(data))
        return data

    def answer(
        self, method: str, address: str, body: bytes | Sequence[bytes | Path] = b"", headers: Mapping[str, str] = {}
    ) -> tuple[Head, bytes]:
        """Send a request and return the answer whatever its status, after the pauses that the server asks for."""
        url = self._url(address)
        for attempt in range(self._retries):
            try:
                head, data = self._client.submit(method, url, body, {**self.headers, **headers})
            except Transient as error:
                raise Transient(f"{self.name}: {error.message}", hint=AGAIN) from error
            after_s = retry_after(head.headers.get("retry-after", ""))
            is_last = attempt + 1 == self._retries
            if head.status not in _PATIENT or is_last or (after_s or 0) > _LONGEST_WAIT_S:
                break
            time.sleep(pause_s(attempt, Busy("", after_s=after_s)))
        return head, data

    def json(self, method: str, address: str, document: Any = None) -> Any:
        """Send a JSON document, or nothing, and return the JSON answer."""
        body = b"" if document is None else json.dumps(document).encode()
        headers = {"Accept": "application/json"} | ({"Content-Type": "application/json"} if body else {})
        data = self.send(method, address, body, headers)
        try:
            return json.loads(data)
        except ValueError as error:
            raise Integrity(f"{self.name} at {self.shown} does not answer with JSON") from error

    def refusal(self, head: Head, reason: str) -> SystemFailure | Transient:
        """Return the error for an answer that is none of success."""
        status = head.status
        for secret in filter(None, self._secrets):
            reason = reason.replace(secret, "…")
        reason = " ".join(reason.split())[:_LONGEST_REASON]
        stated = f"{self.name} at {self.shown} answers {status} {head.reason}".rstrip() + (
            f": {reason}" if reason else ""
        )
        if status in (401, 403):
            return SystemFailure(stated, hint=self._fix)
        if status == 413:
            return SystemFailure(stated, hint="the server takes no file of this size; ask its administrators for more")
        if status == 429 or status >= 500:
            after_s = retry_after(head.headers.get("retry-after", ""))
            return Transient(stated, hint=f"wait {after_s:.0f} s, then {AGAIN}" if after_s else AGAIN)
        return SystemFailure(stated)

    def _url(self, address: str) -> str:
        """Return the whole address; one on another server would carry the key there."""
        if address.startswith("/"):
            return self.base + address
        given, own = urlsplit(address), urlsplit(self.base)
        if (given.scheme, given.netloc) != (own.scheme, own.netloc):
            raise SystemFailure(f"{self.name} at {self.shown} leads to another server, {shown_address(address)}")
        return address


@contextmanager
def service(
    name: str, base: str, context: Context, *, secrets: Sequence[str], headers: Mapping[str, str], fix: str
) -> Iterator[Service]:
    """Talk to a server as long as the block."""
    parts = urlsplit(base)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"{shown_address(base)!r} is not the address of {name}", hint="expected https://HOST")
    made = Service(name, base, context, secrets=secrets, headers=headers, fix=fix)
    try:
        yield made
    finally:
        made.close()


def multipart(fields: Sequence[tuple[str, str, bytes | Path]]) -> tuple[dict[str, str], list[bytes | Path]]:
    """Return headers and body of a form: each field has a name, the name of a file or '', and content."""
    boundary = os.urandom(16).hex()
    parts: list[bytes | Path] = []
    for name, file, content in fields:
        lines = f'Content-Disposition: form-data; name="{_quoted(name)}"'
        lines += f'; filename="{_quoted(file)}"\r\nContent-Type: application/octet-stream' if file else ""
        parts += [f"--{boundary}\r\n{lines}\r\n\r\n".encode(), content, b"\r\n"]
    parts.append(f"--{boundary}--\r\n".encode())
    return {"Content-Type": f"multipart/form-data; boundary={boundary}"}, parts


def _quoted(text: str) -> str:
    return text.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")


def already_there(where: str, id: str, more: str = "", hint: str = "remove it there first") -> Conflict:
    """Return the error for a run that a platform has already."""
    return Conflict(f"{where} already holds run {id}{more}", hint=hint)


def _reason(data: bytes) -> str:
    """Return what a refusal says in JSON, or its text; a page says nothing."""
    text = data[:10_000].decode("utf-8", errors="replace")
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return "" if "<" in text else text
    if not isinstance(document, dict):
        return ""
    meta = document.get("meta")
    said = document.get("message") or (meta.get("result_msg") if isinstance(meta, dict) else "") or ""
    errors = document.get("errors")
    fields = [each for each in errors if isinstance(each, dict)] if isinstance(errors, list) else []
    return "; ".join([str(said), *(f"{each.get('field', '?')}: {each.get('message', '')}" for each in fields)])
