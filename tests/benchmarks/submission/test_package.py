"""Submissions: the folder that the rules ask for, judged by the committee's own checkers."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from made_once import made_once

from fairmile.base.errors import Conflict, UsageError
from fairmile.base.yaml import load
from fairmile.benchmarks.measured import MeasuredBenchmarks
from fairmile.benchmarks.submission.results import Submission
from fairmile.meter.mllog import mllog_line, read_mllog
from fairmile.workspace import Workspace

RUNS = 10
SYSTEM = {
    "cooling": "air",
    "host_memory_configuration": "2 x 16 GB",
    "host_networking_topology": "none",
    "framework": "sh",
    "other_software_stack": "none",
}
ORG = "Lake Institute"


def training_log(seed: int, *, error: float = 0.12, epochs: int = 30, **changes: Any) -> str:
    """Return MLPerf's log of a CosmoFlow training that reached `error` after `epochs`."""
    facts: dict[str, Any] = {
        "cache_clear": True,
        "submission_benchmark": "cosmoflow",
        "submission_org": "unknown",
        "submission_division": "open",
        "seed": seed,
        "train_samples": 4096,
        "eval_samples": 512,
        "number_of_nodes": 1,
        "accelerators_per_node": 0,
        "global_batch_size": 64,
        "gradient_accumulation_steps": 1,
        "opt_name": "sgd",
        "opt_base_learning_rate": 0.001,
        "opt_learning_rate_warmup_epochs": 4,
        "opt_learning_rate_warmup_factor": 1.0,
        "opt_learning_rate_decay_boundary_epochs": [16, 32],
        "opt_learning_rate_decay_factor": [0.25, 0.125],
        **changes,
    }
    at = {"epoch_num": epochs}
    lines = [
        mllog_line("INTERVAL_START", "init_start", time_ms=1000),
        *(mllog_line("POINT_IN_TIME", key, value, time_ms=1000) for key, value in facts.items()),
        mllog_line("INTERVAL_END", "init_stop", time_ms=2000),
        mllog_line("INTERVAL_START", "run_start", time_ms=2000),
        mllog_line("INTERVAL_START", "epoch_start", metadata=at, time_ms=2000),
        mllog_line("INTERVAL_END", "epoch_stop", metadata=at, time_ms=3000),
        mllog_line("INTERVAL_START", "eval_start", metadata=at, time_ms=3000),
        mllog_line("POINT_IN_TIME", "eval_error", error, at, time_ms=4000),
        mllog_line("INTERVAL_END", "eval_stop", metadata=at, time_ms=4000),
        mllog_line("INTERVAL_END", "run_stop", metadata={"status": "success"}, time_ms=62_000 + 1000 * seed),
    ]
    return "\n".join(lines) + "\n"


def record(folder: Path) -> None:
    """Record ten trainings that meet the target, one that does not, and one without a log."""
    (folder / "train.sh").write_text("cat $1\n")
    runs, here = opened(folder).runs, str(folder)
    for seed in range(1, RUNS + 1):
        (folder / f"{seed}.log").write_text(training_log(seed))
        runs.run(["sh", "train.sh", f"{seed}.log"], name="trained", folder=here)
    (folder / "full.log").write_text(training_log(1, train_samples=524288, eval_samples=65536))
    runs.run(["sh", "train.sh", "full.log"], name="full", folder=here)
    (folder / "poor.log").write_text(training_log(1, error=0.4, epochs=2))
    runs.run(["sh", "train.sh", "poor.log"], name="poor", folder=here)
    runs.run(
        ["sh", "-c", "echo accuracy: 0.93"],
        name="cloudmask",
        folder=here,
        metrics={"accuracy": {"pattern": "accuracy: (.*)"}},
    )
    (folder / "mask.log").write_text(mllog_line("POINT_IN_TIME", "submission_benchmark", "cloudmask") + "\n")
    runs.run(["sh", "train.sh", "mask.log"], name="mask", folder=here)


def opened(folder: Path) -> Workspace:
    return Workspace.open(environ={**os.environ, "FAIRMILE_HOME": str(folder / "home")}, cwd=folder)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_once(tmp_path_factory, "submitted-runs", record)


@pytest.fixture
def benchmarks(recorded: Path) -> MeasuredBenchmarks:
    return opened(recorded).benchmarks


def submit(benchmarks: MeasuredBenchmarks, folder: Path, *runs: str, **given: Any) -> Submission:
    stated: Mapping[str, Any] = {"to": "mlperf-hpc", "org": ORG, "system": "lake one", "description": SYSTEM, **given}
    return benchmarks.submit(runs, folder, **stated)


@pytest.fixture(scope="module")
def package(recorded: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Submission, Path]]:
    folder = tmp_path_factory.mktemp("package") / "submission"
    yield submit(opened(recorded).benchmarks, folder, "trained"), folder / "Lake-Institute"


def test_the_checkers_accept_ten_runs_that_meet_the_target(package: tuple[Submission, Path]) -> None:
    submission, _ = package
    assert {each.checker: each.passed for each in submission.checks} == {
        "repository checker": True,
        "compliance checker": True,
        "package checker": True,
        "RCP checker": True,
    }
    assert submission.missing == ()
    assert all(each.missing == () for each in submission.runs)
    assert submission.accepted


def test_the_folder_has_the_structure_of_the_rules(package: tuple[Submission, Path]) -> None:
    _, top = package
    implementations = top / "benchmarks" / "cosmoflow" / "implementations"
    scripts = {each.name for each in (implementations / "lake-one").iterdir()}
    wanted = {"README.md", "setup.sh", "init_datasets.sh", "run_and_time.sh", "lake-one_fairmile.json"}
    assert scripts >= wanted
    assert (implementations / "fairmile" / "train.sh").read_text() == "cat $1\n"
    results = sorted((top / "results" / "lake-one" / "strong" / "cosmoflow").iterdir())
    assert [each.name for each in results] == [f"result_{number}.txt" for number in range(RUNS)]
    assert (implementations / "lake-one" / "run_and_time.sh").read_text().endswith("sh train.sh 1.log\n")


def test_the_system_description_comes_from_the_records(package: tuple[Submission, Path]) -> None:
    _, top = package
    system = json.loads((top / "systems" / "lake-one.json").read_text())
    assert system["submitter"] == ORG
    assert system["division"] == "open"
    assert system["cooling"] == "air"
    assert int(system["host_processor_vcpu_count"]) == os.cpu_count()
    assert system["host_memory_capacity"].endswith("GiB")


def test_logs_state_who_submits_and_the_readme_says_what_was_set(package: tuple[Submission, Path]) -> None:
    _, top = package
    log = read_mllog(top / "results" / "lake-one" / "strong" / "cosmoflow" / "result_3.txt")
    values = {each.key: each.value for each in log.records if each.key.startswith("submission_")}
    assert values == {
        "submission_benchmark": "cosmoflow",
        "submission_org": ORG,
        "submission_division": "open",
        "submission_status": "research",
        "submission_platform": "lake-one",
    }
    readme = (top / "benchmarks" / "cosmoflow" / "implementations" / "lake-one" / "README.md").read_text()
    assert "Set in the logs after the runs: submission_org, submission_status, submission_platform." in readme


def test_the_score_leaves_out_the_fastest_and_the_slowest_run(package: tuple[Submission, Path]) -> None:
    submission, _ = package
    (score,) = submission.scores
    assert score.time_to_solution_s == pytest.approx(sum(60 + seed for seed in range(2, 10)) / 8)


def test_a_run_that_misses_the_target_is_the_slowest(
    package: tuple[Submission, Path], benchmarks: MeasuredBenchmarks, tmp_path: Path
) -> None:
    others = [each.run for each in package[0].runs if each.seed != 1]
    (score,) = submit(benchmarks, tmp_path / "out", "poor", *others).scores
    assert score.time_to_solution_s == pytest.approx(sum(60 + seed for seed in range(3, 11)) / 8)


def test_of_runs_with_one_seed_the_first_counts(
    package: tuple[Submission, Path], benchmarks: MeasuredBenchmarks, tmp_path: Path
) -> None:
    (score,) = submit(benchmarks, tmp_path / "more", "trained", "full").scores
    assert score.time_to_solution_s == package[0].scores[0].time_to_solution_s
    others = [each.run for each in package[0].runs if each.seed != 2]
    (score,) = submit(benchmarks, tmp_path / "out", "full", *others).scores
    assert score.time_to_solution_s is None  # ten runs, but only nine seeds


def test_what_is_missing_is_listed_run_by_run(benchmarks: MeasuredBenchmarks, tmp_path: Path) -> None:
    submission = submit(benchmarks, tmp_path / "out", "poor", "full", description={})
    poor, full = submission.runs
    assert "eval_error" in poor.missing[0]
    assert poor.missing[0].endswith("best logged 0.4")
    assert full.missing == (f"same seed as run {poor.run}",)
    assert "cosmoflow on lake-one: 2 of 10 runs" in submission.missing
    assert any("cooling" in each for each in submission.missing)
    assert submission.scores[0].time_to_solution_s is None
    assert not submission.accepted
    checks = {each.checker: each for each in submission.checks}
    assert not checks["package checker"].passed
    assert not checks["compliance checker"].passed
    first, wrong = checks["compliance checker"].messages
    assert first == "1 of 2 logs comply"
    assert wrong.startswith("result_0.txt: ")
    assert "eval_error" in wrong


def test_a_log_that_crashes_the_checkers_is_told_from_one_that_fails(
    benchmarks: MeasuredBenchmarks, tmp_path: Path
) -> None:
    (tmp_path / "odd.log").write_text(training_log(1, train_samples=121266, eval_samples=15158, scheduler_type="x"))
    text = (tmp_path / "odd.log").read_text().replace('"cosmoflow"', '"deepcam"')
    (tmp_path / "odd.log").write_text(text)
    run = opened(tmp_path).runs.run(["cat", "odd.log"], name="odd", folder=str(tmp_path))
    submission = submit(opened(tmp_path).benchmarks, tmp_path / "out", run.id, division="closed")
    crash = "the committee's checker cannot read the log: FileNotFoundError"
    assert submission.runs[0].missing[0].startswith(crash)
    checks = {each.checker: each for each in submission.checks}
    assert checks["package checker"].messages[0].startswith(crash)


def test_a_small_set_never_claims_the_closed_division(benchmarks: MeasuredBenchmarks, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"train_samples 4096; the closed division .* needs 524288"):
        submit(benchmarks, tmp_path / "out", "trained", division="closed")
    assert not (tmp_path / "out").exists()


def test_generated_data_never_claim_it_however_many(tmp_path: Path) -> None:
    workspace = opened(tmp_path)
    run = workspace.runs.run("cosmoflow", params={"work": "prepare", "train_samples": 2, "validation_samples": 1})
    with pytest.raises(UsageError, match=r"generated data; the closed division .* needs the published data set"):
        submit(workspace.benchmarks, tmp_path / "out", run.id, division="closed")
    submission = submit(workspace.benchmarks, tmp_path / "out", run.id)
    assert "trained on generated data" in submission.runs[0].missing[0]
    about = next((tmp_path / "out").rglob("implementations/lake-one/README.md")).read_text()
    assert "- data: generated by the benchmark, not the published data set\n" in about


def test_the_full_set_may_claim_it(benchmarks: MeasuredBenchmarks, tmp_path: Path) -> None:
    submission = submit(benchmarks, tmp_path / "out", "full", division="closed")
    assert submission.runs[0].missing == ()
    assert [each.is_required for each in submission.checks] == [True, True, True, True]
    assert not submission.accepted  # one run of ten


def test_science_gets_one_folder_that_holds_everything(benchmarks: MeasuredBenchmarks, tmp_path: Path) -> None:
    submission = submit(benchmarks, tmp_path / "out", "mask", "cloudmask", to="mlcommons-science")
    folder = tmp_path / "out" / "Lake-Institute" / "cloudmask" / "lake-one" / "experiment-1"
    assert {each.name for each in folder.iterdir()} >= {
        *("config.yaml", "README.md", "system.json", "code"),
        *("result-1.txt", "result-2.txt", "run_and_time.sh"),
    }
    assert load((folder / "config.yaml").read_text())["run"] == ["sh train.sh mask.log"]
    keys = [each.key for each in read_mllog(folder / "result-1.txt").records]
    assert {"submission_version", "submission_github_commit_version", "result"} <= set(keys)
    mask, printed = submission.runs
    assert mask.missing == ("no result: neither a metric nor a log line with the key result",)
    assert "no MLPerf log" in printed.missing[0]
    assert any("sientific_contribution.pdf" in each for each in submission.missing)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"to": "mlcommons-science"}, "cosmoflow is not a benchmark of mlcommons-science"),
        ({"to": "mlcommons-science", "division": "closed"}, "has no closed division"),
        ({"org": " "}, "needs the name of an organization"),
        ({"availability": "soon"}, "no availability 'soon'"),
    ],
)
def test_what_cannot_be_submitted_is_refused(
    benchmarks: MeasuredBenchmarks, tmp_path: Path, given: dict[str, str], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        submit(benchmarks, tmp_path / "out", "poor", **given)


def test_a_dry_run_checks_and_leaves_nothing(benchmarks: MeasuredBenchmarks, tmp_path: Path) -> None:
    submission = submit(benchmarks, tmp_path / "out", "poor", dry_run=True)
    assert submission.files
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_spaces_in_its_name_is_no_fault_of_the_files(
    benchmarks: MeasuredBenchmarks, tmp_path: Path
) -> None:
    submission = submit(benchmarks, tmp_path / "my results", "poor")
    assert {each.checker: each.passed for each in submission.checks}["repository checker"]


def test_a_folder_with_files_is_left_alone(benchmarks: MeasuredBenchmarks, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").touch()
    with pytest.raises(Conflict):
        submit(benchmarks, tmp_path, "poor")
    assert [each.name for each in tmp_path.iterdir()] == ["mine.txt"]
