"""The published layouts of CosmoUniverse: whole universes and cubes in HDF5, cubes in TFRecord, memory maps for speed.

A cube is `x`, int16 of (edge, edge, edge, 4), the last axis the redshifts, and `y`, float32 of the four normalised
parameters. A whole universe has `full` instead of `x`, and beside it `unitPar`, `physPar`, `namePar` and `redshifts`.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fairmile.base.errors import Integrity, NotFound, UsageError
from fairmile.base.files import write_failure
from fairmile.benchmarks.harness.hdf5 import h5py, open_file, read_field
from fairmile.benchmarks.suite.cosmoflow.tfrecord import make_example, parse_example, records, write_records
from fairmile.benchmarks.suite.cosmoflow.universes import NAMES, REDSHIFTS, unit_to_physical

if TYPE_CHECKING:
    import torch

Counts = NDArray[np.int16]
Unit = NDArray[np.float32]
PARTS = ("train", "validation")
CUBE = 128  # edge of the published cubes, into which a whole universe is cut
TFRECORD, HDF5 = (".tfrecord",), (".hdf5", ".h5")
_HINT = "is it a file of CosmoUniverse? README.md of the benchmark lists the fields"
_KINDS = "an array of int16 with the shape (edge, edge, edge, redshifts)"


@dataclass(frozen=True)
class Universe:
    """One simulated box and where it comes from."""

    full: Counts
    unit: Unit
    seed: int
    names: tuple[str, ...] = NAMES
    redshifts: tuple[float, ...] = REDSHIFTS
    dataset_tag: str = ""
    universe_tag: str = ""
    physical: tuple[float, ...] = ()  # empty: as the normalised ones say

    @property
    def physical_parameters(self) -> NDArray[np.float64]:
        return np.asarray(self.physical) if self.physical else unit_to_physical(self.unit)


def cube_name(group: str, seed: int, number: int) -> str:
    """Return the published name of a cube, without its suffix."""
    return f"{group}_univ_ics_2019-03_a{seed}_{number:03d}"


def split(full: Counts, edge: int) -> Counts:
    """Return the cubes of a universe, the last axis of space running fastest."""
    size, channels = full.shape[0], full.shape[-1]
    if edge < 1 or size % edge:
        raise UsageError(f"a universe with an edge of {size} cells cannot be cut into cubes of {edge}")
    many = size // edge
    cut = full.reshape(many, edge, many, edge, many, edge, channels).transpose(0, 2, 4, 1, 3, 5, 6)
    return cut.reshape(many**3, edge, edge, edge, channels)


def write_universe(file: Path, universe: Universe) -> None:
    """Write a whole universe in the raw layout."""
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        with h5py().File(file, "w") as content:
            content.create_dataset("full", data=universe.full.astype(np.int16), compression="gzip", compression_opts=1)
            content["unitPar"] = universe.unit.astype(np.float32)
            content["physPar"] = universe.physical_parameters.astype(np.float32)
            content["namePar"] = np.array([name.encode() for name in universe.names])
            content["redshifts"] = np.array(universe.redshifts, np.float32)
            content.attrs["dataset tag"] = universe.dataset_tag
            content.attrs["universe tag"] = universe.universe_tag
            content.attrs["seed"] = universe.seed
    except OSError as error:
        raise write_failure(str(file), error) from error


def write_cube(file: Path, x: Counts, y: Unit, *, is_gzip: bool = True) -> None:
    """Write one cube, as TFRecord or HDF5 by the suffix."""
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix in TFRECORD:
        values = np.ascontiguousarray(x, "<i2").tobytes()
        write_records(file, [make_example({"x": values, "y": y.astype(np.float32)})], is_gzip=is_gzip)
        return
    try:
        with h5py().File(file, "w") as content:
            content.create_dataset("x", data=x.astype(np.int16))
            content.create_dataset("y", data=y.astype(np.float32))
    except OSError as error:
        raise write_failure(str(file), error) from error


def read_cubes(file: Path) -> tuple[Counts, Unit]:
    """Return the cubes of a file (cubes, edge, edge, edge, 4) and their parameters (cubes, 4)."""
    if file.suffix in TFRECORD:
        pairs = [_cube_of_example(parse_example(data, file), file) for data in records(file)]
        if len({x.shape for x, _ in pairs}) != 1:
            kinds = ", ".join(sorted(_shape(x.shape) for x, _ in pairs)) or "no record"
            raise Integrity(f"{file}: expected cubes of one size, found {kinds}", hint="fetch the file again")
        return np.stack([x for x, _ in pairs]), np.stack([y for _, y in pairs])
    with open_file(file) as content:
        if "full" in content and "x" not in content:
            full, unit = _counts(content, "full", file), _parameters(content, "unitPar", file)
            size = full.shape[0]
            cubes = split(full, CUBE if size > CUBE and size % CUBE == 0 else size)
            return cubes, np.tile(unit, (len(cubes), 1))
        return _counts(content, "x", file)[None], _parameters(content, "y", file)[None]


def _cube_of_example(features: dict[str, Any], file: Path) -> tuple[Counts, Unit]:
    for name, kind in (("x", "bytes"), ("y", "floats")):
        if name not in features:
            raise UsageError(f"{file}: feature {name!r} is missing; found {', '.join(sorted(features)) or 'none'}")
        if isinstance(features[name], bytes) != (kind == "bytes"):
            raise UsageError(f"{file}: feature {name!r}: expected {kind}")
    y = np.asarray(features["y"], np.float32)
    if y.shape != (4,):
        raise UsageError(f"{file}: feature 'y': expected 4 parameters, found {y.size}")
    _check_unit(y, f"{file}: feature 'y'")
    x = np.frombuffer(features["x"], "<i2") if len(features["x"]) % 8 == 0 else np.empty(0, np.int16)
    edge = round((x.size / 4) ** (1 / 3))
    if not edge or edge**3 * 4 != x.size:
        raise UsageError(f"{file}: feature 'x': {len(features['x'])} bytes are not a cube of int16 at 4 redshifts")
    return x.reshape(edge, edge, edge, 4).astype(np.int16, copy=False), y


@dataclass(frozen=True)
class Listing:
    """The files of one part of real data, in the order of their names."""

    files: tuple[Path, ...]
    cubes_per_file: int
    edge: int
    channels: int

    def __len__(self) -> int:
        return len(self.files) * self.cubes_per_file

    @property
    def size_bytes(self) -> int:
        return len(self) * self.edge**3 * self.channels * 2


def spread(many: int, of: int) -> list[int]:
    """Return so many of the numbers below `of`, evenly apart; all where there are no more.

    The cubes of one universe follow each other: the first 64 of the published ones have the same four parameters.
    """
    return [at * of // many for at in range(many)] if many < of else list(range(of))


def list_part(data: Path, part: str, most: int = 0) -> Listing:
    """Return the files of train/ or validation/ in a folder of real data; of many only as hold so many cubes."""
    folder = data / part
    if not folder.is_dir():
        raise NotFound(f"{data} has no folder {part}/", hint="name the folder with train/ and validation/ of CosmoFlow")
    files = sorted(each for each in folder.rglob("*") if each.suffix in TFRECORD + HDF5 and each.is_file())
    if not files:
        raise NotFound(f"{folder} has no file that ends in {', '.join(TFRECORD + HDF5)}")
    first, _ = read_cubes(files[0])
    if most:
        files = [files[at] for at in spread(-(-most // len(first)), len(files))]
    return Listing(tuple(files), len(first), first.shape[1], first.shape[-1])


def read_listed(listing: Listing, file: Path) -> tuple[Counts, Unit]:
    """Return the cubes of one file of a listing, all of which have one shape."""
    x, y = read_cubes(file)
    wanted = (listing.cubes_per_file, *(listing.edge,) * 3, listing.channels)
    if x.shape != wanted:
        raise UsageError(
            f"{file}: field 'x': expected {_shape(wanted)} as in {listing.files[0].name}, found {_shape(x.shape)}",
            hint="all cubes of a data set have one size",
        )
    return x, y


def has_room(folder: Path, listings: Sequence[Listing]) -> bool:
    """Tell whether memory maps of these files fit, a tenth of the disk kept free."""
    folder.mkdir(parents=True, exist_ok=True)
    usage = shutil.disk_usage(folder)
    return sum(each.size_bytes for each in listings) < usage.free - usage.total // 10


def write_maps(folder: Path, part: str, chunks: Iterator[tuple[Counts, Unit]], many: int) -> None:
    """Write cubes as one array per part that can be mapped into memory, in the order in which they come."""
    first = next(chunks)
    try:
        x = np.lib.format.open_memmap(folder / f"{part}_x.npy", "w+", np.int16, (many, *first[0].shape[1:]))
        y = np.empty((many, 4), np.float32)
        place = 0
        for cubes, unit in _again(first, chunks):
            end = min(place + len(cubes), many)
            x[place:end], y[place:end] = cubes[: end - place], unit[: end - place]
            place = end
        x.flush()
        np.save(folder / f"{part}_y.npy", y)
    except OSError as error:
        raise write_failure(str(folder), error) from error


def _again(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from rest


@dataclass
class Cubes:
    """Cubes in memory, as memory maps or on a device; batches come as (samples, redshifts, edge, edge, edge)."""

    x: Any
    y: Any
    size_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.size_bytes = int(self.x.nbytes + self.y.nbytes)

    @classmethod
    def mapped(cls, folder: Path, part: str) -> Cubes:
        """Return the cubes that `write_maps` left."""
        return cls(np.load(folder / f"{part}_x.npy", mmap_mode="r"), np.load(folder / f"{part}_y.npy"))

    def __len__(self) -> int:
        return len(self.x)

    def batch(self, numbers: Any) -> dict[str, Any]:
        # The redshifts stay where they are in memory: what the network gets is in channels-last order without a copy.
        x = _gather(self.x, numbers) if isinstance(self.x, np.ndarray) else self.x.index_select(0, numbers)
        return {"x": x.permute(0, 4, 1, 2, 3), "y": self.y[numbers]}

    def resident(self, device: torch.device) -> Cubes:
        import torch

        return Cubes(torch.from_numpy(np.array(self.x)).to(device), torch.from_numpy(self.y).to(device))


@dataclass(frozen=True)
class FileCubes:
    """Cubes that are read from their published files when they are needed, for data too large to be prepared."""

    listing: Listing
    count: int

    def __len__(self) -> int:
        return self.count

    def batch(self, numbers: Any) -> dict[str, Any]:
        each = self.listing.cubes_per_file
        read = _read_cached if each > 1 else read_listed
        places = [
            (read(self.listing, self.listing.files[number // each]), number % each) for number in numbers.tolist()
        ]
        x = np.stack([cubes[at] for (cubes, _), at in places])
        return {"x": np.moveaxis(x, -1, 1), "y": np.stack([unit[at] for (_, unit), at in places])}


@lru_cache(maxsize=2)
def _read_cached(listing: Listing, file: Path) -> tuple[Counts, Unit]:
    return read_listed(listing, file)


def _gather(x: NDArray[Any], numbers: NDArray[np.int64]) -> torch.Tensor:
    """Return rows of an array, from where a GPU can fetch them; a copy row by row lets other threads work."""
    import torch

    rows_tensor = torch.empty((len(numbers), *x.shape[1:]), dtype=torch.int16, pin_memory=torch.cuda.is_available())
    rows = rows_tensor.numpy()
    for place, number in enumerate(numbers.tolist()):
        rows[place] = x[number]
    return rows_tensor


def _counts(content: Any, name: str, file: Path) -> Counts:
    values = np.asarray(read_field(content, name, file, _HINT))
    if values.dtype != np.int16:
        raise UsageError(f"{file}: field {name!r}: expected int16, found {values.dtype}")
    if values.ndim != 4 or len(set(values.shape[:3])) != 1:
        raise UsageError(f"{file}: field {name!r}: expected {_KINDS}, found {_shape(values.shape)}")
    return values


def _parameters(content: Any, name: str, file: Path) -> Unit:
    values = np.asarray(read_field(content, name, file, _HINT))
    if values.shape != (4,) or values.dtype.kind != "f":
        raise UsageError(f"{file}: field {name!r}: expected 4 floats, found {values.dtype} of {_shape(values.shape)}")
    _check_unit(values, f"{file}: field {name!r}")
    return values.astype(np.float32)


def _check_unit(values: NDArray[Any], where: str) -> None:
    if not np.all(np.abs(values) <= 1 + 1e-6):  # nor are they NaN
        listed = ", ".join(f"{value:g}" for value in values)
        raise UsageError(
            f"{where}: expected 4 normalised parameters between -1 and 1, found {listed}",
            hint="physical parameters belong in 'physPar'",
        )


def _shape(shape: Sequence[int]) -> str:
    return "(" + ", ".join(map(str, shape)) + ")"
