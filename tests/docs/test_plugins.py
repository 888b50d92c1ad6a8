"""The plug-ins of docs/examples/plugins pass the suites for their kinds, and Fairmile uses them once installed."""

from __future__ import annotations

import json
import os
import subprocess
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from harbour.energy import Hwmon
from harbour.executor import Listed
from harbour.fetcher import Shelf
from harbour.scheduler import Pier
from sweep_making import environ_of, workspace_here

import fairmile
from fairmile.base.registry import Registry
from fairmile.catalog.exchange import READERS, WRITERS
from fairmile.cli.main import run
from fairmile.flows.exchange import EXPORTS
from fairmile.flows.files import READERS as FLOW_READERS
from fairmile.jobs.schedulers import SCHEDULERS
from fairmile.jobs.states import Observed, State
from fairmile.meter.sources import SOURCES, Where
from fairmile.resolve import RESOLVERS
from fairmile.runs.execute.executor import Executor
from fairmile.sweeps.tuning.engine import ENGINES
from fairmile.testing import energy
from fairmile.testing.energy import EnergySourceTests
from fairmile.testing.executors import ExecutorSetup, ExecutorSuite
from fairmile.testing.fetchers import FolderFetcherTests, Served
from fairmile.testing.schedulers import Answer, Listing, SchedulerTests, Subject
from fairmile.traces.reading import FORMATS
from fairmile.transfer.fetchers import FETCHERS
from fairmile.transfer.remote import FolderFetcher
from fairmile.workspace import Workspace

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
REGISTRIES: tuple[Registry, ...] = (  # type: ignore[type-arg]
    *(FETCHERS, READERS, WRITERS, SCHEDULERS, SOURCES, FORMATS, ENGINES, RESOLVERS, FLOW_READERS, EXPORTS),
)


class TestShelf(FolderFetcherTests):
    @pytest.fixture
    def served(self, tmp_path: Path) -> Served[FolderFetcher]:
        def publish(files: Mapping[str, bytes]) -> str:
            folder = tmp_path / "shelf" / str(hash(tuple(files)))
            for path, data in files.items():
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_bytes(data)
            return folder.as_uri().replace("file:", "shelf:")

        fetcher = Shelf(Workspace.open(environ=environ_of(tmp_path), cwd=tmp_path).context)
        return Served(fetcher, publish, "shelf:///no/such/place")


class TestPier(SchedulerTests):
    has_arrays = False
    has_keys = False

    @pytest.fixture
    def subject(self) -> Subject:
        return Subject(
            Pier(),
            prefix="#PIER ",
            submits=[(Answer("ticket 7\n"), "7")],
            listing=lambda word: Answer(f"7 {word}\n"),
            listed="7",
            states={"WAITING": State.QUEUED, "ABOARD": State.RUNNING, "LANDED": State.DONE, "SUNK": State.FAILED},
            listings=[Listing(Answer("7 ABOARD\n8 SUNK\n"), ["7", "8"], _states(State.RUNNING, State.FAILED))],
            absent=Listing(Answer(""), ["9"], {}),
            refusals=[Answer("", "no such berth: deep", 1)],
            outages=[Answer("", "harbour closed until six", 1)],
        )


def _states(*states: State) -> dict[str, Observed]:
    return {str(number): Observed(state) for number, state in enumerate(states, 7)}


class TestHwmon(EnergySourceTests):
    registered = False  # only where the package is installed

    @pytest.fixture
    def subject(self, tmp_path: Path) -> energy.Subject:
        sensor = tmp_path / "machine/sys/class/hwmon/hwmon0"
        sensor.mkdir(parents=True)
        (sensor / "power1_input").write_text("120000000\n")
        (sensor / "energy1_input").write_text("5000000\n")

        def work() -> None:
            file = sensor / "energy1_input"
            file.write_text(str(int(file.read_text()) + 12_000_000))

        def vanish() -> None:
            (sensor / "power1_input").write_text("")

        machine, nothing = tmp_path / "machine", tmp_path / "nothing"
        return energy.Subject(lambda: Hwmon(Where(machine)), work, vanish, lambda: Hwmon(Where(nothing)))


class ListedSetup(ExecutorSetup):
    @contextmanager
    def executor(self) -> Iterator[Executor]:
        with super().executor() as inner:
            yield Listed(inner, self.folder / "list.txt")


@pytest.mark.thorough
class TestListed(ExecutorSuite):
    outlives = False

    @pytest.fixture
    def place(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ExecutorSetup:
        monkeypatch.chdir(tmp_path)
        return ListedSetup(workspace_here(tmp_path).runs, "in place", tmp_path, environ_of(tmp_path))


def test_an_executor_is_handed_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    place = ListedSetup(workspace_here(tmp_path).runs, "in place", tmp_path, environ_of(tmp_path))
    work = place.run("echo high tide")
    with place.executor() as executor:
        (handle,) = executor.submit([work])
        executor.poll([handle])
        assert executor.collect(handle).state.value == "done"
    assert (tmp_path / "list.txt").read_text() == f"{work.id}\n"


# Installed


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty workspace, in which the package of the examples is installed: the folder we are in."""
    project = tomllib.loads((EXAMPLES / "plugins" / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    about = tmp_path / "site" / "harbour-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    groups = project["entry-points"].items()
    lines = [line for group, points in groups for line in (f"[{group}]", *(f"{k} = {v}" for k, v in points.items()))]
    (about / "entry_points.txt").write_text("\n".join(lines) + "\n")
    monkeypatch.syspath_prepend(about.parent)
    for registry in REGISTRIES:
        monkeypatch.setattr(registry, "_installed", None)
    for name, value in environ_of(tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(about.parent), str(EXAMPLES / "plugins")]))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


def test_every_plug_in_is_found_by_its_name(installed: Path) -> None:
    groups = tomllib.loads((EXAMPLES / "plugins" / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for group, points in groups["entry-points"].items():
        registry = next(each for each in REGISTRIES if each.group == group)
        assert all(registry[name] for name in points)


def test_an_installed_fetcher_brings_a_folder(installed: Path) -> None:
    (installed / "there").mkdir()
    (installed / "there" / "tide.txt").write_text("high")
    assert run(["fetch", f"shelf://{installed}/there", "--to", "here"]) == 0
    assert [file.read_text() for file in (installed / "here").rglob("tide.txt")] == ["high"]


def test_installed_formats_are_read_and_written(installed: Path) -> None:
    package = {"name": "tides", "description": "Water levels.", "licenses": [{"name": "CC0-1.0"}], "pages": 3}
    (installed / "datapackage.json").write_text(json.dumps(package))
    assert run(["catalog", "add", "datapackage.json"]) == 0
    card = fairmile.show("dataset/tides")
    assert card.licence == "CC0-1.0" and card["foreign"]["datapackage"] == {"pages": 3}
    assert run(["catalog", "export", "dataset/tides", "--to", "datapackage", "-o", "out"]) == 0
    assert json.loads((installed / "out" / "datapackage.json").read_text())["description"] == "Water levels."


def test_a_system_may_use_an_installed_scheduler(installed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (EXAMPLES / "my-cluster.yaml").read_text(encoding="utf-8").replace("dialect: slurm", "dialect: pier")
    (installed / "my-cluster.yaml").write_text(text)
    assert run(["system", "add", "my-cluster.yaml"]) == 0
    capsys.readouterr()
    assert run(["system", "script", "--on", "my-cluster", "--account", "me", "--time", "0:30:00", "--", "date"]) == 0
    assert "#PIER minutes=30" in capsys.readouterr().out


def test_an_installed_trace_format_is_analysed(installed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = ["rank,kind,name,start_us,end_us"]
    for rank in (0, 1):
        for step in range(3):
            start = 1000 * step
            lines += [f"{rank},step,step {step},{start},{start + 1000}", f"{rank},input,load,{start},{start + 400}"]
            lines += [f"{rank},compute,forward,{start + 400},{start + 1000}"]
    (installed / "trace.csv").write_text("\n".join(lines) + "\n")
    assert run(["trace", "analyze", "trace.csv", "--format", "csv", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert any("input" in each["title"].lower() for each in found["findings"])


def test_an_installed_engine_tunes(installed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (installed / "fit.py").write_text("import sys\nx = float(sys.argv[1])\nprint('loss', (x - 0.3) ** 2)\n")
    text = "name: fit\ncommand: python fit.py {x}\naxes: {x: {uniform: [0, 1]}}\nobjective: {loss: lower}\n"
    (installed / "fit.yaml").write_text(
        text + "metrics: {loss: {pattern: 'loss (\\S+)'}}\ntuning: {engine: halton, trials: 3}\n"
    )
    assert run(["tune", "fit.yaml", "--json"]) == 0
    trials = json.loads(capsys.readouterr().out)["trials"]
    assert [each["params"]["x"] for each in trials] == [0.5, 0.25, 0.75]


def test_an_installed_resolver_gives_words_a_meaning(installed: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (installed / "Makefile").write_text("greet:\n\t@echo high tide\n")
    assert run(["run", "make:greet"]) == 0
    assert "high tide" in capfd.readouterr().out


def test_installed_formats_of_flows_are_read_and_written(installed: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tasks = [
        {"label": "mesh it", "command": "touch", "args": ["mesh 1.bin"]},
        {"label": "solve", "command": "cp", "args": ["mesh 1.bin", "it's $5.bin"], "dependsOn": "mesh it"},
    ]
    Path(".vscode").mkdir()
    Path(".vscode/tasks.json").write_text(json.dumps({"version": "2.0.0", "tasks": tasks}))
    assert run(["flow", "run", ".vscode/tasks.json"]) == 0
    assert Path("it's $5.bin").exists()
    assert run(["flow", "export", ".vscode/tasks.json", "--to", "make", "-o", "Makefile"]) == 0
    Path("it's $5.bin").unlink()
    subprocess.run(["make", "-s", "-j2", "all"], check=True)
    assert Path("it's $5.bin").exists()
