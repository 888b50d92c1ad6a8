"""The kernel in C: from an environment that built it, or compiled here once and kept in the cache."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fairmile.base.commands import Here
from fairmile.base.errors import FairmileError, Integrity, SystemFailure, Unsupported
from fairmile.base.files import write_failure
from fairmile.benchmarks.suite.miniweather.solver import Kernel, NumpyKernel, Problem

Array = np.ndarray[Any, Any]
SOURCE = Path(__file__).with_name("kernel") / "kernel.c"
LIBRARY = "libfairmile_miniweather.so"
VARIABLE = "FAIRMILE_MINIWEATHER_LIB"
_FLAGS = ("-std=c99", "-O3", "-fPIC", "-shared")
_VERSION = 2
_COMPILE_S = 120.0


def find_kernel(
    wanted: Literal["auto", "c", "numpy"],
    cache: Path,
    environ: Mapping[str, str],
    say: Callable[[str], None] = lambda _: None,
) -> Kernel:
    """Return the kernel to compute with; `auto` is C where it can be had, else NumPy, which `say` tells."""
    if wanted == "numpy":
        return NumpyKernel()
    try:
        file = installed(environ) or compiled(cache, environ)
        return NativeKernel(file)
    except FairmileError as error:
        if wanted == "c":
            raise
        say(f"cannot build the C kernel, so NumPy computes: {error}")
        return NumpyKernel()


def installed(environ: Mapping[str, str]) -> Path | None:
    """Return the library that a variable names, or that lies in the prefix of an environment."""
    if named := environ.get(VARIABLE):
        if not Path(named).is_file():
            raise SystemFailure(f"{VARIABLE} names {named}, which is not there")
        return Path(named)
    folders = [
        each for name in ("LD_LIBRARY_PATH", "LIBRARY_PATH") for each in environ.get(name, "").split(os.pathsep) if each
    ]
    return next((file for each in folders if (file := Path(each) / LIBRARY).is_file()), None)


def compiled(cache: Path, environ: Mapping[str, str]) -> Path:
    """Return the library that the compiler at hand makes of the source, made at most once."""
    path = environ.get("PATH", os.defpath)
    named, *flags = shlex.split(environ.get("CC", "")) or [""]  # it may be `ccache gcc` or `gcc -m64`
    names = [named] if named else ["cc", "gcc", "clang"]
    compiler = next((program for name in names if (program := shutil.which(name, path=path))), None)
    if compiler is None:
        raise Unsupported(
            f"there is no C compiler ({', '.join(names)})", hint="install one, or build the environment of miniweather"
        )
    command = [compiler, *flags, *_FLAGS]
    material = "\0".join([SOURCE.read_text(encoding="utf-8"), *command, platform.machine()])
    folder = cache / "miniweather" / f"kernel-{hashlib.sha256(material.encode()).hexdigest()[:16]}"
    file = folder / LIBRARY
    if file.is_file():
        return file
    aside = folder / f".{LIBRARY}.{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        Here().run([*command, "-o", str(aside), str(SOURCE), "-lm"], timeout_s=_COMPILE_S)
        aside.rename(file)
    except OSError as error:
        if isinstance(error, FairmileError):
            raise
        raise write_failure(str(folder), error) from error
    finally:
        aside.unlink(missing_ok=True)
    return file


class NativeKernel:
    """The equations in C."""

    name = "c"

    def __init__(self, file: Path) -> None:
        self.file = file
        try:
            library = ctypes.CDLL(str(file))
            version = int(library.fairmile_miniweather_version())
            self._advance = library.fairmile_miniweather_advance
        except (OSError, AttributeError) as error:
            raise Integrity(
                f"{file} is not a library of this kernel: {error}", hint="remove it, or build it again"
            ) from error
        if version != _VERSION:
            raise Integrity(
                f"{file} is version {version} of the kernel, not {_VERSION}", hint="build its environment again"
            )
        self._advance.restype = None

    def __call__(self, problem: Problem, state: Array, dt_s: float, steps: int, *, z_first: bool = False) -> None:
        grid, back = problem.grid, problem.background
        if state.shape != (4, grid.nz, grid.nx) or state.dtype != np.float64 or not state.flags.c_contiguous:
            raise ValueError(f"a state is a contiguous array of doubles, (4, {grid.nz}, {grid.nx})")
        faces = (back.face_density, back.face_density_theta, back.face_pressure)
        parts = (back.density, back.density_theta, *faces, back.beyond)
        doubles = [np.ascontiguousarray(each, np.float64) for each in parts]
        forcing = None if problem.forcing is None else np.ascontiguousarray(problem.forcing, np.float64)
        jet = None if problem.jet is None else np.ascontiguousarray(problem.jet, np.uint8)
        scratch = np.empty(4 * (grid.nz * grid.nx + (grid.nz + 1) * (grid.nx + 1)))
        self._advance(
            *(ctypes.c_int(each) for each in (grid.nx, grid.nz)),
            *(ctypes.c_double(each) for each in (grid.dx_m, grid.dz_m, dt_s)),
            *(ctypes.c_int(each) for each in (steps, z_first)),
            *(_pointer(each) for each in (*doubles, forcing, jet, state, scratch)),
        )


def _pointer(values: Array | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if values is None else values.ctypes.data)
