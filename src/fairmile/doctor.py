"""Settings and their origin, state of catalogs, pools and the machine, and problems."""

from __future__ import annotations

import os
import platform
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypedDict, TypeVar

from fairmile.base.config import Config, Setting
from fairmile.base.errors import FairmileError, MissingExtra
from fairmile.base.html_tables import fields_table
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.registry import Registry
from fairmile.base.results import Result, Results
from fairmile.base.version import __version__
from fairmile.catalog.exchange import READERS, WRITERS
from fairmile.catalog.results import CatalogDict
from fairmile.envs.containers import RUNTIMES
from fairmile.envs.steps import KINDS
from fairmile.jobs.schedulers import SCHEDULERS
from fairmile.machine_checks import Check, CheckDict, check_machine
from fairmile.notify import shown_destinations
from fairmile.store.pools import Ranked
from fairmile.transfer.credentials import shown_address
from fairmile.transfer.fetchers import FETCHERS

T = TypeVar("T")

_PLUGINS: dict[str, Registry[Any]] = {
    "fetcher": FETCHERS,
    "scheduler": SCHEDULERS,
    "container runtime": RUNTIMES,
    "part of an environment": KINDS,
}


class SettingDict(TypedDict):
    key: str
    value: Any
    origin: str


class PoolStateDict(TypedDict):
    name: str
    folder: str
    free_bytes: int | None
    limited_by: str
    trouble: str


class DiagnosisDict(TypedDict):
    version: str
    python: str
    sqlite: str
    settings: list[SettingDict]
    catalogs: list[CatalogDict]
    pools: list[PoolStateDict]
    checks: list[CheckDict]
    unavailable: dict[str, str]
    problems: list[str]


class SystemState(Protocol):
    """A system as a list of systems shows it."""

    @property
    def name(self) -> str: ...
    @property
    def problem(self) -> str: ...


@dataclass(frozen=True, repr=False)
class Diagnosis(Result):
    """The settings with their origin, the state of catalogs, pools and the machine, unavailable plug-ins, problems."""

    settings: tuple[Setting, ...]
    catalogs: tuple[CatalogDict, ...]
    pools: tuple[Ranked, ...]
    checks: tuple[Check, ...]
    unavailable: Mapping[str, str]
    problems: tuple[str, ...]
    version: str = __version__
    python: str = platform.python_version()
    sqlite: str = sqlite3.sqlite_version

    def to_dict(self) -> DiagnosisDict:
        return {
            "version": self.version,
            "python": self.python,
            "sqlite": self.sqlite,
            "settings": [
                {"key": each.key, "value": _shown_value(each), "origin": each.origin} for each in self.settings
            ],
            "catalogs": list(self.catalogs),
            "pools": [_pool_state(each) for each in self.pools],
            "checks": [each.to_dict() for each in self.checks],
            "unavailable": dict(self.unavailable),
            "problems": list(self.problems),
        }

    def summary(self) -> str:
        return (
            f"fairmile {self.version}, {len(self.problems):,} problems, {len(self.unavailable):,} unavailable plug-ins"
        )

    def _repr_html_(self) -> str:
        unavailable = [f"{name}: {why}" for name, why in self.unavailable.items()]
        about = {"fairmile": self.version, "python": self.python, "problems": list(self.problems)}
        checks = Results(each.to_dict() for each in self.checks)
        return fields_table({**about, "unavailable": unavailable}) + checks._repr_html_()


def diagnose(
    home: Path,
    config: Config,
    problems: Sequence[str],
    *,
    catalogs: Callable[[], Iterable[CatalogDict]],
    pools: Callable[[], Iterable[Ranked]],
    systems: Callable[[], Iterable[SystemState]],
) -> Diagnosis:
    """Return the state of a workspace; what cannot be read becomes a problem."""
    listed = [*_home_problems(home), *problems]
    known_catalogs = _collect(catalogs, listed)
    listed += [f"source {each['name']}: {each['error']}" for each in known_catalogs if each.get("error")]
    known_pools = _collect(pools, listed)
    listed += [f"pool {each.pool.name}: {each.trouble}" for each in known_pools if each.trouble]
    listed += [f"system {each.name}: {each.problem}" for each in _collect(systems, listed) if each.problem]
    return Diagnosis(
        settings=tuple(config.settings()),
        catalogs=tuple(known_catalogs),
        pools=tuple(known_pools),
        checks=check_machine(home),
        unavailable=_unavailable_plugins(),
        problems=tuple(listed),
    )


def _unavailable_plugins() -> dict[str, str]:
    failures = READERS.failures() | WRITERS.failures()
    # A format and a fetcher may have one name.
    for noun, registry in _PLUGINS.items():
        failures |= {f"{noun} {name}": error for name, error in registry.failures().items()}
    return {name: _message(error) for name, error in failures.items()}


def _collect(read: Callable[[], Iterable[T]], problems: list[str]) -> list[T]:
    """Return what could be read, or nothing and one problem more."""
    try:
        return list(read())
    except (FairmileError, OSError, sqlite3.Error) as error:
        problems.append(shown_address(_message(error)))
        return []


def _message(error: BaseException) -> str:
    if isinstance(error, MissingExtra):
        return f"{error}: {error.hint}"
    if isinstance(error, sqlite3.Error):
        return f"the index cannot be used: {error}"
    if isinstance(error, OSError) and not isinstance(error, FairmileError) and error.filename is not None:
        return f"{error.filename} cannot be used: {error.strerror or error}"
    return str(error)


def _pool_state(each: Ranked) -> PoolStateDict:
    return {
        "name": each.pool.name,
        "folder": str(each.pool.folder),
        "free_bytes": each.space.free_bytes if each.space else None,
        "limited_by": each.space.limited_by if each.space else "",
        "trouble": each.trouble,
    }


def _home_problems(home: Path) -> list[str]:
    if home.exists() and not home.is_dir():
        return [f"home: {home} is not a folder"]
    parent = next((each for each in (home, *home.absolute().parents) if os.path.lexists(each)), home)
    if not os.access(parent, os.W_OK | os.X_OK):
        return [f"home: {home} cannot be written, so nothing can be added"]
    return []


def _shown_value(setting: Setting) -> Any:
    if setting.key == "notify.to":
        return ", ".join(shown_destinations(setting.value))
    return _without_secrets(setting.value)


def _without_secrets(value: Any) -> Any:
    """Return a setting as data, without the passwords and tokens that an address may hold."""
    if isinstance(value, Mapping):
        return {str(key): _without_secrets(each) for key, each in value.items()}
    return shown_address(str(value))
