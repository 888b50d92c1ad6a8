"""Sets up completion in a user's shell, and removes it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import TypedDict

from fairmile.base.errors import SystemFailure, UsageError
from fairmile.base.files import write_atomic
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result
from fairmile.base.words import did_you_mean

SHELLS = ("bash", "zsh", "fish")
_ANY_SHELL = f"{', '.join(SHELLS[:-1])} or {SHELLS[-1]}"
_BEGIN, _END = "# >>> fairmile completion >>>", "# <<< fairmile completion <<<"
_BLOCK = re.compile(rf"\n?{re.escape(_BEGIN)}\n.*?{re.escape(_END)}\n", re.DOTALL)


class CompletionDict(TypedDict):
    """The files that completion lives in, and those of them that were changed."""

    shell: str
    files: list[str]
    changed: list[str]
    dry_run: bool


@dataclass(frozen=True, repr=False)
class Completion(Result):
    """Completion in a shell: its files, and those that were changed, or would be."""

    shell: str
    files: tuple[Path, ...]
    changed: tuple[Path, ...]
    dry_run: bool

    def to_dict(self) -> CompletionDict:
        return {
            "shell": self.shell,
            "files": [str(each) for each in self.files],
            "changed": [str(each) for each in self.changed],
            "dry_run": self.dry_run,
        }

    def summary(self) -> str:
        return f"{self.shell}: {len(self.changed)} of {len(self.files)} files changed"


@dataclass(frozen=True, repr=False)
class CompletionScript(Result):
    """The script that completes words in a shell."""

    shell: str
    script: str

    def to_dict(self) -> dict[str, str]:
        return {"shell": self.shell, "script": self.script}

    def summary(self) -> str:
        return f"{self.shell}, {len(self.script):,} characters"


def script(shell: str, environ: Mapping[str, str] = os.environ) -> CompletionScript:
    """Return the script for a shell; empty: for the user's."""
    shell = _choose(shell, environ)
    text = (resources.files("fairmile.cli") / "shells" / f"fairmile.{shell}").read_text(encoding="utf-8")
    return CompletionScript(shell, text)


def install(shell: str = "", *, dry_run: bool = False, environ: Mapping[str, str] = os.environ) -> Completion:
    """Write the script for a shell where it is found; bash and zsh get a marked block in their start file."""
    chosen = script(shell, environ)
    file, start_file = _files(chosen.shell, environ)
    wanted = {file: chosen.script}
    if start_file is not None:
        text = _read(start_file)
        line = f'[ -f "{file}" ] && . "{file}"'
        block = f"{_BEGIN}\n{line}\n{_END}\n"
        is_there = block in text
        wanted[start_file] = text if is_there else f"{_BLOCK.sub('', text)}{_newline(text)}\n{block}"
    return _write(chosen.shell, wanted, dry_run)


def uninstall(shell: str = "", *, dry_run: bool = False, environ: Mapping[str, str] = os.environ) -> Completion:
    """Remove what `install` wrote, and nothing else."""
    shell = _choose(shell, environ)
    file, start_file = _files(shell, environ)
    wanted: dict[Path, str | None] = {file: None}
    if start_file is not None:
        wanted[start_file] = _BLOCK.sub("", _read(start_file)) if start_file.exists() else None
    return _write(shell, wanted, dry_run)


def _write(shell: str, wanted: Mapping[Path, str | None], dry_run: bool) -> Completion:
    changed = [file for file, text in wanted.items() if (_read(file) if file.exists() else None) != text]
    for file in () if dry_run else changed:
        text = wanted[file]
        try:
            if text is None:
                file.unlink()
            else:
                write_atomic(file, text)
        except OSError as error:
            raise SystemFailure(f"cannot write {file}: {error.strerror}", hint="check its permissions") from error
    return Completion(shell, tuple(wanted), tuple(changed), dry_run)


def _choose(shell: str, environ: Mapping[str, str]) -> str:
    name = shell or os.path.basename(environ.get("SHELL", ""))
    if name in SHELLS:
        return name
    if not name:
        raise UsageError("cannot tell your shell: the variable SHELL is not set", hint=f"pass --shell {_ANY_SHELL}")
    near = did_you_mean(name, SHELLS)
    sentence = f"no completion for the shell {name!r}" + (f"; {near}" if near else "")
    raise UsageError(sentence, hint=f"pass --shell {_ANY_SHELL}")


def _files(shell: str, environ: Mapping[str, str]) -> tuple[Path, Path | None]:
    """Return where the script of a shell goes, and the start file that reads it, where it needs one."""
    home = Path(environ.get("HOME") or Path.home())
    if shell == "fish":
        settings = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
        return settings / "fish" / "completions" / "fairmile.fish", None
    data = Path(environ.get("XDG_DATA_HOME") or home / ".local" / "share")
    start_file = Path(environ.get("ZDOTDIR") or home) / ".zshrc" if shell == "zsh" else home / ".bashrc"
    # Many keep it elsewhere and link to it: the link stays.
    return data / "fairmile" / "completion" / f"fairmile.{shell}", start_file.resolve()


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="surrogateescape")
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise SystemFailure(f"cannot read {file}: {error.strerror}") from error


def _newline(text: str) -> str:
    return "" if not text or text.endswith("\n") else "\n"
