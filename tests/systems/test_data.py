"""The systems that are built in: held against the start scripts they come from, and against their own rules."""

from __future__ import annotations

import json
from datetime import date
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import pytest
from cases import for_each

from fairmile.systems.model import SoftwareSet, System
from fairmile.systems.registry import Systems, check_file

SCRIPTS: list[dict[str, Any]] = json.loads(Path(__file__).with_name("start_scripts.json").read_text())["scripts"]
SYSTEMS = {"Deep": "deep", "Jureca": "jureca", "Juwels": "juwels", "LUMI": "lumi", "CTEAMD": "cte-amd"}
# Their partitions tell that these scripts, which name no system, are JURECA's.
TUNERS = {"ASHA": "asha", "BOHB": "bohb", "PBT": "pbt", "RayTune+DDP": "raytune-ddp"}
NAMES = Systems().names()
TODAY = date(2026, 11, 20)
# What is known of Deucalion could be held against no page that can be cited.
DOUBTS = {"summit": ["retired"], "deucalion": ["verified"]}


@pytest.fixture(scope="module")
def systems() -> Systems:
    return Systems()


def contains(lines: tuple[str, ...], wanted: list[str]) -> bool:
    """Tell whether the wanted lines stand among the lines as one piece."""
    return not wanted or any(list(lines[start : start + len(wanted)]) == wanted for start in range(len(lines)))


def set_of(found: System, script: dict[str, Any]) -> SoftwareSet:
    framework = TUNERS.get(script["framework"], script["framework"].lower())
    return next(each for each in found.software[framework] if contains(each.lines, script["module_lines"]))


def test_there_are_24_scripts() -> None:
    assert len(SCRIPTS) == 24


@for_each("script", SCRIPTS)
def test_the_lines_of_a_real_script_stand_in_the_systems_file(script: dict[str, Any], systems: Systems) -> None:
    found = systems["jureca" if script["framework"] in TUNERS else SYSTEMS[script["system"]]]
    assert list(set_of(found, script).lines) == script["module_lines"]


@for_each("script", SCRIPTS)
def test_the_batch_settings_of_a_real_script_stand_in_the_systems_file(
    script: dict[str, Any], systems: Systems
) -> None:
    found = systems["jureca" if script["framework"] in TUNERS else SYSTEMS[script["system"]]]
    chosen, settings = set_of(found, script), script["sbatch"]
    assert chosen.tasks_per_node == int(settings.get("ntasks-per-node") or settings["tasks-per-node"])
    cpus = settings.get("cpus-per-task")
    assert chosen.cpus_per_task == (int(cpus) if cpus else None)
    gpus = settings.get("gpus-per-node") or settings.get("gres", "").removeprefix("gpu:")
    assert chosen.gpus_per_node == (int(gpus) if gpus else None)
    if "gpus-per-node" in settings:
        asked_by = "both" if "gres" in settings else "gpus-per-node"
        assert found.scheduler.gpu_option == asked_by
    partition = settings.get("partition")
    if partition:
        assert partition in found.partitions
        assert not chosen.partitions or partition in chosen.partitions
        assert found.partitions[chosen.partition].gpu == found.partitions[partition].gpu


def test_no_account_of_a_project_is_a_default(systems: Systems) -> None:
    for name in ("deep", "jureca", "juwels", "lumi"):
        assert systems[name].scheduler.needs_account
        text = systems[name].model_dump_json()
        for account in ("deepext", "zam", "slfse", "raise-ctp", "project_465000625"):
            assert f'"{account}' not in text


def test_where_published_rules_and_real_scripts_disagree_the_script_wins_and_it_is_said(systems: Systems) -> None:
    deep, jureca = systems["deep"].software, systems["jureca"].software
    assert (jureca["heat"][0].tasks_per_node, jureca["horovod"][0].tasks_per_node) == (1, 4)
    assert (deep["heat"][0].tasks_per_node, deep["heat"][0].gpus_per_node) == (4, 1)
    assert (deep["horovod"][0].tasks_per_node, deep["horovod"][0].gpus_per_node) == (4, 1)
    assert deep["ddp"][0].lines[-1] == "ml -nvidia-driver/.default"
    for sets in (deep["ddp"], deep["heat"], deep["horovod"], jureca["heat"]):
        assert sets[0].disagrees
    assert not jureca["horovod"][0].disagrees


def test_variants_of_a_framework_have_names(systems: Systems) -> None:
    plain, amd, newer = systems["jureca"].variants("ddp").values()
    assert "NVHPC/22.3" in plain.lines[1]
    assert amd.partitions == ("dc-mi200",)
    assert newer.variant == "stages-2025" and not newer.is_old(date(2026, 11, 15))
    juwels = systems["juwels"].variants("ddp")
    assert list(juwels) == ["stages-2025", "stages-2023", "apptainer"]
    assert "NVHPC/23.1" in juwels["stages-2023"].lines[1]
    assert "Apptainer-Tools/2023" in juwels["apptainer"].lines[0]
    assert list(systems["lumi"].variants("ddp")) == ["container", "own-container", "rccl-plugin"]


def test_on_lumi_the_newest_set_comes_first_and_each_says_what_it_is_for(systems: Systems) -> None:
    newest, container, environment = systems["lumi"].software["ddp"]
    assert newest.lines[-1] == "module load lumi-aif-singularity-bindings"
    assert newest.container[:2] == ("singularity", "run") and newest.container[2].endswith(".sif")
    assert " " not in newest.container[2]
    assert container.lines == ("ml LUMI/22.08 partition/G",)
    assert environment.lines[-1] == "module load aws-ofi-rccl/rocm-5.5.0"
    assert len({newest.source, container.source, environment.source}) == 3
    assert "container" in container.note
    assert "environment" in environment.note


@for_each("name", NAMES)
def test_no_set_says_that_programs_run_in_a_container_that_it_does_not_start(name: str, systems: Systems) -> None:
    for framework, sets in systems[name].software.items():
        for each in sets:
            if "container" in each.note.lower():
                assert each.container or "--environment" in each.note, (name, framework, each.note)


def test_jupiter_meets_at_the_plain_name_of_a_node(systems: Systems) -> None:
    """No public script of JUPITER appends the letter that those of JURECA and JUWELS do."""
    assert systems["jupiter"].launch.rendezvous_suffix == ""
    assert systems["juwels"].launch.rendezvous_suffix == systems["jureca"].launch.rendezvous_suffix == "i"


def test_the_queues_of_aurora_are_those_of_its_page_of_july_2026(systems: Systems) -> None:
    queues = {
        name: (each.min_nodes, each.max_nodes, (each.max_time or 0) / 3600)
        for name, each in systems["aurora"].partitions.items()
    }
    assert queues == {
        "debug": (1, 2, 1),
        "debug-scaling": (2, 256, 1),
        "prod": (256, 10_624, 24),
        "capacity": (1, 16, 168),
    }
    assert systems["aurora"].newest_source == "2026-07-27"


def test_a_comparison_is_told_with_the_age_of_the_sources_and_not_as_proof(systems: Systems) -> None:
    assert systems["jureca"].compared == "compared with its sources on 2026-11-15; newest source: 2023"
    assert systems["perlmutter"].compared == "compared with its sources on 2026-11-15; its sources have no dates"
    undated = systems["jureca"].model_copy(update={"verified": None})
    assert undated.compared == "never compared with a source"


def test_an_option_of_srun_that_no_script_of_deep_has_is_not_given_there(systems: Systems) -> None:
    assert systems["deep"].launch.binding == ""


@for_each("name", NAMES)
def test_a_built_in_file_holds_to_the_rules(name: str) -> None:
    with as_file(files("fairmile.systems") / "data" / f"{name}.yaml") as path:
        problems = check_file(path, today=TODAY)
    errors = [str(problem) for problem in problems if problem.severity == "error"]
    doubts = [problem.field for problem in problems if problem.severity == "warning"]
    assert errors == []
    assert doubts == DOUBTS.get(name, [])


@for_each("name", [name for name in NAMES if name != "laptop"])
def test_a_built_in_file_says_what_was_checked_and_where(name: str, systems: Systems) -> None:
    found = systems[name]
    assert found.name == name
    assert (found.verified is None) == (name == "deucalion")
    assert found.sources
    assert all(source.startswith("https://") for source in found.sources)
    for sets in found.software.values():
        assert all(each.source for each in sets)


def test_every_dialect_has_a_system(systems: Systems) -> None:
    assert {systems[name].scheduler.dialect for name in systems} == {"slurm", "lsf", "pbs", "flux", "shell"}


def test_the_laptop_takes_everything(systems: Systems) -> None:
    here = systems["laptop"]
    assert (here.scheduler.dialect, here.launch.launcher, here.default_partition) == ("shell", "none", "here")
    partition = here.partitions["here"]
    assert (partition.max_time, partition.max_nodes, partition.cores, partition.gpu) == (None, None, None, None)


def test_no_two_systems_have_one_alias(systems: Systems) -> None:
    taken = [word for name in systems for word in (name, *systems[name].aliases)]
    assert sorted(taken) == sorted(set(taken))
