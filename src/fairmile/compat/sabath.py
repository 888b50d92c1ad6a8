"""SABATH models run on SABATH data sets: which commands, on which code and data, in which environment.

A plan is made of the files as they are; where they do not say what they must mean, a note tells how they were read.
The commands of a set become one bash script that finds code and data in the folder it starts in:

    source/        the code, a copy of its own that the commands may change
    data/<id>/     what each fragment holds

Each command runs in a shell of its own that starts in that folder, and the first that fails ends the run, as SABATH
does it. No value becomes part of a command: a placeholder becomes a shell variable, quoted as its place requires.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from fairmile.base.errors import NotFound, UsageError
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.words import did_you_mean, slug
from fairmile.catalog.card import Card, as_list
from fairmile.catalog.catalog import Catalog
from fairmile.catalog.exchange import READERS, read
from fairmile.catalog.exchange.draft import Document
from fairmile.catalog.sources import LOCAL
from fairmile.catalog.wanted import Wanted, wanted
from fairmile.resolve import Nouns, Resolver, Target, Word
from fairmile.runs.execute.materials import Material
from fairmile.runs.record.spec import RunSpec
from fairmile.runs.record.values import Value
from fairmile.runs.runnable import Runnable, checked_spec
from fairmile.transfer.credentials import shown_address
from fairmile.transfer.fetchers.git import GitAddress

SOURCE, DATA = "source", "data"  # in the folder of the run
_FORMAT = "sabath"
_SCP = re.compile(r"(?:([\w.-]+)@)?([\w.-]+):(?!//)(.+)")
_PLACEHOLDER = re.compile(r"\{([A-Za-z_][\w-]*(?:\.[\w-]+|\[[\w.-]+\])*)\}")
_DOUBLED = re.compile(r"\{\{(.*?)\}\}")
_USES_GIT = re.compile(r"(?:^|[\s;&|(])git\s")
_USES_SED = re.compile(r"(?:^|[\s;&|(])sed\s")
_GIT_KEYS = ("origin", "branch", "tag", "commit")
_LETTERS = re.compile(r"[^a-z0-9]+")


@dataclass(frozen=True)
class SabathModel:
    """A model as its file describes it; `reference` is how the catalog or the command line names it."""

    name: str
    file: str
    reference: str
    sets: Mapping[str, tuple[str, ...]]
    git: Mapping[str, str]
    has_environment: bool
    notes: tuple[str, ...] = ()
    chosen: str = ""  # the set, where the reference names one


@dataclass(frozen=True)
class Fragment:
    """One part of a data set: where it comes from, and where it lies in the folder of the run."""

    id: str
    address: str
    place: str  # its folder
    path: str  # what `{dataset.<id>}` stands for: the file, or the folder that an archive or a list fills
    size_bytes: int | None = None
    checksums: Mapping[str, str] = field(default_factory=dict)
    unpack: bool = False

    @property
    def is_file(self) -> bool:
        return self.path != self.place


@dataclass(frozen=True)
class SabathDataset:
    """A data set as its file or its card describes it; only SABATH's own have ids for their fragments."""

    name: str
    file: str
    reference: str
    fragments: tuple[Fragment, ...]
    names: frozenset[str]  # all it is called, letters and digits alone
    is_sabath: bool = True
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class SabathPlan:
    """What running a model on a data set means; nothing has happened yet."""

    model: str
    dataset: str
    set_name: str
    code: str  # address of the code, empty where there is none
    fragments: tuple[Fragment, ...]
    script: str
    spec: RunSpec
    notes: tuple[str, ...]
    needs_repository: bool = False  # a command calls git in the code

    @property
    def materials(self) -> tuple[Material, ...]:
        """The code and the data, where the commands look for them."""
        code = [Material(SOURCE, self.code, SOURCE, "code", is_code=True, is_repository=self.needs_repository)]
        data = [
            Material(
                f"dataset.{each.id}",
                each.address,
                each.place,
                label=each.id,
                file=each.path.rpartition("/")[2] if each.is_file else "",
                size_bytes=each.size_bytes,
                checksums=each.checksums,
                unpack=each.unpack,
            )
            for each in self.fragments
        ]
        return (*(code if self.code else ()), *data)


# Resolving


@dataclass(frozen=True)
class Pair:
    """A model that waits for its data set; `set_name` is the set of commands that a person asked for."""

    catalog: Catalog
    model: SabathModel
    set_name: str = ""

    def runnable(self, dataset: str, changes: Mapping[str, Any]) -> Runnable:
        """Return what running the model on a data set means; `changes` are fields of the specification."""
        planned = plan(self.catalog, self.model, dataset, set_name=self.set_name, config=changes.get("params"))
        spec = checked_spec({**planned.spec.model_dump(exclude_defaults=True), **changes})
        return Runnable(spec, notes=planned.notes, materials=planned.materials, is_complete=True)


class _Model(Resolver):
    """A model of SABATH: its file, or an asset that was imported from one."""

    def find(self, word: Word, nouns: Nouns) -> Target | None:
        if not word.text.endswith(".json") or not word.path.is_file():
            return None
        document = Document.from_file(word.path)
        if not READERS[_FORMAT].recognises(document):
            return None
        reference = str(word.path.absolute())
        return self._target(word, nouns, lambda: read_model(document, reference), path=word.path)

    def of_asset(self, asset: Target, word: Word, nouns: Nouns) -> Target | None:
        """Return the model that an asset means; the name of one of its workflows means it with that set of commands."""
        card: Card = asset.content
        document = _document_of(nouns.catalog(), card) if nouns.catalog is not None else None
        if card.kind not in ("model", "workflow") or document is None:
            return None

        def read() -> SabathModel:
            model = read_model(document, str(card.handle), trusted=card.catalog == LOCAL)
            if card.kind == "model" or nouns.catalog is None:
                return model
            chosen = next((key for key in model.sets if f"{model.name} on {key}" == card.title), "")
            about = card.texts("about")
            handle = str(nouns.catalog().get(about[0]).handle) if about else model.reference
            return replace(model, chosen=chosen, reference=handle)

        return self._target(word, nouns, read, handle=asset.handle)

    @staticmethod
    def _target(word: Word, nouns: Nouns, read: Callable[[], SabathModel], **where: Any) -> Target:
        def load() -> Pair:
            assert nouns.catalog is not None
            return Pair(nouns.catalog(), read(), word.options.get("set", ""))

        return Target(word.text, "sabath", load=load, **where)


MODEL = _Model()


# Reading


def read_model(source: Document | Path, reference: str = "", *, trusted: bool = True) -> SabathModel:
    """Return the model that a file describes; what is not `trusted` may not name files of this machine."""
    document = source if isinstance(source, Document) else Document.from_file(source)
    cards = read(document, _FORMAT)
    card = cards[0]
    if card.kind != "model":
        raise UsageError(
            f"{document.name} is a SABATH data set, not a model", hint="name the model first, then the data set"
        )
    data = document.json()
    git = {key: str(value) for key, value in (data.get("git") or {}).items()}
    run = {key: (lines,) if isinstance(lines, str) else tuple(lines) for key, lines in (data.get("run") or {}).items()}
    if not run:
        raise UsageError(f"{document.name}: {card.title} has no commands under `run`")
    notes = [
        f"{document.name} git.{key}: {url} is not fetched, as in SABATH"
        for key, url in git.items()
        if key not in _GIT_KEYS
    ]
    address = _code_address(git, document.name)
    if address.startswith("git+file:") and not trusted:
        raise UsageError(f"{document.name} git.origin: names a local folder, but the file comes from another machine")
    if address and not git.get("commit") and not git.get("tag"):
        notes.append(f"{document.name} git pins no tag or commit, so the code is whatever its branch has when fetched")
    return SabathModel(
        name=card.title,
        file=document.name,
        reference=reference or document.name,
        sets=run,
        git={**git, "address": address},
        has_environment=any(each.kind == "environment" for each in cards),
        notes=tuple(notes),
    )


def find_dataset(catalog: Catalog, what: str) -> SabathDataset:
    """Return the data set that a name or a file means; its card may come from any format."""
    if what.endswith(".json") and Path(what).is_file():
        return read_dataset(Path(what), str(Path(what).absolute()))
    card = catalog.get(what, kind="dataset")
    return _dataset(card, str(card.handle), str(card.handle), (card.handle.name, what))


def read_dataset(source: Document | Path, reference: str = "") -> SabathDataset:
    """Return the data set that a SABATH file describes."""
    document = source if isinstance(source, Document) else Document.from_file(source)
    card = read(document, _FORMAT)[0]
    if card.kind != "dataset":
        raise UsageError(f"{document.name} is a SABATH model, not a data set")
    return _dataset(card, document.name, reference or document.name, (Path(document.name).stem,))


def _document_of(catalog: Catalog, card: Card) -> Document | None:
    data = catalog.raw_document(card) if _is_sabath(card) else None
    return Document(str(card["sourceDocument"].get("name") or card.handle), data) if data is not None else None


def _is_sabath(card: Card) -> bool:
    source = card.get("sourceDocument")
    return isinstance(source, Mapping) and source.get("encodingFormat") == _FORMAT


def _dataset(card: Card, file: str, reference: str, names: tuple[str, ...]) -> SabathDataset:
    fragments: list[Fragment] = []
    notes = [f"{file} {each['field']}: {each['message']}" for each in card.warnings if each["field"].endswith(".url")]
    places: set[str] = set()
    entries = [entry for entry in as_list(card.get("distribution")) if isinstance(entry, Mapping)]
    sets = [entry for entry in entries if not entry.get("contentUrl")]  # they tell which archives are unpacked
    for entry in (each for each in entries if each not in sets):
        label = str(entry.get("@id") or entry.get("name") or "")
        file_wanted = wanted(Card({**card.body, "distribution": [entry, *sets]}, catalog=card.catalog))[0]
        _check_login(file_wanted.addresses[0])
        place = re.sub(r"[^A-Za-z0-9._-]", "_", label).strip(".") or "data"
        if place in places:
            raise UsageError(f"{file}: two fragments are named {label!r}", hint="give each a unique id")
        places.add(place)
        fragments.append(_fragment(label, f"{DATA}/{place}", file_wanted))
    called = frozenset(_letters(name) for name in (card.title, *names))
    return SabathDataset(card.title, file, reference, tuple(fragments), called, _is_sabath(card), tuple(notes))


def _fragment(label: str, place: str, source: Wanted) -> Fragment:
    address = source.addresses[0]
    is_list = address.startswith("list+")
    if is_list and source.limit is not None:
        address = f"{address}#limit={source.limit}"
    is_file = not is_list and not source.unpack
    return Fragment(
        id=label,
        address=address,
        place=place,
        path=f"{place}/{source.path.rpartition('/')[2]}" if is_file else place,
        size_bytes=source.size_bytes,
        checksums={each.algorithm: each.hex for each in source.checksums},
        unpack=source.unpack,
    )


def _code_address(git: Mapping[str, str], file: str) -> str:
    """Return the address of the code at the revision that counts: the last one that SABATH would check out."""
    origin = git.get("origin", "")
    if not origin:
        return ""
    scp = _SCP.fullmatch(origin)
    if scp is not None and "://" not in origin:
        origin = f"ssh://{scp[1] or 'git'}@{scp[2]}/{scp[3]}"
    elif origin.startswith("/"):
        origin = Path(origin).as_uri()
    revision = git.get("commit") or git.get("tag") or git.get("branch") or ""
    address = "git+" + origin.removeprefix("git+") + (f"@{revision}" if revision else "")
    try:
        if GitAddress.parse(address).login is not None:
            _check_login(address)
    except UsageError as error:
        raise UsageError(f"{file} git: {error}", hint=error.hint) from error
    return address


def _check_login(address: str) -> None:
    if shown_address(address) != address:
        raise UsageError(
            f"{shown_address(address)} contains a login, which would be recorded",
            hint="remove it and put it into ~/.netrc",
        )


# Planning


def plan(
    catalog: Catalog,
    model: SabathModel,
    dataset: SabathDataset | str = "",
    *,
    set_name: str = "",
    config: Mapping[str, Value] | None = None,
) -> SabathPlan:
    """Return what running a model on a data set means.

    `set_name` names the set of commands where the data set's name does not tell it; `config` holds the values of
    `{config.…}`. Without a data set the model's only one is taken.
    """
    if isinstance(dataset, str):
        dataset = find_dataset(catalog, dataset or _only_dataset(catalog, model))
    notes = [*model.notes, *dataset.notes]
    key = _choose(model, dataset, set_name or model.chosen, notes)
    writer = _Script(model, dataset, key, config or {}, notes)
    script = writer.text()
    used = writer.fragments()
    left = [each.id for each in dataset.fragments if each not in used]
    if left:
        notes.append(
            f"of {dataset.name}, the commands of {key!r} do not use {', '.join(left)}, which stays where it is"
        )
    spec = RunSpec(
        name=slug(f"{model.name}-{dataset.name}", keep_case=True)[:64].strip("-.") or "sabath",
        argv=("bash", "-c", script, "sabath"),
        params=dict(config or {}),
        environment=model.reference if model.has_environment else "",
        asset=model.reference,
        dataset=dataset.reference,
    )
    return SabathPlan(
        model=model.name,
        dataset=dataset.name,
        set_name=key,
        code=model.git["address"],
        fragments=used,
        script=script,
        spec=spec,
        notes=tuple(dict.fromkeys(notes)),
        needs_repository=any(_USES_GIT.search(line) for line in model.sets[key]),
    )


def _only_dataset(catalog: Catalog, model: SabathModel) -> str:
    names = [model.chosen] if model.chosen else list(model.sets)
    there = []
    for name in names:
        try:
            there.append(str(catalog.get(name, kind="dataset").handle))
        except (NotFound, UsageError):
            continue
    if len(there) == 1:
        return there[0]
    known = f"the catalog has {', '.join(there)}" if there else "the catalog has none of them"
    raise UsageError(
        f"{model.name} needs a data set: its sets are {', '.join(names)}, and {known}",
        hint=f"`fairmile run {model.reference} DATASET`",
    )


def _choose(model: SabathModel, dataset: SabathDataset, wanted_set: str, notes: list[str]) -> str:
    """Return the set of commands for a data set, by its name and never by its place in the file."""
    if wanted_set:
        if wanted_set not in model.sets:
            near = did_you_mean(wanted_set, model.sets)
            raise NotFound(
                f"{model.file}: {model.name} has no set {wanted_set!r}" + (f"; {near}" if near else ""),
                hint=f"its sets are {', '.join(model.sets)}",
            )
        return wanted_set
    for key in model.sets:
        if _letters(key) in dataset.names:
            return key
    of_fragments = [key for key in model.sets if key in {each.id for each in dataset.fragments}]
    if of_fragments:
        notes.append(
            f"{model.file} run: {', '.join(map(repr, of_fragments))} are fragments of {dataset.name}, not data sets; "
            f"{of_fragments[0]!r} is taken, another one must be named"
        )
        return of_fragments[0]
    if len(model.sets) == 1 and _alike(model.name, dataset.name):
        (key,) = model.sets
        notes.append(
            f"{model.file} run: the only set is called {key!r}, not {dataset.name!r}; taken, since the data set is "
            f"named like the model"
        )
        return key
    raise UsageError(
        f"{model.file}: {model.name} has no commands for the data set {dataset.name}",
        hint=f"its sets are for {', '.join(model.sets)}; name a set to use it anyway",
    )


def _alike(one: str, other: str) -> bool:
    """Tell whether one name begins with the other, but for signs and case."""
    first, second = sorted(map(_letters, (one, other)), key=len)
    return len(first) >= 4 and second.startswith(first)


def _letters(name: str) -> str:
    return _LETTERS.sub("", name.casefold())


class _Script:
    """The commands of one set as a script, and what of the data set they use."""

    def __init__(
        self, model: SabathModel, dataset: SabathDataset, key: str, config: Mapping[str, Value], notes: list[str]
    ) -> None:
        self._model = model
        self._dataset = dataset
        self._key = key
        self._config = {f"config.{name.removeprefix('config.')}": value for name, value in config.items()}
        self._notes = notes
        self._by_id = {each.id: each for each in dataset.fragments}
        self._used: dict[str, Fragment] = {}
        self._values: dict[str, tuple[str, str]] = {}  # placeholder → variable, what it is set to

    def fragments(self) -> tuple[Fragment, ...]:
        """Return the fragments that the commands use; all where none is named."""
        return tuple(each for each in self._dataset.fragments if not self._used or each.id in self._used)

    def text(self) -> str:
        lines = self._model.sets[self._key]
        made = [self._line(line, number) for number, line in enumerate(lines, 1)]
        name = _comment(f"{self._model.name} on {self._dataset.name}: the commands of {self._key}")
        head = [f"# {name}"]
        if self._values and any(_USES_SED.search(line) for line in lines):
            # sed would take these for its own signs, and the commands hand it paths.
            head += [
                "case $PWD in *[\\&\\!\\|\\\\]*)",
                '  echo "the commands call sed, which takes ! & | and \\\\ for its own: cannot work in $PWD" >&2',
                "  exit 2 ;;",
                "esac",
            ]
        head += [f"{variable}={value}" for variable, value in self._values.values()]
        head += [
            "sabath_failed() {",
            "  sabath_status=$?",
            f'  echo "command $1 of {len(lines)} ended with exit code $sabath_status" >&2',
            '  exit "$sabath_status"',
            "}",
        ]
        body = [f"(\n{line}\n) || sabath_failed {number}" for number, line in enumerate(made, 1)]
        return "\n".join([*head, *body]) + "\n"

    def _line(self, line: str, number: int) -> str:
        """Return a command with each placeholder replaced by a variable, quoted as its place requires."""
        place, quote, made = 0, "", []
        while place < len(line):
            sign = line[place]
            match = _PLACEHOLDER.match(line, place) if sign == "{" else None
            doubled = _DOUBLED.match(line, place) if sign == "{" else None
            if place and line[place - 1] == "$":
                match = doubled = None  # ${NAME} is the shell's own
            if doubled is not None:
                line = f"{line[:place]}{{{doubled[1]}}}{line[doubled.end() :]}"
                made.append("{")  # what stands inside is text and read as such
                end = place + len(doubled[1]) + 1
                quote = _quote_after(line[place + 1 : end], quote)
                made.append(line[place + 1 : end + 1])
                place = end + 1
                continue
            if match is not None:
                variable = self._variable(match[1], number)
                made.append({"": f'"${variable}"', '"': f"${{{variable}}}", "'": f"'\"${variable}\"'"}[quote])
                place = match.end()
                continue
            step = 2 if sign == "\\" and quote != "'" else 1
            if not quote and sign == "#" and (place == 0 or line[place - 1].isspace()):
                step = len(line[place:].partition("\n")[0])
            made.append(line[place : place + step])
            quote = _quote_after(sign, quote)
            place += step
        if quote:
            raise UsageError(f"{self._where(number)}: the command ends inside {quote}…{quote}: {line}")
        return "".join(made)

    def _variable(self, written: str, number: int) -> str:
        """Return the shell variable for a placeholder."""
        name = re.sub(r"\[([^\]]+)\]", r".\1", written)
        if name in self._values:
            return self._values[name][0]
        variable = "sabath_" + re.sub(r"\W", "_", name)
        taken = {each for each, _ in self._values.values()}
        while variable in taken:
            variable += "_"
        self._values[name] = variable, self._value(name, written, number)
        return variable

    def _value(self, name: str, written: str, number: int) -> str:
        if name == SOURCE:
            if not self._model.git["address"]:
                raise UsageError(f"{self._where(number)}: {{source}} is used, but the file names no git.origin")
            return _below(SOURCE)
        if name == "dataset":
            return self._whole(number)
        if name.startswith("dataset."):
            return self._part(name.removeprefix("dataset."), written, number)
        if name.startswith("config."):
            if name not in self._config:
                hint = f"set it with -p {name.removeprefix('config.')}=VALUE"
                raise UsageError(f"{self._where(number)}: {{{written}}} has no value", hint=hint)
            return shlex.quote(_text(self._config[name]))
        hint = "known: {source}, {dataset.ID}, {dataset.ID.dir} and {config.NAME}; for a plain brace write {{ and }}"
        raise UsageError(f"{self._where(number)}: unknown placeholder {{{written}}}", hint=hint)

    def _part(self, rest: str, written: str, number: int) -> str:
        """Return what `{dataset.<id>}` and `{dataset.<id>.dir}` stand for."""
        fragment, is_folder = self._by_id.get(rest), False
        if fragment is None and rest.endswith(".dir"):
            fragment, is_folder = self._by_id.get(rest.removesuffix(".dir")), True
        if fragment is None and not self._dataset.is_sabath and len(self._by_id) == 1:
            (fragment,) = self._by_id.values()
            self._note(number, f"{{{written}}} is taken as {fragment.id!r}, the only file of {self._dataset.reference}")
        if fragment is None:
            hint = f"the fragments of {self._dataset.name} are {', '.join(self._by_id) or 'none'}"
            hint += "" if self._dataset.is_sabath else "; the SABATH file of the data set tells which is which"
            raise UsageError(f"{self._where(number)}: unknown placeholder {{{written}}}", hint=hint)
        self._used[fragment.id] = fragment
        if is_folder:
            self._note(number, f"{{{written}}} is taken as the folder that {fragment.id!r} is fetched to")
        return _below(fragment.place if is_folder else fragment.path)

    def _whole(self, number: int) -> str:
        """Return what `{dataset}` alone must mean: the folder of the only fragment, else the one that holds all."""
        self._used.update(self._by_id)
        if len(self._by_id) == 1:
            (only,) = self._by_id.values()
            self._note(number, f"{{dataset}} names no fragment; taken as the folder of the only one, {only.id!r}")
            return _below(only.place)
        self._note(number, "{dataset} names no fragment; taken as the folder that holds them all")
        return _below(DATA)

    def _note(self, number: int, text: str) -> None:
        self._notes.append(f"{self._where(number)}: {text}")

    def _where(self, number: int) -> str:
        return f"{self._model.file} run.{self._key}[{number - 1}]"


def _quote_after(text: str, quote: str) -> str:
    """Return inside which quotes a shell is after a text that began inside `quote`."""
    for sign in text:
        if sign == quote:
            quote = ""
        elif not quote and sign in "'\"":
            quote = sign
    return quote


def _below(path: str) -> str:
    return f'"$PWD"/{shlex.quote(path)}'


def _comment(text: str) -> str:
    return " ".join(text.split())


def _text(value: Value) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else "" if value is None else str(value)
