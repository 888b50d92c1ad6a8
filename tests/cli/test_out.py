"""What is printed: tables that fit, text that is safe, JSON that is valid."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from collections.abc import Callable

import pytest
from cases import for_each

from fairmile.cli.out import Out, _cut, count, one_line, place, print_json, printable

Screen = Callable[..., Out]
COLUMNS = ["kind", "name", "about"]
ROWS = [["model", "cosmoflow@1.0", "A network that reads cubes of dark matter and predicts four parameters."]]


class Stream(io.TextIOWrapper):
    """A stream that may say it is a terminal."""

    def __init__(self, *, terminal: bool, encoding: str = "utf-8") -> None:
        super().__init__(io.BytesIO(), encoding=encoding, newline="")
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal

    def data(self) -> bytes:
        self.flush()
        data: bytes = self.buffer.getvalue()  # type: ignore[attr-defined]
        return data

    def text(self) -> str:
        return self.data().decode(self.encoding)


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Stream, Stream]]:
    def make(
        *, terminal: bool = True, columns: int = 80, encoding: str = "utf-8", **environ: str
    ) -> tuple[Stream, Stream]:
        for name in ("NO_COLOR", "TERM"):
            monkeypatch.delenv(name, raising=False)
        for name, value in {"COLUMNS": str(columns), **environ}.items():
            monkeypatch.setenv(name, value)
        out, err = Stream(terminal=terminal, encoding=encoding), Stream(terminal=terminal, encoding=encoding)
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", err)
        return out, err

    return make


Streams = Callable[..., tuple[Stream, Stream]]


def plain(text: str) -> str:
    return re.sub(r"\033\[\d*[mK]", "", text)


def test_a_table_is_never_cut_where_nobody_looks(streams: Streams) -> None:
    out, _ = streams(terminal=False, columns=40)
    Out().table(COLUMNS, ROWS, shrink=("about",))
    assert out.text().splitlines() == [
        "kind   name           about",
        f"model  cosmoflow@1.0  {ROWS[0][2]}",
    ]


def test_a_table_that_fits_is_shown_as_it_is(streams: Streams) -> None:
    out, _ = streams(columns=120)
    Out().table(COLUMNS, ROWS, shrink=("about",))
    assert plain(out.text()).splitlines()[1] == f"model  cosmoflow@1.0  {ROWS[0][2]}"


def test_prose_in_the_last_column_is_cut_to_the_terminal(streams: Streams) -> None:
    out, _ = streams(columns=60)
    Out().table(COLUMNS, ROWS, shrink=("about",))
    row = plain(out.text()).splitlines()[1]
    assert row.startswith("model  cosmoflow@1.0  A network that reads")
    assert row.endswith("…")
    assert len(row) <= 60


def test_prose_without_room_moves_to_a_line_of_its_own(streams: Streams) -> None:
    out, _ = streams(columns=40)
    Out().table(COLUMNS, ROWS, shrink=("about",))
    head, row, prose = plain(out.text()).splitlines()
    assert head == "kind   name"
    assert row == "model  cosmoflow@1.0"
    assert prose.startswith("    A network that reads")
    assert prose.endswith("…")
    assert len(prose) <= 40


def test_an_address_moves_below_and_stays_whole(streams: Streams) -> None:
    address = "https://data.example.org/" + "a" * 100
    out, _ = streams(columns=60)
    Out().table(["file", "size", "address"], [["lake.csv", "1.2 KiB", address]])
    assert plain(out.text()).splitlines()[1:] == ["lake.csv  1.2 KiB", f"    {address}"]


def test_columns_that_may_shrink_do_so_before_names_are_touched(streams: Streams) -> None:
    out, _ = streams(columns=50)
    rows = [["southern-california-seismicity@1950", "atmospheric and ocean science", "Text."]]
    Out().table(["name", "domain", "about"], rows, shrink=("domain", "about"))
    row = plain(out.text()).splitlines()[1]
    assert row.startswith("southern-california-seismicity@1950  atmosph")
    assert len(row) <= 50


def test_a_table_without_rows_prints_nothing(streams: Streams) -> None:
    out, _ = streams()
    Out().table(COLUMNS, [])
    assert out.text() == ""


def test_wide_and_combining_letters_keep_the_columns_straight(streams: Streams) -> None:
    out, _ = streams(columns=100)
    Out().table(["name", "kind"], [["地震", "model"], ["e\u0301tude", "model"], ["lake", "model"]])
    rows = plain(out.text()).splitlines()[1:]
    assert rows == ["地震   model", "e\u0301tude  model", "lake   model"]


def test_a_line_break_in_a_cell_does_not_break_the_row(streams: Streams) -> None:
    out, _ = streams(terminal=False)
    Out().table(["name", "about"], [["lake", "one\n two\tthree"]])
    assert out.text().splitlines()[1] == "lake  one two three"


@pytest.mark.parametrize(
    "evil", ["\033[2J", "\033]0;title\007", "\x9b2J", "a\rb", "\u202eevil", "\x07", "\033[8mhidden", "\x00"]
)
def test_nothing_in_a_card_can_steer_the_terminal(streams: Streams, evil: str) -> None:
    out, err = streams()
    shown = Out()
    shown.line(evil)
    shown.heading(evil)
    shown.paragraph(evil)
    shown.item("label ", evil)
    shown.table(["name"], [[evil]])
    shown.document(evil)
    shown.say(evil)
    left = plain(out.text() + err.text())
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", left)


def test_what_is_made_visible_can_still_be_read() -> None:
    assert printable("a\033[2Jb") == r"a\x1b[2Jb"
    assert printable("tab\tand\nline stay, and so do ü 地 ×") == "tab\tand\nline stay, and so do ü 地 ×"


def test_a_document_is_passed_on_byte_for_byte(streams: Streams) -> None:
    out, _ = streams(terminal=False)
    Out().document(b"caf\xe9 \033[1m\r\n")
    assert out.data() == b"caf\xe9 \033[1m\r\n"


def test_lines_and_documents_keep_their_order(streams: Streams) -> None:
    out, _ = streams(terminal=False)
    shown = Out()
    shown.line("first")
    shown.document("second\n")
    shown.line("third")
    assert out.text() == "first\nsecond\nthird\n"


@pytest.mark.parametrize("environ", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=["NO_COLOR", "TERM=dumb"])
def test_there_is_no_colour_where_it_is_not_wanted(streams: Streams, environ: dict[str, str]) -> None:
    out, _ = streams(**environ)
    shown = Out()
    shown.heading("title")
    shown.line(shown.colour("warning", "yellow"))
    assert out.text() == "title\nwarning\n"


def test_an_empty_no_color_means_nothing(streams: Streams) -> None:
    out, _ = streams(NO_COLOR="")
    Out().heading("title")
    assert out.text() == "\033[1mtitle\033[0m\n"


def test_there_is_no_colour_where_nobody_looks(streams: Streams) -> None:
    out, _ = streams(terminal=False)
    Out().heading("title")
    assert out.text() == "title\n"


def test_a_symbol_becomes_a_word_where_the_output_cannot_hold_it(streams: Streams) -> None:
    streams(encoding="ascii")
    assert Out().symbol("✔", "yes") == "yes"
    streams(encoding="utf-8")
    assert Out().symbol("✔", "yes") == "✔"


def test_items_stand_under_one_another_and_fold_under_their_text(streams: Streams) -> None:
    out, _ = streams(columns=40)
    Out().items([("id", "short"), ("conditions", "Open over HTTPS without login to everybody who asks")])
    assert plain(out.text()).splitlines() == [
        "id          short",
        "conditions  Open over HTTPS without",
        "            login to everybody who asks",
    ]


def test_items_are_one_line_each_where_nobody_looks(streams: Streams) -> None:
    out, _ = streams(terminal=False, columns=40)
    text = "word " * 60
    Out().items([("about", text)])
    assert out.text() == f"about  {text.strip()}\n"


def test_an_address_is_not_folded(streams: Streams) -> None:
    out, _ = streams(columns=30)
    address = "https://w3id.org/fairmile/a/program/cosmoflow-benchmark/git-bec82d1f"
    Out().item("id  ", address)
    assert address in out.text()


def test_a_paragraph_folds_to_the_terminal(streams: Streams) -> None:
    out, _ = streams(columns=40)
    Out().paragraph("word " * 40)
    lines = out.text().splitlines()
    assert len(lines) > 1
    assert max(map(len, lines)) <= 40


@for_each("encoding", ["utf-8", "ascii", "latin-1"])
@for_each("value", ["×", "地震", "\udcff", "\x9b", "\033[2J", "plain"])
def test_json_is_valid_in_every_encoding(encoding: str, value: str) -> None:
    stream = Stream(terminal=False, encoding=encoding)
    print_json({"name": value}, stream)
    assert json.loads(stream.text()) == {"name": value}
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", stream.text())


def test_json_stays_readable_where_the_encoding_allows() -> None:
    stream = Stream(terminal=False)
    print_json({"name": "地震"}, stream)
    assert '"地震"' in stream.text()


def test_progress_is_shown_at_a_terminal_and_cleared_before_the_next_line(streams: Streams) -> None:
    out, err = streams()
    shown = Out()
    shown.progress(600, 1200)
    assert "600 of 1,200" in err.text()
    assert err.text().count("█") == err.text().count("░") == 15
    shown.line("done")
    assert err.text().endswith("\r\033[K")
    assert out.text() == "done\n"


def test_progress_that_reaches_its_end_leaves_nothing_behind(streams: Streams) -> None:
    _, err = streams()
    Out().progress(1200, 1200)
    assert err.text().endswith("\r\033[K")


def test_progress_fits_a_narrow_terminal(streams: Streams) -> None:
    _, err = streams(columns=30)
    Out().progress(600, 1200)
    assert len(plain(err.text()).strip("\r")) <= 30


@pytest.mark.parametrize("terminal, total", [(False, 5000), (True, 499)], ids=["no terminal", "little work"])
def test_progress_is_not_shown(streams: Streams, terminal: bool, total: int) -> None:
    _, err = streams(terminal=terminal)
    Out().progress(1, total)
    assert err.text() == ""


def test_talk_goes_to_stderr(streams: Streams) -> None:
    out, err = streams(terminal=False)
    shown = Out()
    shown.say("nothing found")
    shown.hint("try\nanother word")
    assert out.text() == ""
    assert err.text() == "nothing found\nhint: try another word\n"


def test_numbers_agree_with_their_nouns() -> None:
    assert [count(number, "card") for number in (0, 1, 2, 1000)] == ["0 cards", "1 card", "2 cards", "1,000 cards"]


def test_a_text_of_many_lines_becomes_one() -> None:
    assert one_line("  a\n\tb  c ") == "a b c"


@pytest.mark.parametrize("evil", ["\033[31m", "\033[1m", "\033[0m", "\ufdd0"])
def test_colours_of_others_never_reach_a_terminal(streams: Streams, evil: str) -> None:
    out, err = streams()
    own = Out()
    own.line(f"{own.colour(f'a{evil}b', 'red')} c{evil}d")
    own.table(["name", "text"], [[f"x{evil}", own.colour(f"y{evil}", "green")]])
    own.item(own.bold("label"), evil)
    own.document(evil)
    own.say(evil)
    assert not set(re.findall("\033\\[\\d+m", out.text())) - {"\033[0m", "\033[1m", "\033[31m", "\033[32m"}
    shown = re.sub(r"\033\[(?:0|1|31|32)m", "", out.text())
    assert "\033" not in shown + err.text() and "\ufdd0" not in shown + err.text()
    name = repr(evil)[1:-1]
    assert f"\033[31ma{name}b\033[0m c{name}d\n" in out.text()


def test_a_styled_cell_that_is_cut_closes_its_style(streams: Streams) -> None:
    out, _ = streams()
    own = Out()
    text = own.colour("a long state that has no room", "red")
    own.line(_cut(text, 8))
    assert out.text() == "\033[31ma long …\033[0m\n"


@pytest.mark.parametrize(
    ("system", "shown"), [("", "here"), ("laptop", "here"), (os.uname().nodename, "here"), ("jureca", "jureca")]
)
def test_this_machine_has_one_name_in_lists(system: str, shown: str) -> None:
    assert place(system) == shown
