"""A scheduler to practise with: two make-believe nodes, on which jobs of this machine run for real.

Its jobs wait for a node, start, end and fail as those of a batch system do. What it knows lies in the folder
`practice` of the workspace.
"""

from __future__ import annotations

import os
from pathlib import Path

from fairmile.settings import options
from fairmile.testing.fake_scheduler import FakeScheduler


class Practice(FakeScheduler):
    """The make-believe scheduler of the course; see `fairmile.testing.fake_scheduler`."""

    name = "practice"

    def __init__(self) -> None:
        home = os.environ.get("FAIRMILE_HOME") or options(os.environ)["home"].default
        super().__init__(Path(home).absolute() / "practice")
