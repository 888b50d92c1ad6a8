"""The command that starts a program on its nodes, for every launcher."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from fairmile.jobs.launchers import make_launch
from fairmile.jobs.request import Request
from fairmile.jobs.spec import Array, JobSpec, Signal
from fairmile.systems.model import System

ODD = ("a b", "it's", '"quoted"', "$(touch /tmp/x)", "`id`", "$HOME", "ü*?", "", "line\nbreak", "\\")


def system(dialect: str = "slurm", **launch: Any) -> System:
    described = {"name": "here", "title": "Here", "scheduler": {"dialect": dialect}, "partitions": {"all": {}}}
    return System.model_validate({**described, "launch": launch})


def request(launch: str, spec: dict[str, Any] | None = None, **changes: Any) -> Request:
    """A job with two nodes of four GPUs and 32 cores, one task for each GPU, unless changed."""
    values: dict[str, Any] = {
        "system": "here",
        "nodes": 2,
        "tasks_per_node": 4,
        "cpus_per_task": 8,
        "gpus_per_node": 4,
        "time_s": None,
        "memory_gib": None,
        "partition": "all",
        "account": "",
        "qos": "",
        "exclusive": None,
        "launch": launch,
    }
    described = {"argv": ("python", "train.py", "--lr", "0.1"), **(spec or {})}
    return Request(spec=JobSpec(**described), **values | changes)


def command(launch: str, where: System, spec: dict[str, Any] | None = None, **changes: Any) -> str:
    text = make_launch(request(launch, spec, **changes), where).command
    return " ".join(text.replace("\\\n", " ").split())


def test_a_plain_program_is_just_itself() -> None:
    assert command("plain", system()) == "python train.py --lr 0.1"


def test_ray_has_its_head_beside_the_program_and_workers_on_the_other_nodes() -> None:
    made = make_launch(request("ray", tasks_per_node=1, cpus_per_task=32, starter="srun"), system(launcher="srun"))
    assert made.command == "python train.py --lr 0.1"
    start = next(line for line in made.prepare if " bash -c " in line)
    assert start.startswith("srun --overlap --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpus-per-task=32 ")
    assert start.endswith(
        "ray start --block --disable-usage-stats --num-cpus=32 --min-worker-port=0 --max-worker-port=0 --num-gpus=4 &"
    )
    assert "if ((SLURM_PROCID == 0)); then exec" in start
    assert any(line.startswith("export RAY_HEAD=") and "RAY_ADDRESS=" in line for line in made.prepare)
    assert "-ge 2 ] || ((SECONDS > 300))" in made.prepare[-1]
    text = "\n".join(made.prepare)
    assert subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True).returncode == 0


def test_srun_says_again_what_each_task_gets() -> None:
    where = system(launcher="srun", mpi="pspmix", binding="--cpu-bind=none --distribution='block:cyclic'")
    assert command("srun", where) == (
        "srun --nodes=2 --ntasks=8 --ntasks-per-node=4 --cpus-per-task=8 --mpi=pspmix --kill-on-bad-exit=1 "
        "--cpu-bind=none --distribution=block:cyclic python train.py --lr 0.1"
    )


def test_mpirun_on_this_machine_is_only_told_how_many() -> None:
    assert command("mpirun", system("shell"), nodes=1, cpus_per_task=None) == "mpirun -np 4 python train.py --lr 0.1"


def test_mpirun_under_slurm_is_told_how_many_on_a_node() -> None:
    assert command("mpirun", system()).startswith("mpirun -np 8 --map-by ppr:4:node --bind-to none python")


@pytest.mark.parametrize(("dialect", "file"), [("pbs", '"$PBS_NODEFILE"'), ("lsf", '"$LSB_DJOB_HOSTFILE"')])
def test_mpirun_elsewhere_gets_the_hosts_and_hands_variables_over(dialect: str, file: str) -> None:
    found = command("mpirun", system(dialect), {"env": {"MINE": "1"}})
    assert f"--hostfile {file} -x PATH -x LD_LIBRARY_PATH" in found
    assert "-x MINE python" in found


def test_mpiexec_is_told_how_many_on_a_node() -> None:
    where = system("pbs", launcher="mpiexec", binding="--cpu-bind depth")
    assert command("mpiexec", where).startswith("mpiexec -n 8 --ppn 4 --cpu-bind depth python")


def test_the_binding_of_one_launcher_is_not_given_to_another() -> None:
    assert "--cpu-bind" not in command("mpirun", system(launcher="srun", binding="--cpu-bind=none"))


def test_jsrun_makes_one_resource_set_for_each_task() -> None:
    assert command("jsrun", system("lsf", launcher="jsrun")).startswith("jsrun -n8 -r4 -a1 -c8 -g1 -bpacked:8 python")


def test_jsrun_makes_one_resource_set_for_each_node_where_gpus_cannot_be_shared_out() -> None:
    found = command("jsrun", system("lsf", launcher="jsrun"), gpus_per_node=6)
    assert found.startswith("jsrun -n2 -r1 -a4 -c32 -g6 -bpacked:8 python")


def test_flux_runs_tasks_with_their_cores_and_gpus() -> None:
    found = command("flux", system("flux", launcher="flux"))
    assert found.startswith("flux run --nodes=2 --ntasks=8 --cores-per-task=8 --gpus-per-task=1 python")


def test_horovodrun_gets_the_hosts() -> None:
    made = make_launch(request("horovodrun"), system())
    assert made.prepare[-1] == 'fairmile_hosts=$(printf "%s:4," $FAIRMILE_NODES)'
    assert made.command == 'horovodrun -np 8 -H "${fairmile_hosts%,}" python train.py --lr 0.1'
    assert command("horovodrun", system(), nodes=1).startswith("horovodrun -np 4 -H localhost:4 python")


def test_a_container_stands_before_the_program_of_each_task() -> None:
    wrap = {"wrap": ("apptainer", "exec", "my image.sif")}
    assert command("srun", system(launcher="srun"), wrap).endswith(
        "apptainer exec 'my image.sif' python train.py --lr 0.1"
    )
    found = command("torchrun", system(), wrap, nodes=1)
    assert found.startswith("apptainer exec 'my image.sif' torchrun --standalone")


class TestTorchrun:
    def test_one_node_needs_no_meeting_point(self) -> None:
        assert command("torchrun", system(), nodes=1, tasks_per_node=1) == (
            "torchrun --standalone --nnodes=1 --nproc-per-node=4 train.py --lr 0.1"
        )

    def test_one_node_is_reached_by_jsrun_where_the_script_runs_elsewhere(self) -> None:
        found = command("torchrun", system("lsf", launcher="jsrun"), nodes=1, tasks_per_node=1, starter="jsrun")
        assert found.startswith("jsrun -n1 -r1 -a1 -c8 -g4 -brs torchrun --standalone")

    def test_without_gpus_there_is_one_worker_for_each_task(self) -> None:
        assert "--nproc-per-node=1" in command("torchrun", system(), nodes=1, tasks_per_node=1, gpus_per_node=0)
        assert "--nproc-per-node=2" in command("torchrun", system(), nodes=1, tasks_per_node=2, gpus_per_node=0)

    def test_several_nodes_get_one_agent_each_with_all_that_the_tasks_have(self) -> None:
        found = command("torchrun", system(launcher="srun", mpi="pmix"), starter="srun")
        assert found.startswith(
            "srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpus-per-task=32 --kill-on-bad-exit=1 bash"
        )
        assert "--mpi" not in found

    @pytest.mark.parametrize(
        ("starter", "words"),
        [
            ("mpirun", "mpirun -np 2 --map-by ppr:1:node --bind-to none bash"),
            ("mpiexec", "mpiexec -n 2 --ppn 1 bash"),
            ("jsrun", "jsrun -n2 -r1 -a1 -c32 -g4 -brs bash"),
            (
                "flux",
                "flux run --nodes=2 --ntasks=2 --cores-per-task=32 --gpus-per-task=4 "
                "-o cpu-affinity=off -o gpu-affinity=off bash",
            ),
        ],
    )
    def test_every_launcher_starts_the_agents(self, starter: str, words: str) -> None:
        assert command("torchrun", system(launcher=starter), starter=starter).startswith(words)

    @pytest.mark.parametrize(
        ("argv", "words"),
        [
            (("python3", "train.py"), "torchrun --standalone --nnodes=1 --nproc-per-node=4 train.py"),
            (("/env/bin/python", "x.py"), "/env/bin/python -m torch.distributed.run --standalone --nnodes=1"),
            (("python", "-m", "pkg.train", "-v"), "--nproc-per-node=4 -m pkg.train -v"),
            (("python", "-u", "x.py"), "--nproc-per-node=4 --no-python python -u x.py"),
            (("train.py", "-v"), "--nproc-per-node=4 train.py -v"),
            (("./program", "-v"), "--nproc-per-node=4 --no-python ./program -v"),
        ],
    )
    def test_the_program_is_given_as_torchrun_takes_it(self, argv: tuple[str, ...], words: str) -> None:
        assert words in command("torchrun", system(), {"argv": argv}, nodes=1, tasks_per_node=1)

    def test_threads_are_shared_out_among_the_workers(self) -> None:
        made = make_launch(request("torchrun", tasks_per_node=1, cpus_per_task=32), system())
        assert made.prepare[0] == "export OMP_NUM_THREADS=8"
        mine = make_launch(request("torchrun", {"env": {"OMP_NUM_THREADS": "3"}}), system())
        assert not any("OMP" in line for line in mine.prepare)

    def test_a_signal_that_it_would_not_hand_on_is_named_to_it(self) -> None:
        made = make_launch(request("torchrun", {"signal": Signal()}, nodes=1), system())
        assert "export PET_SIGNALS_TO_HANDLE=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1" in made.prepare

    def test_deepspeed_starts_the_same_way(self) -> None:
        assert command("deepspeed", system(), nodes=1) == command("torchrun", system(), nodes=1)


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """Programs that print their words, and launchers that start what they are given as the first or second node."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("torchrun", "python", "program"):
        _program(
            folder / name, f'echo "{name} MASTER=$MASTER_ADDR:$MASTER_PORT"; for word; do printf "%s\\0" "$word"; done'
        )
    start = 'while [ "${1#-}" != "$1" ]; do shift; done; '
    _program(folder / "srun", f'{start} SLURM_PROCID=${{RANK_HERE:-0}} exec "$@"')
    _program(folder / "getent", '[ "$2" = node1i.cluster ]')
    return folder


def _program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)


def _run(programs: Path, made: Any, **variables: str) -> tuple[str, list[str]]:
    text = "\n".join([*made.prepare, made.command])
    env = {"PATH": f"{programs}:/usr/bin:/bin", "FAIRMILE_JOB_ID": "4711", "FAIRMILE_NODES": "node1.cluster node2"}
    done = subprocess.run(["bash", "-c", text], env=env | variables, capture_output=True, text=True, check=True)
    head, _, words = done.stdout.partition("\n")
    return head, words.split("\0")[:-1]


def test_every_word_arrives_as_it_was_given(programs: Path) -> None:
    made = make_launch(request("srun", {"argv": ("program", *ODD)}), system(launcher="srun"))
    assert _run(programs, made)[1] == list(ODD)


def test_every_word_arrives_through_torchrun(programs: Path) -> None:
    where = system(launcher="srun", rendezvous_suffix="i")
    made = make_launch(request("torchrun", {"argv": ("python", "train.py", *ODD)}, starter="srun"), where)
    head, words = _run(programs, made)
    assert head == "torchrun MASTER=node1i.cluster:14711"
    assert words == [
        "--rdzv-conf=is_host=1",
        "--nnodes=2",
        "--nproc-per-node=4",
        "--rdzv-backend=c10d",
        "--rdzv-id=4711",
        "--rdzv-endpoint=node1i.cluster:14711",
        "train.py",
        *ODD,
    ]


def test_only_the_first_node_is_the_meeting_point(programs: Path) -> None:
    made = make_launch(request("torchrun", starter="srun"), system(launcher="srun"))
    assert _run(programs, made, RANK_HERE="1")[1][0] == "--rdzv-conf=is_host=0"


def test_the_node_of_the_script_is_not_the_meeting_point_where_it_is_none_of_the_jobs(programs: Path) -> None:
    (programs / "jsrun").symlink_to("srun")
    made = make_launch(request("torchrun", starter="jsrun"), system("lsf", launcher="jsrun"))
    nodes = {"FAIRMILE_NODES": "batch1 node1 node2", "HOSTNAME": "batch1.cluster"}
    assert "--rdzv-endpoint=node1:14711" in _run(programs, made, **nodes)[1]


def test_a_fast_network_that_is_not_there_is_not_used(programs: Path) -> None:
    made = make_launch(request("torchrun", starter="srun"), system(launcher="srun", rendezvous_suffix="x"))
    assert "--rdzv-endpoint=node1.cluster:14711" in _run(programs, made)[1]


def test_the_job_may_name_the_meeting_point_itself(programs: Path) -> None:
    spec = {"env": {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}}
    made = make_launch(request("torchrun", spec, starter="srun"), system(launcher="srun"))
    assert "--rdzv-endpoint=127.0.0.1:29500" in _run(programs, made, **spec["env"])[1]


@pytest.mark.parametrize(
    ("job", "port"),
    [("4711", 14711), ("0008", 10008), ("99999999999123", 29123), ("123[].server01", 22301), ("ƒXy", 10000)],
)
def test_the_port_comes_from_the_digits_of_the_job(programs: Path, job: str, port: int) -> None:
    made = make_launch(request("torchrun", starter="srun"), system(launcher="srun"))
    assert _run(programs, made, FAIRMILE_JOB_ID=job)[0].endswith(f":{port}")


def test_tasks_of_an_array_get_ports_of_their_own(programs: Path) -> None:
    made = make_launch(request("torchrun", {"array": Array(count=3)}, starter="srun"), system(launcher="srun"))
    assert _run(programs, made, FAIRMILE_ARRAY_INDEX="2")[0].endswith(":14713")
