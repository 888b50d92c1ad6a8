"""Runs in an MLflow store: a folder with `mlflow.db` (SQLite) and the artifacts beside it.

Parameters, metrics with steps and times, tags and all files of a run go in. What reads runs takes those that MLflow
recorded itself as well; the artifacts of a run are taken where they lie below the folder of the store.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import posixpath
import re
import shlex
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import unquote, urlparse

# MLflow reports its use to its makers from the moment it is imported.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")

from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient
from pydantic import AliasChoices, Field
from sqlalchemy.exc import SQLAlchemyError
from yaml import YAMLError  # type: ignore[import-untyped]

from fairmile.base.documents import Document
from fairmile.base.errors import InvalidDocument, NotFound, Problem, SystemFailure, Transient, UsageError
from fairmile.base.units import format_size
from fairmile.base.yaml import load_located
from fairmile.meter.lines import event_files, read_log
from fairmile.runs.exchange import Files, ImportedRun, folder_of, no_files, well_formed
from fairmile.runs.exchange.foreign import (
    ForeignRun,
    Point,
    checked_record,
    files_below,
    lay_copies,
    refuse_links_out,
    typed,
    validated,
)
from fairmile.runs.exchange.service import already_there
from fairmile.runs.record.layout import RECORD
from fairmile.runs.record.record import GitState
from fairmile.runs.record.run import Run, RunState
from fairmile.transfer.credentials import shown_address
from fairmile.transfer.remote import Context

_DATABASE, _ARTIFACTS, _META = "mlflow.db", "artifacts", "*/meta.yaml"
_RUN_TAG, _TAG = "fairmile.run", "fairmile.tag."
_STATUS = {RunState.DONE: "FINISHED", RunState.RUNNING: "RUNNING", RunState.QUEUED: "SCHEDULED"}
_STATUS |= {RunState.CANCELLED: "KILLED", RunState.INTERRUPTED: "KILLED"}
_STATE = {"FINISHED": RunState.DONE, "FAILED": RunState.FAILED, "KILLED": RunState.CANCELLED}
_STATE |= {"RUNNING": RunState.INTERRUPTED, "SCHEDULED": RunState.INTERRUPTED}
_BATCH, _LONGEST_KEY, _LONGEST_PARAM, _LONGEST_TAG = 100, 250, 6000, 8000
_NOT_IN_KEYS = re.compile(r"[^/\w.\- :]")


def export(run: Run, target: Path, *, code: Files = no_files, most_input_bytes: int = 0) -> list[Path]:
    """Add a run to the store in a folder, which is made where there is none, and return the database and its files."""
    target.mkdir(parents=True, exist_ok=True)
    artifacts = target / _ARTIFACTS
    with folder_of(run) as folder, _quiet():
        client = _client(target / _DATABASE)
        known = client.get_experiment_by_name(run.name)
        location = artifacts.absolute().as_uri()
        experiment = known.experiment_id if known else client.create_experiment(run.name, artifact_location=location)
        key = _write(client, experiment, run, folder, str(target))
    return [target / _DATABASE, artifacts / key]


def upload(run: Run, context: Context, *, code: Files = no_files, dry_run: bool = False) -> list[str]:
    """Send a run to the tracking server that MLFLOW_TRACKING_URI names, by MLflow's own client.

    Returns the address of the run there; a dry run returns all that would leave this machine.
    """
    server = context.environ.get("MLFLOW_TRACKING_URI", "").rstrip("/")
    if not server.startswith(("https://", "http://")):
        raise UsageError("no MLflow server", hint="set MLFLOW_TRACKING_URI to its address, such as https://HOST")
    shown = shown_address(server)
    with folder_of(run) as folder, _quiet():
        if dry_run:
            names = ", ".join(run.params) or "none"
            metrics = ", ".join(dict.fromkeys(each.key for each in _metrics(run, folder))) or "none"
            files = [f"{name} ({format_size((folder / name).stat().st_size)})" for name in files_below(folder)]
            command = shlex.join(run.spec.argv)
            what = [f"command: {command}", f"parameters: {names}", f"metrics: {metrics}", *files]
            return [f"{each}, to {shown}" for each in what]
        client = MlflowClient(tracking_uri=server)
        try:
            known = client.get_experiment_by_name(run.name)
            experiment = known.experiment_id if known else client.create_experiment(run.name)
            key = _write(client, experiment, run, folder, shown)
        except MlflowException as error:
            raise Transient(f"{shown}: the MLflow server refused the upload: {error.message}") from error
    return [f"{shown}/#/experiments/{experiment}/runs/{key}"]


def _write(client: MlflowClient, experiment: str, run: Run, folder: Path, where: str) -> str:
    """Write a run into an experiment of a store or a server, and return its key there."""
    runs = client.search_runs([experiment], filter_string=f"tags.`{_RUN_TAG}` = '{run.id}'", max_results=1)
    if runs and runs[0].info.status != "RUNNING":  # as an upload that was interrupted leaves it
        raise already_there(where, run.id)
    started = (run.result.started if run.result is not None else None) or run.created
    made = runs[0] if runs else client.create_run(experiment, _ms(started), _tags(run), run.id)
    key: str = made.info.run_id
    params = [Param(_key(name), str(value)[:_LONGEST_PARAM]) for name, value in run.params.items()]
    for part in _parts(params):
        client.log_batch(key, params=part)
    for part in _parts(_metrics(run, folder)):
        client.log_batch(key, metrics=part)
    for name in files_below(folder):
        client.log_artifact(key, str(folder / name), artifact_path=posixpath.dirname(name) or None)
    ended = run.ended
    client.set_terminated(key, _STATUS.get(run.state, "FAILED"), end_time=_ms(ended) if ended else None)
    return key


def read(source: Path) -> list[ImportedRun]:
    """Return the runs of a store: its folder or its database, or the folder `mlruns` of older versions."""
    database = source if source.is_file() else source / _DATABASE
    with _quiet(), well_formed(source, "an MLflow store"):
        if source.is_dir():
            refuse_links_out(source)  # MLflow itself would follow them
        if _is_store(database):
            return _read(_client(database), database.parent)
        if any(source.glob(_META)):
            _check_metas(source)
            with _file_store():
                return _read(MlflowClient(tracking_uri=source.absolute().as_uri()), source)
    if not source.exists():
        raise NotFound(f"{source} is neither a file nor a folder")
    raise UsageError(
        f"{source} is not an MLflow store", hint=f"pass the folder of {_DATABASE}, that file, or the folder mlruns"
    )


class _Meta(Document):
    """What is relied on of the file that describes an experiment."""

    experiment_id: str | int
    name: str
    artifact_location: str | None = None


class _RunMeta(Document):
    """What is relied on of the file that describes a run."""

    run_id: str = Field(validation_alias=AliasChoices("run_id", "run_uuid"))
    experiment_id: str | int
    start_time: Annotated[int, Field(ge=0)]
    end_time: Annotated[int, Field(ge=0)] | None = None
    status: Annotated[int, Field(ge=1, le=5)] = 1
    run_name: str | None = None
    artifact_uri: str | None = None


def _check_metas(source: Path) -> None:
    """Check what describes experiments and runs, file by file: MLflow names neither file nor field."""
    for pattern, model in ((_META, _Meta), (f"*/{_META}", _RunMeta)):
        for file in sorted(source.glob(pattern)):
            try:
                text = file.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise InvalidDocument([Problem(f"cannot be read: {error}", file=str(file))]) from error
            validated(model, load_located(text, file=str(file)).data, str(file))


def _is_store(database: Path) -> bool:
    """Tell whether a file is MLflow's database; MLflow itself would make its tables in any that it is given."""
    try:
        with contextlib.closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    except sqlite3.Error:
        return False
    return {"experiments", "runs"} <= names


def _read(client: MlflowClient, root: Path) -> list[ImportedRun]:
    imported = []
    try:
        for experiment in _pages(client.search_experiments):
            for run in _pages(lambda **page: client.search_runs([experiment.experiment_id], **page)):  # noqa: B023
                imported.append(_imported(client, run, experiment.name, root))
    except MlflowException as error:
        raise SystemFailure(f"MLflow cannot read {root}: {error.message}") from error
    except SQLAlchemyError as error:
        raise SystemFailure(f"MLflow cannot read {root}: {str(error).splitlines()[0]}") from error
    except YAMLError as error:  # it says in which file and line
        raise UsageError(f"MLflow cannot read {root}: {' '.join(str(error).split())}") from error
    return imported


def _imported(client: MlflowClient, run: Any, experiment: str, root: Path) -> ImportedRun:
    info, data = run.info, run.data
    folder = _artifact_folder(info.artifact_uri or "", info.run_id, root)
    source = f"MLflow run {info.run_id} of experiment {experiment!r}"
    names = files_below(folder) if folder else []
    if folder and RECORD in names and _RUN_TAG in data.tags:
        record = checked_record(_json(folder / RECORD), str(folder / RECORD))
        files = {name: folder / name for name in names if name != RECORD}
        return ImportedRun(record, tuple(files), source, lambda target: lay_copies(files, target))
    points = [
        Point(each.key, float(each.value), each.step, each.timestamp / 1e3)
        for key in data.metrics
        for each in client.get_metric_history(info.run_id, key)
    ]
    foreign = ForeignRun(
        "mlflow",
        info.run_id,
        info.run_name or experiment,
        (info.start_time or 0) / 1e3,
        info.end_time / 1e3 if info.end_time else None,
        _STATE.get(info.status, RunState.INTERRUPTED),
        "" if info.status == "FINISHED" else f"MLflow says {info.status}",
        argv=_words(data.tags.get("mlflow.source.name", "")),
        params={name: typed(value) for name, value in data.params.items()},
        tags=[f"{name}={value}" for name, value in sorted(data.tags.items()) if not name.startswith("mlflow.")],
        group=data.tags.get("mlflow.parentRunId", ""),
        points=sorted(points, key=lambda point: (point.at_s, point.step or 0)),
        code=_code(data.tags),
        agent=data.tags.get("mlflow.user", ""),
        files={name: folder / name for name in names} if folder else {},
        more={"experiment": experiment, "artifacts": info.artifact_uri or ""},
    )
    return ImportedRun(foreign.record(), foreign.names(), source, foreign.lay)


def _client(database: Path) -> MlflowClient:
    try:
        return MlflowClient(tracking_uri=f"sqlite:///{database.absolute()}")
    except MlflowException as error:
        raise SystemFailure(f"MLflow cannot open {database}: {error.message}") from error


def _tags(run: Run) -> dict[str, str]:
    git = run.captured.code.git or GitState()
    facts = {
        _RUN_TAG: run.id,
        "fairmile.identity": run.identity,
        "fairmile.state": str(run.state),
        "fairmile.group": run.group,
        "mlflow.source.name": shlex.join(run.spec.argv),
        "mlflow.source.type": "LOCAL",
        "mlflow.source.git.commit": git.commit,
        "mlflow.source.git.repoURL": git.remote,
        "mlflow.user": run.captured.agent.get("name", ""),
        "mlflow.note.content": run.reason,
        **{_key(_TAG + tag): "true" for tag in run.spec.tags},
    }
    return {name: value[:_LONGEST_TAG] for name, value in facts.items() if value}


def _metrics(run: Run, folder: Path) -> list[Metric]:
    """Return every value that was logged, and what the run took, as values at its end."""
    metrics, counts = [], dict[str, int]()
    for each in read_log(event_files(folder)).metrics:
        step = counts.get(each.name, 0) if each.step is None else int(each.step)
        counts[each.name] = counts.get(each.name, 0) + 1
        metrics.append(Metric(_key(each.name), each.value, each.at_ns // 1_000_000, step))
    ended = _ms(run.ended or run.created)
    left = {name: metric.value for name, metric in run.metrics.items() if name not in counts}
    took = {**run.usage, "elapsed_s": run.elapsed_s, "energy_j": run.energy_j}
    left |= {name: float(value) for name, value in took.items() if value is not None and name not in counts}
    return metrics + [Metric(_key(name), value, ended, 0) for name, value in left.items()]


def _key(name: str) -> str:
    """Return a name as MLflow takes it: some characters only, and a path that leads nowhere else."""
    return posixpath.normpath(_NOT_IN_KEYS.sub("_", name)[:_LONGEST_KEY].lstrip("/")).replace("..", "_")


def _ms(unix_s: float) -> int:
    return round(unix_s * 1000)


def _parts(values: Sequence[Any]) -> Iterator[list[Any]]:
    for start in range(0, len(values), _BATCH):
        yield list(values[start : start + _BATCH])


def _pages(search: Any) -> Iterator[Any]:
    token = None
    while True:
        page = search(page_token=token)
        yield from page
        token = page.token
        if not token:
            return


def _artifact_folder(uri: str, key: str, root: Path) -> Path | None:
    """Return where the artifacts of a run lie, if that is below the store; its folder may have been moved."""
    address = urlparse(uri)
    places = [root / _ARTIFACTS / key / "artifacts"]
    if address.scheme in ("", "file"):
        places.insert(0, root / unquote(address.path))
    for place in places:
        if place.is_dir() and place.resolve().is_relative_to(root.resolve()):
            return place
    return None


def _code(tags: dict[str, str]) -> dict[str, Any]:
    commit = tags.get("mlflow.source.git.commit")
    code = {"commit": commit, "remote": tags.get("mlflow.source.git.repoURL", ""), "dirty": False, "root": ""}
    return {"git": code} if commit else {}


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:
        return [command]


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise SystemFailure(f"cannot read {path}: {error}") from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep MLflow and its database tools from talking about tables."""
    loggers = [logging.getLogger(name) for name in ("mlflow", "mlflow.store.db.utils", "alembic")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


@contextlib.contextmanager
def _file_store() -> Iterator[None]:
    """Let MLflow read the form that it has given up writing."""
    name = "MLFLOW_ALLOW_FILE_STORE"
    before = os.environ.get(name)
    os.environ[name] = "true"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
