"""One large file from several connections and sources: made-up sources, real threads, a real file."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from left_open import nothing_left_open
from made_up_source import DATA, Meeting, Source

from fairmile.base.digest import Checksum
from fairmile.base.errors import DiskFailure, Integrity, NotFound, SystemFailure, Transient
from fairmile.transfer.large import Changed, LargeFile, Offer
from fairmile.transfer.limits import Limiter
from fairmile.transfer.part import Part
from fairmile.transfer.remote import Remote
from fairmile.transfer.settings import Settings

KIB = 1 << 10
SHA256 = hashlib.sha256(DATA).hexdigest()
DIGEST = (Checksum("sha256", SHA256),)


@dataclass
class Run:
    """A transfer into a folder of the test's own."""

    folder: Path
    name: str = "data.bin"
    came: int = 0

    def __call__(
        self,
        *sources: Source,
        checksums: tuple[Checksum, ...] = DIGEST,
        clock: Callable[[], float] = lambda: 0.0,  # on which nothing is ever late
        limits: dict[str, str] | None = None,
        prepare: Callable[[LargeFile], None] = lambda large: None,
        **settings: object,
    ) -> str:
        given = {"connections": 4, "segment_bytes": 512 * KIB, "retries": 3, **settings}
        remotes = [Remote(f"made-up://host-{number}/data", "data.bin") for number in range(len(sources))]
        offers = [Offer(number, remote, source) for number, (remote, source) in enumerate(zip(remotes, sources))]  # noqa: B905
        self.offers = offers

        def on_bytes(count: int) -> None:
            self.came += count

        with closing(Part(self.folder, len(DATA), {"of": "test"})) as part:
            self.done = part.done
            limiter = Limiter(limits or {})
            chosen = Settings(**given)  # type: ignore[arg-type]
            self.large = LargeFile(self.name, part, offers, checksums, chosen, limiter, on_bytes, clock)
            prepare(self.large)
            return self.large.run()

    @property
    def content(self) -> bytes:
        return (self.folder / "data").read_bytes()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Run a transfer; afterwards no thread and no file is left open."""
    made = Run(tmp_path / "part")
    with nothing_left_open():
        yield made
    assert all(offer.fetcher.open_bodies == 0 for offer in made.offers)  # type: ignore[attr-defined]


def hasty() -> float:
    """A clock on which nobody needs to wait long for a connection to count as silent."""
    return time.monotonic() * 40


# All is well


def test_the_bytes_of_one_source_arrive_by_several_connections(run: Run) -> None:
    source = Source()
    assert run(source) == SHA256
    assert run.content == DATA
    assert run.came == len(DATA)
    assert len(source.asked) > 5
    assert source.sent == len(DATA)


@pytest.mark.parametrize("connections", [1, 2, 16])
def test_any_number_of_connections_will_do(run: Run, connections: int) -> None:
    assert run(Source(), connections=connections) == SHA256
    assert run.content == DATA


def test_two_sources_share_the_work(run: Run) -> None:
    meeting = Meeting()
    one, other = Source(trouble=meeting.guest()), Source(trouble=meeting.guest())
    assert run(one, other) == SHA256
    assert run.content == DATA
    assert one.sent > 0
    assert other.sent > 0
    assert one.sent + other.sent >= len(DATA)


def test_without_a_digest_the_sha256_is_told(run: Run) -> None:
    assert run(Source(), checksums=()) == SHA256


def test_a_source_that_ignores_ranges_sends_the_whole_over_one_connection(run: Run) -> None:
    source = Source(ranges=False)
    assert run(source, connections=1) == SHA256
    assert run.content == DATA
    assert len(source.asked) == 1


def test_a_source_that_ignores_ranges_does_not_send_the_whole_to_every_connection(run: Run) -> None:
    together = threading.Barrier(16, timeout=120)

    def all_at_once(number: int) -> None:
        if number <= 16:
            together.wait()

    source = Source(ranges=False, trouble=all_at_once)
    assert run(source, connections=16, segment_bytes=256 * KIB) == SHA256
    assert run.content == DATA
    assert source.sent < 3 * len(DATA)


def test_a_source_that_ignores_ranges_goes_on_with_what_is_missing(run: Run) -> None:
    with pytest.raises(SystemFailure):
        run(Source(trouble=lambda number: SystemFailure("enough") if number > 3 else None))
    assert run(Source(ranges=False), connections=8) == SHA256
    assert run.done
    assert run.content == DATA


def test_a_source_may_not_tell_the_size(run: Run) -> None:
    assert run(Source(total=None)) == SHA256


def test_a_source_may_have_no_validator(run: Run) -> None:
    assert run(Source(validator="")) == SHA256


# Going on


def test_what_an_earlier_attempt_kept_is_not_asked_for_again(run: Run) -> None:
    with pytest.raises(SystemFailure):
        run(Source(trouble=lambda number: SystemFailure("enough") if number > 4 else None))
    kept = sum(stop - start for start, stop in run.large.segments.on_disk())
    assert 0 < kept < len(DATA)
    second = Source()
    assert run(second) == SHA256
    assert run.content == DATA
    assert run.done
    assert second.sent == len(DATA) - kept


def test_wrong_bytes_of_an_earlier_attempt_are_found_by_the_digest(run: Run) -> None:
    with pytest.raises(SystemFailure):
        run(Source(data=DATA[::-1], trouble=lambda number: SystemFailure("enough") if number > 4 else None))
    with pytest.raises(Integrity, match="sha256"):
        run(Source())


# Passing trouble


def test_connections_that_break_off_are_made_anew(run: Run) -> None:
    source = Source(breaks_after=100_000)
    assert run(source) == SHA256
    assert run.content == DATA
    assert source.sent == len(DATA)


def test_a_source_that_is_busy_for_a_while_is_asked_again(run: Run) -> None:
    source = Source(trouble=lambda number: Transient("busy") if number <= 2 else None)
    assert run(source) == SHA256


def test_a_source_that_never_answers_well_is_given_up_after_some_attempts(run: Run) -> None:
    source = Source(trouble=lambda number: Transient(f"busy, {number}"))
    with pytest.raises(Transient, match="busy"):
        run(source)
    assert len(source.asked) <= 4


def test_a_source_that_stops_answering_midway_is_given_up(run: Run) -> None:
    source = Source(trouble=lambda number: Transient("down") if number > 3 else None)
    with pytest.raises(Transient, match="down"):
        run(source, connections=2)


def test_a_connection_that_falls_silent_is_overtaken(run: Run) -> None:
    source = Source(silent=lambda number: number == 2)
    assert run(source, clock=hasty) == SHA256
    assert run.content == DATA


def test_a_source_that_falls_silent_is_overtaken_by_the_other(run: Run) -> None:
    silent, good = Source(silent=lambda number: True), Source()
    assert run(silent, good, clock=hasty) == SHA256
    assert run.content == DATA
    assert run.large.segments.silent[0] > 0


@pytest.mark.parametrize(("given_up_s", "overtaken_s"), [(10.0, 2.0), (1.0, 0.5)])
def test_a_silent_connection_can_be_overtaken_long_before_it_is_given_up(
    run: Run, given_up_s: float, overtaken_s: float
) -> None:
    run(Source(), stall_s=given_up_s)
    assert run.large.segments.stalled_s == overtaken_s


# Lasting trouble


@pytest.mark.parametrize(
    "bad, words",
    [
        (Source(trouble=lambda number: NotFound("there is nothing")), "there is nothing"),
        (Source(total=len(DATA) + 1), "announces 5,247,202 bytes, expected 5,247,201"),
        (Source(data=b"<html>log in</html>"), "announces 19 bytes.*; it sends a web page, perhaps for a login"),
    ],
    ids=["missing", "other-size", "page"],
)
def test_a_source_of_something_else_is_left_out(run: Run, bad: Source, words: str) -> None:
    good = Source()
    assert run(bad, good) == SHA256
    assert run.content == DATA
    fault = run.offers[0].fault
    assert fault is not None
    assert run.offers[1].fault is None
    with pytest.raises(type(fault), match=words):
        raise fault


def test_the_error_of_the_first_source_is_told_where_none_is_left(run: Run) -> None:
    bad = [Source(trouble=lambda number, text=text: NotFound(text)) for text in ("first", "second")]  # type: ignore[misc]
    with pytest.raises(NotFound, match="first"):
        run(*bad)


def test_wrong_bytes_are_found_by_the_digest(run: Run) -> None:
    wrong = DATA[:3_000_000] + b"!" + DATA[3_000_001:]
    with pytest.raises(Integrity, match=rf"made-up://host-0/data: received sha256 .* expected {SHA256}"):
        run(Source(data=wrong))


def test_a_source_that_cannot_send_parts_is_left_out_beside_one_that_can(run: Run) -> None:
    ready = threading.Event()

    def first_the_other(number: int) -> None:
        assert ready.wait(20)

    whole = Source(ranges=False, trouble=first_the_other)
    good = Source(silent=lambda number: ready.set() or False)  # type: ignore[func-returns-value]
    assert run(whole, good, connections=1) == SHA256
    assert run.content == DATA


def test_a_file_that_changes_midway_is_not_mixed(run: Run) -> None:
    source = Source()

    def change(number: int) -> None:
        source.validator = '"v"' if number <= 3 else '"new"'

    source.trouble = change
    with pytest.raises(Changed, match=r"made-up://host-0/data changed while it was read"):
        run(source)


def test_a_file_that_is_another_than_the_one_found_is_not_taken(run: Run) -> None:
    def remember(large: LargeFile) -> None:
        large.offers[0].validator = '"before"'

    with pytest.raises(Changed):
        run(Source(validator='"now"'), prepare=remember)


def test_a_page_instead_of_data_is_refused_where_no_digest_tells(run: Run) -> None:
    page = b"<!DOCTYPE html>" + DATA[15:]
    with pytest.raises(Integrity, match=r"web page instead of data\.bin") as caught:
        run(Source(data=page), checksums=())
    assert "login" in (caught.value.hint or "")


def test_a_page_that_is_called_a_page_is_taken(run: Run) -> None:
    page = b"<!DOCTYPE html>" + DATA[15:]
    run.name = "index.html"
    assert run(Source(data=page), checksums=()) == hashlib.sha256(page).hexdigest()


# Our own trouble


def test_a_disk_that_refuses_ends_it_at_once(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(part: Part, offset: int, data: memoryview) -> None:
        raise DiskFailure("cannot write: the disk is full")

    monkeypatch.setattr(Part, "write", full)
    source = Source()
    with pytest.raises(DiskFailure, match="disk is full"):
        run(source)
    assert len(source.asked) <= 8


def test_it_can_be_stopped_from_another_thread(run: Run) -> None:
    begun = threading.Event()

    def stop_soon(large: LargeFile) -> None:
        def stop() -> None:
            assert begun.wait(20)
            large.stop(KeyboardInterrupt())

        stopper = threading.Thread(target=stop)
        stopper.start()
        stoppers.append(stopper)

    stoppers: list[threading.Thread] = []
    source = Source(silent=lambda number: begun.set() or True)  # type: ignore[func-returns-value]
    with pytest.raises(KeyboardInterrupt):
        run(source, prepare=stop_soon)
    for stopper in stoppers:
        stopper.join()


def test_a_fault_of_ours_in_a_thread_is_not_lost(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(*_: object) -> int:
        raise ZeroDivisionError

    monkeypatch.setattr(Part, "read", fault)
    with pytest.raises(ZeroDivisionError):
        run(Source())


# While it comes


def test_the_front_can_be_followed_to_the_end(run: Run) -> None:
    read = bytearray()

    def follow(large: LargeFile) -> None:
        def reader() -> None:
            at = 0
            buffer = memoryview(bytearray(1 << 20))
            while (front := large.front(at)) > at:
                count = large.part.read(at, buffer[: min(front - at, len(buffer))])
                read.extend(buffer[:count])
                at += count

        thread = threading.Thread(target=reader)
        thread.start()
        readers.append(thread)

    readers: list[threading.Thread] = []
    run(Source(breaks_after=300_000), prepare=follow)
    readers[0].join(20)
    assert bytes(read) == DATA


def test_who_follows_the_front_is_sent_home_when_it_fails(run: Run) -> None:
    ended: list[int] = []

    def follow(large: LargeFile) -> None:
        def reader() -> None:
            at = 0
            while (front := large.front(at)) > at:
                at = front
            ended.append(at)

        thread = threading.Thread(target=reader)
        thread.start()
        readers.append(thread)

    readers: list[threading.Thread] = []
    with pytest.raises(SystemFailure):
        run(Source(trouble=lambda number: SystemFailure("no") if number > 2 else None), prepare=follow)
    readers[0].join(20)
    assert len(ended) == 1
    assert ended[0] < len(DATA)


def test_what_is_limited_is_not_taken_for_silent(run: Run) -> None:
    seen: list[bool] = []

    def watch(large: LargeFile) -> None:
        wait = large._stopping.wait

        def instead(seconds: float | None = None) -> bool:
            if seconds and threading.current_thread().name == "fairmile-_work":
                seen.append(any(segment.last == float("inf") for segment in list(large.segments._active)))
                return False
            return wait(seconds)

        large._stopping.wait = instead  # type: ignore[method-assign]

    assert run(Source(), limits={"*": "1 MB/s"}, prepare=watch) == SHA256
    assert seen
    assert all(seen)
