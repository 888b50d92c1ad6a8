"""TensorFlow: SavedModel folders and checkpoints. Numbers are those of the fields in TensorFlow's .proto files."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fairmile.base.quick_named_tuple import NamedTuple
from fairmile.base.tfrecord import crc32c, masked
from fairmile.models.formats.description import Dim, ModelDescription, TensorSpec, count_values
from fairmile.models.formats.protobuf import NotAMessage, fields, map_entry, message, number, signed, text, varint
from fairmile.models.formats.source import Source, open_source
from fairmile.models.formats.tensor_bundle import FOOTER_BYTES, MAGIC, TYPES

_GRAPH_FILE = "saved_model.pb"
_SAVED_VARIABLES = "variables"
_VARIABLE = "/.ATTRIBUTES/VARIABLE_VALUE"
_MOST_ENTRIES = 1_000_000


class _MetaGraph(NamedTuple):
    version: str
    tags: list[str]
    operators: Counter[str]
    signatures: dict[str, tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]]


def recognises_saved(source: Source) -> bool:
    """Tell whether a folder, or the file in it, is a SavedModel."""
    if source.is_folder:
        return (source.path / _GRAPH_FILE).is_file()
    # A schema version of 1, then a meta graph that begins with its own description.
    return source.head[:3] == b"\x08\x01\x12" and b"\n" in source.head[4:9]


def read_saved(source: Source) -> ModelDescription:
    """Return what a SavedModel declares: signatures, operators and variables."""
    folder = source.path if source.is_folder else source.path.parent
    with open_source(folder / _GRAPH_FILE if source.is_folder else source.path) as graph_file:
        try:
            graphs = [_meta_graph(message(value)) for field, value in fields(graph_file.view) if field == 2]
        except NotAMessage as error:
            raise source.damaged("SavedModel", str(error)) from error
        if not graphs:
            raise source.damaged("SavedModel", "it has no graph")
    graph = graphs[0]
    index = folder / "variables" / "variables.index"
    weights: tuple[TensorSpec, ...] = ()
    warnings: list[str] = []
    if index.is_file():
        with open_source(index) as table:
            weights = tuple(_variables(table))
    else:
        warnings.append("has no variables")
    signature = "serving_default" if "serving_default" in graph.signatures else next(iter(graph.signatures), "")
    inputs, outputs = graph.signatures.get(signature, ((), ()))
    return ModelDescription(
        str(source.path),
        "savedmodel",
        "tensorflow",
        folder_size(folder),
        producer=f"TensorFlow {graph.version}".strip(),
        inputs=inputs,
        outputs=outputs,
        parameters=count_values(weights),
        weights=weights,
        operators=dict(sorted(graph.operators.items())),
        details={"signatures": ", ".join(graph.signatures), "tags": ", ".join(graph.tags)},
        warnings=tuple(warnings),
    )


def folder_size(folder: Path) -> int:
    """Return the size of all files below a folder; links are not followed."""
    return sum(each.lstat().st_size for each in folder.rglob("*") if each.is_file() and not each.is_symlink())


def _meta_graph(data: memoryview) -> _MetaGraph:
    graph = _MetaGraph("", [], Counter(), {})
    for field, value in fields(data):
        if field == 1:
            for inner, fact in fields(message(value)):
                if inner == 4:
                    graph.tags.append(text(fact))
                elif inner == 5:
                    graph = graph._replace(version=text(fact))
        elif field == 2:
            graph.operators.update(_operators(message(value)))
        elif field == 5:
            name, body = map_entry(message(value))
            if not name.startswith("__saved_model_"):
                graph.signatures[name] = _signature(body)
    return graph


def _operators(graph: memoryview) -> Iterator[str]:
    """Yield the operator of every node, those of functions included."""
    for field, value in fields(graph):
        if field == 1:
            yield _operator(message(value))
        elif field == 2:
            for inner, function in fields(message(value)):
                if inner == 1:
                    yield from (_operator(message(node)) for at, node in fields(message(function)) if at == 3)


def _operator(node: memoryview) -> str:
    return next((text(value) for field, value in fields(node) if field == 2), "")


def _signature(data: memoryview) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    sides: dict[int, list[TensorSpec]] = {1: [], 2: []}
    for field, value in fields(data):
        if field in sides:
            name, info = map_entry(message(value))
            sides[field].append(_tensor_info(name, info))
    return tuple(sides[1]), tuple(sides[2])


def _tensor_info(name: str, data: memoryview) -> TensorSpec:
    kind, shape = "", None
    for field, value in fields(data):
        if field == 2:
            kind = TYPES.get(number(value), f"type {number(value)}")
        elif field == 3:
            shape = _shape(message(value))
    return TensorSpec(name, kind, shape)


def _shape(data: memoryview) -> tuple[Dim, ...] | None:
    dims: list[Dim] = []
    for field, value in fields(data):
        if field == 3 and number(value):
            return None
        if field == 2:
            size = next((signed(each) for at, each in fields(message(value)) if at == 1), 0)
            dims.append(None if size < 0 else size)
    return tuple(dims)


# Checkpoints


def recognises_checkpoint(source: Source) -> bool:
    """Tell whether a file is the index of a checkpoint, or a folder holds one."""
    if source.is_folder:
        return _index_in(source.path) is not None
    return len(source.view) >= FOOTER_BYTES and bytes(source.view[-8:]) == MAGIC


def _index_in(folder: Path) -> Path | None:
    """Return the newest index in a folder: the one that `checkpoint` names, else the last by number."""
    indexes = {each.stem: each for each in folder.glob("*.index")}
    try:
        named = re.search(r'model_checkpoint_path: "([^"]+)"', (folder / "checkpoint").read_text()[:10_000])
    except (OSError, UnicodeDecodeError):
        named = None
    if named and Path(named[1]).name in indexes:
        return indexes[Path(named[1]).name]
    return max(indexes.values(), key=lambda each: [int(n) for n in re.findall(r"\d+", each.name)], default=None)


def read_checkpoint(source: Source) -> ModelDescription:
    """Return the variables of a checkpoint."""
    path = _index_in(source.path) if source.is_folder else source.path
    assert path is not None
    with open_source(path) as table:
        if bytes(table.view[-8:]) != MAGIC:
            raise source.damaged("TensorFlow checkpoint", "its index is none")
        weights = tuple(_variables(table))
    shards = sorted(path.parent.glob(f"{path.stem}.data-*"))
    return ModelDescription(
        str(source.path),
        "tf-checkpoint",
        "tensorflow",
        path.stat().st_size + sum(each.stat().st_size for each in shards),
        parameters=count_values(weights),
        weights=weights,
        details={"shards": str(len(shards))},
        warnings=() if shards else (f"values are missing: {path.stem}.data-*",),
    )


def _variables(source: Source) -> Iterator[TensorSpec]:
    """Yield the variables that an index lists; what a checkpoint keeps for itself is left out."""
    try:
        for key, value in _table(source.view):
            name = key.removesuffix(_VARIABLE)
            if key and not key.startswith("_CHECKPOINTABLE") and name != "save_counter":
                entry = _bundle_entry(value)
                yield TensorSpec(name, entry.kind, entry.shape)
    except NotAMessage as error:
        raise source.damaged("TensorFlow checkpoint", str(error)) from error


class _Entry(NamedTuple):
    """A variable in an index: its type and shape, and where its values are."""

    kind: str
    shape: tuple[Dim, ...] | None
    shard: int
    offset: int
    size: int
    checksum: int


def _bundle_entry(data: memoryview) -> _Entry:
    kind, shape = "", ()  # type: str, tuple[Dim, ...] | None
    place = {3: 0, 4: 0, 5: 0, 6: 0}
    for field, value in fields(data):
        if field == 1:
            kind = TYPES.get(number(value), f"type {number(value)}")
        elif field == 2:
            shape = _shape(message(value))
        elif field in place:
            place[field] = number(value)
    return _Entry(kind, shape, place[3], place[4], place[5], place[6])


def read_values(path: Path) -> dict[str, Any]:
    """Return the variables of a checkpoint or SavedModel as arrays by name, without TensorFlow; texts are left out."""
    import numpy

    path = path / _SAVED_VARIABLES if (path / _GRAPH_FILE).is_file() else path
    index = _index_in(path) if path.is_dir() else path
    assert index is not None
    values: dict[str, Any] = {}
    with open_source(index) as table:
        try:
            entries = {key.removesuffix(_VARIABLE): _bundle_entry(value) for key, value in _table(table.view) if key}
        except NotAMessage as error:
            raise table.damaged("TensorFlow checkpoint", str(error)) from error
        shards = sorted(index.parent.glob(f"{index.stem}.data-*"))
        for name, entry in entries.items():
            if name.startswith("_CHECKPOINTABLE") or name == "save_counter":
                continue
            if entry.kind not in numpy.sctypeDict or entry.kind == "str" or entry.shape is None:
                continue
            if entry.shard >= len(shards):
                raise table.damaged("TensorFlow checkpoint", f"the values of {name} are missing")
            with shards[entry.shard].open("rb") as stream:
                stream.seek(entry.offset)
                data = stream.read(entry.size)
            shape = [each for each in entry.shape if isinstance(each, int)]
            if len(data) != math.prod(shape) * numpy.dtype(entry.kind).itemsize:
                raise table.damaged("TensorFlow checkpoint", f"the values of {name} do not have the size of its shape")
            if masked(crc32c(data)) != entry.checksum:
                raise table.damaged("TensorFlow checkpoint", f"the checksum of {name} is wrong")
            values[name] = numpy.frombuffer(data, entry.kind).reshape(shape)
    return values


def _table(data: memoryview) -> Iterator[tuple[str, memoryview]]:
    """Yield keys and values of a table of blocks, as LevelDB writes them."""
    footer = data[len(data) - FOOTER_BYTES :]
    _, at = varint(footer, 0, len(footer))
    _, at = varint(footer, at, len(footer))
    start, at = varint(footer, at, len(footer))
    length, _ = varint(footer, at, len(footer))
    seen = 0
    for _, handle in _block(data, start, length):
        offset, at = varint(handle, 0, len(handle))
        size, _ = varint(handle, at, len(handle))
        for key, value in _block(data, offset, size):
            seen += 1
            if seen > _MOST_ENTRIES:
                raise NotAMessage("it lists too many variables")
            yield key.decode("utf-8", "replace"), value


def _block(data: memoryview, start: int, length: int) -> Iterator[tuple[bytes, memoryview]]:
    if start + length >= len(data) or length < 4:
        raise NotAMessage("it ends inside a block")
    if data[start + length] != 0:
        raise NotAMessage("its index is compressed")
    block = data[start : start + length]
    end = length - 4 - 4 * int.from_bytes(block[-4:], "little")
    at, key = 0, b""
    while at < end:
        shared, at = varint(block, at, end)
        own, at = varint(block, at, end)
        size, at = varint(block, at, end)
        if at + own + size > end or shared > len(key):
            raise NotAMessage("it ends inside a block")
        key = key[:shared] + bytes(block[at : at + own])
        yield key, block[at + own : at + own + size]
        at += own + size
