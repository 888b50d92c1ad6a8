"""Accounts, sessions, tokens, grants and the audit log, as files of a workspace."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from argon2 import PasswordHasher

from fairmile.access.access import Access
from fairmile.access.accounts import SESSION_S, Accounts
from fairmile.access.attempts import NotLoggedIn, TooManyAttempts
from fairmile.access.rules import Viewer
from fairmile.base.errors import Conflict, NotFound, UsageError
from fairmile.workspace import Workspace

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
PASSWORD = "correct horse battery"


class Clock:
    now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    home = tmp_path_factory.mktemp("home")
    workspace = Workspace.open(environ={"FAIRMILE_HOME": str(home / "home"), "HOME": str(home)}, cwd=home)
    workspace.catalog.add_files([EXAMPLES / "lake.jsonld", EXAMPLES / "codemeta.json"])
    return workspace


@pytest.fixture
def access(workspace: Workspace, clock: Clock, tmp_path: Path) -> Access:
    access = Access(tmp_path, lambda: workspace.catalog, clock)
    access.accounts._new_hasher = lambda: PasswordHasher(time_cost=1, memory_cost=64, parallelism=1)
    return access


def test_the_database_is_for_its_owner_alone_and_holds_no_secret(access: Access) -> None:
    access.add_user("ada", PASSWORD)
    secret = access.new_token("ada").secret
    _, session = access.accounts.log_in("ada", PASSWORD, "10.0.0.1")
    file = access._database.path
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    kept = b"".join(path.read_bytes() for path in file.parent.iterdir() if path.is_file())
    for text in (PASSWORD, secret, secret.rpartition("_")[2], session):
        assert text.encode() not in kept
    assert b"argon2id" in kept
    assert not any(secret in str(entry.facts) or session in str(entry.facts) for entry in access.audit())


def test_a_password_opens_a_session_that_ends(access: Access, clock: Clock) -> None:
    access.add_user("ada", PASSWORD, rights=["read"], groups=["hydro"])
    user, session = access.accounts.log_in("ada", PASSWORD, "10.0.0.1")
    known = access.accounts.of_session(session)
    assert (user.name, known.rights, user.groups) == ("ada", {"browse", "read"}, {"hydro"})
    clock.now += SESSION_S + 1
    with pytest.raises(NotLoggedIn):
        access.accounts.of_session(session)


def test_the_secret_of_a_session_is_renewed_and_the_old_one_dies(access: Access, clock: Clock) -> None:
    access.add_user("ada", PASSWORD)
    first = access.accounts.new_session("ada")
    assert access.accounts.renewed(first) == ""
    clock.now += 1_000
    second = access.accounts.renewed(first)
    assert second and second != first
    assert access.accounts.of_session(first).user.name == "ada"  # requests under way
    clock.now += 60
    with pytest.raises(NotLoggedIn):
        access.accounts.of_session(first)
    access.accounts.end_session(second)
    with pytest.raises(NotLoggedIn):
        access.accounts.of_session(second)


def test_guessing_a_password_soon_ends(access: Access) -> None:
    access.add_user("ada", PASSWORD)
    for number in range(10):
        with pytest.raises(NotLoggedIn, match="name or password is wrong"):
            access.accounts.log_in("ada", f"guess {number}", f"10.0.0.{number}")
    with pytest.raises(TooManyAttempts):
        access.accounts.log_in("ada", PASSWORD, "10.0.1.1")


def test_an_account_that_is_not_there_answers_like_one_that_is(access: Access) -> None:
    access.add_user("ada", PASSWORD)
    errors = []
    for name in ("ada", "nobody"):
        with pytest.raises(NotLoggedIn) as error:
            access.accounts.log_in(name, "wrong", "10.0.0.1")
        errors.append(str(error.value))
    assert errors[0] == errors[1]


def test_guessing_tokens_soon_ends_for_that_address_alone(access: Access) -> None:
    access.add_user("ada", PASSWORD)
    secret = access.new_token("ada").secret
    for number in range(30):
        with pytest.raises(NotLoggedIn):
            access.accounts.of_token(f"{secret[:-4]}{number:04d}", "10.0.0.1")
    with pytest.raises(TooManyAttempts):
        access.accounts.of_token(secret, "10.0.0.1")
    assert access.accounts.of_token(secret, "10.0.0.2").user.name == "ada"


@pytest.mark.parametrize("text", ["", "fairmile_pat_", "fairmile_pat_0123456789ab_" + "x" * 43, "Ω" * 90])
def test_a_text_that_is_no_token_is_nobody(access: Access, text: str) -> None:
    with pytest.raises(NotLoggedIn):
        access.accounts.of_token(text, "10.0.0.1")


def test_a_token_has_no_more_rights_than_its_account_has_now(access: Access, clock: Clock) -> None:
    ada = access.add_user("ada", PASSWORD, rights=["start"])
    with pytest.raises(UsageError, match="ada has no right to admin"):
        access.new_token("ada", rights=["admin"])
    token = access.accounts.new_token(ada, rights=["read"], days=2)
    assert access.accounts.of_token(token.secret, "").rights == {"browse", "read"}
    with access._database.changing() as connection:
        connection.execute("UPDATE user SET rights = 'browse'")
    assert access.accounts.of_token(token.secret, "").rights == {"browse"}
    clock.now += 2 * 86_400 + 1
    with pytest.raises(NotLoggedIn):
        access.accounts.of_token(token.secret, "")


def test_tokens_are_listed_without_secret_and_revoked_by_their_owner_alone(access: Access) -> None:
    access.add_user("ada", PASSWORD)
    access.add_user("eve", PASSWORD)
    token = access.new_token("ada", "laptop")
    assert token.secret not in str(access.accounts.tokens("ada").to_dict())
    with pytest.raises(NotFound):
        access.accounts.revoke_token("eve", token.token.id)
    access.accounts.revoke_token("ada", token.token.id)
    with pytest.raises(NotLoggedIn):
        access.accounts.of_token(token.secret, "")


def test_removing_an_account_ends_what_it_had(access: Access) -> None:
    access.add_user("ada", PASSWORD)
    token, session = access.new_token("ada"), access.accounts.new_session("ada")
    access.grant("lake-temperatures", "ada")
    with pytest.raises(Conflict):
        access.add_user("ada", PASSWORD)
    assert access.remove_user("ada", dry_run=True).dry_run
    access.remove_user("ada")
    access.add_user("ada", PASSWORD)  # somebody else
    assert access.grants() == []
    for check in (lambda: access.accounts.of_token(token.secret, ""), lambda: access.accounts.of_session(session)):
        with pytest.raises(NotLoggedIn):
            check()


@pytest.mark.parametrize("name", ["", "Ada", "a/b", "@ada", "ada lovelace", "../x", "x" * 65])
def test_odd_names_are_refused(access: Access, name: str) -> None:
    with pytest.raises(UsageError):
        access.add_user(name, PASSWORD)


def test_short_passwords_are_refused(access: Access) -> None:
    with pytest.raises(UsageError, match="at least 12"):
        access.add_user("ada", "secret")


def test_a_request_is_granted_until_a_day(access: Access, clock: Clock) -> None:
    access.add_user("ada", PASSWORD)
    access.set("lake-temperatures", files="restricted", terms="Cite us.")
    policy = access.policy("lake-temperatures").policy
    asked = access.assets.request(policy.asset, "ada", "my thesis")
    assert access.assets.request(policy.asset, "ada").id == asked.id
    assert access.assets.decision(Viewer("ada"), policy).obstacle == "ask"
    assert access.approve(asked.id, until="2027-06-30").status == "granted"
    assert access.requests() == []
    assert access.assets.decision(Viewer("ada"), policy).obstacle == "accept"
    with pytest.raises(UsageError, match="not the terms"):
        access.assets.accept(policy, "ada", "0" * 64)
    access.assets.accept(policy, "ada", policy.terms_digest)
    assert access.assets.decision(Viewer("ada"), policy).is_allowed
    clock.now += 3 * 365 * 86_400
    assert access.assets.decision(Viewer("ada"), policy).obstacle == "ask"


def test_the_audit_log_tells_a_changed_line_a_removed_one_and_one_put_in(access: Access) -> None:
    for name in ("ada", "bob", "eve"):
        access.add_user(name, PASSWORD)
    assert access.verify_audit().to_dict() | {"head": ""} == {"entries": 3, "head": "", "damaged_at": None}
    file = access._database.path
    for change, damaged_at in (
        ("UPDATE audit SET line = replace(line, 'bob', 'bot') WHERE number = 2", 2),
        ("DELETE FROM audit WHERE number = 1", 1),
    ):
        with sqlite3.connect(file) as connection:
            connection.execute(change)
        assert access.verify_audit().damaged_at == damaged_at


def test_a_hidden_asset_leaks_through_nothing_that_the_catalog_answers(workspace: Workspace, access: Access) -> None:
    card = workspace.catalog.get("lake-temperatures")
    access.set("lake-temperatures", metadata="restricted", owner="ada")
    hidden = access.assets.hidden(Viewer("bob"))
    assert hidden == {"local/dataset/lake-temperatures"}
    seen = workspace.seen_without(hidden).catalog
    without = seen.search("", limit=100)
    assert len(without) == len(workspace.catalog.search("", limit=100)) - 1
    for text in (
        "temperatures",
        "lake-temperatures",
        '"lake temperatures"',
        "temperatur*",
        "/temperatures/",
        "kind:dataset temp*",
    ):
        hits = seen.search(text)
        assert "lake-temperatures" not in str(hits.to_dict()), text
    near = seen.search("temperatuers")  # one typing error away
    assert not any("temperatur" in each for each in near.did_you_mean)
    for facet in ("kind", "domain", "creator", "catalog", "format"):
        everything, visible = workspace.catalog.facets(facet), seen.facets(facet)
        assert sum(visible.values()) <= sum(everything.values()) - (facet in ("kind", "catalog")), facet
    for name in ("lake-temperatures", "dataset/lake-temperatures", card.iri, str(card.handle), "lake-temperaturs"):
        with pytest.raises(NotFound) as error:
            seen.get(name)
        asked = name.rpartition("/")[2].partition("@")[0]
        assert "lake-temperatures" not in f"{error.value} {error.value.hint}".replace(name, "").replace(asked, "")
    assert access.assets.hidden(Viewer("ada")) == access.assets.hidden(Viewer("x", is_admin=True)) == frozenset()
    # An index follows changes by the stamps of what changed.
    path = f"{card.handle.kind}/{card.handle.name}/{card.handle.version}.jsonld"
    everything, visible = (
        next(folder for folder in catalog.folders() if folder.name == "local") for catalog in (workspace.catalog, seen)
    )
    assert [each for each, _ in everything.stamps([path])] == [path]
    assert list(visible.stamps([path])) == []


def test_accounts_without_a_database_are_none(tmp_path: Path, workspace: Workspace) -> None:
    access = Access(tmp_path / "empty", lambda: workspace.catalog)
    assert access.users() == [] and not (tmp_path / "empty").exists()
    assert isinstance(access.accounts, Accounts)
