"""`fairmile trace`: what a user sees of where the time went."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from shutil import copy
from typing import Any

import pytest
from notebook_html import notebook_html

pytest.importorskip("msgspec")

from printed_results import assert_printed, assert_sound
from trace_files import kineto_events, write_kineto

from fairmile.base.units import format_size
from fairmile.traces.record import RecordSettings
from fairmile.traces.replay import WhatIf
from fairmile.workspace import Workspace

Fairmile = Callable[..., Any]


@pytest.fixture
def first(place: Path) -> Path:
    """Two ranks, two steps of 1000 µs each; the second rank comes 100 µs late to every all-reduce."""
    for rank in (0, 1):
        write_kineto(place / "first", rank, events=kineto_events(rank, late_us=100.0 * rank))
    return place / "first"


def test_a_program_is_recorded_and_its_exit_code_is_kept(fairmile: Fairmile, place: Path) -> None:
    result = fairmile(
        "trace", "record", "-o", "new", "--no-watch", "--json", "--", sys.executable, "-c", "raise SystemExit(3)"
    )
    assert result.code == 3
    assert (result.json["folder"], result.json["exit_code"]) == (str(place / "new"), 3)
    assert (place / "new" / "recording.json").exists()
    again = fairmile("trace", "record", "-o", "new", "--no-watch", "--", "true")
    assert again.code not in (0, 1)
    assert again.err.startswith("error: ")
    assert "new" in again.err


def test_a_dry_run_records_nothing(fairmile: Fairmile, place: Path) -> None:
    told = fairmile("trace", "record", "--dry-run", "--steps", "3", "--for", "2s", "--json", "--", "train", "-x").json
    assert (told["command"], told["folder"], told["steps"], told["seconds"]) == (["train", "-x"], "trace", 3, 2.0)
    assert not (place / "trace").exists()


def test_a_dry_run_shows_the_command_and_what_would_be_recorded(fairmile: Fairmile) -> None:
    shown = fairmile("trace", "record", "--dry-run", "--steps", "3", "--", "train", "two words").out
    assert "train 'two words'" in shown
    assert "3 optimizer steps after 5; 1 s after 5 s without an optimizer" in shown


@pytest.fixture
def counted(place: Path) -> Path:
    """A recording with counters: two steps, and the kernels that ncu counted on an H200."""
    write_kineto(place / "counted" / "traces", 0, events=kineto_events(0))
    copy(Path(__file__).parents[1] / "traces" / "ncu_h200.csv", place / "counted" / "counters.csv")
    window = {"file": "traces/rank0.json", "first_step": 2, "last_step": 3, "device": "NVIDIA H200"}
    (place / "counted" / "recording.json").write_text(json.dumps({"processes": [window]}))
    return place / "counted"


def test_counted_bytes_are_shown_by_kernel_and_step(fairmile: Fairmile, counted: Path) -> None:
    result = fairmile("trace", "analyze", "counted", "-o", "counted.html")
    shown = result.out
    assert "3.4 GiB a step, of 2 steps, on NVIDIA H200" in shown
    assert "vectorized_elementwise_kernel<CUDAFunctorOnSelf_add>" in shown
    assert "85% of peak" in shown
    assert "times and findings need a recording without --counters" in result.err
    assert "compute" not in shown
    page = Path("counted.html").read_text()
    for words in ("Memory traffic of the GPU", "by products", "CUDAFunctorOnSelf_add", "of the datasheet"):
        assert words in page
    found = fairmile("trace", "analyze", "counted", "--json").json
    assert (found["is_timed"], found["traffic"]["steps"], found["traffic"]["kernels"][0]["calls"]) == (False, 2, 1)
    refused = fairmile("trace", "analyze", "counted", "--why", "1")
    assert (refused.code, refused.err) == (2, "error: --why 1: the trace has 0 findings\n")


def test_counted_bytes_stand_beside_the_times_of_another_recording(
    fairmile: Fairmile, counted: Path, first: Path
) -> None:
    result = fairmile("trace", "analyze", "first", "counted")
    assert "3.4 GiB a step" in result.out
    assert result.out.index("GPU memory") < result.out.index("compute")
    assert "2 ranks, 2 steps" in result.err
    assert "without --counters" not in result.err


def test_a_broken_recording_with_counters_is_named(fairmile: Fairmile, counted: Path) -> None:
    (counted / "recording.json").write_text("{}")
    refused = fairmile("trace", "analyze", "counted")
    assert refused.code == 4
    assert "recording.json is not what trace record writes" in refused.err


def test_a_rank_whose_flight_recorder_is_empty_is_who_the_others_wait_for(fairmile: Fairmile, place: Path) -> None:
    call = {
        "collective_seq_id": 1, "process_group": ["0", ""], "profiling_name": "nccl:all_reduce",
        "state": "scheduled", "time_created_ns": 5,
    }  # fmt: skip
    (place / "dumps").mkdir()
    for rank, entries in enumerate(([call], [])):
        dump = {"version": "2.10", "pg_config": {"0": {"name": "0", "ranks": "[0, 1]"}}, "entries": entries}
        (place / "dumps" / f"nccl_trace_rank_{rank}").write_text(json.dumps(dump), encoding="utf-8")
    result = fairmile("trace", "analyze", "dumps", "-o", "page.html")
    assert result.code == 0
    assert "Rank 1 never called nccl:all_reduce" in result.out
    assert "no findings" not in result.out + result.err
    assert result.err.splitlines()[0].endswith(", 1 event")
    assert "note: nccl_trace_rank_1: the flight recorder of rank 1 has no collectives" in result.err
    assert "Rank 1 never called" in (place / "page.html").read_text(encoding="utf-8")


def test_an_analysis_shows_each_rank_and_what_to_try(fairmile: Fairmile, place: Path, first: Path) -> None:
    result = fairmile("trace", "analyze", "first")
    assert result.code == 0
    lines = result.out.splitlines()
    assert [line.split()[:2] for line in lines[1:3]] == [["rank", "0"], ["rank", "1"]]
    assert lines[0].startswith("rank ")
    assert "2 ranks, 2 steps of" in result.err
    assert "Try: " in result.out
    told = fairmile("trace", "analyze", "first", "-o", "page.html", "--json").json
    assert (told["ranks"], told["steps"], told["page"]) == (["rank 0", "rank 1"], 2, "page.html")
    assert "<svg" in (place / "page.html").read_text()


def test_why_lists_the_events_of_a_finding(fairmile: Fairmile, first: Path) -> None:
    shown = fairmile("trace", "analyze", "first", "--why", "1")
    told = fairmile("trace", "analyze", "first", "--json").json["findings"][0]
    lines = shown.out.splitlines()
    assert lines[0].startswith("1. ") and lines[0].endswith(told["title"])
    assert lines[3].split() == ["event", "rank", "lane", "at", "takes", "counted"]
    assert len(lines) == 4 + len(told["events"])
    assert f"{told['event_count']} event" in shown.err
    assert told["seconds"] <= told["events_s"]


def test_an_analysis_names_wait_states_who_came_last_bandwidth_and_the_critical_path(
    fairmile: Fairmile, first: Path
) -> None:
    lines = [line.split() for line in fairmile("trace", "analyze", "first").out.splitlines()]
    assert ["Wait", "at", "NxN", "0", "200", "µs", "200", "µs", "2"] in lines
    assert any(line[:2] == ["rank", "1"] and line[-2:] == ["200", "µs"] for line in lines[3:])
    (collective,) = (line for line in lines if line[:2] == ["all", "reduce"])
    assert collective[2:6] == ["3.9", "KiB", "2", "2"] and collective[-1].endswith("/s")
    assert any(line[:2] == ["critical", "path"] for line in lines)


def test_an_analysis_of_coupled_programs_shows_their_exchanges(fairmile: Fairmile, place: Path) -> None:
    lines: list[dict[str, Any]] = []
    for pid, component, how, at in ((1, "solver", "put", 0), (2, "trainer", "get", 1000)):
        lines += [
            {"writer": {"host": "n", "rank": 0, "wall_ns": 10**18, "clock_ns": 0, "component": component}, "p": pid},
            {
                "spans": f"{how} field", "at": [at, 100, at + 200, 100], "bytes": [4096, 4096], "version": [0, 1],
                "exchange": {"how": how, "key": "field"}, "p": pid,
            },
        ]  # fmt: skip
    lines.append({"spans": "step", "at": [100, 100, 300, 100], "p": 1})
    (place / "coupled").mkdir()
    (place / "coupled" / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = fairmile("trace", "analyze", "coupled")
    shown = [line.split() for line in result.out.splitlines()]
    assert ["field", "solver", "trainer", "2", "8.0", "KiB"] in [line[:6] for line in shown]
    assert "2 ranks, 2 steps of 200 ns" in result.err
    assert "trainer 0 marks no steps" in result.err


def test_files_can_be_named_one_by_one(fairmile: Fairmile, first: Path) -> None:
    told = fairmile("trace", "analyze", "first/rank0.json", "first/rank1.json", "--format", "kineto", "--json").json
    assert told["ranks"] == ["rank 0", "rank 1"]


def test_a_rank_that_is_missing_is_told_and_the_rest_analysed(fairmile: Fairmile, first: Path) -> None:
    (first / "rank1.json").unlink()
    told = fairmile("trace", "analyze", "first", "--json")
    assert (told.code, told.json["ranks"], told.json["missing_ranks"]) == (0, ["rank 0"], [1])


def test_a_replay_tells_what_a_step_would_take(fairmile: Fairmile, first: Path) -> None:
    told = fairmile("trace", "replay", "first", "--faster", "gemm=2", "--json").json
    assert told["step_s"] < told["measured_step_s"]
    assert told["speedup"] == pytest.approx(told["measured_step_s"] / told["step_s"])
    shown = fairmile("trace", "replay", "first", "--on", "juwels", "--algorithm", "all_reduce=ring")
    assert [line.split()[0] for line in shown.out.splitlines()][:4] == ["measured", "predicted", "speed-up", "check"]


def test_an_export_is_written_once_and_says_so(fairmile: Fairmile, place: Path, first: Path) -> None:
    planned = fairmile("trace", "export", "first", "-o", "one.json", "--dry-run")
    assert (planned.err, (place / "one.json").exists()) == ("would write one.json\n", False)
    assert fairmile("trace", "export", "first", "-o", "one.json").err.startswith("wrote one.json, ")
    assert json.loads((place / "one.json").read_bytes())["traceEvents"]
    pytest.importorskip("otf2")
    told = fairmile("trace", "export", "first", "--to", "otf2", "-o", "two").err
    whole = sum(file.stat().st_size for file in (place / "two").rglob("*") if file.is_file())
    assert told == f"wrote two/traces.otf2, an archive of {format_size(whole)}\n"
    for option in ([], ["--dry-run"]):
        assert "one.json already exists" in fairmile("trace", "export", "first", "-o", "one.json", *option).err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["analyze", "nowhere"], "nowhere"),
        (["analyze", "broken.json"], "broken.json"),
        (["analyze", "first", "--on", "nosuch"], "nosuch"),
        (["analyze", "first", "--format", "nosuch"], "nosuch"),
        (["analyze", "first", "--why", "99"], "--why 99: the trace has "),
        (["replay", "first", "--faster", "gemm"], "gemm: expected NAME=VALUE"),
        (["replay", "first", "--faster", "gemm=quick"], "--faster gemm=quick: expected a number"),
        (["replay", "first", "--faster", "gemm=0"], "gemm cannot change by a factor of 0"),
        (["replay", "first", "--bandwidth", "-1"], "bandwidth cannot change by a factor of -1"),
        (["replay", "first", "--algorithm", "all_reduce=ring"], "--algorithm needs the network of the traced system"),
        (["replay", "first", "--on", "juwels", "--algorithm", "all_reduce=rong"], "no algorithm named 'rong'"),
        (["replay", "first", "--algorithm", "all_reduce=rong"], "no algorithm named 'rong'"),
        (["replay", "first", "--without", "7"], "7"),
        (["record", "--skip", "-1", "--", "true"], "skip is -1"),
        (["record", "--for", "ever", "--", "true"], "ever"),
    ],
)
def test_bad_input_is_one_sentence(
    fairmile: Fairmile, place: Path, first: Path, arguments: list[str], message: str
) -> None:
    (place / "broken.json").write_text('{"traceEvents": [{"ph": "X", "na')
    result = fairmile("trace", *arguments)
    assert result.code not in (0, 1)
    assert result.err.startswith("error: ")
    assert message in result.err.splitlines()[0]
    assert not (place / "trace").exists()


def test_what_python_gets_is_what_json_prints(fairmile: Fairmile, place: Path, first: Path) -> None:
    traces = Workspace.open().traces
    assert_printed(fairmile, traces.analyze("first"), "trace", "analyze", "first")
    assert_printed(fairmile, traces.analyze("first", system="juwels"), "trace", "analyze", "first", "--on", "juwels")
    replayed = traces.replay("first", WhatIf(bandwidth=4))
    assert_printed(fairmile, replayed, "trace", "replay", "first", "--bandwidth", "4")
    planned = traces.export("first", "one.json", dry_run=True)
    assert_printed(fairmile, planned, "trace", "export", "first", "-o", "one.json", "--dry-run")
    assert list(planned.to_pandas()["value"]) == ["one.json"]
    plan = traces.plan_recording(["train", "-x"], "new", settings=RecordSettings(steps=3))
    assert_printed(fairmile, plan, "trace", "record", "--dry-run", "--steps", "3", "-o", "new", "--", "train", "-x")


def test_a_recording_is_a_result(place: Path) -> None:
    recorded = Workspace.open().traces.record([sys.executable, "-c", "pass"], Path("new"), watch=False)
    assert_sound(recorded)
    assert recorded.document() == json.loads((place / "new" / "recording.json").read_text())
    assert repr(recorded).startswith(f"<Recorded: nothing in {place / 'new'}, exit code 0 after ")


def test_notebooks_show_where_the_time_of_each_rank_went(first: Path) -> None:
    analysis = Workspace.open().traces.analyze("first")
    assert repr(analysis).startswith("<TraceAnalysis: 2 ranks, 2 steps of 991 µs, ")
    shown = notebook_html(analysis)
    assert "<th>compute</th>" in shown and "<td>rank 1</td>" in shown
