"""Looking at a machine: with its real programs, with stand-ins for those it lacks, over ssh, and on a real Slurm."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from slurm_cluster import SlurmCluster, slurm_cluster

from fairmile.base.commands import Here, Ssh
from fairmile.base.errors import Transient
from fairmile.systems.check import read_document
from fairmile.systems.draft import draft
from fairmile.systems.model import System
from fairmile.systems.probe import probe
from fairmile.systems.probe_result import ProbeResult

__all__ = ["slurm_cluster"]

TODAY = date(2026, 11, 15)
Program = Callable[[str, str], None]


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    """Put a stand-in for a program before all others: a shell script that prints what the real one prints."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def call(name: str, script: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)

    return call


def here(**wanted: Any) -> ProbeResult:
    return probe(Here(), today=TODAY, **wanted)


def loaded(found: ProbeResult, name: str = "drafted") -> System:
    document = read_document(draft(found, name), "draft.yaml")
    assert document.errors == []
    return document.need()


class TestThisMachine:
    def test_is_described_by_its_own_programs(self) -> None:
        found = here()
        assert found.host == os.uname().nodename
        assert found.architecture == os.uname().machine
        assert found.day == TODAY
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1024**3
        assert found.memory_gib == pytest.approx(total, rel=0.02)
        if shutil.which("lscpu"):
            assert found.processor.cores is not None
            assert 1 <= found.processor.cores * found.processor.threads_per_core <= (os.cpu_count() or 1)
        assert found.login == ""

    def test_becomes_a_draft_that_holds_to_the_rules(self) -> None:
        found = here()
        system = loaded(found)
        assert (system.name, system.verified) == ("drafted", TODAY)
        assert next(iter(system.partitions.values())).memory_gib == found.memory_gib
        assert system.architecture == found.architecture

    def test_has_a_home_with_a_size(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOME", str(tmp_path))
        (home,) = [place for place in here().places if place.name == "$HOME"]
        assert (home.path, home.problem) == (str(tmp_path), "")
        assert home.kind and home.size_bytes == pytest.approx(shutil.disk_usage(tmp_path).total, rel=0.01)

    @pytest.mark.thorough
    def test_tells_of_further_folders_and_their_variables(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("LAKE", str(tmp_path))
        (tmp_path / "a b").mkdir()
        wanted = ["$LAKE/a b", "${LAKE}/gone", "$UNHEARD_OF/x", "/project_<number>", "relative"]
        places = {place.name: place for place in here(also=wanted).places}
        assert places["$LAKE/a b"].path == f"{tmp_path}/a b"
        assert places["$LAKE/a b"].kind
        assert places["${LAKE}/gone"].problem.endswith("No such file or directory")
        assert not {"$UNHEARD_OF/x", "/project_<number>", "relative"} & set(places)

    def test_runs_nothing_that_a_path_or_a_variable_holds(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        trap = tmp_path / "trap"
        monkeypatch.setenv("SCRATCH", f"/$(touch {trap})/`touch {trap}`; touch {trap}")
        here(also=[f"/x$(touch {trap})", f"/'; touch {trap}; '"])
        assert not trap.exists()

    @pytest.mark.thorough
    def test_tells_what_python_has_without_importing_it(self, program: Program, tmp_path: Path) -> None:
        packages = tmp_path / "packages"
        for name, version in (("torch", "2.13.0"), ("nvidia_nccl_cu12", "2.21.5"), ("tensorflow_cpu", "2.19.0")):
            (packages / f"{name}-{version}.dist-info").mkdir(parents=True)
            (packages / f"{name}-{version}.dist-info" / "METADATA").write_text(
                f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n"
            )
        (packages / "torch.py").write_text("raise SystemExit('imported')\n")
        python = shutil.which("python3")
        program("python3", f'PYTHONPATH={packages} exec {python} -S "$@"')
        found = here()
        assert found.python.startswith("3.")
        assert found.components == {"torch": "2.13.0", "nccl": "2.21.5", "tensorflow": "2.19.0"}


class TestAProgram:
    def test_that_is_not_there_is_no_trouble(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        tools = tmp_path / "few"
        tools.mkdir()
        for name in ("sh", "uname", "cat", "ls", "env"):
            (tools / name).symlink_to(str(shutil.which(name)))
        monkeypatch.setenv("PATH", str(tools))
        found = here()
        assert found.programs == {}
        assert (found.scheduler, found.python, found.processor.cores) == ("shell", "", None)
        assert found.modules.problem == "no bash"
        assert loaded(found).module_system == "none"

    def test_that_fails_says_why(self, program: Program) -> None:
        program("nvidia-smi", "echo 'NVIDIA-SMI has failed because it could not reach the driver'; exit 9")
        program("gcc", "echo 'gcc: fatal: no licence' >&2; exit 3")
        program("clang", "exit 4")
        found = here()
        assert found.accelerators == ()
        assert "could not reach the driver" in str(found.programs["nvidia-smi"])
        assert str(found.programs["gcc"]) == "failed: no licence"
        assert str(found.programs["clang"]) == "failed: ended with exit code 4"

    @pytest.mark.thorough
    def test_that_never_answers_is_ended(self, program: Program) -> None:
        program("nvidia-smi", "exec sleep 600")
        assert str(here(answer_s=1).programs["nvidia-smi"]) == "failed: did not answer within 1 s"

    @pytest.mark.thorough
    def test_that_prints_rubbish_spoils_nothing_else(self, program: Program) -> None:
        program("lscpu", "printf '\\377\\n@0 end\\n@@ out 3\\n'; head -c 100000 /dev/zero")
        program("nvidia-smi", "echo 'NVIDIA H200, 143771, 580.159.04'")
        found = here()
        assert found.processor.cores is None
        assert [each.model for each in found.accelerators] == ["NVIDIA H200"]

    @pytest.mark.thorough
    def test_that_warns_on_the_side_is_still_understood(self, program: Program) -> None:
        program("lscpu", 'echo warning >&2; echo \'{"lscpu": [{"field": "CPU(s):", "data": "64"}]}\'')
        program("ch-run", "echo 0.31 >&2")
        found = here()
        assert found.processor.cores == 64
        assert found.programs["ch-run"].version == "0.31"


class TestGpus:
    def test_of_nvidia_become_part_of_the_draft(self, program: Program) -> None:
        program("nvidia-smi", "for i in 1 2 3 4; do echo 'NVIDIA A100-SXM4-40GB, 40960, 535.1'; done")
        gpu = loaded(here()).partitions["here"].gpu
        assert gpu is not None
        assert (gpu.count, gpu.model, gpu.memory_gib, gpu.vendor) == (4, "NVIDIA A100-SXM4-40GB", 40, "nvidia")

    @pytest.mark.thorough
    def test_of_amd_are_asked_of_whichever_program_is_there(self, program: Program) -> None:
        program("rocm-smi", """echo '{"card0": {"Card series": "MI210", "VRAM Total Memory (B)": "68702699520"}}'""")
        program("amd-smi", "echo 'not supported' >&2; exit 1")
        (gpu,) = here().accelerators
        assert (gpu.model, gpu.vendor, gpu.memory_gib) == ("MI210", "amd", 64.0)


class TestASchedulerOtherThanSlurm:
    @pytest.mark.parametrize(
        ("name", "asks", "dialect"), [("lsid", "lsid", "lsf"), ("qstat", "qstat", "pbs"), ("flux", "flux", "flux")]
    )
    @pytest.mark.thorough
    def test_is_named_when_it_answers(self, program: Program, name: str, asks: str, dialect: str) -> None:
        program(asks, "echo 10.1")
        found = here()
        assert found.scheduler == dialect
        assert loaded(found).scheduler.dialect == dialect

    def test_is_not_believed_because_of_its_programs_alone(self, program: Program) -> None:
        program("qsub", "echo 'pbs_version = 2022.1'")
        program("qstat", "echo 'cannot connect to server' >&2; exit 111")
        found = here()
        assert found.scheduler == "shell"
        assert str(found.programs["qstat"]) == "failed: cannot connect to server"


def lmod() -> str:
    init = "/usr/share/lmod/lmod/init/bash"
    if not Path(init).is_file():
        pytest.skip("needs Lmod")
    return init


@pytest.fixture
def module_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Modules of which a compiler brings others, as on a real machine."""
    lmod()
    tree = tmp_path / "modules"
    for name, text in {
        "Stages/2022": "",
        "Stages/2023": "",
        "GCC/11.2.0": f"prepend-path MODULEPATH {tmp_path}/inner",
    }.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(f"#%Module1.0\n{text}\n")
    (tmp_path / "inner" / "OpenMPI").mkdir(parents=True)
    (tmp_path / "inner" / "OpenMPI" / "4.1.2").write_text("#%Module1.0\n")
    monkeypatch.setenv("MODULEPATH", str(tree))
    monkeypatch.setenv("MODULEPATH_ROOT", str(tree))
    monkeypatch.setenv("LMOD_PKG", "/usr/share/lmod/lmod")
    monkeypatch.setenv("HOME", str(tmp_path))
    return tree


class TestModules:
    def test_are_found_with_those_that_others_bring(self, module_tree: Path) -> None:
        found = here().modules
        assert (found.kind, found.problem) == ("lmod", "")
        assert {"GCC/11.2.0", "Stages/2022"} <= set(found.available)
        assert "OpenMPI/4.1.2" not in found.available
        assert "OpenMPI/4.1.2" in found.reachable
        assert found.stages == ("2022", "2023")

    @pytest.mark.thorough
    def test_are_found_where_the_login_shell_does_not_define_them(
        self, module_tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # What a profile does last: nothing of its module system is left.
        (tmp_path / ".bash_profile").write_text("unset -f module ml; unset BASH_ENV\n")
        monkeypatch.delenv("LMOD_PKG")
        assert here().modules.kind == "lmod"

    def test_become_stages_of_the_draft(self, module_tree: Path) -> None:
        system = loaded(here())
        assert (system.module_system, system.stages) == ("lmod", ("2022", "2023"))

    def test_are_unknown_where_the_login_shell_hangs_up(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / ".bash_profile").write_text("echo welcome; exit 3\n")
        monkeypatch.setenv("HOME", str(tmp_path))
        found = here().modules
        assert (found.kind, found.problem) == ("none", "the shell did not answer (exit code 3)")

    @pytest.mark.thorough
    def test_do_not_mind_a_profile_that_reads_its_input(self, module_tree: Path, tmp_path: Path) -> None:
        (tmp_path / ".bash_profile").write_text("cat >/dev/null; echo '@@ welcome'\n")
        assert here().modules.kind == "lmod"


class TestARealSlurm:
    def test_tells_its_partitions(self, slurm_cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SLURM_CONF", slurm_cluster.environ["SLURM_CONF"])
        found = here()
        assert found.scheduler == "slurm"
        assert found.slurm is not None and found.slurm.architectures == (os.uname().machine,)
        assert {queue.name: queue.nodes for queue in found.queues} == {"cpu": 3, "gpu": 1}
        system = loaded(found)
        assert system.scheduler.dialect == "slurm"
        assert (system.scheduler.version, system.scheduler.accounting) == (found.slurm.version, False)
        assert (system.default_partition, system.launch.launcher) == ("cpu", "srun")
        gpu = system.partitions["gpu"]
        assert gpu.gpu is not None and (gpu.gpu.count, gpu.gpu.model) == (2, "fake")
        assert gpu.max_time == 3600
        assert (gpu.cores, gpu.sockets) == (slurm_cluster.cores, 1)
        assert system.is_unverified("partitions.gpu.gpu.vendor")


class TestAnotherMachine:
    def test_is_described_over_ssh_as_this_one_is(self, sshd: Any) -> None:
        far, near = probe(Ssh("there", config=sshd.config), today=TODAY), here()
        assert (far.host, far.architecture, far.login) == (near.host, near.architecture, "there")
        assert (far.processor, far.memory_gib) == (near.processor, near.memory_gib)
        assert far.modules.kind == near.modules.kind
        assert loaded(far).login == "there"

    def test_that_cannot_be_reached_is_an_error(self, sshd: Any, tmp_path: Path) -> None:
        config = tmp_path / "config"
        config.write_text("Host there\n  HostName 127.0.0.1\n  Port 1\n")
        with pytest.raises(Transient, match="the connection to there failed"):
            probe(Ssh("there", config=config), today=TODAY)
