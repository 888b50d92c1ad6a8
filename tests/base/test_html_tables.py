from __future__ import annotations

from fairmile.base.html_tables import fields_table, rows_table


def test_fields_without_a_value_are_left_out_and_texts_are_escaped() -> None:
    text = fields_table({"run": "<b>", "energy": "", "time": None, "loss": 0.123456789, "failed": 0})
    assert text == (
        "<table><tr><th>run</th><td>&lt;b&gt;</td></tr><tr><th>loss</th><td>0.123457</td></tr>"
        "<tr><th>failed</th><td>0</td></tr></table>"
    )


def test_a_long_table_says_how_many_rows_it_left_out() -> None:
    text = rows_table(["n"], [[number] for number in range(100)])
    assert text.count("<tr>") == 31
    assert text.endswith("<p>and 70 more</p>")
    assert "more" not in rows_table(["n"], [[1]])
