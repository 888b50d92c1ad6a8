"""zenodo:RECORD[/FILE] and doi:10.5281/zenodo.RECORD: the files of a Zenodo record."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from fairmile.base.digest import parse_checksum
from fairmile.base.errors import FairmileError, Integrity, NotFound, SystemFailure, UsageError
from fairmile.base.quick_named_tuple import NamedTuple
from fairmile.base.words import did_you_mean
from fairmile.transfer.credentials import shown_address
from fairmile.transfer.http import Client
from fairmile.transfer.remote import Body, Context, Remote

_HOSTS = frozenset({"zenodo.org", "www.zenodo.org"})
_SHORT = re.compile(r"zenodo:([0-9]{1,15})(?:/(.+))?", re.IGNORECASE)
_DOI = re.compile(r"(?:doi:\s*|https?://(?:dx\.)?doi\.org/)10\.5281/zenodo\.([0-9]{1,15})(?:/(.+))?", re.IGNORECASE)
_PAGE = re.compile(r"/(?:api/)?records?/([0-9]{1,15})(?:/(?:files|preview)/([^/]+)(?:/content)?)?/?")


class Record(NamedTuple):
    """A record and, where one alone is meant, the name of its file."""

    number: str
    file: str = ""

    def __str__(self) -> str:
        return f"zenodo:{self.number}" + (f"/{self.file}" if self.file else "")


class Zenodo:
    """Finds the files of a record; a number that stands for all versions means the newest one."""

    def __init__(self, context: Context) -> None:
        self.client = Client(context)
        self._home = context.settings.hubs["zenodo"].rstrip("/")
        token = context.credentials.token(("ZENODO_TOKEN", "ZENODO_ACCESS_TOKEN"))
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def find(self, address: str) -> list[Remote]:
        """Return the files of a record with their size and MD5."""
        wanted = parse_address(address)
        head, body = self.client.ask(
            "GET", f"{self._home}/api/records/{wanted.number}", {"Accept": "application/json", **self._headers}
        )
        if head.status in (404, 410):
            gone = " any more" if head.status == 410 else ""
            raise NotFound(f"no record {wanted}{gone}", hint=f"look at {self._home}/records/{wanted.number}")
        if head.status in (401, 403):
            raise self._locked(wanted, "restricted", "")
        if head.status != 200:
            raise SystemFailure(f"Zenodo answers {head.status} {head.reason} for {wanted}")
        try:
            record = json.loads(body)
        except ValueError as error:
            raise Integrity(f"Zenodo does not answer with JSON for {wanted}") from error
        if not isinstance(record, dict):
            raise Integrity(f"Zenodo does not describe a record for {wanted}")
        return self._files(wanted, record)

    def open(self, remote: Remote, start: int, stop: int | None) -> Body:
        """Open the bytes from `start` up to, without, `stop`."""
        return self.client.open(remote.address, start, stop, headers=remote.headers, validator=remote.validator)

    def close(self) -> None:
        """Close the connections that are kept for further requests."""
        self.client.close()

    def _files(self, wanted: Record, record: Mapping[str, Any]) -> list[Remote]:
        about = record.get("metadata")
        about = about if isinstance(about, dict) else {}
        access, files = str(about.get("access_right", "open")), record.get("files") or []
        if access != "open" and (not files or not self._headers):
            raise self._locked(wanted, access, str(about.get("embargo_date", "")))
        if not isinstance(files, list) or not all(isinstance(each, dict) for each in files):
            raise Integrity(f"Zenodo does not list the files of {wanted}")
        remotes = [self._remote(wanted, str(record.get("id", wanted.number)), each) for each in files]
        if not wanted.file:
            if not remotes:
                raise NotFound(f"the record {wanted} has no files, only a description")
            return remotes
        chosen = [remote for remote in remotes if remote.path == wanted.file]
        if not chosen:
            names = [remote.path for remote in remotes]
            near = did_you_mean(wanted.file, names)
            raise NotFound(
                f"zenodo:{wanted.number} has no file {wanted.file!r}" + (f"; {near}" if near else ""),
                hint=f"it has: {', '.join(names[:20])}",
            )
        return chosen

    def _remote(self, wanted: Record, number: str, entry: Mapping[str, Any]) -> Remote:
        name, size, stated, links = (entry.get(key) for key in ("key", "size", "checksum", "links"))
        if not isinstance(name, str) or not name or not isinstance(size, int) or size < 0:
            raise Integrity(f"Zenodo describes a file of {wanted} without name or size")
        checksum = parse_checksum(stated) if isinstance(stated, str) else None
        if checksum is None:
            raise Integrity(f"Zenodo states no checksum that is known for {name} of {wanted}: {stated!r}")
        url = links.get("self") if isinstance(links, dict) else None
        # A token must not follow a link to another host.
        if not isinstance(url, str) or urlsplit(url)[:2] != urlsplit(self._home)[:2]:
            url = f"{self._home}/api/records/{quote(number, safe='')}/files/{quote(name, safe='')}/content"
        return Remote(url, name, size, (checksum,), headers=self._headers)

    def _locked(self, wanted: Record, access: str, until: str) -> FairmileError:
        page = f"{self._home}/records/{wanted.number}"
        if access == "embargoed":
            date = f" until {until}" if until else ""
            return SystemFailure(f"the files of {wanted} are under embargo{date}", hint=f"see {page}")
        if access == "closed":
            return SystemFailure(f"the files of {wanted} are closed", hint=f"ask the authors named at {page}")
        if self._headers:
            return SystemFailure(
                f"the files of {wanted} are restricted, and the account of the token in use has no access",
                hint=f"log in and request access at {page}",
            )
        return SystemFailure(
            f"the files of {wanted} are restricted",
            hint=f"1. log in and request access at {page}; 2. create a token at "
            f"{self._home}/account/settings/applications/tokens/new/ and set ZENODO_TOKEN",
        )


def parse_address(address: str) -> Record:
    """Return the record, and the file of it, that an address means."""
    match = _SHORT.fullmatch(address) or _DOI.fullmatch(address)
    page = as_zenodo(address) if match is None else None
    if page is not None:
        match = _SHORT.fullmatch(page)
    if match is None:
        other = address.lower().startswith("doi:")
        raise UsageError(
            f"{shown_address(address)!r} does not name a Zenodo record",
            hint="only DOIs of Zenodo (10.5281/zenodo.…) lead to files; give the files' own addresses"
            if other
            else "expected zenodo:RECORD, zenodo:RECORD/FILE or doi:10.5281/zenodo.RECORD",
        )
    return Record(match[1].lstrip("0") or "0", match[2] or "")


def as_zenodo(url: str) -> str | None:
    """Return the zenodo: address of a record's page or file; None for any other address."""
    doi = _DOI.fullmatch(url)
    if doi is not None:
        return str(Record(doi[1], doi[2] or ""))
    parts = urlsplit(url)
    page = _PAGE.fullmatch(parts.path)
    if parts.scheme not in ("http", "https") or parts.hostname not in _HOSTS or page is None:
        return None
    return str(Record(page[1], unquote(page[2] or "")))
