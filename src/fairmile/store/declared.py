"""Pools as the user's settings file declares them: add one, remove one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

from fairmile.base import yaml
from fairmile.base.errors import Conflict, UsageError
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result
from fairmile.store.pools import HOME, Pool, PoolDict, Pools, parse_pools


class AddedPoolDict(TypedDict):
    """A new pool; `replaces` is the folder of the default pool if it takes the place of that."""

    pool: PoolDict
    dry_run: bool
    replaces: str


class RemovedPoolDict(TypedDict):
    removed: str
    folder: str
    dry_run: bool


@dataclass(frozen=True, repr=False)
class AddedPool(Result):
    """A pool that was declared in the user's settings, or would be."""

    pool: Pool
    dry_run: bool
    replaces: str = ""  # the folder of the default pool, where it takes the place of that

    def to_dict(self) -> AddedPoolDict:
        return {"pool": self.pool.facts(), "dry_run": self.dry_run, "replaces": self.replaces}

    def summary(self) -> str:
        return f"{self.pool.name} in {self.pool.folder}"


@dataclass(frozen=True, repr=False)
class RemovedPool(Result):
    """A pool that was removed from the user's settings, or would be; its folder stays."""

    pool: Pool
    dry_run: bool

    def to_dict(self) -> RemovedPoolDict:
        return {"removed": self.pool.name, "folder": str(self.pool.folder), "dry_run": self.dry_run}

    def summary(self) -> str:
        return f"{self.pool.name} in {self.pool.folder}"


def declare_pool(
    settings_file: Path,
    pools: Pools,
    name: str,
    settings: Mapping[str, Any],
    *,
    environ: Mapping[str, str],
    dry_run: bool = False,
) -> AddedPool:
    """Declare a pool in the user's settings and return it; `settings` are as `parse_pools` takes them.

    A folder that begins with a variable is kept so; any other is made absolute. A pool that already exists, or
    cannot be used, is refused.
    """
    folder = str(settings["folder"])
    given = {**settings, "folder": folder if folder.startswith("$") else str(Path(folder).expanduser().absolute())}
    others = {pool.name: str(pool.folder) for pool in pools if pool.name != name}
    parsed = parse_pools({**others, name: given}, pools[HOME].folder, {}, environ=environ)
    pool = next(each for each in parsed if each.name == name)
    known = next((each for each in pools if each.name == name), None)
    is_default = name == HOME and name not in _declared(settings_file)
    if known is not None and not is_default:
        raise Conflict(f"a pool named {name!r} already exists", hint=f"`fairmile store pool rm {name}` first")
    trouble = pools.trouble(pool)
    if trouble:
        raise UsageError(f"the pool {name!r} cannot be used: {trouble}", hint="make its folder, or choose another one")
    if not dry_run:
        yaml.update_file(settings_file, lambda data: _pools_of(data).__setitem__(name, given))
    return AddedPool(pool, dry_run, replaces=str(known.folder) if known is not None else "")


def forget_pool(settings_file: Path, pools: Pools, name: str, *, dry_run: bool = False) -> RemovedPool:
    """Remove a pool from the user's settings and return it; its folder and the bytes in it stay."""
    pool = pools[name]
    if name not in _declared(settings_file):
        raise UsageError(
            f"the pool {name!r} is not declared in {settings_file}",
            hint="`fairmile doctor` shows which file declares it; the pool 'home' is always there",
        )
    if not dry_run:
        yaml.update_file(settings_file, lambda data: _pools_of(data).pop(name))
    return RemovedPool(pool, dry_run)


def _declared(settings_file: Path) -> Any:
    try:
        return _pools_of(yaml.load(settings_file.read_text(encoding="utf-8"), file=str(settings_file)) or {})
    except FileNotFoundError:
        return {}


def _pools_of(settings: Any) -> Any:
    """Return the table of pools in the settings, made where there is none."""
    if settings.get("pools") is None:
        settings["pools"] = {}
    return settings["pools"]
