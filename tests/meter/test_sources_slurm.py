"""The energy that Slurm counts, by programs that answer as scontrol and sstat do."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairmile.base.errors import Unsupported
from fairmile.meter.sources import Where
from fairmile.meter.sources.slurm import Slurm
from fairmile.meter.watch import Watch
from fairmile.testing.energy import EnergySourceTests, Subject

WHERE = Where(environ={"SLURM_JOB_ID": "4711"})
CONFIG = "AcctGatherEnergyType    = acct_gather_energy/pm_counters\nAcctGatherNodeFreq      = 30 sec\n"


class Programs:
    """A folder with scontrol and sstat on the path."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config, self.energy, self.calls = folder / "config", folder / "energy", folder / "calls"
        folder.mkdir()
        self.config.write_text(CONFIG)
        self.energy.write_text("100\n900\n\n")
        self._program("scontrol", f"cat '{self.config}'")
        self._program("sstat", f'echo "$@" >> \'{self.calls}\'; cat "{self.energy}"')

    def _program(self, name: str, body: str) -> None:
        (self.folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (self.folder / name).chmod(0o755)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    found = Programs(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{found.folder}:/usr/bin:/bin")
    return found


class TestSlurm(EnergySourceTests):
    @pytest.fixture
    def subject(self, programs: Programs) -> Subject:
        return Subject(
            lambda: Slurm(WHERE),
            lambda: programs.energy.write_text("100\n1900\n"),
            lambda: programs.energy.write_text("slurmdbd is down\n"),
            lambda: Slurm(Where(environ={})),
        )


def test_the_largest_step_counts_since_steps_overlap(programs: Programs) -> None:
    source = Slurm(WHERE)
    assert source.read() == [900.0]
    (channel,) = source.channels()
    assert channel.scope == "all nodes of job 4711, including anything else on them"
    assert channel.error.startswith("acct_gather_energy/pm_counters, sampled every 30 s")
    assert programs.calls.read_text().split()[-1] == "4711"


def test_it_is_asked_for_the_first_and_the_last_sample_only(programs: Programs, tmp_path: Path) -> None:
    watch = Watch([Slurm(WHERE)], period_s=0.01)
    with watch:
        while len(watch.measured().at_ns) < 4:
            pass
    column = watch.measured().column("job.energy")
    assert column[0] == column[-1] == 900.0
    assert set(column[1:-1]) == {None}
    assert len(programs.calls.read_text().splitlines()) == 2


@pytest.mark.parametrize("kind", ["acct_gather_energy/none", "(null)"])
def test_a_slurm_that_counts_no_energy_says_so(programs: Programs, kind: str) -> None:
    programs.config.write_text(f"AcctGatherEnergyType    = {kind}\n")
    with pytest.raises(Unsupported, match="does not measure energy here"):
        Slurm(WHERE)


def test_a_slurm_that_does_not_answer_is_no_source(programs: Programs) -> None:
    (programs.folder / "scontrol").write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(Unsupported, match="does not answer"):
        Slurm(WHERE)


def test_an_id_that_is_none_is_not_put_on_a_command_line(programs: Programs) -> None:
    with pytest.raises(Unsupported, match="expected a job number"):
        Slurm(Where(environ={"SLURM_JOB_ID": "1 --steal"}))
