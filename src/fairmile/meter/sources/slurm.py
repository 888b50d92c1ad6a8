"""The energy that Slurm counts for the job this runs in, where its administrator lets it count."""

from __future__ import annotations

import re

from fairmile.base.commands import Here, Runner
from fairmile.base.errors import SystemFailure, Unsupported
from fairmile.meter.lines import Channel
from fairmile.meter.sources.source import Where

_PATIENCE_S = 10.0
_KIND = re.compile(r"^AcctGatherEnergyType\s*=\s*(\S+)", re.MULTILINE)
_FREQUENCY = re.compile(r"^AcctGatherNodeFreq\s*=\s*(\d+)", re.MULTILINE)
# https://slurm.schedmd.com/sstat.html; that the figure is of whole nodes is what users find out the hard way:
# https://github.com/Lumi-supercomputer/lumi-userguide/issues/181
_SCOPE = "all nodes of job {}, including anything else on them"


class Slurm:
    """Asks `sstat` for the joules of the job's steps; dear, therefore read for the first and last sample only."""

    name = "slurm"
    every_s = float("inf")

    def __init__(self, where: Where, *, runner: Runner | None = None) -> None:
        self._job = where.environ.get("SLURM_JOB_ID", "")
        self._runner = runner or Here()
        if not self._job:
            raise Unsupported("this is not a Slurm job: SLURM_JOB_ID is not set")
        if not self._job.isdigit():
            raise Unsupported(f"SLURM_JOB_ID is {self._job!r}, expected a job number")
        configuration = self._ask("scontrol", "show", "config")
        if configuration is None:
            raise Unsupported("Slurm does not answer `scontrol show config`")
        kind = _KIND.search(configuration)
        if kind is None or kind[1].rpartition("/")[2] in ("none", "(null)"):
            raise Unsupported("Slurm does not measure energy here (AcctGatherEnergyType is none)")
        every = _FREQUENCY.search(configuration)
        error = f"{kind[1]}, sampled every {every[1]} s; " if every else f"{kind[1]}; "
        error += "the largest of the job's overlapping steps"
        self._channels = (Channel("job.energy", "J", "counter", "slurm", _SCOPE.format(self._job), error),)

    def channels(self) -> tuple[Channel, ...]:
        return self._channels

    def read(self) -> list[float | None]:
        wanted = ("--allsteps", "--noheader", "--parsable2", "--format=ConsumedEnergyRaw")
        answer = self._ask("sstat", *wanted, "-j", self._job)
        counted = [int(line) for line in (answer or "").split() if line.isdigit()]
        return [float(max(counted))] if counted else [None]

    def close(self) -> None:
        return

    def _ask(self, *argv: str) -> str | None:
        try:
            result = self._runner.run(argv, timeout_s=_PATIENCE_S, check=False)
        except SystemFailure:
            return None
        return result.stdout if result.exit_code == 0 else None
