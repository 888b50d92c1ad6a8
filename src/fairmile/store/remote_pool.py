"""A pool folder on another machine, reached with the system's ssh and rsync; nothing of ours is needed there."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path

from fairmile.base.commands import Runner, Ssh
from fairmile.base.errors import Integrity, SystemFailure, Transient, Unsupported
from fairmile.store.digest_set import DigestSet

_AT_ONCE = 20_000
_DIGEST = re.compile(r"[0-9a-f]{64}")
_PACK = re.compile(r"pack ([0-9a-f]{64}\.pack)")
_HEX_LINE = re.compile(r"( [0-9a-f]{2}){16} *")
_LINES_OF_RECORD = 3  # of 16 bytes each: the digest in two, offset and size in the third
_LOST_CONNECTION = frozenset({10, 12, 30, 35, 255})

# Each gets the folder as $1. A group that shares the folder may use what is made in it.
_BEGIN = """
mkdir "$1" 2>/dev/null
cd "$1" || exit 3
if [ -g . ] && [ -n "$(find . -prune -perm -g+w)" ]; then umask 002; fi
"""
_PREPARE = _BEGIN + "mkdir -p incoming && df -Pk . | tail -n 1"
_LACKING = (
    'cd "$1" 2>/dev/null || { cat; exit 0; }; '
    'while read -r d; do r=${d#??}; [ -f "objects/${d%"$r"}/$r" ] || echo "$d"; done'
)
_PACKED = """
cd "$1" 2>/dev/null || exit 0
for p in packs/*.pack; do
  [ -f "$p" ] || continue
  n=$(tail -c 16 "$p" | head -c 8 | od -An -v -tx1 | tr -d ' \\n')
  n=$(printf %d "0x$n") || continue
  echo "pack ${p#packs/}"
  tail -c $((16 + 48 * n)) "$p" | head -c $((48 * n)) | od -An -v -tx1
done
"""
# Everything is verified before anything is published, and what others refer to is published last.
_PUBLISH = (
    _BEGIN
    + """
command -v sha256sum >/dev/null || exit 5
cd "incoming/$2" || exit 3
cat > sums || exit 3
sha256sum -c sums > checked 2>/dev/null
if [ $? -ne 0 ]; then
  grep ': FAILED' checked | while IFS= read -r line; do rm -f "${line%%: FAILED*}"; echo "$line"; done
  exit 4
fi
rm -f sums checked
for kind in objects packs trees refs; do
  [ -d "$kind" ] || continue
  find "$kind" -type f | while IFS= read -r file; do
    mkdir -p "../../${file%/*}" || exit 3
    if [ "$kind" = refs ]; then chmod u+w "$file"; else chmod 444 "$file"; fi
    touch -m "$file"
    mv -f "$file" "../../$file" || exit 3
  done || exit 3
  sync -f "../../$kind" 2>/dev/null || sync
done
cd ../.. && rm -rf "incoming/$2"
"""
)


class RemotePool:
    """The pool in `folder` on `ssh.host`."""

    def __init__(self, ssh: Ssh, folder: str, runner: Runner) -> None:
        self.ssh = ssh
        self.folder = folder
        self._runner = runner

    def __str__(self) -> str:
        return f"{self.ssh.host}:{self.folder}"

    def prepare(self) -> int | None:
        """Make the folder where only it is missing and return how many bytes are free; None when nobody can tell."""
        fields = self._sh(_PREPARE).split()
        return int(fields[3]) * 1024 if len(fields) > 3 and fields[3].isdigit() else None

    def lacking(self, digests: Iterable[str]) -> Iterator[str]:
        """Yield the digests that are not there as files of their own."""
        rest = iter(digests)
        while chunk := list(itertools.islice(rest, _AT_ONCE)):
            lines = self._sh(_LACKING, input="".join(f"{digest}\n" for digest in chunk)).splitlines()
            yield from (line for line in lines if _DIGEST.fullmatch(line))

    def packed(self, wanted: DigestSet) -> dict[str, str]:
        """Return the pack that holds each of the digests that are wanted and packed there."""
        packs: dict[str, str] = {}
        pack = ""
        record: list[str] = []

        def read(line: str) -> None:
            nonlocal pack
            if begin := _PACK.fullmatch(line):
                pack = begin[1]
                record.clear()
            elif _HEX_LINE.fullmatch(line):
                record.append(line.replace(" ", ""))
                if len(record) == _LINES_OF_RECORD:
                    digest = record[0] + record[1]
                    record.clear()
                    if digest in wanted:
                        packs[digest] = pack

        self.ssh.run(["sh", "-c", _PACKED, "sh", self.folder], on_line=read)
        return packs

    def bring(self, paths: Iterable[str], folder: Path) -> None:
        """Bring files, named as seen from the pool's folder, into a folder here; what already exists is kept."""
        folder.mkdir(parents=True, exist_ok=True)
        names = "".join(f"{path}\n" for path in paths)
        self._rsync(["--files-from=-", f"{self}/", f"{folder}/"], input=names)

    def bring_names(self, folder: Path) -> None:
        """Bring the names of the pool into a folder here."""
        folder.mkdir(parents=True, exist_ok=True)
        self._rsync(["--recursive", "--include=/refs/***", "--exclude=*", f"{self}/", f"{folder}/"])

    def receive(self, stage: Path, name: str, sums: Iterable[tuple[str, str]]) -> None:
        """Send a folder laid out like a pool, have every file verified there, then publish all.

        `sums` are the sha256 and the path of each file. What came before an interruption is not sent again. The
        folder was prepared before.
        """
        self._rsync(["--recursive", "--copy-links", "--omit-dir-times", f"{stage}/", f"{self}/incoming/{name}/"])
        self._sh(_PUBLISH, name, input="".join(f"{digest}  {path}\n" for digest, path in sums))

    def _sh(self, script: str, *arguments: str, input: str = "") -> str:
        result = self.ssh.run(["sh", "-c", script, "sh", self.folder, *arguments], input=input, check=False)
        if result.exit_code == 4:
            raise Integrity(
                f"what arrived in {self} is not what was sent: {' '.join(result.stdout.split())[:200]}",
                hint="nothing was published; try again",
            )
        if result.exit_code == 5:
            raise Unsupported(f"no program 'sha256sum' on {self.ssh.host}", hint="install coreutils there")
        if result.exit_code:
            reason = (result.stderr.strip().splitlines() or ["no reason was given"])[-1]
            raise SystemFailure(f"cannot use {self}: {reason}", hint="check that you may write in that folder")
        return result.stdout

    def _rsync(self, arguments: list[str], input: str | None = None) -> None:
        shell = shlex.join(self.ssh.argv("")[:-3])  # without "--", host and command, which rsync adds
        options = ["--secluded-args", "--times", "--partial", f"--rsh={shell}"]
        result = self._runner.run(["rsync", *options, *arguments], input=input, check=False)
        if result.exit_code == 0:
            return
        reason = "; ".join(result.stderr.strip().splitlines()[-3:]) or "no reason was given"
        kind = Transient if result.exit_code in _LOST_CONNECTION else SystemFailure
        raise kind(
            f"rsync with {self} ended with exit code {result.exit_code}: {reason}",
            hint="rsync must be installed on both sides; try again: files that arrived are kept",
        )
