"""data: addresses, which hold the file themselves."""

from __future__ import annotations

import pytest

from fairmile.base.commands import Here
from fairmile.base.errors import UsageError
from fairmile.testing.fetchers import read
from fairmile.transfer.credentials import Credentials
from fairmile.transfer.fetchers.data import Data
from fairmile.transfer.remote import Context
from fairmile.transfer.settings import Settings


@pytest.fixture
def fetcher() -> Data:
    return Data(Context({}, Here(), Credentials({}), Settings()))


@pytest.mark.parametrize(
    ("address", "content"),
    [
        ("data:,a%20tide", b"a tide"),
        ("data:application/yaml,name%3A x,y", b"name: x,y"),
        ("DATA:text/plain;charset=utf-8;base64,w6k=", "é".encode()),
        ("data:,", b""),
    ],
)
def test_the_content_is_what_stands_behind_the_comma(fetcher: Data, address: str, content: bytes) -> None:
    (remote,) = fetcher.find(address)
    assert remote.size_bytes == len(content)
    assert read(fetcher.open(remote, 0, None)) == content


def test_any_part_of_it_can_be_read(fetcher: Data) -> None:
    (remote,) = fetcher.find("data:,0123456789")
    assert read(fetcher.open(remote, 3, 6)) == b"345"


@pytest.mark.parametrize(
    ("address", "message"), [("data:text/plain", "no comma"), ("data:;base64,a%20b!", "is not base64")]
)
def test_what_holds_no_content_is_refused(fetcher: Data, address: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        fetcher.find(address)
