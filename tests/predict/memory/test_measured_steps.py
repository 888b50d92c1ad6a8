"""Whole steps against the memory that they took on one NVIDIA H200."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fairmile.costs.devices import device
from fairmile.costs.steps import StepTrace
from fairmile.predict.fake_device.request import TraceRequest, trace_targets
from fairmile.predict.memory.account import MemoryAccount, account

pytest.importorskip("torch")
STEPS = Path(__file__).with_name("measured_steps.py")
# Function, arguments; peak allocated, peak reserved and device bytes as measured on 2026-11-15 and 2026-11-16.
MEASURED: list[tuple[str, dict[str, Any], tuple[int, int, int]]] = [
    ("cosmoflow", {"batch": 4, "side": 128, "precision": "fp32"}, (3_933_791_232, 7_428_112_384, 8_232_173_568)),
    ("cosmoflow", {"batch": 16, "side": 128, "precision": "bf16"}, (8_764_981_248, 15_040_774_144, 15_844_835_328)),
    ("cosmoflow", {"batch": 64, "side": 64, "precision": "fp32"}, (7_647_848_448, 14_642_315_264, 15_446_376_448)),
    ("perceptron", {"batch": 65536}, (12_416_878_080, 12_419_334_144, 13_206_618_112)),
    ("graph", {"batch": 256}, (14_519_082_496, 16_112_418_816, 16_899_702_784)),
    ("recurrent", {"batch": 256, "steps": 104}, (2_426_866_688, 2_724_200_448, 3_528_261_632)),
]


@pytest.fixture(scope="module")
def accounts(tmp_path_factory: pytest.TempPathFactory) -> list[MemoryAccount]:
    requests = [TraceRequest(str(STEPS), function, arguments) for function, arguments, _ in MEASURED]
    answers = trace_targets(requests, folder=tmp_path_factory.mktemp("traces"))
    traces = [each for each in answers if isinstance(each, StepTrace)]
    assert len(traces) == len(MEASURED)
    return [account(each, device("h200")) for each in traces]


@pytest.mark.thorough
@pytest.mark.parametrize("number", range(len(MEASURED)))
def test_a_step_takes_what_it_took_on_the_gpu(accounts: list[MemoryAccount], number: int) -> None:
    got, (allocated, reserved, used) = accounts[number], MEASURED[number][2]
    assert got.peak_allocated_bytes == pytest.approx(allocated, rel=0.001)
    assert got.peak_reserved_bytes == pytest.approx(reserved, rel=0.01)
    assert got.device_used_bytes == pytest.approx(used, rel=0.01)
    assert got.reserved_span.low <= reserved <= got.reserved_span.high
