"""Objects: bytes named by their sha256, read-only, as single files or together in packs, below one pool's folder."""

from __future__ import annotations

import errno
import io
import itertools
import os
import shutil
import stat
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Protocol, Self

from fairmile.base.digest import large_sha256, sha256_file, sha256_hex
from fairmile.base.errors import FairmileError, Integrity, NotFound, SystemFailure, UsageError
from fairmile.base.files import sync_folder, write_failure
from fairmile.base.lazy import lazy_pattern
from fairmile.base.quick_dataclass import dataclass
from fairmile.store.packs import MAX_PACK_BYTES, MAX_PACK_OBJECTS, Pack, PackEntry, Packs, PackWriter, write_all

PACK_FROM = 16  # fewer small objects of one batch than this are kept as single files
_IS_SHA256 = lazy_pattern(r"[0-9a-f]{64}").fullmatch
_IS_REST = lazy_pattern(r"[0-9a-f]{62}").fullmatch
_CHUNK = 1 << 20
_LIST_FROM = 8
FANOUT = tuple(f"{byte:02x}" for byte in range(256))


class Readable(Protocol):
    """What bytes can be read from."""

    def read(self, size: int, /) -> bytes:
        """Return up to `size` bytes; none at the end."""
        ...


@dataclass(frozen=True)
class Damage:
    """An object whose bytes are not what its name says; without `sha256` the whole file at `path` is lost."""

    sha256: str
    path: Path
    reason: str


class Objects:
    """All bytes of one pool folder.

    Nothing is created before something is added, so a read-only pool can be read. Adding needs no lock: each file
    is written below `incoming`, brought to the disk and renamed, and the same name always means the same bytes.
    """

    def __init__(self, root: Path, *, pack_below_bytes: int = 64 << 10) -> None:
        self.root = root
        self.incoming = root / "incoming"
        self.pack_below_bytes = pack_below_bytes
        self._loose = os.path.join(root, "objects")
        self._packs = Packs(os.path.join(root, "packs"))

    def __contains__(self, sha256: object) -> bool:
        return isinstance(sha256, str) and self._has(sha256, refresh=True)

    def absent(self, digests: Iterable[str]) -> list[str]:
        """Return those of the digests that are not here; quicker than asking for one after the other."""
        left = [bytes.fromhex(digest) for digest in digests]
        try:
            for pack in self._packs.current():
                left = pack.lacking(left)
        except OSError:  # a pack was rewritten meanwhile
            self._packs.forget()
        absent = [each.hex() for each in left]
        if not os.path.isdir(self._loose):
            return absent
        listed = self._listed(absent)
        return [digest for digest in absent if digest not in listed and size_of(self._path(digest)) is None]

    def path(self, sha256: str) -> Path | None:
        """Return the file that holds exactly this object, or None when it is absent or packed."""
        path = self._path(sha256)
        return Path(path) if size_of(path) is not None else None

    def size(self, sha256: str) -> int | None:
        """Return the size of an object in bytes, or None when it is absent."""
        size = size_of(self._path(sha256))
        if size is None and (entry := self._packs.find(bytes.fromhex(sha256))) is not None:
            size = entry[1].size_bytes
        return size

    def open(self, sha256: str) -> BinaryIO:
        """Open an object for reading; NotFound when it is absent."""
        path = self._path(sha256)
        while True:
            try:
                return open(path, "rb")
            except FileNotFoundError:
                entry = self._packs.find(bytes.fromhex(sha256))
            except OSError as error:
                raise read_failure(path, error) from error
            if entry is None:
                raise NotFound(f"the object {sha256} is not in the pool {self.root}", hint="fetch it again")
            try:
                return io.BytesIO(entry[0].read(entry[1]))
            except FileNotFoundError:
                self._packs.forget()  # rewritten meanwhile: the object is in another pack now
            except OSError as error:
                raise read_failure(entry[0].path, error) from error

    def adopt(self, file: Path, sha256: str) -> None:
        """Make a complete file, whose digest the caller has verified, the object; `file` is gone afterwards.

        The file must be on the pool's file system. It takes the place of an object that already exists: its bytes
        were just verified, while those may have been damaged since.
        """
        target = self._path(sha256)
        if not file.is_file() or file.is_symlink():
            raise NotFound(f"{file} is not a file that could become the object {sha256}")
        with writing(target):
            seal(os.fspath(file))
            make_folder(self.root, os.path.dirname(target))
            publish(os.fspath(file), target)
            sync_folder(os.path.dirname(target))
            sync_folder(self._loose)

    def batch(self, *, anew: bool = False) -> Batch:
        """Return a block in which objects are added; they become visible together when it ends well.

        `anew` stores also what already exists, which may be damaged.
        """
        return Batch(self, anew=anew)

    def items(self) -> Iterator[tuple[str, int]]:
        """Yield every object's digest and size, each once, sorted."""
        for number, start in enumerate(FANOUT):
            sizes = {sha256: size for sha256, _, size in fanned_out(self._loose, (start,))}
            sizes.update((place.digest.hex(), place.size_bytes) for _, place in self._packed(number))
            yield from sorted(sizes.items())

    def remove(self, digests: Collection[str]) -> int:
        """Remove objects and return how many bytes of disk that gives back; absent ones are passed over.

        Files that are open stay readable. A pack is written anew without them, then the old one is removed; after a
        crash in between both are there, which does no harm.
        """
        if isinstance(digests, list | tuple):
            digests = frozenset(digests)
        freed = 0
        for sha256 in digests:
            path = self._path(sha256)
            with writing(path):
                freed += unlink(path)
        # Once more when another process wrote a pack anew meanwhile.
        while touched := [pack for pack in self._packs.current() if _holds_any(pack, digests)]:
            # The smallest first: what they give back makes room for writing the larger ones anew.
            for pack in sorted(touched, key=lambda pack: pack.size_bytes):
                freed += self._rewrite([pack], digests)
        return freed

    def verify(self, on_bytes: Callable[[int], None] | None = None) -> Iterator[Damage]:
        """Read every byte and yield what is damaged; a file that its owner could write to is made read-only again."""
        for sha256, path, _ in fanned_out(self._loose):
            damage = _verify_file(sha256, path, on_bytes)
            if damage is not None:
                yield damage
        for broken, reason in self._packs.broken().items():
            yield Damage("", Path(broken), reason)
        for pack in self._packs.current():
            try:
                _mend_mode(pack.path)
                if pack.index_sha256() == Path(pack.path).stem:
                    yield from _verify_pack(pack, on_bytes)
                    continue
                self._save_from(pack)
                reason = "its index is damaged; what could still be read from it was stored anew"
            except FileNotFoundError:  # rewritten or removed meanwhile
                continue
            except OSError as error:
                reason = f"it cannot be read: {error.strerror}"
            yield Damage("", Path(pack.path), reason)

    def _path(self, sha256: str) -> str:
        return fanned_path(self._loose, sha256)

    def _listed(self, digests: Iterable[str]) -> set[str]:
        """Return objects that lie in the folders in which many of the digests would; it need not be all of them.

        To list a folder is quicker than to ask for its files, and on a file server is one question instead of many,
        as long as it does not hold far more than these.
        """
        listed: set[str] = set()
        for start, count in Counter(digest[:2] for digest in digests).items():
            if count >= _LIST_FROM:
                with suppress(OSError), os.scandir(f"{self._loose}/{start}") as entries:
                    listed.update(start + each.name for each in itertools.islice(entries, 4 * count) if each.is_file())
        return listed

    def _has(self, sha256: str, *, refresh: bool = False) -> bool:
        # `access` costs half of a `stat` that fails, and this is asked for each of ten thousand files.
        if os.access(self._path(sha256), os.F_OK):
            return True
        return self._packs.find(bytes.fromhex(sha256), refresh=refresh) is not None

    def _packed(self, byte: int) -> list[tuple[Pack, PackEntry]]:
        while True:
            try:
                return [(pack, place) for pack in self._packs.current() for place in pack.places(byte, byte)]
            except FileNotFoundError:
                self._packs.forget()

    def _rewrite(self, packs: list[Pack], unwanted: Collection[str] = ()) -> int:
        """Store what packs hold, without the unwanted objects, anew, and return how many bytes that gives back."""
        freed = 0
        try:
            with Batch(self, anew=True) as batch:
                for pack in packs:
                    for place in sorted(pack.places(), key=lambda place: place.offset):
                        if (sha256 := place.digest.hex()) not in unwanted:
                            with suppress(Integrity):  # it lies beyond the end of a damaged pack: it is lost already
                                batch._add_small(sha256, pack.read(place))
            freed -= batch.stored_bytes
            with writing(self._packs.folder):
                # A pack that holds all that the others hold comes out as it was.
                freed += sum(unlink(pack.path) for pack in packs if os.path.basename(pack.path) not in batch.packs)
                sync_folder(self._packs.folder)
        except FileNotFoundError:
            pass  # another process is at the same work: its packs hold what these held
        finally:
            self._packs.forget()
        return freed

    def _save_from(self, pack: Pack) -> None:
        """Store anew what a pack with a damaged index still holds, where the pool can be written."""
        with suppress(SystemFailure), Batch(self, anew=True) as batch:
            for place in pack.places():
                with suppress(Integrity):
                    data = pack.read(place)
                    if sha256_hex(data) == place.digest.hex():
                        batch._add_small(place.digest.hex(), data)

    def _merge_small_packs(self) -> None:
        """Keep packs few, so that a search asks few of them: sixteen small ones become one of the next size."""
        if os.stat(self._packs.folder).st_mode & stat.S_ISVTX:
            return  # the old ones could not be removed
        for times in (1, 16):
            small = [
                pack
                for pack in self._packs.current()
                if pack.size_bytes < times * MAX_PACK_BYTES // 256 and pack.count < times * MAX_PACK_OBJECTS // 256
            ]
            room = os.statvfs(self._packs.folder)
            # Nobody reserved the room that both the old and the new ones need for a moment.
            if len(small) >= 16 and sum(pack.size_bytes for pack in small) < room.f_bavail * room.f_frsize // 8:
                self._rewrite(small)


class Batch:
    """Objects added together, from any number of threads; none is visible before the block ends well.

    Small ones go into packs, as long as there are at least PACK_FROM. What already exists is not stored again.
    All of it lies in one folder below `incoming` until the end; an exception drops all.
    """

    def __init__(self, objects: Objects, *, anew: bool = False) -> None:
        self.stored_bytes = 0
        self.packs: set[str] = set()
        self._objects = objects
        self._anew = anew  # store also what already exists
        self._folder = os.path.join(objects.incoming, f"batch-{os.urandom(8).hex()}")
        self._numbers = itertools.count()
        self._known: list[Pack] = []
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._at_work = 0  # how many threads are writing to packs
        self._writer: PackWriter | None = None
        self._ended: list[tuple[PackWriter, Pack]] = []
        self._failure: FairmileError | None = None

    def __enter__(self) -> Self:
        self._known = self._objects._packs.current()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._idle:
            failure, self._failure = self._failure, self._failure or UsageError("the batch has ended")
            # No file may be closed under a thread that writes to it: the number could mean another file by then.
            self._idle.wait_for(lambda: self._at_work == 0)
        try:
            if kind is None and failure is not None:
                raise failure
            if kind is None:
                with writing(self._folder):
                    self._commit()
        finally:
            for writer, _ in self._ended:
                writer.close()
            if self._writer is not None:
                self._writer.close()
            shutil.rmtree(self._folder, ignore_errors=True)
        if kind is None and self.packs and not self._anew:
            with suppress(OSError):  # the batch is safe; merging can wait for the next one
                self._objects._merge_small_packs()

    def add(self, data: bytes, sha256: str | None = None) -> str:
        """Add an object and return its digest; with `sha256` the caller has computed it already."""
        if sha256 is None:
            sha256 = sha256_hex(data)
        if not self._anew and self._objects._has(sha256):
            return sha256
        if len(data) < self._objects.pack_below_bytes:
            self._add_small(sha256, data)
        else:
            self._check_open()
            self._add_large(iter((data,)), sha256)
        return sha256

    def add_stream(self, stream: Readable) -> tuple[str, int]:
        """Add all that a stream holds, digested while it is written, and return its digest and size."""
        limit = self._objects.pack_below_bytes
        head = bytearray()
        while len(head) < limit:
            chunk = stream.read(max(_CHUNK, limit) - len(head))
            if not chunk:
                return self.add(bytes(head)), len(head)
            head += chunk
        self._check_open()
        rest = iter(lambda: stream.read(_CHUNK), b"")
        return self._add_large(itertools.chain((bytes(head),), rest))

    def _check_open(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _add_small(self, sha256: str, data: bytes) -> None:
        digest = bytes.fromhex(sha256)
        try:
            with self._lock:
                self._check_open()
                writer = self._writer
                if writer is not None and digest in writer:
                    return
                if any(pack.find(digest) for _, pack in self._ended):
                    return
                if writer is None or not writer.has_room(len(data)):
                    writer = self._next_writer()
                to_write = writer.add(digest, data, keep=PACK_FROM)
                if to_write is None:
                    return
                self._at_work += 1
            try:
                writer.write(*to_write)
            finally:
                with self._idle:
                    self._at_work -= 1
                    self._idle.notify_all()
        except FairmileError:
            raise
        except OSError as error:
            # The pack may have a hole now where other threads' objects should be: the whole batch is lost.
            self._failure = write_failure(self._folder, error)
            raise self._failure from error

    def _next_writer(self) -> PackWriter:
        if self._writer is not None:
            self._end_writer(self._writer)
        make_folder(self._objects.root, self._folder)
        self._writer = PackWriter(f"{self._folder}/{next(self._numbers)}.pack")
        return self._writer

    def _end_writer(self, writer: PackWriter) -> None:
        writer.end()
        self._ended.append((writer, Pack(writer.path)))
        self._writer = None

    def _add_large(self, chunks: Iterator[bytes], sha256: str | None = None) -> tuple[str, int]:
        """Write one object into a file of its own, which bears its digest as soon as it is complete."""
        path = f"{self._folder}/{next(self._numbers)}"
        with writing(path):
            make_folder(self._objects.root, self._folder)
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            digest, size = large_sha256(), 0
            for chunk in chunks:
                if sha256 is None:
                    digest.update(chunk)
                with writing(path):
                    write_all(fd, chunk, size)
                size += len(chunk)
            sha256 = sha256 or digest.hexdigest()
            with writing(path):
                if not self._anew and self._objects._has(sha256):
                    os.unlink(path)
                else:
                    os.fchmod(fd, 0o444)
                    os.fdatasync(fd)
                    os.rename(path, f"{self._folder}/{sha256}")
        except BaseException:
            with suppress(OSError):
                os.unlink(path)
                if self._failure is not None:  # the block has ended meanwhile, and could not remove the folder
                    os.rmdir(self._folder)
            raise
        finally:
            os.close(fd)
        return sha256, size

    def _commit(self) -> None:
        writer = self._writer
        if writer is not None and len(writer) < PACK_FROM and not self._ended:
            for sha256, data in writer.in_memory():
                self._add_large(iter((data,)), sha256)
        elif writer is not None:
            self._end_writer(writer)
        for writer, _ in self._ended:
            writer.sync()
        self._publish_files()
        self._publish_packs()

    def _publish_files(self) -> None:
        try:
            names = [name for name in os.listdir(self._folder) if _IS_SHA256(name)]
        except FileNotFoundError:
            return
        folders: set[str] = set()
        for name in names:
            target = self._objects._path(name)
            folder = os.path.dirname(target)
            with writing(target):
                if folder not in folders:
                    make_folder(self._objects.root, folder)
                    folders.add(folder)
                self.stored_bytes += publish(f"{self._folder}/{name}", target)
        for folder in folders:
            sync_folder(folder)
        if folders:
            sync_folder(self._objects._loose)

    def _publish_packs(self) -> None:
        if not self._ended:
            return
        packs = self._objects._packs
        make_folder(self._objects.root, packs.folder)
        others_came = not self._anew and packs.current() != self._known
        for writer, pack in self._ended:
            if others_came and all(self._objects._has(place.digest.hex()) for place in pack.places()):
                continue
            self.stored_bytes += publish(writer.path, f"{packs.folder}/{writer.name}")
            self.packs.add(writer.name)
        sync_folder(packs.folder)
        packs.forget()


def open_shared(path: Path, flags: int) -> int:
    """Open a file, made where it is missing, that the group may go on with where it may use the folder."""
    mode = path.parent.stat().st_mode
    if mode & stat.S_ISGID and mode & stat.S_IWGRP and not os.path.lexists(path):
        # Made aside: were we killed before the change of mode, the others could not go on.
        aside = path.with_name(f".{os.urandom(8).hex()}")
        fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            os.fchmod(fd, 0o664)
        finally:
            os.close(fd)
        os.rename(aside, path)
    # Others of the group may write there too: a link of theirs must not lead to a file of ours.
    return os.open(path, flags | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)


def make_folder(root: str | os.PathLike[str], folder: str | os.PathLike[str]) -> None:
    """Make a folder at or below `root` that the pool's group may use where it may use `root`."""
    if os.path.isdir(folder):
        return
    os.makedirs(root, exist_ok=True)
    mode = stat.S_IMODE(os.stat(root).st_mode)
    path = os.fspath(root)
    for part in os.path.relpath(folder, root).split("/"):
        path = os.path.join(path, part)
        try:
            os.mkdir(path)
        except FileExistsError:
            continue
        if mode & stat.S_ISGID and mode & stat.S_IWGRP:
            os.chmod(path, mode)


def publish(file: str, target: str) -> int:
    """Move a complete file to its name, over what is there, and return its size."""
    size = os.lstat(file).st_size
    try:
        os.rename(file, target)
    except FileNotFoundError:
        if size_of(target) != size:  # else it was renamed and only NFS's reply got lost
            raise
    return size


@contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn what the system says while `path` is written into an error that says what to do."""
    try:
        yield
    except FairmileError:
        raise
    except OSError as error:
        if error.errno == errno.EXDEV:
            raise UsageError(f"cannot move a file to {path}: it is on another file system") from error
        raise write_failure(os.fspath(path), error) from error


def seal(path: str) -> None:
    """Make a complete file read-only and bring it to the disk."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _make_read_only(fd)
        os.fdatasync(fd)
    finally:
        os.close(fd)


def _make_read_only(fd: int) -> None:
    status = os.fstat(fd)
    # Only the owner may change the mode; what another user of the group owns is used as it is.
    if stat.S_IMODE(status.st_mode) != 0o444 and status.st_uid == os.geteuid():
        os.fchmod(fd, 0o444)


def size_of(path: str) -> int | None:
    """Return the size of a file, or None when there is none."""
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return None
    except OSError as error:
        raise read_failure(path, error) from error


def unlink(path: str) -> int:
    """Remove a file and return how many bytes of disk that gives back; an absent one gives none."""
    try:
        status = os.lstat(path)
        os.unlink(path)
    except FileNotFoundError:
        return 0
    return status.st_size if status.st_nlink == 1 else 0


def read_failure(path: str, error: OSError) -> SystemFailure:
    """Return the error to raise when a file cannot be read."""
    return SystemFailure(f"cannot read {path}: {error.strerror}", hint="ask its owner for access")


def fanned_path(folder: str, sha256: str) -> str:
    """Return where a file lies in a folder under its digest."""
    if not _IS_SHA256(sha256):
        raise UsageError(f"{sha256!r} is not a sha256", hint="a sha256 has 64 hex digits in lower case")
    return f"{folder}/{sha256[:2]}/{sha256[2:]}"


def fanned_out(folder: str, starts: Iterable[str] = FANOUT) -> Iterator[tuple[str, str, int]]:
    """Yield digest, path and size of each file that lies in a folder under its digest, sorted."""
    for start in starts:
        try:
            names = sorted(filter(_IS_REST, os.listdir(f"{folder}/{start}")))
        except FileNotFoundError:
            continue
        except OSError as error:
            raise read_failure(f"{folder}/{start}", error) from error
        for name in names:
            path = f"{folder}/{start}/{name}"
            size = size_of(path)
            if size is not None:
                yield start + name, path, size


def _verify_file(sha256: str, path: str, on_bytes: Callable[[int], None] | None) -> Damage | None:
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            return Damage(sha256, Path(path), "it is not a file")
        _mend_mode(path)
        actual = sha256_file(path, on_bytes=on_bytes)
    except FileNotFoundError:  # removed meanwhile
        return None
    except OSError as error:
        return Damage(sha256, Path(path), f"it cannot be read: {error.strerror}")
    return None if actual == sha256 else Damage(sha256, Path(path), f"its bytes have the sha256 {actual}")


def _mend_mode(path: str) -> None:
    with suppress(OSError), open(path, "rb") as stream:  # a read-only pool is verified as it is
        _make_read_only(stream.fileno())


def _holds_any(pack: Pack, digests: Collection[str]) -> bool:
    try:
        if len(digests) < pack.count:
            return any(pack.find(bytes.fromhex(sha256)) is not None for sha256 in digests)
        return any(place.digest.hex() in digests for place in pack.places())
    except FileNotFoundError:
        return False


def _verify_pack(pack: Pack, on_bytes: Callable[[int], None] | None) -> Iterator[Damage]:
    for place in sorted(pack.places(), key=lambda place: place.offset):
        sha256 = place.digest.hex()
        try:
            actual = sha256_hex(pack.read(place))
        except FileNotFoundError:
            raise
        except (OSError, Integrity) as error:
            yield Damage(sha256, Path(pack.path), f"it cannot be read: {error}")
            continue
        if actual != sha256:
            yield Damage(sha256, Path(pack.path), f"its bytes have the sha256 {actual}")
        if on_bytes is not None:
            on_bytes(place.size_bytes)
