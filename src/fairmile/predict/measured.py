"""What a workspace has measured: operators on its own devices, and runs that correct the table that comes along."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fairmile.base.digest import sha256_hex
from fairmile.costs.devices import Device
from fairmile.costs.operators.op_times import OpTimes, read_op_times, shipped_op_times
from fairmile.costs.operators.refine import Correction, MeasuredStep, read_correction, refined, write_correction
from fairmile.costs.steps import StepTrace
from fairmile.predict.step_time import HostCosts, StepTime, step_time


class MeasuredTimes:
    """Step times by what a folder holds: `op_times/GPU.csv` of operators, `corrections/GPU.json` of runs.

    An operator that was measured here goes before the same one of the table that comes along. Runs correct that table
    alone: what was measured here needs no correction.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def step_time(self, trace: StepTrace, on: Device, host: HostCosts | None = None) -> StepTime:
        """Predict the time of a trace's last step; a note says where operators of this workspace had a part in it."""
        file, shipped = self.table_file(on), shipped_op_times(on.slug)
        own = read_op_times(file, on) if file.is_file() else None
        if own is None:
            return step_time(trace, on, host=host, correction=self.correction(on).factors)
        if shipped is None:
            return step_time(trace, on, own, host)
        joined = shipped.joined(own)
        host = (host or HostCosts()).scaled(joined.host_factor, calls=False)  # the table's are scaled
        step = step_time(trace, on, joined, host, correction=self.correction(on).factors)
        return replace(step, notes=(*step.notes, _joined_words(own, shipped, joined.host_factor)))

    def table_file(self, on: Device) -> Path:
        """Return where the operators of a device that were measured here are kept."""
        return self._folder / "op_times" / f"{on.slug}.csv"

    def correction(self, on: Device) -> Correction:
        """Return what runs have taught of a device."""
        file = self._correction_file(on)
        return read_correction(file) if file.is_file() else Correction(on.slug)

    def learn(self, on: Device, steps: Sequence[MeasuredStep], *, dry_run: bool = False) -> Correction:
        """Correct a device's table by steps, predicted as the table that comes along says, and forget the rest."""
        correction = refined(Correction(on.slug), steps)
        if not dry_run:
            write_correction(correction, self._correction_file(on))
        return correction

    def digest(self, on: Device) -> str:
        """Return a text that is another one whenever step times may be others; empty where nothing was measured."""
        files = (self.table_file(on), self._correction_file(on))
        return " ".join(f"{each.name} {sha256_hex(each.read_bytes())}" for each in files if each.is_file())

    def _correction_file(self, on: Device) -> Path:
        return self._folder / "corrections" / f"{on.slug}.json"


def _joined_words(own: OpTimes, shipped: OpTimes, host_factor: float) -> str:
    words = f"operators measured here: {len(own.rows):,}; the others come from the built-in table"
    if own.about.torch and _release(own.about.torch) != _release(shipped.about.torch):
        words += f" (PyTorch {shipped.about.torch}, not {own.about.torch})"
    if host_factor != 1:
        words += f". This host takes {host_factor:.2f} times as long for a call as the table's, as measured"
    return words


def _release(version: str) -> list[str]:
    return version.split(".")[:2]
