"""The digests of what lies on disk, ready to stand on a card."""

from __future__ import annotations

import mimetypes
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairmile.base.digest import merkle_root, ni, scan_tree, sha256_file, swhid_content, swhid_directory
from fairmile.base.errors import UsageError


@dataclass(frozen=True)
class Content:
    """What a file or a folder is by its bytes: size, content digest, SWHID, and a file's own entry."""

    path: str
    size_bytes: int
    files: int
    content: str
    swhid: str
    distribution: tuple[dict[str, Any], ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the digests as data, named as a card names them."""
        facts: dict[str, Any] = {"path": self.path, "files": self.files, "contentSize": f"{self.size_bytes} B"}
        facts |= {"contentDigest": self.content, "identifier": self.swhid}
        return facts | ({"distribution": list(self.distribution)} if self.distribution else {})


def measure(path: Path) -> Content:
    """Return the digests of a file, or of all the files below a folder; for code, the SWHID equals git's own id."""
    if path.is_file():
        sha256, size = sha256_file(path), path.stat().st_size
        entry = {"@type": "FileObject", "name": path.name, "contentSize": f"{size} B", "sha256": sha256}
        media_type = mimetypes.guess_type(path.name)[0]
        entry |= {"encodingFormat": media_type} if media_type else {}
        return Content(str(path), size, 1, ni(sha256), swhid_content(path.read_bytes()), (entry,))
    if not path.is_dir():
        raise UsageError(f"{path} is neither a file nor a folder")
    entries = list(scan_tree(path))
    if not entries:
        raise UsageError(f"{path} holds no file")
    size = sum(entry.size_bytes for entry in entries)
    return Content(str(path), size, len(entries), ni(merkle_root(entries)), swhid_directory(path), ())
