"""`fairmile system usage`: what an administrator sees; tests/jobs/test_accounting.py asks a real accounting."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fairmile.testing.schemas import commands, result_types

Fairmile = Callable[..., Any]
RECORDS = """\
7|ada|tides|gpu|COMPLETED|3600|4|cpu=4,gres/gpu=2,mem=8G,node=1|cpu=4,mem=8G|02:00:00|||100|160
8|bob|waves|cpu|TIMEOUT|1800|2|cpu=2,mem=400M,node=1|cpu=2,mem=400M|00:30:00||7200000|100|400
"""


@pytest.fixture
def cluster(fairmile: Fairmile, place: Path, monkeypatch: pytest.MonkeyPatch) -> Fairmile:
    program = place / "bin/sacct"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" > {place}/asked\ncat {place}/records\n')
    program.chmod(0o755)
    (place / "records").write_text(RECORDS)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    shutil.copy(Path(__file__).parents[2] / "docs/examples/my-cluster.yaml", place)
    assert fairmile("system", "add", "my-cluster.yaml").code == 0
    return fairmile


def test_a_table_has_a_row_for_each_group_and_the_sum(cluster: Fairmile, place: Path) -> None:
    result = cluster("system", "usage", "my-cluster", "--since", "7d", "--by", "user")
    assert result.code == 0, result.err
    lines = result.out.splitlines()
    assert lines[0].startswith("user  jobs  GPU hours")
    assert [line.split()[:2] for line in lines[1:]] == [["ada", "1"], ["bob", "1"], ["all", "2"]]
    assert lines[2].endswith("1 timeout")
    assert "2.00" in lines[2]  # kWh
    assert "now-604800seconds" in (place / "asked").read_text()


def test_json_is_the_result_of_one_call(cluster: Fairmile) -> None:
    result = cluster("system", "usage", "my-cluster", "--json")
    assert [each["name"] for each in result.json["groups"]] == ["tides", "waves"]
    assert result.json["total"]["gpu_hours"] == 2.0
    assert [each.__name__ for each in result_types(dict(commands())["system usage"])] == ["SystemUsage"]


def test_no_jobs_are_told(cluster: Fairmile, place: Path) -> None:
    (place / "records").write_text("")
    result = cluster("system", "usage", "my-cluster")
    assert (result.code, result.out) == (0, "")
    assert "no job on my-cluster ended" in result.err
