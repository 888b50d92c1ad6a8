from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fairmile.base.config import Config, Option, Setting, variable_name
from fairmile.base.errors import InvalidDocument, NotFound, SystemFailure, UsageError
from fairmile.base.units import parse_duration


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise UsageError(f"expected a text, found {value!r}")
    return value


OPTIONS = {
    "catalog.base": Option("built-in", text, "where new cards go"),
    "catalog.sync.timeout_s": Option(30.0, parse_duration, "how long to wait for a source"),
    "colour": Option("auto", text, "when to colour"),
    "sources": Option({"core": "package"}, dict, "catalogs to search"),
    "loud": Option("no", lambda value: value.lower(), "how loud to be"),
}


def write(path: Path, content: str) -> Path:
    path.write_text(content)
    return path


def test_without_anything_given_all_is_default() -> None:
    config = Config.load(OPTIONS)
    assert config["catalog.base"] == "built-in"
    assert config.origin("catalog.base") == config.origin("sources") == config.origin("sources.core") == "default"
    assert list(config) == list(OPTIONS)
    assert "colour" in config


def test_the_later_layer_wins_and_each_value_knows_its_origin(tmp_path: Path) -> None:
    site = write(tmp_path / "site.yaml", "catalog:\n  base: /site\n  sync: {timeout_s: 1m}\ncolour: always\nloud: A\n")
    user = write(tmp_path / "user.yaml", "# mine\ncolour: never\ncatalog.base: /home\n")
    environ = {"FAIRMILE_COLOUR": "auto", "FAIRMILE_CATALOG_SYNC_TIMEOUT_S": "", "FAIRMILE_UNKNOWN": "x"}
    config = Config.load(OPTIONS, files=[site, user], environ=environ, overrides={"loud": "X"})
    assert config.settings() == [
        Setting("catalog.base", "/home", f"{user}:3"),
        Setting("catalog.sync.timeout_s", 60.0, f"{site}:3"),
        Setting("colour", "auto", "environment FAIRMILE_COLOUR"),
        Setting("sources.core", "package", "default"),
        Setting("loud", "x", "command line"),
    ]


def test_missing_and_empty_files_and_null_values_are_skipped(tmp_path: Path) -> None:
    empty = write(tmp_path / "empty.yaml", "# nothing\n")
    null = write(tmp_path / "null.yaml", "colour:\ncatalog:\nsources: ~\n")
    config = Config.load(OPTIONS, files=[tmp_path / "no" / "such.yaml", empty, null, empty / "below-a-file"])
    assert {setting.origin for setting in config.settings()} == {"default"}


def test_a_mapping_is_merged_by_key_and_each_key_knows_its_origin(tmp_path: Path) -> None:
    site = write(tmp_path / "site.yaml", "sources:\n  lab: /lab\n  group: /group\n")
    user = write(tmp_path / "user.yaml", "sources:\n  mine: {path: /mine}\n  lab: /other\nsources.dotted: /d\n")
    config = Config.load(OPTIONS, files=[site, user], overrides={"sources.extra": "/extra"})
    assert config["sources"] == {
        "core": "package",
        "lab": "/other",
        "group": "/group",
        "mine": {"path": "/mine"},
        "dotted": "/d",
        "extra": "/extra",
    }
    origins = {name: config.origin(f"sources.{name}") for name in config["sources"]}
    assert origins == {
        "core": "default",
        "lab": f"{user}:3",
        "group": f"{site}:3",
        "mine": f"{user}:2",
        "dotted": f"{user}:4",
        "extra": "command line",
    }
    assert config.origin("sources") == "command line"


def test_loading_does_not_change_the_defaults(tmp_path: Path) -> None:
    Config.load(OPTIONS, overrides={"sources.extra": "/extra"})
    assert OPTIONS["sources"].default == {"core": "package"}


def test_unknown_keys_in_a_file_are_all_named_with_line_and_nearest_key(tmp_path: Path) -> None:
    path = write(tmp_path / "c.yaml", "colour: auto\ncatalog:\n  bsae: x\ncolor: y\nzzz: 1\n7: x\n")
    with pytest.raises(InvalidDocument) as caught:
        Config.load(OPTIONS, files=[path])
    assert [str(problem) for problem in caught.value.problems] == [
        f"{path}:3 catalog.bsae: no such setting; did you mean 'catalog.base'?",
        f"{path}:4 color: no such setting; did you mean 'colour'?",
        f"{path}:5 zzz: no such setting",
        f"{path}:6 7: no such setting",
    ]


def test_a_value_where_keys_are_expected_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"c\.yaml:1 catalog: no such setting"):
        Config.load(OPTIONS, files=[write(tmp_path / "c.yaml", "catalog: x\n")])
    with pytest.raises(UsageError, match=r"c\.yaml:1: expected keys"):
        Config.load(OPTIONS, files=[write(tmp_path / "c.yaml", "- x\n")])
    with pytest.raises(UsageError, match=r"c\.yaml:1 sources"):
        Config.load(OPTIONS, files=[write(tmp_path / "c.yaml", "sources: [x]\n")])


def test_a_refused_value_names_its_place_and_key(tmp_path: Path) -> None:
    path = write(tmp_path / "c.yaml", "\ncatalog:\n  sync:\n    timeout_s: soon\n")
    with pytest.raises(UsageError) as caught:
        Config.load(OPTIONS, files=[path])
    assert str(caught.value) == f"{path}:4 catalog.sync.timeout_s: 'soon' is not a duration"
    assert caught.value.hint
    with pytest.raises(UsageError, match="FAIRMILE_CATALOG_SYNC_TIMEOUT_S catalog"):
        Config.load(OPTIONS, environ={"FAIRMILE_CATALOG_SYNC_TIMEOUT_S": "x"})
    with pytest.raises(UsageError, match="environment FAIRMILE_SOURCES sources"):
        Config.load(OPTIONS, environ={"FAIRMILE_SOURCES": "x"})
    with pytest.raises(UsageError, match="loud: 3 cannot be used here"):
        Config.load(OPTIONS, files=[write(tmp_path / "d.yaml", "loud: 3\n")])


def test_an_unknown_key_on_the_command_line_suggests_the_nearest() -> None:
    with pytest.raises(UsageError, match="no setting named 'color'; did you mean 'colour'"):
        Config.load(OPTIONS, overrides={"color": "x"})


def test_asking_for_an_unknown_key_suggests_the_nearest() -> None:
    config = Config.load(OPTIONS)
    with pytest.raises(NotFound, match=r"did you mean 'catalog\.base'"):
        config["catalog.bas"]
    with pytest.raises(NotFound, match=r"did you mean 'sources\.core'"):
        config.origin("sources.cor")


def test_a_file_that_cannot_be_read_is_a_system_failure_and_bad_yaml_names_its_line(tmp_path: Path) -> None:
    with pytest.raises(SystemFailure, match="cannot read"):
        Config.load(OPTIONS, files=[tmp_path])
    (tmp_path / "latin").write_bytes(b"colour: \xe9")
    with pytest.raises(SystemFailure, match="cannot read"):
        Config.load(OPTIONS, files=[tmp_path / "latin"])
    with pytest.raises(InvalidDocument, match=r"c\.yaml:2"):
        Config.load(OPTIONS, files=[write(tmp_path / "c.yaml", "colour: auto\ncolour: never\n")])


def test_the_variable_of_a_key_is_its_name_in_capitals() -> None:
    assert variable_name("catalog.base-dir") == "FAIRMILE_CATALOG_BASE_DIR"


def test_the_yaml_reader_is_not_imported_when_no_file_exists() -> None:
    script = (
        "import sys; from pathlib import Path; from fairmile.base.config import Config, Option;"
        "Config.load({'a': Option(1, int, '')}, files=[Path('/no/such/file')], environ={'FAIRMILE_A': '2'});"
        "print([m for m in sys.modules if m.startswith('ruamel')])"
    )
    env = {"PYTHONPATH": ":".join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
