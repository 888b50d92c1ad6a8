"""Programs of many processes, launched for real: distributed torch and MPI, on Slurm and on this machine."""

from __future__ import annotations

import importlib.util
import json
import shutil
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from slurm_cluster import SlurmCluster
from slurm_jobs import jobs_on, torch_lines

from fairmile.jobs.machines import Machines
from fairmile.jobs.queue import Jobs, JobStatus
from fairmile.jobs.spec import JobSpec, Resources
from fairmile.jobs.states import State

TRAIN = """\
import json
import os

import torch
from torch.nn.parallel import DistributedDataParallel

torch.distributed.init_process_group("gloo")
rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
torch.manual_seed(rank)  # each rank has weights and data of its own: only the others' gradients make them agree
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs = torch.randn(64, 4)
targets = inputs.sum(1, keepdim=True)
losses = []
for _ in range(5):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
    mean = loss.detach().clone()
    torch.distributed.all_reduce(mean)
    losses.append(mean.item() / size)
said = {
    "rank": rank,
    "size": size,
    "node": os.environ.get("SLURMD_NODENAME", ""),
    "threads": os.environ.get("OMP_NUM_THREADS"),
    "losses": losses,
    "weights": [weight for each in model.parameters() for weight in each.flatten().tolist()],
}
os.write(1, (json.dumps(said) + "\\n").encode())
torch.distributed.destroy_process_group()
"""
HELLO = """\
import json
import os

from mpi4py import MPI

world = MPI.COMM_WORLD
said = {"rank": world.rank, "sum": world.allreduce(world.rank), "node": os.environ.get("SLURMD_NODENAME", "")}
os.write(1, (json.dumps(said) + "\\n").encode())
"""
COUNT = """\
import ray

ray.init(address="auto", log_to_driver=False)
print("nodes", sum(node["Alive"] for node in ray.nodes()), "cpus", ray.cluster_resources()["CPU"])


@ray.remote(num_cpus=2)
def where() -> str:
    import time

    time.sleep(1)
    return ray.get_runtime_context().get_node_id()


print("used", len(set(ray.get([where.remote() for _ in range(2)]))))
"""
ROOT_MAY = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def needs(*modules: str, program: str = "") -> None:
    for module in modules:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"needs the Python package {module}")
    if program and shutil.which(program) is None:
        pytest.skip(f"needs {program}")


def ended(jobs: Jobs, spec: JobSpec, on: str) -> list[dict[str, Any]]:
    """Run a job to its end and return what its processes said, by rank."""
    job: JobStatus
    (job,) = jobs.wait([jobs.submit(spec, system=on).id], timeout_s=400)
    assert job.state is State.DONE, (job, jobs.log(job.id), jobs.log(job.id, errors=True))
    lines = [json.loads(line) for line in jobs.log(job.id).splitlines() if line.startswith(b"{")]
    return sorted(lines, key=lambda said: said["rank"])


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


@pytest.fixture(autouse=True)
def _threads_are_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS")


@pytest.fixture
def here(tmp_path: Path) -> Jobs:
    needs("torch")
    return Jobs(tmp_path / "jobs", Machines([], tmp_path / "jobs"))


@pytest.mark.thorough
def test_torch_trains_on_two_nodes_from_one_submit(
    slurm_cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs("torch")
    jobs = jobs_on(slurm_cluster, tmp_path, monkeypatch, more=torch_lines())
    spec = JobSpec(
        argv=("python3", "train.py"),
        software=("ddp",),
        texts={"train.py": TRAIN},
        resources=Resources(nodes=2, cpus_per_task=1, memory_gib=1.8),
        # The names of these nodes are in no name service.
        env={"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "GLOO_SOCKET_IFNAME": "lo"},
    )
    first, second = ended(jobs, spec, "rig")
    assert (first["size"], second["size"]) == (2, 2)
    assert first["node"] != second["node"]
    assert first["losses"] == second["losses"]
    assert first["weights"] == second["weights"]
    assert first["losses"][-1] < first["losses"][0]
    assert (first["threads"], second["threads"]) == ("1", "1")


def test_mpi_spans_two_nodes(slurm_cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("mpi4py", program="mpirun")
    jobs = jobs_on(slurm_cluster, tmp_path, monkeypatch, more=torch_lines())
    spec = JobSpec(
        argv=("python3", "hello.py"),
        software=("ddp",),
        launch="mpirun",
        texts={"hello.py": HELLO},
        resources=Resources(nodes=2, tasks_per_node=2, memory_gib=1.0),
        # These nodes are one machine: what two of them keep in shared memory would have the same name.
        env={**ROOT_MAY, "OMPI_MCA_btl": "self,tcp"},
    )
    said = ended(jobs, spec, "rig")
    assert [(each["rank"], each["sum"]) for each in said] == [(0, 6), (1, 6), (2, 6), (3, 6)]
    assert len({each["node"] for each in said}) == 2


def test_srun_starts_every_task_of_every_node(
    slurm_cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = jobs_on(slurm_cluster, tmp_path, monkeypatch)
    script = 'printf \'{"rank": %s, "node": "%s"}\\n\' "$SLURM_PROCID" "$SLURMD_NODENAME"'
    spec = JobSpec(argv=("bash", "-c", script), resources=Resources(nodes=3, tasks_per_node=2))
    said = ended(jobs, spec, "rig")
    assert [each["rank"] for each in said] == list(range(6))
    assert sorted(each["node"] for each in said) == ["n1", "n1", "n2", "n2", "n3", "n3"]


@pytest.mark.thorough
def test_torch_trains_with_two_processes_here(here: Jobs) -> None:
    resources = Resources(tasks_per_node=2)
    argv = (sys.executable, "train.py")
    spec = JobSpec(argv=argv, launch="torchrun", texts={"train.py": TRAIN}, resources=resources)
    first, second = ended(here, spec, "laptop")
    assert first["losses"] == second["losses"]
    assert (first["size"], first["threads"]) == (2, "1")


@pytest.mark.thorough
def test_a_rank_that_dies_ends_the_whole_training(here: Jobs) -> None:
    program = "import os, sys, time\nif os.environ['RANK'] == '1': sys.exit(9)\ntime.sleep(600)\n"
    resources = Resources(tasks_per_node=2)
    argv = (sys.executable, "bad.py")
    spec = JobSpec(argv=argv, launch="torchrun", texts={"bad.py": program}, resources=resources)
    (job,) = here.wait([here.submit(spec).id], timeout_s=200)
    assert job.state is State.FAILED
    assert b"exitcode  : 9" in here.log(job.id, errors=True)


@pytest.mark.thorough
def test_ray_spans_the_nodes_of_one_job(
    slurm_cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs("ray")
    (tmp_path / "count.py").write_text(COUNT)
    bin = Path(sys.executable).parent
    lines = f"software:\n  ray:\n    lines: ['export PATH={bin}:$PATH']\n    launch: ray\n"
    jobs = jobs_on(slurm_cluster, tmp_path, monkeypatch, more=lines)
    # The nodes of this cluster are one machine and have no names of their own.
    env = {"MASTER_ADDR": "127.0.0.1", "RAY_OBJECT_STORE_ALLOW_SLOW_STORAGE": "1"}
    asked = Resources(nodes=2, cpus_per_task=2, memory_gib=1.9)
    spec = JobSpec(argv=(sys.executable, str(tmp_path / "count.py")), software=("ray",), resources=asked, env=env)
    (job,) = jobs.wait([jobs.submit(spec, system="rig").id], timeout_s=400)
    output = jobs.log(job.id).decode()
    assert job.state is State.DONE, (output, jobs.log(job.id, errors=True))
    assert "nodes 2 cpus 4.0" in output and "used 2" in output
