"""A machine beside what is registered for it: one verdict for each component."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from typing import Any

import pytest

from fairmile.base.commands import Here
from fairmile.systems.check import read_document
from fairmile.systems.draft import draft
from fairmile.systems.model import System
from fairmile.systems.probe import probe
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
from fairmile.systems.registry import Systems
from fairmile.systems.survey import SurveyRow, compare

TODAY = date(2026, 11, 15)
GPU = Nodes(4, 128, 2, 64, 2, 503.2, 4, "a100")
FOUND = ProbeResult(
    host="login1",
    day=TODAY,
    architecture="x86_64",
    scheduler="slurm",
    slurm=Slurm("23.11.4", "lake", architectures=("x86_64",)),
    queues=(Queue("gpu", (GPU,), 86400.0, max_nodes=4, default=True), Queue("debug", (replace(GPU, count=1),), 1800.0)),
    modules=Modules(
        "lmod", "8.7", ("Stages/2024", "GCC/12.3.0"), ("GCC/12.3.0", "OpenMPI/4.1.5", "HDF5/1.14"), ("2024",)
    ),
    places=(StoragePlace("$HOME", "/home/u", "nfs", 1, 1), StoragePlace("/scratch", "/scratch", "lustre", 1, 1)),
    programs={"srun": Program("/usr/bin/srun", "23.11.4")},
    python="3.9.18",
    components={"ray": "2.9.0", "jax": "0.4"},
)


def system(**facts: Any) -> System:
    gpu = {
        "nodes": 4,
        "cores": 64,
        "threads_per_core": 2,
        "sockets": 2,
        "memory_gib": 512,
        "gpu": {"count": 4, "model": "A100", "memory_gib": 40},
        "max_time": "1-00:00:00",
        "max_nodes": 4,
    }
    base: dict[str, Any] = {
        "name": "lake",
        "title": "The lake",
        "scheduler": {"dialect": "slurm"},
        "partitions": {"gpu": gpu},
        "launch": {"launcher": "srun"},
    }
    return System.model_validate(base | facts)


def rows(found: ProbeResult = FOUND, **facts: Any) -> dict[str, SurveyRow]:
    return {row.component: row for row in compare(found, system(**facts)).rows}


def verdict(component: str, found: ProbeResult = FOUND, **facts: Any) -> tuple[str, str]:
    row = rows(found, **facts)[component]
    return row.verdict, row.found


class TestHardware:
    def test_that_is_as_registered_is_the_same(self) -> None:
        told = {name: row.verdict for name, row in rows().items() if name.startswith("partition gpu")}
        assert set(told.values()) == {"same"}
        assert len(told) == 9

    def test_that_is_not_differs(self) -> None:
        smaller = replace(
            GPU, count=3, sockets=1, cores=32, threads_per_core=1, memory_gib=256.0, gpus=2, gpu_model="v100"
        )
        found = replace(FOUND, queues=(Queue("gpu", (smaller,), None, max_nodes=None),))
        told = {name: row for name, row in rows(found).items() if name.startswith("partition gpu")}
        assert {row.verdict for row in told.values()} == {"differs"}
        assert told["partition gpu longest job"].found == "no limit"

    def test_without_gpus_misses_them(self) -> None:
        found = replace(FOUND, queues=(Queue("gpu", (replace(GPU, gpus=0),)),))
        assert verdict("partition gpu GPUs", found) == ("missing", "none")

    def test_of_several_kinds_is_measured_by_the_kind_that_is_meant(self) -> None:
        found = replace(FOUND, queues=(Queue("gpu", (replace(GPU, count=90, memory_gib=1000.0), GPU)),))
        assert verdict("partition gpu memory", found) == ("same", "503.2 GiB")

    def test_of_an_unregistered_partition_is_new(self) -> None:
        assert verdict("partition debug") == ("new", "1 nodes, 64 cores, 503.2 GiB, 4 × a100")

    def test_of_a_partition_that_is_gone_is_missing(self) -> None:
        assert verdict("partition gpu", replace(FOUND, queues=(Queue("other", (GPU,)),))) == ("missing", "not there")

    def test_cannot_be_seen_where_no_scheduler_answers(self) -> None:
        alone = replace(FOUND, scheduler="shell", slurm=None, queues=())
        assert verdict("partition gpu", alone)[0] == "unknown"
        assert verdict("scheduler", alone) == ("missing", "none found")

    def test_of_a_machine_alone_is_its_own(self) -> None:
        found = ProbeResult(
            "box",
            TODAY,
            "x86_64",
            processor=Processor("Intel(R) Xeon(R) Gold 6148 CPU @ 2.40GHz", 2, 40, 2),
            memory_gib=188.0,
            accelerators=(Accelerator("Tesla V100-SXM2-16GB", "nvidia", 16.0),) * 4,
        )
        here = {
            "cores": 40,
            "threads_per_core": 2,
            "processor": "Intel Xeon Gold 6148",
            "memory_gib": 192,
            "gpu": {"count": 4, "model": "V100"},
        }
        told = rows(found, scheduler={"dialect": "shell"}, partitions={"here": here}, launch={})
        assert {row.verdict for name, row in told.items() if name.startswith("partition") and row.registered} == {
            "same"
        }
        assert told["partition here sockets"].verdict == "new"

    def test_of_another_architecture_differs(self) -> None:
        assert verdict("architecture", architecture="aarch64") == ("differs", "x86_64")
        assert "architecture" not in rows(architecture="any")


class TestTheScheduler:
    def test_that_answers_is_the_same_or_differs(self) -> None:
        assert verdict("scheduler") == ("same", "slurm")
        assert verdict("scheduler", scheduler={"dialect": "pbs"})[0] == "differs"

    def test_has_a_version(self) -> None:
        assert verdict("scheduler version")[0] == "new"
        assert verdict("scheduler version", scheduler={"dialect": "slurm", "version": "22.05"}) == (
            "differs",
            "23.11.4",
        )

    def test_may_lack_its_launcher(self) -> None:
        broken = replace(FOUND, programs={"srun": Program("/usr/bin/srun", problem="no configuration")})
        assert verdict("launcher", broken) == ("missing", "failed: no configuration")
        assert verdict("launcher", replace(FOUND, programs={})) == ("missing", "not there")


class TestFileSystems:
    def test_are_found_by_their_path(self) -> None:
        registered = {
            "home": {"path": "$HOME", "purpose": "home", "kind": "gpfs"},
            "scratch": {"path": "/scratch", "purpose": "scratch", "kind": "Lustre"},
            "work": {"path": "$WORK", "purpose": "project"},
            "project": {"path": "/project_<number>", "purpose": "project"},
        }
        found = replace(FOUND, places=(*FOUND.places, StoragePlace("/fast", "/fast", "xfs")))
        told = {
            name: row.verdict for name, row in rows(found, file_systems=registered).items() if "file system" in name
        }
        assert told == {
            "file system home": "differs",
            "file system scratch": "same",
            "file system work": "missing",
            "file system project": "unknown",
            "file system /fast": "new",
        }

    def test_that_cannot_be_read_are_missing(self) -> None:
        found = replace(FOUND, places=(StoragePlace("/x", "/x", problem="Permission denied"),))
        registered = {"x": {"path": "/x", "purpose": "scratch"}}
        assert verdict("file system x", found, file_systems=registered) == ("missing", "/x: Permission denied")


class TestModules:
    def test_of_each_set_are_looked_for_one_by_one(self) -> None:
        lines = ["ml --force purge", "ml Stages/2024 GCC/12.3.0 OpenMPI/4.1.5", "ml HDF5 Lost/1 GCC -Old"]
        told = rows(software={"x": {"lines": lines}, "y": {"lines": ["ml GCC/11.2.0"]}, "z": {}})
        assert told["module OpenMPI/4.1.5"].verdict == "same"
        assert told["module HDF5"] == SurveyRow("module HDF5", "for x", "HDF5/1.14", "same")
        assert told["module Lost/1"].verdict == "missing"
        assert told["module GCC/11.2.0"] == SurveyRow("module GCC/11.2.0", "for y", "GCC/12.3.0", "differs")
        assert told["software x"] == SurveyRow("software x", "6 modules", "5 of them there", "missing")
        assert told["software y"].verdict == "differs"
        assert told["software z"].verdict == "unknown"

    def test_that_only_show_later_are_not_called_missing(self) -> None:
        hidden = {"x": {"lines": ["ml use /elsewhere", "ml Lost/1"]}}
        assert verdict("module Lost/1", software=hidden)[0] == "unknown"
        plain = replace(FOUND, modules=replace(FOUND.modules, kind="environment-modules", reachable=()))
        told = rows(plain, software={"x": {"lines": ["module load Gone/1 Lost/1"]}})
        assert (told["module Gone/1"].verdict, told["module Lost/1"].verdict) == ("missing", "unknown")

    def test_without_a_list_are_unknown(self) -> None:
        found = replace(FOUND, modules=Modules(problem="timed out"))
        told = rows(found, software={"x": {"lines": ["ml A/1"]}}, stages=["2024"])
        assert {told[name].verdict for name in ("module A/1", "software x", "module system", "stage 2024")} == {
            "unknown"
        }

    def test_have_stages(self) -> None:
        told = rows(stages=["2022"])
        assert (told["stage 2022"].verdict, told["stage 2024"].verdict) == ("missing", "new")
        assert verdict("stage 2024", stages=["2024"])[0] == "same"

    def test_come_from_the_system_that_is_registered(self) -> None:
        assert verdict("module system") == ("same", "lmod 8.7")
        assert verdict("module system", module_system="environment-modules")[0] == "differs"
        assert verdict("module system", module_system="none")[0] == "new"
        assert verdict("module system", replace(FOUND, modules=Modules()))[0] == "missing"


class TestComponentsOfFrameworks:
    def test_are_looked_for_in_the_default_python(self) -> None:
        software = {"raytune": {"lines": ["ml A/1"]}, "ddp": {"lines": ["ml A/1"]}, "heat": {}}
        told = rows(software=software)
        assert told["component ray"] == SurveyRow("component ray", "for raytune", "2.9.0 in python3 3.9.18", "same")
        assert told["component torch"].verdict == "unknown"  # its modules may bring it
        assert told["component heat"].verdict == "missing"
        assert told["component jax"].verdict == "new"

    def test_are_unknown_without_python(self) -> None:
        found = replace(FOUND, python="", components={})
        assert verdict("component heat", found, software={"heat": {}}) == ("unknown", "python3 did not answer")


class TestTheSurvey:
    def test_counts_and_sorts_its_rows(self) -> None:
        survey = compare(FOUND, system(architecture="aarch64", stages=["2022"]))
        assert sum(survey.counts.values()) == len(survey.rows)
        assert [row.verdict for row in survey.sorted()][:2] == ["differs", "missing"]
        counts = survey.counts
        assert survey.share == pytest.approx(counts["same"] / (counts["same"] + 2))

    def test_has_no_share_where_nothing_could_be_seen(self) -> None:
        survey = compare(FOUND, system())
        assert replace(survey, rows=()).share is None

    def test_becomes_a_card_to_keep(self) -> None:
        card = compare(FOUND, system()).card()
        assert (card["@type"], card["dateCreated"]) == ("Dataset", "2026-11-15")
        assert card["about"] == {"@type": "Thing", "name": "The lake", "identifier": "lake"}
        (scheduler,) = [each for each in card["variableMeasured"] if each["name"] == "scheduler"]
        assert (scheduler["@type"], scheduler["value"], scheduler["description"]) == ("PropertyValue", "slurm", "same")
        assert scheduler["valueReference"]["value"] == "slurm"

    def test_of_a_machine_with_its_own_draft_finds_no_difference(self) -> None:
        busy = replace(FOUND, networks=(Network("InfiniBand", "mlx5_0", "HDR 200 Gbit/s"),))
        for found in (busy, probe(Here(), today=TODAY)):
            drafted = read_document(draft(found, "own"), "own.yaml").need()
            told = compare(found, drafted).counts
            assert (told["differs"], told["missing"]) == (0, 0)

    @pytest.mark.parametrize("name", Systems().names())
    def test_can_be_made_of_every_known_system(self, name: str) -> None:
        survey = compare(FOUND, Systems()[name])
        assert len({row.component for row in survey.rows}) == len(survey.rows)
