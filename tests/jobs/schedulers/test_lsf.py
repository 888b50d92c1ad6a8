"""LSF's dialect, read from recorded and composed answers: see recorded/README.md. No LSF runs here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from batch_words import computed
from cases import for_each

from fairmile.base.errors import SystemFailure, Transient
from fairmile.jobs.request import JobFiles
from fairmile.jobs.schedulers import Scheduler
from fairmile.jobs.schedulers.lsf import Lsf
from fairmile.jobs.spec import JobSpec
from fairmile.jobs.states import Observed, State, Usage
from fairmile.testing.schedulers import Answer, Listing, SchedulerTests, Subject, made_request, read_answer

RECORDED = Path(__file__).parent / "recorded" / "lsf"
ABSENT = Answer("", "Job <864220165> is not found", 255)


def recorded(name: str) -> Answer:
    return Answer((RECORDED / name).read_text())


def record(**fields: str) -> Answer:
    return Answer(json.dumps({"COMMAND": "bjobs", "JOBS": 1, "RECORDS": [{"JOBID": "7", "JOBINDEX": "0", **fields}]}))


def ended(reason: str, code: str = "") -> Observed:
    return read_answer(Lsf().status(["7"]), record(STAT="EXIT", EXIT_CODE=code, EXIT_REASON=reason))["7"]


class TestLsf(SchedulerTests):
    @pytest.fixture
    def subject(self) -> Subject:
        return Subject(
            Lsf(),
            prefix="#BSUB ",
            submits=[
                (recorded("bsub.txt"), "764254593"),
                (recorded("bsub_after_an_outage.txt"), "12345678"),
                (Answer("Job <7> is submitted to default queue <normal>.\n"), "7"),
            ],
            refusals=[
                Answer("", "debug: No such queue. Job not submitted.\n", 255),
                Answer("", "Bad resource requirement syntax. Job not submitted.\n", 255),
                Answer("", "Request aborted by esub. Job not submitted.\n", 255),
            ],
            outages=[
                Answer("", "Cannot connect to LSF. Please wait ...\n", 255),
                Answer("", "batch daemon not responding ... still trying\n", 255),
                Answer("", "LSF is down. Please wait ...\n", 255),
            ],
            listing=lambda word: record(STAT=word),
            listed="7",
            states={
                "PEND": State.QUEUED,
                "PROV": State.QUEUED,
                "WAIT": State.QUEUED,
                "PSUSP": State.HELD,
                "RUN": State.RUNNING,
                "USUSP": State.RUNNING,
                "SSUSP": State.RUNNING,
                "ZOMBI": State.ENDING,
                "UNKWN": State.UNKNOWN,
                "DONE": State.DONE,
                "PDONE": State.DONE,
                "EXIT": State.FAILED,
            },
            listings=[
                Listing(
                    recorded("bjobs_done.json"),
                    ["22005"],
                    {
                        "22005": Observed(
                            State.DONE,
                            "DONE",
                            exit_code=0,
                            nodes="tbi-cn019",
                            usage=Usage("bjobs", elapsed_s=1.0, cpu_s=1.0, max_rss_bytes=5583457484),
                        )
                    },
                ),
                Listing(
                    recorded("bjobs_killed.json"),
                    ["12345678"],
                    {
                        "12345678": Observed(
                            State.CANCELLED,
                            "EXIT",
                            "TERM_OWNER: job killed by owner",
                            "The job was cancelled by its owner.",
                        )
                    },
                ),
                Listing(
                    recorded("bjobs_pending_after_an_outage.txt"),
                    ["12345678"],
                    {
                        "12345678": Observed(
                            State.QUEUED,
                            "PEND",
                            "New job is waiting for scheduling;",
                            "The job is queued. LSF says: New job is waiting for scheduling.",
                        )
                    },
                ),
                Listing(recorded("bjobs_held.json"), ["58652"], {"58652": Observed(State.HELD, "PSUSP")}),
            ],
            arrays=[
                Listing(
                    recorded("bjobs_array.json"),
                    ["901", "902"],
                    {
                        "901_0": Observed(State.DONE, "DONE", exit_code=0, nodes="cn019,cn020"),
                        "901_1": Observed(State.TIMED_OUT, "EXIT", exit_code=140, signal=12, nodes="cn020"),
                        "901_9": Observed(State.QUEUED, "PEND", "Job dependency condition not satisfied;"),
                    },
                )
            ],
            absent=Listing(ABSENT, ["864220165"], {}),
            cancels=[
                Answer("Job <764254593> is being terminated\n"),
                Answer("", "Job <7>: Job has already finished\n", 255),
                Answer("Job <8> is being terminated\n", "Job <7>: No matching job found\n", 255),
                Answer("", "Job <864220165> is not found\n", 255),
            ],
            search=("train-7f3a.1", recorded("bjobs_found.json"), "907"),
        )


def test_it_is_a_scheduler() -> None:
    scheduler: Scheduler = Lsf()
    assert scheduler.history(["7"]) is None


@for_each(
    "reason, state",
    [
        ("TERM_RUNLIMIT: job killed after reaching LSF run time limit", State.TIMED_OUT),
        ("TERM_CPULIMIT: job killed after reaching LSF CPU usage limit", State.TIMED_OUT),
        ("TERM_MEMLIMIT: job killed after reaching LSF memory usage limit", State.OUT_OF_MEMORY),
        ("TERM_OWNER: job killed by owner", State.CANCELLED),
        ("TERM_FORCE_ADMIN: job killed by root or LSF administrator without time for cleanup", State.CANCELLED),
        ("TERM_PREEMPT: job killed after preemption", State.PREEMPTED),
        ("TERM_ZOMBIE: job exited while LSF is not available", State.NODE_FAILED),
        ("TERM_CWD_NOTEXIST: current working directory is not accessible or does not exist", State.FAILED),
        ("TERM_EXTERNAL_SIGNAL: job killed by a signal external to LSF", State.FAILED),
    ],
)
def test_the_reason_of_an_end_is_understood(reason: str, state: State) -> None:
    seen = ended(reason, "130")
    assert seen.state is state
    assert seen.reason == reason
    assert seen.sentence.startswith(("The job", "A job")) and "TERM_" not in seen.sentence


def test_a_reason_that_is_not_known_is_passed_on() -> None:
    seen = ended("TERM_NEW: killed for a new reason", "9")
    assert (seen.state, seen.exit_code) == (State.FAILED, 9)
    assert seen.sentence == "The program ended with exit code 9. LSF says: TERM_NEW: killed for a new reason."


def test_an_exit_code_above_128_names_the_signal() -> None:
    seen = ended("", "139")
    assert (seen.state, seen.exit_code, seen.signal) == (State.FAILED, 139, 11)
    assert seen.sentence == "The program was ended by signal 11 (SIGSEGV)."


def test_the_script_is_read_from_standard_input_and_its_path_is_no_text_of_the_shell() -> None:
    question = Lsf().submit("/x/a b.sh", JobFiles("/x", "/x"))
    assert question.argv == ("sh", "-c", 'exec bsub < "$1"', "bsub", "/x/a b.sh")


def test_tasks_are_counted_from_one_in_commands() -> None:
    assert Lsf().status(["901_0", "7"]).argv[-2:] == ("901[1]", "7")
    assert Lsf().cancel(["901_9"]).argv == ("bkill", "901[10]")


def test_an_array_counts_from_one_and_the_script_takes_one_off() -> None:
    spec = JobSpec.model_validate({"argv": ["true"], "array": {"count": 10, "at_once": 3}})
    header = Lsf().header(made_request(spec), JobFiles("/x", "/x"))
    assert '#BSUB -J "job[1-10]%3"' in header
    assert Lsf.variables["FAIRMILE_ARRAY_INDEX"] == "$((LSB_JOBINDEX - 1))"


def test_the_key_is_the_jobs_description() -> None:
    header = Lsf().header(made_request(JobSpec(argv=("true",))), JobFiles("/x", "/x", key="train-7f3a.1"))
    assert "#BSUB -Jd train-7f3a.1" in header
    assert "-Jd" in Lsf().find("train-7f3a.1").argv


def test_a_wildcard_does_not_find_the_jobs_of_others() -> None:
    assert read_answer(Lsf().find("train*"), recorded("bjobs_found.json")) is None


def test_jobs_that_were_not_asked_for_are_left_out() -> None:
    assert read_answer(Lsf().status(["1"]), recorded("bjobs_array.json")) == {}


def test_a_cancelling_that_is_not_allowed_is_told() -> None:
    answer = Answer("", "Job <7>: User permission denied\n", 255)
    with pytest.raises(SystemFailure, match="permission denied") as caught:
        read_answer(Lsf().cancel(["7"]), answer)
    assert not isinstance(caught.value, Transient)


def test_a_script_computes_its_variables(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts file"
    hosts.write_text("n1\nn1\nn2\n")
    environ = {"LSB_JOBID": "901", "LSB_JOBINDEX": "10", "LSB_DJOB_HOSTFILE": str(hosts)}
    assert computed(Lsf.variables, environ) == {
        "FAIRMILE_JOB_ID": "901",
        "FAIRMILE_ARRAY_INDEX": "9",
        "FAIRMILE_NODES": "n1 n2 ",
    }
