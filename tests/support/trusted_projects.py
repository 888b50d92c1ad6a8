"""Projects whose settings the user has read and trusts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from fairmile.settings import PROJECT_FILE
from fairmile.workspace import Workspace


def trusted_project(folder: Path, text: str, environ: Mapping[str, str] = os.environ) -> Path:
    """Write the settings file of a project and trust it."""
    file = folder / PROJECT_FILE
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    Workspace.trust(environ).add(file)
    return file
