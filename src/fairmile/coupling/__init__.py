"""A model beside a running simulation: fields of a solver in C, C++ or Fortran in, answers out, at every step.

    from fairmile import coupling

    for exchange in coupling.serve():
        exchange.answers["heating"][...] = model(exchange.fields["temperature"])

The solver includes `fairmile_couple.h`, or uses the module of `fairmile_couple.f90`; `include()` is their folder. Both
sides run on one node and share memory. The model may learn while the simulation runs: it sees every step.
"""

from __future__ import annotations

from pathlib import Path

from fairmile.base.errors import MissingExtra
from fairmile.base.onnx_library import find_onnx_library
from fairmile.coupling.checks import Checks
from fairmile.coupling.exchange import Exchange, Solver
from fairmile.coupling.server import SOCKET, serve

__all__ = ["SOCKET", "Checks", "Exchange", "Solver", "include", "onnx_runtime", "serve"]


def include() -> Path:
    """Return the folder of fairmile_couple.h, fairmile_couple.c and fairmile_couple.f90."""
    return Path(__file__).with_name("include")


def onnx_runtime() -> Path:
    """Return the library of the installed ONNX Runtime, which FAIRMILE_COUPLE_RUNTIME names to a solver."""
    library = find_onnx_library()
    if library is None:
        raise MissingExtra("an ONNX file in the solver's own process needs ONNX Runtime", "models")
    return library
