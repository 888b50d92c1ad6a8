"""What a word means: one registry of resolvers answers for every verb.

    explicit path       `./x`, `/x`, `~/x`, `x/`, a name with the suffix of a file: a path, never a name of the catalog
    anything else       a path where one exists that the verb takes, an id, a name of the catalog, or an address

A word with several meanings is refused with all of them. One with none is told what it was tried as.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from fairmile.base.errors import NotFound, UsageError
from fairmile.base.files import read_text
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.registry import Plugin, Registry
from fairmile.base.results import Result
from fairmile.base.words import closest
from fairmile.base.yaml import Located, RepeatedKey, load_located
from fairmile.transfer.schemes import scheme_of

DOCUMENTS = (".yaml", ".yml", ".json", ".jsonld")
PROGRAMS = (".py", ".ipynb")
_SUFFIXES = frozenset(
    {*DOCUMENTS, *PROGRAMS, ".toml", ".cff", ".txt", ".md", ".rst", ".log", ".csv", ".sh", ".slurm", ".sbatch"}
    | {".h5", ".hdf5", ".nc", ".npy", ".npz", ".parquet", ".pt", ".pth", ".onnx", ".zip", ".tar", ".gz", ".tgz", ".7z"}
)
_ADDRESSES = ("zenodo", "doi", "openml", "pypi", "npm", "conda", "data")  # schemes of addresses that need no `://`
_HERE, _OF_CATALOG = " here", " of the catalog"
_FUNCTION = ".py:"  # between a file and the name of a function in it


@dataclass(frozen=True)
class Nouns:
    """Where names and ids are looked up; each is opened when a resolver asks for it."""

    catalog: Callable[[], Any] | None = None
    runs: Callable[[], Any] | None = None
    sweeps: Callable[[], Any] | None = None
    flows: Callable[[], Any] | None = None


@dataclass(frozen=True)
class Word:
    """What somebody typed, with the options that stand beside it."""

    text: str
    verb: str = ""  # what it stands behind; empty: any
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def function(self) -> str | None:
        """The function behind `FILE.py:`; None where none is asked for."""
        _, mark, function = self.text.partition(_FUNCTION)
        return function if mark and not self.is_address else None

    @cached_property
    def path(self) -> Path:
        head, mark, _ = self.text.partition(_FUNCTION)
        return Path(f"{head}.py" if mark else self.text).expanduser()

    @cached_property
    def exists(self) -> bool:
        """Whether something lies at the path."""
        try:
            return not self.is_address and bool(self.text) and os.path.exists(self.path)
        except ValueError:  # a text that no path can be
            return False

    @cached_property
    def is_address(self) -> bool:
        """Whether it is written as an address, which may also be the id of a card."""
        scheme = scheme_of(self.text)
        return bool(scheme) and ("://" in self.text or scheme in _ADDRESSES)

    @cached_property
    def is_path(self) -> bool:
        """Whether it is written as a path, so that it cannot be a name."""
        if self.is_address:
            return False
        is_explicit = self.text.startswith(("./", "../", "/", "~")) or self.text.endswith("/")
        return is_explicit or self.text in (".", "..") or self.path.suffix.lower() in _SUFFIXES

    @cached_property
    def located(self) -> Located | None:
        """What the file holds as YAML or JSON; None where its suffix is of neither."""
        if self.path.suffix.lower() not in DOCUMENTS or not self.path.is_file():
            return None
        return read_document(self.path)

    @cached_property
    def known(self) -> dict[str, Any]:
        """What resolvers have looked up, for those behind them."""
        return {}


@dataclass(frozen=True, repr=False)
class Target(Result):
    """What a word means: a kind of thing and where it is, and on first use what it holds.

    `content` is of a card file, a folder, a benchmark or an asset its Card, of a run, sweep or flow its record, of a
    description the model that it describes, and of what came from another tool that which makes a run of it.
    """

    word: str
    kind: str  # a name of `RESOLVERS`
    path: Path | None = None
    handle: str = ""  # of an asset of a catalog
    address: str = ""
    id: str = ""  # of a run, a sweep or a flow
    function: str = ""  # in a Python file
    row: Any = None  # of the index of the catalog
    others: tuple[Any, ...] = ()  # rows that the name could also mean
    load: Callable[[], Any] = field(default=lambda: None, compare=False)

    @cached_property
    def content(self) -> Any:
        return self.load()

    @property
    def origin(self) -> str:
        """Where it was read from: a path, a handle, an address or an id."""
        return str(self.path) if self.path is not None else self.handle or self.address or self.id

    def summary(self) -> str:
        """Return the kind and where it is."""
        return f"{self.kind} {self.origin}"

    def to_dict(self) -> dict[str, Any]:
        """Return the word, the kind and where it is."""
        where = {"path": str(self.path) if self.path is not None else "", "handle": self.handle}
        where |= {"address": self.address, "id": self.id, "function": self.function}
        return {"word": self.word, "kind": self.kind, **{name: text for name, text in where.items() if text}}


class Resolver(Protocol):
    """Knows one kind of target; one from elsewhere also states its `verbs`, which a table states of ours."""

    def find(self, word: Word, nouns: Nouns) -> Target | None:
        """Return what the word means as this kind, or None; raise only what says more than that it is none."""
        ...

    def near(self, word: Word, nouns: Nouns) -> Sequence[str]:
        """Return the nearest names that there are, the nearest first."""
        return ()


@dataclass(frozen=True)
class _Kind:
    """One line of the table: who resolves it, for which verbs, and what messages call it."""

    target: str
    verbs: tuple[str, ...]
    group: str  # "path", "id" or "name": a word has at most one meaning in each
    title: str
    expected: str = ""  # what a file of this kind is
    suffixes: tuple[str, ...] = ()  # of the files that are worth to load the resolver for; empty: any
    options: tuple[str, ...] = ()  # those that stand beside the word and are of use to the resolver
    repeats: bool = False  # whether the last of repeated keys counts in its files, as `is_own` tells them


_RUNNING = ("run", "sweep", "tune")
_SWEEPING = ("sweep", "tune")
_DESCRIBED = (*_RUNNING, "predict", "benchmark", "show")
_FLOW = ("flow",)
_CATALOG = "fairmile.catalog.resolvers"
# In the order in which a word is tried.
_KINDS = {
    "python-file": _Kind(
        "fairmile.predict.subjects:PYTHON_FILE", ("predict",), "path", "Python file", "FILE.py or FILE.py:FUNCTION"
    ),
    "card-file": _Kind(f"{_CATALOG}:CARD_FILE", _DESCRIBED, "path", "card file", "a card"),
    "folder": _Kind(f"{_CATALOG}:FOLDER", _DESCRIBED, "path", "folder", "a folder with card.jsonld"),
    "sabath": _Kind(
        "fairmile.compat.sabath:MODEL", _RUNNING, "path", "SABATH model", "a model file of SABATH", (".json",), ("set",)
    ),
    "run-file": _Kind("fairmile.runs.targets:RUN_FILE", ("run",), "path", "run file", "a YAML file with argv"),
    "program": _Kind("fairmile.runs.targets:PROGRAM", ("run",), "path", "program", "a program"),
    "cloudmesh": _Kind(
        "fairmile.compat.cloudmesh:PROJECT",
        _SWEEPING,
        "path",
        "project of cloudmesh",
        "a project of cloudmesh",
        repeats=True,
    ),
    "flow-file": _Kind(
        "fairmile.flows.resolvers:FLOW_FILE", _FLOW, "path", "flow file", "a YAML or JSON file with steps"
    ),
    "definition": _Kind(
        "fairmile.sweeps.files:DEFINITION_FILE", _SWEEPING, "path", "definition", "a YAML or JSON file with axes"
    ),
    "description": _Kind(
        "fairmile.predict.subjects:DESCRIPTION", ("predict",), "path", "description", "a model described in YAML"
    ),
    "path": _Kind(f"{_CATALOG}:PATH", ("fetch",), "path", "path", "a file or folder"),
    "run": _Kind("fairmile.runs.targets:RUN_ID", (), "id", "run"),
    "sweep": _Kind("fairmile.sweeps.files:SWEEP_ID", _SWEEPING, "id", "sweep"),
    "flow": _Kind("fairmile.flows.resolvers:FLOW_ID", _FLOW, "id", "flow"),
    "imported": _Kind(f"{_CATALOG}:IMPORTED", _RUNNING, "name", ""),  # a target of it is of another kind
    "benchmark": _Kind(f"{_CATALOG}:BENCHMARK", (*_RUNNING, "predict", "benchmark"), "name", "benchmark"),
    "workflow": _Kind(f"{_CATALOG}:WORKFLOW", _FLOW, "name", "workflow of the catalog"),
    "asset": _Kind(f"{_CATALOG}:ASSET", (*_RUNNING, "predict", "show", "fetch"), "name", "asset"),
    "hub": _Kind(f"{_CATALOG}:HUB", ("show",), "name", ""),  # only an address can be one
    "address": _Kind(f"{_CATALOG}:ADDRESS", ("fetch",), "name", "address"),
}
RESOLVERS: Registry[Resolver] = Registry(
    "kind of target", {name: Plugin(kind.target) for name, kind in _KINDS.items()}, entry_points="fairmile.resolvers"
)
VERBS = tuple(dict.fromkeys(verb for kind in _KINDS.values() for verb in kind.verbs))
# What a person may have meant by a file that a verb does not take.
_ADVICE = {
    ("run", ".sh"): "`chmod +x {path}` makes it a program, or `fairmile run -- bash {path}` runs it",
    ("run", ".ipynb"): "a sweep file with `notebook: {path}` runs a notebook",
    ("show", ".json"): "`fairmile catalog add {path}` reads other formats",
}


def resolve(
    text: str, nouns: Nouns, *, for_: str = "", options: Mapping[str, Any] | None = None, without: Sequence[str] = ()
) -> Target:
    """Return what a word means to a verb, or to any where none is named; `without` leaves kinds out.

    `options` are what stands beside the word on a command line, for the resolvers that know them: `kind` for assets.
    """
    if not text.strip():
        raise UsageError("the name is empty", hint="pass a name, a path or a URL")
    if for_ and for_ not in VERBS:
        raise UsageError(f"nothing is resolved for {for_!r}", hint=f"verbs: {', '.join(VERBS)}")
    word = Word(text, for_, options or {})
    kinds = {name: kind for name, kind in _KINDS.items() if _is_tried(name, kind, for_, without)}
    meanings: dict[str, Target] = {}
    for name, kind in kinds.items():
        may_be = word.exists and _has_suffix(word, kind) if kind.group == "path" else not word.is_path
        if kind.group in meanings or not may_be:
            continue
        target = RESOLVERS[name].find(word, nouns)
        if target is not None:
            meanings[kind.group] = target
    if len(meanings) > 1:
        raise _ambiguous(word, list(meanings.values()))
    for target in meanings.values():
        refuse_unused_options(word.options, target.kind, word.text)
        return target
    return _from_elsewhere(word, nouns, for_) or _refuse(word, nouns, kinds, for_)


def refuse_unused_options(options: Mapping[str, Any], kind: str, text: str) -> None:
    """Raise UsageError where an option beside a word would change nothing, since the word is of another kind."""
    for option, value in options.items():
        takers = [name for name, each in _KINDS.items() if option in each.options]
        if value and takers and kind not in takers:
            raise UsageError(
                f"--{option} applies to a {_listed(map(_title, takers), 'or')}, but {text} is a {_title(kind)}",
                hint=f"leave out --{option}",
            )


def read_document(file: Path) -> Located:
    """Return what a YAML or JSON file holds, with its lines."""
    return parse_document(read_text(file), str(file))


def parse_document(text: str, file: str) -> Located:
    """Return what a YAML or JSON text holds; a key may appear twice only in files of tools that take the last one."""
    try:
        return load_located(text, file=file)
    except RepeatedKey:
        located = load_located(text, file=file, repeats=True)
        resolvers: list[Any] = [RESOLVERS[name] for name, kind in _KINDS.items() if kind.repeats]
        if not any(each.is_own(located.data) for each in resolvers):
            raise
        return located


def _has_suffix(word: Word, kind: _Kind) -> bool:
    return not kind.suffixes or word.path.suffix.lower() in kind.suffixes


def _is_tried(name: str, kind: _Kind, verb: str, without: Sequence[str]) -> bool:
    return name not in without and (verb in kind.verbs or not verb)


def _from_elsewhere(word: Word, nouns: Nouns, verb: str) -> Target | None:
    """Return what installed resolvers take a word for; they are loaded only for one that is nothing else."""
    for name in RESOLVERS.names()[len(_KINDS) :]:
        resolver = RESOLVERS[name]
        if verb in getattr(resolver, "verbs", VERBS) or not verb:
            target = resolver.find(word, nouns)
            if target is not None:
                return target
    return None


def _title(kind: str) -> str:
    return _KINDS[kind].title if kind in _KINDS else kind


def _ambiguous(word: Word, meanings: Sequence[Target]) -> UsageError:
    titles = [f"the {_title(each.kind)} {word.path if each.path is not None else each.origin}" for each in meanings]
    ways = [f"./{word.text}" if each.path is not None else each.origin for each in meanings]
    return UsageError(f"{word.text!r} may be {_listed(titles, 'or')}", hint=f"write {_listed(ways, 'or')}")


def _refuse(word: Word, nouns: Nouns, kinds: Mapping[str, _Kind], verb: str) -> Target:
    """Raise why a word means nothing to a verb."""
    expected = [kind.expected for kind in kinds.values() if kind.expected]
    command = f"`fairmile {verb}` expects " if verb else "expected "
    if word.exists:
        files = _listed(map(_with_article, _file_titles(kinds)), "or")
        what = "a folder without card.jsonld" if word.path.is_dir() else f"not {files}"
        usual = "`fairmile catalog describe {path}` drafts a card" if verb == "show" else ""
        advice = _ADVICE.get((verb, word.path.suffix.lower()), usual).format(path=word.path)
        if verb in ("run", "sweep") and (program := next(iter(sorted(word.path.glob("*.py"))), None)):
            advice = f"name a program in it: `fairmile {verb} {program}`"
        if (verb, word.path.suffix.lower()) == ("run", ".sh"):
            raise UsageError(f"{word.text} is not executable", hint=advice)
        raise UsageError(f"{word.text} is {what}: {command}{_listed(expected, 'or')}", hint=advice)
    if word.is_path:
        near = closest(word.path.name, _neighbours(word.path), 1)
        hint = f"did you mean {word.path.with_name(near[0])}?" if near else f"expected {_listed(expected, 'or')}"
        raise NotFound(f"no such file: {word.path}", hint=hint)
    tried: dict[str, list[str]] = {f"file{_HERE}": closest(word.text, _neighbours(word.path), 1)}
    for name, kind in kinds.items():
        if kind.group != "path" and kind.title:
            title = f"{word.options.get('kind') or 'asset'}{_OF_CATALOG}" if kind.title == "asset" else kind.title
            tried.setdefault(title, []).extend(RESOLVERS[name].near(word, nouns))
    near = [
        f"the {title.removesuffix(_HERE).removesuffix(_OF_CATALOG)} {name}"
        for title, names in tried.items()
        for name in _some(names)
    ]
    hint = f"did you mean {_listed(near, 'or')}?" if near else f"`fairmile search {word.text}` looks for assets"
    if word.is_address:
        hint = f"`fairmile fetch {word.text}` downloads it"
    if verb == "show" and (target := RESOLVERS["run"].find(word, nouns)) is not None:
        hint = f"`fairmile runs show {target.id}` shows the run"
    raise NotFound(f"{word.text!r} is not {_listed(map(_with_article, tried), 'or')}", hint=hint)


def _some(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))[:3]


def _file_titles(kinds: Mapping[str, _Kind]) -> Iterator[str]:
    for name, kind in kinds.items():
        if kind.group == "path" and name != "folder":
            yield kind.title


def _neighbours(path: Path) -> list[str]:
    """Return the files beside a path."""
    try:
        return [entry.name for entry in os.scandir(path.parent) if not entry.name.startswith(".")]
    except (OSError, ValueError):
        return []


def _listed(parts: Iterable[str], word: str) -> str:
    *most, last = dict.fromkeys(parts)
    return f"{', '.join(most)} {word} {last}" if most else last


def _with_article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"
