"""A Jupyter kernel starts inside an environment, with its modules and its packages."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from fairmile.base.commands import Here
from fairmile.base.errors import Conflict, SystemFailure
from fairmile.envs.kernel import Kernel, check_kernel, install_kernel, kernels_folder, kernelspec
from fairmile.envs.shells import Assign, ModuleLine, Prepend, render

_LMOD = Path("/usr/share/lmod/lmod/init/bash")


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with a package of its own, which also sees the packages of the tests."""
    folder = tmp_path_factory.mktemp("kernel") / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    packages = folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    (packages / "wave_package.py").write_text("HEIGHT = 3\n")
    (packages / "tests.pth").write_text(f"{sysconfig.get_paths()['purelib']}\n")
    return folder


def in_prefix(prefix: Path) -> tuple[str, ...]:
    return render([Assign("VIRTUAL_ENV", str(prefix), literal=True), Prepend("PATH", prefix / "bin")])


def run_cell(folder: Path, name: str, code: str) -> str:
    """Return what a cell prints in a kernel that is found in `folder`, started and ended."""
    pytest.importorskip("ipykernel", reason="needs ipykernel")
    client_module = pytest.importorskip("jupyter_client", reason="needs jupyter_client")
    from jupyter_client.kernelspec import KernelSpecManager

    manager = client_module.KernelManager(
        kernel_name=name, kernel_spec_manager=KernelSpecManager(kernel_dirs=[str(folder)])
    )
    manager.start_kernel(cwd=str(folder))
    client = manager.client()
    printed: list[str] = []

    def hear(message: dict[str, dict[str, str]]) -> None:
        printed.append(message["content"].get("text") or message["content"].get("evalue") or "")

    try:
        client.start_channels()
        client.wait_for_ready(timeout=120)
        client.execute_interactive(code, timeout=120, output_hook=hear)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    return "".join(printed)


@pytest.mark.skipif(not _LMOD.exists(), reason="needs Lmod")
def test_a_cell_sees_the_modules_variable_and_the_prefixs_package(prefix: Path, tmp_path: Path) -> None:
    (tmp_path / "modules/waves").mkdir(parents=True)
    (tmp_path / "modules/waves/1.0.lua").write_text('setenv("WAVE_HEIGHT", "3 m")\n')
    modules = [ModuleLine(f"module use {tmp_path}/modules"), ModuleLine("module load waves/1.0")]
    kernel = kernelspec("waves", [*render(modules), *in_prefix(prefix)], system="laptop", prefix=prefix)
    check_kernel(kernel, Here())
    install_kernel(kernel, tmp_path / "kernels")
    code = "import os, sys, wave_package; print(os.environ['WAVE_HEIGHT'], wave_package.HEIGHT, sys.prefix)"
    assert run_cell(tmp_path / "kernels", kernel.name, code) == f"3 m 3 {prefix}\n"


def test_a_wrapped_kernel_is_told_where_its_connection_file_lies(prefix: Path, tmp_path: Path) -> None:
    kernel = kernelspec("waves", in_prefix(prefix), wrap=("env", "WRAPPED=it's so"))
    assert kernel.spec["interrupt_mode"] == "message"
    install_kernel(kernel, tmp_path)
    code = "import os; print(os.environ['WRAPPED'], len(os.listdir(os.environ['FAIRMILE_BIND'])) > 0)"
    assert run_cell(tmp_path, kernel.name, code) == "it's so True\n"


def test_what_jupyter_reads_names_the_environment_and_the_system(tmp_path: Path) -> None:
    kernel = kernelspec("CosmoFlow TF", ["module load cuda"], system="juwels", prefix=Path("/envs/ab"))
    folder = install_kernel(kernel, tmp_path)
    assert folder == tmp_path / "fairmile-cosmoflow-tf-juwels"
    assert json.loads((folder / "kernel.json").read_text()) == {
        "argv": ["bash", "{resource_dir}/start.sh", "{connection_file}"],
        "display_name": "CosmoFlow TF (juwels)",
        "interrupt_mode": "signal",
        "language": "python",
        "metadata": {
            "debugger": True,
            "fairmile": {"environment": "CosmoFlow TF", "prefix": "/envs/ab", "system": "juwels"},
        },
    }
    assert (folder / "start.sh").read_text().splitlines()[3] == "module load cuda"


def test_a_kernel_that_would_not_start_is_said_before_it_is_installed(tmp_path: Path) -> None:
    fake = tmp_path / "bin/python3"
    fake.parent.mkdir()
    fake.write_text("#!/bin/sh\necho \"ModuleNotFoundError: No module named 'ipykernel'\" >&2\nexit 1\n")
    fake.chmod(0o755)
    with pytest.raises(SystemFailure, match="No module named 'ipykernel'") as caught:
        check_kernel(kernelspec("waves", render([Prepend("PATH", fake.parent)])), Here())
    assert caught.value.hint == "add ipykernel to python.packages and rebuild the environment"
    with pytest.raises(SystemFailure, match="does not start: no such module"):
        check_kernel(kernelspec("waves", ["echo no such module >&2", "exit 3"]), Here())


def test_a_dry_run_writes_nothing_and_a_second_installation_replaces_the_first(tmp_path: Path) -> None:
    assert install_kernel(kernelspec("waves", []), tmp_path / "kernels", dry_run=True).name == "fairmile-waves"
    assert not (tmp_path / "kernels").exists()
    install_kernel(kernelspec("waves", ["echo one"]), tmp_path)
    folder = install_kernel(kernelspec("waves", ["echo two"]), tmp_path)
    assert "echo two" in (folder / "start.sh").read_text()
    assert sorted(file.name for file in folder.iterdir()) == ["kernel.json", "start.sh"]


@pytest.mark.parametrize("text", ['{"argv": ["python"]}', "{", "[]"])
def test_somebody_elses_kernel_is_left_alone(tmp_path: Path, text: str) -> None:
    kernel = kernelspec("waves", [])
    (tmp_path / kernel.name).mkdir()
    (tmp_path / kernel.name / "kernel.json").write_text(text)
    with pytest.raises(Conflict, match="not made by Fairmile"):
        install_kernel(kernel, tmp_path)
    assert (tmp_path / kernel.name / "kernel.json").read_text() == text


def test_kernels_lie_where_jupyter_looks_for_them() -> None:
    home = Path("/home/me")
    assert kernels_folder({}, home) == Path("/home/me/.local/share/jupyter/kernels")
    assert kernels_folder({"XDG_DATA_HOME": "/data"}, home) == Path("/data/jupyter/kernels")
    assert kernels_folder({"JUPYTER_DATA_DIR": "/j", "XDG_DATA_HOME": "/data"}, home) == Path("/j/kernels")


def test_a_kernel_is_plain_text_that_can_be_shown_first() -> None:
    kernel = kernelspec("waves", ["export A=1"])
    assert isinstance(kernel, Kernel)
    assert list(kernel.files()) == ["start.sh", "kernel.json"]
