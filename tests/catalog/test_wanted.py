"""Which bytes a card stands for: addresses, mirrors, digests, archives, and what a stranger's card may not name."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import pytest

from fairmile.base.digest import Checksum
from fairmile.base.errors import NotFound, Unsupported, UsageError
from fairmile.catalog.card import Card
from fairmile.catalog.wanted import Wanted, access_steps, is_public, recognised, signature, wanted

URL = "https://example.org/data.bin"
Make = Callable[..., Card]


@pytest.fixture
def make(card: Callable[..., dict[str, Any]]) -> Make:
    """Return a card with these entries as its distribution."""

    def with_entries(*entries: Any, catalog: str = "local", **more: Any) -> Card:
        distribution = {"distribution": list(entries)} if entries else {}
        return Card(card(**{**distribution, **more}), catalog=catalog)

    return with_entries


def only(card: Card) -> Wanted:
    (found,) = wanted(card)
    return found


# Files


def test_a_file_is_its_address_its_name_its_size_and_its_digests(make: Make) -> None:
    sha256, md5 = hashlib.sha256(b"x").hexdigest(), hashlib.md5(b"x").hexdigest()
    entry = {"name": "a/b.bin", "contentUrl": URL, "contentSize": "1234 B", "sha256": sha256, "md5": md5}
    assert only(make(entry)) == Wanted(
        "a/b.bin", (URL,), 1234, 1234, (Checksum("sha256", sha256), Checksum("md5", md5))
    )


@pytest.mark.parametrize(
    "entry, path",
    [
        ({"contentUrl": "https://example.org/x/data.csv?v=1"}, "data.csv"),
        ({"contentUrl": "https://example.org/a%20b"}, "a b"),
        ({"contentUrl": "https://example.org/"}, "data"),
        ({"contentUrl": "https://example.org/x", "name": "/train/y.csv/"}, "train/y.csv"),
    ],
)
def test_a_file_is_called_what_the_card_says_or_by_its_address(make: Make, entry: dict[str, Any], path: str) -> None:
    assert only(make(entry)).path == path


@pytest.mark.parametrize("name", ["../evil", "a/../../evil", "a\\b", "a//b", "."])
def test_a_name_that_leads_elsewhere_is_refused(make: Make, name: str) -> None:
    with pytest.raises(UsageError, match=r"dataset/alpha@1\.0 distribution\[0\].* not a plain path"):
        wanted(make({"name": name, "contentUrl": URL}))


@pytest.mark.parametrize(
    "size, exact, about",
    [
        ("1234", 1234, 1234),
        ("1234 B", 1234, 1234),
        ("1234 bytes", 1234, 1234),
        ("1.5 GB", None, 1_500_000_000),
        ("12 MiB", None, 12 << 20),
        (77, 77, 77),
        ("", None, None),
        ("large", None, None),
    ],
)
def test_a_size_counts_to_the_byte_or_roughly(make: Make, size: object, exact: int | None, about: int | None) -> None:
    found = only(make({"contentUrl": URL, "contentSize": size}))
    assert (found.size_bytes, found.about_bytes) == (exact, about)


def test_a_digest_that_is_none_is_passed_over(make: Make) -> None:
    entry = {"contentUrl": URL, "sha256": "unknown", "md5": "0" * 32, "sha1": ""}
    assert only(make(entry)).checksums == (Checksum("md5", "0" * 32),)


def test_several_addresses_are_mirrors(make: Make) -> None:
    entry = {"contentUrl": [URL, "https://b.example/x"], "mirror": ["https://c.example/x", URL], "name": "x"}
    assert only(make(entry)).addresses == (URL, "https://b.example/x", "https://c.example/x")


def test_entries_of_one_name_and_content_are_mirrors(make: Make) -> None:
    digest = {"sha256": "a" * 64}
    entries = [
        {"name": "x", "contentUrl": URL, "contentSize": "5", **digest},
        {"name": "x", "contentUrl": "https://b.example/x", **digest},
        {"name": "y", "contentUrl": "https://b.example/y", **digest},
        {"name": "x", "contentUrl": "https://c.example/x", "sha256": "b" * 64},
    ]
    found = wanted(make(*entries))
    assert [(each.path, each.addresses) for each in found] == [
        ("x", (URL, "https://b.example/x")),
        ("y", ("https://b.example/y",)),
        ("x", ("https://c.example/x",)),
    ]
    assert found[0].size_bytes == 5


def test_entries_without_an_address_are_passed_over(make: Make) -> None:
    entries = [{"name": "x"}, {"name": "y", "contentUrl": ""}, {"contentUrl": {}}, {"contentUrl": [None]}, "text", URL]
    assert only(make(*entries, {"contentUrl": URL})).addresses == (URL,)


def test_a_single_entry_needs_no_list(make: Make) -> None:
    assert only(make(distribution={"contentUrl": URL})).addresses == (URL,)


# Archives, lists, programs


def test_an_archive_is_unpacked_where_the_card_says_so(make: Make) -> None:
    assert only(make({"contentUrl": "https://h/x.zip", "fetchMethod": "archive"})).unpack
    assert not only(make({"contentUrl": "https://h/x.zip"})).unpack


@pytest.mark.parametrize("reference", ["arc", {"@id": "arc"}, [{"@id": "arc"}]])
def test_an_archive_that_contains_other_entries_is_unpacked(make: Make, reference: Any) -> None:
    entries = [
        {"@id": "arc", "contentUrl": "https://h/x.zip"},
        {"@type": "FileSet", "containedIn": reference, "includes": "*.csv"},
    ]
    assert only(make(*entries)).unpack


def test_a_list_of_files_is_asked_for_its_files(make: Make) -> None:
    limit = {"additionalProperty": [{"name": "limit", "value": "3"}]}
    found = only(make({"contentUrl": "https://h/files.txt", "fetchMethod": "file_list", **limit}))
    assert found.addresses == ("list+https://h/files.txt",)
    assert found.limit == 3
    assert not found.is_one_file


def test_a_program_of_the_settings_is_named_by_the_address(make: Make) -> None:
    found = only(make({"contentUrl": "https://h/x", "fetchMethod": "aria2c"}))
    assert found.addresses == ("aria2c+https://h/x",)


def test_every_program_of_a_card_has_a_name_of_its_own(make: Make) -> None:
    def entry(name: str, *words: str) -> dict[str, Any]:
        return {"name": name, "contentUrl": f"https://h/{name}", "fetchMethod": "command", "command": list(words)}

    one, other, same = wanted(
        make(
            entry("x", "get", "{url}", "{file}"),
            entry("y", "fetch", "{url}", "{file}"),
            entry("z", "get", "{url}", "{file}"),
        )
    )
    names = [each.addresses[0].partition("+")[0] for each in (one, other, same)]
    assert names[0] == names[2] != names[1]
    assert one.program == ("get", "{url}", "{file}")


def test_a_program_of_a_strangers_card_is_not_run(make: Make) -> None:
    entry = {"contentUrl": "https://h/x", "fetchMethod": "command", "command": ["rm", "{url}", "{file}"]}
    with pytest.raises(Unsupported, match=r"distribution\[0\]: a card of the catalog 'group' would run a program"):
        wanted(make(entry, catalog="group"))


@pytest.mark.parametrize("command", ["get {url}", [1, 2], {"a": "b"}])
def test_a_program_is_a_list_of_words(make: Make, command: object) -> None:
    with pytest.raises(UsageError, match=r"distribution\[0\]\.command: expected a list of words"):
        wanted(make({"contentUrl": "https://h/x", "fetchMethod": "command", "command": command}))


def test_a_web_address_is_one_file_and_others_must_be_asked(make: Make) -> None:
    assert only(make({"contentUrl": URL})).is_one_file
    for address in ("s3://bucket/prefix", "hf://owner/name", "git+https://h/x.git", "ftp://h/folder"):
        assert not only(make({"contentUrl": address})).is_one_file


# Trust


@pytest.mark.parametrize(
    "address",
    [
        "file:///etc/passwd",
        "FILE:///etc/passwd",
        "file:/etc/passwd",
        "git+file:///home/me/secret.git",
        "list+file:///home/me/list",
        "mytool+file:///etc/passwd",
    ],
)
def test_a_strangers_card_may_not_name_a_file_of_this_machine(make: Make, address: str) -> None:
    for entry in ({"contentUrl": address}, {"contentUrl": URL, "mirror": address}):
        with pytest.raises(Unsupported, match="a card of the catalog 'group' refers to a local file") as caught:
            wanted(make(entry, catalog="group"))
        assert "your own catalog" in (caught.value.hint or "")
    assert only(make({"contentUrl": address, "name": "x"})).addresses == (address,)


def test_nor_may_its_repository(make: Make) -> None:
    card = make(codeRepository="file:///home/me/secret.git", catalog="group")
    with pytest.raises(Unsupported, match="codeRepository: a card of the catalog 'group' refers to a local file"):
        wanted(card)


@pytest.mark.parametrize("address", ["data.csv", "/etc/passwd", "../x", "https://[::1/x", "://x"])
def test_what_is_no_address_is_told_with_its_place(make: Make, address: str) -> None:
    with pytest.raises(UsageError, match=r"dataset/alpha@1\.0 distribution\[0\]: .* is not an address"):
        wanted(make({"contentUrl": address}))


def test_a_secret_in_an_address_is_not_told(make: Make) -> None:
    with pytest.raises(UsageError) as caught:
        wanted(make({"contentUrl": "https://me:hunter2@[::1/x"}))
    assert "hunter2" not in f"{caught.value} {caught.value.hint}"


# Pages


@pytest.mark.parametrize(
    "page, address",
    [
        ("https://huggingface.co/owner/model", "hf://owner/model"),
        ("https://huggingface.co/datasets/owner/data", "hf://datasets/owner/data"),
        ("https://huggingface.co/datasets/owner/data/tree/v1/sub", "hf://datasets/owner/data@v1/sub"),
        (
            "https://huggingface.co/owner/model/resolve/main/x.bin",
            "https://huggingface.co/owner/model/resolve/main/x.bin",
        ),
        ("https://huggingface.co/docs/hub", "https://huggingface.co/docs/hub"),
        ("https://zenodo.org/records/1234", "zenodo:1234"),
        ("https://zenodo.org/record/1234/", "zenodo:1234"),
        ("https://doi.org/10.5281/zenodo.1234", "zenodo:1234"),
        ("https://doi.org/10.1000/other", "https://doi.org/10.1000/other"),
        ("https://zenodo.org/records/1234/files/x.csv", "https://zenodo.org/records/1234/files/x.csv"),
        ("https://evil.example/huggingface.co/a/b", "https://evil.example/huggingface.co/a/b"),
        (URL, URL),
    ],
)
def test_the_page_of_a_service_means_its_data(page: str, address: str) -> None:
    assert recognised(page) == address


# Code


@pytest.mark.parametrize(
    "version, at",
    [("1.2.3", "@1.2.3"), ("v2", "@v2"), ("a" * 40, "@" + "a" * 40), ("main", ""), ("2026-01-02", "@2026-01-02")],
)
def test_a_program_without_files_is_its_repository_at_its_version(make: Make, version: str, at: str) -> None:
    found = only(make(codeRepository="https://example.org/x.git", version=version))
    assert found.addresses == (f"git+https://example.org/x.git{at}",)
    assert only(make(codeRepository="git+https://example.org/x.git", version="main")).addresses == (
        "git+https://example.org/x.git",
    )


# Access


def test_a_card_without_an_address_tells_how_to_get_the_data(make: Make) -> None:
    card = make(
        conditionsOfAccess="Ask the archive for an account.",
        url="https://archive.example/how",
        accessRights="http://publications.europa.eu/resource/authority/access-right/RESTRICTED",
    )
    with pytest.raises(NotFound, match=r"dataset/alpha@1\.0 has no URL") as caught:
        wanted(card)
    assert caught.value.hint == "Ask the archive for an account. See https://archive.example/how"


def test_a_card_without_an_address_names_the_data_that_it_is_used_with(make: Make) -> None:
    data = ["https://w3id.org/fairmile/a/dataset/mnist/1.0", "https://doi.org/10.5281/zenodo.1"]
    with pytest.raises(NotFound) as caught:
        wanted(make(trainedOn=[{"@id": id} for id in data], conditionsOfAccess="Ask."))
    named = "`fairmile fetch dataset/mnist`, `fairmile fetch https://doi.org/10.5281/zenodo.1`"
    assert caught.value.hint == f"its data: {named}"


@pytest.mark.parametrize(
    "rights, is_free, expected",
    [
        ("", None, True),
        ("public", None, True),
        ("http://publications.europa.eu/resource/authority/access-right/PUBLIC", None, True),
        ("http://publications.europa.eu/resource/authority/access-right/RESTRICTED", None, False),
        ("restricted", True, False),
        ("", False, False),
        ("public", True, True),
    ],
)
def test_what_the_card_says_about_access_counts(make: Make, rights: str, is_free: bool | None, expected: bool) -> None:
    assert is_public(make(accessRights=rights or None, isAccessibleForFree=is_free)) is expected


def test_steps_are_the_cards_own_words(make: Make) -> None:
    assert access_steps(make()) == ""
    assert access_steps(make(url="https://h/page")) == ""
    assert access_steps(make(url="https://h/page", isAccessibleForFree=False)) == "See https://h/page"
    assert access_steps(make(conditionsOfAccess=["Sign.", "Wait."], usageInfo="Cite.")) == "Sign. Wait. Cite."


# What changes


def test_the_signature_changes_with_the_bytes_that_are_meant_and_only_then(make: Make) -> None:
    base = make({"contentUrl": URL})
    assert signature(base) == signature(make({"contentUrl": URL}, description="other words", keywords=["x"]))
    for other in (
        make({"contentUrl": URL + "2"}),
        make({"contentUrl": URL, "sha256": "a" * 64}),
        make({"contentUrl": URL}, version="2.0"),
        make({"contentUrl": URL}, codeRepository="https://example.org/x.git"),
    ):
        assert signature(other) != signature(base)
