"""The fake scheduler does what it says, and the conformance suites pass what is right and catch what is broken."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cases import for_each

from fairmile.base.commands import Here, Result
from fairmile.base.errors import SystemFailure, Transient, UsageError
from fairmile.jobs.request import JobFiles, Request
from fairmile.jobs.request_rules import make_request
from fairmile.jobs.schedulers import Question, Scheduler
from fairmile.jobs.script import write_script
from fairmile.jobs.spec import JobSpec
from fairmile.jobs.states import Observed, State
from fairmile.systems.model import System
from fairmile.testing import schedulers
from fairmile.testing.fake_scheduler import FakeScheduler
from fairmile.testing.schedulers import (
    WAIT_AT_GATE,
    Answer,
    Cluster,
    Listing,
    LiveSchedulerTests,
    SchedulerTests,
    Subject,
)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., FakeScheduler]]:
    made: list[FakeScheduler] = []

    def start(**options: Any) -> FakeScheduler:
        made.append(FakeScheduler(tmp_path / f"fake {len(made)}", **options))
        return made[-1]

    yield start
    for each in made:
        each.close()


def cluster_of(fake: Scheduler, folder: Path) -> Cluster:
    return Cluster(fake, Here(), folder, unknown_id="4711")


def rows(*tasks: dict[str, object]) -> Answer:
    return Answer("".join(f"{json.dumps(task)}\n" for task in tasks) + f"end {len(tasks)}\n")


def subject_of(fake: Scheduler) -> Subject:
    return Subject(
        fake,
        prefix="#FAKE --",
        submits=[(Answer("taken 7\n"), "7")],
        refusals=[Answer("", "fake: the job asks for 9 nodes, there are 2\n", 1)],
        outages=[Answer("", "fake: the scheduler does not answer\n", 7)],
        listing=lambda word: rows({"id": "7", "state": word, "restarts": 0}),
        listed="7",
        states={
            "WAITING": State.QUEUED,
            "HELD": State.HELD,
            "RUNNING": State.RUNNING,
            "STOPPING": State.ENDING,
            "FINISHED": State.DONE,
            "FAILED": State.FAILED,
            "KILLED": State.CANCELLED,
            "OVERTIME": State.TIMED_OUT,
            "LOSTNODE": State.NODE_FAILED,
            "PREEMPTED": State.PREEMPTED,
            "NEVER": State.CANCELLED,
        },
        listings=[
            Listing(
                rows({"id": "7", "state": "FAILED", "exit_code": 3, "signal": 0, "restarts": 1}),
                ["7"],
                {"7": Observed(State.FAILED, "FAILED", exit_code=3, restarts=1)},
            )
        ],
        arrays=[
            Listing(
                rows({"id": "8_0", "state": "RUNNING"}, {"id": "8_1", "state": "WAITING"}),
                ["8"],
                {"8_0": Observed(State.RUNNING), "8_1": Observed(State.QUEUED)},
            )
        ],
        absent=Listing(rows(), ["9"], {}),
        search=("key-7", Answer("found 7\n"), "7"),
    )


class TestTheDialectOfTheFake(SchedulerTests):
    # Which key a job has is compared by the program: the answer itself does not name it.
    has_keys = False

    @pytest.fixture
    def subject(self, tmp_path: Path) -> Subject:
        return subject_of(FakeScheduler(tmp_path / "fake"))


@pytest.mark.thorough
class TestTheFake(LiveSchedulerTests):
    @pytest.fixture
    def cluster(self, tmp_path: Path, make: Callable[..., FakeScheduler]) -> Cluster:
        return cluster_of(make(), tmp_path / "jobs")


@pytest.mark.thorough
class TestTheFakeThatListsOnlyLiveJobs(LiveSchedulerTests):
    @pytest.fixture
    def cluster(self, tmp_path: Path, make: Callable[..., FakeScheduler]) -> Cluster:
        return cluster_of(make(lists_ends=False, accounting=True), tmp_path / "jobs")


@pytest.mark.thorough
class TestTheFakeThatForgetsEnds(LiveSchedulerTests):
    remembers = False
    lists_tasks = False

    @pytest.fixture
    def cluster(self, tmp_path: Path, make: Callable[..., FakeScheduler]) -> Cluster:
        return cluster_of(make(lists_ends=False), tmp_path / "jobs")


# What the fake does beyond the suites


@pytest.fixture
def fake(make: Callable[..., FakeScheduler]) -> FakeScheduler:
    return make(nodes=1)


@pytest.fixture
def cluster(fake: FakeScheduler, tmp_path: Path) -> Cluster:
    return cluster_of(fake, tmp_path / "jobs")


def state(cluster: Cluster, id: str) -> Callable[[State], Observed]:
    return lambda wanted: cluster.wait(lambda seen: id in seen and seen[id].state is wanted, id)[id]


def test_no_more_jobs_run_at_once_than_there_are_nodes(cluster: Cluster) -> None:
    first, second = cluster.submit(WAIT_AT_GATE), cluster.submit("exit 0")
    state(cluster, first)(State.RUNNING)
    assert cluster.look(second)[second].state is State.QUEUED
    cluster.open_gate()
    state(cluster, second)(State.DONE)


@pytest.mark.thorough
def test_the_next_job_starts_although_nobody_looks(cluster: Cluster) -> None:
    cluster.submit("exit 0")
    cluster.submit('touch "$HERE/second"')
    schedulers._until((cluster.folder / "second").exists)


def test_a_job_that_asks_for_too_many_nodes_is_refused(cluster: Cluster) -> None:
    with pytest.raises(UsageError, match="asks for 5 nodes, there are 1"):
        cluster.submit("true", resources={"nodes": 5})


@pytest.mark.thorough
def test_a_job_that_takes_too_long_is_ended(cluster: Cluster) -> None:
    id = cluster.submit(f"{WAIT_AT_GATE}", resources={"time_s": 1})
    end = state(cluster, id)(State.TIMED_OUT)
    assert end.signal == 15
    assert end.usage is not None and end.usage.elapsed_s is not None and end.usage.elapsed_s >= 1


@pytest.mark.thorough
def test_a_job_is_warned_before_its_time_is_over(cluster: Cluster) -> None:
    id = cluster.submit(
        f"trap 'echo warned > \"$HERE/warned\"; exit 0' USR1\n{WAIT_AT_GATE}",
        resources={"time_s": 60},
        signal={"name": "USR1", "before_s": 59},
    )
    state(cluster, id)(State.DONE)
    assert (cluster.folder / "warned").exists()


@pytest.mark.thorough
def test_a_job_that_does_not_heed_the_end_is_killed(cluster: Cluster) -> None:
    id = cluster.submit(f"trap '' TERM\necho begun > \"$HERE/begun\"\n{WAIT_AT_GATE}")
    schedulers._until((cluster.folder / "begun").exists)
    cluster.ask(cluster.scheduler.cancel([id]))
    assert state(cluster, id)(State.CANCELLED).signal == 9


def test_a_job_that_lost_its_node_starts_anew_under_the_same_id(fake: FakeScheduler, cluster: Cluster) -> None:
    id = cluster.submit(f'echo $FAKE_RESTARTS >> "$HERE/runs"\n{WAIT_AT_GATE}')
    schedulers._until(lambda: (cluster.folder / "runs").exists())
    fake.fail_node(id)
    cluster.wait(lambda seen: id in seen and seen[id].state is State.RUNNING and seen[id].restarts == 1, id)
    schedulers._until(lambda: (cluster.folder / "runs").read_text() == "0\n1\n")
    cluster.open_gate()
    assert state(cluster, id)(State.DONE).restarts == 1


@pytest.mark.thorough
def test_a_job_that_must_not_start_anew_ends_with_its_node(fake: FakeScheduler, cluster: Cluster) -> None:
    id = cluster.submit(f'echo > "$HERE/begun"\n{WAIT_AT_GATE}', requeue=False)
    schedulers._until((cluster.folder / "begun").exists)
    fake.fail_node(id)
    assert state(cluster, id)(State.NODE_FAILED).sentence


@pytest.mark.parametrize(("requeue", "end"), [(True, State.DONE), (False, State.PREEMPTED)])
@pytest.mark.thorough
def test_a_job_makes_room(fake: FakeScheduler, cluster: Cluster, requeue: bool, end: State) -> None:
    body = f'echo > "$HERE/begun.$FAKE_RESTARTS"\n{WAIT_AT_GATE}'
    id = cluster.submit(body, requeue=requeue)
    schedulers._until((cluster.folder / "begun.0").exists)
    fake.preempt(id)
    if requeue:
        schedulers._until((cluster.folder / "begun.1").exists)
        cluster.open_gate()
    assert state(cluster, id)(end).restarts == int(requeue)


@pytest.mark.thorough
def test_a_job_is_held_and_released(fake: FakeScheduler, cluster: Cluster) -> None:
    first, second = cluster.submit(WAIT_AT_GATE), cluster.submit("exit 0")
    fake.hold(second)
    cluster.open_gate()
    state(cluster, first)(State.DONE)
    assert cluster.look(second)[second].state is State.HELD
    fake.release(second)
    state(cluster, second)(State.DONE)


@pytest.mark.parametrize(
    ("code", "condition", "end"),
    [
        (0, "ok", State.DONE),
        (1, "ok", State.CANCELLED),
        (1, "failed", State.DONE),
        (0, "failed", State.CANCELLED),
        (1, "any", State.DONE),
    ],
)
@pytest.mark.thorough
def test_a_job_waits_for_another(fake: FakeScheduler, cluster: Cluster, code: int, condition: str, end: State) -> None:
    first = cluster.submit(f"exit {code}")
    files = JobFiles(str(cluster.folder), str(cluster.folder), after=((first, condition),))
    header = fake.header(cluster.request(JobSpec(argv=("true",))), files)
    script = cluster.folder / "second.sh"
    script.write_text("\n".join(["#!/bin/bash", *header, "exit 0"]) + "\n")
    second = cluster.ask(fake.submit(str(script), files))
    state(cluster, second)(end)


def test_a_lost_answer_leaves_a_job_that_its_key_finds(fake: FakeScheduler, cluster: Cluster) -> None:
    fake.set(lost_answers=1)
    with pytest.raises(Transient, match="does not answer"):
        cluster.submit("exit 0", key="key-1")
    id = cluster.ask(fake.find("key-1"))
    assert id is not None
    state(cluster, id)(State.DONE)


def test_an_outage_leaves_nothing_behind(fake: FakeScheduler, cluster: Cluster) -> None:
    fake.set(outages=1)
    with pytest.raises(Transient):
        cluster.submit("exit 0", key="key-1")
    assert cluster.ask(fake.find("key-1")) is None


@pytest.mark.thorough
def test_garbage_and_unknown_states_come_as_often_as_asked(fake: FakeScheduler, cluster: Cluster) -> None:
    id = cluster.submit(WAIT_AT_GATE)
    fake.set(garbage=1, unknown_states=1)
    with pytest.raises(Transient, match="not complete"):
        cluster.look(id)
    assert cluster.look(id)[id].state is State.UNKNOWN
    state(cluster, id)(State.RUNNING)


@pytest.mark.thorough
def test_a_command_that_hangs_is_ended_by_its_runner(fake: FakeScheduler, cluster: Cluster) -> None:
    fake.set(hangs=1)
    with pytest.raises(SystemFailure, match="did not finish"):
        Here().run(fake.status(["1"]).argv, timeout_s=3)
    assert cluster.look("1") == {}


@pytest.mark.thorough
def test_a_forgotten_job_is_on_no_list_and_runs_on(fake: FakeScheduler, cluster: Cluster) -> None:
    id = cluster.submit(f'{WAIT_AT_GATE}\necho > "$HERE/passed"', key="key-1")
    fake.forget(id)
    assert cluster.look(id) == {}
    assert cluster.ask(fake.find("key-1")) is None
    cluster.open_gate()
    schedulers._until((cluster.folder / "passed").exists)


def test_a_fault_that_does_not_exist_is_refused(fake: FakeScheduler) -> None:
    with pytest.raises(SystemFailure, match="is not a setting"):
        fake.set(earthquakes=1)


@pytest.mark.thorough
def test_many_submissions_at_once_all_get_ids_of_their_own(fake: FakeScheduler, cluster: Cluster) -> None:
    script = cluster.folder / "job.sh"
    cluster.folder.mkdir(parents=True, exist_ok=True)
    script.write_text("#!/bin/bash\nexit 0\n")
    question = fake.submit(str(script), JobFiles(str(cluster.folder), ""))
    with ThreadPoolExecutor(4) as pool:
        ids = list(pool.map(lambda _: cluster.ask(question), range(8)))
    assert sorted(ids, key=int) == [str(number) for number in range(1, 9)]


def test_a_whole_batch_script_notes_both_of_its_starts_on_it(fake: FakeScheduler, cluster: Cluster) -> None:
    system = System.model_validate(
        {"name": "test", "title": "Test", "scheduler": {"dialect": "shell"}, "partitions": {"all": {}}}
    )
    folder = cluster.folder / "whole"
    folder.mkdir(parents=True)
    program = f'export HERE={shlex.quote(str(cluster.folder))}; echo "run $FAKE_RESTARTS"; {WAIT_AT_GATE}; exit 4'
    spec = JobSpec(argv=("bash", "-c", program))
    files = JobFiles(str(folder), str(folder), key="key-1")
    script = folder / "job.sh"
    script.write_text(write_script(make_request(spec, system), files, fake, system))
    id = cluster.ask(fake.submit(str(script), files))
    schedulers._until(lambda: (folder / "out.log").exists() and "run 0" in (folder / "out.log").read_text())
    fake.fail_node(id)
    schedulers._until(lambda: "run 1" in (folder / "out.log").read_text())
    cluster.open_gate()
    assert state(cluster, id)(State.FAILED).exit_code == 4
    starts = [json.loads(line) for line in (folder / "started").read_text().splitlines()]
    assert [(each["attempt"], each["job"]) for each in starts] == [(1, id), (2, id)]
    assert json.loads((folder / "ended").read_text())["exit_code"] == 4


# Broken schedulers, and the sentence of a suite that must catch each


class Broken(FakeScheduler):
    def __init__(self) -> None:
        super().__init__(Path("nowhere"))  # the suite for text runs no job


class TwoLinesInOne(Broken):
    def header(self, request: Request, files: JobFiles) -> list[str]:
        return ["\n".join(super().header(request, files))]


class ForgetsThePartition(Broken):
    def header(self, request: Request, files: JobFiles) -> list[str]:
        return [line for line in super().header(request, files) if "partition" not in line]


class TakesAnyKey(Broken):
    def header(self, request: Request, files: JobFiles) -> list[str]:
        return super().header(request, replace(files, key=""))


class WritesAShellText(Broken):
    def submit(self, script: str, files: JobFiles) -> Question[str]:
        question = super().submit(script, files)
        return replace(question, argv=("sh", "-c", f"submit {script}"))


class TakesAnyAnswerForAnId(Broken):
    def submit(self, script: str, files: JobFiles) -> Question[str]:
        return replace(super().submit(script, files), read=lambda result: result.stdout.removeprefix("taken ").strip())


class ReadsDifferently(Broken):
    def change(self, result: Result, seen: dict[str, Observed]) -> dict[str, Observed]:
        return seen

    def status(self, ids: Sequence[str]) -> Question[dict[str, Observed]]:
        question = super().status(ids)
        return replace(question, read=lambda result: self.change(result, question.read(result)))


class TakesTheUnknownForAnEnd(ReadsDifferently):
    def change(self, result: Result, seen: dict[str, Observed]) -> dict[str, Observed]:
        ends = {id: replace(each, state=State.FAILED) for id, each in seen.items() if each.state is State.UNKNOWN}
        return {**seen, **ends}


class CountsFromOne(ReadsDifferently):
    def change(self, result: Result, seen: dict[str, Observed]) -> dict[str, Observed]:
        return {
            f"{id.partition('_')[0]}_{int(id.partition('_')[2]) + 1}" if "_" in id else id: each
            for id, each in seen.items()
        }


class LosesTheExitCode(ReadsDifferently):
    def change(self, result: Result, seen: dict[str, Observed]) -> dict[str, Observed]:
        return {id: replace(each, exit_code=None) for id, each in seen.items()}


class SaysNothing(ReadsDifferently):
    def change(self, result: Result, seen: dict[str, Observed]) -> dict[str, Observed]:
        return {id: replace(each, sentence="") for id, each in seen.items()}


class InventsAJob(ReadsDifferently):
    def change(self, result: Result, seen: dict[str, Observed]) -> dict[str, Observed]:
        return {"9": Observed(State.LOST), **seen}


class FailsOnGarbage(Broken):
    def status(self, ids: Sequence[str]) -> Question[dict[str, Observed]]:
        question = super().status(ids)

        def read(result: Result) -> dict[str, Observed]:
            try:
                return question.read(result)
            except Transient as error:
                raise ValueError("no state") from error

        return replace(question, read=read)


class TakesAnOutageForAnEmptyList(Broken):
    def status(self, ids: Sequence[str]) -> Question[dict[str, Observed]]:
        question = super().status(ids)
        return replace(question, read=lambda result: {} if result.exit_code else question.read(result))


class SwallowsAnOutage(Broken):
    def cancel(self, ids: Sequence[str]) -> Question[None]:
        return replace(super().cancel(ids), read=lambda result: None)


class RetriesARefusal(Broken):
    def submit(self, script: str, files: JobFiles) -> Question[str]:
        question = super().submit(script, files)

        def read(result: Result) -> str:
            try:
                return question.read(result)
            except UsageError as error:
                raise Transient(str(error)) from error

        return replace(question, read=read)


@for_each(
    "broken, caught_by",
    [
        (TwoLinesInOne, "test_every_directive_is_one_line_that_begins_with_the_prefix"),
        (ForgetsThePartition, "test_what_a_job_asks_for_stands_in_its_header"),
        (TakesAnyKey, "test_a_key_that_could_break_out_is_refused"),
        (WritesAShellText, "test_commands_are_words_and_no_value_becomes_part_of_a_shell_text"),
        (TakesAnyAnswerForAnId, "test_an_answer_without_an_id_is_never_an_id"),
        (TakesTheUnknownForAnEnd, "test_a_word_that_nobody_knows_is_no_error_and_no_end"),
        (CountsFromOne, "test_tasks_of_an_array_are_numbered_from_zero"),
        (LosesTheExitCode, "test_listings_are_read"),
        (SaysNothing, "test_a_bad_end_is_told_in_a_sentence"),
        (InventsAJob, "test_a_job_that_is_not_listed_is_absent"),
        (InventsAJob, "test_no_output_means_no_jobs"),
        (FailsOnGarbage, "test_garbage_is_skipped_or_a_reason_to_ask_again"),
        (FailsOnGarbage, "test_an_answer_that_breaks_off_is_no_error_of_another_kind"),
        (TakesAnOutageForAnEmptyList, "test_an_outage_is_no_answer"),
        (SwallowsAnOutage, "test_a_cancelling_that_nobody_heard_is_an_error"),
        (RetriesARefusal, "test_what_the_user_must_change_is_said_in_the_schedulers_words"),
    ],
)
def test_a_broken_dialect_is_caught(broken: type[Broken], caught_by: str) -> None:
    assert not fails(SchedulerTests, caught_by, subject=subject_of(Broken()))
    assert fails(SchedulerTests, caught_by, subject=subject_of(broken()))


class ForgetsToCancel(FakeScheduler):
    def cancel(self, ids: Sequence[str]) -> Question[None]:
        return replace(super().cancel(ids), argv=("true",))


class FindsByTheBeginning(FakeScheduler):
    def find(self, key: str) -> Question[str | None]:
        return super().find(key if key == "no-such-key" else "key-7")


class TakesEveryEndForAFailure(FakeScheduler):
    def status(self, ids: Sequence[str]) -> Question[dict[str, Observed]]:
        question = super().status(ids)

        def read(result: Result) -> dict[str, Observed]:
            seen = question.read(result).items()
            return {id: replace(each, state=State.FAILED) if each.state.is_end else each for id, each in seen}

        return replace(question, read=read)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("broken", "caught_by"),
    [
        (ForgetsToCancel, "test_a_running_job_is_cancelled"),
        (FindsByTheBeginning, "test_a_job_is_found_by_its_key"),
        (TakesEveryEndForAFailure, "test_a_job_runs_and_ends_well"),
        (TakesEveryEndForAFailure, "test_the_tasks_of_an_array_end_each_in_its_own_way"),
    ],
)
def test_a_broken_scheduler_is_caught(
    broken: type[FakeScheduler], caught_by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind, is_caught in ((FakeScheduler, False), (broken, True)):
        fake = kind(tmp_path / kind.__name__ / "fake")
        if is_caught:
            monkeypatch.setattr(schedulers, "_PATIENCE_S", 3.0)
        try:
            cluster = cluster_of(fake, tmp_path / kind.__name__ / "jobs")
            assert fails(LiveSchedulerTests, caught_by, cluster=cluster) is is_caught
        finally:
            FakeScheduler(fake.folder).close()


def fails(suite: type, name: str, **fixtures: Any) -> bool:
    """Run one sentence of a suite, with each of its parameters, and tell whether any of them fails."""
    sentence = getattr(suite(), name)
    cases: list[dict[str, Any]] = [{}]
    for mark in getattr(sentence, "pytestmark", ()):
        cases = [{**case, mark.args[0]: value} for case in cases for value in mark.args[1]]
    for case in cases:
        try:
            sentence(**fixtures, **case)
        except (Exception, pytest.fail.Exception):
            return True
    return False
