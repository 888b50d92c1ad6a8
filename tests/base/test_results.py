from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypedDict

from fairmile.base.results import Result, Results
from fairmile.meter.lines import number_text


class DiskDict(TypedDict):
    name: str
    use: dict[str, int]


@dataclass(repr=False)
class Disk(Result):
    name: str
    used: int

    def to_dict(self) -> DiskDict:
        return {"name": self.name, "use": {"bytes": self.used}}


class Disks(Results[Disk]):
    def to_dict(self) -> list[DiskDict]:
        return [each.to_dict() for each in self]


def test_a_result_is_shown_in_one_short_line() -> None:
    assert repr(Disk("a", 3)) == "<Disk: name=a, use.bytes=3>"
    assert len(repr(Disk("a" * 1000, 3))) <= 200


def test_a_list_of_results_says_how_many() -> None:
    assert repr(Disks([Disk("a", 3)])) == "<Disks: 1 item>"


def test_a_list_of_results_is_a_list() -> None:
    assert Disks([]) == []
    assert [each.name for each in Disks([Disk("a", 1), Disk("b", 2)])] == ["a", "b"]


def test_a_notebook_shows_a_table_without_markup_of_strangers() -> None:
    text = Disks([Disk("<script>", 3)])._repr_html_()
    assert "<th>bytes</th>" in text
    assert "<script>" not in text
    assert "&lt;script&gt;" in Disk("<script>", 3)._repr_html_()


def test_a_notebook_shows_the_first_rows_of_a_long_list() -> None:
    text = Disks(Disk(str(number), number) for number in range(100))._repr_html_()
    assert text.count("<tr>") == 31
    assert "and 70 more" in text


def test_a_list_becomes_a_data_frame_with_nested_fields_as_columns() -> None:
    frame = Disks([Disk("a", 1), Disk("b", 2)]).to_pandas()
    assert list(frame.columns) == ["name", "use.bytes"]
    assert list(frame["use.bytes"]) == [1, 2]


class Measured(Results[float]):
    """Values as JSON says them, beside a list that comes first and is not the table."""

    rows_field = "values"

    def to_dict(self) -> dict[str, list[dict[str, object]]]:
        return {"notes": [{"text": "b"}], "values": [{"loss": number_text(each), "tag": "a"} for each in self]}


def test_numbers_that_json_cannot_say_are_numbers_in_a_data_frame() -> None:
    frame = Measured([0.5, math.nan, math.inf, -math.inf]).to_pandas()
    assert frame["loss"].dtype == float
    assert frame["loss"].isna().to_list() == [False, True, False, False]
    assert frame["loss"].to_list()[2:] == [math.inf, -math.inf]


def test_a_text_among_other_texts_stays_one_in_a_data_frame() -> None:
    class Names(Results[str]):
        def to_dict(self) -> list[dict[str, str]]:
            return [{"name": each} for each in self]

    assert Names(["NaN", "tide"]).to_pandas()["name"].to_list() == ["NaN", "tide"]


def test_the_table_of_a_result_with_several_lists_is_the_one_that_it_names() -> None:
    assert list(Measured([0.5]).to_pandas().columns) == ["loss", "tag"]
