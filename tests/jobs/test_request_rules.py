"""What a job leaves open is filled in by the system's rules, and what the system cannot give is refused."""

from __future__ import annotations

from typing import Any

import pytest

from fairmile.base.errors import InvalidDocument
from fairmile.jobs.request import Request
from fairmile.jobs.request_rules import make_request
from fairmile.jobs.spec import Array, JobSpec, Resources, Signal
from fairmile.systems.model import System
from fairmile.systems.registry import Systems

KNOWN = Systems()


def cluster(**changes: Any) -> System:
    """A small cluster with a CPU and a GPU partition."""
    gpu = {"count": 4, "model": "A100"}
    described: dict[str, Any] = {
        "name": "here",
        "title": "Here",
        "scheduler": {"dialect": "slurm", "options": ["--hint=nomultithread"]},
        "default_partition": "cpu",
        "partitions": {
            "cpu": {"nodes": 10, "cores": 64, "memory_gib": 256, "max_time": "24:00:00", "max_nodes": 8},
            "gpu": {"nodes": 4, "cores": 48, "threads_per_core": 2, "gpu": gpu, "max_time": "2:00:00", "qos": "fast"},
        },
        "launch": {"launcher": "srun"},
        "software": {
            "ddp": {"partition": "gpu", "partitions": ["gpu"], "launch": "torchrun", "lines": ["ml torch"]},
            "horovod": {"partition": "gpu", "tasks_per_node": "gpus", "launch": "srun", "lines": ["ml horovod"]},
            "ray": {"partition": "gpu", "launch": "ray", "environment": {"RAY": "1 2"}},
        },
    }
    return System.model_validate(described | changes)


def ask(system: System | None = None, **given: Any) -> Request:
    resources = {name: given.pop(name) for name in list(given) if name in Resources.model_fields}
    check = given.pop("check_account", True)
    spec = JobSpec(argv=given.pop("argv", ("python", "train.py")), resources=Resources(**resources), **given)
    return make_request(spec, system or cluster(), check_account=check)


def refused(system: System | None = None, **given: Any) -> dict[str, tuple[str, str]]:
    with pytest.raises(InvalidDocument) as caught:
        ask(system, **given)
    return {problem.field: (problem.message, problem.hint) for problem in caught.value.problems}


class TestDefaults:
    def test_a_plain_program_goes_to_the_default_partition_as_one_task_and_holds_no_whole_node(self) -> None:
        found = ask()
        assert (found.partition, found.nodes, found.tasks_per_node, found.cpus_per_task) == ("cpu", 1, 1, None)
        assert (found.gpus_per_node, found.launch) == (0, "plain")
        assert found.origins["partition"] == "default of here"

    def test_a_plain_program_that_wants_its_nodes_alone_gets_all_their_cores(self) -> None:
        found = ask(exclusive=True)
        assert found.cpus_per_task == 64
        assert found.origins["cpus_per_task"] == "partition cpu: 64 cores"

    def test_software_chooses_the_partition_and_all_of_its_gpus(self) -> None:
        found = ask(software=("ddp",))
        assert (found.partition, found.gpus_per_node, found.tasks_per_node) == ("gpu", 4, 1)
        assert (found.cpus_per_task, found.launch, found.qos) == (48, "torchrun", "fast")
        assert found.origins["partition"] == found.origins["launch"] == "software set ddp"
        assert found.origins["tasks_per_node"] == "torchrun starts one agent a node"

    def test_one_task_for_each_gpu(self) -> None:
        found = ask(software=("horovod",))
        assert (found.tasks_per_node, found.cpus_per_task, found.launch) == (4, 12, "srun")
        assert found.origins["cpus_per_task"] == "partition gpu: 48 cores / 4 tasks"

    def test_a_part_of_the_gpus_gets_a_part_of_the_cores(self) -> None:
        found = ask(software=("horovod",), gpus_per_node=2)
        assert (found.tasks_per_node, found.cpus_per_task) == (2, 12)
        assert "2 of 4 GPUs" in found.origins["cpus_per_task"]

    def test_whoever_takes_the_node_alone_gets_all_cores(self) -> None:
        assert ask(software=("horovod",), gpus_per_node=2, exclusive=True).cpus_per_task == 24

    def test_ray_is_started_on_several_nodes_and_starts_itself_on_one(self) -> None:
        one, two = ask(software=("ray",)), ask(software=("ray",), nodes=2)
        assert (one.launch, one.tasks_per_node) == ("plain", 1)
        assert (two.launch, two.tasks_per_node) == ("ray", 1)

    def test_several_tasks_start_through_the_launcher_of_the_system(self) -> None:
        assert ask(nodes=2).launch == "srun"
        assert ask(tasks_per_node=2).launch == "srun"

    def test_one_task_starts_through_jsrun_where_the_script_runs_on_another_node(self) -> None:
        found = ask(KNOWN["summit"], account="me")
        assert (found.launch, found.tasks_per_node, found.cpus_per_task) == ("jsrun", 1, 42)

    def test_what_is_asked_for_wins(self) -> None:
        found = ask(
            software=("horovod",),
            nodes=2,
            tasks_per_node=3,
            cpus_per_task=5,
            gpus_per_node=1,
            qos="slow",
            time_s="1:00:00",
        )
        values = (found.nodes, found.tasks_per_node, found.cpus_per_task, found.gpus_per_node, found.qos, found.time_s)
        assert values == (2, 3, 5, 1, "slow", 3600)
        assert {found.origins[name] for name in ("nodes", "tasks_per_node", "cpus_per_task", "qos")} == {"requested"}

    def test_a_job_without_a_time_gets_one_hour_where_there_is_a_limit_and_is_told_so(self) -> None:
        found = ask()
        assert found.time_s == 3600
        assert "No time limit given: the job gets 1h." in found.notes
        assert ask(KNOWN["laptop"]).time_s is None

    def test_options_of_system_partition_and_job_are_in_the_header_in_this_order(self) -> None:
        system = cluster(partitions={"cpu": {"options": ["--constraint=cpu"]}}, software={})
        assert ask(system, options=("--mail-type=END",)).options == (
            "--hint=nomultithread",
            "--constraint=cpu",
            "--mail-type=END",
        )

    def test_modules_come_first_then_the_variables_and_those_of_the_job_last(self) -> None:
        found = ask(software=("ddp", "ray"), preamble=(". /env/activate",), env={"A": "b c"})
        assert found.lines == (
            "# MODULES BEGIN here ddp ray",
            "ml torch",
            "# MODULES END",
            "export RAY='1 2'",
            ". /env/activate",
            "export A='b c'",
        )

    def test_the_laptop_knows_no_cores_and_sets_none(self) -> None:
        found = ask(KNOWN["laptop"])
        assert (found.cpus_per_task, found.gpus_per_node, found.launch, found.starter) == (None, 0, "plain", "none")

    def test_several_tasks_on_the_laptop_start_through_mpirun(self) -> None:
        assert ask(KNOWN["laptop"], tasks_per_node=2).launch == "mpirun"


class TestRealSystems:
    """The values of the real start scripts."""

    @pytest.mark.parametrize(
        ("system", "software", "values"),
        [
            ("jureca", "ddp", ("dc-gpu", 4, 1, 32, "torchrun")),
            ("jureca", "horovod", ("dc-gpu", 4, 4, 32, "srun")),
            ("jureca", "heat", ("dc-gpu", 4, 1, 32, "srun")),
            ("jureca", "raytune", ("dc-gpu", 4, 1, 128, "plain")),
            ("juwels", "ddp:stages-2023", ("booster", 4, 1, 24, "torchrun")),
            ("juwels", "ddp", ("booster", 4, 1, 48, "torchrun")),
            ("deep", "ddp", ("dp-esb", 1, 1, 16, "torchrun")),
            ("deep", "horovod", ("dp-esb", 1, 4, 1, "srun")),
            ("lumi", "ddp", ("standard-g", 8, 1, 56, "torchrun")),
            ("cte-amd", "horovod", ("main", 2, 2, 64, "srun")),
        ],
    )
    def test_jobs_are_cut_as_the_real_scripts_do(self, system: str, software: str, values: tuple[Any, ...]) -> None:
        found = ask(KNOWN[system], software=(software,), account="me")
        cut = (found.partition, found.gpus_per_node, found.tasks_per_node, found.cpus_per_task, found.launch)
        assert cut == values

    def test_a_published_rule_that_disagrees_is_told(self) -> None:
        notes = ask(KNOWN["deep"], software=("horovod",), account="me").notes
        assert any("published LAMEC rules" in note for note in notes)

    def test_values_that_nobody_verified_are_told_when_they_are_used(self) -> None:
        notes = ask(KNOWN["deep"], software=("tensorflow",), account="me").notes
        assert "The job uses unverified values of deep: partitions.dp-esb.cores." in notes

    def test_workers_that_share_too_few_cpus_are_told(self) -> None:
        notes = ask(KNOWN["lumi"], software=("ddp",), account="me", cpus_per_task=7).notes
        assert "The 8 workers of a node share 7 CPUs; raise it with --cpus-per-task." in notes

    def test_a_retired_system_is_told_and_not_refused(self) -> None:
        found = ask(KNOWN["summit"], account="me")
        assert found.notes[0] == "summit was retired on 2024-11-15."

    def test_every_system_takes_the_least_job_on_every_partition(self) -> None:
        for name in KNOWN:
            for partition in KNOWN[name].partitions:
                found = ask(KNOWN[name], partition=partition, account="me")
                assert found.partition == partition

    def test_every_framework_of_every_system_can_be_asked_for(self) -> None:
        for name in KNOWN:
            for software in KNOWN[name].software:
                assert ask(KNOWN[name], software=(software,), account="me").lines is not None


class TestRefusals:
    def test_each_limit_is_named_with_what_to_do(self) -> None:
        found = refused(nodes=9, time_s="30:00:00", cpus_per_task=65, gpus_per_node=1, memory_gib=300)
        assert found == {
            "nodes": ("9 nodes requested, partition cpu of here allows 8 at most", "request less"),
            "gpus_per_node": (
                "1 GPU requested, partition cpu of here has none",
                "request none, or use a partition with GPUs: gpu",
            ),
            "cpus_per_task": (
                "1 × 65 = 65 CPUs requested, a node of partition cpu of here has 64 cores",
                "request less, or use partition gpu",
            ),
            "memory_gib": ("300 GiB requested, a node of partition cpu of here has 256 GiB", "request less"),
            "time": ("1d 6h requested, partition cpu of here allows 1d at most", "request less"),
        }

    def test_more_gpus_than_a_node_has(self) -> None:
        message, hint = refused(partition="gpu", gpus_per_node=5)["gpus_per_node"]
        assert message == "5 GPUs requested, a node of partition gpu of here has 4"
        assert hint == "request more nodes"

    def test_a_longer_time_leads_to_the_partition_that_gives_it(self) -> None:
        assert refused(partition="gpu", time_s="3:00:00")["time"][1] == "request less, or use partition cpu"

    def test_hardware_threads_count_as_cpus(self) -> None:
        assert ask(partition="gpu", cpus_per_task=96).cpus_per_task == 96
        message, _ = refused(partition="gpu", cpus_per_task=97)["cpus_per_task"]
        assert message.endswith("has 96 (48 cores × 2 threads)")

    def test_flux_and_jsrun_count_cores(self) -> None:
        assert "cpus_per_task" in refused(KNOWN["tuolumne"], cpus_per_task=85)
        assert "cpus_per_task" in refused(KNOWN["summit"], cpus_per_task=43, account="me")

    def test_more_nodes_than_there_are(self) -> None:
        message, _ = refused(partition="gpu", nodes=5)["nodes"]
        assert message == "5 nodes requested, partition gpu of here allows 4 at most"

    def test_fewer_nodes_than_the_queue_gives(self) -> None:
        message, hint = refused(KNOWN["polaris"], partition="prod", nodes=2, account="me")["nodes"]
        assert message == "2 nodes requested, partition prod of polaris allows 10 at least"
        assert "debug" in hint
        assert ask(KNOWN["polaris"], partition="prod", account="me").nodes == 10

    def test_an_unknown_partition_leads_to_the_nearest(self) -> None:
        message, hint = refused(partition="gpus")["partition"]
        assert message == "here has no partition 'gpus'; did you mean 'gpu'?"
        assert hint == "its partitions: cpu, gpu"

    def test_an_unknown_framework_leads_to_the_nearest_beside_the_unknown_partition(self) -> None:
        found = refused(partition="gpus", software=("dpd",))
        assert "did you mean 'ddp'?" in found["software"][0]
        assert "did you mean 'gpu'?" in found["partition"][0]

    def test_software_that_is_not_on_the_partition(self) -> None:
        assert "not for partition 'cpu'" in refused(partition="cpu", software=("ddp",))["software"][0]

    def test_a_missing_account(self) -> None:
        system = cluster(scheduler={"dialect": "slurm", "needs_account": True})
        assert refused(system)["account"][1] == "give --account NAME"
        assert ask(system, account="me").account == "me"
        shown = ask(system, check_account=False)
        assert "here requires an account: add one before you submit." in shown.notes

    def test_an_array_that_is_too_large(self) -> None:
        system = cluster(scheduler={"dialect": "slurm", "most_array_tasks": 1000})
        assert "allows 1,000 in one array at most" in refused(system, array=Array(count=1001))["array"][0]

    def test_several_nodes_of_a_single_machine(self) -> None:
        assert "is a single machine" in refused(KNOWN["laptop"], nodes=2)["nodes"][0]

    def test_a_limit_that_nobody_verified_says_so(self) -> None:
        _, hint = refused(KNOWN["jureca"], partition="dc-gpu", time_s="2-00:00:00", account="me")["time"]
        assert hint.endswith("this limit is unverified: correct it in a system file of your own")

    def test_several_partitions_and_no_default_one(self) -> None:
        assert "no default" in refused(cluster(default_partition=""))["partition"][0]

    def test_a_program_that_is_torchrun_itself(self) -> None:
        assert "starts anyway" in refused(software=("ddp",), argv=("/env/bin/torchrun", "train.py"))["launch"][0]


class TestSignals:
    def test_what_a_scheduler_cannot_send_is_told(self) -> None:
        notes = ask(KNOWN["polaris"], account="me", signal=Signal()).notes
        assert "PBS sends no signal before the limit: USR1 is not sent." in notes

    def test_what_torchrun_does_with_it_is_told(self) -> None:
        assert any("--signals-to-handle" in note for note in ask(software=("ddp",), signal=Signal()).notes)
        assert not any("torchrun hands" in note for note in ask(software=("ddp",), signal=Signal(name="TERM")).notes)
