"""Findings of traces with one known cause: it comes first, with its seconds, and nothing else costs much."""

from __future__ import annotations

import pytest
from cases import for_each
from planted_traces import DEVICE_CAUSES, HOST_CAUSES, Planted, Program

from fairmile.traces.analyze import TraceAnalysis, analyze
from fairmile.traces.finding_events import COUNTED

KINDS = {
    "straggler": "straggler",
    "late input": "input starvation",
    "slow input": "input starvation",
    "queueing": "queued collectives",
    "imbalance": "imbalance",
    "idle": "idle device",
    "exposed communication": "exposed communication",
    "small collectives": "small collectives",
    "checkpoint": "checkpoint",
    "late checkpoint": "checkpoint",
    "launch-bound": "launch-bound",
    "copies": "copies",
    "long operator": "host-bound",
}
MOST_OTHERS = 0.05


def check(planted: Planted, found: TraceAnalysis, device: bool) -> None:
    findings = list(found.findings)
    told = [(each.kind, f"{each.share:.1%}", each.title) for each in findings]
    if planted.cause != "nothing":
        assert findings, "no finding"
        first = findings.pop(0)
        kind = "unrecorded time" if planted.cause == "idle" and not device else KINDS[planted.cause]
        assert first.kind == kind, told
        assert first.seconds == pytest.approx(planted.seconds, rel=0.1), told
        if planted.rank >= 0:
            assert first.title.startswith(f"Rank {planted.rank} "), told
        if device and planted.cause == "long operator":
            assert "aten::sort" in first.title
    assert all(each.share <= MOST_OTHERS for each in findings), told


def check_events(found: TraceAnalysis) -> None:
    """Every finding names its events; they lie in the trace and cover its seconds."""
    for each in found.findings:
        counted = [event for event in each.events if event.role == COUNTED]
        assert counted and each.event_count >= len(counted), each.title
        assert each.seconds <= each.events_s * (1 + 1e-9) and each.seconds <= found.total_s * (1 + 1e-9), each.title
        for event in each.events:
            assert 0 <= event.start_s <= found.span_s and event.counted_s <= event.duration_s + 1e-9, each.title
            assert event.start_s + event.counted_s <= found.span_s + 1e-9, each.title


CASES = [(cause, False) for cause in HOST_CAUSES] + [(cause, True) for cause in DEVICE_CAUSES]


@for_each("cause, device", CASES)
def test_the_planted_cause_is_the_first_finding_and_no_other_costs_much(cause: str, device: bool) -> None:
    check_seeds(cause, device, range(1))


@pytest.mark.thorough
@for_each("cause, device", CASES)
def test_it_is_so_in_many_traces(cause: str, device: bool) -> None:
    check_seeds(cause, device, range(1, 8))


def check_seeds(cause: str, device: bool, seeds: range) -> None:
    for seed in seeds:
        planted = Program(seed, cause, device).made()
        found = analyze(planted.table)
        try:
            check(planted, found, device)
            check_events(found)
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise
