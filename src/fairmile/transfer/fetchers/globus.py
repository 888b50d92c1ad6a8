"""globus://COLLECTION/PATH: files of a Globus collection.

Where the collection has an HTTPS server, `find` gives the web addresses of the files with the token they want, and
they are read in ranges as any other. Else `bring` has the Globus service transfer them to a collection on this
machine: Globus Connect Personal, or the one that the settings name.

Who is asking is known from the Globus CLI: its own login (`globus login`), or GLOBUS_CLI_CLIENT_ID and
GLOBUS_CLI_CLIENT_SECRET. All this is tested against a simulation of the service's documented calls, not against the
service itself.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

from fairmile.base.errors import (
    FairmileError,
    MissingExtra,
    NotFound,
    SystemFailure,
    Transient,
    Unsupported,
    UsageError,
)
from fairmile.base.files import write_atomic
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.quick_named_tuple import NamedTuple
from fairmile.transfer.remote import Context, Remote

if TYPE_CHECKING:
    from globus_sdk import ConfidentialAppAuthClient, GlobusAPIError, TransferClient
    from globus_sdk.authorizers import GlobusAuthorizer

_TASK_FILE = ".globus-task.json"
_TRANSFER = "transfer.api.globus.org"
_TRANSFER_SCOPE = "urn:globus:auth:scope:transfer.api.globus.org:all"
_LISTED_AT_ONCE = 100_000
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0
_LOGIN_STEPS = "install the Globus CLI (`pipx install globus-cli`), run `globus login`, then fetch again"


@dataclass(frozen=True)
class GlobusAddress:
    """A collection and an absolute path in it."""

    collection: str
    path: str

    @classmethod
    def parse(cls, address: str) -> GlobusAddress:
        parts = urlsplit(address)
        try:
            collection = str(uuid.UUID(parts.netloc))
        except ValueError:
            raise UsageError(
                f"{address!r} does not name a Globus collection by its UUID",
                hint="expected globus://UUID/PATH; `globus endpoint search WORDS` shows the UUID",
            ) from None
        path = unquote(address.partition("://")[2].partition("/")[2])
        if any(not sign.isprintable() for sign in path) or {"..", "."} & set(path.split("/")):
            raise UsageError(f"{address!r} is not a plain path")
        return cls(collection, "/" + path)

    def __str__(self) -> str:
        return f"globus://{self.collection}{quote(self.path)}"


class Destination(NamedTuple):
    """A collection on this machine; its path / is the local folder `root`."""

    collection: str
    root: Path

    def path_of(self, folder: Path) -> str:
        """Return what the collection calls a local folder."""
        try:
            inside = folder.resolve().relative_to(self.root.resolve()).as_posix()
        except ValueError:
            raise UsageError(
                f"{folder} is not in {self.root}, which the Globus collection {self.collection} offers",
                hint="choose a pool below that folder, or set transfer.globus_root",
            ) from None
        return "/" if inside == "." else f"/{inside}"


class _File(NamedTuple):
    path: str  # in the collection
    name: str  # below what was asked for
    size_bytes: int
    modified: str


class Globus:
    """Finds files of Globus collections and has the service transfer them."""

    def __init__(self, context: Context, *, sleep: Callable[[float], None] = time.sleep) -> None:
        try:
            import globus_sdk  # noqa: F401
        except ImportError as error:
            raise MissingExtra("globus:// addresses need globus-sdk", "globus") from error
        self._context = context
        self._sleep = sleep

    def find(self, address: str) -> list[Remote]:
        place = GlobusAddress.parse(address)
        with self._service(place) as service:
            files = service.files(place)
            server = service.https_server(place.collection)
            if server:
                headers = service.https_headers(place.collection)
                return [
                    Remote(server + quote(each.path), each.name, each.size_bytes, headers=headers) for each in files
                ]
        return [
            Remote(
                str(GlobusAddress(place.collection, each.path)),
                each.name,
                each.size_bytes,
                validator=f"{each.size_bytes}-{each.modified}",
            )
            for each in files
        ]

    def bring(self, address: str, folder: Path, on_bytes: Callable[[int], None]) -> None:
        """Submit a transfer task to the folder and wait for its end.

        The task belongs to the service: it goes on when this process ends, and the next attempt waits for the same
        one, whose name is kept in the folder meanwhile.
        """
        place = GlobusAddress.parse(address)
        there = self._destination(place)
        note = folder / _TASK_FILE
        with self._service(place) as service:
            task_id, is_new = self._task(service, place, there.path_of(folder), there.collection, note)
            task = self._wait(service, task_id, is_new, note, on_bytes)
        note.unlink(missing_ok=True)
        if task.get("files") and not any(path.is_file() for path in folder.rglob("*")):
            raise SystemFailure(
                f"Globus task {task_id} put its files elsewhere than into {folder}",
                hint=f"set transfer.globus_root to the folder that is / of the collection {there.collection}",
            )

    def _destination(self, place: GlobusAddress) -> Destination:
        collection = self._context.settings.globus_collection
        root = Path(self._context.settings.globus_root or "/")
        if not collection:
            from globus_sdk import LocalGlobusConnectPersonal

            home = self._context.credentials.home_file(".globusonline")
            collection = LocalGlobusConnectPersonal(config_dir=str(home)).endpoint_id or ""
        if not collection:
            raise Unsupported(
                f"{place} needs a Globus collection on this machine, but none is known",
                hint="set transfer.globus_collection (and transfer.globus_root), or set up Globus Connect Personal",
            )
        return Destination(str(collection), root)

    def _task(
        self, service: _Service, place: GlobusAddress, target: str, collection: str, note: Path
    ) -> tuple[str, bool]:
        """Return the task that brings the files: the one an earlier attempt left, else a new one."""
        wanted = {"address": str(place), "target": target, "collection": collection}
        kept = _read_note(note)
        if {key: kept.get(key) for key in wanted} != wanted:
            kept = wanted
        if "task_id" in kept and service.task(kept["task_id"]) is not None:
            return kept["task_id"], False
        if "submission_id" not in kept or "task_id" in kept:
            # Kept before it is used: a task submitted twice under one submission id is one task.
            kept = {**wanted, "submission_id": service.submission_id()}
            write_atomic(note, json.dumps(kept))
        kept["task_id"] = service.submit(place, collection, target, kept["submission_id"])
        write_atomic(note, json.dumps(kept))
        return kept["task_id"], True

    def _wait(
        self, service: _Service, task_id: str, is_new: bool, note: Path, on_bytes: Callable[[int], None]
    ) -> Mapping[str, Any]:
        task = service.task(task_id) or {}
        # What a task of an earlier attempt had moved by now came before this one.
        counted = 0 if is_new else int(task.get("bytes_transferred") or 0)
        pause = _FIRST_PAUSE_S
        while True:
            moved = int(task.get("bytes_transferred") or 0)
            if moved > counted:
                on_bytes(moved - counted)
                counted = moved
            status = task.get("status", "FAILED")  # the service forgets old tasks
            if status == "SUCCEEDED":
                return task
            if status == "FAILED":
                note.unlink(missing_ok=True)
                raise SystemFailure(
                    f"Globus task {task_id} failed{_reason(task)}", hint=f"see `globus task show {task_id}`"
                )
            if status == "INACTIVE":
                raise SystemFailure(
                    f"Globus task {task_id} waits for you{_reason(task)}",
                    hint=f"`globus task show {task_id}` says for what; then fetch again, which resumes it",
                )
            self._sleep(pause)
            pause = min(pause * 1.5, _LONGEST_PAUSE_S)
            task = service.task(task_id) or {}

    @contextmanager
    def _service(self, place: GlobusAddress) -> Iterator[_Service]:
        from globus_sdk import GlobusAPIError, NetworkError, TransferClient

        login = _Login(self._context)
        authorizer = login.authorizer(_TRANSFER, _TRANSFER_SCOPE)
        if authorizer is None:
            raise SystemFailure(f"{place} requires a login at Globus", hint=_LOGIN_STEPS)
        try:
            with TransferClient(authorizer=authorizer, app_name="fairmile", **login.service("transfer")) as client:
                yield _Service(client, login)
        except GlobusAPIError as error:
            raise _as_own_error(place, error) from error
        except NetworkError as error:
            raise Transient(f"{place}: the Globus service cannot be reached: {error}") from error
        finally:
            login.close()


class _Service:
    """The few calls of the transfer service that are needed."""

    def __init__(self, client: TransferClient, login: _Login) -> None:
        self._client = client
        self._login = login

    def https_server(self, collection: str) -> str:
        server = self._client.get_endpoint(collection).get("https_server")
        return str(server).rstrip("/") if server else ""

    def https_headers(self, collection: str) -> dict[str, str]:
        """Return what a collection's HTTPS server wants to see; nothing where the user has no token for it."""
        authorizer = self._login.authorizer(collection, f"https://auth.globus.org/scopes/{collection}/https")
        header = authorizer.get_authorization_header() if authorizer is not None else None
        return {"Authorization": header} if header else {}

    def is_folder(self, place: GlobusAddress) -> bool:
        return bool(self._client.operation_stat(place.collection, place.path).get("type") == "dir")

    def files(self, place: GlobusAddress) -> list[_File]:
        """Return the file at a path, or all files below it; links are not followed, as in a transfer."""
        top = self._client.operation_stat(place.collection, place.path)
        if top.get("type") != "dir":
            name = place.path.rstrip("/").rpartition("/")[2]
            return [_File(place.path.rstrip("/"), name, int(top["size"]), str(top["last_modified"]))]
        base = place.path.rstrip("/") + "/"
        files: list[_File] = []
        folders = [""]
        while folders:
            folder = folders.pop()
            for entry in self._entries(place.collection, base + folder):
                name = folder + str(entry["name"])
                if entry.get("link_target"):
                    continue
                if entry["type"] == "dir":
                    folders.append(f"{name}/")
                elif entry["type"] == "file":
                    files.append(_File(base + name, name, int(entry["size"]), str(entry["last_modified"])))
        if not files:
            raise NotFound(f"no file below {place}")
        return sorted(files, key=lambda each: os.fsencode(each.name))

    def _entries(self, collection: str, path: str) -> Iterator[Mapping[str, Any]]:
        offset = 0
        while True:
            page = self._client.operation_ls(collection, path, limit=_LISTED_AT_ONCE, offset=offset)
            entries = page["DATA"]
            yield from entries
            offset += len(entries)
            if len(entries) < _LISTED_AT_ONCE:
                return

    def submission_id(self) -> str:
        return str(self._client.get_submission_id()["value"])

    def submit(self, place: GlobusAddress, collection: str, target: str, submission_id: str) -> str:
        from globus_sdk import TransferData

        is_folder = self.is_folder(place)
        data = TransferData(
            place.collection,
            collection,
            label="fairmile",
            submission_id=submission_id,
            sync_level="checksum",  # of a half-filled folder only what differs is moved
            verify_checksum=True,
            fail_on_quota_errors=True,
            notify_on_succeeded=False,
        )
        name = place.path.rstrip("/").rpartition("/")[2]
        path = target if is_folder else f"{target.rstrip('/')}/{name}"
        data.add_item(place.path, path, recursive=is_folder)
        return str(self._client.submit_transfer(data)["task_id"])

    def task(self, task_id: str) -> Mapping[str, Any] | None:
        """Return the state of a task; None when the service does not know it any more."""
        from globus_sdk import GlobusAPIError

        try:
            return dict(self._client.get_task(task_id).data)
        except GlobusAPIError as error:
            if error.http_status == 404:
                return None
            raise


class _Login:
    """What the Globus CLI knows about the user."""

    def __init__(self, context: Context) -> None:
        self._environ = context.environ
        self._file = context.credentials.home_file(".globus/cli/storage.db")
        self._client: ConfidentialAppAuthClient | None = None

    def service(self, name: str) -> dict[str, Any]:
        """Return where a service is found, as the SDK takes it."""
        return {
            "environment": self._environment,
            "base_url": self._environ.get(f"GLOBUS_SDK_SERVICE_URL_{name.upper()}") or None,
        }

    @property
    def _environment(self) -> str:
        return self._environ.get("GLOBUS_SDK_ENVIRONMENT") or "production"

    def authorizer(self, resource_server: str, scope: str) -> GlobusAuthorizer | None:
        """Return what authorizes calls to a service; None without a login."""
        from globus_sdk import ClientCredentialsAuthorizer

        own = self._environ.get("GLOBUS_CLI_CLIENT_ID"), self._environ.get("GLOBUS_CLI_CLIENT_SECRET")
        if own[0] and own[1]:
            return ClientCredentialsAuthorizer(self._auth_client(own[0], own[1]), scope)
        return self._of_the_cli(resource_server)

    def _of_the_cli(self, resource_server: str) -> GlobusAuthorizer | None:
        from globus_sdk import AccessTokenAuthorizer, RefreshTokenAuthorizer
        from globus_sdk.token_storage.legacy import SQLiteAdapter

        if not self._file.exists():
            return None
        profile = self._environ.get("GLOBUS_PROFILE")
        namespace = f"userprofile/{self._environment}" + (f"/{profile}" if profile else "")
        adapter = SQLiteAdapter(str(self._file), namespace=namespace)
        try:
            tokens = adapter.get_token_data(resource_server)
            client = adapter.read_config("auth_client_data")
        finally:
            adapter.close()
        if tokens is None:
            return None
        access, expires = tokens["access_token"], int(tokens["expires_at_seconds"])
        if tokens.get("refresh_token") and client is not None:
            auth = self._auth_client(client["client_id"], client["client_secret"])
            return RefreshTokenAuthorizer(tokens["refresh_token"], auth, access_token=access, expires_at=expires)
        return AccessTokenAuthorizer(access) if expires > time.time() + 60 else None

    def _auth_client(self, client_id: str, secret: str) -> ConfidentialAppAuthClient:
        from globus_sdk import ConfidentialAppAuthClient

        if self._client is None:
            self._client = ConfidentialAppAuthClient(client_id, secret, **self.service("auth"))
        return self._client

    def close(self) -> None:
        if self._client is not None:
            self._client.close()


def _read_note(note: Path) -> dict[str, str]:
    try:
        kept = json.loads(note.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {str(key): str(value) for key, value in kept.items()} if isinstance(kept, dict) else {}


def _reason(task: Mapping[str, Any]) -> str:
    fatal = task.get("fatal_error")
    reason = fatal.get("description") if isinstance(fatal, Mapping) else None
    reason = reason or task.get("nice_status_details") or task.get("nice_status")
    return f": {reason}" if reason else ""


def _as_own_error(place: GlobusAddress, error: GlobusAPIError) -> FairmileError:
    """Return an answer of the service as an error of ours."""
    from globus_sdk import AuthAPIError

    reason = " ".join((error.message or error.text or "no reason given").split())
    text = f"{place}: the Globus service says {error.http_status}: {reason[:500]}"
    scopes = error.info.consent_required.required_scopes if error.info.consent_required else None
    if scopes:
        return SystemFailure(text, hint=f"run `globus session consent {' '.join(map(repr, scopes))}`, then fetch again")
    if error.http_status == 404:
        return NotFound(text, hint="check the UUID and the path with `globus ls`")
    if error.http_status == 401 or isinstance(error, AuthAPIError):
        return SystemFailure(text, hint=_LOGIN_STEPS)
    if error.http_status == 403:
        return SystemFailure(text, hint="ask the owner of the collection for access; `globus whoami` says who you are")
    return Transient(text) if error.http_status in (408, 409, 429, 500, 502, 503, 504) else SystemFailure(text)
