"""What every executor of runs must do, as tests that its own test class inherits.

    class TestMine(ExecutorSuite):
        @pytest.fixture
        def place(self, ...) -> ExecutorSetup:
            return ExecutorSetup(workspace.runs, "pool", tmp_path, environ)

`python -m fairmile.testing.executors` is a process of its own that submits runs and follows them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

import pytest

from fairmile.base.errors import NotFound
from fairmile.base.quick_dataclass import dataclass
from fairmile.runs.execute.executor import After, Executor, Graph, Handle, Member, PreparedRun, Task, TaskStatus, Work
from fairmile.runs.execute.scheduler import Packing
from fairmile.runs.record.run import Run, RunState
from fairmile.runs.runs import Runs
from fairmile.testing.suites import Suite, asked_only_with
from fairmile.workspace import Workspace

_PATIENCE_S = 240.0
_SOON_S = 0.2
# What an executor adds to a record, or a machine that is not this one does not know.
_OWN = {"job", "argv", "before", "prediction", "trouble"}


@dataclass(frozen=True)
class ExecutorSetup:
    """Where an executor works: a workspace, the kind of executor, a folder that its runs see, and its system."""

    runs: Runs
    kind: str  # in place, pool, system, pilot
    folder: Path
    environ: Mapping[str, str]
    system: str = ""
    packing: Packing = field(default_factory=Packing)
    kept: Executor | None = None  # of all tests, where one takes long to start

    @contextlib.contextmanager
    def executor(self) -> Iterator[Executor]:
        """Give an executor that knows nothing of any other, unless one is kept."""
        if self.kept is not None:
            yield self.kept
            return
        with executor_of(self.runs, self.kind, self.system, self.packing) as made:
            yield made

    def works(self, script: str, *values: object, **fields: Any) -> list[Member]:
        """Return members of a new batch, one for each value that `{x}` has in a script."""
        number = sum(each.name.startswith("batch-") for each in self.folder.iterdir())
        name = f"{self.folder.name}-{number}"
        folder = self.folder / f"batch-{name}"
        folder.mkdir()
        asked: dict[str, Any] = {
            "group": name,
            "params": {"x": ""},
            "used": ("x",),
            "system": self.system,
            "watch_s": 0,
        } | fields
        frozen = self.runs.freeze(self.runs.plan(["sh", "-c", script], name="try", **asked), folder)
        ids = [f"{name}-{n}" for n in range(len(values))]
        frozen.write_members(frozen.member(id, params={"x": x}) for id, x in zip(ids, values, strict=True))
        return [Member(folder, n, id, self.system) for n, id in enumerate(ids)]

    def run(self, script: str, **fields: Any) -> PreparedRun:
        """Return a run of its own that was prepared."""
        asked: dict[str, Any] = {"system": self.system, "watch_s": 0, "folder": ""} | fields
        made = self.runs.prepare(self.runs.plan(["sh", "-c", script], name="own", **asked))
        assert isinstance(made, PreparedRun)
        return made

    def begun(self, id: str) -> PreparedRun:
        """Return a run of its own that was executed before, to go on with."""
        run = self.runs.get(id)
        return PreparedRun(run.folder, run.record, run.spec)

    def process(self, works: Sequence[Member | PreparedRun]) -> subprocess.Popen[bytes]:
        """Start a process that submits members of one batch, or runs that were begun, and follows them."""
        names = [str(work.number) if isinstance(work, Member) else work.id for work in works]
        batch = str(works[0].batch) if isinstance(works[0], Member) else "-"
        argv = [sys.executable, "-m", __name__, self.kind, self.system or "-", batch, *names]
        return subprocess.Popen(argv, env=dict(self.environ), cwd=self.folder)


@contextlib.contextmanager
def executor_of(runs: Runs, kind: str, system: str = "", packing: Packing | None = None) -> Iterator[Executor]:
    """Give an executor by its kind."""
    executors = runs.executors
    if kind == "in place":
        yield executors.in_place()
    elif kind == "pool":
        with executors.pool(2) as pool:
            yield pool
    elif kind == "pilot":
        with executors.pilot(system or "laptop", 1, workers=2, address="127.0.0.1") as pilot:
            yield pilot
    else:
        yield executors.on(system, packing)


def followed(executor: Executor, handles: Collection[Handle]) -> dict[str, TaskStatus]:
    """Poll tasks until all of them have ended, and return how."""
    over: dict[str, TaskStatus] = {}
    until = time.monotonic() + _PATIENCE_S
    while len(over) < len(handles):
        assert time.monotonic() < until, f"waited in vain: {over}"
        live = [handle for handle in handles if handle.run not in over]
        over |= {each.handle.run: each for each in executor.poll(live, wait_s=_SOON_S) if each.is_over}
    return over


def wait_for(condition: Callable[[], object]) -> None:
    """Wait until something holds."""
    until = time.monotonic() + _PATIENCE_S
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(_SOON_S)


def _attempts(run: Run) -> int:
    return len(run.record.attempts)


class ExecutorSuite(Suite):
    """Tasks that succeed, fail, are killed, cancelled, retried, doubled and lost; the record is the same everywhere."""

    outlives = True  # whether a run goes on when the process that submitted it is killed
    chains = False  # whether its system holds runs back until others have ended, without anybody who follows them

    def test_what_succeeds_has_a_complete_record(self, place: ExecutorSetup) -> None:
        works = place.works("echo value {x}", 1, 2)
        with place.executor() as executor:
            handles = executor.submit(works)
            over = followed(executor, handles)
            assert {each.state for each in over.values()} == {RunState.DONE}, over
            run = executor.collect(handles[1])
        assert run.id == works[1].id
        assert place.runs.output(run.id) == b"value 2\n"
        here = ExecutorSetup(place.runs, "in place", place.folder, place.environ)
        (like,) = here.works("echo value {x}", 2)
        with here.executor() as executor:
            (handle,) = executor.submit([like])
            followed(executor, [handle])
            reference = executor.collect(handle)
        ours, like_it = run.record.to_dict(), reference.record.to_dict()
        assert ours.keys() - _OWN == like_it.keys() - _OWN
        assert ours["captured"].keys() - {"start"} == like_it["captured"].keys() - {"start"}
        assert ours["result"].keys() == like_it["result"].keys()
        assert ours["attempts"][0].keys() == like_it["attempts"][0].keys()

    def test_a_run_of_its_own_is_executed_alike(self, place: ExecutorSetup) -> None:
        works = [place.run("echo fine"), place.run("exit 4")]
        with place.executor() as executor:
            handles = executor.submit(works)
            over = followed(executor, handles)
            runs = [executor.collect(handle) for handle in handles]
        assert [over[work.id].state for work in works] == [RunState.DONE, RunState.FAILED]
        assert [run.state for run in runs] == [RunState.DONE, RunState.FAILED]
        assert over[works[1].id].reason == "exit code 4"
        assert place.runs.output(works[0].id) == b"fine\n"

    def test_bad_ends_are_told_with_their_reasons(self, place: ExecutorSetup) -> None:
        scripts = {"fail": "exit 3", "kill": "kill -9 $$"}
        works = place.works("case {x} in fail) " + scripts["fail"] + ";; *) " + scripts["kill"] + ";; esac", *scripts)
        with place.executor() as executor:
            handles = executor.submit(works)
            over = followed(executor, handles)
            kept = [executor.collect(handle) for handle in handles]
        assert [over[work.id].state for work in works] == [RunState.FAILED, RunState.FAILED]
        assert [over[work.id].reason for work in works] == ["exit code 3", "killed by SIGKILL"]
        ends = [(run.result.exit_code, run.result.signal) for run in kept if run.result is not None]
        assert ends == [(3, ""), (137, "KILL")]

    def test_what_takes_too_long_is_ended(self, place: ExecutorSetup) -> None:
        works = place.works("exec sleep 600", 1, timeout_s=1.0)
        with place.executor() as executor:
            (status,) = followed(executor, executor.submit(works)).values()
        assert (status.state, status.reason) == (RunState.TIMEOUT, "exceeded the time limit of 1 s")

    def test_what_is_cancelled_while_it_waits_does_not_come_to_its_end(self, place: ExecutorSetup) -> None:
        mark = place.folder / "ended"
        works = place.works(f"sleep 600; touch {mark}", 1)
        with place.executor() as executor:
            handles = executor.submit(works)
            executor.cancel(handles)
            (status,) = followed(executor, handles).values()
        assert status.state is RunState.CANCELLED
        assert not mark.exists()

    def test_what_is_cancelled_while_it_runs_is_ended_by_any_process(self, place: ExecutorSetup) -> None:
        mark = place.folder / "began"
        works = place.works(f"echo $$ > {mark}; exec sleep 600", 1)
        other = place.process(works)
        handles = [Handle.of(work) for work in works]
        try:
            wait_for(lambda: mark.exists() and mark.read_text().strip())
            with place.executor() as executor:
                executor.cancel(handles)
                (status,) = followed(executor, handles).values()
                run = executor.collect(handles[0])
            other.wait(_PATIENCE_S)
        finally:
            other.kill()
            other.wait()
        assert status.state is RunState.CANCELLED
        assert run.state is RunState.CANCELLED

    def test_one_of_several_is_cancelled_and_the_others_come_to_their_ends(self, place: ExecutorSetup) -> None:
        works = place.works("test {x} = 2 && exec sleep 600; sleep 1; echo {x}", 1, 2, 3)
        with place.executor() as executor:
            handles = executor.submit(works)
            executor.cancel(handles[1:2])
            over = followed(executor, handles)
        states = [over[work.id].state for work in works]
        assert states == [RunState.DONE, RunState.CANCELLED, RunState.DONE], over
        assert [place.runs.output(works[n].id) for n in (0, 2)] == [b"1\n", b"3\n"]

    def test_what_failed_is_tried_again_as_often_as_it_may(self, place: ExecutorSetup) -> None:
        script = f"echo try >> {place.folder}/tries-{{x}}; test $(wc -l < {place.folder}/tries-{{x}}) -ge {{x}}"
        works = place.works(script, 2, 3)
        with place.executor() as executor:
            graph = Graph([Task.of(work, retries=1) for work in works], lambda _: executor)
            over = graph.follow()
            first, second = (graph.collect(work.id) for work in works)
        assert [over[work.id].state for work in works] == [RunState.DONE, RunState.FAILED]
        assert (_attempts(first), _attempts(second)) == (2, 2)

    def test_what_depends_on_another_begins_after_it_or_never(self, place: ExecutorSetup) -> None:
        good, bad, after_good, after_bad = place.works("sleep 0.3; test {x} != bad", "good", "bad", "third", "fourth")
        tasks = [
            Task.of(after_good, After(good.id)),
            Task.of(after_bad, After(bad.id)),
            Task.of(good),
            Task.of(bad),
        ]
        with place.executor() as executor:
            graph = Graph(tasks, lambda _: executor)
            over = graph.follow()
            first, third = graph.collect(good.id), graph.collect(after_good.id)
        assert over[after_good.id].state is RunState.DONE
        assert first.result is not None and third.result is not None
        assert first.ended is not None and third.result.started is not None
        assert third.result.started >= first.ended
        assert over[after_bad.id].state is RunState.CANCELLED
        assert bad.id in over[after_bad.id].reason
        with pytest.raises(NotFound):
            place.runs.get(after_bad.id)

    @asked_only_with("chains")
    def test_a_graph_that_is_submitted_ahead_is_carried_out_by_its_system(self, place: ExecutorSetup) -> None:
        log = place.folder / "log"
        (good,) = place.works(f"sleep 1; echo {{x}} >> {log}", "good")
        bad = place.run(f"sleep 1; echo bad >> {log}; exit 3")
        next_good, mend = place.run(f"echo next >> {log}"), place.run(f"echo mend >> {log}")
        (next_bad,) = place.works(f"echo {{x}} >> {log}", "never")
        (last,) = place.works(f"echo {{x}} >> {log}", "last")
        tasks = [
            Task.of(last, After(next_good.id), After(mend.id, "ended"), ahead=True),
            Task.of(next_good, After(good.id), ahead=True),
            Task.of(next_bad, After(bad.id), ahead=True),
            Task.of(mend, After(bad.id, "failed"), ahead=True),
            Task.of(good),
            Task.of(bad),
        ]
        with place.executor() as executor:
            graph = Graph(tasks, lambda _: executor)
            graph.submit()
        with place.executor() as other:  # which knows nothing of the graph
            over = followed(other, [graph.handles[task.name] for task in tasks])
        ended_well = [over[work.id].state for work in (good, next_good, mend, last)]
        assert ended_well == [RunState.DONE] * 4, over
        assert (over[bad.id].state, over[next_bad.id].state) == (RunState.FAILED, RunState.CANCELLED)
        lines = log.read_text().split()
        assert sorted(lines) == ["bad", "good", "last", "mend", "next"]
        assert lines.index("good") < lines.index("next") < lines.index("last")
        assert lines.index("bad") < lines.index("mend") < lines.index("last")

    def test_two_processes_that_submit_it_execute_it_once(self, place: ExecutorSetup) -> None:
        count = place.folder / "count"
        works = place.works(f"echo once >> {count}; sleep 2", 1)
        other = place.process(works)
        try:
            with place.executor() as executor:
                (status,) = followed(executor, executor.submit(works)).values()
            assert other.wait(_PATIENCE_S) == 0
        finally:
            other.kill()
            other.wait()
        assert status.state is RunState.DONE
        assert count.read_text() == "once\n"

    def test_two_processes_that_go_on_with_a_run_execute_it_once(self, place: ExecutorSetup) -> None:
        count = place.folder / "count"
        first = place.run(f"echo try >> {count}; test $(wc -l < {count}) -gt 1 && sleep 2")
        with place.executor() as executor:
            (status,) = followed(executor, executor.submit([first])).values()
        assert status.state is RunState.FAILED
        again = place.begun(first.id)
        other = place.process([again])
        try:
            with place.executor() as executor:
                (status,) = followed(executor, executor.submit([again])).values()
            assert other.wait(_PATIENCE_S) == 0
        finally:
            other.kill()
            other.wait()
        assert status.state is RunState.DONE
        assert count.read_text() == "try\ntry\n"
        assert _attempts(place.runs.get(first.id)) == 2

    def test_it_is_collected_after_its_submitter_was_killed(self, place: ExecutorSetup) -> None:
        mark = place.folder / "began"
        works = place.works(f"touch {mark}; sleep 2; echo all of it", 1)
        handles = [Handle.of(work) for work in works]
        other = place.process(works)
        wait_for(lambda: mark.exists() or other.poll() is not None)
        os.kill(other.pid, signal.SIGKILL)
        other.wait()
        with place.executor() as executor:
            (status,) = followed(executor, handles).values()
            if not self.outlives:
                assert status.state is RunState.INTERRUPTED
                (status,) = followed(executor, executor.submit(works)).values()
            run = executor.collect(handles[0])
        assert (status.state, run.state) == (RunState.DONE, RunState.DONE)
        assert place.runs.output(run.id).endswith(b"all of it\n")
        assert _attempts(run) == (1 if self.outlives else 2)


def main(arguments: Sequence[str]) -> int:
    """`executors KIND SYSTEM FOLDER NUMBER…`, or `- RUN…` for runs: submit, follow, tell whether all are done."""
    kind, system, folder, *names = arguments
    workspace = Workspace.open()
    runs, place = workspace.runs, "" if system == "-" else system
    works: Sequence[Work]
    if folder == "-":
        works = [PreparedRun(run.folder, run.record, run.spec) for run in map(runs.get, names)]
    else:
        statuses = runs.executors.statuses(Path(folder))
        works = [Member(Path(folder), int(n), statuses[int(n)].id, place) for n in names]
    with executor_of(runs, kind, place) as executor:
        over = followed(executor, executor.submit(works))
    others = [each for each in over.values() if each.state is not RunState.DONE]
    for each in others:
        sys.stderr.write(f"{each}\n")
    return 1 if others else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
