"""Runs in OpenML's form: a folder with description.xml (the run), flow.xml (the program) and predictions.arff.

OpenML knows a run as a flow on a task: the program and its parameters become the flow, metrics become evaluations of
repeat 0 and fold 0. The number of the task is that of the tag `openml-task-NUMBER`, 0 where there is none. A pickled
model in such a folder is never loaded.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import shutil
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import arff
import openml
import xmltodict
from openml.flows import OpenMLFlow
from openml.runs import OpenMLRun

from fairmile.base.errors import (
    Conflict,
    FairmileError,
    Integrity,
    InvalidDocument,
    NotFound,
    Problem,
    SystemFailure,
    UsageError,
)
from fairmile.base.files import write_atomic
from fairmile.base.units import format_size
from fairmile.base.version import __version__
from fairmile.runs.exchange import Files, ImportedRun, folder_of, no_files, well_formed
from fairmile.runs.exchange.foreign import (
    ForeignRun,
    Point,
    checked_record,
    files_below,
    lay_copies,
    refuse_links_out,
    typed,
)
from fairmile.runs.exchange.service import Service, already_there, multipart, service
from fairmile.runs.record.layout import RECORD
from fairmile.runs.record.run import Run, RunState
from fairmile.transfer.credentials import shown_address
from fairmile.transfer.remote import Context
from fairmile.transfer.wire import Head

_RUN, _FLOW, _PREDICTIONS, _TRACE, _FILES = "description.xml", "flow.xml", "predictions.arff", "trace.arff", "fairmile"
_TASK_TAG = "openml-task-"
_LONGEST_XML = 16 << 20
_NOTHING = frozenset({"512", "500"})  # how OpenML says that a list of runs or flows is empty
_FIX = "`openml configure apikey` keeps the key of your profile on openml.org"
# Measures that OpenML keeps of every run, in its units.
_TOOK = {"usercpu_time_millis": "cpu_s", "wall_clock_time_millis": "elapsed_s"}


def export(run: Run, target: Path, *, code: Files = no_files, most_input_bytes: int = 0) -> list[Path]:
    """Write a run into a new folder of its own in `target` and return the files."""
    place = target / run.id
    if place.exists():
        raise Conflict(f"{place} already exists", hint="remove it, or choose another folder")
    scratch = place.with_name(f".{run.id}.{os.urandom(6).hex()}")
    try:
        with folder_of(run) as folder:
            scratch.mkdir(parents=True)
            flow = _flow(run)
            flow.to_filesystem(scratch)
            write_atomic(scratch / _RUN, _run(run, flow)._to_xml())
            predictions = _predictions(run, folder)
            write_atomic(scratch / _PREDICTIONS, predictions)
            lay_copies({name: folder / name for name in files_below(folder)}, scratch / _FILES)
        os.rename(scratch, place)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return [place / name for name in files_below(place)]


def upload(run: Run, context: Context, *, code: Files = no_files, dry_run: bool = False) -> list[str]:
    """Send a run and its flow to the server of the user's OpenML settings, and return its address there.

    A flow that is there is used again. A dry run returns all that would leave this machine.
    """
    flow = _flow(run)
    made = _run(run, flow)
    if not made.task_id:
        raise UsageError(f"run {run.id} names no task of OpenML", hint=f"tag the run {_TASK_TAG}NUMBER")
    with folder_of(run) as folder:
        predictions = _predictions(run, folder)
    if run.state is RunState.DONE and predictions.startswith("%"):
        raise UsageError(f"run {run.id} made no {_PREDICTIONS}", hint="OpenML computes the score of a run from it")
    settings = openml.config
    shown = shown_address(settings.server)
    if dry_run:
        texts = {_FLOW: flow._to_xml(), _RUN: made._to_xml(), _PREDICTIONS: predictions}
        return _leaving(made, flow, texts, shown)
    if not settings.apikey:
        raise UsageError("no key for OpenML", hint=_FIX)
    with service("OpenML", settings.server, context, secrets=[settings.apikey], headers={}, fix=_FIX) as server:
        tag = f"{_FILES}_{run.id}"
        if known := _asked(server, f"/run/list/tag/{quote(tag)}/limit/1", "oml:runs"):
            raise already_there(server.shown, run.id, f" as run {_first(known['oml:run'])['oml:run_id']}")
        made.flow_id = _flow_number(server, flow)
        answer = _sent(
            server, "/run/", {"description": (_RUN, made._to_xml()), "predictions": (_PREDICTIONS, predictions)}
        )
        number = answer["oml:upload_run"]["oml:run_id"]
    home = settings.server.partition("/api/")[0]
    return [f"{home}/r/{number}"]


def read(source: Path) -> list[ImportedRun]:
    """Return the run in a folder; one of ours comes back as it was."""
    if not (source / _RUN).is_file():
        raise NotFound(f"{source} holds no OpenML run", hint=f"expected {_RUN} in it")
    refuse_links_out(source)
    with well_formed(source / _RUN, "an OpenML run"):
        return [_imported(source)]


def _imported(source: Path) -> ImportedRun:
    source_text = f"the OpenML run in {source.name}"
    own = source / _FILES
    if (own / RECORD).is_file():
        record = checked_record(_json(own / RECORD), str(own / RECORD))
        files = {name: own / name for name in files_below(own) if name != RECORD}
        return ImportedRun(record, tuple(files), source_text, partial(lay_copies, files))
    foreign = _foreign(source, _load(source))
    return ImportedRun(foreign.record(), foreign.names(), source_text, foreign.lay)


def _flow(run: Run) -> OpenMLFlow:
    params = {str(name): str(value) for name, value in run.params.items()}
    meta = {name: {"description": "", "data_type": type(value).__name__} for name, value in run.params.items()}
    return OpenMLFlow(
        name=f"fairmile.{run.name}",
        description=shlex.join(run.spec.argv),
        model=None,
        components={},
        parameters=params,
        parameters_meta_info=meta,
        external_version=run.captured.code.commit or f"fairmile=={__version__}",
        tags=[tag for tag in run.spec.tags if not tag.startswith(_TASK_TAG)],
        language="English",
        dependencies="\n".join(run.captured.environment.lock),
        class_name=run.spec.asset or None,
    )


def _run(run: Run, flow: OpenMLFlow) -> OpenMLRun:
    measures = {name: metric.value for name, metric in run.metrics.items()}
    took = {**run.usage, "elapsed_s": run.elapsed_s}
    measures |= {name: value * 1000 for name, own in _TOOK.items() if (value := took.get(own)) is not None}
    if run.energy_j is not None:
        measures.setdefault("energy_j", run.energy_j)
    task = next((tag.removeprefix(_TASK_TAG) for tag in run.spec.tags if tag.startswith(_TASK_TAG)), "0")
    made = OpenMLRun(
        task_id=int(task) if task.isdecimal() else 0,
        flow_id=None,
        dataset_id=None,
        flow=flow,
        flow_name=flow.name,
        setup_string=f"{_time(run.created)} {shlex.join(run.spec.argv)}",
        parameter_settings=[
            {"oml:name": str(name), "oml:value": str(value), "oml:component": flow.name}
            for name, value in run.params.items()
        ],
        tags=[f"{_FILES}_{run.id}", *run.spec.tags],
        fold_evaluations={name: {0: {0: value}} for name, value in measures.items()},
        run_details=run.id,
    )
    if run.state is not RunState.DONE:
        vars(made)["error_message"] = run.reason or str(run.state)
    return made


def _leaving(made: OpenMLRun, flow: OpenMLFlow, texts: Mapping[str, str], where: str) -> list[str]:
    """Return what an upload sends: each field, and the files."""
    fields = {
        "task": made.task_id,
        "flow": f"{flow.name}, {flow.external_version}",
        "command": flow.description,
        "parameters": ", ".join(f"{name}={value}" for name, value in flow.parameters.items()) or "none",
        "evaluations": ", ".join(made.fold_evaluations or ()) or "none",
        "tags": ", ".join(made.tags or ()) or "none",
        "packages": f"{len(flow.dependencies.splitlines())} with their versions",
    }
    files = [f"{name} ({format_size(len(text.encode()))}), to {where}" for name, text in texts.items()]
    return [f"{name}: {value}, to {where}" for name, value in fields.items()] + files


def _flow_number(server: Service, flow: OpenMLFlow) -> int:
    """Return the number of a flow of this name and version, which is sent if the server has none."""
    name, version = quote(flow.name, safe=""), quote(flow.external_version, safe="")
    known = _asked(server, f"/flow/exists/{name}/{version}", "oml:flow_exists")
    if known and known["oml:exists"] == "true":
        return int(known["oml:id"])
    return int(_sent(server, "/flow/", {"description": (_FLOW, flow._to_xml())})["oml:upload_flow"]["oml:id"])


def _asked(server: Service, path: str, root: str) -> dict[str, Any] | None:
    """Return the answer to a question; None where the server says that it has nothing of the kind."""
    head, data = server.answer("GET", path)
    if head.status == 412 and _error_code(data) in _NOTHING:
        return None
    if head.status != 200:
        raise _refusal(server, head, data)
    answer: dict[str, Any] = _parsed(server, data)[root]
    return answer


def _sent(server: Service, path: str, files: Mapping[str, tuple[str, str]]) -> dict[str, Any]:
    """Send files with the key of the user, and return the answer."""
    fields: list[tuple[str, str, bytes | Path]] = [("api_key", "", openml.config.apikey.encode())]
    headers, parts = multipart(fields + [(name, file, text.encode()) for name, (file, text) in files.items()])
    head, data = server.answer("POST", path, parts, headers)
    if head.status != 200:
        raise _refusal(server, head, data)
    return _parsed(server, data)


def _parsed(server: Service, data: bytes) -> dict[str, Any]:
    try:
        return dict(xmltodict.parse(data))
    except (xmltodict.expat.ExpatError, ValueError) as error:
        raise Integrity(f"OpenML at {server.shown} does not answer in XML") from error


def _error_code(data: bytes) -> str:
    return (re.search(rb"<oml:code>\s*(\d+)", data) or [b"", b""])[1].decode()


def _refusal(server: Service, head: Head, data: bytes) -> FairmileError:
    """Return the error for a refusal; OpenML answers 412 to a wrong key as well."""
    texts = re.findall(rb"<oml:(?:message|additional_information)>([^<]*)<", data)
    text = " - ".join(each.decode("utf-8", errors="replace").strip() for each in texts)
    error = server.refusal(head, text)
    return SystemFailure(error.message, hint=_FIX) if "authentication" in text.lower() else error


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, list) else value


def _predictions(run: Run, folder: Path) -> str:
    """Return the predictions that the run made, or that there are none."""
    for name in files_below(folder):
        if name.endswith(f"/{_PREDICTIONS}"):
            return (folder / name).read_text(encoding="utf-8")
    # The library that OpenML writes such files with cannot write one without rows.
    numbers = "".join(f"@ATTRIBUTE {name} NUMERIC\n" for name in ("repeat", "fold", "row_id"))
    return f"% no predictions were kept\n@RELATION {run.id}\n{numbers}@ATTRIBUTE prediction STRING\n@DATA\n"


def _load(source: Path) -> OpenMLRun:
    """Have OpenML read a run from a copy that has no pickled model, which would be executed."""
    with tempfile.TemporaryDirectory(prefix="fairmile-openml-") as scratch:
        for name in (_RUN, _FLOW, _PREDICTIONS, _TRACE):
            path = source / name
            if path.is_file():
                if name.endswith(".xml") and path.stat().st_size > _LONGEST_XML:
                    raise _wrong(source, name, "is too long")
                shutil.copyfile(path, Path(scratch) / name)
        try:
            return OpenMLRun.from_filesystem(scratch, expect_model=False)
        except (ValueError, KeyError, TypeError, AttributeError, OSError, arff.ArffException) as error:
            raise _wrong(source, _RUN, f"cannot be read: {error}") from error
        except xmltodict.expat.ExpatError as error:
            raise _wrong(source, _RUN, f"is not XML: {error}") from error


def _foreign(source: Path, run: OpenMLRun) -> ForeignRun:
    document = xmltodict.parse((source / _RUN).read_bytes(), force_list=["oml:parameter_setting"])["oml:run"]
    settings = document.get("oml:parameter_setting") or []
    params = {each["oml:name"]: typed(each.get("oml:value") or "") for each in settings}
    if not params and run.flow is not None:
        params = {name: typed(value or "") for name, value in run.flow.parameters.items()}
    at_s = (source / _RUN).stat().st_mtime
    points = [Point(name, float(value), None, at_s) for name, value in (run.evaluations or {}).items() if _is(value)]
    for name, repeats in (run.fold_evaluations or {}).items():
        values = [value for folds in repeats.values() for value in folds.values() if _is(value)]
        points += [Point(name, float(value), step, at_s) for step, value in enumerate(values)]
    took_s = sum(point.value for point in points if point.name == "wall_clock_time_millis") / 1000
    error = document.get("oml:error_message") or ""
    name = run.flow_name or f"flow-{run.flow_id}"
    return ForeignRun(
        "openml",
        str(run.run_id or source.name),
        name,
        at_s - took_s,
        at_s,
        RunState.FAILED if error else RunState.DONE,
        error,
        argv=[name],
        params=params,
        tags=run.tags or [],
        points=points,
        lock=(run.flow.dependencies or "").split() if run.flow is not None else (),
        agent=str(run.uploader_name or ""),
        files={name: source / name for name in (_RUN, _FLOW, _PREDICTIONS, _TRACE) if (source / name).is_file()},
        more={"task": run.task_id, "flow": run.flow_id, "dataset": run.dataset_id},
    )


def _is(value: Any) -> bool:
    return isinstance(value, float) and not math.isinf(value)


def _time(unix_s: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(unix_s))


def _json(path: Path) -> Mapping[str, Any]:
    try:
        return dict(json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError) as error:
        raise _wrong(path.parent, path.name, f"cannot be read: {error}") from error


def _wrong(folder: Path, name: str, message: str) -> InvalidDocument:
    return InvalidDocument([Problem(message, file=str(folder / name))])
