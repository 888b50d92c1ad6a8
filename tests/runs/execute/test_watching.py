"""What a program opens is an input of its run: found while it runs, and looked at again before a result is reused."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fairmile.base.digest import sha256_hex
from fairmile.runs.execute.carrier import recorder_bytes
from fairmile.runs.execute.executor import PreparedRun
from fairmile.runs.plan import Step
from fairmile.runs.record.layout import write_record
from fairmile.runs.record.run import Run
from fairmile.workspace import Workspace

MEANS = ["preload", "python"]
PROGRAM = ("train.py", "--n", "1,2")
HAS_COMPILER = any(map(shutil.which, ("cc", "gcc", "clang")))


@pytest.fixture(params=MEANS)
def workspace(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A workspace whose programs are watched by one of the means."""
    if request.param == "preload" and not HAS_COMPILER:
        pytest.skip("there is no C compiler")
    return open_workspace(tmp_path, monkeypatch, "" if request.param == "preload" else request.param)


def open_workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, means: str) -> Workspace:
    place = tmp_path / "project"
    place.mkdir()
    monkeypatch.chdir(place)
    monkeypatch.delenv("PYTHONPATH", raising=False)  # programs would look around there, too
    environ = {**os.environ, "HOME": str(tmp_path), "FAIRMILE_HOME": str(tmp_path / "home"), "FAIRMILE_WATCH": means}
    return Workspace.open(environ=environ)


def run(workspace: Workspace, *command: str, outputs: tuple[str, ...] = ()) -> tuple[Run, str]:
    """Return the run of a command, and what is said of an earlier one."""
    steps: list[Step] = []
    done = workspace.runs.run(command, again=False, on_step=steps.append, outputs=outputs)
    assert done.state == "done", workspace.runs.output(done.id)
    return done, " ".join(f"{step.verb}: {step.what}" for step in steps)


def reads_of(run: Run) -> dict[str, str]:
    """Return the names of what a run read, with the first letters of each digest."""
    assert run.captured.coverage is not None
    assert run.captured.coverage.reads is not None
    return {os.path.basename(path): read.sha256[:4] for path, read in run.captured.coverage.reads.items()}


def write_program(text: str) -> tuple[str, str]:
    Path("train.py").write_text(text)
    return sys.executable, "train.py"


class TestAFileBesideTheProgram:
    def test_is_an_input_where_it_was_read(self, workspace: Workspace) -> None:
        Path("data.txt").write_text("1 2")
        Path("notes.txt").write_text("nobody reads this")
        command = write_program("print(open('data.txt').read())")
        first, _ = run(workspace, *command)
        assert reads_of(first) == {"data.txt": sha256_hex(b"1 2")[:4]}
        Path("notes.txt").write_text("nobody reads this either")
        known, said = run(workspace, *command)
        assert known.id == first.id
        assert said.startswith(f"reuse: run {first.id}")

        Path("data.txt").write_text("1 3")
        again, said = run(workspace, *command)
        assert again.id != first.id
        assert "but data.txt, which it read, changed" in said
        assert run(workspace, *command)[0].id == again.id

    def test_that_is_new_may_be_looked_for(self, workspace: Workspace) -> None:
        command = write_program("import os; print(os.path.exists('extra.txt'))")
        Path("other.txt").write_text("1")
        first, _ = run(workspace, *command)
        Path("extra.txt").write_text("1")
        again, said = run(workspace, *command)
        assert again.id != first.id
        assert "were added or removed" in said

    def test_that_a_program_writes_and_reads_is_none(self, workspace: Workspace) -> None:
        command = write_program("open('made.txt', 'w').write('1'); print(open('made.txt').read())")
        first, _ = run(workspace, *command, outputs=("made.txt",))
        assert reads_of(first) == {}
        os.unlink("made.txt")
        known, said = run(workspace, *command, outputs=("made.txt",))
        assert known.id == first.id
        assert "restore: made.txt" in said
        assert Path("made.txt").read_text() == "1"

    def test_is_seen_behind_a_link_to_a_folder(self, workspace: Workspace, tmp_path: Path) -> None:
        (tmp_path / "scratch").mkdir()
        (tmp_path / "scratch" / "data.txt").write_text("1")
        Path("data").symlink_to(tmp_path / "scratch")
        command = write_program("print(open('data/data.txt').read())")
        first, _ = run(workspace, *command)
        assert run(workspace, *command)[0].id == first.id
        (tmp_path / "scratch" / "data.txt").write_text("2")
        assert "data.txt, which it read, changed" in run(workspace, *command)[1]

    def test_that_is_changed_without_being_declared_ends_reuse(self, workspace: Workspace) -> None:
        Path("state.txt").write_text("1")
        command = write_program("n = int(open('state.txt').read()); open('state.txt', 'w').write(str(n + 1))")
        first, _ = run(workspace, *command)
        again, said = run(workspace, *command)
        assert again.id != first.id
        assert "it wrote state.txt without declaring it" in said


class TestAFileElsewhere:
    def test_is_an_input_by_whatever_path_it_is_opened(self, workspace: Workspace, tmp_path: Path) -> None:
        (tmp_path / "far").mkdir()
        (tmp_path / "far" / "data.txt").write_text("1")
        command = write_program(
            "import os; print(open(os.path.join(os.environ['HOME'], 'far', 'data' + '.txt')).read())"
        )
        first, _ = run(workspace, *command)
        assert reads_of(first) == {"data.txt": sha256_hex(b"1")[:4]}
        assert run(workspace, *command)[0].id == first.id
        (tmp_path / "far" / "data.txt").write_text("2")
        again, said = run(workspace, *command)
        assert again.id != first.id
        assert "far/data.txt, which it read, changed" in said

    def test_that_was_not_there_and_is_now_counts(self, workspace: Workspace, tmp_path: Path) -> None:
        command = write_program(
            "import os\ntry:\n    open(os.environ['HOME'] + '/.tide').read()\nexcept OSError:\n    print('none')"
        )
        first, _ = run(workspace, *command)
        assert run(workspace, *command)[0].id == first.id
        (tmp_path / ".tide").write_text("1")
        assert ".tide, which it read, now exists" in run(workspace, *command)[1]

    def test_of_a_folder_that_is_listed_counts_by_its_name(self, workspace: Workspace, tmp_path: Path) -> None:
        (tmp_path / "far").mkdir()
        command = write_program("import os; print(os.listdir(os.environ['HOME'] + '/far'))")
        first, _ = run(workspace, *command)
        assert run(workspace, *command)[0].id == first.id
        (tmp_path / "far" / "new.txt").write_text("1")
        assert "far, which it read, changed" in run(workspace, *command)[1]

    def test_is_seen_in_child_processes(self, workspace: Workspace, tmp_path: Path) -> None:
        (tmp_path / "child.txt").write_text("1")
        command = write_program(
            "import os, subprocess, sys\n"
            "file = os.environ['HOME'] + '/child.txt'\n"
            "subprocess.run([sys.executable, '-c', 'import sys; open(sys.argv[1])', file], check=True)"
        )
        assert "child.txt" in reads_of(run(workspace, *command)[0])

    @pytest.mark.thorough
    def test_that_is_written_first_by_a_parent_is_none(self, workspace: Workspace) -> None:
        command = write_program(
            "import subprocess, sys, tempfile\n"
            "with tempfile.NamedTemporaryFile('w', suffix='.txt') as file:\n"
            "    file.write('1'); file.flush()\n"
            "    subprocess.run([sys.executable, '-c', 'import sys; open(sys.argv[1]).read()', file.name], check=True)"
        )
        assert reads_of(run(workspace, *command)[0]) == {}


class TestASitecustomizeOfTheUser:
    def test_still_runs_and_the_path_is_clean(self, workspace: Workspace, tmp_path: Path) -> None:
        (tmp_path / "own").mkdir()
        (tmp_path / "own" / "sitecustomize.py").write_text("import builtins; builtins.mark = 'ran'")
        command = write_program("import sys; print(mark, [each for each in sys.path if 'audit' in each])")
        done = workspace.runs.run(command, env={"PYTHONPATH": str(tmp_path / "own")})
        assert bytes(workspace.runs.output(done.id)) == b"ran []\n"


class TestOtherPrograms:
    SCRIPT = "cat data.txt\nread -r line < $HOME/far.txt\necho $line\n"

    @pytest.mark.skipif(not HAS_COMPILER, reason="there is no C compiler")
    def test_are_watched_by_the_library(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        workspace = open_workspace(tmp_path, monkeypatch, "")
        Path("data.txt").write_text("1\n")
        Path("go.sh").write_text(self.SCRIPT)
        (tmp_path / "far.txt").write_text("2\n")
        first, _ = run(workspace, "sh", "go.sh")
        assert reads_of(first).keys() == {"data.txt", "far.txt"}
        assert run(workspace, "sh", "go.sh")[0].id == first.id
        (tmp_path / "far.txt").write_text("3\n")
        assert "far.txt, which it read, changed" in run(workspace, "sh", "go.sh")[1]

    @pytest.mark.skipif(not HAS_COMPILER, reason="there is no C compiler")
    def test_need_the_library_built_once_for_all_workspaces(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "gcc").write_text(
            f'#!/bin/sh\necho built >> {tmp_path}/builds\nexec /usr/bin/env -S cc "$@"\n'
        )
        (tmp_path / "bin" / "gcc").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            first, _ = run(open_workspace(tmp_path / name, monkeypatch, ""), "true")
            assert first.captured.coverage is not None
            assert first.captured.coverage.unwatched == []
        assert (tmp_path / "builds").read_text() == "built\n"

    def test_are_run_again_where_nothing_watches_them(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        workspace = open_workspace(tmp_path, monkeypatch, "off")
        Path("data.txt").write_text("1\n")
        Path("go.sh").write_text(self.SCRIPT)
        (tmp_path / "far.txt").write_text("2\n")
        first, _ = run(workspace, "sh", "go.sh")
        assert reads_of(first).keys() == {"data.txt"}
        assert first.captured.coverage is not None
        assert first.captured.coverage.unwatched == ["files elsewhere that sh opened"]
        again, said = run(workspace, "sh", "go.sh")
        assert again.id != first.id
        assert "but not watched: files elsewhere that sh opened" in said

    def test_and_libraries_that_open_files_by_themselves_are_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        workspace = open_workspace(tmp_path, monkeypatch, "python")
        first, _ = run(workspace, *write_program("import sqlite3, os; os.system('true')"))
        assert first.captured.coverage is not None
        assert first.captured.coverage.unwatched == ["files elsewhere that sqlite3, sh opened"]


class TestPointsOfASweep:
    def test_record_what_each_of_them_read(
        self, workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FAIRMILE_WATCH", workspace.environ["FAIRMILE_WATCH"])
        Path("data.txt").write_text("1 2")
        Path("unread.txt").write_text("3")
        Path("large.bin").write_bytes(b"x" * 2_000_000)  # which points see as a link
        (tmp_path / "far.txt").write_text("4")
        Path("train.py").write_text(
            "import sys, time\n"
            f"print(open('data.txt').read(), open('{tmp_path}/far.txt').read(), open('train.py').read())\n"
            "open('own.txt', 'w').write('5'); open('own.txt').read()\n"
            # What a longer run read is worth a digest.
            "if sys.argv[2] == '2': time.sleep(0.3); open('large.bin', 'rb').read()\n"
        )
        status = workspace.sweeps.run(workspace.sweeps.create(*workspace.sweeps.read(program=PROGRAM)))
        one, two = (workspace.runs.get(each.run) for each in status)
        small = {"data.txt": sha256_hex(b"1 2")[:4], "far.txt": sha256_hex(b"4")[:4]}
        assert reads_of(one) == small
        assert reads_of(two) == {**small, "large.bin": sha256_hex(b"x" * 2_000_000)[:4]}
        assert one.read_beside == {"data.txt": str(Path("data.txt").absolute())}

    def test_say_what_was_not_watched(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("FAIRMILE_WATCH", "off")  # points are executed with the variables of this process
        workspace = open_workspace(tmp_path, monkeypatch, "off")
        Path("train.py").write_text("import sys\nprint(sys.argv)\n")
        (one, _) = workspace.sweeps.run(workspace.sweeps.create(*workspace.sweeps.read(program=PROGRAM)))
        coverage = workspace.runs.get(one.run).captured.coverage
        assert coverage is not None
        (unwatched,) = coverage.unwatched
        assert coverage.reads is None
        assert unwatched.startswith("files that python")


def test_a_recorder_that_travels_as_one_file_watches_as_well(workspace: Workspace, tmp_path: Path) -> None:
    Path("data.txt").write_text("1 2")
    plan = workspace.runs.plan(write_program("print(open('data.txt').read())"))
    prepared = workspace.runs.prepare(plan)
    assert isinstance(prepared, PreparedRun)
    write_record(prepared.folder, prepared.record)
    recorder = tmp_path / "recorder.pyz"
    recorder.write_bytes(recorder_bytes())
    command = [sys.executable, "-I", str(recorder), str(prepared.folder), "--", sys.executable, "train.py"]
    subprocess.run(command, check=True, env=dict(workspace.environ), cwd="/")
    assert reads_of(workspace.runs.get(prepared.id))["data.txt"] == sha256_hex(b"1 2")[:4]


class TestALargeFile:
    def test_that_would_take_too_long_to_read_counts_by_its_stamp(self, workspace: Workspace) -> None:
        with open("large.bin", "wb") as file:
            file.truncate(300_000_000)
        command = write_program("print(open('large.bin', 'rb').read(1))")
        first, _ = run(workspace, *command)
        assert first.captured.coverage is not None
        assert first.captured.coverage.reads is not None
        (read,) = first.captured.coverage.reads.values()
        assert (read.sha256, read.size_bytes) == ("", 300_000_000)
        assert run(workspace, *command)[0].id == first.id
        os.utime("large.bin")
        assert "large.bin, which it read, changed" in run(workspace, *command)[1]


def test_no_content_and_no_log_stays_behind(workspace: Workspace) -> None:
    Path("secret.txt").write_text("hunter2")
    done, _ = run(workspace, *write_program("open('secret.txt').read()"))
    kept = b"".join(file.read_bytes() for file in done.folder.rglob("*") if file.is_file())
    assert b"hunter2" not in kept
    assert not (done.folder / "opened.log").exists()


@pytest.mark.skipif(not HAS_COMPILER, reason="there is no C compiler")
def test_what_watches_is_no_file_of_a_program_that_runs_above_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    workspace = Workspace.open(
        environ={**os.environ, "HOME": str(tmp_path / "ada"), "FAIRMILE_HOME": str(tmp_path / "home")}
    )
    done, _ = run(workspace, *write_program("open('level.txt', 'w').write('2.5')"))
    assert list((tmp_path / "ada" / ".cache" / "fairmile").glob("opened-*.so"))
    assert [os.path.basename(name) for name in done.undeclared] == ["level.txt"]
