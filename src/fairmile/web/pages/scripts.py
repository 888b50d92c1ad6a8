"""The job-script generator: a form, the script that follows it while one types, and what changed from an old one.

It needs no login and starts nothing. An old script that somebody pastes stays in the browser.
"""

from __future__ import annotations

import shlex
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import Query, Request
from pydantic import ValidationError
from starlette.responses import Response

from fairmile.base.errors import FairmileError, UsageError
from fairmile.base.units import parse_size, parse_time
from fairmile.jobs.spec import JobSpec, Resources
from fairmile.systems.model import System
from fairmile.web.api.systems import machine_of
from fairmile.web.parameters import Word
from fairmile.web.render import Page
from fairmile.web.routes import Routes, workspace_of

routes = Routes("systems")
_GIB = 1 << 30
_Program = Annotated[str, Query(max_length=2000)]


@routes.page("/scripts")
def script_page(
    request: Request,
    system: Word = "",
    partition: Word = "",
    software: Word = "",
    nodes: Word = "",
    time: Word = "",
    account: Word = "",
    gpus: Word = "",
    memory: Word = "",
    name: Word = "",
    program: _Program = "python train.py",
) -> Page:
    """Show the batch script of a job on a system."""
    systems = workspace_of(request).systems
    known = [each for each in systems.ls() if not each.problem]
    chosen = {
        "system": system or next((each.name for each in known if each.name == "jureca"), known[0].name),
        **{"partition": partition, "software": software, "nodes": nodes, "time": time, "account": account},
        **{"gpus": gpus, "memory": memory, "name": name, "program": program},
    }
    values: dict[str, Any] = {"chosen": chosen, "systems": known, "script": None, "problem": "", "described": None}
    try:
        values["described"] = described = systems.show(chosen["system"]).system
        values["script"] = script = machine_of(request, described.name).script(_spec(chosen))
        values["decided"] = script.explained()
    except FairmileError as error:
        values["problem"] = f"{error}. {error.hint or ''}".replace("--", "")
    values["file"] = "/scripts/job.sh?" + urlencode({key: text for key, text in chosen.items() if text})
    values["age"] = _age(values["described"])
    return Page("scripts.html", "Job scripts", values, scripts=["scripts.js"])


@routes.page("/scripts/job.sh")
def script_file(
    request: Request,
    system: Word,
    partition: Word = "",
    software: Word = "",
    nodes: Word = "",
    time: Word = "",
    account: Word = "",
    gpus: Word = "",
    memory: Word = "",
    name: Word = "",
    program: _Program = "python train.py",
) -> Response:
    """Return the script as a file."""
    given = {"partition": partition, "software": software, "nodes": nodes, "time": time, "account": account}
    given |= {"gpus": gpus, "memory": memory, "name": name, "program": program}
    text = machine_of(request, system).script(_spec(given)).text
    headers = {"content-disposition": 'attachment; filename="job.sh"'}
    return Response(text, media_type="text/x-shellscript; charset=utf-8", headers=headers)


def _spec(chosen: dict[str, str]) -> JobSpec:
    """Return the job that the fields of the form describe; UsageError names the field that is wrong."""
    try:
        argv = tuple(shlex.split(chosen["program"]))
    except ValueError as error:
        raise UsageError(f"program: {str(error).lower()}", hint="close the quote") from None
    resources: dict[str, Any] = {name: chosen[name] for name in ("partition", "account") if chosen[name]}
    resources |= {name: _number(chosen, field) for name, field in (("nodes", "nodes"), ("gpus_per_node", "gpus"))}
    if chosen["time"]:
        resources["time_s"] = parse_time(chosen["time"])
    if chosen["memory"]:
        resources["memory_gib"] = parse_size(chosen["memory"]) / _GIB
    software = tuple(chosen["software"].split())
    try:
        return JobSpec(
            argv=argv or ("true",), name=chosen["name"] or "job", software=software, resources=Resources(**resources)
        )
    except ValidationError as error:
        first = error.errors()[0]
        raise UsageError(f"{first['loc'][0] if first['loc'] else 'job'}: {first['msg'].lower()}") from None


def _number(chosen: dict[str, str], field: str) -> int | None:
    text = chosen[field].strip()
    if text and not (text.isascii() and text.isdecimal()):
        raise UsageError(f"{field}: {text!r} is not a whole number")
    return int(text[:12]) if text else None


def _age(system: System | None) -> str:
    if system is None:
        return ""
    retired = f"{system.title} was retired on {system.retired}. " if system.retired else ""
    return f"{retired}This description was {system.compared}."
