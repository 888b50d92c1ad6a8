"""Finds the program of a benchmark, by its name or its folder, and runs it."""

from __future__ import annotations

import errno
import hashlib
import importlib
import importlib.util
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from fairmile.base.errors import FairmileError, MissingExtra, NotFound, UsageError
from fairmile.base.files import write_failure
from fairmile.base.garbage import no_search
from fairmile.base.words import did_you_mean
from fairmile.benchmarks.harness.host_memory import reuse_freed_memory
from fairmile.benchmarks.harness.launcher import start_ranks
from fairmile.benchmarks.harness.ranks import Ranks
from fairmile.benchmarks.harness.session import Finished, Session
from fairmile.benchmarks.harness.settings import read_settings

SUITE = Path(__file__).with_name("suite")
PROGRAM, SETTINGS, SCHEMA, STEP, CARD = "benchmark", "settings", "schema", "step", "card.jsonld"
_DEFINES = {PROGRAM: "run", SETTINGS: "Settings", SCHEMA: "SCHEMA"}
_GRACE_S = 5.0


def main(argv: Sequence[str]) -> int:
    """Run the benchmark that is named; an error is one sentence on stderr."""
    try:
        if len(argv) != 1:
            raise UsageError("expected the name or the folder of one benchmark")
        folder = folder_of(argv[0])
        session = Session.of(folder.name, os.environ, Path.cwd())
        many = getattr(session.settings(load(folder, SETTINGS).Settings), "ranks", 0)
        if many > 1 and session.ranks.size == 1:
            return start_ranks(many, [sys.executable, "-m", "fairmile.benchmarks", argv[0]], os.environ)
        reuse_freed_memory()
        with no_search():
            program = load(folder, PROGRAM)
        with suppress(Finished):
            program.run(session)
    except FairmileError as error:
        rank = Ranks.of(os.environ).rank
        if rank:  # the first one mostly finds out the same; when it ends, so does this one
            time.sleep(_GRACE_S)
        place = f"rank {rank}: " if rank else ""
        sys.stderr.write(f"error: {place}{error}\n" + (f"hint: {error.hint}\n" if error.hint else ""))
        return error.exit_code
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        failure = write_failure(str(error.filename or Path.cwd()), error)
        sys.stderr.write(f"error: {failure}\nhint: {failure.hint}\n")
        return failure.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


def check_parameters(argv: Sequence[str], params: Mapping[str, Any]) -> None:
    """Raise UsageError for a parameter that the benchmark of a command would refuse, before anything runs.

    Only those that come along are asked: the settings of others are code, which their run alone executes.
    """
    name = argv[-1]
    if name in names():
        read_settings(load(SUITE / name, SETTINGS).Settings, params)


def folder_of(name: str) -> Path:
    """Return the folder of a benchmark that comes along, or the folder that a path names."""
    if os.sep in name or name in (".", ".."):
        folder = Path(name).absolute()
        if not (folder / CARD).is_file():
            raise NotFound(
                f"{name} is not a benchmark: it has no {CARD}", hint="`fairmile benchmark new NAME` creates one"
            )
        return folder
    known = names()
    if name not in known:
        near = did_you_mean(name, known)
        raise NotFound(f"no benchmark named {name!r}", hint=near or f"there are {', '.join(known)}")
    return SUITE / name


def names() -> list[str]:
    """Return the names of the benchmarks that come along."""
    return sorted(each.name for each in SUITE.iterdir() if (each / CARD).is_file())


def load(folder: Path, part: str) -> ModuleType:
    """Return a module of a benchmark's folder: `benchmark`, `settings` or `schema`."""
    file = folder / f"{part}.py"
    if not file.is_file():
        raise NotFound(f"the benchmark {folder.name} has no {file.name}")
    try:
        if folder.parent == SUITE:
            module = importlib.import_module(f"fairmile.benchmarks.suite.{folder.name}.{part}")
        else:
            module = _module(file)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("fairmile"):
            raise
        where = "" if folder.parent == SUITE else ", which must be installed where it runs; PyTorch and NumPy come with"
        raise MissingExtra(f"the benchmark {folder.name} needs {error.name}{where}", "benchmarks") from error
    if not hasattr(module, _DEFINES[part]):
        raise UsageError(
            f"{file} defines no {_DEFINES[part]}", hint="`fairmile benchmark new NAME` creates one to compare with"
        )
    return module


def _module(file: Path) -> ModuleType:
    """Return the module in a file, which finds those beside it; files of other folders may have the same name."""
    if sys.path[0] != str(file.parent):
        sys.path.insert(0, str(file.parent))
    name = f"fairmile_benchmark_{hashlib.sha256(str(file).encode()).hexdigest()[:12]}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, file)
        if spec is None or spec.loader is None:
            raise NotFound(f"{file} is not a Python module")
        sys.modules[name] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(sys.modules[name])
        except BaseException:
            del sys.modules[name]  # half a module would be taken for a whole one the next time
            raise
    return sys.modules[name]
