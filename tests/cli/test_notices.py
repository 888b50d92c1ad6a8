"""`--notify` of commands that may take long."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Fairmile = Callable[..., Any]


@pytest.fixture
def told(place: Path) -> Path:
    return place.parent / "told.json"


def notices(told: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in told.read_text().splitlines()] if told.exists() else []


def to(told: Path) -> list[str]:
    return ["--notify", f"sh -c 'cat >> {told}; echo >> {told}'"]


def test_a_run_tells_how_it_ended(fairmile: Fairmile, told: Path) -> None:
    ended = fairmile("run", *to(told), "--name", "tides", "--", "true")
    assert (ended.code, ended.err.splitlines()[-1]) == (0, "notified the command sh")
    assert fairmile("run", *to(told), "--name", "storm", "--", "false").code == 1
    done, failed = notices(told)
    assert (done["command"], done["state"], done["exit_code"]) == ("run", "done", 0)
    assert done["text"].startswith("fairmile run: tides-") and " done in " in done["text"]
    assert (failed["state"], failed["exit_code"]) == ("failed", 1)


def test_an_error_is_told_as_well(fairmile: Fairmile, told: Path) -> None:
    assert fairmile("fetch", *to(told), "./nothing.jsonld").code == 2
    (notice,) = notices(told)
    assert (notice["command"], notice["exit_code"]) == ("fetch", 2)
    assert "nothing.jsonld" in notice["text"]


def test_sweeps_and_jobs_tell_it_too(fairmile: Fairmile, told: Path) -> None:
    assert fairmile("sweep", "run", *to(told), "-p", "n=1,2", "--", "echo", "{n}").code == 0
    assert fairmile("job", "submit", *to(told), "--wait", "--", "true").code == 0
    assert [each["command"] for each in notices(told)] == ["sweep run", "job submit"]


def test_nothing_is_told_of_work_that_has_not_ended(fairmile: Fairmile, told: Path) -> None:
    assert fairmile("run", *to(told), "--dry-run", "--", "true").code == 0
    submitted = fairmile("job", "submit", *to(told), "--", "true")
    assert "--notify has no effect" in submitted.err
    assert not told.exists()


def test_a_notice_that_fails_is_one_warning_and_changes_no_exit_code(fairmile: Fairmile) -> None:
    done = fairmile("run", "--notify", "http://127.0.0.1:1/secret-token", "--json", "--", "true")
    assert done.code == 0
    (warning,) = [line for line in done.err.splitlines() if line.startswith("warning: ")]
    assert "http://127.0.0.1:1 was not notified" in warning
    assert "secret-token" not in done.err + done.out


def test_a_token_reaches_neither_the_record_nor_the_doctor(
    fairmile: Fairmile, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = "http://127.0.0.1:1/secret-token"
    fairmile("run", "--notify", address, "--", "true")
    kept = [each for each in (place.parent / "home").rglob("*") if each.is_file()]
    assert kept and not any(b"secret-token" in each.read_bytes() for each in kept)
    monkeypatch.setenv("FAIRMILE_NOTIFY_TO", address)
    shown = fairmile("doctor", "--json")
    assert "http://127.0.0.1:1" in shown.out and "secret-token" not in shown.out


def test_a_wrong_destination_is_refused_before_anything_runs(fairmile: Fairmile) -> None:
    refused = fairmile("run", "--notify", "ftp://somewhere", "--", "true")
    assert refused.code == 2
    assert fairmile("runs", "ls", "--json").json == {"runs": []} or fairmile("runs", "ls").out == ""
