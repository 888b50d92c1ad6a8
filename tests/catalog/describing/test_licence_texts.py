"""Licences by their text: named only where that is certain."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairmile.catalog.describing.licence_texts import is_licence_file, recognise_licence

COMMON = Path("/usr/share/common-licenses")  # Debian keeps the texts here


@pytest.mark.parametrize("name", ["LICENSE", "LICENCE.md", "COPYING", "license-mit.txt", "LICENSE.APACHE2"])
def test_files_that_are_called_as_licences_are(name: str) -> None:
    assert is_licence_file(name)


@pytest.mark.parametrize("name", ["licensed.csv", "copyingmachine.txt", "README.md"])
def test_files_that_only_sound_alike(name: str) -> None:
    assert not is_licence_file(name)


@pytest.mark.parametrize(
    ("name", "spdx"),
    [("Apache-2.0", "Apache-2.0"), ("CC0-1.0", "CC0-1.0"), ("MPL-2.0", "MPL-2.0"), ("BSD", "BSD-3-Clause")],
)
def test_whole_texts_are_recognised_and_cut_ones_are_not(name: str, spdx: str) -> None:
    if not (COMMON / name).is_file():
        pytest.skip("this machine keeps no texts of licences")
    text = (COMMON / name).read_text()
    assert recognise_licence(text).spdx == spdx
    assert recognise_licence(text[: len(text) // 2]).spdx == ""
    assert recognise_licence(text + " and one more condition that changes everything" * 60).spdx == ""


def test_the_text_of_a_gnu_licence_leaves_the_choice_to_the_holder() -> None:
    text = "GNU GENERAL PUBLIC LICENSE\nVersion 3, 29 June 2007\n\nEveryone is permitted to copy"
    assert recognise_licence(text) == ("", ("GPL-3.0-only", "GPL-3.0-or-later"))


def test_an_spdx_line_is_believed() -> None:
    assert recognise_licence("# SPDX-License-Identifier: CC-BY-4.0\n").spdx == "CC-BY-4.0"
    assert recognise_licence("SPDX-License-Identifier: my own").spdx == ""
