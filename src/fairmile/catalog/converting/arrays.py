"""Formats of arrays: npy, HDF5, NetCDF and Zarr."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fairmile.base.errors import Unsupported, UsageError
from fairmile.catalog.array_files import NPY_COLUMN, library, netcdf_groups, plain
from fairmile.catalog.converting.layout import TEXT, ArraySpec, Block, Sink, Source, rows_of

_WIDER = {"?": "u1", "e": "<f4"}  # what NetCDF has no type for, in the next type that holds it


class _Arrays:
    """Arrays that are sliced."""

    notes: Sequence[str] = ()

    def __init__(self, file: Any, arrays: Mapping[str, tuple[ArraySpec, Any]], attributes: Mapping[str, Any]) -> None:
        self._file = file
        self._arrays = {name: array for name, (_, array) in arrays.items()}
        self.arrays = [spec for spec, _ in arrays.values()]
        self.attributes = attributes
        self._specs = {spec.name: spec for spec in self.arrays}

    def blocks(self, names: Sequence[str], rows: int) -> Iterator[tuple[int, Block]]:
        shape = self._specs[names[0]].shape
        if not shape:
            yield 0, {name: self._values(name, ()) for name in names}
        for start in range(0, shape[0] if shape else 0, rows):
            stop = min(start + rows, shape[0])
            yield start, {name: self._values(name, slice(start, stop)) for name in names}

    def _values(self, name: str, where: Any) -> np.ndarray[Any, Any]:
        values = np.asarray(self._arrays[name][where])
        if self._specs[name].is_text:
            flat = [
                each.decode("utf-8", "surrogateescape") if isinstance(each, bytes) else str(each)
                for each in values.reshape(-1)
            ]
            texts = np.empty(len(flat), TEXT)
            texts[:] = flat
            return texts.reshape(values.shape)
        return values

    def close(self) -> None:
        close = getattr(self._file, "close", None)
        if close is not None:
            close()


class _Sink:
    """Arrays that are assigned to, each by its name."""

    def __init__(self, file: Any, arrays: Mapping[str, Any]) -> None:
        self._file, self._arrays = file, arrays

    def write(self, start: int, block: Block) -> None:
        for name, values in block.items():
            where = slice(start, start + len(values)) if values.ndim else ()
            self._arrays[name][where] = values

    def close(self) -> None:
        for each in self._arrays.values():
            if isinstance(each, np.memmap):
                each.flush()
        if self._file is not None:
            self._file.close()


class Npy:
    takes_rows, keeps_attributes = False, False

    def stored(self, array: ArraySpec) -> np.dtype[Any]:
        if array.is_text:
            raise Unsupported(f"npy cannot hold {array.name}: its texts differ in length", hint="use hdf5 or parquet")
        return array.dtype

    def open(self, path: Path) -> Source:
        values = np.load(path, mmap_mode="r", allow_pickle=False)
        if values.dtype.names or not isinstance(values, np.ndarray):
            raise Unsupported(
                f"{path.name} does not hold one plain array", hint="convert .npz files and records by hand"
            )
        return _Arrays(None, {NPY_COLUMN: (ArraySpec(NPY_COLUMN, values.shape, values.dtype), values)}, {})

    def create(self, path: Path, arrays: Sequence[ArraySpec], attributes: Mapping[str, Any]) -> Sink:
        if len(arrays) != 1:
            names = ", ".join(each.name for each in arrays[:10])
            raise UsageError(f"npy holds one array, and there are {len(arrays)}", hint=f"choose with --array: {names}")
        (only,) = arrays
        return _Sink(None, {only.name: np.lib.format.open_memmap(path, "w+", only.dtype, only.shape)})


class Hdf5:
    takes_rows, keeps_attributes = False, True

    def stored(self, array: ArraySpec) -> np.dtype[Any]:
        return array.dtype

    def open(self, path: Path) -> Source:
        h5py = library("h5py", path.name)
        file = h5py.File(path, "r")
        arrays: dict[str, tuple[ArraySpec, Any]] = {}

        def visit(name: str, item: Any) -> None:
            if not isinstance(item, h5py.Dataset) or item.shape is None:
                return
            if (
                item.is_virtual
                or item.external
                or item.dtype.names
                or (item.dtype.hasobject and not h5py.check_string_dtype(item.dtype))
            ):
                raise Unsupported(
                    f"{path.name}: {name} is not a plain array ({item.dtype})", hint="leave it out by hand"
                )
            is_text = bool(h5py.check_string_dtype(item.dtype)) and item.dtype.hasobject
            attributes = {key: plain(value) for key, value in item.attrs.items() if key not in _OWN_OF_HDF5}
            arrays[name] = ArraySpec(name, item.shape, TEXT if is_text else item.dtype, attributes), item

        file.visititems(visit)
        return _Arrays(file, arrays, {key: plain(value) for key, value in file.attrs.items()})

    def create(self, path: Path, arrays: Sequence[ArraySpec], attributes: Mapping[str, Any]) -> Sink:
        h5py = library("h5py", "HDF5 files")
        file = h5py.File(path, "w")
        file.attrs.update(attributes)
        made = {}
        for each in arrays:
            dtype = h5py.string_dtype() if each.is_text else each.dtype
            made[each.name] = file.create_dataset(each.name, each.shape, dtype)
            made[each.name].attrs.update(each.attributes)
        return _Sink(file, made)


_OWN_OF_HDF5 = frozenset({"CLASS", "NAME", "DIMENSION_LIST", "REFERENCE_LIST", "_Netcdf4Dimid", "_Netcdf4Coordinates"})


class NetCDF:
    takes_rows, keeps_attributes = False, True

    def stored(self, array: ArraySpec) -> np.dtype[Any]:
        if array.dtype.char in _WIDER:
            return np.dtype(_WIDER[array.dtype.char])
        if not array.is_text and array.dtype.kind not in "iuf":
            raise Unsupported(
                f"NetCDF cannot hold {array.name} ({array.dtype})",
                hint="leave it out with --array, or use hdf5 or zarr",
            )
        return array.dtype

    def open(self, path: Path) -> Source:
        file = library("netCDF4", path.name).Dataset(path, "r")
        file.set_auto_maskandscale(False)
        file.set_auto_chartostring(False)
        arrays: dict[str, tuple[ArraySpec, Any]] = {}
        for prefix, group in netcdf_groups(file):
            for name, variable in group.variables.items():
                if variable.dtype is not str and not isinstance(variable.dtype, np.dtype):
                    raise Unsupported(f"{path.name}: {prefix}{name} has a type of its own", hint="leave it out by hand")
                dtype = TEXT if variable.dtype is str else np.dtype(variable.dtype)
                attributes = {key: plain(variable.getncattr(key)) for key in variable.ncattrs()}
                spec = ArraySpec(prefix + name, variable.shape, dtype, attributes, variable.dimensions)
                arrays[spec.name] = spec, variable
        return _Arrays(file, arrays, {key: plain(file.getncattr(key)) for key in file.ncattrs()})

    def create(self, path: Path, arrays: Sequence[ArraySpec], attributes: Mapping[str, Any]) -> Sink:
        file = library("netCDF4", "NetCDF files").Dataset(path, "w", format="NETCDF4")
        file.setncatts(attributes)
        made = {}
        for each in arrays:
            names = _dimensions(file, each)
            rest = dict(each.attributes)
            fill = rest.pop("_FillValue", None)
            kind = str if each.is_text else each.dtype.str[1:]  # without the byte order, which it warns of
            variable = file.createVariable(each.name, kind, names, fill_value=fill)
            variable.set_auto_maskandscale(False)
            variable.setncatts(rest)
            made[each.name] = variable
        return _Sink(file, made)


def _dimensions(file: Any, array: ArraySpec) -> list[str]:
    """Return the names of an array's dimensions, which are created where they are missing."""
    names = []
    for number, size in enumerate(array.shape):
        name = array.dimensions[number] if array.dimensions else ""
        if not name or (name in file.dimensions and len(file.dimensions[name]) != size):
            name = f"{array.name.replace('/', '_')}_{number}"
        if name not in file.dimensions:
            file.createDimension(name, size)
        names.append(name)
    return names


class Zarr:
    takes_rows, keeps_attributes = False, True

    def stored(self, array: ArraySpec) -> np.dtype[Any]:
        return array.dtype

    def open(self, path: Path) -> Source:
        zarr = library("zarr", path.name)
        root = zarr.open(str(path), mode="r")
        members = [(NPY_COLUMN, root)] if isinstance(root, zarr.Array) else sorted(root.members(max_depth=None))
        arrays: dict[str, tuple[ArraySpec, Any]] = {}
        for name, array in members:
            if isinstance(array, zarr.Array):
                is_text = array.dtype.kind in "OT"
                attributes = {key: value for key, value in dict(array.attrs).items() if key != "_ARRAY_DIMENSIONS"}
                dimensions = tuple(array.attrs.get("_ARRAY_DIMENSIONS") or ())
                spec = ArraySpec(name, array.shape, TEXT if is_text else array.dtype, attributes, dimensions)
                arrays[name] = spec, array
        return _Arrays(None, arrays, {} if isinstance(root, zarr.Array) else dict(root.attrs))

    def create(self, path: Path, arrays: Sequence[ArraySpec], attributes: Mapping[str, Any]) -> Sink:
        group = library("zarr", "Zarr arrays").open_group(str(path), mode="w", zarr_format=2)  # what all readers know
        group.attrs.update(dict(attributes))
        made = {}
        for each in arrays:
            chunks = (
                (max(1, min(each.shape[0], rows_of([each]))), *(max(1, n) for n in each.shape[1:]))
                if each.shape
                else ()
            )
            dtype = str if each.is_text else each.dtype
            made[each.name] = group.create_array(each.name, shape=each.shape, dtype=dtype, chunks=chunks)
            dimensions = {"_ARRAY_DIMENSIONS": list(each.dimensions)} if each.dimensions else {}
            made[each.name].attrs.update({**each.attributes, **dimensions})
        return _Sink(None, made)
