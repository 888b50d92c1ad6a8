"""`fairmile system certify`: what a user sees of the suite."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from printed_results import assert_printed, assert_sound

from fairmile.jobs.certify import Certificate, Check
from fairmile.jobs.spec import Resources
from fairmile.workspace import Workspace

Fairmile = Callable[..., Any]

BAD = """\
name: bad
title: A machine whose modules do not load
scheduler: {dialect: shell}
partitions: {here: {}}
module_system: none
software: {ddp: {lines: [no-such-command load CUDA]}}
"""


@pytest.fixture(autouse=True)
def root_may_run_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_ALLOW_RUN_AS_ROOT", "1")
    monkeypatch.setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")


def test_this_machine_is_certified_and_the_record_is_kept(fairmile: Fairmile, place: Path) -> None:
    result = fairmile("system", "certify", "laptop")
    assert result.code == 0, result
    lines = result.out.splitlines()
    assert [line.split()[0] for line in lines[:4]] == ["passed"] * 4
    assert any(line.startswith("passed ") and line.endswith(" cancel") for line in lines)
    assert any("GPUs: none is registered for here" in line for line in lines)
    assert lines[-1].startswith(f"laptop: {len(lines) - 1} checks: ")
    folder = place.parent / "home" / "systems" / "certificates" / "laptop"
    (file,) = folder.iterdir()
    assert result.err == f"kept {file}\n"
    assert json.loads(file.read_text())["passed"] is True
    assert "laptop" in fairmile("system", "ls").out


@pytest.mark.thorough
def test_a_failed_check_is_exit_code_1_and_says_why(fairmile: Fairmile, place: Path) -> None:
    (place / "bad.yaml").write_text(BAD)
    assert fairmile("system", "add", "bad.yaml").code == 0
    result = fairmile("system", "certify", "bad", "--software", "ddp", "--json")
    assert result.code == 1
    (failed,) = [check for check in result.json["checks"] if check["outcome"] == "failed"]
    assert failed["name"] == "ddp: modules"
    assert "no-such-command" in failed["output"]
    assert Path(result.json["file"]).is_file()
    told = fairmile("system", "certify", "bad")
    assert "ddp: modules: failed: a module could not be loaded" in told.out
    assert "hint: `fairmile job log certify-" in told.err


def test_a_dry_run_names_the_checks_and_submits_nothing(fairmile: Fairmile, place: Path) -> None:
    shutil.rmtree(place.parent / "home")
    result = fairmile("system", "certify", "deep", "--software", "ddp", "--account", "p", "--dry-run")
    assert result.code == 0, result
    assert result.out.startswith("would check job\nwould check exit code and output\nwould check array\n")
    assert "would check ddp: torch, distributed\n" in result.out
    assert not (place.parent / "home" / "jobs").exists()
    assert not (place.parent / "home" / "systems").exists()
    assert fairmile("system", "certify", "deep", "--account", "p", "--dry-run", "--json").json["dry_run"] is True


def test_what_a_system_asks_of_every_job_is_told_first(fairmile: Fairmile) -> None:
    result = fairmile("system", "certify", "deep")
    assert result.code == 2
    assert "need an account" in result.err


def test_python_returns_what_the_command_prints(fairmile: Fairmile, tmp_path: Path) -> None:
    jobs = Workspace.open().jobs
    plan = jobs.plan_certification("deep", resources=Resources(account="p"))
    assert_printed(fairmile, plan, "system", "certify", "deep", "--account", "p", "--dry-run")
    moment = datetime(2026, 11, 17, tzinfo=UTC)
    checks = (Check("job", "passed", seconds=1.5), Check("GPUs", "not applicable", "none is registered"))
    certificate = Certificate("box", "A box", "shell", moment, moment, checks).keep(tmp_path)
    assert_sound(certificate)
    assert json.loads(Path(certificate.file).read_text()).keys() == certificate.to_dict().keys() - {"file"} | {"card"}
    assert repr(certificate) == "<Certificate: box: 2 checks: 1 passed, 1 not applicable>"
