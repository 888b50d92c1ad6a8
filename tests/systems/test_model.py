"""What a system file may say."""

from __future__ import annotations

from typing import Any

import pytest
from cases import for_each
from pydantic import ValidationError

from fairmile.systems.model import Contradictions, System


def system(**changes: Any) -> System:
    body: dict[str, Any] = {
        "name": "lake",
        "title": "Lake",
        "scheduler": {"dialect": "slurm"},
        "partitions": {"gpu": {"cores": 64, "gpu": {"count": 4, "model": "A100"}}, "cpu": {"cores": 128}},
    }
    return System.model_validate(body | changes)


def refused(**changes: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        system(**changes)
    return str(caught.value)


def test_four_values_are_enough() -> None:
    found = system()
    assert list(found.partitions) == ["gpu", "cpu"]
    assert (found.partitions["cpu"].gpu, found.software, found.launch.launcher) == (None, {}, "none")
    assert found.partitions["cpu"].named


def test_a_framework_has_one_set_or_several() -> None:
    one, two = {"lines": ["ml CUDA"]}, {"lines": ["ml ROCm"], "partitions": ["cpu"]}
    found = system(software={"ddp": one, "heat": [one, two]})
    assert [len(found.software[name]) for name in ("ddp", "heat")] == [1, 2]
    assert found.software["heat"][1].lines == ("ml ROCm",)


def test_a_limit_is_written_as_people_write_it() -> None:
    found = system(partitions={"day": {"max_time": "1-00:00:00"}, "hour": {"max_time": "1:00:00"}})
    assert [each.max_time for each in found.partitions.values()] == [86400, 3600]
    assert "is not a duration" in refused(partitions={"day": {"max_time": "soon"}})


def test_names_must_lead_to_a_partition() -> None:
    message = refused(
        default_partition="gpus", software={"ddp": {"partition": "gpuu"}, "heat": {"partitions": ["cpu", "fpga"]}}
    )
    for name in ("'gpus'", "'gpuu'", "'fpga'"):
        assert f"{name} is not one of the partitions: gpu, cpu" in message
    assert "'gpu' is not among the partitions of this set" in refused(
        software={"ddp": {"partition": "gpu", "partitions": ["cpu"]}}
    )


def test_contradictions_know_where_each_stands() -> None:
    with pytest.raises(ValidationError) as caught:
        system(software={"ddp": [{}, {"partition": "fpga"}]}, default_partition="tape")
    cause = caught.value.errors()[0]["ctx"]["error"]
    assert isinstance(cause, Contradictions)
    assert [steps for steps, _ in cause.pairs] == [("default_partition",), ("software", "ddp", 1, "partition")]


def test_limits_must_agree_with_one_another() -> None:
    assert "8 is more than max_nodes, 4" in refused(partitions={"gpu": {"min_nodes": 8, "max_nodes": 4}})
    assert "20 is more than there are, 10" in refused(partitions={"gpu": {"nodes": 10, "max_nodes": 20}})


@for_each(
    "changes",
    [
        {"name": "../lake"},
        {"name": "a" * 65},
        {"login": "-oProxyCommand=evil"},
        {"login": "lake; rm"},
        {"partitions": {}},
        {"partitions": {"a b": {}}},
        {"partitions": {"gpu": {"qos": "debug\n#SBATCH --uid=0"}}},
        {"partitions": {"gpu": {"options": ["constraint=gpu"]}}},
        {"partitions": {"gpu": {"nodes": 0}}},
        {"partitions": {"gpu": {"nodes": True}}},
        {"partitions": {"gpu": {"memory_gib": -1}}},
        {"partitions": {"gpu": {"memory_gib": float("inf")}}},
        {"scheduler": {"dialect": "slurm", "options": ["--hint=x\n#SBATCH --uid=0"]}},
        {"scheduler": {"dialect": "slurm", "options": ["hint"]}},
        {"launch": {"mpi": "pmix evil"}},
        {"launch": {"binding": "--a\n--b"}},
        {"launch": {"rendezvous_suffix": "i;"}},
        {"launch": {"environment": {"A B": "1"}}},
        {"launch": {"environment": {"A": "1\n2"}}},
        {"software": {"ddp": {"lines": ["ml CUDA\nrm -r ~"]}}},
        {"software": {"ddp": {"lines": [""]}}},
        {"software": {"ddp": {"colour": "red"}}},
        {"software": {"ddp": {"partitions": [""]}}},
    ],
)
def test_what_could_break_a_script_is_refused(changes: dict[str, Any]) -> None:
    assert refused(**changes)


def test_a_value_is_unverified_when_it_or_what_holds_it_is_named() -> None:
    found = system(unverified=["partitions.gpu.gpu", "partitions.*.cores", "software.ddp"])
    for path in (
        "partitions.gpu.gpu",
        "partitions.gpu.gpu.memory_gib",
        "partitions.cpu.cores",
        "software.ddp[1].lines",
    ):
        assert found.is_unverified(path), path
    for path in ("partitions.gpu", "partitions.gpu.memory_gib", "software.ddp-old", "software", "login"):
        assert not found.is_unverified(path), path


def test_a_doubt_of_many_stars_is_judged_at_once() -> None:
    found = system(unverified=[f"partitions.{'*a' * 30}*b.cores"])
    assert not found.is_unverified(f"partitions.{'a' * 60}.cores")
