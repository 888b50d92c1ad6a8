"""What `--json` prints of runs, sweeps, studies, reports and benchmarks is what the Python API returns."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from notebook_html import notebook_html

from fairmile.base.results import Result
from fairmile.cli.main import run
from fairmile.reports.leaderboard import Leaderboard
from fairmile.reports.reports import Evaluation
from fairmile.runs.results import RunDetails
from fairmile.sweeps.results import SweepStatus
from fairmile.testing.schemas import commands, result_types, schema_of
from fairmile.workspace import Workspace

Fairmile = Callable[..., Any]

PROGRAM = """\
import json, os, sys
x, epochs = float(sys.argv[1]), int(sys.argv[2])
with open(os.environ["FAIRMILE_METRICS"], "a") as stream:
    for epoch in range(epochs):
        stream.write(json.dumps({"loss": (x - 0.3) ** 2 + 1 / (epoch + 1), "step": epoch}) + "\\n")
print(x)
"""
SWEEP = (
    "name: rates\ncommand: python program.py {x} {epochs}\naxes: {x: [0.1, 0.2], epochs: [1]}\nevery: 0\nbest: loss\n"
)
STUDY = """\
name: quad
command: python program.py {x} 2
axes: {x: {uniform: [0, 1]}}
objective: {loss: lower}
every: 0
tuning: {trials: 2, sampler: random, seed: 1}
"""


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a program, whose home has runs of two names, a sweep, and a study of which a trial is done."""
    top = tmp_path_factory.mktemp("results")
    work = top / "work"
    work.mkdir()
    (work / "program.py").write_text(PROGRAM)
    (work / "rates.yaml").write_text(SWEEP)
    (work / "quad.yaml").write_text(STUDY)
    with pytest.MonkeyPatch.context() as patch:
        for name in [
            name for name in os.environ if name.startswith(("FAIRMILE", "XDG_CONFIG", "XDG_DATA", "XDG_STATE"))
        ]:
            patch.delenv(name)
        patch.setenv("HOME", str(top / "user"))
        patch.setenv("FAIRMILE_HOME", str(top / "home"))
        patch.chdir(work)
        runs = Workspace.open().runs
        for name, x, epochs in (("slow", 0.1, 1), ("slow", 0.1, 3), ("fast", 0.2, 2)):
            changes: dict[str, Any] = {"name": name, "params": {"x": x, "epochs": epochs}, "watch_s": 0}
            file = runs.run(["python", "program.py", "{x}", "{epochs}"], **changes).folder / "run.json"
            record = json.loads(file.read_text())
            record["result"]["elapsed_s"] = 10.0 * epochs  # else the machine decides whether more epochs take longer
            file.write_text(json.dumps(record))
        assert run(["sweep", "run", "rates.yaml"]) == 0
        assert run(["tune", "quad.yaml", "--trials", "1"]) == 0
        yield work


@pytest.fixture
def fairmile(work: Path, capsys: pytest.CaptureFixture[str]) -> Fairmile:
    """Run a command line with `--json` and return what it prints."""

    def call(*arguments: str) -> Any:
        capsys.readouterr()
        assert run([arguments[0], "--json", *arguments[1:]]) == 0
        return json.loads(capsys.readouterr().out)

    return call


def _target() -> list[str]:
    return ["python", "program.py", "{x}", "1"]


# Beside those of fairmile/testing/calls.py.
CASES: dict[str, Callable[[Workspace], Result]] = {
    "run -p x=1 --dry-run -- python program.py {x} 1": lambda w: w.runs.plan(_target(), params={"x": 1}),
    "report slow-LAST --dry-run": lambda w: w.reports.page(_last(w)).write(Path("report.html"), dry_run=True),
    "report rates-LAST --dry-run": lambda w: w.reports.page(_last(w, "rates-")).write(
        Path("report.html"), dry_run=True
    ),
}


def _last(workspace: Workspace, name: str = "slow-") -> str:
    """Return the last run of a name, or the sweep of a name."""
    if name == "rates-":
        return workspace.sweeps.get("rates").id
    return next(row.id for row in workspace.ledger.rows() if row.id.startswith(name))


def _words(command: str, workspace: Workspace) -> list[str]:
    words = command.split()
    at = next((at for at, word in enumerate(words) if word == "--"), len(words))
    words = [*words[:at], "--json", *words[at:]]
    return [_last(workspace, word.removesuffix("LAST")) if word.endswith("-LAST") else word for word in words]


@pytest.mark.parametrize("command", CASES)
def test_a_command_prints_what_the_call_behind_it_returns(
    work: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    workspace = Workspace.open()
    result = CASES[command](workspace)
    expected = json.loads(json.dumps(result.to_dict()))
    capsys.readouterr()
    assert run(_words(command, workspace)) == 0
    printed = json.loads(capsys.readouterr().out)
    for each in (expected, printed):
        _forget_what_changes(each)
    assert printed == expected
    assert 0 < len(repr(result)) <= 200
    assert "\n" not in repr(result)
    assert result._repr_html_().startswith("<table>") or not result


@pytest.mark.parametrize("command", CASES)
def test_what_is_printed_has_the_declared_shape(work: Path, command: str) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    result = CASES[command](Workspace.open())
    names = dict(commands())
    name = max((name for name in names if f"{command} ".startswith(f"{name} ")), key=len, default="tune run")
    types = result_types(names[name])
    assert isinstance(result, types)
    schema = schema_of(name, tuple(each for each in types if isinstance(result, each)))
    if not name.startswith("benchmark"):  # whose cards may say more
        _forbid_undeclared(schema)
    jsonschema.validate(json.loads(json.dumps(result.to_dict())), schema)


def _forbid_undeclared(schema: Any) -> None:
    """Let objects with declared properties have no others."""
    if isinstance(schema, dict):
        if "properties" in schema and "type" in schema:
            schema["additionalProperties"] = False
        for each in schema.values():
            _forbid_undeclared(each)
    elif isinstance(schema, list):
        for each in schema:
            _forbid_undeclared(each)


def _forget_what_changes(value: Any) -> None:
    """Remove numbers that differ from one call to the next: the free space of a disk."""
    if isinstance(value, dict):
        for name in [name for name in value if name in ("free_bytes",)]:
            del value[name]
        for each in value.values():
            _forget_what_changes(each)
    elif isinstance(value, list):
        for each in value:
            _forget_what_changes(each)


def test_a_run_is_a_short_line_and_a_small_table(work: Path) -> None:
    workspace = Workspace.open()
    made = workspace.runs.show(_last(workspace))
    assert isinstance(made, RunDetails)
    assert repr(made.run).startswith(f"<Run: {made.run.id} done in ")
    assert "loss" in repr(made.run)
    assert "<th>state</th><td>done</td>" in notebook_html(made.run)
    assert "<th>epochs</th><td>3</td>" in notebook_html(made.run)


def test_a_comparison_and_a_sweep_are_tables(work: Path) -> None:
    workspace = Workspace.open()
    compared = workspace.reports.evaluate("slow", "fast")
    assert isinstance(compared, Evaluation)
    assert "<th>metric</th>" in notebook_html(compared)
    status = workspace.sweeps.points(workspace.sweeps.get("rates"))
    assert isinstance(status, SweepStatus)
    assert repr(status) == f"<SweepStatus: {status.sweep.id}: 2 done>"
    assert "<th>x</th>" in notebook_html(status)
    assert isinstance(workspace.reports.leaderboard("loss"), Leaderboard)


def test_a_rerun_and_repeats_print_what_the_calls_return(fairmile: Fairmile) -> None:
    runs = Workspace.open().runs
    repeats = fairmile("run", "--repeat", "2", "--every", "0", "-p", "x=1", "--", "python", "program.py", "{x}", "1")
    assert repeats == {"runs": [json.loads(json.dumps(runs.get(each["id"]).to_dict())) for each in repeats["runs"]]}
    again = fairmile("rerun", repeats["runs"][0]["id"])
    assert (again["original"], again["reproduced"]) == (repeats["runs"][0]["id"], True)
    assert {"what": "end", "same": True, "detail": "done"} in again["verdicts"]
