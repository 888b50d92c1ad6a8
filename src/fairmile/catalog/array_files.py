"""Files of arrays: what HDF5 and NetCDF files say of themselves, and arrays of these, .npz and .npy as columns."""

from __future__ import annotations

import importlib
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from fairmile.base.errors import FairmileError, MissingExtra, NotFound, Unsupported, UsageError
from fairmile.base.quick_named_tuple import NamedTuple
from fairmile.base.words import did_you_mean
from fairmile.catalog.exchange.common.media_types import extension

NPY_COLUMN = "values"
_HDF5 = frozenset({"h5", "hdf5", "hdf", "he5", "h5ad", "loom", "mat"})
_NETCDF = frozenset({"nc", "nc4", "cdf", "netcdf"})
_NUMPY = frozenset({"npy", "npz"})
_MOST_DATASETS = 10_000
_MOST_ATTRIBUTES = 1_000  # of one data set
_MOST_VALUES = 1_000  # of one attribute
_LONGEST_TEXT = 10_000


class Array(Protocol):
    """An array that is read piece by piece."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> Any: ...
    def __getitem__(self, rows: slice) -> Any: ...


class _Column(NamedTuple):
    array: str
    field: str | None


def is_described(name: str) -> bool:
    """Tell whether a file of this name has attributes."""
    return extension(name) in _HDF5 | _NETCDF


def has_arrays(name: str) -> bool:
    """Tell whether a file of this name holds arrays."""
    return extension(name) in _HDF5 | _NETCDF | _NUMPY


def library(module: str, name: str) -> Any:
    """Return a module; when it is missing, Unsupported says which extra installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise MissingExtra(f"reading {name} needs {package}", "science") from error


@contextmanager
def clear_errors(name: str) -> Iterator[None]:
    """Turn what the libraries raise on a file that they cannot read into UsageError."""
    try:
        yield
    except FairmileError:
        raise
    # Between them h5py, netCDF4, numpy and pyarrow raise all of these on damaged or unusual files.
    except (
        OSError,
        ValueError,
        LookupError,
        RuntimeError,
        TypeError,
        EOFError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UsageError(f"{name} cannot be read: {reason[:500]}") from error


def describe(path: Path, name: str) -> dict[str, Any]:
    """Return format, attributes and data sets of an HDF5 or NetCDF file as plain data, shortened where it is long."""
    with clear_errors(name):
        if extension(name) in _NETCDF:
            with _open_netcdf(path, name) as file:
                return _describe_netcdf(file)
        with _open_hdf5(path, name) as file:
            return _describe_hdf5(library("h5py", name), file)


def _describe_hdf5(h5py: Any, file: Any) -> dict[str, Any]:
    items: dict[str, Any] = {}
    complete = True

    def visit(path: str, item: Any) -> bool | None:
        nonlocal complete
        if len(items) >= _MOST_DATASETS:
            complete = False
            return True
        about: dict[str, Any] = {}
        if isinstance(item, h5py.Dataset):
            about |= {"shape": list(item.shape or ()), "dtype": str(item.dtype)}
            if item.chunks:
                about["chunks"] = list(item.chunks)
            if item.compression:
                about["compression"] = item.compression
        items["/" + path] = {**about, "attributes": _attributes(item.attrs.items())}
        return None

    file.visititems(visit)
    return {"format": "HDF5", "attributes": _attributes(file.attrs.items()), "items": items, "complete": complete}


def _describe_netcdf(file: Any) -> dict[str, Any]:
    items: dict[str, Any] = {}
    dimensions: dict[str, int] = {}
    for prefix, group in netcdf_groups(file):
        dimensions |= {prefix + each: len(dimension) for each, dimension in group.dimensions.items()}
        if prefix:
            items[f"/{prefix[:-1]}"] = {"attributes": _netcdf_attributes(group)}
        for each, variable in group.variables.items():
            if len(items) < _MOST_DATASETS:
                items[f"/{prefix}{each}"] = {
                    "shape": list(variable.shape),
                    "dtype": str(variable.dtype),
                    "dimensions": list(variable.dimensions),
                    "attributes": _netcdf_attributes(variable),
                }
    return {
        "format": file.data_model,
        "attributes": _netcdf_attributes(file),
        "dimensions": dimensions,
        "items": items,
        "complete": len(items) < _MOST_DATASETS,
    }


def _netcdf_attributes(owner: Any) -> dict[str, Any]:
    return _attributes((each, owner.getncattr(each)) for each in owner.ncattrs())


def netcdf_groups(group: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield a group and all below it, each with the path that stands before its members."""
    todo = [(prefix, group)]
    while todo:
        prefix, group = todo.pop()
        yield prefix, group
        todo.extend((f"{prefix}{each}/", inner) for each, inner in reversed(group.groups.items()))


def _attributes(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    attributes: dict[str, Any] = {}
    for key, value in pairs:
        if len(attributes) >= _MOST_ATTRIBUTES:
            break
        attributes[str(key)] = plain(value)
    return attributes


def plain(value: Any) -> Any:
    """Return a value of an attribute as plain data: texts, numbers, and lists of these."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if isinstance(value, str):
        return value if len(value) <= _LONGEST_TEXT else value[:_LONGEST_TEXT] + "…"
    if isinstance(value, (bool, int, float)) or value is None:
        return value
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value[:_MOST_VALUES]]
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        inner = value.item()
        return plain(inner) if inner is not value else str(value)
    if hasattr(value, "tolist") and hasattr(value, "size"):
        flat = value if value.size <= _MOST_VALUES else value.reshape(-1)[:_MOST_VALUES]
        return [plain(each) for each in flat.tolist()]
    return plain(str(value))


@contextmanager
def _open_hdf5(path: Path, name: str) -> Iterator[Any]:
    with library("h5py", name).File(path, "r") as file:
        yield file


@contextmanager
def _open_netcdf(path: Path, name: str) -> Iterator[Any]:
    file = library("netCDF4", name).Dataset(path, "r")
    try:
        file.set_auto_maskandscale(False)  # values as they are stored; their scale is among the attributes
        yield file
    finally:
        file.close()


@contextmanager
def _open(path: Path, name: str) -> Iterator[Mapping[str, Array]]:
    """Open a file of arrays; the arrays by their paths, read when they are sliced."""
    kind = extension(name)
    if kind in _HDF5:
        with _open_hdf5(path, name) as file:
            yield _hdf5_arrays(library("h5py", name), file)
    elif kind in _NETCDF:
        with _open_netcdf(path, name) as file:
            yield {prefix + each: v for prefix, group in netcdf_groups(file) for each, v in group.variables.items()}
    else:
        numpy = library("numpy", name)
        if kind == "npy":
            yield {NPY_COLUMN: numpy.load(path, mmap_mode="r", allow_pickle=False)}
        else:
            with numpy.load(path, allow_pickle=False) as file:
                yield {each: _NpzArray(numpy, file, each) for each in file.files}


class _NpzArray:
    """An array of an .npz file: its header is read at once, its values when they are first asked for."""

    def __init__(self, numpy: Any, file: Any, name: str) -> None:
        self._file, self._name = file, name
        member = name if name in file.zip.namelist() else f"{name}.npy"
        with file.zip.open(member) as stream:
            version = numpy.lib.format.read_magic(stream)
            read = (
                numpy.lib.format.read_array_header_1_0 if version == (1, 0) else numpy.lib.format.read_array_header_2_0
            )
            self.shape, _, self.dtype = read(stream)

    @cached_property
    def _values(self) -> Any:
        return self._file[self._name]

    def __getitem__(self, rows: slice) -> Any:
        return self._values[rows]


class _Texts:
    """A data set of texts, decoded."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self.shape, self.dtype = dataset.shape, dataset.dtype

    def __getitem__(self, rows: slice) -> Any:
        return self._dataset.asstr(errors="replace")[rows]


def _hdf5_arrays(h5py: Any, file: Any) -> dict[str, Array]:
    """Return the data sets that lie in this file; links to other files are not followed."""
    arrays: dict[str, Array] = {}

    def visit(path: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and not item.is_virtual and not item.external and item.shape is not None:
            arrays[path] = _Texts(item) if h5py.check_string_dtype(item.dtype) else item

    file.visititems(visit)
    return arrays


def read_columns(
    path: Path, name: str, columns: Sequence[str] | None, rows: int | None
) -> Iterator[list[tuple[str, Any]]]:
    """Yield the columns of a file of arrays as pairs of name and Arrow array, `rows` at a time; None: all at once."""
    with clear_errors(name), _open(path, name) as arrays:
        chosen = _choose(arrays, name, columns)
        length = arrays[next(iter(chosen.values())).array].shape[0]
        step = rows or max(length, 1)
        for start in range(0, max(length, 1), step):
            pieces = {array: arrays[array][start : start + step] for array in {each.array for each in chosen.values()}}
            yield [
                (
                    label,
                    _arrow(pieces[each.array] if each.field is None else pieces[each.array][each.field], name, label),
                )
                for label, each in chosen.items()
            ]


def _choose(arrays: Mapping[str, Array], name: str, columns: Sequence[str] | None) -> dict[str, _Column]:
    """Return the columns that are wanted; all must be equally long."""
    available: dict[str, _Column] = {}
    for array, values in arrays.items():
        if len(values.shape) in (1, 2) and 0 not in values.shape[1:]:
            prefix = "" if array == NPY_COLUMN and len(arrays) == 1 else f"{array}."
            fields = getattr(values.dtype, "names", None)
            if fields:
                available |= {prefix + field: _Column(array, field) for field in fields}
            else:
                available[array] = _Column(array, None)
    if columns is not None:
        wanted = [column.strip("/") for column in columns]
        for column in wanted:
            if column not in available:
                raise _no_column(column, name, available, arrays)
        available = {column: available[column] for column in wanted}
    if not available:
        raise UsageError(f"{name} has no array of one or two dimensions", hint=_shapes(arrays))
    lengths = {arrays[each.array].shape[0] for each in available.values()}
    if len(lengths) > 1:
        raise UsageError(
            f"{name}: the arrays differ in length: choose columns of the same length",
            hint=_shapes(arrays),
        )
    return available


def _no_column(
    column: str, name: str, available: Mapping[str, object], arrays: Mapping[str, Array]
) -> NotFound | UsageError:
    if column in arrays:
        shape, fields = tuple(arrays[column].shape), getattr(arrays[column].dtype, "names", None)
        return UsageError(
            f"{name}: {column} consists of several fields: choose {column}.{fields[0]} or another"
            if fields
            else f"{name}: {column} has the shape {shape}, but a column has one or two dimensions",
            hint=_shapes(arrays),
        )
    near = did_you_mean(column, list(available))
    return NotFound(f"{name} has no column {column!r}" + (f"; {near}" if near else ""), hint=_shapes(arrays))


def _shapes(arrays: Mapping[str, Array]) -> str:
    shown = [f"{each} {tuple(values.shape)}" for each, values in list(arrays.items())[:20]]
    return "it holds " + (", ".join(shown) + (" …" if len(arrays) > 20 else "") if shown else "no array")


def _arrow(values: Any, name: str, column: str) -> Any:
    """Return an array as an Arrow array, without a copy where memory allows; rows of two dimensions become lists."""
    pyarrow, numpy = library("pyarrow", name), library("numpy", name)
    values = numpy.asarray(values)
    kind = values.dtype.kind
    if kind == "c" or (kind == "f" and values.dtype.itemsize > 8) or kind == "V":
        raise Unsupported(
            f"{name}: {column} has the type {values.dtype}, which Arrow does not support",
            hint="read the file with its own library",
        )
    if not values.dtype.isnative:
        values = values.astype(values.dtype.newbyteorder("="))
    if values.ndim == 2:
        flat = numpy.ascontiguousarray(values).reshape(-1)
        return pyarrow.FixedSizeListArray.from_arrays(_arrow(flat, name, column), values.shape[1])
    return pyarrow.array(values.tolist() if kind == "O" else values)
