"""Rate limits: so many bytes a second for a host, at certain hours."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

from fairmile.base.errors import UsageError
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.units import parse_size

_RULE = re.compile(r"(?P<rate>.+?)(?:\s+(?P<from>\d{1,2}:\d{2})\s*-\s*(?P<to>\d{1,2}:\d{2}))?")
_DAY_MINUTES = 24 * 60
_BURST_S = 0.25


@dataclass(frozen=True)
class Rule:
    """A rate that holds from one minute of the day to another; without hours, always."""

    bytes_per_s: float | None
    start_minute: int = 0
    stop_minute: int = _DAY_MINUTES

    def holds(self, minute: int) -> bool:
        if self.start_minute <= self.stop_minute:
            return self.start_minute <= minute < self.stop_minute
        return minute >= self.start_minute or minute < self.stop_minute


def parse_limit(text: str) -> list[Rule]:
    """Return the rules of a limit such as `20 MB/s 08:00-18:00, 200 MB/s`; the first that holds counts."""
    rules: list[Rule] = []
    for part in text.split(","):
        match = _RULE.fullmatch(part.strip())
        rate = match["rate"].strip() if match else ""
        if match is None or not rate:
            raise UsageError(f"{text!r} is not a limit", hint="write `20 MB/s` or `20 MB/s 08:00-18:00, 200 MB/s`")
        if match["from"] and _minute(match["from"]) == _minute(match["to"]):
            raise UsageError(
                f"{part.strip()!r} is empty: its start and end are the same", hint="write 00:00-24:00 for always"
            )
        bytes_per_s = None if rate.lower() in ("none", "unlimited") else _rate(rate)
        rules.append(
            Rule(bytes_per_s, _minute(match["from"]), _minute(match["to"])) if match["from"] else Rule(bytes_per_s)
        )
    return rules


def _rate(text: str) -> float:
    size, slash, per = text.rpartition("/")
    if not slash or per.strip().lower() not in ("s", "sec", "second"):
        raise UsageError(f"{text!r} is not a rate", hint="write it as in `20 MB/s`")
    rate = parse_size(size.strip())
    if rate <= 0:
        raise UsageError(f"the rate {text!r} is zero", hint="give a rate above zero, or `none`")
    return float(rate)


def _minute(text: str) -> int:
    hour, _, minute = text.partition(":")
    if int(hour) > 24 or int(minute) > 59 or int(hour) * 60 + int(minute) > _DAY_MINUTES:
        raise UsageError(f"{text!r} is not a time of the day", hint="write 00:00 to 24:00")
    return int(hour) * 60 + int(minute)


class _Bucket:
    """Lets through what its rules allow, in the order of asking."""

    def __init__(self, rules: list[Rule], clock: Callable[[], float]) -> None:
        self._rules = rules
        self._clock = clock
        self._free_at = 0.0
        self._lock = threading.Lock()

    def wait_s(self, size_bytes: int, now: float) -> float:
        local = time.localtime(self._clock())
        minute = local.tm_hour * 60 + local.tm_min
        rule = next((rule for rule in self._rules if rule.holds(minute)), None)
        if rule is None or rule.bytes_per_s is None:
            return 0.0
        with self._lock:
            start = max(self._free_at, now - _BURST_S)
            self._free_at = start + size_bytes / rule.bytes_per_s
            return max(0.0, self._free_at - now)


class Limiter:
    """Slows transfers down to the limits of their hosts; `*` is the limit of all together."""

    def __init__(self, limits: Mapping[str, str], *, clock: Callable[[], float] = time.time) -> None:
        self._buckets: dict[str, _Bucket] = {}
        for host, text in limits.items():
            try:
                self._buckets[host.lower()] = _Bucket(parse_limit(str(text)), clock)
            except UsageError as error:
                raise UsageError(f"transfer.limits.{host}: {error}", hint=error.hint) from error

    def take(self, address: str, size_bytes: int, wait: Callable[[float], object] = time.sleep) -> None:
        """Count bytes that came from an address, and wait until the limits of its host allow more."""
        if not self._buckets:
            return
        host = urlsplit(address).hostname or ""
        now = time.monotonic()
        buckets = [self._buckets[name] for name in (host, "*") if name in self._buckets]
        delay = max((bucket.wait_s(size_bytes, now) for bucket in buckets), default=0.0)
        if delay > 0:
            wait(delay)
