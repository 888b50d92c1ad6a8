"""What a sweep is, read from files or from a command line.

The files are first read into a document, plain data that a sweep's folder keeps; everything else comes from the
document, so that a later process reads the same definition although the files have changed or gone.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from fairmile.base.errors import NotFound, UsageError
from fairmile.base.files import read_text
from fairmile.base.registry import Plugin, Registry
from fairmile.base.words import closest
from fairmile.base.yaml import Located
from fairmile.resolve import PROGRAMS, Nouns, Resolver, Target, Word, parse_document
from fairmile.sweeps.model import Definition
from fairmile.sweeps.origins import SourceFile, key_text, option_of
from fairmile.sweeps.own_format import ALL_KEYS, absolute_paths, command_fields, read_keys
from fairmile.sweeps.record import Source
from fairmile.sweeps.space import Space


class DialectReader(Protocol):
    """Reads the files of another tool as definitions."""

    def recognises(self, file: SourceFile) -> bool:
        """Tell whether the file is one of that tool."""
        ...

    def parts(self, file: Path, data: Mapping[str, Any]) -> Iterable[Path]:
        """Return the files that a file with these data names and that are read with it."""
        ...

    def read(
        self, files: Sequence[Path], *, environ: Mapping[str, str], allow_code: bool, params: Mapping[str, Any]
    ) -> Definition:
        """Return what the files define."""
        ...


# Asked about files with keys that are not ours, and about programs.
DIALECTS: Registry[DialectReader] = Registry(
    "dialect of sweeps", {"cloudmesh": Plugin("fairmile.compat.cloudmesh:PROJECT")}, entry_points="fairmile.dialects"
)


class _DefinitionFile(Resolver):
    """A file that defines a sweep or a study."""

    def find(self, word: Word, nouns: Nouns) -> Target | None:
        data = word.located.data if word.located is not None else None
        is_definition = word.path.is_file() if word.verb else isinstance(data, Mapping) and "axes" in data
        return Target(word.text, "definition", path=word.path) if is_definition else None


class _SweepId(Resolver):
    """A sweep or a study of the workspace, by its id, the unique start or end of it, or `last`."""

    def find(self, word: Word, nouns: Nouns) -> Target | None:
        if nouns.sweeps is None:
            return None
        try:
            sweep = nouns.sweeps().get(word.text)
        except NotFound:
            is_start = any(each.id.startswith(word.text) for each in nouns.sweeps().ls())
            if word.verb and (word.text == "last" or is_start):
                raise
            return None
        return Target(word.text, "sweep", id=sweep.id, load=lambda: sweep)

    def near(self, word: Word, nouns: Nouns) -> Sequence[str]:
        return closest(word.text, [each.id for each in nouns.sweeps().ls()], 1) if nouns.sweeps is not None else ()


def is_definition(target: Target) -> bool:
    """Tell whether a target is a file that defines a sweep, in whatever dialect."""
    return target.path is not None and (target.kind == "definition" or target.kind in DIALECTS)


DEFINITION_FILE = _DefinitionFile()
SWEEP_ID = _SweepId()


def collect_source(
    files: Sequence[Path],
    *,
    params: Mapping[str, Any],
    what: str = "",
    command: Sequence[str] = (),
    allow_code: bool = False,
    changes: Mapping[str, Any] | None = None,
    folder: Path | None = None,
) -> Source:
    """Return all that a definition is made of: the texts of the files, and what the command line says.

    `params` are axes that go before axes and settings of the same name in the files, `changes` are other keys of a
    file, such as `select`. `folder` is where relative paths of the command line start; without it, the current one.
    """
    if not files and not what and not command:
        raise UsageError("nothing to sweep", hint="name a file or an asset, or write a command after `--`")
    texts: dict[str, str] = {}
    shown: dict[str, str] = {}
    for file in files:
        _collect(file, texts, shown)
    return Source(
        files=tuple(os.path.abspath(file) for file in files),
        texts=texts,
        shown=shown,
        params={name: list(value) if isinstance(value, tuple) else value for name, value in params.items()},
        what=what,
        command=tuple(command),
        changes=dict(changes or {}),
        folder=os.path.abspath(folder or ""),
        allow_code=allow_code,
    )


def read_definition(source: Source, environ: Mapping[str, str]) -> Definition:
    """Return the definition that a source holds; no other file is looked at."""
    files = [SourceFile(path, source.shown[path], _located(path, source)) for path in source.files]
    reader = _reader_of(files)
    if reader is not None:
        definition = _read_foreign(reader, source, environ)
        fields = absolute_paths(definition.fields, os.path.dirname(files[0].path))
        fields |= absolute_paths(command_fields(source), source.folder)
        places = definition.origin
        definition = replace(
            definition,
            fields=fields,
            sources=tuple(source.texts),
            origin=lambda *path: option_of(path, source) or places(*path),
        )
        return _changed(definition, source.changes)
    return read_keys(files, source)


# Files


def _reader_of(files: Sequence[SourceFile]) -> DialectReader | None:
    """Return who reads the files of another tool; None for our own."""
    for file in files:
        data = file.located.data if file.located is not None else None
        is_ours = file.located is not None and (not isinstance(data, Mapping) or {*map(key_text, data)} <= ALL_KEYS)
        for name in () if is_ours else DIALECTS.names():
            if DIALECTS[name].recognises(file):
                return DIALECTS[name]
    return None


def _read_foreign(reader: DialectReader, source: Source, environ: Mapping[str, str]) -> Definition:
    """Return what another tool's files define; files that changed since are read from what is kept of them."""
    rest: dict[str, Any] = {"environ": environ, "allow_code": source.allow_code, "params": source.params}
    if all(_is_still(path, text) for path, text in source.texts.items()):
        shown = tuple(source.shown[path] for path in source.files)
        is_same_place = tuple(map(os.path.abspath, shown)) == source.files
        return reader.read([Path(each) for each in (shown if is_same_place else source.files)], **rest)
    with tempfile.TemporaryDirectory(prefix="fairmile-") as root:
        for path, text in source.texts.items():
            there = Path(root + path)
            there.parent.mkdir(parents=True, exist_ok=True)
            there.write_text(text, encoding="utf-8")
        try:
            kept = reader.read([Path(root + path) for path in source.files], **rest)
        except UsageError as error:
            raise UsageError(error.message.replace(root, ""), hint=error.hint) from None
    return replace(kept, origin=lambda *path: kept.origin(*path).replace(root, ""))


def _changed(definition: Definition, changes: Mapping[str, Any]) -> Definition:
    """Return a definition in another dialect with what the command line says otherwise."""
    points = definition.points
    if changes.get("repeats") or changes.get("select"):
        repeats, select = changes.get("repeats", 1), changes.get("select", "")
        points = Space(points.axes, repeats=repeats, select=select, origin=definition.origin)
    given = {key: changes[key] for key in ("name", "select", "best") if changes.get(key)}
    unknown = [key for key in changes if key not in ("name", "select", "best", "repeats")]
    if unknown:
        raise UsageError(f"a project of {definition.dialect.name} has no {unknown[0]!r} that could be changed")
    return replace(definition, points=points, **given)


def _is_still(path: str, text: str) -> bool:
    try:
        return Path(path).read_text(encoding="utf-8") == text
    except (OSError, UnicodeDecodeError):
        return False


def _collect(file: Path, texts: dict[str, str], shown: dict[str, str]) -> None:
    """Keep the text of a file and, where another tool's file names others, of those."""
    path = os.path.abspath(file)
    if path in texts:
        return
    texts[path] = read_text(file)
    shown[path] = str(file)
    if path.endswith(PROGRAMS):
        return
    located = parse_document(texts[path], str(file))
    reader = _reader_of([SourceFile(path, str(file), located)])
    for part in reader.parts(file, located.data) if reader is not None else ():
        _collect(part, texts, shown)


def _located(path: str, source: Source) -> Located | None:
    return None if path.endswith(PROGRAMS) else parse_document(source.texts[path], source.shown[path])
