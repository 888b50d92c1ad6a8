"""What a user or group may still put on a file system, as the programs `quota` and `lfs quota` tell it."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from fairmile.base.commands import Runner
from fairmile.base.errors import FairmileError
from fairmile.base.lazy import lazy_pattern
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.quick_named_tuple import NamedTuple

_TIMEOUT_S = 5.0  # a file server that does not answer keeps `quota` waiting for most of a minute
_BLOCK_BYTES = 1024  # both programs count in KiB
_OWNER = lazy_pattern(r"Disk quotas for (user|group) .*\([ug]id ([0-9]+)\):")
# A file system's name may hold blanks, so the eight values are read from the right; -p makes each grace a number.
_ROW = lazy_pattern(r".*\S\s+([0-9]+)\*?\s+([0-9]+)\s+([0-9]+)\s+\d+\s+([0-9]+)\*?\s+([0-9]+)\s+([0-9]+)\s+\d+\s*")
# Values stand in brackets while some of the servers do not answer; a long name has a line of its own.
_LUSTRE_VALUE = r"\s+\[?([0-9]+)\]?\*?"
_LUSTRE_ROW = lazy_pattern(rf"/.*?{_LUSTRE_VALUE * 3}\s+\S+{_LUSTRE_VALUE * 3}\s+\S+\s*$", re.MULTILINE)
_OCTAL = lazy_pattern(r"\\([0-7]{3})")


@dataclass(frozen=True)
class Quota:
    """What one user or group has and may have on a file system; None is unlimited."""

    kind: Literal["user", "group"]
    id: int
    used_bytes: int
    limit_bytes: int | None
    used_files: int
    limit_files: int | None


class Mount(NamedTuple):
    """The file system that a folder lies on: where it is mounted, its type and its device or server."""

    point: str
    type: str
    source: str


class Quotas:
    """Asks for the quotas of folders; a program that is missing, fails or is slow means that none is known."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._silent: set[tuple[str, ...]] = set()

    def of(self, folder: Path) -> list[Quota]:
        """Return the quotas that count for a file which this user creates in the existing `folder`."""
        mount = mount_of(folder)
        user, group = os.getuid(), _group_of_new_files(folder)
        # A project's quota needs no question: the kernel shows it as the size of the file system.
        if mount.type == "lustre":
            quotas = [
                parse_lfs_quota(self._ask(["lfs", "quota", "-q", "-u", str(user), mount.point]), "user", user),
                parse_lfs_quota(self._ask(["lfs", "quota", "-q", "-g", str(group), mount.point]), "group", group),
            ]
            return [quota for quota in quotas if quota is not None]
        # -f alone keeps `quota` from asking the servers of all other mounts, of which one may be down.
        listed = parse_quota(self._ask(["quota", "-u", "-g", "-v", "-w", "-p", "-f", mount.point]))
        return [quota for quota in listed if quota.id == (user if quota.kind == "user" else group)]

    def _ask(self, argv: Sequence[str]) -> str:
        """Return what a program prints; one that gave no answer is not asked again."""
        question = tuple(argv)
        if question in self._silent:
            return ""
        try:
            # The exit code says nothing: it is 1 for who is over the quota.
            answer = self._runner.run(argv, env={"LC_ALL": "C"}, timeout_s=_TIMEOUT_S, check=False).stdout
        except FairmileError:
            answer = ""
        if not answer:
            self._silent.add(question)
        return answer


def parse_quota(text: str) -> list[Quota]:
    """Return what `quota -v -w -p -f MOUNT` prints; lines in any other form are passed over."""
    quotas: list[Quota] = []
    owner: tuple[Literal["user", "group"], int] | None = None
    for line in text.splitlines():
        if heading := _OWNER.match(line):
            owner = ("user" if heading[1] == "user" else "group"), int(heading[2])
        elif owner is not None and (row := _ROW.fullmatch(line)):
            quotas.append(_quota(*owner, row))
    return quotas


def parse_lfs_quota(text: str, kind: Literal["user", "group"], id: int) -> Quota | None:
    """Return what `lfs quota -q` prints for one user or group, or None when it prints anything else."""
    row = _LUSTRE_ROW.search(text)
    return _quota(kind, id, row) if row else None


def _quota(kind: Literal["user", "group"], id: int, row: re.Match[str]) -> Quota:
    blocks, soft_blocks, hard_blocks, files, soft_files, hard_files = map(int, row.groups())
    limit = _limit(soft_blocks, hard_blocks)
    return Quota(
        kind,
        id,
        blocks * _BLOCK_BYTES,
        None if limit is None else limit * _BLOCK_BYTES,
        files,
        _limit(soft_files, hard_files),
    )


def _limit(soft: int, hard: int) -> int | None:
    # What goes beyond the soft limit stops all writing a few days later, so it is no room for data.
    return min((limit for limit in (soft, hard) if limit), default=None)


def mount_of(folder: Path) -> Mount:
    """Return the file system that holds a folder; where the kernel does not tell, only its mount point is known."""
    path = os.path.realpath(folder)
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as stream:
            text = stream.read()
    except OSError:
        while not os.path.ismount(path):
            path = os.path.dirname(path)
        return Mount(path, "", "")
    return find_mount(text, path)


def find_mount(mountinfo: str, path: str) -> Mount:
    """Return the file system of an absolute path without links, from the text of /proc/PID/mountinfo."""
    best = Mount("/", "", "")
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields, rest = left.split(" "), right.split(" ")
        if len(fields) < 5 or len(rest) < 2:
            continue
        point = _unescaped(fields[4])
        # Of two file systems mounted on one folder the later one hides the other.
        if len(point) >= len(best.point) and (path == point or path.startswith(point.rstrip("/") + "/")):
            best = Mount(point, rest[0], _unescaped(rest[1]))
    return best


def _unescaped(text: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), text)


def _group_of_new_files(folder: Path) -> int:
    status = os.stat(folder)
    return status.st_gid if status.st_mode & stat.S_ISGID else os.getegid()
