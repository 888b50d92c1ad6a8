"""Script and configuration of a point."""

from __future__ import annotations

import math
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairmile.base import yaml
from fairmile.base.errors import NotFound, SystemFailure, UsageError
from fairmile.sweeps.model import Definition
from fairmile.sweeps.rendering import ConfigText, Renderer, interpreter
from fairmile.sweeps.space import Space

SCALARS = st.one_of(
    *(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False)),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
    st.sampled_from(["", "yes", "12:00:00", "a: b", "two\nlines\n", "one\n\ntwo", " blank", "#", "- x", "0", "1.0"]),
)
KEYS = st.sampled_from(["a", "b", "c d", "yes", "1", "x" * 130, "é\u2028é"])
TREES = st.dictionaries(
    KEYS, st.recursive(SCALARS, lambda inner: st.dictionaries(KEYS, inner) | st.lists(inner, max_size=3), max_leaves=12)
)


def definition(settings: dict[str, Any], axes: dict[str, Any], **more: Any) -> Definition:
    return Definition("made", Space(axes), settings, lambda *path: "made.yaml:1", **more)


class TestConfiguration:
    @pytest.mark.thorough
    @given(st.lists(TREES, max_size=5))
    def test_is_what_yaml_makes_of_it_whatever_was_written_before(self, trees: list[dict[str, Any]]) -> None:
        writer = ConfigText()
        for tree in trees:
            assert writer.text(tree) == yaml.dump(tree)

    @pytest.mark.parametrize(
        "values",
        [
            (1, True, 1.0),
            (0, False, 0.0, -0.0),
            (math.inf, -math.inf),
            ("1", 1),
            (None, "null"),
            ([1], [True]),
            ({}, []),
        ],
    )
    def test_tells_values_apart_that_python_takes_for_equal(self, values: tuple[Any, ...]) -> None:
        writer = ConfigText()
        for value in values:
            tree = {"a": {"b": value}}
            assert writer.text(tree) == yaml.dump(tree)

    def test_sees_a_list_that_was_changed_in_place(self) -> None:
        writer, items = ConfigText(), [1]
        writer.text({"a": items})
        items.append(2)
        assert writer.text({"a": items}) == yaml.dump({"a": [1, 2]})

    def test_reads_back_as_the_settings_of_the_point(self, tmp_path: Path) -> None:
        (tmp_path / "t.sh").write_text("echo {lr}\n")
        settings = {"data": {"folder": "/data/{model}", "time": "12:00:00"}, "note": "first\nsecond\n"}
        made = definition(settings, {"model": ["a", "b"], "lr": [0.1, 1e-5]})
        renderer = Renderer(made, tmp_path / "t.sh", {})
        for point in made.points:
            read = yaml.load(renderer.render(point).config)
            folder = f"/data/{point.values['model']}"
            assert read == {**settings, "data": {"folder": folder, "time": "12:00:00"}, **point.values}


class TestScripts:
    @pytest.mark.parametrize(
        ("template", "script"),
        [
            *(("job.in.slurm", "job.slurm"), ("job.slurm.in", "job.slurm"), ("job.in", "job")),
            *(("job.sh", "job.sh"), ("main.input.sh", "main.input.sh")),
        ],
    )
    def test_are_named_after_the_template(self, tmp_path: Path, template: str, script: str) -> None:
        (tmp_path / template).write_text("")
        assert Renderer(definition({}, {"a": [1]}), tmp_path / template, {}).script_name == script

    @pytest.mark.parametrize("name", ["config.yaml", "config.in.yaml", ".in"])
    def test_cannot_have_the_name_of_the_configuration_or_none(self, tmp_path: Path, name: str) -> None:
        (tmp_path / name).write_text("")
        with pytest.raises(UsageError, match="would be named"):
            Renderer(definition({}, {"a": [1]}), tmp_path / name, {})

    @pytest.mark.parametrize(("before", "after"), [(0o644, 0o755), (0o600, 0o700), (0o755, 0o755), (0o440, 0o750)])
    def test_can_be_run_by_who_may_read_the_template(self, tmp_path: Path, before: int, after: int) -> None:
        file = tmp_path / "t.sh"
        file.write_text("")
        file.chmod(before)
        assert Renderer(definition({}, {"a": [1]}), file, {}).mode == after

    def test_keep_the_line_ends_of_the_template(self, tmp_path: Path) -> None:
        (tmp_path / "t.sh").write_bytes(b"a\r\nb {a}\n")
        made = definition({}, {"a": [1]})
        assert Renderer(made, tmp_path / "t.sh", {}).render(next(iter(made.points))).script == "a\r\nb 1\n"

    def test_without_a_template_hold_the_command_with_every_value_one_word(self, tmp_path: Path) -> None:
        made = definition({}, {"text": ["it's $HOME; rm -rf x"]}, fields={"argv": ["printf", "%s|", "{text}", "a b"]})
        renderer = Renderer(made, None, {})
        (tmp_path / "s").write_text(renderer.render(next(iter(made.points))).script)
        done = subprocess.run([*renderer.interpreter, tmp_path / "s"], capture_output=True, text=True, check=True)
        assert done.stdout == "it's $HOME; rm -rf x|a b|"

    def test_need_a_template_or_a_command(self) -> None:
        with pytest.raises(UsageError, match="no template and no command"):
            Renderer(definition({}, {"a": [1]}), None, {})

    def test_of_templates_that_cannot_be_read(self, tmp_path: Path) -> None:
        with pytest.raises(NotFound, match="no such file"):
            Renderer(definition({}, {"a": [1]}), tmp_path / "none", {})
        (tmp_path / "binary").write_bytes(b"\xff\xfe")
        with pytest.raises(SystemFailure, match="cannot read the template"):
            Renderer(definition({}, {"a": [1]}), tmp_path / "binary", {})

    @pytest.mark.parametrize(
        ("script", "command"),
        [
            *(("#!/bin/bash -l\nx", ("/bin/bash", "-l")), ("#!/usr/bin/env python3\n", ("/usr/bin/env", "python3"))),
            *(("echo", ("sh",)), ("", ("sh",)), ("#!\n", ("sh",))),
        ],
    )
    def test_are_executed_by_what_their_first_line_names(self, script: str, command: tuple[str, ...]) -> None:
        assert interpreter(script) == command
