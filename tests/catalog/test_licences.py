"""Licences as people write them, brought to SPDX, and what is not recognised."""

from __future__ import annotations

import pytest
from cases import for_each
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from fairmile.catalog.licences import grants_reuse, licence_iri, spdx_expression


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("MIT", "MIT"),
        ("  mit ", "MIT"),
        ("apache-2.0", "Apache-2.0"),
        ("cc-by-nc-sa-3.0", "CC-BY-NC-SA-3.0"),
        ("bsl-1.0", "BSL-1.0"),
        ("etalab-2.0", "etalab-2.0"),
        ("NIST-PD", "NIST-PD"),
        ("GPL-3.0", "GPL-3.0-only"),
        ("GPL-2.0+", "GPL-2.0-or-later"),
        ("agpl-3.0", "AGPL-3.0-only"),
    ],
)
def test_spdx_ids_are_recognised_in_any_case_and_age(text: str, expected: str) -> None:
    assert spdx_expression(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("MIT OR Apache-2.0", "MIT OR Apache-2.0"),
        ("mit or apache-2.0", "MIT OR Apache-2.0"),
        ("MIT AND (Apache-2.0 OR BSD-3-Clause)", "MIT AND (Apache-2.0 OR BSD-3-Clause)"),
        ("GPL-2.0-only WITH Classpath-exception-2.0", "GPL-2.0-only WITH Classpath-exception-2.0"),
        ("https://spdx.org/licenses/MIT OR Apache-2.0", "MIT OR Apache-2.0"),
        ("https://spdx.org/licenses/MIT%20OR%20Apache-2.0", "MIT OR Apache-2.0"),
    ],
)
def test_expressions_are_recognised(text: str, expected: str) -> None:
    assert spdx_expression(text) == expected


@for_each(
    "address, expected",
    [
        ("https://spdx.org/licenses/MIT", "MIT"),
        ("http://spdx.org/licenses/BSD-3-Clause.html", "BSD-3-Clause"),
        ("https://spdx.org/licenses/Apache-2.0.json", "Apache-2.0"),
        ("https://opensource.org/licenses/MIT", "MIT"),
        ("https://opensource.org/license/apache-2-0", "Apache-2.0"),
        ("http://www.opensource.org/licenses/mit-license.php", "MIT"),
        ("https://choosealicense.com/licenses/mit/", "MIT"),
        ("https://creativecommons.org/licenses/by/4.0/", "CC-BY-4.0"),
        ("http://creativecommons.org/licenses/by/4.0/legalcode", "CC-BY-4.0"),
        ("https://creativecommons.org/licenses/by-nc-nd/4.0", "CC-BY-NC-ND-4.0"),
        ("https://creativecommons.org/licenses/by/3.0/deed.en", "CC-BY-3.0"),
        ("https://creativecommons.org/licenses/by/3.0/us/", "CC-BY-3.0-US"),
        ("https://creativecommons.org/licenses/by/3.0/de/deed.de", "CC-BY-3.0-DE"),
        ("https://creativecommons.org/licenses/by-nc-sa/3.0/igo/", "CC-BY-NC-SA-3.0-IGO"),
        ("creativecommons.org/publicdomain/zero/1.0/", "CC0-1.0"),
        ("http://www.apache.org/licenses/LICENSE-2.0.txt", "Apache-2.0"),
        ("https://www.gnu.org/licenses/gpl-3.0.en.html", "GPL-3.0-only"),
        ("https://www.gnu.org/licenses/old-licenses/lgpl-2.1.html", "LGPL-2.1-only"),
        ("https://opendatacommons.org/licenses/by/1-0/", "ODC-By-1.0"),
        ("https://opendatacommons.org/licenses/odbl/", "ODbL-1.0"),
        ("https://opendatacommons.org/licenses/pddl/1-0/", "PDDL-1.0"),
    ],
)
def test_addresses_of_licences_are_recognised(address: str, expected: str) -> None:
    assert spdx_expression(address) == expected


@for_each(
    "text, expected",
    [
        ("Apache 2.0", "Apache-2.0"),
        ("Apache License, Version 2.0", "Apache-2.0"),
        ("MIT License", "MIT"),
        ("The MIT Licence", "MIT"),
        ("BSD 3-Clause License", "BSD-3-Clause"),
        ("3-Clause BSD License", "BSD-3-Clause"),
        ("CC0", "CC0-1.0"),
        ("CC BY 4.0", "CC-BY-4.0"),
        ("CC-BY-SA 3.0", "CC-BY-SA-3.0"),
        ("cc by-nc-sa 4.0", "CC-BY-NC-SA-4.0"),
        ("Creative Commons Attribution 4.0 International", "CC-BY-4.0"),
        ("Creative Commons Attribution-NonCommercial-ShareAlike 4.0 International License", "CC-BY-NC-SA-4.0"),
        ("Creative Commons Attribution Non Commercial No Derivatives 4.0 International", "CC-BY-NC-ND-4.0"),
        ("Attribution 4.0 International (CC BY 4.0)", "CC-BY-4.0"),
        ("GPLv3", "GPL-3.0-only"),
        ("LGPL-2.1+", "LGPL-2.1-or-later"),
        ("odc-by", "ODC-By-1.0"),
        ("odbl", "ODbL-1.0"),
        ("c-uda", "C-UDA-1.0"),
    ],
)
def test_spellings_that_can_mean_only_one_licence_are_recognised(text: str, expected: str) -> None:
    assert spdx_expression(text) == expected


@for_each(
    "text",
    [
        *("", "   ", "Public", "public domain", "other", "unknown", "none", "N/A", "Custom", "Proprietary"),
        *("gpl", "GPL", "lgpl", "bsd", "cc", "gfdl", "CC-BY", "apache", "openrail", "llama2", "gemma"),
        *("CC BY-NC-SA-AU", "https://creativecommons.org/licenses/by-nc-sa/3.0/au/", "LicenseRef-mine"),
        *(
            "MIT OR Public",
            "MIT OR GPL",
            "MIT OR",
            "OR MIT",
            "MIT Apache-2.0",
            "MIT, Apache-2.0",
            "()",
            "(OR 0",
            "(MIT",
        ),
        *("LICENSE", "see LICENSE file", "MIT + file LICENSE", "All rights reserved", "file://LICENSE"),
        *("https://example.org/terms-of-use", "https://www.kaggle.com/terms", "https://example.org/LICENSE"),
        *("info:eu-repo/semantics/openAccess", "info:eu-repo/semantics/restrictedAccess"),
        "https://creativecommons.org/publicdomain/mark/1.0/",
        "https://example.org/?see=creativecommons.org/licenses/by/4.0/",
        "https://example.org/spdx.org/licenses/MIT",
        "https://opensource.org/licenses/bsd-license.php",
        "MIT " * 100,
    ],
)
def test_what_is_not_certain_is_not_guessed(text: str) -> None:
    assert spdx_expression(text) is None
    assert licence_iri(text) is None


def test_the_address_of_a_licence_is_that_of_spdx() -> None:
    assert licence_iri("mit") == "https://spdx.org/licenses/MIT"
    assert licence_iri("https://creativecommons.org/licenses/by/4.0/") == "https://spdx.org/licenses/CC-BY-4.0"


@pytest.mark.parametrize(
    "expression", ["MIT", "CC-BY-4.0", "CC0-1.0", "GPL-3.0-only", "MIT OR Apache-2.0", "HPND", "NCSA"]
)
def test_open_licences_grant_reuse(expression: str) -> None:
    assert grants_reuse(expression)


@pytest.mark.parametrize(
    "expression",
    [
        *("CC-BY-NC-4.0", "CC-BY-ND-4.0", "CC-BY-NC-SA-3.0-IGO", "PolyForm-Noncommercial-1.0.0"),
        *("MIT AND CC-BY-NC-4.0", "LicenseRef-mine", "Public", "", "("),
    ],
)
def test_licences_that_bar_some_or_are_unknown_grant_no_reuse(expression: str) -> None:
    assert not grants_reuse(expression)


WORDS = [
    "MIT",
    "OR",
    "AND",
    "WITH",
    "(",
    ")",
    "Apache-2.0",
    "+",
    ",",
    "/",
    "gpl",
    '"',
    "Classpath-exception-2.0",
    "<",
    ":",
]


@pytest.mark.thorough
@settings(max_examples=examples(300), deadline=None)
@given(st.text(max_size=40) | st.lists(st.sampled_from(WORDS), max_size=10).map(" ".join))
def test_any_text_is_recognised_or_not_and_what_is_stays_so(text: str) -> None:
    expression = spdx_expression(text)
    if expression is not None:
        assert spdx_expression(expression) == expression
        assert spdx_expression(licence_iri(text) or "") == expression
