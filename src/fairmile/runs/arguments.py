"""The arguments of a program, as its command line shows them: what argparse, click and Hydra would read as parameters.

    --lr 0.1   --lr=0.1   -b 32   -b32   --verbose   model.lr=0.1   +trainer.devices=2

How a Python program declares its options is read from its file, without running it: then `-b 32` is `batch_size`, and
a flag takes no value. Where a file does not tell, the word behind an option is its value.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from fairmile.base.lazy import lazy_pattern
from fairmile.base.paths import find_program
from fairmile.base.quick_dataclass import dataclass
from fairmile.runs.record.values import Value, parse_value

PARAMS = "FAIRMILE_PARAMS"  # the variable by which a program sees all parameters
PYTHON_FILES = (".py",)
_SCRIPT = lazy_pattern(r".*\.(?:py|sh|bash|jl|R|r|pl|js|rb|m|lua)")
# Programs that start another one, which is named by its file.
_STARTERS = lazy_pattern(
    r"\{python\}|(?:python|pypy)[0-9.]*|bash|sh|zsh|julia|Rscript|perl|node|ruby|mpirun|mpiexec|srun|torchrun|accelerate"
    r"|deepspeed|horovodrun|env|time|nice|uv|poetry|conda|mamba|pixi"
)
_SYSTEM = ("/usr/", "/bin/", "/sbin/")
_LONG = lazy_pattern(r"--?([A-Za-z][\w.-]*)(?:=(.*))?", re.DOTALL)
_SHORT_WITH_NUMBER = lazy_pattern(r"-([A-Za-z])=?(-?\.?[0-9].*)")
_OVERRIDE = lazy_pattern(r"\+{0,2}([A-Za-z_][\w./@-]*)=(.*)", re.DOTALL)
_NUMBER = lazy_pattern(r"-\.?[0-9].*")
_NO_VALUE = ("store_true", "store_false", "store_const", "append_const", "count", "help", "version")
_MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class Argument:
    """One argument of a program: the parameter that it sets, its value, and where that value is written."""

    name: str
    text: str | None  # None: a flag
    word: int  # the word of the command that holds the value
    start: int = 0  # where in it the value begins
    sets: bool = True  # what a flag sets
    option: str = ""  # as it is written, such as `--lr`

    @property
    def value(self) -> Value:
        """The value as a number, true, false or a text."""
        return self.sets if self.text is None else parse_value(self.text)


@dataclass(frozen=True)
class _Option:
    """What a program says of one of its options."""

    name: str
    takes: str  # none, one or many values
    sets: bool = True  # a flag: what it sets


def is_program(path: Path) -> bool:
    """Tell whether a path names a program: a Python file, or a file that can be executed."""
    try:
        return path.is_file() and (path.suffix in PYTHON_FILES or os.access(path, os.X_OK))
    except (OSError, ValueError):
        return False


def start_program(words: Sequence[str], folder: Path, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the command that starts a program: a Python file is started by `python`, another one by itself."""
    file = folder / os.path.expanduser(words[0])
    path = environ.get("PATH")
    if not is_program(file):
        return tuple(words)
    if file.suffix in PYTHON_FILES:
        interpreter = next((each for each in ("python", "python3") if find_program(each, path)), "{python}")
        return (interpreter, *words)
    is_found = "/" in words[0] or find_program(words[0], path)
    return (words[0] if is_found else f"./{words[0]}", *words[1:])


def start_file(words: Sequence[str], folder: Path, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return a command; a Python file that cannot be executed by itself is started by `python`."""
    file = folder / words[0]
    is_startable = file.suffix in PYTHON_FILES and is_program(file) and not os.access(file, os.X_OK)
    return start_program(words, folder, environ) if is_startable else tuple(words)


def read_arguments(argv: Sequence[str], folder: Path, environ: Mapping[str, str]) -> list[Argument]:
    """Return the arguments with a name that a command gives its program; relative paths start at `folder`.

    A command of the operating system has none: its options are no parameters of an experiment.
    """
    first, script = _program(argv, environ)
    options = declared_options(folder / script) if script.endswith(PYTHON_FILES) else {}
    return list(_read(argv, first, options))


def program_file(argv: Sequence[str], environ: Mapping[str, str]) -> str:
    """Return the file of the program that gets the arguments of a command; empty where no file is named."""
    return _program(argv, environ)[1]


def argument_params(argv: Sequence[str], folder: Path, environ: Mapping[str, str]) -> dict[str, Value]:
    """Return the parameters that the arguments of a command set; one that is given again joins its values."""
    params: dict[str, Value] = {}
    for each in read_arguments(argv, folder, environ):
        if each.text is not None and "{" in each.text:  # filled by a parameter that has a name of its own
            continue
        is_again = each.name in params and each.text is not None
        params[each.name] = f"{params[each.name]},{each.text}" if is_again else each.value
    return params


def with_options(
    argv: Sequence[str], names: Iterable[str], folder: Path, environ: Mapping[str, str]
) -> tuple[str, ...]:
    """Return a command with `--name {name}` for each parameter that its program declares as an option with a value.

    What the command sets or has a placeholder for already stays as it is.
    """
    first, script = _program(argv, environ)
    options = declared_options(folder / script) if script.endswith(PYTHON_FILES) else {}
    flags = {each.name: flag for flag, each in sorted(options.items(), reverse=True) if each.takes == "one"}
    given = {each.name for each in _read(argv, first, options)}
    words = list(argv)
    for name in names:
        if name in flags and name not in given and not any(f"{{{name}}}" in word for word in argv):
            words += [flags[name], f"{{{name}}}"]
    return tuple(words)


def _program(argv: Sequence[str], environ: Mapping[str, str]) -> tuple[int, str]:
    """Return where the arguments of the program begin, and its file; behind the last word where it has none."""
    if not _STARTERS.fullmatch(os.path.basename(argv[0])):
        path = argv[0] if "/" in argv[0] else find_program(argv[0], environ.get("PATH")) or "/bin/"
        return (len(argv), "") if path.startswith(_SYSTEM) else (1, argv[0])
    for number, word in enumerate(argv[1:], 1):
        if word == "-c":
            break
        if word == "-m" and number + 1 < len(argv):
            if argv[number + 1].startswith("fairmile."):  # which is given its parameters otherwise
                break
            return number + 2, f"{argv[number + 1].replace('.', '/')}.py"
        if not word.startswith("-") and _SCRIPT.fullmatch(word):
            return number + 1, word
    return len(argv), ""


def _read(argv: Sequence[str], first: int, options: Mapping[str, _Option]) -> Iterator[Argument]:
    number = first
    while number < len(argv):
        word = argv[number]
        number += 1
        if word == "--":
            return
        if override := _OVERRIDE.fullmatch(word):
            yield Argument(override[1].replace("/", "."), override[2], number - 1, override.start(2))
        elif (short := _SHORT_WITH_NUMBER.fullmatch(word)) and word not in options:
            name = options[f"-{short[1]}"].name if f"-{short[1]}" in options else short[1]
            yield Argument(name, short[2], number - 1, short.start(2))
        elif long := _LONG.fullmatch(word):
            option = options.get(word.partition("=")[0])
            name = option.name if option is not None else long[1].replace("-", "_")
            if long[2] is not None:
                yield Argument(name, long[2], number - 1, long.start(2), option=word[: long.start(2) - 1])
                continue
            values = _values(argv, number, option)
            if len(values) == 1:
                yield Argument(name, values[0], number, option=word)
            else:
                sets = option.sets if option is not None else True
                yield Argument(name, " ".join(values) or None, number - 1, sets=sets, option=word)
            number += len(values)


def _values(argv: Sequence[str], number: int, option: _Option | None) -> list[str]:
    """Return the values of an option, from a word of the command on."""
    most = {"none": 0, "many": len(argv)}.get(option.takes if option is not None else "one", 1)
    values: list[str] = []
    for word in argv[number : number + most]:
        if word.startswith("-") and len(word) > 1 and not _NUMBER.fullmatch(word):
            break
        values.append(word)
    return values


def declared_options(script: Path) -> dict[str, _Option]:
    """Return the options that a Python file declares for argparse or click, by each way to write them."""
    try:
        if script.stat().st_size > _MOST_BYTES:
            return {}
        tree = ast.parse(script.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    options: dict[str, _Option] = {}
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and _last_name(call.func) in ("add_argument", "option"):
            options |= _declared(call)
    return options


def _declared(call: ast.Call) -> dict[str, _Option]:
    """Return the option that one call declares, by each way to write it."""
    texts = [each.value for each in call.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    positive = [text.partition("/")[0] for text in texts if text.startswith("-")]
    negative = [text.partition("/")[2] for text in texts if text.startswith("-") and "/" in text]
    if not positive:
        return {}
    own = _keyword(call, "dest") or next((text for text in texts if not text.startswith("-")), "")
    long = next((flag for flag in positive if flag.startswith("--")), positive[0])
    name = str(own or long.lstrip("-").replace("-", "_"))
    action, count = _keyword(call, "action"), _keyword(call, "nargs")
    if action == "BooleanOptionalAction":
        negative = [f"--no-{flag[2:]}" for flag in positive if flag.startswith("--")]
    if negative or action in (*_NO_VALUE, "BooleanOptionalAction") or _keyword(call, "is_flag") is True:
        takes = "none"
    else:
        takes = "many" if count in ("+", "*") or (isinstance(count, int) and count > 1) else "one"
    options = dict.fromkeys(positive, _Option(name, takes, sets=action != "store_false"))
    return options | dict.fromkeys(negative, _Option(name, takes, sets=False))


def _keyword(call: ast.Call, name: str) -> object:
    for each in call.keywords:
        if each.arg == name:
            return each.value.value if isinstance(each.value, ast.Constant) else _last_name(each.value)
    return None


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
