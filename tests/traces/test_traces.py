"""The verbs over traces of two ranks, each step of 1000 µs with an all-reduce of 4000 bytes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("msgspec")

from trace_files import write_kineto

from fairmile.base.errors import Conflict, NotFound, UsageError
from fairmile.costs.collectives.times import CollectiveModel
from fairmile.jobs.machines import Machines
from fairmile.runs.record.run import Run
from fairmile.traces.analyze import analyze
from fairmile.traces.reading import read_traces
from fairmile.traces.replay import WhatIf
from fairmile.traces.traces import Traces


@pytest.fixture
def machines(tmp_path: Path) -> Machines:
    return Machines([], tmp_path / "jobs")


@pytest.fixture
def traces(machines: Machines) -> Traces:
    def no_run(id: str) -> Run:
        raise NotFound(f"no run {id}")

    return Traces(machines.partition, no_run)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for rank in (0, 1):
        write_kineto(tmp_path / "first", rank)
    return tmp_path / "first"


def test_an_analysis_tells_what_the_events_tell(traces: Traces, folder: Path) -> None:
    found = traces.analyze(folder)
    assert (found.ranks, found.steps) == (("rank 0", "rank 1"), 2)
    assert found.to_dict() == analyze(read_traces(folder)).to_dict()


def test_collectives_are_held_against_the_network_of_a_system(traces: Traces, machines: Machines, folder: Path) -> None:
    model = CollectiveModel.from_partition(machines.partition("juwels"))
    assert traces.analyze(str(folder), system="juwels").to_dict() == analyze(read_traces(folder), model=model).to_dict()
    with pytest.raises(NotFound, match="nosuch"):
        traces.analyze(folder, system="nosuch")


def test_a_replay_without_a_change_takes_as_long_as_it_took(traces: Traces, folder: Path) -> None:
    found = traces.replay(folder, WhatIf())
    assert found.ranks == 2
    assert found.step_s == pytest.approx(found.unchanged_step_s, rel=1e-3)


def test_a_replay_on_another_network_asks_both_models(traces: Traces, folder: Path) -> None:
    same = traces.replay(folder, WhatIf(), system="juwels", to="juwels")
    moved = traces.replay(folder, WhatIf(), to="juwels")
    assert same.step_s == pytest.approx(same.unchanged_step_s, rel=1e-3)
    # 400 µs for 4000 bytes is far more than that network takes.
    assert moved.step_s < 0.9 * moved.unchanged_step_s


def test_an_algorithm_is_named_in_any_spelling(traces: Traces, folder: Path) -> None:
    ring, other = (
        traces.replay(folder, WhatIf(), system="juwels", algorithms={name: "ring"}).step_s
        for name in ("all_reduce", "AllReduce")
    )
    assert ring == other


@pytest.mark.parametrize(
    ("on", "algorithms", "message"),
    [
        ("", {"all_reduce": "ring"}, "--algorithm needs the network of the traced system"),
        ("juwels", {"all_redouce": "ring"}, "no collective named 'all_redouce'"),
        ("juwels", {"all_reduce": "rong"}, "no algorithm named 'rong' for all_reduce"),
    ],
)
def test_what_names_no_algorithm_is_told(
    traces: Traces, folder: Path, on: str, algorithms: dict[str, str], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        traces.replay(folder, WhatIf(), system=on, algorithms=algorithms)


def test_an_export_is_written_once(traces: Traces, folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "one.json"
    assert traces.export(folder, target, dry_run=True) == [target]
    assert not target.exists()
    assert traces.export(folder, str(target)) == [target]
    assert json.loads(target.read_bytes())["traceEvents"]
    for dry_run in (True, False):
        with pytest.raises(Conflict, match=r"one\.json already exists"):
            traces.export(folder, target, dry_run=dry_run)


def test_chakra_gets_a_folder_with_a_file_for_each_rank(traces: Traces, folder: Path, tmp_path: Path) -> None:
    written = traces.export(folder, tmp_path / "chakra", to="chakra")
    assert len(written) == 2
    assert {each.parent for each in written} == {tmp_path / "chakra"}


def test_an_unknown_format_is_told(traces: Traces, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no export format named 'nosuch'"):
        traces.export(folder, tmp_path / "x", to="nosuch")
    with pytest.raises(NotFound):
        traces.analyze(tmp_path / "nowhere")
