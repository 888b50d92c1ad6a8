"""Environments as they lie on disk: one folder each, whose `record.json` says that it is ready.

<digest16>-<name>/
    prefix/       what was built
    spec.json     name, digest and specification, written first
    steps/        one file for each step that is finished
    lock.json     every package with version and digest
    record.json   who built it when, how long each step took, what the checks said; written last
    failure.json  why the last attempt ended
    log.txt       what the programs said
    uses/         one note for each shell that runs in the environment
    used          touched at each use
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, TypedDict

from fairmile.base.errors import InvalidDocument
from fairmile.base.files import Holder
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result, Results
from fairmile.base.strict_json import load_json
from fairmile.envs.shells import Act, Assign, ModuleLine, Prepend, Source, Unset

State = Literal["ready", "building", "failed", "unfinished", "absent"]
_ACTS: Mapping[str, type[Act]] = {each.__name__: each for each in (Assign, Prepend, Unset, ModuleLine, Source)}
LEASE_S = 60.0
# A holder that cannot be seen from here counts as gone when it was not renewed for so long; clocks may differ.
_SURELY_GONE_S = 10 * LEASE_S


class EnvironmentDict(TypedDict):
    """An environment as JSON; `used` is seconds since the epoch, `size_bytes` is null until it is ready."""

    name: str
    digest: str
    state: State
    folder: str
    size_bytes: int | None
    used: float


class EnvironmentListDict(TypedDict):
    """Environments as JSON."""

    environments: list[EnvironmentDict]


class EnvironmentDetailsDict(EnvironmentDict):
    """An environment as JSON with its specification, its record, its lock and why the last build failed."""

    spec: dict[str, Any]
    record: dict[str, Any]
    lock: dict[str, Any]
    failure: dict[str, Any]


@dataclass(frozen=True, repr=False)
class Environment(Result):
    """One environment on disk; `record`, `lock` and `failure` are empty where there is none."""

    name: str
    digest: str
    folder: Path
    state: State
    spec: Mapping[str, Any]
    record: Mapping[str, Any]
    lock: Mapping[str, Any]
    failure: Mapping[str, Any]
    used: float  # when it was last used, or changed, in seconds since the epoch

    @property
    def prefix(self) -> Path:
        return self.folder / "prefix"

    @property
    def ready(self) -> bool:
        return self.state == "ready"

    @property
    def acts(self) -> tuple[Act, ...]:
        """What is done in a shell before a program starts."""
        return acts_from(self.record.get("acts", ()))

    @property
    def wrap(self) -> tuple[str, ...]:
        """What stands before a program's own argv: the command of a container."""
        return tuple(self.record.get("wrap", ()))

    def holders(self) -> list[str]:
        """Return who uses it at this moment, as in "process 17 on node3"."""
        return [f"process {each.pid} on {each.host}" for each in _living(self.folder / "uses")]

    def to_dict(self) -> EnvironmentDict:
        """Return the environment as `fairmile env build --json` prints it."""
        return {
            "name": self.name,
            "digest": self.digest,
            "state": self.state,
            "folder": str(self.folder),
            "size_bytes": self.record.get("size_bytes"),
            "used": self.used,
        }

    def summary(self) -> str:
        """Return the name, the start of the digest, the state and the prefix."""
        return f"{self.name} {self.digest[:16]} {self.state}, {self.prefix}"


class EnvironmentDetails(Environment):
    """One environment on disk, whose data has its specification, record, lock and failure as well."""

    def to_dict(self) -> EnvironmentDetailsDict:
        """Return the environment as `fairmile env show --json` prints it."""
        return {
            **super().to_dict(),
            "spec": dict(self.spec),
            "record": dict(self.record),
            "lock": dict(self.lock),
            "failure": dict(self.failure),
        }


class EnvironmentList(Results[Environment]):
    """Environments."""

    columns = ("name", "digest", "state", "size_bytes", "used")

    def to_dict(self) -> EnvironmentListDict:
        """Return the environments as `fairmile env ls --json` prints them."""
        return {"environments": [each.to_dict() for each in self]}

    def summary(self) -> str:
        """Return the number of environments, and their names."""
        names = ", ".join(dict.fromkeys(each.name for each in self))
        return f"{len(self)} environment{'' if len(self) == 1 else 's'}" + (f": {names}" if names else "")


def read_environment(folder: Path, lock_file: Path) -> Environment | None:
    """Return what lies in a folder, or None where no build ever began; `lock_file` tells whether one is at work."""
    begun = _read(folder / "spec.json")
    if not begun:
        return None
    record, failure = _read(folder / "record.json"), _read(folder / "failure.json")
    state: State = "ready" if record else "building" if builder(lock_file) else "failed" if failure else "unfinished"
    return Environment(
        name=str(begun.get("name", "")),
        digest=str(begun.get("digest", "")),
        folder=folder,
        state=state,
        spec=record.get("spec") or begun.get("spec", {}),  # new checks change the record only
        record=record,
        lock=_read(folder / "lock.json"),
        failure={} if record else failure,
        used=max(_changed(folder / name) for name in ("used", "record.json", "spec.json")),
    )


def read_all(root: Path) -> Iterator[Environment]:
    """Yield every environment below `root`."""
    try:
        names = sorted(os.listdir(root))
    except FileNotFoundError:
        return
    for name in names:
        if not name.startswith("."):
            environment = read_environment(root / name, lock_file(root, name))
            if environment is not None:
                yield environment


def lock_file(root: Path, folder_name: str) -> Path:
    """Return the lock that whoever builds an environment holds."""
    return root / ".locks" / folder_name[:16]


def builder(lock: Path) -> str:
    """Return who builds at this moment, as in "process 17 on node3", or an empty text."""
    holder = builder_process(lock)
    return f"process {holder.pid} on {holder.host}" if holder else ""


def builder_process(lock: Path) -> Holder | None:
    """Return the process that builds at this moment."""
    return next(_holders([lock]), None)


def _living(folder: Path) -> list[Holder]:
    try:
        return list(_holders(sorted(folder.iterdir())))
    except FileNotFoundError:
        return []


def _holders(files: Sequence[Path]) -> Iterator[Holder]:
    for file in files:
        if "." in file.name:  # what a lock has beside it while it changes hands
            continue
        try:
            text, status = file.read_text(encoding="utf-8", errors="replace"), file.stat()
        except OSError:
            continue
        holder = Holder.parse(text, status.st_ino)
        fresh = time.time() - status.st_mtime < _SURELY_GONE_S
        if not holder.is_dead_here() if is_here(holder) else fresh:
            yield holder


def is_here(holder: Holder) -> bool:
    """Tell whether a holder is a process that can be seen from here: same machine, same boot, same name space."""
    me = Holder.me()
    return bool(holder.place) and (holder.host, holder.place) == (me.host, me.place)


def acts_data(acts: Sequence[Act]) -> list[dict[str, Any]]:
    """Return acts as JSON data."""
    data = [{"act": type(act).__name__, **asdict(act)} for act in acts]
    return [{key: str(value) if isinstance(value, Path) else value for key, value in each.items()} for each in data]


def acts_from(data: Sequence[Mapping[str, Any]]) -> tuple[Act, ...]:
    """Return the acts that JSON data holds."""
    acts: list[Act] = []
    for each in data:
        fields = {key: value for key, value in each.items() if key != "act"}
        for key in ("folder", "file"):
            if key in fields:
                fields[key] = Path(fields[key])
        if "shells" in fields:
            fields["shells"] = tuple(fields["shells"])
        acts.append(_ACTS[each["act"]](**fields))
    return tuple(acts)


def as_text(value: Any) -> str:
    """Return JSON as it is written to disk."""
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


def _read(file: Path) -> Mapping[str, Any]:
    try:
        value = load_json(file.read_text(encoding="utf-8"), file=str(file))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, UnicodeDecodeError, InvalidDocument):
        # A folder of another user that may not be read, or a damaged file: not an environment that we can use.
        return {}
    return value if isinstance(value, dict) else {}


def _changed(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0
