"""How often a scheduler is asked, by however many processes of a user: each notes when it may be asked again."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path

from fairmile.base.errors import DiskFailure
from fairmile.base.files import write_atomic
from fairmile.jobs.machines import Machine

_PROCESSES_EVERY_S = 1.0
_LONGEST_PAUSE_S = 600.0


class Polling:
    """The questions to schedulers, with a note for each system in `folder`.

    A batch system is asked once in `every_s`, processes of this machine once a second. After a question that failed the
    pause doubles.
    """

    def __init__(self, folder: Path, clock: Callable[[], float], every_s: float) -> None:
        self._folder = folder
        self._clock = clock
        self._every_s = every_s

    def may_ask(self, machine: Machine) -> bool:
        """Tell whether a system may be asked now."""
        return self._clock() >= float(self._note(machine).get("next", 0.0))

    def keeps_history(self, machine: Machine) -> bool:
        """Tell whether a system knows jobs that ended, as far as an earlier question showed."""
        return bool(self._note(machine).get("history", True)) and machine.system.scheduler.accounting

    def asked(self, machine: Machine, commands: int, *, failed: bool = False, history: bool | None = None) -> None:
        """Note how many commands polled a system; `history` says whether it keeps ended jobs."""
        before = self._note(machine)
        every_s = self._every_s if machine.has_scheduler else _PROCESSES_EVERY_S
        pause_s = min(max(before.get("pause", every_s), every_s) * 2, _LONGEST_PAUSE_S) if failed else every_s
        document = {
            "next": self._clock() + pause_s * commands,
            "pause": pause_s,
            "history": before.get("history", True) if history is None else history,
        }
        with contextlib.suppress(DiskFailure):  # then others do not know that we asked
            write_atomic(self._folder / machine.system.name, json.dumps(document), sync=False)

    def _note(self, machine: Machine) -> dict[str, float]:
        try:
            note = json.loads((self._folder / machine.system.name).read_text())
        except (OSError, ValueError):
            return {}
        return note if isinstance(note, dict) else {}
