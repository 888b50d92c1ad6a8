"""Accounts and access at the command line: what an administrator types."""

from __future__ import annotations

import io
import re
import shlex
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import argon2
import click
import pytest
from printed_results import assert_printed, assert_sound

import fairmile as fm
from fairmile.testing.schemas import commands

Fairmile = Callable[..., Any]
PASSWORD = "correct horse battery"
LAKE = "local/dataset/lake-temperatures"
ELSEWHERE = ("access accept", "access request")  # they need a server: tests/web
COMMANDS = {name: command for name, command in commands() if name.startswith("access ") and name not in ELSEWHERE}


@pytest.fixture
def centre(lake: Fairmile, monkeypatch: pytest.MonkeyPatch) -> Fairmile:
    """Run a command line in a home with accounts, a grant and two requests; a password can be read from stdin."""
    monkeypatch.setattr(argon2, "PasswordHasher", partial(argon2.PasswordHasher, 1, 8, 1))
    for name in ("ada", "eve"):
        fm.access.add_user(name, PASSWORD)
    fm.access.grant("lake-temperatures", "eve")
    for asset in (LAKE, "local/program/lake-tools"):
        fm.access.assets.request(asset, "ada", "a test")
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{PASSWORD}\n"))
    return lake


def examples(command: click.Command, name: str) -> list[str]:
    """Return the examples of a help page; a password comes from stdin, as no terminal asks for it here."""
    lines = re.findall(r"^ +fairmile (.+)$", (command.help or "").partition("Example")[2], re.MULTILINE)
    lines = [line.partition(" <")[0].replace("user add ada", "user add bob") for line in lines]
    asked = [f"{line} --password-stdin" for line in lines if "--password" in line or name == "access user add"]
    return [line for line in lines if not any(each.startswith(line) for each in asked)] + asked


def test_every_example_of_the_help_works_and_prints_valid_json(
    centre: Fairmile, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, command in sorted(COMMANDS.items(), key=lambda each: each[0].endswith((" rm", " revoke"))):
        for shown in examples(command, name) or [name]:
            monkeypatch.setattr(sys, "stdin", io.StringIO(f"{PASSWORD}\n"))
            line = shown.replace(
                "1f3a5c7e9b2d", fm.access.new_token("ada").token.id if name.endswith("token rm") else ""
            )
            result = centre(*shlex.split(line), "--json")
            assert result.code == 0, f"fairmile {line}\n{result.err}"
            assert isinstance(result.json, dict) and "error" not in result.json, line


def test_an_account_is_added_changed_and_removed(centre: Fairmile) -> None:
    added = centre("access", "user", "add", "bob", "--right", "read", "--group", "hydro", "--password-stdin")
    assert added.out == "added bob: may browse, read, in hydro\n"
    assert PASSWORD not in added.out + added.err
    assert fm.access.accounts.log_in("bob", PASSWORD, "")[0].name == "bob"
    assert centre("access", "user", "set", "bob", "--no-groups").out == "changed bob: may browse, read\n"
    assert "would remove bob" in centre("access", "user", "rm", "bob", "--dry-run").out
    assert [each.name for each in fm.access.users()] == ["ada", "bob", "eve"]
    centre("access", "user", "rm", "bob")
    assert centre("access", "user", "ls").out.splitlines() == [
        "user  rights  groups  login",
        "ada   browse          password",
        "eve   browse          password",
    ]


def test_a_password_is_never_an_argument_and_never_asked_without_a_terminal(centre: Fairmile) -> None:
    refused = centre("access", "user", "add", "bob")
    assert refused.code == 2
    assert "--password-stdin" in refused.err
    assert centre("access", "user", "add", "bob", "--password", PASSWORD).code == 2


def test_a_new_password_ends_sessions_and_tokens(centre: Fairmile, monkeypatch: pytest.MonkeyPatch) -> None:
    fm.access.new_token("ada")
    monkeypatch.setattr(sys, "stdin", io.StringIO("another long password\n"))
    assert centre("access", "user", "set", "ada", "--password-stdin").code == 0
    assert fm.access.tokens("ada") == []
    assert fm.access.accounts.log_in("ada", "another long password", "")[0].name == "ada"


def test_the_secret_of_a_token_is_printed_once_and_alone_on_stdout(centre: Fairmile) -> None:
    made = centre("access", "token", "add", "ada", "--label", "nightly")
    assert re.fullmatch(r"fairmile_pat_[0-9a-f]{12}_\S{43}\n", made.out)
    listed = centre("access", "token", "ls", "ada").out
    assert "nightly" in listed and made.out.strip() not in listed
    assert centre("access", "token", "add", "ada", "--right", "admin").code == 2


def test_access_to_an_asset_is_set_step_by_step(centre: Fairmile) -> None:
    centre("access", "set", "lake-temperatures", "--metadata", "restricted", "--group", "hydro")
    shown = centre("access", "set", "lake-temperatures", "--files", "embargoed", "--until", "2099-01-31")
    assert [" ".join(line.split()) for line in shown.out.splitlines()] == [
        f"asset {LAKE}",
        "metadata restricted",
        "files embargoed until 2099-01-31",
        "groups hydro",
    ]
    assert centre("access", "set", "lake-temperatures", "--files", "embargoed", "--until", "soon").code == 2
    assert LAKE in centre("access", "ls").out


def test_requests_are_approved_and_refused_once(centre: Fairmile) -> None:
    assert "a test" in centre("access", "requests").out
    assert centre("access", "approve", "1", "--dry-run").out == f"would be granted: {LAKE} for ada\n"
    assert centre("access", "approve", "1", "--until", "2099-01-31").out == f"granted: {LAKE} for ada\n"
    assert centre("access", "refuse", "2").out == "refused: local/program/lake-tools for ada\n"
    assert centre("access", "approve", "1").code == 2
    assert [each["status"] for each in centre("access", "requests", "--status", "all", "--json").json["requests"]] == [
        "refused",
        "granted",
    ]
    assert f"{LAKE}  ada" in centre("access", "grants").out


def test_the_audit_log_is_listed_and_a_change_to_it_gives_exit_code_4(centre: Fairmile) -> None:
    assert "add user" in centre("access", "audit", "ls").out
    intact = centre("access", "audit", "verify")
    assert intact.code == 0 and "all intact" in intact.out
    with fm.access._database.changing() as connection:
        connection.execute("UPDATE audit SET line = replace(line, 'eve', 'eva')")
    damaged = centre("access", "audit", "verify")
    assert (damaged.code, damaged.out) == (4, "damaged at entry 2\n")


def test_results_are_what_the_commands_print(centre: Fairmile) -> None:
    access = fm.access
    assert_printed(centre, access.users(), "access", "user", "ls")
    assert_printed(centre, access.grants(), "access", "grants")
    assert_printed(centre, access.requests(), "access", "requests")
    assert_printed(centre, access.audit(limit=20), "access", "audit", "ls")
    assert_printed(centre, access.verify_audit(), "access", "audit", "verify")
    assert_printed(centre, access.logins(), "login", "--list")
    assert_sound(access.new_token("ada"))


@pytest.mark.parametrize(
    "line, message",
    [
        ("access grant lake-temperatures nobody", "no account named 'nobody'"),
        ("access revoke lake-temperatures ada", f"ada has no grant for {LAKE}"),
        ("access token rm ada 000000000000", "no token '000000000000'"),
        ("access approve 9", "no pending request 9"),
        ("login http://data.example.org", "'http://data.example.org' is not the address of a server"),
        ("logout https://data.example.org", "not logged in to https://data.example.org"),
        ("access request lake-temperatures", f"{LAKE}@1.0 is not an asset of a server"),
    ],
)
def test_a_mistake_is_one_sentence(centre: Fairmile, line: str, message: str) -> None:
    failed = centre(*line.split())
    assert failed.code == 2
    assert failed.err.startswith(f"error: {message}")
