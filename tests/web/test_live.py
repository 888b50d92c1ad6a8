"""The one stream of a page: only changes arrive, and who connects again gets what they missed."""

from __future__ import annotations

import json

import httpx
from live_events import stream

from fairmile.runs.record.layout import OUTPUT
from fairmile.workspace import Workspace


def test_only_what_is_new_arrives_and_a_reconnect_misses_and_repeats_nothing(
    client: httpx.Client, workspace: Workspace
) -> None:
    run = workspace.runs.run(["echo", "high tide"], name="live-run", watch_s=0)
    output = run.folder / OUTPUT
    topic = f"run:{run.id}"

    def write(text: str) -> None:
        with open(output, "a", encoding="utf-8") as file:
            file.write(text)

    with stream(client, topic) as events:
        first = next(events)
        assert (first.name, first.data["output"].strip()) == (topic, "high tide")
        write("low tide\n")
        second = next(events)
        assert second.data["output"].strip() == "low tide"
    write("ebb\n")
    with stream(client, topic, second.id) as events:
        third = next(events)
        assert third.data["output"].strip() == "ebb"
    with stream(client, topic, third.id) as events:
        assert "output" not in next(events).data


def test_one_stream_carries_several_topics_and_each_event_the_cursors_of_all(
    client: httpx.Client, workspace: Workspace
) -> None:
    run = workspace.runs.run(["echo", "flood"], name="live-run", watch_s=0)
    with stream(client, f"runs run:{run.id}") as events:
        first = next(events)  # of the run: the list of runs is as the page shows it
        assert first.name == f"run:{run.id}"
        assert json.loads(first.id).keys() == {"runs", f"run:{run.id}"}
        workspace.runs.run(["echo", "another"], name="live-run", watch_s=0)
        assert next(events).name == "runs"


def test_an_unknown_topic_and_a_strange_cursor_are_refused(client: httpx.Client) -> None:
    assert client.get("/api/live", params={"topics": "secrets"}).status_code == 404
    assert client.get("/api/live", params={"topics": "runs", "cursor": "{"}).status_code == 400
