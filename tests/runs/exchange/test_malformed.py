"""Importers and documents that anybody could have written: any value at any place is a run, or one clear sentence."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mutations import VALUES, at, places, replace_a_value
from run_documents import lay_run, sha256, training

from fairmile.base.errors import FairmileError, InvalidDocument, UsageError
from fairmile.base.yaml import load_located
from fairmile.runs.exchange import EXCHANGES
from fairmile.runs.record.crate import FileFacts, card_text
from fairmile.runs.record.layout import CARD, RECORD
from fairmile.runs.record.record import RunRecord

pytestmark = pytest.mark.filterwarnings("ignore")
some = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
few = settings(some, max_examples=10)
TASK = {
    "id": "offline-1",
    "name": "their task",
    "status": "completed",
    "tags": ["ocean"],
    "system_tags": [],
    "offline_folder": "/offline",
    "hyperparams": {"General": {"lr": {"section": "General", "name": "lr", "value": "0.1", "type": "float"}}},
    "script": {"entry_point": "train.py", "version_num": "abc", "requirements": {"pip": "numpy==2"}},
    "execution": {"artifacts": [{"key": "notes", "uri": "/offline/data/a/artifacts/notes.txt", "hash": ""}]},
    "metrics": [{"type": "training_stats_scalar", "metric": "loss", "variant": "loss", "value": 1.5, "iter": 0,
                 "timestamp": 1000}],
}  # fmt: skip


def take_in(format: str, source: Path) -> None:
    """Read a document and lay out its runs; anything but a FairmileError fails the test."""
    with contextlib.suppress(FairmileError), tempfile.TemporaryDirectory() as scratch:
        for number, each in enumerate(EXCHANGES[format].read(source)):
            each.lay(Path(scratch) / str(number))


def mutate(data: st.DataObject, body: Any) -> Any:
    """Return a copy of a document in which a value is another one, or is missing."""
    changed = json.loads(json.dumps(body))
    if data.draw(st.booleans()):
        replace_a_value(data, changed, VALUES)
        return changed
    place = data.draw(st.sampled_from([each for each in places(changed) if each and isinstance(each[-1], str)]))
    del at(changed, place[:-1])[place[-1]]
    return changed


@given(st.data())
@some
def test_the_record_of_a_crate(tmp_path: Path, data: st.DataObject) -> None:
    folder = tmp_path / "crate"
    shutil.rmtree(folder, ignore_errors=True)
    body = training()
    lay_run(tmp_path, body | {"id": "crate"})
    files = {each: FileFacts() for each in ("events.jsonl", "output.log", "work/model é.pt")}
    changed = json.dumps(mutate(data, body)).encode()
    (folder / RECORD).write_bytes(changed)
    (folder / CARD).write_text(
        card_text(RunRecord.from_dict(body), files | {RECORD: FileFacts(len(changed), sha256(changed))})
    )
    take_in("rocrate", folder)


@given(st.data())
@some
def test_the_card_of_a_crate(tmp_path: Path, data: st.DataObject) -> None:
    folder = tmp_path / "crate"
    shutil.rmtree(folder, ignore_errors=True)
    body = training()
    lay_run(tmp_path, body | {"id": "crate"})
    names = (RECORD, "events.jsonl", "output.log", "work/model é.pt")
    card = json.loads(card_text(RunRecord.from_dict(body), {each: FileFacts() for each in names}))
    (folder / CARD).write_text(json.dumps(mutate(data, card)))
    take_in("rocrate", folder)


@given(st.data())
@some
def test_a_session_of_clearml(tmp_path: Path, data: st.DataObject) -> None:
    task = mutate(data, TASK)
    session = tmp_path / "session.zip"
    with zipfile.ZipFile(session, "w") as made:
        made.writestr("task.json", json.dumps(task))
        made.writestr("metrics.jsonl", json.dumps(task.get("metrics")) + "\n")
        made.writestr("log.jsonl", json.dumps(task.get("metrics")) + "\n")
        made.writestr("data/a/artifacts/notes.txt", "hello")
    take_in("clearml", session)


@given(st.data())
@some
def test_a_run_of_openml(tmp_path: Path, data: st.DataObject) -> None:
    pytest.importorskip("openml", reason="openml is not installed")
    fields = {"oml:task_id": "7", "oml:flow_id": "1", "oml:flow_name": "their.Forest", "oml:run_id": "3"}
    fields |= {"oml:setup_string": "x", "oml:error_message": "none"}
    inner = "<oml:parameter_setting><oml:name>depth</oml:name><oml:value>3</oml:value></oml:parameter_setting>"
    inner += "".join(f"<{name}>{value}</{name}>" for name, value in fields.items())
    text = f'<oml:run xmlns:oml="http://openml.org/openml">{inner}</oml:run>'
    start = data.draw(st.integers(0, len(text) - 1))
    end = data.draw(st.integers(start, min(len(text), start + 30)))
    cut = text[:start] + data.draw(st.sampled_from(["", "oml:", "-1", "<oml:x/>", "&amp;", "é"])) + text[end:]
    (tmp_path / "description.xml").write_text(cut, encoding="utf-8")
    take_in("openml", tmp_path)


@pytest.fixture(scope="module")
def old_store(tmp_path_factory: pytest.TempPathFactory, home: Path) -> Iterator[Path]:
    """A store in the folders of older versions of MLflow."""
    pytest.importorskip("mlflow", reason="mlflow is not installed")
    from mlflow.tracking import MlflowClient

    folder = tmp_path_factory.mktemp("old") / "mlruns"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
        client = MlflowClient(folder.as_uri())
        made = client.create_run(client.create_experiment("old"), run_name="old-run")
        client.log_param(made.info.run_id, "lr", "0.5")
        client.log_metric(made.info.run_id, "loss", 1.5, step=7)
        client.set_terminated(made.info.run_id, "FINISHED")
    yield folder


def runs_of(store: Path) -> list[Path]:
    return sorted(store.glob("*/*/meta.yaml"))


@given(st.data())
@few
def test_a_store_of_mlflow(old_store: Path, tmp_path: Path, data: st.DataObject) -> None:
    copy = tmp_path / "mlruns"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(old_store, copy)
    file = data.draw(st.sampled_from([*runs_of(copy), *sorted(copy.glob("*/meta.yaml"))]))
    file.write_text(json.dumps(mutate(data, load_located(file.read_text()).data)))
    take_in("mlflow", copy)


def test_a_field_that_a_store_of_mlflow_lacks_is_named_with_its_file(old_store: Path, tmp_path: Path) -> None:
    copy = tmp_path / "mlruns"
    shutil.copytree(old_store, copy)
    (file,) = runs_of(copy)
    body = dict(load_located(file.read_text()).data)
    del body["experiment_id"]
    file.write_text(json.dumps(body))
    with pytest.raises(InvalidDocument, match=f"^{file} experiment_id: field required"):
        EXCHANGES["mlflow"].read(copy)


@pytest.mark.parametrize("place", ["params/lr", "artifacts/more"])
def test_a_link_out_of_a_store_of_mlflow_is_refused(old_store: Path, tmp_path: Path, place: str) -> None:
    copy = tmp_path / "mlruns"
    shutil.copytree(old_store, copy)
    (tmp_path / "private").write_text("secret")
    (file,) = runs_of(copy)
    link = file.parent / place
    link.unlink(missing_ok=True)
    link.symlink_to(tmp_path / "private")
    with pytest.raises(UsageError, match=f"{link} is a symbolic link to outside {copy}"):
        EXCHANGES["mlflow"].read(copy)


def test_a_link_out_of_a_run_of_openml_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("openml", reason="openml is not installed")
    (tmp_path / "private").write_text("secret")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "description.xml").symlink_to(tmp_path / "private")
    with pytest.raises(UsageError, match="a symbolic link to outside"):
        EXCHANGES["openml"].read(folder)
