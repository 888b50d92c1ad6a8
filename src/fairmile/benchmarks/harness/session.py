"""What a benchmark's program is told of the run it is part of, and where it puts what it makes."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairmile import meter
from fairmile.base.digest_cache import Stamp
from fairmile.base.errors import NotFound, UsageError
from fairmile.base.files import Lock, write_atomic, write_failure
from fairmile.benchmarks.harness.ranks import Ranks
from fairmile.benchmarks.harness.scores import Results
from fairmile.benchmarks.harness.settings import S, read_settings
from fairmile.benchmarks.harness.staging import staged

_MADE = "made.json"


class Finished(Exception):
    """The program of a benchmark has done what it was asked for before its own end."""


@dataclass(frozen=True)
class Session:
    """One execution of a benchmark."""

    name: str
    params: Mapping[str, Any]
    seed: int
    data: Path | None  # the real data that was given; None: small data is made
    folder: Path  # where outputs go
    cache: Path  # what is prepared once for many runs
    is_resumed: bool
    ranks: Ranks
    init: Path | None = None  # weights to start from, of any task
    on_task: Callable[[Any], None] | None = None  # gets the task before it is trained; what it raises ends the program

    @classmethod
    def of(cls, name: str, environ: Mapping[str, str], folder: Path) -> Session:
        """Return what the variables of a run say; outside of a run the defaults hold."""
        params = json.loads(environ.get("FAIRMILE_PARAMS") or "{}")
        given = environ.get("FAIRMILE_INPUT_DATA")
        data = Path(given) if given else None
        if data is not None and not data.exists():
            raise NotFound(f"no data at {data}")
        # Never a folder that all users share: whoever comes first could put data there.
        caches = Path(environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME") or Path.home()) / ".cache")
        cache = Path(environ.get("FAIRMILE_CACHE") or caches / "fairmile" / "benchmarks")
        return cls(
            name=name,
            params=params,
            seed=_seed(environ.get("FAIRMILE_SEED") or "0"),
            data=data,
            folder=folder,
            cache=cache,
            is_resumed=environ.get("FAIRMILE_RESUME") == "1",
            ranks=Ranks.of(environ),
            init=Path(environ["FAIRMILE_INPUT_INIT"]) if environ.get("FAIRMILE_INPUT_INIT") else None,
        )

    def settings(self, kind: type[S]) -> S:
        """Return the settings that the parameters of the run give."""
        return read_settings(kind, self.params)

    def say(self, text: str) -> None:
        """Print a line, from the first of all ranks only."""
        if self.ranks.is_first:
            sys.stdout.write(f"{text}\n")
            sys.stdout.flush()

    def prepared(self, what: Mapping[str, Any], make: Callable[[Path], None]) -> Path:
        """Return a folder that `make` filled, once for all runs that ask for the same `what`.

        It is made aside and renamed, by one process of all; the file or folder of real data counts by path, size and
        time of change. Where the parameter `stage` asks for it, the folder is copied to a faster place.
        """
        place, where = self._made(what, make), str(self.params.get("stage") or "")
        return staged(place, where, os.environ, self.say) if where else place

    def _made(self, what: Mapping[str, Any], make: Callable[[Path], None]) -> Path:
        asked = {"benchmark": self.name, "data": _stamp(self.data), **what}
        text = json.dumps(asked, sort_keys=True, default=str)
        place = self.cache / self.name / hashlib.sha256(text.encode()).hexdigest()[:16]
        if (place / _MADE).exists():
            return place
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise write_failure(str(place.parent), error) from error
        with Lock(place.with_suffix(".lock"), timeout_s=3600):
            if not (place / _MADE).exists():
                aside = place.with_suffix(".part")
                shutil.rmtree(aside, ignore_errors=True)
                aside.mkdir()
                try:
                    make(aside)
                    write_atomic(aside / _MADE, text)
                    os.rename(aside, place)
                except BaseException:
                    shutil.rmtree(aside, ignore_errors=True)
                    raise
        return place

    def report(self, results: Results) -> None:
        """Print the table of scores, log them as metrics and keep them beside the outputs; the first rank does.

        Published results stand beside real data alone.
        """
        if not self.ranks.is_first:
            return
        if self.data is None:
            results = dataclasses.replace(results, published=())
        results.write(self.folder)
        self.say(f"\n{results.benchmark} on {results.data}, seed {results.seed}")
        self.say(results.table())
        for note in results.notes:
            self.say(f"note: {note}")
        judged = results.metric.name
        if self.data is None and (line := results.synthetic_verdict()):
            self.say(line)
        for score in results.scores:
            if score.kind == "model":
                meter.log(**score.values)
            elif judged in score.values:  # the file has the rest
                meter.log(**{f"{score.name.replace(' ', '_')}.{judged}": score.values[judged]})


def _seed(text: str) -> int:
    if not text.isdecimal() or int(text) >= 1 << 63:
        raise UsageError(f"the seed is {text}: expected a whole number from 0 to 2^63 - 1")
    return int(text)


def _stamp(path: Path | None) -> list[Any] | None:
    """Return what tells real data from changed real data without reading it."""
    if path is None:
        return None
    files = [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file())
    if not files:
        raise UsageError(f"the folder {path} has no files")
    stamps = [[os.path.relpath(file, path), *Stamp.of(file.stat()).key] for file in files]
    return [str(path), hashlib.sha256(json.dumps(stamps).encode()).hexdigest()]
