"""git as a mere carrier of files: nothing that lies in a repository is executed, whatever the user has installed."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from urllib.parse import unquote

from fairmile.base.commands import Runner
from fairmile.base.errors import FairmileError, NotFound, SystemFailure, Transient, UsageError
from fairmile.base.files import write_atomic
from fairmile.base.lazy import lazy_pattern

# A repository must not bring its own programs into the fetch: no hooks, no helpers, no `ext::` transport.
_GIT = (
    *("git", "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "protocol.ext.allow=never"),
    *("-c", "protocol.file.allow=always", "-c", "credential.interactive=false", "-c", "core.askPass="),
    *("-c", "protocol.version=2", "-c", "core.attributesFile=/dev/null", "-c", "gc.auto=0"),
    *("-c", "fetch.recurseSubmodules=no", "-c", "submodule.recurse=false", "-c", "maintenance.auto=false"),
    *("-c", "core.protectHFS=true", "-c", "core.protectNTFS=true", "-c", "core.quotePath=true"),
    *("-c", "http.lowSpeedLimit=1", "-c", "http.lowSpeedTime=60"),
)
# Ranks above the repository's own .gitattributes: files come as they are stored, none is left out, and no filter
# that the user has installed, such as one that downloads large files, is called by a repository.
_ATTRIBUTES = "* -filter -text -ident -eol -crlf -working-tree-encoding -export-ignore -export-subst\n"
# A password, or a token where the user should stand.
_LOGIN = lazy_pattern(
    r"(?P<scheme>https?://)(?:(?P<user>[^/@:\s]*):(?P<password>[^/\s]*)"
    r"|(?P<token>(?:gh[a-z]_|github_pat_|glpat-|hf_)[^/@:\s]*))@"
)
_NOTHING: Mapping[str, str] = MappingProxyType({})
_ABSENT = ("not found", "does not appear to be a git repository", "couldn't find remote ref", "invalid refspec")
_PASSING = ("could not resolve host", "connection", "timed out", "early eof", "hung up", "rpc failed", "disconnect")


class Repository:
    """A bare repository of our own in `folder`, into which single revisions of others are fetched.

    `env` adds to the environment of each call. `shown` takes secrets out of what git says before it becomes the
    text of an error.
    """

    def __init__(
        self,
        folder: Path,
        runner: Runner,
        *,
        env: Mapping[str, str] = _NOTHING,
        shown: Callable[[str], str] = str,
        timeout_s: float | None = None,
    ) -> None:
        self.folder = folder
        self._runner = runner
        self._shown = shown
        self._timeout_s = timeout_s
        # A variable left by a git hook that called us must not lead to the caller's own repository.
        self._env = {
            **env,
            "GIT_DIR": str(folder),
            "GIT_OBJECT_DIRECTORY": str(folder / "objects"),
            "GIT_INDEX_FILE": str(folder / "index"),
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_CONFIG_NOSYSTEM": "1",
            "LC_ALL": "C",
        }

    @property
    def attributes(self) -> Path:
        """The file that keeps the repository's own attributes from having an effect."""
        return self.folder / "info" / "attributes"

    def create(self) -> None:
        """Create the repository where it is not there yet."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if not (self.folder / "HEAD").exists():
            self.run("init", "--quiet", "--bare", "--template=", str(self.folder))
        write_atomic(self.attributes, _ATTRIBUTES)

    def fetch(self, location: str, revision: str) -> str:
        """Fetch one revision (a branch, a tag, a full commit, HEAD) without its history; return the commit."""
        self.run("fetch", "--quiet", "--no-tags", "--depth=1", "--force", "--", location, revision)
        return self.run("rev-parse", "--verify", "FETCH_HEAD^{commit}").strip()

    def run(
        self,
        *arguments: str,
        cwd: Path | None = None,
        input: str | bytes | None = None,
        env: Mapping[str, str] = _NOTHING,
        on_line: Callable[[str], None] | None = None,
    ) -> str:
        """Run one git command in the repository and return what it prints."""
        words, login = _without_logins(arguments)
        done = self._runner.run(
            [*_GIT, *words],
            cwd=cwd or self.folder,
            env={**self._env, **login, **env},
            input=input,
            timeout_s=self._timeout_s,
            check=False,
            on_line=on_line,
        )
        if done.exit_code:
            raise self._failure(arguments[0], done.stderr, done.exit_code)
        return done.stdout

    def _failure(self, command: str, stderr: str, exit_code: int) -> FairmileError:
        messages = [line for line in stderr.splitlines() if line.startswith(("fatal:", "error:"))]
        text = self._shown(f"git {command}: {messages[0] if messages else stderr.strip() or exit_code}")
        if "couldn't find remote ref" in text or "invalid refspec" in text:
            text += "; name a branch, a tag or a full commit"
        lower = text.lower()
        if any(sign in lower for sign in _ABSENT):
            return NotFound(text)
        return Transient(text) if any(sign in lower for sign in _PASSING) else SystemFailure(text)


def refuse_commands(location: str, shown: Callable[[str], str] = str) -> None:
    """Refuse a location or revision that git would take for an option or for a command to run."""
    if location.startswith("-"):
        raise UsageError(f"{shown(location)!r} starts with a dash: git would take it for an option")
    if location.startswith("ext::") or "::" in location.split("/")[0]:
        raise UsageError(
            f"git location {shown(location)!r} would run a command", hint="use an https, ssh or file address"
        )


def _without_logins(arguments: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return the words without the passwords of web addresses, and the variables by which git gets these.

    Every user of the machine can read the words of a program that runs, but not its environment.
    """
    words, env = list(arguments), {}
    for place, word in enumerate(words):
        match = _LOGIN.match(word)
        if match is not None:
            user, password = unquote(match["token"] or match["user"]), unquote(match["password"] or "")
            secret = base64.b64encode(f"{user}:{password}".encode()).decode()
            words[place] = match["scheme"] + word[match.end() :]
            server = match["scheme"] + word[match.end() :].partition("/")[0]
            env = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": f"http.{server}/.extraHeader"}
            env |= {"GIT_CONFIG_VALUE_0": f"Authorization: Basic {secret}"}
    return words, env
