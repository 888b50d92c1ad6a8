"""Catalogs of earthquakes, as arrays: CSV with a header (ComCat or `time_utc,lat,lon,depth_km,mag`), SCSN text.

Text is parsed in bulk: the characters of a field are read for all rows of a block at once, so that a million events
take seconds and a block of text is all that is in memory beside the arrays.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from fairmile.base.errors import Integrity, NotFound, SystemFailure, UsageError

if TYPE_CHECKING:
    from fairmile.benchmarks.suite.earthquake.settings import Broken

Array = np.ndarray[Any, Any]

BLOCK_BYTES = 8 << 20
_NAMES = {  # what is needed, and how the known formats call it
    "time": ("time_utc", "time", "origintime", "datetime"),
    "lat": ("lat", "latitude"),
    "lon": ("lon", "longitude"),
    "depth": ("depth_km", "depth"),
    "mag": ("mag", "magnitude"),
}
_KINDS = ("type", "event_type", "et")
_EARTHQUAKES = (b"earthquake", b"eq", b"le", b"re", b"ts")  # SCSN text says eq; older files local, regional, tele
_SCSN = ("date", "time", "et", "gt", "mag", "m", "lat", "lon", "depth", "q", "evid", "nph", "ngrm")
_SCSN_OLD = tuple(name for name in _SCSN if name != "gt")
_SUFFIXES = (".csv", ".csv.gz", ".catalog", ".catalog.gz", ".txt", ".txt.gz", ".cat")
_SECONDS_PER_DAY = 86400
_DIGITS = 17  # characters of a number that is read in bulk
_CHARS = 64  # no field that is read is longer
_GAP_DAYS = 30
_GAP_INTERVALS = 12


@dataclass(frozen=True)
class Events:
    """Earthquakes in the order of time; a magnitude or depth that is missing or impossible is NaN."""

    time_s: Array  # seconds since 1970-01-01, UTC
    lat: Array  # degrees
    lon: Array
    depth_km: Array
    mag: Array
    notes: tuple[str, ...] = ()  # what was left out, and what a reader must know

    def __len__(self) -> int:
        return len(self.time_s)

    @property
    def days(self) -> Array:
        """Return the day of each event, counted from 1970-01-01."""
        return np.floor(self.time_s / _SECONDS_PER_DAY).astype(np.int64)

    def gaps(self, first_day: int, days: int, longest_days: float = 0.0) -> list[tuple[int, int]]:
        """Return the stretches of a period, as (first, last) day of it, of which the catalog holds no event at all.

        A stretch counts when it is longer than `longest_days`; without it, than 30 days and 12 times the mean time
        between events, so that a catalog of large events only is not taken for one with holes.
        """
        there = np.zeros(days, bool)
        day = self.days - first_day
        inside = (day >= 0) & (day < days)
        there[day[inside]] = True
        longest_days = longest_days or max(_GAP_DAYS, _GAP_INTERVALS * days / max(int(inside.sum()), 1))
        edges = np.flatnonzero(np.diff(np.concatenate(([True], there, [True])).astype(np.int8)))
        pairs = [(int(a), int(b) - 1) for a, b in zip(edges[::2], edges[1::2], strict=True)]
        return [(a, b) for a, b in pairs if b - a + 1 > longest_days]


@dataclass
class _Layout:
    """Where the fields of a line are."""

    comma: bool
    columns: Mapping[str, int]  # of `time`, `lat`, `lon`, `depth`, `mag`; `date` where it has a column of its own
    kind: int | None  # column that tells earthquakes from blasts
    header: int  # lines before the first event


@dataclass
class _Tally:
    """What was wrong in a file or in a folder of them."""

    broken: int = 0
    first: str = ""
    unmeasured: int = 0
    other_kinds: int = 0
    parts: list[tuple[Array, ...]] = field(default_factory=list)


def read_events(path: Path, *, broken: Broken = "refuse") -> Events:
    """Return the events of a catalog: a file, or a folder of yearly files.

    A row that cannot be read is refused with its line, or with `broken="skip"` left out and counted in the notes.
    """
    tally = _Tally()
    for file in _files(path):
        _read_file(file, tally)
        if tally.broken and broken == "refuse":
            more = f" ({tally.broken} such rows in this file)" if tally.broken > 1 else ""
            raise UsageError(f"{tally.first}{more}", hint="correct the catalog, or set broken=skip to skip them")
    if not tally.parts:
        raise UsageError(f"{path}: it has no events")
    columns = [np.concatenate(each) for each in zip(*tally.parts, strict=True)]
    order = np.argsort(columns[0], kind="stable")
    time_s, lat, lon, depth, mag = (each[order] for each in columns)
    return Events(time_s, lat, lon, depth, mag, _notes(tally))


def write_events(path: Path, events: Events) -> None:
    """Write events as CSV, `time_utc,lat,lon,depth_km,mag`, which `read_events` gives back."""
    times = np.datetime_as_string((events.time_s * 1000).round().astype("datetime64[ms]"))
    columns = (events.lat, events.lon, events.depth_km, events.mag)
    rows = zip(times.tolist(), *(each.tolist() for each in columns), strict=True)
    text = "".join(f"{time},{a:.5f},{b:.5f},{d:.2f},{m:.2f}\n" for time, a, b, d, m in rows).replace("nan", "")
    with gzip.open(path, "wb", 6) if path.suffix == ".gz" else path.open("wb") as sink:
        sink.write(b"time_utc,lat,lon,depth_km,mag\n" + text.encode())


def _notes(tally: _Tally) -> tuple[str, ...]:
    notes = []
    if tally.broken:
        notes.append(f"{tally.broken} broken rows were skipped; the first: {tally.first}")
    if tally.unmeasured:
        notes.append(
            f"{tally.unmeasured} events have no usable magnitude or depth: without magnitude one is left out, "
            "without depth it has no part in the depth of its day"
        )
    if tally.other_kinds:
        notes.append(f"{tally.other_kinds} events are not earthquakes (blasts, for example) and were skipped")
    return tuple(notes)


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise NotFound(f"no catalog at {path}", hint="name a CSV file, a SCSN text file, or a folder of them")
    files = sorted(each for each in path.rglob("*") if each.is_file() and each.name.lower().endswith(_SUFFIXES))
    if not files:
        raise NotFound(f"{path}: no catalog in that folder", hint=f"files end with {', '.join(_SUFFIXES)}")
    return files


def _read_file(file: Path, tally: _Tally) -> None:
    layout: _Layout | None = None
    lines = 0  # before the block
    for block in _blocks(file):
        text = np.frombuffer(block, np.uint8)
        ends = np.flatnonzero(text == 10)
        starts = np.concatenate(([0], ends[:-1] + 1))
        ends = ends - ((text[ends - 1] == 13) & (ends > starts))  # lines of Windows
        if layout is None:
            layout = _layout(file, block)
        numbers = np.arange(1, len(ends) + 1) + lines
        lines += len(ends)
        # Blank lines, comments and the header hold no event.
        used = (text[starts] != 35) & (ends > starts) & (numbers > layout.header)
        if used.any():
            _read_block(file, text, starts[used], ends[used], numbers[used], layout, tally)


def _blocks(file: Path) -> Iterator[bytes]:
    """Yield pieces of the text that end with a line."""
    rest = b""
    try:
        source: IO[bytes]
        with gzip.open(file, "rb") if file.suffix == ".gz" else file.open("rb") as source:  # type: ignore[assignment]
            while piece := source.read(BLOCK_BYTES):
                cut = piece.rfind(b"\n") + 1
                if not cut:
                    rest += piece
                    continue
                yield rest + piece[:cut]
                rest = piece[cut:]
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise Integrity(f"{file} is damaged: {error}", hint="fetch it again") from error
    except OSError as error:
        raise SystemFailure(f"{file} cannot be read: {error.strerror}") from error
    if rest.strip():
        yield rest + b"\n"


def _layout(file: Path, block: bytes) -> _Layout:
    lines = block[:65536].decode("utf-8", "replace").removeprefix("\ufeff").splitlines()
    place = next((i for i, line in enumerate(lines) if line.strip() and not line.startswith("#")), None)
    first = lines[place] if place is not None else ""
    if "," in first:
        names = [name.strip().strip('"').lower() for name in first.split(",")]
        columns = {what: names.index(name) for what, known in _NAMES.items() for name in known if name in names}
        if missing := [what for what in _NAMES if what not in columns]:
            raise UsageError(
                f"{file}: no column for {', '.join(missing)}; found {', '.join(name or '(empty)' for name in names)}",
                hint="expected a header with time_utc,lat,lon,depth_km,mag or time,latitude,longitude,depth,mag",
            )
        kind = next((names.index(name) for name in _KINDS if name in names), None)
        return _Layout(True, columns, kind, (place or 0) + 1)
    parts = first.split()
    if first and (len(parts) < 9 or parts[0][4:5] not in ("/", "-") or ":" not in parts[1]):
        raise UsageError(
            f"{file}: it is neither CSV with a header nor SCSN text; its first line is {first[:60]!r}",
            hint=f"SCSN text has the columns {' '.join(_SCSN[:9])}",
        )
    scsn = _SCSN if len(parts) >= len(_SCSN) or not first else _SCSN_OLD
    where = {name: scsn.index(name) for name in ("date", "time", "lat", "lon", "depth", "mag")}
    return _Layout(False, where, scsn.index("et"), 0)


def _read_block(
    file: Path, text: Array, starts: Array, ends: Array, numbers: Array, layout: _Layout, tally: _Tally
) -> None:
    needed = max([*layout.columns.values(), layout.kind or 0])
    fields = _Fields.of(text, starts, ends, needed + 1, comma=layout.comma)
    good = fields.complete.copy()
    reason = np.where(good, "", f"has fewer than {needed + 1} fields").astype("<U40")

    def check(passed: Array, what: str) -> None:
        reason[good & ~passed] = what
        np.logical_and(good, passed, out=good)

    begin, end = fields.at(layout.columns["time"])
    if "date" in layout.columns:
        time_s, is_time = _times(text, fields.at(layout.columns["date"])[0], begin, end)
    else:
        time_s, is_time = _times(text, begin, begin + 11, end)
    check(is_time, "has no time in the form 2019-07-06T03:19:53.04")
    values = {}
    for what, low, high in (("lat", -90.0, 90.0), ("lon", -180.0, 180.0)):
        values[what], is_number = _decimals(text, *fields.at(layout.columns[what]))
        check(is_number & (values[what] >= low) & (values[what] <= high), f"has no {what} between {low:g} and {high:g}")
    unmeasured = np.zeros(len(starts), bool)
    for what, low, high in (("depth", -10.0, 1000.0), ("mag", -4.0, 10.0)):
        measured, is_number = _decimals(text, *fields.at(layout.columns[what]))
        check(is_number, f"has a {what} that is not a number")
        possible = (measured >= low) & (measured <= high)
        values[what] = np.where(possible, measured, np.nan)
        unmeasured |= ~possible
    if (~good).any():
        bad = int(np.flatnonzero(~good)[0])
        line = bytes(text[starts[bad] : ends[bad]]).decode("utf-8", "replace").strip()
        tally.first = tally.first or f"{file}:{numbers[bad]}: the row {reason[bad]}: {line[:60]!r}"
        tally.broken += int((~good).sum())
    if layout.kind is not None:
        is_quake = _is_one_of(text, *fields.at(layout.kind), _EARTHQUAKES)
        tally.other_kinds += int((good & ~is_quake).sum())
        good &= is_quake
    tally.unmeasured += int((unmeasured & good).sum())
    if good.any():
        columns = (time_s, values["lat"], values["lon"], values["depth"], values["mag"])
        tally.parts.append(tuple(each[good] for each in columns))


@dataclass
class _Fields:
    """Where each field of each row begins and ends in the text."""

    begins: Array  # [rows, fields]
    ends: Array
    complete: Array  # [rows]: as many fields as are needed

    @classmethod
    def of(cls, text: Array, starts: Array, ends: Array, count: int, *, comma: bool) -> _Fields:
        """Return the first `count` fields of rows, separated by commas or by white space."""
        last, complete = len(text) - 1, np.ones(len(starts), bool)
        if comma:
            marks = _commas(text, starts)
            first = np.searchsorted(marks, starts)
            places = first[:, None] + np.arange(count)
            marks = np.concatenate((marks, np.full(count + 1, last)))
            stops = np.minimum(marks[places], ends[:, None])
            begins = np.concatenate((starts[:, None], stops[:, :-1] + 1), axis=1)
            complete &= np.all(begins <= ends[:, None], axis=1)
        else:
            is_space = (text == 32) | (text == 9) | (text == 10) | (text == 13)
            before = np.concatenate(([True], is_space[:-1]))
            opening = np.flatnonzero(~is_space & before)
            closing = np.flatnonzero(is_space & ~before)
            places = np.searchsorted(opening, starts)[:, None] + np.arange(count)
            opening = np.concatenate((opening, np.full(count + 1, last)))
            closing = np.concatenate((closing, np.full(count + 1, last)))
            begins, stops = opening[places], closing[places]
            complete &= np.all((stops <= ends[:, None]) & (begins < ends[:, None]), axis=1)
        begins = np.where(complete[:, None], begins, starts[:, None])
        stops = np.where(complete[:, None], stops, starts[:, None])
        quoted = (stops - begins > 1) & (_at(text, begins) == 34) & (_at(text, stops - 1) == 34)
        return cls(begins + quoted, stops - quoted, complete)

    def at(self, column: int) -> tuple[Array, Array]:
        """Return the begins and the ends of one column."""
        return self.begins[:, column], self.ends[:, column]


def _commas(text: Array, starts: Array) -> Array:
    """Return where commas separate fields: those outside of quotes."""
    marks, quotes = np.flatnonzero(text == 44), np.flatnonzero(text == 34)
    if not len(quotes):
        return marks
    row = np.maximum(np.searchsorted(starts, marks, "right") - 1, 0)
    before = np.searchsorted(quotes, marks) - np.searchsorted(quotes, starts)[row]
    return np.asarray(marks[before % 2 == 0])


def _at(text: Array, place: Array) -> Array:
    return text[np.minimum(place, len(text) - 1)]


def _decimals(text: Array, begin: Array, end: Array) -> tuple[Array, Array]:
    """Return the decimal numbers of fields, and which of them are one; an empty field is a number: NaN."""
    size = end - begin
    count = len(begin)
    mantissa, decimals = np.zeros(count, np.int64), np.zeros(count, np.int8)
    digits, dots = np.zeros(count, np.int8), np.zeros(count, np.int8)
    negative, simple = np.zeros(count, bool), size <= _DIGITS
    for j in range(int(min(size.max(initial=0), _DIGITS))):
        inside = size > j
        char = _at(text, begin + j)
        digit = char - np.uint8(48)  # wraps around below 48
        is_digit = (digit < 10) & inside
        np.multiply(mantissa, 10, out=mantissa, where=is_digit)
        np.add(mantissa, digit, out=mantissa, where=is_digit)
        digits += is_digit
        decimals += is_digit & (dots > 0)
        other = inside & ~is_digit
        is_dot = other & (char == 46)
        dots += is_dot
        if j == 0:
            negative = other & (char == 45)
            is_dot |= negative | (other & (char == 43))
        simple &= ~other | is_dot
    simple &= dots < 2
    simple &= (digits > 0) & (digits < 16)  # more digits than a float holds are left to `float`
    value = mantissa / (10.0 ** np.arange(_DIGITS + 1))[decimals]
    value = np.where(negative, -value, value)
    for row in np.flatnonzero(~simple):  # exponents, blanks, words: few
        word = bytes(text[begin[row] : end[row]][:_CHARS]).strip()
        try:
            value[row] = float(word) if word else np.nan
            simple[row] = True
        except ValueError:
            value[row] = np.nan
    return np.where(simple, value, np.nan), simple


def _digits(text: Array, begin: Array, count: int) -> tuple[Array, Array]:
    value = np.zeros(len(begin), np.int64)
    good = np.ones(len(begin), bool)
    for j in range(count):
        char = _at(text, begin + j).astype(np.int64) - 48
        good &= (char >= 0) & (char <= 9)
        value = value * 10 + char
    return value, good


def _times(text: Array, date: Array, clock: Array, end: Array) -> tuple[Array, Array]:
    """Return seconds since 1970 of `YYYY-MM-DD` (or with slashes) and `HH:MM:SS[.f][Z]`, and which are times."""
    year, good = _digits(text, date, 4)
    month, ok_month = _digits(text, date + 5, 2)
    day, ok_day = _digits(text, date + 8, 2)
    hour, ok_hour = _digits(text, clock, 2)
    minute, ok_minute = _digits(text, clock + 3, 2)
    good &= ok_month & ok_day & ok_hour & ok_minute & (end >= clock + 8)
    for place, marks in ((date + 4, b"-/"), (date + 7, b"-/"), (clock + 2, b":"), (clock + 5, b":")):
        good &= np.isin(_at(text, place), np.frombuffer(marks, np.uint8))
    good &= np.isin(_at(text, date + 10), np.frombuffer(b"T \t", np.uint8))
    has_z = (end > clock + 8) & (_at(text, end - 1) == ord("Z"))
    seconds, is_number = _decimals(text, clock + 6, np.maximum(end - has_z, clock + 6))
    good &= is_number & (month >= 1) & (month <= 12) & (hour <= 23) & (minute <= 59) & (seconds >= 0) & (seconds < 61)
    months = np.where(good, (year - 1970) * 12 + month - 1, 0).astype("datetime64[M]")
    first = months.astype("datetime64[D]")
    length = ((months + 1).astype("datetime64[D]") - first).astype(np.int64)
    good &= (day >= 1) & (day <= length)
    days = first.astype(np.int64) + day - 1
    time_s = days * float(_SECONDS_PER_DAY) + hour * 3600.0 + minute * 60.0 + seconds
    return np.where(good, time_s, 0.0), good


def _is_one_of(text: Array, begin: Array, end: Array, words: Sequence[bytes]) -> Array:
    equal = np.zeros(len(begin), bool)
    for word in words:
        same = (end - begin) == len(word)
        for j, char in enumerate(word):
            same &= _at(text, begin + j) == char
        equal |= same
    return equal
