"""Every command is one Python call: `--json` prints the call's `to_dict()`, and the call's result suits a notebook."""

from __future__ import annotations

import ast
import json
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from trace_files import kineto_events, write_kineto
from trusted_projects import trusted_project

import fairmile as fm
import fairmile.completion
import fairmile.meter.watching
from fairmile.base.results import Result, Results
from fairmile.cli.main import run
from fairmile.testing.calls import EXAMPLES, Example
from fairmile.testing.schemas import commands, result_types, schema_of

ROOT = Path(__file__).parents[2]
COMMANDS = dict(commands())

# Of a disk that others use as well, of the clock, or of what else this machine does.
CHANGING = ("created_at", "date", "free_bytes", "given_at", "inodes_free", "total_bytes", "used", "used_bytes", "why")

# Checks of `doctor` whose detail is of that kind: free space, and byte code that the first call compiles.
CHANGING_CHECKS = ("disk", "quota", "byte code")

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
tuning: {trials: 1, sampler: random, seed: 1}
"""


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory, filled_home: Path) -> Iterator[Path]:
    """A folder whose home has cards, a source, data, a pool, an environment, a job, runs, a sweep, a study, a flow."""
    top = tmp_path_factory.mktemp("calls")
    work = top / "work"
    shutil.copytree(ROOT / "docs" / "examples", work)
    shutil.copytree(filled_home, top / "home")
    for name, text in {
        "program.py": PROGRAM,
        "rates.yaml": SWEEP,
        "quad.yaml": STUDY,
        "tide.csv": "time,level\n0,1.5\n",
        "plain.yaml": "variables: {WORD: hello}\n",
    }.items():
        (work / name).write_text(text)
    for rank in (0, 1):
        write_kineto(work / "first", rank, events=kineto_events(rank, late_us=100.0 * rank))
    with pytest.MonkeyPatch.context() as patch:
        for name in [
            name for name in os.environ if name.startswith(("FAIRMILE", "XDG_CONFIG", "XDG_DATA", "XDG_STATE"))
        ]:
            patch.delenv(name)
        patch.setenv("HOME", str(top / "user"))
        patch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
        patch.setenv("FAIRMILE_HOME", str(top / "home"))
        patch.chdir(work)
        trusted_project(work, "transfer: {retries: 3, unsized: 1 GB}\n")
        fm.catalog.add_source("group", "./shared-cards")
        fm.store.add_pool("scratch", "./scratch", capacity="10 MB")
        fm.systems.add("my-cluster.yaml")
        fm.fetch("tide.csv")
        fm.store.pin("tide.csv", "kept")
        fm.envs.build("plain.yaml")
        fm.jobs.wait([fm.jobs.submit(fm.JobSpec(argv=("echo", "tide"), name="echo")).id])
        for name, x, epochs in (("slow", 0.1, 1), ("slow", 0.1, 3), ("fast", 0.2, 2)):
            changes: dict[str, Any] = {"name": name, "params": {"x": x, "epochs": epochs}, "watch_s": 0}
            _take(fm.run(["python", "program.py", "{x}", "{epochs}"], **changes).folder, 10.0 * epochs)
        fm.sweep("rates.yaml")
        fm.flows.run("tide-flow.yaml")
        fm.tune("quad.yaml")
        fm.access.add_user("ada", "correct horse battery", rights=["read"])
        fm.access.grant("lake-temperatures", "ada")
        fm.access.assets.request("local/program/lake-tools", "ada", "a test")
        yield work


def _take(run: Path, seconds: float) -> None:
    """Let a run have taken so long: else the machine decides whether more epochs take longer."""
    record = json.loads((run / "run.json").read_text())
    record["result"]["elapsed_s"] = seconds
    (run / "run.json").write_text(json.dumps(record))


def _id(example: Example) -> str:
    return example.shell


def test_every_command_has_a_call() -> None:
    """Add an Example to fairmile/testing/calls.py for a new command."""
    assert [name for name in COMMANDS if name not in {each.command for each in EXAMPLES}] == []


@pytest.mark.parametrize("example", [each for each in EXAMPLES if not each.is_executed], ids=_id)
def test_the_calls_that_take_long_are_there(work: Path, example: Example) -> None:
    called = ast.parse(example.python, mode="eval").body
    assert isinstance(called, ast.Call)
    call: Callable[..., Any] = eval(ast.unparse(called.func), {"fm": fm, "fairmile": fairmile})
    returned = {each.partition("[")[0] for each in str(call.__annotations__["return"]).split(" | ")}
    assert returned <= {each.__name__ for each in _with_subclasses(result_types(COMMANDS[example.command]))}


def _with_subclasses(types: Iterable[type]) -> Iterator[type]:
    for each in types:
        yield each
        yield from _with_subclasses(each.__subclasses__())


@pytest.mark.parametrize("example", [each for each in EXAMPLES if each.is_executed], ids=_id)
def test_a_command_prints_what_its_call_returns(
    work: Path, capsys: pytest.CaptureFixture[str], example: Example
) -> None:
    words = shlex.split(example.shell)
    at = words.index("--") if "--" in words else len(words)
    capsys.readouterr()
    code = run([*words[:at], "--json", *words[at:]])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    printed = json.loads(captured.out)
    result = eval(example.python, {"fm": fm, "fairmile": fairmile})
    types = result_types(COMMANDS[example.command])
    assert isinstance(result, types)
    assert _steady(printed) == _steady(json.loads(json.dumps(result.to_dict())))
    _assert_declared(example.command, printed, tuple(each for each in types if isinstance(result, each)))
    _assert_suits_a_notebook(result)


def _assert_declared(command: str, printed: Any, types: tuple[type[Result], ...]) -> None:
    schema = schema_of(command, types)
    if not command.startswith("benchmark"):  # whose cards may say more
        schema = _exact(schema)
    jsonschema.validate(printed, schema)


def _assert_suits_a_notebook(result: Result) -> None:
    assert 0 < len(repr(result)) <= 200
    assert "\n" not in repr(result)
    assert result._repr_html_().startswith("<")
    frame = result.to_pandas()
    if isinstance(result, Results):
        assert len(frame) == len(result)


def _steady(data: Any) -> Any:
    if isinstance(data, dict):
        left_out = (*CHANGING, "detail") if data.get("name") in CHANGING_CHECKS else CHANGING
        return {key: _steady(value) for key, value in data.items() if key not in left_out}
    return [_steady(each) for each in data] if isinstance(data, list) else data


def _exact(schema: Any) -> Any:
    """Return a schema that refuses keys which it does not name."""
    if isinstance(schema, list):
        return [_exact(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {"additionalProperties": False} if isinstance(schema.get("properties"), dict) else {}
    return {key: _exact(value) for key, value in schema.items()} | closed
