"""One rank of a program that shards its model is followed as torch shards it, without a network."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from fairmile.base.errors import UsageError
from fairmile.costs.devices import device
from fairmile.costs.steps import StepTrace
from fairmile.predict.fake_device.request import TraceRequest, trace_targets
from fairmile.predict.memory.account import account
from fairmile.predict.memory.footprints import batch_of

HERE = Path(__file__).parent
TARGETS = str(HERE / "parallel_targets.py")
RANKS = 4

CASES: Mapping[str, tuple[str, dict[str, Any], int | None]] = {
    "whole": ("whole", {}, None),
    "shards": ("sharded", {}, RANKS),
    "kept": ("sharded", {"reshard": False}, RANKS),
    "mixed": ("sharded", {"mixed": True}, RANKS),
    "offloaded": ("sharded", {"offload": True}, RANKS),
    "one": ("sharded", {}, 1),
    "mesh": ("on_a_mesh", {}, RANKS),
    "replicas": ("replicated", {}, RANKS),
    "halves": ("halves", {}, 2),
    "packed": ("packed", {}, None),
    "unmoved": ("packed", {"moved": False}, None),
    "foreign": ("foreign", {}, None),
    "compiled": ("compiled", {}, None),
    "uncalled": ("compiled", {"called": False}, None),
}


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, StepTrace]:
    requests = [TraceRequest(TARGETS, name, given, ranks=ranks) for name, given, ranks in CASES.values()]
    answers = trace_targets(requests, folder=tmp_path_factory.mktemp("traces"))
    assert not [answer for answer in answers if isinstance(answer, UsageError)]
    return dict(zip(CASES, [answer for answer in answers if isinstance(answer, StepTrace)], strict=True))


def in_use(trace: StepTrace, category: str) -> int:
    """Return the bytes of a category at the end of the last step."""
    gone = {number for kind, number, _ in trace.events if kind == 3}
    made = {number for kind, number, _ in trace.events if kind == 2}
    return sum(trace.storages[each].size_bytes for each in made - gone if trace.storages[each].category == category)


def peak(trace: StepTrace) -> int:
    now = most = 0
    for kind, number, _ in trace.events:
        if kind in (2, 3):
            now += trace.storages[number].size_bytes * (1 if kind == 2 else -1)
            most = max(most, now)
    return most


def tracked(ranks: int, cases: Sequence[tuple[bool, bool]]) -> list[int]:
    argv = [sys.executable, str(HERE / "tracked_shards.py"), str(ranks), *map(json.dumps, cases)]
    answer: list[int] = json.loads(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)
    return answer


def test_the_peak_of_a_sharded_step_is_to_the_byte_that_of_torchs_own_tracker(
    traces: Mapping[str, StepTrace],
) -> None:
    theirs = tracked(RANKS, [(True, False), (False, False), (True, True)])
    assert [peak(traces[name]) for name in ("shards", "kept", "mixed")] == theirs


def test_a_rank_holds_its_share_of_parameters_and_optimizer(traces: Mapping[str, StepTrace]) -> None:
    for category in ("parameter", "optimizer"):
        whole = in_use(traces["whole"], category)
        assert in_use(traces["one"], category) == whole
        assert in_use(traces["shards"], category) == pytest.approx(whole / RANKS, rel=1e-3)
        assert in_use(traces["mesh"], category) == pytest.approx(whole / 2, rel=1e-3)  # two replicas of two shards


def test_offloaded_shards_are_on_the_device_only_while_they_are_used(traces: Mapping[str, StepTrace]) -> None:
    assert in_use(traces["offloaded"], "parameter") == in_use(traces["offloaded"], "optimizer") == 0
    assert peak(traces["offloaded"]) < peak(traces["shards"])


def test_replicas_have_buckets_beside_their_gradients(traces: Mapping[str, StepTrace]) -> None:
    whole, replicas = traces["whole"], traces["replicas"]
    assert peak(replicas) - peak(whole) == in_use(whole, "gradient")


def test_a_trace_names_the_ranks_of_the_group_that_its_program_made(traces: Mapping[str, StepTrace]) -> None:
    assert traces["shards"].ranks == RANKS
    assert traces["one"].ranks == traces["whole"].ranks == 1


def test_a_program_knows_how_many_ranks_there_are_before_it_makes_a_group(traces: Mapping[str, StepTrace]) -> None:
    assert batch_of(traces["halves"]) == 16
    assert traces["halves"].ranks == 1


@pytest.mark.parametrize("name", ["packed", "unmoved"])
def test_a_parameter_that_quantizes_itself_takes_its_bytes_and_scales(
    traces: Mapping[str, StepTrace], name: str
) -> None:
    bytes_each, scales, bias, last = 256 * 256, 4 * 256, 4 * 256, 4 * 257
    assert in_use(traces[name], "parameter") == bytes_each + scales + bias + last
    assert batch_of(traces[name]) == 32


def test_an_operator_of_a_library_takes_what_its_cuda_kernel_takes(traces: Mapping[str, StepTrace]) -> None:
    assert any(op.name.startswith("fairmile_tests.halved") for op in traces["foreign"].ops)
    assert peak(traces["foreign"]) == pytest.approx(peak(traces["whole"]), rel=0.01)


def test_only_a_compiled_function_that_is_called_is_noted(traces: Mapping[str, StepTrace]) -> None:
    assert traces["compiled"].notes == ["`_squared` is compiled: its eager form was traced, which keeps other tensors"]
    assert not traces["uncalled"].notes


def test_the_memory_of_a_rank_is_accounted_like_any_other(traces: Mapping[str, StepTrace]) -> None:
    taken = account(traces["shards"], device("h200"))
    assert taken.peak_allocated_bytes >= peak(traces["shards"])
    assert taken.breakdown["optimizer"] == pytest.approx(in_use(traces["shards"], "optimizer"), rel=0.01)


def test_there_is_at_least_one_rank() -> None:
    with pytest.raises(UsageError, match="ranks is 0, expected at least 1"):
        TraceRequest(TARGETS, "sharded", ranks=0)
