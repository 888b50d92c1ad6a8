"""A stranger's program in a container: no network, no file of this machine, and only its own folder to write to."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from busybox_image import make_image

from fairmile.base.errors import Unsupported, UsageError
from fairmile.runs.execute.isolation import isolated_environment
from fairmile.runs.record.spec import Input
from fairmile.runs.runs import Runs
from fairmile.workspace import Workspace


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Path]:
    """An environment file with an image of busybox that Podman knows."""
    if shutil.which("podman") is None or shutil.which("runc") is None or os.geteuid() != 0:
        pytest.skip("needs the programs podman and runc, and root")
    tree = make_image(tmp_path / "image")
    with tarfile.open(tmp_path / "image.tar", "w") as archive:
        archive.add(tree, arcname=".")
    short = tempfile.mkdtemp(prefix="podman-", dir="/tmp")  # Podman takes no more than 50 letters here
    storage = [f"--root={tmp_path}/storage", f"--runroot={short}", "--storage-driver=vfs", "--runtime=runc"]
    loaded = ["podman", *storage, "import", "--quiet", str(tmp_path / "image.tar"), "localhost/waves:1"]
    subprocess.run(loaded, check=True, capture_output=True)
    limits = ["--ulimit=nofile=1024:1024", "--ulimit=nproc=4096:4096"]
    container = {"runtime": "podman", "image": "localhost/waves:1", "options": limits, "program_options": storage}
    (tmp_path / "box.yaml").write_text(json.dumps({"container": container}))
    yield tmp_path / "box.yaml"
    subprocess.run(["podman", *storage, "rm", "--all", "--force", "--time=0"], check=True, capture_output=True)
    shutil.rmtree(short)


def test_a_crate_is_reproduced_without_seeing_this_machine(runs: Runs, box: Path, tmp_path: Path) -> None:
    (tmp_path / "private").write_text("secret")
    Path("data.txt").write_text("6")
    Path("count.sh").write_text(
        f"echo level 2.5; cat $1 > out.txt; cat {tmp_path}/private; touch /usr/x {tmp_path}/x; wc -l < /proc/net/dev\n"
    )
    first = runs.run(
        ["sh", "count.sh", "{inputs.data}"],
        metrics={"level": {"pattern": r"level ([\d.]+)"}},
        inputs={"data": Input(path="data.txt")},
        outputs=("out.txt",),
    )
    assert b"secret" in runs.output(first.id)
    (crate,) = runs.export(first.id, "rocrate", tmp_path / "c.zip", with_inputs=True)
    for path in (tmp_path / "x", Path("/usr/x")):
        path.unlink()
    environ = {**os.environ, "HOME": str(tmp_path), "FAIRMILE_HOME": str(tmp_path / "other")}
    other = Workspace.open(environ=environ).runs
    plan = other.rerun_plan(str(crate), container=str(box))
    assert plan.review is not None
    assert plan.review.environment == (f"container {box}: no network",)
    done = other.rerun(plan, trust=True)
    assert done.reproduced, (done.verdicts, other.output(done.again.id))
    printed = other.output(done.again.id).decode()
    assert "secret" not in printed
    # Two lines of head and the loop device: no network. What goes to the other stream may come later.
    assert "3" in [line.strip() for line in printed.splitlines()]
    assert not (tmp_path / "x").exists()
    assert not Path("/usr/x").exists()


def test_an_image_gets_the_options_that_cut_it_off_and_its_inputs_read_only(tmp_path: Path) -> None:
    given = tmp_path / "given.yaml"
    given.write_text("container: {image: 'docker.io/library/busybox:1', runtime: docker, options: ['--cpus=1']}")
    file = isolated_environment(str(given), {"data": Input(path="/d/x"), "far": Input(asset="y")}, tmp_path)
    made = json.loads(Path(file).read_text())["container"]
    assert made["options"][:2] == ["--cpus=1", "--network=none"]
    assert {"--read-only", "--cap-drop=all"} <= set(made["options"])
    assert made["binds"] == ["/d/x"]


def test_what_cannot_isolate_is_refused(tmp_path: Path) -> None:
    given = tmp_path / "given.yaml"
    given.write_text("container: {image: /images/waves, runtime: charliecloud}")
    with pytest.raises(Unsupported, match="charliecloud cannot run a program without network"):
        isolated_environment(str(given), {}, tmp_path)
    given.write_text("python: {packages: [numpy]}")
    with pytest.raises(UsageError, match="is not a container image"):
        isolated_environment(str(given), {}, tmp_path)
