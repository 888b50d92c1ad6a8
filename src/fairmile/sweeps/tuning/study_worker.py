"""A process that works on a study: started here by the study, or as a task of a job array."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from fairmile.base.errors import FairmileError
from fairmile.sweeps.tuning.study import work

_INTERRUPTED = 130


def start(arguments: Sequence[str]) -> int:
    """`worker FOLDER [--job KEY | --parent PID] [--at-once N] -- [LAUNCHER… FAIRMILE_MEMBER]`; returns an exit code."""
    given, launch = list(arguments[: (cut := list(arguments).index("--"))]), list(arguments[cut + 1 :])
    named = dict(zip(given[1::2], given[2::2], strict=True))
    at_once, key, parent = int(named.get("--at-once", "1")), named.get("--job", ""), int(named.get("--parent", "0"))
    try:
        work(Path(given[0]), os.environ, at_once=at_once, launch=launch, key=key, parent=parent)
    except FairmileError as problem:
        sys.stderr.write(f"fairmile: {problem}\n")
        return problem.exit_code
    except KeyboardInterrupt:
        return _INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(start(sys.argv[1:]))
