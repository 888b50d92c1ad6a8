"""docker: against a real registry, and a local server for the logins of others."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import os
import platform
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from busybox_image import make_image
from image_registry import INDEX, MANIFEST, ImageRegistry, image_registry
from replay import Replay, Reply, context, read_all

from fairmile.base.errors import Integrity, NotFound, UsageError
from fairmile.transfer.fetchers.docker import Docker, Image, parse_address
from fairmile.workspace import Workspace

LAYER = gzip.compress(b"a layer of an image", mtime=0)
HERE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
DIGEST = f"sha256:{'1f' * 32}"


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ImageRegistry]:
    with image_registry(tmp_path_factory.mktemp("registry")) as running:
        yield running


@pytest.fixture
def fetcher(tmp_path: Path) -> Iterator[Docker]:
    one = Docker(context({"HOME": str(tmp_path), "PATH": f"{tmp_path}:{os.environ['PATH']}"}))
    yield one
    one.close()


@pytest.mark.parametrize(
    "address, image",
    [
        ("docker://alpine", Image("registry-1.docker.io", "library/alpine", "latest")),
        ("docker://docker.io/nvidia/cuda:12.4", Image("registry-1.docker.io", "nvidia/cuda", "12.4")),
        ("docker://localhost:5000/waves", Image("localhost:5000", "waves", "latest")),
        (f"docker://ghcr.io/a/b:1@{DIGEST}", Image("ghcr.io", "a/b", DIGEST)),
        ("docker://quay.io/a/b:1?platform=linux/arm64", Image("quay.io", "a/b", "1", "linux/arm64")),
    ],
)
def test_an_address_names_an_image_as_docker_does(address: str, image: Image) -> None:
    assert parse_address(address) == image


@pytest.mark.parametrize("address", ["docker://", "docker://Waves", "docker://a@sha256:12", "docker://a?tag=1"])
def test_what_names_no_image_is_refused(address: str) -> None:
    with pytest.raises(UsageError, match="does not name a container image"):
        parse_address(address)


def test_an_image_is_a_folder_in_the_oci_layout(registry: ImageRegistry, workspace: Workspace, tmp_path: Path) -> None:
    digest = registry.push("waves", "1", [LAYER])
    (fetched,) = workspace.assets.fetch([f"docker://{registry.host}/waves:1"], to=tmp_path / "image")
    assert fetched.files == 5
    (entry,) = json.loads((tmp_path / "image/index.json").read_text())["manifests"]
    assert entry["digest"] == digest
    manifest = json.loads((tmp_path / "image/blobs/sha256" / digest[7:]).read_text())
    assert (tmp_path / "image/blobs/sha256" / manifest["layers"][0]["digest"][7:]).read_bytes() == LAYER


def test_by_digest_the_same_image_is_in_the_store_already(registry: ImageRegistry, workspace: Workspace) -> None:
    digest = registry.push("again", "1", [LAYER])
    (by_tag,) = workspace.assets.fetch([f"docker://{registry.host}/again:1"])
    (by_digest,) = workspace.assets.fetch([f"docker://{registry.host}/again@{digest}"])
    assert by_digest.root == by_tag.root
    assert by_digest.known


def test_a_layer_that_the_registry_changed_is_refused(registry: ImageRegistry, workspace: Workspace) -> None:
    layer = gzip.compress(b"a layer that will be changed", mtime=0)
    registry.push("changed", "1", [layer])
    registry.blob_file(hashlib.sha256(layer).hexdigest()).write_bytes(layer[:-1] + b"!")
    with pytest.raises(Integrity):
        workspace.assets.fetch([f"docker://{registry.host}/changed:1"])


def test_of_several_platforms_it_is_that_of_this_machine_or_the_one_that_is_named(
    registry: ImageRegistry, fetcher: Docker
) -> None:
    digests = {HERE: registry.push("multi", "here", [LAYER]), "s390x": registry.push("multi", "other", [LAYER, b"z"])}
    entries = [
        {"mediaType": MANIFEST, "digest": digest, "size": 1, "platform": {"os": "linux", "architecture": name}}
        for name, digest in digests.items()
    ]
    registry.push_manifest("multi", "1", {"schemaVersion": 2, "mediaType": INDEX, "manifests": entries})
    address = f"docker://{registry.host}/multi:1"
    assert digests[HERE] in fetcher.find(address)[0].address
    assert digests["s390x"] in fetcher.find(f"{address}?platform=linux/s390x")[0].address
    with pytest.raises(NotFound, match="no image for linux/mips") as refused:
        fetcher.find(f"{address}?platform=linux/mips")
    assert "linux/s390x" in str(refused.value.hint)


def test_an_image_that_is_not_there_is_named(registry: ImageRegistry, fetcher: Docker) -> None:
    with pytest.raises(NotFound, match=f"no image {registry.host}/nowhere:1"):
        fetcher.find(f"docker://{registry.host}/nowhere:1")


def test_a_part_is_read_without_having_been_found_before(registry: ImageRegistry, fetcher: Docker) -> None:
    registry.push("parts", "1", [LAYER])
    remotes = {remote.path: remote for remote in fetcher.find(f"docker://{registry.host}/parts:1")}
    later = Docker(context({"HOME": "/nonexistent"}))
    try:
        assert b"imageLayoutVersion" in read_all(later, remotes["oci-layout"])
        layer = remotes[f"blobs/sha256/{hashlib.sha256(LAYER).hexdigest()}"]
        assert read_all(later, layer, 3, 7) == LAYER[3:7]
    finally:
        later.close()


@pytest.mark.thorough
def test_podman_runs_a_fetched_image(registry: ImageRegistry, workspace: Workspace, tmp_path: Path) -> None:
    if shutil.which("podman") is None or os.geteuid() != 0:
        pytest.skip("needs Podman and root")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        archive.add(make_image(tmp_path / "tree"), arcname=".")
    plain = hashlib.sha256(gzip.decompress(packed.getvalue())).hexdigest()
    config = {"os": "linux", "architecture": HERE, "rootfs": {"type": "layers", "diff_ids": [f"sha256:{plain}"]}}
    registry.push("busybox", "1", [packed.getvalue()], config=json.dumps(config).encode())
    workspace.assets.fetch([f"docker://{registry.host}/busybox:1"], to=tmp_path / "image")
    with tempfile.TemporaryDirectory(prefix="podman-", dir="/tmp") as short:
        storage = [f"--root={tmp_path}/storage", f"--runroot={short}", "--storage-driver=vfs", "--runtime=runc"]
        limits = ["--network=none", "--ulimit=nofile=1024:1024", "--ulimit=nproc=4096:4096"]
        done = subprocess.run(
            ["podman", *storage, "run", "--rm", *limits, f"oci:{tmp_path}/image", "cat", "/etc/passwd"],
            capture_output=True,
            text=True,
        )
    assert done.stdout.startswith("root:x:0:0"), done.stderr


# Logins


@pytest.fixture
def server() -> Iterator[Replay]:
    with Replay() as replay:
        yield replay


def guarded(server: Replay, challenge: str, authorization: str) -> str:
    """Let the server ask for a login and give an image to those who have it; return the image's address."""
    config = {"digest": f"sha256:{hashlib.sha256(b'{}').hexdigest()}", "size": 2}
    manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": []}
    needs = {"needs": authorization}
    server.replies["/v2/"] = Reply(b"", 401, {"WWW-Authenticate": challenge})
    server.replies["/v2/deep/sea/manifests/1"] = Reply(manifest, headers=needs | {"Content-Type": MANIFEST})
    server.replies[f"/v2/deep/sea/blobs/{config['digest']}"] = Reply(b"{}", headers=needs)
    return f"docker://{server.url.removeprefix('http://')}/deep/sea:1"


def basic(user: str, password: str) -> str:
    return base64.b64encode(f"{user}:{password}".encode()).decode()


def bearer(server: Replay, **headers: str) -> str:
    """Let the server give tokens for reading the image, and return the challenge that says where."""
    target = "/token?service=sea&scope=repository%3Adeep%2Fsea%3Apull"
    server.replies[target] = Reply({"token": "t0", "expires_in": 300}, headers=headers)
    return f'Bearer realm="{server.url}/token",service="sea"'


def read_config(fetcher: Docker, address: str) -> bytes:
    return read_all(fetcher, fetcher.find(address)[-1])


def test_a_registry_that_wants_a_token_gets_one(server: Replay, fetcher: Docker) -> None:
    address = guarded(server, bearer(server), "Bearer t0")
    assert read_config(fetcher, address) == b"{}"
    assert sum(asked.target.startswith("/token") for asked in server.asked) == 1


@pytest.mark.parametrize("file", [".docker/config.json", ".config/containers/auth.json"])
def test_a_kept_login_is_shown_for_a_token(server: Replay, fetcher: Docker, tmp_path: Path, file: str) -> None:
    address = guarded(server, bearer(server, needs=f"Basic {basic('ada', 's:e')}"), "Bearer t0")
    keep(tmp_path / file, {"auths": {server.url.removeprefix("http://"): {"auth": basic("ada", "s:e")}}})
    assert read_config(fetcher, address) == b"{}"


def test_a_credential_helper_is_asked(server: Replay, fetcher: Docker, tmp_path: Path, monkeypatch: Any) -> None:
    helper = tmp_path / "docker-credential-safe"
    helper.write_text('#!/bin/sh\nread host\necho "{\\"Username\\": \\"ada\\", \\"Secret\\": \\"$host\\"}"\n')
    helper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    host = server.url.removeprefix("http://")
    keep(tmp_path / ".docker/config.json", {"credsStore": "safe"})
    address = guarded(server, 'Basic realm="sea"', f"Basic {basic('ada', host)}")
    assert read_config(fetcher, address) == b"{}"


def keep(file: Path, document: object) -> None:
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(document))
