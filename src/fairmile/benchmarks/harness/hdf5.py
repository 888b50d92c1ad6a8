"""HDF5 files of published data, read with errors that name file and field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fairmile.base.errors import Integrity, MissingExtra, NotFound, SystemFailure, UsageError


def h5py() -> Any:
    """Return the package that reads and writes HDF5."""
    try:
        import h5py
    except ImportError as error:
        raise MissingExtra("HDF5 files need h5py", "benchmarks") from error
    return h5py


def open_file(file: Path) -> Any:
    """Return an open HDF5 file."""
    try:
        return h5py().File(file, "r")
    except FileNotFoundError as error:
        raise NotFound(f"no such file: {file}") from error
    except PermissionError as error:
        raise SystemFailure(f"cannot read {file}: permission denied") from error
    except OSError as error:
        raise Integrity(f"{file} is not an HDF5 file, or is damaged", hint="fetch the file again") from error


def read_field(content: Any, name: str, file: Path, hint: str | None = None) -> Any:
    """Return a dataset, or an attribute of that name."""
    if name in content:
        if not hasattr(content[name], "dtype"):
            raise UsageError(f"{file}: field {name!r}: expected a dataset, found a group")
        try:
            return content[name][()]
        except OSError as error:
            raise Integrity(f"{file}: field {name!r} is damaged: {error}", hint="fetch the file again") from error
    if name in content.attrs:
        return content.attrs[name]
    there = sorted([*content.keys(), *content.attrs.keys()])
    raise UsageError(f"{file}: no dataset or attribute {name!r}; found {', '.join(there) or 'none'}", hint=hint)
