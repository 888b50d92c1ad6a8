"""Metrics of runs as TensorBoard event files, and event files of others as runs.

`tensorboard --logdir FOLDER` shows what is exported. A logging folder may hold several runs, each in a folder of its
own; those of the parts of one run, such as `train` and `validation`, are runs of their own there, and here as well.
"""

from __future__ import annotations

from pathlib import Path

from fairmile.base.digest import sha256_file, sha256_hex
from fairmile.base.errors import Conflict, NotFound, UsageError
from fairmile.base.files import write_atomic
from fairmile.meter.lines import event_files, read_log
from fairmile.meter.tensorboard import MARK, Scalar, event_file, find_event_files, read_scalars
from fairmile.runs.exchange import Files, ImportedRun, folder_of, no_files
from fairmile.runs.exchange.foreign import ForeignRun, Point
from fairmile.runs.record.run import Run


def export(run: Run, target: Path, *, code: Files = no_files, most_input_bytes: int = 0) -> list[Path]:
    """Write the metrics of a run into an event file in a folder of its own below `target`, and return the file."""
    file = target / run.id / f"events.out.{MARK}.{round(run.created)}.{run.system or 'local'}"
    if file.exists():
        raise Conflict(f"{target} already holds run {run.id}", hint="choose another folder with -o")
    with folder_of(run) as folder:
        logged = read_log(event_files(folder)).metrics
    scalars: list[Scalar] = []
    counts = dict[str, int]()
    for each in logged:
        step = counts.get(each.name, 0) if each.step is None else int(each.step)
        counts[each.name] = counts.get(each.name, 0) + 1
        scalars.append(Scalar(each.name, each.value, step, each.at_ns / 1e9))
    if not scalars:
        raise UsageError(f"run {run.id} logged no metric", hint="`fm.log(loss=…, step=…)` logs one")
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(file, event_file(scalars, created_s=run.created))
    return [file]


def read(source: Path) -> list[ImportedRun]:
    """Return the runs of a logging folder, one for each folder that has event files, or that of one event file."""
    if not source.exists():
        raise NotFound(f"{source} is neither a file nor a folder")
    top = source if source.is_dir() else source.parent
    files = find_event_files(source) if source.is_dir() else [source]
    folders: dict[Path, list[Path]] = {}
    for file in files:
        folders.setdefault(file.parent, []).append(file)
    runs = [run for folder, own in folders.items() if (run := _imported(top, folder, own)) is not None]
    if not runs:
        raise UsageError(f"{source} has no event file with scalars", hint="pass the log folder of TensorBoard")
    return runs


def _imported(top: Path, folder: Path, files: list[Path]) -> ImportedRun | None:
    scalars, notes = read_scalars(files)
    if not scalars:
        return None
    times = sorted(each.at_s for each in scalars)
    name = "-".join(folder.relative_to(top).parts) or folder.resolve().name
    foreign = ForeignRun(
        "tensorboard",
        sha256_hex("".join(map(sha256_file, files)).encode()),
        name,
        times[0],
        times[-1],
        points=[Point(each.tag, each.value, each.step, each.at_s) for each in scalars],
        files={file.name: file for file in files},
        more={"notes": notes} if notes else {},
    )
    return ImportedRun(foreign.record(), foreign.names(), f"the TensorBoard folder {folder}", foreign.lay)
