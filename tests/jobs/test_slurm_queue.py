"""The queue on a real Slurm: many jobs, lost nodes, lost answers, a controller that goes away and comes back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from slurm_cluster import SlurmCluster, reason_to_skip
from slurm_jobs import NAME, jobs_on

from fairmile.base.commands import Here, MissingProgram, Result
from fairmile.base.errors import FairmileError, SystemFailure, Transient, UsageError
from fairmile.jobs.queue import Jobs, JobStatus
from fairmile.jobs.spec import After, Array, JobSpec, Resources, Signal
from fairmile.jobs.states import State

PATIENCE_S = 240.0


class Line(Here):
    """The way to a cluster's commands: counts them, and can lose their answers."""

    def __init__(self, cluster: SlurmCluster) -> None:
        super().__init__()
        self.cluster = cluster
        self.programs: list[str] = []
        self.lost: set[str] = set()  # programs that run, but whose answer nobody gets
        self.forgets = False  # squeue knows no job any more
        self.hidden: tuple[str, ...] = ()  # tasks that squeue knows no more

    def run(self, argv: Sequence[str], **options: Any) -> Result:
        self.programs.append(argv[0])
        if self.forgets and argv[0] == "squeue":
            return Result(tuple(argv), 1, "", "slurm_load_jobs error: Invalid job id specified\n", 0.0)
        result = super().run(argv, env=self.cluster.environ, **options)
        if self.hidden and argv[0] == "squeue":
            lines = result.stdout.splitlines(keepends=True)
            result = replace(result, stdout="".join(line for line in lines if not line.startswith(self.hidden)))
        if argv[0] in self.lost:
            raise SystemFailure(f"{argv[0]} did not finish within 60 s and was ended")
        return result

    def count(self, *programs: str) -> int:
        return sum(program in programs for program in self.programs)


@dataclass
class Rig:
    """A cluster and a queue on it; `later_s` is added to the queue's clock."""

    cluster: SlurmCluster
    jobs: Jobs
    line: Line
    later_s: list[float] = field(default_factory=lambda: [0.0])

    def submit(self, script: str, **fields: Any) -> JobStatus:
        return self.jobs.submit(sh(script, **fields), system=NAME)

    def end_of(self, job: JobStatus) -> JobStatus:
        (ended,) = self.jobs.wait([job.id], timeout_s=PATIENCE_S)
        assert ended.is_over, f"{ended}\n{self.cluster.logs()}"
        return ended

    def until(self, job: JobStatus, state: State) -> JobStatus:
        until(lambda: self.jobs.get(job.id).state is state, lambda: str(self.jobs.get(job.id)))
        return self.jobs.get(job.id)

    def listed(self) -> int:
        """Return how many jobs the cluster has, whatever became of them."""
        return len(self.cluster.run("squeue", "-h", "-t", "all", "-o", "%F").stdout.split())


def until(condition: Callable[[], bool], told: Callable[[], str] = lambda: "") -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, told()
        time.sleep(0.2)


def sh(script: str, **fields: Any) -> JobSpec:
    """Return a job of one core: unless told, a job of one task gets all cores of its node."""
    resources = {"resources": Resources(cpus_per_task=1)} | fields
    return JobSpec(argv=("bash", "-c", script), launch="plain", **resources)


def make_rig(cluster: SlurmCluster, folder: Path, *, ask_every_s: float | None = None) -> Rig:
    line, later_s = Line(cluster), [0.0]
    with pytest.MonkeyPatch.context() as patch:
        made = jobs_on(cluster, folder, patch)
    made.machines._known[NAME] = replace(made.machines[NAME], runner=line)
    every = {} if ask_every_s is None else {"ask_every_s": ask_every_s}
    jobs = Jobs(made.root, made.machines, clock=lambda: time.time() + later_s[0], **every)
    return Rig(cluster, jobs, line, later_s)


def clear(rig: Rig) -> None:
    """End what a test left running, so that the next one has the cluster for itself."""
    rig.cluster.run("scancel", "--me")
    rig.cluster.wait_idle()


@pytest.fixture
def rig(slurm_cluster: SlurmCluster, tmp_path: Path) -> Iterator[Rig]:
    made = make_rig(slurm_cluster, tmp_path, ask_every_s=1.0)
    yield made
    clear(made)


@pytest.fixture
def polite(slurm_cluster: SlurmCluster, tmp_path: Path) -> Iterator[Rig]:
    """A queue that asks as seldom as it does for users."""
    made = make_rig(slurm_cluster, tmp_path)
    yield made
    clear(made)


@pytest.fixture
def accounted(slurm_with_accounting: SlurmCluster, tmp_path: Path) -> Iterator[Rig]:
    made = make_rig(slurm_with_accounting, tmp_path, ask_every_s=1.0)
    yield made
    clear(made)


@pytest.fixture
def wide(tmp_path: Path) -> Iterator[Rig]:
    """A queue on a cluster that runs more jobs at once."""
    if reason := reason_to_skip():
        pytest.skip(reason)
    with SlurmCluster(node_count=3, cores=12) as cluster:
        yield make_rig(cluster, tmp_path)


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Rig]:
    """A queue on a cluster that this test may leave in any state."""
    if reason := reason_to_skip():
        pytest.skip(reason)
    with SlurmCluster(node_count=2) as cluster:
        yield make_rig(cluster, tmp_path, ask_every_s=1.0)


@pytest.fixture(scope="module", autouse=True)
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Rig, JobStatus]]:
    """Start a job with Slurm's shortest limit, a minute, on a cluster of its own: it runs beside the other tests."""
    if reason := reason_to_skip():
        pytest.skip(reason)
    with SlurmCluster(node_count=2) as cluster:
        rig = make_rig(cluster, tmp_path_factory.mktemp("limited"), ask_every_s=1.0)
        script = "trap 'echo saved' USR1; echo ready; while :; do sleep 0.2; done"
        limits = {"resources": Resources(time_s=60), "signal": Signal(name="USR1", before_s=50)}
        yield rig, rig.submit(script, **limits)


# Many jobs, few questions


@pytest.mark.thorough
def test_an_array_of_hundreds_is_one_command_and_its_tasks_tell_their_own_ends(wide: Rig) -> None:
    began = time.monotonic()
    job = wide.submit('echo "$FAIRMILE_ARRAY_INDEX"; [ "$FAIRMILE_ARRAY_INDEX" != 123 ]', array=Array(count=500))
    assert wide.line.programs == ["sbatch"]
    ended = wide.end_of(job)
    assert ended.counts() == {State.DONE: 499, State.FAILED: 1}
    assert ended.tasks[123].exit_code == 1
    assert wide.jobs.log(job.id, task=499) == b"499\n"
    assert wide.line.count("squeue", "sacct") <= 1 + (time.monotonic() - began) / 30


@pytest.mark.thorough
def test_jobs_one_by_one_are_a_command_each_and_one_question_for_all(polite: Rig) -> None:
    began = time.monotonic()
    jobs = [polite.submit(f"echo {number}; exit {number % 2}") for number in range(40)]
    assert polite.line.programs == ["sbatch"] * 40
    ended = polite.jobs.wait([job.id for job in jobs], timeout_s=PATIENCE_S)
    assert [job.status.exit_code for job in ended] == [number % 2 for number in range(40)]
    assert polite.line.count("squeue", "sacct") <= 1 + (time.monotonic() - began) / 30


@pytest.mark.thorough
def test_a_minute_of_looking_asks_slurm_twice_however_many_look(polite: Rig) -> None:
    jobs = [polite.submit("sleep 300") for _ in range(3)]
    for _ in range(60):
        polite.later_s[0] += 1
        polite.jobs.ls()
        Jobs(polite.jobs.root, polite.jobs.machines, clock=lambda: time.time() + polite.later_s[0]).ls()
    assert 1 <= polite.line.count("squeue", "sacct") <= 3  # some real time goes by as well
    polite.jobs.cancel([job.id for job in jobs])


# How jobs end


@pytest.mark.thorough  # sbatch asks the name service for a minute
def test_without_a_configuration_of_slurm_nothing_was_submitted(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = SimpleNamespace(environ={**rig.cluster.environ, "SLURM_CONF": "/nonexistent/slurm.conf"})
    with monkeypatch.context() as without:
        without.setattr(rig.line, "cluster", lost)
        with pytest.raises(MissingProgram, match=f"{NAME} cannot be used from here: sbatch has no Slurm configuration"):
            rig.submit("true")
    assert not rig.jobs.ls()


def test_a_job_waits_for_another_and_for_how_it_ended(rig: Rig) -> None:
    first = rig.submit("sleep 2; exit 1")
    states = {"ok": State.CANCELLED, "failed": State.DONE, "any": State.DONE}
    jobs = {how: rig.submit("true", after=(After(job=first.id, condition=how),)) for how in states}
    assert {how: rig.end_of(job).state for how, job in jobs.items()} == states
    assert rig.end_of(first).status.exit_code == 1


@pytest.mark.thorough
def test_a_job_waits_for_every_task_of_an_array(rig: Rig) -> None:
    first = rig.submit('sleep 1; [ "$FAIRMILE_ARRAY_INDEX" != 1 ]', array=Array(count=3))
    after = rig.submit("true", after=(After(job=first.id, condition="failed"),))
    never = rig.submit("true", after=(After(job=first.id),))
    assert rig.end_of(never).state is State.CANCELLED
    assert rig.end_of(after).state is State.DONE


def test_a_cancelled_job_can_say_good_bye(rig: Rig) -> None:
    job = rig.submit("trap 'echo saved; exit 0' TERM; echo ready; while :; do sleep 0.1; done")
    until(lambda: rig.jobs.log(job.id) == b"ready\n")
    rig.jobs.cancel([job.id])
    assert rig.end_of(job).state is State.CANCELLED
    assert rig.jobs.log(job.id) == b"ready\nsaved\n"


def test_an_array_is_cancelled_with_what_runs_and_what_waits(rig: Rig) -> None:
    job = rig.submit("sleep 300", array=Array(count=20, at_once=2))
    until(lambda: rig.jobs.get(job.id).counts().get(State.RUNNING) == 2)
    rig.jobs.cancel([job.id])
    assert rig.end_of(job).counts() == {State.CANCELLED: 20}


def test_a_job_that_is_killed_for_its_memory_is_told_apart_from_one_that_fails(rig: Rig) -> None:
    hog = "python3 -c 'import time; x = bytearray(300 << 20); time.sleep(100)'"
    ended = rig.end_of(rig.submit(hog, resources=Resources(cpus_per_task=1, memory_gib=0.02)))
    assert ended.state in (State.FAILED, State.OUT_OF_MEMORY)
    diagnosis = rig.jobs.explain(ended.id)
    assert diagnosis is not None and "memory" in f"{diagnosis.what} {diagnosis.advice} {diagnosis.line}"


def test_a_partition_that_gives_less_is_said_before_anything_is_made(rig: Rig) -> None:
    with pytest.raises(UsageError, match="time"):
        rig.submit("true", resources=Resources(time_s=7200))
    assert rig.jobs.ls() == [] and rig.line.programs == []


# Nodes


@pytest.mark.thorough
def test_a_node_that_loses_power_costs_a_job_a_second_start_under_the_same_id(own: Rig) -> None:
    job = own.submit("echo start; [ -e again ] && exit 0; touch again; sleep 300")
    until(lambda: own.jobs.log(job.id) == b"start\n")
    own.cluster.kill_node("n1")
    until(lambda: own.cluster.node_states()["n1"].startswith("down"), own.cluster.logs)
    assert not own.jobs.get(job.id).is_over
    own.cluster.start_node("n1")
    ended = own.end_of(job)
    assert (ended.state, ended.scheduler_id, ended.attempt) == (State.DONE, job.scheduler_id, 1)
    assert ended.status.restarts == 1
    assert own.jobs.log(job.id) == b"start\nstart\n"


@pytest.mark.thorough
def test_a_job_that_may_not_be_requeued_is_submitted_again_when_that_was_asked_for(rig: Rig) -> None:
    job = rig.submit("[ -e again ] && exit 0; touch again; sleep 300", requeue=False, retries=1)
    until(lambda: (Path(job.folder) / "again").exists())
    node = rig.until(job, State.RUNNING).status.nodes
    rig.cluster.node_down(node)
    ended = rig.end_of(job)
    rig.cluster.node_resume(node)
    assert (ended.state, ended.attempt) == (State.DONE, 2)
    assert ended.scheduler_id != job.scheduler_id


@pytest.mark.thorough
def test_a_job_that_may_not_be_requeued_fails_with_its_node(rig: Rig) -> None:
    job = rig.submit("sleep 300", requeue=False)
    node = rig.until(job, State.RUNNING).status.nodes
    rig.cluster.node_down(node)
    assert rig.end_of(job).state is State.NODE_FAILED
    rig.cluster.node_resume(node)


# The controller


@pytest.mark.thorough
def test_a_job_that_ends_while_the_controller_is_away_is_known_by_its_own_notes(rig: Rig) -> None:
    ends = rig.submit("echo ready; sleep 2; exit 3")
    stays = rig.submit("echo ready; sleep 300")
    for job in (ends, stays):
        until(lambda job=job: rig.jobs.log(job.id) == b"ready\n")
    rig.cluster.stop_controller()
    try:
        assert rig.end_of(ends).status.exit_code == 3
        until(lambda: "controller" in rig.jobs.get(stays.id).trouble)
        assert not rig.jobs.get(stays.id).is_over
    finally:
        rig.cluster.start_controller()
    rig.later_s[0] += 1000  # a queue that was not answered asks less and less
    seen = rig.jobs.get(stays.id)
    assert (seen.state, seen.trouble) == (State.RUNNING, "")
    rig.jobs.cancel([stays.id])
    assert rig.end_of(stays).state is State.CANCELLED


@pytest.mark.thorough
def test_what_is_submitted_while_the_controller_is_away_becomes_one_job_when_it_is_back(rig: Rig) -> None:
    before = rig.listed()
    rig.cluster.stop_controller()
    try:
        with pytest.raises(Transient):
            rig.submit("true", key="once")
    finally:
        rig.cluster.start_controller()
    job = rig.submit("true", key="once")
    assert rig.end_of(job).state is State.DONE
    assert [each.id for each in rig.jobs.ls()] == [job.id]
    assert rig.listed() == before + 1


# Answers that are lost


def test_a_submission_whose_answer_is_lost_is_found_by_its_key(rig: Rig) -> None:
    before = rig.listed()
    rig.line.lost = {"sbatch"}
    job = rig.submit("echo done", array=Array(count=3))
    assert rig.line.programs == ["sbatch", "squeue"]
    assert rig.end_of(job).state is State.DONE
    assert rig.listed() == before + 3


def test_a_submission_that_nobody_could_look_for_is_not_made_twice(rig: Rig) -> None:
    before = rig.listed()
    rig.line.lost = {"sbatch", "squeue"}
    with pytest.raises(FairmileError):
        rig.submit("echo done", key="once")
    rig.line.lost = set()
    job = rig.submit("echo done", key="once")
    assert rig.end_of(job).state is State.DONE
    assert rig.listed() == before + 1


@pytest.mark.thorough
def test_a_task_whose_end_is_known_stays_ended_when_slurm_forgets_it_before_the_others(rig: Rig) -> None:
    job = rig.submit('[ "$FAIRMILE_ARRAY_INDEX" = 1 ] || kill -9 $PPID $$; sleep 300', array=Array(count=2))
    until(lambda: rig.jobs.get(job.id).tasks[0].state is State.FAILED)
    rig.line.hidden = (f"{job.scheduler_id}_0|",)
    for _ in range(3):
        rig.later_s[0] += 60
        tasks = rig.jobs.get(job.id).tasks
    assert (tasks[0].state, tasks[1].state) == (State.FAILED, State.RUNNING)


# With and without accounting


@pytest.mark.thorough
def test_a_job_that_slurm_forgot_is_looked_up_in_the_accounting(accounted: Rig) -> None:
    job = accounted.submit("echo ready; sleep 1.5; kill -9 $PPID $$")
    until(lambda: b"ready" in accounted.jobs.log(job.id))
    accounted.line.forgets = True
    ended = accounted.end_of(job)
    assert ended.state is State.FAILED
    assert ended.status.usage is not None and ended.status.usage.source == "sacct"
    assert "sacct" in accounted.line.programs


def test_a_job_that_nobody_remembers_is_lost_after_a_while(rig: Rig) -> None:
    job = rig.submit("echo ready; sleep 1; kill -9 $PPID $$")
    until(lambda: b"ready" in rig.jobs.log(job.id))
    rig.line.forgets = True
    assert not rig.jobs.get(job.id).is_over
    for _ in range(5):
        rig.later_s[0] += 60
        rig.jobs.get(job.id)
    assert rig.jobs.get(job.id).state is State.LOST
    assert rig.line.count("sacct") == 0


# The time limit, at last


@pytest.mark.thorough
def test_a_signal_comes_before_the_time_limit_and_the_limit_is_told(limited: tuple[Rig, JobStatus]) -> None:
    rig, job = limited
    ended = rig.end_of(job)
    assert ended.state is State.TIMED_OUT
    assert rig.jobs.log(job.id) == b"ready\nsaved\n"
    diagnosis = rig.jobs.explain(job.id)
    assert diagnosis is not None and "time" in diagnosis.what
