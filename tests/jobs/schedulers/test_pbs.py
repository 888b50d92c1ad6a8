"""The dialect of PBS, read from recorded and composed answers: see recorded/README.md. No PBS runs here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from batch_words import computed
from cases import for_each

from fairmile.base.errors import SystemFailure, Transient, Unsupported
from fairmile.jobs.request import JobFiles
from fairmile.jobs.schedulers import Scheduler
from fairmile.jobs.schedulers.pbs import Pbs
from fairmile.jobs.spec import JobSpec
from fairmile.jobs.states import Observed, State, Usage
from fairmile.testing.schedulers import Answer, Listing, SchedulerTests, Subject, made_request, read_answer

RECORDED = Path(__file__).parent / "recorded" / "pbs"
NO_HISTORY = Answer("", "qstat: PBS is not configured to maintain job history\n", 1)


def recorded(name: str) -> Answer:
    return Answer((RECORDED / name).read_text())


def job(id: str = "7.pbs", **attributes: Any) -> Answer:
    document = {"timestamp": 1, "pbs_version": "22.05.11", "pbs_server": "pbs", "Jobs": {id: attributes}}
    return Answer(json.dumps(document, indent=4))


def ended(status: int | None, **attributes: Any) -> Observed:
    given = {"job_state": "F", "stime": "Tue Mar 12 13:04:41 2024", **attributes}
    if status is not None:
        given["Exit_status"] = status
    return read_answer(Pbs().history(["7.pbs"]), job(**given))["7.pbs"]


class TestPbs(SchedulerTests):
    @pytest.fixture
    def subject(self) -> Subject:
        running = "12860476.meta-pbs.metacentrum.cz"
        return Subject(
            Pbs(),
            prefix="#PBS ",
            submits=[
                (Answer("53.testpbs.nas.nasa.gov\n"), "53.testpbs.nas.nasa.gov"),
                (Answer("77[].pbs-primary\n"), "77[].pbs-primary"),
                (Answer("qsub: a remark of the site\n2154.edtb-01\n"), "2154.edtb-01"),
            ],
            refusals=[
                Answer("", "qsub: Unknown queue\n", 170),
                Answer("", "qsub: Job exceeds queue and/or server resource limits\n", 188),
                Answer("", "qsub: Invalid account\n", 32),
            ],
            outages=[
                Answer((RECORDED / "outage.stdout").read_text(), (RECORDED / "outage.stderr").read_text(), 255),
                Answer("", "No route to host\nqstat: cannot connect to server aqua (errno=15010)\n", 255),
            ],
            listing=lambda word: job(job_state=word),
            listed="7.pbs",
            states={
                "Q": State.QUEUED,
                "W": State.QUEUED,
                "T": State.QUEUED,
                "M": State.QUEUED,
                "H": State.HELD,
                "R": State.RUNNING,
                "B": State.RUNNING,
                "S": State.RUNNING,
                "U": State.RUNNING,
                "E": State.ENDING,
                "F": State.CANCELLED,
            },
            listings=[
                Listing(
                    recorded("running.json"),
                    [running],
                    {running: Observed(State.RUNNING, "R", nodes="charon24,charon21")},
                ),
                Listing(recorded("held.json"), ["157.pbs"], {"157.pbs": Observed(State.HELD, "H")}),
                Listing(
                    recorded("several.json"),
                    ["1006.qot-calc0", "1007.qot-calc0"],
                    {
                        "1006.qot-calc0": Observed(
                            State.RUNNING,
                            "R",
                            nodes="qot-calc0",
                            usage=Usage("qstat", elapsed_s=110.0, cpu_s=0.0, max_rss_bytes=12272 * 1024),
                        ),
                        "1007.qot-calc0": Observed(State.RUNNING, "R", nodes="qot-calc0", restarts=1),
                    },
                ),
            ],
            histories=[
                Listing(
                    recorded("finished.json"),
                    ["4732778.login02"],
                    {
                        "4732778.login02": Observed(
                            State.DONE,
                            "F",
                            exit_code=0,
                            nodes="node1299",
                            usage=Usage("qstat", elapsed_s=86732.0, cpu_s=1512962.0, max_rss_bytes=1622428 * 1024),
                        )
                    },
                )
            ],
            arrays=[
                Listing(
                    recorded("array.json"),
                    ["77[].pbs-primary"],
                    {
                        "77[].pbs-primary_1": Observed(State.FAILED, "X", exit_code=3),
                        "77[].pbs-primary_2": Observed(State.RUNNING, "R", nodes="cl4n017"),
                        "77[].pbs-primary_3": Observed(
                            State.QUEUED, "Q", "Not Running: Insufficient amount of resource: ncpus"
                        ),
                    },
                )
            ],
            absent=Listing(
                Answer(
                    recorded("held.json").stdout,
                    "qstat: Unknown Job Id 10000.pbs\nqstat: 120.pbs Job has finished, use -x or -H to obtain "
                    "historical job information\n",
                    35,
                ),
                ["10000.pbs", "120.pbs", "157.pbs"],
                {"157.pbs": Observed(State.HELD, "H")},
            ),
            cancels=[
                Answer(),
                Answer("", "qdel: Unknown Job Id 12345.pbssrv1\n", 153),
                Answer("", "qdel: Job has finished 7.pbs\nqdel: Unknown Job Id 8.pbs\n", 35),
            ],
            search=("train-7f3a.1", recorded("several.json"), "1007.qot-calc0"),
        )


def test_it_is_a_scheduler() -> None:
    scheduler: Scheduler = Pbs()
    assert scheduler.history(["7.pbs"]) is not None


@for_each(
    "status, state, reason",
    [
        (-29, State.TIMED_OUT, "JOB_EXEC_KILL_WALLTIME"),
        (-28, State.TIMED_OUT, "JOB_EXEC_KILL_CPUT"),
        (-27, State.OUT_OF_MEMORY, "JOB_EXEC_KILL_MEM"),
        (-25, State.FAILED, "JOB_EXEC_KILL_NCPUS_SUM"),
        (-20, State.NODE_FAILED, "JOB_EXEC_RERUN_MS_FAIL"),
        (-11, State.PREEMPTED, "JOB_EXEC_RERUN"),
        (-10, State.FAILED, "JOB_EXEC_FAILUID"),
        (-1, State.FAILED, "JOB_EXEC_FAIL1"),
    ],
)
def test_a_negative_exit_status_is_a_reason_of_pbs(status: int, state: State, reason: str) -> None:
    seen = ended(status)
    assert (seen.state, seen.reason, seen.exit_code, seen.signal) == (state, reason, None, None)
    assert seen.sentence.endswith(".") and "JOB_EXEC" not in seen.sentence


def test_a_negative_exit_status_that_is_not_known_is_a_failure() -> None:
    seen = ended(-99)
    assert seen.state is State.FAILED
    assert "-99" in seen.sentence


def test_an_exit_status_of_271_is_a_deleted_job() -> None:
    seen = ended(271, substate=91, comment="Job run at Tue Mar 12 at 13:04 on (n1:ncpus=1) and terminated")
    assert (seen.state, seen.signal, seen.exit_code) == (State.CANCELLED, 15, None)
    assert seen.sentence == "The job was deleted, which ended it with signal 15 (SIGTERM)."


def test_a_signal_at_the_time_limit_means_that_the_time_was_over() -> None:
    seen = ended(271, resources_used={"walltime": "01:00:03"}, Resource_List={"walltime": "01:00:00"})
    assert (seen.state, seen.sentence) == (State.TIMED_OUT, "The job reached its time limit.")


def test_a_killed_program_names_its_signal() -> None:
    assert (ended(265).state, ended(265).signal) == (State.FAILED, 9)
    assert (ended(139).state, ended(139).signal, ended(139).exit_code) == (State.FAILED, 11, 139)


def test_a_job_deleted_before_it_ran_is_cancelled() -> None:
    seen = read_answer(Pbs().history(["7.pbs"]), job(job_state="F", substate=91))["7.pbs"]
    assert (seen.state, seen.sentence) == (State.CANCELLED, "The job was deleted before it ran.")


def test_a_finished_job_without_an_exit_status_is_lost() -> None:
    assert ended(None).state is State.LOST


def test_the_exit_status_of_an_earlier_run_is_no_end_of_a_requeued_job() -> None:
    seen = read_answer(Pbs().status(["7.pbs"]), job(job_state="Q", Exit_status=-20, run_count=2))["7.pbs"]
    assert (seen.state, seen.exit_code, seen.restarts) == (State.QUEUED, None, 1)


def test_a_server_without_history_says_so_once() -> None:
    question = Pbs().history(["7.pbs"])
    with pytest.raises(Unsupported, match="no job history"):
        read_answer(question, NO_HISTORY)


def test_the_status_does_not_ask_for_history_which_some_servers_refuse() -> None:
    assert "-x" not in Pbs().status(["7.pbs"]).argv
    assert "-x" in Pbs().history(["7.pbs"]).argv


def test_a_document_that_is_no_json_still_tells_the_states() -> None:
    answer = recorded("no_json.txt")
    with pytest.raises(ValueError, match="delimiter"):
        json.loads(answer.stdout)
    seen = read_answer(Pbs().status(["53.testpbs", "54.testpbs"]), answer)
    assert {id: each.state for id, each in seen.items()} == {"53.testpbs": State.HELD, "54.testpbs": State.RUNNING}
    assert seen["54.testpbs"].nodes == "execute-2"


def test_a_job_that_qstat_passes_over_in_silence_is_not_taken_for_gone() -> None:
    seen = read_answer(Pbs().status(["10.ip-10-0-6-176", "11.ip-10-0-6-176"]), recorded("only_the_first.json"))
    assert seen["10.ip-10-0-6-176"].state is State.RUNNING
    assert seen["11.ip-10-0-6-176"].state is State.UNKNOWN


def test_a_task_that_is_over_without_a_word_about_how_is_absent() -> None:
    asked = ["77[].pbs-primary_0", "77[].pbs-primary_2"]
    seen = read_answer(Pbs().status(asked), recorded("array.json"))
    assert set(seen) == {"77[].pbs-primary_2"}


def test_an_array_whose_tasks_are_not_listed_is_seen_as_a_whole() -> None:
    seen = read_answer(Pbs().status(["77[].pbs"]), job("77[].pbs", job_state="B", array="True"))
    assert seen["77[].pbs"].state is State.RUNNING


def test_tasks_are_named_as_pbs_names_them_in_commands() -> None:
    assert Pbs().status(["77[].pbs_3", "8.pbs"]).argv[-2:] == ("77[3].pbs", "8.pbs")
    assert Pbs().cancel(["77[].pbs_0"]).argv == ("qdel", "77[0].pbs")


def test_the_name_of_the_server_may_be_longer_in_the_list() -> None:
    seen = read_answer(Pbs().status(["7.pbs"]), job("7.pbs.example.org", job_state="R"))
    assert set(seen) == {"7.pbs"}


def test_the_key_is_a_variable_of_the_job() -> None:
    header = Pbs().header(made_request(JobSpec(argv=("true",))), JobFiles("/x", "/x", key="train-7f3a.1"))
    assert "#PBS -v FAIRMILE_KEY=train-7f3a.1" in header


def test_a_cancelling_that_is_not_allowed_is_told() -> None:
    with pytest.raises(SystemFailure, match="Unauthorized") as caught:
        read_answer(Pbs().cancel(["7.pbs"]), Answer("", "qdel: Unauthorized Request  7.pbs\n", 159))
    assert not isinstance(caught.value, Transient)


def test_a_script_computes_its_variables(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts file"
    hosts.write_text("n1\nn1\nn2\n")
    environ = {"PBS_JOBID": "77[3].pbs", "PBS_ARRAY_INDEX": "3", "PBS_NODEFILE": str(hosts)}
    assert computed(Pbs.variables, environ) == {
        "FAIRMILE_JOB_ID": "77[3].pbs",
        "FAIRMILE_ARRAY_INDEX": "3",
        "FAIRMILE_NODES": "n1 n2 ",
    }
