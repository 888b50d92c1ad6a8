"""A sweep or study that a page follows: how many of its runs are in which state."""

from __future__ import annotations

from typing import Any

from fairmile.status import sweep_progress
from fairmile.workspace import Workspace


class SweepTopic:
    """The states of the runs of one sweep; its key is the id. The page draws its figures anew when it is asked to."""

    def stamp(self, workspace: Workspace, key: str) -> object:
        return self._text(workspace, key)

    def changes(self, workspace: Workspace, key: str, cursor: Any) -> tuple[Any, Any]:
        text = self._text(workspace, key)
        return ({"progress": text} if cursor not in (None, text) else None), text

    def _text(self, workspace: Workspace, key: str) -> str:
        sweep = workspace.sweeps.get(key)
        return sweep_progress(sweep, workspace.ledger.counts([sweep.id])[sweep.id])


SWEEP = SweepTopic()
