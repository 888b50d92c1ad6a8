"""Who may see an asset and have its files."""

from __future__ import annotations

import pytest

from fairmile.access.rules import Grant, Policy, Viewer, end_of_day, hidden_from, may_fetch, may_see, rights_of
from fairmile.base.errors import UsageError

VISITOR, ADA, ROOT = Viewer(), Viewer("ada"), Viewer("root", is_admin=True)
LAKE = "local/dataset/lake"
NOW = end_of_day("2026-11-18")


@pytest.mark.parametrize(
    ("files", "until", "visitor", "ada"),
    [
        ("public", "", "", ""),
        ("registered", "", "log in", ""),
        ("restricted", "", "log in", "ask"),
        ("embargoed", "2027-01-31", "log in", "wait"),
        ("embargoed", "2026-01-31", "", ""),
    ],
)
def test_files_go_to_whom_the_policy_names(files: str, until: str, visitor: str, ada: str) -> None:
    policy = Policy(LAKE, files=files, until=until)  # type: ignore[arg-type]
    obstacles = [may_fetch(viewer, policy, [], [], NOW).obstacle for viewer in (VISITOR, ADA, ROOT)]
    assert obstacles == [visitor, ada, ""]


def test_owner_groups_and_grants_have_access() -> None:
    policy = Policy(LAKE, files="restricted", owner="ada", groups=("hydro",))
    eve = Viewer("eve", frozenset({"hydro"}))
    bob = Viewer("bob", frozenset({"art"}))
    assert may_fetch(ADA, policy, [], [], NOW).is_allowed
    assert may_fetch(eve, policy, [], [], NOW).is_allowed
    assert not may_fetch(bob, policy, [], [], NOW).is_allowed
    assert may_fetch(bob, policy, [Grant(LAKE, "@art")], [], NOW).is_allowed
    assert may_fetch(bob, policy, [Grant(LAKE, "bob", NOW + 1)], [], NOW).is_allowed


@pytest.mark.parametrize("grant", [Grant(LAKE, "bob", NOW - 1), Grant("local/dataset/sea", "bob"), Grant(LAKE, "")])
def test_a_grant_that_expired_or_is_for_something_else_gives_nothing(grant: Grant) -> None:
    policy = Policy(LAKE, "restricted", "restricted")
    for viewer in (Viewer("bob"), VISITOR):
        assert not may_see(viewer, policy, [grant], NOW)
        assert not may_fetch(viewer, policy, [grant], [], NOW).is_allowed


def test_terms_are_accepted_before_the_first_download_and_anew_when_they_change() -> None:
    policy = Policy(LAKE, files="public", terms="Cite us.")
    assert may_fetch(VISITOR, policy, [], [], NOW).obstacle == "log in"
    assert may_fetch(ADA, policy, [], [], NOW).obstacle == "accept"
    assert may_fetch(ADA, policy, [], [policy.terms_digest], NOW).is_allowed
    changed = Policy(LAKE, files="public", terms="Cite us twice.")
    assert may_fetch(ADA, changed, [], [policy.terms_digest], NOW).obstacle == "accept"


def test_restricted_metadata_is_hidden_from_those_without_access() -> None:
    policies = [Policy(LAKE, "restricted", owner="ada"), Policy("local/dataset/sea")]
    assert hidden_from(VISITOR, policies, {}, NOW) == hidden_from(Viewer("bob"), policies, {}, NOW) == {LAKE}
    assert hidden_from(ADA, policies, {}, NOW) == hidden_from(ROOT, policies, {}, NOW) == frozenset()


def test_a_right_takes_in_the_smaller_ones() -> None:
    assert rights_of(["start"]) == {"browse", "read", "start"}
    with pytest.raises(UsageError, match="no right named 'root'"):
        rights_of(["root"])


@pytest.mark.parametrize(
    "options",
    [{"files": "embargoed"}, {"files": "public", "until": "2027-01-01"}, {"metadata": "secret"}, {"files": "none"}],
)
def test_a_policy_that_means_nothing_is_refused(options: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        Policy(LAKE, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("day", ["tomorrow", "2027-13-01", "31.1.2027"])
def test_an_embargo_ends_on_a_day(day: str) -> None:
    with pytest.raises(UsageError, match="is not a day"):
        Policy(LAKE, files="embargoed", until=day)
