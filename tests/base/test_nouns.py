"""A noun offers its calls and nothing else: to tab completion, at a prompt and in a notebook."""

from __future__ import annotations

from functools import cached_property

from notebook_html import notebook_html

from fairmile.base.nouns import Noun


class _Shelf:
    def lift(self) -> None:
        """Lift it."""

    def drop(self) -> None:
        """Drop it."""


class Harbour(_Shelf, Noun, internal="drop dredge"):
    """Boats and their berths.

    More about them.
    """

    limit = 3

    def __init__(self) -> None:
        self.boats: list[str] = []

    def moor(self) -> None:
        """Moor a <boat>.

        With lines.
        """

    def dredge(self) -> None:
        """Dig."""

    @property
    def depth(self) -> float:
        """The depth in metres."""
        return 4.0

    @cached_property
    def chart(self) -> str:
        """The chart."""
        return ""

    @staticmethod
    def tide() -> float:
        """The tide."""
        return 1.0

    def _sink(self) -> None:
        """Sink."""


class Marina(Harbour, internal="tide"):
    """Boats that sail for fun."""


def test_completion_shows_its_calls_and_nothing_internal_or_private() -> None:
    assert dir(Harbour()) == ["chart", "depth", "lift", "moor", "tide"]
    assert dir(Marina()) == ["chart", "depth", "lift", "moor"]


def test_what_is_internal_can_be_called() -> None:
    Harbour().dredge()


def test_at_a_prompt_it_is_one_sentence() -> None:
    assert repr(Harbour()) == "<Harbour: Boats and their berths.>"


def test_a_notebook_lists_its_calls_with_a_sentence_each() -> None:
    html = notebook_html(Harbour())
    assert "<td>moor</td><td>Moor a &lt;boat&gt;.</td>" in html
    assert "dredge" not in html and "With lines" not in html
