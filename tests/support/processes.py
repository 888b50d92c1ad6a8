"""What runs on this machine."""

from __future__ import annotations

import contextlib
from pathlib import Path


def is_running(pid: int) -> bool:
    """Tell whether a process runs; one that ended may stay listed until its parent asks for it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def processes_of_session(session: int) -> list[int]:
    """Return the processes of a session that run; one that ended may stay listed until its parent asks for it."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, _, its_session = stat.read_text().rpartition(")")[2].split()[:4]
            if int(its_session) == session and state not in "ZX":
                found.append(int(stat.parent.name))
    return found
