"""Waits for torch in a program that `fairmile trace record` runs; its folder comes first on PYTHONPATH.

Python imports a module of this name at its start. The one that would have been found without us is run as well. It
needs nothing but the standard library, since the program may have an interpreter of its own.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec, spec_from_file_location

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))
_SETTINGS = os.environ.get("FAIRMILE_TRACE")  # now: the program may clear its environment before it imports torch


class _Loader:
    """Loads torch as its own loader does, and has the recorder begin as soon as it is there."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        for place, name in ((module.__spec__, "loader"), (module, "__loader__")):
            if getattr(place, name, None) is self:
                setattr(place, name, self._loader)
        self._loader.exec_module(module)
        with suppress(Exception):  # whatever is wrong with us, the program has its torch
            _record(module)


def _record(torch: ModuleType) -> None:
    spec = spec_from_file_location("_fairmile_recorder", os.path.join(_HERE, "fairmile_profiler.py"))
    assert spec is not None and spec.loader is not None
    recorder = module_from_spec(spec)
    sys.modules[spec.name] = recorder
    spec.loader.exec_module(recorder)
    recorder.begin(torch, _SETTINGS)


class _Finder:
    """Finds torch where all others find it."""

    def __init__(self) -> None:
        self._is_asked = False

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "torch" or self._is_asked:
            return None
        self._is_asked = True
        try:
            spec = find_spec("torch")
        finally:
            self._is_asked = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)  # type: ignore[assignment]
        return spec


def _run_the_next() -> None:
    """Run the module of this name that comes after ours, as Python would have done."""
    spec = PathFinder.find_spec("sitecustomize", [each for each in sys.path if os.path.abspath(each) != _HERE])
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


# Type checkers and the like may import this file, too.
if _SETTINGS and __name__ == "sitecustomize":
    sys.meta_path.insert(0, _Finder())
    _run_the_next()
