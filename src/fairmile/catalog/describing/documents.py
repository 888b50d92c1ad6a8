"""What the documents beside the files say: licence, citation, metadata, README, and the state of a git repository."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from fairmile.base.commands import MissingProgram, Runner
from fairmile.base.errors import FairmileError, SystemFailure, Transient
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.words import slug
from fairmile.catalog import exchange
from fairmile.catalog.card import SPDX_PREFIX
from fairmile.catalog.describing.licence_texts import is_licence_file, recognise_licence
from fairmile.catalog.exchange.common.markdown import has_front_matter, summary_of, title_of, unify_lines
from fairmile.catalog.exchange.draft import Document
from fairmile.catalog.identity import DIGEST_VERSION_PREFIX
from fairmile.catalog.kinds import KINDS, kind_of_types
from fairmile.transfer.credentials import without_login

# In the order in which they are believed; what is said for machines first.
_METADATA = ("croissant.json", "codemeta.json", "CITATION.cff", ".zenodo.json", "datacite.json")
_READMES = ("README.md", "README", "README.txt", "README.rst")
_LONGEST_TEXT = 1 << 20
_GIT_TIMEOUT_S = 20.0
# About the document and the card, not about the asset.
_NOT_TAKEN = frozenset(
    {"@context", "@id", "@type", "conformsTo", "sourceDocument", "warnings", "foreign", "licenseRaw"}
    | {"distribution", "contentDigest", "text"}
)
_SSH = re.compile(r"^(?:[\w.-]+@)?([\w.-]+):(?!/)(\S+)$")


@dataclass
class Statements:
    """What was found, each property with the document that says so; what contradicts is left to the owner."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    kind: str = ""
    licence_choices: tuple[str, ...] = ()
    notes: list[str] = field(default_factory=list)

    def take(self, key: str, value: Any, origin: str) -> None:
        """Keep a value unless an earlier document gave one."""
        if key not in self.values and value not in (None, "", [], {}):
            self.values[key] = value
            self.origins[key] = origin


def is_document(name: str) -> bool:
    """Tell whether a file describes the others rather than being one of them."""
    return name in (*_METADATA, *_READMES, "NOTICE", "AUTHORS") or is_licence_file(name)


def read_documents(folder: Path, names: Sequence[str], runner: Runner) -> Statements:
    """Return what the documents in a folder, and its git repository, say about the asset."""
    statements = Statements()
    licences: dict[str, str] = {}
    for name in (each for each in _METADATA if each in names):
        _read_metadata(folder / name, statements, licences)
    for name in (each for each in _READMES if each in names):
        _read_readme(folder / name, statements, licences)
    for name in names:
        if is_licence_file(name):
            _read_licence(folder / name, statements, licences)
    _settle_licence(statements, licences)
    _read_git(folder, statements, runner)
    return statements


def _read_metadata(path: Path, statements: Statements, licences: dict[str, str]) -> None:
    try:
        card = exchange.read(Document.from_file(path, name=path.name))[0]
    except FairmileError as error:
        statements.notes.append(f"{path.name} cannot be read: {' '.join(str(error).split())}")
        return
    statements.kind = statements.kind or kind_of_types(card.types) or ""
    for key, value in card.body.items():
        if key == "license":
            licences[path.name] = card.licence or card.text("license")
        elif key not in _NOT_TAKEN and not (key == "version" and str(value).startswith(DIGEST_VERSION_PREFIX)):
            statements.take(key, value, path.name)


def _read_readme(path: Path, statements: Statements, licences: dict[str, str]) -> None:
    text = _text(path)
    if text is None:
        return
    if has_front_matter(text):
        kept = statements.values.get("name")
        _read_metadata(path, statements, licences)
        if kept is None and slug(str(statements.values.get("name", ""))) == "readme":
            del statements.values["name"]
        text = re.sub(r"\A\s*---\n.*?\n---\n", "", text, count=1, flags=re.DOTALL)
    statements.take("name", title_of(text), path.name)
    statements.take("description", summary_of(text), path.name)


def _read_licence(path: Path, statements: Statements, licences: dict[str, str]) -> None:
    text = _text(path)
    if text is None:
        return
    known = recognise_licence(text)
    if known.spdx:
        licences[path.name] = known.spdx
    elif known.choices:
        statements.licence_choices = known.choices
        statements.notes.append(
            f"{path.name} is the text of {' or '.join(known.choices)}; only the rights holder can say which"
        )
    else:
        statements.notes.append(f"{path.name} is not a known licence text; only the rights holder can name it")


def _settle_licence(statements: Statements, licences: dict[str, str]) -> None:
    """Keep the licence that the documents agree on."""
    if not licences:
        return
    if len(set(licences.values())) > 1:
        listed = ", ".join(f"{name}: {licence}" for name, licence in licences.items())
        statements.notes.append(f"the licences differ ({listed}); only the rights holder can say which one applies")
        return
    name, licence = next(iter(licences.items()))
    # Of a GNU licence the metadata may say which of the two it is; one that contradicts the text stays open.
    if not statements.licence_choices or licence in statements.licence_choices:
        statements.take("license", licence if " " in licence or "/" in licence else SPDX_PREFIX + licence, name)


def _read_git(folder: Path, statements: Statements, runner: Runner) -> None:
    """Take repository, version tag and commit, by questions for which git runs no program that a repository names."""
    if not (folder / ".git").exists():
        return
    remote = next(iter(_git(folder, runner, "config", "--get", "remote.origin.url")), "")
    tags = list(_git(folder, runner, "tag", "--points-at", "HEAD", "--sort=-version:refname"))
    commit = next(iter(_git(folder, runner, "rev-parse", "HEAD")), "")
    if remote:
        statements.take("codeRepository", _public_address(remote), "git remote")
    if tags:
        statements.take("version", re.sub(r"^v(?=\d)", "", tags[0]), "git tag")
    if commit:
        statements.take("version", f"git-{commit[:12]}", "git commit")


def _git(folder: Path, runner: Runner, *arguments: str) -> Iterator[str]:
    safe = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "--no-optional-locks")
    try:
        result = runner.run(["git", *safe, "-C", str(folder), *arguments], check=False, timeout_s=_GIT_TIMEOUT_S)
    except (MissingProgram, SystemFailure, Transient):
        return
    if result.exit_code == 0:
        yield from (line.strip() for line in result.stdout.splitlines() if line.strip())


def _public_address(remote: str) -> str:
    """Return the address of a repository without a login; git@host:path becomes the web address of the same."""
    ssh = _SSH.match(remote) if "://" not in remote else None
    return f"https://{ssh[1]}/{ssh[2].removesuffix('.git')}" if ssh else without_login(remote)[0]


def _text(path: Path) -> str | None:
    try:
        with path.open("rb") as stream:
            return unify_lines(stream.read(_LONGEST_TEXT).decode("utf-8", "replace"))
    except OSError:
        return None


def kind_by_content(model_bytes: int, data_bytes: int, program_files: int, binary_files: int) -> str:
    """Return the kind that the files suggest: a model where weights prevail, a program where there is only code.

    Machine code with scripts and headers beside it is a binary.
    """
    if model_bytes and 2 * model_bytes >= data_bytes:
        return "model"
    if binary_files and not data_bytes:
        return "binary"
    return "program" if program_files and not data_bytes else "dataset"


def types_of(kind: str) -> Any:
    """Return the JSON-LD types of a kind as a card has them."""
    types = KINDS[kind].types
    return list(types) if len(types) > 1 else types[0]
