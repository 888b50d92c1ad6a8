"""Placeholders: what is replaced, what is left alone, and what is an error that names its place."""

from __future__ import annotations

import pwd
import shlex
from collections.abc import Mapping
from os import getuid
from pathlib import Path
from typing import Any

import pytest
from cases import for_each

from fairmile.base.errors import UsageError
from fairmile.compat.cloudmesh import DIALECT
from fairmile.sweeps.model import Definition, Point
from fairmile.sweeps.space import Space
from fairmile.sweeps.templates import Texts


def texts(
    settings: Mapping[str, Any],
    axes: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    **more: Any,
) -> tuple[Texts, Point]:
    def origin(*path: str | int) -> str:
        return f"sweep.yaml:{len(path) * 10}"

    space = Space({"lr": [0.1], "model": ["cnn"], **(axes or {})})
    definition = Definition("sweep", space, settings, origin, **more)
    return Texts(definition, environ or {}), next(iter(space))


def filled(text: str, settings: Mapping[str, Any], **more: Any) -> str:
    made, point = texts(settings, **more)
    return made.fill(made.compile(text, Path("job.in.sh")), point)


def refusal(text: str, settings: Mapping[str, Any], **more: Any) -> UsageError:
    with pytest.raises(UsageError) as error:
        filled(text, settings, **more)
    return error.value


def test_settings_and_values_of_the_point_are_replaced() -> None:
    said = filled(
        "train {model} --lr={lr} --data={data.dir}/x-{fit-verbose}", {"data": {"dir": "/d"}, "fit-verbose": 1}
    )
    assert said == "train cnn --lr=0.1 --data=/d/x-1"


def test_settings_refer_to_settings_and_to_the_point() -> None:
    settings = {"root": "/scratch", "data": {"a": "{root}/data", "b": "{data.a}/{model}"}}
    assert filled("{data.b}", settings) == "/scratch/data/cnn"


def test_a_name_may_depend_on_the_point() -> None:
    settings = {"time": {"cnn": 5, "lstm": "{slow}"}, "slow": 60}
    made, _ = texts(settings, {"model": ["cnn", "lstm"]})
    compiled = made.compile("#SBATCH --time={time.{model}}", Path("job.in.sh"))
    points = Space({"lr": [0.1], "model": ["cnn", "lstm"]})
    assert [made.fill(compiled, each) for each in points] == ["#SBATCH --time=5", "#SBATCH --time=60"]


NASTY = 'it\'s $(touch pwned); `x` "y" * > z'


@for_each("name", ["{word|quote}", "{a.word|quote}", "{a.{which}|quote}", "{also|quote}"])
def test_a_quoted_value_is_one_word_of_a_shell_whatever_it_holds(name: str) -> None:
    settings = {"a": {"word": NASTY}, "which": "word", "also": "{a.word}"}
    assert shlex.split(filled(f"echo {name} end", settings, axes={"word": [NASTY]})) == ["echo", NASTY, "end"]


def test_a_slip_in_quoting_is_found() -> None:
    assert refusal("echo {lr|quot}", {}).message == "job.in.sh:1: {lr|quot} is not defined"
    assert refusal("echo {rl|quote}", {}).message == "job.in.sh:1: {rl|quote}, here {rl}, is not defined"
    assert filled("# {rl|quote} and {time.{rl}|quote}\n{ cat x|quote}", {}) == (
        "# {rl|quote} and {time.{rl}|quote}\n{ cat x|quote}"
    )


def test_a_name_that_depends_on_the_point_and_is_not_there_is_an_error_with_its_place() -> None:
    error = refusal("echo\n{time.{model}}", {"time": {"lstm": 5}})
    assert error.message == "job.in.sh:2: {time.{model}}, here {time.cnn}, is not defined"


@for_each(
    "text",
    [
        "${USER} ${model} ${X:-1} ${#x[@]} $((1+2))",
        '{"a": {"b": 1}, "c": []}',
        "awk '{print $1}' f | awk '{print}'",
        "for i in {1..9} {a,b} {a..z}; do f() { x; }; done; find . -exec ls {} \\;",
        "curl -w '%{http_code}' x; git log @{upstream}; exec {fd}>lock",
        "docker ps --format '{{.Names}} {{json .}} {{end}}'",
        "\\{model}",
        "# by {somebody} for {no.body}\n  ## {time.{nothing}}\n#x={other}",
        "python -c 'print(f\"{x} {y.z}\")'",
    ],
)
def test_what_belongs_to_another_language_is_left_alone(text: str) -> None:
    assert filled(text, {}) == text


def test_placeholders_are_replaced_beside_what_belongs_to_the_shell() -> None:
    settings = {"run": {"branch": "main"}, "host": "x"}
    assert filled("B=${BRANCH:-{run.branch}} u@{host} 0-9%{lr} '{{model}}'", settings) == (
        "B=${BRANCH:-main} u@x 0-9%0.1 '{cnn}'"
    )


def test_comments_are_filled_where_a_name_is_known_and_directives_are_no_comments() -> None:
    assert filled("# {model} {nothing}", {}) == "# cnn {nothing}"
    for directive in ("#SBATCH --x=", "#BSUB -J ", "#PBS -N ", "#$ -N ", "#FLUX: -N "):
        assert "job.in.sh:1: {nothing} is not defined" in refusal(f"{directive}{{nothing}}", {}).message


@for_each(
    "name, hint",
    [
        ("modle", "did you mean {model}?"),
        ("data.dri", "did you mean {data.dir}?"),
        ("dir", "did you mean {data.dir}?"),
        ("HOSTTYPE", "did you mean {os.HOSTTYPE}?"),
        ("zzz.yyy", "define it in the settings, or write \\{zzz.yyy} to keep the braces"),
    ],
)
def test_an_undefined_name_is_an_error_that_names_it_the_file_and_the_line(name: str, hint: str) -> None:
    error = refusal(f"a\nb\nx={{{name}}}\n", {"data": {"dir": "/d"}}, environ={"HOSTTYPE": "x"})
    assert error.message == f"job.in.sh:3: {{{name}}} is not defined"
    assert error.hint == hint
    assert error.exit_code == 2


def test_an_undefined_name_in_a_setting_is_told_with_the_place_of_the_setting() -> None:
    assert refusal("{data.a}", {"data": {"a": "{nope}"}}).message == "sweep.yaml:20: {nope} is not defined"
    made, point = texts({"data": {"a": ["x", "{nope}"]}})
    with pytest.raises(UsageError, match=r"sweep\.yaml:30: \{nope\} is not defined"):
        made.settings(point)


def test_a_place_that_is_no_file_is_told_without_a_line() -> None:
    made, _ = texts({})
    with pytest.raises(UsageError, match=r"^--tag: \{nope\} is not defined"):
        made.compile("{nope}", "--tag")


def test_a_section_is_no_value() -> None:
    error = refusal("{data}", {"data": {"dir": "/d"}})
    assert error.message == "job.in.sh:1: {data} is a section, not a setting"
    assert error.hint == "use one of its settings, such as {data.dir}"


@pytest.mark.parametrize(
    ("settings", "circle"),
    [
        ({"a": "{a}"}, "{a} → {a}"),
        ({"a": "x{b}", "b": "{c}", "c": "-{a}"}, "{a} → {b} → {c} → {a}"),
    ],
)
def test_settings_that_refer_to_themselves_are_an_error(settings: dict[str, Any], circle: str) -> None:
    assert refusal("{a}", settings).message == f"sweep.yaml:10: {circle} refers to itself"


@for_each("text", ["{a}", "{x.cnn}", "{a}{x.cnn}", "{x.cnn}{a}"])
def test_a_circle_through_a_name_that_depends_on_the_point_is_an_error(text: str) -> None:
    assert "refers to itself" in refusal(text, {"a": "{x.{model}}", "x": {"cnn": "{a}"}}).message


def test_environment_variables_need_to_be_allowed() -> None:
    environ = {"USER": "ann", "SITE": "x", "MY_TOKEN": "t"}
    assert filled("{os.USER}", {}, environ=environ, variables=("USER",)) == "ann"
    error = refusal("{os.SITE}", {}, environ=environ, variables=("USER",))
    assert error.message == "job.in.sh:1: the file does not allow the environment variable {os.SITE}"
    assert error.hint == "write `variables: [USER, SITE]` into the file"
    assert "no environment variable GONE" in refusal("{os.GONE}", {}, variables=("GONE",)).message
    assert "looks like a secret" in refusal("{os.MY_TOKEN}", {}, environ=environ, variables=("MY_TOKEN",)).message


def test_in_a_project_of_cloudmesh_every_variable_that_is_no_secret_may_be_used() -> None:
    environ = {"SITE": "x", "MY_TOKEN": "t", "PWD": "/here"}
    assert filled("{os.SITE} {os.PWD}", {}, environ=environ, dialect=DIALECT) == "x /here"
    assert "looks like a secret" in refusal("{os.MY_TOKEN}", {}, environ=environ, dialect=DIALECT).message


def test_the_account_tells_who_the_user_is_where_the_environment_does_not() -> None:
    account = pwd.getpwuid(getuid())
    assert filled("{os.USER} {os.HOME}", {}, environ={"USER": ""}, variables=("USER", "HOME")) == (
        f"{account.pw_name} {account.pw_dir}"
    )


def test_the_point_tells_of_itself_and_its_uuid_is_always_the_same() -> None:
    made, point = texts({"x": 1}, {"lr": [0.1, 0.2]})
    compiled = made.compile("{point.id}|{point.number}|{point.repeat}|{repeat}", "f")
    assert made.fill(compiled, point) == f"{point.id}|0|1|1"
    again, _ = texts({"x": 1}, {"lr": [0.1, 0.2]})
    one, two = Space({"lr": [0.1, 0.2], "model": ["cnn"]})
    uuid = made.compile("{point.uuid}", "f")
    assert made.fill(uuid, one) == again.fill(again.compile("{point.uuid}", "f"), one) != made.fill(uuid, two)


def test_truth_and_nothing_are_written_as_each_dialect_does() -> None:
    settings = {"yes": True, "list": [1, "a"]}
    assert filled("{yes} {list}", settings) == 'true [1, "a"]'
    assert filled("{yes} {list}", settings, dialect=DIALECT) == "True [1, 'a']"


def test_all_settings_of_a_point_keep_their_types() -> None:
    settings = {"a": {"rate": "{lr}", "text": "lr={lr}", "list": [1, "{model}"]}, "fixed": {"n": 3}}
    made, point = texts(settings)
    assert made.settings(point) == {
        "a": {"rate": 0.1, "text": "lr=0.1", "list": [1, "cnn"]},
        "fixed": {"n": 3},
        "lr": 0.1,
        "model": "cnn",
    }
    assert made.settings(point)["fixed"] is made.settings(point)["fixed"]


def test_with_a_prefix_the_values_of_the_point_stand_in_their_section() -> None:
    made, point = texts({"experiment": {"more": "{experiment.lr}!"}, "x": 1}, prefix="experiment", dialect=DIALECT)
    assert made.settings(point) == {"experiment": {"lr": 0.1, "model": "cnn", "more": "0.1!"}, "x": 1}
    assert made.fill(made.compile("{experiment.model} {experiment.more}", "f"), point) == "cnn 0.1!"


def test_a_value_of_the_point_hides_a_setting_of_its_name() -> None:
    assert filled("{model}", {"model": "other"}) == "cnn"


def test_names_may_be_left_to_others_and_a_text_without_points_is_fixed() -> None:
    made, point = texts({"x": 1})
    compiled = made.compile("{x} {seed} {y.z}", "f", leave=("seed", "y.z"))
    assert compiled.is_fixed
    assert made.fill(compiled, point) == "1 {seed} {y.z}"
    assert not made.compile("{lr}", "f").is_fixed


def test_a_value_that_a_point_lacks_is_an_error() -> None:
    made, _ = texts({})
    compiled = made.compile("{lr}", Path("f.sh"))
    with pytest.raises(UsageError, match=r"f\.sh:1: 'lr' has no value at the point p"):
        made.fill(compiled, Point(0, "p", {"model": "cnn"}))


def test_axes_that_a_tuner_proposes_are_known_too() -> None:
    made, _ = texts({}, distributions={"depth": {"kind": "integer", "low": 1, "high": 3}})
    assert made.fill(made.compile("{depth}", "f"), Point(0, "p", {"depth": 2})) == "2"


def test_thousands_of_braces_are_read_at_once() -> None:
    text = "{" * 5_000 + "a" + "}" * 5_000
    assert filled(text, {"a": "b"}) == text[:4_999] + "b" + text[5_002:]


@pytest.mark.parametrize(
    ("end", "twice"),
    [
        ("x", "{{{0}}}{{{0}}}"),
        ("{lr}", "{{{0}}}{{{0}}}"),
        ("x", ["{{{0}}}", "{{{0}}}"]),
        ("{lr}", ["{{{0}}}", "{{{0}}}"]),
        ("x", {"a": "{{{0}}}", "b": "{{{0}}}"}),
    ],
)
def test_settings_that_double_one_another_are_refused(end: Any, twice: Any) -> None:
    def double(name: str) -> Any:
        if isinstance(twice, str):
            return twice.format(name)
        if isinstance(twice, list):
            return [each.format(name) for each in twice]
        return [twice["a"].format(name), {"b": twice["b"].format(name)}]

    settings = {"s0": end, **{f"s{number}": double(f"s{number - 1}") for number in range(1, 60)}}
    assert "more than 1,000,000 characters after filling in placeholders" in str(refusal("{s59}", settings))
    made, point = texts(settings)
    with pytest.raises(UsageError, match="after filling in placeholders"):
        made.settings(point)


@pytest.mark.parametrize("end", ["", "{empty}"])
def test_settings_that_double_nothing_take_no_time(end: str) -> None:
    settings = {"s0": end, **{f"s{number}": f"{{s{number - 1}}}{{s{number - 1}}}" for number in range(1, 60)}}
    assert filled("<{s59}>", settings, axes={"empty": [""]}) == "<>"


@pytest.mark.thorough
def test_a_text_that_repeats_a_large_setting_is_refused() -> None:
    assert "job.in.sh" in str(refusal("{big}" * 100, {"big": "x" * 100_000}))
    assert "after filling in placeholders" in str(refusal("{big}" * 20_000, {}, axes={"big": ["x" * 100]}))
    made, point = texts({"big": "x" * 900_000, "all": ["{big}"] * 20})
    with pytest.raises(UsageError, match="after filling in placeholders"):
        made.settings(point)


def test_a_long_chain_of_settings_is_refused_in_words() -> None:
    settings = {**{f"s{number}": f"x{{s{number + 1}}}" for number in range(1000)}, "s1000": "end"}
    assert "in a chain of more than 100" in str(refusal("{s0}", settings))
    assert filled("{s910}", settings) == "x" * 90 + "end"


@for_each("text", ["#SBATCH --comment={note}", "  # {note}", "#BSUB -J x{more.{which}}", "#!/bin/{note}"])
@for_each("end", ["\n", "\r", "\x0b", "\x85", "\u2028", "\0"])
def test_a_value_cannot_leave_its_header_line(text: str, end: str) -> None:
    evil = f"x{end}#SBATCH --account=theirs"
    for axes, settings in (({"note": [evil]}, {}), ({}, {"note": evil})):
        said = refusal(text, {"which": "a", "more": {"a": evil}, **settings}, axes=axes)
        assert "job.in.sh:1: the value of {" in str(said)
        assert "a line break or another control character" in str(said)


@for_each("directive", ["#SBATCH -A x", "#BSUB -q x", "  #PBS -A x", "#flux: -N 1", "# SBATCH x"])
def test_a_value_cannot_bring_an_option_of_a_scheduler_into_the_body(directive: str) -> None:
    said = refusal("#!/bin/sh\necho {note|quote}", {}, axes={"note": [f"a\n{directive}"]})
    assert "job.in.sh:2: the value of {note|quote} brings a line that a scheduler would read" in str(said)


def test_a_value_of_several_lines_may_stand_in_the_body() -> None:
    assert filled("cat <<E\n{note}\nE\n", {"note": "a\n# b"}) == "cat <<E\na\n# b\nE\n"


def test_a_block_of_options_may_stand_on_its_own_line_and_its_values_stay_in_theirs() -> None:
    settings = {"sbatch": "#SBATCH -A ours\n#SBATCH --gres=gpu:{card}:1"}
    assert filled("#!/bin/sh\n{sbatch}\n", settings, axes={"card": ["v100"]}).endswith("--gres=gpu:v100:1\n")
    said = refusal("#!/bin/sh\n{sbatch}\n", settings, axes={"card": ["v100\n#SBATCH -A theirs"]})
    assert "the value of {card} brings a line break" in str(said)


def test_settings_that_double_an_undefined_name_are_refused_at_once() -> None:
    settings = {"s0": "{typo}", **{f"s{number}": f"{{s{number - 1}}}{{s{number - 1}}}" for number in range(1, 60)}}
    assert "{typo} is not defined" in str(refusal("{s59}", settings))
