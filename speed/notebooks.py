"""Measures what executing a lesson of the course costs, beside plain nbclient on the same notebook.

Run: python speed/notebooks.py [--lesson NAME]… [--repeats N]

    nbclient     the peer: reads the notebook, executes it, writes it
    executed     `python -m fairmile.sweeps.notebooks`, which a notebook runs with as a program
    recorded     the same as a run with a record, as `fairmile course check` does it

CPU is user and system time of a process and all of its children, the median over turns in which each has one. All use
one home and one workspace, so that what is built once, such as the cache of fonts and the watching library, is not in
the median.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from fairmile.course.lessons import find_lesson, write_notebook

NBCLIENT = """\
import sys
import nbclient, nbformat
notebook = nbformat.read(sys.argv[1], as_version=4)
nbclient.NotebookClient(notebook, kernel_name="python3").execute()
nbformat.write(notebook, "out.ipynb")
"""
RECORDED = """\
import sys
from fairmile.workspace import Workspace
assert Workspace.open().course.execute(sys.argv[1], ".").state == "done"
"""


def cpu_s(command: list[str], lesson: str, folder: Path) -> float:
    """Return the CPU time of a command in a new folder with the notebook of a lesson and its files."""
    folder.mkdir()
    for file in find_lesson(lesson).files:
        shutil.copyfile(file, folder / file.name)
    write_notebook(find_lesson(lesson).solved(), folder / f"{lesson}.ipynb")
    environ = {**os.environ, "HOME": str(folder.parent), "FAIRMILE_HOME": str(folder.parent / "home")}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)  # which would compile our modules in every process, and not the peer's
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=folder, env=environ, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lesson", action="append", help="lesson to execute (default: 01-find and 08-predict)")
    parser.add_argument("--repeats", type=int, default=3, help="turns (default: 3)")
    args = parser.parse_args()
    for lesson in args.lesson or ["01-find", "08-predict"]:
        commands = {
            "nbclient": [sys.executable, "-c", NBCLIENT, f"{lesson}.ipynb"],
            "executed": [sys.executable, "-m", "fairmile.sweeps.notebooks", f"{lesson}.ipynb", "out.ipynb"],
            "recorded": [sys.executable, "-c", RECORDED, lesson],
        }
        taken: dict[str, list[float]] = {name: [] for name in commands}
        with tempfile.TemporaryDirectory() as scratch:
            for turn in range(args.repeats):
                for name, command in commands.items():
                    taken[name].append(cpu_s(command, lesson, Path(scratch) / f"{name}-{turn}"))
        medians = {name: statistics.median(each) for name, each in taken.items()}
        for name, median in medians.items():
            more = median - medians["nbclient"]
            print(f"{lesson:12} {name:10} {median:6.2f} s  {median / medians['nbclient']:5.2f} x  {more:+.2f} s")


if __name__ == "__main__":
    main()
