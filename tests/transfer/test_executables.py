"""Executables stay executable, links stay links, and a listing of a folder is not taken for data."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from replay import Replay, Reply

from fairmile.base.errors import Integrity
from fairmile.workspace import Workspace


def test_a_folder_keeps_executables_and_links(workspace: Workspace, tmp_path: Path) -> None:
    folder = tmp_path / "tools"
    folder.mkdir()
    (folder / "tool").write_text("#!/bin/sh\necho works\n")
    (folder / "tool").chmod(0o755)
    (folder / "plain").write_text("data")
    (folder / "link").symlink_to("tool")
    (fetched,) = workspace.assets.fetch(folder.as_uri(), to=tmp_path / "out")
    assert {each.path: each.mode for each in workspace.store.tree(fetched.root)} == {
        "link": 0o120000,
        "plain": 0o644,
        "tool": 0o755,
    }
    assert subprocess.run([tmp_path / "out" / "link"], capture_output=True, check=True, text=True).stdout == "works\n"


@pytest.mark.parametrize("add_card", ["describe", "by hand"])
def test_a_fetched_executable_runs(
    workspace: Workspace, local_card: Callable[..., str], tmp_path: Path, add_card: str
) -> None:
    tool = tmp_path / "tool.sh"
    tool.write_text("#!/bin/sh\necho works\n")
    tool.chmod(0o755)
    if add_card == "describe":
        workspace.catalog.describe(tool, add=True)
        name, file = "program/tool", "tool.sh"
    else:
        with Replay() as server:
            server.replies["/tool.sh"] = Reply(tool.read_bytes())
            name = local_card(tool.read_bytes(), f"{server.url}/tool.sh", encodingFormat="application/x-executable")
            workspace.assets.fetch(name)
        file = "data.bin"
    workspace.assets.fetch(name, to=tmp_path / "out")
    assert subprocess.run([tmp_path / "out" / file], capture_output=True, check=True, text=True).stdout == "works\n"


@pytest.mark.parametrize(
    "page",
    [
        "<html><head><title>Index of /data/</title></head><body><h1>Index of /data/</h1></body></html>",
        '<!DOCTYPE HTML>\n<html lang="en">\n<head>\n<title>Directory listing for /data/</title>\n</head></html>',
    ],
)
def test_a_directory_listing_is_refused_as_one(workspace: Workspace, page: str) -> None:
    with Replay() as server:
        server.replies |= {"/data/": Reply(page.encode()), "/lakes": Reply(b"<html><title>Lakes</title></html>")}
        with pytest.raises(Integrity, match="/data/ is a directory listing instead of data") as error:
            workspace.assets.fetch(f"{server.url}/data/")
        server.replies["/"] = server.replies["/data/"]
        with pytest.raises(Integrity, match="/ is a directory listing"):
            workspace.assets.fetch(f"{server.url}/")
        assert error.value.hint == "fetch each file that it lists by its own address"
        with pytest.raises(Integrity, match="answers with a web page instead of lakes"):
            workspace.assets.fetch(f"{server.url}/lakes")
