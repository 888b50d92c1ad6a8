"""Runs as ClearML offline sessions: the zip file that `Task.import_offline_session` takes.

It is written in ClearML's form and not through ClearML: its offline mode takes hold of the whole process, needs ten
seconds for a task, and turns a value that is not finite into 0.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shlex
import shutil
import zipfile
from base64 import b64encode
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

from pydantic import ConfigDict, Field

from fairmile.base.digest import sha256_file
from fairmile.base.documents import Document
from fairmile.base.errors import Integrity, UsageError
from fairmile.base.quick_named_tuple import NamedTuple
from fairmile.base.strict_json import load_json
from fairmile.base.units import format_size
from fairmile.base.words import slug
from fairmile.meter.lines import event_files, number, read_log
from fairmile.runs.exchange import Files, ImportedRun, folder_of, no_files, well_formed
from fairmile.runs.exchange.foreign import (
    ForeignRun,
    Point,
    checked_record,
    files_below,
    typed,
    validated,
)
from fairmile.runs.exchange.service import Service, already_there, multipart, service
from fairmile.runs.record.layout import OUTPUT, RECORD, WORK
from fairmile.runs.record.packing import extract, new_zip, opened
from fairmile.runs.record.record import GitState
from fairmile.runs.record.run import Run, RunState
from fairmile.transfer.credentials import shown_address
from fairmile.transfer.remote import Context

_TASK, _METRICS, _LOG = "task.json", "metrics.jsonl", "log.jsonl"
_FOLDER = "/offline"  # stands for the folder of the session in the addresses of artifacts; importers cut it off
_SECTION = "General"
_BATCH = 1000
_LONGEST_TEXT, _LONGEST_MESSAGE = 64 << 20, 1 << 20
_VERSION = "v2.13"  # of the interface, which newer servers speak as well
_CREATED = ("name", "type", "tags", "system_tags", "hyperparams", "script")
_UNFINISHED = ("created", "in_progress")
# Each setting of clearml.conf with its variable, and what ClearML itself takes where neither is set.
_SETTINGS = {
    "api_server": ("CLEARML_API_HOST", "https://api.clear.ml"),
    "web_server": ("CLEARML_WEB_HOST", "https://app.clear.ml"),
    "files_server": ("CLEARML_FILES_HOST", "https://files.clear.ml"),
    "access_key": ("CLEARML_API_ACCESS_KEY", ""),
    "secret_key": ("CLEARML_API_SECRET_KEY", ""),
}
_SETTING = re.compile(rf"""\b({"|".join(_SETTINGS)})["']?\s*[:=]\s*["']?([^\s"',}}]+)""")
_COMMENT = re.compile(r"^\s*(#|//).*", re.MULTILINE)
_FIX = "set CLEARML_API_HOST, CLEARML_API_ACCESS_KEY and CLEARML_API_SECRET_KEY, or run clearml-init"


class _Part(Document):
    """A part of a task as far as it is relied on."""

    model_config = ConfigDict(extra="allow")


class _Script(_Part):
    entry_point: str | None = None
    repository: str | None = None
    version_num: str | None = None
    requirements: dict[str, Any] | None = None


class _Artifact(_Part):
    uri: str | None = None
    hash: str | None = None


class _Execution(_Part):
    artifacts: list[_Artifact] | None = None


class _Task(_Part):
    id: str = ""
    name: str | None = None
    status: str | None = None
    status_reason: str | None = None
    project_name: str | None = None
    tags: list[str] | None = None
    system_tags: list[str] | None = None
    offline_folder: str | None = None
    hyperparams: dict[str, dict[str, dict[str, Any]]] | None = None
    script: _Script | None = None
    execution: _Execution | None = None


class _Event(_Part):
    """A value or a message, as a line of a session has it."""

    timestamp: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    iter: int | None = None


def export(run: Run, target: Path, *, code: Files = no_files, most_input_bytes: int = 0) -> list[Path]:
    """Write a run as session, into `target` where that is a folder, and return its path."""
    file = target / f"{run.id}.zip" if target.is_dir() else target
    key = f"offline-{run.id}"
    data = f"{slug(run.name)}/{slug(run.id)}.{key}"
    with folder_of(run) as folder:
        files = files_below(folder)
        artifacts = [_artifact(folder, name, f"{_FOLDER}/data/{data}/artifacts/{name}", run) for name in files]
        with new_zip(file) as session:
            session.writestr(_TASK, json.dumps(_task(run, key, artifacts)))
            session.writestr(_METRICS, _lines(list(_events(run, folder, key))))
            session.writestr(_LOG, _lines(list(_messages(run, folder, key))))
            for name in files:
                session.write(folder / name, f"data/{data}/artifacts/{name}")
    return [file]


def upload(run: Run, context: Context, *, code: Files = no_files, dry_run: bool = False) -> list[str]:
    """Send a run as a task to the server of the user's ClearML settings, and return its address there.

    A task that an interrupted upload left is completed. A dry run returns all that would leave this machine.
    """
    access = _access(context)
    with folder_of(run) as folder:
        names = files_below(folder)
        task = _described_task(run)
        if dry_run:
            return _leaving(run, folder, names, task, access)
        login = {"Authorization": f"Basic {b64encode(f'{access.key}:{access.secret}'.encode()).decode()}"}
        with service("ClearML", access.api, context, secrets=[access.secret], headers=login, fix=_FIX) as api:
            token = str(_call(api, "auth.login", {})["token"])
            api.headers = {"Authorization": f"Bearer {token}"}
            project, id = _unfinished(api, run, task)
            _send_events(api, run, folder, id)
            with service(
                "ClearML", access.files, context, secrets=[token, access.secret], headers=api.headers, fix=_FIX
            ) as files:
                sent = [_send_file(files, run, folder, name, id) for name in names]
            _call(api, "tasks.add_or_update_artifacts", {"task": id, "artifacts": sent, "force": True})
            ended = "tasks.completed" if run.state is RunState.DONE else "tasks.failed"
            _call(api, ended, {"task": id, "status_reason": run.reason, "force": True})
    return [f"{access.web.rstrip('/')}/projects/{project}/experiments/{id}/output/log"]


def read(source: Path) -> list[ImportedRun]:
    """Return the run that a session holds; one of ours comes back as it was."""
    with well_formed(source, "a ClearML session"):
        return [_imported(source)]


def _imported(source: Path) -> ImportedRun:
    with opened(source) as (session, members):
        names = {member.filename for member in members if not member.is_dir()}
        if _TASK not in names:
            raise UsageError(f"{source} holds no {_TASK}", hint="expected the zip file of a ClearML offline session")
        task = load_json(_text(session, _TASK, source), file=f"{source}/{_TASK}")
        validated(_Task, task, f"{source}/{_TASK}")
        points = list(_points(session, names, source))
        messages = list(_requests(session, _LOG, names, source))
        artifacts = dict(_session_artifacts(session, task, names, source))
        records = [member for name, member in artifacts.items() if name == RECORD]
        own = _text(session, records[0], source) if records and "fairmile" in (task.get("system_tags") or []) else ""
    lay = partial(_lay, source, artifacts)
    if own:
        record = checked_record(load_json(own, file=f"{source}/{records[0]}"), f"{source}/{records[0]}")
        others = tuple(name for name in artifacts if name != RECORD)
        return ImportedRun(record, others, f"the ClearML session {source.name}", lay)
    foreign = _foreign(task, points, messages)
    written = (*foreign.names(), *(f"{WORK}/{name}" for name in artifacts))
    laying = partial(_lay_foreign, foreign, lay)
    return ImportedRun(foreign.record(), written, f"the ClearML session {source.name}", laying)


def _task(run: Run, key: str, artifacts: list[dict[str, Any]]) -> dict[str, Any]:
    git, environment = run.captured.code.git or GitState(), run.captured.environment
    done = run.state is RunState.DONE
    hyperparams = {
        str(name): {"section": _SECTION, "name": str(name), "value": str(value), "type": type(value).__name__}
        for name, value in run.params.items()
    }
    return {
        "id": key,
        "name": run.id,
        "type": "training",
        "project_name": run.name,
        "comment": run.reason,
        "status": "completed" if done else "failed",
        "status_reason": run.reason,
        "tags": list(run.spec.tags),
        "system_tags": ["fairmile"],
        "offline_folder": _FOLDER,
        "offline_output_models": [],
        "hyperparams": {_SECTION: hyperparams},
        "script": {
            "binary": f"python{environment.python}",
            "branch": git.branch,
            "diff": git.diff,
            "entry_point": shlex.join(run.spec.argv),
            "repository": git.remote,
            "requirements": {"pip": "\n".join(environment.lock)},
            "version_num": git.commit,
            "working_dir": ".",
        },
        "execution": {"artifacts": artifacts, "parameters": {}},
        "output": {},
    }


class _Access(NamedTuple):
    """Where a ClearML server is, and the key to it."""

    api: str
    web: str
    files: str
    key: str
    secret: str


def _access(context: Context) -> _Access:
    """Return what ClearML's own variables say, else its file clearml.conf as `clearml-init` writes it."""
    environ = context.environ
    file = context.credentials.home_file(environ.get("CLEARML_CONFIG_FILE") or "clearml.conf")
    try:
        settings = dict(_SETTING.findall(_COMMENT.sub("", file.read_text(encoding="utf-8"))))
    except (OSError, UnicodeDecodeError):
        settings = {}
    found = {
        each: environ.get(variable) or settings.get(each) or standard
        for each, (variable, standard) in _SETTINGS.items()
    }
    if not found["access_key"] or not found["secret_key"]:
        raise UsageError("no key for ClearML", hint=_FIX)
    return _Access(*(found[each] for each in _SETTINGS))


def _described_task(run: Run) -> dict[str, Any]:
    """Return what `tasks.create` takes of a run."""
    session = _task(run, "", [])
    return {name: session[name] for name in _CREATED} | {"comment": run.reason}


def _leaving(run: Run, folder: Path, names: list[str], task: dict[str, Any], access: _Access) -> list[str]:
    """Return what an upload sends: each field, the metrics, and the files."""
    api, files = shown_address(access.api), shown_address(access.files)
    values = list(_events(run, folder, ""))
    series = dict.fromkeys(f"{each['metric']}/{each['variant']}" for each in values)
    printed = sum(len(each["msg"].encode()) for each in _messages(run, folder, ""))
    fields = {"project": run.name, **task, "metrics": f"{', '.join(series) or 'none'} ({len(values)} values)"}
    fields["log"] = f"the end of {OUTPUT} ({format_size(printed)})"
    shown = [
        f"{name}: {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}, to {api}"
        for name, value in fields.items()
    ]
    return shown + [f"{name} ({format_size((folder / name).stat().st_size)}), to {files}" for name in names]


def _call(api: Service, call: str, document: dict[str, Any]) -> dict[str, Any]:
    """Make a call of ClearML's interface and return its data."""
    answer = api.json("POST", f"/{_VERSION}/{call}", document)
    data = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(data, dict):
        raise Integrity(f"{api.shown} does not answer {call} as ClearML does")
    return data


def _unfinished(api: Service, run: Run, task: dict[str, Any]) -> tuple[str, str]:
    """Return the project and the task for a run: the one of an upload that was interrupted, or a new one."""
    asked = {"name": f"^{re.escape(run.id)}$", "system_tags": task["system_tags"]}
    known = (
        _call(api, "tasks.get_all", {**asked, "only_fields": ["id", "name", "status", "project"]}).get("tasks") or []
    )
    for each in known:
        if each.get("name") == run.id:
            if each.get("status") not in _UNFINISHED:
                raise already_there(api.shown, run.id, f" as task {each['id']}")
            _call(api, "events.delete_for_task", {"task": each["id"], "allow_locked": True})
            return str(each.get("project")), str(each["id"])
    projects = _call(api, "projects.get_all", {"name": f"^{re.escape(run.name)}$"}).get("projects") or []
    here = [each["id"] for each in projects if each.get("name") == run.name]
    project = here[0] if here else _call(api, "projects.create", {"name": run.name, "description": ""})["id"]
    id = _call(api, "tasks.create", {**task, "project": project})["id"]
    _call(api, "tasks.started", {"task": id})
    return str(project), str(id)


def _send_events(api: Service, run: Run, folder: Path, task: str) -> None:
    """Send values and log in parts; ClearML takes them a line each."""
    events = [*_events(run, folder, task), *_messages(run, folder, task)]
    for start in range(0, len(events), _BATCH):
        lines = [
            json.dumps({k: v for k, v in each.items() if k != "method"}) for each in events[start : start + _BATCH]
        ]
        kind = {"Content-Type": "application/json-lines"}
        api.send("POST", f"/{_VERSION}/events.add_batch", "\n".join(lines).encode(), kind)


def _send_file(files: Service, run: Run, folder: Path, name: str, task: str) -> dict[str, Any]:
    """Send a file to the file server, and return the artifact that it is; sent again, it replaces itself."""
    place = f"{slug(run.name)}/{slug(run.id)}.{task}/artifacts/{name}"
    headers, parts = multipart([(place, place, folder / name)])
    files.send("POST", "/", parts, headers)
    return _artifact(folder, name, f"{files.base}/{quote(place)}", run)


def _artifact(folder: Path, name: str, uri: str, run: Run) -> dict[str, Any]:
    path = folder / name
    return {
        "key": name,
        "mode": "output",
        "type": "custom",
        "uri": uri,
        "hash": sha256_file(path),
        "content_size": path.stat().st_size,
        "timestamp": int(run.ended or run.created),
        "type_data": {"preview": name},
    }


def _events(run: Run, folder: Path, key: str) -> Iterator[dict[str, Any]]:
    """Yield every value that was logged; ClearML has no value that is not finite, so those are left out."""
    counts: dict[str, int] = {}
    for each in read_log(event_files(folder)).metrics:
        step = counts.get(each.name, 0) if each.step is None else int(each.step)
        counts[each.name] = counts.get(each.name, 0) + 1
        if math.isfinite(each.value):
            yield _scalar(key, each.name, each.value, step, each.at_ns // 1_000_000)
    ended = int((run.ended or run.created) * 1000)
    took = {**run.usage, "elapsed_s": run.elapsed_s, "energy_j": run.energy_j}
    for name, value in took.items():
        if value is not None and name not in counts:
            yield _scalar(key, name, float(value), 0, ended)


def _scalar(key: str, name: str, value: float, step: int, at_ms: int) -> dict[str, Any]:
    title, _, series = name.partition("/")
    event = {"timestamp": at_ms, "type": "training_stats_scalar", "task": key, "iter": step, "metric": title}
    return {**event, "variant": series or title, "value": value, "method": "get"}


def _messages(run: Run, folder: Path, key: str) -> Iterator[dict[str, Any]]:
    """Yield what the program printed; of a long output the end."""
    file = folder / OUTPUT
    if not file.is_file():
        return
    with open(file, "rb") as stream:
        stream.seek(max(0, file.stat().st_size - _LONGEST_MESSAGE))
        text = stream.read(_LONGEST_MESSAGE).decode(errors="replace")
    at_ms = int((run.ended or run.created) * 1000)
    event = {"timestamp": at_ms, "type": "log", "task": key, "level": "info", "worker": run.system}
    yield {**event, "msg": text, "method": "get"}


def _lines(requests: list[dict[str, Any]]) -> str:
    parts = (requests[start : start + _BATCH] for start in range(0, len(requests), _BATCH))
    return "".join(json.dumps(part) + "\n" for part in parts)


def _text(session: zipfile.ZipFile, name: str, source: Path) -> str:
    with session.open(name) as stream:
        data = stream.read(_LONGEST_TEXT + 1)
    if len(data) > _LONGEST_TEXT:
        raise UsageError(f"{source}: {name} is too long")
    return data.decode(errors="replace")


def _requests(session: zipfile.ZipFile, name: str, names: set[str], source: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the requests that a file of a session holds: lines of lists."""
    if name not in names:
        return
    for number_of_line, line in enumerate(_text(session, name, source).splitlines(), 1):
        if not line.strip():
            continue
        try:
            requests = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise Integrity(f"{source}/{name}:{number_of_line} is damaged: {error}") from error
        for each in requests if isinstance(requests, list) else ():
            if isinstance(each, dict):
                validated(_Event, each, f"{source}/{name}:{number_of_line}")
                yield each


def _points(session: zipfile.ZipFile, names: set[str], source: Path) -> Iterator[Point]:
    for each in _requests(session, _METRICS, names, source):
        if each.get("type") != "training_stats_scalar":
            continue
        title, series = str(each.get("metric", "")), str(each.get("variant", ""))
        name = title if series in ("", title) else f"{title}/{series}"
        yield Point(name, number(each.get("value")), each.get("iter"), float(each.get("timestamp") or 0) / 1000)


def _session_artifacts(
    session: zipfile.ZipFile, task: Mapping[str, Any], names: set[str], source: Path
) -> Iterator[tuple[str, str]]:
    """Yield each artifact that the session has with it, compared with its digest: its name, and the member it is."""
    start = os.path.join(str(task.get("offline_folder") or ""), "data/")
    for each in (task.get("execution") or {}).get("artifacts") or []:
        member = "data/" + str(each.get("uri", "")).replace(start, "", 1)
        if member in names:
            with session.open(member) as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()  # type: ignore[arg-type]
            if each.get("hash") and digest != each["hash"]:
                raise Integrity(f"{source}: {member} has the sha256 {digest}, but the task says {each['hash']}")
            inside = member.partition("/artifacts/")[2] or os.path.basename(member)
            yield inside, member


def _foreign(task: Mapping[str, Any], points: list[Point], messages: list[Mapping[str, Any]]) -> ForeignRun:
    script = task.get("script") or {}
    times = [point.at_s for point in points] + [float(each.get("timestamp") or 0) / 1000 for each in messages]
    sections = task.get("hyperparams") or {}
    params = {
        name if section == _SECTION else f"{section}/{name}": _value(each)
        for section, entries in sections.items()
        for name, each in entries.items()
    }
    code = {"git": {"commit": script.get("version_num"), "remote": script.get("repository") or "", "root": ""}}
    pip = (script.get("requirements") or {}).get("pip") or ""
    packages = pip if isinstance(pip, list) else str(pip).splitlines()
    failed = task.get("status") == "failed"
    return ForeignRun(
        "clearml",
        str(task.get("id", "")),
        str(task.get("name") or "task"),
        min(times, default=0.0),
        max(times, default=0.0),
        RunState.FAILED if failed else RunState.DONE,
        str(task.get("status_reason") or "failed") if failed else "",
        argv=[script["entry_point"]] if script.get("entry_point") else (),
        params=params,
        tags=task.get("tags") or [],
        points=points,
        code=code if script.get("version_num") else {},
        lock=[line.replace(" ", "") for line in packages if line.strip() and not line.startswith("#")],
        printed="\n".join(str(each.get("msg", "")) for each in messages),
        more={"project": str(task.get("project_name") or "")},
    )


def _value(entry: Mapping[str, Any]) -> str | int | float | bool | None:
    text = str(entry.get("value", ""))
    return text if entry.get("type") == "str" else typed(text)


def _lay(source: Path, artifacts: Mapping[str, str], folder: Path) -> None:
    """Lay the artifacts of a session into a new folder."""
    scratch = folder.with_name(f".{folder.name}.{os.urandom(6).hex()}")
    try:
        extract(source, scratch)
        folder.mkdir(parents=True)
        for name, member in artifacts.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            os.replace(scratch / member, path)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _lay_foreign(foreign: ForeignRun, lay: Any, folder: Path) -> None:
    foreign.lay(folder)
    lay(folder / WORK)
