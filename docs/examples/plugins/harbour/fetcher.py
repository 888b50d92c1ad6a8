"""Fetches folders of a mounted archive: shelf:///archive/tides brings everything below /archive/tides."""

import shutil
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote, urlsplit

from fairmile.base.errors import NotFound
from fairmile.transfer.remote import Context, Remote


class Shelf:
    """A FolderFetcher: `find` tells what is there, `bring` fills a folder."""

    def __init__(self, context: Context) -> None:
        pass  # credentials, settings and a runner of programs; a mounted folder needs none

    def find(self, address: str) -> list[Remote]:
        folder = _folder(address)
        return [Remote(address, folder.name, sum(file.stat().st_size for file in _files(folder)))]

    def bring(self, address: str, folder: Path, on_bytes: Callable[[int], None]) -> None:
        source = _folder(address)
        for file in _files(source):
            target = folder / file.relative_to(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
            on_bytes(target.stat().st_size)


def _folder(address: str) -> Path:
    folder = Path(unquote(urlsplit(address).path))
    if not folder.is_dir():
        raise NotFound(f"the shelf has no folder {folder}", hint="check the address, and that the archive is mounted")
    return folder


def _files(folder: Path) -> list[Path]:
    """Return the files below a folder; a link could lead out of it and is left out."""
    return sorted(file for file in folder.rglob("*") if file.is_file() and not file.is_symlink())
