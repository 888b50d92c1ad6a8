"""What changed on a machine, told to those who keep its file."""

from __future__ import annotations

from dataclasses import replace
from datetime import date

from fairmile.systems.change_report import make_report
from fairmile.systems.check import read_document
from fairmile.systems.model import System
from fairmile.systems.probe_result import Modules, ProbeResult, Queue
from fairmile.systems.survey import compare

FILE = """
name: lake
title: Lake
scheduler: {dialect: slurm}
module_system: lmod
default_partition: gpu
partitions:
  gpu: {nodes: 4}
  old: {nodes: 2}
software:
  ddp:
    - {partitions: [gpu], lines: [module load GCC/11.3.0 PyTorch/1.12], source: https://lake.example/ai}
verified: 2025-01-10
sources: [https://lake.example/docs (2025-01-10)]
"""
FOUND = ProbeResult(
    host="login1",
    day=date(2026, 11, 18),
    scheduler="slurm",
    modules=Modules("lmod", "8.7", ("GCC/13.3.0",), ("CUDA/12",)),
    queues=(Queue("gpu", ()), Queue("debug", ())),
)


def lake() -> System:
    system = read_document(FILE, "lake.yaml").system
    assert system is not None
    return system


def test_modules_and_partitions_are_gone_changed_and_new() -> None:
    report = make_report(compare(FOUND, lake()), lake())
    found = report.to_dict()
    assert "module PyTorch/1.12 (for ddp): not there" in found["gone"]
    assert "partition old: not there" in found["gone"]
    assert "module GCC/11.3.0 (for ddp): GCC/13.3.0" in found["changed"]
    assert any(line.startswith("partition debug") for line in found["new"])


def test_the_text_says_how_old_the_file_is_and_where_it_comes_from() -> None:
    text = make_report(compare(FOUND, lake()), lake()).text
    assert text.startswith("# Lake: ")
    assert "was compared with its sources on 2025-01-10" in text
    assert "A probe of `login1` found:" in text
    assert text.index("## Gone") < text.index("## Changed") < text.index("## New")
    assert "- https://lake.example/docs (2025-01-10)" in text


def test_nothing_changed_is_said() -> None:
    survey = compare(FOUND, lake())
    same = replace(survey, rows=tuple(row for row in survey.rows if row.verdict == "same"))
    assert "nothing changed" in make_report(same, lake()).title
