"""What lies elsewhere, and what a fetcher must be able to do about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from fairmile.base.commands import Runner
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.quick_named_tuple import NamedTuple
from fairmile.transfer.credentials import Credentials
from fairmile.transfer.settings import Settings

if TYPE_CHECKING:
    from fairmile.base.digest import Checksum


@dataclass(frozen=True)
class Remote:
    """One file elsewhere, as far as it is known before its bytes come.

    `path` is where it stands within its asset, with '/'; it is not trusted before `safe_join`. `validator` is a
    text that changes when the bytes do (a strong ETag, or size and time); empty where the source offers none.
    `mode` is 0o644, 0o755 or 0o120000 as in a manifest.
    """

    address: str
    path: str
    size_bytes: int | None = None
    checksums: tuple[Checksum, ...] = ()
    validator: str = ""
    mode: int = 0o644
    headers: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False, compare=False)


class Body(Protocol):
    """An open stream of bytes.

    `start` is the offset of its first byte and `total_bytes` the whole file's size. `is_whole` says that the source
    sends the file to its end whatever was asked for.
    """

    start: int
    total_bytes: int | None
    validator: str
    is_whole: bool

    def readinto(self, buffer: memoryview) -> int:
        """Fill the buffer as far as bytes are there and return how many; 0 at the end."""
        ...

    def interrupt(self) -> None:
        """Make a `readinto` that waits in another thread end soon, with an error or at the end."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class RangeFetcher(Protocol):
    """Reads any byte range of a file, so that several connections and sources can share it."""

    def find(self, address: str) -> list[Remote]:
        """Return the files that an address means: one, or all below a folder; NotFound when there is none."""
        ...

    def open(self, remote: Remote, start: int, stop: int | None) -> Body:
        """Open the bytes from `start` up to, without, `stop` (None: to the end).

        A source that cannot start there answers from byte 0 and says so in `Body.start`. Transient means that a
        retry makes sense; any other FairmileError is final for this source.
        """
        ...


@runtime_checkable
class FolderFetcher(Protocol):
    """Brings everything behind an address into a folder, with a program or a service of its own."""

    def find(self, address: str) -> list[Remote]:
        """Return what is there as far as it can be told beforehand; sizes and checksums may be unknown."""
        ...

    def bring(self, address: str, folder: Path, on_bytes: Callable[[int], None]) -> None:
        """Fill the empty or half-filled `folder`; `on_bytes` gets the number of bytes that came."""
        ...


class Context(NamedTuple):
    """What a fetcher is given: the environment, programs, credentials and settings. No fetcher reads os.environ."""

    environ: Mapping[str, str]
    runner: Runner
    credentials: Credentials
    settings: Settings
