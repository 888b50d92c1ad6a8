"""Numbers, sizes and durations as people write them, and texts of sizes and durations turned back into numbers."""

from __future__ import annotations

import math
import re
from typing import Any

from fairmile.base.errors import UsageError
from fairmile.base.lazy import lazy_pattern

_POWERS = "kmgtpezy"
_SIZE = lazy_pattern(
    r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+|[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]*)?)(e[+-]?[0-9]{1,2})?"
    r"\s*(?:(bytes?)|([kmgtpezy]?)(i?)(b?))",
    re.IGNORECASE,
)
_CLOCK = lazy_pattern(r"(?:([0-9]{1,6})-)?([0-9]{1,9})(?::([0-9]{1,2}))?(?::([0-9]{1,2}(?:\.[0-9]+)?))?")
_SECONDS = lazy_pattern(r"[0-9]{1,15}(?:\.[0-9]*)?|\.[0-9]+")
_PART = lazy_pattern(r"([0-9]{1,15}(?:\.[0-9]*)?|\.[0-9]+)\s*([a-zµμ]+)[\s,]*", re.IGNORECASE)
_UNIT_NAMES = {
    604800.0: ("w", "week", "weeks"),
    86400.0: ("d", "day", "days"),
    3600.0: ("h", "hr", "hrs", "hour", "hours"),
    60.0: ("m", "min", "mins", "minute", "minutes"),
    1.0: ("s", "sec", "secs", "second", "seconds"),
    1e-3: ("ms", "millisecond", "milliseconds"),
    1e-6: ("us", "µs", "μs", "microsecond", "microseconds"),
    1e-9: ("ns", "nanosecond", "nanoseconds"),
}
_UNITS = {name: seconds for seconds, names in _UNIT_NAMES.items() for name in names}
_LONGEST_TEXT = 100


def parse_size(text: str | int) -> int:
    """Return the number of bytes that `text` states: K, KB, M, … count in thousands, KiB, MiB, … in 1024s."""
    if isinstance(text, int) and not isinstance(text, bool):
        if text < 0:
            raise UsageError(f"a size cannot be negative: {text}")
        return text
    shown = str(text)
    match = _SIZE.fullmatch(shown.strip()) if len(shown) <= _LONGEST_TEXT else None
    if match is None or (match[5] and not match[4]):
        raise UsageError(
            f"{shown[:_LONGEST_TEXT]!r} is not a size", hint="write a number and a unit, such as '12 GB' or '1.5 TiB'"
        )
    unit: int = (1024 if match[5] else 1000) ** (_POWERS.index(match[4].lower()) + 1 if match[4] else 0)
    written = match[1].replace(",", "")
    if written.isdecimal() and not match[2]:
        return int(written) * unit
    from decimal import Context, Decimal  # few commands read a fraction

    number = Decimal(written + (match[2] or ""))
    # The default precision of 28 digits would round large sizes.
    exact = Context(prec=3 * _LONGEST_TEXT)
    return int(exact.to_integral_value(exact.multiply(number, Decimal(unit))))


def format_size(n: int) -> str:
    """Return a number of bytes as a short text in powers of 1024, such as '5.5 GiB'."""
    sign, rest = ("-", -n) if n < 0 else ("", n)
    if rest < 1024:
        return f"{sign}{rest} B"
    value = float(rest)
    for letter in _POWERS.upper():
        value /= 1024
        if round(value, 1) < 1024 or letter == "Y":
            break
    return f"{sign}{value:.1f} {letter}iB"


def parse_duration(text: str | float) -> float:
    """Return the seconds that `text` states: '90', '1:30', '1:30:00', '2d3h', '500ms' or Slurm's '1-12:00:00'.

    One colon separates minutes and seconds, two separate hours, minutes and seconds. After a number of days and
    a dash come hours, hours:minutes or hours:minutes:seconds.
    """
    if isinstance(text, (int, float)) and not isinstance(text, bool):
        if not 0 <= text < float("inf"):
            raise UsageError(f"{text!r} is not a duration: it must be finite and not negative")
        return float(text)
    shown = str(text)
    plain = shown.strip()
    if len(shown) <= _LONGEST_TEXT:
        if _SECONDS.fullmatch(plain):
            return float(plain)
        seconds = _clock_seconds(plain)
        if seconds is None:
            seconds = _unit_seconds(plain)
        if seconds is not None:
            return seconds
    raise UsageError(f"{shown[:_LONGEST_TEXT]!r} is not a duration", hint="write '90s', '1:30:00', '2d3h' or '500ms'")


def parse_time(text: str | float) -> float:
    """Return the seconds of a duration that somebody typed, as `parse_duration`; a number needs a unit."""
    seconds, plain = parse_duration(text), str(text).strip()
    if seconds and (not isinstance(text, str) or _SECONDS.fullmatch(plain)):
        raise UsageError(f"{plain} has no unit: write {plain}m for minutes or {plain}s for seconds")
    return seconds


def _clock_seconds(text: str) -> float | None:
    match = _CLOCK.fullmatch(text)
    if match is None:
        return None
    days, first, second, third = match.groups()
    if any(part is not None and float(part) >= 60 for part in (second, third)):
        return None
    if days is not None:
        if int(first) >= 24:
            return None
        return int(days) * 86400 + int(first) * 3600 + int(second or 0) * 60 + float(third or 0)
    if third is not None:
        return int(first) * 3600 + int(second) * 60 + float(third)
    return float(int(first) * 60 + int(second or 0))


def _unit_seconds(text: str) -> float | None:
    total, at, smallest = 0.0, 0, float("inf")
    while at < len(text):
        match = _PART.match(text, at)
        unit = _UNITS.get(match[2].lower()) if match else None
        if match is None or unit is None or unit >= smallest:  # large to small, each unit once
            return None
        total, at, smallest = total + float(match[1]) * unit, match.end(), unit
    return total if text else None


def format_duration(s: float) -> str:
    """Return seconds as a short text with the two largest units, such as '350 ms', '45.2 s', '3h 12m' or '2d 3h'."""
    if s < 0:
        return "-" + format_duration(-s)
    if s == 0:
        return "0 s"
    for unit, scale in (("ns", 1e-9), ("µs", 1e-6), ("ms", 1e-3), ("s", 1.0)):
        value = float(f"{s / scale:.3g}")
        if value < (60 if unit == "s" else 1000):
            return f"{value:g} {unit}"
    # The smaller unit is rounded first, so that 3599.7 s becomes 1h and not 59m 60s.
    for large, small, size, inner in (("m", "s", 60, 1), ("h", "m", 3600, 60), ("d", "h", 86400, 3600)):
        count = round(s / inner)
        whole, part = divmod(count, size // inner)
        if large == "d" or whole < (60 if large == "m" else 24):
            return f"{whole}{large} {part}{small}" if part else f"{whole}{large}"
    raise AssertionError("days have no upper bound")


def format_number(value: float | None, unit: str = "", *, digits: int = 4) -> str:
    """Return a number for people: sizes and durations in units that fit, others with some digits."""
    if value is None:
        return ""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "∞" if value > 0 else "−∞"
    if unit in ("bytes", "B"):
        return format_size(round(value))
    if unit == "s" and abs(value) >= 120:
        return format_duration(value)
    size, word = fitting_unit(abs(value), unit)
    return f"{plain_number(value / size, digits)} {word}".strip()


def format_value(value: Any) -> str:
    """Return the value of a parameter as people write it."""
    if isinstance(value, float):
        return re.sub(r"e([+-])0*(\d)", r"e\1\2", f"{value:.6g}")
    return "none" if value is None else str(value)


def plain_number(value: float, digits: int) -> str:
    """Return a number without a unit, rounded to so many digits."""
    if value == 0:
        return "0"
    if 1e-4 <= abs(value) < 10**6:
        places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
        text = f"{value:,.{places}f}"
        text = text.rstrip("0").rstrip(".") if "." in text else text
    else:
        text = f"{value:.{digits}g}"
    return text.replace("-", "−")


def fitting_unit(value: float, unit: str) -> tuple[float, str]:
    """Return by what to divide numbers of that size, and the name of the unit then."""
    if unit in ("bytes", "B"):
        power = min(max(int(math.log2(value)) // 10, 0), 5) if value >= 1 else 0
        return 1024.0**power, ("B", "KiB", "MiB", "GiB", "TiB", "PiB")[power]
    if unit == "s" and 0 < value < 0.1:
        return (1e-3, "ms") if value >= 1e-4 else (1e-6, "µs")
    if unit in ("J", "W") and value >= 1e4:
        power = min(int(math.log10(value)) // 3, 4)
        return 1000.0**power, ("", "k", "M", "G", "T")[power] + unit
    return 1.0, unit
