"""One folder per point, written whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from fairmile.base import yaml
from fairmile.base.errors import Conflict, DiskFailure, NotFound, UsageError
from fairmile.compat.cloudmesh import read_project
from fairmile.sweeps import code_copy as snapshot
from fairmile.sweeps.generate import Generated, generate, plan_generation
from fairmile.sweeps.model import Definition, Point
from fairmile.sweeps.space import Space

SLURM = "#!/bin/bash\n#SBATCH --time={run.time}\npython train.py --lr {lr} --epoch {epoch}\n"
SHELL = "#!/bin/sh\necho {lr} {epoch} > done\n"


def definition(
    axes: Mapping[str, Any] | None = None, settings: Mapping[str, Any] | None = None, **more: Any
) -> Definition:
    axes = axes or {"lr": [0.1, 0.01], "epoch": [1, 2, 3]}
    settings = settings if settings is not None else {"run": {"time": "12:00:00", "folder": "/scratch/{lr}"}}
    return Definition("made", Space(axes), settings, lambda *path: "made.yaml:1", **more)


@pytest.fixture
def template(tmp_path: Path) -> Path:
    file = tmp_path / "job.in.slurm"
    file.write_text(SLURM)
    return file


@pytest.fixture
def shell(tmp_path: Path) -> Path:
    file = tmp_path / "job.in.sh"
    file.write_text(SHELL)
    return file


@pytest.fixture
def train(tmp_path: Path) -> Path:
    """A program and a folder of modules, as code to copy."""
    (tmp_path / "train.py").write_text("print('training')\n")
    (tmp_path / "lib" / "sub").mkdir(parents=True)
    (tmp_path / "lib" / "__pycache__").mkdir()
    (tmp_path / "lib" / "__pycache__" / "x.pyc").write_text("x")
    (tmp_path / "lib" / "sub" / "model.py").write_text("class Model: ...\n")
    (tmp_path / "lib" / "near").symlink_to("sub/model.py")
    (tmp_path / "lib" / "far").symlink_to("../train.py")
    return tmp_path / "train.py"


def made(template: Path | None, out: Path, *, of: Definition | None = None, **more: Any) -> Generated:
    return generate(of or definition(), template, out, environ={"USER": "me"}, **more)


def tree(folder: Path) -> dict[str, str]:
    """Return all that lies below a folder, with the content of files and the inode for telling rewritten ones."""
    return {
        str(path.relative_to(folder)): f"{path.lstat().st_ino} {path.read_text() if path.is_file() else ''}"
        for path in sorted(folder.rglob("*"))
    }


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


class TestFolders:
    def test_there_is_one_for_each_point_with_script_and_configuration(self, tmp_path: Path, template: Path) -> None:
        done = made(template, tmp_path / "out")
        points = list(definition().points)
        assert (done.count, done.kept) == (6, 0)
        assert names(tmp_path / "out") == {*(point.id for point in points), "made.json", "submit.sh"}
        for point in points:
            folder = tmp_path / "out" / point.id
            assert names(folder) == {"job.slurm", "config.yaml"}
            lr, epoch = point.values["lr"], point.values["epoch"]
            assert (folder / "job.slurm").read_text() == (
                f"#!/bin/bash\n#SBATCH --time=12:00:00\npython train.py --lr {lr} --epoch {epoch}\n"
            )
            assert yaml.load((folder / "config.yaml").read_text()) == {
                "run": {"time": "12:00:00", "folder": f"/scratch/{lr}"},
                "lr": lr,
                "epoch": epoch,
            }

    def test_scripts_can_be_executed(self, tmp_path: Path, shell: Path) -> None:
        made(shell, tmp_path / "out")
        subprocess.run(["./job.sh"], cwd=tmp_path / "out" / "lr_0.1_epoch_2", check=True)
        assert (tmp_path / "out" / "lr_0.1_epoch_2" / "done").read_text() == "0.1 2\n"

    def test_an_empty_folder_may_be_there(self, tmp_path: Path, template: Path) -> None:
        (tmp_path / "out").mkdir()
        made(template, tmp_path / "out")
        assert len(names(tmp_path / "out")) == 8

    def test_it_may_be_a_link_to_a_folder_elsewhere(self, tmp_path: Path, template: Path) -> None:
        (tmp_path / "scratch" / "mine").mkdir(parents=True)
        (tmp_path / "out").symlink_to(tmp_path / "scratch" / "mine")
        made(template, tmp_path / "out")
        assert len(names(tmp_path / "scratch" / "mine")) == 8
        assert names(tmp_path / "scratch") == {"mine"}

    def test_folders_above_it_are_made(self, tmp_path: Path, template: Path) -> None:
        assert made(template, tmp_path / "a" / "b").manifest == tmp_path / "a" / "b" / "made.json"
        assert names(tmp_path / "a") == {"b"}

    def test_the_template_may_come_from_the_definition_relative_to_its_file(
        self, tmp_path: Path, template: Path
    ) -> None:
        of = definition(fields={"template": "job.in.slurm"}, sources=(str(tmp_path / "made.yaml"),))
        made(None, tmp_path / "out", of=of)
        assert (tmp_path / "out" / "lr_0.1_epoch_1" / "job.slurm").exists()

    def test_progress_is_told_up_to_the_end(self, tmp_path: Path, template: Path) -> None:
        told: list[tuple[int, int]] = []
        of = definition({"lr": [0.1], "epoch": list(range(250))})
        made(template, tmp_path / "out", of=of, on_progress=lambda done, count: told.append((done, count)))
        assert told == [(100, 250), (200, 250), (250, 250)]


class TestCloudmesh:
    CONFIG = """\
ee: {time: "10:00:00", mode: h}
experiment: {directive: "a100-dgx,v100", epoch: "[1-2]", mem: "64GB", early: "False"}
system: {host: rivanna}
data: {scratch: "/scratch/{os.USER}/data", training: "{data.scratch}/one-day"}
"""

    def project(self, folder: Path) -> Definition:
        (folder / "config.yaml").write_text(self.CONFIG)
        return read_project([folder / "config.yaml"], environ={"USER": "me"})

    def test_a_configuration_tells_a_point_of_itself(self, tmp_path: Path) -> None:
        (tmp_path / "job.in.slurm").write_text("#SBATCH -t {ee.time}\n{slurm.sbatch}\n: {ee.identifier} {ee.uuid}\n")
        made(tmp_path / "job.in.slurm", tmp_path / "out", of=self.project(tmp_path))
        manifest = json.loads(next((tmp_path / "out").glob("*.json")).read_text())
        id = "directive_a100-dgx_epoch_2_mem_64GB_early_False"
        assert list(manifest)[1] == id
        assert manifest[id]["experiment"] == "directive=a100-dgx epoch=2 mem=64GB early=False"
        config = yaml.load((tmp_path / "out" / id / "config.yaml").read_text())
        assert manifest[id]["variables"] == config
        values = {"directive": "a100-dgx", "epoch": "2", "mem": "64GB", "early": "False"}
        assert config["experiment"] == {**values, "card_name": "a100"}
        assert config["data"]["training"] == "/scratch/me/data/one-day"
        assert config["ee"] == {"time": "10:00:00", "mode": "h", "identifier": id, "uuid": config["ee"]["uuid"]}
        script = (tmp_path / "out" / id / "job.slurm").read_text().splitlines()
        assert script[0] == "#SBATCH -t 10:00:00"
        assert len(script) > 3 and all(line.startswith("#SBATCH") for line in script[:-1])
        assert script[-1] == f": {id} {config['ee']['uuid']}"

    def test_every_point_has_a_uuid_of_its_own_that_it_keeps_when_an_axis_grows(self, tmp_path: Path) -> None:
        (tmp_path / "job.in.slurm").write_text("{ee.uuid}\n")
        made(tmp_path / "job.in.slurm", tmp_path / "out", of=self.project(tmp_path))
        uuids = {path.read_text() for path in tmp_path.glob("out/*/job.slurm")}
        assert len(uuids) == 4
        (tmp_path / "config.yaml").write_text(self.CONFIG.replace("[1-2]", "[1-3]"))
        grown = read_project([tmp_path / "config.yaml"], environ={"USER": "me"})
        assert made(tmp_path / "job.in.slurm", tmp_path / "out", of=grown).kept == 4
        assert {path.read_text() for path in tmp_path.glob("out/*/job.slurm")} > uuids


class TestManifest:
    def test_has_the_shape_of_cloudmesh(self, tmp_path: Path, template: Path, train: Path) -> None:
        done = made(template, tmp_path / "out", name="mine", copy=[train])
        manifest = json.loads((tmp_path / "out" / "mine.json").read_text())
        assert done.manifest == tmp_path / "out" / "mine.json"
        assert list(manifest) == [point.id for point in definition().points]
        folder = f"{tmp_path}/out/lr_0.01_epoch_3"
        assert manifest["lr_0.01_epoch_3"] == {
            "id": "lr_0.01_epoch_3",
            "directory": folder,
            "experiment": "lr=0.01 epoch=3",
            "script": f"{folder}/job.slurm",
            "config": f"{folder}/config.yaml",
            "variables": {"run": {"time": "12:00:00", "folder": "/scratch/0.01"}, "lr": 0.01, "epoch": 3},
            "copycode": [str(train)],
        }

    def test_is_json_whatever_numbers_the_settings_hold(self, tmp_path: Path, template: Path) -> None:
        made(template, tmp_path / "out", of=definition(settings={"run": {"time": float("inf")}}))
        text = (tmp_path / "out" / "made.json").read_text()
        assert json.loads(text, parse_constant=pytest.fail)["lr_0.1_epoch_1"]["variables"]["run"]["time"] == "inf"

    @pytest.mark.parametrize("name", ["a/b", ".json", "..", ".hidden", "a\0b"])
    def test_needs_a_name_for_a_file(self, tmp_path: Path, template: Path, name: str) -> None:
        with pytest.raises(UsageError, match="is not a file name"):
            made(template, tmp_path / "out", name=name)


class TestSubmitScripts:
    @pytest.mark.parametrize(
        ("script", "command"),
        [
            ("#!/bin/bash\n#SBATCH -n 1\n", "sbatch job.x"),
            ("#!/bin/sh\necho '1\n#SBATCH -n 1'\n", "/bin/sh job.x"),
            ("#BSUB -n 1\n", "bsub < job.x"),
            ("#!/bin/sh\n#PBS -l nodes=1\n", "qsub job.x"),
            ("echo\n", "sh job.x"),
            ("#!/bin/bash -l\n", "/bin/bash -l job.x"),
            ("# no #SBATCH line\n", "sh job.x"),
        ],
    )
    def test_submit_by_the_kind_of_script(self, tmp_path: Path, script: str, command: str) -> None:
        (tmp_path / "job.in.x").write_text(script)
        made(tmp_path / "job.in.x", tmp_path / "out")
        lines = (tmp_path / "out" / "submit.sh").read_text().splitlines()
        assert lines[2] == f"(cd lr_0.1_epoch_1 && {command})  # lr=0.1 epoch=1"
        assert len(lines) == 2 + 6

    def test_see_directives_that_a_placeholder_brings(self, tmp_path: Path) -> None:
        (tmp_path / "job.in").write_text("#!/bin/sh\n{slurm.sbatch}\necho\n")
        of = definition(settings={"slurm": {"sbatch": "#SBATCH -n 1\n#SBATCH -t 5"}})
        made(tmp_path / "job.in", tmp_path / "out", of=of)
        assert "&& sbatch job)" in (tmp_path / "out" / "submit.sh").read_text()

    def test_run_every_point_from_wherever_they_are_started_and_moved_to(self, tmp_path: Path, shell: Path) -> None:
        made(shell, tmp_path / "out")
        (tmp_path / "out").rename(tmp_path / "moved")
        subprocess.run([tmp_path / "moved" / "submit.sh"], cwd="/", check=True)
        assert sorted(path.read_text() for path in tmp_path.glob("moved/*/done")) == sorted(
            f"{lr} {epoch}\n" for lr in (0.1, 0.01) for epoch in (1, 2, 3)
        )

    @pytest.mark.parametrize("parts", [2, 4, 6])
    def test_can_be_split_so_that_each_point_is_in_one_part(self, tmp_path: Path, shell: Path, parts: int) -> None:
        done = made(shell, tmp_path / "out", split_among=parts)
        assert [path.name for path in done.submit] == ["submit.sh", *(f"submit-{part + 1}.sh" for part in range(parts))]
        lines = [path.read_text().splitlines()[2:] for path in done.submit]
        assert sorted(line for part in lines[1:] for line in part) == sorted(lines[0])
        assert max(map(len, lines[1:])) - min(map(len, lines[1:])) <= 1

    @pytest.mark.parametrize("parts", [0, -1, 7])
    def test_cannot_be_split_among_nobody_or_more_than_there_are_points(
        self, tmp_path: Path, shell: Path, parts: int
    ) -> None:
        with pytest.raises(UsageError, match="split"):
            made(shell, tmp_path / "out", split_among=parts)
        assert not (tmp_path / "out").exists()

    def test_hold_no_command_that_a_value_brings(self, tmp_path: Path, shell: Path) -> None:
        of = definition({"lr": ["x\ntouch owned\n#", "$(touch owned)"], "epoch": ["'; touch owned; '"]})
        (tmp_path / "job.in.sh").write_text("true\n")
        made(shell, tmp_path / "out", of=of)
        subprocess.run([tmp_path / "out" / "submit.sh"], check=True)
        assert not list(tmp_path.rglob("owned"))


class TestCode:
    def test_files_are_links_to_one_read_only_snapshot_and_folders_are_links_to_its_folders(
        self, tmp_path: Path, template: Path, train: Path
    ) -> None:
        made(template, tmp_path / "out", copy=[train, tmp_path / "lib"])
        points = [tmp_path / "out" / point.id for point in definition().points]
        assert len({(folder / "train.py").stat().st_ino for folder in points}) == 1
        assert (points[0] / "train.py").stat().st_nlink == 7
        assert (points[0] / "train.py").stat().st_mode & 0o222 == 0
        assert {os.readlink(folder / "lib") for folder in points} == {"../.code/lib"}
        assert (points[0] / "lib" / "sub" / "model.py").read_text() == "class Model: ...\n"
        assert not (points[0] / "lib" / "__pycache__").exists()
        train.write_text("changed")
        assert (points[0] / "train.py").read_text() == "print('training')\n"

    def test_links_in_a_folder_still_lead_to_what_they_led_to(
        self, tmp_path: Path, template: Path, train: Path
    ) -> None:
        made(template, tmp_path / "out", copy=[tmp_path / "lib"])
        copied = tmp_path / "out" / ".code" / "lib"
        assert os.readlink(copied / "near") == "sub/model.py"
        assert os.readlink(copied / "far") == str(train)

    def test_comes_from_the_definition_where_none_is_named(self, tmp_path: Path, template: Path, train: Path) -> None:
        of = definition(fields={"code": ["train.py"]}, sources=(str(tmp_path / "made.yaml"),))
        made(template, tmp_path / "out", of=of)
        assert (tmp_path / "out" / "lr_0.1_epoch_1" / "train.py").exists()

    def test_is_copied_where_links_cannot_be_made(
        self, tmp_path: Path, template: Path, train: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def link(source: str, target: str) -> None:
            raise OSError(errno.EPERM, "no links here", source)

        monkeypatch.setattr(os, "link", link)
        code = snapshot.Code.at(train)
        sources = {"train.py": str(train)}
        snapshot.link_code(code, str(tmp_path / "one"), sources, "")
        assert (tmp_path / "one").read_text() == train.read_text()
        assert sources == {"train.py": str(train)}

    def test_a_file_that_takes_no_more_links_gives_way_to_its_copy(
        self, tmp_path: Path, train: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        really = os.link

        def link(source: str, target: str) -> None:
            if os.stat(source).st_nlink >= 3:
                raise OSError(errno.EMLINK, "too many", source)
            really(source, target)

        monkeypatch.setattr(os, "link", link)
        sources = {"train.py": str(train)}
        for number in range(8):
            snapshot.link_code(snapshot.Code.at(train), str(tmp_path / f"{number}.py"), sources, "")
        inodes = [(tmp_path / f"{number}.py").stat().st_ino for number in range(8)]
        assert len(set(inodes)) == 3
        assert {(tmp_path / f"{number}.py").read_text() for number in range(8)} == {train.read_text()}

    def test_must_be_there_have_a_name_of_its_own_and_not_hold_the_output(
        self, tmp_path: Path, template: Path, train: Path
    ) -> None:
        with pytest.raises(NotFound, match=r"nothing\.py"):
            made(template, tmp_path / "out", copy=[tmp_path / "nothing.py"])
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "train.py").write_text("")
        with pytest.raises(UsageError, match="already has a file named"):
            made(template, tmp_path / "out", copy=[train, tmp_path / "other" / "train.py"])
        with pytest.raises(UsageError, match="is inside it"):
            made(template, tmp_path / "out", copy=[tmp_path])
        assert not (tmp_path / "out").exists()


class TestAgain:
    def test_the_same_sweep_changes_nothing(self, tmp_path: Path, template: Path, train: Path) -> None:
        made(template, tmp_path / "out", copy=[train])
        (tmp_path / "out" / "lr_0.1_epoch_1" / "result.txt").write_text("kept")
        before = {key: value for key, value in tree(tmp_path / "out").items() if "/" in key}
        assert made(template, tmp_path / "out", copy=[train]).kept == 6
        assert {key: value for key, value in tree(tmp_path / "out").items() if "/" in key} == before

    def test_a_longer_axis_adds_what_is_new(self, tmp_path: Path, template: Path, train: Path) -> None:
        made(template, tmp_path / "out", copy=[train], of=definition({"lr": [0.1], "epoch": [1, 2]}))
        before = tree(tmp_path / "out" / "lr_0.1_epoch_1")
        done = made(template, tmp_path / "out", copy=[train], of=definition({"lr": [0.1], "epoch": [1, 2, 3]}))
        assert (done.count, done.kept) == (3, 2)
        assert tree(tmp_path / "out" / "lr_0.1_epoch_1") == before
        assert (tmp_path / "out" / "lr_0.1_epoch_3" / "train.py").stat().st_nlink == 4
        assert list(json.loads(done.manifest.read_text())) == [f"lr_0.1_epoch_{epoch}" for epoch in (1, 2, 3)]
        assert len((tmp_path / "out" / "submit.sh").read_text().splitlines()) == 2 + 3

    def test_a_point_that_is_gone_is_made_again(self, tmp_path: Path, template: Path) -> None:
        made(template, tmp_path / "out")
        for path in (tmp_path / "out" / "lr_0.1_epoch_2").iterdir():
            path.unlink()
        (tmp_path / "out" / "lr_0.1_epoch_2").rmdir()
        assert made(template, tmp_path / "out").kept == 5
        assert (tmp_path / "out" / "lr_0.1_epoch_2" / "job.slurm").exists()

    @pytest.mark.parametrize("change", ["template", "settings", "code"])
    def test_what_would_differ_is_a_conflict_and_nothing_changes(
        self, tmp_path: Path, template: Path, train: Path, change: str
    ) -> None:
        made(template, tmp_path / "out", copy=[train])
        before = tree(tmp_path / "out")
        of = definition({"lr": [0.1], "epoch": [1, 9]})
        if change == "template":
            template.write_text(SLURM + "# more\n")
        elif change == "settings":
            of = definition({"lr": [0.1], "epoch": [1, 9]}, {"run": {"time": "1:00"}})
        else:
            train.write_text("changed")
        with pytest.raises(Conflict, match="code has changed" if change == "code" else "lr_0.1_epoch_1"):
            made(template, tmp_path / "out", copy=[train], of=of)
        assert tree(tmp_path / "out") == before
        assert not list(tmp_path.glob(".out*"))

    def test_a_folder_with_something_else_is_a_conflict(self, tmp_path: Path, template: Path) -> None:
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "thesis.tex").write_text("x")
        with pytest.raises(Conflict, match="is not empty"):
            made(template, tmp_path / "out")
        with pytest.raises(Conflict, match="is not empty"):
            plan_generation(definition(), template, tmp_path / "out", environ={})
        (tmp_path / "file").write_text("")
        with pytest.raises(Conflict, match="is a file"):
            made(template, tmp_path / "file")


class TestNothingHalfWritten:
    @pytest.mark.parametrize(
        ("text", "settings", "said"),
        [
            ("echo\n{no.such}\n", {}, r"job\.in\.slurm:2.*\{no\.such\}"),
            (
                "{time.{epoch}}\n",
                {"time": {"1": 5, "2": 6}},
                r"time\.3",
            ),  # defined for the first point, not for the last
        ],
    )
    def test_an_undefined_placeholder_stops_before_the_first_byte(
        self, tmp_path: Path, template: Path, text: str, settings: dict[str, Any], said: str
    ) -> None:
        template.write_text(text)
        for call in (made, lambda *given: plan_generation(definition(settings=settings), *given, environ={})):
            with pytest.raises(UsageError, match=said):
                call(
                    template,
                    tmp_path / "new" / "out",
                    **({"of": definition(settings=settings)} if call is made else {}),
                )
        assert not (tmp_path / "new").exists()

    def test_a_failure_in_the_middle_leaves_nothing(self, tmp_path: Path, template: Path) -> None:
        class Twice:
            axes: Mapping[str, Any] = {"lr": [0.1], "epoch": [1]}

            def __len__(self) -> int:
                return 2

            def __iter__(self) -> Iterator[Point]:
                yield Point(0, "same", {"lr": 0.1, "epoch": 1})
                yield Point(1, "same", {"lr": 0.1, "epoch": 1})

        of = Definition("made", Twice(), {"run": {"time": 1}}, lambda *path: "x")
        with pytest.raises(UsageError, match="two points"):
            made(template, tmp_path / "new" / "out", of=of)
        assert list((tmp_path / "new").iterdir()) == []

    def test_a_full_disk_is_named_and_leaves_nothing(self, tmp_path: Path, template: Path) -> None:
        disk = tmp_path / "disk"
        disk.mkdir()
        if subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(disk)], capture_output=True
        ).returncode:
            pytest.skip("needs root to mount a small file system")
        try:
            with pytest.raises(DiskFailure, match="No space left"):
                made(template, disk / "out", of=definition({"lr": [0.1], "epoch": list(range(500))}))
            assert names(disk) == set()
        finally:
            subprocess.run(["umount", "-l", str(disk)], check=True)

    @pytest.mark.thorough
    def test_a_killed_generation_leaves_no_output_and_the_next_cleans_up(self, tmp_path: Path, template: Path) -> None:
        code = (
            "import sys, pathlib; sys.path[:0] = [sys.argv[2]]\n"
            "from tests.sweeps.test_generate import definition, made\n"
            "of = definition({'lr': [0.1], 'epoch': list(range(100_000))})\n"
            "made(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[3]), of=of)\n"
        )
        root = str(Path(__file__).parents[2])
        process = subprocess.Popen([sys.executable, "-c", code, str(template), root, str(tmp_path / "out")])
        try:
            while not any(path for path in tmp_path.glob(".out.new-*/lr_*")):
                assert process.poll() is None
                time.sleep(0.05)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
        assert not (tmp_path / "out").exists()
        made(template, tmp_path / "out")
        assert {path.name for path in tmp_path.iterdir()} == {"out", template.name}

    def test_a_sweep_without_points_is_refused(self, tmp_path: Path, template: Path) -> None:
        of = Definition("made", Space({"lr": [1]}, select="lr > 5"), {}, lambda *path: "x")
        with pytest.raises(UsageError, match="no points"):
            made(template, tmp_path / "out", of=of)

    def test_a_point_cannot_have_the_name_of_the_manifest(self, tmp_path: Path, template: Path) -> None:
        with pytest.raises(UsageError, match="is reserved for a file"):
            made(
                template,
                tmp_path / "out",
                name="lr_x",
                of=definition({"lr": ["x.json"]}, {"run": {"time": 1}, "epoch": 1}),
            )


class TestPlan:
    def test_tells_what_would_be_written_and_writes_nothing(self, tmp_path: Path, template: Path, train: Path) -> None:
        given: dict[str, Any] = {"copy": [train, tmp_path / "lib"], "split_among": 2, "environ": {}}
        plan = plan_generation(definition(), template, tmp_path / "out", **given)
        assert not (tmp_path / "out").exists()
        assert plan.first is not None and plan.last is not None
        assert (plan.count, plan.checked) == (6, 6)
        assert (plan.first.id, plan.last.id) == ("lr_0.1_epoch_1", "lr_0.01_epoch_3")
        assert plan.axes == {"lr": [0.1, 0.01], "epoch": [1, 2, 3]}
        assert plan.submit == "(cd lr_0.1_epoch_1 && sbatch job.slurm)  # lr=0.1 epoch=1\n"
        generate(definition(), template, tmp_path / "out", **given)
        blocks = sum(
            path.lstat().st_blocks * 512 for path in (tmp_path / "out").rglob("*") if ".code" not in path.parts
        )
        assert plan.size_bytes == pytest.approx(blocks, rel=0.5)

    def test_of_a_large_sweep_tries_points_evenly(self, tmp_path: Path, template: Path) -> None:
        of = definition({"lr": [0.1, 0.2], "epoch": list(range(15_000))})
        plan = plan_generation(of, template, tmp_path / "out", environ={})
        assert (plan.count, plan.checked) == (30_000, 10_000)
