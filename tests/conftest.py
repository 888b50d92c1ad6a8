"""Fixtures that several parts of the tests share."""

from __future__ import annotations

import faulthandler
import gc
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import descendants
import effort
import pytest
from hypothesis import settings
from slurm_cluster import slurm_cluster, slurm_with_accounting
from ssh_server import SshServer

from fairmile.catalog.catalog import Catalog
from fairmile.catalog.declared import index_path

__all__ = ["slurm_cluster", "slurm_with_accounting"]  # fixtures, for every folder


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="prove every capability once: leave out what is thorough")


def pytest_configure(config: pytest.Config) -> None:
    descendants.restore_signals()
    descendants.mark()
    _use_one_cache()
    _use_one_thread()
    effort.quick = config.getoption("--quick")
    settings.register_profile("fairmile", max_examples=effort.examples(100), deadline=None)
    settings.load_profile("fairmile")


def _use_one_cache() -> None:
    """Let tests with a home of their own use the caches of whoever runs them, and find Python without a wrapper."""
    os.environ.setdefault("XDG_CACHE_HOME", os.path.expanduser("~/.cache"))
    os.environ["PATH"] = os.pathsep.join([os.path.join(sys.base_prefix, "bin"), os.environ.get("PATH", os.defpath)])


def _use_one_thread() -> None:
    """Let numerical libraries compute with one thread: workers share the cores, and threads that wait in turns spin."""
    os.environ["OMP_NUM_THREADS"] = "1"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """Reading the tests makes objects that stay: looking for garbage among them, now and later, finds none."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if effort.quick:
        wanted = effort.wanted(items)
        config.hook.pytest_deselected(items=[item for item in items if item not in wanted])
        items[:] = [item for item in items if item in wanted]
    if hasattr(config, "workerinput"):
        items[:] = effort.in_turns(items, config.workerinput["workercount"])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """After a test that failed or ran out of time, end what it started; a test that passes sees to that itself."""
    began = time.clock_gettime(time.CLOCK_BOOTTIME)
    try:
        return (yield)
    except BaseException:
        descendants.end(descendants.started_since(began))
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> Iterator[None]:
    """Say what the end of the session waits for, where it waits: services end within seconds."""
    if nextitem is not None:
        return (yield)
    faulthandler.dump_traceback_later(60, file=sys.__stderr__)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    descendants.end(descendants.started_since(0))


@pytest.fixture(scope="session")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshServer]:
    """Start an ssh server for this session."""
    with SshServer(tmp_path_factory.mktemp("sshd")) as server:
        yield server


@pytest.fixture(scope="session")
def indexed_home(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Path]:
    """Make a home whose catalog has indexed the cards of the package, which takes a while, as one did before."""
    home = tmp_path_factory.mktemp("indexed")
    with Catalog(home).open_index():
        pass

    def make(place: Path) -> Path:
        place.mkdir(parents=True)
        shutil.copy(index_path(home), index_path(place))
        return place

    return make


@pytest.fixture(scope="session")
def unprivileged() -> list[str]:
    """What stands before a command so that permission bits mean something to it, even when root runs it."""
    return ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []
