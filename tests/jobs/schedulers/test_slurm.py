"""Slurm's dialect: what it asks, and how it reads what Slurm 22.05 answered."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
from slurm_cluster import SlurmCluster

from fairmile.base.commands import Here, MissingProgram, Result
from fairmile.base.errors import SystemFailure, Transient, Unsupported, UsageError
from fairmile.jobs.request import JobFiles
from fairmile.jobs.schedulers import SCHEDULERS, Question, Scheduler
from fairmile.jobs.schedulers.slurm import Slurm
from fairmile.jobs.states import Observed, State, Usage
from fairmile.testing.schedulers import (
    WAIT_AT_GATE,
    Answer,
    Cluster,
    Listing,
    LiveSchedulerTests,
    SchedulerTests,
    Subject,
)

T = TypeVar("T")
slurm = Slurm()
FILES = JobFiles(folder="/w", work="/w", key="fairmile-1a2b")


def result(stdout: str = "", stderr: str = "", exit_code: int = 0) -> Result:
    return Result(("program",), exit_code, stdout, stderr, 0.0)


def status(text: str, *ids: str) -> dict[str, Observed]:
    return slurm.status(ids or ("7",)).read(result(text))


def history(text: str, *ids: str) -> dict[str, Observed]:
    question = slurm.history(ids or ("7",))
    assert question is not None
    return question.read(result(text))


def test_it_is_the_scheduler_that_the_registry_gives() -> None:
    made: Scheduler = SCHEDULERS["slurm"]()
    assert made.name == "slurm"


class TestDialect(SchedulerTests):
    @pytest.fixture
    def subject(self) -> Subject:
        return Subject(
            slurm,
            prefix="#SBATCH ",
            submits=[
                (Answer("4711\n"), "4711"),
                (Answer("4711;juwels\n"), "4711"),
                (Answer("A remark of the site\n4711\n"), "4711"),
            ],
            refusals=[
                Answer("", "sbatch: error: Batch job submission failed: Invalid partition name specified\n", 1),
                Answer("", "sbatch: unrecognized option '--bogus'\nTry \"sbatch --help\" for more information\n", 255),
                Answer("", "sbatch: error: Invalid --time specification\n", 255),
            ],
            outages=[
                Answer("", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n", 1),
                Answer("", "slurm_load_jobs error: Socket timed out on send/recv operation\n", 1),
                Answer("", "scancel: error: Kill job error on job id 1: Resource temporarily unavailable\n", 8),
                Answer("", 'squeue: error: Munge encode failed: Failed to access "/run/munge/munge.socket.2"\n', 1),
            ],
            listing=lambda word: Answer(f"7|{word}|0|0|n1|None|\n"),
            listed="7",
            states={
                "BOOT_FAIL": State.NODE_FAILED,
                "CANCELLED": State.CANCELLED,
                "COMPLETED": State.DONE,
                "COMPLETING": State.ENDING,
                "CONFIGURING": State.QUEUED,
                "DEADLINE": State.TIMED_OUT,
                "FAILED": State.FAILED,
                "NODE_FAIL": State.NODE_FAILED,
                "OUT_OF_MEMORY": State.OUT_OF_MEMORY,
                "PENDING": State.QUEUED,
                "PREEMPTED": State.PREEMPTED,
                "REQUEUED": State.QUEUED,
                "REQUEUE_FED": State.QUEUED,
                "REQUEUE_HOLD": State.HELD,
                "RESIZING": State.RUNNING,
                "RESV_DEL_HOLD": State.HELD,
                "REVOKED": State.UNKNOWN,
                "RUNNING": State.RUNNING,
                "SIGNALING": State.RUNNING,
                "SPECIAL_EXIT": State.HELD,
                "STAGE_OUT": State.ENDING,
                "STOPPED": State.RUNNING,
                "SUSPENDED": State.RUNNING,
                "TIMEOUT": State.TIMED_OUT,
            },
            listings=[
                Listing(
                    Answer(
                        "3|RUNNING|0|1|n[1-2]|None|\n"
                        "4|FAILED|9|0|n2|JobLaunchFailure|\n"
                        "5|COMPLETED|0|0|n1|None|\n"
                        "6|FAILED|1792|0|n1|NonZeroExitCode|\n"
                        "7|PENDING|0|0||ReqNodeNotAvail, UnavailableNodes:n2|\n"
                        "8|CANCELLED|0|0||DependencyNeverSatisfied|\n"
                        "9|PENDING|0|0||JobHeldUser|\n"
                    ),
                    ["3", "4", "5", "6", "7", "8", "9", "10"],
                    {
                        "3": Observed(State.RUNNING, "RUNNING", nodes="n[1-2]", restarts=1),
                        "4": Observed(State.FAILED, "FAILED", "JobLaunchFailure", signal=9, nodes="n2"),
                        "5": Observed(State.DONE, "COMPLETED", exit_code=0, nodes="n1"),
                        "6": Observed(State.FAILED, "FAILED", "NonZeroExitCode", exit_code=7, nodes="n1"),
                        "7": Observed(State.QUEUED, "PENDING", "ReqNodeNotAvail, UnavailableNodes:n2"),
                        "8": Observed(State.CANCELLED, "CANCELLED", "DependencyNeverSatisfied"),
                        "9": Observed(State.HELD, "PENDING", "JobHeldUser"),
                    },
                )
            ],
            arrays=[
                Listing(
                    Answer(
                        "2_0|COMPLETED|0|0|n1|None|\n2_2|PENDING|0|0||Resources|\n2_1|FAILED|256|0|n1|NonZeroExitCode|\n"
                    ),
                    ["2"],
                    {
                        "2_0": Observed(State.DONE, exit_code=0),
                        "2_1": Observed(State.FAILED, exit_code=1),
                        "2_2": Observed(State.QUEUED, reason="Resources"),
                    },
                )
            ],
            absent=Listing(Answer("", "slurm_load_jobs error: Invalid job id specified\n", 1), ["99999"], {}),
            histories=[
                Listing(
                    Answer(
                        "7|NODE_FAIL|0:0|1|00:00:00||0|n3|None\n7.batch|CANCELLED||1|00:00:00||0|n3|\n"
                        "8|NODE_FAIL|0:0|1|00:00:00||0|n3|None\n"
                        "7|COMPLETED|0:0|3|00:00.002|||n3|BeginTime\n"
                        "7.batch|COMPLETED|0:0|3|00:00.002|2588672|0|n3|\n"
                    ),
                    ["7", "8"],
                    {
                        "7": Observed(
                            State.DONE,
                            exit_code=0,
                            restarts=1,
                            usage=Usage("sacct", elapsed_s=3.0, cpu_s=0.002, max_rss_bytes=2588672),
                        ),
                        "8": Observed(State.NODE_FAILED),
                    },
                )
            ],
            search=("fairmile:a-1:0", Answer("11|(null)\n12|fairmile:a-1:0\n12|fairmile:a-1:0\n"), "12"),
            cancels=[
                Answer(),
                Answer("", "scancel: error: Kill job error on job id 7: Invalid job id specified\n", 1),
                Answer("", "scancel: error: Kill job error on job id 7: Job/step already completing or completed\n", 1),
            ],
        )


class TestSubmission:
    def test_passes_the_key_on_the_command_line_where_no_option_of_the_header_can_replace_it(self) -> None:
        argv = slurm.submit("/w/job.sh", FILES).argv
        assert argv == ("sbatch", "--parsable", "--comment=fairmile-1a2b", "/w/job.sh")

    def test_without_a_key_has_no_comment(self) -> None:
        assert slurm.submit("/w/job.sh", JobFiles("/w", "/w")).argv == ("sbatch", "--parsable", "/w/job.sh")

    def test_without_an_id_in_the_answer_is_a_failure_that_shows_it(self) -> None:
        with pytest.raises(SystemFailure, match="returned no job id: 'welcome'"):
            slurm.submit("/w/job.sh", FILES).read(result("welcome\n"))

    @pytest.mark.parametrize(
        "complaint, hint",
        [
            ("Invalid account or account/partition combination specified", "give an account"),
            ("Invalid partition name specified", "sinfo -s"),
            ("Invalid qos specification", "give a QOS"),
            ("Requested node configuration is not available", "no node of the partition has"),
            ("Requested time limit is invalid (missing or exceeds some limit)", "within the partition's limit"),
            ("More processors requested than permitted", "fewer nodes or tasks"),
            ("Node count specification invalid", "as many nodes as the partition gives"),
            ("Invalid feature specification", "no node has the constraint"),
            ("Requested reservation is invalid", "scontrol show reservation"),
            ("Invalid job array specification", "split it"),
            ("Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)", "fewer nodes"),
        ],
    )
    def test_that_is_refused_says_what_to_change(self, complaint: str, hint: str) -> None:
        reply = result("", f"sbatch: error: Batch job submission failed: {complaint}\n", 1)
        with pytest.raises(UsageError) as caught:
            slurm.submit("/w/job.sh", FILES).read(reply)
        assert complaint in caught.value.message and "sbatch: error" not in caught.value.message
        assert hint in (caught.value.hint or "")

    def test_beyond_the_number_of_jobs_one_may_submit_waits_for_room(self) -> None:
        complaint = (
            "sbatch: error: QOSMaxSubmitJobPerUserLimit\nsbatch: error: Batch job submission failed: Job violates "
        )
        with pytest.raises(Transient):
            slurm.submit("/w/job.sh", FILES).read(result("", complaint + "accounting/QOS policy", 1))

    def test_where_no_slurm_is_set_up_asked_nobody(self) -> None:
        complaint = "sbatch: fatal: Could not establish a configuration source\n"
        with pytest.raises(MissingProgram, match="sbatch has no Slurm configuration"):
            slurm.submit("/w/job.sh", FILES).read(result("", complaint, 1))

    def test_failing_in_words_that_are_not_known_is_a_failure_of_the_system_with_those_words(self) -> None:
        with pytest.raises(SystemFailure, match="sbatch failed: the moon is full"):
            slurm.submit("/w/job.sh", FILES).read(result("", "sbatch: error: the moon is full\n", 1))

    def test_failing_without_a_word_says_so(self) -> None:
        with pytest.raises(SystemFailure, match="exit code 9 without a message"):
            slurm.submit("/w/job.sh", FILES).read(result("", "", 9))


class TestFinding:
    def test_reads_comments_with_bars_in_them(self) -> None:
        listing = "13|fairmile-1a2b|not\n14|a|b\nnoise\n"
        assert slurm.find("a|b").read(result(listing)) == "14"
        assert slurm.find("fairmile-1a2b").read(result(listing)) is None


class TestStatus:
    def test_asks_once_for_many_jobs_and_names_an_array_once(self) -> None:
        argv = slurm.status(["7_0", "7_1", "9"]).argv
        assert argv[:5] == ("squeue", "-h", "-r", "-t", "all")
        assert argv[argv.index("-j") + 1] == "7,9"

    def test_asks_for_all_jobs_of_the_user_where_the_list_would_be_too_long_for_a_command(self) -> None:
        argv = slurm.status([str(number) for number in range(10_000_000, 10_010_000)]).argv
        assert "--me" in argv and "-j" not in argv and sum(map(len, argv)) < 1000

    def test_leaves_out_jobs_that_were_not_asked_for(self) -> None:
        text = "7_0|RUNNING|0|0|n1|None|\n7_1|RUNNING|0|0|n1|None|\n8|RUNNING|0|0|n1|None|\n"
        assert set(status(text, "7_1")) == {"7_1"}
        assert set(status(text, "7")) == {"7_0", "7_1"}

    def test_the_first_part_of_a_heterogeneous_job_stands_for_it_and_lines_it_cannot_read_are_left_out(self) -> None:
        text = "7+0|RUNNING|0|0|n1|None|\n7+1|PENDING|0|0||None|\n\nslurm is in maintenance\n7|RUN\n"
        assert {job: seen.nodes for job, seen in status(text).items()} == {"7": "n1"}

    @pytest.mark.parametrize(
        "reason, words",
        [
            ("Priority", "Other jobs have higher priority"),
            ("Resources", "waits for enough free nodes"),
            ("Dependency", "waits for another job"),
            ("DependencyNeverSatisfied", "will never start. Cancel it"),
            ("QOSMaxJobsPerUserLimit", "A limit of its QOS (QOSMaxJobsPerUserLimit) is reached"),
            ("QOSMaxWallDurationPerJobLimit", "more than its QOS allows for one job"),
            ("QOSGrpGRES", "It starts when other jobs have ended"),
            ("MaxCpuPerAccount", "A limit of its QOS"),
            ("AssocGrpCPUMinutesLimit", "The computing time of your account (AssocGrpCPUMinutesLimit) is not enough"),
            ("AssocGrpCPURunMinutesLimit", "It starts when other jobs have ended"),
            ("AssocMaxJobsLimit", "A limit of your account (AssocMaxJobsLimit) is reached"),
            ("ReqNodeNotAvail, Reserved for maintenance", "often for maintenance"),
            ("ReqNodeNotAvail, UnavailableNodes:n2", "Slurm says: ReqNodeNotAvail, UnavailableNodes:n2"),
            (
                "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions",
                "down, drained or kept",
            ),
            ("PartitionTimeLimit", "more time than its partition allows"),
            ("PartitionNodeLimit", "Request fewer"),
            ("BeginTime", "starts by itself"),
            ("JobArrayTaskLimit", "limit of concurrent tasks"),
            ("Licenses", "licence"),
            ("SomethingNew", "Reason given by Slurm: SomethingNew."),
        ],
    )
    def test_says_why_a_job_waits(self, reason: str, words: str) -> None:
        seen = status(f"7|PENDING|0|0||{reason}|\n")["7"]
        assert seen.state is State.QUEUED
        assert words in seen.sentence

    @pytest.mark.parametrize(
        "reason",
        ["JobHeldUser", "JobHeldAdmin", "launch failed requeued held", "(launch failed requeued held)"],
    )
    def test_tells_held_from_queued(self, reason: str) -> None:
        seen = status(f"7|PENDING|0|0||{reason}|\n")["7"]
        assert seen.state is State.HELD and "elease" in seen.sentence

    def test_of_a_cancelled_job_has_no_reason_that_it_waited_for(self) -> None:
        assert status("7|CANCELLED|0|0||Resources|\n")["7"].reason == ""

    def test_of_a_job_cancelled_for_its_dependency_says_so(self) -> None:
        seen = status("7|CANCELLED|0|0||DependencyNeverSatisfied|\n")["7"]
        assert seen.state is State.CANCELLED
        assert seen.sentence == "The job it depends on did not end as required, so Slurm cancelled it."

    def test_counts_an_exit_code_of_0_only_where_the_job_ended_well(self) -> None:
        assert status("7|CANCELLED|0|0|n1|None|\n")["7"].exit_code is None
        assert status("7|RUNNING|0|0|n1|None|\n")["7"].exit_code is None

    def test_reads_exit_codes_in_both_notations(self) -> None:
        assert status("7|FAILED|1792|0|n1|None|\n")["7"].exit_code == 7
        assert status("7|FAILED|7:0|0|n1|None|\n")["7"].exit_code == 7


class TestHistory:
    def test_joins_a_job_with_its_steps(self) -> None:
        text = (
            "7|COMPLETED|0:0|3|00:01.500||86000|n3|None\n"
            "7.batch|COMPLETED|0:0|3|00:00.500|2588672|0|n3|\n"
            "7.0|COMPLETED|0:0|3|00:01.000|9588672|0|n3|\n"
        )
        seen = history(text)["7"]
        assert (seen.state, seen.exit_code, seen.nodes) == (State.DONE, 0, "n3")
        assert seen.usage is not None
        assert (seen.usage.source, seen.usage.elapsed_s, seen.usage.cpu_s) == ("sacct", 3.0, 1.5)
        assert (seen.usage.max_rss_bytes, seen.usage.energy_j) == (9588672, 86000.0)

    def test_does_not_take_0_joules_for_a_measurement(self) -> None:
        seen = history("7|COMPLETED|0:0|3|1-02:03:04||0|n3|None\n")["7"]
        assert seen.usage is not None
        assert seen.usage.energy_j is None and seen.usage.max_rss_bytes is None
        assert seen.usage.cpu_s == 93784.0

    def test_does_not_take_slurms_mark_for_no_value_for_one(self) -> None:
        seen = history("7|COMPLETED|0:0|3|??||18446744073709551614|n3|None\n")["7"]
        assert seen.usage is not None and seen.usage.energy_j is None and seen.usage.cpu_s is None

    def test_reads_who_cancelled_as_cancelled(self) -> None:
        seen = history("7|CANCELLED by 1000|0:0|0|00:00:00||0|None assigned|JobHeldUser\n")["7"]
        assert (seen.state, seen.native, seen.nodes, seen.reason) == (State.CANCELLED, "CANCELLED", "", "")

    def test_spreads_a_row_over_the_tasks_that_it_is_about(self) -> None:
        seen = history("7_[4-6,8%2]|CANCELLED by 0|0:0|0|00:00:00||0|None assigned|None\n")
        assert set(seen) == {"7_4", "7_5", "7_6", "7_8"}

    def test_reads_what_is_left_of_a_list_that_was_cut_off(self) -> None:
        assert set(history("7_[1,3,50-5...]|PENDING|0:0|0|00:00:00||0|None assigned|None\n")) == {"7_1", "7_3"}

    def test_is_not_asked_for_again_where_there_is_no_accounting(self) -> None:
        question = slurm.history(["7"])
        assert question is not None
        with pytest.raises(Unsupported, match="no accounting"):
            question.read(result("", "Slurm accounting storage is disabled\n", 1))

    def test_may_be_asked_again_while_the_database_is_away(self) -> None:
        question = slurm.history(["7"])
        assert question is not None
        with pytest.raises(Transient):
            question.read(result("", "sacct: error: Problem talking to the database: Connection refused\n", 1))


class TestCancelling:
    def test_names_the_tasks_of_an_array_in_one_word(self) -> None:
        assert slurm.cancel(["7_3", "7_0", "7_1", "7_2", "7_8", "9"]).argv == ("scancel", "7_[0-3,8]", "9")

    def test_of_an_array_includes_its_tasks(self) -> None:
        assert slurm.cancel(["7_3", "7", "7_4"]).argv == ("scancel", "7")

    def test_a_job_of_somebody_else_is_refused(self) -> None:
        with pytest.raises(UsageError, match="permission denied"):
            slurm.cancel(["1"]).read(
                result("", "scancel: error: Kill job error on job id 1: Access/permission denied\n", 1)
            )

    def test_what_is_no_id_never_reaches_a_command(self) -> None:
        for wrong in ("-u root", "7;reboot", "7_", "all", ""):
            with pytest.raises(UsageError, match="not an id of a Slurm job"):
                slurm.cancel([wrong])


class At(Here):
    """Run commands so that they talk to a cluster."""

    def __init__(self, cluster: SlurmCluster) -> None:
        super().__init__()
        self.cluster = cluster

    def run(self, argv: Sequence[str], **options: Any) -> Result:
        return super().run(argv, env=self.cluster.environ, **options)


class Live:
    """A cluster and the questions asked of it."""

    def __init__(self, cluster: SlurmCluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self.runner = At(cluster)

    def ask(self, question: Question[T]) -> T:
        return question.read(self.runner.run(question.argv, input=question.input, check=False, timeout_s=60))

    def submit(self, *lines: str, key: str = "") -> str:
        header = [line for line in lines if line.startswith("#SBATCH")]
        body = [line for line in lines if not line.startswith("#SBATCH")]
        script = self.folder / f"job{len(list(self.folder.iterdir()))}.sh"
        logs = f"#SBATCH --output={script}.%a.log"
        script.write_text("\n".join(["#!/bin/bash", logs, *header, *body]) + "\n")
        return self.ask(slurm.submit(str(script), JobFiles(str(self.folder), str(self.folder), key=key)))

    def wait(
        self, *ids: str, until: Callable[[Observed], bool] = lambda seen: seen.state.is_end
    ) -> dict[str, Observed]:
        """Return the first answer in which `until` holds for every job."""
        deadline = time.monotonic() + 150
        while True:
            seen = self.ask(slurm.status(ids))
            if seen and all(map(until, seen.values())):
                return seen
            if time.monotonic() > deadline:
                pytest.fail(f"waited in vain: {seen}\n{self.cluster.logs()}")
            time.sleep(0.2)


@pytest.fixture(scope="module")
def limited(slurm_cluster: SlurmCluster, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a job with Slurm's shortest limit, a minute; it runs beside all tests, on a node that they leave alone."""
    early = Live(slurm_cluster, tmp_path_factory.mktemp("limited"))
    return early.submit("#SBATCH --time=1", "#SBATCH --partition=gpu", "sleep 300")


@pytest.fixture
def live(slurm_cluster: SlurmCluster, limited: str, tmp_path: Path) -> Live:
    return Live(slurm_cluster, tmp_path)


@pytest.fixture
def accounted(slurm_with_accounting: SlurmCluster, tmp_path: Path) -> Live:
    return Live(slurm_with_accounting, tmp_path)


class TestLive(LiveSchedulerTests):
    @pytest.fixture
    def cluster(self, live: Live) -> Cluster:
        return Cluster(slurm, live.runner, live.folder, unknown_id="999999")

    def test_one_task_of_an_array_is_cancelled_alone(self, cluster: Cluster) -> None:
        id = cluster.submit(WAIT_AT_GATE, array={"count": 2})
        # Slurm lists no task that was cancelled before it started.
        cluster.wait(lambda seen: [each.state for each in seen.values()] == [State.RUNNING] * 2, id)
        cluster.ask(slurm.cancel([f"{id}_1"]))
        cluster.wait(lambda seen: seen[f"{id}_1"].state is State.CANCELLED, id)
        cluster.open_gate()
        cluster.wait(lambda seen: seen[f"{id}_0"].state is State.DONE, id)


class TestAgainstARealSlurm:
    def test_a_job_is_found_by_its_key(self, live: Live) -> None:
        job = live.submit("#SBATCH --array=0-2", "#SBATCH --comment=other", "true", key="fairmile-77")
        assert live.ask(slurm.find("fairmile-77")) == job
        assert live.ask(slurm.find("fairmile-7")) is None
        live.wait(job)
        assert live.ask(slurm.find("fairmile-77")) == job

    def test_the_variables_of_a_script_are_what_was_promised(self, live: Live) -> None:
        lines = [f'echo {name}="{word}" >> vars.$SLURM_ARRAY_TASK_ID' for name, word in slurm.variables.items()]
        job = live.submit("#SBATCH --array=0-1", "#SBATCH --nodes=2", f"cd {live.folder}", *lines)
        live.wait(job)
        found = (live.folder / "vars.1").read_text().splitlines()
        assert found[:2] == [f"FAIRMILE_JOB_ID={job}_1", "FAIRMILE_ARRAY_INDEX=1"]
        assert len(found[2].removeprefix("FAIRMILE_NODES=").split(" ")) == 2

    def test_a_job_waits_for_another_and_never_starts_when_that_one_fails(self, live: Live) -> None:
        first = live.submit("sleep 1; exit 3")
        waits = live.submit(f"#SBATCH --dependency=afterok:{first}", "#SBATCH --kill-on-invalid-dep=yes", "true")
        after = live.submit(f"#SBATCH --dependency=afternotok:{first}", "true")
        assert live.ask(slurm.status([waits]))[waits].sentence == "It waits for another job to end."
        seen = live.wait(first, waits, after)
        assert [seen[job].state for job in (first, waits, after)] == [State.FAILED, State.CANCELLED, State.DONE]
        assert "so Slurm cancelled it" in seen[waits].sentence

    def test_jobs_that_run_or_wait_can_be_cancelled_and_it_does_no_harm_twice(self, live: Live) -> None:
        running = live.submit("sleep 300")
        waiting = live.submit("#SBATCH --hold", "sleep 300")
        live.wait(running, until=lambda seen: seen.state is State.RUNNING)
        assert live.ask(slurm.status([waiting]))[waiting].state is State.HELD
        live.ask(slurm.cancel([running, waiting, "999999"]))
        seen = live.wait(running, waiting)
        assert {seen[job].state for job in (running, waiting)} == {State.CANCELLED}
        live.ask(slurm.cancel([running, waiting]))

    def test_tasks_that_are_cancelled_before_they_start_leave_no_trace(self, live: Live) -> None:
        job = live.submit("#SBATCH --array=0-5", "#SBATCH --hold", "true")
        live.ask(slurm.cancel([f"{job}_{index}" for index in (1, 2, 3)]))
        assert set(live.ask(slurm.status([job]))) == {f"{job}_{index}" for index in (0, 4, 5)}
        live.ask(slurm.cancel([job]))
        assert {seen.state for seen in live.wait(job).values()} == {State.CANCELLED}

    def test_a_job_that_takes_more_memory_than_it_asked_for_is_killed(self, live: Live) -> None:
        hog = "python3 -c 'import time; x = bytearray(300 << 20); time.sleep(100)'"
        job = live.submit("#SBATCH --mem=20M", hog)
        seen = live.wait(job)[job]
        assert seen.state in (State.FAILED, State.OUT_OF_MEMORY)
        assert "memory" in seen.sentence

    @pytest.mark.thorough
    def test_a_job_on_a_lost_node_starts_again_under_the_same_id(self, live: Live) -> None:
        job = live.submit("#SBATCH --requeue", "[ $SLURM_RESTART_COUNT ] || sleep 300")
        node = live.wait(job, until=lambda seen: seen.state is State.RUNNING)[job].nodes
        live.cluster.node_down(node)
        seen = live.wait(job)[job]
        assert (seen.state, seen.restarts) == (State.DONE, 1)
        live.cluster.node_resume(node)

    def test_a_job_that_may_not_start_again_ends_with_its_node(self, live: Live) -> None:
        job = live.submit("#SBATCH --no-requeue", "sleep 300")
        node = live.wait(job, until=lambda seen: seen.state is State.RUNNING)[job].nodes
        live.cluster.node_down(node)
        assert live.wait(job)[job].state is State.NODE_FAILED
        live.cluster.node_resume(node)

    def test_a_job_that_asks_for_too_much_waits_and_says_why(self, live: Live) -> None:
        job = live.submit("#SBATCH --time=500", "true")
        seen = live.wait(job, until=lambda seen: seen.reason == "PartitionTimeLimit")[job]
        assert seen.sentence == "It requests more time than its partition allows. Cancel it and request less time."
        live.ask(slurm.cancel([job]))

    def test_a_wrong_partition_is_refused_with_a_hint(self, live: Live) -> None:
        with pytest.raises(UsageError, match="nope") as caught:
            live.submit("#SBATCH --partition=nope", "true")
        assert "sinfo" in (caught.value.hint or "")

    def test_more_gpus_than_there_are_is_refused(self, live: Live) -> None:
        with pytest.raises(UsageError, match="node configuration is not available"):
            live.submit("#SBATCH --partition=gpu", "#SBATCH --gpus-per-node=3", "true")

    def test_without_accounting_there_is_no_history(self, live: Live) -> None:
        question = slurm.history(["1"])
        assert question is not None
        with pytest.raises(Unsupported):
            live.ask(question)

    @pytest.mark.thorough
    def test_a_silent_controller_is_no_answer_and_a_restarted_one_still_knows_its_jobs(self, live: Live) -> None:
        job = live.submit("sleep 2", key="fairmile-restart")
        live.wait(job, until=lambda seen: seen.state is State.RUNNING)
        live.cluster.stop_controller()
        with pytest.raises(Transient):
            live.ask(slurm.status([job]))
        live.cluster.start_controller()
        assert live.ask(slurm.find("fairmile-restart")) == job
        assert live.wait(job)[job].state is State.DONE


@pytest.mark.thorough
class TestAgainstARealSlurmWithAccounting:
    def history(self, live: Live, *ids: str, wanted: int = 1) -> dict[str, Observed]:
        """Return the first answer with so many jobs or tasks in it that all ended; the accounting lags behind."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            question = slurm.history(ids)
            assert question is not None
            seen = live.ask(question)
            if len(seen) >= wanted and all(one.state.is_end for one in seen.values()):
                return seen
            time.sleep(0.2)
        pytest.fail(f"sacct does not know the end of {ids}\n{live.cluster.logs()}")

    def test_history_tells_how_jobs_ended_and_what_they_used(self, accounted: Live) -> None:
        hog = "python3 -c 'import time; x = bytearray(60 << 20); time.sleep(2.5)'; exit 3"
        job = accounted.submit("#SBATCH --array=0-1", "#SBATCH --mem=400M", hog)
        accounted.wait(job)
        seen = self.history(accounted, job, wanted=2)
        one = seen[f"{job}_1"]
        assert (one.state, one.exit_code) == (State.FAILED, 3)
        assert one.usage is not None and one.usage.source == "sacct"
        assert one.usage.elapsed_s is not None and one.usage.elapsed_s >= 2
        assert one.usage.max_rss_bytes is not None and one.usage.max_rss_bytes > 60 << 20
        assert one.usage.energy_j is None  # there is no sensor

    def test_history_of_a_requeued_job_is_that_of_its_last_run(self, accounted: Live) -> None:
        job = accounted.submit("#SBATCH --requeue", "[ $SLURM_RESTART_COUNT ] || sleep 300")
        node = accounted.wait(job, until=lambda seen: seen.state is State.RUNNING)[job].nodes
        accounted.cluster.node_down(node)
        accounted.wait(job)
        seen = self.history(accounted, job)[job]
        assert (seen.state, seen.restarts) == (State.DONE, 1)
        accounted.cluster.node_resume(node)

    def test_history_of_cancelled_tasks_names_each(self, accounted: Live) -> None:
        job = accounted.submit("#SBATCH --array=0-4%1", "sleep 300")
        accounted.wait(f"{job}_0", until=lambda seen: seen.state is State.RUNNING)
        accounted.ask(slurm.cancel([job]))
        accounted.wait(job)
        seen = self.history(accounted, job, wanted=5)
        assert {index: one.state for index, one in seen.items()} == {f"{job}_{i}": State.CANCELLED for i in range(5)}

    def test_history_of_an_array_that_was_cancelled_at_once_is_one_answer(self, accounted: Live) -> None:
        job = accounted.submit("#SBATCH --array=0-4%2", "#SBATCH --hold", "true")
        accounted.ask(slurm.cancel([job]))
        accounted.wait(job)
        seen = self.history(accounted, job)
        assert job in seen or f"{job}_0" in seen
        assert {one.state for one in seen.values()} == {State.CANCELLED}

    def test_history_does_not_have_jobs_that_never_were(self, accounted: Live) -> None:
        question = slurm.history(["999999"])
        assert question is not None
        assert accounted.ask(question) == {}

    @pytest.mark.parametrize(
        "option, hint",
        [
            ("--account=nope", "give an account"),
            ("--qos=nope", "give a QOS"),
            ("--time=500", "within the partition's limit"),
            ("--nodes=99", "fewer nodes"),
            ("--constraint=nope", "no node has the constraint"),
            ("--mem=999G", "request less"),
        ],
    )
    def test_what_cannot_be_had_is_refused_with_a_hint(self, accounted: Live, option: str, hint: str) -> None:
        with pytest.raises(UsageError) as caught:
            accounted.submit(f"#SBATCH {option}", "true")
        assert hint in (caught.value.hint or "")


@pytest.mark.thorough
class TestATimeLimit:
    def test_ends_a_job(self, live: Live, limited: str) -> None:
        seen = live.wait(limited)[limited]
        assert seen.state is State.TIMED_OUT
        assert "time limit" in seen.sentence
