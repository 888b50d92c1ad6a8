"""Assets and addresses fetched into a store: what is known does not move, what is damaged comes again."""

from __future__ import annotations

import hashlib
import io
import json
import random
import re
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import web_server as web
from trusted_projects import trusted_project
from web_server import Exchange, WebServer, web_server

from fairmile.base.digest import ManifestEntry, merkle_root, ni
from fairmile.base.errors import Conflict, FairmileError, Integrity, NotFound, SystemFailure, Unsupported, UsageError
from fairmile.catalog.card import Card
from fairmile.catalog.folder import CatalogFolder
from fairmile.transfer.items import Silent
from fairmile.workspace import Workspace

DATA = random.Random(9).randbytes(200_000)
MORE = random.Random(10).randbytes(70_000)


@pytest.fixture
def watcher() -> Silent:
    return Silent()


@pytest.fixture(scope="session")
def indexed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home without cards whose index is made; made once, since that takes a third of a second."""
    home = tmp_path_factory.mktemp("indexed")
    opened(home).catalog.open_index().close()
    return home / "fairmile"


@pytest.fixture
def workspace(tmp_path: Path, indexed: Path, watcher: Silent) -> Workspace:
    shutil.copytree(indexed, tmp_path / "fairmile")
    return opened(tmp_path, watcher)


def opened(place: Path, watcher: Silent | None = None) -> Workspace:
    environ = {
        "HOME": str(place),
        "FAIRMILE_HOME": str(place / "fairmile"),
        "FAIRMILE_TRANSFER_RETRIES": "1",
        "FAIRMILE_TRANSFER_STALL": "5 s",
    }
    return Workspace.open(environ=environ, cwd=place, watcher=watcher)


@pytest.fixture
def server() -> Iterator[WebServer]:
    with web_server({"data.bin": DATA, "more.bin": MORE}) as running:
        yield running


Add = Callable[..., str]


@pytest.fixture
def add(workspace: Workspace, tmp_path: Path, card: Callable[..., dict[str, Any]]) -> Add:
    """Add a card with these entries to the catalog and return its name."""

    def new(*entries: dict[str, Any], name: str = "alpha", **more: Any) -> str:
        path = tmp_path / f"{name}.jsonld"
        path.write_text(json.dumps(card(name=name, distribution=list(entries), **more)))
        workspace.catalog.add(path)
        return f"dataset/{name}"

    return new


def entry(name: str, data: bytes | None, *addresses: str, **more: Any) -> dict[str, Any]:
    """Return an entry of a distribution; without data it has neither size nor digest."""
    known = {} if data is None else {"sha256": hashlib.sha256(data).hexdigest(), "contentSize": f"{len(data)} B"}
    mirrors = {"mirror": list(addresses[1:])} if len(addresses) > 1 else {}
    return {"@type": "FileObject", "name": name, "contentUrl": addresses[0], **mirrors, **known, **more}


def contents(workspace: Workspace, root: str) -> dict[str, bytes]:
    found = {}
    for each in workspace.store.tree(root):
        with workspace.store.open(each.sha256) as stream:
            found[each.path] = stream.read()
    return found


def lose(workspace: Workspace, data: bytes) -> None:
    """Remove an object, as a purge of scratch does."""
    for pool in workspace.store.pools:
        workspace.store.objects(pool).remove([hashlib.sha256(data).hexdigest()])


def damage(workspace: Workspace, data: bytes) -> None:
    path = workspace.store.path(hashlib.sha256(data).hexdigest())
    assert path is not None
    path.chmod(0o644)
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


# Cards


def test_an_asset_is_fetched_with_all_its_files(workspace: Workspace, server: WebServer, add: Add) -> None:
    name = add(entry("data.bin", DATA, server.url("data.bin")), entry("sub/more.bin", MORE, server.url("more.bin")))
    (fetched,) = workspace.assets.fetch(name)
    assert contents(workspace, fetched.root) == {"data.bin": DATA, "sub/more.bin": MORE}
    assert (fetched.files, fetched.size_bytes, fetched.moved_bytes) == (2, 270_000, 270_000)
    assert (fetched.name, fetched.pool, fetched.known) == ("local/dataset/alpha@1.0", "home", False)
    assert fetched.notes == ()


def test_a_second_fetch_asks_nobody(workspace: Workspace, server: WebServer, add: Add) -> None:
    name = add(entry("data.bin", DATA, server.url("data.bin")))
    (first,) = workspace.assets.fetch(name)
    asked = len(server.requests)
    (second,) = workspace.assets.fetch(name)
    assert second.known
    assert (second.root, second.files, second.size_bytes, second.pool) == (first.root, 1, len(DATA), "home")
    assert second.moved_bytes == 0
    assert len(server.requests) == asked


def test_a_card_that_describes_other_bytes_is_fetched_anew(workspace: Workspace, server: WebServer, add: Add) -> None:
    name = add(entry("data.bin", DATA, server.url("data.bin")))
    workspace.assets.fetch(name)
    changed = entry("data.bin", MORE, server.url("more.bin"))
    workspace.catalog.update("dataset/alpha", set={"distribution": [changed]})
    (second,) = workspace.assets.fetch(name)
    assert contents(workspace, second.root) == {"data.bin": MORE}


def test_a_card_that_somebody_edits_in_place_is_fetched_anew(workspace: Workspace, server: WebServer, add: Add) -> None:
    name = add(entry("data.bin", DATA, server.url("data.bin")))
    workspace.assets.fetch(name)
    (path,) = workspace.catalog.local.cards_root.rglob("alpha/*.jsonld")
    body = json.loads(path.read_text())
    path.write_text(json.dumps(body | {"distribution": [entry("data.bin", MORE, server.url("more.bin"))]}))
    (second,) = workspace.assets.fetch(name)
    assert contents(workspace, second.root) == {"data.bin": MORE}
    path.write_text(json.dumps(body))
    (third,) = workspace.assets.fetch(name)
    assert contents(workspace, third.root) == {"data.bin": DATA}


def test_a_card_that_changes_while_its_files_come_is_not_taken_for_the_one_they_came_by(
    workspace: Workspace, add: Add
) -> None:
    changed: dict[Path, str] = {}

    def edit(exchange: Exchange) -> None:
        for path, text in changed.items():
            path.write_text(text)
        exchange.answer()

    with web_server({"data.bin": DATA, "more.bin": MORE}, edit) as server:
        name = add(entry("data.bin", DATA, server.url("data.bin")))
        (path,) = workspace.catalog.local.cards_root.rglob("alpha/*.jsonld")
        other = json.loads(path.read_text()) | {"distribution": [entry("data.bin", MORE, server.url("more.bin"))]}
        changed[path] = json.dumps(other)
        (first,) = workspace.assets.fetch(name)
        assert contents(workspace, first.root) == {"data.bin": DATA}
        assert path.read_text() == changed[path]
        (second,) = workspace.assets.fetch(name)
        assert contents(workspace, second.root) == {"data.bin": MORE}


def test_a_card_that_says_more_of_the_same_bytes_moves_none(workspace: Workspace, server: WebServer, add: Add) -> None:
    name = add(entry("data.bin", DATA, server.url("data.bin")))
    workspace.assets.fetch(name)
    asked = len(server.requests)
    workspace.catalog.update("dataset/alpha", set={"description": "what one can say of kilobytes of chance"})
    (second,) = workspace.assets.fetch(name)
    assert second.known
    assert len(server.requests) == asked


def test_the_card_of_what_is_there_stays_unread(
    workspace: Workspace, server: WebServer, add: Add, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = add(entry("data.bin", DATA, server.url("data.bin")))
    (first,) = workspace.assets.fetch(name)
    read: list[str] = []
    whole = CatalogFolder.read

    def counted(folder: CatalogFolder, relative: str) -> Card:
        read.append(relative)
        return whole(folder, relative)

    monkeypatch.setattr(CatalogFolder, "read", counted)
    (second,) = workspace.assets.fetch(name)
    assert (second.name, second.root, second.known, read) == (first.name, first.root, True, [])
    workspace.assets.fetch(name, fresh=True)
    assert read == ["dataset/alpha/1.0.jsonld"]


def test_content_known_under_another_name_does_not_move(workspace: Workspace, server: WebServer, add: Add) -> None:
    workspace.assets.fetch(add(entry("data.bin", DATA, server.url("data.bin"))))
    sent = server.sent_bytes
    known, new = entry("x", DATA, "http://127.0.0.1:1/nowhere"), entry("y", MORE, server.url("more.bin"))
    (other,) = workspace.assets.fetch(add(known, new, name="beta"))
    assert contents(workspace, other.root) == {"x": DATA, "y": MORE}
    assert other.moved_bytes == len(MORE)
    assert server.sent_bytes == sent + len(MORE)


def test_fresh_moves_every_byte_again(workspace: Workspace, server: WebServer, add: Add) -> None:
    name = add(entry("data.bin", DATA, server.url("data.bin")))
    workspace.assets.fetch(name)
    (again,) = workspace.assets.fetch(name, fresh=True)
    assert not again.known
    assert again.moved_bytes == len(DATA)
    assert server.sent_bytes == 2 * len(DATA)


def test_a_plan_moves_nothing(workspace: Workspace, server: WebServer, add: Add) -> None:
    name = add(entry("data.bin", DATA, server.url("data.bin")), entry("more.bin", None, server.url("more.bin")))
    (plan,) = workspace.assets.plan(name)
    assert (plan.download_bytes, len(plan.items)) == (270_000, 2)
    assert server.sent_bytes == 0
    assert workspace.store.refs() == []
    workspace.assets.fetch(name)
    (plan,) = workspace.assets.plan(name)
    assert plan.items == ()


def test_mirrors_serve_where_the_first_address_fails(workspace: Workspace, server: WebServer, add: Add) -> None:
    name = add(entry("data.bin", DATA, server.url("gone.bin"), server.url("data.bin")))
    (fetched,) = workspace.assets.fetch(name)
    assert contents(workspace, fetched.root) == {"data.bin": DATA}
    assert any(server.url("gone.bin") in note for note in fetched.notes)


def test_a_page_on_the_first_mirror_does_not_pass_for_the_size(
    workspace: Workspace, server: WebServer, add: Add
) -> None:
    server.behaviours["login"] = web.answers_with_a_page
    without_size = entry("data.bin", DATA, server.url("login"), server.url("data.bin"))
    del without_size["contentSize"]
    (fetched,) = workspace.assets.fetch(add(without_size))
    assert contents(workspace, fetched.root) == {"data.bin": DATA}
    assert any(server.url("login") in note for note in fetched.notes)


# Without digests


def test_where_the_card_has_no_digest_one_is_recorded_and_said(
    workspace: Workspace, server: WebServer, add: Add
) -> None:
    name = add(entry("data.bin", None, server.url("data.bin")))
    (fetched,) = workspace.assets.fetch(name)
    assert fetched.notes == (f"its card has no digest of every file; recorded {ni(fetched.root)}",)
    asked = len(server.requests)
    assert workspace.assets.fetch(name)[0].known
    assert len(server.requests) == asked


def test_what_was_recorded_is_expected_ever_after(workspace: Workspace, server: WebServer, add: Add) -> None:
    name = add(entry("data.bin", None, server.url("data.bin")))
    workspace.assets.fetch(name)
    lose(workspace, DATA)
    server.files["data.bin"] = DATA[::-1]
    with pytest.raises(Integrity, match="sha256"):
        workspace.assets.fetch(name)
    (fresh,) = workspace.assets.fetch(name, fresh=True)
    assert contents(workspace, fresh.root) == {"data.bin": DATA[::-1]}


@pytest.mark.parametrize("is_right", [True, False])
def test_the_digest_of_the_whole_is_checked(workspace: Workspace, server: WebServer, add: Add, is_right: bool) -> None:
    sha256 = hashlib.sha256(DATA if is_right else MORE).hexdigest()
    stated = ni(merkle_root([ManifestEntry("data.bin", len(DATA), sha256, 0o644)]))
    name = add(entry("data.bin", None, server.url("data.bin")), contentDigest=stated)
    if is_right:
        assert workspace.assets.fetch(name)[0].files == 1
    else:
        with pytest.raises(Integrity, match=rf"its files have the digest ni:///.*, but its card says {stated}"):
            workspace.assets.fetch(name)
        assert workspace.store.refs() == []


# Names


def test_two_files_of_one_name_are_a_conflict_before_a_byte_moves(
    workspace: Workspace, server: WebServer, add: Add
) -> None:
    for data, more in ((DATA, MORE), (None, None)):
        entries = entry("x", data, server.url("data.bin")), entry("x", more, server.url("more.bin"))
        name = add(*entries, name=f"twice-{data is None}")
        with pytest.raises(Conflict, match="two of its files are named x") as caught:
            workspace.assets.fetch(name)
        assert "a unique name" in (caught.value.hint or "")
    assert server.sent_bytes == 0


def test_members_of_two_archives_with_one_name_are_a_conflict(
    workspace: Workspace, server: WebServer, add: Add
) -> None:
    server.files |= {"a.tar": tar({"x": b"one"}), "b.tar": tar({"x": b"two"})}
    entries = [entry(name, server.files[name], server.url(name), fetchMethod="archive") for name in ("a.tar", "b.tar")]
    with pytest.raises(Conflict, match="two of its files are named x"):
        workspace.assets.fetch(add(*entries))


def tar(members: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return stream.getvalue()


def test_a_name_that_is_not_there_names_the_nearest(workspace: Workspace, add: Add, server: WebServer) -> None:
    add(entry("data.bin", DATA, server.url("data.bin")))
    with pytest.raises(NotFound, match="alhpa"):
        workspace.assets.fetch("dataset/alhpa")


# Limits


def test_a_limit_takes_the_first_files_and_does_not_count_as_the_whole(
    workspace: Workspace, server: WebServer, add: Add
) -> None:
    name = add(entry("a", DATA, server.url("data.bin")), entry("b", MORE, server.url("more.bin")))
    (some,) = workspace.assets.fetch(name, limit=1)
    assert contents(workspace, some.root) == {"a": DATA}
    (whole,) = workspace.assets.fetch(name)
    assert contents(workspace, whole.root) == {"a": DATA, "b": MORE}
    assert whole.moved_bytes == len(MORE)
    assert workspace.assets.fetch(name, limit=1)[0].known


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_of_nothing_is_refused(workspace: Workspace, add: Add, server: WebServer, limit: int) -> None:
    name = add(entry("a", DATA, server.url("data.bin")))
    with pytest.raises(UsageError, match=f"the limit is {limit} files, expected at least 1"):
        workspace.assets.fetch(name, limit=limit)


# Trust and access


def test_a_card_of_a_foreign_catalog_cannot_bring_a_file_of_this_machine(
    tmp_path: Path, card: Callable[..., dict[str, Any]], watcher: Silent
) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("mine")
    folder = tmp_path / "shared"
    folder.mkdir()
    (folder / "alpha.jsonld").write_text(
        json.dumps(card(name="alpha", distribution=[entry("x", None, secret.as_uri())]))
    )
    trusted_project(tmp_path, f"sources:\n  group: {folder}\n", {"HOME": str(tmp_path)})
    workspace = opened(tmp_path, watcher)
    workspace.catalog.sync()
    with pytest.raises(Unsupported, match="a card of the catalog 'group' refers to a local file"):
        workspace.assets.fetch("group/dataset/alpha")
    (fetched,) = workspace.assets.fetch(str(secret))  # what the user names himself is his own business
    assert contents(workspace, fetched.root) == {"secret.txt": b"mine"}


RESTRICTED = {
    "accessRights": "http://publications.europa.eu/resource/authority/access-right/RESTRICTED",
    "conditionsOfAccess": "Sign the form.",
    "url": "https://archive.example/form",
}


def test_restricted_data_do_not_move_before_the_user_confirms_the_right(
    workspace: Workspace, server: WebServer, add: Add
) -> None:
    name = add(entry("data.bin", DATA, server.url("data.bin")), **RESTRICTED)
    handle = name.partition("/")[2]
    ways: list[Callable[[], object]] = [
        lambda: workspace.assets.plan(name),
        lambda: workspace.assets.fetch(name),
        lambda: workspace.assets.fetch(server.url("data.bin")),  # the card's conditions hold for its address, too
        lambda: workspace.assets.materialize(name),  # what runs, sweeps and jobs do with an input
        lambda: workspace.datasets.load(handle),
    ]
    for way in ways:
        with pytest.raises(UsageError, match="restricts access, so nothing was fetched") as caught:
            way()
        assert "Sign the form. See https://archive.example/form" in (caught.value.hint or "")
        assert "--access-granted" in (caught.value.hint or "")
    assert server.requests == []


def test_restricted_data_come_once_the_right_is_confirmed_and_need_no_second_confirmation(
    workspace: Workspace, server: WebServer, add: Add
) -> None:
    name = add(entry("data.bin", DATA, server.url("data.bin")), **RESTRICTED)
    (plan,) = workspace.assets.plan(name, access_granted=True)
    assert plan.notes[0] == "access: Sign the form. See https://archive.example/form"
    (fetched,) = workspace.assets.fetch(name, access_granted=True)
    assert contents(workspace, fetched.root) == {"data.bin": DATA}
    assert workspace.assets.materialize(name).root == fetched.root
    with pytest.warns(DeprecationWarning, match="now Assets.materialize"):
        assert workspace.assets.laid(name).root == fetched.root
    with pytest.raises(UsageError, match="restricts access"):
        workspace.assets.fetch(name, fresh=True)


@pytest.mark.parametrize("data", [DATA, None], ids=["sized", "unsized"])
def test_a_refusal_of_restricted_data_tells_what_to_do(
    workspace: Workspace, server: WebServer, add: Add, data: bytes | None
) -> None:
    server.behaviours["data.bin"] = web.wants_a_login
    name = add(entry("data.bin", data, server.url("data.bin")), **RESTRICTED)
    with pytest.raises(SystemFailure, match="requires a login") as caught:
        workspace.assets.fetch(name, access_granted=True)
    assert ".netrc" in (caught.value.hint or "")
    assert "Sign the form. See https://archive.example/form" in (caught.value.hint or "")


# Addresses


def test_an_address_is_fetched_by_the_name_at_its_end(workspace: Workspace, server: WebServer) -> None:
    (fetched,) = workspace.assets.fetch(server.url("data.bin"))
    assert contents(workspace, fetched.root) == {"data.bin": DATA}
    assert fetched.name == server.url("data.bin")


def test_an_address_is_known_while_its_validator_stays(workspace: Workspace, server: WebServer) -> None:
    workspace.assets.fetch(server.url("data.bin"))
    sent = server.sent_bytes
    (again,) = workspace.assets.fetch(server.url("data.bin"))
    assert again.known
    assert server.sent_bytes == sent
    assert [request.method for request in server.requests][-1] == "HEAD"


def test_an_address_that_holds_something_new_is_fetched_anew(workspace: Workspace, server: WebServer) -> None:
    (first,) = workspace.assets.fetch(server.url("data.bin"))
    server.files["data.bin"] = MORE
    (second,) = workspace.assets.fetch(server.url("data.bin"))
    assert not second.known
    assert contents(workspace, second.root) == {"data.bin": MORE}
    assert contents(workspace, first.root) == {"data.bin": DATA}


def test_an_address_whose_server_tells_no_validator_is_fetched_anew(workspace: Workspace, server: WebServer) -> None:
    server.behaviour = lambda exchange: exchange.answer(etag="")
    workspace.assets.fetch(server.url("data.bin"))
    assert not workspace.assets.fetch(server.url("data.bin"))[0].known


def test_an_address_whose_server_gives_another_name_is_known_too(workspace: Workspace, server: WebServer) -> None:
    def named(exchange: Exchange) -> None:
        size = len(exchange.data)
        exchange.head(
            "200 OK",
            {
                "Content-Length": str(size),
                "ETag": '"same"',
                "Content-Disposition": 'attachment; filename="called otherwise.bin"',
            },
        )
        exchange.body(exchange.data)

    server.behaviour = named
    (first,) = workspace.assets.fetch(server.url("data.bin"))
    assert contents(workspace, first.root) == {"called otherwise.bin": DATA}
    assert workspace.assets.fetch(server.url("data.bin"))[0].known


def test_an_address_with_its_digest_is_known_without_a_question(workspace: Workspace, server: WebServer) -> None:
    sha256 = hashlib.sha256(DATA).hexdigest()
    workspace.assets.fetch(server.url("data.bin"), sha256=sha256)
    asked = len(server.requests)
    assert workspace.assets.fetch(server.url("data.bin"), sha256=f"sha256:{sha256.upper()}")[0].known
    assert len(server.requests) == asked


def test_a_wrong_digest_of_an_address_is_refused(workspace: Workspace, server: WebServer, add: Add) -> None:
    with pytest.raises(Integrity, match="sha256"):
        workspace.assets.fetch(server.url("data.bin"), sha256="0" * 64)
    with pytest.raises(UsageError, match="'abc' is not a sha256"):
        workspace.assets.fetch(server.url("data.bin"), sha256="abc")
    name = add(entry("data.bin", DATA, server.url("data.bin")))
    for more in ({"sha256": "0" * 64}, {"unpack": True}):
        with pytest.raises(UsageError, match="only to URLs"):
            workspace.assets.fetch(name, **more)  # type: ignore[arg-type]


def test_the_address_of_one_file_means_that_file_by_the_digest_of_its_card(
    workspace: Workspace, server: WebServer, add: Add
) -> None:
    add(entry("a", DATA, server.url("data.bin")), entry("b", MORE, server.url("more.bin")))
    (fetched,) = workspace.assets.fetch(server.url("more.bin"))
    assert contents(workspace, fetched.root) == {"more.bin": MORE}
    assert server.sent_bytes == len(MORE)
    server.files["data.bin"] = MORE
    with pytest.raises(Integrity):
        workspace.assets.fetch(server.url("data.bin"))


def test_an_archive_at_an_address_is_unpacked(workspace: Workspace, server: WebServer) -> None:
    server.files["x.tar"] = tar({"a": b"a", "b/c": DATA})
    (fetched,) = workspace.assets.fetch(server.url("x.tar"), unpack=True)
    assert contents(workspace, fetched.root) == {"a": b"a", "b/c": DATA}
    assert workspace.assets.fetch(server.url("x.tar"), unpack=True)[0].known
    (plain,) = workspace.assets.fetch(server.url("x.tar"))
    assert contents(workspace, plain.root) == {"x.tar": server.files["x.tar"]}


@pytest.mark.parametrize("name", ["plain.txt", "two words.txt", "100%25 ü#?.txt", "a:b.txt"])
def test_a_file_of_this_machine_is_fetched_by_its_path(workspace: Workspace, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(DATA)
    (fetched,) = workspace.assets.fetch(str(tmp_path / name))
    assert contents(workspace, fetched.root) == {name: DATA}


@pytest.mark.parametrize("address", ["https://[::1/x", "nosuch://x/y", "http://", "http://h:port/x"])
def test_what_is_no_address_is_told(workspace: Workspace, address: str) -> None:
    with pytest.raises(UsageError):
        workspace.assets.fetch(address)


def test_no_secret_of_an_address_is_kept_or_told(workspace: Workspace, server: WebServer, watcher: Silent) -> None:
    address = server.url("data.bin").replace("//", "//me:hunter2@") + "?token=tok3n"
    (fetched,) = workspace.assets.fetch(address)
    told = f"{fetched} {fetched.to_dict()} {watcher.notes}"
    with pytest.raises(FairmileError) as caught:
        workspace.assets.fetch(address.replace("data.bin", "gone.bin"))
    told += f"{caught.value} {caught.value.hint}"
    assert "hunter2" not in told
    assert "tok3n" not in told
    for path in workspace.home.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            assert b"hunter2" not in data, path
            assert b"tok3n" not in data, path


# Into a folder


def test_files_are_laid_into_a_folder(workspace: Workspace, server: WebServer, add: Add, tmp_path: Path) -> None:
    name = add(entry("sub/data.bin", DATA, server.url("data.bin")))
    (fetched,) = workspace.assets.fetch(name, to=tmp_path / "out")
    assert fetched.folder == tmp_path / "out"
    assert (tmp_path / "out" / "sub" / "data.bin").read_bytes() == DATA


def test_several_are_laid_into_folders_of_their_own(
    workspace: Workspace, server: WebServer, add: Add, tmp_path: Path
) -> None:
    name = add(entry("x", DATA, server.url("data.bin")))
    fetched = workspace.assets.fetch([name, server.url("more.bin")], to=tmp_path / "out")
    assert [each.folder for each in fetched] == [tmp_path / "out" / "alpha", tmp_path / "out" / "more.bin"]
    assert (tmp_path / "out" / "alpha" / "x").read_bytes() == DATA


def test_a_file_that_is_there_is_replaced_only_when_asked(
    workspace: Workspace, server: WebServer, add: Add, tmp_path: Path
) -> None:
    name = add(entry("x", DATA, server.url("data.bin")))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "x").write_text("precious")
    with pytest.raises(Conflict):
        workspace.assets.fetch(name, to=tmp_path / "out")
    assert (tmp_path / "out" / "x").read_text() == "precious"
    workspace.assets.fetch(name, to=tmp_path / "out", replace=True)
    assert (tmp_path / "out" / "x").read_bytes() == DATA


def test_an_asset_is_loaded_from_the_store_or_fetched(workspace: Workspace, server: WebServer, add: Add) -> None:
    add(entry("x", DATA, server.url("data.bin")))
    loaded = workspace.assets.load("alpha", kind="dataset")
    assert loaded.file("x").read_bytes() == DATA
    sent = server.sent_bytes
    assert workspace.assets.load("alpha").file("x").read_bytes() == DATA
    assert server.sent_bytes == sent
    workspace.assets.load("alpha", fresh=True)
    assert server.sent_bytes > sent


# What is missing or damaged


def test_a_purged_object_is_a_cache_miss(workspace: Workspace, server: WebServer, add: Add) -> None:
    name = add(entry("a", DATA, server.url("data.bin")), entry("b", MORE, server.url("more.bin")))
    (first,) = workspace.assets.fetch(name)
    lose(workspace, MORE)
    (second,) = workspace.assets.fetch(name)
    assert second.root == first.root
    assert second.moved_bytes == len(MORE)
    assert contents(workspace, second.root) == {"a": DATA, "b": MORE}


def test_one_lost_object_of_many_in_a_pack_is_noticed(workspace: Workspace, add: Add) -> None:
    files = {f"{number % 3}/{number:03}": b"%d" % number for number in range(100)}
    with web_server(files) as server:
        name = add(*(entry(path, data, server.url(path)) for path, data in files.items()))
        (first,) = workspace.assets.fetch(name)
        assert list((workspace.home / "store" / "packs").glob("*.pack"))
        lose(workspace, files["1/040"])
        (second,) = workspace.assets.fetch(name)
    assert (second.root, second.known, second.moved_bytes) == (first.root, False, 2)
    assert contents(workspace, second.root) == files


def test_a_purged_manifest_is_a_cache_miss(workspace: Workspace, server: WebServer, add: Add) -> None:
    name = add(entry("a", DATA, server.url("data.bin")))
    (first,) = workspace.assets.fetch(name)
    for path in (workspace.home / "store" / "trees").rglob("*"):
        if path.is_file():
            path.unlink()
    (second,) = workspace.assets.fetch(name)
    assert second.root == first.root
    assert contents(workspace, second.root) == {"a": DATA}


def test_repair_brings_a_damaged_object_again(workspace: Workspace, server: WebServer, add: Add) -> None:
    name = add(entry("a", DATA, server.url("data.bin")), entry("b", MORE, server.url("more.bin")))
    (fetched,) = workspace.assets.fetch(name)
    assert workspace.assets.repair() == []
    damage(workspace, DATA)
    assert len(workspace.store.verify().damaged) == 1
    assert workspace.assets.repair(dry_run=True) == [(fetched.name, "would be fetched again")]
    sent = server.sent_bytes
    assert workspace.assets.repair() == [(fetched.name, "repaired")]
    assert server.sent_bytes == sent + len(DATA)
    assert contents(workspace, fetched.root) == {"a": DATA, "b": MORE}
    assert not workspace.store.verify().damaged


def test_repair_tells_what_cannot_be_had_any_more(workspace: Workspace, server: WebServer, add: Add) -> None:
    (fetched,) = workspace.assets.fetch(add(entry("a", DATA, server.url("data.bin"))))
    lose(workspace, DATA)
    del server.files["data.bin"]
    [(name, what)] = workspace.assets.repair()
    assert name == fetched.name
    assert what.startswith("failed: ")
    assert server.url("data.bin") in what


@pytest.mark.parametrize("options", [{}, {"unpack": True}, {"sha256": True}, {"unpack": True, "sha256": True}], ids=str)
def test_repair_brings_an_address_again_as_it_was_fetched(
    workspace: Workspace, server: WebServer, options: dict[str, Any]
) -> None:
    server.files["x.tar"] = archive = tar({"a": DATA, "b": MORE})
    if options.get("sha256"):
        options = {**options, "sha256": hashlib.sha256(archive).hexdigest()}
    (fetched,) = workspace.assets.fetch(server.url("x.tar"), **options)
    before = contents(workspace, fetched.root)
    lose(workspace, DATA if "unpack" in options else archive)
    [(name, what)] = workspace.assets.repair()
    assert (name, what) == (fetched.name, "repaired")
    ref = workspace.store.ref("url", fetched.name + (" unpacked" if "unpack" in options else ""))
    assert ref is not None
    assert ref.root == fetched.root
    assert contents(workspace, ref.root) == before


def test_repair_keeps_a_limit(workspace: Workspace, server: WebServer, add: Add) -> None:
    name = add(entry("a", DATA, server.url("data.bin")), entry("b", MORE, server.url("more.bin")))
    (fetched,) = workspace.assets.fetch(name, limit=1)
    lose(workspace, DATA)
    assert workspace.assets.repair() == [(f"{fetched.name} limit=1", "repaired")]
    assert contents(workspace, fetched.root) == {"a": DATA}
    assert server.sent_bytes == 2 * len(DATA)


# Who refers to it


def test_a_name_is_referred_to_while_its_card_is_there(workspace: Workspace, server: WebServer, add: Add) -> None:
    workspace.assets.fetch(add(entry("a", DATA, server.url("data.bin"))))
    workspace.assets.fetch("dataset/alpha", limit=1)
    workspace.assets.fetch(server.url("more.bin"))
    workspace.store.pin(server.url("more.bin"), "keep")
    refs = workspace.store.refs()
    names = [f"{ref.kind} {re.sub(r' [(][0-9a-f]{8}[)]', '', ref.name)}" for ref in refs]
    referred = dict(zip(names, map(workspace.assets.is_referred, refs), strict=True))
    assert referred == {
        "card local/dataset/alpha@1.0": True,
        "card local/dataset/alpha@1.0 limit=1": True,
        f"url {server.url('more.bin')}": False,
        "pin keep": True,
    }
    workspace.catalog.remove("dataset/alpha@1.0")
    assert not any(workspace.assets.is_referred(ref) for ref in workspace.store.refs("card"))


def test_one_bad_name_among_several_is_told_before_anything_moves(
    workspace: Workspace, server: WebServer, add: Add
) -> None:
    name = add(entry("a", DATA, server.url("data.bin")))
    with pytest.raises(NotFound):
        workspace.assets.fetch([name, "dataset/nowhere"])
    assert server.sent_bytes == 0


def test_what_is_there_is_used_while_its_source_cannot_be_asked(workspace: Workspace) -> None:
    with web_server({"data.bin": DATA}) as server:
        address = server.url("data.bin")
        workspace.assets.fetch(address)
    (again,) = workspace.assets.fetch(address)
    assert again.known
    assert any("what was fetched before is used" in note for note in again.notes)


def test_two_names_that_end_alike_do_not_share_a_folder(
    workspace: Workspace, server: WebServer, tmp_path: Path
) -> None:
    server.files |= {"x/data.csv": DATA, "y/data.csv": MORE}
    with pytest.raises(Conflict, match="two names would be written"):
        workspace.assets.fetch([server.url("x/data.csv"), server.url("y/data.csv")], to=tmp_path / "to")
    assert server.sent_bytes == 0


def test_an_empty_name_names_nothing(workspace: Workspace) -> None:
    with pytest.raises(UsageError, match="the name is empty"):
        workspace.assets.fetch("")


def test_fresh_bytes_replace_a_damaged_object(workspace: Workspace, server: WebServer) -> None:
    (fetched,) = workspace.assets.fetch(server.url("data.bin"))
    (found,) = workspace.store.tree(fetched.root)
    path = workspace.store.path(found.sha256)
    assert path is not None
    path.chmod(0o644)
    path.write_bytes(b"x" * len(DATA))
    workspace.assets.fetch(server.url("data.bin"), fresh=True)
    assert path.read_bytes() == DATA


def test_a_damaged_tree_is_written_anew(workspace: Workspace, server: WebServer) -> None:
    (fetched,) = workspace.assets.fetch(server.url("data.bin"))
    path = workspace.home / "store" / "trees" / fetched.root[:2] / fetched.root[2:]
    path.chmod(0o644)
    path.write_text(path.read_text().replace("data", "dato", 1))
    assert [what for _, what in workspace.assets.repair()] == ["repaired"]
    assert [each.path for each in workspace.store.tree(fetched.root)] == ["data.bin"]
