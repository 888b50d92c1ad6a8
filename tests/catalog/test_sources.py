from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from fairmile.base.commands import Here
from fairmile.base.digest_cache import Stamp
from fairmile.base.errors import UsageError
from fairmile.catalog import sources
from fairmile.catalog.card import Card
from fairmile.catalog.catalog import Catalog
from fairmile.catalog.declared import SourceSpec, SyncReport, source_spec, source_type, state
from fairmile.catalog.exchange import draft
from fairmile.catalog.folder import CatalogFolder
from fairmile.catalog.sources import publish, sync
from fairmile.transfer.credentials import Credentials, shown_address
from fairmile.transfer.remote import Context
from fairmile.transfer.settings import Settings

Factory = Callable[..., dict[str, Any]]
CODEMETA = {
    "@context": "https://w3id.org/codemeta/3.0",
    "@type": "SoftwareSourceCode",
    "name": "Foreign code",
    "version": "0.3",
    "codeRepository": "https://example.net/foreign.git",
}


@pytest.fixture
def copy(tmp_path: Path) -> CatalogFolder:
    """Where the copy of the source under test is kept."""
    return CatalogFolder("there", tmp_path / "home" / "sources" / "there")


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """The folder of somebody else."""
    folder = tmp_path / "outside"
    folder.mkdir()
    return folder


def write(folder: Path, name: str, body: Any) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(body if isinstance(body, str) else json.dumps(body), encoding="utf-8")
    return path


def names(folder: CatalogFolder) -> list[str]:
    return sorted(relative.removesuffix(".jsonld") for relative, _ in folder.scan())


def context(**environ: str) -> Context:
    """What sources are reached with: no setting of the machine, and nobody waits for a server to come back."""
    return Context(environ, Here(), Credentials(environ), Settings(retries=1))


def bring(location: Path | str, copy: CatalogFolder, revision: str = "", type: str | None = None) -> SyncReport:
    settings = {"location": str(location), "type": type, "revision": revision}
    return sync(source_spec("there", settings), copy, context())


# Settings


@pytest.mark.parametrize(
    ("location", "type"),
    [
        ("/data/cards", "folder"),
        ("~/cards", "folder"),
        ("https://example.net/catalog", "web"),
        ("http://example.net/catalog/index.json", "web"),
        ("https://example.net/cards.git", "git"),
        ("https://example.net/cards.git/", "git"),
        ("git@example.net:cards", "git"),
        ("ssh://example.net/cards", "git"),
        ("git+https://example.net/cards", "git"),
    ],
)
def test_the_type_of_a_source_is_guessed_from_its_location(location: str, type: str) -> None:
    assert source_type(location) == type
    assert source_spec("there", location) == SourceSpec("there", location.removeprefix("git+"), type, "")


def test_a_folder_with_a_repository_in_it_is_one(outside: Path) -> None:
    assert source_type(str(outside)) == "folder"
    (outside / ".git").mkdir()
    assert source_type(str(outside)) == "git"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (None, "expected a location"),
        ({}, "expected a location"),
        ("", "expected a location"),
        ({"location": 5}, "expected a location"),
        (["/data"], "expected a location"),
        ({"location": "/data", "branch": "main"}, "unknown key 'branch'"),
        ({"location": "/data", "type": "svn"}, "no type named 'svn'"),
        ("--upload-pack=touch x", "cannot start with a dash"),
        ({"location": "git+--upload-pack=touch x", "type": "git"}, "cannot start with a dash"),
        ({"location": "/data.git", "revision": "--all"}, "cannot start with a dash"),
        ({"location": "/data", "type": "folder", "revision": "v1"}, "a revision pins a git repository, not a folder"),
    ],
)
def test_wrong_settings_of_a_source_are_named(settings: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        source_spec("there", settings, origin="config.yaml:3")
    assert str(caught.value).startswith("config.yaml:3 sources.there: ")


@pytest.mark.parametrize("name", ["local", "builtin", "../evil", "a/b", "Upper", "", ".", 5])
def test_a_name_that_cannot_name_a_source_is_refused(name: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot name a source"):
        source_spec(name, "/data")
    with pytest.raises(UsageError, match="cannot name a source"):
        Catalog(tmp_path, sources={name: "/data"})


# A folder


def test_a_folder_brings_cards_and_foreign_descriptions(outside: Path, copy: CatalogFolder, card: Factory) -> None:
    write(outside, "a.jsonld", card("model", "Net"))
    write(outside, "deep/er/b.json", card("dataset", "Alpha"))
    foreign = write(outside, "codemeta.json", CODEMETA)
    report = bring(outside, copy)
    assert (report.cards, report.changed, report.removed, report.error, report.problems) == (3, 3, 0, "", [])
    assert report.synced_at.endswith("Z")
    assert names(copy) == ["dataset/alpha/1.0", "model/net/1.0", "program/foreign-code/0.3"]
    assert copy.read("model/net/1.0.jsonld").body == card("model", "Net")
    imported = copy.read("program/foreign-code/0.3.jsonld")
    assert copy.raw(imported["sourceDocument"]["sha256"]) == foreign.read_bytes()


def test_junk_is_skipped_and_invalid_cards_are_reported(outside: Path, copy: CatalogFolder, card: Factory) -> None:
    write(outside, "good.jsonld", card())
    write(outside, "notes.txt", "hello")
    write(outside, "data.json", {"some": "data"})
    write(outside, "table.yaml", "a: 1\n")
    write(outside, ".hidden.json", card("model", "Hidden"))
    write(outside, "node_modules/x.json", card("model", "Vendored"))
    write(outside, "broken.jsonld", json.dumps(card("model", "Broken"))[:-5])
    write(outside, "wrong.jsonld", json.dumps(card("model", "Wrong", datePublished="soon"), indent=1))
    (outside / "binary.json").write_bytes(b"\xff\xfe\x00")
    report = bring(outside, copy)
    assert names(copy) == ["dataset/alpha/1.0"]
    assert report.error == ""
    assert report.skipped == 3
    first, second = report.problems
    assert first.startswith("broken.jsonld:1:")
    assert second.startswith("wrong.jsonld:7 datePublished: expected a date")


def test_links_and_pipes_in_a_folder_are_left_alone(outside: Path, copy: CatalogFolder, card: Factory) -> None:
    secret = write(outside.parent, "secret/s.jsonld", card("model", "Secret"))
    write(outside, "good.jsonld", card())
    (outside / "link.jsonld").symlink_to(secret)
    (outside / "linked").symlink_to(secret.parent)
    os.mkfifo(outside / "pipe.json")
    assert bring(outside, copy).cards == 1
    assert names(copy) == ["dataset/alpha/1.0"]


def test_one_file_too_large_to_be_a_description_does_not_stop_the_rest(
    outside: Path, copy: CatalogFolder, card: Factory
) -> None:
    write(outside, "good.jsonld", card())
    with open(outside / "huge.json", "wb") as stream:
        stream.truncate(draft.MAX_DOCUMENT_BYTES + 1)
    report = bring(outside, copy)
    assert report.cards == 1
    assert "larger than 64 MiB" in report.problems[0]


def test_two_different_cards_of_one_handle_are_reported(outside: Path, copy: CatalogFolder, card: Factory) -> None:
    write(outside, "a.jsonld", card(description="first"))
    write(outside, "b.jsonld", card(description="second"))
    write(outside, "c.jsonld", card(description="first"))
    report = bring(outside, copy)
    assert report.cards == 1
    assert copy.read("dataset/alpha/1.0.jsonld")["description"] == "first"
    assert report.problems == [
        "b.jsonld: there/dataset/alpha@1.0 is described twice, with different content; the first one is used"
    ]


def test_a_card_without_an_id_gets_the_same_one_at_each_sync(outside: Path, copy: CatalogFolder, card: Factory) -> None:
    write(outside, "a.jsonld", card(**{"@id": None}))
    bring(outside, copy)
    first = copy.read("dataset/alpha/1.0.jsonld").iri
    assert first.startswith("urn:uuid:")
    assert bring(outside, copy).changed == 0
    assert copy.read("dataset/alpha/1.0.jsonld").iri == first


def test_a_second_sync_brings_changes_only(outside: Path, copy: CatalogFolder, card: Factory) -> None:
    write(outside, "a.jsonld", card("model", "Kept"))
    write(outside, "b.jsonld", card("model", "Changed"))
    write(outside, "c.jsonld", card("model", "Removed"))
    bring(outside, copy)
    generation = copy.generation()
    kept = copy.cards_root / "model/kept/1.0.jsonld"
    stamp = Stamp.of(kept.stat())
    report = bring(outside, copy)
    assert (report.cards, report.changed, report.removed) == (3, 0, 0)
    assert copy.generation() == generation
    write(outside, "b.jsonld", card("model", "Changed", description="new"))
    (outside / "c.jsonld").unlink()
    write(outside, "d.jsonld", card("model", "Added"))
    report = bring(outside, copy)
    assert (report.cards, report.changed, report.removed) == (3, 2, 1)
    assert names(copy) == ["model/added/1.0", "model/changed/1.0", "model/kept/1.0"]
    assert Stamp.of(kept.stat()) == stamp
    assert copy.generation() != generation


def test_an_index_that_looked_in_the_middle_of_a_sync_sees_its_end(
    outside: Path, home: Path, builtin: CatalogFolder, card: Factory, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = Catalog(home, sources={"there": str(outside)}, builtin=builtin)
    for number in range(3):
        write(outside, f"{number}.jsonld", card("model", f"Net {number}"))
    real = CatalogFolder.write
    seen = []

    def write_and_look(folder: CatalogFolder, each: Card, *, replace: bool = False) -> Path:
        path = real(folder, each, replace=replace)
        monkeypatch.setattr(CatalogFolder, "write", real)
        seen.append(len(catalog.search("net")))
        return path

    monkeypatch.setattr(CatalogFolder, "write", write_and_look)
    catalog.sync()
    assert seen == [1]
    assert len(catalog.search("net")) == 3


def test_a_sync_that_was_cut_off_is_finished_by_the_next(outside: Path, copy: CatalogFolder, card: Factory) -> None:
    write(outside, "a.jsonld", card())
    bring(outside, copy)
    cut_off = copy.touch_generation(unfinished=True)
    bring(outside, copy)
    assert not copy.is_unfinished()
    assert copy.generation() != cut_off


def test_a_folder_that_is_gone_leaves_the_last_copy(outside: Path, copy: CatalogFolder, card: Factory) -> None:
    write(outside, "a.jsonld", card())
    first = bring(outside, copy)
    shutil.rmtree(outside)
    report = bring(outside, copy)
    assert "is not there" in report.error
    assert names(copy) == ["dataset/alpha/1.0"]
    assert state(copy)["synced_at"] == first.synced_at
    assert state(copy)["error"] == report.error
    write(outside, "a.jsonld", card())
    assert bring(outside, copy).error == ""
    assert state(copy)["error"] == ""


def test_a_folder_that_cannot_be_listed_does_not_look_empty(
    outside: Path, copy: CatalogFolder, card: Factory, without_rights: Callable[..., str]
) -> None:
    write(outside, "deep/a.jsonld", card())
    bring(outside, copy)
    script = """
        import sys
        from pathlib import Path
        from fairmile.base.commands import Here
        from fairmile.catalog.declared import source_spec
        from fairmile.catalog.folder import CatalogFolder
        from fairmile.catalog.sources import sync
        from fairmile.transfer.credentials import Credentials
        from fairmile.transfer.remote import Context
        from fairmile.transfer.settings import Settings
        outside, copy = sys.argv[1:]
        context = Context({}, Here(), Credentials({}), Settings())
        print(sync(source_spec("there", outside), CatalogFolder("there", Path(copy)), context).error)
    """
    for path in [copy.root, *copy.root.rglob("*")]:
        path.chmod(0o777)
    (outside / "deep").chmod(0)
    try:
        error = without_rights(script, outside, copy.root)
    finally:
        (outside / "deep").chmod(0o755)
    assert "Permission denied" in error
    assert names(copy) == ["dataset/alpha/1.0"]


@pytest.mark.parametrize("left", ["nothing", "junk"])
def test_a_source_that_suddenly_lists_no_card_leaves_the_last_copy(
    outside: Path, copy: CatalogFolder, card: Factory, left: str
) -> None:
    assert bring(outside, copy).error == ""
    write(outside, "a.jsonld", card())
    first = bring(outside, copy)
    (outside / "a.jsonld").unlink()
    if left == "junk":
        write(outside, "package.json", {"scripts": {}})
    spec = source_spec("there", str(outside))
    assert sync(spec, copy, context(), dry_run=True).error == "no longer lists any cards; the last copy stays in use"
    assert state(copy)["error"] == ""
    report = bring(outside, copy)
    assert (report.error, report.removed) == ("no longer lists any cards; the last copy stays in use", 0)
    assert names(copy) == ["dataset/alpha/1.0"]
    assert (state(copy)["error"], state(copy)["synced_at"]) == (report.error, first.synced_at)
    report = sync(spec, copy, context(), allow_empty=True)
    assert (report.error, report.cards, report.removed) == ("", 0, 1)
    assert names(copy) == []


# Secrets in a location


@pytest.mark.parametrize(
    ("location", "shown"),
    [
        ("https://user:TOKEN@example.net/cards.git", "https://example.net/cards.git"),
        ("https://TOKEN@example.net", "https://example.net"),
        ("https://user:TO@KEN@example.net:8080/x@y", "https://example.net:8080/x@y"),
        ("https://user:TO#K?EN@example.net/", "https://example.net/"),
        ("git+ssh://git@example.net/cards", "git+ssh://example.net/cards"),
        ("http:/me:TOKEN@example.net/x", "http:/example.net/x"),
        ("https://example.net/index.json?token=TOKEN&part=2", "https://example.net/index.json?token=…&part=2"),
        ("git@example.net:cards", "git@example.net:cards"),
        ("https://example.net/a@b", "https://example.net/a@b"),
        ("/data/me@home/cards", "/data/me@home/cards"),
        ("from 'https://a:TOKEN@b/' to 'http://TOKEN@d/'", "from 'https://b/' to 'http://d/'"),
    ],
)
def test_a_location_is_shown_without_its_secrets(location: str, shown: str) -> None:
    assert shown_address(location) == shown


@pytest.mark.parametrize("type", ["git", "web", "folder"])
def test_the_token_of_a_location_is_in_no_report(copy: CatalogFolder, type: str) -> None:
    for address in ("http://me:TOKEN@127.0.0.1:1/cards.git", "http://me:TOKEN@127.0.0.1:x/", "ftp://me:TOKEN@h/"):
        report = bring(address, copy, type=type)
        assert report.error
        assert "TOKEN" not in json.dumps(report.__dict__)
        assert "me" not in report.location
        assert report.location.startswith(address[:4])
        assert "TOKEN" not in (copy.root / "state.json").read_text()


def test_the_token_of_a_location_that_would_run_a_command_is_not_shown(copy: CatalogFolder) -> None:
    report = bring("ext::https://me:TOKEN@example.net/x.git", copy, type="git")
    assert "would run a command" in report.error
    assert "TOKEN" not in report.error


# A git repository


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=A", "-c", "user.email=a@example.net", "-c", "init.defaultBranch=main")
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def commit(folder: Path, message: str = "change") -> str:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", message)
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def repository(outside: Path, card: Factory) -> Path:
    """A repository with one card."""
    git(outside, "init", "--quiet")
    write(outside, "cards/a.jsonld", card("model", "Net", description="first"))
    commit(outside)
    return outside


def test_a_repository_brings_its_cards_at_a_named_commit(repository: Path, copy: CatalogFolder, card: Factory) -> None:
    head = git(repository, "rev-parse", "HEAD")
    write(repository, "uncommitted.jsonld", card("model", "Uncommitted"))
    report = bring(repository, copy)
    assert (report.type, report.revision, report.error) == ("git", head, "")
    assert names(copy) == ["model/net/1.0"]


def test_a_second_sync_follows_a_new_commit(repository: Path, copy: CatalogFolder, card: Factory) -> None:
    bring(repository, copy)
    write(repository, "cards/a.jsonld", card("model", "Net", description="second"))
    write(repository, "b.jsonld", card())
    second = commit(repository)
    report = bring(repository, copy)
    assert (report.revision, report.changed) == (second, 2)
    assert copy.read("model/net/1.0.jsonld")["description"] == "second"
    (repository / "b.jsonld").unlink()
    commit(repository)
    assert bring(repository, copy).removed == 1
    assert names(copy) == ["model/net/1.0"]


@pytest.mark.parametrize("pin", ["branch", "tag", "commit", "HEAD"])
def test_a_revision_can_be_pinned(repository: Path, copy: CatalogFolder, card: Factory, pin: str) -> None:
    first = git(repository, "rev-parse", "HEAD")
    git(repository, "branch", "stable")
    git(repository, "tag", "--annotate", "v1", "--message", "one")
    write(repository, "cards/a.jsonld", card("model", "Net", description="second"))
    second = commit(repository)
    revision = {"branch": "stable", "tag": "v1", "commit": first, "HEAD": "HEAD"}[pin]
    report = bring(repository, copy, revision)
    expected = ("second", second) if pin == "HEAD" else ("first", first)
    assert (copy.read("model/net/1.0.jsonld")["description"], report.revision) == expected


def test_a_revision_that_is_not_there_is_said(repository: Path, copy: CatalogFolder) -> None:
    bring(repository, copy)
    report = bring(repository, copy, "no-such-branch")
    assert "no-such-branch" in report.error
    assert names(copy) == ["model/net/1.0"]


@pytest.mark.parametrize("revision", ["short", "HEAD~1", "no-such-branch"])
def test_a_revision_that_no_server_knows_gets_a_hint(
    repository: Path, copy: CatalogFolder, card: Factory, revision: str
) -> None:
    write(repository, "a.jsonld", card("model", "Net", description="second"))
    revision = commit(repository)[:8] if revision == "short" else revision
    report = bring(repository, copy, revision)
    assert report.error.endswith("; name a branch, a tag or a full commit")
    assert revision in report.error


def test_a_cache_that_old_commits_swell_starts_anew(
    repository: Path, copy: CatalogFolder, card: Factory, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = copy.root / "cache" / "git"
    assert bring(repository, copy).error == ""
    assert (cache / "objects").is_dir()
    monkeypatch.setattr(sources, "_GIT_CACHE_BYTES", 1)
    monkeypatch.setattr(sources, "_GIT_CACHE_TIMES", 0)
    write(repository, "a.jsonld", card("model", "Net", description="second"))
    second = commit(repository)
    assert bring(repository, copy).revision == second
    assert not cache.exists()
    write(repository, "a.jsonld", card("model", "Net", description="third"))
    third = commit(repository)
    assert bring(repository, copy).revision == third
    assert copy.read("model/net/1.0.jsonld")["description"] == "third"


def test_a_repository_that_is_gone_leaves_the_last_copy(repository: Path, home: Path, builtin: CatalogFolder) -> None:
    catalog = Catalog(home, sources={"there": str(repository / ".git")}, builtin=builtin)
    (report,) = catalog.sync()
    assert report.error == ""
    repository.rename(repository.with_name("moved"))
    (report,) = catalog.sync()
    assert report.error
    assert [hit.handle for hit in catalog.search("net")] == ["there/model/net@1.0"]
    assert catalog.catalogs()[1]["error"] == report.error
    assert catalog.catalogs()[1]["revision"]


def test_a_relative_path_of_a_repository_starts_where_the_user_is(
    repository: Path, copy: CatalogFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repository.parent)
    assert bring("outside", copy).error == ""
    assert names(copy) == ["model/net/1.0"]


def test_the_variables_of_a_git_hook_do_not_lead_astray(
    repository: Path, copy: CatalogFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    callers = tmp_path / "callers"
    callers.mkdir()
    git(callers, "init", "--quiet")
    before = sorted(path for path in callers.rglob("*"))
    monkeypatch.setenv("GIT_DIR", str(callers / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(callers / ".git" / "index"))
    assert bring(repository, copy, type="git").error == ""
    assert sorted(path for path in callers.rglob("*")) == before


def test_nothing_of_a_repository_is_executed(
    repository: Path, copy: CatalogFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()

    def mark(name: str) -> str:
        return f"touch {marks / name}; cat"

    # The user has installed a filter and a hook folder, as one does for large files; a repository asks for them.
    user = tmp_path / "user"
    (user / "hooks").mkdir(parents=True)
    for hook in ("post-checkout", "reference-transaction", "post-merge", "pre-auto-gc"):
        path = write(user / "hooks", hook, f"#!/bin/sh\n{mark('hook-' + hook)} >/dev/null </dev/null\n")
        path.chmod(0o755)
        shutil.copy(path, repository / ".git" / "hooks" / hook)
    write(
        user,
        ".gitconfig",
        f'[filter "marking"]\n\tsmudge = "{mark("smudge")}"\n\tclean = cat\n\trequired = true\n'
        f'[filter "long"]\n\tprocess = "{mark("process")}"\n'
        f'[core]\n\thooksPath = {user / "hooks"}\n\tfsmonitor = "{mark("fsmonitor")}"\n'
        f"[init]\n\ttemplateDir = {repository / '.git'}\n",
    )
    write(
        repository, ".gitattributes", "*.jsonld filter=marking ident export-subst\n*.json export-ignore filter=long\n"
    )
    write(repository, "codemeta.json", CODEMETA)
    commit(repository)
    monkeypatch.setenv("HOME", str(user))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    # The trap is real: git by itself would call the filter.
    subprocess.run(
        ["git", "archive", "--format=tar", "-o", str(tmp_path / "x.tar"), "HEAD"], cwd=repository, check=False
    )
    assert (marks / "smudge").exists()
    for path in marks.iterdir():
        path.unlink()
    report = bring(repository, copy)
    assert report.error == ""
    assert names(copy) == ["model/net/1.0", "program/foreign-code/0.3"]
    assert list(marks.iterdir()) == []


@pytest.mark.parametrize("location", ["ext::sh -c 'touch {}'", "git+ext::sh -c 'touch {}'", "fd::7"])
def test_a_location_that_would_run_a_command_is_refused(location: str, copy: CatalogFolder, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    report = bring(location.format(mark), copy, type="git")
    assert "would run a command" in report.error
    assert not mark.exists()


def test_links_in_a_repository_are_left_alone(repository: Path, copy: CatalogFolder, card: Factory) -> None:
    secret = write(repository.parent, "secret.jsonld", card("model", "Secret"))
    (repository / "link.jsonld").symlink_to(secret)
    commit(repository)
    bring(repository, copy)
    assert names(copy) == ["model/net/1.0"]


# A web address


class Site:
    """A folder offered over HTTP on a free port of this machine, and the paths that were asked for."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.asked: list[str] = []
        self.credentials: list[str | None] = []
        self.status = 0
        self.is_busy_once = False
        site = self

        class Handler(SimpleHTTPRequestHandler):
            def do_GET(self) -> None:
                site.asked.append(self.path)
                site.credentials.append(self.headers["Authorization"])
                if site.is_busy_once:
                    site.is_busy_once = False
                    self.send_response(503)
                    self.send_header("Retry-After", "0")
                    self.end_headers()
                elif site.status == 1:
                    self.wfile.write(b"this is not HTTP\r\n\r\n")
                elif site.status:
                    self.send_error(site.status)
                else:
                    super().do_GET()

            def log_message(self, *_: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(root)))
        self.address = f"http://127.0.0.1:{self.server.server_port}/catalog"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def site(tmp_path: Path, catalog: Catalog, card: Factory) -> Iterator[Site]:
    """A web site with two published cards."""
    catalog.add(card("model", "Net"))
    catalog.add(card("dataset", "Alpha", "1.0+x"))
    assert catalog.publish(tmp_path / "www" / "catalog").cards == 2
    running = Site(tmp_path / "www")
    yield running
    running.stop()


def test_what_is_published_can_be_a_source(site: Site, copy: CatalogFolder, card: Factory) -> None:
    report = bring(site.address, copy)
    assert (report.type, report.cards, report.error) == ("web", 2, "")
    assert len(report.revision) == 64
    assert names(copy) == ["dataset/alpha/1.0-x", "model/net/1.0"]
    assert copy.read("model/net/1.0.jsonld").body == card("model", "Net")


def test_unchanged_cards_are_not_fetched_again(
    site: Site, copy: CatalogFolder, catalog: Catalog, card: Factory
) -> None:
    bring(site.address, copy)
    assert len(site.asked) == 3
    site.asked.clear()
    assert bring(site.address + "/", copy).error == ""
    assert site.asked == ["/catalog/index.json"]
    catalog.add(card("model", "Third"))
    catalog.publish(site.root / "catalog")
    site.asked.clear()
    report = bring(site.address + "/index.json", copy)
    assert (report.cards, report.changed) == (3, 1)
    assert sorted(site.asked) == ["/catalog/index.json", "/catalog/model/third/1.0.jsonld"]


def test_what_the_index_no_longer_lists_leaves_the_cache(site: Site, copy: CatalogFolder) -> None:
    def kept() -> list[str]:
        return sorted(path.name for path in (copy.root / "cache" / "web").rglob("*") if path.is_file())

    bring(site.address, copy)
    path = site.root / "catalog" / "index.json"
    listed = json.loads(path.read_text())
    assert kept() == sorted(entry["sha256"] for entry in listed["cards"])
    path.write_text(json.dumps({"cards": listed["cards"][:1]}))
    assert bring(site.address, copy).removed == 1
    assert kept() == [listed["cards"][0]["sha256"]]


def test_the_user_and_password_of_an_address_reach_the_server_and_no_report(site: Site, copy: CatalogFolder) -> None:
    address = site.address.replace("http://", "http://me:TO%40KEN@")
    report = bring(address, copy)
    assert (report.error, report.cards) == ("", 2)
    assert set(site.credentials) == {"Basic " + base64.b64encode(b"me:TO@KEN").decode()}
    site.status = 403
    report = bring(address, copy)
    assert "answers 403" in report.error
    (site.root / "catalog" / "index.json").write_text("{}")
    site.status = 0
    report = bring(address, copy)
    assert "expected a list" in report.error
    assert "KEN" not in (copy.root / "state.json").read_text()


def test_the_login_that_netrc_has_for_a_server_reaches_it(site: Site, copy: CatalogFolder, tmp_path: Path) -> None:
    write(tmp_path, "netrc", "machine 127.0.0.1 login me password TOKEN").chmod(0o600)
    report = sync(source_spec("there", site.address), copy, context(NETRC=str(tmp_path / "netrc")))
    assert (report.error, report.cards) == ("", 2)
    assert set(site.credentials) == {"Basic " + base64.b64encode(b"me:TOKEN").decode()}


def test_a_proxy_of_the_environment_is_asked(site: Site, copy: CatalogFolder) -> None:
    proxy = site.address.removesuffix("/catalog")
    report = sync(source_spec("there", "http://far.example.net/cards"), copy, context(http_proxy=proxy))
    assert "http://far.example.net/cards/index.json does not exist" in report.error
    assert site.asked == ["http://far.example.net/cards/index.json"]


def test_a_busy_server_is_asked_again_when_it_says(site: Site, home: Path, builtin: CatalogFolder) -> None:
    catalog = Catalog(home.with_name("other"), sources={"there": site.address}, builtin=builtin)
    site.is_busy_once = True
    (report,) = catalog.sync()
    assert (report.error, report.cards) == ("", 2)
    assert site.asked.count("/catalog/index.json") == 2


def test_a_document_too_large_to_be_an_index_is_refused(
    site: Site, copy: CatalogFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "MAX_DOCUMENT_BYTES", 10)
    report = bring(site.address, copy)
    assert f"{site.address}/index.json sends more than 10 bytes" in report.error


def test_a_card_that_is_not_what_the_index_lists_is_refused(site: Site, copy: CatalogFolder) -> None:
    path = site.root / "catalog" / "model" / "net" / "1.0.jsonld"
    good = path.read_text()
    path.write_text(good.replace("Net", "Nut"))
    report = bring(site.address, copy)
    assert "model/net/1.0.jsonld is not the card its index lists: sha256 differs" in report.error
    assert names(copy) == []
    path.write_text(good)
    assert bring(site.address, copy).cards == 2


def test_a_damaged_copy_in_the_cache_is_fetched_again(site: Site, copy: CatalogFolder) -> None:
    bring(site.address, copy)
    for kept in (copy.root / "cache" / "web").rglob("*"):
        if kept.is_file():
            kept.write_text("rubbish")
    site.asked.clear()
    assert bring(site.address, copy).error == ""
    assert len(site.asked) == 3


@pytest.mark.parametrize(
    "path",
    [
        *("../secret.jsonld", "/secret.jsonld", "//example.net/x.jsonld", "http://example.net/x"),
        *("a/../../secret.jsonld", "%2e%2e/secret.jsonld", "..\\secret.jsonld", "file:///etc/passwd"),
    ],
)
def test_a_path_outside_the_catalog_is_refused(site: Site, copy: CatalogFolder, path: str) -> None:
    write(site.root, "secret.jsonld", "{}")
    write(site.root, "catalog/index.json", {"cards": [{"path": path, "sha256": "ab" * 32}]})
    report = bring(site.address, copy)
    assert "points outside the catalog" in report.error
    assert "cards[0].path" in report.error
    assert site.asked == ["/catalog/index.json"]


@pytest.mark.parametrize(
    "index",
    [
        "not json",
        "[]",
        {"cards": {}},
        {"cards": ["a.jsonld"]},
        {"cards": [{"path": "a.jsonld"}]},
        {"cards": [{"path": "a.jsonld", "sha256": "zz" * 32}]},
        {"cards": [{"path": 3, "sha256": "ab" * 32}]},
    ],
)
def test_a_wrong_index_is_refused_and_the_last_copy_stays(site: Site, copy: CatalogFolder, index: Any) -> None:
    bring(site.address, copy)
    write(site.root, "catalog/index.json", index)
    report = bring(site.address, copy)
    assert "index.json" in report.error
    assert len(names(copy)) == 2


@pytest.mark.parametrize("status", [404, 500, 1], ids=["missing", "broken", "not http"])
def test_a_server_that_fails_is_reported_and_the_last_copy_serves(site: Site, copy: CatalogFolder, status: int) -> None:
    bring(site.address, copy)
    site.status = status
    report = bring(site.address, copy)
    assert site.address in report.error
    assert len(names(copy)) == 2


def test_a_server_that_is_down_is_reported_and_the_last_copy_serves(
    site: Site, home: Path, builtin: CatalogFolder
) -> None:
    other = home.with_name("other")
    catalog = Catalog(other, sources={"there": site.address}, context=context(), builtin=builtin)
    catalog.sync()
    site.stop()
    (report,) = catalog.sync()
    assert "cannot be reached" in report.error
    assert [hit.handle for hit in catalog.search("kind:model")] == ["there/model/net@1.0"]


def test_names_of_any_characters_can_be_fetched(site: Site, copy: CatalogFolder, card: Factory) -> None:
    text = json.dumps(card("model", "Odd"))
    path = write(site.root, "catalog/ødd näme+1.jsonld", text)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    write(site.root, "catalog/index.json", {"cards": [{"path": "ødd näme+1.jsonld", "sha256": digest}]})
    assert bring(site.address, copy).error == ""
    assert names(copy) == ["model/odd/1.0"]


def test_a_tombstone_is_published_as_one(site: Site, catalog: Catalog, builtin: CatalogFolder, tmp_path: Path) -> None:
    catalog.remove("net", reason="wrong numbers")
    catalog.publish(site.root / "catalog")
    other = Catalog(tmp_path / "other", sources={"there": site.address}, builtin=builtin)
    other.sync()
    row, _ = other.resolve("net")
    assert row.gone
    assert other.get("net")["tombstone"]["reason"] == "wrong numbers"


def test_publishing_writes_the_digest_of_each_card(tmp_path: Path, card: Factory) -> None:
    publish([Card(card())], tmp_path)
    index = json.loads((tmp_path / "index.json").read_text())
    digest = hashlib.sha256((tmp_path / "dataset/alpha/1.0.jsonld").read_bytes()).hexdigest()
    assert index == {"cards": [{"path": "dataset/alpha/1.0.jsonld", "sha256": digest}]}


# Several sources


def test_one_failing_source_does_not_stop_the_others(
    outside: Path, home: Path, builtin: CatalogFolder, card: Factory, tmp_path: Path
) -> None:
    write(outside, "a.jsonld", card())
    sources: dict[str, Any] = {
        "gone": str(tmp_path / "nowhere"),
        "evil": {"location": "ext::sh -c true", "type": "git"},
        "wrong": {"location": str(outside), "type": "svn"},
        "good": str(outside),
    }
    catalog = Catalog(home, sources=sources, builtin=builtin)
    reports = {report.name: report for report in catalog.sync()}
    assert list(reports) == ["gone", "evil", "wrong", "good"]
    assert [name for name, report in reports.items() if not report.error] == ["good"]
    assert [hit.handle for hit in catalog.search("alpha")] == ["good/dataset/alpha@1.0"]
    facts = {each["name"]: each for each in catalog.catalogs()}
    assert [name for name, each in facts.items() if each.get("error")] == ["gone", "evil", "wrong"]


_SYNC = """
    import sys
    from pathlib import Path
    from fairmile.catalog.catalog import Catalog
    from fairmile.catalog.folder import CatalogFolder
    worker, home, location = sys.argv[1:]
    catalog = Catalog(Path(home), sources={"there": location}, builtin=CatalogFolder("builtin", Path("/nowhere")))
    for number in range(3):
        (report,) = catalog.sync()
        assert report.error == "", report.error
        assert len(catalog.search("net", limit=100)) == 40
        catalog.add({"@context": "x", "@type": "Dataset", "name": f"Mine {worker} {number}", "version": "1.0"})
"""


@pytest.mark.thorough
@pytest.mark.parametrize("type", ["folder", "git"])
def test_several_processes_sync_one_source_at_once(
    outside: Path, home: Path, builtin: CatalogFolder, card: Factory, together: Callable[..., None], type: str
) -> None:
    for number in range(40):
        write(outside, f"{number}.jsonld", card("model", f"Net {number}"))
    if type == "git":
        git(outside, "init", "--quiet")
        commit(outside)
    together(_SYNC, home, outside, workers=3)
    catalog = Catalog(home, sources={"there": str(outside)}, builtin=builtin)
    assert len(catalog.search("net", limit=100)) == 40
    assert len(catalog.search("mine", limit=100)) == 9
