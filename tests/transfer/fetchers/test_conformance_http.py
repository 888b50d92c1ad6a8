"""http:// against a real nginx."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import pytest
from nginx import Nginx, nginx, program

from fairmile.base.commands import Here
from fairmile.testing.fetchers import RangeFetcherTests, Served
from fairmile.transfer.credentials import Credentials
from fairmile.transfer.fetchers.http import Http
from fairmile.transfer.remote import Context, RangeFetcher
from fairmile.transfer.settings import Settings

pytestmark = pytest.mark.skipif(program() is None, reason="needs the program nginx")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nginx]:
    with nginx(tmp_path_factory.mktemp("nginx")) as running:
        yield running


@pytest.fixture
def fetcher() -> Iterator[Http]:
    with closing(Http(Context({}, Here(), Credentials({}), Settings(retries=1)))) as made:
        yield made


def served_below(server: Nginx, fetcher: Http, folder: str, login: str = "") -> Served[RangeFetcher]:
    def address(path: str) -> str:
        return server.url(f"{folder}{quote(path)}").replace("//", f"//{login}", 1)

    def publish(files: Mapping[str, bytes]) -> str:
        [(path, data)] = files.items()
        target = server.www / folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        aside = target.parent / "aside"
        aside.write_bytes(data)
        aside.replace(target)
        return address(path)

    return Served(fetcher, publish, address("nowhere/lost.bin") + "?token=hunter2", "hunter2")


class TestInTheOpen(RangeFetcherTests):
    folders = False  # a web address means one file

    @pytest.fixture
    def served(self, server: Nginx, fetcher: Http, tmp_path: Path) -> Served[RangeFetcher]:
        return served_below(server, fetcher, f"{tmp_path.name}/")


@pytest.mark.thorough
class TestBehindALogin(RangeFetcherTests):
    folders = False

    @pytest.fixture
    def served(self, server: Nginx, fetcher: Http, tmp_path: Path) -> Served[RangeFetcher]:
        return served_below(server, fetcher, f"private/{tmp_path.name}/", "reader:secret@")
