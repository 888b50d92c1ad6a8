from __future__ import annotations

import math

import pytest
from cases import for_each
from hypothesis import given
from hypothesis import strategies as st

from fairmile.base.errors import UsageError
from fairmile.base.units import (
    format_duration,
    format_number,
    format_size,
    format_value,
    parse_duration,
    parse_size,
    parse_time,
)


@for_each(
    "text, size",
    [
        ("97.73 TiB", round(97.73 * 2**40)),
        ("36.809 KB", 36809),
        ("5943306240 B", 5943306240),
        ("12", 12),
        (12, 12),
        ("1,024 MB", 1024 * 10**6),
        ("1.5G", 1_500_000_000),
        ("2 gib", 2 * 2**30),
        ("1 byte", 1),
        ("3 bytes", 3),
        ("1.5e3 B", 1500),
        (" 7 kB ", 7000),
        ("0", 0),
        ("1 YiB", 2**80),
    ],
)
def test_sizes_as_people_write_them(text: str | int, size: int) -> None:
    assert parse_size(text) == size


@for_each(
    "text", [" B", "90 pages", "", "-1 B", "1,5 GB", "1 iB", "nan", "inf GB", "1e999 B", "12 MBit", "1" * 200, -1, True]
)
def test_what_is_no_size_is_refused_with_a_hint_or_reason(text: str | int) -> None:
    with pytest.raises(UsageError, match=r"size"):
        parse_size(text)


@for_each(
    "size, text",
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (5943306240, "5.5 GiB"),
        (2**20 - 1, "1.0 MiB"),
        (-2048, "-2.0 KiB"),
        (2**90, "1024.0 YiB"),
    ],
)
def test_sizes_are_shown_short(size: int, text: str) -> None:
    assert format_size(size) == text


@given(st.integers(0, 2**80))
def test_a_shown_size_reads_back_within_its_precision(size: int) -> None:
    assert math.isclose(parse_size(format_size(size)), size, rel_tol=0.05)


@given(st.integers(0, 2**70), st.sampled_from(["B", "KiB", "MB", "GiB", "T"]))
def test_whole_sizes_are_exact(number: int, unit: str) -> None:
    factor = {"B": 1, "KiB": 2**10, "MB": 10**6, "GiB": 2**30, "T": 10**12}[unit]
    assert parse_size(f"{number} {unit}") == number * factor


@for_each(
    "text, seconds",
    [
        ("90", 90),
        ("1.5", 1.5),
        (90, 90),
        ("1:30", 90),
        ("1:30:00", 5400),
        ("100:00:00", 360000),
        ("2d3h", 2 * 86400 + 3 * 3600),
        ("1-12:00:00", 129600),
        ("1-12", 129600),
        ("1-12:30", 131400),
        ("500ms", 0.5),
        ("1h 30m", 5400),
        ("2 days, 3 hours", 183600),
        ("1.5h", 5400),
        ("0:00:00.5", 0.5),
        ("12 µs", 12e-6),
    ],
)
def test_durations_as_people_write_them(text: str | float, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds, rel=1e-12)


@for_each(
    "text",
    [
        "",
        "soon",
        "-5",
        "1:90:00",
        "1:00:61",
        "1-25:00:00",
        "3h2d",
        "1h1h",
        "1:2:3:4",
        "UNLIMITED",
        -1,
        math.inf,
        math.nan,
    ],
)
def test_what_is_no_duration_is_refused(text: str | float) -> None:
    with pytest.raises(UsageError, match="not a duration"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["15", " 1.5 ", 15])
def test_a_typed_time_needs_a_unit(text: str | float) -> None:
    shown = str(text).strip()
    with pytest.raises(
        UsageError, match=rf"^{shown} has no unit: write {shown}m for minutes or {shown}s for seconds(?:\n|$)"
    ):
        parse_time(text)


@pytest.mark.parametrize(("text", "seconds"), [("15m", 900), ("15s", 15), ("1:30", 90), ("0", 0)])
def test_a_typed_time_with_a_unit_is_a_duration(text: str, seconds: float) -> None:
    assert parse_time(text) == seconds


@for_each(
    "seconds, text",
    [
        (0, "0 s"),
        (0.35, "350 ms"),
        (12e-6, "12 µs"),
        (45.2, "45.2 s"),
        (90, "1m 30s"),
        (3599.7, "1h"),
        (5400, "1h 30m"),
        (86399, "1d"),
        (183600, "2d 3h"),
        (-90, "-1m 30s"),
    ],
)
def test_durations_are_shown_short(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@given(st.floats(1e-9, 1e9))
def test_a_shown_duration_reads_back_within_its_precision(seconds: float) -> None:
    assert math.isclose(parse_duration(format_duration(seconds)), seconds, rel_tol=0.03)


@for_each(
    "value, unit, text",
    [
        (0.12345678, "", "0.1235"),
        (1234.5, "J", "1,234 J"),
        (7_212_000.0, "J", "7.212 MJ"),
        (30.25, "s", "30.25 s"),
        (3700.0, "s", "1h 2m"),
        (0.0123, "s", "12.3 ms"),
        (3 * 1024**3, "bytes", "3.0 GiB"),
        (-0.5, "", "−0.5"),
        (0.0, "W", "0 W"),
        (1e-9, "", "1e−09"),
        (math.nan, "s", "NaN"),
        (-math.inf, "", "−∞"),
        (None, "s", ""),
    ],
)
def test_numbers_read_like_a_person_writes_them(value: float | None, unit: str, text: str) -> None:
    assert format_number(value, unit) == text


@for_each(
    "value, text",
    [(0.1, "0.1"), (1e-5, "1e-5"), (2.5e20, "2.5e+20"), (0.12345678, "0.123457"), (3, "3"), (True, "True"),
     (None, "none"), ("adam", "adam")],
)  # fmt: skip
def test_values_of_parameters_read_as_people_type_them(value: object, text: str) -> None:
    assert format_value(value) == text
