"""The draft of a system file: valid whatever was found, and honest about what was not."""

from __future__ import annotations

from datetime import date
from typing import Any

from cases import for_each

from fairmile.systems.check import read_document
from fairmile.systems.draft import draft
from fairmile.systems.model import System
from fairmile.systems.probe_result import (
    Accelerator,
    Modules,
    Network,
    Nodes,
    ProbeResult,
    Processor,
    Program,
    Queue,
    Slurm,
    StoragePlace,
)

TODAY = date(2026, 11, 15)


def drafted(**found: Any) -> tuple[System, str]:
    text = draft(ProbeResult("box", TODAY, **found), "box")
    document = read_document(text, "box.yaml")
    assert document.errors == []
    return document.need(), text


def test_a_machine_of_which_nothing_is_known_is_still_a_system() -> None:
    system, _ = drafted()
    assert (system.scheduler.dialect, list(system.partitions)) == ("shell", ["here"])
    assert system.verified == TODAY


def test_what_the_machine_says_of_itself_cannot_break_the_file() -> None:
    nasty = "x: y # \n- \"z'\x1b[31m\u2028"
    system, _ = drafted(
        architecture="x86_64",
        processor=Processor(nasty, 1, 2, 1),
        accelerators=(Accelerator(nasty, "nvidia", 0.5),),
        networks=(Network(nasty, "mlx5_0"),),
        programs={"scontrol": Program("/x", problem=nasty), "mpirun": Program("/x")},
        modules=Modules("lmod", stages=("2022",), problem=nasty),
        python=nasty,
    )
    assert system.partitions["here"].processor.startswith("x: y #")
    assert system.launch.launcher == "mpirun"


def test_what_the_file_must_have_and_nobody_saw_is_called_unverified() -> None:
    system, _ = drafted(
        scheduler="slurm",
        slurm=Slurm("23.11"),
        queues=(Queue("gpu", (Nodes(2, gpus=4),)),),
        places=(
            StoragePlace("$HOME", "/h", "nfs", 1024, 1),
            StoragePlace("$WORK", "/w", "nfs"),
            StoragePlace("$GONE", "/g", problem="gone"),
        ),
    )
    assert set(system.file_systems) == {"home", "work"}
    assert system.unverified == ("file_systems.work.purpose", "partitions.gpu.gpu")
    gpu = system.partitions["gpu"].gpu
    assert gpu is not None and (gpu.count, gpu.model, gpu.vendor) == (4, "GPU", "other")


def test_limits_that_would_contradict_the_nodes_are_left_out() -> None:
    queues = (
        Queue("a", (Nodes(2, cores=64),), 90061.0, min_nodes=4, max_nodes=9),
        Queue("b", (Nodes(8, cores=64, memory_gib=96.0), Nodes(2, memory_gib=192.5)), 1800.0, min_nodes=2, max_nodes=4),
    )
    system, _ = drafted(scheduler="slurm", slurm=Slurm(), queues=queues)
    assert (system.partitions["a"].max_nodes, system.partitions["a"].min_nodes) == (None, 1)
    assert (system.partitions["b"].max_nodes, system.partitions["b"].min_nodes) == (4, 2)
    assert (system.partitions["a"].max_time, system.partitions["b"].max_time) == (90061, 1800)
    assert system.partitions["b"].note == "Other nodes here: 2 with 192.5 GiB."


def test_partitions_that_cannot_be_described_are_named_in_a_comment() -> None:
    queues = (Queue("_hidden", (Nodes(1),)), Queue("empty", (Nodes(0),)), Queue("ok", (Nodes(1),), up=False))
    system, text = drafted(scheduler="slurm", slurm=Slurm(), queues=queues)
    assert list(system.partitions) == ["ok"]
    assert "# skipped _hidden" in text and "# skipped empty" in text
    assert "# it was down when it was probed" in text


@for_each(
    "model, vendor",
    [
        *((model, "nvidia") for model in ("a100", "h200", "v100", "gh200", "tesla", "a100_1g.5gb")),
        *((model, "amd") for model in ("mi250", "mi300a")),
        ("pvc", "intel"),
        ("fake", "other"),
    ],
)
def test_the_maker_of_a_gpu_is_known_by_its_name(model: str, vendor: str) -> None:
    system, _ = drafted(scheduler="slurm", slurm=Slurm(), queues=(Queue("q", (Nodes(1, gpus=1, gpu_model=model),)),))
    gpu = system.partitions["q"].gpu
    assert gpu is not None and gpu.vendor == vendor


@for_each(
    "scheduler, programs, launcher",
    [
        ("slurm", {"srun": Program("/x"), "mpirun": Program("/x")}, "srun"),
        ("slurm", {"srun": Program("/x", problem="broken"), "mpirun": Program("/x")}, "none"),
        ("lsf", {"jsrun": Program("/x"), "mpirun": Program("/x")}, "jsrun"),
        ("lsf", {"mpirun": Program("/x")}, "mpirun"),
        ("pbs", {"mpiexec": Program("/x")}, "mpiexec"),
        ("flux", {"flux": Program("/x")}, "flux"),
        ("shell", {}, "none"),
    ],
)
def test_programs_are_started_by_what_is_there(scheduler: str, programs: dict[str, Program], launcher: str) -> None:
    system, _ = drafted(scheduler=scheduler, programs=programs)
    assert (system.scheduler.dialect, system.launch.launcher) == (scheduler, launcher)
