"""The repository that others' revisions are fetched into; tests/catalog and tests/transfer use it to the full."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from cases import for_each

from fairmile.base.commands import Here, Result
from fairmile.base.errors import FairmileError, NotFound, SystemFailure, Transient, UsageError
from fairmile.base.git import Repository, refuse_commands

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs the program git")


class Saying:
    """A git that fails with a text."""

    def __init__(self, text: str) -> None:
        self.text = text

    def run(self, argv: Sequence[str], **_: Any) -> Result:
        return Result(tuple(argv), 128, "", self.text, 0.0)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("fatal: repository 'https://example.net/x.git/' not found", NotFound),
        ("fatal: '/x' does not appear to be a git repository\nfatal: Could not read from remote repository.", NotFound),
        ("fatal: couldn't find remote ref nowhere", NotFound),
        ("fatal: unable to access 'https://x/': Could not resolve host: x", Transient),
        ("error: RPC failed; curl 18 transfer closed\nfatal: early EOF", Transient),
        ("fatal: Authentication failed for 'https://x/'", SystemFailure),
        ("", SystemFailure),
    ],
)
def test_what_git_says_tells_what_kind_of_error_it_is(tmp_path: Path, text: str, kind: type[FairmileError]) -> None:
    with pytest.raises(kind) as caught:
        Repository(tmp_path, Saying(text)).fetch("https://x/", "main")
    assert type(caught.value) is kind
    assert str(caught.value).startswith("git fetch: ")


def test_secrets_are_taken_out_of_what_git_says(tmp_path: Path) -> None:
    git = Repository(
        tmp_path, Saying("fatal: no https://me:hunter2@x/"), shown=lambda text: text.replace("hunter2", "…")
    )
    with pytest.raises(SystemFailure) as caught:
        git.run("fetch")
    assert "hunter2" not in str(caught.value)


def test_one_revision_is_fetched_without_its_history(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.net"]
    subprocess.run(["git", "init", "--quiet", "--initial-branch=main"], cwd=there, check=True)
    for message in ("one", "two"):
        command = ["git", *identity, "commit", "--quiet", "--allow-empty", "--message", message]
        subprocess.run(command, cwd=there, check=True)
    git = Repository(tmp_path / "own", Here())
    git.create()
    git.create()
    commit = git.fetch(there.as_uri(), "main")
    assert git.run("log", "--format=%H %s", commit).split("\n")[:-1] == [f"{commit} two"]


@for_each("location", ["ext::sh -c 'touch x'", "fd::7", "-u x", "--upload-pack=x"])
def test_a_location_that_would_run_a_command_is_refused(location: str) -> None:
    with pytest.raises(UsageError):
        refuse_commands(location)


@for_each("location", ["https://example.net/x.git", "git@example.net:x", "/data/a::b", "file:///x"])
def test_other_locations_are_not_refused(location: str) -> None:
    refuse_commands(location)


@pytest.mark.parametrize(
    ("location", "bare", "secret"),
    [
        ("https://ann:s3cret@host/x.git", "https://host/x.git", "YW5uOnMzY3JldA=="),
        ("https://ann:s3%40cret@host:8/x", "https://host:8/x", "YW5uOnMzQGNyZXQ="),
        ("https://ghp_123@host/x.git", "https://host/x.git", "Z2hwXzEyMzo="),
    ],
)
def test_a_password_reaches_git_by_its_environment_only(tmp_path: Path, location: str, bare: str, secret: str) -> None:
    calls: list[tuple[Sequence[str], dict[str, str]]] = []

    class Recording:
        def run(self, argv: Sequence[str], **more: Any) -> Result:
            calls.append((argv, dict(more["env"])))
            return Result(tuple(argv), 0, "", "", 0.0)

    Repository(tmp_path, Recording()).fetch(location, "main")
    argv, env = calls[0]
    assert argv[-2:] == [bare, "main"]
    assert env["GIT_CONFIG_VALUE_0"] == f"Authorization: Basic {secret}"
    assert env["GIT_CONFIG_KEY_0"] == f"http.{bare.rpartition('/')[0]}/.extraHeader"
