"""What the conformance suites share: tests that are asked only of what has the ability."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T", bound=Callable[..., None])


def asked_only_with(ability: str) -> Callable[[T], T]:
    """Leave a test out of a suite whose attribute of that name is False: nothing is to be skipped."""

    def mark(test: T) -> T:
        test.ability = ability  # type: ignore[attr-defined]
        return test

    return mark


class Suite:
    """A class of tests that others inherit; one that lacks an ability loses the tests that ask for it."""

    def __init_subclass__(cls) -> None:
        for name in dir(cls):
            ability = getattr(getattr(cls, name), "ability", None)
            if ability is not None and not getattr(cls, ability):
                setattr(cls, name, None)
