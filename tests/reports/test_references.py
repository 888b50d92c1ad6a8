"""References with tolerances per system: what keeps to them and what does not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from run_making import make_run, metric_document, repeats

from fairmile.base.errors import InvalidDocument, NotFound, RunFailed
from fairmile.reports.references import Reference, check, read_references


def verdicts(*arguments: object) -> dict[str, bool]:
    return {each.metric: each.passed for each in check(*arguments).findings}  # type: ignore[arg-type]


@pytest.mark.parametrize(("value", "passes"), [(89.9, False), (90.0, True), (100.0, True), (500.0, True)])
def test_a_lower_tolerance_bounds_below_only(tmp_path: Path, value: float, passes: bool) -> None:
    run = make_run(tmp_path, metrics={"throughput": value})
    assert verdicts([run], [Reference("throughput", 100, lower_tolerance=0.1)]) == {"throughput": passes}


@pytest.mark.parametrize(("value", "passes"), [(0.0, True), (0.11, True), (0.1101, False)])
def test_an_upper_tolerance_bounds_above_only(tmp_path: Path, value: float, passes: bool) -> None:
    run = make_run(tmp_path, metrics={"loss": value})
    assert verdicts([run], [Reference("loss", 0.1, upper_tolerance=0.1001)]) == {"loss": passes}


def test_tolerances_of_a_negative_value_lie_on_the_right_sides() -> None:
    reference = Reference("energy", -10.0, lower_tolerance=0.1, upper_tolerance=0.2)
    assert (reference.low, reference.high) == (-11, -8)


def test_a_system_has_its_own_reference_before_that_of_any(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, f"r-{name}", system=name, metrics={"loss": 1.0}) for name in ("jureca", "laptop")]
    references = [Reference("loss", 1, upper_tolerance=0), Reference("loss", 0.5, upper_tolerance=0, system="jureca")]
    found = {each.system: each.passed for each in check(runs, references).findings}
    assert found == {"jureca": False, "laptop": True}


def test_time_energy_and_memory_can_be_held_too(tmp_path: Path) -> None:
    run = make_run(tmp_path, elapsed_s=10, energy_j=100, max_rss_bytes=1000)
    references = [Reference(name, 90, 0.2, 0.2) for name in ("elapsed_s", "energy_j", "max_rss_bytes")]
    assert verdicts([run], references) == {"elapsed_s": False, "energy_j": True, "max_rss_bytes": False}


def test_the_mean_of_repeats_counts_and_a_narrow_pass_is_told(tmp_path: Path) -> None:
    runs = repeats(tmp_path, "a", {"loss": [0.9, 1.1, 1.0]})
    found = check(runs, [Reference("loss", 1.0, upper_tolerance=0.05)]).findings[0]
    assert found.passed
    assert found.why == "barely: one of its values lies beyond the tolerance"


def test_a_miss_says_by_how_much_and_what_was_allowed(tmp_path: Path) -> None:
    found = check([make_run(tmp_path, metrics={"loss": 0.15})], [Reference("loss", 0.1, upper_tolerance=0.1)])
    assert found.findings[0].why == "50 % above 0.1, 10 % is allowed"
    with pytest.raises(RunFailed, match="loss on n1 is outside its reference: 50 % above") as error:
        found.require()
    assert error.value.exit_code == 1


def test_a_pass_requires_nothing(tmp_path: Path) -> None:
    check([make_run(tmp_path, metrics={"loss": 0.1})], [Reference("loss", 0.1, upper_tolerance=0.1)]).require()


@pytest.mark.parametrize(
    ("metric", "why"),
    [
        ({}, "1 of 1 runs did not measure it"),
        ({"loss": "NaN"}, "1 of 1 values are NaN or infinite"),
        ({"loss": metric_document(0.1, unit="nats")}, "it is measured in nats, not bits"),
    ],
)
def test_what_cannot_be_judged_fails(tmp_path: Path, metric: dict[str, object], why: str) -> None:
    found = check([make_run(tmp_path, metrics=metric)], [Reference("loss", 0.1, 1, 1, unit="bits")]).findings[0]
    assert (found.passed, found.why) == (False, why)


def test_a_run_that_failed_fails_every_metric(tmp_path: Path) -> None:
    run = make_run(tmp_path, "r-1", state="failed", metrics={"loss": 0.1})
    found = check([run], [Reference("loss", 0.1, 1, 1)]).findings[0]
    assert (found.passed, found.why) == (False, "run r-1 is failed")


def test_nothing_checked_is_no_pass(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no reference is for n1") as error:
        check([make_run(tmp_path)], [Reference("loss", 1, 1, system="jureca")])
    assert error.value.hint == "references exist for jureca"


def test_a_system_without_reference_is_told(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, f"r-{name}", system=name, metrics={"loss": 1.0}) for name in ("jureca", "laptop")]
    found = check(runs, [Reference("loss", 1, 1, 1, system="jureca")])
    assert (found.passed, found.unchecked) == (True, ("laptop",))


def test_a_check_is_plain_data(tmp_path: Path) -> None:
    document = check([make_run(tmp_path, metrics={"loss": 1.0})], [Reference("loss", 1, 1, 1)]).to_dict()
    assert json.loads(json.dumps(document, allow_nan=False))["passed"] is True


def test_a_file_names_systems_and_metrics(tmp_path: Path) -> None:
    file = tmp_path / "references.yaml"
    file.write_text(
        "jureca:\n"
        "  samples_per_s: {value: 1200, lower_tolerance: 5%, unit: samples/s}\n"
        '"*":\n'
        "  loss: {value: 0.1, upper_tolerance: 0.25}\n"
    )
    assert read_references(file) == [
        Reference("samples_per_s", 1200, lower_tolerance=0.05, unit="samples/s", system="jureca"),
        Reference("loss", 0.1, upper_tolerance=0.25),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", r"references.yaml:1: expected systems"),
        ("- loss\n", r"references.yaml:1: expected systems"),
        ("n1: 3\n", r"references.yaml:1 n1: expected metrics"),
        ("n1:\n  loss: 0.1\n", r"references.yaml:2 n1.loss: expected \{value"),
        (
            "n1:\n  loss: {value: big, upper_tolerance: 1%}\n",
            r"references.yaml:2 n1.loss.value: expected a finite number",
        ),
        ("n1:\n  loss: {value: 1}\n", r"references.yaml:2 n1.loss: expected a lower_tolerance"),
        (
            "n1:\n  loss:\n    value: 1\n    upper_tolerance: -5%\n",
            r"references.yaml:4 n1.loss.upper_tolerance: expected a share such as 5% or 0.05, found '-5%'",
        ),
        (
            "n1:\n  loss:\n    value: 1\n    upper_tolerance: 1\n    units: s\n",
            r"references.yaml:5 n1.loss.units: unknown field 'units'",
        ),
    ],
)
def test_an_error_in_a_file_names_its_line(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "references.yaml"
    file.write_text(text)
    with pytest.raises(InvalidDocument, match=said):
        read_references(file)


def test_a_wrong_field_is_answered_with_the_nearest(tmp_path: Path) -> None:
    file = tmp_path / "references.yaml"
    file.write_text("n1:\n  loss: {value: 1, upper_tolerance: 1, units: s}\n")
    with pytest.raises(InvalidDocument) as error:
        read_references(file)
    assert error.value.hint == "did you mean 'unit'?"


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"no such file: .*references\.yaml"):
        read_references(tmp_path / "references.yaml")
