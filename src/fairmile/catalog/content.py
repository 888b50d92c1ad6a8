"""The digests of what lies on disk, ready to stand on a card."""

from __future__ import annotations

import mimetypes
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from fairmile.base.digest import merkle_root, ni, scan_tree, sha256_file, swhid_content, swhid_directory
from fairmile.base.errors import UsageError
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result, Results


class ContentDict(TypedDict):
    path: str
    files: int
    contentSize: str
    contentDigest: str
    identifier: str
    distribution: NotRequired[list[dict[str, Any]]]


class ContentsDict(TypedDict):
    contents: list[ContentDict]


@dataclass(frozen=True, repr=False)
class Content(Result):
    """What a file or a folder is by its bytes: size, content digest, SWHID, and a file's own entry."""

    path: str
    size_bytes: int
    files: int
    content: str
    swhid: str
    distribution: tuple[dict[str, Any], ...]

    def to_dict(self) -> ContentDict:
        """Return the digests as data, named as a card names them."""
        data: ContentDict = {
            "path": self.path,
            "files": self.files,
            "contentSize": f"{self.size_bytes} B",
            "contentDigest": self.content,
            "identifier": self.swhid,
        }
        if self.distribution:
            data["distribution"] = list(self.distribution)
        return data

    def summary(self) -> str:
        return f"{self.path}, {self.size_bytes:,} bytes, {self.content}"


class Contents(Results[Content]):
    """The digests of several files and folders."""

    def to_dict(self) -> ContentsDict:
        return {"contents": [each.to_dict() for each in self]}

    def summary(self) -> str:
        return ", ".join(each.path for each in self)


def measure_all(paths: Iterable[Path]) -> Contents:
    """Return the digests of several files and folders."""
    return Contents(measure(path) for path in paths)


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
        raise UsageError(f"{path} has no files")
    size = sum(entry.size_bytes for entry in entries)
    return Content(str(path), size, len(entries), ni(merkle_root(entries)), swhid_directory(path), ())
