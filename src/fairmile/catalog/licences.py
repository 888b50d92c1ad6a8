"""Licences as people write them, brought to SPDX; what is not recognised is said, never guessed."""

from __future__ import annotations

import re
from functools import cache
from typing import Any
from urllib.parse import unquote

from fairmile.base.lazy import lazy_pattern
from fairmile.catalog.card import SPDX_PREFIX

# Addresses under which common licences are quoted; the version stands in the address itself.
_HOST = r"^(?:https?://)?(?:www\.)?"
_CREATIVE_COMMONS = lazy_pattern(
    _HOST
    + r"creativecommons\.org/licenses/(by(?:-nc)?(?:-sa|-nd)?)/(\d\.\d)(?:/([a-z]{2,3}))?"
    + r"/?(?:(?:deed|legalcode)[\w.-]*)?/?$",
    re.IGNORECASE,
)
_BY_ADDRESS = tuple(
    (re.compile(_HOST + pattern, re.IGNORECASE), licence)
    for pattern, licence in (
        (r"creativecommons\.org/publicdomain/zero/1\.0(?:/|$)", "CC0-1.0"),
        (r"apache\.org/licenses/LICENSE-2\.0(?:\.txt|\.html)?/?$", "Apache-2.0"),
        (r"opendatacommons\.org/licenses/by(?:/1-?0|/summary)?/?$", "ODC-By-1.0"),
        (r"opendatacommons\.org/licenses/odbl(?:/1-?0|/summary)?/?$", "ODbL-1.0"),
        (r"opendatacommons\.org/licenses/pddl(?:/1-?0|/summary)?/?$", "PDDL-1.0"),
    )
)
_GNU_ADDRESS = lazy_pattern(
    _HOST + r"gnu\.org/(?:licenses|copyleft)/(?:old-licenses/)?([al]?gpl-\d\.\d)(?:\.[\w.-]+)?$", re.IGNORECASE
)
# Sites that end an address with the id of the licence, some with dashes for its dots.
_ID_ADDRESS = lazy_pattern(
    _HOST
    + r"(?:spdx\.org/licenses|opensource\.org/licen[sc]es?|choosealicense\.com/licenses|licenses\.nuget\.org)"
    + r"/([^/\s?#]+?)(?:\.(?:html|json|php))?/?$",
    re.IGNORECASE,
)
# Spellings in wide use that are not SPDX ids but can mean only one.
_SPELLINGS = {
    "apache 2.0": "Apache-2.0",
    "apache 2": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0",
    "apache-2": "Apache-2.0",
    "bsd 3-clause": "BSD-3-Clause",
    "3-clause bsd": "BSD-3-Clause",
    "bsd-3": "BSD-3-Clause",
    "new bsd": "BSD-3-Clause",
    "bsd 2-clause": "BSD-2-Clause",
    "2-clause bsd": "BSD-2-Clause",
    "c-uda": "C-UDA-1.0",
    "cc0": "CC0-1.0",
    "cc-zero": "CC0-1.0",
    "gpl-2": "GPL-2.0-only",
    "gplv2": "GPL-2.0-only",
    "gpl-3": "GPL-3.0-only",
    "gplv3": "GPL-3.0-only",
    "lgplv3": "LGPL-3.0-only",
    "agplv3": "AGPL-3.0-only",
    "lgpl-2.1+": "LGPL-2.1-or-later",
    "mpl 2.0": "MPL-2.0",
    "odbl": "ODbL-1.0",
    "odc-by": "ODC-By-1.0",
    "pddl": "PDDL-1.0",
}
# Names of families: the parser of expressions takes them for one member, which is a guess.
_FAMILIES = frozenset({"gpl", "lgpl", "agpl", "bsd", "cc", "gfdl"})
_CC_SHORT = lazy_pattern(r"cc[ -]by((?:[ -](?:nc|nd|sa)){0,2})[ -](\d\.\d)")
_CC_LONG = lazy_pattern(
    r"(?:creative commons )?attribution"
    r"((?:[ -]+(?:non-?\s?commercial|share-?\s?alike|no-?\s?deriv(?:ative|atives|s)(?: works)?)){0,2})"
    r" (\d\.\d)(?: international| unported| generic)?(?: public)?(?: \(cc[ -]by[^()]*\))?"
)
_CC_WORDS = (("commercial", "NC"), ("alike", "SA"), ("deriv", "ND"))


@cache
def _licensing() -> Any:
    from license_expression import get_spdx_licensing

    return get_spdx_licensing()


def spdx_expression(text: str) -> str | None:
    """Return the SPDX expression the text means, or None when that is not certain."""
    text = text.strip()
    if not text or len(text) > 300:
        return None
    address = _from_address(text)
    if address:
        text = address
    elif "://" in text:
        return None
    text = _from_name(text) or text
    if not _is_expression(text) or _FAMILIES & set(re.findall(r"[\w.+-]+", text.lower())):
        return None
    from license_expression import ExpressionError

    try:
        parsed = _licensing().parse(text, validate=True)
    except (ExpressionError, AttributeError):
        return None
    return str(parsed) if parsed is not None else None


def _is_expression(text: str) -> bool:
    """Tell whether ids, operators and brackets stand in an order that the parser can bear."""
    depth, wants_id = 0, True
    for token in re.findall(r"[()]|[^\s()]+", text):
        operator = token.upper() in ("AND", "OR", "WITH")
        if token == "(" and wants_id:
            depth += 1
        elif token == ")" and not wants_id and depth:
            depth -= 1
        elif token in "()" or operator == wants_id:
            return False
        else:
            wants_id = operator
    return depth == 0 and not wants_id


def _from_name(text: str) -> str | None:
    """Return the SPDX id that a name in wide use stands for."""
    name = re.sub(r"\s+", " ", text.lower()).removeprefix("the ")
    name = re.sub(r" licen[sc]e$", "", name)
    short, long = _CC_SHORT.fullmatch(name), _CC_LONG.fullmatch(name)
    if short:
        return f"CC-BY{short[1].upper().replace(' ', '-')}-{short[2]}"
    if long:
        return "-".join(["CC-BY", *(code for word, code in _CC_WORDS if word in long[1]), long[2]])
    return _SPELLINGS.get(text.lower()) or _SPELLINGS.get(name) or (name if name != text.lower() else None)


def _from_address(text: str) -> str | None:
    common = _CREATIVE_COMMONS.match(text)
    if common:
        port = f"-{common[3].upper()}" if common[3] and common[2] != "4.0" else ""
        return f"CC-{common[1].upper()}-{common[2]}{port}"
    gnu = _GNU_ADDRESS.match(text)
    if gnu:
        return gnu[1].upper()
    if text.startswith(SPDX_PREFIX) and " " in unquote(text):
        return unquote(text.removeprefix(SPDX_PREFIX))
    by_id = _ID_ADDRESS.match(text)
    if by_id:
        return re.sub(r"-(\d)-(\d)(?=-|$)", r"-\1.\2", by_id[1].removesuffix("-license"))
    return next((licence for pattern, licence in _BY_ADDRESS if pattern.match(text)), None)


def licence_iri(text: str) -> str | None:
    """Return the SPDX address of the licence, or None when it is not recognised."""
    expression = spdx_expression(text)
    return SPDX_PREFIX + expression if expression else None


def grants_reuse(expression: str) -> bool:
    """Tell whether every licence of the expression lets anyone reuse and change the work."""
    known = spdx_expression(expression)
    if known is None:
        return False
    keys = [str(key) for key in _licensing().license_keys(known)]
    return not any(word in key for key in keys for word in ("-NC", "-ND", "Noncommercial"))
