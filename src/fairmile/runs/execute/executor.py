"""One way to execute runs: planners make tasks with edges, and executors take them, here or elsewhere.

An executor records each task as a run, in a folder that is claimed by whoever executes it, so that two of them never
do so at once. What is done stays done; what did not come to its end goes on in its folder when it is submitted again:
that is how a run is retried and resumed.
"""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from fairmile.base.errors import UsageError
from fairmile.base.quick_dataclass import dataclass
from fairmile.runs.record.record import JobReference, RunRecord, TrialReference
from fairmile.runs.record.run import Run, RunState

if TYPE_CHECKING:
    from fairmile.jobs.spec import Nearby
    from fairmile.runs.execute.worker import Look
    from fairmile.runs.record.spec import RunSpec

Condition = Literal["done", "failed", "ended", "over"]

_LOOK_S = 0.5  # between two looks at several executors
_ASK_AGAIN_S = 1.0  # for work that could not be made yet
_FAILED = frozenset({RunState.FAILED, RunState.TIMEOUT, RunState.INTERRUPTED})


@dataclass(frozen=True)
class PreparedRun:
    """A run of its own: its folder is made and its inputs are known; what it works on is materialized where it runs."""

    folder: Path
    record: RunRecord
    spec: RunSpec
    from_snapshot: bool = False  # its program is the one that was kept, not what lies in the folder now
    # Inputs by name that an earlier job leaves on the same remote system; one without a digest is still to be made.
    nearby: Mapping[str, Nearby] = field(default_factory=dict)
    leaves_outputs: bool = False  # on a remote system: nothing but its record comes back by itself
    id: str = field(init=False)
    system: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", self.folder.name)
        object.__setattr__(self, "system", self.spec.system)


@dataclass(frozen=True)
class Member:
    """A run of a batch, which was prepared once for all of its members."""

    batch: Path
    number: int
    id: str  # of its run
    system: str = ""
    line: Mapping[str, Any] | None = None  # the member, where the batch does not list it, as a trial
    job: JobReference | None = None  # that carries this process
    trial: TrialReference | None = None  # that it is
    mended: bool = False  # one that did not succeed goes on with the program as the batch has it now
    look: Look | None = None  # asked while it runs here: why it is to be stopped, or nothing
    then: Callable[[RunRecord], None] | None = None  # may add to its record what the end shows


@dataclass(frozen=True)
class Loop:
    """A planner that runs inside of a task: it asks for the next run until there is none, and executes each in place.

    Python starts `module` with the folder of the batch and `arguments`. What it prints goes to `log` in that folder.
    """

    batch: Path
    number: int
    module: str
    arguments: tuple[str, ...] = ()
    system: str = ""
    log: str = "workers.log"
    launch: str = ""  # how a system starts what it executes, where that is not as the specification says

    @property
    def id(self) -> str:
        return f"{self.batch.name}/{self.number}"


Work = PreparedRun | Member | Loop


@dataclass(frozen=True)
class Launch:
    """How the program of a prepared run is started on this machine."""

    argv: Sequence[str]
    env: Mapping[str, str]
    given: Mapping[str, str]  # of `env` what a person has given it


class RunHost(Protocol):
    """The runs of a workspace, as executors need them."""

    def collect(self, reference: str) -> Run:
        """Return a run, brought up to date with what executes it."""

    def end(self, id: str) -> None:
        """End a run that some process of this machine executes."""

    def launch(self, work: PreparedRun) -> Launch:
        """Materialize what a run works on, and return how its program is started."""

    def conclude(self, run: Run) -> None:
        """Keep what a run of its own left, and what later ones can tell from it."""


@dataclass(frozen=True)
class After:
    """Another task that must have ended: well, with a failure, or either way; a cancelled one is none of these.

    `over` holds in any case, also where the other one never began. With `is_here` its end is waited for in this
    process, even by a task that is submitted ahead of others.
    """

    task: str
    condition: Condition = "done"
    is_here: bool = False

    def holds(self, state: RunState) -> bool:
        is_done, is_failed = state is RunState.DONE, state in _FAILED
        return {"done": is_done, "failed": is_failed, "ended": is_done or is_failed, "over": True}[self.condition]


@dataclass(frozen=True)
class Task:
    """One run to execute, when the tasks `after` which it comes allow that, and again after a failure.

    `work` may be made when it can begin, from the runs of those tasks; a Run that it returns stands for a new one, and
    a status says that there is none, or, where that is no end, that it is to be made later. Before the first retry it
    pauses `backoff_s`, before each further one twice as long as before. A task that is submitted `ahead` waits on the
    system that executes it and those before it, so that nobody has to stay for it: its work is made while those runs
    are still queued, and they are not tried again. Its end is told after theirs.
    """

    name: str
    work: Work | Callable[[Mapping[str, Run]], Work | Run | TaskStatus]
    after: tuple[After, ...] = ()
    retries: int = 0
    ahead: bool = False
    backoff_s: float = 0.0

    @classmethod
    def of(cls, work: Work, *after: After, retries: int = 0, ahead: bool = False) -> Task:
        """Return the task that executes a run, named as that."""
        return cls(work.id, work, after, retries, ahead)


@dataclass(frozen=True)
class Handle:
    """What is needed to find a task again, in any process: the id of its run, and the batch it is a member of.

    A loop has no run of its own: a job array and its number stand for that.
    """

    run: str
    batch: Path | None = field(default=None, compare=False)

    @classmethod
    def of(cls, work: Work) -> Handle:
        return cls(work.id, None if isinstance(work, PreparedRun) else work.batch)


@dataclass(frozen=True)
class TaskStatus:
    """Where a task stands, and why."""

    handle: Handle
    state: RunState
    reason: str = ""

    @property
    def is_over(self) -> bool:
        return self.state.is_end


class Executor(Protocol):
    """Executes runs somewhere. What it was given is found again by its handles, also by another process."""

    def submit(self, works: Sequence[Work]) -> list[Handle]:
        """Take runs and return without waiting for them; what is done, or under way already, begins no second time."""

    def poll(self, handles: Collection[Handle], *, wait_s: float = 0.0) -> list[TaskStatus]:
        """Return what is new of these tasks since the last call, after waiting for news at most so long.

        An executor that works in this process executes there what waits, and returns when one has ended.
        """

    def cancel(self, handles: Collection[Handle]) -> None:
        """End tasks that run, politely first, and have those that wait never begin."""

    def collect(self, handle: Handle) -> Run:
        """Return the run of a task with its record here, complete where it has ended."""


@runtime_checkable
class Chaining(Protocol):
    """An executor whose system holds tasks back by itself, until others that it executes have ended."""

    def submit_after(self, works: Sequence[Work], after: Mapping[Handle, Condition]) -> list[Handle]:
        """Take runs that begin when all of those have ended as their conditions say, or are cancelled by the system.

        Of members of a batch the whole job array is waited for. A cancelled run counts as the system counts it.
        """


class Graph:
    """Tasks with edges on their way through executors; `place` says which takes a run, `on_end` is told of each end."""

    def __init__(
        self,
        tasks: Sequence[Task],
        place: Callable[[Work], Executor],
        on_end: Callable[[str, TaskStatus], None] = lambda _, __: None,
    ) -> None:
        self._place, self._on_end = place, on_end
        self._tasks: dict[str, Task] = {}
        self._followers: dict[str, list[tuple[str, After]]] = {}
        self._needed: dict[str, int] = {}
        self._ready: deque[str] = deque()
        self._later: list[tuple[float, str]] = []  # tasks that pause before they are tried again, and until when
        self._early: dict[str, TaskStatus] = {}  # tasks submitted ahead that have ended before others are known to have
        self._is_cancelled = False
        self._cancelled: set[Handle] = set()  # those that executors were asked to cancel
        self._live: dict[Executor, dict[Handle, str]] = {}
        self._tries: dict[str, int] = {}
        self.works: dict[str, Work] = {}  # what was handed over, by the names of tasks
        self._executors: dict[str, Executor] = {}
        self._known: dict[str, Run] = {}  # what stands for a task that need not be executed
        self.over: dict[str, TaskStatus] = {}  # by the names of tasks
        self.handles: dict[str, Handle] = {}
        self.add(tasks)

    def __contains__(self, name: str) -> bool:
        return name in self._tasks

    def add(self, tasks: Sequence[Task]) -> None:
        """Take more tasks; they may come after those that are over already."""
        self._tasks |= {task.name: task for task in tasks}
        for task in tasks:
            self._needed[task.name] = len(task.after)
            for each in task.after:
                self._check_edge(task, each)
                self._followers.setdefault(each.task, []).append((task.name, each))
        for task in tasks:
            if not task.after:
                self._ready.append(task.name)
            for each in task.after:
                status = self.over.get(each.task)
                if status is not None and (blocked := self._reach(task.name, each, status)) is not None:
                    self._end(task.name, blocked)

    def _check_edge(self, task: Task, after: After) -> None:
        before = self._tasks.get(after.task)
        if before is None:
            raise UsageError(f"task {task.name} depends on {after.task}, which does not exist")
        if task.ahead and before.retries and not after.is_here:
            raise UsageError(
                f"task {task.name} cannot be submitted ahead: {before.name}, before it, may be retried",
                hint=f"drop the retries of {before.name}, or submit {task.name} when that has ended",
            )

    def submit(self) -> None:
        """Hand over what may begin now, and what is submitted ahead of that."""
        while self._later and self._later[0][0] <= time.monotonic():
            self._ready.append(heapq.heappop(self._later)[1])
        while self._ready:
            groups: dict[tuple[Executor, tuple[tuple[Handle, Condition], ...]], list[str]] = {}
            while self._ready:
                name = self._ready.popleft()
                made = self._made(name)
                if isinstance(made, TaskStatus) and not made.is_over:
                    heapq.heappush(self._later, (time.monotonic() + _ASK_AGAIN_S, name))
                    continue
                if isinstance(made, Run | TaskStatus):
                    self._end(name, made if isinstance(made, TaskStatus) else TaskStatus(Handle(made.id), made.state))
                    continue
                executor = self._place(made)
                pending = tuple(self._pending(name, executor).items())
                self.works[name], self._executors[name] = made, executor
                if callable(self._tasks[name].work):  # else one that cannot be made leaves those before it behind
                    self._hand_over(executor, pending, [name])
                else:
                    groups.setdefault((executor, pending), []).append(name)
            for (executor, pending), names in groups.items():
                self._hand_over(executor, pending, names)

    def _pending(self, name: str, executor: Executor) -> dict[Handle, Condition]:
        """Return what a task has to wait for on its executor, which must be that of the others."""
        pending: dict[Handle, Condition] = {}
        for each in self._tasks[name].after:
            if each.task in self.over:
                continue
            if self._executors[each.task] is not executor or not isinstance(executor, Chaining):
                raise UsageError(
                    f"task {name} cannot be submitted ahead: {each.task}, before it, is not on the same system",
                    hint=f"submit {name} when {each.task} has ended",
                )
            pending[self.handles[each.task]] = each.condition
        return pending

    def _hand_over(self, executor: Executor, pending: Sequence[tuple[Handle, Condition]], names: Sequence[str]) -> None:
        works = [self.works[name] for name in names]
        if pending and isinstance(executor, Chaining):
            handles = executor.submit_after(works, dict(pending))
        else:
            handles = executor.submit(works)
        is_first = [name for name in names if name not in self.handles]
        self.handles |= dict(zip(names, handles, strict=True))
        self._live.setdefault(executor, {}).update(zip(handles, names, strict=True))
        for name in is_first:
            for follower, edge in self._followers.get(name, ()):
                if self._tasks[follower].ahead and not edge.is_here:
                    self._pass(follower)

    def follow(self) -> dict[str, TaskStatus]:
        """Carry all tasks to their ends and return how each ended; what comes after a bad end is not begun."""
        while self.advance():
            pass
        if left := self._tasks.keys() - self.over.keys():
            raise UsageError(f"tasks depend on each other: {', '.join(sorted(left))}")
        return self.over

    def advance(self) -> bool:
        """Hand over what may begin, take what has ended since, and tell whether there is anything left to wait for."""
        self.submit()
        if not self._live and self._later:
            time.sleep(min(max(self._later[0][0] - time.monotonic(), 0.0), _LOOK_S))
        wait_s = _LOOK_S / max(len(self._live), 1)
        for executor, live in list(self._live.items()):
            for status in executor.poll(live.keys(), wait_s=wait_s):
                if not status.is_over or status.handle not in live:
                    continue
                name = live.pop(status.handle)
                if not self._tries_again(name, status):
                    self._end(name, status)
            if not live:
                del self._live[executor]
        return bool(self._live or self._ready or self._later)

    def waits_only_for(self, executors: Collection[Executor]) -> bool:
        """Tell whether nothing is left to do here before a run of one of some executors has ended."""
        return not (self._ready or self._later) and all(each in executors for each in self._live)

    @property
    def executors(self) -> Collection[Executor]:
        """The executors that have tasks which have not ended."""
        return self._live.keys()

    def cancel(self) -> None:
        """End what runs, each asked for once, and have nothing more begin; `advance` tells of the ends."""
        self._is_cancelled = True
        while self._ready or self._later:
            name = self._ready.popleft() if self._ready else self._later.pop()[1]
            self._end(name, TaskStatus(Handle(""), RunState.CANCELLED, "it was cancelled before it began"))
        for executor, live in self._live.items():
            if handles := [handle for handle in live if handle not in self._cancelled]:
                executor.cancel(handles)
                self._cancelled.update(handles)

    def has_begun(self, name: str) -> bool:
        """Tell whether there is a run of a task: one after a bad end, or that was cancelled, has none."""
        return name in self._known or (name in self.handles and name in self.over and bool(self.over[name].handle.run))

    def collect(self, name: str) -> Run:
        """Return the run of a task."""
        known = self._known.get(name)
        return known if known is not None else self._executors[name].collect(self.handles[name])

    def _made(self, name: str) -> Work | Run | TaskStatus:
        task = self._tasks[name]
        if name in self.works:
            return self.works[name]
        if not callable(task.work):
            return task.work
        if self._is_cancelled:
            return TaskStatus(Handle(""), RunState.CANCELLED, "it was cancelled before it began")
        made = task.work(_RunsBefore(self, task.after))
        if isinstance(made, Run):
            self._known[name] = made
        return made

    def _tries_again(self, name: str, status: TaskStatus) -> bool:
        """Have a task that failed executed once more, where it may be."""
        tried = self._tries.get(name, 0)
        task = self._tasks[name]
        if status.state in (RunState.DONE, RunState.CANCELLED) or tried >= task.retries or self._is_cancelled:
            return False
        self._tries[name] = tried + 1
        heapq.heappush(self._later, (time.monotonic() + task.backoff_s * 2**tried, name))
        return True

    def _end(self, name: str, status: TaskStatus) -> None:
        """Note the end of a task, and of those that cannot begin because of it."""
        waiting = [(name, status)]
        while waiting:
            name, status = waiting.pop()
            if name in self.over:
                continue
            if status.handle.run and any(each.task not in self.over for each in self._tasks[name].after):
                self._early[name] = status
                continue
            self.over[name] = status
            self._on_end(name, status)
            for follower, edge in self._followers.get(name, ()):
                if (blocked := self._reach(follower, edge, status)) is not None:
                    waiting.append((follower, blocked))
                elif follower in self._early:
                    waiting.append((follower, self._early.pop(follower)))

    def _reach(self, name: str, edge: After, status: TaskStatus) -> TaskStatus | None:
        """Tell a task that one before it has ended; return its own end where it cannot begin any more."""
        if name in self.over or name in self.handles:  # its system decides about what was submitted ahead
            return None
        if not edge.holds(status.state):
            return TaskStatus(Handle(""), RunState.CANCELLED, f"its dependency {edge.task} is {status.state}")
        was_passed = self._tasks[name].ahead and not edge.is_here and edge.task in self.handles
        if not was_passed:  # when that was handed over
            self._pass(name)
        return None

    def _pass(self, name: str) -> None:
        """Note that one more task no longer keeps this one from being handed over."""
        self._needed[name] -= 1
        if not self._needed[name] and name not in self.over:
            self._ready.append(name)


class _RunsBefore(Mapping[str, Run]):
    """The runs of the tasks before another one, each collected when it is looked at."""

    def __init__(self, graph: Graph, after: Sequence[After]) -> None:
        self._graph, self._after = graph, after

    def __getitem__(self, name: str) -> Run:
        return self._graph.collect(name)

    def __iter__(self) -> Iterator[str]:
        return (each.task for each in self._after)

    def __len__(self) -> int:
        return len(self._after)
