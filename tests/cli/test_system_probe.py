"""`fairmile system probe`: what a user sees of a machine, and what is kept."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from printed_results import assert_printed, assert_sound

from fairmile.systems.registry import Systems
from fairmile.workspace import Workspace

Fairmile = Callable[..., Any]


def test_the_draft_is_all_that_stdout_gets(fairmile: Fairmile, place: Path) -> None:
    result = fairmile("system", "probe", "--name", "box")
    assert result.code == 0
    assert result.err.startswith("checking ")
    (place / "box.yaml").write_text(result.out)
    assert Systems([place])["box"].name == "box"


def test_the_draft_is_written_and_can_be_added(fairmile: Fairmile, place: Path) -> None:
    result = fairmile("system", "probe", "--name", "box", "--output", "box.yaml")
    assert (result.code, result.out) == (0, "wrote box.yaml\n")
    assert fairmile("system", "check", "box.yaml").code == 0
    assert fairmile("system", "add", "box.yaml").code == 0
    assert fairmile("system", "probe", "--on", "box", "--json").json["counts"]["differs"] == 0


def test_the_name_of_the_machine_is_the_name_of_the_draft(fairmile: Fairmile) -> None:
    found = fairmile("system", "probe", "--json").json
    assert found["found"]["host"] == os.uname().nodename
    assert found["found"]["day"] in found["draft"]
    assert found["file"] is None


def test_differences_with_a_known_system_come_first(fairmile: Fairmile) -> None:
    result = fairmile("system", "probe", "--on", "summit")
    assert result.code == 0
    lines = result.out.splitlines()
    assert lines[0].split() == ["verdict", "component", "registered", "found"]
    verdicts = [line.split()[0] for line in lines[1:-1]]
    assert verdicts[0] in ("differs", "missing")
    order = ["differs", "missing", "new", "unknown", "same"]
    assert verdicts == sorted(verdicts, key=order.index)
    assert "as registered" in result.err


def test_python_returns_what_the_command_prints(fairmile: Fairmile) -> None:
    systems = Workspace.open().systems
    assert_printed(fairmile, systems.survey("summit"), "system", "probe", "--on", "summit")
    draft = systems.probe(name="box")
    assert_sound(draft)
    printed = fairmile("system", "probe", "--name", "box", "--json").json
    assert printed.keys() == draft.to_dict().keys()
    assert printed["found"]["processor"] == draft.to_dict()["found"]["processor"]


def test_the_comparison_is_kept_as_a_card(fairmile: Fairmile, place: Path) -> None:
    result = fairmile("system", "probe", "--on", "laptop", "--card", "survey.jsonld", "--json")
    card = json.loads((place / "survey.jsonld").read_text())
    assert card["about"]["identifier"] == "laptop"
    assert len(card["variableMeasured"]) == len(result.json["rows"])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--on", "labtop"], "did you mean 'laptop'?"),
        (["--card", "x.jsonld"], "--card needs --on"),
        (["--output", "there.yaml"], "there.yaml exists already"),
        (["--over", "-oProxyCommand=x"], "is not a host name"),
    ],
)
def test_bad_input_is_refused_before_anything_is_looked_at(
    fairmile: Fairmile, place: Path, arguments: list[str], told: str
) -> None:
    (place / "there.yaml").write_text("mine\n")
    result = fairmile("system", "probe", *arguments)
    assert (result.code, result.out) == (2, "")
    assert told in result.err
    assert "looking at" not in result.err
    assert (place / "there.yaml").read_text() == "mine\n"


def test_another_machine_is_described_over_ssh(
    fairmile: Fairmile, sshd: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # ssh finds its settings by the home of the account, whatever HOME says: a wrapper names them.
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "ssh").write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {sshd.config} "$@"\n')
    (tools / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    found = fairmile("system", "probe", "--over", "there", "--json").json
    assert found["found"]["login"] == "there"
    assert "login: there\n" in found["draft"]


def test_a_bad_name_is_refused_before_the_machine_is_looked_at(fairmile: Fairmile) -> None:
    result = fairmile("system", "probe", "--name", "bad name!")
    assert (result.code, result.out) == (2, "")
    assert "--name: expected at most 64 letters" in result.err
    assert "looking at" not in result.err
