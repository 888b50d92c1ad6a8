"""Runs in an MLflow store, seen by MLflow itself, and runs of MLflow read."""

from __future__ import annotations

import contextlib
import math
import re
import shutil
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from run_documents import CREATED, lay_run, training, trivial
from sweep_making import wait_until

from fairmile.base.commands import Here
from fairmile.base.errors import Conflict, NotFound, UsageError
from fairmile.runs.exchange import EXCHANGES, ImportedRun
from fairmile.runs.record.layout import RECORD
from fairmile.runs.record.record import RunRecord
from fairmile.runs.record.run import Run, RunState
from fairmile.transfer.credentials import Credentials
from fairmile.transfer.remote import Context
from fairmile.transfer.settings import Settings

pytestmark = pytest.mark.filterwarnings("ignore")


@dataclass
class Store:
    """A store with three runs: a training and a failure of ours, and one of MLflow's own."""

    folder: Path
    client: Any
    own: Run
    failed: Run
    foreign: str

    def seen(self, run: Run) -> Any:
        """Return our run as MLflow sees it."""
        ids = [each.experiment_id for each in self.client.search_experiments()]
        [found] = self.client.search_runs(ids, filter_string=f"tags.`fairmile.run` = '{run.id}'")
        return found


@pytest.mark.thorough
def test_a_run_is_sent_to_a_tracking_server_and_a_dry_run_says_what_would_leave(tmp_path: Path, home: Path) -> None:
    pytest.importorskip("mlflow", reason="mlflow is not installed")
    document = training()
    run = Run(RunRecord.from_dict(document), lay_run(tmp_path / "runs", document))
    upload = EXCHANGES["mlflow"].upload  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match="no MLflow server"):
        upload(run, reaching())
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = f"http://127.0.0.1:{port}"
    planned = upload(run, reaching(MLFLOW_TRACKING_URI=server), dry_run=True)
    assert planned[0].startswith("command: python train.py") and planned[0].endswith(f", to {server}")
    assert any(line.startswith(f"{RECORD} (") for line in planned)
    words = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", f"sqlite:///{tmp_path}/server.db"]
    words += ["--artifacts-destination", str(tmp_path / "artifacts"), "--port", str(port), "--workers", "1"]
    process = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: answers(port), process)
        (address,) = upload(run, reaching(MLFLOW_TRACKING_URI=server))
        from mlflow.tracking import MlflowClient

        client = MlflowClient(tracking_uri=server)
        key = address.rpartition("/")[2]
        assert client.get_run(key).data.tags["fairmile.run"] == run.id
        assert RECORD in {each.path for each in client.list_artifacts(key)}
        with pytest.raises(Conflict, match="already holds run"):
            upload(run, reaching(MLFLOW_TRACKING_URI=server))
        client.update_run(key, status="RUNNING")  # as an upload leaves it that breaks before its end
        assert upload(run, reaching(MLFLOW_TRACKING_URI=server)) == [address]
        assert [each.value for each in client.get_metric_history(key, "loss")] == [2.0, 0.5]
    finally:
        process.terminate()
        process.wait(60)


def reaching(**environ: str) -> Context:
    return Context(environ, Here(), Credentials(environ), Settings())


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, home: Path) -> Iterator[Store]:
    # One for all tests: MLflow takes seconds to make its tables.
    pytest.importorskip("mlflow", reason="mlflow is not installed")
    root = tmp_path_factory.mktemp("mlflow")
    document, failed = training(), trivial("failed") | {"id": "run-failed"}
    failed["spec"] = {"name": "odd", "argv": ["x"], "params": {"../a:b%@": 1, "long": "x" * 9000}}
    runs = [Run(RunRecord.from_dict(each), lay_run(root / "runs", each)) for each in (document, failed)]
    for run in runs:
        EXCHANGES["mlflow"].export(run, root / "store")
    import mlflow
    from mlflow.tracking import MlflowClient

    mlflow.set_tracking_uri(f"sqlite:///{root}/store/mlflow.db")
    mlflow.create_experiment("theirs", artifact_location=(root / "store" / "elsewhere").as_uri())
    mlflow.set_experiment("theirs")
    with mlflow.start_run(run_name="their run: größer") as active:
        mlflow.log_params({"lr": 0.01, "layers": 3, "optimizer": "adam", "nested": {"a": 1}, "amp": True})
        for step, value in enumerate([1.0, float("nan"), 0.25]):
            mlflow.log_metric("loss", value, step=step)
        mlflow.log_metric("accuracy", 0.75)
        mlflow.set_tag("team", "ocean")
        mlflow.log_text("hello", "notes/hello.txt")
    yield Store(root / "store", MlflowClient(mlflow.get_tracking_uri()), *runs, active.info.run_id)


@pytest.fixture
def imported(store: Store) -> dict[str, ImportedRun]:
    return {each.record.spec.name: each for each in EXCHANGES["mlflow"].read(store.folder)}


# Out


def test_mlflow_sees_parameters_metrics_tags_and_times(store: Store) -> None:
    run = store.seen(store.own)
    assert (run.info.status, run.info.run_name) == ("FINISHED", "train-k3x9qa")
    assert (run.info.start_time, run.info.end_time) == (round(CREATED * 1000), round((CREATED + 0.25) * 1000))
    assert run.data.params == {"lr": "0.1", "epochs": "2", "deep": "True", "note": "größer als 1", "none": "None"}
    assert run.data.metrics["loss"] == 0.5 and run.data.metrics["energy_j"] == 1234.5
    assert run.data.tags["mlflow.source.git.commit"] == "c" * 40
    assert run.data.tags["mlflow.source.name"] == "python train.py --note 'two words'"
    assert run.data.tags["mlflow.user"] == "Ada Løvelace"
    assert run.data.tags["fairmile.tag.nightly"] == "true"


def test_mlflow_sees_every_value_with_its_step_and_time(store: Store) -> None:
    history = store.client.get_metric_history(store.seen(store.own).info.run_id, "loss")
    assert [(each.step, each.value) for each in history] == [(0, 2.0), (1, 0.5)]
    assert [each.timestamp / 1000 for each in history] == pytest.approx([CREATED + 0.05, CREATED + 0.15], abs=0.002)


def test_mlflow_has_all_files_of_the_run(store: Store, tmp_path: Path) -> None:
    key = store.seen(store.own).info.run_id
    assert {each.path for each in store.client.list_artifacts(key)} == {
        "run.json",
        "events.jsonl",
        "output.log",
        "work",
    }
    copy = store.client.download_artifacts(key, "work/model é.pt", str(tmp_path))
    assert Path(copy).read_bytes() == b"weights"


def test_a_failed_run_and_names_that_mlflow_does_not_take(store: Store) -> None:
    run = store.seen(store.failed)
    assert (run.info.status, run.data.tags["mlflow.note.content"]) == ("FAILED", "exit code 3")
    assert run.data.params.keys() == {"_/a:b__", "long"} and len(run.data.params["long"]) == 6000


def test_a_run_goes_into_a_store_once(store: Store) -> None:
    with pytest.raises(Conflict, match="already"):
        EXCHANGES["mlflow"].export(store.own, store.folder)


# In


def test_our_own_run_comes_back_as_it_was(store: Store, imported: dict[str, ImportedRun], tmp_path: Path) -> None:
    assert imported["train"].record == store.own.record
    again = imported["train"].lay(tmp_path / "again")
    assert (again.folder / "work" / "model é.pt").read_bytes() == b"weights"
    assert len(again.log().metrics) == len(store.own.log().metrics)


def test_a_run_that_mlflow_recorded_becomes_one_of_ours(
    store: Store, imported: dict[str, ImportedRun], tmp_path: Path
) -> None:
    [name] = set(imported) - {"train", "odd"}
    run = imported[name].lay(tmp_path / "theirs")
    assert run.state is RunState.DONE and run.elapsed_s is not None
    assert run.params == {"lr": 0.01, "layers": 3, "optimizer": "adam", "nested": "{'a': 1}", "amp": True}
    assert run.spec.tags == ("team=ocean",)
    loss = run.metrics["loss"]
    assert (loss.value, loss.first, loss.count, loss.better) == (0.25, 1.0, 3, "lower")
    values = [(each.step, each.value) for each in run.log().metrics if each.name == "loss"]
    assert values[0] == (0, 1.0) and math.isnan(values[1][1]) and values[2] == (2, 0.25)
    assert (run.folder / "work" / "notes" / "hello.txt").read_text() == "hello"
    assert run.record.imported["id"] == store.foreign
    assert run.record.imported["experiment"] == "theirs"
    assert run.id.endswith(store.foreign[-12:])


def test_a_store_that_was_moved_keeps_its_files(store: Store, tmp_path: Path) -> None:
    shutil.copytree(store.folder, tmp_path / "moved")
    found = {each.id: each for each in EXCHANGES["mlflow"].read(tmp_path / "moved" / "mlflow.db")}
    assert "work/model é.pt" in found["train-k3x9qa"].files


def test_files_outside_of_the_store_are_left_where_they_are(store: Store, tmp_path: Path) -> None:
    shutil.copy(store.folder / "mlflow.db", tmp_path / "mlflow.db")
    found = {each.record.imported["id"]: each for each in EXCHANGES["mlflow"].read(tmp_path)}
    assert found[store.foreign].files == ("events.jsonl",)
    assert found[store.foreign].record.imported["artifacts"].startswith("file://")


def test_the_folders_of_older_versions_are_read(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow.tracking import MlflowClient

    with monkeypatch.context() as patch:
        patch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
        client = MlflowClient((tmp_path / "mlruns").as_uri())
        made = client.create_run(client.create_experiment("old"), run_name="old-run")
        client.log_param(made.info.run_id, "lr", "0.5")
        client.log_metric(made.info.run_id, "loss", 1.5, step=7)
        client.set_terminated(made.info.run_id, "KILLED")
    [imported] = EXCHANGES["mlflow"].read(tmp_path / "mlruns")
    run = Run(imported.record, tmp_path)
    assert (run.params, run.metrics["loss"].value, run.state) == ({"lr": 0.5}, 1.5, RunState.CANCELLED)


def test_what_is_no_store_is_named(store: Store, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not an MLflow store"):
        EXCHANGES["mlflow"].read(tmp_path)
    with pytest.raises(NotFound):
        EXCHANGES["mlflow"].read(tmp_path / "nowhere")


def test_a_file_that_is_no_store_is_refused_in_one_sentence_and_left_as_it_is(tmp_path: Path) -> None:
    text, other, folder = tmp_path / "a.txt", tmp_path / "other.db", tmp_path / "folder"
    text.write_text("hello\n")
    folder.mkdir()
    (folder / "mlflow.db").write_bytes(b"")
    with contextlib.closing(sqlite3.connect(other)) as connection:
        connection.execute("CREATE TABLE mine (number)")
        connection.commit()
    before = other.read_bytes()
    for each in (text, other, folder):
        with pytest.raises(UsageError, match=rf"^{re.escape(str(each))} is not an MLflow store(?:\n|$)"):
            EXCHANGES["mlflow"].read(each)
    assert other.read_bytes() == before and (folder / "mlflow.db").read_bytes() == b""
