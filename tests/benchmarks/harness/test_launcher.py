from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fairmile.benchmarks.harness.launcher import start_ranks
from fairmile.benchmarks.harness.ranks import Ranks

SELF = """
import os, sys
from pathlib import Path
from fairmile.benchmarks.harness.launcher import start_ranks
sys.exit(start_ranks(2, [sys.executable, "-c", sys.argv[1], sys.argv[2]], os.environ))
"""
SLEEPS = """
import pathlib, os, sys, time
pathlib.Path(sys.argv[1], os.environ["RANK"]).write_text(str(os.getpid()))
time.sleep(600)
"""


def run(program: str, *given: str, many: int = 3) -> int:
    return start_ranks(many, [sys.executable, "-c", program, *given], os.environ)


def test_each_process_is_told_its_place_and_where_to_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS")
    program = (
        "import os, pathlib, sys; names = ('RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'LOCAL_WORLD_SIZE', 'MASTER_ADDR', "
        "'MASTER_PORT', 'OMP_NUM_THREADS'); "
        "pathlib.Path(sys.argv[1], os.environ['RANK']).write_text(' '.join(os.environ[name] for name in names))"
    )
    assert run(program, str(tmp_path)) == 0
    said = [(tmp_path / str(rank)).read_text().split() for rank in range(3)]
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    assert [Ranks.of(dict(zip(names, each, strict=False))) for each in said] == [Ranks(n, 3, n, 3) for n in range(3)]
    assert len({tuple(each[4:]) for each in said}) == 1
    assert int(said[0][6]) >= 1


def test_threads_that_were_chosen_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert run("import os, sys; sys.exit(os.environ['OMP_NUM_THREADS'] != '7')") == 0


def test_the_exit_code_is_that_of_the_rank_that_failed_and_the_others_end() -> None:
    program = "import os, sys, time; time.sleep(0 if os.environ['RANK'] == '1' else 600); sys.exit(4)"
    assert run(program) == 4


def test_a_rank_that_was_killed_is_told_as_a_shell_tells_it() -> None:
    program = "import os, signal, time; os.kill(os.getpid(), 9) if os.environ['RANK'] == '2' else time.sleep(600)"
    assert run(program) == 128 + signal.SIGKILL


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_all_ranks_end_with_the_process_that_started_them(tmp_path: Path, number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", SELF, SLEEPS, str(tmp_path)]) as launcher:
        files = [tmp_path / "0", tmp_path / "1"]
        deadline = time.monotonic() + 60
        while not all(file.exists() and file.read_text() for file in files) and time.monotonic() < deadline:
            time.sleep(0.02)
        launcher.send_signal(number)
        assert launcher.wait(60) == 128 + number
    for file in files:
        with pytest.raises(ProcessLookupError):
            os.kill(int(file.read_text()), 0)
