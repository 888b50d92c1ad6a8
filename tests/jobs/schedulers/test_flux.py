"""The dialect of Flux, read from recorded and composed answers: see recorded/README.md. No Flux runs here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from batch_words import computed
from cases import for_each

from fairmile.base.errors import SystemFailure, Transient
from fairmile.jobs.request import JobFiles
from fairmile.jobs.schedulers import Scheduler
from fairmile.jobs.schedulers.flux import Flux
from fairmile.jobs.spec import JobSpec
from fairmile.jobs.states import Observed, State, Usage
from fairmile.testing.schedulers import Answer, Listing, SchedulerTests, Subject, made_request, read_answer

RECORDED = Path(__file__).parent / "recorded" / "flux"


def recorded(name: str) -> Answer:
    return Answer((RECORDED / f"{name}.json").read_text())


def together(*names: str) -> Answer:
    """Several recorded jobs in the frame that Flux puts round more than one."""
    return Answer(json.dumps({"jobs": [json.loads(recorded(name).stdout) for name in names]}))


def changed(which: str, /, **fields: Any) -> Answer:
    return Answer(json.dumps({**json.loads(recorded(which).stdout), **fields}))


def failed(kind: str, note: str, code: int, result: str = "FAILED") -> Observed:
    exception = {"occurred": bool(kind), "severity": 0, "type": kind, "note": note}
    answer = changed("canceled", result=result, status=result, returncode=code, exception=exception)
    return read_answer(Flux().status(["fiFkbMhFM"]), answer)["fiFkbMhFM"]


class TestFlux(SchedulerTests):
    has_arrays = False

    @pytest.fixture
    def subject(self) -> Subject:
        unknown = (RECORDED / "jobs_unknown.stderr").read_text()
        return Subject(
            Flux(),
            prefix="# flux: ",
            submits=[
                (Answer((RECORDED / "batch.txt").read_text()), "fM7Zq9AKHno"),
                (Answer("fiFkbMhFM\n"), "fiFkbMhFM"),
                (Answer("91088924704768\n"), "fiFkbMhFM"),
            ],
            refusals=[
                Answer("", "flux-batch: ERROR: Number of slots to allocate must be specified\n", 1),
                Answer("", "flux-batch: ERROR: [Errno 22] Invalid queue 'nowhere' specified\n", 1),
            ],
            outages=[Answer("", "flux-jobs: ERROR: Unable to connect to Flux\n", 1)],
            listing=lambda word: changed("pending", state=word, status=word),
            listed="fiFxrykWs",
            states={
                "DEPEND": State.QUEUED,
                "PRIORITY": State.QUEUED,
                "SCHED": State.QUEUED,
                "PENDING": State.QUEUED,
                "RUN": State.RUNNING,
                "RUNNING": State.RUNNING,
                "CLEANUP": State.ENDING,
                "COMPLETED": State.DONE,
                "FAILED": State.FAILED,
                "CANCELED": State.CANCELLED,
                "TIMEOUT": State.TIMED_OUT,
            },
            listings=[
                Listing(
                    recorded("running"),
                    ["fiFkbMhFM"],
                    {"fiFkbMhFM": Observed(State.RUNNING, "RUN", nodes="3db47f546663")},
                ),
                Listing(
                    recorded("canceled"),
                    ["fiFkbMhFM"],
                    {
                        "fiFkbMhFM": Observed(
                            State.CANCELLED,
                            "CANCELED",
                            "cancel",
                            "The job was cancelled, which ended it with signal 15 (SIGTERM).",
                            exit_code=143,
                            signal=15,
                            usage=Usage("flux jobs", elapsed_s=18.862305879592896),
                        )
                    },
                ),
                Listing(
                    together("held", "pending", "completed"),
                    ["fiFsPiQD5", "fiFxrykWs", "fPuMuVy"],
                    {
                        "fiFsPiQD5": Observed(State.HELD, "SCHED"),
                        "fiFxrykWs": Observed(State.QUEUED, "SCHED"),
                        "fPuMuVy": Observed(State.DONE, "COMPLETED", exit_code=0, nodes="burst[40-45]"),
                    },
                ),
            ],
            absent=Listing(
                Answer(recorded("held").stdout, unknown, 1),
                ["f68GN", "fiFsPiQD5"],
                {"fiFsPiQD5": Observed(State.HELD, "SCHED")},
            ),
            cancels=[
                Answer(),
                Answer("", (RECORDED / "cancel_unknown.stderr").read_text(), 1),
                Answer("", "flux-cancel: ERROR: ƒiFkbMhFM: job is inactive\n", 1),
            ],
            search=("train-7f3a.1", changed("pending", name="job=train-7f3a.1"), "fiFxrykWs"),
        )


def test_it_is_a_scheduler() -> None:
    scheduler: Scheduler = Flux()
    assert scheduler.history(["fiFkbMhFM"]) is None


def test_an_unknown_id_alone_gives_no_output_and_is_absent() -> None:
    answer = Answer("", (RECORDED / "jobs_unknown.stderr").read_text(), 1)
    assert read_answer(Flux().status(["f68GN"]), answer) == {}


@for_each(
    "kind, note, code, result, state",
    [
        ("timeout", "resource allocation expired", 142, "TIMEOUT", State.TIMED_OUT),
        ("cancel", "", -128, "CANCELED", State.CANCELLED),
        ("node-failure", "node failure on n17", 1, "FAILED", State.NODE_FAILED),
        ("exec", "lost contact with job shell on broker n17 (rank 4)", 1, "FAILED", State.NODE_FAILED),
        ("exec", "task was out of memory", 137, "FAILED", State.OUT_OF_MEMORY),
        ("dependency", "dependency-after: job failed", -128, "FAILED", State.CANCELLED),
        ("alloc", "unsatisfiable request", -128, "FAILED", State.FAILED),
        ("", "", 3, "FAILED", State.FAILED),
    ],
)
def test_the_exception_of_a_job_tells_why_it_ended(kind: str, note: str, code: int, result: str, state: State) -> None:
    seen = failed(kind, note, code, result)
    assert seen.state is state
    assert seen.sentence.endswith(".")
    assert note in seen.sentence, "what Flux says is passed on"


def test_exit_codes_and_signals_are_told_apart() -> None:
    assert (failed("", "", 3).exit_code, failed("", "", 3).signal) == (3, None)
    assert (failed("", "", 139).exit_code, failed("", "", 139).signal) == (139, 11)
    assert (failed("", "", -9).exit_code, failed("", "", -9).signal) == (None, 9)
    assert (failed("cancel", "", -128, "CANCELED").exit_code) is None


def test_a_job_cancelled_before_its_start_is_told_so() -> None:
    assert failed("cancel", "", -128, "CANCELED").sentence == "The job was cancelled before it ran."


def test_why_a_job_waits_is_passed_on() -> None:
    answer = changed("pending", annotations={"sched": {"reason_pending": "insufficient resources"}})
    seen = read_answer(Flux().status(["fiFxrykWs"]), answer)["fiFxrykWs"]
    assert seen.sentence == "The job is queued. Flux says: insufficient resources."


def test_the_key_stands_behind_the_name_where_lists_show_it() -> None:
    spec = JobSpec(argv=("true",), name="train")
    header = Flux().header(made_request(spec), JobFiles("/x", "/x", key="7f3a.1"))
    assert [line for line in header if "--job-name" in line] == ["# flux: --job-name=train=7f3a.1"]


def test_the_name_of_another_job_is_not_taken_for_a_key() -> None:
    assert read_answer(Flux().find("1"), changed("pending", name="train.1")) is None
    assert read_answer(Flux().find("1"), changed("pending", name="train=7f3a.1")) is None


def test_jobs_that_were_not_asked_for_are_left_out() -> None:
    assert read_answer(Flux().status(["f1"]), together("held", "pending")) == {}


def test_a_cancelling_that_is_not_allowed_is_told() -> None:
    with pytest.raises(SystemFailure, match="Permission denied") as caught:
        read_answer(Flux().cancel(["f1"]), Answer("", "flux-cancel: ERROR: Permission denied\n", 1))
    assert not isinstance(caught.value, Transient)


@pytest.mark.parametrize("id", ["ƒiFkbMhFM", "fiFkbMhFM"])
def test_a_script_knows_its_id_as_we_write_it(id: str) -> None:
    words = {"FAIRMILE_JOB_ID": Flux.variables["FAIRMILE_JOB_ID"]}
    assert computed(words, {"FLUX_ENCLOSING_ID": id}) == {"FAIRMILE_JOB_ID": "fiFkbMhFM"}
