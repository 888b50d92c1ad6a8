"""Gives words that begin with `make:` a meaning: `fairmile run make:train` runs the target of the Makefile here."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fairmile.resolve import Nouns, Target, Word
from fairmile.runs.targets import Runnable, command_target

_PREFIX = "make:"


class _Make:
    verbs = ("run",)

    def find(self, word: Word, nouns: Nouns) -> Target | None:
        """Return what the word means, or None: another resolver may know it."""
        if not word.text.startswith(_PREFIX) or not Path("Makefile").is_file():
            return None
        goal = word.text.removeprefix(_PREFIX)
        return Target(word.text, "make", path=Path("Makefile"), load=lambda: _Goal(goal))

    def near(self, word: Word, nouns: Nouns) -> Sequence[str]:
        return ()


class _Goal:
    """What makes a run of a target; `changes` are options such as parameters."""

    def __init__(self, goal: str) -> None:
        self._goal = goal

    def runnable(self, dataset: str, changes: Mapping[str, Any]) -> Runnable:
        return command_target(["make", self._goal], {"name": self._goal, **changes})


MAKE = _Make()
