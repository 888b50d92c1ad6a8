from __future__ import annotations

import pytest

from fairmile.catalog.dates import is_date


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2014", True),
        ("2024-05-01T10:00:00.5+02:00", True),
        ("24-05-01", False),
        ("2024-5-1", False),
        ("2024-05-01T", False),
        ("2014-04", True),
        ("2014-04-06", True),
        ("2014-04-06T23:23:39", True),
        ("2014-04-06 23:23:39.5Z", True),
        ("2014-13-01", False),
        ("2014-02-30", False),
        ("06.04.2014", False),
        ("yesterday", False),
        ("", False),
    ],
)
def test_a_real_date_is_what_iso_8601_writes(text: str, expected: bool) -> None:
    assert is_date(text) is expected
