"""Runs in OpenML's form: a folder with description.xml (the run), flow.xml (the program) and predictions.arff.

OpenML knows a run as a flow on a task: the program and its parameters become the flow, metrics become evaluations of
repeat 0 and fold 0. The number of the task is that of the tag `openml-task-NUMBER`, 0 where there is none. A pickled
model in such a folder is never loaded.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import shutil
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import arff
import xmltodict
from openml.flows import OpenMLFlow
from openml.runs import OpenMLRun

from fairmile.base.errors import Conflict, InvalidDocument, NotFound, Problem
from fairmile.base.files import write_atomic
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
from fairmile.runs.record.layout import RECORD
from fairmile.runs.record.run import Run, RunState

_RUN, _FLOW, _PREDICTIONS, _TRACE, _FILES = "description.xml", "flow.xml", "predictions.arff", "trace.arff", "fairmile"
_TASK_TAG = "openml-task-"
_LONGEST_XML = 16 << 20
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
