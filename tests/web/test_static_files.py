"""The files of others that we ship: exactly those of their release, with their licence."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import httpx

import fairmile.web.render as web

VENDOR = Path(web.__file__).parent / "static" / "vendor"


def test_every_vendored_file_has_the_digest_and_the_licence_that_the_manifest_states() -> None:
    manifest = json.loads((VENDOR / "manifest.json").read_text())
    stated = {name: digest for each in manifest.values() for name, digest in each["files"].items()}
    there = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in VENDOR.iterdir()}
    there.pop("manifest.json")
    assert there == stated
    for each in manifest.values():
        assert each["licence_file"] in each["files"]
        assert {"version", "licence", "source"} <= set(each)


def test_a_file_named_with_its_digest_is_kept_for_ever(client: httpx.Client) -> None:
    page = client.get("/").text
    address = page.partition('<script src="')[2].partition('"')[0]
    assert "immutable" in client.get(address).headers["cache-control"]
    assert client.get(address.partition("?")[0]).headers["cache-control"] == "no-cache"
