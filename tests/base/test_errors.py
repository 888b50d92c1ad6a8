from __future__ import annotations

import pickle
import traceback
from pathlib import Path

import pytest
from cases import for_each

from fairmile.base import errors
from fairmile.base.errors import FairmileError, InvalidDocument, Problem, UsageError

TREE = {
    "FairmileError": (Exception, 3),
    "UsageError": (ValueError, 2),
    "NotFound": (LookupError, 2),
    "Conflict": (FairmileError, 2),
    "Unsupported": (NotImplementedError, 3),
    "SystemFailure": (OSError, 3),
    "Transient": (ConnectionError, 3),
    "Integrity": (FairmileError, 4),
    "RunFailed": (RuntimeError, 1),
}


@for_each("name", TREE)
def test_each_error_is_its_built_in_has_its_exit_code_and_a_place_in_the_drawn_tree(name: str) -> None:
    kind = getattr(errors, name)
    built_in, exit_code = TREE[name]
    assert issubclass(kind, FairmileError)
    assert issubclass(kind, built_in)
    assert kind("x").exit_code == exit_code
    assert name in (errors.__doc__ or "")


@for_each("name", TREE)
def test_the_text_is_the_plain_message_also_after_pickling(name: str) -> None:
    error = getattr(errors, name)("no asset 'x'", hint="look at 'y'")
    again = pickle.loads(pickle.dumps(error))
    for one in (error, again):
        assert str(one) == one.message == "no asset 'x'"
        assert one.hint == "look at 'y'"
    assert type(again) is type(error)


def test_an_error_without_a_hint_has_none() -> None:
    assert UsageError("x").hint is None


@for_each(
    "problem, text",
    [
        (Problem("is missing"), "is missing"),
        (Problem("is missing", field="name"), "name: is missing"),
        (Problem("is missing", field="name", file="card.json", line=3), "card.json:3 name: is missing"),
        (Problem("is missing", file="card.json"), "card.json: is missing"),
        (Problem("is missing", line=3), "line 3: is missing"),
    ],
)
def test_a_problem_leaves_out_the_parts_it_does_not_have(problem: Problem, text: str) -> None:
    assert str(problem) == text


def test_an_invalid_document_names_its_first_error_and_counts_the_others() -> None:
    problems = [Problem("odd", severity="warning"), Problem("bad", field="a", hint="fix a"), Problem("worse")]
    error = InvalidDocument(problems)
    assert str(error) == "a: bad (and 2 more)"
    assert error.hint == "fix a"
    again = pickle.loads(pickle.dumps(error))
    assert again.problems == tuple(problems)
    assert str(again) == str(error)
    assert isinstance(error, UsageError)


def test_an_invalid_document_with_one_problem_counts_no_others() -> None:
    assert str(InvalidDocument([Problem("bad")])) == "bad"


def test_a_notebook_shows_the_callers_lines_the_message_and_the_hint_without_our_own_code(tmp_path: Path) -> None:
    script = tmp_path / "analysis.py"
    script.write_text(
        "from fairmile.base.units import parse_size\ndef load(size):\n    return parse_size(size)\nload('12 parsec')\n"
    )
    with pytest.raises(UsageError) as raised:
        exec(compile(script.read_text(), str(script), "exec"), {})
    *callers, message, hint = raised.value._render_traceback_()
    assert callers[-2:] == [f"{script}, line 4: load('12 parsec')", f"{script}, line 3: return parse_size(size)"]
    assert message == "UsageError: '12 parsec' is not a size"
    assert hint.startswith("hint: ")


def test_a_traceback_ends_with_the_hint() -> None:
    shown = traceback.format_exception(UsageError("no run 'x'", hint="`fairmile runs ls` lists them"))
    assert shown[-2:] == ["fairmile.base.errors.UsageError: no run 'x'\n", "hint: `fairmile runs ls` lists them\n"]
    assert len(pickle.loads(pickle.dumps(UsageError("no run 'x'", hint="one"))).__notes__) == 1
