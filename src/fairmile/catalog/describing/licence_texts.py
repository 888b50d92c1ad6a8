"""Licences recognised by their text. A text that is not certain is not named: only its holder can say."""

from __future__ import annotations

import re

from fairmile.base.quick_named_tuple import NamedTuple
from fairmile.catalog.licences import spdx_expression

_IDENTIFIER = re.compile(r"SPDX-License-Identifier:\s*([^\r\n*/]{1,200})")
_FILE = re.compile(r"(?:licen[cs]e|copying|unlicense)(?:[._-][\w.-]+)?", re.IGNORECASE)
_LONGEST = 200_000
_COPYRIGHT = re.compile(r"^\W*(?:copyright|\(c\)|©|all rights reserved)\b.*$", re.IGNORECASE | re.MULTILINE)


class _Text(NamedTuple):
    """The phrases that a licence must hold, in order, and how many words it has at least and at most."""

    spdx: str
    phrases: tuple[str, ...]
    words: tuple[int, int]


# A text with more or fewer words was changed, and a changed licence grants something else.
_TEXTS = (
    _Text(
        "MIT",
        (
            "permission is hereby granted free of charge to any person obtaining a copy",
            "the above copyright notice and this permission notice shall be included",
            "the software is provided as is without warranty of any kind",
        ),
        (150, 185),
    ),
    _Text(
        "BSD-2-Clause",
        (
            "redistribution and use in source and binary forms",
            "redistributions of source code must retain",
            "redistributions in binary form must reproduce",
            "this software is provided by",
        ),
        (165, 205),
    ),
    _Text(
        "BSD-3-Clause",
        (
            "redistribution and use in source and binary forms",
            "redistributions of source code must retain",
            "redistributions in binary form must reproduce",
            "neither the name of",
            "this software is provided by",
        ),
        (195, 250),
    ),
    _Text(
        "ISC",
        (
            "permission to use copy modify and or distribute this software for any purpose with or without fee",
            "the software is provided as is and the author disclaims all warranties",
        ),
        (100, 135),
    ),
    _Text(
        "Apache-2.0",
        (
            "apache license version 2 0 january 2004",
            "terms and conditions for use reproduction and distribution",
            "grant of patent license",
            "end of terms and conditions",
        ),
        (1_350, 1_625),
    ),
    _Text("Apache-2.0", ("licensed under the apache license version 2 0 the license",), (60, 120)),
    _Text("MPL-2.0", ("mozilla public license version 2 0", "1 definitions", "exhibit a"), (2_300, 2_800)),
    _Text(
        "CC-BY-4.0",
        ("creative commons attribution 4 0 international public license", "section 1 definitions"),
        (1_700, 3_000),
    ),
    _Text(
        "CC-BY-SA-4.0",
        ("creative commons attribution sharealike 4 0 international public license", "section 1 definitions"),
        (1_900, 3_300),
    ),
    _Text(
        "CC-BY-NC-4.0",
        ("creative commons attribution noncommercial 4 0 international public license", "section 1 definitions"),
        (1_800, 3_200),
    ),
    _Text("CC0-1.0", ("cc0 1 0 universal", "statement of purpose", "public license fallback"), (950, 1_300)),
    _Text("Unlicense", ("this is free and unencumbered software released into the public domain",), (150, 250)),
    _Text("BSL-1.0", ("boost software license version 1 0 august 17th 2003",), (180, 260)),
    _Text("ODbL-1.0", ("open database license", "odbl v1 0", "1 0 definitions of capitalised words"), (3_000, 5_000)),
)
# The text is the same whether later versions are allowed or not: a notice elsewhere says which.
_GNU = (
    ("AGPL-3.0", "gnu affero general public license version 3 19 november 2007"),
    ("LGPL-3.0", "gnu lesser general public license version 3 29 june 2007"),
    ("LGPL-2.1", "gnu lesser general public license version 2 1 february 1999"),
    ("GPL-3.0", "gnu general public license version 3 29 june 2007"),
    ("GPL-2.0", "gnu general public license version 2 june 1991"),
)


class LicenceText(NamedTuple):
    """The SPDX id of a text, or the ids among which its holder must choose."""

    spdx: str = ""
    choices: tuple[str, ...] = ()


def is_licence_file(name: str) -> bool:
    """Tell whether a file is called as licences are."""
    return _FILE.fullmatch(name) is not None


def recognise_licence(text: str) -> LicenceText:
    """Return which licence a text is; nothing where that is not certain."""
    stated = _IDENTIFIER.search(text[:_LONGEST])
    if stated:
        return LicenceText(spdx_expression(stated[1].strip()) or "")
    words = re.sub(r"[\W_]+", " ", _COPYRIGHT.sub("", text[:_LONGEST]).lower()).split()
    normal = f" {' '.join(words)} "
    for name, title in _GNU:
        if f" {title} " in normal[:400]:
            return LicenceText(choices=(f"{name}-only", f"{name}-or-later"))
    for each in reversed(_TEXTS):
        if each.words[0] <= len(words) <= each.words[1] and _holds(normal, each.phrases):
            return LicenceText(each.spdx)
    return LicenceText()


def _holds(text: str, phrases: tuple[str, ...]) -> bool:
    at = 0
    for phrase in phrases:
        at = text.find(f" {phrase} ", at)
        if at < 0:
            return False
    return True
