"""One job, or all tasks of an array, while the evidence of where it stands is collected. No input or output here."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from fairmile.base.quick_dataclass import dataclass
from fairmile.jobs.folders import Notes
from fairmile.jobs.judge import Evidence, TaskStatus, judge, note_lines
from fairmile.jobs.records import Known, Record
from fairmile.jobs.states import Observed, State


@dataclass
class Weighed:
    """One job while its evidence is collected."""

    record: Record
    known: Known | None
    notes: Notes
    keeps_accounts: bool
    asked: bool = False
    listed: dict[str, Observed] = dataclasses.field(default_factory=dict)
    past: dict[str, Observed] = dataclasses.field(default_factory=dict)
    missing_since: float | None = None
    now: float = 0.0
    trouble: str = ""
    _judged: list[TaskStatus] | None = None  # by the evidence so far

    def __post_init__(self) -> None:
        if self.known is not None:
            self.listed = self.known.observed
            self.missing_since = self.known.missing_since
            self.trouble = self.known.trouble

    @property
    def is_settled(self) -> bool:
        """Tell whether the job had ended when it was last looked at, and only its usage is still to be counted."""
        return self.known is not None and self.known.is_over

    @property
    def indices(self) -> range | None:
        spec = self.record.spec
        return range(spec.array.count) if spec.array else range(spec.parts) if spec.parts else None

    def hear(self, listed: dict[str, Observed], past: dict[str, Observed], now: float) -> None:
        """Take in what the scheduler said."""
        self.asked, self.listed, self.past, self.now, self.trouble = True, listed, past, now, ""
        is_missing = self.is_missing_from(listed) and self.is_missing_from(past)
        self.missing_since = (self.missing_since or now) if is_missing else None
        self._judged = None

    def see(self, notes: Notes) -> None:
        """Take in what the job has noted meanwhile."""
        self.notes, self._judged = notes, None

    def is_missing_from(self, listed: dict[str, Observed]) -> bool:
        id = self.record.scheduler_id
        return id not in listed and not any(other.startswith(f"{id}_") for other in listed)

    @property
    def wants_word(self) -> bool:
        """Tell whether the scheduler could say more than the job's own notes do."""
        return not self.is_settled and any(not each.state.is_end for each in self._statuses())

    def _statuses(self) -> list[TaskStatus]:
        """Return where the job stands, or each task of an array."""
        if self._judged is None:
            self._judged = self._judge()
        return self._judged

    def _judge(self) -> list[TaskStatus]:
        whole = self.record.scheduler_id
        if self.record.spec.array is None:
            return [judge(self._evidence_of("", whole))]
        # A scheduler forgets tasks that ended while others go on: an end that was known stays.
        ended = {n: task for n, task in (self.known.tasks if self.known else {}).items() if task.state.is_end}
        return [
            ended[n] if n in ended else judge(self._evidence_of(f".{n}", f"{whole}_{n}")) for n in self.indices or ()
        ]

    def _evidence_of(self, suffix: str, id: str) -> Evidence:
        whole = self.record.scheduler_id
        return Evidence(
            self.notes.get(f"started{suffix}", ""),
            self.notes.get(f"ended{suffix}", ""),
            self.listed.get(id) or self.listed.get(whole),
            self.past.get(id) or self.past.get(whole),
            self.asked,
            self.now - self.missing_since if self.missing_since is not None and self.now else 0.0,
            self.record.cancelled,
            self.keeps_accounts,
            None if self.keeps_accounts else self.record.spec.resources.time_s,
        )

    def verdict(self) -> Known:
        """Return where the job and its tasks stand."""
        if self.is_settled and self.known is not None:
            return self.known
        if not self.record.submitted:
            status = self.known.status if self.known else TaskStatus(State.QUEUED, "it is being submitted")
            return Known(status, trouble=self.trouble, counted=status.state.is_end)
        if self.record.spec.array is not None:
            tasks = dict(enumerate(self._statuses()))
            return Known(_together(tasks), tasks, self._last_answers(tasks.values()), self.missing_since, self.trouble)
        status = self._statuses()[0]
        tasks = {}
        for index in self.indices or ():
            evidence = Evidence(self.notes.get(f"started.{index}", ""), self.notes.get(f"ended.{index}", ""))
            task = judge(evidence)
            # A part that never started ended with its job.
            tasks[index] = (
                replace(task, state=State.CANCELLED) if status.state.is_end and not task.state.is_end else task
            )
        return Known(status, tasks, self._last_answers([status]), self.missing_since, self.trouble)

    def _last_answers(self, statuses: Iterable[TaskStatus]) -> dict[str, Observed]:
        """Return what the scheduler last said, for the time until it may be asked again; nothing once all has ended."""
        id = self.record.scheduler_id
        if all(status.state.is_end for status in statuses):
            return {}
        return {each: answer for each, answer in self.listed.items() if each == id or each.startswith(f"{id}_")}


def _together(tasks: dict[int, TaskStatus]) -> TaskStatus:
    """Return where an array stands as a whole: it goes on while one task does, and fails with the first that failed."""
    live = [task for task in tasks.values() if not task.state.is_end]
    times = [task.started for task in tasks.values() if task.started is not None]
    started = min(times, default=None)
    if live:
        running = [task for task in live if task.state is State.RUNNING]
        return replace((running or live)[0], started=started, exit_code=None)
    ends = [task.ended for task in tasks.values() if task.ended is not None]
    bad = [(index, task) for index, task in sorted(tasks.items()) if task.state is not State.DONE]
    whole = TaskStatus(State.DONE, exit_code=0, started=started, ended=max(ends, default=None))
    if not bad:
        return whole
    index, first = bad[0]
    sentence = f"{len(bad)} of {len(tasks)} tasks did not succeed; the first is task {index}: {first.sentence}"
    return replace(whole, state=first.state, sentence=sentence, exit_code=first.exit_code, signal=first.signal)


def with_usage(known: Known, id: str, past: Mapping[str, Observed]) -> Known:
    """Return what is known of a job with what the accounting counted for it and for its tasks."""
    tasks = {index: _used(task, past.get(f"{id}_{index}")) for index, task in known.tasks.items()}
    return replace(known, status=_used(known.status, past.get(id)), tasks=tasks)


def _used(status: TaskStatus, observed: Observed | None) -> TaskStatus:
    return status if observed is None or observed.usage is None else replace(status, usage=observed.usage)


def noted_id(notes: Notes, earlier: Collection[str]) -> str | None:
    """Return the scheduler's id that a job noted when it started, unless it is that of an earlier attempt."""
    for name, text in notes.items():
        if name.startswith("started"):
            for start in reversed(note_lines(text)):
                id = str(start.get("job", "")).partition("_")[0]
                if id and id not in earlier:
                    return id
    return None
