"""Tasks with edges, on an executor of our own making that ends them as it is told."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import pytest

from fairmile.base.errors import NotFound, Transient, UsageError
from fairmile.runs.execute import executor as executor_module
from fairmile.runs.execute import patient as patient_module
from fairmile.runs.execute.executor import After, Condition, Graph, Handle, Member, Task, TaskStatus, Work
from fairmile.runs.execute.limits import Limited
from fairmile.runs.execute.patient import Patient
from fairmile.runs.record.record import RunRecord
from fairmile.runs.record.run import Run, RunState


class Scripted:
    """Ends each task as the next of its states says, one at each poll; without states it is done."""

    def __init__(self, **states: Sequence[RunState]) -> None:
        self._states = {id: list(each) for id, each in states.items()}
        self.submitted: list[list[str]] = []
        self._live: list[Handle] = []

    def submit(self, works: Sequence[Work]) -> list[Handle]:
        self.submitted.append([work.id for work in works])
        handles = [Handle.of(work) for work in works]
        self._live += handles
        return handles

    def poll(self, handles: Collection[Handle], *, wait_s: float = 0.0) -> list[TaskStatus]:
        handle = next(each for each in self._live if each in handles)
        self._live.remove(handle)
        left = self._states.get(handle.run) or [RunState.DONE]
        return [TaskStatus(handle, left.pop(0))]

    def cancel(self, handles: Collection[Handle]) -> None:
        raise NotImplementedError

    def collect(self, handle: Handle) -> Run:
        return Run(RunRecord(id=handle.run), Path(handle.run))


def member(id: str) -> Member:
    return Member(Path("batch"), 0, id)


def task(id: str, *after: str, retries: int = 0) -> Task:
    return Task.of(member(id), *map(After, after), retries=retries)


def states(over: dict[str, TaskStatus]) -> dict[str, RunState]:
    return {name: status.state for name, status in over.items()}


def test_what_needs_nothing_is_submitted_together_and_the_rest_as_it_may_begin() -> None:
    executor = Scripted()
    Graph([task("d", "b", "c"), task("a"), task("b", "a"), task("c")], lambda _: executor).follow()
    assert executor.submitted == [["a", "c"], ["b"], ["d"]]


def test_what_comes_after_a_bad_end_never_begins_and_the_others_do() -> None:
    executor = Scripted(a=[RunState.FAILED])
    over = Graph([task("a"), task("b", "a"), task("c", "b"), task("d")], lambda _: executor).follow()
    assert states(over) == {
        "a": RunState.FAILED,
        "b": RunState.CANCELLED,
        "c": RunState.CANCELLED,
        "d": RunState.DONE,
    }
    assert over["b"].reason == "its dependency a is failed"
    assert executor.submitted == [["a", "d"]]


def test_an_end_of_any_kind_but_a_cancellation_may_be_enough() -> None:
    chain = [task("a"), Task.of(member("b"), After("a", "ended")), Task.of(member("c"), After("b", "ended"))]
    executor = Scripted(a=[RunState.FAILED], b=[RunState.CANCELLED])
    over = Graph(chain, lambda _: executor).follow()
    assert states(over) == {"a": RunState.FAILED, "b": RunState.CANCELLED, "c": RunState.CANCELLED}
    assert executor.submitted == [["a"], ["b"]]


def test_a_failure_is_tried_again_so_often_and_a_cancellation_is_not() -> None:
    failed = RunState.FAILED
    executor = Scripted(a=[failed, RunState.TIMEOUT, RunState.DONE], b=[failed] * 5, c=[RunState.CANCELLED])
    ends: list[str] = []
    tasks = [task(id, retries=2) for id in "abc"]
    over = Graph(tasks, lambda _: executor, lambda name, _: ends.append(name)).follow()
    assert states(over) == {"a": RunState.DONE, "b": failed, "c": RunState.CANCELLED}
    assert sorted(ends) == ["a", "b", "c"]
    assert sum(id == "b" for ids in executor.submitted for id in ids) == 3


def test_work_is_made_from_the_runs_before_it_or_a_known_run_stands_for_it() -> None:
    executor = Scripted()
    known = Run(RunRecord(id="known", state=RunState.DONE), Path("known"))
    made: list[str] = []

    def make(before: object) -> Work:
        assert isinstance(before, Mapping)
        made.extend(run.id for run in before.values())
        return member("late")

    tasks = [Task("first", lambda _: known), task("a"), Task("second", make, (After("first"), After("a")))]
    graph = Graph(tasks, lambda _: executor)
    graph.follow()
    assert made == ["known", "a"]
    assert executor.submitted == [["a"], ["late"]]
    assert [graph.collect(name).id for name in ("first", "second")] == ["known", "late"]


def test_work_that_cannot_be_made_leaves_nothing_behind_that_was_made_before_it() -> None:
    executor = Scripted()

    def refuse(_: object) -> Work:
        raise NotFound("there is no such input")

    graph = Graph([Task("a", lambda _: member("a")), Task("b", refuse)], lambda _: executor)
    with pytest.raises(NotFound):
        graph.submit()
    assert executor.submitted == [["a"]]


def test_edges_that_lead_nowhere_or_in_a_circle_are_refused() -> None:
    with pytest.raises(UsageError, match="task a depends on z, which does not exist"):
        Graph([task("a", "z")], lambda _: Scripted())
    with pytest.raises(UsageError, match="tasks depend on each other: a, b"):
        Graph([task("a", "b"), task("b", "a")], lambda _: Scripted()).follow()


class Chain(Scripted):
    """Holds tasks back by itself, and tells what for."""

    trouble = ""

    def __init__(self, **states: Sequence[RunState]) -> None:
        super().__init__(**states)
        self.held: dict[str, dict[str, Condition]] = {}

    def submit_after(self, works: Sequence[Work], after: Mapping[Handle, Condition]) -> list[Handle]:
        self.held |= {work.id: {handle.run: condition for handle, condition in after.items()} for work in works}
        return self.submit(works)


def ahead(id: str, *after: After) -> Task:
    return Task.of(member(id), *after, ahead=True)


def test_what_is_submitted_ahead_is_handed_over_at_once_with_what_it_waits_for() -> None:
    executor = Chain()
    tasks = [ahead("d", After("b"), After("c", "ended")), ahead("b", After("a")), ahead("c", After("a", "failed"))]
    graph = Graph([*tasks, task("a")], lambda _: executor)
    graph.submit()
    assert executor.submitted == [["a"], ["b"], ["c"], ["d"]]
    assert executor.held == {"b": {"a": "done"}, "c": {"a": "failed"}, "d": {"b": "done", "c": "ended"}}


def test_tasks_that_wait_for_the_same_are_handed_over_together() -> None:
    executor = Chain()
    Graph([task("a"), *(ahead(id, After("a")) for id in "bcd")], lambda _: executor).submit()
    assert executor.submitted == [["a"], ["b", "c", "d"]]


def test_the_system_decides_about_what_was_submitted_ahead() -> None:
    executor = Chain(a=[RunState.FAILED], b=[RunState.CANCELLED])
    over = Graph([task("a"), ahead("b", After("a")), task("c", "b")], lambda _: executor).follow()
    assert states(over) == {"a": RunState.FAILED, "b": RunState.CANCELLED, "c": RunState.CANCELLED}
    assert executor.submitted == [["a"], ["b"]]


def test_what_is_known_already_is_not_waited_for() -> None:
    executor = Chain()
    known = Run(RunRecord(id="known", state=RunState.DONE), Path("known"))
    tasks = [Task("a", lambda _: known), task("b"), ahead("c", After("a"), After("b"))]
    Graph(tasks, lambda _: executor).submit()
    assert executor.held == {"c": {"b": "done"}}


def test_work_ahead_is_made_while_the_runs_before_it_are_queued() -> None:
    executor = Chain()
    folders: list[Path] = []

    def make(before: Mapping[str, Run]) -> Work:
        folders.append(before["a"].folder)
        return member("b")

    graph = Graph([task("a"), Task("b", make, (After("a"),), ahead=True)], lambda _: executor)
    graph.submit()
    assert (folders, executor.submitted) == ([Path("a")], [["a"], ["b"]])


def test_a_task_may_wait_here_for_some_and_on_its_system_for_others() -> None:
    here, there = Scripted(), Chain()
    tasks = [task("a"), task("b"), ahead("c", After("a", is_here=True), After("b"))]
    graph = Graph(tasks, lambda work: here if work.id == "a" else there)
    graph.submit()
    assert there.submitted == [["b"]]
    graph.advance()
    graph.submit()
    assert there.submitted == [["b"], ["c"]]


def test_ends_of_what_was_submitted_ahead_are_told_in_order() -> None:
    class Backwards(Chain):
        def poll(self, handles: Collection[Handle], *, wait_s: float = 0.0) -> list[TaskStatus]:
            self._live.sort(key=lambda each: each.run, reverse=True)
            return super().poll(handles, wait_s=wait_s)

    ends: list[str] = []
    executor = Backwards()
    tasks = [task("a"), ahead("b", After("a")), ahead("c", After("b"))]
    over = Graph(tasks, lambda _: executor, lambda name, _: ends.append(name)).follow()
    assert (ends, set(states(over).values())) == (["a", "b", "c"], {RunState.DONE})


def test_work_that_cannot_be_made_yet_is_made_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor_module, "_ASK_AGAIN_S", 0.0)
    answers: list[Work | TaskStatus] = [TaskStatus(Handle(""), RunState.QUEUED, "no answer"), member("a")]
    executor = Scripted()
    assert states(Graph([Task("a", lambda _: answers.pop(0))], lambda _: executor).follow()) == {"a": RunState.DONE}
    assert executor.submitted == [["a"]]


class Flaky(Chain):
    """Does not answer at first, and refuses the tasks it is told to."""

    def __init__(self, silent: int, *refused: str) -> None:
        super().__init__()
        self._silent, self._refused = silent, refused

    def submit(self, works: Sequence[Work]) -> list[Handle]:
        if self._silent:
            self._silent -= 1
            raise Transient("the connection failed")
        if works[0].id in self._refused:
            raise UsageError("no such partition")
        return super().submit(works)

    def poll(self, handles: Collection[Handle], *, wait_s: float = 0.0) -> list[TaskStatus]:
        return super().poll(handles, wait_s=wait_s) if self._live else []


def test_a_system_that_does_not_answer_gets_its_runs_later_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patient_module, "_FIRST_PAUSE_S", 0.01)
    system, waits = Flaky(2), []
    patient = Patient(system, lambda run, why: waits.append((run, why)))
    over = Graph([task("a"), ahead("b", After("a"))], lambda _: patient).follow()
    assert states(over) == {"a": RunState.DONE, "b": RunState.DONE}
    assert system.submitted == [["a"], ["b"]]
    assert waits == [("a", "the connection failed")] * 2


def test_a_system_that_does_not_answer_when_it_is_asked_or_is_to_cancel_is_silent_until_it_does() -> None:
    class Hanging(Chain):
        def poll(self, handles: Collection[Handle], *, wait_s: float = 0.0) -> list[TaskStatus]:
            return []

        def cancel(self, handles: Collection[Handle]) -> None:
            cancelled.append([handle.run for handle in handles])
            if len(cancelled) < 3:
                raise Transient("the connection failed")

    cancelled: list[list[str]] = []
    system, waits, answers = Hanging(), [], []
    patient = Patient(system, lambda run, why: waits.append((run, why)), lambda: answers.append(len(waits)))
    handles = patient.submit([member("a")])
    answers.clear()
    for system.trouble in ("no answer", "no answer", ""):
        patient.poll(handles)
        assert patient.is_silent == bool(system.trouble)
    assert (waits, answers) == ([("a", "no answer")] * 2, [2])
    patient.cancel(handles)
    assert patient.is_silent and waits[-1] == ("a", "the connection failed")
    for _ in range(3):
        patient.poll(handles)
    assert cancelled == [["a"]] * 3 and not patient.is_silent


def test_what_a_system_refuses_fails_and_what_comes_after_it_is_cancelled() -> None:
    system = Flaky(0, "a")
    patient = Patient(system)
    over = Graph([task("a"), ahead("b", After("a")), task("c")], lambda _: patient).follow()
    assert states(over)["a"] is RunState.FAILED
    assert over["a"].reason == "no such partition"
    assert states(over)["b"] is RunState.CANCELLED


def test_what_cannot_wait_on_a_system_is_not_submitted_ahead() -> None:
    with pytest.raises(UsageError, match="task b cannot be submitted ahead: a, before it, is not on the same system"):
        Graph([task("a"), ahead("b", After("a"))], lambda _: Scripted()).submit()
    with pytest.raises(UsageError, match="b, before it, is not on the same system"):
        Graph([task("b"), ahead("c", After("b"))], lambda _: Chain()).submit()
    with pytest.raises(UsageError, match="task b cannot be submitted ahead: a, before it, may be retried"):
        Graph([task("a", retries=1), ahead("b", After("a"))], lambda _: Chain())


def test_a_step_may_come_after_a_failure_alone() -> None:
    executor = Scripted(a=[RunState.FAILED])
    tasks = [
        task("a"),
        task("b"),
        Task.of(member("c"), After("a", "failed")),
        Task.of(member("d"), After("b", "failed")),
    ]
    over = Graph(tasks, lambda _: executor).follow()
    assert states(over) == {
        "a": RunState.FAILED,
        "b": RunState.DONE,
        "c": RunState.DONE,
        "d": RunState.CANCELLED,
    }


def test_tasks_that_are_added_come_after_those_that_are_over() -> None:
    executor = Scripted(b=[RunState.FAILED])
    graph = Graph([task("a"), task("b")], lambda _: executor)
    graph.follow()
    graph.add([task("c", "a"), task("d", "c"), task("e", "b"), Task.of(member("f"), After("b", "over"))])
    over = graph.follow()
    assert states(over) | {"a": RunState.DONE, "b": RunState.FAILED} == states(over)
    assert [over[name].state for name in "cdef"] == [*[RunState.DONE] * 2, RunState.CANCELLED, RunState.DONE]


def test_a_status_stands_for_a_task_that_needs_no_run() -> None:
    executor = Scripted()
    left_out = TaskStatus(Handle(""), RunState.CANCELLED, "nobody needs it")
    tasks = [Task("a", lambda _: left_out), Task.of(member("b"), After("a", "over")), task("c", "a")]
    graph = Graph(tasks, lambda _: executor)
    assert states(graph.follow()) == {"a": RunState.CANCELLED, "b": RunState.DONE, "c": RunState.CANCELLED}
    assert not graph.has_begun("a")


def test_a_long_chain_after_a_bad_end_is_ended() -> None:
    executor = Scripted(s0=[RunState.FAILED])
    chain = [task("s0"), *(task(f"s{number}", f"s{number - 1}") for number in range(1, 3000))]
    over = Graph(chain, lambda _: executor).follow()
    assert over["s2999"].state is RunState.CANCELLED


def test_after_a_cancellation_nothing_more_begins() -> None:
    asked: list[list[str]] = []

    class Ending(Scripted):
        def cancel(self, handles: Collection[Handle]) -> None:
            asked.append([handle.run for handle in handles])
            self._states |= {handle.run: [RunState.CANCELLED] for handle in handles}

    executor = Ending()
    graph = Graph([task("a"), task("b", "a", retries=3), task("c")], lambda _: executor)
    graph.submit()
    graph.cancel()
    graph.cancel()
    assert asked == [["a", "c"]]
    assert set(states(graph.follow()).values()) == {RunState.CANCELLED}
    assert executor.submitted == [["a", "c"]]


def test_no_more_than_the_limit_are_handed_over_at_a_time() -> None:
    executor = Scripted()
    limited = Limited(executor, 2)
    over = Graph([task(id) for id in "abcde"], lambda _: limited).follow()
    assert set(states(over).values()) == {RunState.DONE}
    assert executor.submitted == [["a"], ["b"], ["c"], ["d"], ["e"]]
    held = Limited(Scripted(), 1)
    handles = held.submit([member("a"), member("b")])
    held.cancel(handles[1:])
    assert [status.state for status in held.poll(handles)] == [RunState.CANCELLED, RunState.DONE]
