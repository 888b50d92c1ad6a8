"""Trust in a project file holds for exactly the content that the user saw."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from fairmile.base.config import Config, Option
from fairmile.base.errors import NotFound, SystemFailure
from fairmile.base.trust import Trust

OPTIONS = {
    "home": Option("/default", str, "a folder"),
    "depth": Option(1, int, "a number", safe=True),
    "tools": Option({}, dict, "programs"),
    "reach": Option({}, dict, "settings of others"),
}


@pytest.fixture
def trust(tmp_path: Path) -> Trust:
    return Trust(tmp_path / "user" / "trusted.json", OPTIONS, nesting=("reach",))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "project").mkdir()
    return tmp_path / "project" / "fairmile.yaml"


def loaded(trust: Trust, file: Path) -> Config:
    return Config.load(OPTIONS, guarded=trust.guard(file, []))


def test_only_safe_settings_of_an_untrusted_file_count(trust: Trust, file: Path) -> None:
    file.write_text("home: ./data\ndepth: 7\ntools: {get: [sh]}\n")
    config = loaded(trust, file)
    assert (config["home"], config["depth"], config["tools"]) == ("/default", 7, {})
    assert config.ignored == ("home", "tools")
    assert config.origin("home") == "default"


def test_a_setting_is_not_safe_unless_it_says_so() -> None:
    assert Option(None, str, "new").safe is False


def test_an_untrusted_value_is_not_even_parsed(trust: Trust, file: Path) -> None:
    file.write_text("tools: 5\n")
    assert loaded(trust, file).ignored == ("tools",)


def test_trust_lets_every_setting_count_until_the_text_changes(trust: Trust, file: Path) -> None:
    file.write_text("home: ./data\n")
    project = trust.add(file)
    assert project.allows == {"home": "./data"}
    assert loaded(trust, file)["home"] == "./data"
    file.write_text("home: ./data\n# harmless?\n")
    assert loaded(trust, file).ignored == ("home",)
    assert [each.is_current for each in trust.ls()] == [False]


@pytest.mark.parametrize("settings", ["tools: {get: [python, get.py]}", "tools: {get: {command: ['./get.py --x']}}"])
def test_trust_ends_when_a_file_that_the_settings_name_changes(trust: Trust, file: Path, settings: str) -> None:
    tool = file.parent / "get.py"
    tool.write_text("good")
    file.write_text(settings)
    assert trust.add(file).names == (tool,)
    assert not loaded(trust, file).ignored
    tool.write_text("evil")
    assert loaded(trust, file).ignored == ("tools",)


def test_trust_ends_when_a_file_appears_that_the_settings_named_before(trust: Trust, file: Path) -> None:
    file.write_text("reach: {box: {ssh_config: ./ssh}}")
    trust.add(file)
    (file.parent / "ssh").write_text("ProxyCommand touch /tmp/x")
    assert loaded(trust, file).ignored == ("reach",)


def test_a_program_that_a_named_settings_file_names_counts_too(trust: Trust, file: Path) -> None:
    (file.parent / "connect.sh").write_text("exec nc host 22")
    (file.parent / "ssh").write_text("Host *\n  ProxyCommand ./connect.sh\n")
    file.write_text("reach: {box: {ssh_config: ./ssh}}")
    assert trust.add(file).names == (file.parent / "connect.sh", file.parent / "ssh")
    (file.parent / "connect.sh").write_text("touch /tmp/x")
    assert loaded(trust, file).ignored == ("reach",)


def test_a_link_out_of_the_project_and_a_file_elsewhere_in_the_clone_count(
    trust: Trust, file: Path, tmp_path: Path
) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "above.sh").write_text("a")
    (tmp_path / "target").write_text("b")
    (file.parent / "link.sh").symlink_to(tmp_path / "target")
    file.write_text("tools: {a: [../above.sh], b: [link.sh], c: [/bin/sh]}")
    assert trust.add(file).names == (tmp_path / "above.sh", tmp_path / "target")


def test_a_file_above_a_project_without_a_clone_counts_too(trust: Trust, file: Path, tmp_path: Path) -> None:
    (tmp_path / "above.sh").write_text("a")
    file.write_text("tools: {a: [../above.sh], c: [/bin/sh]}")
    assert trust.add(file).names == (tmp_path / "above.sh",)


def test_a_link_to_a_trusted_file_is_not_trusted(trust: Trust, file: Path, tmp_path: Path) -> None:
    file.write_text("home: ./data\n")
    trust.add(file)
    (tmp_path / "other").mkdir()
    link = tmp_path / "other" / file.name
    link.symlink_to(file)
    assert loaded(trust, link).ignored == ("home",)
    assert loaded(trust, file).ignored == ()


def test_a_copy_elsewhere_is_another_file(trust: Trust, file: Path, tmp_path: Path) -> None:
    file.write_text("home: ./data\n")
    trust.add(file)
    (tmp_path / "other").mkdir()
    copy = tmp_path / "other" / file.name
    copy.write_text(file.read_text())
    assert loaded(trust, copy).ignored == ("home",)


def test_the_list_is_private_and_a_file_can_be_taken_off_it(trust: Trust, file: Path) -> None:
    file.write_text("home: ./data\n")
    trust.add(file, dry_run=True)
    assert not trust.records.exists()
    trust.add(file)
    assert stat.S_IMODE(os.stat(trust.records).st_mode) == 0o600
    assert [(each.file, each.is_current) for each in trust.ls()] == [(file, True)]
    trust.remove(file, dry_run=True)
    assert len(trust.ls()) == 1
    trust.remove(file)
    assert trust.ls() == []
    assert loaded(trust, file).ignored == ("home",)
    with pytest.raises(NotFound, match="is not trusted"):
        trust.remove(file)


def test_a_file_that_is_gone_stays_listed_as_not_current(trust: Trust, file: Path) -> None:
    file.write_text("home: ./data\n")
    trust.add(file)
    file.unlink()
    assert [each.is_current for each in trust.ls()] == [False]
    with pytest.raises(NotFound, match="no such file"):
        trust.add(file)


@pytest.mark.parametrize("content", ["{", "[]", json.dumps({"files": {"x": 5}})])
def test_a_damaged_list_trusts_nothing_and_says_so(trust: Trust, file: Path, content: Any) -> None:
    file.write_text("home: ./data\n")
    trust.records.parent.mkdir()
    trust.records.write_text(content)
    with pytest.raises(SystemFailure, match="list of trusted files"):
        loaded(trust, file)
