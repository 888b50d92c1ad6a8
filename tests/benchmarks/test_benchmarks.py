"""The benchmarks of a workspace, and one's own from nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fairmile.base.errors import Conflict, NotFound, UsageError
from fairmile.benchmarks.benchmarks import Benchmarks
from fairmile.catalog.catalog import Catalog
from fairmile.catalog.profile import check_body
from fairmile.workspace import Workspace


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace.open(
        environ={"HOME": str(tmp_path), "FAIRMILE_HOME": str(tmp_path / "home"), "PATH": "/usr/bin:/bin"}, cwd=tmp_path
    )


@pytest.fixture
def benchmarks(tmp_path: Path) -> Benchmarks:
    return Benchmarks(lambda: Catalog(tmp_path / "home"))


def test_those_whose_program_comes_along_are_listed_first(benchmarks: Benchmarks) -> None:
    found = [(each.name, each.folder is not None) for each in benchmarks.ls()]
    assert ("earthquake", True) in found
    assert ("resnet50-inference", False) in found
    assert found == sorted(found, key=lambda each: (not each[1], each[0]))


def test_one_tells_its_rule_baselines_published_results_and_parameters(benchmarks: Benchmarks) -> None:
    found = benchmarks.get("mnist")
    assert (found.rule["metric"], found.rule["target"]) == ("accuracy", 0.95)
    assert {each["name"] for each in found.baselines} >= {"most frequent class"}
    assert found.published[0]["value"] == 0.98
    parameters = {each.name: each for each in found.parameters()}
    assert parameters["hidden"].default == 128
    assert all(each.meaning for each in parameters.values())
    (fields,) = found.schema().values()
    assert fields[0].form == "uint8 (train, side, side)"


def test_an_unknown_one_is_told(benchmarks: Benchmarks) -> None:
    with pytest.raises(NotFound):
        benchmarks.get("nosuch")


@pytest.mark.parametrize("name", ["mnist", "earthquake", "cosmoflow", "sgemm"])
def test_a_benchmark_that_trains_has_a_step(benchmarks: Benchmarks, name: str) -> None:
    file = benchmarks.step_of(name)
    assert (file.parent.name, file.name) == (name, "step.py")
    assert "def build(" in file.read_text()
    assert benchmarks.get(name).step_file() == file


def test_a_model_has_the_step_of_its_benchmark(benchmarks: Benchmarks) -> None:
    file = benchmarks.step_of("model/cosmoflow")
    assert (file.parent.name, file.name) == ("cosmoflow", "step.py")


def test_a_folder_of_ones_own_has_a_step_when_it_brings_one(benchmarks: Benchmarks, tmp_path: Path) -> None:
    benchmarks.new("lake", tmp_path, kind="program")
    with pytest.raises(NotFound, match="has no training step to trace"):
        benchmarks.step_of(str(tmp_path / "lake"))
    (tmp_path / "lake" / "step.py").write_text("def build(): ...\n")
    assert benchmarks.step_of(str(tmp_path / "lake")) == tmp_path / "lake" / "step.py"


def test_what_has_no_step_says_what_its_card_tells(benchmarks: Benchmarks) -> None:
    with pytest.raises(NotFound, match="resnet50-inference has no training step to trace") as told:
        benchmarks.step_of("resnet50-inference")
    assert "FILE.py:FUNCTION" in (told.value.hint or "")
    with pytest.raises(NotFound):
        benchmarks.step_of("nosuch")


@pytest.mark.parametrize("kind", ["learning", "program"])
def test_a_new_one_has_a_card_that_is_sound(benchmarks: Benchmarks, tmp_path: Path, kind: str) -> None:
    files = benchmarks.new("high_tide", tmp_path, kind=kind)
    assert {"card.jsonld", "README.md"} <= {each.name for each in files}
    found = benchmarks.get(str(tmp_path / "high_tide"))
    assert found.card.text("name") == "High tide"
    assert [each for each in check_body(found.card.body) if each.severity == "error"] == []
    assert found.parameters()


def test_a_new_program_runs_as_it_is(workspace: Workspace, tmp_path: Path) -> None:
    workspace.benchmarks.new("lake", tmp_path, kind="program")
    run = workspace.runs.run(str(tmp_path / "lake"), params={"terms": 10})
    assert run.metrics["error"].value == pytest.approx(0.0998, abs=1e-3)
    assert run.metrics["error"].better == "lower"
    assert {each.name for each in run.captured.code.files} == {"lake", "run.sh"}


@pytest.mark.thorough
def test_a_new_model_learns_as_it_is(workspace: Workspace, tmp_path: Path) -> None:
    workspace.benchmarks.new("tides", tmp_path)
    run = workspace.runs.run(str(tmp_path / "tides"), params={"epochs": 2, "length": 1500}, seed=1)
    assert run.result.reason == ""
    values = {name: metric.value for name, metric in run.metrics.items()}
    assert values["rmse"] < values["persistence.rmse"]
    assert {"results.json", "checkpoint.pt", "mllog.txt"} <= set(run.result.outputs)
    assert sorted(each.name for each in (tmp_path / "tides").iterdir() if each.is_file()) == [
        *("README.md", "benchmark.py", "card.jsonld", "schema.py", "settings.py", "step.py")
    ]


def test_what_is_there_is_not_touched(benchmarks: Benchmarks, tmp_path: Path) -> None:
    (tmp_path / "tides").mkdir()
    with pytest.raises(Conflict, match="already exists"):
        benchmarks.new("tides", tmp_path)
    assert list((tmp_path / "tides").iterdir()) == []


@pytest.mark.parametrize("name", ["", "Tides", "../tides", "a b", "1st"])
def test_a_name_that_cannot_be_one_is_refused(benchmarks: Benchmarks, tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="is not a benchmark name"):
        benchmarks.new(name, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_writes_nothing(benchmarks: Benchmarks, tmp_path: Path) -> None:
    files = benchmarks.new("tides", tmp_path, dry_run=True)
    assert tmp_path / "tides" / "benchmark.py" in files
    assert not (tmp_path / "tides").exists()


@pytest.mark.parametrize(
    "name, value, message, hint",
    [
        ("epochs", "abc", "parameter epochs: expected a whole number, found 'abc'", None),
        ("epoch", 3, "no parameter named 'epoch'", "did you mean 'epochs'?"),
        ("batch_size", 0, "parameter batch_size: expected at least 1, found 0", None),
        ("split", "cell", "parameter split: 'cell' is not one of pairs, cells, drugs, both", "did you mean 'cells'?"),
    ],
)
def test_a_wrong_parameter_is_refused_before_anything_starts(
    workspace: Workspace, tmp_path: Path, name: str, value: str | int, message: str, hint: str | None
) -> None:
    sweep, study, flow = (tmp_path / f"{each}.yaml" for each in ("sweep", "study", "flow"))
    sweep.write_text(f"run: uno\naxes:\n  {name}: [{value}]\n")
    search = "axes: {weight_decay: {uniform: [0, 1]}}\nobjective: {mse: lower}\ntuning: {trials: 1}"
    study.write_text(f"run: uno\nparams: {{{name}: {value}}}\n{search}\n")
    flow.write_text(f"steps:\n  train:\n    run: uno\n    params: {{{name}: {value}}}\n")
    ways: dict[str, Callable[[], object]] = {
        "run": lambda: workspace.runs.run("uno", params={name: value}),
        "plan": lambda: workspace.runs.plan("uno", params={name: value}),
        "sweep": lambda: workspace.sweeps.create(*workspace.sweeps.read([str(sweep)])),
        "tune": lambda: workspace.studies.create(*workspace.sweeps.read([str(study)])),
        "flow": lambda: workspace.flows.run(flow),
    }
    for way, begin in ways.items():
        with pytest.raises(UsageError) as refused:
            begin()
        assert message in str(refused.value), way
        if way in ("run", "plan"):
            assert str(refused.value) == message and refused.value.hint == hint
    assert list(workspace.runs.ls()) == [] and list(workspace.sweeps.ls()) == []


def test_a_benchmark_that_trains_no_network_has_no_parameter_of_a_training(workspace: Workspace) -> None:
    with pytest.raises(UsageError, match="no parameter named 'batch_size'"):
        workspace.runs.plan("qsvr", params={"batch_size": 8})
    with pytest.raises(UsageError, match="parameter work: 'inference' is not one of train, prepare"):
        workspace.runs.plan("qsvr", params={"work": "inference"})


def test_each_value_and_each_end_of_an_axis_is_checked(workspace: Workspace, tmp_path: Path) -> None:
    sweep = tmp_path / "sweep.yaml"
    sweep.write_text("run: uno\naxes:\n  epochs: [1, 2]\n  batch_size: [8, 0]\n")
    with pytest.raises(UsageError, match=r"sweep.yaml:4.*batch_size: expected at least 1, found 0"):
        workspace.sweeps.plan(sweep)
    study = tmp_path / "study.yaml"
    study.write_text("run: uno\naxes: {dropout: {uniform: [0.1, 2.5]}}\nobjective: {mse: lower}\ntuning: {trials: 1}\n")
    with pytest.raises(UsageError, match="parameter dropout: expected"):
        workspace.studies.create(*workspace.sweeps.read([str(study)]))


def test_a_value_that_is_not_known_yet_is_left_to_the_run(workspace: Workspace, tmp_path: Path) -> None:
    flow = tmp_path / "flow.yaml"
    flow.write_text("params: {n: 2}\nsteps:\n  train:\n    run: uno\n    params: {epochs: '{n}'}\n")
    assert workspace.flows.plan(flow).to_dict()["counts"] == {"run": 1}
