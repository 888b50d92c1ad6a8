"""Repeats what the checks of the course judge and a machine may change: the outputs of `train.py`, times of jobs.

Run: python speed/lessons.py [--repeats N]

    2 to 6   `train.py` as the lessons run it, on 1 and on 2 threads: how many different outputs it has
    9.2      two seconds of sleep as a job on the make-believe scheduler, and the job that waits for it: whole seconds
             that the first took (the check asks for 1 or more), and from its end to the start of the second (0 or more)

The other checks judge fixed files, predictions, or a number against the run that the answer hands over.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from fairmile.course.lessons import find_lesson
from fairmile.jobs.spec import JobSpec
from fairmile.workspace import Workspace

TRAININGS = (
    ["--epochs", "20"],
    ["--epochs", "5", "--lr", "0.1", "--hidden", "64"],
    ["--epochs", "3", "--lr", "0.3", "--lags", "24"],
)


def outputs(folder: Path, arguments: list[str], repeats: int) -> int:
    """Return the number of different outputs of repeats on 1 and on 2 threads, half of them each."""
    seen = set()
    for number in range(repeats):
        environ = {**os.environ, "OMP_NUM_THREADS": str(1 + number % 2), "OPENBLAS_NUM_THREADS": str(1 + number % 2)}
        command = [sys.executable, "train.py", *arguments]
        seen.add(subprocess.run(command, cwd=folder, env=environ, check=True, capture_output=True).stdout)
    return len(seen)


def naps(folder: Path, repeats: int) -> tuple[list[float], list[float]]:
    """Return the seconds that jobs of two seconds took, and those until the job that waits for each started."""
    workspace = Workspace.open(overrides={"home": str(folder / "home")})
    workspace.systems.add(folder / "practice.yaml")
    took, gaps = [], []
    for _ in range(repeats):
        first = workspace.jobs.submit(JobSpec(argv=("sleep", "2")), system="practice")
        waiting = JobSpec(argv=("echo", "done"), after=({"job": first.id},))
        second = workspace.jobs.submit(waiting, system="practice")
        nap, after = (job.to_dict()["standing"] for job in workspace.jobs.wait([first.id, second.id]))
        took.append(nap["ended"] - nap["started"])
        gaps.append(after["started"] - nap["ended"])
    return took, gaps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=20, help="repeats of each (default: 20)")
    repeats = parser.parse_args().repeats
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for lesson in ("02-run", "09-queue"):
            for file in find_lesson(lesson).files:
                shutil.copy(file, folder)
        for arguments in TRAININGS:
            print(f"train.py {' '.join(arguments):40} {outputs(folder, arguments, repeats)} output of {repeats}")
        took, gaps = naps(folder, repeats)
        print(f"9.2 took {min(took):g} to {max(took):g} s, the next started {min(gaps):g} to {max(gaps):g} s after")


if __name__ == "__main__":
    main()
