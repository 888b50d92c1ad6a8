"""Samples in memory and in files: HDF5, NumPy, Zarr, Arrow and Parquet, read in batches that go forward."""

from __future__ import annotations

import struct
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from fairmile.base.errors import Integrity, NotFound, SystemFailure, Unsupported, UsageError
from fairmile.base.words import did_you_mean

if TYPE_CHECKING:
    import torch

Array = np.ndarray[Any, Any]

_GAP_BYTES = 100_000  # reading over so much costs about as much as to begin another read
_KEPT_OPEN = 64  # files; of more than these, each is opened when it is read
_BLOCK_BYTES = 64 << 20
_HDF5, _ARROW, _PARQUET = (".h5", ".hdf5", ".hdf"), (".arrow", ".feather", ".ipc"), (".parquet", ".pq")


@dataclass(frozen=True)
class Field:
    """One array of each sample: its name in a batch, where it is found and how it must be shaped."""

    name: str
    source: str = ""  # dataset, array or column; `@name`: an attribute of an HDF5 file; empty: as the name
    shape: tuple[int | None, ...] | None = None  # of one sample; None: any

    @property
    def found_at(self) -> str:
        return self.source or self.name


class ArraySamples:
    """Samples that are arrays in memory, or tensors on a device, by the names of their fields."""

    def __init__(self, fields: Mapping[str, Array | torch.Tensor]) -> None:
        lengths = {name: len(value) for name, value in fields.items()}
        if len(set(lengths.values())) != 1:
            raise UsageError(
                f"the fields of samples differ in length: {lengths}" if lengths else "samples need a field"
            )
        self.fields = dict(fields)
        self.size_bytes = sum(int(value.nbytes) for value in fields.values())
        self._count = next(iter(lengths.values()))

    def __len__(self) -> int:
        return self._count

    def batch(self, numbers: Any) -> dict[str, Any]:
        """Return the samples with these numbers: an array, or a tensor on the device where the samples are."""
        return {name: value[numbers] for name, value in self.fields.items()}

    def resident(self, device: torch.device) -> ArraySamples:
        """Return the same samples with their data on a device."""
        import torch

        return _DeviceSamples(
            {
                name: (value if isinstance(value, torch.Tensor) else torch.from_numpy(_plain(value))).to(device)
                for name, value in self.fields.items()
            }
        )


class _DeviceSamples(ArraySamples):
    """Samples that are tensors, from which tensors pick."""

    def batch(self, numbers: Any) -> dict[str, Any]:
        return {name: value.index_select(0, numbers) for name, value in self.fields.items()}  # type: ignore[union-attr]


class FileSamples:
    """Samples in files; each field is a row of pieces, one after the other."""

    def __init__(self, path: Path, fields: Mapping[str, Sequence[_Piece]], close: Callable[[], None]) -> None:
        self.path = path
        self._fields = {name: _Row(name, pieces) for name, pieces in fields.items()}
        self._close = close
        lengths = {name: row.count for name, row in self._fields.items()}
        if len(set(lengths.values())) > 1:
            told = ", ".join(f"{count} of {name}" for name, count in lengths.items())
            raise Integrity(f"{path}: the fields differ in their number of samples: {told}")
        self._count = next(iter(lengths.values()))
        if not self._count:
            raise Integrity(f"{path} holds no samples")
        self.sample_bytes = sum(row.sample_bytes for row in self._fields.values())
        self.size_bytes = self._count * self.sample_bytes

    def __len__(self) -> int:
        return self._count

    def batch(self, numbers: Array) -> dict[str, Array]:
        """Return the samples with these numbers, in the order of the numbers, read in the order of the file."""
        wanted, places = np.unique(np.asarray(numbers), return_inverse=True)
        if len(wanted) and (wanted[0] < 0 or wanted[-1] >= self._count):
            raise UsageError(f"{self.path} has samples 0 to {self._count - 1}, not {wanted[0]} to {wanted[-1]}")
        is_sorted = len(wanted) == len(numbers) and bool((places[1:] > places[:-1]).all())
        found = {name: row.read(wanted) for name, row in self._fields.items()}
        return found if is_sorted else {name: value[places] for name, value in found.items()}

    def resident(self, device: torch.device) -> ArraySamples:
        """Return the same samples with their data on a device."""
        import torch

        step = max(_BLOCK_BYTES // max(self.sample_bytes, 1), 1)
        held: dict[str, torch.Tensor] = {}
        for at in range(0, self._count, step):
            block = self.batch(np.arange(at, min(at + step, self._count)))
            for name, value in block.items():
                read = torch.from_numpy(_plain(value))
                if name not in held:
                    held[name] = torch.empty((self._count, *read.shape[1:]), dtype=read.dtype, device=device)
                held[name][at : at + len(read)] = read.to(device)
        return _DeviceSamples(held)

    def close(self) -> None:
        """Close the files."""
        self._close()


@dataclass(frozen=True)
class Throughput:
    """How fast samples were read, as warm as their files happened to be."""

    samples: int
    size_bytes: int
    took_s: float

    @property
    def samples_per_s(self) -> float:
        return self.samples / self.took_s

    @property
    def bytes_per_s(self) -> float:
        return self.size_bytes / self.took_s


def throughput(
    samples: Any, batch_size: int, *, shuffle: bool = True, seed: int = 0, batches: int = 0, limit_s: float = 10.0
) -> Throughput:
    """Measure reading alone, one batch after the other, until all was read once, `batches` were, or time is up."""
    order = np.random.default_rng(seed).permutation(len(samples)) if shuffle else np.arange(len(samples))
    many = -(-len(order) // batch_size)
    read = size_bytes = 0
    began = time.perf_counter()
    for number in range(min(batches or many, many)):
        batch = samples.batch(order[number * batch_size : (number + 1) * batch_size])
        read += len(next(iter(batch.values())))
        size_bytes += sum(int(value.nbytes) for value in batch.values())
        if time.perf_counter() - began > limit_s:
            break
    return Throughput(read, size_bytes, max(time.perf_counter() - began, 1e-9))


def open_samples(path: str | Path, fields: Sequence[str | Field] = (), *, one_per_file: bool = False) -> FileSamples:
    """Open the samples of a file or a folder; what it is, its name or its content says.

    HDF5 (`.h5`, `.hdf5`): one file, or a folder of them, put one after the other in the order of their names; with
    `one_per_file` a whole dataset is one sample. NumPy: `.npz`, one `.npy`, or a folder with one `.npy` for each
    field, as memory maps. Zarr: a group. Arrow, Feather and Parquet: columns of numbers or of fixed-size lists. No
    fields: all that are there.
    """
    path = Path(path)
    if not path.exists():
        raise NotFound(f"there are no samples at {path}")
    wanted = [each if isinstance(each, Field) else Field(each) for each in fields]
    suffix = path.suffix.lower()
    if path.is_file():
        for suffixes, opened in _FILES.items():
            if suffix in suffixes:
                return opened(path, wanted) if suffixes != _HDF5 else _open_hdf5(path, [path], wanted, one_per_file)
        raise Unsupported(f"{path} is in no format that can be read", hint=f"it can read {_known()}")
    if any((path / name).exists() for name in (".zgroup", "zarr.json", ".zarray")):
        return _open_zarr(path, wanted)
    files = sorted(each for each in path.rglob("*") if each.is_file())
    hdf5 = [each for each in files if each.suffix.lower() in _HDF5]
    if hdf5:
        return _open_hdf5(path, hdf5, wanted, one_per_file)
    arrays = {each.stem: each for each in files if each.suffix == ".npy" and each.parent == path}
    if arrays:
        return _assemble(path, arrays, wanted, lambda name: [_Memory(arrays[name], _npy(arrays[name]))])
    raise NotFound(f"the folder {path} holds no samples in a format that can be read", hint=f"it can read {_known()}")


class _Piece(Protocol):
    """A stretch of the samples of one field."""

    file: Path
    count: int
    shape: tuple[int, ...]  # of one sample
    dtype: np.dtype[Any]

    def read(self, numbers: Array) -> Array:
        """Return samples; the numbers rise."""
        ...


class _Memory:
    """A stretch in memory or in a memory map."""

    def __init__(self, file: Path, array: Array) -> None:
        self.file = file
        self._array = array
        self.count, self.shape, self.dtype = len(array), array.shape[1:], array.dtype

    def read(self, numbers: Array) -> Array:
        # A copy in both cases, so that a memory map is read here and not where the batch is used.
        return np.array(self._array[_slice(numbers)]) if _is_run(numbers) else np.asarray(self._array[numbers])


class _Stored:
    """A stretch in a library's own array, which is fastest where one block of it is asked for."""

    def __init__(
        self,
        file: Path,
        with_array: Callable[[Callable[[Any], Array]], Array],
        shape: tuple[int, ...],
        dtype: Any,
        one: bool = False,
    ) -> None:
        self.file = file
        self._with_array = with_array
        self._is_one = one
        self.count, self.shape = (1, shape) if one else (shape[0], shape[1:])
        self.dtype = np.dtype(dtype)

    def read(self, numbers: Array) -> Array:
        if self._is_one:
            return self._with_array(lambda array: np.asarray(array[()])[None])
        sample_bytes = max(int(self.dtype.itemsize * np.prod(self.shape, dtype=np.int64)), 1)
        far = np.flatnonzero(np.diff(numbers) - 1 > _GAP_BYTES // sample_bytes) + 1
        stretches = np.split(numbers, far)
        return self._with_array(partial(_read_stretches, stretches, numbers))


def _read_stretches(stretches: Sequence[Array], numbers: Array, array: Any) -> Array:
    """Return samples of a library's array, by blocks; its own way to pick them is slower by far."""
    if len(stretches) > 1 and hasattr(array, "oindex"):
        return np.asarray(array.oindex[numbers])  # Zarr, which reads its chunks side by side
    blocks = [np.asarray(array[_slice(each)]) for each in stretches]
    parts = [block if _is_run(each) else block[each - each[0]] for block, each in zip(blocks, stretches, strict=True)]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


class _Row:
    """All pieces of one field."""

    def __init__(self, name: str, pieces: Sequence[_Piece]) -> None:
        self._name = name
        self._pieces = pieces
        self._ends = np.cumsum([piece.count for piece in pieces])
        self.count = int(self._ends[-1]) if len(pieces) else 0
        self.sample_bytes = int(pieces[0].dtype.itemsize * np.prod(pieces[0].shape, dtype=np.int64)) if pieces else 0

    def read(self, numbers: Array) -> Array:
        parts, begin = [], 0
        cuts = np.searchsorted(numbers, self._ends)
        for piece, end, cut in zip(self._pieces, self._ends, cuts, strict=True):
            if cut > begin:
                parts.append(self._read_piece(piece, numbers[begin:cut] - (end - piece.count)))
            begin = int(cut)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _read_piece(self, piece: _Piece, numbers: Array) -> Array:
        try:
            found = piece.read(numbers)
        except (OSError, RuntimeError, ValueError, KeyError) as error:
            if isinstance(error, Integrity | NotFound):
                raise
            raise Integrity(f"{piece.file}: {self._name} cannot be read: {_said(error)}") from error
        if found.shape != (len(numbers), *piece.shape):
            shapes = f"{list(found.shape[1:])} where {list(piece.shape)} was expected"
            raise Integrity(f"{piece.file}: a sample of {self._name} is {shapes}")
        return found if found.dtype.isnative else found.astype(found.dtype.newbyteorder("="))


def _assemble(
    path: Path,
    there: Mapping[str, Any],
    wanted: Sequence[Field],
    pieces_of: Callable[[str], Sequence[_Piece]],
    close: Callable[[], None] = lambda: None,
) -> FileSamples:
    """Return samples of the wanted fields, or of all that are there; each one's shape is checked."""
    found: dict[str, Sequence[_Piece]] = {}
    for field in wanted or [Field(name) for name in there]:
        if field.found_at not in there:
            near = did_you_mean(field.found_at, list(there))
            raise NotFound(f"{path} has no {_titled(field.found_at)}", hint=near or _has(list(there)))
        try:
            pieces = pieces_of(field.found_at)
        except (OSError, ValueError, TypeError) as error:
            if isinstance(error, Integrity | NotFound | UsageError):
                raise
            raise Integrity(f"{path}: {_titled(field.found_at)} cannot be read: {_said(error)}") from error
        for piece in pieces:
            if piece.dtype.kind not in "fiubc":
                raise Integrity(f"{piece.file}: {_titled(field.found_at)} holds no numbers")
            _check_shape(field, piece, pieces[0].shape)
        found[field.name] = pieces
    if not found:
        raise Integrity(f"{path} holds no arrays")
    return FileSamples(path, found, close)


def _check_shape(field: Field, piece: _Piece, first: tuple[int, ...]) -> None:
    asked = first if field.shape is None else field.shape
    fits = len(piece.shape) == len(asked) and all(a in (None, b) for a, b in zip(asked, piece.shape, strict=True))
    if not fits or piece.shape != first:
        wanted = ", ".join("any" if each is None else str(each) for each in (asked if not fits else first))
        raise Integrity(
            f"{piece.file}: a sample of {_titled(field.found_at)} is {list(piece.shape)} where [{wanted}] was expected"
        )


def _open_hdf5(path: Path, files: Sequence[Path], wanted: Sequence[Field], one_per_file: bool) -> FileSamples:
    h5py = _library("h5py")
    held: dict[Path, Any] = {}

    @contextmanager
    def opened(file: Path) -> Iterator[Any]:
        if file in held:
            yield held[file]
            return
        try:
            handle = h5py.File(file, "r")
        except OSError as error:
            raise _broken(file, error) from error
        if len(files) <= _KEPT_OPEN:
            held[file] = handle
            yield handle
        else:
            with handle:
                yield handle

    def with_array(file: Path, source: str, use: Callable[[Any], Array]) -> Array:
        with opened(file) as handle:
            if source.startswith("@"):
                return use(np.asarray(handle.attrs[source[1:]]))
            return use(handle[source])

    def pieces(source: str) -> list[_Piece]:
        found: list[_Piece] = []
        for file in files:
            with opened(file) as handle:
                part = _hdf5_part(file, handle, source)
                if not part.shape and not one_per_file:
                    raise Integrity(f"{file}: {source} is a single number, not one for each sample")
                found.append(_Stored(file, partial(with_array, file, source), part.shape, part.dtype, one_per_file))
        return found

    def close() -> None:
        for handle in held.values():
            handle.close()
        held.clear()

    with opened(files[0]) as first:
        named: list[str] = []
        first.visititems(lambda name, item: named.append(name) if isinstance(item, h5py.Dataset) else None)
        there = dict.fromkeys([*named, *(f"@{name}" for name in first.attrs if wanted)])

    try:
        return _assemble(files[0] if len(files) == 1 else path, there, wanted, pieces, close)
    except BaseException:
        close()
        raise


def _titled(source: str) -> str:
    return f"attribute {source[1:]!r}" if source.startswith("@") else repr(source)


def _has(names: Sequence[str]) -> str:
    return f"it has {', '.join(names)}" if names else "it has none"


def _hdf5_part(file: Path, handle: Any, source: str) -> Any:
    """Return a dataset, or an attribute as an array."""
    holder, name, kind = (
        (handle.attrs, source[1:], "attribute") if source.startswith("@") else (handle, source, "dataset")
    )
    if name not in holder:
        raise NotFound(f"{file} has no {kind} {name!r}", hint=_has(list(holder)))
    part = np.asarray(holder[name]) if kind == "attribute" else holder[name]
    if not hasattr(part, "dtype"):
        raise Integrity(f"{file}: {name!r} is a group, not a dataset")
    return part


def _npy(file: Path) -> Array:
    try:
        array = np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise _broken(file, error) from error
    if array.ndim == 0:
        raise Integrity(f"{file} holds a single number, not one for each sample")
    return np.asarray(array)


def _open_npy(path: Path, wanted: Sequence[Field]) -> FileSamples:
    name = wanted[0].found_at if len(wanted) == 1 else path.stem
    return _assemble(path, {name: None}, wanted, lambda _: [_Memory(path, _npy(path))])


def _open_npz(path: Path, wanted: Sequence[Field]) -> FileSamples:
    """Open an archive of arrays: those that are not compressed as memory maps, others are read as a whole."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = {each.filename.removesuffix(".npy"): each for each in archive.infolist()}
    except (OSError, zipfile.BadZipFile) as error:
        raise _broken(path, error) from error

    def pieces(name: str) -> list[_Piece]:
        member = members[name]
        try:
            if member.compress_type == zipfile.ZIP_STORED:
                return [_Memory(path, _mapped_member(path, member))]
            with np.load(path, allow_pickle=False) as archive:
                return [_Memory(path, archive[name])]
        except (OSError, ValueError, EOFError, zipfile.BadZipFile, struct.error) as error:
            raise Integrity(f"{path}: {name} cannot be read: {_said(error)}") from error

    return _assemble(path, members, wanted, pieces)


def _mapped_member(path: Path, member: zipfile.ZipInfo) -> Array:
    with open(path, "rb") as file:
        # The sizes of name and extra field in front of the data may differ from those in the directory.
        file.seek(member.header_offset + 26)
        name_bytes, extra_bytes = struct.unpack("<HH", file.read(4))
        file.seek(name_bytes + extra_bytes, 1)
        version = np.lib.format.read_magic(file)
        read_header: Any = (
            np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        )
        shape, is_fortran, dtype = read_header(file)
        if dtype.hasobject:
            raise ValueError("it holds Python objects, not numbers")
        order: Any = "F" if is_fortran else "C"
        return np.memmap(path, dtype, "r", file.tell(), shape, order)


def _open_zarr(path: Path, wanted: Sequence[Field]) -> FileSamples:
    zarr = _library("zarr")
    try:
        group = zarr.open(str(path), mode="r")
        name = wanted[0].found_at if len(wanted) == 1 else path.stem
        arrays = dict(group.arrays()) if hasattr(group, "arrays") else {name: group}
    except (OSError, ValueError, KeyError) as error:  # those of Zarr derive from ValueError
        raise _broken(path, error) from error

    def pieces(name: str) -> list[_Piece]:
        array = arrays[name]
        if any(getattr(each, "codec_id", "") == "pickle" for each in (*array.filters, *array.compressors)):
            raise Integrity(f"{path}: {name!r} holds Python objects, and reading them could run code")
        return [_Stored(path, lambda use: use(array), array.shape, array.dtype)]

    return _assemble(path, arrays, wanted, pieces)


def _open_arrow(path: Path, wanted: Sequence[Field]) -> FileSamples:
    """Open an Arrow or Feather file as a memory map, a Parquet file as a whole."""
    pyarrow = _library("pyarrow")
    try:
        if path.suffix.lower() in _PARQUET:
            columns = [each.found_at for each in wanted] or None
            there = pyarrow.parquet.read_schema(path).names
            read = [each for each in columns if each in there] if columns else None
            table = pyarrow.parquet.read_table(path, columns=read, memory_map=True)
        else:
            there = None
            table = pyarrow.ipc.open_file(pyarrow.memory_map(str(path))).read_all()
    except (OSError, ValueError) as error:  # those of Arrow derive from ValueError
        raise _broken(path, error) from error

    def pieces(name: str) -> list[_Piece]:
        column = table.column(name)
        if column.null_count:
            raise Integrity(f"{path}: column {name!r} has {column.null_count} missing values")
        return [_Memory(path, _arrow_array(path, name, chunk)) for chunk in column.chunks if len(chunk)]

    return _assemble(path, dict.fromkeys(there or table.column_names), wanted, pieces)


def _arrow_array(path: Path, name: str, chunk: Any) -> Array:
    pyarrow = _library("pyarrow")
    shape = [len(chunk)]
    if isinstance(chunk, pyarrow.FixedShapeTensorArray):
        return np.asarray(chunk.to_numpy_ndarray())
    while pyarrow.types.is_fixed_size_list(chunk.type):
        shape.append(chunk.type.list_size)
        chunk = chunk.flatten()
    if not (pyarrow.types.is_floating(chunk.type) or pyarrow.types.is_integer(chunk.type)):
        raise Integrity(
            f"{path}: column {name!r} is of type {chunk.type}, not a number or a fixed-size list of numbers"
        )
    return np.asarray(chunk.to_numpy(zero_copy_only=False)).reshape(shape)


def _library(name: str) -> Any:
    """Return a library that reads a format, or say how it is installed."""
    try:
        module = __import__(name)
        if name == "pyarrow":
            with suppress(ImportError):  # a build may lack Parquet
                __import__("pyarrow.parquet")
            __import__("pyarrow.ipc")
    except ImportError as error:
        raise Unsupported(f"reading this format needs {name}", hint=f"pip install {name}") from error
    return module


def _broken(path: Path, error: Exception) -> SystemFailure | Integrity:
    if isinstance(error, PermissionError):
        return SystemFailure(f"you may not read {path}")
    return Integrity(f"{path} cannot be read, it is cut off or damaged: {_said(error)}", hint="get it again")


def _said(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _is_run(numbers: Array) -> bool:
    return bool(numbers[-1] - numbers[0] == len(numbers) - 1)


def _slice(numbers: Array) -> slice:
    return slice(int(numbers[0]), int(numbers[-1]) + 1)


def _plain(value: Array) -> Array:
    """Return an array that torch takes: native, contiguous and writable."""
    return np.require(value, value.dtype.newbyteorder("="), ["C", "W"])


_FILES: Mapping[tuple[str, ...], Callable[[Path, Sequence[Field]], FileSamples]] = {
    _HDF5: lambda path, wanted: _open_hdf5(path, [path], wanted, False),
    (".npy",): _open_npy,
    (".npz",): _open_npz,
    _ARROW: _open_arrow,
    _PARQUET: _open_arrow,
}


def _known() -> str:
    return ", ".join(suffix for suffixes in _FILES for suffix in suffixes) + " and Zarr groups"
