"""What of all that a program could read the identity of its run covers."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fairmile.runs.coverage import find_led_out, find_left, find_newer, find_uncovered, variables_digest
from fairmile.runs.execute import capture
from fairmile.runs.parameters import program_files
from fairmile.runs.record.record import Captured, RecordedSpec


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder that a program is started in, with its script."""
    place = tmp_path / "project"
    place.mkdir()
    (place / "train.py").write_text("print(1)\n")
    return place


@pytest.fixture
def repository(folder: Path) -> Path:
    """The same in git, with a rule about what it ignores."""
    (folder / ".gitignore").write_text("data/\n*.log\n__pycache__/\n")
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    commit(folder)
    return folder


def git(folder: Path, *words: str) -> None:
    subprocess.run(["git", "-c", "protocol.file.allow=always", *words], cwd=folder, check=True, capture_output=True)


def commit(folder: Path) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    git(folder, *who, "commit", "--quiet", "--allow-empty", "-m", "x")


def captured(folder: Path, argv: list[str], inputs: Mapping[str, str]) -> Captured:
    given = capture.inputs({name: {"path": path} for name, path in inputs.items()}, folder=folder)
    return Captured(code=capture.code(argv, folder), inputs=given)


def uncovered(folder: Path, *words: str, inputs: Mapping[str, str] = {}, **spec: Any) -> list[str]:
    argv = ["python", "train.py", *words]
    found = find_uncovered(
        RecordedSpec(folder=str(folder), **spec), captured(folder, argv, inputs), argv, folder.parent / "runs"
    )
    return [os.path.relpath(path, folder) for path in found]


class TestFolders:
    def test_with_nothing_but_the_program_are_covered(self, folder: Path) -> None:
        (folder / "__pycache__").mkdir()
        (folder / "__pycache__" / "train.cpython-311.pyc").write_bytes(b"x")
        (folder / "env").mkdir()
        (folder / "env" / "pyvenv.cfg").write_text("version = 3.11\n")
        (folder / "env" / "lib.py").write_text("\n")
        assert uncovered(folder) == []

    def test_any_other_file_is_not(self, folder: Path) -> None:
        (folder / "sub").mkdir()
        (folder / "sub" / "data.txt").write_text("1")
        assert uncovered(folder) == ["sub/data.txt"]

    def test_declared_inputs_and_outputs_are(self, folder: Path) -> None:
        for name in ("in.txt", "out/a.txt", "out/deep/b.txt"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text("1")
        assert uncovered(folder, inputs={"d": "in.txt"}, outputs=["out"]) == []
        assert uncovered(folder, inputs={"d": "in.txt"}, outputs=["out/*.txt"]) == ["out/deep/b.txt"]

    def test_a_link_that_leads_out_is_not(self, folder: Path) -> None:
        (folder.parent / "far.txt").write_text("1")
        (folder / "near.py").symlink_to("train.py")
        assert uncovered(folder) == []
        (folder / "link.txt").symlink_to("../far.txt")
        assert uncovered(folder) == ["link.txt"]

    def test_our_own_files_are_nothing_that_a_program_reads(self, folder: Path) -> None:
        runs = folder / ".fairmile" / "runs"
        runs.mkdir(parents=True)
        (runs / "run.json").write_text("{}")
        argv = ["python", "train.py"]
        assert find_uncovered(RecordedSpec(folder=str(folder)), captured(folder, argv, {}), argv, runs) == []

    def test_a_home_that_is_the_folder_itself_covers_nothing(self, folder: Path) -> None:
        (folder / "data.txt").write_text("1")
        argv = ["python", "train.py"]
        found = find_uncovered(RecordedSpec(folder=str(folder)), captured(folder, argv, {}), argv, folder / "runs")
        assert found == [str(folder / "data.txt")]


class TestNamedPaths:
    @pytest.mark.parametrize("form", ["{}", "--data={}", "a:{}", "cat {}; true", "cat '{}'"])
    def test_a_folder_elsewhere_is_not_covered(self, folder: Path, form: str) -> None:
        far = folder.parent / "far"
        far.mkdir()
        assert uncovered(folder, form.format(far)) == ["../far"]
        assert uncovered(folder, form.format("../far")) == ["../far"]
        assert uncovered(folder, form.format(far), inputs={"d": "../far"}) == []

    def test_neither_in_a_parameter_nor_in_a_variable(self, folder: Path) -> None:
        (folder.parent / "far").mkdir()
        far = str(folder.parent / "far")
        assert uncovered(folder, params={"weights": far}) == ["../far"]
        assert uncovered(folder, env={"DATA": far}) == ["../far"]

    def test_programs_of_the_system_and_nothing_are(self, folder: Path) -> None:
        assert uncovered(folder, "/bin/sh", "/dev/null", "/no/such/file", "1", "/", "2", "https://example.org/x") == []


class TestRepositories:
    def test_what_git_tracks_is_covered_and_so_are_small_files_beside_it(self, repository: Path) -> None:
        (repository / "train.py").write_text("print(2)\n")
        (repository / "notes.txt").write_text("1")
        assert uncovered(repository) == []

    def test_what_git_ignores_is_not(self, repository: Path) -> None:
        (repository / "data").mkdir()
        (repository / "data" / "a.csv").write_text("1")
        assert uncovered(repository) == ["data/a.csv"]
        assert uncovered(repository, inputs={"d": "data"}) == []

    def test_a_large_file_that_git_does_not_know_is_not(self, repository: Path) -> None:
        (repository / "big.bin").write_bytes(bytes(2 << 20))
        assert uncovered(repository) == ["big.bin"]

    def test_before_the_first_commit_what_is_staged_is_not(self, folder: Path) -> None:
        git(folder, "init", "--quiet")
        git(folder, "add", ".")
        (folder / "train.py").write_text("print(2)\n")
        assert uncovered(folder, inputs={}) == []  # the command names it
        (folder / "more.txt").write_text("1")
        git(folder, "add", "more.txt")
        assert uncovered(folder) == ["more.txt"]

    def test_a_submodule_is_not(self, repository: Path) -> None:
        other = repository.parent / "other"
        other.mkdir()
        git(other, "init", "--quiet")
        commit(other)
        git(repository, "submodule", "--quiet", "add", str(other), "part")
        commit(repository)
        (repository / "part" / "local.txt").write_text("1")
        assert uncovered(repository) == ["part/local.txt"]

    def test_a_subfolder_sees_all_of_it(self, repository: Path) -> None:
        (repository / "app.log").write_text("1")
        (repository / "sub").mkdir()
        (repository / "sub" / "train.py").write_text("")
        assert uncovered(repository / "sub") == ["../app.log"]

    def test_links_out_of_it_and_files_whose_changes_are_hidden_are_found(self, repository: Path) -> None:
        (repository.parent / "far.txt").write_text("1")
        (repository / "far.txt").symlink_to("../far.txt")
        (repository / "near.py").symlink_to("train.py")
        git(repository, "add", ".")
        commit(repository)
        assert list(find_led_out(str(repository))) == ["far.txt"]
        git(repository, "update-index", "--assume-unchanged", "train.py")
        assert list(find_led_out(str(repository))) == ["far.txt", "train.py"]


class TestWhatIsLeft:
    def test_in_a_folder_is_any_new_file_that_was_not_declared(self, folder: Path) -> None:
        before = captured(folder, ["python", "train.py"], {})
        (folder / "a.txt").write_text("1")
        assert find_left(RecordedSpec(folder=str(folder)), before, folder.parent) == [str(folder / "a.txt")]
        assert find_left(RecordedSpec(folder=str(folder), outputs=["a.txt"]), before, folder.parent) == []

    def test_in_a_home_folder_is_nothing_in_its_cache(self, folder: Path) -> None:
        before = captured(folder, ["python", "train.py"], {})
        for name in (".cache/fairmile/opened-0.so", "data/.cache/a.txt"):
            (folder / name).parent.mkdir(parents=True)
            (folder / name).write_text("1")
        assert find_left(RecordedSpec(folder=str(folder)), before, folder.parent) == [
            str(folder / "data" / ".cache" / "a.txt")
        ]

    def test_is_nothing_in_the_cache_of_the_user_wherever_that_is(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before = captured(folder, ["python", "train.py"], {})
        (folder / "cache" / "fairmile").mkdir(parents=True)
        (folder / "cache" / "fairmile" / "opened-0.so").write_text("1")
        assert len(find_left(RecordedSpec(folder=str(folder)), before, folder.parent)) == 1
        monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        assert find_left(RecordedSpec(folder=str(folder)), before, folder.parent) == []

    def test_in_a_repository_is_also_what_changed(self, repository: Path) -> None:
        (repository / "notes.txt").write_text("1")
        before = captured(repository, ["python", "train.py"], {})
        assert find_left(RecordedSpec(folder=str(repository)), before, repository.parent) == []
        (repository / "notes.txt").write_text("2")
        assert find_left(RecordedSpec(folder=str(repository)), before, repository.parent) == ["notes.txt"]
        (repository / "train.py").write_text("print(2)\n")
        assert find_left(RecordedSpec(folder=str(repository)), before, repository.parent)[-1].endswith(
            "(tracked files)"
        )


class TestSoftware:
    def test_sources_on_pythonpath_must_be_older_unless_they_are_covered(self, tmp_path: Path) -> None:
        (tmp_path / "lib").mkdir()
        file = tmp_path / "lib" / "part.py"
        file.write_text("x = 1\n")
        env, now = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(tmp_path / "lib")}, file.stat().st_ctime
        assert find_newer(["sh"], env, "/", [], now - 1) == str(file)
        assert find_newer(["sh"], env, "/", [], now + 1) == ""
        assert find_newer(["sh"], env, "/", [str(tmp_path)], now - 1) == ""

    def test_variables_of_a_session_make_no_difference(self) -> None:
        env = {"LEVEL": "1", "PWD": "/a", "SSH_CLIENT": "x", "SLURM_JOB_ID": "1"}
        assert variables_digest(env) == variables_digest({**env, "PWD": "/b", "SLURM_JOB_ID": "2"})
        assert variables_digest(env) != variables_digest({**env, "LEVEL": "2"})


@pytest.mark.parametrize("name", ["../level.txt", "{above}/level.txt"])
def test_a_file_elsewhere_that_the_program_names_in_quotes_is_not_covered(folder: Path, name: str) -> None:
    (folder.parent / "level.txt").write_text("2.5")
    (folder / "train.py").write_text("import tide\n")
    (folder / "tide.py").write_text(f"print(open({name.format(above=folder.parent)!r}).read(), '/tmp')\n")
    argv = ["python", "train.py"]
    found = find_uncovered(
        RecordedSpec(folder=str(folder)),
        captured(folder, argv, {}),
        argv,
        folder.parent / "runs",
        folder,
        program_files(argv, folder),
    )
    assert found == [str(folder.parent / "level.txt")]
