"""The systems that are built in: held against the start scripts they come from, and against their own rules."""

from __future__ import annotations

import json
from datetime import date
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import pytest

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


def titled(script: dict[str, Any]) -> str:
    return f"{script['system']}-{script['framework']}-{script['sbatch'].get('partition', '')}"


def contains(lines: tuple[str, ...], wanted: list[str]) -> bool:
    """Tell whether the wanted lines stand among the lines as one piece."""
    return not wanted or any(list(lines[start : start + len(wanted)]) == wanted for start in range(len(lines)))


def set_of(found: System, script: dict[str, Any]) -> SoftwareSet:
    framework = TUNERS.get(script["framework"], script["framework"].lower())
    return next(each for each in found.software[framework] if contains(each.lines, script["module_lines"]))


def test_there_are_24_scripts() -> None:
    assert len(SCRIPTS) == 24


@pytest.mark.parametrize("script", SCRIPTS, ids=titled)
def test_the_lines_of_a_real_script_stand_in_the_systems_file(script: dict[str, Any], systems: Systems) -> None:
    found = systems["jureca" if script["framework"] in TUNERS else SYSTEMS[script["system"]]]
    assert list(set_of(found, script).lines) == script["module_lines"]


@pytest.mark.parametrize("script", SCRIPTS, ids=titled)
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


def test_of_two_variants_the_plain_one_comes_first(systems: Systems) -> None:
    plain, amd = systems["jureca"].software["ddp"]
    assert "NVHPC/22.3" in plain.lines[1]
    assert amd.partitions == ("dc-mi200",)
    plain, container = systems["juwels"].software["ddp"]
    assert "NVHPC/23.1" in plain.lines[1]
    assert "Apptainer-Tools/2023" in container.lines[0]


def test_on_lumi_each_of_the_two_scripts_is_a_set_of_its_own_and_says_what_it_is_for(systems: Systems) -> None:
    container, environment = systems["lumi"].software["ddp"]
    assert container.lines == ("ml LUMI/22.08 partition/G",)
    assert environment.lines[-1] == "module load aws-ofi-rccl/rocm-5.5.0"
    assert container.source != environment.source
    assert "container" in container.note
    assert "environment" in environment.note


def test_an_option_of_srun_that_no_script_of_deep_has_is_not_given_there(systems: Systems) -> None:
    assert systems["deep"].launch.binding == ""


@pytest.mark.parametrize("name", NAMES)
def test_a_built_in_file_holds_to_the_rules(name: str) -> None:
    with as_file(files("fairmile.systems") / "data" / f"{name}.yaml") as path:
        problems = check_file(path, today=TODAY)
    errors = [str(problem) for problem in problems if problem.severity == "error"]
    doubts = [problem.field for problem in problems if problem.severity == "warning"]
    assert errors == []
    assert doubts == DOUBTS.get(name, [])


@pytest.mark.parametrize("name", [name for name in NAMES if name != "laptop"])
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
