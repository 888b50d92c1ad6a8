"""What an environment changes in a shell, and how each shell is told so."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeAlias

from fairmile.base.errors import NotFound
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.words import did_you_mean

_REFERENCE = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))")
# Where the two module systems keep what defines `module`, below their own folder and as packaged.
_INIT_FOLDERS = ("/usr/share/lmod/lmod/init", "/usr/share/modules/init", "/usr/share/Modules/init")
_PROFILES = ("/etc/profile.d/z00_lmod.sh", "/etc/profile.d/lmod.sh", "/etc/profile.d/modules.sh")
_BASH, _NAME = ("bash", "--noprofile", "--norc", "-c"), "fairmile"
_FAILED = 3  # exit code of a preamble that cannot be done: the environment is not what it should be


@dataclass(frozen=True)
class Assign:
    """Set a variable; `$OTHER` and `${OTHER}` in the value are filled in by the shell unless it is `literal`."""

    name: str
    value: str
    literal: bool = False


@dataclass(frozen=True)
class Prepend:
    """Put a folder in front of a variable that lists folders, such as PATH."""

    name: str
    folder: Path


@dataclass(frozen=True)
class Unset:
    """Take a variable away, so that nothing of the caller's leaks in."""

    name: str


@dataclass(frozen=True)
class ModuleLine:
    """A line of the module system, as in `module load GCC/11.2.0`; when it fails the shell ends with 3."""

    text: str


@dataclass(frozen=True)
class Source:
    """Read a file in the shell's own language, where it is there; `shells` says for which shells it is written."""

    file: Path
    shells: tuple[str, ...] = ("bash", "zsh", "sh")


Act: TypeAlias = Assign | Prepend | Unset | ModuleLine | Source


def within(lines: Sequence[str], argv: Sequence[str]) -> tuple[str, ...]:
    """Return the command that does lines of bash, and becomes `argv`."""
    return (*_BASH, "\n".join([*lines, 'exec "$@"']), _NAME, *argv)


def without_shell(argv: Sequence[str]) -> tuple[str, ...]:
    """Return the command that such a shell becomes; another one as it is."""
    bash, name, words = tuple(argv[:4]), argv[5:6], tuple(argv[6:])
    return words if (bash, *name) == (_BASH, _NAME) else tuple(argv)


def render(acts: Sequence[Act], shell: str = "bash") -> tuple[str, ...]:
    """Return the lines that do `acts` in a shell: bash, zsh, sh, csh, tcsh or fish.

    Variables are taken away first. In bash, zsh and sh the lines work under `set -eu` and leave these settings as
    they were. A module line that fails says so on stderr and ends the script with exit code 3.
    """
    words = SHELLS.get(shell)
    if words is None:
        near = did_you_mean(shell, SHELLS)
        raise NotFound(f"no shell named {shell!r}" + (f"; {near}" if near else f"; known: {', '.join(SHELLS)}"))
    distinct = list(dict.fromkeys(acts))
    unset = [line for act in distinct if isinstance(act, Unset) for line in words.unset(act)]
    modules = [act for act in distinct if isinstance(act, ModuleLine)]
    loaded = words.modules(modules, shell) if modules else []
    rest: list[str] = []
    for act in distinct:
        if isinstance(act, Assign):
            rest += words.assign(act)
        elif isinstance(act, Prepend):
            rest += words.prepend(act)
        elif isinstance(act, Source) and shell in act.shells:
            rest += words.source(act)
    return (*unset, *loaded, *rest)


def pieces(value: str) -> list[tuple[bool, str]]:
    """Return a value cut into texts (False) and the names of the variables it refers to (True)."""
    parts: list[tuple[bool, str]] = []
    end = 0
    for match in _REFERENCE.finditer(value):
        if match.start() > end:
            parts.append((False, value[end : match.start()]))
        parts.append((True, match[1] or match[2]))
        end = match.end()
    if end < len(value) or not parts:
        parts.append((False, value[end:]))
    return parts


def _cut(act: Assign) -> list[tuple[bool, str]]:
    return [(False, act.value)] if act.literal else pieces(act.value)


class _Words(Protocol):
    """How one family of shells says things."""

    def unset(self, act: Unset) -> list[str]: ...

    def modules(self, acts: Sequence[ModuleLine], shell: str) -> list[str]: ...

    def assign(self, act: Assign) -> list[str]: ...

    def prepend(self, act: Prepend) -> list[str]: ...

    def source(self, act: Source) -> list[str]: ...


class _Posix:
    def unset(self, act: Unset) -> list[str]:
        return [f"unset {act.name}"]

    def modules(self, acts: Sequence[ModuleLine], shell: str) -> list[str]:
        places = [f'"${{LMOD_PKG:-}}/init/{shell}"', f'"${{MODULESHOME:-}}/init/{shell}"']
        places += [f"{folder}/{shell}" for folder in _INIT_FOLDERS]
        places += _PROFILES
        loads = [
            f"{act.text} || {{ echo {shlex.quote(f'fairmile: failed: {act.text}')} >&2; {_END}; }}" for act in acts
        ]
        return [
            *_WITHOUT_NOUNSET,
            "if ! command -v module >/dev/null 2>&1; then",
            f"  for fairmile_file in {' '.join(places)}; do",
            '    if [ -r "$fairmile_file" ]; then . "$fairmile_file" || :; break; fi',
            "  done",
            "  unset fairmile_file",
            "fi",
            f"command -v module >/dev/null 2>&1 || {{ echo {shlex.quote(_NO_MODULES)} >&2; {_END}; }}",
            *loads,
            _NOUNSET_AGAIN,
        ]

    def assign(self, act: Assign) -> list[str]:
        value = "".join(f'"${{{text}:-}}"' if refers else shlex.quote(text) for refers, text in _cut(act))
        return [f"export {act.name}={value}"]

    def prepend(self, act: Prepend) -> list[str]:
        name = act.name
        return [f'export {name}={shlex.quote(str(act.folder))}"${{{name}:+:${name}}}"']

    def source(self, act: Source) -> list[str]:
        file = shlex.quote(str(act.file))
        return [*_WITHOUT_NOUNSET, f"if [ -r {file} ]; then . {file}; fi", _NOUNSET_AGAIN]


_NO_MODULES = "fairmile: this machine has no module system: neither Lmod nor environment-modules was found"
_END = f"return {_FAILED} 2>/dev/null || exit {_FAILED}"
# The files of module systems and packages read variables that are not set.
_WITHOUT_NOUNSET = ("case $- in *u*) fairmile_nounset=1; set +u;; *) fairmile_nounset=;; esac",)
_NOUNSET_AGAIN = 'if [ -n "$fairmile_nounset" ]; then set -u; fi; unset fairmile_nounset'


class _Csh:
    def unset(self, act: Unset) -> list[str]:
        return [f"unsetenv {act.name}"]

    def modules(self, acts: Sequence[ModuleLine], shell: str) -> list[str]:
        missing = 'if ( "`alias module`" == "" ) then'
        lines: list[str] = []
        for name in ("LMOD_PKG", "MODULESHOME"):
            lines += [missing, f"  if ( $?{name} ) then", f"    if ( -r ${{{name}}}/init/{shell} ) source ${{{name}}}"]
            lines[-1] += f"/init/{shell}"
            lines += ["  endif", "endif"]
        for folder in _INIT_FOLDERS:
            lines += [missing, f"  if ( -r {folder}/{shell} ) source {folder}/{shell}", "endif"]
        lines += [missing, f"  sh -c 'echo \"$1\" >&2' sh {_csh_quote(_NO_MODULES)}", f"  exit {_FAILED}", "endif"]
        for act in acts:
            message = _csh_quote(f"fairmile: failed: {act.text}")
            lines += [
                act.text,
                "if ( $status != 0 ) then",
                f"  sh -c 'echo \"$1\" >&2' sh {message}",
                f"  exit {_FAILED}",
            ]
            lines += ["endif"]
        return lines

    def assign(self, act: Assign) -> list[str]:
        cut = _cut(act)
        known = [
            f"if ( ! $?{name} ) setenv {name} ''" for name in dict.fromkeys(text for refers, text in cut if refers)
        ]
        value = "".join(f'"${{{text}}}"' if refers else _csh_quote(text) for refers, text in cut)
        return [*known, f"setenv {act.name} {value}"]

    def prepend(self, act: Prepend) -> list[str]:
        name, folder = act.name, _csh_quote(str(act.folder))
        return [
            f"if ( $?{name} ) then",
            f'  setenv {name} {folder}":${{{name}}}"',
            "else",
            f"  setenv {name} {folder}",
            "endif",
        ]

    def source(self, act: Source) -> list[str]:
        file = _csh_quote(str(act.file))
        return [f"if ( -r {file} ) source {file}"]


class _Fish:
    def unset(self, act: Unset) -> list[str]:
        return [f"set -e {act.name}"]

    def modules(self, acts: Sequence[ModuleLine], shell: str) -> list[str]:
        places = ['"$LMOD_PKG/init/fish"', '"$MODULESHOME/init/fish"', *(f"{each}/fish" for each in _INIT_FOLDERS)]
        lines = [
            f"for fairmile_file in {' '.join(places)}",
            "  type -q module; and break",
            '  test -r "$fairmile_file"; and source "$fairmile_file"',
            "end",
            "set -e fairmile_file",
            f"type -q module; or begin; echo {_fish_quote(_NO_MODULES)} >&2; exit {_FAILED}; end",
        ]
        for act in acts:
            message = _fish_quote(f"fairmile: failed: {act.text}")
            # fish refuses ${NAME}; its own way of ending a name is {$NAME}.
            text = re.sub(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}", r"{$\1}", act.text)
            lines.append(f"{text}; or begin; echo {message} >&2; exit {_FAILED}; end")
        return lines

    def assign(self, act: Assign) -> list[str]:
        value = "".join(f'"${text}"' if refers else _fish_quote(text) for refers, text in _cut(act))
        return [f"set -gx {act.name} {value}"]

    def prepend(self, act: Prepend) -> list[str]:
        return [f"set -gx --path {act.name} {_fish_quote(str(act.folder))} ${act.name}"]

    def source(self, act: Source) -> list[str]:
        file = _fish_quote(str(act.file))
        return [f"test -r {file}; and source {file}"]


def _csh_quote(text: str) -> str:
    # Even between single quotes csh takes ! for a word of its history.
    return "'" + text.replace("'", "'\\''").replace("!", "\\!") + "'"


def _fish_quote(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


SHELLS: Mapping[str, _Words] = {
    "bash": _Posix(),
    "zsh": _Posix(),
    "sh": _Posix(),
    "csh": _Csh(),
    "tcsh": _Csh(),
    "fish": _Fish(),
}
