"""What an environment is made of, as a person writes it; every file it names is an absolute path once it is read."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from fairmile.base.documents import StrictDocument, steps_in_file, steps_text
from fairmile.base.errors import InvalidDocument, Problem, SystemFailure
from fairmile.base.git import refuse_commands
from fairmile.base.patterns import compile_linear
from fairmile.base.words import Suggestions, slug
from fairmile.base.yaml import load_located
from fairmile.envs.inputs import at_home, read_document
from fairmile.envs.shells import pieces

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MODULE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+@/-]*")
# A line of modules goes into shells as it stands, for `$OTHERSTAGES` must mean something: so it can hold nothing
# that starts a command, redirects or quotes.
_MODULE_LINE = re.compile(r"(?:module|ml|source|\.) [A-Za-z0-9 ._+@/:,=~${}-]+")
_LOGIN = re.compile(r"[a-z0-9+.-]+://([^/@\s?#]*)@|[?&][\w-]*(?:token|password|secret|signature)=", re.IGNORECASE)
_CHANNEL_TOKEN = re.compile(r"/t/[^/]+(?:/|$)")
_SECRET = re.compile(
    r"(?:TOKEN|PASSWORD|PASSWD|PASSPHRASE|SECRET|API_?KEY|ACCESS_?KEY|SECRET_?KEY)$|(?:^|_)PAT$|(?:^|_)PASS$|_PWD$",
    re.IGNORECASE,
)
# These may also name the file in which the secret lies.
_SECRET_OR_FILE = re.compile(r"(?:_KEY|PRIVATEKEY|CREDENTIALS?)$", re.IGNORECASE)
_SWITCH = re.compile(r"|0|1|true|false|yes|no|on|off", re.IGNORECASE)
_RELEASE = re.compile(r"\d+(?:\.\d+){0,2}")
_LONGEST_NAME = 64


def holds_login(text: str) -> bool:
    """Tell whether an address in the text brings a login with it: a user other than git, a password, a token.

    References to variables are none.
    """
    logins = (match[1] for match in _LOGIN.finditer(text))
    return any(user is None or (user != "git" and not _only_references(user.replace(":", ""))) for user in logins)


def _only_references(text: str) -> bool:
    return all(refers for refers, _ in pieces(text))


def _without_login(text: str) -> str:
    if holds_login(text):
        raise ValueError(
            "an address must not contain a login, which records would keep; put it in the settings of git or the system"
        )
    return text


def _line(text: str) -> str:
    if not text.strip() or not text.isprintable():
        raise ValueError(f"expected one line of printable text, found {text!r}")
    return _without_login(text)


def _module(text: str) -> str:
    if not (_MODULE.fullmatch(text) or _MODULE_LINE.fullmatch(text)):
        raise ValueError(
            f"expected a module such as GCC/11.2.0 or a line such as 'module use /apps/stages', found {text!r}"
        )
    return text


def _file(text: str, info: ValidationInfo) -> str:
    """Return the absolute path of a file that the specification names, relative to the folder it stands in."""
    path = at_home(_line(text))
    folder = (info.context or {}).get("folder")
    if path.is_absolute():
        return str(path)
    if folder is None:
        raise ValueError(f"{text!r} is a relative path, but this specification has no folder")
    return str(Path(folder) / path)


def _archive(text: str, info: ValidationInfo) -> str:
    """Return the address of an archive; one without a scheme is a file."""
    return _address(text) if "://" in text else _file(text, info)


def _address(text: str) -> str:
    refuse_commands(_line(text))
    return text


def _channel(text: str) -> str:
    if _CHANNEL_TOKEN.search(text):
        raise ValueError("a channel must not contain a token, which records would keep; put it in conda's settings")
    return _address(text)


def _plain_text(value: Any) -> Any:
    if isinstance(value, (bool, float)):
        raise ValueError(f"expected a text, found {value!r}; put it in quotes")
    return str(value) if isinstance(value, int) else value


def _version(value: Any) -> Any:
    # YAML reads 3.10 as the number 3.1.
    if isinstance(value, (int, float)):
        raise ValueError(f"expected a text, found the number {value!r}; write it in quotes, as in '3.11'")
    return value


def _package(text: str, info: ValidationInfo) -> str:
    """Return a requirement, or the absolute path of a package file or folder."""
    if text.startswith((".", "/", "~")):
        return _file(text, info)
    try:
        requirement = Requirement(_line(text))
    except InvalidRequirement as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"{text!r} is not a requirement such as 'numpy>=2': {reason}") from error
    if requirement.url:
        _address(requirement.url)
    return text


def _variables(values: Mapping[str, str]) -> Mapping[str, str]:
    for name, text in values.items():
        if not _VARIABLE.fullmatch(name):
            raise ValueError(f"{name!r} is not a name for an environment variable")
        if text and not text.isprintable():
            raise ValueError(f"{name} is set to {text!r}, expected one line of printable text")
        _without_login(text)
        named = _SECRET.search(name) or (_SECRET_OR_FILE.search(name) and not text.startswith(("/", "~/", "./")))
        if named and not _SWITCH.fullmatch(text) and not _only_references(text):
            raise ValueError(f"{name} looks like a secret, which records would keep; set it where programs are started")
    return values


Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=_LONGEST_NAME)]
Line = Annotated[str, AfterValidator(_line)]
File = Annotated[str, AfterValidator(_file)]
Address = Annotated[str, AfterValidator(_address)]
Channel = Annotated[str, AfterValidator(_channel)]
Archive = Annotated[str, AfterValidator(_archive)]
Package = Annotated[str, AfterValidator(_package)]
Module = Annotated[str, AfterValidator(_module)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
# A value may refer to others as in `$CUDA_HOME/lib64`; it is kept as written and filled in by the shell.
Variables = Annotated[Mapping[str, Annotated[str, BeforeValidator(_plain_text)]], AfterValidator(_variables)]


class PythonSpec(StrictDocument):
    """Python and what is installed into it."""

    version: Annotated[str, BeforeValidator(_version)] = ""  # '3.11' or a specifier such as '>=3.10,<3.13'
    packages: tuple[Package, ...] = ()
    requirements: File | None = None
    project: File | None = None  # a folder with a pyproject.toml
    extras: tuple[Name, ...] = ()  # of the project
    system_packages: bool = False  # see also what the interpreter itself has, as where a module brings torch
    managed: bool = False  # let uv download an interpreter where none here will do

    @field_validator("version")
    @classmethod
    def _is_a_version(cls, value: str) -> str:
        try:
            SpecifierSet(f"=={value}.*" if _RELEASE.fullmatch(value) else value)
        except InvalidSpecifier as error:
            raise ValueError(f"{value!r} is not a version such as '3.11' or '>=3.10,<3.13'") from error
        return value

    @model_validator(mode="after")
    def _extras_have_a_project(self) -> PythonSpec:
        if self.extras and self.project is None:
            raise ValueError("extras need a project")
        return self

    @property
    def versions(self) -> SpecifierSet:
        """The versions of Python that will do."""
        return SpecifierSet(f"=={self.version}.*" if _RELEASE.fullmatch(self.version) else self.version)


class CondaSpec(StrictDocument):
    """Packages of conda; where `python` is among them, Python packages are installed into that Python."""

    channels: tuple[Channel, ...] = ("conda-forge",)  # names or addresses, the first wins
    packages: tuple[Line, ...] = Field(min_length=1)  # match specs, as in `hdf5 >=1.14,<2`


class BuildSpec(StrictDocument):
    """A program or library that is built from its source into the prefix."""

    name: Name
    git: Address | None = None
    archive: Archive | None = None  # an address, or a file
    folder: File | None = None
    revision: Address = "HEAD"  # of git; a commit stays what it is, a branch moves
    sha256: Sha256 | None = None  # of the archive
    subfolder: str = ""  # where the sources lie inside
    system: Literal["cmake", "make", "autotools", "commands"] = "cmake"
    options: tuple[Line, ...] = ()  # of cmake, configure or make; $NAME is filled in where it is set
    targets: tuple[Name, ...] = ()  # what is made, in this order; empty: everything, then `install`
    commands: tuple[Line, ...] = ()  # lines for the shell; $PREFIX, $JOBS and the compilers are set
    patches: tuple[File, ...] = ()
    variables: Variables = {}
    after_python: bool = False  # built after the Python packages, which it needs, and not before them

    @field_validator("subfolder")
    @classmethod
    def _stays_inside(cls, value: str) -> str:
        if value and (value.startswith("/") or any(part in ("", ".", "..") for part in value.split("/"))):
            raise ValueError(f"{value!r} is not a folder inside the sources")
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> BuildSpec:
        given = [name for name in ("git", "archive", "folder") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"expected one of git, archive and folder, found {' and '.join(given) or 'none'}")
        if self.sha256 is not None and self.archive is None:
            raise ValueError("sha256 needs an archive")
        if self.revision != "HEAD" and self.git is None:
            raise ValueError("revision needs a git repository")
        if (self.system == "commands") != bool(self.commands):
            raise ValueError("`commands` and `system: commands` need each other")
        return self


class ContainerSpec(StrictDocument):
    """The image in which programs run; the rest of the environment is bound into it."""

    image: Line | None = None  # a reference such as docker.io/library/python:3.12, or the path of an image
    digest: Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")] | None = None
    runtime: Literal["apptainer", "podman", "docker", "charliecloud"] | None = None  # None: the first one found
    binds: tuple[Line, ...] = ()  # folder, folder:inside or folder:inside:rw; read-only unless rw stands there
    definition: File | None = None  # a Dockerfile or Apptainer definition that makes the image
    gpus: bool | Literal["nvidia", "amd"] = False  # true means nvidia
    options: tuple[Line, ...] = ()  # of the command that runs a program in the image, such as --network=none
    build_options: tuple[Line, ...] = ()  # of the command that makes the image from its definition
    program_options: tuple[Line, ...] = ()  # before the command, such as podman's --root=/scratch/images

    @model_validator(mode="after")
    def _has_an_image(self) -> ContainerSpec:
        if (self.image is None) == (self.definition is None):
            raise ValueError("expected either image or definition")
        return self


class CheckSpec(StrictDocument):
    """A command that must end with 0 in the finished environment, and what it must print."""

    run: Line | Annotated[tuple[str, ...], Field(min_length=1)]  # a line for the shell, or argv
    expect: str = ""  # RE2 regular expression, searched in all that it prints
    timeout_s: Annotated[float, Field(gt=0)] = 600.0

    @field_validator("run")
    @classmethod
    def _holds_no_login(cls, value: str | tuple[str, ...]) -> str | tuple[str, ...]:
        _without_login(value if isinstance(value, str) else " ".join(value))
        return value

    @field_validator("expect")
    @classmethod
    def _is_an_expression(cls, value: str) -> str:
        compile_linear(value)
        return value


class EnvironmentSpec(StrictDocument):
    """An environment: what is there when a program starts in it."""

    name: Name
    description: str = ""
    modules: tuple[Module, ...] = ()  # names, or lines `module …`, `ml …`, `source FILE`; loaded first, in this order
    conda: CondaSpec | None = None
    python: PythonSpec | None = None
    builds: tuple[BuildSpec, ...] = ()
    container: ContainerSpec | None = None
    variables: Variables = {}
    checks: tuple[CheckSpec, ...] = ()

    @model_validator(mode="after")
    def _builds_have_names_of_their_own(self) -> EnvironmentSpec:
        names = [build.name for build in self.builds]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"two builds are named {twice!r}")
        return self


def load_spec(path: Path) -> EnvironmentSpec:
    """Return the specification in a file (YAML or JSON), or raise InvalidDocument that names the lines."""
    try:
        text = read_document(path)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise SystemFailure(f"cannot read the environment file {path}: {reason}") from error
    located = load_located(text, file=str(path))
    reader = _Reader(str(path), located.line)
    return reader.read(located.data, path.absolute().parent, slug(path.stem, keep_case=True)[:_LONGEST_NAME])


def parse_spec(data: Mapping[str, Any], *, origin: str = "", folder: Path | None = None) -> EnvironmentSpec:
    """Return the specification that plain data holds; without `folder` it can name files by absolute paths only."""
    return _Reader(origin, lambda _: None).read(dict(data), folder, "")


class _Reader:
    """Turns what pydantic says into problems of the file, each with its line."""

    def __init__(self, file: str, line: Callable[[Sequence[str | int]], int | None]) -> None:
        self._file = file
        self._line = line
        self._suggest = Suggestions()

    def read(self, data: Any, folder: Path | None, name: str) -> EnvironmentSpec:
        if not isinstance(data, dict):
            value = "nothing" if data is None else repr(data)[:80]
            raise InvalidDocument(
                [Problem(f"expected an environment as keys with values, found {value}", file=self._file)],
                hint="the shortest one is `python: {packages: [numpy]}`",
            )
        given = {"name": name, **data} if name else data
        try:
            return EnvironmentSpec.model_validate(given, context={"folder": folder})
        except ValidationError as error:
            problems: dict[tuple[str | int, ...], Problem] = {}
            for entry in error.errors(include_url=False):
                steps = steps_in_file(entry["loc"], data)
                problems.setdefault(steps, self._problem(steps, entry))
            raise InvalidDocument(sorted(problems.values(), key=lambda each: each.line or 0)) from error

    def _problem(self, steps: tuple[str | int, ...], entry: Any) -> Problem:
        kind, given = entry["type"], entry["input"]
        hint = ""
        if kind == "missing":
            message = "is missing"
        elif kind == "extra_forbidden":
            fields = _fields(steps)
            near = self._suggest(str(steps[-1]), fields)
            message, hint = "no such field" + (f"; {near}" if near else ""), f"known here: {', '.join(fields)}"
        elif kind == "value_error":
            message = str(entry["ctx"]["error"])
        else:
            near = self._suggest(given, re.findall(r"'([^']+)'", _expected(entry))) if isinstance(given, str) else ""
            if kind == "string_type" and isinstance(given, (bool, int, float)):
                near = "put it in quotes"
            message = f"expected {_expected(entry)}, found {given!r:.80}" + (f"; {near}" if near else "")
        return Problem(message, field=steps_text(steps), file=self._file, line=self._line(steps), hint=hint)


_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "greater": "a number above 0",
    "bool": "true or false",
    "string": "a text",
    "tuple": "a list",
    "mapping": "keys with values",
    "dict": "keys with values",
    "model": "keys with values",
    "too": "at least one",
}


def _expected(entry: Any) -> str:
    if entry["type"] == "literal_error":
        return str(entry["ctx"]["expected"])
    if entry["type"] == "string_pattern_mismatch":
        pattern = entry["ctx"]["pattern"]
        if "64" in pattern:
            return f"{'sha256: and ' if 'sha256' in pattern else ''}64 lower-case hex digits"
        return "a name of letters, digits, '.', '_' and '-'"
    if entry["type"] == "string_too_long":
        return f"at most {entry['ctx']['max_length']} letters"
    return _KINDS.get(entry["type"].split("_")[0], "something else")


def _fields(steps: Sequence[str | int]) -> list[str]:
    """Return the names of the fields that may stand where a field that is none stands."""
    forms: dict[str, type[BaseModel]] = {
        "python": PythonSpec,
        "conda": CondaSpec,
        "builds": BuildSpec,
        "container": ContainerSpec,
        "checks": CheckSpec,
    }
    form = forms.get(str(steps[0]), EnvironmentSpec) if len(steps) > 1 else EnvironmentSpec
    return list(form.model_fields)
