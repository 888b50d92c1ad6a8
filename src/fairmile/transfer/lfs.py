"""Git LFS: small pointers in a repository stand for large files that a server holds under their sha256."""

from __future__ import annotations

import hashlib
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing, contextmanager
from dataclasses import field
from pathlib import Path
from typing import Any, Self

from fairmile.base.errors import Integrity, NotFound, SystemFailure, Transient, Unsupported
from fairmile.base.files import write_failure
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.quick_named_tuple import NamedTuple
from fairmile.transfer.credentials import shown_address
from fairmile.transfer.http import Client, pause_s

OnBytes = Callable[[int], None]
POINTER_BYTES = 1024  # by the specification a pointer is shorter
_POINTER = re.compile(
    rb"version https://(?:git-lfs\.github\.com|hawser\.github\.com)/spec/v1\n"
    rb"((?:ext-[0-9]-[^\n]+\n)*)oid sha256:([0-9a-f]{64})\nsize (0|[1-9][0-9]{0,17})\n?"
)
_MEDIA_TYPE = "application/vnd.git-lfs+json"
_AT_ONCE = 8
_ASKED_TOGETHER = 100
_BYTES_TOGETHER = 4 << 30
_BUFFER = 1 << 20


class Pointer(NamedTuple):
    """The content that a pointer stands for."""

    sha256: str
    size_bytes: int


def read_pointer(data: bytes, path: str) -> Pointer | None:
    """Return what a file points to, or None when it is no pointer."""
    match = _POINTER.fullmatch(data)
    if match is None:
        return None
    if match[1]:
        raise Unsupported(
            f"{path} is a Git LFS pointer with an extension, which would have to run a program",
            hint="fetch it with git-lfs itself",
        )
    return Pointer(match[2].decode(), int(match[3]))


class Action(NamedTuple):
    """Where an object is available now."""

    url: str
    headers: Mapping[str, str]


@dataclass
class LfsServer:
    """A server that speaks the LFS batch API at `url`; `headers` are what it wants to see there."""

    url: str
    client: Client
    headers: Mapping[str, str] = field(default_factory=dict)
    retries: int = 5

    def bring(self, wanted: Mapping[Pointer, str], place: Path, on_bytes: OnBytes) -> None:
        """Bring each object, given with the path of a file that it is the content of, to `place`/SHA256, verified.

        What an earlier attempt left there is used.
        """
        stopping, telling = threading.Event(), threading.Lock()

        def tell(count: int) -> None:
            with telling:
                on_bytes(count)

        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="fairmile-lfs") as pool:
            try:
                for group in _groups([pointer for pointer in wanted if not (place / pointer.sha256).exists()]):
                    actions = self._actions(group, wanted)
                    running = [
                        pool.submit(self._bring_one, pointer, wanted[pointer], action, place, tell, stopping)
                        for pointer, action in actions.items()
                    ]
                    for each in as_completed(running):
                        each.result()
            finally:
                stopping.set()

    def _actions(self, pointers: Sequence[Pointer], wanted: Mapping[Pointer, str]) -> dict[Pointer, Action]:
        question = {
            "operation": "download",
            "transfers": ["basic"],
            "objects": [{"oid": pointer.sha256, "size": pointer.size_bytes} for pointer in pointers],
            "hash_algo": "sha256",
        }
        headers = {**self.headers, "Accept": _MEDIA_TYPE, "Content-Type": _MEDIA_TYPE}
        answer = self._ask(question, headers)
        objects = answer.get("objects") if isinstance(answer, Mapping) else None
        by_name = {item.get("oid"): item for item in objects or () if isinstance(item, Mapping)}
        return {pointer: self._action(pointer, wanted[pointer], by_name.get(pointer.sha256)) for pointer in pointers}

    def _ask(self, question: Mapping[str, Any], headers: Mapping[str, str]) -> Any:
        attempt = 0
        while True:
            try:
                return self.client.post_json(f"{self.url}/objects/batch", question, headers)
            except Transient as error:
                attempt += 1
                if attempt >= self.retries:
                    raise
                time.sleep(pause_s(attempt, error))

    def _action(self, pointer: Pointer, path: str, item: Mapping[str, Any] | None) -> Action:
        where = shown_address(self.url)
        error = item.get("error") if item is not None else {"code": 404, "message": "no entry for it"}
        if isinstance(error, Mapping):
            text = f"{where} has no content for {path} (sha256 {pointer.sha256}): {error.get('message', 'no reason')}"
            if error.get("code") in (404, 410):
                raise NotFound(text, hint="whoever pushed the repository must also `git lfs push --all`")
            raise SystemFailure(text)
        actions = (item or {}).get("actions")
        action = actions.get("download") if isinstance(actions, Mapping) else None
        url = action.get("href") if isinstance(action, Mapping) else None
        headers = action.get("header") or {} if isinstance(action, Mapping) else None
        if not isinstance(url, str) or not isinstance(headers, Mapping):
            raise SystemFailure(f"{where} does not say where the content of {path} is available")
        return Action(url, {str(name): str(value) for name, value in headers.items()})

    def _bring_one(
        self, pointer: Pointer, path: str, action: Action, place: Path, on_bytes: OnBytes, stopping: threading.Event
    ) -> None:
        failures = 0
        while not stopping.is_set():
            with _Part(place / f"{pointer.sha256}.part") as part:
                had = part.size_bytes
                try:
                    self._receive(pointer, path, action, part, on_bytes, stopping)
                    if part.is_checked:
                        part.move(place / pointer.sha256)
                    return
                except Transient as error:
                    failures = 0 if part.size_bytes > had else failures + 1
                    if failures >= self.retries:
                        raise
                    stopping.wait(pause_s(failures, error))
            action = self._actions([pointer], {pointer: path})[pointer]

    def _receive(
        self, pointer: Pointer, path: str, action: Action, part: _Part, on_bytes: OnBytes, stopping: threading.Event
    ) -> None:
        """Bring what is missing of one object and check the whole; it is not checked when stopped before the end."""
        size, where = pointer.size_bytes, shown_address(action.url)
        resumed = part.size_bytes > 0
        if part.size_bytes < size:
            with closing(self.client.open(action.url, part.size_bytes, None, headers=action.headers)) as body:
                if body.start != part.size_bytes:
                    part.restart()
                buffer = memoryview(bytearray(_BUFFER))
                while part.size_bytes <= size and (count := body.readinto(buffer)):
                    if stopping.is_set():
                        return
                    part.append(buffer[:count])
                    on_bytes(count)
        if part.size_bytes < size:
            raise Transient(f"{where} ended {size - part.size_bytes:,} bytes early")
        part.is_checked = part.size_bytes == size and part.digest.hexdigest() == pointer.sha256
        if not part.is_checked:
            is_longer = part.size_bytes > size
            part.restart()
            if resumed:
                raise Transient(f"the partial file of {path} is damaged")
            raise Integrity(
                f"{where} sent other content for {path}: "
                + (f"more than its {size:,} bytes" if is_longer else f"its sha256 is not {pointer.sha256}"),
                hint="the LFS server has other data than the repository; ask its owner",
            )


class _Part:
    """The file that an object is received in, with the digest of what it holds."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.is_checked = False
        self.digest = hashlib.sha256()
        self.size_bytes = 0
        with self._guarded():
            self._stream = open(path, "a+b", buffering=0)  # noqa: SIM115  __exit__ closes it
            self._stream.seek(0)
        while block := self._stream.read(_BUFFER):
            self.digest.update(block)
            self.size_bytes += len(block)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def append(self, data: memoryview) -> None:
        self.digest.update(data)
        self.size_bytes += len(data)
        with self._guarded():
            while data:
                data = data[self._stream.write(data) :]

    def restart(self) -> None:
        with self._guarded():
            self._stream.truncate(0)
        self.digest, self.size_bytes = hashlib.sha256(), 0

    def move(self, target: Path) -> None:
        with self._guarded():
            os.replace(self._path, target)

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise write_failure(str(self._path), error) from error


def _groups(pointers: Sequence[Pointer]) -> Iterator[list[Pointer]]:
    """Yield groups to ask for together, small enough that the addresses given for them do not run out meanwhile."""
    group: list[Pointer] = []
    for pointer in pointers:
        group.append(pointer)
        if len(group) == _ASKED_TOGETHER or sum(each.size_bytes for each in group) >= _BYTES_TOGETHER:
            yield group
            group = []
    if group:
        yield group
