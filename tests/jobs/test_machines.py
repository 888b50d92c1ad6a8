"""Systems by name: which partition a name means."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairmile.base.errors import NotFound
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
