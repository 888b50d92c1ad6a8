"""A step from all sides: predictions of one step together, beside what was measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from step_making import step_trace

from fairmile.base.errors import NotFound, UsageError
from fairmile.predict import predict as predictions
from fairmile.predict.characterization import Characterization, read_measurement
from fairmile.predict.predict import Predict
from fairmile.reports.result_pages import result_page
from fairmile.workspace import Workspace

STEP = str(Path(__file__).parents[2] / "docs" / "examples" / "step.py")
MEASURED = {"step_s": 0.01, "peak_allocated_bytes": 2e9, "peak_reserved_bytes": 3e9}


@pytest.fixture
def predict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Predict:
    """Predictions of a step that was made by hand, so that nothing is traced."""
    monkeypatch.setattr(
        predictions, "trace_targets", lambda asked, **_: [step_trace(each.arguments.get("batch", 8)) for each in asked]
    )
    return Workspace.open(environ={"HOME": str(tmp_path), "FAIRMILE_HOME": str(tmp_path / "home")}).predict


def measurements(folder: Path, *rows: dict) -> Path:
    file = folder / "measured.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_all_predictions_are_those_of_one_step(predict: Predict, tmp_path: Path) -> None:
    row = {"benchmark": STEP, "arguments": {"batch": 16}, "gpu": "NVIDIA H200", "date": "2026-11-18", **MEASURED}
    found = predict.characterize(
        STEP,
        arguments={"batch": 16},
        system="jupiter",
        gpus=[1, 4],
        sample_bytes=1e6,
        measured=measurements(tmp_path, row),
    )
    alone = {"arguments": {"batch": 16}}
    assert found.memory.to_dict() == predict.memory(STEP, **alone).to_dict()
    assert found.time.to_dict() == predict.time(STEP, **alone).to_dict()
    assert found.scaling is not None
    assert [each.global_batch for each in found.scaling.rows] == [16, 64]
    asked = found.to_dict()
    assert asked["input_samples_per_s"] == pytest.approx(16 / found.time.step.step_time_s)
    assert asked["input_bytes_per_s"] == pytest.approx(1e6 * asked["input_samples_per_s"])
    by_name = {each["quantity"]: each for each in asked["comparison"]}
    assert by_name["step_s"]["off"] == pytest.approx(found.time.step.step_time_s / 0.01 - 1)
    assert by_name["samples_per_s"]["measured"] == 1600
    page = result_page(found, "")
    for words in ("Prediction and measurement", "NVIDIA H200 on 2026-11-18", "from measured.jsonl", "on jupiter"):
        assert words in page


def test_bytes_that_were_counted_stand_beside_those_predicted(predict: Predict, tmp_path: Path) -> None:
    row = {"benchmark": STEP, "arguments": {}, **MEASURED, "moved_bytes": 4e9}
    found = predict.characterize(STEP, measured=measurements(tmp_path, row))
    by_name = {each["quantity"]: each for each in found.comparison()}
    assert by_name["moved_bytes"]["predicted"] == found.time.step.moved_bytes
    assert by_name["moved_bytes"]["off"] == pytest.approx(found.time.step.moved_bytes / 4e9 - 1)
    assert "moved through GPU memory" in result_page(found, "")
    with pytest.raises(UsageError, match="field 'moved_bytes': expected a number above 0, found -1"):
        read_measurement(measurements(tmp_path, row | {"moved_bytes": -1}), STEP, {})


def test_without_a_measurement_there_is_nothing_beside(predict: Predict) -> None:
    found = predict.characterize(STEP)
    assert isinstance(found, Characterization)
    assert found.comparison() == []
    assert (found.to_dict()["measured"], found.to_dict()["scaling"]) == (None, None)
    assert "Prediction and measurement" not in result_page(found, "")


def test_the_last_measurement_with_the_same_arguments_counts(tmp_path: Path) -> None:
    rows = [
        {"benchmark": "deepcam", "arguments": {"preset": "mlperf"}, **MEASURED},
        {"benchmark": "deepcam", "arguments": {"preset": "mlperf"}, **MEASURED, "step_s": 0.02},
        {"benchmark": "deepcam", "arguments": {}, **MEASURED, "step_s": 0.5},
        {"benchmark": "cloudmask", "seed": 1},
    ]
    file = measurements(tmp_path, *rows)
    assert read_measurement(file, "deepcam", {"preset": "mlperf"}).step_s == 0.02
    with pytest.raises(NotFound, match="has no measurement of cosmoflow batch_size=4") as caught:
        read_measurement(file, "cosmoflow", {"batch_size": 4})
    assert caught.value.hint == "it has deepcam preset=mlperf, deepcam"


def test_what_is_no_measurement_is_refused_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no such file"):
        read_measurement(tmp_path / "none.jsonl", "a", {})
    file = tmp_path / "measured.jsonl"
    file.write_text("\nno JSON\n")
    with pytest.raises(UsageError, match=r"measured\.jsonl:2 is not JSON"):
        read_measurement(file, "a", {})
    file.write_text(json.dumps({"benchmark": "a", **MEASURED, "step_s": -1}))
    with pytest.raises(UsageError, match=r"measured\.jsonl:1: field 'step_s': expected a number above 0, found -1"):
        read_measurement(file, "a", {})
