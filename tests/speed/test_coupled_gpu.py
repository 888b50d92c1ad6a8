"""The program that measures a surrogate beside a solver: both ways to couple give the bits of the surrogate alone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "speed" / "rig" / "coupled_gpu.py"


@pytest.mark.thorough
def test_whole_steps_give_the_bits_of_the_surrogate_alone(tmp_path: Path) -> None:
    for needed in ("torch", "mpi4py"):
        pytest.importorskip(needed)
    if not shutil.which("mpicc") or not shutil.which("gcc"):
        pytest.skip("there is no MPI with headers, or no compiler")
    out = tmp_path / "out.json"
    words = [out, "--device=cpu", "--seconds=0.001", "--kilobytes", "1", "--limit=300"]
    environ = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, PROGRAM, *words], env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    measured = json.loads(out.read_text())["measured"]
    assert [each["network"] for each in measured] == ["perceptron", "convolutions"]
    for each in measured:
        for way in ("shm", "shm, lag 1", "mpi", "mpi, lag 1"):
            assert each[way]["is same"]
            assert len(each[way]["step"]) == len(each[way]["surrogate"]) == each["steps"]
        assert min(each["own"]) >= 0
    assert "DIFFERENT" not in done.stdout
