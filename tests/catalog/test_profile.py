from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from fairmile.base.errors import InvalidDocument, Problem
from fairmile.catalog.forms import ACCESS_RIGHTS
from fairmile.catalog.kinds import KINDS
from fairmile.catalog.profile import check_body, check_text, context_terms

Factory = Callable[..., dict[str, Any]]
SHA256 = "0123456789abcdef" * 4


def errors(problems: list[Problem]) -> list[Problem]:
    return [problem for problem in problems if problem.severity == "error"]


def line_of(text: str, needle: str) -> int:
    """Return the line of the only place where a text stands."""
    assert text.count(needle) == 1
    return text[: text.index(needle)].count("\n") + 1


def full(card: Factory) -> dict[str, Any]:
    """Return a card of a data set with everything the profile asks for."""
    return card(
        description="galaxies",
        license="https://spdx.org/licenses/MIT",
        creator=[{"@type": "Person", "name": "Ada"}],
        distribution=[
            {"@type": "FileObject", "name": "a", "contentSize": "3 B", "sha256": SHA256},
            {"@type": "FileObject", "name": "b", "contentSize": "1.5 GiB", "sha256": SHA256, "md5": "ab" * 16},
        ],
    )


def test_a_full_card_has_no_problem(card: Factory) -> None:
    body = full(card)
    found, problems = check_text(json.dumps(body))
    assert problems == []
    assert found is not None
    assert found.body == body


@pytest.mark.parametrize("kind", list(KINDS))
def test_the_smallest_card_of_each_kind_has_warnings_only(card: Factory, kind: str) -> None:
    problems = check_body(card(kind))
    assert errors(problems) == []
    missing = {problem.field for problem in problems if "is missing" in problem.message}
    assert missing == set(KINDS[kind].required) - set(card(kind))


PROBLEMS: dict[str, tuple[Callable[[dict[str, Any]], None], str, str, str]] = {
    "a checksum that is none": (
        lambda body: body["distribution"][1].update(sha256="https://example.net/broken"),
        "distribution[1].sha256",
        "expected a sha256 checksum in hex, found 'https://example.net/broken'",
        "https://example.net/broken",
    ),
    "an md5 as sha256": (
        lambda body: body["distribution"][1].update(sha256="cd" * 16),
        "distribution[1].sha256",
        "expected a sha256 checksum",
        '"' + "cd" * 16,
    ),
    "a size that is none": (
        lambda body: body["distribution"][0].update(contentSize="rather large"),
        "distribution[0].contentSize",
        "expected a size such as",
        "rather large",
    ),
    "a date that is none": (
        lambda body: body.update(datePublished="last spring"),
        "datePublished",
        "expected a date as YYYY-MM-DD, found 'last spring'",
        "last spring",
    ),
    "a day that does not exist": (
        lambda body: body.update(datePublished="2026-02-30"),
        "datePublished",
        "expected a date",
        "2026-02-30",
    ),
    "an hour that does not exist": (
        lambda body: body.update(startTime="2026-02-03T25:00:00Z"),
        "startTime",
        "expected a date",
        "2026-02-03T25",
    ),
    "a name that is a number": (lambda body: body.update(name=7), "name", "expected a text, found 7", '"name": 7'),
    "an empty name": (lambda body: body.update(name=" "), "name", "expected a text", '"name": " "'),
    "a version that is a number": (
        lambda body: body.update(version=1.5),
        "version",
        "expected a text such as '1.0', found 1.5",
        '"version"',
    ),
    "an id that is no address": (lambda body: body.update({"@id": "alpha"}), "@id", "absolute IRI", '"@id": "alpha"'),
    "an address that is none": (lambda body: body.update(url=["see below"]), "url[0]", "absolute IRI", "see below"),
    "a file that is a text": (
        lambda body: body["distribution"].append("data.csv"),
        "distribution[2]",
        "expected an object, found 'data.csv'",
        "data.csv",
    ),
    "a creator without a name": (
        lambda body: body.update(creator=[{"@type": "Person", "email": "ada@example.net"}]),
        "creator[0].name",
        "is missing",
        "",
    ),
    "a creator that is a number": (lambda body: body.update(creator=[5]), "creator[0]", "expected an object", ""),
    "a keyword that is a list": (lambda body: body.update(keywords=["a", ["b"]]), "keywords[1]", "a text", ""),
    "a flag that is a text": (
        lambda body: body.update(isTunable="false"),
        "isTunable",
        "expected true or false, found 'false'",
        '"isTunable"',
    ),
    "a right that is none": (
        lambda body: body.update(accessRights="sometimes"),
        "accessRights",
        "expected one of public",
        "sometimes",
    ),
    "a content digest that is an md5": (
        lambda body: body.update(contentDigest="ef" * 16),
        "contentDigest",
        "expected ni:///sha-256;",
        '"' + "ef" * 16,
    ),
    "a type that is no kind": (
        lambda body: body.update({"@type": "Banana"}),
        "@type",
        "'Banana' is not a kind of asset",
        "Banana",
    ),
}


@pytest.mark.parametrize("indent", [1, 4, None], ids=["pretty", "wide", "one line"])
@pytest.mark.parametrize("name", list(PROBLEMS))
def test_each_problem_names_file_line_and_field(card: Factory, name: str, indent: int | None) -> None:
    change, field, message, needle = PROBLEMS[name]
    body = full(card)
    change(body)
    text = json.dumps(body, indent=indent, ensure_ascii=False)
    found, problems = check_text(text, file="card.jsonld")
    assert found is None
    (problem,) = errors(problems)
    assert problem.field == field
    assert message in problem.message
    assert problem.file == "card.jsonld"
    if indent is None:
        assert problem.line == 1
    elif needle:
        assert problem.line == line_of(text, needle)
    assert str(problem).startswith(f"card.jsonld:{problem.line} {field}: ")


@pytest.mark.parametrize("key", ["name", "version", "@type", "@context"])
def test_a_missing_key_is_named(card: Factory, key: str) -> None:
    body = full(card)
    del body[key]
    _, problems = check_text(json.dumps(body, indent=1), file="card.jsonld")
    (problem,) = errors(problems)
    assert (problem.field, problem.line) == (key, 1)
    assert "is missing" in problem.message


def test_what_is_missing_inside_a_file_is_found_at_that_file(card: Factory) -> None:
    body = full(card)
    body["creator"].append({"@type": "Organization"})
    text = json.dumps(body, indent=1)
    _, problems = check_text(text)
    (problem,) = errors(problems)
    assert problem.field == "creator[1].name"
    # The line is that of the object which lacks the key.
    assert problem.line == line_of(text, "Organization") - 1


def test_all_problems_are_listed_errors_first(card: Factory) -> None:
    body = full(card)
    body |= {"nonsenseKey": 1, "datePublished": "never", "name": ""}
    body["distribution"][0]["sha256"] = "x"
    _, problems = check_text(json.dumps(body))
    assert [problem.severity for problem in problems] == ["error"] * 3 + ["warning"]
    assert {problem.field for problem in problems} == {
        "name",
        "datePublished",
        "distribution[0].sha256",
        "nonsenseKey",
    }


@pytest.mark.parametrize("indent", [1, None])
def test_an_unknown_term_is_a_warning_with_the_nearest(card: Factory, indent: int | None) -> None:
    text = json.dumps(full(card) | {"keywrods": ["x"]}, indent=indent)
    found, (problem,) = check_text(text, file="card.jsonld")
    assert found is not None
    assert found["keywrods"] == ["x"]
    assert (problem.severity, problem.field) == ("warning", "keywrods")
    assert "did you mean 'keywords'?" in problem.message
    assert problem.line == (line_of(text, "keywrods") if indent else 1)


def test_the_line_of_a_key_with_dots_and_brackets_is_found(card: Factory) -> None:
    text = json.dumps(full(card) | {"my.key[0]": 1}, indent=1)
    _, (problem,) = check_text(text)
    assert (problem.field, problem.line) == ("my.key[0]", line_of(text, "my.key[0]"))


@pytest.mark.parametrize(
    ("key", "context"),
    [
        ("fx:mine", None),
        ("https://example.net/terms/mine", None),
        ("mine", {"mine": "https://example.net/terms/mine"}),
        ("ex:mine", {"ex": "https://example.net/terms/"}),
    ],
)
def test_a_term_that_a_machine_can_look_up_is_no_problem(card: Factory, key: str, context: Any) -> None:
    body = full(card)
    if context:
        body["@context"] = [body["@context"], context]
    assert check_body(body | {key: "x"}) == []


@pytest.mark.parametrize("right", [*ACCESS_RIGHTS, "https://example.net/rights/restricted", "Public"])
def test_every_access_right_is_accepted(card: Factory, right: str) -> None:
    assert check_body(full(card) | {"accessRights": right}) == []


@pytest.mark.parametrize(
    "date", ["2026", "2026-02", "2026-02-28", "2024-02-29", "2026-02-03T04:05", "2026-02-03 04:05:06.7+01:00"]
)
def test_dates_of_any_precision_are_accepted(card: Factory, date: str) -> None:
    assert check_body(full(card) | {"datePublished": date}) == []


def test_one_value_may_stand_for_a_list(card: Factory) -> None:
    body = full(card)
    body |= {"creator": body["creator"][0], "distribution": body["distribution"][0], "keywords": "one"}
    assert check_body(body) == []
    body["distribution"]["sha256"] = "x"
    (problem,) = errors(check_body(body))
    assert problem.field == "distribution.sha256"


@pytest.mark.parametrize(
    ("text", "line"),
    [("", 1), ("{\n\n,", 3), ('{"name": "a",\n "name": "b"}', 2), ('{"a": NaN}', 1), ("name: yaml", 1)],
)
def test_a_text_that_is_no_json_is_refused_with_its_line(text: str, line: int) -> None:
    with pytest.raises(InvalidDocument) as caught:
        check_text(text, file="card.jsonld")
    (problem,) = caught.value.problems
    assert (problem.file, problem.line) == ("card.jsonld", line)


@pytest.mark.parametrize("text", ["[]", "3", '"x"', "null"])
def test_json_that_is_no_object_is_a_problem(text: str) -> None:
    found, (problem,) = check_text(text, file="card.jsonld")
    assert found is None
    assert "expected a JSON object" in problem.message
    assert problem.line == 1


def test_a_key_that_is_no_text_is_a_problem(card: Factory) -> None:
    (problem,) = check_body({**card(), 3: "x"})
    assert "found 3" in problem.message


def test_the_context_is_bundled() -> None:
    terms = context_terms()
    assert terms["name"]
    for kind in KINDS.values():
        assert set(kind.required) - set(terms) == set(), kind.name
        assert set(kind.rich) - set(terms) == set(), kind.name


def test_a_key_of_a_file_that_is_nearly_a_term_is_a_warning(card: Factory) -> None:
    files = [
        {"@type": "FileObject", "name": "a", "contentUrl": "https://example.net/a", "zzqqx": 1},
        {
            "@type": "FileObject",
            "name": "b",
            "contentUrl": "https://example.net/b",
            "mirrors": ["https://example.com/b"],
        },
    ]
    problems = check_body(full(card) | {"distribution": files})
    assert [(each.field, each.severity) for each in problems if "has no effect" in each.message] == [
        ("distribution[1].mirrors", "warning")
    ]
    assert any("did you mean 'mirror'?" in each.message for each in problems)
