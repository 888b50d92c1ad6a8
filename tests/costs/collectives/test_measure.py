"""Real ranks: torch's gloo and MPI on this machine. Times are never judged, only what was done and written."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from cases import for_each

from fairmile.base.commands import Result
from fairmile.base.errors import RunFailed, SystemFailure, UsageError
from fairmile.costs.collectives import measure as measuring
from fairmile.costs.collectives.measure import (
    MeasuredBackend,
    measure_collectives,
    merged,
    plan_collectives,
    read_measured,
    write_measured,
)
from fairmile.costs.collectives.program import main
from fairmile.costs.collectives.ranks import MEASURED, elements, place_of
from fairmile.costs.collectives.tables import MeasuredPoint

SIZES = (64, 65536)


def needs(module: str, program: str = "") -> None:
    if importlib.util.find_spec(module) is None or (program and shutil.which(program) is None):
        pytest.skip(f"needs {' and '.join(filter(None, (module, program)))}")


@pytest.fixture
def root_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_ALLOW_RUN_AS_ROOT", "1")
    monkeypatch.setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")


def check_everything(found: MeasuredBackend, ranks: Sequence[int], collectives: Sequence[str]) -> None:
    assert not found.left_out
    for count in ranks:
        for name in collectives:
            expected = 2 if name == "point_to_point" else count
            sizes = [each.size_bytes for each in found.points if (each.collective, each.ranks) == (name, expected)]
            wanted = [0] if name == "barrier" else SIZES
            assert len(sizes) >= len(wanted)
            assert all(size <= max(most, 4 * count) for size, most in zip(sizes, wanted, strict=False))
    assert all(point.time_s > 0 for point in found.points)
    assert all(row["best_s"] <= row["low_s"] <= row["time_s"] <= row["high_s"] for row in found.rows)
    assert all(row["repeats"] >= 5 for row in found.rows)
    assert {point.nodes for point in found.points} == {1}


@pytest.mark.thorough
def test_gloo_ranks_measure_every_collective_also_inside_the_script_of_a_batch_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    needs("torch")
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setenv("SLURM_NTASKS", "8")
    found = measure_collectives("gloo", [2], SIZES, MEASURED, seconds=0.001)
    check_everything(found, [2], MEASURED)
    assert "gloo" in found.library
    compared = found.compared()
    assert len(compared) == len(found.points)
    assert all(each.model_s > 0 and each.algorithm_s > 0 for each in compared)
    assert found.model().time_s("all_reduce", 4096, 2) > 0


def test_mpi_ranks_measure_every_collective(root_may: None) -> None:
    needs("mpi4py", "mpirun")
    found = measure_collectives("mpi", [2, 3], SIZES, MEASURED, seconds=0.001)
    check_everything(found, [2, 3], MEASURED)
    assert "MPI" in found.library


@pytest.mark.thorough
def test_three_ranks_that_torchrun_starts_measure_together(tmp_path: Path) -> None:
    needs("torch")
    file, collectives = tmp_path / "measured.json", ("all_reduce", "all_gather", "halo", "broadcast")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"]
    command += ["-m", "fairmile.costs.collectives", "--sizes", "64,64KiB", "--collectives", ",".join(collectives)]
    command += ["--seconds", "0.001", "--out", str(file)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    check_everything(read_measured(file), [3], collectives)
    assert ended.stdout.count("broadcast") == len(SIZES)


def test_what_was_measured_is_written_and_read_back(tmp_path: Path) -> None:
    points = tuple(MeasuredPoint("all_reduce", float(size), 4, 1e-5 + 1e-9 * size) for size in (16, 1024, 65536, 2**20))
    write_measured(tmp_path / "m.json", MeasuredBackend("gloo", "torch", points, {"halo": "not supported"}))
    again = read_measured(tmp_path / "m.json")
    assert again.points == points
    assert again.left_out == {"halo": "not supported"}
    document = json.loads((tmp_path / "m.json").read_text())
    assert document["fits"]["all_reduce"]["algorithm"]
    assert all(abs(row["error"]) < 0.01 for row in document["points"])


def test_nodes_are_predicted_by_what_was_measured_between_nodes() -> None:
    sizes = (1024, 65536, 2**20)
    points = [MeasuredPoint("all_reduce", float(size), 4, 1e-5 + 1e-9 * size) for size in sizes]
    points += [MeasuredPoint("all_reduce", float(size), 4, 1e-4 + 8e-9 * size, nodes=2) for size in sizes]
    model = MeasuredBackend("mpi", "MPI", tuple(points)).model()
    assert model.time_s("all_reduce", 65536, 4) == pytest.approx(1e-5 + 1e-9 * 65536, rel=0.01)
    assert model.time_s("all_reduce", 65536, 4, nodes=2) == pytest.approx(1e-4 + 8e-9 * 65536, rel=0.01)


def test_a_plan_says_what_would_be_started() -> None:
    (first, second) = plan_collectives("gloo", [4, 2], sizes=["1KiB"], collectives=["all-reduce"], python="python3")
    assert first[:6] == ("python3", "-P", "-m", "fairmile.costs.collectives", "--backend", "gloo")
    assert (first[-1], second[-1]) == ("2", "4")
    assert "1024" in first
    (command,) = plan_collectives("mpi", [512], python="python3")
    assert command[:4] == ("mpirun", "-np", "512", "--oversubscribe")
    assert "--ranks" not in command


@for_each(
    "arguments, told",
    [
        ({"backend": "smoke", "ranks": [2]}, "no backend named 'smoke'"),
        ({"backend": "gloo", "ranks": [1]}, "expected 2 or more"),
        ({"backend": "gloo", "ranks": []}, "expected 2 or more"),
        ({"backend": "gloo", "ranks": [2], "collectives": ["all_broken"]}, "no collective named"),
        ({"backend": "gloo", "ranks": [2], "sizes": ["0"]}, "0 bytes"),
        ({"backend": "gloo", "ranks": [2], "sizes": ["many"]}, "many"),
        ({"backend": "gloo", "ranks": [2], "seconds": 0}, "expected more than 0"),
    ],
)
def test_bad_words_are_told_before_anything_starts(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        plan_collectives(**arguments)


class Answers:
    """A machine where every program ends in the same way."""

    def __init__(self, exit_code: int, stderr: str) -> None:
        self.exit_code, self.stderr = exit_code, stderr

    def run(self, argv: Sequence[str], **_: Any) -> Result:
        return Result(tuple(argv), self.exit_code, "", self.stderr, 0.1)


def test_ranks_that_fail_are_told_with_their_last_words() -> None:
    with pytest.raises(RunFailed, match="NCCL needs NVIDIA GPUs") as found:
        measure_collectives("nccl", [2], runner=Answers(3, "error: NCCL needs NVIDIA GPUs, but torch finds none\n"))
    assert "torch finds none" in str(found.value.hint)
    with pytest.raises(RunFailed, match="exit code 9"):
        measure_collectives("gloo", [2], runner=Answers(9, "boom"))


def test_an_mpirun_that_refuses_root_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring.shutil, "which", lambda name: f"/usr/bin/{name}")
    refusal = "mpirun has detected an attempt to run as root.\n"
    with pytest.raises(RunFailed) as found:
        measure_collectives("mpi", [2], runner=Answers(1, refusal))
    assert "OMPI_ALLOW_RUN_AS_ROOT=1" in str(found.value.hint)
    monkeypatch.setattr(measuring.shutil, "which", lambda name: None)
    with pytest.raises(SystemFailure, match="mpirun was not found"):
        measure_collectives("mpi", [2])


def test_nothing_measured_is_a_failure_with_its_reason() -> None:
    with pytest.raises(RunFailed, match="gloo has no halo"):
        merged([MeasuredBackend("gloo", "torch", (), {"halo": "gloo has no halo"})])


def test_nccl_without_gpus_says_so(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    needs("torch")
    import torch

    if torch.cuda.is_available():
        pytest.skip("there are GPUs here")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["--backend", "nccl", "--sizes", "1KiB", "--collectives", "all_reduce"]) == 3
    assert "NCCL needs NVIDIA GPUs" in capsys.readouterr().err


def test_without_a_launcher_and_a_number_of_ranks_the_program_says_what_is_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "SLURM_PROCID", "PMI_RANK"):
        monkeypatch.delenv(name, raising=False)
    assert main(["--backend", "gloo"]) == 2
    assert "RANK and WORLD_SIZE" in capsys.readouterr().err


def test_ranks_that_were_told_no_place_to_meet_say_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["--backend", "gloo", "--sizes", "1KiB", "--collectives", "all_reduce"]) == 2
    assert "MASTER_ADDR and MASTER_PORT are not set" in capsys.readouterr().err


def test_launchers_say_who_is_who() -> None:
    assert place_of({"RANK": "3", "WORLD_SIZE": "8"}) == (3, 8)
    assert place_of({"SLURM_PROCID": "1", "SLURM_NTASKS": "2"}) == (1, 2)
    assert place_of({"RANK": "3"}) is None


def test_what_ranks_share_is_cut_equally() -> None:
    assert elements("all_reduce", 1000, 3) == 250
    assert elements("all_gather", 1000, 3) == 249
    assert elements("all_to_all", 1, 4) == 4
