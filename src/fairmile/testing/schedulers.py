"""Conformance suites for schedulers: subclass one, fill in its fixture, and pytest runs it.

    class TestMyDialect(SchedulerTests):
        @pytest.fixture
        def subject(self) -> Subject:
            return Subject(MyScheduler(), prefix="#MINE ", submits=[(Answer("job 7 taken"), "7")], …)

    class TestMyScheduler(LiveSchedulerTests):
        @pytest.fixture
        def cluster(self, tmp_path: Path) -> Iterator[Cluster]:
            with my_scheduler(tmp_path) as running:
                yield Cluster(MyScheduler(), running.runner, tmp_path, unknown_id="999999")

The first reads what a scheduler's commands print and needs no scheduler; the second needs one that runs. What a kind
of scheduler cannot do at all is stated by the class attributes, never by leaving out a test.
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from itertools import pairwise
from pathlib import Path
from typing import ClassVar, TypeVar

import pytest
from pydantic import ValidationError

from fairmile.base.commands import Result, Runner
from fairmile.base.errors import FairmileError, Transient, Unsupported, UsageError
from fairmile.base.quick_dataclass import dataclass
from fairmile.jobs.request import JobFiles, Request
from fairmile.jobs.schedulers import Question, Scheduler
from fairmile.jobs.spec import JobSpec
from fairmile.jobs.states import Observed, State
from fairmile.testing.suites import Suite, asked_only_with

V = TypeVar("V")

AWKWARD_PATH = '/scratch/it\'s a $(touch mark) `x` "q" & ; folder/job.sh'
NO_STATE = "FROZZLED"
VARIABLES = ("FAIRMILE_JOB_ID", "FAIRMILE_ARRAY_INDEX", "FAIRMILE_NODES")
GARBAGE = (
    "\n\n",
    "|",
    "||||||||||",
    "{",
    "[]",
    "null",
    "\x00\x01\ufffd",
    "Last login: Mon from 192.0.2.1\n*** maintenance on Tuesday ***\n",
    "7\n8\n9\n",
    "🙂🙂🙂",
)
_PATIENCE_S = 120.0
_PAUSE_S = 0.1


@dataclass(frozen=True)
class Answer:
    """What a command printed and how it ended."""

    stdout: str = ""
    stderr: str = ""
    exit_code: int = 0


@dataclass(frozen=True)
class Listing:
    """An answer about jobs, the ids that were asked for, and what it says of them.

    Of an expected observation only the values count that differ from those of `Observed(state)`.
    """

    answer: Answer
    asked: Sequence[str]
    expected: Mapping[str, Observed]


@dataclass(frozen=True)
class Subject:
    """A dialect and what its scheduler's commands say.

    `listing` gives the answer in which one job, `listed`, is in a state, given by the scheduler's own word for it;
    `states` has what each of these words means. `outages` are answers of a scheduler that is not there just now,
    `refusals` those to a submission that its user has to change, and `cancels` those to the cancelling of jobs,
    some of which ended before or were never known. `search` is a key, an answer to the search for it, and the id.
    """

    scheduler: Scheduler
    prefix: str
    submits: Sequence[tuple[Answer, str]]
    listing: Callable[[str], Answer]
    listed: str
    states: Mapping[str, State]
    listings: Sequence[Listing]
    absent: Listing
    arrays: Sequence[Listing] = ()
    histories: Sequence[Listing] = ()
    refusals: Sequence[Answer] = ()
    outages: Sequence[Answer] = ()
    cancels: Sequence[Answer] = (Answer(),)
    search: tuple[str, Answer, str] | None = None


def made_request(spec: JobSpec) -> Request:
    """Return a request for one small job, for schedulers that need nothing more."""
    asked = spec.resources
    return Request(
        spec,
        system="test",
        nodes=asked.nodes or 1,
        tasks_per_node=asked.tasks_per_node or 1,
        cpus_per_task=asked.cpus_per_task,
        gpus_per_node=asked.gpus_per_node or 0,
        time_s=asked.time_s,
        memory_gib=asked.memory_gib,
        partition=asked.partition,
        account=asked.account,
        qos=asked.qos,
        exclusive=asked.exclusive,
        launch="plain",
        options=asked.options,
    )


def read_answer(question: Question[V], answer: Answer) -> V:
    """Return what a question reads from an answer."""
    return question.read(Result(question.argv, answer.exit_code, answer.stdout, answer.stderr, 0.1))


class SchedulerTests(Suite):
    """What every dialect must do with text."""

    has_arrays: ClassVar[bool] = True  # a batch script can be an array
    has_keys: ClassVar[bool] = True  # a job can be found by its key
    has_directives: ClassVar[bool] = True  # every line of the header begins with the prefix

    @pytest.fixture
    def subject(self) -> Subject:
        raise NotImplementedError("fill in the fixture `subject`")

    # Scripts

    def test_a_script_learns_its_id_its_number_and_its_nodes(self, subject: Subject) -> None:
        assert set(VARIABLES) <= set(subject.scheduler.variables)
        assert subject.scheduler.name

    @asked_only_with("has_directives")
    def test_every_directive_is_one_line_that_begins_with_the_prefix(self, subject: Subject) -> None:
        for spec in self._specs():
            for line in subject.scheduler.header(made_request(spec), self._files(subject)):
                assert line.startswith(subject.prefix) and line.strip() != subject.prefix.strip()
                assert line.isprintable(), f"more than one line: {line!r}"

    @asked_only_with("has_directives")
    def test_what_a_job_asks_for_stands_in_its_header(self, subject: Subject) -> None:
        spec = JobSpec.model_validate(
            {
                "argv": ["true"],
                "name": "train",
                "resources": {"nodes": 3, "partition": "booster", "account": "abc123", "time_s": 5400},
            }
        )
        header = "\n".join(subject.scheduler.header(made_request(spec), self._files(subject)))
        for word in ("train", "booster", "abc123", "3"):
            assert word in header

    @asked_only_with("has_arrays")
    def test_an_array_changes_the_header(self, subject: Subject) -> None:
        one, many = JobSpec(argv=("true",)), JobSpec.model_validate({"argv": ["true"], "array": {"count": 10}})
        header = subject.scheduler.header
        assert header(made_request(one), self._files(subject)) != header(made_request(many), self._files(subject))

    def test_an_array_that_cannot_be_is_refused(self, subject: Subject) -> None:
        many = JobSpec.model_validate({"argv": ["true"], "array": {"count": 10}})
        if self.has_arrays:
            assert subject.scheduler.header(made_request(many), self._files(subject)) is not None
        else:
            with pytest.raises(Unsupported):
                subject.scheduler.header(made_request(many), self._files(subject))

    @pytest.mark.parametrize(
        "values",
        [
            {"name": "a\n#SBATCH --uid=0"},
            {"name": "-rf"},
            {"resources": {"partition": "a\nb"}},
            {"resources": {"account": "a b"}},
            {"resources": {"constraint": "$(reboot)"}},
            {"resources": {"options": ["--x\n#BSUB -u root"]}},
        ],
    )
    def test_no_value_of_a_job_can_break_out_of_its_line(self, values: Mapping[str, object]) -> None:
        with pytest.raises(ValidationError):
            JobSpec.model_validate({"argv": ["true"], **values})

    @asked_only_with("has_directives")
    @pytest.mark.parametrize("key", ["two words", "two\nlines", "$(reboot)", '"', "a;b"])
    def test_a_key_that_could_break_out_is_refused(self, subject: Subject, key: str) -> None:
        files = replace(self._files(subject), key=key)
        with pytest.raises(UsageError):
            subject.scheduler.header(made_request(JobSpec(argv=("true",))), files)

    @asked_only_with("has_directives")
    @pytest.mark.parametrize("folder", ["/a\n#PBS -q x", '/a"b', "/a\x07b"])
    def test_a_folder_that_could_break_out_is_refused(self, subject: Subject, folder: str) -> None:
        files = replace(self._files(subject), folder=folder)
        with pytest.raises(UsageError):
            subject.scheduler.header(made_request(JobSpec(argv=("true",))), files)

    # Commands

    def test_commands_are_words_and_no_value_becomes_part_of_a_shell_text(self, subject: Subject) -> None:
        scheduler, ids = subject.scheduler, [id for _, id in subject.submits]
        files = replace(self._files(subject), folder="")
        commands = [
            scheduler.submit(AWKWARD_PATH, files).argv,
            scheduler.status(ids).argv,
            scheduler.cancel(ids).argv,
            scheduler.find("key-1").argv,
        ]
        for argv in commands:
            assert argv and all(isinstance(word, str) for word in argv)
            assert not argv[0].startswith("-")
            for before, word in pairwise(argv):
                if before == "-c":
                    assert "mark" not in word and "key-1" not in word and not any(id in word.split() for id in ids)
        assert AWKWARD_PATH in commands[0], "the path of the script is one word"

    # Submitting

    def test_the_id_is_read_from_the_answer_to_a_submission(self, subject: Subject) -> None:
        assert subject.submits
        for answer, id in subject.submits:
            assert read_answer(subject.scheduler.submit("/x/job.sh", self._files(subject)), answer) == id

    def test_what_the_user_must_change_is_said_in_the_schedulers_words(self, subject: Subject) -> None:
        for answer in subject.refusals:
            with pytest.raises(FairmileError) as caught:
                read_answer(subject.scheduler.submit("/x/job.sh", self._files(subject)), answer)
            assert not isinstance(caught.value, Transient), "a retry would not help"
            words = re.findall(r"[A-Za-z]{5,}", answer.stderr or answer.stdout)
            assert any(word in str(caught.value) for word in words)

    def test_a_submission_during_an_outage_may_be_tried_again(self, subject: Subject) -> None:
        for answer in subject.outages:
            with pytest.raises(Transient):
                read_answer(subject.scheduler.submit("/x/job.sh", self._files(subject)), answer)

    def test_an_answer_without_an_id_is_never_an_id(self, subject: Subject) -> None:
        for answer in (Answer(""), Answer("Thank you.\n"), Answer("", "something went wrong", 1)):
            with pytest.raises(FairmileError):
                read_answer(subject.scheduler.submit("/x/job.sh", self._files(subject)), answer)

    # Looking

    def test_listings_are_read(self, subject: Subject) -> None:
        assert subject.listings
        for listing in subject.listings:
            _compare(read_answer(subject.scheduler.status(listing.asked), listing.answer), listing)

    def test_histories_are_read(self, subject: Subject) -> None:
        for listing in subject.histories:
            question = subject.scheduler.history(listing.asked)
            assert question is not None, "there is a recorded history, so there is a question for it"
            _compare(read_answer(question, listing.answer), listing)

    def test_tasks_of_an_array_are_numbered_from_zero(self, subject: Subject) -> None:
        for listing in subject.arrays:
            assert any(re.fullmatch(r".+_\d+", id) for id in listing.expected)
            _compare(read_answer(subject.scheduler.status(listing.asked), listing.answer), listing)

    def test_one_task_of_an_array_can_be_asked_for_and_ended(self, subject: Subject) -> None:
        for listing in subject.arrays:
            task = next(id for id in listing.expected if id not in listing.asked)
            assert task in read_answer(subject.scheduler.status([task]), listing.answer)
            assert subject.scheduler.cancel([task]).argv

    def test_every_word_for_a_state_is_known(self, subject: Subject) -> None:
        for word, state in subject.states.items():
            seen = read_answer(subject.scheduler.status([subject.listed]), subject.listing(word))
            assert seen[subject.listed].state is state, word
            assert seen[subject.listed].native == word

    def test_a_word_that_nobody_knows_is_no_error_and_no_end(self, subject: Subject) -> None:
        seen = read_answer(subject.scheduler.status([subject.listed]), subject.listing(NO_STATE))[subject.listed]
        assert seen.state is State.UNKNOWN and not seen.state.is_end
        assert seen.native == NO_STATE

    def test_a_bad_end_is_told_in_a_sentence(self, subject: Subject) -> None:
        for listing in (*subject.listings, *subject.arrays):
            for id, seen in read_answer(subject.scheduler.status(listing.asked), listing.answer).items():
                if seen.state.is_end and seen.state is not State.DONE:
                    assert seen.sentence, f"no reason is given for the end of {id}"

    def test_a_job_that_is_not_listed_is_absent(self, subject: Subject) -> None:
        assert subject.absent.asked
        _compare(read_answer(subject.scheduler.status(subject.absent.asked), subject.absent.answer), subject.absent)

    def test_no_output_means_no_jobs(self, subject: Subject) -> None:
        assert read_answer(subject.scheduler.status([subject.listed]), Answer()) == {}

    def test_asking_about_no_jobs_is_no_error(self, subject: Subject) -> None:
        assert read_answer(subject.scheduler.status([]), Answer()) == {}

    def test_an_outage_is_no_answer(self, subject: Subject) -> None:
        for answer in subject.outages:
            with pytest.raises(Transient):
                read_answer(subject.scheduler.status([subject.listed]), answer)

    @pytest.mark.parametrize("text", GARBAGE)
    def test_garbage_is_skipped_or_a_reason_to_ask_again(self, subject: Subject, text: str) -> None:
        assert _survives(subject.scheduler, [subject.listed], text) == {}

    def test_an_answer_that_breaks_off_is_no_error_of_another_kind(self, subject: Subject) -> None:
        for listing in subject.listings:
            text = listing.answer.stdout
            for length in range(0, len(text), max(1, len(text) // 200)):
                for id in _survives(subject.scheduler, listing.asked, text[:length]):
                    assert id in listing.expected

    # Finding and ending

    @asked_only_with("has_keys")
    def test_a_job_is_found_by_exactly_its_key(self, subject: Subject) -> None:
        assert subject.search is not None, "give an answer to the search for a key"
        key, answer, id = subject.search
        assert read_answer(subject.scheduler.find(key), answer) == id
        for other in (key[:-1], key + "0", key.upper() + "x", "", ".*"):
            if other != key:
                assert read_answer(subject.scheduler.find(other), answer) != id
        assert read_answer(subject.scheduler.find("no-such-key"), answer) is None

    def test_jobs_that_ended_already_are_no_error_to_cancel(self, subject: Subject) -> None:
        for answer in subject.cancels:
            read_answer(subject.scheduler.cancel([subject.listed]), answer)

    def test_a_cancelling_that_nobody_heard_is_an_error(self, subject: Subject) -> None:
        for answer in subject.outages:
            with pytest.raises(Transient):
                read_answer(subject.scheduler.cancel([subject.listed]), answer)

    def _specs(self) -> list[JobSpec]:
        documents: list[dict[str, object]] = [
            {"argv": ["true"]},
            {"argv": ["true"], "requeue": False, "signal": {"name": "USR1", "before_s": 60}},
            {
                "argv": ["true"],
                "resources": {
                    "nodes": 2,
                    "tasks_per_node": 4,
                    "cpus_per_task": 8,
                    "gpus_per_node": 4,
                    "memory_gib": 100,
                    "time_s": 90061,
                    "partition": "gpu",
                    "account": "a1",
                    "qos": "high",
                    "constraint": "a100",
                    "reservation": "course",
                    "exclusive": True,
                    "options": ["--hint=x"],
                },
            },
        ]
        if self.has_arrays:
            documents.append({"argv": ["true"], "array": {"count": 7, "at_once": 2}})
        return [JobSpec.model_validate(document) for document in documents]

    def _files(self, subject: Subject) -> JobFiles:
        after = subject.submits[0][1]
        return JobFiles(
            "/scratch/two words/job",
            "/scratch/work",
            key="key-1" if self.has_keys else "",
            after=((after, "ok"), (after, "any")),
            after_folders=("/scratch/one", "/scratch/two"),
            after_tasks=(1, 3),
        )


def _compare(seen: dict[str, Observed], listing: Listing) -> None:
    assert set(seen) == set(listing.expected)
    for id, expected in listing.expected.items():
        assert id in listing.asked or id.rpartition("_")[0] in listing.asked, "an id is one asked for, or a task of one"
        plain = Observed(expected.state)
        for name in ("state", "native", "reason", "sentence", "exit_code", "signal", "nodes", "restarts", "usage"):
            value = getattr(expected, name)
            if name == "state" or value != getattr(plain, name):
                assert getattr(seen[id], name) == value, f"{name} of {id}"


def _survives(scheduler: Scheduler, ids: Sequence[str], text: str) -> dict[str, Observed]:
    """Return what is read from a spoilt answer; that a second question is needed counts as nothing read."""
    try:
        return read_answer(scheduler.status(ids), Answer(text))
    except Transient:
        return {}


@dataclass(frozen=True)
class Cluster:
    """A scheduler that runs.

    `folder` is a place that its jobs see as well. `request` decides what a job leaves open, so that this scheduler
    takes it. `unknown_id` is an id of its kind that no job ever had.
    """

    scheduler: Scheduler
    runner: Runner
    folder: Path
    unknown_id: str
    request: Callable[[JobSpec], Request] = made_request
    _numbers: list[int] = field(default_factory=list)

    def ask(self, question: Question[V]) -> V:
        """Ask a question for real."""
        result = self.runner.run(question.argv, input=question.input, timeout_s=_PATIENCE_S, check=False)
        return question.read(result)

    def submit(self, body: str, *, key: str = "", **values: object) -> str:
        """Submit a script of some shell lines, whose folder is $HERE, and return its id."""
        self._numbers.append(len(self._numbers))
        folder = self.folder / f"job-{self._numbers[-1]}"
        folder.mkdir(parents=True)
        files = JobFiles(str(folder), str(folder), key=key)
        if "array" in values:
            files = replace(files, stdout="out.{index}.log", stderr="err.{index}.log")
        spec = JobSpec.model_validate({"argv": ["true"], **values})
        index = self.scheduler.variables["FAIRMILE_ARRAY_INDEX"] if "array" in values else ""
        lines = [
            "#!/bin/bash",
            *self.scheduler.header(self.request(spec), files),
            f"export HERE={shlex.quote(str(self.folder))}",
            f"export FAIRMILE_ARRAY_INDEX={index}",
            body,
        ]
        script = folder / "job.sh"
        script.write_text("\n".join(lines) + "\n")
        return self.ask(self.scheduler.submit(str(script), files))

    def look(self, *ids: str) -> dict[str, Observed]:
        """Return what the scheduler lists, and of jobs that it no longer lists, what its accounting remembers."""
        listed = self.ask(self.scheduler.status(ids))
        past: dict[str, Observed] = {}
        question = self.scheduler.history(ids)
        if question is not None:
            try:
                past = self.ask(question)
            except Unsupported:
                past = {}
        return {**past, **listed}

    def wait(self, wanted: Callable[[dict[str, Observed]], bool], *ids: str) -> dict[str, Observed]:
        """Look until what is seen is what is wanted."""
        deadline = time.monotonic() + _PATIENCE_S
        while not wanted(seen := self.look(*ids)):
            assert time.monotonic() < deadline, f"after {_PATIENCE_S:g} s still {seen}"
            time.sleep(_PAUSE_S)
        return seen

    def open_gate(self) -> None:
        """Let the jobs go on that wait for the file $HERE/gate."""
        (self.folder / "gate").touch()


WAIT_AT_GATE = 'while [ ! -e "$HERE/gate" ]; do sleep 0.1; done'


class LiveSchedulerTests(Suite):
    """What every scheduler that runs must do."""

    remembers: ClassVar[bool] = True  # the list or the accounting tells how a job ended
    lists_tasks: ClassVar[bool] = True  # the tasks of an array are listed one by one
    has_arrays: ClassVar[bool] = True
    has_keys: ClassVar[bool] = True

    @pytest.fixture
    def cluster(self, tmp_path: Path) -> Cluster:
        raise NotImplementedError("fill in the fixture `cluster`")

    def test_a_job_runs_and_ends_well(self, cluster: Cluster) -> None:
        id = cluster.submit(f'echo begun > "$HERE/begun"\n{WAIT_AT_GATE}')
        cluster.wait(lambda seen: _state(seen, id) is State.RUNNING, id)
        assert not cluster.look(id)[id].state.is_end
        cluster.open_gate()
        end = self._end(cluster, id)
        assert end is None or (end.state, end.exit_code) == (State.DONE, 0)
        assert (cluster.folder / "begun").read_text() == "begun\n"

    def test_a_job_that_fails_tells_its_exit_code(self, cluster: Cluster) -> None:
        end = self._end(cluster, cluster.submit("exit 3"))
        assert end is None or (end.state, end.exit_code) == (State.FAILED, 3)
        assert end is None or end.sentence

    def test_a_running_job_is_cancelled(self, cluster: Cluster) -> None:
        id = cluster.submit(f'echo begun > "$HERE/begun"\n{WAIT_AT_GATE}\ntouch "$HERE/passed"')
        _until((cluster.folder / "begun").exists)
        cluster.ask(cluster.scheduler.cancel([id]))
        end = self._end(cluster, id)
        assert end is None or end.state is State.CANCELLED
        cluster.open_gate()
        assert not (cluster.folder / "passed").exists()

    def test_cancelling_twice_and_after_the_end_is_no_error(self, cluster: Cluster) -> None:
        id = cluster.submit("exit 0")
        self._end(cluster, id)
        for _ in range(2):
            cluster.ask(cluster.scheduler.cancel([id]))
        end = self._end(cluster, id)
        assert end is None or end.state is State.DONE

    def test_several_jobs_are_seen_with_one_question(self, cluster: Cluster) -> None:
        ids = [cluster.submit(WAIT_AT_GATE) for _ in range(3)]
        assert len(set(ids)) == 3
        cluster.wait(lambda seen: set(ids) <= set(seen), *ids)
        cluster.open_gate()
        for id in ids:
            self._end(cluster, id)

    def test_an_id_that_no_job_has_is_absent(self, cluster: Cluster) -> None:
        id = cluster.submit(WAIT_AT_GATE)
        assert cluster.unknown_id not in cluster.look(id, cluster.unknown_id)
        assert cluster.ask(cluster.scheduler.status([cluster.unknown_id])) == {}
        cluster.ask(cluster.scheduler.cancel([cluster.unknown_id]))
        cluster.open_gate()
        self._end(cluster, id)

    @asked_only_with("has_arrays")
    def test_the_tasks_of_an_array_know_their_numbers(self, cluster: Cluster) -> None:
        id = cluster.submit('echo x > "$HERE/task.$FAIRMILE_ARRAY_INDEX"', array={"count": 3, "at_once": 2})
        self._end(cluster, id)
        _until(lambda: len(list(cluster.folder.glob("task.*"))) == 3)
        assert {path.name for path in cluster.folder.glob("task.*")} == {"task.0", "task.1", "task.2"}

    @asked_only_with("lists_tasks")
    def test_the_tasks_of_an_array_end_each_in_its_own_way(self, cluster: Cluster) -> None:
        id = cluster.submit("exit $((FAIRMILE_ARRAY_INDEX == 1 ? 5 : 0))", array={"count": 3})
        tasks = [f"{id}_{index}" for index in range(3)]
        seen = cluster.wait(lambda seen: all(_is_over(seen, task) for task in tasks), id)
        assert [seen[task].state for task in tasks] == [State.DONE, State.FAILED, State.DONE]
        assert seen[tasks[1]].exit_code == 5

    @asked_only_with("lists_tasks")
    def test_one_task_of_an_array_is_cancelled_alone(self, cluster: Cluster) -> None:
        id = cluster.submit(WAIT_AT_GATE, array={"count": 2})
        cluster.wait(lambda seen: {f"{id}_0", f"{id}_1"} <= set(seen), id)
        cluster.ask(cluster.scheduler.cancel([f"{id}_1"]))
        cluster.wait(lambda seen: _state(seen, f"{id}_1") is State.CANCELLED, id)
        cluster.open_gate()
        cluster.wait(lambda seen: _state(seen, f"{id}_0") is State.DONE, id)

    @asked_only_with("has_keys")
    def test_a_job_is_found_by_its_key(self, cluster: Cluster) -> None:
        first = cluster.submit(WAIT_AT_GATE, key="key-7")
        second = cluster.submit(WAIT_AT_GATE, key="key-77")
        assert cluster.ask(cluster.scheduler.find("key-7")) == first
        assert cluster.ask(cluster.scheduler.find("key-77")) == second
        assert cluster.ask(cluster.scheduler.find("key")) is None
        cluster.open_gate()
        for id in (first, second):
            self._end(cluster, id)

    def _end(self, cluster: Cluster, id: str) -> Observed | None:
        """Wait until a job is over, and return how it ended; None where nobody remembers."""
        if not self.remembers:
            cluster.wait(lambda seen: not any(each in (id,) or each.startswith(f"{id}_") for each in seen), id)
            return None
        seen = cluster.wait(lambda seen: _all_over(seen, id), id)
        return seen.get(id) or next(iter(seen.values()))


def _state(seen: Mapping[str, Observed], id: str) -> State | None:
    return seen[id].state if id in seen else None


def _is_over(seen: Mapping[str, Observed], id: str) -> bool:
    state = _state(seen, id)
    return state is not None and state.is_end


def _all_over(seen: Mapping[str, Observed], id: str) -> bool:
    about = [each for key, each in seen.items() if key == id or key.rpartition("_")[0] == id]
    return bool(about) and all(each.state.is_end for each in about)


def _until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline, f"nothing happened within {_PATIENCE_S:g} s"
        time.sleep(_PAUSE_S)
