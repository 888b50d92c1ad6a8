"""Runs as jobs on a machine that ssh reaches, which sees no file of this one: what they need is sent along.

`Scheduler` executes them; this says how the job of one is made. Members of batches travel as `remote_batches` tells.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from fairmile.jobs.spec import JobSpec
from fairmile.runs.execute import carrier
from fairmile.runs.execute.executor import PreparedRun
from fairmile.runs.execute.host import WorkspaceRuns
from fairmile.runs.record.commands import start_command
from fairmile.runs.record.layout import WORK
from fairmile.runs.record.record import RunRecord


class SentRuns:
    """Makes jobs to which record, recorder, program and inputs are sent."""

    def __init__(self, host: WorkspaceRuns) -> None:
        self._host = host

    def job(self, work: PreparedRun, record: RunRecord, key: str) -> JobSpec:
        """Return the job of a run, with all that goes along."""
        preparation, folder = self._host.preparation, work.folder
        spec = preparation.travelling(folder, record, work.spec)
        values = {**preparation.materialize(record, folder, code=True), **carrier.remote_values(record)}
        carrier.copy_parts(spec.argv, folder / WORK)
        argv = start_command(spec, values)
        recorder = carrier.recorder_file(self._host.ledger.root / ".recorder")
        return carrier.remote_job(work, spec, argv, record, recorder, key)

    def sent(self, folder: Path) -> None:
        """Remove from the folder of a run what its job took along."""
        shutil.rmtree(folder / WORK, ignore_errors=True)
        (folder / carrier.TRAVEL).unlink(missing_ok=True)
