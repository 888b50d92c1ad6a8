"""Where a job stands, from its own notes and its scheduler's words."""

from __future__ import annotations

import pytest
from cases import for_each

from fairmile.jobs.judge import Evidence, judge
from fairmile.jobs.states import Observed, State, Usage

STARTED = '{"host": "n1", "time": 100, "attempt": 1, "job": "7"}\n'
OK = '{"exit_code": 0, "time": 160, "job": "7"}\n'
FAILED = '{"exit_code": 3, "time": 160, "job": "7"}\n'
STOPPED = '{"exit_code": 143, "signal": "TERM", "time": 160, "job": "7"}\n'
KILLED = '{"exit_code": 137, "time": 160, "job": "7"}\n'


def test_a_job_that_nobody_saw_start_is_queued() -> None:
    assert judge(Evidence()).state is State.QUEUED


def test_a_job_that_noted_its_start_runs_even_before_the_scheduler_is_asked() -> None:
    status = judge(Evidence(started=STARTED))
    assert (status.state, status.started, status.nodes) == (State.RUNNING, 100.0, "n1")


def test_a_job_that_noted_its_good_end_is_done_whatever_the_scheduler_forgot() -> None:
    status = judge(Evidence(STARTED, OK))
    assert (status.state, status.exit_code, status.ended) == (State.DONE, 0, 160.0)


def test_without_accounting_the_elapsed_time_comes_from_the_clock_of_the_node() -> None:
    usage = judge(Evidence(STARTED, OK)).usage
    assert usage == Usage("clock of the node", elapsed_s=60.0)


def test_an_exit_code_of_the_program_itself_needs_no_word_of_the_scheduler() -> None:
    status = judge(Evidence(STARTED, FAILED))
    assert (status.state, status.exit_code) == (State.FAILED, 3)


@pytest.mark.parametrize("end", [STOPPED, KILLED])
def test_what_was_ended_from_outside_has_not_ended_until_the_scheduler_said_why(end: str) -> None:
    assert judge(Evidence(STARTED, end)).state is State.ENDING
    assert judge(Evidence(STARTED, end, asked=True)).state is State.FAILED
    assert judge(Evidence(STARTED, end, keeps_accounts=False)).state is State.FAILED


@for_each("state", [State.TIMED_OUT, State.OUT_OF_MEMORY, State.NODE_FAILED, State.PREEMPTED, State.CANCELLED])
def test_the_scheduler_says_why_it_ended_a_job(state: State) -> None:
    status = judge(Evidence(STARTED, STOPPED, current=Observed(state), asked=True))
    assert status.state is state
    assert status.sentence
    assert status.exit_code == 143


@pytest.mark.parametrize("state", [State.QUEUED, State.HELD])
def test_a_requeued_job_keeps_its_id_and_has_not_ended(state: State) -> None:
    told = Observed(state, sentence="waits until it may begin")
    status = judge(Evidence(STARTED, STOPPED, current=told, asked=True))
    assert (status.state, status.ended) == (state, None)
    assert not status.state.is_end


def test_a_requeued_job_that_runs_again_has_not_ended_though_only_its_first_start_was_read() -> None:
    again = Observed(State.RUNNING, restarts=1)
    assert judge(Evidence(STARTED, STOPPED, current=again, asked=True)).state is State.RUNNING
    assert judge(Evidence(STARTED + STARTED, STOPPED, current=again, asked=True)).state is State.FAILED


def test_a_second_start_is_a_restart() -> None:
    status = judge(Evidence(STARTED + STARTED.replace("100", "200")))
    assert (status.restarts, status.started) == (1, 200.0)


def test_a_killed_process_without_a_scheduler_is_a_failure_with_the_likely_cause() -> None:
    status = judge(Evidence(STARTED, KILLED, asked=True, keeps_accounts=False))
    assert status.state is State.FAILED
    assert "KILL" in status.sentence and "memory" in status.sentence


def test_a_cancelled_process_is_cancelled_and_not_failed() -> None:
    assert judge(Evidence(STARTED, STOPPED, cancelled=True, keeps_accounts=False)).state is State.CANCELLED


def test_a_process_that_left_no_note_is_lost_at_once() -> None:
    status = judge(Evidence(STARTED, asked=True, keeps_accounts=False))
    assert status.state is State.LOST
    assert status.state.is_transient


def test_a_batch_job_on_no_list_is_given_time_before_it_counts_as_lost() -> None:
    assert judge(Evidence(STARTED, asked=True, missing_s=10)).state is State.RUNNING
    assert judge(Evidence(STARTED, asked=True, missing_s=1000)).state is State.LOST


def test_a_cancelled_job_on_no_list_was_cancelled() -> None:
    assert judge(Evidence(asked=True, cancelled=True)).state is State.CANCELLED


def test_accounting_speaks_where_the_list_is_silent() -> None:
    usage = Usage("sacct", elapsed_s=61.0, max_rss_bytes=1 << 30)
    past = Observed(State.OUT_OF_MEMORY, "OUT_OF_MEMORY", exit_code=0, usage=usage, nodes="n3")
    status = judge(Evidence(STARTED, past=past, asked=True))
    assert (status.state, status.usage, status.nodes) == (State.OUT_OF_MEMORY, usage, "n3")


def test_a_state_that_nobody_knows_is_not_an_end() -> None:
    status = judge(Evidence(STARTED, current=Observed(State.UNKNOWN, "QUANTUM_LIMBO"), asked=True))
    assert status.state is State.UNKNOWN
    assert not status.state.is_end


@for_each("text", ["", "{", '{"exit_code": ', "null", "[1]", "\x00\x00"])
def test_a_note_that_a_dying_machine_left_unfinished_counts_for_nothing(text: str) -> None:
    assert judge(Evidence(STARTED, text)).state is State.RUNNING


def test_a_module_that_could_not_be_loaded_is_named_as_the_cause() -> None:
    assert "module" in judge(Evidence(STARTED, '{"exit_code": 78, "time": 160, "reason": "modules"}')).sentence
    assert "module" not in judge(Evidence(STARTED, FAILED.replace("3", "78", 1))).sentence


def test_a_dependency_that_failed_cancels_the_job() -> None:
    assert judge(Evidence(ended='{"exit_code": 77, "dependency": true}')).state is State.CANCELLED
