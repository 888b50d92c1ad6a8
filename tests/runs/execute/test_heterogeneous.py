"""Solver and model on nodes of different partitions: one heterogeneous job, one MPI job, one run."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from slurm_cluster import SlurmCluster
from sweep_making import workspace_on

from fairmile import coupling
from fairmile.base.errors import InvalidDocument, Unsupported
from fairmile.runs.record.run import RunState
from fairmile.runs.runs import Runs

SOLVER_C = r"""
#include <mpi.h>
#define FAIRMILE_COUPLE_IMPLEMENTATION
#include "fairmile_couple.h"
int main(int count, char **words) {
  int rank, n, own = 0;
  int64_t shape[1];
  double values[600] = {1}, answers[600];
  MPI_Init(&count, &words);
  MPI_Comm_rank(fairmile_couple_comm(), &rank);
  shape[0] = 500 + rank;
  fairmile_couple_out("values", values, FAIRMILE_DOUBLE, 1, shape);
  fairmile_couple_in("answers", answers, FAIRMILE_DOUBLE, 1, shape);
  for (n = 0; n < 10; n++) {
    own += fairmile_couple_step() != FAIRMILE_ANSWERED;
    values[0] = answers[0];
  }
  printf("rank %d on %s: %d own, %g\n", rank, getenv("SLURMD_NODENAME"), own, values[0]);
  MPI_Finalize();
  return 0;
}
"""
MODEL = """
import os
from fairmile import coupling
for exchange in coupling.serve():
    exchange.answers["answers"][...] = 2 * exchange.fields["values"]
print("model on", os.environ["SLURMD_NODENAME"], os.environ["OMP_NUM_THREADS"])
"""
MODEL_RESOURCES = {"partition": "gpu", "gpus_per_node": 1, "tasks_per_node": 1, "cpus_per_task": 2}


@pytest.fixture
def rig(slurm_cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    monkeypatch.chdir(tmp_path)
    runs = workspace_on(slurm_cluster, tmp_path, monkeypatch).runs
    file = tmp_path / "rig.yaml"
    file.write_text(file.read_text().replace("launcher: srun", "launcher: srun, mpi: pmix"))
    return runs


def couple(runs: Runs, command: list[str], **fields: Any) -> Any:
    resources = {"nodes": 2, "tasks_per_node": 1, "cpus_per_task": 1}
    env = {"OMPI_MCA_btl": "self,tcp", "OMPI_MCA_btl_tcp_if_include": "lo"}
    return runs.run(command, coupled=True, system="rig", resources=resources, env=env, **fields)


def test_solver_and_model_have_nodes_of_their_own_and_are_one_run(rig: Runs, tmp_path: Path) -> None:
    if not shutil.which("mpicc"):
        pytest.skip("there is no MPI with headers")
    pytest.importorskip("mpi4py")
    (tmp_path / "solver.c").write_text(SOLVER_C)
    (tmp_path / "model.py").write_text(MODEL)
    subprocess.run(["mpicc", f"-I{coupling.include()}", "solver.c", "-o", "solver"], check=True)
    started = couple(rig, ["./solver", ":", sys.executable, "model.py"], model_resources=MODEL_RESOURCES)
    run = rig.wait(started.id, timeout_s=180)
    output = rig.output(run.id).decode()
    assert run.state is RunState.DONE, output
    assert sorted(output.splitlines()) == ["model on n4 2", "rank 0 on n1: 0 own, 1024", "rank 1 on n2: 0 own, 1024"]
    assert {file.name for file in run.captured.code.files} >= {"solver", "model.py"}


def test_the_script_has_a_part_for_each_and_starts_both_at_once(rig: Runs) -> None:
    fields: dict[str, Any] = {"coupled": True, "system": "rig", "resources": {"cpus_per_task": 1, "time_s": 600}}
    plan = rig.plan(["./solver", ":", "python3", "model.py"], model_resources=MODEL_RESOURCES, **fields)
    assert plan.script is not None
    lines = plan.script.splitlines()
    cut = lines.index("#SBATCH hetjob")
    assert {"#SBATCH --partition=cpu", "#SBATCH --time=00:10:00"} <= set(lines[:cut])
    assert {"#SBATCH --partition=gpu", "#SBATCH --gpus-per-node=1", "#SBATCH --time=00:10:00"} <= set(lines[cut:])
    start = next(line for line in lines if "srun --het-group=0" in line)
    assert "./solver : --het-group=1 --nodes=1" in start
    assert start.endswith("env OMP_NUM_THREADS=2 python3 model.py")


@pytest.mark.parametrize(
    ("command", "fields", "problem"),
    [
        (["true"], {"model_resources": {}}, "model_resources need a coupled run"),
        (["true", ":", "true"], {"coupled": True, "model_resources": {}}, "name a system"),
        (
            ["true", ":", "m.onnx"],
            {"coupled": True, "system": "rig", "model_resources": {}},
            "the model is a program without options",
        ),
        (
            ["true", ":", "true"],
            {"coupled": True, "system": "rig", "launch": "mpirun", "model_resources": {}},
            "a heterogeneous job is started by srun, not by mpirun",
        ),
        (
            ["true", ":", "true"],
            {"coupled": True, "system": "rig", "model_resources": {"partition": "gpus"}},
            "rig has no partition 'gpus'",
        ),
        (
            ["true", ":", "true"],
            {"coupled": True, "system": "polaris", "model_resources": {}},
            "a heterogeneous job needs Slurm, polaris has pbs",
        ),
    ],
)
def test_what_cannot_be_heterogeneous_is_refused(
    rig: Runs, command: list[str], fields: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InvalidDocument, match=problem):
        rig.plan(command, **fields)


def test_points_of_a_sweep_are_refused(rig: Runs, tmp_path: Path) -> None:
    plan = rig.plan(["true", ":", "true"], coupled=True, system="rig", model_resources={"partition": "gpu"})
    with pytest.raises(Unsupported, match="cannot be heterogeneous jobs"):
        rig.freeze(plan, tmp_path / "batch")
