"""A real registry of container images on a free loopback port, ended by its process id."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"


@dataclass(frozen=True)
class ImageRegistry:
    """A running registry; images are pushed over its own interface."""

    port: int
    folder: Path

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def push(self, name: str, tag: str, layers: Sequence[bytes], *, config: bytes = b'{"os": "linux"}') -> str:
        """Push an image and return the digest of its manifest."""
        parts = [self._push_blob(name, data) for data in (config, *layers)]
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": {"mediaType": "application/vnd.oci.image.config.v1+json", **parts[0]},
            "layers": [{"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", **part} for part in parts[1:]],
        }
        return self.push_manifest(name, tag, manifest)

    def push_manifest(self, name: str, tag: str, manifest: dict[str, Any]) -> str:
        """Push a manifest or an index and return its digest."""
        data = json.dumps(manifest).encode()
        self._send("PUT", f"/v2/{name}/manifests/{tag}", data, manifest["mediaType"])
        return f"sha256:{hashlib.sha256(data).hexdigest()}"

    def blob_file(self, digest: str) -> Path:
        """Return the file in which the registry keeps a part."""
        hexadecimal = digest.removeprefix("sha256:")
        return self.folder / "docker/registry/v2/blobs/sha256" / hexadecimal[:2] / hexadecimal / "data"

    def _push_blob(self, name: str, data: bytes) -> dict[str, Any]:
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        place = self._send("POST", f"/v2/{name}/blobs/uploads/")
        self._send("PUT", f"{place}&digest={digest}", data, "application/octet-stream")
        return {"digest": digest, "size": len(data)}

    def _send(self, method: str, target: str, data: bytes = b"", kind: str = "") -> str:
        url = target if target.startswith("http") else f"http://{self.host}{target}"
        request = urllib.request.Request(url, data, {"Content-Type": kind}, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return str(answer.headers.get("Location", ""))


@contextlib.contextmanager
def image_registry(folder: Path) -> Iterator[ImageRegistry]:
    """Run a registry with its data in `folder`; skip the test where the program is missing."""
    program = shutil.which("docker-registry")
    if program is None:
        pytest.skip("needs the program docker-registry")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = {
        "version": 0.1,
        "log": {"level": "error", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(folder)}},
        "http": {"addr": f"127.0.0.1:{port}"},
    }
    file = folder / "config.yml"
    file.write_text(json.dumps(settings))
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([program, "serve", str(file)], stdout=log, stderr=log)
    try:
        _wait(f"http://127.0.0.1:{port}/v2/", process, folder / "log")
        yield ImageRegistry(port, folder)
    finally:
        process.terminate()
        process.wait()


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.02)
    raise RuntimeError(f"the registry did not start: {log.read_text()[-500:]}")
