"""One statement about many small cases, as one test: of a test of its own each, most time is pytest's."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import effort


def for_each(names: str, cases: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Try a test with each case, as `parametrize` would; it fails with all that fail, and each names its case.

    For cases that need no fixture of their own. The quick tier tries as few of them as it does of separate tests.
    """
    words = [each.strip() for each in names.split(",")]
    values = list(cases)

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        chosen = effort.some(f"{test.__module__}.{test.__qualname__}", values) if effort.quick else values

        @functools.wraps(test)
        def try_each(**fixtures: Any) -> None:
            failures = []
            for value in chosen:
                case = dict(zip(words, value if len(words) > 1 else [value], strict=True))
                try:
                    test(**fixtures, **case)
                except Exception as failure:
                    failure.add_note("case: " + ", ".join(f"{name}={each!r}" for name, each in case.items()))
                    failures.append(failure)
            if failures:
                raise ExceptionGroup(f"{len(failures)} of {len(chosen)} cases fail", failures)

        signature = inspect.signature(test)
        rest = [each for name, each in signature.parameters.items() if name not in words]
        try_each.__signature__ = signature.replace(parameters=rest)  # type: ignore[attr-defined]
        return try_each

    return decorate
