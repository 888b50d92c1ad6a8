"""Errors as answers: the object that `--json` prints, or a page; never a traceback."""

from __future__ import annotations

import html
import json
import logging
from collections.abc import Mapping
from typing import Any, ClassVar

from fairmile.access.attempts import NotLoggedIn, TooManyAttempts
from fairmile.base.errors import (
    Conflict,
    ErrorDict,
    FairmileError,
    Integrity,
    Locked,
    NotFound,
    RunFailed,
    Transient,
    Unsupported,
    UsageError,
)
from fairmile.base.failures import Failure
from fairmile.transfer.http import ACCESS_HEADER

_log = logging.getLogger("fairmile.web")
# The first that an error is an instance of; what is not listed is the server's own trouble.
_STATUS: tuple[tuple[type[FairmileError], int], ...] = (
    (NotLoggedIn, 401),
    (TooManyAttempts, 429),
    (NotFound, 404),
    (Conflict, 409),
    (UsageError, 400),
    (Locked, 409),
    (Unsupported, 422),
    (RunFailed, 422),
    (Integrity, 409),
    (Transient, 503),
)


class Refused(FairmileError):
    """A request that is not answered; `status` says why, and `obstacle` what another Fairmile can do about it."""

    exit_code: ClassVar[int] = 2

    def __init__(self, status: int, message: str, *, hint: str | None = None, obstacle: str = "") -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.obstacle = obstacle


class Gone(Refused):
    """An asset that was removed: 410, with what its card still says."""

    def __init__(self, handle: str, card: Mapping[str, Any]) -> None:
        tombstone = card.get("tombstone") or {}
        reason = f": {tombstone['reason']}" if tombstone.get("reason") else ""
        successor = tombstone.get("supersededBy")
        hint = f"superseded by {successor}" if successor else "the field `card` of the answer has its tombstone"
        super().__init__(410, f"{handle} was removed on {str(tombstone.get('date', ''))[:10]}{reason}", hint=hint)
        self.card = card


def is_api(path: str) -> bool:
    """Tell whether a path is one for programs."""
    return path.startswith(("/api/", "/workflow")) or path in ("/openapi.json", "/index.json")


def status_of(error: BaseException) -> int:
    """Return the HTTP status of an error."""
    if isinstance(error, Refused):
        return error.status
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)


def headers_of(error: BaseException) -> dict[str, str]:
    """Return the headers of the answer to a request that failed."""
    obstacle = error.obstacle if isinstance(error, Refused) else ""
    return {ACCESS_HEADER: obstacle} if obstacle else {}


def facts_of(error: BaseException) -> ErrorDict:
    """Return an error as data; what nobody foresaw is logged, and its words stay here."""
    if isinstance(error, (FairmileError, OSError, MemoryError)):
        return Failure.of(error).to_dict()
    _log.error("a request failed", exc_info=error)
    hint = "the output of `fairmile serve` has the details"
    return {"type": "ServerError", "message": "the server failed to answer", "hint": hint, "exit_code": 3}


def error_body(facts: ErrorDict, *, as_json: bool, remains: Mapping[str, Any] | None = None) -> tuple[bytes, str]:
    """Return the body and the media type of the answer to a request that failed; `remains` stand beside the error."""
    if as_json:
        return json.dumps({"error": facts, **(remains or {})}).encode(), "application/json"
    message, hint = (html.escape(text[:1].upper() + text[1:]) for text in (facts["message"], facts["hint"]))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>Fairmile: error</title>\n'
        '<link rel="icon" href="/static/icon.svg">\n<link rel="stylesheet" href="/static/page.css">\n'
        '<link rel="stylesheet" href="/static/app.css">\n</head>\n'
        f"<body>\n<main>\n<header><h1>{message}</h1></header>\n<p>{hint}</p>\n"
        '<p><a href="/">Start page</a></p>\n</main>\n</body>\n</html>\n'
    ).encode(), "text/html; charset=utf-8"
