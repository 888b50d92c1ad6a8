from __future__ import annotations

import io
import json
import math
from pathlib import Path
from typing import Any

import pytest

from fairmile.base.errors import DiskFailure, UsageError
from fairmile.meter.mllog import MLLog, log_of, mllog_key, mllog_line, parse_mllog, read_mllog

constants = pytest.importorskip("mlperf_logging.mllog.constants", reason="needs mlperf-logging")
from mlperf_logging.compliance_checker import mlp_compliance  # noqa: E402
from mlperf_logging.compliance_checker.mlp_parser import parse_file  # noqa: E402


def entry_of(line: str) -> dict[str, Any]:
    return json.loads(line.removeprefix(":::MLLOG "), parse_constant=lambda word: pytest.fail(word))  # type: ignore[no-any-return]


def test_names_of_mlperfs_constants_are_its_keys() -> None:
    keys = {name: text for name, text in vars(constants).items() if name[:1].isupper() and isinstance(text, str)}
    for name in ("DEFAULT_LOGGER_NAME", "DEFAULT_NAMESPACE", "INTERVAL_END", "INTERVAL_START", "POINT_IN_TIME"):
        del keys[name]  # of the line itself
    assert len(keys) > 100
    assert {name: mllog_key(name) for name in keys} == keys
    assert mllog_key("my_own.Key") == "my_own.Key"


def test_the_real_parser_reads_every_line(tmp_path: Path) -> None:
    file = tmp_path / "result.txt"
    log = MLLog(file)
    log.event("SUBMISSION_BENCHMARK", "größe")
    log.start("INIT_START")
    log.end("INIT_STOP")
    log.event("eval_accuracy", 0, {"epoch_num": 0})
    log.event("opt_name", {"a": [1, {"b": None}]})
    log.event("seed", math.nan)
    log.close()
    lines, failed = parse_file(str(file), ruleset="5.0.0")
    assert failed == []
    assert [line.key for line in lines] == [
        "submission_benchmark", "init_start", "init_stop", "eval_accuracy", "opt_name", "seed"
    ]  # fmt: skip
    assert lines[3].value == {"value": 0, "metadata": {"file": None, "lineno": None, "epoch_num": 0}}
    assert lines[4].value["value"] == {"a": [1, {"b": None}]}


def write_submission(log: MLLog) -> None:
    log.event("cache_clear", True)
    log.start("init_start")
    log.event("submission_benchmark", "cosmoflow")
    for key in ("org", "platform"):
        log.event(f"submission_{key}", "lab")
    log.event("submission_division", "open")
    log.event("submission_status", "onprem")
    log.event("submission_poc_name", "somebody")
    log.event("submission_poc_email", "somebody@example.org")
    log.event("number_of_ranks", 1)
    log.event("number_of_nodes", 1)
    log.event("accelerators_per_node", 1)
    log.event("seed", 7)
    log.event("global_batch_size", 2)
    log.event("train_samples", 8)
    log.event("eval_samples", 2)
    log.event("opt_name", "sgd")
    log.event("opt_base_learning_rate", 0.001)
    log.event("opt_learning_rate_warmup_epochs", 0)
    log.event("opt_learning_rate_warmup_factor", 1)
    log.event("opt_learning_rate_decay_boundary_epochs", [])
    log.event("opt_learning_rate_decay_factor", [])
    log.event("dropout", 0.5)
    log.event("opt_weight_decay", 0.0)
    log.end("init_stop")
    log.start("staging_start")
    log.end("staging_stop")
    log.start("run_start")
    log.start("block_start", metadata={"first_epoch_num": 1, "epoch_count": 1})
    log.start("epoch_start", metadata={"epoch_num": 1})
    log.start("eval_start", metadata={"epoch_num": 1})
    log.event("eval_error", 0.1, {"epoch_num": 1})
    log.end("eval_stop", metadata={"epoch_num": 1})
    log.end("epoch_stop", metadata={"epoch_num": 1})
    log.end("block_stop", metadata={"first_epoch_num": 1})
    log.end("run_stop", metadata={"status": "success"})


def test_the_real_compliance_checker_accepts_a_run_of_mlperf_hpc(tmp_path: Path) -> None:
    file = tmp_path / "result_0.txt"
    write_submission(MLLog(file))
    checker = mlp_compliance.make_checker("hpc", "3.0.0", quiet=False, werror=True)
    valid, *_ = mlp_compliance.main(str(file), "hpc_3.0.0/common.yaml", checker)
    assert not checker.has_messages()
    assert valid


def test_zero_is_a_value_and_numpys_numbers_are_numbers() -> None:
    import numpy

    assert entry_of(mllog_line("POINT_IN_TIME", "x", 0))["value"] == 0
    assert entry_of(mllog_line("POINT_IN_TIME", "x", False))["value"] is False
    value = {"a": numpy.float32(0.5), "b": numpy.arange(2), "c": math.inf, "d": Path("/x")}
    assert entry_of(mllog_line("POINT_IN_TIME", "x", value))["value"] == {
        "a": 0.5,
        "b": [0, 1],
        "c": "Infinity",
        "d": "/x",
    }
    with pytest.raises(UsageError, match="x: a object cannot be logged"):
        mllog_line("POINT_IN_TIME", "x", object())


def test_a_line_has_mlperfs_fields_in_its_order() -> None:
    line = mllog_line(
        "INTERVAL_START", "RUN_START", metadata={"file": "a.py", "lineno": 3}, namespace="gpu0", time_ms=12
    )
    assert line == (
        ':::MLLOG {"namespace": "gpu0", "time_ms": 12, "event_type": "INTERVAL_START", "key": "run_start", '
        '"value": null, "metadata": {"file": "a.py", "lineno": 3}}'
    )


def test_the_call_site_is_told_on_request() -> None:
    out = io.StringIO()
    MLLog(out, call_sites=True).event("x")
    metadata = entry_of(out.getvalue())["metadata"]
    assert metadata["file"] == __file__ and metadata["lineno"] > 100
    MLLog(out).event("x")
    assert entry_of(out.getvalue().splitlines()[1])["metadata"] == {"file": None, "lineno": None}


def test_without_a_place_lines_go_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    MLLog().event("x", 1)
    assert capsys.readouterr().out.startswith(":::MLLOG {")


def test_a_file_that_cannot_be_opened_is_a_disk_failure(tmp_path: Path) -> None:
    with pytest.raises(DiskFailure, match="cannot write"):
        MLLog(tmp_path / "missing" / "x")


FOREIGN = """\
starting up
0: :::MLLOG {"namespace": "", "time_ms": 1000, "event_type": "INTERVAL_START", "key": "epoch_start", "value": null, "metadata": {"file": "a.py", "lineno": 1, "epoch_num": 1}}
1: :::MLLOG {"namespace": "", "time_ms": 1100, "event_type": "POINT_IN_TIME", "key": "seed", "value": 42, "metadata": {}}
\x1b[32m0: :::MLLOG {"namespace": "", "time_ms": 1500, "event_type": "POINT_IN_TIME", "key": "eval_accuracy", "value": 0.75, "metadata": {"epoch_num": 1}}\x1b[0m
0: :::MLLOG {"namespace": "", "time_ms": 3000.5, "event_type": "INTERVAL_END", "key": "epoch_stop", "value": 0, "metadata": {"epoch_num": 1}} trailing
0: 10%|##  | :::MLLOG {"namespace": "gpu", "time_ms": 3100, "event_type": "POINT_IN_TIME", "key": "opt_name", "value": "sgd", "metadata": null}
0: :::MLLOG {"namespace": "", "time_ms": 3200, "event_type": "INTERVAL_START", "key": "run_start", "metadata": {}}
0: :::MLLOG {"namespace": "", "time_ms": 32
0: :::MLLOG {"key": "no time"}
0: :::MLLOG [1]
the end
"""  # noqa: E501


def test_foreign_lines_are_found_anywhere_and_damaged_ones_are_named(tmp_path: Path) -> None:
    file = tmp_path / "slurm.out"
    file.write_text(FOREIGN)
    found = read_mllog(file)
    assert [(record.line, record.rank, record.key) for record in found.records] == [
        (2, 0, "epoch_start"), (3, 1, "seed"), (4, 0, "eval_accuracy"), (5, 0, "epoch_stop"), (6, 0, "opt_name"),
        (7, 0, "run_start"),
    ]  # fmt: skip
    assert found.damaged == [8, 9, 10]


def test_a_foreign_log_becomes_spans_metrics_and_events() -> None:
    log = log_of(parse_mllog(FOREIGN.splitlines()), host="n1")
    (spans,) = log.spans
    assert (spans.name, list(spans.starts_ns), list(spans.durations_ns)) == ("epoch", [1_000_000_000], [2_000_500_000])
    assert spans.attributes == [{"epoch_num": 1, "value": 0}]
    assert [(each.name, each.value, each.step, each.writer.rank) for each in log.metrics] == [
        ("eval_accuracy", 0.75, 1, 0), ("seed", 42, None, 1)
    ]  # fmt: skip
    assert [(event.name, event.attributes) for event in log.events] == [
        ("gpu/opt_name", {"value": "sgd"}), ("run", {"running": True})
    ]  # fmt: skip
    assert (log.damaged, [writer.rank for writer in log.writers]) == (3, [0, 1])


def test_what_the_real_logger_writes_is_read_and_a_missing_file_is_said(tmp_path: Path) -> None:
    import logging

    from mlperf_logging.mllog.mllog import MLLogger

    file = tmp_path / "real.log"
    to_file = logging.getLogger("test-mllog")
    to_file.propagate = False
    to_file.setLevel(logging.INFO)
    handler = logging.FileHandler(file)
    to_file.addHandler(handler)
    real = MLLogger(to_file)
    real.start("run_start", metadata={"a": 1})
    real.end("run_stop")
    handler.close()
    assert [spans.name for spans in log_of(read_mllog(file)).spans] == ["run"]
    with pytest.raises(UsageError, match="cannot read"):
        read_mllog(tmp_path / "missing")
