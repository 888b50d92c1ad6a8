"""`fairmile fetch`: bytes by name or address, plans, what is told and what never is."""

from __future__ import annotations

import hashlib
import io
import json
import re
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import web_server as web
from trusted_projects import trusted_project
from web_server import WebServer, web_server

from fairmile.cli.main import run

Fairmile = Callable[..., Any]
DATA = bytes(range(256)) * 400
MORE = DATA[::-1]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[WebServer]:
    monkeypatch.setenv("FAIRMILE_TRANSFER_RETRIES", "1")
    with web_server({"data.bin": DATA, "more.bin": MORE}) as running:
        yield running


@pytest.fixture
def lake(fairmile: Fairmile, server: WebServer, place: Path) -> Fairmile:
    """The command line with a card of a lake whose two files the server has."""
    add_card(fairmile, place, server)
    return fairmile


def add_card(fairmile: Fairmile, place: Path, server: WebServer, **more: Any) -> None:
    files = [
        {
            "@type": "FileObject",
            "name": name,
            "contentUrl": server.url(name),
            "contentSize": f"{len(data)} B",
            "sha256": hashlib.sha256(data).hexdigest(),
        }
        for name, data in (("data.bin", DATA), ("more.bin", MORE))
    ]
    card = json.loads((place / "lake.jsonld").read_text()) | {"name": "lake", "distribution": files} | more
    (place / "own.jsonld").write_text(json.dumps(card))
    result = fairmile("catalog", "add", "own.jsonld")
    assert result.code == 0, result.err


NAME = "local/dataset/lake@1.0"


def test_an_asset_is_fetched_once(lake: Fairmile, server: WebServer) -> None:
    result = lake("fetch", "dataset/lake")
    assert result == (0, f"fetched  {NAME}  2 files  200.0 KiB  pool home\n", "")
    sent = server.sent_bytes
    result = lake("fetch", "lake")
    assert result == (0, f"present  {NAME}  2 files  200.0 KiB  pool home\n", "")
    assert server.sent_bytes == sent


FETCHES = """
import sys
from fairmile.cli.main import run
code = run(["fetch", sys.argv[1]])
print(code, sorted({"fairmile.transfer.engine", "fairmile.store.cleanup", "fairmile.catalog.access"} & {*sys.modules}))
"""


def test_what_is_there_is_told_before_anything_is_imported_that_brings_it(lake: Fairmile) -> None:
    def fetches() -> list[str]:
        ended = subprocess.run([sys.executable, "-c", FETCHES, "lake"], capture_output=True, text=True, check=True)
        return ended.stdout.splitlines()

    shown = f"{NAME}  2 files  200.0 KiB  pool home"
    assert fetches() == [f"fetched  {shown}", "0 ['fairmile.transfer.engine']"]
    assert fetches() == [f"present  {shown}", "0 []"]


def test_files_are_laid_out_where_they_are_wanted(lake: Fairmile, place: Path) -> None:
    result = lake("fetch", "lake", "--to", "data/here")
    assert result.code == 0
    assert result.out.rstrip().endswith("data/here")
    assert (place / "data" / "here" / "data.bin").read_bytes() == DATA
    assert (place / "data" / "here" / "more.bin").read_bytes() == MORE


def test_a_program_gets_what_came_as_data(lake: Fairmile) -> None:
    (facts,) = lake("fetch", "lake", "--json").json["fetched"]
    assert {key: facts[key] for key in ("name", "files", "size_bytes", "moved_bytes", "known", "pool", "folder")} == {
        "name": NAME,
        "files": 2,
        "size_bytes": 204_800,
        "moved_bytes": 204_800,
        "known": False,
        "pool": "home",
        "folder": None,
    }
    assert re.fullmatch("[0-9a-f]{64}", facts["root"])
    (again,) = lake("fetch", "lake", "--json").json["fetched"]
    assert (again["known"], again["moved_bytes"], again["root"]) == (True, 0, facts["root"])


def test_a_dry_run_shows_the_plan_and_moves_nothing(lake: Fairmile, server: WebServer, place: Path) -> None:
    result = lake("fetch", "lake", "--to", "data", "--dry-run")
    assert result.code == 0
    lines = result.out.splitlines()
    assert lines[0] == f"{NAME}: 2 files to fetch, 200.0 KiB, into pool 'home'"
    assert [line.split()[:3] for line in lines[2:]] == [["data.bin", "100.0", "KiB"], ["more.bin", "100.0", "KiB"]]
    assert server.url("data.bin") in result.out
    assert server.sent_bytes == 0
    assert not (place / "data").exists()
    (plan,) = lake("fetch", "lake", "--dry-run", "--json").json["plans"]
    assert (plan["name"], plan["download_bytes"], plan["estimate"], plan["pool"]) == (NAME, 204_800, False, "home")
    assert [item["sources"] for item in plan["items"]] == [[server.url("data.bin")], [server.url("more.bin")]]
    lake("fetch", "lake")
    assert lake("fetch", "lake", "--dry-run").out.startswith(f"{NAME}: all files are stored already")


def test_a_long_plan_is_cut(fairmile: Fairmile, server: WebServer, place: Path) -> None:
    names = [f"file-{number}.bin" for number in range(30)]
    server.files |= dict.fromkeys(names, DATA)
    (place / "files.txt").write_text("".join(f"{server.url(name)}\n" for name in names))
    result = fairmile("fetch", f"list+file://{place}/files.txt", "--dry-run")
    assert result.code == 0, result.err
    assert "… and 10 more" in result.out
    assert (
        len(fairmile("fetch", f"list+file://{place}/files.txt", "--dry-run", "--json").json["plans"][0]["items"]) == 30
    )


def test_a_limit_takes_the_first_files(lake: Fairmile, server: WebServer) -> None:
    assert "1 file " in lake("fetch", "lake", "--limit", "1").out
    assert server.sent_bytes == len(DATA)


def test_fresh_fetches_anew(lake: Fairmile, server: WebServer) -> None:
    lake("fetch", "lake")
    assert lake("fetch", "lake", "--fresh").out.startswith("fetched")
    assert server.sent_bytes == 4 * len(DATA)


def test_several_are_fetched_in_one_go(lake: Fairmile, server: WebServer, place: Path) -> None:
    result = lake("fetch", "lake", server.url("more.bin"), "--to", "data")
    assert result.code == 0
    assert [line.split()[:2] for line in result.out.splitlines()] == [
        ["fetched", NAME],
        ["present", server.url("more.bin")],
    ]
    assert (place / "data" / "lake" / "data.bin").exists()


def test_an_address_is_fetched_checked_and_unpacked(fairmile: Fairmile, server: WebServer, place: Path) -> None:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        info = tarfile.TarInfo("x/y.txt")
        info.size = 2
        archive.addfile(info, io.BytesIO(b"hi"))
    server.files["a.tar.gz"] = stream.getvalue()
    digest = hashlib.sha256(stream.getvalue()).hexdigest()
    result = fairmile("fetch", server.url("a.tar.gz"), "--unpack", "--sha256", digest, "--to", "data")
    assert result.code == 0, result.err
    assert (place / "data" / "x" / "y.txt").read_text() == "hi"


def test_a_pool_can_be_chosen(lake: Fairmile, place: Path) -> None:
    trusted_project(place, f"pools:\n  scratch: {place}/scratch\n")
    assert lake("fetch", "lake", "--pool", "scratch").out.rstrip().endswith("pool scratch")
    assert any((place / "scratch" / "objects").rglob("*"))


def test_a_pool_that_is_too_small_is_told_with_the_numbers(lake: Fairmile, place: Path, server: WebServer) -> None:
    trusted_project(place, f"pools:\n  tiny: {{folder: {place}/tiny, capacity: 50 KiB}}\n")
    result = lake("fetch", "lake", "--pool", "tiny")
    assert result.code == 3
    assert result.out == ""
    first, second = result.err.splitlines()
    assert f"{NAME} needs 200.0 KiB" in first
    assert "50.0 KiB" in first
    assert second.startswith("  hint: ")
    assert server.sent_bytes == 0


# What is told


def test_a_source_that_failed_is_told_once(fairmile: Fairmile, server: WebServer, place: Path) -> None:
    entry = {
        "@type": "FileObject",
        "name": "x",
        "contentUrl": server.url("gone.bin"),
        "mirror": [server.url("data.bin")],
        "contentSize": f"{len(DATA)} B",
        "sha256": hashlib.sha256(DATA).hexdigest(),
    }
    add_card(fairmile, place, server, distribution=[entry])
    result = fairmile("fetch", "lake")
    assert result.code == 0
    assert result.err.count(server.url("gone.bin")) == 1
    assert "trying the next source" in result.err
    assert server.url("gone.bin") not in result.out


def test_what_was_recorded_for_want_of_a_digest_is_told(fairmile: Fairmile, server: WebServer, place: Path) -> None:
    add_card(fairmile, place, server, distribution=[{"name": "x", "contentUrl": server.url("data.bin")}])
    assert "note: its card has no digest of every file; recorded ni:///sha-256;" in fairmile("fetch", "lake").err


def test_how_to_get_access_is_told(fairmile: Fairmile, server: WebServer, place: Path) -> None:
    rights = "http://publications.europa.eu/resource/authority/access-right/RESTRICTED"
    add_card(fairmile, place, server, accessRights=rights, conditionsOfAccess="Sign the form.")
    server.behaviour = web.wants_a_login
    for words in (["fetch", "lake"], ["fetch", "lake", "--dry-run"]):
        result = fairmile(*words)
        assert result.code == 2
        assert "restricts access, so nothing was fetched" in result.err.splitlines()[0]
        assert "Sign the form." in result.err.splitlines()[1]
        assert "--access-granted" in result.err.splitlines()[1]
    result = fairmile("fetch", "lake", "--access-granted")
    assert result.code == 3
    assert "requires a login" in result.err.splitlines()[0]
    assert "Sign the form." in result.err.splitlines()[1]
    assert ".netrc" in result.err.splitlines()[1]


@pytest.mark.parametrize(
    "arguments, code, message",
    [
        (["nosuch"], 2, "'nosuch' is not a file here, an asset of the catalog or an address"),
        (["lake", "--pool", "hmoe"], 2, "no pool named 'hmoe'; did you mean 'home'?"),
        (["lake", "--limit", "0"], 2, "the limit is 0 files, expected at least 1"),
        (["lake", "--sha256", "0" * 64], 2, "--sha256 and --unpack apply only to"),
        (["lake", "--unpack"], 2, "--sha256 and --unpack apply only to"),
        (["URL/gone.bin"], 2, "URL/gone.bin does not exist"),
        (["URL/data.bin", "--sha256", "abc"], 2, "'abc' is not a sha256"),
        (["URL/data.bin", "--sha256", "0" * 64], 4, "expected " + "0" * 64),
        (["URL/data.bin", "--unpack"], 3, "data.bin"),
        (["nosuch://x/y"], 2, "no fetcher for addresses that begin with nosuch:"),
        (["http://[::1/x"], 2, "is no"),
        (["http://127.0.0.1:1/x"], 3, "cannot reach 127.0.0.1:1"),
    ],
)
def test_what_cannot_be_fetched_is_one_sentence(
    lake: Fairmile, server: WebServer, arguments: list[str], code: int, message: str
) -> None:
    base = server.url("")[:-1]
    result = lake("fetch", *(word.replace("URL", base) for word in arguments))
    assert (result.code, result.out) == (code, "")
    said = [line for line in result.err.splitlines() if line.startswith("error: ")]
    assert len(said) == 1
    assert message.replace("URL", base) in said[0]
    assert "Traceback" not in result.err
    failure = lake("fetch", *(word.replace("URL", base) for word in arguments), "--json")
    assert failure.code == code
    assert message.replace("URL", base) in failure.json["error"]["message"]


def test_a_file_that_is_there_is_not_overwritten_unless_asked(lake: Fairmile, place: Path) -> None:
    (place / "data").mkdir()
    (place / "data" / "data.bin").write_text("precious")
    result = lake("fetch", "lake", "--to", "data")
    assert result.code == 2
    assert "data.bin" in result.err
    assert (place / "data" / "data.bin").read_text() == "precious"
    assert lake("fetch", "lake", "--to", "data", "--replace").code == 0
    assert (place / "data" / "data.bin").read_bytes() == DATA


def test_no_secret_is_ever_shown(fairmile: Fairmile, server: WebServer) -> None:
    for path in ("data.bin", "gone.bin"):
        address = server.url(path).replace("//", "//me:hunter2@") + "?access_token=tok3n"
        for more in ([], ["--dry-run"], ["--json"], ["--dry-run", "--json"], ["--debug"]):
            result = fairmile("fetch", address, *more)
            shown = result.out + (result.err if "--debug" not in more else result.err.rpartition("error: ")[2])
            assert "hunter2" not in shown
            assert "tok3n" not in shown


def test_nothing_in_a_name_or_an_answer_can_steer_the_terminal(fairmile: Fairmile, server: WebServer) -> None:
    def evil(exchange: web.Exchange) -> None:
        exchange.head("404 Not\x1b[2J Found", {"Content-Length": "0"})

    server.behaviour = evil
    result = fairmile("fetch", server.url("x"))
    assert result.code == 2
    assert "\x1b" not in result.err + result.out


# At a terminal


class Screen(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_progress_is_shown_at_a_terminal_and_taken_away(
    lake: Fairmile, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    screen = Screen()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", screen)
        patch.setenv("COLUMNS", "200")
        assert run(["fetch", "lake"]) == 0
    shown = screen.getvalue()
    assert "200.0 KiB" in shown
    assert NAME in shown
    assert shown.endswith("\r\033[K")
    assert "\r" not in capsys.readouterr().out


def test_elsewhere_no_progress_is_shown(lake: Fairmile) -> None:
    assert lake("fetch", "lake").err == ""


def test_a_second_fetch_of_an_address_asks_its_server_once_and_moves_nothing(
    fairmile: Fairmile, server: WebServer
) -> None:
    assert fairmile("fetch", server.url("data.bin")).code == 0
    server.requests.clear()
    result = fairmile("fetch", server.url("data.bin"))
    assert result.out.startswith("present")
    assert [request.method for request in server.requests] == ["HEAD"]


def test_an_address_that_has_changed_is_fetched_anew(fairmile: Fairmile, server: WebServer) -> None:
    assert fairmile("fetch", server.url("data.bin")).code == 0
    server.files["data.bin"] = MORE
    assert fairmile("fetch", server.url("data.bin"), "--to", "out").out.startswith("fetched")


def test_with_its_digest_an_address_that_is_there_is_not_asked(fairmile: Fairmile, server: WebServer) -> None:
    digest = hashlib.sha256(DATA).hexdigest()
    assert fairmile("fetch", server.url("data.bin"), "--sha256", digest).code == 0
    server.requests.clear()
    assert fairmile("fetch", server.url("data.bin"), "--sha256", digest).out.startswith("present")
    assert not server.requests
