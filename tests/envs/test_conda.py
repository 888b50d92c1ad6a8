"""Conda packages are solved and installed for real, from a channel made in the test."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import subprocess
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from conda_channel import PLACEHOLDER, Channel

from fairmile.base.commands import Here
from fairmile.base.errors import Integrity, InvalidDocument, NotFound, Transient, UsageError
from fairmile.envs.conda import CondaStep, make_steps
from fairmile.envs.shells import render
from fairmile.envs.spec import parse_spec
from fairmile.envs.steps import Tools

pytest.importorskip("rattler", reason="needs py-rattler")


@pytest.fixture
def channel(tmp_path: Path) -> Channel:
    made = Channel(tmp_path / "channel")
    made.add("libwave", "1.2", {"lib/libwave.txt": "wave 1.2"})
    made.add("libwave", "2.0", {"lib/libwave.txt": "wave 2.0"})
    made.add(
        "tsunami",
        "0.3",
        {
            "bin/tsunami": f"#!/bin/sh\necho wave of $WAVE_HEIGHT in {PLACEHOLDER}\n",
            "etc/conda/activate.d/tsunami.sh": 'export WAVE_HOME="$CONDA_PREFIX/lib" SEEN=$NEVER_SET\n',
            "etc/conda/env_vars.d/tsunami.json": '{"WAVE_HEIGHT": "3 m"}',
        },
        depends=["libwave <2"],
    )
    return made


@pytest.fixture
def tools(tmp_path: Path) -> Tools:
    def none(*_: Any) -> Any:
        raise AssertionError("conda packages come from their channels")

    return Tools(Here(), bring=none, unpack=none, work=tmp_path / "work", cache=tmp_path / "cache", environ={})


def step(channel: Channel | str, *packages: str) -> CondaStep:
    address = channel if isinstance(channel, str) else channel.address
    spec = parse_spec({"name": "waves", "conda": {"channels": [address], "packages": list(packages)}})
    assert spec.conda is not None
    return CondaStep(spec.conda)


def test_packages_and_what_they_need_are_installed_and_locked(channel: Channel, tools: Tools, tmp_path: Path) -> None:
    lock = step(channel, "tsunami").run(tmp_path / "env", tools)
    folder = tmp_path / "env"
    assert (folder / "lib/libwave.txt").read_text() == "wave 1.2"
    file = channel.folder / "noarch/libwave-1.2-0.tar.bz2"
    assert [entry["name"] for entry in lock["packages"]] == ["libwave", "tsunami"]
    assert lock["packages"][0] == {
        "name": "libwave",
        "version": "1.2",
        "build": "0",
        "url": file.as_uri(),
        "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
        "size_bytes": file.stat().st_size,
    }
    assert lock["platform"].startswith("linux-")


def test_the_preamble_activates_what_the_packages_bring(channel: Channel, tools: Tools, tmp_path: Path) -> None:
    made = step(channel, "tsunami")
    made.run(tmp_path / "env", tools)
    lines = render(made.use(tmp_path / "env").acts, "bash")
    script = "\n".join(
        ["set -eu", "export CONDA_DEFAULT_ENV=base", *lines, "tsunami", "echo $WAVE_HOME ${CONDA_DEFAULT_ENV-none}"]
    )
    printed = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout
    folder = tmp_path / "env"
    assert printed == f"wave of 3 m in {folder}\n{folder}/lib none\n"


def test_a_new_format_package_of_a_served_channel_is_installed(
    channel: Channel, tools: Tools, tmp_path: Path, served: str
) -> None:
    channel.add("storm", "1.0", {"share/storm.txt": "storm"}, depends=["libwave"], modern=True)
    lock = step(served, "storm >=1", "libwave 1.*").run(tmp_path / "env", tools)
    assert (tmp_path / "env" / "share/storm.txt").read_text() == "storm"
    assert [entry["url"] for entry in lock["packages"]] == [
        f"{served}/noarch/libwave-1.2-0.tar.bz2",
        f"{served}/noarch/storm-1.0-0.conda",
    ]


def test_running_again_after_a_kill_leads_to_the_same_end(channel: Channel, tools: Tools, tmp_path: Path) -> None:
    made = step(channel, "tsunami")
    first = made.run(tmp_path / "env", tools)
    folder = tmp_path / "env"
    (folder / "conda-meta/tsunami-0.3-0.json").unlink()  # as if it was killed before this package was there
    shutil.rmtree(folder / "etc")
    assert made.run(tmp_path / "env", tools) == first
    assert (folder / "etc/conda/activate.d/tsunami.sh").exists()


def test_inside_a_running_event_loop_it_works_too(channel: Channel, tools: Tools, tmp_path: Path) -> None:
    async def notebook_cell() -> Any:
        return step(channel, "libwave").run(tmp_path / "env", tools)

    assert asyncio.run(notebook_cell())["packages"][0]["version"] == "2.0"


def test_an_impossible_wish_names_the_requirement(channel: Channel, tools: Tools, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot be installed together from .*: .*libwave <2") as caught:
        step(channel, "tsunami", "libwave 2.*").run(tmp_path / "env", tools)
    assert "\n" not in caught.value.message
    assert caught.value.hint is not None
    with pytest.raises(UsageError, match=r"No candidates were found for tidal >=9"):
        step(channel, "tidal >=9").run(tmp_path / "env", tools)
    assert not (tmp_path / "env").exists()


def test_what_is_no_requirement_is_refused_with_its_field(channel: Channel) -> None:
    with pytest.raises(InvalidDocument, match=r"conda.packages\[1\]: 'numpy ><' is not a requirement"):
        step(channel, "python", "numpy ><")


def test_a_package_with_other_bytes_is_refused(channel: Channel, tools: Tools, tmp_path: Path, served: str) -> None:
    shutil.copy(channel.folder / "noarch/libwave-1.2-0.tar.bz2", channel.folder / "noarch/libwave-2.0-0.tar.bz2")
    for address in (channel.address, served):
        with pytest.raises(Integrity, match=r"libwave-2\.0-0\.tar\.bz2"):
            step(address, "libwave").run(tmp_path / "env", tools)
    assert not (tmp_path / "env" / "lib/libwave.txt").exists()


def test_a_channel_that_is_not_there_is_said(tools: Tools, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="nowhere"):
        step(str(tmp_path / "nowhere"), "libwave").run(tmp_path / "env", tools)
    with pytest.raises(Transient, match=r"127\.0\.0\.1:1/waves: .*refused"):
        step("http://127.0.0.1:1/waves", "libwave").run(tmp_path / "env", tools)


def test_the_material_is_what_is_asked_for_and_the_plan_says_it(channel: Channel, tools: Tools) -> None:
    spec = parse_spec({"name": "waves", "conda": {"channels": ["conda-forge"], "packages": ["hdf5 >=1.14,<2"]}})
    (made,) = make_steps(spec, tools)
    platform = made.material()["platform"]
    assert made.material() == {"channels": ["conda-forge"], "packages": ["hdf5 >=1.14,<2"], "platform": platform}
    assert made.describe() == f"install hdf5 >=1.14,<2 from conda-forge for {platform} with py-rattler"
    assert make_steps(parse_spec({"name": "none"}), tools) == []


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def served(channel: Channel) -> Iterator[str]:
    """The address of the channel on a web server of this machine."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(channel.folder)))
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()
