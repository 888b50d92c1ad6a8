"""Processes without a scheduler keep the promises of one, as far as nobody needs to remember."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fairmile.base.commands import Here
from fairmile.jobs.schedulers.shell import Shell
from fairmile.jobs.states import Observed, State
from fairmile.testing.schedulers import Answer, Cluster, Listing, LiveSchedulerTests, SchedulerTests, Subject

ID = "4711-99@here"
ELSEWHERE = Observed(State.UNKNOWN, "elsewhere", sentence="it was started on here: look for it there")


class TestDialect(SchedulerTests):
    has_keys = False
    has_directives = False

    @pytest.fixture
    def subject(self) -> Subject:
        return Subject(
            Shell(),
            prefix="",
            submits=[(Answer(f"{ID}\n"), ID)],
            listing=lambda word: Answer(f"{ID}|{word}\n"),
            listed=ID,
            states={"running": State.RUNNING, "orphaned": State.RUNNING, "elsewhere": State.UNKNOWN},
            listings=[
                Listing(Answer(f"{ID}|running\n"), [ID], {ID: Observed(State.RUNNING, "running")}),
                Listing(Answer(f"{ID}|elsewhere\n"), [ID], {ID: ELSEWHERE}),
            ],
            absent=Listing(Answer(""), [ID], {}),
            refusals=[],
            outages=[],
        )


class TestProcesses(LiveSchedulerTests):
    has_keys = False
    remembers = False
    lists_tasks = False

    @pytest.fixture
    def cluster(self, tmp_path: Path) -> Cluster:
        return Cluster(Shell(), Here(), tmp_path, unknown_id=f"1-1@{os.uname().nodename}")
