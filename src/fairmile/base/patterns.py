"""Regular expressions of users and strangers, in time linear in the text: RE2, never Python's own engine."""

from __future__ import annotations

from typing import Any, TypeVar

from fairmile.base.errors import UsageError

_T = TypeVar("_T", str, bytes)
SYNTAX = "RE2 syntax: no look-around, no back-references"


def compile_linear(pattern: _T, *, ignore_case: bool = False, within_lines: bool = False) -> Any:
    """Return the pattern ready to search texts of its own type with; UsageError when it is none.

    With `within_lines`, no match reaches over the end of a line.
    """
    import re2

    options = re2.Options()
    options.log_errors = False
    options.max_mem = 8 << 20
    options.case_sensitive = not ignore_case
    options.never_nl = within_lines
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0] if error.args else ""
        message = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        shown = pattern.decode(errors="replace") if isinstance(pattern, bytes) else pattern
        raise UsageError(f"/{shown}/ is not a regular expression: {message}", hint=SYNTAX) from error
