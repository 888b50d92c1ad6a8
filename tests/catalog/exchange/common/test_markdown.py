"""What a README says: front matter, title, first paragraphs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairmile.base.errors import InvalidDocument
from fairmile.catalog.exchange.common.markdown import (
    bibtex_of,
    has_front_matter,
    inline_text,
    labelled_address,
    split_readme,
    summary_of,
    title_of,
    unify_lines,
)


def test_the_front_matter_stands_on_the_lines_it_has_in_the_file() -> None:
    readme = split_readme("\n---\na: 1\n---\n\nText\n")
    assert readme.front == "\n\na: 1"
    assert readme.text == "Text"


@pytest.mark.parametrize(
    "text",
    ["---\na: 1\n---\nT", "---\r\na: 1\r\n---\r\nT", "\ufeff---\r\r\na: 1\r\r\n---\r\r\nT", "--- \na: 1\n--- \nT"],
)
def test_line_ends_and_marks_make_no_difference(text: str) -> None:
    assert has_front_matter(unify_lines(text))
    assert split_readme(text) == ("\na: 1", "T")


def test_an_empty_front_matter_is_one() -> None:
    assert split_readme("---\n---\nT") == ("\n", "T")


@pytest.mark.parametrize(("text", "line"), [("T\n", 1), ("\n\nT\n---\n", 3), ("---\na: 1\n", 1), ("", 1)])
def test_a_missing_fence_is_refused_with_its_line(text: str, line: int) -> None:
    with pytest.raises(InvalidDocument, match=rf"^r\.md:{line}: "):
        split_readme(text, file="r.md")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# Title #\n", "Title"),
        ("## Second\n# **First** `x` [link](https://a)\n", "First x link"),
        ("Title\n=====\n", "Title"),
        ('<h1 align="center">A <b>title</b></h1>', "A title"),
        ("```\n# comment in code\n```\n# Title\n", "Title"),
        ("## Only a second level\n", None),
        ("", None),
    ],
)
def test_the_title_is_the_first_top_heading(text: str, expected: str | None) -> None:
    assert title_of(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# T\n\nFirst line\nsecond line.\n\nNext.\n\n## S\n\nLater.\n", "First line second line.\n\nNext."),
        ("# T\n\n<!-- hidden\nwords -->\n![badge](x)\n\n- list\n- items\n\n| a | b |\n\nProse.\n", "Prose."),
        ("# T\n\n## Contents\n\n- [a](#a)\n\n## A\n\n[More Information Needed]\n\n## B\n\nProse.\n", "Prose."),
        ("```python\nprint('code')\n```\n\nProse.\n", "Prose."),
        ("> Quoted prose.\n", "Quoted prose."),
        ("Title\n---\nProse.\n", "Prose."),
        ("# T\n", None),
        ("<div>\n<img src='x'>\n</div>\n", None),
    ],
)
def test_the_summary_is_the_first_prose(text: str, expected: str | None) -> None:
    assert summary_of(text) == expected


def test_the_summary_stops_when_it_says_enough() -> None:
    summary = summary_of("\n\n".join(["word " * 100] * 20)) or ""
    assert 600 <= len(summary) < 1200


def test_bibtex_is_taken_from_the_first_block_that_holds_some() -> None:
    assert bibtex_of("```sh\nls\n```\n\n```bibtex\n\n@misc{a,\n  title={T}\n}\n```\n") == "@misc{a,\n  title={T}\n}"
    assert bibtex_of("@misc{a}") is None


def test_an_address_with_a_label_is_found() -> None:
    text = """
- **Homepage:** <https://example.org/a>
- **Paper [optional]:** [T](https://example.org/b).
* **Repository**: https://example.org/c.
"""
    assert [labelled_address(text, label) for label in ("Homepage", "Paper", "Repository", "Demo")] == [
        "https://example.org/a",
        "https://example.org/b",
        "https://example.org/c",
        None,
    ]


def test_inline_mark_up_is_removed() -> None:
    assert inline_text("A **b** `c` <i>d</i> ![e](f) [g](h)") == "A b c d g"


@given(st.text(alphabet="ab#-=`<>![](){}*|@:\n\r \t\ufeff"))
def test_any_text_has_a_title_and_a_summary_or_none(text: str) -> None:
    for found in (title_of(text), summary_of(text), bibtex_of(text), labelled_address(text, "a")):
        assert found is None or found.strip()


@pytest.mark.parametrize(
    "text", ["![" * 60_000, "[" * 100_000, "<" * 100_000, "<!--" * 40_000, "**" * 80_000, "`" * 100_000]
)
def test_repeated_mark_up_takes_no_more_than_its_share(text: str) -> None:
    assert title_of(text) is None
    assert summary_of(text) is None
    assert labelled_address(text, "Homepage") is None
