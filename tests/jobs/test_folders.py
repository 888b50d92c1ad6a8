"""The folders of jobs, here and on a machine that ssh reaches, keep the same promises."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fairmile.base.commands import Result, Ssh
from fairmile.base.errors import FairmileError, NotFound
from fairmile.jobs.folders import JobFolders, LocalJobFolders, RemoteJobFolders
from fairmile.jobs.machines import connections_folder


class Counting:
    """Passes commands on and counts the bytes that went with them."""

    def __init__(self, runner: Ssh) -> None:
        self.runner = runner
        self.sent_bytes = 0

    def run(self, argv: Any, **options: Any) -> Result:
        self.sent_bytes += len(options.get("input") or b"")
        return self.runner.run(argv, **options)


@pytest.fixture
def far(sshd: Any) -> Counting:
    return Counting(Ssh(sshd.host, config=sshd.config, shared=connections_folder()))


@pytest.fixture(params=["near", "far"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> JobFolders:
    root = tmp_path / "the jobs"
    if request.param == "near":
        return LocalJobFolders(root)
    return RemoteJobFolders(str(root), request.getfixturevalue("far"))


@pytest.fixture
def given(tmp_path: Path) -> Callable[[str, bytes], Path]:
    def make(name: str, data: bytes) -> Path:
        path = tmp_path / "given" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return path

    return make


def test_a_job_gets_a_folder_with_its_files(place: JobFolders, given: Callable[[str, bytes], Path]) -> None:
    folder = Path(place.make("a-1", {"script.sh": "echo ü\n", "deep/er/x": ""}, {"in put.bin": given("i", b"\0\xff")}))
    assert folder == Path(place.root, "a-1")
    assert (folder / "script.sh").read_text() == "echo ü\n"
    assert (folder / "deep/er/x").read_text() == ""
    assert (folder / "in put.bin").read_bytes() == b"\0\xff"


def test_a_program_among_the_inputs_can_be_run(place: JobFolders, given: Callable[[str, bytes], Path]) -> None:
    program = given("run.sh", b"#!/bin/sh\n")
    program.chmod(0o755)
    folder = Path(place.make("a-1", {}, {"run.sh": program}))
    assert os.access(folder / "run.sh", os.X_OK)


def test_a_folder_among_the_inputs_comes_whole(place: JobFolders, given: Callable[[str, bytes], Path]) -> None:
    given("code/pkg/a.py", b"a")
    given("code/b.py", b"b")
    folder = Path(place.make("a-1", {}, {"code": given("code/b.py", b"b").parent}))
    assert sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*.py")) == ["code/b.py", "code/pkg/a.py"]


def test_a_job_may_write_into_its_input_without_changing_the_original(
    place: JobFolders, given: Callable[[str, bytes], Path]
) -> None:
    original = given("i", b"original")
    folder = Path(place.make("a-1", {}, {"i": original}))
    (folder / "i").write_bytes(b"changed")
    assert original.read_bytes() == b"original"
    assert Path(place.make("a-2", {}, {"i": original}), "i").read_bytes() == b"original"


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x"])
def test_nothing_is_written_outside_a_near_folder(name: str, tmp_path: Path) -> None:
    with pytest.raises(FairmileError):
        LocalJobFolders(tmp_path / "jobs").make("a-1", {name: "x"}, {})


def test_notes_of_many_jobs_are_read_at_once(place: JobFolders) -> None:
    for job in ("a-1", "a-2"):
        place.make(job, {"script.sh": "", "started": f'{{"host": "{job}"}}\n', "ended.3": "{}"}, {})
    found = place.look(["a-1", "a-2", "a-3"])
    assert found["a-1"]["started"].strip() == '{"host": "a-1"}'
    assert set(found["a-2"]) == {"started", "ended.3"}
    assert not found.get("a-3")


def test_a_log_is_read_in_pieces_and_from_its_end(place: JobFolders) -> None:
    folder = Path(place.make("a-1", {}, {}))
    (folder / "out.log").write_bytes(b"\xff0123456789")
    assert place.read("a-1", "out.log", 0, 4) == b"\xff012"
    assert place.read("a-1", "out.log", 4, 100) == b"3456789"
    assert place.read("a-1", "out.log", -3, 100) == b"789"
    assert place.read("a-1", "out.log", 11, 100) == b""
    assert place.read("a-1", "none.log", 0, 100) == b""


def test_outputs_come_back_byte_for_byte(place: JobFolders, tmp_path: Path) -> None:
    folder = Path(place.make("a-1", {}, {}))
    data = os.urandom(100_000)
    (folder / "out").mkdir()
    (folder / "out" / "my model.bin").write_bytes(data)
    place.bring("a-1", "out/my model.bin", tmp_path / "here" / "m.bin")
    assert (tmp_path / "here" / "m.bin").read_bytes() == data


def test_an_output_that_is_not_there_is_named(place: JobFolders, tmp_path: Path) -> None:
    place.make("a-1", {}, {})
    with pytest.raises(NotFound, match=r"model\.bin"):
        place.bring("a-1", "model.bin", tmp_path / "m.bin")
    assert not (tmp_path / "m.bin").exists()


def test_a_folder_of_outputs_comes_back_whole(place: JobFolders, tmp_path: Path) -> None:
    folder = Path(place.make("a-1", {"out/a": "1", "out/deep/b c": "2"}, {}))
    assert folder.exists()
    place.bring("a-1", "out", tmp_path / "here")
    assert sorted(p.read_text() for p in (tmp_path / "here").rglob("*") if p.is_file()) == ["1", "2"]


def test_files_of_the_program_are_no_notes_and_stay(place: JobFolders) -> None:
    folder = Path(place.make("a-1", {"started_well": "x", "ended.1.ckpt": "x", "ended.1": "{}"}, {}))
    (folder / "started.d").mkdir()
    (folder / "ended").mkdir()
    assert set(place.look(["a-1"])["a-1"]) == {"ended.1"}
    (folder / "ended").rmdir()
    place.forget("a-1")
    assert sorted(os.listdir(folder)) == ["ended.1.ckpt", "started.d", "started_well"]


def test_nobody_else_can_look_into_the_folder_of_a_job(place: JobFolders) -> None:
    assert os.stat(place.make("a-1", {"script.sh": "export TOKEN=x"}, {})).st_mode & 0o077 == 0


def test_scripts_and_texts_stay_private_where_the_folder_is_copied_or_opened(
    place: JobFolders, given: Callable[[str, bytes], Path]
) -> None:
    program = given("tool", b"#!/bin/sh\n")
    program.chmod(0o755)
    for _ in range(2):  # an attempt after the first finds the files, whatever became of their modes
        folder = Path(place.make("a", {"script.sh": "export TOKEN=x\n", "deep/settings": "y"}, {"tool": program}))
        modes = {name: (folder / name).stat().st_mode & 0o777 for name in ("script.sh", "deep/settings", "tool")}
        assert modes == {"script.sh": 0o600, "deep/settings": 0o600, "tool": 0o755}
        assert (folder / "script.sh").read_text() == "export TOKEN=x\n"
        (folder / "script.sh").chmod(0o644)


def test_notes_of_an_earlier_attempt_are_forgotten_and_nothing_else(place: JobFolders) -> None:
    folder = Path(place.make("a-1", {"started": "{}", "ended": "{}", "out.log": "x"}, {}))
    place.forget("a-1")
    assert sorted(os.listdir(folder)) == ["out.log"]


def test_a_removed_job_leaves_nothing(place: JobFolders) -> None:
    folder = Path(place.make("a-1", {"x": ""}, {}))
    place.remove("a-1")
    assert not folder.exists()


def test_a_file_that_is_over_there_already_does_not_move_again(
    far: Counting, tmp_path: Path, given: Callable[[str, bytes], Path]
) -> None:
    place = RemoteJobFolders(str(tmp_path / "jobs"), far)
    data = os.urandom(300_000)
    place.make("a-1", {}, {"data": given("data", data)})
    assert far.sent_bytes >= len(data)
    before = far.sent_bytes
    folder = place.make("a-2", {}, {"other name": given("again", data)})
    assert far.sent_bytes - before < 1000
    assert Path(folder, "other name").read_bytes() == data


def test_what_is_left_of_a_cut_upload_is_not_taken_for_the_file(
    far: Counting, tmp_path: Path, given: Callable[[str, bytes], Path]
) -> None:
    source = given("data", b"x" * 1000)
    place = RemoteJobFolders(str(tmp_path / "jobs"), far)
    staged = Path(place.root, ".staged")
    staged.mkdir()
    from fairmile.base.digest import sha256_file

    (staged / f"{sha256_file(source)}.999").write_bytes(b"x" * 10)
    assert Path(place.make("a-1", {}, {"data": source}), "data").read_bytes() == b"x" * 1000


def test_a_folder_without_a_slash_is_below_the_home_folder_over_there(far: Counting) -> None:
    place = RemoteJobFolders("fairmile-place-test", far)
    try:
        assert place.root == str(Path.home() / "fairmile-place-test")
    finally:
        Path(place.root).rmdir()
