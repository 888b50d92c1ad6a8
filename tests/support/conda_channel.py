"""A conda channel made on disk: packages in both formats, with their index."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

PLACEHOLDER = "/opt/made/for/the/channel"


class Channel:
    """A channel of architecture-independent packages in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "noarch").mkdir(parents=True)
        self._index: dict[str, dict[str, dict[str, object]]] = {"packages": {}, "packages.conda": {}}
        self._write_index()

    @property
    def address(self) -> str:
        return self.folder.as_uri()

    def add(
        self, name: str, version: str, files: Mapping[str, str], *, depends: Sequence[str] = (), modern: bool = False
    ) -> Path:
        """Add a package (`modern`: a .conda file); the placeholder in its files becomes the folder it is put in."""
        about = {
            **{"name": name, "version": version, "build": "0", "build_number": 0, "depends": list(depends)},
            **{"subdir": "noarch", "noarch": "generic", "timestamp": 1_700_000_000_000},
        }
        content = {path: text.encode() for path, text in files.items()}
        info = {
            "info/index.json": json.dumps(about).encode(),
            "info/paths.json": json.dumps(
                {"paths_version": 1, "paths": [_path(path, data) for path, data in content.items()]}
            ).encode(),
            "info/files": "".join(f"{path}\n" for path in content).encode(),
        }
        stem = f"{name}-{version}-0"
        file = self.folder / "noarch" / (f"{stem}.conda" if modern else f"{stem}.tar.bz2")
        if modern:
            with zipfile.ZipFile(file, "w") as bundle:
                bundle.writestr("metadata.json", '{"conda_pkg_format_version": 2}')
                for part, members in (("pkg", content), ("info", info)):
                    packed = subprocess.run(
                        ["zstd", "-q", "-c"], input=_tar(members, ""), capture_output=True, check=True
                    )
                    bundle.writestr(f"{part}-{stem}.tar.zst", packed.stdout)
        else:
            file.write_bytes(_tar({**info, **content}, "bz2"))
        data = file.read_bytes()
        entry = about | {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
        self._index["packages.conda" if modern else "packages"][file.name] = entry
        self._write_index()
        return file

    def _write_index(self) -> None:
        index = {"info": {"subdir": "noarch"}, **self._index, "repodata_version": 1}
        (self.folder / "noarch/repodata.json").write_text(json.dumps(index))


def _path(path: str, data: bytes) -> dict[str, object]:
    entry: dict[str, object] = {"_path": path, "path_type": "hardlink"}
    entry |= {"sha256": hashlib.sha256(data).hexdigest(), "size_in_bytes": len(data)}
    if PLACEHOLDER.encode() in data:
        entry |= {"file_mode": "text", "prefix_placeholder": PLACEHOLDER}
    return entry


def _tar(members: Mapping[str, bytes], compression: str) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=f"w:{compression}") as archive:
        for name, data in members.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o755 if name.startswith("bin/") else 0o644
            archive.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def _zstd(data: bytes) -> bytes:
    return subprocess.run(["zstd", "-q", "-c"], input=data, capture_output=True, check=True).stdout
