"""Traces of real ranks: a training over gloo under torch's profiler, and an MPI program that times itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("msgspec")

import traced_training
from made_once import made_once

from fairmile.traces.analyze import TraceAnalysis, analyze
from fairmile.traces.events import EventTable
from fairmile.traces.reading import read_traces
from fairmile.traces.replay import Replay, WhatIf

SUPPORT = Path(traced_training.__file__).parent
PLANTED_S = traced_training.STEPS * traced_training.DAWDLES_S


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> EventTable:
    folder = made_once(tmp_path_factory, "traced-training", traced_training.run_ranks)
    return read_traces(sorted(folder.glob("rank*.json")))


@pytest.fixture(scope="module")
def analysis(trained: EventTable) -> TraceAnalysis:
    return analyze(trained)


@pytest.mark.thorough
def test_both_ranks_and_all_steps_are_there(analysis: TraceAnalysis) -> None:
    assert analysis.ranks == ("rank 0", "rank 1")
    assert analysis.missing_ranks == ()
    assert analysis.steps == traced_training.STEPS


@pytest.mark.thorough
def test_parts_of_real_steps_add_up(analysis: TraceAnalysis) -> None:
    for each in analysis.breakdown.steps:
        parts = [
            each.compute_s, each.exposed_communication_s, each.exchange_s, each.copies_s, each.checkpoint_s,
            each.input_s, each.launch_s, each.idle_s,
        ]  # fmt: skip
        assert sum(parts) == pytest.approx(each.total_s, abs=1e-9)
        assert each.compute_s > 0


@pytest.mark.thorough
def test_the_rank_that_dawdles_is_the_one_that_is_named(analysis: TraceAnalysis) -> None:
    late = [each for each in analysis.findings if each.kind == "late rank"]
    assert {each.title[:6] for each in late} == {"Rank 1"}
    # The first of the planted pauses lies before the first collective that was traced, the last behind all.
    assert late[0].seconds > 0.5 * PLANTED_S
    assert analysis.waiting.matrix[0][1] > 10 * analysis.waiting.matrix[1][0]


@pytest.mark.thorough
def test_collectives_of_gloo_are_matched(analysis: TraceAnalysis) -> None:
    reduced = [each for each in analysis.waiting.collectives if each.operation == "all_reduce"]
    assert sum(each.calls for each in reduced) >= traced_training.STEPS
    assert all(each.ranks == 2 for each in reduced)


@pytest.mark.thorough
def test_a_replay_of_real_ranks_gives_the_measured_step(trained: EventTable) -> None:
    found = Replay(trained).run()
    assert found.error < 0.02


@pytest.mark.thorough
def test_a_replay_without_the_straggler_saves_what_it_dawdled(trained: EventTable) -> None:
    found = Replay(trained).run(WhatIf(without_straggler=1))
    saved = (found.measured_step_s - found.step_s) * traced_training.STEPS
    assert saved > 0.5 * PLANTED_S


@pytest.mark.thorough
def test_the_critical_path_lies_on_the_rank_that_dawdles(analysis: TraceAnalysis) -> None:
    by_rank = dict(analysis.critical.by_rank)
    assert by_rank["rank 1"] > by_rank.get("rank 0", 0.0)


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="there is no mpirun")
def test_an_mpi_program_that_times_itself_tells_who_waits(tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", sys.executable,
               str(SUPPORT / "traced_mpi.py")]  # fmt: skip
    environment = os.environ | {"FAIRMILE_EVENTS": str(tmp_path / "events.jsonl")}
    done = subprocess.run(command, env=environment, capture_output=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    found = analyze(read_traces(tmp_path / "events.jsonl"))
    first = found.findings[0]
    assert (first.kind, first.title[:6]) == ("straggler", "Rank 0")
    assert first.seconds > 0.5 * 5 * 0.2
    assert {each.state for each in found.waiting.states if each.rank == 1} >= {"Wait at NxN"}
