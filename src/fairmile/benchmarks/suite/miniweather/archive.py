"""Fields over time in HDF5, with named dimensions, so that what reads NetCDF reads it, too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fairmile.base.errors import FairmileError, Integrity, MissingExtra, NotFound, UsageError
from fairmile.base.files import written_aside

if TYPE_CHECKING:
    import h5py

Array = np.ndarray[Any, Any]
_LONG_NAMES = {
    "dens": ("density, difference to the background", "kg m-3"),
    "uwnd": ("horizontal wind", "m s-1"),
    "wwnd": ("vertical wind", "m s-1"),
    "theta": ("potential temperature, difference to the background", "K"),
    "rho_v": ("density of water vapour", "kg m-3"),
    "rho_c": ("density of cloud water", "kg m-3"),
    "rho_p": ("density of rain", "kg m-3"),
}
DRY = ("dens", "uwnd", "wwnd", "theta")
MOIST = (*DRY, "rho_v", "rho_c", "rho_p")


@dataclass
class Film:
    """Fields of one simulation at some times; arrays are (t, x, z)."""

    x_m: Array
    z_m: Array
    times_s: list[float] = field(default_factory=list)
    frames: dict[str, list[Array]] = field(default_factory=dict)
    attributes: dict[str, Any] = field(default_factory=dict)

    def add(self, time_s: float, fields: Mapping[str, Array]) -> None:
        """Keep the fields of one time, each (z, x)."""
        self.times_s.append(time_s)
        for name, values in fields.items():
            self.frames.setdefault(name, []).append(np.ascontiguousarray(values.T))

    def __getitem__(self, name: str) -> Array:
        return np.stack(self.frames[name])

    def write(self, group: h5py.Group) -> None:
        """Write it into a file or a group of one."""
        for name, values, unit in (("t", self.times_s, "s"), ("x", self.x_m, "m"), ("z", self.z_m, "m")):
            group.create_dataset(name, data=np.asarray(values, np.float64)).make_scale(name)
            group[name].attrs["units"] = unit
        for name in self.frames:
            made = group.create_dataset(name, data=self[name])
            for axis, dimension in enumerate("txz"):
                made.dims[axis].attach_scale(group[dimension])
            if name in _LONG_NAMES:
                made.attrs["long_name"], made.attrs["units"] = _LONG_NAMES[name]
        group.attrs.update(self.attributes)

    @classmethod
    def read(cls, group: h5py.Group, fields: tuple[str, ...], file: Path) -> Film:
        """Read what `write` wrote; every field has to be there and to fit."""
        axes = {name: dataset(group, name, file)[:] for name in "txz"}
        shape = tuple(len(axes[name]) for name in "txz")
        film = cls(axes["x"], axes["z"], [float(each) for each in axes["t"]], attributes=dict(group.attrs))
        for name in fields:
            frames = dataset(group, name, file)
            if frames.shape != shape:
                raise UsageError(f"{file}: {name} is {frames.shape}, expected {shape} (t, x, z)")
            film.frames[name] = list(frames[:])
        return film


@contextmanager
def written(file: Path) -> Iterator[h5py.File]:
    """Give an HDF5 file to fill, which is there as a whole afterwards or not at all."""
    with written_aside(file) as aside, _h5py().File(aside, "w", track_order=True) as opened:
        yield opened


@contextmanager
def opened(file: Path) -> Iterator[h5py.File]:
    """Open an HDF5 file to read."""
    if not file.is_file():
        raise NotFound(f"no such file: {file}")
    try:
        with _h5py().File(file, "r") as handle:
            yield handle
    except OSError as error:
        if isinstance(error, FairmileError):
            raise
        raise Integrity(f"{file} cannot be read as HDF5: {error}", hint="make or fetch it again") from error


def dataset(group: h5py.Group, name: str, file: Path) -> h5py.Dataset:
    """Return a dataset of a file or a group of one; one that is missing is told with what is there."""
    data = group.get(name)
    if data is None or not hasattr(data, "shape"):
        there = ", ".join(group) or "nothing"
        raise UsageError(f"{file} has no dataset {name!r}", hint=f"it has {there}")
    return data


def _h5py() -> Any:
    try:
        import h5py
    except ModuleNotFoundError as error:
        raise MissingExtra("MiniWeather needs h5py", "benchmarks") from error
    return h5py
