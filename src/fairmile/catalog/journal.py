"""Which cards of a catalog changed lately, so that an index need not look at every file to follow.

A file `changes` beside the generation holds a line for each changed card: the generation that the change began, a tab,
and the path of the card. It is a hint: where it is missing, cut off or of another writer, the index looks at all files.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

_NAME = "changes"
_MOST_BYTES = 8 << 20  # of the whole file; about 100,000 changes


def record_changes(root: Path, generation: str, paths: Sequence[str]) -> None:
    """Note, before they are written, that the cards at these paths change; a full or foreign journal starts anew."""
    lines = "".join(f"{generation}\t{path}\n" for path in paths or [""]).encode("utf-8", "surrogateescape")
    file = root / _NAME
    with suppress(OSError):  # without its line, an index looks at all files
        if len(lines) > _MOST_BYTES:
            file.unlink(missing_ok=True)
            return
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            if os.fstat(descriptor).st_size + len(lines) > _MOST_BYTES:
                os.ftruncate(descriptor, 0)
            os.write(descriptor, lines)
        finally:
            os.close(descriptor)


def changes_since(root: Path, known: str, generation: str) -> list[str] | None:
    """Return the paths that changed with the known generation or after it; None when the journal cannot tell.

    Changes of the known generation itself are included: the index may have looked while they were being written.
    """
    try:
        text = (root / _NAME).read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None
    lines = [line.partition("\t") for line in text.split("\n")[:-1]]
    if not known or not lines or lines[-1][0] != generation:
        return None
    first = next((number for number, (token, _, _) in enumerate(lines) if token == known), None)
    if first is None:
        return None
    paths = dict.fromkeys(path for _, _, path in lines[first:] if path)
    return list(paths) if all(map(_is_plain, paths)) else None


def _is_plain(path: str) -> bool:
    parts = path.split("/")
    return len(parts) == 3 and not any(part.startswith(".") for part in parts)
