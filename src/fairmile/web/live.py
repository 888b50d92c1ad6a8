"""Live pages: one stream for each page, with only what has changed.

A page asks for `/api/live?topics=runs run:abc`. The server looks once a second, for all pages together, whether
anything about a topic is new (`Topic.stamp`, which must be cheap), and only then reads what (`Topic.changes`). Each
event carries the cursors of all topics of the page: a browser that connects again gets what it missed, nothing twice.

Topics see the workspace as whoever follows them may see it at that moment: of an asset that is hidden from them, and of
its runs, no event arrives. A stream ends after a while, and the browser connects again: a right, a token or a session
that has ended meanwhile opens no other.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from importlib import import_module
from typing import Any, Protocol

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from fairmile.base.errors import FairmileError
from fairmile.web.answers import to_json
from fairmile.web.errors import Refused, error_body, facts_of
from fairmile.web.routes import workspace_now
from fairmile.workspace import Workspace

PERIOD_S = 1.0
_SILENCE_S = 15.0  # after this long without an event a comment keeps the connection alive
_MOST_TOPICS = 20
_MOST_STAMPS = 1_000
_LONGEST = 4_000  # letters of all cursors


class Topic(Protocol):
    """Something that pages follow. `key` is what stands behind the colon of `run:abc`, or empty."""

    def stamp(self, workspace: Workspace, key: str) -> object:
        """Return a value that differs where something is new; this is asked every second."""
        ...

    def changes(self, workspace: Workspace, key: str, cursor: Any) -> tuple[Any, Any]:
        """Return what is new since a cursor, or None, and the new cursor.

        Both are JSON. The cursor is None for a page that has seen nothing yet.
        """
        ...


class Live:
    """The streams of all pages of one server."""

    life_s = 60.0  # of a stream

    def __init__(self, topics: Mapping[str, str], *, period_s: float = PERIOD_S) -> None:
        self._names = topics
        self._period_s = period_s
        self._stamps: dict[tuple[str, frozenset[str]], tuple[float, object]] = {}

    async def response(self, request: Request) -> Response:
        """Answer with a stream of events."""
        names = request.query_params.get("topics", "").split()
        try:
            request.scope["fairmile.identity"].require("read")
            topics = {name: self._topic(name) for name in names[:_MOST_TOPICS]}
            cursors = _cursors(request.headers.get("last-event-id") or request.query_params.get("cursor", ""))
        except Refused as error:
            body, media_type = error_body(facts_of(error), as_json=True)
            return Response(body, status_code=error.status, media_type=media_type)
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        events = self._events(lambda: workspace_now(request), topics, cursors)
        return StreamingResponse(events, media_type="text/event-stream", headers=headers)

    def _topic(self, name: str) -> Topic:
        target = self._names.get(name.partition(":")[0])
        if target is None:
            raise Refused(404, f"no topic named {name!r}", hint=f"topics: {', '.join(self._names)}")
        module, _, attribute = target.partition(":")
        topic: Topic = getattr(import_module(module), attribute)
        return topic

    async def _events(
        self, view: Callable[[], Workspace], topics: Mapping[str, Topic], cursors: dict[str, Any]
    ) -> AsyncIterator[bytes]:
        seen: dict[str, object] = {}
        began = quiet_since = time.monotonic()
        yield b"retry: 2000\n\n"
        while time.monotonic() - began < self.life_s:
            workspace = view()  # what they may see changes, as grants end
            for name, topic in topics.items():
                key = name.partition(":")[2]
                stamp = await self._stamp(workspace, name, topic, key)
                if name in seen and stamp == seen[name]:
                    continue
                seen[name] = stamp
                try:
                    data, cursors[name] = await run_in_threadpool(topic.changes, workspace, key, cursors.get(name))
                except FairmileError as error:  # a run that was removed, perhaps
                    data = {"error": error.to_dict()}
                if data is not None:
                    quiet_since = time.monotonic()
                    yield _event(name, data, cursors)
            if time.monotonic() - quiet_since > _SILENCE_S:
                quiet_since = time.monotonic()
                yield b":\n\n"
            await asyncio.sleep(self._period_s)

    async def _stamp(self, workspace: Workspace, name: str, topic: Topic, key: str) -> object:
        """Return the stamp of a topic, asked for once in a period however many pages follow it that see the same."""
        place = name, workspace.hidden
        asked, stamp = self._stamps.get(place, (-self._period_s, None))
        now = time.monotonic()
        if now - asked >= self._period_s * 0.9:
            if len(self._stamps) > _MOST_STAMPS:
                self._stamps.clear()
            self._stamps[place] = (now, stamp)  # the others use the last one meanwhile
            try:
                stamp = await run_in_threadpool(topic.stamp, workspace, key)
            except FairmileError as error:
                stamp = str(error)
            self._stamps[place] = (now, stamp)
        return stamp


def _event(name: str, data: Any, cursors: Mapping[str, Any]) -> bytes:
    return b"id: %s\nevent: %s\ndata: %s\n\n" % (to_json(cursors), name.encode(), to_json(data))


def _cursors(text: str) -> dict[str, Any]:
    try:
        cursors = json.loads(text) if text and len(text) <= _LONGEST else {}
    except (ValueError, RecursionError):
        raise Refused(400, "this cursor is not from this server") from None
    return cursors if isinstance(cursors, dict) else {}
