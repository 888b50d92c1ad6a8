"""globus:// against a simulation of the service on loopback: the service itself is out of reach of these tests."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from extras import needs_extra
from globus_service import GlobusService, globus_service

from fairmile.base.commands import Here
from fairmile.base.errors import NotFound, SystemFailure, Transient, Unsupported, UsageError
from fairmile.base.quick_dataclass import dataclass
from fairmile.testing.fetchers import CONTENT, FolderFetcherTests, Served, read
from fairmile.transfer.credentials import Credentials
from fairmile.transfer.fetchers import globus
from fairmile.transfer.fetchers.globus import Globus, GlobusAddress
from fairmile.transfer.fetchers.http import Http
from fairmile.transfer.remote import Context, FolderFetcher
from fairmile.transfer.settings import Settings

pytest.importorskip("globus_sdk")

THERE = "11111111-2222-3333-4444-555555555555"
HERE = "66666666-7777-8888-9999-000000000000"
CLIENT = {"client_id": "c", "client_secret": "s"}


@dataclass(frozen=True)
class GlobusSettings(Settings):
    globus_collection: str = HERE
    globus_root: str = "/"


@pytest.fixture
def service(tmp_path: Path) -> Iterator[GlobusService]:
    with globus_service() as running:
        running.collections = {THERE: tmp_path / "there", HERE: Path("/")}
        (tmp_path / "there").mkdir()
        yield running


@pytest.fixture
def environ(service: GlobusService, tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path / "home"), **service.environ()}


def cli_login(
    environ: Mapping[str, str], tokens: Mapping[str, Mapping[str, Any]], namespace: str = "production"
) -> None:
    """Leave behind what `globus login` leaves, written by the SDK's own class as the CLI uses it."""
    from globus_sdk.token_storage.legacy import SQLiteAdapter

    file = Path(environ["HOME"]) / ".globus" / "cli" / "storage.db"
    file.parent.mkdir(parents=True, exist_ok=True)

    answer: Any = SimpleNamespace(
        by_resource_server={name: {"resource_server": name, **token} for name, token in tokens.items()}
    )
    with closing(SQLiteAdapter(str(file), namespace=f"userprofile/{namespace}")) as adapter:
        adapter.store(answer)
        adapter.store_config("auth_client_data", CLIENT)


def token(text: str, *, expires_in_s: float = 3600, refresh: str | None = None) -> dict[str, Any]:
    return {"access_token": text, "expires_at_seconds": int(time.time() + expires_in_s), "refresh_token": refresh}


@pytest.fixture
def login(environ: dict[str, str], service: GlobusService) -> None:
    cli_login(environ, {"transfer.api.globus.org": token(service.token), THERE: token(service.https_token)})


def make(environ: Mapping[str, str], settings: Settings | None = None) -> Globus:
    context = Context(environ, Here(), Credentials(environ), settings or GlobusSettings())
    return Globus(context, sleep=lambda seconds: None)


@pytest.fixture
def fetcher(environ: dict[str, str], login: None) -> Globus:
    return make(environ)


@pytest.fixture
def publish(tmp_path: Path) -> Callable[[Mapping[str, bytes]], str]:
    root = tmp_path / "there"

    def put(files: Mapping[str, bytes]) -> str:
        shutil.rmtree(root / "data", ignore_errors=True)
        for path, data in files.items():
            target = root / "data" / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        return str(GlobusAddress(THERE, f"/data/{next(iter(files))}" if len(files) == 1 else "/data"))

    return put


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "folder"
    folder.mkdir()
    return folder


def ignore(count: int) -> None:
    pass


class TestByTransferTask(FolderFetcherTests):
    hostile = (
        "globus://not-a-uuid/x",
        "globus:///x",
        f"globus://{THERE}/../../etc/passwd",
        f"globus://{THERE}/a%0ab",
    )

    @pytest.fixture
    def served(self, fetcher: Globus, publish: Callable[[Mapping[str, bytes]], str]) -> Served[FolderFetcher]:
        return Served(fetcher, publish, f"globus://{THERE}/nowhere.bin")


# Over the collection's HTTPS server


def test_a_collection_with_a_web_server_is_read_in_ranges(
    service: GlobusService, fetcher: Globus, environ: dict[str, str], publish: Callable[[Mapping[str, bytes]], str]
) -> None:
    service.https.add(THERE)
    files = {"a b.bin": CONTENT, "sub/ü%.bin": b"x", "empty": b""}
    found = fetcher.find(publish(files))
    assert {remote.path: remote.size_bytes for remote in found} == {path: len(data) for path, data in files.items()}
    assert all(remote.address.startswith(service.url) and "token" not in repr(remote) for remote in found)
    with closing(Http(Context(environ, Here(), Credentials(environ), Settings()))) as http:
        assert {remote.path: read(http.open(remote, 0, None)) for remote in found} == files
        [big] = [remote for remote in found if remote.size_bytes == len(CONTENT)]
        assert read(http.open(big, 1_000, 2_000)) == CONTENT[1_000:2_000]


def test_without_a_token_for_the_web_server_none_is_shown(
    service: GlobusService, environ: dict[str, str], publish: Callable[[Mapping[str, bytes]], str]
) -> None:
    cli_login(environ, {"transfer.api.globus.org": token(service.token)})
    service.https.add(THERE)
    assert [dict(remote.headers) for remote in make(environ).find(publish({"a": b"a"}))] == [{}]


# Listing


def test_long_listings_come_page_by_page(
    service: GlobusService,
    fetcher: Globus,
    publish: Callable[[Mapping[str, bytes]], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(globus, "_LISTED_AT_ONCE", 3)
    files = {f"{number}.txt": b"x" for number in range(9)}
    assert [remote.path for remote in fetcher.find(publish(files))] == sorted(files)


def test_links_are_left_out_so_that_no_listing_goes_in_circles(
    fetcher: Globus, publish: Callable[[Mapping[str, bytes]], str], tmp_path: Path
) -> None:
    address = publish({"a.txt": b"a", "b/c.txt": b"c"})
    (tmp_path / "there" / "data" / "b" / "loop").symlink_to("..")
    assert [remote.path for remote in fetcher.find(address)] == ["a.txt", "b/c.txt"]


def test_an_empty_folder_has_nothing(fetcher: Globus, tmp_path: Path) -> None:
    (tmp_path / "there" / "void").mkdir()
    with pytest.raises(NotFound, match="no file below"):
        fetcher.find(f"globus://{THERE}/void")


def test_the_validator_changes_with_the_file(fetcher: Globus, publish: Callable[[Mapping[str, bytes]], str]) -> None:
    [before] = fetcher.find(publish({"a": b"a"}))
    [after] = fetcher.find(publish({"a": b"aa"}))
    assert before.validator != after.validator


# The task


def test_the_task_is_checked_by_the_service_and_asks_for_no_mail(
    service: GlobusService, fetcher: Globus, folder: Path, publish: Callable[[Mapping[str, bytes]], str]
) -> None:
    fetcher.bring(publish({"a": b"a", "b": b"b"}), folder, ignore)
    [asked] = service.submitted
    assert (asked["verify_checksum"], asked["sync_level"], asked["notify_on_succeeded"]) == (True, 3, False)
    [item] = asked["DATA"]
    assert (item["source_path"], item["destination_path"], item["recursive"]) == ("/data", str(folder), True)


def test_an_interrupted_wait_goes_on_with_the_same_task(
    service: GlobusService, fetcher: Globus, folder: Path, publish: Callable[[Mapping[str, bytes]], str]
) -> None:
    address = publish({f"{number}": CONTENT for number in range(4)})

    def stop(count: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetcher.bring(address, folder, stop)
    counted: list[int] = []
    fetcher.bring(address, folder, counted.append)
    assert len(service.submitted) == 1
    assert sum(counted) < 4 * len(CONTENT)
    assert sorted(path.name for path in folder.iterdir()) == ["0", "1", "2", "3"]


def test_a_lost_answer_does_not_start_a_second_task(
    service: GlobusService, fetcher: Globus, folder: Path, publish: Callable[[Mapping[str, bytes]], str]
) -> None:
    service.lose_answers = 1
    address = publish({"a": b"a", "b": b"b"})
    with pytest.raises(SystemFailure, match="got lost"):
        fetcher.bring(address, folder, ignore)
    fetcher.bring(address, folder, ignore)
    assert len(service.submitted) == 1


def test_a_task_that_the_service_forgot_is_submitted_anew(
    service: GlobusService, fetcher: Globus, folder: Path, publish: Callable[[Mapping[str, bytes]], str]
) -> None:
    address = publish({"a": b"a", "b": b"b"})
    note = {"address": address, "target": str(folder), "collection": HERE, "submission_id": "s", "task_id": "t"}
    (folder / ".globus-task.json").write_text(json.dumps(note))
    fetcher.bring(address, folder, ignore)
    assert sorted(path.name for path in folder.iterdir()) == ["a", "b"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"address": "globus://other", "task_id": "t"}'])
def test_a_damaged_or_foreign_note_is_ignored(
    fetcher: Globus, folder: Path, publish: Callable[[Mapping[str, bytes]], str], text: str
) -> None:
    (folder / ".globus-task.json").write_text(text)
    fetcher.bring(publish({"a": b"a", "b": b"b"}), folder, ignore)
    assert sorted(path.name for path in folder.iterdir()) == ["a", "b"]


def test_a_failed_task_says_why_and_the_next_attempt_starts_anew(
    service: GlobusService, fetcher: Globus, folder: Path, publish: Callable[[Mapping[str, bytes]], str]
) -> None:
    address = publish({"a": b"a", "b": b"b"})
    made = service.tasks

    def fail(count: int) -> None:
        for task in made.values():
            task.status, task.more["fatal_error"] = "FAILED", {"description": "the disk of the source broke"}

    with pytest.raises(SystemFailure, match="failed: the disk of the source broke") as caught:
        fetcher.bring(address, folder, fail)
    assert "globus task show" in (caught.value.hint or "")
    fetcher.bring(address, folder, ignore)
    assert len(service.submitted) == 2


def test_a_task_that_waits_for_the_user_says_so_and_is_kept(
    service: GlobusService, fetcher: Globus, folder: Path, publish: Callable[[Mapping[str, bytes]], str]
) -> None:
    address = publish({"a": b"a", "b": b"b"})

    def hold(count: int) -> None:
        for task in service.tasks.values():
            task.status, task.more["nice_status_details"] = "INACTIVE", "the credentials have expired"

    with pytest.raises(SystemFailure, match="waits for you: the credentials have expired"):
        fetcher.bring(address, folder, hold)
    for task in service.tasks.values():
        task.status = "ACTIVE"
    fetcher.bring(address, folder, ignore)
    assert len(service.submitted) == 1


# The destination


def test_without_a_collection_here_the_error_says_what_to_set(
    environ: dict[str, str], login: None, folder: Path, publish: Callable[[Mapping[str, bytes]], str]
) -> None:
    with pytest.raises(Unsupported, match="none is known") as caught:
        make(environ, Settings()).bring(publish({"a": b"a"}), folder, ignore)
    assert "transfer.globus_collection" in (caught.value.hint or "")


def test_globus_connect_personal_is_found(
    environ: dict[str, str], login: None, folder: Path, publish: Callable[[Mapping[str, bytes]], str]
) -> None:
    note = Path(environ["HOME"]) / ".globusonline" / "lta" / "client-id.txt"
    note.parent.mkdir(parents=True)
    note.write_text(HERE + "\n")
    make(environ, Settings()).bring(publish({"a": b"a"}), folder, ignore)
    assert (folder / "a").read_bytes() == b"a"


def test_a_collection_of_a_part_of_the_disk_gets_paths_within_it(
    service: GlobusService,
    environ: dict[str, str],
    login: None,
    folder: Path,
    tmp_path: Path,
    publish: Callable[[Mapping[str, bytes]], str],
) -> None:
    service.collections[HERE] = tmp_path
    make(environ, GlobusSettings(globus_root=str(tmp_path))).bring(publish({"a": b"a"}), folder, ignore)
    assert (folder / "a").read_bytes() == b"a"
    with pytest.raises(UsageError, match="is not in"):
        make(environ, GlobusSettings(globus_root="/nowhere")).bring(publish({"a": b"a"}), folder, ignore)


def test_files_that_went_elsewhere_are_noticed(
    service: GlobusService,
    fetcher: Globus,
    folder: Path,
    tmp_path: Path,
    publish: Callable[[Mapping[str, bytes]], str],
) -> None:
    service.collections[HERE] = tmp_path / "elsewhere"
    with pytest.raises(SystemFailure, match="put its files elsewhere") as caught:
        fetcher.bring(publish({"a": b"a", "b": b"b"}), folder, ignore)
    assert "transfer.globus_root" in (caught.value.hint or "")


# Logins


def test_without_a_login_the_error_gives_the_steps(environ: dict[str, str], folder: Path) -> None:
    fetcher = make(environ)
    for attempt in (fetcher.find, lambda address: fetcher.bring(address, folder, ignore)):
        with pytest.raises(SystemFailure, match="requires a login") as caught:
            attempt(f"globus://{THERE}/x")
        assert "globus login" in (caught.value.hint or "")


def test_a_login_of_another_profile_does_not_count(
    environ: dict[str, str], service: GlobusService, publish: Callable[[Mapping[str, bytes]], str]
) -> None:
    cli_login(environ, {"transfer.api.globus.org": token(service.token)}, "production/work")
    with pytest.raises(SystemFailure, match="requires a login"):
        make(environ).find(publish({"a": b"a"}))
    assert make({**environ, "GLOBUS_PROFILE": "work"}).find(publish({"a": b"a"}))


def test_an_expired_token_is_renewed_with_the_clis_own_client(
    environ: dict[str, str], service: GlobusService, publish: Callable[[Mapping[str, bytes]], str]
) -> None:
    cli_login(environ, {"transfer.api.globus.org": token("old", expires_in_s=-100, refresh="renew")})
    assert make(environ).find(publish({"a": b"a"}))
    assert service.granted == ["refresh_token"]


def test_an_expired_token_that_cannot_be_renewed_needs_a_login(environ: dict[str, str]) -> None:
    cli_login(environ, {"transfer.api.globus.org": token("old", expires_in_s=-100)})
    with pytest.raises(SystemFailure, match="requires a login"):
        make(environ).find(f"globus://{THERE}/x")


def test_a_client_of_ones_own_logs_in_by_the_environment(
    environ: dict[str, str], service: GlobusService, publish: Callable[[Mapping[str, bytes]], str]
) -> None:
    own = {"GLOBUS_CLI_CLIENT_ID": "id", "GLOBUS_CLI_CLIENT_SECRET": "secret"}
    service.https.add(THERE)
    [found] = make(environ | own).find(publish({"a": b"a"}))
    assert dict(found.headers) == {"Authorization": f"Bearer {service.https_token}"}
    assert service.granted == ["client_credentials", "client_credentials"]


def test_a_refused_token_gives_the_steps(environ: dict[str, str], service: GlobusService) -> None:
    cli_login(environ, {"transfer.api.globus.org": token("hunter2")})
    with pytest.raises(SystemFailure, match="401") as caught:
        make(environ).find(f"globus://{THERE}/x")
    assert "globus login" in (caught.value.hint or "")
    assert "hunter2" not in str(caught.value)


# What the service answers


@pytest.mark.parametrize(
    ("status", "document", "error", "hint"),
    [
        (
            403,
            {"code": "ConsentRequired", "message": "no consent", "required_scopes": ["urn:x[*y]"]},
            SystemFailure,
            "globus session consent 'urn:x[*y]'",
        ),
        (403, {"code": "PermissionDenied", "message": "no"}, SystemFailure, "ask the owner"),
        (404, {"code": "EndpointNotFound", "message": "no such endpoint"}, NotFound, "globus ls"),
        (400, {"code": "BadRequest", "message": "odd"}, SystemFailure, ""),
        (409, {"code": "Conflict", "message": "odd"}, Transient, ""),
    ],
)
def test_an_answer_of_the_service_becomes_an_error_with_advice(
    service: GlobusService, fetcher: Globus, status: int, document: dict[str, Any], error: type[Exception], hint: str
) -> None:
    service.answers = [(status, document)]
    with pytest.raises(error, match=str(status)) as caught:
        fetcher.find(f"globus://{THERE}/x")
    assert hint in (getattr(caught.value, "hint", None) or "")


def test_a_service_out_of_reach_is_worth_another_attempt(
    environ: dict[str, str], login: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    environ["GLOBUS_SDK_SERVICE_URL_TRANSFER"] = "http://127.0.0.1:9/"
    with pytest.raises(Transient, match="cannot be reached"):
        make(environ).find(f"globus://{THERE}/x")


def test_without_the_sdk_the_extra_is_named(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "globus_sdk", None)
    with needs_extra("globus"):
        make(environ)
