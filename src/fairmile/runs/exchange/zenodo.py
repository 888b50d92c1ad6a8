"""Runs as depositions of Zenodo: the run as RO-Crate, and what describes it. A draft until it is published on purpose.

The interface is that of https://developers.zenodo.org: depositions, and the bucket that takes the files of one.
"""

from __future__ import annotations

import hashlib
import html
import json
import shlex
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from fairmile.base.errors import Conflict, Integrity, NotFound, UsageError
from fairmile.base.files import write_atomic
from fairmile.base.quick_named_tuple import NamedTuple
from fairmile.base.units import format_size
from fairmile.runs.exchange import Files, ImportedRun, no_files, rocrate
from fairmile.runs.exchange.service import AGAIN, Service, already_there, service
from fairmile.runs.record.run import Run
from fairmile.transfer.credentials import shown_address
from fairmile.transfer.remote import Context

PUBLISHES = True
_METADATA = "zenodo.json"
_CRATE = ".crate.zip"
_MARK = "fairmile-run:"  # the keyword by which the deposition of a run is found again
_VARIABLES = ("ZENODO_TOKEN", "ZENODO_ACCESS_TOKEN")
_FIX = "ZENODO_TOKEN must hold a token with the scopes deposit:write and deposit:actions"
_DEPOSITIONS = "/api/deposit/depositions"
_PAGE, _MOST_PAGES = 100, 100


def export(run: Run, target: Path, *, code: Files = no_files, most_input_bytes: int = 0) -> list[Path]:
    """Write what an upload would send into a new folder: the crate and its description."""
    if target.exists():
        raise Conflict(f"{target} already exists", hint="remove it, or choose another folder with -o")
    metadata = _metadata(run)
    crate = rocrate.export(run, target / f"{run.id}{_CRATE}", code=code, most_input_bytes=most_input_bytes)
    write_atomic(target / _METADATA, json.dumps(metadata, indent=1, ensure_ascii=False) + "\n")
    return [*crate, target / _METADATA]


def read(source: Path) -> list[ImportedRun]:
    """Return the run of a crate that Zenodo holds, or of a folder with the files of a deposition."""
    if source.is_dir():
        crates = sorted(source.glob(f"*{_CRATE}"))
        if not crates:
            raise NotFound(f"{source} holds no crate", hint=f"expected a file *{_CRATE} in it")
        return [run for crate in crates for run in rocrate.read(crate)]
    return rocrate.read(source)


def upload(
    run: Run, context: Context, *, code: Files = no_files, publish: bool = False, dry_run: bool = False
) -> list[str]:
    """Make a draft of a deposition with the run as crate, or go on with the one that is there; return its address.

    With `publish` the draft becomes a record with a DOI, for good. A dry run returns all that would leave this machine.
    """
    home = context.settings.hubs["zenodo"].rstrip("/")
    metadata = _metadata(run)
    with tempfile.TemporaryDirectory(prefix="fairmile-zenodo-") as scratch:
        (crate,) = rocrate.export(run, Path(scratch) / f"{run.id}{_CRATE}", code=code)
        if dry_run:
            return _leaving(crate, metadata, shown_address(home), publish=publish)
        with service("Zenodo", home, context, **_access(home, context)) as zenodo:
            draft = _draft(zenodo, run, metadata)
            _send(zenodo, draft, crate)
            return [_published(zenodo, draft)] if publish else [f"{draft.page} (draft {draft.id}, not published)"]


class _Draft(NamedTuple):
    """A deposition that is not published."""

    id: int
    page: str
    bucket: str
    publish: str
    files: dict[str, str]  # name → MD5


def _access(home: str, context: Context) -> dict[str, Any]:
    token = context.credentials.token(_VARIABLES)
    if not token:
        login = context.credentials.login(urlsplit(home).hostname or "")
        token = login.password if login is not None else None
    if not token:
        raise UsageError("no token for Zenodo", hint=_FIX)
    return {"secrets": [token], "headers": {"Authorization": f"Bearer {token}"}, "fix": _FIX}


def _metadata(run: Run) -> dict[str, Any]:
    agent = run.captured.agent
    if not agent.get("name"):
        raise UsageError(f"run {run.id} does not say whose it is", hint="set `git config user.name` before the run")
    creator = {"name": agent["name"]}
    if orcid := agent.get("orcid", "").rpartition("/")[2]:
        creator["orcid"] = orcid
    values = ", ".join(f"{name} {metric.value:g}" for name, metric in run.metrics.items())
    day = time.strftime("%Y-%m-%d", time.gmtime(run.ended or run.created))
    text = [f"Recorded on {day}, {run.state}: <code>{html.escape(shlex.join(run.spec.argv))}</code>"]
    text += [f"Metrics: {html.escape(values)}"] if values else []
    text += [f"The file is an RO-Crate: <code>fairmile rerun {html.escape(run.id)}{_CRATE}</code> repeats the run."]
    return {
        "title": f"Run {run.id}" + (f" of {run.spec.asset}" if run.spec.asset else ""),
        "upload_type": "dataset",
        "description": "".join(f"<p>{each}</p>" for each in text),
        "creators": [creator],
        "keywords": [*run.spec.tags, "RO-Crate", _MARK + run.id],
    }


def _leaving(crate: Path, metadata: dict[str, Any], where: str, *, publish: bool) -> list[str]:
    """Return what an upload sends: each field, the crate, and each file in it."""
    with zipfile.ZipFile(crate) as packed:
        inside = [f"{each.filename} ({format_size(each.file_size)}), in {crate.name}" for each in packed.infolist()]
    fields = [f"{name}: {json.dumps(value, ensure_ascii=False)}, to {where}" for name, value in metadata.items()]
    state = "published, which cannot be undone" if publish else "draft, not published"
    return [*fields, f"{crate.name} ({format_size(crate.stat().st_size)}), to {where} ({state})", *inside]


def _draft(zenodo: Service, run: Run, metadata: dict[str, Any]) -> _Draft:
    """Return the draft for a run: the one that an earlier upload made, as its owner has edited it, or a new one."""
    for each in _own(zenodo):
        about = each.get("metadata")
        keywords = about.get("keywords") if isinstance(about, dict) else None
        if isinstance(keywords, list) and _MARK + run.id in keywords:
            if each.get("submitted") is True:
                more = f" as {each.get('doi') or each.get('id')}"
                raise already_there(zenodo.shown, run.id, more, "a published record stays; its page makes new versions")
            return _checked(zenodo, zenodo.json("GET", f"{_DEPOSITIONS}/{_number(zenodo, each)}"))
    return _checked(zenodo, zenodo.json("POST", _DEPOSITIONS, {"metadata": metadata}))


def _own(zenodo: Service) -> Iterator[dict[str, Any]]:
    """Yield the depositions of the user, the newest first."""
    for page in range(1, _MOST_PAGES + 1):
        entries = zenodo.json("GET", f"{_DEPOSITIONS}?sort=mostrecent&size={_PAGE}&page={page}")
        if not isinstance(entries, list):
            raise Integrity(f"{zenodo.shown} does not list depositions")
        yield from (each for each in entries if isinstance(each, dict))
        if len(entries) < _PAGE:
            return


def _number(zenodo: Service, document: Any) -> int:
    number = document.get("id") if isinstance(document, dict) else None
    if not isinstance(number, int):
        raise Integrity(f"{zenodo.shown} describes a deposition without a number")
    return number


def _checked(zenodo: Service, document: Any) -> _Draft:
    number, links = _number(zenodo, document), document.get("links")
    links = links if isinstance(links, dict) else {}
    files = document.get("files")
    entries = [each for each in files if isinstance(each, dict)] if isinstance(files, list) else []
    known = {str(each.get("filename", "")): str(each.get("checksum", "")).removeprefix("md5:") for each in entries}
    if not all(isinstance(links.get(name), str) for name in ("bucket", "publish")):
        raise Integrity(f"{zenodo.shown} does not say where the files of deposition {number} go")
    page = str(links.get("html") or f"{zenodo.shown}/uploads/{number}")
    return _Draft(number, page, links["bucket"], links["publish"], known)


def _send(zenodo: Service, draft: _Draft, file: Path) -> None:
    """Send a file into a draft, unless the draft has it; what arrived is compared by its MD5."""
    with open(file, "rb") as stream:
        md5 = hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if draft.files.get(file.name) == md5:
        return
    answer = json.loads(zenodo.send("PUT", f"{draft.bucket}/{quote(file.name)}", [file]) or b"{}")
    arrived = str(answer.get("checksum", "")).removeprefix("md5:") if isinstance(answer, dict) else ""
    if arrived != md5:
        raise Integrity(f"{file.name} arrived at {zenodo.shown} with the MD5 {arrived or '?'}, not {md5}", hint=AGAIN)


def _published(zenodo: Service, draft: _Draft) -> str:
    record = zenodo.json("POST", draft.publish)
    links = record.get("links") if isinstance(record, dict) else None
    page = links.get("record_html") or links.get("html") if isinstance(links, dict) else None
    doi = record.get("doi") if isinstance(record, dict) else None
    return f"{page or draft.page}" + (f" ({doi})" if doi else "")
