"""hf://[datasets/|spaces/]ORG/NAME[@REVISION][/PATH]: repositories of the Hugging Face hub."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote, unquote, urljoin, urlsplit

from fairmile.base.digest import Checksum
from fairmile.base.errors import FairmileError, Integrity, NotFound, SystemFailure, UsageError
from fairmile.base.quick_named_tuple import NamedTuple
from fairmile.transfer.credentials import shown_address
from fairmile.transfer.http import Client
from fairmile.transfer.remote import Body, Context, Remote
from fairmile.transfer.wire import Head

_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,95}"
_REPOSITORY = re.compile(rf"({_NAME}(?:/{_NAME})?)(?:@(refs/(?:convert|pr)/[^/@]+|[^/@]+))?(?:/(.*))?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_NEXT = re.compile(r'<([^>]*)>\s*;[^,]*rel="?next"?')
_MOST_PAGES = 100_000


class HubLocation(NamedTuple):
    """A repository, a revision of it and a path in it; `kind` is models, datasets or spaces."""

    kind: str
    repository: str
    revision: str = "main"
    path: str = ""

    @property
    def page(self) -> str:
        """Where the repository's page stands below the hub."""
        return self.repository if self.kind == "models" else f"{self.kind}/{self.repository}"

    def __str__(self) -> str:
        kept = "/" if self.revision.startswith(("refs/convert/", "refs/pr/")) else ""
        # After a name of one word the revision keeps the path from being read as the rest of the name.
        is_needed = self.revision != "main" or (self.path and "/" not in self.repository)
        revision = f"@{quote(self.revision, safe=kept)}" if is_needed else ""
        return f"hf://{self.page}{revision}" + (f"/{self.path}" if self.path else "")


class HuggingFace:
    """Finds the files of one commit; they are then read from addresses that name this commit."""

    def __init__(self, context: Context) -> None:
        self.client = Client(context)
        self.hub = (context.environ.get("HF_ENDPOINT") or context.settings.hubs["huggingface"]).rstrip("/")
        token = context.credentials.token(("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"), *_token_files(context.environ))
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def find(self, address: str) -> list[Remote]:
        """Return the file at a path, or all files below it, of the commit that the revision means now."""
        place = parse_address(address)
        about, _ = self._json(place, f"{self._api(place)}/revision/{quote(place.revision, safe='')}")
        commit = about.get("sha") if isinstance(about, dict) else None
        if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
            raise Integrity(f"the hub does not say which commit {place} is")
        is_gated = bool(about.get("gated"))
        if is_gated and not self._headers:
            raise self._locked(place, is_gated=True)
        pinned = place._replace(revision=commit)
        remotes = [self._remote(pinned, entry) for entry in self._entries(pinned) if entry.get("type") == "file"]
        if not remotes:
            raise NotFound(f"no file in {place}", hint=f"look at {self.hub}/{place.page}/tree/{commit}")
        if is_gated:  # the hub lists a gated repository to everyone and refuses its files
            head, _ = self.client.ask("HEAD", remotes[0].address, remotes[0].headers)
            if head.status in (401, 403):
                raise self._locked(place, is_gated=True)
        return remotes

    def open(self, remote: Remote, start: int, stop: int | None) -> Body:
        """Open the bytes from `start` up to, without, `stop`."""
        return self.client.open(remote.address, start, stop, headers=remote.headers, validator=remote.validator)

    def close(self) -> None:
        """Close the connections that are kept for further requests."""
        self.client.close()

    def _api(self, place: HubLocation) -> str:
        return f"{self.hub}/api/{place.kind}/{place.repository}"

    def _entries(self, place: HubLocation) -> Iterator[dict[str, Any]]:
        if not place.path:
            yield from self._tree(place, "", recursive=True)
            return
        # Only folders can be listed, so the one above tells what the path is.
        parent = str(PurePosixPath(place.path).parent)
        for entry in self._tree(place, "" if parent == "." else parent, recursive=False):
            if entry.get("path") == place.path:
                if entry.get("type") == "directory":
                    yield from self._tree(place, place.path, recursive=True)
                else:
                    yield entry
                return

    def _tree(self, place: HubLocation, folder: str, *, recursive: bool) -> Iterator[dict[str, Any]]:
        url = f"{self._api(place)}/tree/{place.revision}" + (f"/{quote(folder)}" if folder else "")
        url += f"?recursive={str(recursive).lower()}&expand=false"
        for _ in range(_MOST_PAGES):
            entries, head = self._json(place, url)
            if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
                raise Integrity(f"the hub did not return the list of files of {place}")
            yield from entries
            following = next_page(head.headers.get("link", ""), url)
            if following is None:
                return
            # A token must not follow a link to another host.
            if urlsplit(following)[:2] != urlsplit(url)[:2]:
                raise Integrity(f"the list of the files of {place} continues at the foreign {shown_address(following)}")
            url = following
        raise SystemFailure(f"the list of the files of {place} does not end")

    def _remote(self, place: HubLocation, entry: Mapping[str, Any]) -> Remote:
        path, size, pointer = entry.get("path"), entry.get("size"), entry.get("lfs")
        if not isinstance(path, str) or not isinstance(size, int) or size < 0:
            raise Integrity(f"the hub describes a file of {place} without path or size")
        checksums: tuple[Checksum, ...] = ()
        validator = ""
        if isinstance(pointer, dict):
            digest, size = pointer.get("oid"), pointer.get("size", size)
            if not isinstance(digest, str) or not _SHA256.fullmatch(digest):
                raise Integrity(f"the hub states no sha256 for {path} of {place}")
            checksums = (Checksum("sha256", digest),)
        elif isinstance(entry.get("oid"), str):
            # Git's name of a small file is not a digest of its bytes alone, but the hub serves it as its ETag.
            validator = f'"{entry["oid"]}"'
        shown = PurePosixPath(path).name if path == place.path else path
        if place.path:
            shown = shown.removeprefix(f"{place.path}/")
        url = f"{self.hub}/{place.page}/resolve/{place.revision}/{quote(path)}"
        return Remote(url, shown, size, checksums, validator, headers=self._headers)

    def _json(self, place: HubLocation, url: str) -> tuple[Any, Head]:
        head, body = self.client.ask("GET", url, {"Accept": "application/json", **self._headers})
        if head.status != 200:
            raise self._failure(place, head)
        try:
            return json.loads(body), head
        except ValueError as error:
            raise Integrity(f"the hub does not answer with JSON for {place}", hint="check HF_ENDPOINT") from error

    def _failure(self, place: HubLocation, head: Head) -> FairmileError:
        code = head.headers.get("x-error-code", "")
        if code == "GatedRepo":
            return self._locked(place, is_gated=True)
        if code == "RevisionNotFound":
            return NotFound(f"{place.repository} has no revision {place.revision!r}")
        if head.status == 404 and code in ("", "EntryNotFound"):
            return NotFound(f"{place} does not exist: the hub answers 404")
        if head.status in (401, 403, 404):  # the hub does not tell a stranger whether a private repository exists
            return self._locked(place, is_gated=False)
        return SystemFailure(f"the hub answers {head.status} {head.reason} for {place}")

    def _locked(self, place: HubLocation, *, is_gated: bool) -> FairmileError:
        page = f"{self.hub}/{place.page}"
        log_in = f"create a token at {self.hub}/settings/tokens and pass it with `hf auth login` or HF_TOKEN"
        if not is_gated:
            why = "your token does not grant access" if self._headers else "it is private"
            return NotFound(
                f"{place} does not exist, or {why}",
                hint=f"check the name at {page}; for a private repository {log_in}",
            )
        if self._headers:
            return SystemFailure(
                f"{place} is gated, and the account of the token in use has no access yet",
                hint=f"accept its conditions at {page}; the authors may have to approve the request",
            )
        return SystemFailure(
            f"{place} is gated: only registered users get its files",
            hint=f"1. log in and accept its conditions at {page}; 2. {log_in}",
        )


def parse_address(address: str) -> HubLocation:
    """Return what an hf:// address means; a name of one word is one of the hub's oldest repositories."""
    scheme, colon, rest = address.partition("://")
    kind, slash, inner = rest.partition("/")
    if kind not in ("datasets", "spaces", "models") or not slash:
        kind, inner = "models", rest
    match = _REPOSITORY.fullmatch(inner.rstrip("/"))
    if not colon or scheme.lower() != "hf" or match is None:
        raise UsageError(
            f"{shown_address(address)!r} does not name a repository on the hub",
            hint="expected hf://ORG/NAME or hf://datasets/ORG/NAME[@REVISION][/PATH]",
        )
    path = match[3] or ""
    if path and any(part in ("", ".", "..") for part in path.split("/")):
        raise UsageError(f"{address!r} contains a path that is not valid in a repository: {path!r}")
    return HubLocation(kind, match[1], unquote(match[2] or "main"), path)


def next_page(link: str, url: str) -> str | None:
    """Return the address of the next page that a Link header names."""
    match = _NEXT.search(link)
    return urljoin(url, match[1]) if match else None


def _token_files(environ: Mapping[str, str]) -> list[str]:
    """Return where the hub's own tools keep the token, the first that counts first."""
    cache = environ.get("XDG_CACHE_HOME") or ".cache"
    home = environ.get("HF_HOME") or f"{cache}/huggingface"
    return [environ["HF_TOKEN_PATH"]] if environ.get("HF_TOKEN_PATH") else [f"{home}/token"]
