"""hf:// against a local server that replays the JSON and the headers which the hub's API documents.

The hub itself is out of reach of these tests. Its tree listing, its `Link` header, its `X-Error-Code` and its
redirects to a content network are written down here as documented and as the hub's own client reads them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from replay import Replay, Reply, Routed, context, read_all, tagged

from fairmile.base.digest import Checksum, sha256_hex
from fairmile.base.errors import Integrity, NotFound, SystemFailure, UsageError
from fairmile.testing.fetchers import RangeFetcherTests, Served
from fairmile.transfer.fetchers.http import Http
from fairmile.transfer.fetchers.huggingface import HubLocation, HuggingFace, next_page, parse_address
from fairmile.transfer.remote import RangeFetcher

COMMIT = "0123456789abcdef0123456789abcdef01234567"
API = "/api/datasets/harbour/gauges"
BIG = b"parquet" * 1000
README = b"# Gauges\n"
BLOB = "8f" * 20


def a_file(path: str, data: bytes) -> dict[str, object]:
    return {"type": "file", "oid": BLOB, "size": len(data), "path": path}


def a_large_file(path: str, data: bytes) -> dict[str, object]:
    return a_file(path, data) | {"lfs": {"oid": sha256_hex(data), "size": len(data), "pointerSize": 134}}


def a_folder(path: str) -> dict[str, object]:
    return {"type": "directory", "oid": BLOB, "size": 0, "path": path}


@pytest.fixture
def hub() -> Iterator[Replay]:
    with Replay() as server:
        yield server


@pytest.fixture
def content_network() -> Iterator[Replay]:
    with Replay() as server:
        yield server


@pytest.fixture
def gauges(hub: Replay, content_network: Replay) -> Replay:
    """A data set with a small file, and a large one that the content network serves."""
    tree = f"{API}/tree/{COMMIT}"
    listing = [a_folder("data"), a_file("README.md", README), a_large_file("data/a b.parquet", BIG)]
    hub.replies = {
        f"{API}/revision/main": Reply({"id": "harbour/gauges", "sha": COMMIT, "gated": False}),
        f"{tree}?recursive=true&expand=false": Reply(
            listing[:2], headers={"Link": f'<{hub.url}{tree}?cursor=two&recursive=true>; rel="next"'}
        ),
        f"{tree}?cursor=two&recursive=true": Reply(listing[2:]),
        f"{tree}?recursive=false&expand=false": Reply(listing[:2]),
        f"{tree}/data?recursive=false&expand=false": Reply(listing[2:]),
        f"{tree}/data?recursive=true&expand=false": Reply(listing[2:]),
        f"/datasets/harbour/gauges/resolve/{COMMIT}/README.md": Reply(README, headers={"ETag": f'"{BLOB}"'}),
        f"/datasets/harbour/gauges/resolve/{COMMIT}/data/a%20b.parquet": Reply(
            b"", 302, {"Location": f"{content_network.url}/blob?X-Amz-Signature=s", "X-Linked-Size": str(len(BIG))}
        ),
    }
    content_network.replies = {"/blob?X-Amz-Signature=s": Reply(BIG, headers={"ETag": '"cdn"'})}
    return hub


@pytest.fixture
def fetcher(hub: Replay, tmp_path: Path) -> Iterator[HuggingFace]:
    made = HuggingFace(context({"HOME": str(tmp_path), "HF_ENDPOINT": hub.url + "/"}))
    yield made
    made.close()


@pytest.fixture
def known(hub: Replay, tmp_path: Path) -> Iterator[HuggingFace]:
    made = HuggingFace(context({"HOME": str(tmp_path), "HF_ENDPOINT": hub.url, "HF_TOKEN": "hf_secret"}))
    yield made
    made.close()


# The conformance suite


class TestConformance(RangeFetcherTests):
    @pytest.fixture
    def served(self, hub: Replay, fetcher: HuggingFace) -> Iterator[Served[RangeFetcher]]:
        def publish(files: Mapping[str, bytes]) -> str:
            name = f"harbour/n{sha256_hex(repr(sorted(files)).encode())[:20]}"
            commit = sha256_hex(repr(files).encode())[:40]
            trees: dict[str, list[dict[str, object]]] = {}
            for path, data in files.items():
                hub.replies[f"/datasets/{name}/resolve/{commit}/{quote(path)}"] = tagged(data)
                entry = a_file(path, data) | {"oid": sha256_hex(data)}
                trees.setdefault("?recursive=true", []).append(entry)
                folder = path.rpartition("/")[0]
                trees.setdefault(f"{'/' if folder else ''}{quote(folder)}?recursive=false", []).append(entry)
            for place, entries in trees.items():
                hub.replies[f"/api/datasets/{name}/tree/{commit}{place}&expand=false"] = Reply(entries)
            hub.replies[f"/api/datasets/{name}/revision/main"] = Reply({"sha": commit, "gated": False})
            return f"hf://datasets/{name}" + (f"/{next(iter(files))}" if len(files) == 1 else "")

        routed = Routed(fetcher, Http(context({"HOME": "/nonexistent"})))
        yield Served(routed, publish, "hf://datasets/harbour/nowhere")
        routed.close()


# Files


def test_all_files_of_all_pages_are_found_and_read(gauges: Replay, fetcher: HuggingFace) -> None:
    readme, big = fetcher.find("hf://datasets/harbour/gauges")
    assert (readme.path, readme.size_bytes, big.path, big.size_bytes) == ("README.md", 9, "data/a b.parquet", len(BIG))
    assert read_all(fetcher, readme) == README
    assert read_all(fetcher, big) == BIG
    assert read_all(fetcher, big, 5, 12) == BIG[5:12]


def test_the_files_are_those_of_one_commit_whatever_the_branch_does_later(gauges: Replay, fetcher: HuggingFace) -> None:
    found = fetcher.find("hf://datasets/harbour/gauges")
    assert all(f"/resolve/{COMMIT}/" in remote.address for remote in found)


def test_a_large_file_has_its_sha256_and_a_small_one_only_gits_name_as_validator(
    gauges: Replay, fetcher: HuggingFace
) -> None:
    readme, big = fetcher.find("hf://datasets/harbour/gauges")
    assert big.checksums == (Checksum("sha256", sha256_hex(BIG)),)
    assert readme.checksums == ()
    body = fetcher.open(readme, 0, None)
    assert body.validator == readme.validator
    body.close()


def test_a_folder_is_found_with_paths_relative_to_it(gauges: Replay, fetcher: HuggingFace) -> None:
    (found,) = fetcher.find("hf://datasets/harbour/gauges/data")
    assert found.path == "a b.parquet"


def test_one_file_is_found_under_its_own_name(gauges: Replay, fetcher: HuggingFace) -> None:
    (found,) = fetcher.find("hf://datasets/harbour/gauges/data/a b.parquet")
    assert (found.path, found.checksums[0].hex) == ("a b.parquet", sha256_hex(BIG))
    (found,) = fetcher.find("hf://datasets/harbour/gauges/README.md")
    assert found.path == "README.md"


def test_a_path_that_is_not_there_is_said(gauges: Replay, fetcher: HuggingFace) -> None:
    with pytest.raises(NotFound, match="no file in hf://datasets/harbour/gauges/LICENSE"):
        fetcher.find("hf://datasets/harbour/gauges/LICENSE")


def test_a_model_at_a_revision_is_asked_for_where_models_are(hub: Replay, fetcher: HuggingFace) -> None:
    hub.replies = {
        "/api/models/harbour/tide/revision/refs%2Fpr%2F3": Reply({"sha": COMMIT}),
        f"/api/models/harbour/tide/tree/{COMMIT}?recursive=true&expand=false": Reply([a_file("config.json", b"{}")]),
        f"/harbour/tide/resolve/{COMMIT}/config.json": Reply(b"{}"),
    }
    (found,) = fetcher.find("hf://harbour/tide@refs/pr/3")
    assert read_all(fetcher, found) == b"{}"


# Access


def test_the_token_goes_to_the_hub_and_nowhere_else(
    gauges: Replay, content_network: Replay, known: HuggingFace
) -> None:
    _, big = known.find("hf://datasets/harbour/gauges")
    for start in (0, 7, 14):
        read_all(known, big, start, start + 7)
    assert all(asked.headers.get("authorization") == "Bearer hf_secret" for asked in gauges.asked)
    assert len(content_network.asked) == 3
    assert all("authorization" not in asked.headers for asked in content_network.asked)


def test_the_token_is_never_shown(gauges: Replay, known: HuggingFace) -> None:
    assert "hf_secret" not in f"{known.find('hf://datasets/harbour/gauges')!r}"


@pytest.mark.parametrize(
    ("place", "environ"),
    [
        (".cache/huggingface/token", {}),
        ("hf/token", {"HF_HOME": "hf"}),
        ("cache/huggingface/token", {"XDG_CACHE_HOME": "cache"}),
        ("elsewhere", {"HF_TOKEN_PATH": "elsewhere"}),
    ],
)
def test_the_token_comes_from_where_the_hubs_own_tools_keep_it(
    gauges: Replay, tmp_path: Path, place: str, environ: dict[str, str]
) -> None:
    (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / place).write_text("hf_stored\n")
    full = {name: str(tmp_path / value) for name, value in environ.items()}
    made = HuggingFace(context({"HOME": str(tmp_path), "HF_ENDPOINT": gauges.url} | full))
    made.find("hf://datasets/harbour/gauges")
    made.close()
    assert gauges.asked[0].headers["authorization"] == "Bearer hf_stored"


def test_a_gated_repository_says_the_steps_before_anything_is_read(gauges: Replay, fetcher: HuggingFace) -> None:
    gauges.replies[f"{API}/revision/main"] = Reply({"sha": COMMIT, "gated": "manual"})
    with pytest.raises(SystemFailure, match="hf://datasets/harbour/gauges is gated") as caught:
        fetcher.find("hf://datasets/harbour/gauges")
    assert f"accept its conditions at {gauges.url}/datasets/harbour/gauges" in str(caught.value.hint)
    assert "HF_TOKEN" in str(caught.value.hint)


def test_a_gated_repository_whose_conditions_were_not_accepted_says_so(gauges: Replay, known: HuggingFace) -> None:
    gauges.replies[f"{API}/revision/main"] = Reply({"sha": COMMIT, "gated": "auto"})
    gauges.replies[f"/datasets/harbour/gauges/resolve/{COMMIT}/README.md"] = Reply(
        b"", 403, {"X-Error-Code": "GatedRepo"}
    )
    with pytest.raises(SystemFailure, match="has no access yet") as caught:
        known.find("hf://datasets/harbour/gauges")
    assert "accept its conditions" in str(caught.value.hint) and "hf_secret" not in str(caught.value)


def test_a_gated_repository_is_read_by_who_accepted_its_conditions(gauges: Replay, known: HuggingFace) -> None:
    gauges.replies[f"{API}/revision/main"] = Reply({"sha": COMMIT, "gated": "auto"})
    assert len(known.find("hf://datasets/harbour/gauges")) == 2


@pytest.mark.parametrize(
    ("reply", "kind", "words"),
    [
        (Reply(b"", 401, {"X-Error-Code": "RepoNotFound"}), NotFound, "does not exist, or it is private"),
        (Reply(b"", 401, {"X-Error-Code": "GatedRepo"}), SystemFailure, "is gated"),
        (Reply(b"", 404, {"X-Error-Code": "RevisionNotFound"}), NotFound, "no revision 'main'"),
        (Reply(b"", 404), NotFound, "hf://datasets/harbour/gauges does not exist"),
        (Reply(b"", 451), SystemFailure, "451"),
        (Reply(b"<html>log in</html>"), Integrity, "JSON"),
        (Reply({"sha": "../../etc"}), Integrity, "which commit"),
    ],
)
def test_a_refusal_is_explained(
    hub: Replay, fetcher: HuggingFace, reply: Reply, kind: type[Exception], words: str
) -> None:
    hub.replies = {f"{API}/revision/main": reply}
    with pytest.raises(kind, match=words):
        fetcher.find("hf://datasets/harbour/gauges")


def test_a_private_repository_that_the_token_does_not_open_is_said(hub: Replay, known: HuggingFace) -> None:
    hub.replies = {f"{API}/revision/main": Reply(b"", 403)}
    with pytest.raises(NotFound, match="your token does not grant access"):
        known.find("hf://datasets/harbour/gauges")


@pytest.mark.parametrize(
    "listing",
    [
        {"error": "?"},
        ["README.md"],
        [{"type": "file", "path": "x"}],
        [{"type": "file", "path": "x", "size": -1}],
        [{"type": "file", "path": "x", "size": 1, "lfs": {"oid": "abc"}}],
    ],
)
def test_a_listing_that_cannot_be_right_is_not_believed(gauges: Replay, fetcher: HuggingFace, listing: object) -> None:
    gauges.replies[f"{API}/tree/{COMMIT}?recursive=true&expand=false"] = Reply(listing)
    with pytest.raises(Integrity):
        fetcher.find("hf://datasets/harbour/gauges")


def test_the_listing_is_not_followed_to_another_host(
    gauges: Replay, content_network: Replay, known: HuggingFace
) -> None:
    tree = f"{API}/tree/{COMMIT}?recursive=true&expand=false"
    gauges.replies[tree] = Reply([], headers={"Link": f'<{content_network.url}/x>; rel="next"'})
    with pytest.raises(Integrity, match="foreign"):
        known.find("hf://datasets/harbour/gauges")
    assert content_network.asked == []


# Addresses


@pytest.mark.parametrize(
    ("address", "place"),
    [
        ("hf://harbour/tide", HubLocation("models", "harbour/tide")),
        ("hf://gpt2", HubLocation("models", "gpt2")),
        ("hf://models/harbour/tide", HubLocation("models", "harbour/tide")),
        ("hf://datasets/harbour/gauges/", HubLocation("datasets", "harbour/gauges")),
        ("hf://datasets/glue", HubLocation("datasets", "glue")),
        ("hf://spaces/harbour/map@v1/app.py", HubLocation("spaces", "harbour/map", "v1", "app.py")),
        ("hf://harbour/tide@v1.0/sub/a b.bin", HubLocation("models", "harbour/tide", "v1.0", "sub/a b.bin")),
        ("hf://datasets/a/b@refs/convert/parquet/x", HubLocation("datasets", "a/b", "refs/convert/parquet", "x")),
        ("hf://a/b@feature%2Fx/y", HubLocation("models", "a/b", "feature/x", "y")),
        ("hf://a/b@main/convert/x", HubLocation("models", "a/b", "main", "convert/x")),
    ],
)
def test_an_address_names_repository_revision_and_path(address: str, place: HubLocation) -> None:
    assert parse_address(address) == place


@pytest.mark.parametrize(
    "address",
    ["hf://", "hf:a/b", "https://a/b", "hf://datasets/", "hf://a/b/../c", "hf://a/b//c", "hf://../x", "hf://a b/c"],
)
def test_an_address_that_names_none_is_refused(address: str) -> None:
    with pytest.raises(UsageError):
        parse_address(address)


NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,9}", fullmatch=True)
WORDS = st.text(st.characters(blacklist_categories=["Cs", "Cc"], blacklist_characters="/@"), min_size=1, max_size=9)


@given(
    st.builds(
        HubLocation,
        st.sampled_from(["models", "datasets", "spaces"]),
        st.lists(NAMES.filter(lambda name: name not in ("models", "datasets", "spaces")), min_size=1, max_size=2).map(
            "/".join
        ),
        st.one_of(WORDS, st.tuples(WORDS, WORDS).map("/".join), st.just("refs/pr/7")),
        st.lists(WORDS.filter(lambda word: word not in (".", "..")), max_size=3).map("/".join),
    )
)
def test_a_place_survives_being_written_as_an_address(place: HubLocation) -> None:
    assert parse_address(str(place)) == place


def test_the_next_page_is_read_from_a_link_header() -> None:
    link = '<https://h/a?x=1>; rel="prev", <https://h/a?cursor=2>; rel="next"'
    assert next_page(link, "https://h/a") == "https://h/a?cursor=2"
    assert next_page("</b?c=1>;rel=next", "https://h/a") == "https://h/b?c=1"
    assert next_page('<https://h/a?x=1>; rel="prev"', "https://h/a") is None
