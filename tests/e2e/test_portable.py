"""What needs no service of Linux works without its calls and files, as on macOS: the commands run with both taken away.

It is no macOS: what its own kernel, file system and compilers do differently is not seen here.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WITHOUT_LINUX = ROOT / "tests" / "support" / "without_linux"
# Where a call of Linux stands behind a question whether it is there.
GUARDED = {
    "base/cores.py": {"sched_getaffinity"},
    "base/files.py": {"posix_fallocate"},
    "coupling/server.py": {"sched_getaffinity"},
    "models/explore/engines.py": {"sched_getaffinity", "sched_setaffinity"},
    "runs/execute/program.py": {"pidfd_open"},
    "store/speed.py": {"posix_fadvise", "O_DIRECT"},
}
COMMANDS = [
    "run train.py --lr 0.1",
    "sweep -j 2 train.py --lr 0.1,0.2",
    "tune --objective loss --trials 2 train.py --lr 1e-3..1e-1:log",
    "flow run flow.yaml",
    "job submit --wait -- echo high tide",
    "fetch data:,abc --to folder",
    "search cosmology",
    "doctor",
    "watch --for 0.1s",
    "store pool measure home",
    "env build yaml-cpp --dry-run",
    "predict memory mnist",
]


@pytest.mark.parametrize("command", [COMMANDS[0], *(pytest.param(c, marks=pytest.mark.thorough) for c in COMMANDS[1:])])
def test_a_command_works_without_what_only_linux_has(command: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys; print(f'loss={float(sys.argv[2]) ** 2}')\n")
    (tmp_path / "flow.yaml").write_text("steps: {a: {shell: echo 1 > a.txt, outputs: a.txt}}\n")
    environ = {**os.environ, "HOME": str(tmp_path), "FAIRMILE_HOME": str(tmp_path / "home")}
    environ["PYTHONPATH"] = str(WITHOUT_LINUX)
    done = subprocess.run(
        [sys.executable, "-m", "fairmile", *command.split()], cwd=tmp_path, env=environ, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_calls_of_linux_stand_only_where_their_absence_is_handled() -> None:
    names = re.search(r"LINUX_ONLY = \((.*?)\n\)", (WITHOUT_LINUX / "sitecustomize.py").read_text(), re.DOTALL)
    assert names is not None
    call = re.compile(rf"\bos\.({'|'.join(re.findall('[A-Za-z_0-9]+', names[1]))})\b")
    source = ROOT / "src" / "fairmile"
    found = {str(file.relative_to(source)): set(call.findall(file.read_text())) for file in source.rglob("*.py")}
    assert {name: calls for name, calls in found.items() if calls} == GUARDED
