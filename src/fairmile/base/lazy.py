"""Functions and classes whose modules are imported at the first call, for what most commands never reach.

    if TYPE_CHECKING:
        from fairmile.envs.spec import parse_spec
    else:
        parse_spec = lazy("fairmile.envs.spec:parse_spec")

Type checkers and the check of layers see the import; a command that never calls it does not wait for it.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any


class lazy:
    """A function or class named `module:attribute`, which can be called and asked for attributes.

    Do not use it with `isinstance` or `except`, which need the class itself.
    """

    def __init__(self, target: str) -> None:
        self._target = target

    def _load(self) -> Any:
        module, _, name = self._target.partition(":")
        if module not in sys.modules:
            importlib.import_module(module)
        return getattr(sys.modules[module], name)

    def __call__(self, *words: Any, **options: Any) -> Any:
        return self._load()(*words, **options)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._load(), name)

    def __repr__(self) -> str:
        return f"lazy({self._target!r})"
