"""The events of a live page, as a program reads them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import httpx


class Event(NamedTuple):
    """An event of a stream: its cursor, topic and data."""

    id: str
    name: str
    data: Any


@contextmanager
def stream(client: httpx.Client, topics: str, last: str = "") -> Iterator[Iterator[Event]]:
    headers = {"last-event-id": last} if last else {}
    with client.stream("GET", "/api/live", params={"topics": topics}, headers=headers) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        yield _events(response.iter_lines())


def _events(lines: Iterator[str]) -> Iterator[Event]:
    fields: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(": ")
        if line:
            fields[name] = value
        elif "event" in fields:
            yield Event(fields["id"], fields["event"], json.loads(fields["data"]))
            fields = {}
        else:
            fields = {}
