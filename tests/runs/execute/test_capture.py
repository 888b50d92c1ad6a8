"""What is found when a run starts: machine, software, code and inputs, and one digest of all that counts."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import time
import venv
from pathlib import Path
from typing import Any

import pytest
from cases import for_each
from hypothesis import given
from hypothesis import strategies as st

from fairmile.base import digest_cache
from fairmile.base.digest import merkle_root, scan_tree, sha256_hex
from fairmile.base.errors import NotFound
from fairmile.runs.execute import capture
from fairmile.runs.record.record import CapturedEnvironment, CapturedInput, CodeFile, GitState, RunRecord
from fairmile.systems import hardware as machine

# Hardware


def made(root: Path, files: dict[str, str]) -> Path:
    """Write files of a kernel that never was below a folder."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def processors(siblings: list[str], packages: list[str]) -> dict[str, str]:
    folder = "sys/devices/system/cpu"
    files = {f"{folder}/online": f"0-{len(siblings) - 1}"}
    for number, (core, package) in enumerate(zip(siblings, packages, strict=True)):
        files[f"{folder}/cpu{number}/topology/core_cpus_list"] = core
        files[f"{folder}/cpu{number}/topology/package_cpus_list"] = package
    return files


def test_this_machine_has_a_processor_memory_and_storage(tmp_path: Path) -> None:
    found = capture.hardware([tmp_path, tmp_path / "not" / "yet"])
    assert found["host"] == os.uname().nodename
    assert found["cpu"]["model"]
    assert 1 <= found["cpu"]["sockets"] <= found["cpu"]["cores"] <= found["cpu"]["threads"]
    assert found["memory_bytes"] == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    storage = found["storage"][str(tmp_path)]
    assert storage["type"] and 0 < storage["free_bytes"] <= storage["size_bytes"]
    assert found["storage"][str(tmp_path / "not" / "yet")]["mount"] == storage["mount"]
    json.dumps(found)


def test_what_is_returned_belongs_to_the_caller() -> None:
    capture.hardware()["cpu"]["model"] = "changed"
    assert capture.hardware()["cpu"]["model"] != "changed"


def test_threads_cores_sockets_and_numa_nodes_are_told_apart(tmp_path: Path) -> None:
    siblings = ["0,4", "1,5", "2,6", "3,7"] * 2
    root = made(tmp_path, processors(siblings, ["0-1,4-5", "0-1,4-5", "2-3,6-7", "2-3,6-7"] * 2))
    made(
        root, {"proc/cpuinfo": "processor\t: 0\nmodel name\t: Some   CPU @ 3 GHz", "proc/meminfo": "MemTotal:  1024 kB"}
    )
    made(root, {f"sys/devices/system/node/node{n}/cpulist": f"{n}" for n in (0, 1, 2, 10)})
    found = capture.hardware(root=root)
    assert {key: found["cpu"][key] for key in ("model", "threads", "cores", "sockets", "numa_nodes")} == {
        "model": "Some CPU @ 3 GHz",
        "threads": 8,
        "cores": 4,
        "sockets": 2,
        "numa_nodes": 4,
    }
    assert found["memory_bytes"] == 1 << 20
    assert [each["node"] for each in found["topology"]["numa"]] == [0, 1, 2, 10]


@pytest.mark.parametrize(
    ("implementer", "part", "name"),
    [
        ("0x41", "0xd4f", "ARM Neoverse-V2"),
        ("0x41", "0xd0c", "ARM Neoverse-N1"),
        ("0x46", "0x001", "Fujitsu A64FX"),
        ("0xc0", "0xac3", "Ampere Ampere-1"),
        ("0x41", "0xfff", "ARM part 0xfff"),
        ("0x77", "0x001", "ARM designer 0x77 part 0x001"),
    ],
)
def test_arm_processors_have_names(tmp_path: Path, implementer: str, part: str, name: str) -> None:
    text = f"processor\t: 0\nBogoMIPS\t: 200.00\nCPU implementer\t: {implementer}\nCPU part\t: {part}"
    assert capture.hardware(root=made(tmp_path, {"proc/cpuinfo": text}))["cpu"]["model"] == name


def test_gpus_are_found_in_the_files_of_their_drivers_with_their_place(tmp_path: Path) -> None:
    root = made(
        tmp_path,
        {
            "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19",
            "proc/driver/nvidia/gpus/0000:0f:00.0/information": "Model: \t\t NVIDIA A100\nGPU UUID: \t GPU-1",
            "sys/bus/pci/devices/0000:0f:00.0/numa_node": "3",
            "sys/class/drm/card1/device/vendor": "0x1002",
            "sys/class/drm/card1/device/product_name": "AMD Instinct MI250X",
            "sys/class/drm/card1/device/mem_info_vram_total": "68702699520",
            "sys/class/drm/card1/device/unique_id": "abc",
            "sys/class/drm/card1/device/numa_node": "-1",
            "sys/class/drm/card1-DP-1/status": "connected",
            "sys/class/drm/card0/device/vendor": "0x1a03",
        },
    )
    found = capture.hardware(root=root)
    assert found["gpus"] == [
        {"model": "NVIDIA A100", "memory_bytes": None, "uuid": "GPU-1", "driver": "535.129.03"},
        {"model": "AMD Instinct MI250X", "memory_bytes": 68702699520, "uuid": "abc", "driver": ""},
    ]
    assert found["topology"]["gpu_numa_nodes"] == {"0": 3}
    assert capture.software(root=root)["nvidia_driver"] == "535.129.03"


def test_the_interconnect_lists_active_ports_and_real_interfaces(tmp_path: Path) -> None:
    port = "sys/class/infiniband/mlx5_{}/ports/1"
    root = made(
        tmp_path,
        {
            port.format(0) + "/state": "4: ACTIVE",
            port.format(0) + "/rate": "200 Gb/sec (4X HDR)",
            port.format(0) + "/link_layer": "InfiniBand",
            port.format(1) + "/state": "1: DOWN",
            "sys/class/net/eth0/device/vendor": "x",
            "sys/class/net/eth0/speed": "25000",
            "sys/class/net/eth0/operstate": "up",
            "sys/class/net/eth1/device/vendor": "x",
            "sys/class/net/eth1/operstate": "down",
            "sys/class/net/docker0/operstate": "up",
            "sys/class/net/ib0/device/vendor": "x",
            "sys/class/net/ib0/type": "32",
            "sys/class/net/ib0/operstate": "up",
        },
    )
    assert capture.hardware(root=root)["interconnect"] == ["mlx5_0 InfiniBand 200 Gb/s", "eth0 Ethernet 25 Gb/s"]


def test_the_nearest_mount_counts_and_of_two_at_one_place_the_last(tmp_path: Path) -> None:
    lines = [
        "1 0 8:1 / / rw - ext4 /dev/a rw",
        f"2 1 0:9 / {tmp_path.parent} rw - nfs4 x rw",
        f"3 1 0:9 / {tmp_path}\\040more rw - tmpfs x rw",
        f"4 2 0:8 / {tmp_path} rw shared:1 - xfs x rw",
        f"5 4 0:7 / {tmp_path} rw - lustre x rw",
    ]
    root = made(tmp_path / "root", {"proc/self/mountinfo": "\n".join(lines)})
    (tmp_path / "in").mkdir()
    storage = capture.hardware([tmp_path / "in"], root=root)["storage"][str(tmp_path / "in")]
    assert (storage["type"], storage["mount"]) == ("lustre", str(tmp_path))


# Software


def test_the_system_software_names_os_kernel_and_libc(tmp_path: Path) -> None:
    found = capture.software()
    assert found["kernel"] == os.uname().release and found["machine"] == os.uname().machine and found["os"]
    root = made(tmp_path, {"etc/os-release": 'NAME="Some Linux"\nPRETTY_NAME="Some Linux 9 (Nine)"\nVERSION_ID=9'})
    assert capture.software(root=root)["os"] == "Some Linux 9 (Nine)"


def test_versions_of_mpi_and_cuda_are_read_without_starting_a_program(tmp_path: Path) -> None:
    made(
        tmp_path,
        {"cuda/version.json": '{"cuda": {"version": "12.4.1"}}', "mpi/lib/pkgconfig/ompi.pc": "Version: 4.1.6"},
    )
    mpirun = tmp_path / "mpi" / "bin" / "mpirun"
    mpirun.parent.mkdir(parents=True)
    mpirun.write_text("#!/bin/sh\ntouch started\n")
    mpirun.chmod(0o755)
    env = {"CUDA_HOME": str(tmp_path / "cuda"), "PATH": str(mpirun.parent), "LOADEDMODULES": "GCC/11:OpenMPI/4.1.6"}
    found = capture.software(env)
    assert (found["cuda"], found["mpi"]) == ("12.4.1", "Open MPI 4.1.6")
    assert found["modules"] == ["GCC/11", "OpenMPI/4.1.6"]
    assert capture.software({"EBVERSIONPSMPI": "5.9"})["mpi"] == "ParaStation MPI 5.9"


# The environment of Python


@pytest.fixture(scope="module")
def own_venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("venv") / "env"
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python3*/site-packages")
    for name in ("Some_Package-1.2.dist-info", "ruamel.yaml-0.18.6.dist-info", "old-3.0-py3.11.egg-info"):
        (site / name).mkdir()
    script = folder / "bin" / "tool"
    script.write_text(f"#!{folder}/bin/python3\nprint(1)\n")
    script.chmod(0o755)
    return folder


LOCK = ["old==3.0", "ruamel-yaml==0.18.6", "some-package==1.2"]


@pytest.mark.parametrize(
    "argv",
    [
        ["{venv}/bin/python", "train.py"],
        ["{venv}/bin/tool", "--epochs", "3"],
        ["mpirun", "-n", "4", "{venv}/bin/python3", "train.py"],
        ["bash", "-c", "cd x && {venv}/bin/python3 train.py"],
        ["./solver", "10", ":", "{venv}/bin/python3", "model.py"],
        ["python3", "train.py"],
    ],
)
def test_the_packages_of_an_environment_are_found_without_starting_it(own_venv: Path, argv: list[str]) -> None:
    env = {"PATH": f"{own_venv}/bin:/usr/bin:/bin"}
    found = capture.environment([word.format(venv=own_venv) for word in argv], env)
    version = ".".join(map(str, sys.version_info[:3]))
    assert (found.python, found.lock) == (version, LOCK)
    assert Path(found.interpreter).parent == own_venv / "bin"


def test_a_package_that_is_installed_later_is_seen(own_venv: Path) -> None:
    argv = [f"{own_venv}/bin/python"]
    assert "late==1" not in capture.environment(argv, {}).lock
    (site,) = own_venv.glob("lib/python3*/site-packages")
    os.utime(site, ns=(1, 1))
    assert "late==1" not in capture.environment(argv, {}).lock
    (site / "late-1.dist-info").mkdir()
    assert "late==1" in capture.environment(argv, {}).lock
    (site / "late-1.dist-info").rmdir()


def test_the_python_behind_the_script_of_a_version_manager_is_that_of_the_folder(
    own_venv: Path, tmp_path: Path
) -> None:
    shim, folder = tmp_path / "shims" / "python", tmp_path / "project"
    shim.parent.mkdir()
    folder.mkdir()
    shim.write_text('#!/bin/sh\nexec "$(cat .python-place)" "$@"\n')
    shim.chmod(0o755)
    (folder / ".python-place").write_text(f"{own_venv}/bin/python")
    env = {"PATH": f"{shim.parent}:/usr/bin:/bin"}
    found = capture.environment(["python", "train.py"], env, folder=folder)
    assert (found.interpreter, found.lock) == (f"{own_venv}/bin/python", LOCK)
    (tmp_path / "none").mkdir()
    assert capture.environment(["python", "train.py"], env, folder=tmp_path / "none") == CapturedEnvironment()


def test_our_own_interpreter_has_our_own_packages() -> None:
    found = capture.environment([sys.executable, "-c", "pass"], {})
    assert found.python == sys.version.split()[0]
    assert any(line.startswith("pytest==") for line in found.lock)
    assert found.lock == sorted(set(found.lock))


@for_each("argv", [["/bin/echo", "python"], ["no-such-program"], ["bash", "-c", "echo pythonic"]])
def test_a_command_without_python_has_no_environment(argv: list[str]) -> None:
    assert capture.environment(argv, {"PATH": "/usr/bin:/bin"}) == CapturedEnvironment()


# Variables


def test_only_listed_variables_are_kept() -> None:
    kept = {"OMP_NUM_THREADS": "4", "CUDA_VISIBLE_DEVICES": "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "LANG": "C"}
    kept |= {"XLA_FLAGS": "--xla_gpu_strict_conv_algorithm_picker=false --xla_gpu_graph_level=0", "SLURM_NTASKS": "8"}
    kept |= {"NCCL_SOCKET_IFNAME": "hsn0", "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128"}
    dropped = {"PATH": "/bin", "HOME": "/h", "AWS_SECRET_ACCESS_KEY": "x", "MY_OMP_X": "1", "SLURM_JWT": "x"}
    dropped |= {"TF_VAR_db": "x", "TF_TOKEN_app": "x", "NCCL_API_KEY": "x", "OMP_X": "https://me:pw@host/"}
    dropped |= {"TORCH_HOME": "hf_abcdefghijklmnopqrstuv", "SLURM_CONF": "/etc/slurm.conf"}
    assert capture.variables({**kept, **dropped}) == dict(sorted(kept.items()))


names = st.sampled_from(
    ["OMP_", "MKL_", "NCCL_", "TORCH_", "TF_", "XLA_", "KMP_", "HIP_", "OPENBLAS_", "JAX_", "SLURM_"]
)
words = st.text("ABCDEFGHIJKLMNOPQRSTUVWXYZ_", min_size=1, max_size=12)
secret_names = st.sampled_from(["TOKEN", "SECRET", "PASSWORD", "API_KEY", "ACCESS_KEY", "JWT", "CREDENTIALS", "AUTH"])
letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


@given(start=names, word=words, secret=secret_names, value=st.text(min_size=1))
def test_a_variable_named_like_a_secret_is_never_kept(start: str, word: str, secret: str, value: str) -> None:
    for name in (f"{start}{secret}", f"{start}{word}_{secret}", f"{start}{secret}_{word}"):
        assert capture.variables({name: value}) == {}


@given(
    start=names,
    word=words,
    secret=st.text(letters, min_size=4, max_size=40),
    shape=st.sampled_from(
        [
            "https://user:{}@host/path",
            "x;token={}",
            "--password={}",
            "https://h/?sig={}",
            "https://h/?api_key={}&x=1",
            "Bearer {}AAAAAAAA",
            "ghp_{}AAAAAAAAAAAAAAAA",
            "eyJhbGciOi{}.x.y",
            "AKIA{}ABCDEFGHIJKL",
            "-----BEGIN KEY----- {}",
        ]
    ),
)
def test_a_secret_in_a_listed_variable_is_never_kept(start: str, word: str, secret: str, shape: str) -> None:
    assert capture.variables({f"{start}{word}": shape.format(secret)}) == {}


@given(st.binary(min_size=24, max_size=48))
def test_a_long_random_word_is_never_kept(data: bytes) -> None:
    text = data.hex()
    if not text.isdigit() and not text.isalpha():
        assert capture.variables({"TF_X": text}) == {}


@given(st.dictionaries(st.text(), st.text()))
def test_whatever_is_kept_is_on_the_list(env: dict[str, str]) -> None:
    kept = capture.variables(env)
    assert all(machine._is_allowed(name) and env[name] == value for name, value in kept.items())


# The batch system


def test_each_batch_system_says_which_job_this_is(tmp_path: Path) -> None:
    assert capture.scheduler({"PATH": "/bin"}) == {}
    slurm = {"SLURM_JOB_ID": "42", "SLURM_JOB_NUM_NODES": "2", "SLURM_NTASKS": "8", "SLURM_JOB_PARTITION": "gpu"}
    slurm |= {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_GPUS_ON_NODE": "4", "SLURM_JWT": "never"}
    assert capture.scheduler(slurm) == {
        "name": "slurm",
        "job_id": "42",
        "partition": "gpu",
        "nodes": 2,
        "tasks": 8,
        "gpus": "4",
        "node_list": "n[1-2]",
    }
    lsf = capture.scheduler({"LSB_JOBID": "7", "LSB_QUEUE": "q", "LSB_MCPU_HOSTS": "a 4 b 4", "LSB_JOBINDEX": "0"})
    assert lsf == {"name": "lsf", "job_id": "7", "partition": "q", "node_list": "a 4 b 4", "nodes": 2}
    (tmp_path / "nodes").write_text("a\na\nb\n")
    pbs = capture.scheduler({"PBS_JOBID": "9.s", "PBS_QUEUE": "q", "PBS_NODEFILE": str(tmp_path / "nodes")})
    assert pbs == {"name": "pbs", "job_id": "9.s", "partition": "q", "nodes": 2, "node_list": "a,b"}
    flux = capture.scheduler({"FLUX_JOB_ID": "f1", "FLUX_JOB_NNODES": "3", "FLUX_JOB_SIZE": "12"})
    assert flux == {"name": "flux", "job_id": "f1", "nodes": 3, "tasks": 12}


def test_the_agent_is_the_user_with_the_name_that_git_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert "name" not in capture.agent()
    monkeypatch.setenv("HOME", str(tmp_path / "other"))
    made(tmp_path / "other", {".gitconfig": '[core]\n\tname = no\n[user]\n\temail = x\n\tname = "Ada L"'})
    assert capture.agent()["name"] == "Ada L" and capture.agent()["user"]


# Code


def git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "protocol.file.allow=always")
    return subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    made(folder, {"train.py": "print(1)", "pkg/__init__.py": "", "pkg/main.py": "x", ".gitignore": "*.log"})
    git(folder, "init", "-q", "-b", "main")
    git(folder, "remote", "add", "origin", "https://me:hunter2@example.org/p.git?token=hunter2")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")
    return folder


def test_a_clean_repository_is_its_commit_branch_and_remote_without_login(repository: Path) -> None:
    found = capture.code(["python", "train.py"], repository)
    assert found.git == GitState(
        root=str(repository),
        commit=git(repository, "rev-parse", "HEAD"),
        branch="main",
        dirty=False,
        remote="https://example.org/p.git",
    )
    path, sha256 = str(repository / "train.py"), sha256_hex(b"print(1)\n")
    assert found.files == [CodeFile(name="train.py", path=path, sha256=sha256, size_bytes=9)]


def test_changes_are_kept_as_a_diff_that_can_be_applied(repository: Path, tmp_path: Path) -> None:
    (repository / "train.py").write_text("print(2)\n")
    (repository / "data.bin").write_bytes(bytes(range(256)))
    git(repository, "add", "data.bin")
    (repository / "pkg" / "main.py").unlink()
    found = capture.code([], repository / "pkg").git
    assert found.dirty and found.diff_sha256 == sha256_hex(found.diff.encode())
    git(tmp_path, "clone", "-q", str(repository), "other")
    (tmp_path / "patch").write_text(found.diff)
    git(tmp_path / "other", "apply", "../patch")
    assert (tmp_path / "other" / "train.py").read_text() == "print(2)\n"
    assert (tmp_path / "other" / "data.bin").read_bytes() == bytes(range(256))
    assert not (tmp_path / "other" / "pkg" / "main.py").exists()


def test_a_large_diff_is_kept_by_its_digest_alone(repository: Path) -> None:
    (repository / "train.py").write_text("x = 1\n" * 300_000)
    found = capture.code([], repository).git
    assert not found.diff and len(found.diff_sha256) == 64


def test_files_unknown_to_git_are_listed_and_ignored_ones_are_not(repository: Path) -> None:
    made(repository, {"new.py": "y", "deep/out.csv": "1", "x.log": "z"})
    (repository / "big.bin").write_bytes(bytes(2 << 20))
    found = capture.code([], repository).git
    assert found.dirty and not found.diff and found.untracked_files == 3
    assert [each.name for each in found.untracked] == ["new.py", "deep/out.csv"]
    assert found.untracked[0].sha256 == sha256_hex(b"y\n")


def test_a_rename_does_not_confuse_what_follows_it(repository: Path) -> None:
    git(repository, "mv", "train.py", "moved.py")
    made(repository, {"zzz.py": "n"})
    found = capture.code([], repository).git
    assert [each.name for each in found.untracked] == ["zzz.py"]
    assert "rename" not in found.diff and "moved.py" in found.diff


def test_another_work_tree_of_a_repository_is_told_by_its_own_branch(repository: Path, tmp_path: Path) -> None:
    git(repository, "worktree", "add", "-q", "-b", "side", str(tmp_path / "side"))
    made(tmp_path / "side", {"train.py": "print(3)"})
    found = capture.code([], tmp_path / "side").git
    assert (found.branch, found.remote, found.root) == (
        "side",
        "https://example.org/p.git",
        str(tmp_path / "side"),
    )
    assert "print(3)" in found.diff


def test_a_detached_head_has_no_branch_and_an_empty_repository_no_commit(repository: Path, tmp_path: Path) -> None:
    git(repository, "checkout", "-q", "--detach")
    assert capture.code([], repository).git.branch == ""
    made(tmp_path / "empty", {"a.py": "1"})
    git(tmp_path / "empty", "init", "-q", "-b", "main")
    found = capture.code([], tmp_path / "empty").git
    assert (found.commit, found.branch, found.dirty) == ("", "main", True)


def test_a_repository_cannot_have_its_own_programs_run(repository: Path, tmp_path: Path) -> None:
    script = tmp_path / "evil"
    script.write_text(f"#!/bin/sh\ntouch {tmp_path}/pwned\n")
    script.chmod(0o755)
    git(repository, "config", "core.fsmonitor", str(script))
    git(repository, "config", "diff.external", str(script))
    git(repository, "config", "diff.x.textconv", str(script))
    made(repository, {".gitattributes": "*.py diff=x", "train.py": "print(5)"})
    assert "print(5)" in capture.code([], repository).git.diff
    assert not (tmp_path / "pwned").exists()


def test_without_git_the_commit_is_read_from_the_files(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = git(repository, "rev-parse", "HEAD")
    git(repository, "pack-refs", "--all")
    monkeypatch.setenv("PATH", "/nowhere")
    found = capture.code([], repository).git
    assert (found.commit, found.branch) == (commit, "main")
    assert found.dirty is None and "git" in found.problem


def test_a_broken_repository_is_a_problem_that_is_told_and_not_a_failure(repository: Path) -> None:
    (repository / ".git" / "HEAD").unlink()
    found = capture.code(["train.py"], repository)
    assert "not a git repository" in found.git.problem and len(found.files) == 1


def test_a_repository_of_another_user_is_only_read(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = git(repository, "rev-parse", "HEAD")
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    monkeypatch.setenv("PATH", "/nowhere")
    found = capture.code([], repository).git
    assert (found.commit, found.branch) == (commit, "main")
    assert found.dirty is None and not found.problem


def test_without_a_repository_above_there_is_no_git(tmp_path: Path) -> None:
    assert capture.code(["true"], tmp_path).git is None


def test_the_repository_of_code_that_is_named_comes_before_that_of_the_folder(repository: Path, tmp_path: Path) -> None:
    found = capture.code(["x"], tmp_path, [repository / "pkg"])
    assert found.git.root == str(repository)
    assert found.files[0].sha256 == merkle_root(list(scan_tree(repository / "pkg")))
    by_script = capture.code(["python", str(repository / "train.py")], tmp_path)
    assert by_script.git.root == str(repository)


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["python", "train.py", "--config=conf.yaml"], ["train.py", "conf.yaml"]),
        (["python3", "-m", "pkg.main", "x"], ["pkg/main.py"]),
        (["python3", "-m", "pkg"], ["pkg/__main__.py"]),
        (["./run.sh", "train.py", "train.py"], ["run.sh", "train.py"]),
        ([sys.executable, "train.py"], ["train.py"]),
        (["/bin/sh", "run.sh"], ["run.sh"]),
        (["python", "-c", "import train.py", "no-such-file", "pkg"], []),
        (["echo", "x" * 5000, "a\0b"], []),
    ],
)
def test_the_files_that_a_command_names_are_its_code(tmp_path: Path, argv: list[str], expected: list[str]) -> None:
    made(tmp_path, dict.fromkeys(["train.py", "conf.yaml", "pkg/main.py", "pkg/__main__.py", "run.sh"], "x"))
    (tmp_path / "run.sh").chmod(0o755)
    assert [each.name for each in capture.code(argv, tmp_path).files] == expected


def test_a_file_of_more_than_64_mib_is_data_and_not_code(tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as stream:
        stream.truncate((64 << 20) + 1)
    assert capture.code(["cat", "large"], tmp_path).files == []


def test_code_that_is_named_and_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"the code .* does not exist"):
        capture.code(["x"], tmp_path, ["gone.py"])


# Inputs


def test_files_and_folders_are_known_by_their_digest(tmp_path: Path) -> None:
    made(tmp_path, {"data/a.csv": "1", "data/deep/b.csv": "2", "one.csv": "3"})
    (tmp_path / "data" / "link").symlink_to("a.csv")
    found = capture.inputs({"data": {"path": str(tmp_path / "data")}, "one": {"path": "one.csv"}}, folder=tmp_path)
    assert found["data"] == CapturedInput(
        path=str(tmp_path / "data"),
        sha256=merkle_root(list(scan_tree(tmp_path / "data"))),
        size_bytes=4 + len("a.csv"),
        files=3,
    )
    assert (found["one"].sha256, found["one"].files) == (sha256_hex(b"3\n"), 1)


def test_a_folder_of_links_into_a_store_has_the_digest_of_what_they_lead_to(tmp_path: Path) -> None:
    made(tmp_path, {"data/a.csv": "1", "data/deep/b.csv": "2", "store/x": "1", "store/y/b.csv": "2"})
    (tmp_path / "view").mkdir()
    (tmp_path / "view" / "a.csv").symlink_to(tmp_path / "store" / "x")
    (tmp_path / "view" / "deep").symlink_to(tmp_path / "store" / "y")
    found = capture.inputs({name: {"path": str(tmp_path / name)} for name in ("data", "view")})
    assert found["data"].sha256 == found["view"].sha256


def test_a_link_to_the_folder_above_does_not_go_on_for_ever(tmp_path: Path) -> None:
    made(tmp_path, {"data/a": "1"})
    (tmp_path / "data" / "up").symlink_to(tmp_path)
    assert capture.inputs({"d": {"path": str(tmp_path / "data")}})["d"].files >= 1


def test_an_input_without_a_path_keeps_what_is_said_of_it() -> None:
    found = capture.inputs({"a": {"asset": "dataset/x", "sha256": "ab"}, "b": {"asset": "dataset/y"}})
    assert found["a"] == CapturedInput(asset="dataset/x", sha256="ab")
    assert found["b"] == CapturedInput(asset="dataset/y")


def test_an_input_that_is_missing_is_an_error_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="input 'data' does not exist"):
        capture.inputs({"data": {"path": str(tmp_path / "gone")}})


def test_large_files_are_not_read_twice_while_they_stay_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digest_cache, "_SETTLED_NS", -1)  # no need to wait until a change is old
    large, cache = tmp_path / "large.bin", tmp_path / "cache" / "digests.json"
    large.write_bytes(bytes(2 << 20))
    given_inputs = {"x": {"path": str(large)}}
    first = capture.inputs(given_inputs, cache)["x"].sha256
    assert first == sha256_hex(bytes(2 << 20))
    ((path, entry),) = json.loads(cache.read_text()).items()
    cache.write_text(json.dumps({path: [*entry[:-1], "remembered"]}))
    assert capture.inputs(given_inputs, cache)["x"].sha256 == "remembered"
    status = large.stat()
    large.write_bytes(b"\1" * (2 << 20))
    os.utime(large, ns=(status.st_atime_ns, status.st_mtime_ns))  # as if nothing had been
    assert capture.inputs(given_inputs, cache)["x"].sha256 == sha256_hex(b"\1" * (2 << 20))


def test_a_large_file_that_changed_a_moment_ago_is_read_each_time(tmp_path: Path) -> None:
    large, cache = tmp_path / "large.bin", tmp_path / "digests.json"
    ahead = time.time_ns() + 10_000_000_000
    for byte in (b"\0", b"\1"):
        large.write_bytes(byte * (2 << 20))
        os.utime(large, ns=(ahead, ahead))
        assert capture.inputs({"x": {"path": str(large)}}, cache)["x"].sha256 == sha256_hex(byte * (2 << 20))
    assert not cache.exists()


# Identity


def document(folder: str = "/home/a/p", **spec: Any) -> dict[str, Any]:
    return {
        "spec": {
            "name": "t",
            "argv": [f"{folder}/.venv/bin/python", f"{folder}/train.py", f"--data={folder}/d", f"--out={folder}/out"],
            "params": {"lr": 0.1},
            "folder": folder,
            "inputs": {"d": {"path": f"{folder}/d"}},
            **spec,
        },
        "captured": {
            "code": {
                "git": {"root": folder, "commit": "c" * 40, "branch": "main", "diff_sha256": "e" * 64},
                "files": [{"name": "train.py", "path": f"{folder}/train.py", "sha256": "f" * 64, "size_bytes": 1}],
            },
            "inputs": {"d": {"path": f"{folder}/d", "sha256": "a" * 64}},
            "environment": {"python": "3.11.7", "lock": ["numpy==2.1.0"]},
            "hardware": {"host": folder},
        },
    }


def identity(document: dict[str, Any]) -> str:
    record = RunRecord.from_dict(document)
    return capture.identity(record.spec, record.captured)


def test_the_same_in_another_folder_on_another_machine_is_the_same() -> None:
    one = identity(document())
    assert len(one) == 64
    assert identity(document("/scratch/b c/p-2")) == one
    assert identity(json.loads(json.dumps(document()))) == one


@for_each(
    "change",
    [
        lambda d: d["spec"]["argv"].append("-v"),
        lambda d: d["spec"]["params"].update(lr=0.2),
        lambda d: d["spec"].update(seed=1),
        lambda d: d["spec"].update(env={"A": "1"}),
        lambda d: d["captured"]["code"]["git"].update(commit="d" * 40),
        lambda d: d["captured"]["code"]["git"].update(diff_sha256="0" * 64),
        lambda d: d["captured"]["code"]["git"].update(untracked=[{"name": "new.py", "sha256": "1"}]),
        lambda d: d["captured"]["code"]["files"][0].update(sha256="0" * 64),
        lambda d: d["captured"]["code"].update(sources=[{"asset": "x", "sha256": "1"}]),
        lambda d: d["captured"]["inputs"]["d"].update(sha256="b" * 64),
        lambda d: d["captured"]["environment"]["lock"].append("scipy==1.0"),
        lambda d: d["captured"]["environment"].update(python="3.12.0"),
        lambda d: d["captured"]["environment"].update(digest="9"),
    ],
)
def test_whatever_counts_makes_another_identity(change: Any) -> None:
    other = copy.deepcopy(document())
    change(other)
    assert identity(other) not in ("", identity(document()))


@for_each(
    "change",
    [
        lambda d: d["captured"]["hardware"].update(host="n2"),
        lambda d: d["captured"]["code"]["git"].update(branch="other", untracked=[{"name": "out.csv", "sha256": "1"}]),
        lambda d: d["spec"].update(name="other", tags=["x"], group="g"),
        lambda d: d["captured"]["code"].update(snapshot="1"),
    ],
)
def test_what_does_not_count_makes_no_other_identity(change: Any) -> None:
    other = copy.deepcopy(document())
    change(other)
    assert identity(other) == identity(document())


def test_there_is_no_identity_where_an_input_has_no_digest() -> None:
    unknown = document()
    unknown["captured"]["inputs"]["d"]["sha256"] = ""
    assert identity(unknown) == ""
    missing = document()
    missing["captured"]["inputs"] = {}
    assert identity(missing) == ""


def test_a_path_that_only_begins_like_another_stays() -> None:
    one, other = document(argv=["x", "/home/a/p/d2"]), document("/q", argv=["x", "/q/d2"])
    assert identity(one) == identity(other)
    assert identity(document(argv=["x", "/home/a/p2"])) != identity(document("/q", argv=["x", "/q2"]))


@for_each("value", [2**60, -(2**70), float("nan"), float("inf"), True, None, "ä", 1e300])
def test_every_value_a_parameter_may_have_has_an_identity(value: Any) -> None:
    found = identity(document(params={"x": value}, seed=2**63))
    assert len(found) == 64 and found != identity(document(params={"x": str(value) + " "}, seed=2**63))


# It travels


def test_the_modules_need_nothing_but_the_standard_library_base_and_meter() -> None:
    script = (
        "import sys\nfrom fairmile.runs.execute import capture\n"
        "capture.hardware(); capture.software(); capture.scheduler({}); capture.variables({}); capture.agent()\n"
        "capture.environment([sys.executable], {}); capture.code(['x'], '/'); capture.inputs({})\n"
        "own = sorted(name for name in sys.modules if name.startswith('fairmile.') and name.count('.') > 1)\n"
        "known = ('fairmile.base.', 'fairmile.meter.', 'fairmile.runs.')\n"
        "print([name for name in own if not name.startswith(known)])\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('pydantic', 'rfc8785', 'yaml', 'numpy')])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout == "['fairmile.systems.hardware']\n[]\n"
