"""The files of a submission beside its logs: code, scripts and README, from the record of a run."""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from fairmile.base.files import write_atomic
from fairmile.benchmarks.program import SUITE
from fairmile.runs.record.run import Run
from fairmile.runs.record.values import value_text
from fairmile.store.store import Store

_OWN = "builtin/benchmark/"
_EXECUTABLE = 0o755


def suite_name(run: Run) -> str:
    """Return the benchmark of Fairmile's own suite that a run ran; empty for any other program."""
    asset = run.record.spec.asset
    name = asset.removeprefix(_OWN).partition("@")[0] if asset.startswith(_OWN) else ""
    return name if name and (SUITE / name).is_dir() else ""


def write_code(run: Run, store: Store, folder: Path) -> str:
    """Copy the program of a run into a folder, and return what is missing of it; empty where nothing is."""
    name, snapshot = suite_name(run), run.captured.code.snapshot
    if name:
        _copy(SUITE / name, folder)
    elif snapshot:
        with tempfile.TemporaryDirectory(prefix="fairmile-code-") as scratch:
            store.materialize(snapshot, Path(scratch) / "code")
            _copy(Path(scratch) / "code", folder)
    has_files = folder.is_dir() and any(each.is_file() for each in folder.rglob("*"))
    return "" if has_files else f"run {run.id} recorded no code: name its files with --code when you run it"


def _copy(source: Path, target: Path) -> None:
    """Copy a folder without what the committee's repository refuses: hidden files and names with spaces."""

    def refused(_: str, names: list[str]) -> set[str]:
        return {name for name in names if name.startswith(".") or " " in name or name == "__pycache__"}

    shutil.copytree(source, target, ignore=refused)


def write_scripts(run: Run, folder: Path) -> None:
    """Write the scripts that install the software, get the data and run the benchmark."""
    lock = run.captured.environment.lock
    write_atomic(folder / "requirements.txt", "".join(f"{line}\n" for line in lock))
    fetches = [f"fairmile fetch {shlex.quote(each.asset)}" for each in run.captured.inputs.values() if each.asset]
    paths = [f"# put {name} here: {each.path}" for name, each in run.captured.inputs.items() if not each.asset]
    datasets = [*fetches, *paths] or ["# the program makes or brings its own data"]
    _script(folder / "setup.sh", [f"# Python {run.captured.environment.python}", "pip install -r requirements.txt"])
    _script(folder / "init_datasets.sh", datasets)
    _script(folder / "run_and_time.sh", run_lines(run))


def run_lines(run: Run) -> list[str]:
    """Return the shell lines that run it again; SEED sets another seed."""
    spec, name = run.record.spec, suite_name(run)
    seed = ["--seed", f"${{SEED:-{spec.seed}}}"] if spec.seed is not None else []
    if name:
        words = ["fairmile", "run", name]
        words += [word for key, value in spec.params.items() for word in ("-p", f"{key}={value_text(value)}")]
        return [" ".join([shlex.join(words), *seed[:1], *(f'"{each}"' for each in seed[1:])])]
    lines = [f"export FAIRMILE_SEED=${{SEED:-{spec.seed}}}"] if spec.seed is not None else []
    lines += [f"export {key}={shlex.quote(text)}" for key, text in spec.env.items()]
    first, *others = run.argv
    return [*lines, shlex.join([os.path.basename(first) if os.path.isabs(first) else first, *others])]


def _script(file: Path, lines: list[str]) -> None:
    write_atomic(file, "\n".join(["#!/bin/sh", "set -e", *lines, ""]), mode=_EXECUTABLE)


def code_version(run: Run) -> str:
    """Return what identifies the code of a run: its commit, its snapshot, or Fairmile's version."""
    git = run.captured.code.git
    if git is not None and git.commit:
        return git.commit
    return run.captured.code.snapshot or f"fairmile {run.captured.software.get('fairmile', '')}".strip()


def readme(title: str, run: Run, facts: Mapping[str, str], rows: Sequence[Sequence[str]], notes: Sequence[str]) -> str:
    """Return the README of one benchmark on one system: how to run it, its runs, and what the submission changed."""
    git = run.captured.code.git
    source = f" of {git.remote}" if git is not None and git.remote else ""
    head = "| run | file | seed | time | metrics |\n|---|---|---|---|---|\n"
    table = head + "".join(f"| {' | '.join(row)} |\n" for row in rows)
    listed = "".join(f"- {name}: {text}\n" for name, text in facts.items())
    steps = "\n".join(["sh setup.sh", "sh init_datasets.sh", "SEED=1 sh run_and_time.sh"])
    code = f"Code: {code_version(run)}{source}.\n"
    extra = "".join(f"\n{note}\n" for note in notes)
    return f"# {title}\n\n{listed}\n{code}\n## Run it\n\n```sh\n{steps}\n```\n\n## Runs\n\n{table}{extra}"
