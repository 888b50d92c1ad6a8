"""Scripts of a type are read from web pages as they stand there."""

from __future__ import annotations

from fairmile.base.html_scripts import page_scripts

JSON_LD = "application/ld+json"


def test_scripts_of_the_type_are_returned_in_order() -> None:
    page = """<html><script type="application/ld+json">{"a": "x < y &amp; z"}</script>
    <script>var b = 1</script><SCRIPT TYPE='Application/LD+JSON; charset=utf-8'> [2] </SCRIPT>
    <script type="application/ld+json"></script>"""
    assert page_scripts(page, JSON_LD) == ['{"a": "x < y &amp; z"}', "[2]"]


def test_a_page_without_such_scripts_gives_none() -> None:
    assert page_scripts("<html><body>application/ld+json", JSON_LD) == []
