"""Errors of every origin as people and programs read them."""

from __future__ import annotations

import errno
import sqlite3
from pathlib import Path

import click
import pytest

from fairmile.base.errors import (
    Conflict,
    FairmileError,
    Integrity,
    InvalidDocument,
    NotFound,
    Problem,
    SystemFailure,
    Transient,
    Unsupported,
    UsageError,
)
from fairmile.cli.failures import ShownFailure


def lines(error: Exception) -> list[str]:
    return list(ShownFailure.of(error).lines())


@pytest.mark.parametrize(
    "error, code",
    [
        (UsageError("x"), 2),
        (NotFound("x"), 2),
        (Conflict("x"), 2),
        (InvalidDocument([Problem("x")]), 2),
        (Unsupported("x"), 3),
        (SystemFailure("x"), 3),
        (Transient("x"), 3),
        (Integrity("x"), 4),
        (FairmileError("x"), 3),
        (click.UsageError("x"), 2),
        (PermissionError(errno.EACCES, "Permission denied", "/x"), 3),
        (sqlite3.OperationalError("database or disk is full"), 3),
        (MemoryError(), 3),
        (KeyError("x"), 3),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_error_has_its_exit_code(error: Exception, code: int) -> None:
    assert ShownFailure.of(error).exit_code == code


def test_an_error_is_one_sentence_and_a_hint() -> None:
    assert lines(NotFound("no asset named 'x'", hint="try another")) == [
        "error: no asset named 'x'",
        "  hint: try another",
    ]


def test_an_error_without_a_hint_is_one_line() -> None:
    assert lines(UsageError("nothing to change")) == ["error: nothing to change"]


def test_every_problem_of_a_document_is_told_with_its_own_hint() -> None:
    problems = [
        Problem("is missing", field="name", file="a.json", line=1),
        Problem("is missing", field="@type", file="a.json", line=2, hint="expected Dataset"),
    ]
    assert lines(InvalidDocument(problems)) == [
        "error: a.json:1 name: is missing",
        "error: a.json:2 @type: is missing",
        "  hint: expected Dataset",
    ]


def test_a_hint_for_the_whole_document_is_told_once() -> None:
    assert lines(InvalidDocument([Problem("no such setting", field="hme")], hint="known: home")) == [
        "error: hme: no such setting",
        "  hint: known: home",
    ]


def test_a_failing_file_is_named() -> None:
    failure = ShownFailure.of(PermissionError(errno.EACCES, "Permission denied", "/data/x"))
    assert failure.message == "/data/x: Permission denied"
    assert failure.type == "SystemFailure"


def test_a_full_disk_behind_the_output_is_told() -> None:
    failure = ShownFailure.of(OSError(errno.ENOSPC, "No space left on device"))
    assert failure.message == "cannot write the output: No space left on device"


def test_a_folder_that_is_gone_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(FileNotFoundError) as caught:
        Path.cwd()
    failure = ShownFailure.of(caught.value)
    assert failure.message == "the current folder no longer exists"
    assert "cd" in failure.hint


def test_a_missing_file_is_not_taken_for_a_missing_folder() -> None:
    failure = ShownFailure.of(FileNotFoundError(errno.ENOENT, "No such file or directory", "x.json"))
    assert failure.message == "x.json: No such file or directory"


def test_an_unexpected_error_is_a_fault_of_ours_and_says_how_to_report_it() -> None:
    failure = ShownFailure.of(KeyError("table_one"))
    assert failure.message == "KeyError: 'table_one'"
    assert "--debug" in failure.hint


@pytest.mark.parametrize("text", ["two\nlines", "bell\x07", "clear\033[2J", "over\rwritten"])
def test_an_error_cannot_leave_its_line_or_steer_the_terminal(text: str) -> None:
    (line,) = lines(UsageError(text))
    assert line.isprintable()


def test_a_very_long_value_is_shortened_for_people_and_whole_for_programs() -> None:
    failure = ShownFailure.of(UsageError("x" * 5000 + " is too long"))
    (line,) = failure.lines()
    assert len(line) < 700
    assert line.endswith("is too long")
    assert len(failure.to_dict()["message"]) > 5000


def test_as_data_a_failure_has_type_message_hint_and_code() -> None:
    assert ShownFailure.of(NotFound("no such thing", hint="look")).to_dict() == {
        "type": "NotFound",
        "message": "no such thing",
        "hint": "look",
        "exit_code": 2,
    }


def test_as_data_an_invalid_document_lists_its_problems() -> None:
    facts = ShownFailure.of(InvalidDocument([Problem("a", hint="b"), Problem("c")])).to_dict()
    assert facts["problems"] == [{"message": "a", "hint": "b"}, {"message": "c", "hint": ""}]
