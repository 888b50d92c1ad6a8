"""A specification as a person writes it, and what is said when it is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairmile.base.errors import InvalidDocument, SystemFailure
from fairmile.envs.spec import EnvironmentSpec, load_spec, parse_spec


def load(folder: Path, text: str, name: str = "demo.yaml") -> EnvironmentSpec:
    (folder / name).write_text(text)
    return load_spec(folder / name)


def refused(folder: Path, text: str) -> InvalidDocument:
    with pytest.raises(InvalidDocument) as caught:
        load(folder, text)
    return caught.value


def test_the_shortest_file_is_one_line_and_named_by_its_file(tmp_path: Path) -> None:
    spec = load(tmp_path, "python: {packages: [numpy]}\n", "weather.yaml")
    assert spec.name == "weather"
    assert spec.python is not None and spec.python.packages == ("numpy",)


def test_files_are_seen_from_the_folder_of_the_specification(tmp_path: Path) -> None:
    spec = load(
        tmp_path,
        "python: {requirements: req.txt, project: ../code, packages: [./w.whl]}\n"
        "builds:\n- {name: a, archive: a.tgz, patches: [fix.patch]}\n",
    )
    assert spec.python is not None
    assert spec.python.requirements == str(tmp_path / "req.txt")
    assert spec.python.project == str(tmp_path / "../code")
    assert spec.python.packages == (str(tmp_path / "w.whl"),)
    assert spec.builds[0].archive == str(tmp_path / "a.tgz")
    assert spec.builds[0].patches == (str(tmp_path / "fix.patch"),)


def test_a_specification_without_a_folder_names_no_relative_files() -> None:
    with pytest.raises(InvalidDocument, match="has no folder"):
        parse_spec({"name": "x", "python": {"requirements": "req.txt"}}, origin="card")


def test_values_that_refer_to_other_variables_are_kept_as_written(tmp_path: Path) -> None:
    spec = load(tmp_path, "variables: {HOROVOD_CUDA_HOME: $CUDA_HOME, N: 4}\n")
    assert spec.variables == {"HOROVOD_CUDA_HOME": "$CUDA_HOME", "N": "4"}


@pytest.mark.parametrize(
    ("text", "line", "told"),
    [
        ("name: x\npyton: {}\n", 2, "did you mean 'python'?"),
        ("python:\n  packges: [a]\n", 2, "did you mean 'packages'?"),
        ("checks:\n- run: x\n- {rn: y}\n", 3, ""),
        ("python:\n  version: 3.10\n", 2, "in quotes"),
        ("python:\n  version: new\n", 2, "is not a version"),
        ("python:\n  packages:\n  - numpy\n  - ==3\n", 4, "is not a requirement"),
        ("python:\n  packages: [x @ https://me:pw@host/x.whl]\n", 2, "login"),
        ("python: {extras: [a]}\n", 1, "extras"),
        ("variables:\n  A-B: x\n", 1, "not a name"),
        ("variables:\n  A: 1.10\n", 2, "quotes"),
        ("variables: {HF_TOKEN: abc}\n", 1, "secret"),
        ("modules:\n- GCC/11\n- ml x; rm -rf /\n", 3, "expected a module"),
        ("modules: ['ml $(reboot)']\n", 1, "expected a module"),
        ("builds:\n- {name: a, git: x, archive: b}\n", 2, "git and archive"),
        ("builds:\n- {name: a}\n", 2, "none"),
        ("builds:\n- {name: a, git: 'ext::sh -c id'}\n", 2, "would run a command"),
        ("builds:\n- {name: a, git: https://me:pw@host/x}\n", 2, "login"),
        ("builds:\n- {name: a, git: https://h/x, subfolder: ../..}\n", 2, "not a folder inside"),
        ("builds:\n- {name: a, git: https://h/x, system: cmke}\n", 2, "did you mean 'cmake'?"),
        ("builds:\n- {name: a, git: https://h/x, system: commands}\n", 2, "commands"),
        ("builds:\n- {name: a, git: https://h/x}\n- {name: a, git: https://h/y}\n", 1, "two builds"),
        ("builds:\n- {name: a, archive: /x.tgz, sha256: abc}\n", 2, "64 lower-case hex digits"),
        ("checks:\n- {run: x, expect: '('}\n", 2, "not a regular expression"),
        ("- a\n", None, "expected an environment"),
        ("", None, "expected an environment"),
    ],
)
def test_a_mistake_is_told_with_its_line(tmp_path: Path, text: str, line: int | None, told: str) -> None:
    problem = refused(tmp_path, text).problems[0]
    assert (problem.line, problem.file) == (line, str(tmp_path / "demo.yaml"))
    assert told in problem.message


@pytest.mark.parametrize(
    "text",
    [
        "variables: {http_proxy: 'http://bob:hunter2@proxy:1'}",
        "variables: {PGPASSWORD: hunter2}",
        "variables: {hf_token: hunter2}",
        "variables: {GITHUB_PAT: hunter2}",
        "variables: {MY_PWD: hunter2}",
        "variables: {OPENAI_KEY: hunter2}",
        "variables: {AWS_CREDENTIALS: hunter2}",
        "variables: {HF_TOKEN: $hunter2-and-more}",
        "builds: [{name: a, git: 'https://hunter2@github.com/x/y'}]",
        "builds: [{name: a, archive: 'https://host/a.tgz?X-Amz-Signature=hunter2'}]",
        "conda: {packages: [a], channels: ['https://conda.example/t/hunter2/lab']}",
        "checks: [{run: [curl, 'https://bob:hunter2@host/x']}]",
    ],
)
def test_a_secret_is_refused_and_not_repeated(tmp_path: Path, text: str) -> None:
    told = str(refused(tmp_path, text + "\n"))
    assert "records would keep" in told
    assert "hunter2" not in told


def test_what_only_looks_a_little_like_a_secret_is_taken(tmp_path: Path) -> None:
    values = {
        "PATH": "/x:$PATH",
        "PWD": "/here",
        "OLDPWD": "/there",
        "KEYBOARD": "de",
        "COMPASS": "north",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1",
        "HF_TOKEN": "$HF_TOKEN",
        "GOOGLE_APPLICATION_CREDENTIALS": "/secure/file.json",
        "http_proxy": "http://${PROXY_USER}:${PROXY_WORD}@proxy:1",
        "MAIL": "me@example.org",
    }
    spec = parse_spec({"name": "x", "variables": values, "builds": [{"name": "a", "git": "ssh://git@host/x"}]})
    assert spec.variables == values
    assert parse_spec({"name": "x", "builds": [{"name": "a", "git": "git@host:x/y"}]}).builds


def test_a_home_folder_that_nobody_has_is_said_so(tmp_path: Path) -> None:
    for text in ("python: {requirements: ~nosuch/x}", "container: {definition: ~nosuch/x}"):
        assert "no user ~nosuch" in str(refused(tmp_path, text + "\n"))


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    problems = refused(tmp_path, "naem: x\npython:\n  packages: 3\nmodules: [a b]\n").problems
    assert [each.line for each in problems] == [1, 3, 4]


def test_a_version_is_a_release_or_a_specifier(tmp_path: Path) -> None:
    for text, fits, other in (("3.11", "3.11.9", "3.12.0"), (">=3.10,<3.13", "3.12.1", "3.13.0"), ("", "3.9.0", "")):
        python = load(tmp_path, f"python: {{version: '{text}'}}\n").python
        assert python is not None
        assert python.versions.contains(fits)
        assert not other or not python.versions.contains(other)


def test_a_file_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(SystemFailure, match="cannot read the environment file"):
        load_spec(tmp_path / "none.yaml")
