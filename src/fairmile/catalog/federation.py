"""The sources that a catalog draws on: declared in the settings, each with a copy of its cards in a folder."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fairmile.base.errors import Conflict, NotFound, SystemFailure, UsageError
from fairmile.base.registry import Plugin, Registry
from fairmile.base.words import closest
from fairmile.base.yaml import update_file
from fairmile.catalog.declared import (
    AddedSource,
    SourceDict,
    SourceSpec,
    SyncReport,
    SyncReports,
    check_source_name,
    source_spec,
    state,
)
from fairmile.catalog.folder import CatalogFolder
from fairmile.transfer.credentials import shown_address
from fairmile.transfer.remote import Context

# Who only reads the copies needs nothing that reaches the sources themselves.
_WORK: Registry[Callable[..., SyncReport]] = Registry(
    "work of a source", {"sync": Plugin("fairmile.catalog.sources:sync")}
)


class Federation:
    """Declares, drops and syncs the sources of a catalog, and hands out the folders of their copies.

    `settings` has what is declared of each source, in order of precedence, and `origins` where; a source that is
    added or removed is written to `settings_file`.
    """

    def __init__(
        self,
        root: Path,
        settings: Mapping[str, Any],
        *,
        origins: Mapping[str, str],
        settings_file: Path | None,
        base: str,
        context: Context,
        clock: Callable[[], float] = time.time,
    ) -> None:
        for name in settings:
            check_source_name(name)
        self._root = root
        self._settings = dict(settings)
        self._origins = origins
        self._settings_file = settings_file
        self._base = base
        self._context = context
        self._clock = clock

    def folders(self) -> list[CatalogFolder]:
        """Return the copies that serve, in order of precedence."""
        return [self._folder(name) for name in self._settings if self._is_copy_of(name)]

    def facts(self) -> list[SourceDict]:
        """Return every source, in order of precedence, with the state of its copy."""
        return [self._facts(name) for name in self._settings]

    def add(self, name: str, location: str, *, type: str | None, revision: str, dry_run: bool) -> AddedSource:
        """Add a source to the user's settings and sync it; if the first sync fails, nothing is added."""
        check_source_name(name)
        if name in self._settings:
            raise Conflict(f"a source named {name!r} already exists", hint=f"`fairmile catalog source rm {name}` first")
        is_address = "://" in location or location.startswith("git@")
        location = location if is_address else str(Path(location).expanduser().absolute())
        given = {"location": location, "type": type, "revision": revision}
        settings = {key: value for key, value in given.items() if value}
        settings_file, folder = self._file_to_change(), self._folder(name)
        try:
            report = self._sync(source_spec(name, settings), dry_run=dry_run)
            if report.error:
                raise SystemFailure(f"the source {name!r} cannot be synced: {report.error}", hint="nothing was added")
            if dry_run:
                shutil.rmtree(folder.root, ignore_errors=True)
                return AddedSource(**vars(report), dry_run=True)
            update_file(settings_file, lambda data: _sources_of(data).__setitem__(name, settings))
        except BaseException:
            shutil.rmtree(folder.root, ignore_errors=True)
            raise
        self._settings[name] = settings
        return AddedSource(**vars(report))

    def remove(self, name: str, *, dry_run: bool) -> None:
        """Take a source out of the user's settings and drop its copy; a dry run only tells whether that can be."""
        if name not in self._settings:
            raise NotFound(f"no source named {name!r}", hint="`fairmile catalog source ls` lists them")
        if dry_run:
            return

        def drop(data: Any) -> None:
            if _sources_of(data).pop(name, None) is None:
                raise UsageError(
                    f"the source {name!r} is not declared in {self._settings_file}",
                    hint="`fairmile doctor` shows which file declares it",
                )

        update_file(self._file_to_change(), drop)
        del self._settings[name]
        shutil.rmtree(self._folder(name).root, ignore_errors=True)

    def sync(self, names: Sequence[str], *, dry_run: bool, allow_empty: bool) -> SyncReports:
        """Bring these sources up to date, all when none is named; one that fails is reported and its copy stays."""
        for name in names:
            if name not in self._settings:
                near = closest(name, self._settings)
                raise NotFound(
                    f"no source named {name!r}",
                    hint=f"did you mean {near[0]!r}?" if near else "`fairmile catalog source ls` lists them",
                )
        wanted = names or self._settings
        reports = [self._synced(name, dry_run, allow_empty) for name in self._settings if name in wanted]
        return SyncReports(reports, dry_run)

    def _synced(self, name: str, dry_run: bool, allow_empty: bool) -> SyncReport:
        try:
            spec = self._spec(name)
        except UsageError as error:
            return SyncReport(name, shown_address(str(self._settings[name])), "", error=str(error))
        return self._sync(spec, dry_run=dry_run, allow_empty=allow_empty)

    def _sync(self, spec: SourceSpec, *, dry_run: bool, allow_empty: bool = False) -> SyncReport:
        return _WORK["sync"](
            spec,
            self._folder(spec.name),
            self._context,
            base=self._base,
            clock=self._clock,
            dry_run=dry_run,
            allow_empty=allow_empty,
        )

    def _facts(self, name: str) -> SourceDict:
        try:
            spec = self._spec(name)
        except UsageError as error:
            location = shown_address(str(self._settings[name]))
            return {"name": name, "type": "", "location": location, "error": str(error)}
        kept = state(self._folder(name)) if self._is_copy_of(name) else {}
        return {
            "name": name,
            "type": spec.type,
            "location": shown_address(spec.location),
            "revision": kept.get("revision", ""),
            "synced_at": kept.get("synced_at", ""),
            "error": kept.get("error", ""),
            "problems": kept.get("problems", []),
        }

    def _is_copy_of(self, name: str) -> bool:
        """Tell whether the copy under a name is of the source that these settings mean, not of another project's."""
        kept = state(self._folder(name)).get("location")
        try:
            spec = self._spec(name)
        except UsageError:
            return True
        return kept in (None, spec.location, shown_address(spec.location))

    def _spec(self, name: str) -> SourceSpec:
        return source_spec(name, self._settings[name], origin=self._origins.get(name, ""))

    def _folder(self, name: str) -> CatalogFolder:
        return CatalogFolder(name, self._root / name)

    def _file_to_change(self) -> Path:
        if self._settings_file is None:
            raise UsageError("this catalog was opened without a settings file, so sources cannot be changed")
        return self._settings_file


def _sources_of(settings: Any) -> Any:
    """Return the table of sources in the settings, made where there is none."""
    if settings.get("sources") is None:
        settings["sources"] = {}
    return settings["sources"]
