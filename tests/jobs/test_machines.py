"""Systems by name: which partition a name means, and whether this machine is the system."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairmile.base.errors import NotFound, SystemFailure
from fairmile.jobs.machines import Machines


@pytest.fixture
def machines(tmp_path: Path) -> Machines:
    return Machines([], tmp_path / "jobs")


def test_a_partition_is_named_behind_a_colon(machines: Machines) -> None:
    system = machines.registry["juwels"]
    assert machines.partition("juwels:gpus") is system.partitions["gpus"]
    assert machines.partition("juwels:batch") is system.partitions["batch"]


def test_of_a_system_alone_the_usual_one_is_taken_where_it_has_gpus(machines: Machines) -> None:
    system = machines.registry["jupiter"]
    assert machines.partition("jupiter") is system.partitions[system.default_partition]


def test_else_the_first_one_that_has_gpus(machines: Machines) -> None:
    system = machines.registry["juwels"]
    assert system.partitions[system.default_partition].gpu is None
    assert machines.partition("juwels") is system.partitions["booster"]


def test_a_system_without_gpus_gives_its_usual_one(machines: Machines) -> None:
    assert machines.partition("laptop") is machines.registry["laptop"].partitions["here"]
    assert machines.partition("laptop:") is machines.partition("laptop")


def test_an_unknown_partition_is_told_with_those_that_there_are(machines: Machines) -> None:
    with pytest.raises(NotFound, match="juwels has no partition 'nosuch'") as told:
        machines.partition("juwels:nosuch")
    assert told.value.hint == "there are booster, develbooster, batch, mem192, devel, gpus, develgpus"


def test_an_unknown_system_is_told(machines: Machines) -> None:
    with pytest.raises(NotFound, match="nosuch"):
        machines.partition("nosuch:gpu")


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of another name; the folder is the only one that programs are looked for in."""
    monkeypatch.setattr("socket.gethostname", lambda: "notebook-7.example.org")
    for name in ("SYSTEMNAME", "LMOD_SYSTEM_NAME", "NERSC_HOST", "BSC_MACHINE", "SLURM_CLUSTER_NAME"):
        monkeypatch.delenv(name, raising=False)
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    return programs


def test_a_system_that_this_machine_is_not_takes_no_jobs_without_a_host(machines: Machines, elsewhere: Path) -> None:
    with pytest.raises(SystemFailure, match="this machine is not jureca, and the settings name no host") as told:
        machines["jureca"].refuse_elsewhere()
    assert "systems: {jureca: {host: USER@HOST}}" in (told.value.hint or "")
    machines["laptop"].refuse_elsewhere()
    machines["ssh://somewhere"].refuse_elsewhere()


@pytest.mark.parametrize(
    ("address", "host", "folder"),
    [("me@box", "me@box", ""), ("me@box/scratch", "me@box", "/scratch"), ("box:2222/d", "ssh://box:2222", "/d")],
)
def test_an_address_may_have_a_port_and_a_folder(machines: Machines, address: str, host: str, folder: str) -> None:
    reach = machines[f"ssh://{address}"].reach
    assert (reach.host, reach.folder) == (host, folder)


@pytest.mark.parametrize(
    "given", ["me@login.example.org", {"host": "login"}, "here", {"host": "here", "account": "me"}]
)
def test_a_host_in_the_settings_or_here_is_enough(tmp_path: Path, elsewhere: Path, given: object) -> None:
    machine = Machines([], tmp_path, reaches={"jureca": given})["jureca"]
    machine.refuse_elsewhere()
    assert machine.reach.host != "here"


@pytest.mark.parametrize("host", ["jrlogin03.jureca", "jureca01"])
def test_a_machine_is_known_by_its_name(
    machines: Machines, elsewhere: Path, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: host)
    assert machines["jureca"].elsewhere == ""


def test_a_machine_is_known_by_what_its_centre_calls_it(
    machines: Machines, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SYSTEMNAME", "jurecadc")
    assert machines["jureca"].elsewhere == ""


@pytest.mark.parametrize(("cluster", "is_it"), [("jureca", True), ("test", False)])
def test_a_machine_is_known_by_what_slurm_calls_its_cluster(
    machines: Machines, elsewhere: Path, cluster: str, is_it: bool
) -> None:
    program = elsewhere / "scontrol"
    program.write_text(f"#!/bin/sh\necho 'ClusterName             = {cluster}'\n", encoding="utf-8")
    program.chmod(0o755)
    assert (machines["jureca"].elsewhere == "") == is_it


def test_a_system_of_ones_own_file_is_what_its_author_says(tmp_path: Path, elsewhere: Path) -> None:
    folder = tmp_path / "systems"
    folder.mkdir()
    text = "name: box\ntitle: Box\nscheduler: {dialect: slurm}\npartitions: {main: {cores: 4}}\n"
    (folder / "box.yaml").write_text(text, encoding="utf-8")
    assert Machines([folder], tmp_path)["box"].elsewhere == ""
