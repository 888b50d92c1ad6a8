"""`fairmile job`: what a user sees of jobs, on this machine."""

from __future__ import annotations

import io
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from printed_results import assert_printed, assert_sound

from fairmile.base.results import Result
from fairmile.jobs.queue import Jobs
from fairmile.jobs.spec import Array, JobSpec
from fairmile.workspace import Workspace

Fairmile = Callable[..., Any]


@pytest.fixture
def job(fairmile: Fairmile) -> Iterator[Fairmile]:
    """Run `fairmile job …`; jobs that still run at the end are cancelled."""

    def call(*arguments: str) -> Any:
        return fairmile("job", *arguments)

    yield call
    live = [each["id"] for each in call("ls", "--live", "--json").json["jobs"]]
    if live:
        call("cancel", *live)
        call("wait", *live, "--timeout", "60s")


def submitted(job: Fairmile, *arguments: str) -> str:
    done = job("submit", "--json", *arguments)
    assert done.code == 0, done.err
    return str(done.json["id"])


# Submitting


def test_a_job_is_submitted_and_left(job: Fairmile) -> None:
    done = job("submit", "--name", "tides", "--", "sleep", "600")
    assert done.code == 0
    assert done.out.startswith("submitted tides-")
    assert "fairmile job show tides-" in done.err
    assert job("ls", "--live", "--json").json["jobs"][0]["name"] == "tides"


def test_with_wait_the_output_is_shown_and_the_end_told(job: Fairmile) -> None:
    done = job("submit", "--name", "tides", "--wait", "--", "echo", "high tide")
    assert done.code == 0
    first, last = done.out.splitlines()
    assert first == "high tide"
    assert last.startswith("tides-") and last.endswith(": done")
    assert done.err.startswith("submitted tides-")


def test_with_wait_and_json_only_data_is_printed(job: Fairmile) -> None:
    done = job("submit", "--wait", "--json", "--", "echo", "high tide")
    assert [each["state"] for each in done.json["jobs"]] == ["done"]


def test_a_dry_run_prints_the_script_and_submits_nothing(job: Fairmile) -> None:
    words = ("submit", "--on", "jureca", "--software", "ddp", "--nodes", "2", "--dry-run")
    done = job(*words, "--", "python", "train.py")
    assert done.code == 0
    assert "#SBATCH --nodes=2" in done.out
    assert "note: jureca requires an account" in done.err
    assert "#SBATCH --nodes=2" in job(*words, "--json", "--", "python", "train.py").json["script"]
    assert job("ls", "--json").json == {"jobs": []}


def test_a_python_file_is_started_by_python_with_its_own_options(job: Fairmile, place: Path) -> None:
    (place / "train.py").write_text("import sys\nprint(sys.argv[1:])\n")
    assert job("submit", "--wait", "train.py", "--lr", "0.1").out.startswith("['--lr', '0.1']\n")


def test_options_behind_the_dashes_are_the_program_s(job: Fairmile) -> None:
    done = job("submit", "--wait", "--", "printf", "%s\n", "--json", "--name")
    assert done.out.splitlines()[:2] == ["--json", "--name"]


def test_variables_and_files_reach_the_job_and_outputs_come_back(job: Fairmile, place: Path) -> None:
    (place / "level.txt").write_text("2.5\n")
    program = ["sh", "-c", 'cat data.txt > sum.txt; echo "$UNIT" >> sum.txt']
    files = ["--input", "data.txt=level.txt", "--output-file", "sum.txt", "--env", "UNIT=m"]
    assert job("submit", "--name", "sum", *files, "--wait", "--", *program).code == 0
    assert job("bring", "sum", "--to", "results", "--dry-run").out == "would copy  results/sum.txt\n"
    assert not (place / "results").exists()
    brought = job("bring", "sum", "--to", "results")
    assert brought.out == "copied  results/sum.txt\n"
    assert (place / "results" / "sum.txt").read_text() == "2.5\nm\n"
    assert job("bring", "sum", "--to", "again", "--json").json == {"files": ["again/sum.txt"]}


def test_a_job_without_outputs_says_so(job: Fairmile) -> None:
    job("submit", "--name", "tides", "--wait", "--", "true")
    done = job("bring", "tides")
    assert done.code == 0
    assert done.err.startswith("the job declared no outputs")


def test_a_job_runs_in_an_environment(fairmile: Fairmile, job: Fairmile, place: Path) -> None:
    (place / "surge.yaml").write_text("variables: {SURGE: 3 m}\n")
    assert fairmile("env", "build", "surge.yaml").code == 0
    done = job("submit", "--environment", "surge", "--wait", "--", "sh", "-c", "echo $SURGE")
    assert done.out.startswith("3 m\n")
    (place / "commands.txt").write_text("sh -c 'echo $SURGE'\n")
    assert job("pack", "commands.txt", "--environment", "surge", "--wait").code == 0
    assert job("log", "pack", "--task", "0").out == "3 m\n"


def test_the_same_key_is_one_job(job: Fairmile) -> None:
    first = submitted(job, "--key", "nightly", "--", "true")
    assert submitted(job, "--key", "nightly", "--", "true") == first


def test_a_job_waits_for_another(job: Fairmile) -> None:
    submitted(job, "--name", "prepare", "--", "sleep", "1")
    done = job("submit", "--name", "train", "--after", "prepare", "--wait", "--", "echo", "trained")
    assert done.code == 0
    assert done.out.startswith("trained\n")


def test_a_job_whose_forerunner_failed_is_cancelled_and_says_why(job: Fairmile) -> None:
    submitted(job, "--name", "prepare", "--", "sh", "-c", "sleep 1; exit 1")
    done = job("submit", "--after", "prepare", "--wait", "--", "echo", "trained")
    assert done.code == 1
    assert "cancelled, the job that it depends on did not end as required" in done.out


# Arrays and packs


def test_an_array_has_a_log_for_each_task_and_names_the_one_that_failed(job: Fairmile) -> None:
    program = 'echo "task $FAIRMILE_ARRAY_INDEX"; test "$FAIRMILE_ARRAY_INDEX" != 1'
    done = job("submit", "--name", "sweep", "--array", "3", "--wait", "--", "sh", "-c", program)
    assert done.code == 1
    assert "1 of 3 tasks did not succeed; the first is task 1: ended with exit code 1" in done.out
    assert "fairmile job log sweep-" in done.err and "--task 1 --err" in done.err
    assert job("log", "sweep", "--task", "2").out == "task 2\n"
    shown = job("show", "sweep").out
    assert "2 done, 1 failed" in shown
    assert job("ls").out.splitlines()[1].split()[4] == "2/3"


def test_a_pack_runs_every_line_of_a_file(job: Fairmile) -> None:
    told = job("pack", "commands.txt", "--dry-run")
    assert (told.code, told.out) == (0, "would submit 3 commands as one job on laptop\n")
    assert len(job("pack", "commands.txt", "--dry-run", "--json").json["commands"]) == 3
    assert job("ls", "--json").json == {"jobs": []}
    done = job("pack", "commands.txt", "--at-once", "2", "--wait")
    assert done.code == 0
    assert done.err.startswith("submitted pack-") and done.err.endswith(" with 3 commands\n")
    assert job("log", "pack", "--task", "0").out == "high tide at 3\n"
    assert job("log", "pack", "--task", "1").out == "low tide at 9\n"


def test_a_pack_tells_which_command_failed(job: Fairmile, place: Path) -> None:
    (place / "some.txt").write_text("true\nsh -c 'echo the gauge is dry >&2; exit 4'\n")
    done = job("pack", "some.txt", "--wait")
    assert done.code == 1
    assert "why: ended with exit code 4\noutput: the gauge is dry\n" in done.err
    assert "--task 1 --err" in done.err


# Looking


def test_python_returns_what_the_commands_print(job: Fairmile, place: Path) -> None:
    (place / "two.txt").write_text("echo 'high tide'\ntrue\n")
    words = ("--array", "2", "--", "sh", "-c", "echo tide; exit $FAIRMILE_ARRAY_INDEX")
    jobs = Workspace.open().jobs
    assert_sound(jobs.submit(JobSpec(argv=("true",), name="before")))
    assert jobs.wait(["before"])
    assert jobs.rm(["before"])
    id = submitted(job, *words)
    jobs.wait([id])
    spec = JobSpec(argv=("sh", "-c", "echo tide; exit $FAIRMILE_ARRAY_INDEX"), array=Array(count=2))
    results: dict[tuple[str, ...], Result] = {
        ("ls",): jobs.ls(),
        ("show", id): jobs.show(id),
        ("wait", id): jobs.wait([id]),
        ("log", id): jobs.log(id),
        ("cancel", id, "--dry-run"): jobs.cancel([id], dry_run=True),
        ("bring", id, "--dry-run"): jobs.bring(id, Path(), dry_run=True),
        ("rm", id, "--dry-run"): jobs.rm([id], dry_run=True),
        ("submit", "--dry-run", *words): jobs.plan(spec),
        ("pack", "two.txt", "--dry-run"): jobs.plan_pack([["echo", "high tide"], ["true"]], spec),
    }
    for arguments, result in results.items():
        assert_printed(job, result, *arguments)
    table = jobs.ls().to_pandas()
    assert (list(table["standing.exit_code"]), list(table["tasks"])) == ([1], [2])
    assert repr(jobs.ls()) == "<JobList: 1 job>"
    assert repr(jobs.get(id)).startswith(f"<JobStatus: {id} failed on laptop after ")


def test_without_jobs_the_list_says_how_to_start_one(job: Fairmile) -> None:
    done = job("ls")
    assert (done.code, done.out) == (0, "")
    assert "fairmile job submit" in done.err


def test_a_log_is_followed_to_its_end(job: Fairmile) -> None:
    submitted(job, "--name", "tides", "--", "sh", "-c", "echo rising; sleep 1; echo falling; echo wet >&2")
    assert job("log", "tides", "--follow").out == "rising\nfalling\n"
    assert job("log", "tides", "--err").out == "wet\n"
    assert job("log", "tides", "--json").json == {"log": "rising\nfalling\n"}


def test_a_job_is_shown_with_what_it_used(job: Fairmile) -> None:
    job("submit", "--name", "tides", "--wait", "--", "true")
    shown = job("show", "tides")
    assert shown.code == 0
    assert "elapsed" in shown.out and "(clock of the node)" in shown.out
    assert job("show", "tides", "--json").json["diagnosis"] is None


@pytest.mark.parametrize(
    ("program", "sentence", "told"),
    [
        ("echo dry >&2; exit 3", "ended with exit code 3", ["output: dry", "prints its output"]),
        ("exec nosuchprogram", "ended with exit code 127", ["why: a program is missing", "nosuchprogram"]),
        (
            "echo \"ModuleNotFoundError: No module named 'tidelib'\" >&2; exit 1",
            "ended with exit code 1",
            ["why: a Python package is missing", "output: ModuleNotFoundError", "hint: `pip install tidelib`"],
        ),
        ("echo MemoryError >&2; exit 1", "ended with exit code 1", ["why: the job ran out of memory", "--memory"]),
        ("kill -9 $$", "ended by signal KILL", ["hint: if memory ran out"]),
    ],
    ids=["exit code", "no program", "no package", "no memory", "killed"],
)
def test_a_failure_is_told_with_its_reason_and_what_to_do(
    job: Fairmile, program: str, sentence: str, told: list[str]
) -> None:
    done = job("submit", "--name", "bad", "--wait", "--", "sh", "-c", program)
    assert done.code == 1
    assert f": failed, {sentence}" in done.out
    shown = job("show", "bad")
    assert shown.code == 0
    assert shown.out.splitlines()[0].endswith(": failed")
    for words in told:
        assert words in done.err
        assert words in shown.err
    assert job("show", "bad", "--json").json["diagnosis"]["advice"]


def test_a_job_that_was_swept_away_is_lost(job: Fairmile, monkeypatch: pytest.MonkeyPatch) -> None:
    id = submitted(job, "--name", "swept", "--", "sleep", "600")
    session = job("show", id, "--json").json["scheduler_id"].partition("-")[0]
    subprocess.run(["pkill", "-KILL", "-s", session], check=True)
    done = job("wait", id, "--timeout", "60s")
    assert done.code == 1
    assert ": lost, it disappeared without a record of its end" in done.out
    assert "submit it again" in done.err


# Waiting and ending


def test_waiting_gives_up_after_a_while(job: Fairmile) -> None:
    submitted(job, "--name", "endless", "--", "sleep", "600")
    done = job("wait", "endless", "--timeout", "500ms")
    assert done.code == 1
    assert done.out.startswith("endless-")
    assert "hint" not in done.err


def test_a_job_is_cancelled(job: Fairmile) -> None:
    submitted(job, "--name", "endless", "--", "sleep", "600")
    assert job("cancel", "endless", "--dry-run").out.endswith(", would be cancelled\n")
    assert job("rm", "endless").code == 2
    assert job("cancel", "endless").code == 0
    done = job("wait", "endless", "--timeout", "60s")
    assert done.code == 1
    assert done.out.endswith(": cancelled on request\n")
    assert job("cancel", "endless").out.endswith(": cancelled\n")


def test_a_job_that_ended_is_forgotten(job: Fairmile) -> None:
    id = submitted(job, "--name", "tides", "--", "true")
    job("wait", id)
    assert job("rm", "tides", "--dry-run").out == f"would remove  {id}\n"
    assert job("rm", "tides", "--json").json == {"removed": [id]}
    assert job("show", "tides").code == 2


# Bad input


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["submit", "--on", "nosuch", "--", "true"], "no system named 'nosuch'"),
        (["submit", "--on", "lmui", "--", "true"], "no system named 'lmui'; did you mean 'lumi'?"),
        (["submit", "--on", "jureca", "--", "true"], "account: jobs on jureca need an account"),
        (["submit", "--nodes", "2", "--", "true"], "nodes: 2 nodes requested, laptop is a single machine"),
        (["submit", "--array", "many", "--", "true"], "--array: 'many' is not an array"),
        (["submit", "--array", "0", "--", "true"], "--array: expected at least 1, found 0"),
        (["submit", "--time", "soon", "--", "true"], "--time: 'soon' is not a duration"),
        (["submit", "--memory", "lots", "--", "true"], "--memory: 'lots' is not a size"),
        (["submit", "--memory", "0", "--", "true"], "--memory: expected more than 0, found 0.0"),
        (["submit", "--env", "UNIT", "--", "true"], "--env 'UNIT' is not KEY=VALUE"),
        (["submit", "--env", "A B=1", "--", "true"], "--env: 'A B' is not an environment variable that can be set"),
        (["submit", "--name", "a b", "--", "true"], "--name: expected at most 64 letters, digits,"),
        (["submit", "--account", "a b", "--", "true"], "--account: expected one word without spaces or quotes"),
        (["submit", "--signal", "FOO@9", "--", "true"], "--signal: expected 'USR1', 'USR2', 'TERM', 'INT' or 'HUP'"),
        (["submit", "--after", "x:soon", "--", "true"], "--after: expected 'ok', 'failed' or 'any', found 'soon'"),
        (["submit", "--after", "nosuch", "--", "true"], "no job named 'nosuch'"),
        (["submit", "--input", "nosuch.txt", "--", "true"], "inputs.nosuch.txt: no such file: nosuch.txt"),
        (
            ["submit", "--output-file", "../x", "--", "true"],
            "--output-file: '../x' is not a name inside the job's folder",
        ),
        (["submit", "--environment", "nosuch", "--", "true"], "no environment named 'nosuch' was built"),
        (["submit"], "missing argument 'PROGRAM [ARGUMENT]... | -- COMMAND...'"),
        (["submit", "--", ""], "PROGRAM: expected a program and its arguments"),
        (["pack", "commands.txt", "--array", "3"], "no such option '--array'"),
        (["pack", "commands.txt", "--launch", "srun"], "no such option '--launch'"),
        (["pack", "nosuch.txt"], "no such file: nosuch.txt"),
        (["pack", "latin.txt"], "latin.txt:2: is not UTF-8 text"),
        (["pack", "empty.txt"], "no commands to pack"),
        (["pack", "quote.txt"], "quote.txt:2: unclosed quote"),
        (["show", "nosuch"], "no job named 'nosuch'"),
        (["wait"], "missing argument 'JOB...'"),
        (["wait", "tides", "--timeout", "soon"], "'soon' is not a duration"),
        (["log", "tides", "--task", "1"], "is not an array: it has no task 1"),
    ],
)
def test_bad_input_is_one_sentence_and_nothing_is_submitted(
    job: Fairmile, place: Path, arguments: list[str], message: str
) -> None:
    (place / "empty.txt").write_text("# nothing\n")
    (place / "latin.txt").write_bytes(b"true\necho caf\xe9\n")
    (place / "quote.txt").write_text("true\necho 'a\n")
    job("submit", "--name", "tides", "--wait", "--", "true")
    done = job(*arguments)
    assert done.code == 2
    assert done.out == ""
    assert done.err.startswith("error: ")
    assert message in done.err.splitlines()[0]
    assert len(job("ls", "--json").json["jobs"]) == 1


def test_a_task_that_an_array_does_not_have_is_refused(job: Fairmile) -> None:
    id = submitted(job, "--array", "2", "--", "true")
    done = job("log", id, "--task", "99")
    assert (done.code, done.out) == (2, "")
    assert f"job {id} has no task 99: its tasks are 0 to 1" in done.err


def test_commands_come_from_a_pipe_too(job: Fairmile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"echo one\x0c two\n")))
    assert job("pack", "-", "--wait").code == 0
    assert job("log", "pack", "--task", "0").out == "one\x0c two\n"


def test_who_stops_waiting_is_told_that_the_job_goes_on(job: Fairmile, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    for method in ("follow", "wait"):
        with monkeypatch.context() as patch:
            patch.setattr(Jobs, method, interrupted)
            done = job("submit", "--name", method, *(["--array", "2"] if method == "wait" else []), "--wait", "--",
                       "sleep", "600")  # fmt: skip
        assert (done.code, done.out) == (130, "")
        id = done.err.splitlines()[0].removeprefix("submitted ")
        assert f"{id} keeps running\nhint: `fairmile job cancel {id}` ends it\n" in done.err
        assert job("show", id, "--json").json["state"] in ("queued", "running")


def test_several_mistakes_are_told_at_once(job: Fairmile) -> None:
    done = job("submit", "--time", "soon", "--memory", "lots", "--", "true")
    assert [line for line in done.err.splitlines() if line.startswith("error: ")] == [
        "error: --time: 'soon' is not a duration",
        "error: --memory: 'lots' is not a size",
    ]
