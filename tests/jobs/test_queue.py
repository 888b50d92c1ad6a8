"""Jobs carried through on this machine and over ssh: real processes, real files."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import processes_of_session

from fairmile.base.commands import Here, Result
from fairmile.base.errors import Conflict, DiskFailure, NotFound, Transient, UsageError
from fairmile.jobs.folders import LocalJobFolders
from fairmile.jobs.machines import Machine, Machines
from fairmile.jobs.queue import Jobs, JobStatus
from fairmile.jobs.records import Records
from fairmile.jobs.schedulers import Question, shell
from fairmile.jobs.schedulers.shell import Shell
from fairmile.jobs.spec import After, Array, JobSpec, Resources
from fairmile.jobs.states import Observed, State

BOX = "name: box\ntitle: A machine without a scheduler\nscheduler: {dialect: shell}\npartitions: {here: {}}\n"
PATIENCE_S = float(os.environ.get("FAIRMILE_TEST_PATIENCE_S", "120"))


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    made = Jobs(tmp_path / "jobs", Machines([], tmp_path / "jobs"))
    yield made
    live = [job.id for job in made.ls(live=True)]
    if live:
        made.cancel(live)


@pytest.fixture
def over_ssh(tmp_path: Path, sshd: Any) -> Jobs:
    (tmp_path / "box.yaml").write_text(BOX)
    box = {"host": sshd.host, "ssh_config": str(sshd.config), "folder": str(tmp_path / "far")}
    reaches = {"box": {**box, "file": str(tmp_path / "box.yaml")}}
    return Jobs(tmp_path / "jobs", Machines([], tmp_path / "jobs", reaches=reaches))


@pytest.fixture(params=["here", "over ssh"])
def anywhere(request: pytest.FixtureRequest) -> tuple[Jobs, str]:
    if request.param == "here":
        return request.getfixturevalue("jobs"), "laptop"
    return request.getfixturevalue("over_ssh"), "box"


def sh(script: str, **fields: Any) -> JobSpec:
    return JobSpec(argv=("bash", "-c", script), **fields)


def end_of(jobs: Jobs, job: JobStatus) -> JobStatus:
    (ended,) = jobs.wait([job.id], timeout_s=PATIENCE_S)
    assert ended.is_over, ended
    return ended


def until(condition: Any) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def processes_of(job: JobStatus) -> list[int]:
    return processes_of_session(int(job.scheduler_id.partition("-")[0]))


# The same on every machine


def test_a_job_runs_and_its_output_and_exit_code_come_back(anywhere: tuple[Jobs, str]) -> None:
    jobs, system = anywhere
    ended = end_of(jobs, jobs.submit(sh("echo out; echo err >&2; exit 7"), system=system))
    assert (ended.state, ended.status.exit_code) == (State.FAILED, 7)
    assert jobs.log(ended.id) == b"out\n"
    assert jobs.log(ended.id, errors=True) == b"err\n"


def test_words_reach_the_program_as_they_are(anywhere: tuple[Jobs, str]) -> None:
    jobs, system = anywhere
    words = ("two words", "it's", '"quoted"', "$HOME", "`id`", "$(id)", "a\nb", "*", "ü ☃", "", "-n")
    program = "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ['AWKWARD']]))"
    spec = JobSpec(argv=(sys.executable, "-c", program, *words), env={"AWKWARD": "a 'b' $c\n`d`"})
    ended = end_of(jobs, jobs.submit(spec, system=system))
    assert json.loads(jobs.log(ended.id)) == [list(words), "a 'b' $c\n`d`"]


def test_files_go_with_a_job_and_come_back(anywhere: tuple[Jobs, str], tmp_path: Path) -> None:
    jobs, system = anywhere
    (tmp_path / "data.bin").write_bytes(bytes(range(256)))
    spec = sh(
        "cat in/data.bin in/data.bin > twice.bin",
        inputs={"in/data.bin": str(tmp_path / "data.bin")},
        outputs=("twice.bin",),
    )
    ended = end_of(jobs, jobs.submit(spec, system=system))
    assert ended.state is State.DONE
    assert jobs.bring(ended.id, tmp_path / "back") == [tmp_path / "back" / "twice.bin"]
    assert (tmp_path / "back" / "twice.bin").read_bytes() == bytes(range(256)) * 2


def test_the_tasks_of_an_array_end_each_for_itself(anywhere: tuple[Jobs, str]) -> None:
    jobs, system = anywhere
    spec = sh('echo "task $FAIRMILE_ARRAY_INDEX"; [ "$FAIRMILE_ARRAY_INDEX" != 2 ]', array=Array(count=4, at_once=2))
    ended = end_of(jobs, jobs.submit(spec, system=system))
    assert [ended.tasks[index].state for index in range(4)] == [State.DONE, State.DONE, State.FAILED, State.DONE]
    assert ended.state is State.FAILED
    assert "task 2" in ended.status.sentence
    assert jobs.log(ended.id, task=3) == b"task 3\n"


def test_a_cancelled_job_ends_and_says_so(anywhere: tuple[Jobs, str]) -> None:
    jobs, system = anywhere
    job = jobs.submit(sh("echo ready; sleep 1000"), system=system)
    until(lambda: jobs.log(job.id) == b"ready\n")
    jobs.cancel([job.id])
    ended = end_of(jobs, job)
    assert ended.state is State.CANCELLED
    assert jobs.cancel([job.id])[0].state is State.CANCELLED


@pytest.mark.thorough
def test_a_job_whose_script_was_killed_runs_as_long_as_its_program(anywhere: tuple[Jobs, str]) -> None:
    jobs, system = anywhere
    job = jobs.submit(sh("kill -9 $PPID; echo ready; sleep 1000"), system=system)
    until(lambda: jobs.log(job.id) == b"ready\n")
    until(lambda: jobs.get(job.id).state is State.RUNNING)
    until(lambda: "its script was killed" in jobs.get(job.id).status.sentence)
    jobs.cancel([job.id])
    assert end_of(jobs, job).state is State.CANCELLED
    until(lambda: not processes_of(job))


@pytest.mark.thorough
def test_what_does_not_heed_its_end_is_killed(anywhere: tuple[Jobs, str], monkeypatch: pytest.MonkeyPatch) -> None:
    jobs, system = anywhere
    monkeypatch.setattr(shell, "_FOR_GOOD", shell._FOR_GOOD.replace(f"sleep {shell._GRACE_S}", "sleep 0.2"))
    job = jobs.submit(sh("trap '' TERM; sleep 1000 & echo ready; wait"), system=system)
    until(lambda: jobs.log(job.id) == b"ready\n")
    jobs.cancel([job.id])
    assert end_of(jobs, job).state is State.CANCELLED
    until(lambda: not processes_of(job))


def test_a_log_is_followed_to_the_end(anywhere: tuple[Jobs, str]) -> None:
    jobs, system = anywhere
    job = jobs.submit(sh("for i in 1 2 3; do echo line $i; sleep 0.2; done"), system=system)
    assert b"".join(jobs.follow(job.id)) == b"line 1\nline 2\nline 3\n"


def test_whoever_comes_later_finds_a_job_by_its_files_alone(anywhere: tuple[Jobs, str]) -> None:
    jobs, system = anywhere
    job = jobs.submit(sh("sleep 0.3; echo done"), system=system)
    later = Jobs(jobs.root, jobs.machines)
    assert [each.id for each in later.ls()] == [job.id]
    assert end_of(later, job).state is State.DONE
    assert later.get(job.id[-6:]).id == job.id


# Submit and leave


def test_a_job_outlives_the_process_that_submitted_it(jobs: Jobs) -> None:
    program = (
        "import sys; from pathlib import Path; from fairmile.jobs.machines import Machines;"
        "from fairmile.jobs.queue import Jobs; from fairmile.jobs.spec import JobSpec;"
        "root = Path(sys.argv[1]); spec = JobSpec(argv=('sh', '-c', 'sleep 1; echo still here'));"
        "print(Jobs(root, Machines([], root)).submit(spec).id)"
    )
    process = subprocess.run(
        [sys.executable, "-c", program, str(jobs.root)],
        capture_output=True,
        text=True,
        check=True,
        start_new_session=True,
    )
    (ended,) = jobs.wait([process.stdout.strip()], timeout_s=PATIENCE_S)
    assert ended.state is State.DONE
    assert jobs.log(ended.id) == b"still here\n"


def test_the_same_key_never_becomes_two_jobs(jobs: Jobs) -> None:
    first = jobs.submit(sh("true", key="paper/figure 3"))
    assert jobs.submit(sh("true", key="paper/figure 3")).id == first.id
    assert jobs.submit(sh("true", key="paper/figure 4")).id != first.id
    assert len(jobs.ls()) == 2


def at_once(number: int, work: Callable[[], object]) -> None:
    """Do the same in many threads, all of which begin together."""
    gate = threading.Barrier(number)

    def begin() -> None:
        gate.wait()
        work()

    threads = [threading.Thread(target=begin) for _ in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_the_same_key_from_many_at_once_runs_once(jobs: Jobs, tmp_path: Path) -> None:
    found: list[str] = []
    spec = sh(f"echo ran >> {tmp_path}/ran", key="k")
    at_once(6, lambda: found.append(Jobs(jobs.root, jobs.machines).submit(spec).id))
    assert len(set(found)) == 1
    ended = end_of(jobs, jobs.get(found[0]))
    assert ended.attempt == 1
    assert (tmp_path / "ran").read_text() == "ran\n"


@pytest.mark.thorough
def test_a_lost_job_is_tried_again_once_however_many_look(jobs: Jobs, tmp_path: Path) -> None:
    spec = sh(f"echo ran >> {tmp_path}/ran; [ $(wc -l < {tmp_path}/ran) = 1 ] && kill -9 $PPID 0; sleep 1", retries=3)
    job = jobs.submit(spec)
    until(lambda: (tmp_path / "ran").exists() and not Path(f"/proc/{job.scheduler_id.partition('-')[0]}").exists())
    at_once(4, lambda: Jobs(jobs.root, jobs.machines).get(job.id))
    ended = end_of(jobs, job)
    assert (ended.state, ended.attempt) == (State.DONE, 2)
    assert (tmp_path / "ran").read_text() == "ran\nran\n"


@pytest.mark.parametrize("is_left_empty", [False, True])
def test_a_job_whose_submitter_died_before_it_heard_the_answer_is_found_by_its_own_notes(
    jobs: Jobs, tmp_path: Path, is_left_empty: bool
) -> None:
    spec = sh(f"echo ran >> {tmp_path}/ran; sleep 1", key="k")
    job = jobs.submit(spec)
    until(lambda: (tmp_path / "ran").exists())
    (Path(job.folder) / "submitted.json").unlink()
    if is_left_empty:  # by a power cut
        (Path(job.folder) / "submitted.json").touch()
    again = Jobs(jobs.root, jobs.machines).submit(spec)
    assert (again.id, again.scheduler_id) == (job.id, job.scheduler_id)
    assert end_of(jobs, job).state is State.DONE
    assert (tmp_path / "ran").read_text() == "ran\n"


def test_a_job_that_another_one_submits_has_an_id_of_its_own(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRMILE_JOB_ID", "1-1@elsewhere")
    monkeypatch.setenv("FAIRMILE_ARRAY_INDEX", "7")
    ended = end_of(jobs, jobs.submit(sh('echo "$FAIRMILE_JOB_ID ${FAIRMILE_ARRAY_INDEX-none}"')))
    assert jobs.log(ended.id).decode() == f"{ended.scheduler_id} none\n"


def test_a_job_of_this_machine_can_be_interrupted(jobs: Jobs) -> None:
    job = jobs.submit(sh("echo ready; exec sleep 1000"))
    until(lambda: jobs.log(job.id) == b"ready\n")
    os.killpg(int(job.scheduler_id.partition("-")[0]), signal.SIGINT)
    ended = end_of(jobs, job)
    assert (ended.state, ended.status.signal) == (State.FAILED, "INT")


# What goes wrong


@pytest.mark.thorough
def test_a_process_that_is_killed_outright_is_lost_and_tried_again_when_asked(jobs: Jobs, tmp_path: Path) -> None:
    script = f"[ -e {tmp_path}/second ] && exit 0; touch {tmp_path}/second; kill -9 $PPID 0"
    ended = end_of(jobs, jobs.submit(sh(script, retries=1)))
    assert (ended.state, ended.attempt) == (State.DONE, 2)


def test_without_retries_a_lost_job_stays_lost(jobs: Jobs) -> None:
    ended = end_of(jobs, jobs.submit(sh("kill -9 $PPID 0")))
    assert (ended.state, ended.attempt) == (State.LOST, 1)
    diagnosis = jobs.explain(ended.id)
    assert diagnosis is not None and "again" in diagnosis.advice


def test_a_program_that_fails_by_itself_is_never_tried_again(jobs: Jobs) -> None:
    ended = end_of(jobs, jobs.submit(sh("exit 1", retries=3)))
    assert (ended.state, ended.attempt) == (State.FAILED, 1)


def test_a_program_that_does_not_exist_is_explained(jobs: Jobs) -> None:
    ended = end_of(jobs, jobs.submit(JobSpec(argv=("no-such-program",))))
    assert ended.status.exit_code == 127
    diagnosis = jobs.explain(ended.id)
    assert diagnosis is not None and "missing" in diagnosis.what


def test_an_input_that_is_not_there_is_said_before_anything_is_made(jobs: Jobs) -> None:
    with pytest.raises(UsageError, match=r"inputs\.x"):
        jobs.submit(sh("true", inputs={"x": "/nowhere/x"}))
    assert jobs.ls() == []


def test_a_running_job_is_not_removed(jobs: Jobs) -> None:
    job = jobs.submit(sh("sleep 1000"))
    with pytest.raises(Conflict, match=job.id):
        jobs.rm([job.id])
    jobs.cancel([job.id])
    end_of(jobs, job)
    assert jobs.rm([job.id]) == [job.id]
    with pytest.raises(NotFound, match=job.id):
        jobs.get(job.id)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"standing": 1}'])
def test_a_damaged_status_is_found_out_again(jobs: Jobs, text: str) -> None:
    ended = end_of(jobs, jobs.submit(sh("true")))
    (Path(ended.folder) / "standing.json").write_text(text)
    assert jobs.get(ended.id).state is State.DONE


def test_the_status_on_disk_keeps_the_names_of_the_first_version(jobs: Jobs) -> None:
    ended = end_of(jobs, jobs.submit(sh("exit 7")))
    file = Path(ended.folder) / "standing.json"
    document = json.loads(file.read_text())
    assert document["standing"]["exit_code"] == 7
    document["standing"]["sentence"] = "as it was kept"
    file.write_text(json.dumps(document))
    assert jobs.get(ended.id).status.sentence == "as it was kept"
    with pytest.deprecated_call():
        assert ended.standing == ended.status


def test_a_damaged_record_hides_no_other_job_and_can_be_removed(jobs: Jobs) -> None:
    bad, good = jobs.submit(sh("true")), end_of(jobs, jobs.submit(sh("true")))
    (Path(bad.folder) / "job.json").write_text("{")
    seen = {job.id: job for job in jobs.ls()}
    assert seen[good.id].state is State.DONE
    assert "job.json" in seen[bad.id].trouble
    jobs.rm([bad.id])
    assert [job.id for job in jobs.ls()] == [good.id]


def test_a_job_without_a_name_is_no_job(jobs: Jobs) -> None:
    jobs.submit(sh("true"))
    with pytest.raises(UsageError, match="empty"):
        jobs.cancel([""])


def test_a_program_may_end_with_any_code_without_being_taken_for_another_fault(jobs: Jobs) -> None:
    assert "module" not in end_of(jobs, jobs.submit(sh("exit 78"))).status.sentence


def test_a_folder_that_is_not_there_is_named_as_the_cause(jobs: Jobs, tmp_path: Path) -> None:
    ended = end_of(jobs, jobs.submit(sh("true", folder=str(tmp_path / "none"))))
    assert "folder" in ended.status.sentence


def test_what_cannot_be_kept_is_told_all_the_same(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    job = jobs.submit(sh("true"))

    def full(*_: object, **__: object) -> None:
        raise DiskFailure("the disk is full")

    monkeypatch.setattr(Records, "remember", full)
    ended = end_of(jobs, job)
    assert (ended.state, ended.trouble) == (State.DONE, "the disk is full")


# One after the other


@pytest.mark.parametrize(
    ("first", "condition", "state"),
    [
        ("sleep 0.3; exit 0", "ok", State.DONE),
        ("sleep 0.3; exit 1", "ok", State.CANCELLED),
        ("sleep 0.3; exit 1", "failed", State.DONE),
        ("sleep 0.3; exit 0", "failed", State.CANCELLED),
        ("sleep 0.3; exit 1", "any", State.DONE),
        ("sleep 0.3; kill -9 $PPID 0", "any", State.DONE),
        ("sleep 0.3; kill -9 $PPID 0", "ok", State.CANCELLED),
    ],
)
def test_a_job_waits_for_another_and_for_how_it_ended(jobs: Jobs, first: str, condition: Any, state: State) -> None:
    other = jobs.submit(sh(first))
    job = jobs.submit(sh("true", after=(After(job=other.id, condition=condition),)))
    assert end_of(jobs, job).state is state


def is_pausing(job: JobStatus) -> bool:
    """Tell whether the script of a job pauses before it looks at another one again."""
    names = set()
    for pid in processes_of(job):
        with contextlib.suppress(OSError):
            names.add(Path(f"/proc/{pid}/comm").read_text().strip())
    return "sleep" in names


def at_gate(gate: Path, script: str) -> str:
    """Return a script that begins only when a file is there."""
    return f"while [ ! -e {gate} ]; do sleep 0.05; done; {script}"


@pytest.mark.thorough
def test_a_job_waits_for_every_task_of_an_array(jobs: Jobs, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    other = jobs.submit(sh(at_gate(gate, '[ "$FAIRMILE_ARRAY_INDEX" != 1 ]'), array=Array(count=3)))
    job = jobs.submit(sh("true", after=(After(job=other.id),)))
    gate.touch()
    assert end_of(jobs, job).state is State.CANCELLED


@pytest.mark.thorough
def test_an_array_that_lost_tasks_did_not_succeed(jobs: Jobs, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    lose = at_gate(gate, '[ "$FAIRMILE_ARRAY_INDEX" = 1 ] && kill -9 $PPID 0; true')
    other = jobs.submit(sh(lose, array=Array(count=3, at_once=1)))
    job = jobs.submit(sh("true", after=(After(job=other.id),)))
    gate.touch()
    assert end_of(jobs, job).state is State.CANCELLED


@pytest.mark.thorough
def test_a_job_waits_for_what_a_killed_script_left_running(jobs: Jobs, tmp_path: Path) -> None:
    gate, over = tmp_path / "gate", tmp_path / "over"
    other = jobs.submit(sh("kill -9 $PPID; echo ready; " + at_gate(gate, f"touch {over}")))
    until(lambda: jobs.log(other.id) == b"ready\n")
    job = jobs.submit(sh(f"[ -e {over} ]", after=(After(job=other.id, condition="any"),)))
    until(lambda: is_pausing(job) or jobs.get(job.id).is_over)
    gate.touch()
    assert end_of(jobs, job).state is State.DONE


@pytest.mark.thorough
@pytest.mark.parametrize("array", [None, Array(count=3)])
def test_a_job_of_another_host_is_waited_for_by_its_notes_alone(
    jobs: Jobs, tmp_path: Path, array: Array | None
) -> None:
    gate = tmp_path / "gate"
    other = jobs.submit(sh(at_gate(gate, "true"), array=array))
    submitted = Path(other.folder) / "submitted.json"
    submitted.write_text(submitted.read_text().replace(other.scheduler_id, "1-1@elsewhere"))
    job = jobs.submit(sh(f"[ -e {gate} ]", after=(After(job=other.id),)))
    until(lambda: is_pausing(job) or jobs.get(job.id).is_over)
    gate.touch()
    assert end_of(jobs, job).state is State.DONE


@pytest.mark.thorough
@pytest.mark.parametrize(("last", "state"), [("true", State.DONE), ("false", State.CANCELLED)])
def test_a_job_waits_for_all_commands_that_another_one_packs(
    jobs: Jobs, tmp_path: Path, last: str, state: State
) -> None:
    gate = tmp_path / "gate"
    other = jobs.pack([("bash", "-c", at_gate(gate, each)) for each in ("true", last)], sh("true"))
    job = jobs.submit(sh(f"[ -e {gate} ]", after=(After(job=other.id),)))
    gate.touch()
    assert end_of(jobs, job).state is state


def test_what_can_no_longer_come_true_is_refused(jobs: Jobs) -> None:
    other = end_of(jobs, jobs.submit(sh("exit 1")))
    with pytest.raises(UsageError, match=other.id):
        jobs.submit(sh("true", after=(After(job=other.id),)))
    assert end_of(jobs, jobs.submit(sh("true", after=(After(job=other.id, condition="any"),)))).state is State.DONE


# ssh


def cut_connections(config: Path) -> None:
    """Kill every ssh of ours that was started with some settings."""
    found = subprocess.run(["pgrep", "-f", f"^ssh .*{config}"], capture_output=True, text=True, check=False)
    for pid in found.stdout.split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)


@pytest.mark.thorough
def test_a_connection_that_breaks_in_the_middle_costs_nothing(over_ssh: Jobs, sshd: Any) -> None:
    job = over_ssh.submit(sh("for i in 1 2 3; do echo $i; sleep 0.5; done; echo done"), system="box")
    output = b""
    for piece in over_ssh.follow(job.id):
        output += piece
        cut_connections(sshd.config)
    assert output == b"1\n2\n3\ndone\n"
    assert end_of(over_ssh, job).state is State.DONE


def test_a_machine_that_cannot_be_reached_leaves_the_last_known_status(over_ssh: Jobs, tmp_path: Path) -> None:
    job = over_ssh.submit(sh("sleep 0.2"), system="box")
    nowhere = {"host": "127.0.0.1", "folder": str(tmp_path / "far"), "file": str(tmp_path / "box.yaml")}
    (tmp_path / "ssh_config").write_text("Host *\n  Port 1\n")
    unreachable = Machines([], over_ssh.root, reaches={"box": {**nowhere, "ssh_config": str(tmp_path / "ssh_config")}})
    seen = Jobs(over_ssh.root, unreachable).get(job.id)
    assert not seen.is_over
    assert "127.0.0.1" in seen.trouble
    assert end_of(over_ssh, job).state is State.DONE


def test_last_is_the_job_that_was_submitted_last(jobs: Jobs) -> None:
    with pytest.raises(NotFound, match="no jobs yet"):
        jobs.get("last")
    for name in ("b", "a"):
        last = jobs.submit(sh("true", name=name))
    assert jobs.get("last").id == last.id


# How politely a batch system is asked


class Batch(Shell):
    """A batch system that lists what it is told to list."""

    name = "batch"

    def __init__(self) -> None:
        self.listed: dict[str, Observed] = {}
        self.fails = False

    def status(self, ids: Any) -> Question[dict[str, Observed]]:
        def read(result: Result) -> dict[str, Observed]:
            if self.fails:
                raise Transient("the controller does not answer")
            return self.listed

        return Question(("true", "status"), read)


class Counted(Here):
    def __init__(self) -> None:
        super().__init__()
        self.status_calls = 0

    def run(self, argv: Any, **options: Any) -> Result:
        self.status_calls += argv[:2] == ("true", "status")
        return super().run(argv, **options)


@pytest.fixture
def batch(tmp_path: Path) -> tuple[Jobs, Batch, Counted, list[float]]:
    machines = Machines([], tmp_path / "jobs")
    scheduler, runner, now = Batch(), Counted(), [1000.0]
    laptop = machines["laptop"]
    machines._known["laptop"] = Machine(laptop.system, scheduler, runner, LocalJobFolders(tmp_path / "jobs"))
    return Jobs(tmp_path / "jobs", machines, clock=lambda: now[0]), scheduler, runner, now


def test_a_batch_system_is_asked_twice_a_minute_however_many_jobs_and_however_many_ask(
    batch: tuple[Jobs, Batch, Counted, list[float]],
) -> None:
    jobs, scheduler, runner, now = batch
    for _ in range(5):
        job = jobs.submit(sh("sleep 1000"))
        scheduler.listed[job.scheduler_id] = Observed(State.RUNNING)
    for _ in range(60):
        now[0] += 1
        jobs.ls()
        Jobs(jobs.root, jobs.machines, clock=lambda: now[0]).ls()
    assert runner.status_calls == 2
    jobs.cancel([job.id for job in jobs.ls()])


def test_a_job_that_ends_while_the_batch_system_is_asked_has_the_time_of_its_end(
    batch: tuple[Jobs, Batch, Counted, list[float]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs, scheduler, _, _ = batch
    job = jobs.submit(sh(f"until [ -e {tmp_path}/go ]; do sleep 0.05; done"))

    def ends_meanwhile(ids: Any) -> Question[dict[str, Observed]]:
        (tmp_path / "go").touch()
        until((Path(job.folder) / "ended").exists)
        return Question(("true",), lambda _: {job.scheduler_id: Observed(State.DONE)})

    monkeypatch.setattr(scheduler, "status", ends_meanwhile)
    status = jobs.get(job.id).status
    assert status.state is State.DONE
    assert status.started is not None and status.ended is not None


def test_a_batch_system_that_does_not_answer_is_asked_less_and_less(
    batch: tuple[Jobs, Batch, Counted, list[float]],
) -> None:
    jobs, scheduler, runner, now = batch
    scheduler.fails = True
    job = jobs.submit(sh("sleep 1000"))
    for _ in range(600):
        now[0] += 1
        seen = jobs.get(job.id)
    assert runner.status_calls <= 5
    assert "does not answer" in seen.trouble
    scheduler.fails, scheduler.listed = False, {job.scheduler_id: Observed(State.HELD, sentence="held by you")}
    now[0] += 1000
    seen = jobs.get(job.id)
    assert (seen.state, seen.trouble) == (State.HELD, "")
    jobs.cancel([job.id])


def test_a_process_is_ended_at_its_time_limit_and_told_why(jobs: Jobs) -> None:
    spec = sh("trap 'echo saved; exit 3' TERM; echo ready; sleep 1000 & wait", resources=Resources(time_s=2))
    ended = end_of(jobs, jobs.submit(spec))
    assert ended.state is State.TIMED_OUT
    assert jobs.log(ended.id) == b"ready\nsaved\n"


def test_a_limit_that_is_not_reached_leaves_nothing_behind(jobs: Jobs) -> None:
    ended = end_of(jobs, jobs.submit(sh("true", resources=Resources(time_s=1000))))
    assert ended.state is State.DONE
    until(lambda: not processes_of(ended))


@pytest.mark.thorough
def test_what_does_not_end_at_its_time_limit_is_killed_with_its_children(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell, "_GRACE_S", 0.2)
    spec = sh("trap '' TERM; sleep 1000 & sleep 1000", resources=Resources(time_s=1))
    ended = end_of(jobs, jobs.submit(spec))
    assert ended.state is State.TIMED_OUT
    until(lambda: not processes_of(ended))


def test_a_job_that_cannot_be_handed_over_leaves_nothing(over_ssh: Jobs, tmp_path: Path) -> None:
    (tmp_path / "ssh_config").write_text("Host *\n  Port 1\n")
    box = {"host": "127.0.0.1", "ssh_config": str(tmp_path / "ssh_config"), "file": str(tmp_path / "box.yaml")}
    unreachable = Jobs(over_ssh.root, Machines([], over_ssh.root, reaches={"box": box}))
    with pytest.raises(Transient, match=r"127\.0\.0\.1"):
        unreachable.submit(sh("true", key="k"), system="box")
    assert unreachable.ls() == []
