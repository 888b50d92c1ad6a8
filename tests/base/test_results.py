from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from fairmile.base.results import Result, Results


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
