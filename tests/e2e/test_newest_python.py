"""The newest supported Python: the demo, what needs no service, and the lessons without PyTorch, from an empty home."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import newest_python
import pytest

from fairmile.course.lessons import lessons

ROOT = Path(__file__).parents[2]
VERSION = newest_python.newest_version()
pytestmark = [
    pytest.mark.thorough,
    pytest.mark.timeout(1800),  # the first time, packages are downloaded
    pytest.mark.skipif(sys.version_info[:2] == tuple(map(int, VERSION.split("."))), reason="all tests run on it"),
]


LESSONS = [lesson.name for lesson in lessons() if "torch" not in lesson.needs]


@pytest.fixture(scope="module")
def programs() -> Path:
    try:
        return newest_python.environment()
    except newest_python.Unavailable as error:
        pytest.skip(str(error))


def run(command: list[str | Path], tmp_path: Path) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "PYTHON", "FAIRMILE"))}
    environ = {**kept, "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache"), "NO_COLOR": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout[-5000:]
    return done.stdout


def test_the_demo_runs_to_its_end_without_a_warning(programs: Path, tmp_path: Path) -> None:
    ours = [f"FAIRMILE={programs / 'fairmile'}", f"PYTHON={programs / 'python'}"]
    assert "Warning" not in run(["env", *ours, "bash", "demo/demo.sh"], tmp_path)


@pytest.mark.parametrize(
    "tests",
    [
        ["tests/course/test_course.py", "-k", f"runs_offline and ({' or '.join(LESSONS)})"],
        ["--quick", "tests/e2e/test_portable.py", "tests/base", "tests/course", "tests/cli/test_course.py"],
    ],
    ids=["lessons", "what needs no service"],
)
def test_tests_pass(programs: Path, tmp_path: Path, tests: list[str]) -> None:
    options = ["-q", "-n", "2", "-p", "no:cacheprovider", "--basetemp", tmp_path / "pytest"]
    told = run([programs / "pytest", *options, *tests], tmp_path)
    assert " passed" in told and " skipped" not in told
