"""Models in container images: the model and its packages inside, the data bound in from outside."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from fairmile.base.errors import Conflict, Unsupported, UsageError
from fairmile.workspace import Workspace

ROOT = Path(__file__).parents[2]
TIDES = ROOT / "docs" / "examples" / "tides.onnx"


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.chdir(tmp_path)
    environ = {"HOME": str(tmp_path), "FAIRMILE_HOME": str(tmp_path / "home"), "PATH": "/usr/bin:/bin"}
    return Workspace.open(environ=environ, cwd=tmp_path)


def test_a_plan_has_the_definition_and_the_commands_of_each_runtime(workspace: Workspace, tmp_path: Path) -> None:
    for runtime, first in (("podman", "FROM python:3"), ("apptainer", "Bootstrap: docker"), ("charliecloud", "FROM")):
        plan = workspace.models.package(TIDES, "image", runtime=runtime, base="python:3", dry_run=True)
        assert plan.text.startswith(first)
        assert "/model/tides.onnx" in plan.text
        assert "pip install" in plan.text
        assert plan.shell_lines()[0] == f"cd {tmp_path}/image"
        assert list(plan.run)[-3:] == ["/model/tides.onnx", "/data/inputs.npz", "/data/predictions.npz"]
        assert any(f"{tmp_path}/data" in each for each in plan.run)
        assert "without network, use --base with an image that is stored there" in plan.notes[-1]
    assert not Path("image").exists()


def test_the_folder_has_the_model_and_what_it_needs_pinned(workspace: Workspace) -> None:
    packaged = workspace.models.package(TIDES, "image", base="python:3")
    assert (Path("image") / "files" / "0").read_bytes() == TIDES.read_bytes()
    wanted = (Path("image") / "requirements.txt").read_text().split()
    assert [each.partition("==")[0] for each in wanted] == ["fairmile", "numpy", "onnxruntime"]
    assert set(packaged.files) == {"Containerfile", "requirements.txt", "files/0"}
    with pytest.raises(Conflict, match="image is not empty"):
        workspace.models.package(TIDES, "image", base="python:3")


def test_weights_alone_and_pickles_are_refused(workspace: Workspace) -> None:
    save_file({"w": np.zeros(2, np.float32)}, "w.safetensors")
    with pytest.raises(Unsupported, match="holds no model that runs by itself"):
        workspace.models.package("w.safetensors", "image")
    Path("model.pkl").write_bytes(b"cos\nsystem\n(S'touch done'\ntR.")
    with pytest.raises(UsageError, match=r"loading it would run os\.system"):
        workspace.models.package("model.pkl", "image")


@pytest.mark.thorough
def test_the_printed_commands_build_the_image_and_run_the_model_on_data_outside(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("podman") is None or shutil.which("runc") is None or os.geteuid() != 0:
        pytest.skip("needs the programs podman and runc, as root")
    with tempfile.TemporaryDirectory(prefix="podman-", dir="/tmp") as short:
        (tmp_path / "storage.conf").write_text(
            f'[storage]\ndriver="vfs"\ngraphroot="{tmp_path}/storage"\nrunroot="{short}"\n'
        )
        (tmp_path / "containers.conf").write_text('[engine]\nruntime="runc"\ncgroup_manager="cgroupfs"\n')
        monkeypatch.setenv("CONTAINERS_STORAGE_CONF", str(tmp_path / "storage.conf"))
        monkeypatch.setenv("CONTAINERS_CONF", str(tmp_path / "containers.conf"))
        monkeypatch.setenv("BUILDAH_ISOLATION", "chroot")
        subprocess.run(["podman", "import", "--quiet", _base(tmp_path), "localhost/base:1"], check=True)
        (tmp_path / "data").mkdir()
        rows = np.ones((4, 3), np.float32)
        np.savez(tmp_path / "data" / "inputs.npz", x=rows)
        # The image borrows this machine's Python and packages, since none can be pulled here.
        places = dict.fromkeys(("/usr", sys.prefix, sys.base_prefix, str(ROOT)))
        options = [f"--mount=type=bind,source={each},target={each},readonly" for each in places]
        options += ["--network=none", "--ulimit=nofile=1024:1024", "--ulimit=nproc=4096:4096"]
        options += [f"--env=PATH={sys.prefix}/bin:/usr/bin"]
        made = workspace.models.package(TIDES, "image", base="localhost/base:1", install=False, options=options)
        for command in (*made.build, made.run):
            subprocess.run(command, cwd=made.folder, check=True)
        written = np.load(tmp_path / "data" / "predictions.npz")["output"]
        np.testing.assert_array_equal(written, workspace.models.apply(TIDES, rows))


def _base(folder: Path) -> str:
    """Return an archive of an image with the folders of a Linux system, and nothing in them."""
    root = folder / "base"
    for each in ("usr", "etc", "proc", "dev", "sys", "tmp", "data", "model", "root"):
        (root / each).mkdir(parents=True)
    for each in ("bin", "lib", "lib64", "sbin"):
        (root / each).symlink_to(f"usr/{each}")
    (root / "etc" / "passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    with tarfile.open(folder / "base.tar", "w") as archive:
        archive.add(root, arcname=".")
    return str(folder / "base.tar")
