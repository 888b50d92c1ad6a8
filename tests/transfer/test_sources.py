"""Sources that send too much, too little, or something else than the file; a good one beside them always serves."""

from __future__ import annotations

import gzip
import hashlib
import random
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
import web_server as web
from web_server import Request, web_server

from fairmile.base.errors import FairmileError, Integrity, SystemFailure, Unsupported
from fairmile.transfer import small
from fairmile.transfer.items import Silent
from fairmile.workspace import Workspace

SMALL = random.Random(4).randbytes((1 << 20) + 321)
LARGE = random.Random(5).randbytes((12 << 20) + 123)
TEXT = b"time,depth\n" + b"1.5,200\n" * 40_000
SIZES = pytest.mark.parametrize("data", [SMALL, LARGE], ids=["small", "large"])


@pytest.fixture(autouse=True)
def quick_verdicts(monkeypatch: pytest.MonkeyPatch, environ: dict[str, str]) -> None:
    monkeypatch.setattr(small, "_JUDGE_S", 0.2)
    environ["FAIRMILE_TRANSFER_STALL"] = "1 s"


def taken_bytes(workspace: Workspace) -> int:
    return sum(path.lstat().st_size for path in workspace.home.joinpath("store").rglob("*") if path.is_file())


# Too much


@SIZES
@pytest.mark.parametrize("status", ["200 OK", "206 Partial Content"])
def test_a_body_without_end_is_left_for_the_next_mirror(
    workspace: Workspace, watcher: Silent, local_card: Callable[..., str], stored: Callable[[str], bytes], data: bytes,
    status: str,
) -> None:  # fmt: skip
    with web_server({"data.bin": data}, web.never_ends(status)) as bad, web_server({"data.bin": data}) as good:
        card = local_card(data, bad.url("data.bin"), good.url("data.bin"), sha256=None)
        (fetched,) = workspace.assets.fetch(card)
    assert stored(fetched.root) == data
    assert any(bad.url("") in note for note in watcher.notes)


def test_a_body_without_end_and_no_other_source_is_an_error_that_leaves_nothing(
    workspace: Workspace, local_card: Callable[..., str]
) -> None:
    with web_server({"data.bin": SMALL}, web.never_ends()) as bad:
        card = local_card(SMALL, bad.url("data.bin"))
        with pytest.raises(Integrity, match=f"sends more than the {len(SMALL):,} bytes expected"):
            workspace.assets.fetch(card)
        assert bad.sent_bytes < 100 << 20
    assert taken_bytes(workspace) < len(SMALL)


@pytest.mark.thorough
def test_a_body_of_unknown_size_ends_at_the_stated_bound(environ: dict[str, str], tmp_path: Path) -> None:
    environ["FAIRMILE_TRANSFER_UNSIZED"] = "2 MiB"
    workspace = Workspace.open(environ=environ, cwd=tmp_path)
    with (
        web_server({"data.bin": SMALL}, web.never_ends()) as bad,
        pytest.raises(SystemFailure, match=r"sent more than 2\.0 MiB") as caught,
    ):
        workspace.assets.fetch(bad.url("data.bin"))
    assert "transfer.unsized" in str(caught.value.hint)
    assert taken_bytes(workspace) < len(SMALL)


@pytest.mark.thorough
@pytest.mark.parametrize("program", ["curl", "wget"])
def test_a_program_that_writes_more_than_the_file_is_ended(
    workspace: Workspace, local_card: Callable[..., str], stored: Callable[[str], bytes], program: str
) -> None:
    with web_server({"data.bin": SMALL}, web.never_ends()) as bad, web_server({"data.bin": SMALL}) as good:
        # The first mirror only is of a kind that is tried last.
        card = local_card(SMALL, *(f"{program}+{server.url('data.bin')}" for server in (bad, good)))
        (fetched,) = workspace.assets.fetch(card)
    assert stored(fetched.root) == SMALL


# Too little


@SIZES
@pytest.mark.parametrize("digest", [True, False], ids=["digest", "no-digest"])
def test_a_source_that_trickles_is_overtaken_by_another(
    workspace: Workspace, local_card: Callable[..., str], stored: Callable[[str], bytes], data: bytes, digest: bool
) -> None:  # fmt: skip
    more = {} if digest else {"sha256": None}
    with web_server({"data.bin": data}, web.trickles(50_000)) as slow, web_server({"data.bin": data}) as good:
        card = local_card(data, slow.url("data.bin"), good.url("data.bin"), **more)
        (fetched,) = workspace.assets.fetch(card)
    assert stored(fetched.root) == data


@pytest.mark.thorough
def test_a_source_that_slows_down_near_the_end_is_overtaken_too(
    workspace: Workspace, local_card: Callable[..., str], stored: Callable[[str], bytes]
) -> None:
    near_end = web.trickles(20_000, lambda request: bool(request.span) and request.span[0] > len(LARGE) - (2 << 20))
    with web_server({"data.bin": LARGE}, near_end) as slow, web_server({"data.bin": LARGE}) as good:
        card = local_card(LARGE, slow.url("data.bin"), good.url("data.bin"))
        (fetched,) = workspace.assets.fetch(card)
    assert stored(fetched.root) == LARGE


def once() -> Callable[[Request], bool]:
    """Tell of the first request that asks for bytes, and of no other."""
    asked: list[Request] = []

    def is_first(request: Request) -> bool:
        asked.append(request)
        return len(asked) == 1

    return is_first


@pytest.mark.thorough
@SIZES
def test_another_connection_overtakes_one_that_trickles(
    workspace: Workspace, local_card: Callable[..., str], stored: Callable[[str], bytes], data: bytes
) -> None:
    with web_server({"data.bin": data}, web.trickles(1000, once())) as slow:
        (fetched,) = workspace.assets.fetch(local_card(data, slow.url("data.bin")))
    assert stored(fetched.root) == data


@pytest.mark.thorough
def test_a_slow_source_without_ranges_is_kept_where_there_is_no_other(
    workspace: Workspace, local_card: Callable[..., str], stored: Callable[[str], bytes]
) -> None:
    def crawl(exchange: web.Exchange) -> None:
        exchange.head("200 OK", {"Content-Length": str(len(exchange.data))})
        for at in range(0, len(exchange.data), 40):
            exchange.server.wait(0.1)
            exchange.body(exchange.data[at : at + 40])

    with web_server({"data.bin": SMALL[:1000]}, crawl) as slow:
        (fetched,) = workspace.assets.fetch(local_card(SMALL[:1000], slow.url("data.bin")))
    assert stored(fetched.root) == SMALL[:1000]


@pytest.mark.thorough
def test_headers_that_trickle_hold_nobody_up(
    workspace: Workspace, local_card: Callable[..., str], stored: Callable[[str], bytes]
) -> None:
    def crawl(exchange: web.Exchange) -> None:
        exchange.send(b"HTTP/1.1 200 OK\r\n")
        while True:
            exchange.server.wait(0.05)
            exchange.send(b"X")

    with web_server({"data.bin": LARGE}, crawl) as slow, web_server({"data.bin": LARGE}) as good:
        (fetched,) = workspace.assets.fetch(local_card(LARGE, slow.url("data.bin"), good.url("data.bin")))
    assert stored(fetched.root) == LARGE


# Something else


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


@pytest.mark.parametrize("ranges", [False, True], ids=["whole", "ranges"])
@pytest.mark.parametrize(
    ("encoding", "pack"),
    [("gzip", gzip.compress), ("x-gzip", gzip.compress), ("deflate", zlib.compress), ("deflate", raw_deflate)],
    ids=["gzip", "x-gzip", "zlib", "raw"],
)
def test_an_encoding_that_nobody_asked_for_is_undone(
    workspace: Workspace, stored: Callable[[str], bytes], encoding: str, pack: Callable[[bytes], bytes], ranges: bool
) -> None:
    with web_server({"tide.csv": TEXT}, web.encodes(encoding, pack, ranges=ranges)) as server:
        (fetched,) = workspace.assets.fetch(server.url("tide.csv"))
        assert all(request.headers["accept-encoding"] == "identity" for request in server.requests)
    assert stored(fetched.root) == TEXT


@pytest.mark.thorough
def test_an_encoded_large_file_is_checked_by_the_digest_of_its_content(
    workspace: Workspace, local_card: Callable[..., str], stored: Callable[[str], bytes]
) -> None:
    packed = gzip.compress(LARGE, compresslevel=1)  # beforehand: a server that packs while it answers is slow, too
    with web_server({"data.bin": LARGE}, web.encodes("gzip", lambda _: packed, ranges=True)) as server:
        (fetched,) = workspace.assets.fetch(local_card(LARGE, server.url("data.bin")))
    assert stored(fetched.root) == LARGE


def test_a_packed_file_whose_packing_the_server_calls_its_encoding_stays_packed(
    workspace: Workspace, stored: Callable[[str], bytes]
) -> None:
    packed = gzip.compress(TEXT)
    with web_server({"tide.csv.gz": TEXT}, web.encodes("gzip", lambda _: packed)) as server:
        (fetched,) = workspace.assets.fetch(server.url("tide.csv.gz"), sha256=hashlib.sha256(packed).hexdigest())
    assert stored(fetched.root) == packed


@pytest.mark.parametrize("encoding", ["br", "gzip, gzip", "strange"])
def test_an_encoding_that_cannot_be_undone_is_refused_in_a_sentence(workspace: Workspace, encoding: str) -> None:
    with (
        web_server({"tide.csv": TEXT}, web.encodes(encoding, gzip.compress)) as server,
        pytest.raises(Unsupported, match="Content-Encoding"),
    ):
        workspace.assets.fetch(server.url("tide.csv"))


def cut_off(data: bytes) -> bytes:
    return gzip.compress(data)[:-100]


def bomb(data: bytes) -> bytes:
    return gzip.compress(bytes(50 << 20))


@pytest.mark.parametrize("pack", [cut_off, bomb])
def test_an_encoded_body_that_is_damaged_or_a_trap_is_refused(
    workspace: Workspace, local_card: Callable[..., str], pack: Callable[[bytes], bytes]
) -> None:
    with web_server({"data.bin": TEXT}, web.encodes("gzip", pack)) as server, pytest.raises(FairmileError):
        workspace.assets.fetch(local_card(TEXT, server.url("data.bin"), sha256=None))
    assert taken_bytes(workspace) < len(TEXT)


def compressed_transfer(exchange: web.Exchange) -> None:
    packed = gzip.compress(exchange.data)
    exchange.head("200 OK", {"Transfer-Encoding": "gzip, chunked", "Connection": "close"})
    exchange.body(f"{len(packed):x}\r\n".encode() + packed + b"\r\n0\r\n\r\n")


def test_a_transfer_encoding_that_nobody_asked_for_is_refused(workspace: Workspace) -> None:
    refusal = pytest.raises(SystemFailure, match="transfer encoding 'gzip, chunked'")
    with web_server({"tide.csv": TEXT}, compressed_transfer) as server, refusal:
        workspace.assets.fetch(server.url("tide.csv"))
