"""A server with accounts, over TLS: who gets in, what they see, what another Fairmile fetches from it."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx
import pytest
from argon2 import PasswordHasher
from live_events import stream

from fairmile.access import logins
from fairmile.access.view import VisibleFolder
from fairmile.base.errors import FairmileError, UsageError
from fairmile.catalog.folder import CatalogFolder
from fairmile.catalog.index import Index
from fairmile.cli.main import run
from fairmile.jobs.spec import JobSpec
from fairmile.runs.record.layout import OUTPUT
from fairmile.web.live import Live
from fairmile.web.serve import ServeSettings, Serving, serve
from fairmile.web.table import MODULES
from fairmile.workspace import Workspace

PASSWORD = "correct horse battery"
SECRET = "quetzalcoatlus"  # a word that stands in one hidden card alone


class Group:
    """A server, its workspace, the authority of its certificate, and a client for each of its users."""

    def __init__(self, workspace: Workspace, serving: Serving, authority: Path) -> None:
        self.workspace = workspace
        self.address = serving.address.rstrip("/")
        self.authority = authority
        self.clients: list[httpx.Client] = []
        self.visitor = self.client()
        self.ada, self.eve = (self.client(self.token(name)) for name in ("ada", "eve"))
        self.root = self.client(self.token("root", rights=["admin"]))

    def token(self, user: str, **options: Any) -> str:
        return self.workspace.access.new_token(user, **options).secret

    def client(self, token: str = "") -> httpx.Client:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        trust = ssl.create_default_context(cafile=self.authority)
        client = httpx.Client(base_url=self.address, verify=trust, headers=headers, trust_env=False, timeout=300)
        self.clients.append(client)
        return client

    def file(self, name: str) -> str:
        card = self.workspace.catalog.get(name)
        digest = card.files[0].sha256
        return f"/api/catalog/{card.kind}/{card.name}/{card.handle.version}/files/{digest}/{card.files[0].name}"


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    place = tmp_path_factory.mktemp("group")
    environ = {"FAIRMILE_HOME": str(place / "home"), "HOME": str(place), "PATH": "/usr/bin:/bin"}
    (place / ".config" / "fairmile").mkdir(parents=True)
    (place / ".config" / "fairmile" / "config.yaml").write_text("systems: {jureca: {account: of-the-owner}}\n")
    workspace = Workspace.open(environ=environ, cwd=place)
    for name in ("open-lake", "closed-lake", SECRET):
        (place / f"{name}.bin").write_bytes(name.encode() * 40_000)
        workspace.catalog.describe(place / f"{name}.bin", kind="dataset", set={"name": name}, add=True)
        workspace.assets.fetch(name)
    workspace.access.accounts._new_hasher = lambda: PasswordHasher(time_cost=1, memory_cost=64, parallelism=1)
    for name, rights in (("ada", []), ("eve", []), ("root", ["admin"])):
        workspace.access.add_user(name, PASSWORD, rights=rights)
    workspace.access.set("closed-lake", files="restricted")
    workspace.access.set("open-lake", files="public")
    workspace.access.set(SECRET, metadata="restricted", files="restricted", owner="ada")
    cert, key = place / "cert.pem", place / "key.pem"
    options = "-x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(["openssl", "req", *options.split(), *names], check=True, capture_output=True)
    settings = ServeSettings(port=0, cert=cert, key=key, accounts=True, public=True)
    with pytest.MonkeyPatch.context() as patch, serve(workspace, settings, wait=False) as serving:
        patch.setattr(logins, "INTERVAL_S", 0.05)
        group = Group(workspace, serving, cert)
        yield group
        for client in group.clients:
            client.close()


def test_without_an_account_one_sees_what_is_public_and_nothing_else(group: Group) -> None:
    assert group.visitor.get(group.file("open-lake")).content == b"open-lake" * 40_000
    refused = group.visitor.get(group.file("closed-lake"))
    assert (refused.status_code, refused.headers["content-type"]) == (401, "application/json")
    assert group.visitor.get("/account").status_code in (200, 303)
    assert group.visitor.get("/access", follow_redirects=False).headers["location"] == "/login?next=/access"


@pytest.mark.parametrize(
    "path", ["/api/access/audit", "/api/live?topics=runs", "/access", "/api/hubs?q=lake", "/?q=lake&hubs=true"]
)
def test_an_account_without_the_right_is_refused(group: Group, path: str) -> None:
    assert group.eve.get(path).status_code == 403
    assert group.visitor.get(path, follow_redirects=False).status_code in (401, 303)


def test_a_reader_predicts_from_a_description_and_has_no_code_executed(group: Group) -> None:
    reader = group.client(group.token("root", rights=["read"]))
    described = {"kind": "rnn", "layers": 2, "hidden": 64, "seq": 10, "inputs": 8, "batch": 4}
    assert reader.post("/api/predict/memory", json={"description": described}).json()["fits"] is True
    assert reader.post("/api/predict/memory", json={"target": "mnist"}).status_code == 403
    page = reader.get("/predict", params={"target": "mnist"}, headers={"fairmile-part": "result"})
    assert "right to start" in page.text


@pytest.mark.parametrize(
    "path",
    [
        "/api/search?q={}",
        "/api/search?q={:.8}*",
        "/api/search?q=/{:.8}/",
        "/api/search?q=quetzalcoatlos",
        "/api/search?limit=200",
        "/api/facets/kind",
        "/api/facets/catalog?q={}",
        "/?q={}",
        "/index.json",
        "/assets/{}",
        "/api/catalog/dataset/{}/1.0.jsonld",
        "/openapi.json",
    ],
)
def test_a_hidden_asset_leaks_through_no_route(group: Group, path: str) -> None:
    absent = "brachiosaurus"
    for client in (group.visitor, group.eve):
        answer, other = client.get(path.format(SECRET)), client.get(path.format(absent))
        assert answer.status_code == other.status_code
        assert answer.text.replace(SECRET, absent) == other.text.replace(SECRET, absent)
        assert "{" in path or SECRET not in answer.text


@pytest.mark.parametrize("path", ["/api/search", "/"])
def test_an_answer_kept_for_one_is_not_sent_to_another(group: Group, path: str) -> None:
    def sees(client: httpx.Client) -> bool:
        return f"{SECRET}@" in client.get(path, params={"q": f"{SECRET} kind:dataset"}).text.replace("%40", "@")

    people = (group.root, group.eve, group.ada, group.visitor)
    assert [[sees(each) for each in people] for _ in range(2)] == [[True, False, True, False]] * 2
    group.workspace.access.grant(SECRET, "eve")
    assert [sees(each) for each in people] == [True, True, True, False]
    group.workspace.access.revoke(SECRET, "eve")
    assert [sees(each) for each in people] == [True, False, True, False]


@pytest.mark.parametrize("path", ["/assets/{}", "/api/catalog/dataset/{}/1.0.jsonld", "/api/access/assets/{}"])
def test_a_hidden_name_and_one_that_is_not_there_take_the_same_path(
    group: Group, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many cards are read and as many queries are made for one as for the other."""
    group.eve.get(path.format("warm-up"))
    steps: list[str] = []
    for owner, name in ((CatalogFolder, "read"), (VisibleFolder, "read"), (Index, "named"), (Index, "aliased")):
        _count(monkeypatch, owner, name, steps)
    taken = {}
    for word in (SECRET, "brachiosaurus"):
        steps.clear()
        assert group.eve.get(path.format(word)).status_code == 404
        taken[word] = list(steps)
    assert taken[SECRET] == taken["brachiosaurus"] and taken[SECRET]


def _count(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, steps: list[str]) -> None:
    call = getattr(owner, name)

    def counted(*args: Any, **options: Any) -> Any:
        steps.append(name)
        return call(*args, **options)

    monkeypatch.setattr(owner, name, counted)


def test_the_runs_of_a_hidden_asset_are_hidden_too_and_no_event_tells_of_them(group: Group) -> None:
    """A reader whose grant has ended sees them no more, also in a stream that is open."""
    runs = group.workspace.runs
    shown = runs.run(["true"], name="shown", watch_s=0)
    hidden = runs.run(["true"], name="veiled", watch_s=0, inputs={"data": {"asset": f"local/dataset/{SECRET}"}})
    group.workspace.access.add_user("rob", PASSWORD, rights=["read"])
    rob = group.client(group.token("rob", rights=["read"]))

    def listed(client: httpx.Client) -> set[str]:
        return {row["id"] for row in client.get("/api/runs").json()["runs"]} & {shown.id, hidden.id}

    assert (listed(rob), listed(group.root)) == ({shown.id}, {shown.id, hidden.id})
    for path in ("/api/runs/{}", "/api/runs/{}/output", "/runs/{}", "/api/compare?run={}"):
        unknown = "veiled-nothere"
        answers = [rob.get(path.format(name)) for name in (hidden.id, unknown)]
        assert [each.status_code for each in answers] == [404, 404]
        assert answers[0].text.replace(hidden.id, unknown) == answers[1].text
    assert rob.get("/api/runs/veiled").status_code == 404  # the start of an id
    with stream(rob, f"runs run:{hidden.id} run:{shown.id}") as events:
        assert "no run named" in next(events).data["error"]["message"]
        assert next(events).name == f"run:{shown.id}"
        runs.run(["true"], name="veiled", watch_s=0, inputs={"data": {"asset": f"local/dataset/{SECRET}"}})
        (hidden.folder / OUTPUT).write_text(SECRET)
        runs.run(["true"], name="shown-later", watch_s=0)
        event = next(events)  # the first thing that arrives is of what they may see
        assert (event.name, sum(event.data["states"].values())) == ("runs", 2)
        group.workspace.access.grant(SECRET, "rob")
        assert next(events).name in ("runs", f"run:{hidden.id}")
    assert listed(rob) == {shown.id, hidden.id}
    group.workspace.access.revoke(SECRET, "rob")
    assert listed(rob) == {shown.id}


def test_the_store_and_the_sweeps_of_a_hidden_asset_are_left_out(group: Group) -> None:
    workspace = group.workspace
    fields = {"inputs": {"data": {"asset": f"local/dataset/{SECRET}"}}, "name": "of-it"}
    definition, source, rest = workspace.sweeps.define(["echo", "{x}"], params={"x": [1]}, **fields)
    sweep = workspace.sweeps.create(definition, source, **rest)
    workspace.access.add_user("sue", PASSWORD, rights=["read"])
    sue = group.client(group.token("sue", rights=["read"]))
    for path, word in (("/api/store?limit=200", SECRET), ("/store", SECRET), ("/api/sweeps", "of-it")):
        assert (word in group.root.get(path).text, word in sue.get(path).text) == (True, False)
    assert (group.root.get(f"/api/sweeps/{sweep.id}").status_code, sue.get("/api/sweeps/of-it").status_code) == (
        200,
        404,
    )


def test_no_route_gives_a_reader_the_name_of_a_hidden_asset(group: Group, tmp_path: Path) -> None:
    """Every page and every GET of the API is asked, with the id of everything that names the asset."""
    workspace = group.workspace
    step = f"fill: {{shell: 'echo {SECRET}', inputs: {{data: dataset/{SECRET}}}}}"
    (tmp_path / "watering.yaml").write_text(f"name: watering\nsteps:\n  {step}\n")
    flow = workspace.flows.run(tmp_path / "watering.yaml")
    job = workspace.jobs.submit(JobSpec(argv=("echo", f"of-{SECRET}"), name="loader"))
    workspace.jobs.wait([job.id])
    workspace.store.pin(f"local/dataset/{SECRET}", "kept-for-good")
    data = {"data": {"asset": f"local/dataset/{SECRET}"}}
    run_id = workspace.runs.run(["echo", SECRET], name="diver", watch_s=0, inputs=data).id
    definition, source, rest = workspace.sweeps.define(["echo", "{x}"], params={"x": [1]}, inputs=data, name="depths")
    sweep = workspace.sweeps.create(definition, source, **rest).id
    workspace.access.add_user("ren", PASSWORD, rights=["read"])
    reader = group.client(group.token("ren", rights=["read"]))
    ids = {"flow": flow.id, "job": job.id, "run": run_id, "trace": run_id, "sweep": sweep, "stud": sweep}
    asked = [_address(path, ids) for path in _get_paths()]
    leaking, told = set(), set()
    for address in sorted(asked):
        leaking |= {address} if SECRET in reader.get(address).text else set()
        told |= {address} if SECRET in group.root.get(address).text else set()
    assert not leaking
    assert told >= {
        f"/api/flows/{flow.id}/log?step=fill",
        f"/api/jobs/{job.id}/log",
        "/api/store/pins",
        "/api/store",
        "/store",
        f"/runs/{run_id}",
        f"/api/runs/{run_id}",
        "/index.json",
    }
    names = (*ids.values(), "watering", "loader", "diver", "depths", "fill", "kept-for-good")
    lists = ("/api/flows", "/flows", "/api/jobs", "/api/status", "/workflows", "/api/store?limit=200", "/store")
    listed = [reader.get(path).text for path in lists]
    assert not [name for name in names for text in listed if name in text]
    unknown = reader.get("/api/jobs/nothing-here")
    assert reader.get(f"/api/jobs/{job.id}").text.replace(job.id, "nothing-here") == unknown.text
    assert group.root.get("/api/jobs/nothing-here").text == unknown.text  # nor that something is hidden from them


def test_a_card_that_one_may_see_does_not_tell_of_a_hidden_one_that_it_links_to(group: Group) -> None:
    catalog, name = group.workspace.catalog, "delta-net"
    hidden = catalog.get(SECRET)
    links = {
        "trainedOn": [{"@id": f"dataset/{SECRET}"}, {"@id": "dataset/open-lake"}],
        "isBasedOn": hidden.iri,
        "hasPart": {"@type": "Dataset", "name": "a part", "wasDerivedFrom": str(hidden.handle)},
    }
    own = {"@context": hidden["@context"], "@id": "urn:uuid:2b1b1c9e-0d5c-4c0e-9d0a-3a9d6a1f0d11", "@type": "MLModel"}
    catalog.add({**own, "name": name, "version": "1.0", "description": "of deltas", **links})
    group.workspace.access.add_user("len", PASSWORD, rights=["read"])
    reader = group.client(group.token("len", rights=["read"]))
    for path in ("/assets/{}", "/api/assets/{}", "/api/search?q={}", "/index.json", "/api/fair/{}", "/api/versions/{}"):
        text = reader.get(path.format(name)).text
        assert [word in text for word in (name, SECRET, hidden.iri)] == [True, False, False]
    assert reader.get(f"/api/search?q={SECRET}").json()["results"] == []
    assert "open-lake" in reader.get(f"/assets/{name}").text
    assert SECRET in group.root.get(f"/assets/{name}").text
    catalog.remove(name)


def test_who_leaves_a_group_gets_nothing_more_with_what_they_kept(group: Group) -> None:
    access, file = group.workspace.access, group.file(SECRET)
    access.set(SECRET, groups=["divers"])
    access.add_user("gil", PASSWORD, groups=["divers"])
    gil = group.client(group.token("gil"))
    paths = (f"/assets/{SECRET}", f"/api/search?q={SECRET}+kind:dataset", "/index.json", file)
    kept = [gil.get(path) for path in paths]
    link = gil.post("/api/links", json={"path": file}).json()["link"]
    job = group.client(gil.post("/api/account/job-tokens", json={"assets": [SECRET]}).json()["secret"])
    assert [each.status_code for each in (*kept, group.visitor.get(link), job.get(file))] == [200] * 6
    access.set_user("gil", groups=[])
    now = [gil.get(path, headers={"if-none-match": old.headers["etag"]}) for path, old in zip(paths, kept, strict=True)]
    assert [each.status_code for each in now] == [404, 200, 200, 404]
    assert not [each for each in now[1:3] if f"{SECRET}@" in each.text or f"dataset/{SECRET}" in each.text]
    assert (group.visitor.get(link).status_code, job.get(file).status_code) == (404, 404)
    access.set(SECRET, groups=[])


def test_what_pools_hold_of_all_assets_is_for_administrators(group: Group) -> None:
    reader = group.client(group.token("root", rights=["read"]))
    assert (reader.get("/api/store/usage").status_code, group.root.get("/api/store/usage").status_code) == (403, 200)
    for path in ("/api/systems/jureca/usage", "/systems/jureca/usage"):  # of everybody's jobs
        assert reader.get(path).status_code == 403
    assert "what all users" not in reader.get("/systems/jureca").text
    assert ">Contents<" in group.root.get("/store").text
    assert ">Contents<" not in reader.get("/store").text


def _get_paths() -> list[str]:
    """Return the path of every route with GET but those that ask other servers."""
    routers = [import_module(name).routes for name in MODULES]
    routes = [each for router in routers for each in router.routes if "GET" in each.methods]
    return [each.path for each in routes if "hubs" not in each.path and "oidc" not in each.path]


def _address(path: str, ids: Mapping[str, str]) -> str:
    """Return an address of a route, with the id of what it is about."""
    id = next((id for noun, id in ids.items() if f"/{noun}" in path or f"work{noun}" in path), "fill")
    filled = re.sub(r"{[^}]*}", "fill", re.sub(r"{[^}]*}", id, path, count=1))
    queries = {
        "/log": "?step=fill",
        "/compare": f"?run={ids['run']}",
        "/search": "?limit=200",
        "/modules": "?software=x",
    }
    return filled + next((query for end, query in queries.items() if path.endswith(end) and "jobs" not in path), "")


def test_a_stream_ends_so_that_who_lost_a_right_opens_no_other(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    given = group.workspace.access.new_token("root", rights=["read"])
    reader = group.client(given.secret)
    monkeypatch.setattr(Live, "life_s", 0.0)
    assert reader.get("/api/live?topics=runs").text == "retry: 2000\n\n"
    group.workspace.access.revoke_token("root", given.token.id)
    assert reader.get("/api/live?topics=runs").status_code == 401


def test_the_index_is_made_once_for_each_state_of_the_catalog(
    group: Group, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = group.eve.get("/index.json")
    steps: list[str] = []
    _count(monkeypatch, CatalogFolder, "read", steps)
    same = group.eve.get("/index.json", headers={"if-none-match": first.headers["etag"]})
    assert (same.status_code, steps) == (304, [])
    (tmp_path / "new.bin").write_bytes(b"new")
    group.workspace.catalog.describe(tmp_path / "new.bin", kind="dataset", set={"name": "new-lake"}, add=True)
    second = group.eve.get("/index.json", headers={"if-none-match": first.headers["etag"]})
    assert second.status_code == 200 and "new-lake" in second.text
    group.workspace.assets.fetch("new-lake")  # now its files are served here, and its card says so
    third = group.eve.get("/index.json")
    assert third.text != second.text
    group.workspace.catalog.remove("new-lake")


def test_a_removed_asset_answers_410_with_what_its_card_still_says(group: Group, tmp_path: Path) -> None:
    for name in ("gone-lake", "gone-secret"):
        (tmp_path / f"{name}.bin").write_bytes(name.encode())
        group.workspace.catalog.describe(tmp_path / f"{name}.bin", kind="dataset", set={"name": name}, add=True)
    group.workspace.access.set("gone-secret", metadata="restricted")
    paths = {name: group.file(name).partition("/files/")[0] + ".jsonld" for name in ("gone-lake", "gone-secret")}
    for name in paths:
        group.workspace.catalog.remove(name, reason="it was wrong")
    gone = group.eve.get(paths["gone-lake"])
    assert gone.status_code == 410
    assert "was removed on" in gone.json()["error"]["message"] and "it was wrong" in gone.json()["error"]["message"]
    assert gone.json()["card"]["name"] == "gone-lake"
    page = group.eve.get("/assets/gone-lake")
    assert page.status_code == 410 and "it was wrong" in page.text
    assert group.root.get("/api/assets/gone-lake").status_code == 410
    assert group.eve.get(paths["gone-secret"]).status_code == 404
    assert "gone-lake" not in group.eve.get("/index.json").text


def test_the_script_of_a_job_has_no_account_of_the_owner(group: Group) -> None:
    job = {"argv": ["python", "train.py"]}
    own = group.workspace.systems["jureca"].script(JobSpec(argv=("python", "train.py"))).text
    others = group.root.post("/api/systems/jureca/script", json=job).json()
    page = group.root.get("/scripts?system=jureca").text
    assert "of-the-owner" in own
    assert "of-the-owner" not in str(others) + page + group.root.get("/scripts/job.sh?system=jureca").text


def test_only_who_may_start_work_starts_it(group: Group) -> None:
    reader = group.client(group.token("root", rights=["read"]))
    for path, body in (("/api/runs", {"what": "mnist"}), ("/api/sweeps", {"what": "mnist", "params": {"lr": [1]}})):
        assert group.eve.post(path, json=body).status_code == 403
        assert reader.post(path, json=body).status_code == 403
        assert group.visitor.post(path, json=body).status_code == 401


def test_the_menu_has_an_account_where_there_are_accounts(group: Group, client: httpx.Client) -> None:
    assert 'href="/account"' in group.eve.get("/").text
    assert 'href="/account"' not in client.get("/").text


@pytest.mark.parametrize("path", ["/api/search?q={}", "/?q={}", "/index.json"])
def test_who_has_access_finds_it(group: Group, path: str) -> None:
    assert f"dataset/{SECRET}" in group.ada.get(path.format(SECRET)).text


def test_the_page_of_an_asset_says_what_one_may_have_and_no_path_of_the_server(group: Group) -> None:
    public, closed = (group.visitor.get(f"/assets/{name}").text for name in ("open-lake", "closed-lake"))
    assert "You may fetch the files." in public
    assert "Only for people with an account." in closed
    assert 'action="/access/ask"' in group.eve.get("/assets/closed-lake").text
    assert str(group.workspace.home.parent) not in public + closed


def test_counts_are_those_of_what_one_may_see(group: Group) -> None:
    def count(client: httpx.Client) -> int:
        return int(client.get("/api/facets/catalog").json()["values"]["local"])

    assert count(group.visitor) == count(group.eve) == count(group.ada) - 1 == count(group.root) - 1


def test_access_is_requested_granted_used_and_revoked(group: Group) -> None:
    path = group.file("closed-lake")
    assert group.eve.get(path).json()["error"]["message"].endswith("access must be granted first")
    asked = group.eve.post("/api/access/requests", json={"asset": "closed-lake", "reason": "thesis"})
    assert (asked.status_code, asked.json()["status"]) == (201, "pending")
    number = asked.json()["id"]
    for client in (group.eve, group.ada):  # nobody grants access to themselves
        assert client.post(f"/api/access/requests/{number}", json={"grant": True}).status_code == 403
    assert group.ada.get("/api/access/requests").json() == {"requests": []}
    assert group.root.post(f"/api/access/requests/{number}", json={"grant": True}).json()["status"] == "granted"
    part = group.eve.get(path, headers={"range": "bytes=10-19"})
    assert (part.status_code, len(part.content)) == (206, 10)
    assert group.ada.get(path).status_code == 403
    group.workspace.access.revoke("closed-lake", "eve")
    assert group.eve.get(path).status_code == 403
    assert group.workspace.access.verify_audit().ok


def test_a_request_for_a_hidden_asset_finds_none(group: Group) -> None:
    for asset in (SECRET, "there-is-none"):
        answer = group.eve.post("/api/access/requests", json={"asset": asset})
        assert answer.status_code == 404


def test_a_signed_link_works_for_one_file_and_not_changed(group: Group) -> None:
    path = group.file("open-lake")
    group.workspace.access.set("open-lake", files="registered")
    try:
        assert group.visitor.get(path).status_code == 401
        link = group.eve.post("/api/links", json={"path": path}).json()["link"]
        assert group.visitor.get(link).status_code == 200
        for changed in (link[:-1] + "x", link.replace("user=eve", "user=root"), link.replace("open-lake/", "x/", 1)):
            assert group.visitor.get(changed).status_code == 403
        assert group.visitor.get(link.replace("expires=1", "expires=2")).status_code == 403
    finally:
        group.workspace.access.set("open-lake", files="public")


def test_a_job_token_reads_its_assets_and_does_nothing_else(group: Group) -> None:
    made = group.ada.post("/api/account/job-tokens", json={"assets": ["open-lake"], "hours": 2})
    job = group.client(made.json()["secret"])
    assert job.get(group.file("open-lake")).status_code == 200
    assert job.get(group.file(SECRET)).status_code == 403
    assert job.post("/api/account/job-tokens", json={"assets": ["open-lake"]}).status_code == 403
    assert job.post("/api/account/tokens", json={}).status_code == 403
    card, other = (group.file(name).partition("/files/")[0] + ".jsonld" for name in ("open-lake", "closed-lake"))
    assert [job.get(path).status_code for path in (card, other, "/api/search", "/index.json", "/")] == [200, *[403] * 4]
    kept = group.workspace.access.new_token("ada").token.id
    assert job.delete(f"/api/account/tokens/{kept}").status_code == 403
    assert job.post("/api/access/requests", json={"asset": "closed-lake"}).status_code == 403


def test_a_session_has_a_cookie_that_scripts_and_other_sites_do_not_get(group: Group) -> None:
    browser = group.client()
    wrong = browser.post("/login", data={"name": "ada", "password": "wrong"})
    assert "name or password is wrong" in wrong.text and "set-cookie" not in wrong.headers
    right = browser.post("/login", data={"name": "ada", "password": PASSWORD, "next": "//evil.example"})
    assert (right.status_code, right.headers["location"]) == (303, "/")
    for word in ("__Host-fairmile=", "Secure", "HttpOnly", "SameSite=Strict"):
        assert word in right.headers["set-cookie"]
    assert "logged in as <strong>ada" in browser.get("/account").text
    other_site = {"origin": "https://evil.example", "sec-fetch-site": "cross-site"}
    assert browser.post("/account/tokens", data={"label": "x"}, headers=other_site).status_code == 403
    page = browser.post("/account/tokens", data={"label": "laptop", "right": "browse", "days": "7"})
    assert "fairmile_pat_" in page.text and "fairmile_pat_" not in browser.get("/account").text
    assert browser.post("/account/tokens", data={"right": "admin"}).status_code == 400
    browser.post("/logout")
    assert "logged in as" not in browser.get("/account").text


def test_a_terminal_logs_in_with_a_code_and_gets_its_token_once(group: Group) -> None:
    terminal, browser = group.client(), group.client()
    begun = terminal.post("/api/login/device").json()
    code = {"device_code": begun["device_code"]}
    assert terminal.post("/api/login/token", json=code).json()["status"] == "pending"
    browser.post("/login", data={"name": "eve", "password": PASSWORD})
    assert "no terminal shows this code" in browser.post("/device", data={"code": "BBBB-BBBB"}).text
    assert "is logged in" in browser.post("/device", data={"code": begun["user_code"].lower()}).text
    secret = terminal.post("/api/login/token", json=code).json()["secret"]
    assert group.client(secret).get("/api/account/tokens").status_code == 200
    assert terminal.post("/api/login/token", json=code).status_code == 401


def test_another_fairmile_searches_and_fetches_with_digests(group: Group, tmp_path: Path) -> None:
    environ = {"FAIRMILE_HOME": str(tmp_path / "home"), "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    mine = Workspace.open(environ={**environ, "SSL_CERT_FILE": str(group.authority)}, cwd=tmp_path)
    credentials = mine.context.credentials
    credentials.keep_bearer(group.address, group.token("ada"))
    assert credentials.tokens_file.stat().st_mode & 0o777 == 0o600
    mine.catalog.add_source("group", group.address)
    assert [hit.row.catalog for hit in mine.catalog.search(SECRET)] == ["group"]
    mine.assets.fetch(f"group/dataset/{SECRET}", to=tmp_path / "out")
    assert (tmp_path / "out" / f"{SECRET}.bin").read_bytes() == SECRET.encode() * 40_000
    with pytest.raises(FairmileError):
        mine.assets.fetch("group/dataset/closed-lake")
    assert credentials.bearer(group.address.replace("https", "http")) is None


def _elsewhere(group: Group, place: Path) -> dict[str, str]:
    """Return the environment of a user on another machine who trusts the server's certificate."""
    environ = {"FAIRMILE_HOME": str(place / "home"), "HOME": str(place), "PATH": "/usr/bin:/bin"}
    return {**environ, "SSL_CERT_FILE": str(group.authority)}


def _logged_in(group: Group, user: str, place: Path) -> Workspace:
    """Return the workspace of a user who has logged in with the code of a terminal."""
    mine = Workspace.open(environ=_elsewhere(group, place), cwd=place)
    browser = group.client()
    browser.post("/login", data={"name": user, "password": PASSWORD})
    login = mine.access.login(
        group.address, on_code=lambda code: browser.post("/device", data={"code": code.user_code})
    )
    assert (login.server, login.user) == (group.address, user)
    return mine


def test_login_keeps_a_token_for_the_user_alone_and_logout_revokes_it(group: Group, tmp_path: Path) -> None:
    mine = _logged_in(group, "ada", tmp_path)
    credentials = mine.context.credentials
    token = credentials.bearer(group.address)
    assert token is not None and credentials.tokens_file.stat().st_mode & 0o777 == 0o600
    assert [each.server for each in mine.access.logins()] == [group.address]
    assert mine.access.logout(group.address).revoked
    assert mine.access.logins() == [] and credentials.bearer(group.address) is None
    assert group.client(token).get("/api/account").status_code == 401


def test_the_command_login_waits_for_the_browser(group: Group, tmp_path: Path) -> None:
    browser = group.client()
    browser.post("/login", data={"name": "eve", "password": PASSWORD})
    argv = [sys.executable, "-m", "fairmile", "login", group.address]
    with subprocess.Popen(argv, env=_elsewhere(group, tmp_path), stdout=-1, stderr=-1, text=True) as process:
        assert process.stderr is not None and process.stdout is not None
        shown = process.stderr.readline().split()
        assert shown[1] == f"{group.address}/device"
        assert "is logged in" in browser.post("/device", data={"code": shown[-1]}).text
        assert process.stdout.read() == f"logged in to {group.address} as eve\n"
    assert process.returncode == 0


def test_from_elsewhere_access_is_requested_terms_are_accepted_and_files_fetched(
    group: Group, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mine, name = _logged_in(group, "eve", tmp_path), "group/dataset/closed-lake"
    for variable, value in _elsewhere(group, tmp_path).items():
        monkeypatch.setenv(variable, value)
    mine.catalog.add_source("group", group.address)
    assert run(["fetch", name]) == 3
    assert "`fairmile access request NAME` asks for it" in capsys.readouterr().err
    group.workspace.access.set("closed-lake", terms="Cite us.")
    try:
        assert run(["access", "request", name, "--reason", "thesis"]) == 0
        number = int(capsys.readouterr().out.split()[1].rstrip(":"))
        group.workspace.access.approve(number)
        assert run(["fetch", name]) == 3
        assert "its terms must be accepted first" in capsys.readouterr().err
        assert run(["access", "show", name]) == 0
        assert "Cite us." in capsys.readouterr().out
        assert run(["access", "accept", name, "--yes"]) == 0
        assert "may have the files" in capsys.readouterr().out
        assert run(["fetch", name, "--to", str(tmp_path / "out")]) == 0
        assert (tmp_path / "out" / "closed-lake.bin").read_bytes() == b"closed-lake" * 40_000
    finally:
        group.workspace.access.revoke("closed-lake", "eve")
        group.workspace.access.set("closed-lake", terms="")


class Cut:
    """A way to a server that is cut once so many bytes have come from it, and may be mended."""

    def __init__(self, port: int, after: int) -> None:
        self.left, self.passed, self._port = after, 0, port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                if self.left <= 0:
                    near.close()
                    continue
                far = socket.create_connection(("127.0.0.1", self._port))
                for source, target, counts in ((near, far, False), (far, near, True)):
                    threading.Thread(target=self._pass, args=(source, target, counts), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, counts: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(16_384):
                if counts:
                    self.left -= len(data)
                    self.passed += len(data)
                if self.left <= 0:
                    break
                target.sendall(data)
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def close(self) -> None:
        self._listener.close()


@pytest.mark.thorough
def test_a_fetch_that_was_cut_sends_only_the_rest_the_next_time(group: Group, tmp_path: Path) -> None:
    content, name = os.urandom(12_000_000), "long-lake"  # smaller files than 8 MiB come anew
    (tmp_path / f"{name}.bin").write_bytes(content)
    group.workspace.catalog.describe(tmp_path / f"{name}.bin", kind="dataset", set={"name": name}, add=True)
    group.workspace.assets.fetch(name)
    group.workspace.access.set(name, files="public")
    way = Cut(int(group.address.rpartition(":")[2]), 10**9)
    try:
        settings = {"transfer.retries": "1", "transfer.connections": "1"}
        mine = Workspace.open(environ=_elsewhere(group, tmp_path), cwd=tmp_path, overrides=settings)
        mine.catalog.add_source("group", f"https://127.0.0.1:{way.port}")
        way.left = 6_000_000
        with pytest.raises(FairmileError):
            mine.assets.fetch(f"group/dataset/{name}")
        way.left, way.passed = 10**9, 0
        mine.assets.fetch(f"group/dataset/{name}", to=tmp_path / "out")
    finally:
        way.close()
    assert (tmp_path / "out" / f"{name}.bin").read_bytes() == content
    assert 5_000_000 < way.passed < 9_000_000


def test_guessing_tokens_ends_with_429(group: Group) -> None:
    guesser = group.client("fairmile_pat_0123456789ab_" + "x" * 43)
    attempts = group.workspace.access.accounts.by_address
    attempts.succeeded("127.0.0.1")
    try:
        statuses = [guesser.get("/api/search").status_code for _ in range(31)]
        assert statuses == [401] * 30 + [429]
    finally:
        attempts.succeeded("127.0.0.1")


def test_accounts_need_encryption_and_somebody_who_has_one(tmp_path: Path) -> None:
    environ = {"FAIRMILE_HOME": str(tmp_path / "home"), "HOME": str(tmp_path)}
    workspace = Workspace.open(environ=environ, cwd=tmp_path)
    for settings, reason in (
        (ServeSettings(host="0.0.0.0"), "must be encrypted"),
        (ServeSettings(host="0.0.0.0", behind_proxy="10.0.0.1"), "has no accounts"),
        (ServeSettings(accounts=True), "must be encrypted"),
    ):
        with pytest.raises(UsageError, match=reason):
            serve(workspace, settings, wait=False)
