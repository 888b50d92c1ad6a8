"""Functions, classes and patterns that are loaded at their first use, for what most commands never reach.

    if TYPE_CHECKING:
        from fairmile.envs.spec import parse_spec
    else:
        parse_spec = lazy("fairmile.envs.spec:parse_spec")

Type checkers and the check of layers see the import; a command that never calls it does not wait for it.
"""

from __future__ import annotations

import importlib
import re
import sys
from typing import Any, AnyStr, cast


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


class _LatePattern:
    def __init__(self, text: object, flags: int) -> None:
        self._given: Any = text, flags

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        # Kept here, so that the next use does not come by.
        value = self.__dict__[name] = getattr(re.compile(*self._given), name)
        return value

    def __repr__(self) -> str:
        return f"lazy_pattern({self._given[0]!r})"


def lazy_pattern(text: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Return a regular expression that is compiled when it is first used: a command uses few of those that it imports.

    Call its methods; functions of `re` do not accept it.
    """
    return cast("re.Pattern[AnyStr]", _LatePattern(text, flags))
