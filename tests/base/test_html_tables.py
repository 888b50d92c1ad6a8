"""Small tables for notebooks: escaped, readable, and only what has a value."""

from __future__ import annotations

from typing import Any

from cases import for_each

from fairmile.base.html_tables import fields_table, readable, rows_table

LEFT = 'style="text-align:left"'


def test_fields_without_a_value_are_left_out_and_texts_are_escaped() -> None:
    text = fields_table({"run": "<b>", "energy": "", "time": None, "tags": [], "loss": 0.123456789, "failed": 0})
    assert text == (
        f"<table><tr><th {LEFT}>run</th><td {LEFT}>&lt;b&gt;</td></tr>"
        f"<tr><th {LEFT}>loss</th><td {LEFT}>0.123457</td></tr><tr><th {LEFT}>failed</th><td {LEFT}>0</td></tr></table>"
    )


def test_texts_are_at_the_left_and_numbers_at_the_right_in_columns_that_have_values() -> None:
    text = rows_table(["run", "reason", "loss", "size"], [["a", "", 0.5, "3.0 KiB"], ["b", None, None, "12 B"]])
    assert text == (
        f"<table><thead><tr><th {LEFT}>run</th><th>loss</th><th>size</th></tr></thead>"
        f"<tbody><tr><td {LEFT}>a</td><td>0.5</td><td>3.0 KiB</td></tr>"
        f"<tr><td {LEFT}>b</td><td></td><td>12 B</td></tr></tbody></table>"
    )


def test_a_long_table_says_how_many_rows_it_left_out() -> None:
    text = rows_table(["n"], [[number] for number in range(100)], note="<that> is all")
    assert text.count("<tr>") == 31
    assert text.endswith("<p>and 70 more</p><p>&lt;that&gt; is all</p>")
    assert "more" not in rows_table(["n"], [[1]])


@for_each(
    "value, shown",
    [
        (["a", "b"], "a, b"),
        ([{"a": 1}, {"a": 2}], "2 items"),
        ("0123456789abcdef0123456789abcdef0123456789abcdef", "0123456789ab…"),
        ("x" * 2000, "x" * 999 + "…"),
    ],
)
def test_lists_digests_and_long_texts_are_short(value: Any, shown: str) -> None:
    assert fields_table({"it": value}) == f"<table><tr><th {LEFT}>it</th><td {LEFT}>{shown}</td></tr></table>"


def test_sizes_durations_and_times_read_as_people_write_them() -> None:
    fields = {
        "size_bytes": 2048,
        "elapsed_s": 90.0,
        "rate_per_s": 3.0,
        "created": 1_800_000_000.0,
        "is_there": True,
        "params.lr": 0.1,
        "a.id": 1,
        "b.id": 2,
    }
    assert readable(fields) == {
        "size": "2.0 KiB",
        "elapsed": "1m 30s",
        "rate per s": 3.0,
        "created": "2027-01-15 08:00 UTC",
        "is there": "yes",
        "lr": 0.1,
        "a.id": 1,
        "b.id": 2,
    }
