"""`fairmile store`: what a user sees and does with the bytes."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from store_filling import LARGE, age, fill, flip_a_bit, loose, open_store, small_files
from trusted_projects import trusted_project

from fairmile.base import yaml
from fairmile.store.store import Store

Fairmile = Callable[..., Any]
NAME = "local/dataset/lake@1.0"
FILES = {"lake.csv": LARGE, "readme.txt": b"a lake"}


def today() -> str:
    return time.strftime("%Y-%m-%d", time.gmtime())


@pytest.fixture
def store(place: Path) -> Store:
    """The store as the command line opens it."""
    return open_store(place.parent / "home" / "store")


@pytest.fixture
def lake(fairmile: Fairmile, store: Store) -> Fairmile:
    """The command line over a store that holds a lake of which no card tells."""
    fill(store, NAME, FILES)
    return fairmile


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# ls and du


def test_an_empty_store_says_what_to_do(fairmile: Fairmile) -> None:
    result = fairmile("store", "ls")
    assert (result.code, result.out) == (0, "")
    assert result.err == "the store is empty\nhint: `fairmile fetch NAME` downloads an asset\n"
    assert fairmile("store", "ls", "--json").json == {"names": []}


def test_what_is_there_is_listed(lake: Fairmile, store: Store) -> None:
    ref = fill(store, "https://example.org/a", {"a": b"a"}, kind="url")
    loose(store, b"a").unlink()
    lines = [line.split() for line in lake("store", "ls").out.splitlines()]
    assert lines[0] == ["kind", "name", "files", "size", "pool", "state", "last", "use"]
    assert lines[1] == ["card", NAME, "2", "117.2", "KiB", "home", "complete", today()]
    assert lines[2] == ["url", "https://example.org/a", "1", "1", "B", "home", "incomplete", today()]
    rows = lake("store", "ls", "--json").json["names"]
    assert [(row["name"], row["complete"]) for row in rows] == [(NAME, True), ("https://example.org/a", False)]
    assert rows[1]["root"] == ref.root


def test_what_each_pool_holds_is_summed(lake: Fairmile, store: Store) -> None:
    fill(store, "many", small_files(20))
    head, row = lake("store", "du").out.splitlines()
    assert head.split()[:5] == ["pool", "objects", "size", "packed", "shared"]
    assert head.split()[5:] == ["damaged", "incoming", "reserved", "free", "folder"]
    assert row.split()[:2] == ["home", "22"]
    [facts] = lake("store", "du", "--json").json["pools"]
    assert (facts["objects"], facts["packed"], facts["trouble"]) == (22, 20, "")


def test_a_pool_that_cannot_be_reached_is_told(lake: Fairmile, place: Path) -> None:
    settings = place.parent / "user" / ".config" / "fairmile" / "config.yaml"
    settings.parent.mkdir(parents=True)
    settings.write_text("pools:\n  far: /not/mounted/pool\n")
    result = lake("store", "du")
    assert result.code == 0
    assert "pool far: no folder /not/mounted" in result.err


# verify


def test_a_verified_store_is_told(lake: Fairmile) -> None:
    result = lake("store", "verify")
    assert (result.code, result.err) == (0, "")
    assert result.out == "verified   2 objects, 117.2 KiB: all intact\n"


def test_a_flipped_bit_is_told_with_the_names_it_hits_and_exit_code_4(lake: Fairmile, store: Store) -> None:
    path = loose(store, LARGE)
    flip_a_bit(path)
    result = lake("store", "verify")
    assert result.code == 4
    lines = result.out.splitlines()
    assert lines[0].startswith(f"damaged    {path}: its bytes have the sha256 ")
    assert lines[0].endswith(f"; needed by card {NAME}")
    assert lines[1:] == [f"incomplete card {NAME}", "verified   2 objects, 117.2 KiB: 1 damaged"]
    assert result.err == "hint: `fairmile store repair` downloads what is missing\n"
    assert lake("store", "verify").code == 0, "what is damaged was put aside"


def test_the_report_is_data_too(lake: Fairmile, store: Store) -> None:
    flip_a_bit(loose(store, LARGE))
    result = lake("store", "verify", "lake", "--json")
    assert result.code == 4
    [found] = result.json["damaged"]
    assert (found["names"], found["put_aside"]) == ([f"card {NAME}"], True)
    assert (result.json["objects"], result.json["incomplete"]) == (2, [f"card {NAME}"])


def test_an_unknown_name_brings_the_nearest(lake: Fairmile) -> None:
    result = lake("store", "verify", "lage")
    assert result.code == 2
    assert "nothing in the store is named 'lage'; did you mean 'lake'?" in result.err


# repair


def test_what_is_missing_is_brought_again(place: Path, fairmile: Fairmile, store: Store) -> None:
    (place / "lake.csv").write_bytes(LARGE)
    assert fairmile("fetch", f"file://{place}/lake.csv").code == 0
    flip_a_bit(loose(store, LARGE))
    assert fairmile("store", "verify").code == 4
    dry = fairmile("store", "repair", "--dry-run")
    assert dry.out == f"file://{place}/lake.csv: would be fetched again\n"
    result = fairmile("store", "repair")
    assert (result.code, result.out) == (0, f"file://{place}/lake.csv: repaired\n")
    assert fairmile("store", "repair").out == "nothing is missing\n"
    assert fairmile("store", "verify").code == 0


def test_what_cannot_be_brought_again_is_told(place: Path, fairmile: Fairmile, store: Store) -> None:
    (place / "lake.csv").write_bytes(LARGE)
    fairmile("fetch", f"file://{place}/lake.csv")
    (place / "lake.csv").unlink()
    loose(store, LARGE).unlink()
    result = fairmile("store", "repair", "--json")
    assert result.code == 3
    assert result.json["names"][0]["outcome"].startswith("failed: ")


# gc


def test_the_plan_is_shown_before_anything_goes(lake: Fairmile, store: Store, place: Path) -> None:
    before = everything(place.parent / "home" / "store")
    result = lake("store", "gc", "--grace", "0", "--dry-run")
    assert result.code == 0
    assert result.out.splitlines() == [
        f"would remove card {NAME}",
        "pool home: 1 name, 1 tree, 2 objects (117.2 KiB), 0 leftovers (0 B), 0 dead reservations",
        "would free 117.2 KiB",
    ]
    assert everything(place.parent / "home" / "store") == before
    result = lake("store", "gc", "--grace", "0", "--json")
    assert (result.json["size_bytes"], result.json["dry_run"]) == (len(LARGE) + 6, False)
    assert [ref["name"] for ref in result.json["pools"][0]["refs"]] == [NAME]
    assert store.refs() == []
    assert lake("store", "gc", "--grace", "0").out.splitlines()[-1] == "freed 0 B"


def test_what_a_card_refers_to_is_kept(place: Path, fairmile: Fairmile, store: Store) -> None:
    (place / "lake.csv").write_bytes(LARGE)
    card = {
        "@context": "https://w3id.org/fairmile/card/1.0/context",
        "@type": "Dataset",
        "name": "water",
        "version": "1.0",
        "distribution": [{"name": "lake.csv", "contentUrl": f"file://{place}/lake.csv"}],
    }
    (place / "water.jsonld").write_text(json.dumps(card))
    assert fairmile("catalog", "add", "water.jsonld").code == 0
    assert fairmile("fetch", "water").code == 0
    fairmile("store", "gc", "--grace", "0")
    assert store.complete("water")
    assert fairmile("catalog", "rm", "water").code == 0
    fairmile("store", "gc", "--grace", "0")
    assert store.refs() == []
    assert [row.objects for row in store.du()] == [0]


def test_young_things_are_left_alone_unless_told_otherwise(lake: Fairmile, store: Store) -> None:
    store.drop_ref("card", NAME)
    assert lake("store", "gc").out.splitlines()[-1] == "freed 0 B"
    assert lake("store", "gc", "--grace", "1s", "--dry-run").code == 0
    assert lake("store", "gc", "--grace", "0").out.splitlines()[-1] == "freed 117.2 KiB"


def test_addresses_go_when_they_were_not_used_for_long(fairmile: Fairmile, store: Store) -> None:
    fill(store, "https://example.org/a", FILES, kind="url")
    age(store.pool_refs(store.pools["home"]).path("url", "https://example.org/a"), 10 * 86400)
    fairmile("store", "gc", "--grace", "0")
    assert store.complete("https://example.org/a")
    fairmile("store", "gc", "--grace", "0", "--older-than", "9d")
    assert store.refs() == []


def test_a_duration_that_is_none_is_refused(fairmile: Fairmile) -> None:
    result = fairmile("store", "gc", "--older-than", "soon")
    assert result.code == 2
    assert "'soon' is not a duration" in result.err


def test_an_empty_pool_is_passed_over(fairmile: Fairmile) -> None:
    result = fairmile("store", "gc")
    assert (result.out, result.err) == ("freed 0 B\n", "pool home: skipped: it is empty\n")


# pin


def test_a_pin_comes_and_goes(lake: Fairmile, store: Store) -> None:
    assert lake("store", "pin", "lake", "--as", "paper", "--dry-run").out == f"would pin paper: card {NAME}\n"
    assert lake("store", "pins", "--json").json == {"pins": []}
    assert lake("store", "pin", "lake", "--as", "paper").out == f"pinned   paper: card {NAME}\n"
    assert lake("store", "pins").out.splitlines()[1].split() == ["paper", "card", NAME, "117.2", "KiB", today()]
    lake("store", "gc", "--grace", "0")
    assert store.complete("paper")
    assert lake("store", "unpin", "paper", "--dry-run").out == "would unpin paper\n"
    assert lake("store", "unpin", "paper").out == "unpinned paper\n"
    lake("store", "gc", "--grace", "0")
    assert store.refs() == []


def test_a_pin_that_is_not_there_is_told(lake: Fairmile) -> None:
    lake("store", "pin", "lake", "--as", "paper")
    result = lake("store", "unpin", "papre")
    assert result.code == 2
    assert "no pin is named 'papre'; did you mean 'paper'?" in result.err


# push and pull


def test_data_is_carried_away_and_brought_back(lake: Fairmile, store: Store, place: Path) -> None:
    size = "2 files  117.2 KiB"
    dry = lake("store", "push", "lake", "./usb", "--dry-run")
    assert dry.out == f"would push {NAME}  {size}  (2 objects, 117.2 KiB to move)\n"
    assert not (place / "usb").exists()
    assert lake("store", "push", "lake", "./usb").out == f"pushed   {NAME}  {size}  (2 objects, 117.2 KiB moved)\n"
    assert lake("store", "push", "lake", "./usb").out == f"pushed   {NAME}  {size}  (0 objects, 0 B moved)\n"
    store.drop_ref("card", NAME)
    lake("store", "gc", "--grace", "0")
    assert lake("store", "pull", "lake", "./usb").out == f"pulled   {NAME}  {size}  (2 objects, 117.2 KiB moved)\n"
    assert store.complete("lake")
    assert lake("store", "pull", "lake", "./usb", "--json").json["moved_objects"] == 0


def test_a_disk_that_is_not_plugged_in_is_told(lake: Fairmile) -> None:
    result = lake("store", "pull", "lake", "./usb")
    assert result.code == 2
    assert "no folder" in result.err


# pools


def test_a_pool_is_added_used_and_removed(lake: Fairmile, place: Path) -> None:
    dry = lake("store", "pool", "add", "scratch", "./scratch", "--speed", "fast", "--dry-run")
    assert dry.out == f"would add scratch: {place}/scratch\n"
    settings = place.parent / "user" / ".config" / "fairmile" / "config.yaml"
    assert not settings.exists()
    options = ["--speed", "fast", "--capacity", "10 MB", "--purge", "30 d", "--links", "hardlink,copy"]
    assert lake("store", "pool", "add", "scratch", "./scratch", *options).out == f"added    scratch: {place}/scratch\n"
    assert yaml.load(settings.read_text()) == {
        "pools": {
            "scratch": {
                "folder": f"{place}/scratch",
                "capacity": "10 MB",
                "purge": "30 d",
                "speed": "fast",
                "links": ["hardlink", "copy"],
            }
        }
    }
    rows = lake("store", "pool", "ls", "--json").json["pools"]
    assert [(row["pool"]["name"], row["speed_class"]) for row in rows] == [("scratch", "fast"), ("home", "normal")]
    assert rows[0]["pool"]["capacity_bytes"] == 10_000_000
    assert lake("store", "pull", "lake", str(place.parent / "home" / "store"), "--pool", "scratch").code == 0
    result = lake("store", "pool", "rm", "scratch")
    assert result.out == f"removed  scratch; its data stays in {place}/scratch\n"
    assert (place / "scratch").is_dir()
    assert len(lake("store", "pool", "ls").out.splitlines()) == 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["home2", "./home2", "--speed", "quick"], "'quick' is unknown"),
        (["home2", "./home2", "--capacity", "lots"], "'lots' is not a size"),
        (["home2", "./not/there"], "no folder"),
        (["home2", "../home/store/inside"], "share the folder"),
        (["a/b", "./ab"], "'a/b' cannot name a pool"),
        (["scratch", "./other"], "a pool named 'scratch' already exists"),
    ],
)
def test_a_pool_that_cannot_be_is_refused(fairmile: Fairmile, place: Path, arguments: list[str], says: str) -> None:
    fairmile("store", "pool", "add", "scratch", "./scratch")
    settings = place.parent / "user" / ".config" / "fairmile" / "config.yaml"
    before = settings.read_text()
    result = fairmile("store", "pool", "add", *arguments)
    assert result.code == 2
    assert says in result.err
    assert settings.read_text() == before


def test_the_pool_that_is_always_there_can_be_moved_once(fairmile: Fairmile, place: Path) -> None:
    moved = fairmile("store", "pool", "add", "home", "./data")
    assert moved.code == 0
    assert f"takes the place of the default pool in {place.parent / 'home' / 'store'}" in moved.err
    [row] = fairmile("store", "pool", "ls", "--json").json["pools"]
    assert row["pool"]["folder"] == f"{place}/data"
    assert fairmile("store", "pool", "add", "home", "./more").code == 2
    assert fairmile("store", "pool", "rm", "home").code == 0
    [row] = fairmile("store", "pool", "ls", "--json").json["pools"]
    assert row["pool"]["folder"] == str(place.parent / "home" / "store")


def test_a_folder_may_begin_with_a_variable(fairmile: Fairmile, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCRATCH", str(place))
    assert fairmile("store", "pool", "add", "fast", "$SCRATCH/pool").code == 0
    text = (place.parent / "user" / ".config" / "fairmile" / "config.yaml").read_text()
    assert "$SCRATCH/pool" in text
    rows = fairmile("store", "pool", "ls", "--json").json["pools"]
    assert f"{place}/pool" in [row["pool"]["folder"] for row in rows]


def test_a_pool_that_another_file_declares_cannot_be_removed(fairmile: Fairmile, place: Path) -> None:
    trusted_project(place, "pools:\n  project: ./project\n")
    os.chmod(place / "fairmile.yaml", 0o644)
    for name in ("project", "home"):
        result = fairmile("store", "pool", "rm", name)
        assert result.code == 2
        assert f"the pool '{name}' is not declared in" in result.err
    assert "no pool named 'hoem'; did you mean 'home'?" in fairmile("store", "pool", "rm", "hoem").err


def test_a_pool_is_measured_and_the_figures_are_kept(fairmile: Fairmile) -> None:
    dry = fairmile("store", "pool", "measure", "home", "--size", "1 MB", "--dry-run")
    assert dry.out.startswith("would write and read 976.6 KiB in ")
    result = fairmile("store", "pool", "measure", "home", "--size", "1 MB")
    assert [line.split()[0] for line in result.out.splitlines()] == ["writes", "reads", "creates", "measured"]
    assert "not measured" not in fairmile("store", "pool", "ls").out
