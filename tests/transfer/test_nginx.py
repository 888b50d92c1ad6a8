"""Fetches from a real nginx: ranges, mirrors, a login, and what is known already."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import nginx
import pytest

from fairmile.base.errors import SystemFailure
from fairmile.workspace import Workspace

pytestmark = pytest.mark.skipif(nginx.program() is None, reason="needs the program nginx")
DATA = random.Random(5).randbytes(20 << 20)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[nginx.Nginx]:
    with nginx.nginx(tmp_path / "nginx") as running:
        running.www.joinpath("data.bin").write_bytes(DATA)
        running.www.joinpath("private", "data.bin").write_bytes(DATA[:1000])
        yield running


def content(workspace: Workspace, root: str) -> bytes:
    (entry,) = workspace.store.tree(root)
    with workspace.store.open(entry.sha256) as stream:
        return stream.read()


def test_a_large_file_comes_over_several_connections(workspace: Workspace, server: nginx.Nginx) -> None:
    (fetched,) = workspace.assets.fetch(server.url("data.bin"))
    assert content(workspace, fetched.root) == DATA
    assert len([line for line in server.requests() if '" 206 ' in line]) > 4


def test_what_is_known_by_its_source_does_not_move_again(workspace: Workspace, server: nginx.Nginx) -> None:
    workspace.assets.fetch(server.url("data.bin"))
    sent = server.sent_bytes()
    (again,) = workspace.assets.fetch(server.url("data.bin"))
    assert again.known
    assert server.sent_bytes() == sent


def test_what_changed_at_its_source_is_fetched_anew(workspace: Workspace, server: nginx.Nginx) -> None:
    (first,) = workspace.assets.fetch(server.url("data.bin"))
    path = server.www / "data.bin"
    path.write_bytes(DATA[::-1])
    os.utime(path, (1, 1))
    (second,) = workspace.assets.fetch(server.url("data.bin"))
    assert not second.known
    assert content(workspace, second.root) == DATA[::-1]
    assert content(workspace, first.root) == DATA


def test_two_mirrors_share_the_work(
    workspace: Workspace, server: nginx.Nginx, tmp_path: Path, local_card: Callable[..., str]
) -> None:
    with nginx.nginx(tmp_path / "mirror") as mirror:
        mirror.www.joinpath("copy.bin").write_bytes(DATA)
        name = local_card(DATA, server.url("data.bin"), mirror.url("copy.bin"))
        (fetched,) = workspace.assets.fetch(name)
        assert content(workspace, fetched.root) == DATA
        assert server.sent_bytes() > 0
        assert mirror.sent_bytes() > 0


def test_content_known_under_another_name_does_not_move(
    workspace: Workspace, server: nginx.Nginx, local_card: Callable[..., str]
) -> None:
    workspace.assets.fetch(server.url("data.bin"))
    sent = server.sent_bytes()
    (fetched,) = workspace.assets.fetch(local_card(DATA, server.url("elsewhere.bin")))
    assert content(workspace, fetched.root) == DATA
    assert server.sent_bytes() == sent


def test_a_login_comes_from_netrc_and_is_told_nowhere(
    workspace: Workspace, server: nginx.Nginx, environ: dict[str, str], tmp_path: Path
) -> None:
    with pytest.raises(SystemFailure, match="requires a login") as caught:
        workspace.assets.fetch(server.url("private/data.bin"))
    assert ".netrc" in (caught.value.hint or "")
    netrc = Path(environ["HOME"]) / ".netrc"
    netrc.write_text("machine 127.0.0.1 login reader password secret\n")
    netrc.chmod(0o600)
    (fetched,) = workspace.assets.fetch(server.url("private/data.bin"))
    assert content(workspace, fetched.root) == DATA[:1000]
    kept = [path for path in workspace.home.rglob("*") if path.is_file() and b"secret" in path.read_bytes()]
    assert kept == []


def test_a_login_in_the_address_is_used_and_not_kept(workspace: Workspace, server: nginx.Nginx) -> None:
    address = server.url("private/data.bin").replace("http://", "http://reader:secret@")
    (fetched,) = workspace.assets.fetch(address)
    assert content(workspace, fetched.root) == DATA[:1000]
    assert "secret" not in fetched.name
    kept = [path for path in workspace.home.rglob("*") if path.is_file() and b"secret" in path.read_bytes()]
    assert kept == []


def test_many_small_files_are_verified_and_packed(workspace: Workspace, server: nginx.Nginx, tmp_path: Path) -> None:
    files = {f"part {number}.bin": DATA[number * 100 : number * 100 + 3000] for number in range(300)}
    for name, data in files.items():
        server.www.joinpath(name).write_bytes(data)
    listing = tmp_path / "files.txt"
    listing.write_text("".join(server.url(name.replace(" ", "%20")) + "\n" for name in files))
    (fetched,) = workspace.assets.fetch(f"list+file://{listing}", to=tmp_path / "out")
    assert fetched.files == 300
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()} == files
    objects = sum(1 for path in (workspace.home / "store" / "objects").rglob("*") if path.is_file())
    assert objects < 300
    assert {hashlib.sha256(data).hexdigest() for data in files.values()} == {
        entry.sha256 for entry in workspace.store.tree(fetched.root)
    }
