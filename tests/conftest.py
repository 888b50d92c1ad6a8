"""Fixtures that several parts of the tests share."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import descendants
import effort
import pytest
from hypothesis import settings
from slurm_cluster import slurm_cluster, slurm_with_accounting

__all__ = ["slurm_cluster", "slurm_with_accounting"]  # fixtures, for every folder


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="prove every capability once: leave out what is thorough")


def pytest_configure(config: pytest.Config) -> None:
    descendants.restore_signals()
    descendants.mark()
    effort.quick = config.getoption("--quick")
    settings.register_profile("fairmile", max_examples=effort.examples(100), deadline=None)
    settings.load_profile("fairmile")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if effort.quick:
        wanted = effort.wanted(items)
        config.hook.pytest_deselected(items=[item for item in items if item not in wanted])
        items[:] = [item for item in items if item in wanted]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """After a test that failed or ran out of time, end what it started; a test that passes sees to that itself."""
    began = time.clock_gettime(time.CLOCK_BOOTTIME)
    try:
        return (yield)
    except BaseException:
        descendants.end(descendants.started_since(began))
        raise


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    descendants.end(descendants.started_since(0))


@dataclass(frozen=True)
class Sshd:
    """A real ssh server on this machine: `ssh -F config host` reaches it without a password."""

    host: str
    config: Path


@pytest.fixture(scope="session")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    """Start an ssh server for this session on a free loopback port."""
    server = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin:/usr/local/sbin")
    keygen = shutil.which("ssh-keygen")
    if server is None or keygen is None or shutil.which("ssh") is None:
        pytest.skip("needs the programs sshd, ssh and ssh-keygen")
    folder = tmp_path_factory.mktemp("sshd")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    for name in ("host_key", "user_key"):
        subprocess.run([keygen, "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    shutil.copy(folder / "user_key.pub", folder / "authorized_keys")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (folder / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host_key\nPidFile none\n"
        f"AuthorizedKeysFile {folder}/authorized_keys\nStrictModes no\nUsePAM no\nPasswordAuthentication no\n"
        "PermitRootLogin prohibit-password\nSubsystem sftp internal-sftp\nMaxStartups 100\n"
        # The one that quantum computers cannot break takes half of the time of a connection.
        "KexAlgorithms curve25519-sha256\n"
    )
    host_key = (folder / "host_key.pub").read_text()
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {host_key}")
    config = folder / "ssh_config"
    config.write_text(
        f"Host there\n  HostName 127.0.0.1\n  Port {port}\n  IdentityFile {folder}/user_key\n  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {folder}/known_hosts\n  StrictHostKeyChecking yes\n"
    )
    # Its sessions outlive it and would hold a pipe open: what it says goes to a file.
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen([server, "-D", "-e", "-f", str(folder / "sshd_config")], stderr=log)
    try:
        _wait_until_it_answers(process, port, folder / "log")
        yield Sshd("there", config)
    finally:
        process.terminate()
        process.wait()


def _wait_until_it_answers(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + 30
    while process.poll() is None and time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    process.kill()
    process.wait()
    pytest.fail(f"the ssh server does not answer: {log.read_text(errors='replace')}")


@pytest.fixture(scope="session")
def unprivileged() -> list[str]:
    """What stands before a command so that permission bits mean something to it, even when root runs it."""
    return ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []
