"""Runs as ClearML offline sessions: ClearML takes them, and sessions of ClearML are read."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from clearml_server import clearml_server
from run_documents import lay_run, trivial

from fairmile.base.errors import Conflict, Integrity, NotFound, UsageError
from fairmile.runs.exchange import EXCHANGES
from fairmile.runs.record.record import RunRecord
from fairmile.runs.record.run import Run, RunState

clearml = EXCHANGES["clearml"]
_SESSION = """
import math
from clearml import Task

Task.set_offline(offline_mode=True)
task = Task.init(
    project_name="theirs", task_name="their task", reuse_last_task_id=False, auto_connect_frameworks=False,
    auto_connect_arg_parser=False, auto_connect_streams=False, auto_resource_monitoring=False, output_uri=None,
)
task.connect({"lr": 0.1, "deep": True, "name": "12"}, name="General")
task.connect({"layers": 3}, name="Model")
for step, value in enumerate([2.0, 0.5]):
    task.get_logger().report_scalar("loss", "train", value=value, iteration=step)
task.get_logger().report_single_value("final", 0.25)
task.set_tags(["ocean"])
open("notes.txt", "w").write("hello")
task.upload_artifact("notes", "notes.txt", wait_on_upload=True)
task.get_logger().report_text("it trains", print_console=False)
task.close()
"""


def _clearml(script: str, home: Path, **env: str) -> str:
    """Run a script with ClearML in a process of its own, since it takes hold of the one that it is in."""
    if importlib.util.find_spec("clearml") is None:
        pytest.skip("clearml is not installed")
    home.mkdir(exist_ok=True)
    said = {**os.environ, "HOME": str(home), "CLEARML_CACHE_DIR": str(home / "cache"), **env}
    said["CLEARML_CONFIG_FILE"] = str(home / "clearml.conf")
    (home / "script.py").write_text(script)
    # By default it reports from a forked process, and waits for ever for one that was forked while a lock was held.
    (home / "clearml.conf").write_text("sdk { development { report_use_subprocess: false } }\n")
    command = [sys.executable, "-W", "ignore", "script.py"]
    done = subprocess.run(command, cwd=home, env=said, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def members(session: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(session) as opened:
        return {name: opened.read(name) for name in opened.namelist()}


# Out


@pytest.mark.thorough
def test_clearml_imports_the_session_with_parameters_metrics_and_artifacts(run: Run, tmp_path: Path) -> None:
    [session] = clearml.export(run, tmp_path / "session.zip")
    with clearml_server() as server:
        hosts = {f"CLEARML_{name}_HOST": server.address for name in ("API", "WEB")}
        keys = {f"CLEARML_API_{name}_KEY": "x" for name in ("ACCESS", "SECRET")}
        script = f"from clearml import Task\nassert Task.import_offline_session({str(session)!r})"
        _clearml(script, tmp_path / "home", **hosts, **keys, CLEARML_FILES_HOST=f"{server.address}/files")
    told = server.told("tasks.edit")[0]
    assert (told["name"], told["tags"]) == ("train-k3x9qa", ["nightly"])
    params = {name: each["value"] for name, each in told["hyperparams"]["General"].items()}
    assert params == {"lr": "0.1", "epochs": "2", "deep": "True", "note": "größer als 1", "none": "None"}
    assert told["script"]["version_num"] == "c" * 40 and told["script"]["diff"] == "+x\n"
    events = [each for body in server.told("events.add_batch") for each in (body if isinstance(body, list) else [body])]
    scalars = [each for each in events if each["type"] == "training_stats_scalar"]
    assert [(each["iter"], each["value"]) for each in scalars if each["metric"] == "loss"] == [(0, 2.0), (1, 0.5)]
    assert [each["value"] for each in scalars if each["variant"] == "größe"] == [0.1, 0.9]
    assert [each["value"] for each in scalars if each["metric"] == "energy_j"] == [1234.5]
    assert "epoch 2" in next(each["msg"] for each in events if each["type"] == "log")
    assert sum(b"weights" in data for data in server.uploaded) == 1
    assert server.told("tasks.completed")


def test_a_failed_run_says_so(tmp_path: Path) -> None:
    document = trivial("failed")
    [session] = clearml.export(Run(RunRecord.from_dict(document), lay_run(tmp_path, document)), tmp_path / "s.zip")
    task = json.loads(members(session)["task.json"])
    assert (task["status"], task["status_reason"]) == ("failed", "exit code 3")


def test_nothing_is_overwritten(run: Run, tmp_path: Path) -> None:
    assert clearml.export(run, tmp_path) == [tmp_path / "train-k3x9qa.zip"]
    with pytest.raises(Conflict):
        clearml.export(run, tmp_path)


# In


def test_our_own_run_comes_back_as_it_was(run: Run, tmp_path: Path) -> None:
    [session] = clearml.export(run, tmp_path / "session.zip")
    [imported] = clearml.read(session)
    assert imported.record == run.record
    again = imported.lay(tmp_path / "again")
    assert (again.folder / "work" / "model é.pt").read_bytes() == b"weights"
    assert len(again.log().metrics) == len(run.log().metrics)


def test_a_session_that_clearml_made_becomes_a_run(tmp_path: Path) -> None:
    _clearml(_SESSION, tmp_path / "home")
    [session] = (tmp_path / "home" / "cache" / "offline").glob("*.zip")
    [imported] = clearml.read(session)
    run = imported.lay(tmp_path / "theirs")
    assert run.name == "their-task" and run.state is RunState.DONE
    assert run.params == {"lr": 0.1, "deep": True, "name": "12", "Model/layers": 3}
    assert run.spec.tags == ("ocean",)
    assert [(each.step, each.value) for each in run.log().metrics if each.name == "loss/train"] == [(0, 2.0), (1, 0.5)]
    assert run.metrics["loss/train"].better == "lower"
    assert (run.folder / "work" / "notes" / "notes.txt").read_text() == "hello"
    assert "it trains" in (run.folder / "output.log").read_text()
    assert run.record.imported["project"] == "theirs"
    assert run.record.spec.argv == ["script.py"]
    assert any(line.startswith("clearml==") for line in run.captured.environment.lock)


def _changed(session: Path, name: str, data: bytes | None) -> Path:
    content = members(session)
    with zipfile.ZipFile(session, "w") as opened:
        for each, before in content.items():
            if each != name or data is not None:
                opened.writestr(each, data if each == name and data is not None else before)
    return session


def test_an_artifact_that_was_changed_is_named(run: Run, tmp_path: Path) -> None:
    [session] = clearml.export(run, tmp_path / "s.zip")
    [name] = [each for each in members(session) if each.endswith("model é.pt")]
    with pytest.raises(Integrity, match="model é"):
        clearml.read(_changed(session, name, b"other"))


@pytest.mark.parametrize("data", [b"[1", b"\xff", b'[{"type": "training_stats_scalar", "value": }]'])
def test_metrics_that_cannot_be_read_are_named_with_their_line(data: bytes, run: Run, tmp_path: Path) -> None:
    [session] = clearml.export(run, tmp_path / "s.zip")
    with pytest.raises(Integrity, match=r"metrics.jsonl:1"):
        clearml.read(_changed(session, "metrics.jsonl", data))


@pytest.mark.parametrize("body", [None, b"[]", b"{", b'"x"'])
def test_what_is_no_session_is_refused(body: Any, run: Run, tmp_path: Path) -> None:
    [session] = clearml.export(run, tmp_path / "s.zip")
    with pytest.raises(UsageError, match=r"task.json"):
        clearml.read(_changed(session, "task.json", body))
    with pytest.raises(NotFound):
        clearml.read(tmp_path / "nowhere.zip")
