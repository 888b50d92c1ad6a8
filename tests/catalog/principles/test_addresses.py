"""An address is usable when it leads others somewhere: an open protocol to a host on the public internet."""

from __future__ import annotations

import pytest
from cases import for_each

from fairmile.catalog.principles.addresses import out_of_reach, unusable

OUT_OF_REACH = {
    "file:///home/me/a": "a path on one machine",
    "/home/me/a": "a path on one machine",
    "~/a": "a path on one machine",
    "git+file:///srv/code.git": "a path on one machine",
    "http://localhost:8000/a": "loopback",
    "https://LOCALHOST./a": "loopback",
    "https://data.localhost/a": "loopback",
    "http://127.0.0.1/a": "loopback",
    "http://127.1/a": "loopback",
    "http://2130706433/a": "loopback",
    "http://0x7f000001/a": "loopback",
    "http://0.0.0.0/a": "loopback",
    "http://[::1]:80/a": "loopback",
    "http://[::ffff:127.0.0.1]/a": "loopback",
    "http://me@127.0.0.1:1/a": "loopback",
    "ftp://10.1.2.3/a": "a private network",
    "sftp://172.16.0.9/a": "a private network",
    "rsync://192.168.1.7/a": "a private network",
    "me@192.168.1.7:a": "a private network",
    "https://100.64.0.1/a": "a private network",
    "https://[fd12:3456:789a::1]/a": "a private network",
    "https://169.254.1.1/a": "link-local",
    "https://[fe80::1]/a": "link-local",
    "ssh://node.local/a": "a name of a private network",
    "https://storage.internal/a": "a name of a private network",
    "https://nas.home.arpa/a": "a name of a private network",
    "ssh://login01/a": "a host name without a domain",
    "me@login01:a": "a host name without a domain",
    "git+ssh://git@gitlab/group/code.git": "a host name without a domain",
    "docker://localhost:5000/image": "loopback",
    "list+http://127.0.0.1/files.txt": "loopback",
    "https:///a": "no host",
}
PUBLIC = (
    *("https://x.edu/a", "http://[2606:4700::1111]/a", "https://8.8.8.8/a", "ssh://me@login.x.edu/a", "me@x.edu:a"),
    *("docker://ubuntu:24.04", "docker://library/ubuntu", "docker://nvcr.io/nvidia/pytorch:24.05", "s3://bucket/a"),
    *("https://localhost.x.edu/a", "https://internal.x.edu/a", "data/a.h5"),
)


@for_each("address, reason", OUT_OF_REACH.items())
def test_an_address_that_only_its_owner_reaches(address: str, reason: str) -> None:
    assert unusable(address) == reason
    assert out_of_reach(address) == reason


@pytest.mark.parametrize("address", PUBLIC)
def test_an_address_on_the_internet(address: str) -> None:
    assert unusable(address) == ""


@pytest.mark.parametrize("address", ["magic:xyz", "://x", "smb://x.edu/a"])
def test_a_protocol_that_nobody_else_speaks(address: str) -> None:
    assert unusable(address) == "not an open protocol"
    assert out_of_reach(address) == ""
