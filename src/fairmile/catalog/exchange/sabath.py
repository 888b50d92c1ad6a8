"""SABATH models and data sets: one JSON file each, the keys of `run` name the data sets a model runs on."""

from __future__ import annotations

import re
from typing import Any

from fairmile.base.errors import InvalidDocument
from fairmile.base.words import slug
from fairmile.catalog.exchange.common.media_types import is_pickle, media_type
from fairmile.catalog.exchange.common.taking import Fields, keep_rest, kind_of, scalar_text, settle_typed
from fairmile.catalog.exchange.draft import Document, Draft
from fairmile.catalog.identity import DIGEST_VERSION_PREFIX, mint_iri

_MODEL_KEYS = frozenset({"abstract", "homepage", "references", "requirements", "env_vars", "git", "forks"})
_MENTIONS = re.compile(r'"(?:fragments|run|origin)"\s*:')
_FETCH_METHODS = ("file", "archive", "file_list")
_BLOB_PAGE = re.compile(r"https?://(?:www\.)?github\.com/([^/]+)/([^/]+)/blob/(.+)")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_PINNED = re.compile(rf"({_NAME})\s*==\s*([A-Za-z0-9][A-Za-z0-9.!+_-]*)")
_CLAUSE = r"(?:===|==|~=|!=|<=|>=|<|>)\s*[A-Za-z0-9*][A-Za-z0-9.*!+_-]*"
_LOOSE = re.compile(rf"{_NAME}\s*(?:\[[^\]]*\])?\s*(?:@\s*\S+|\(?\s*{_CLAUSE}(?:\s*,\s*{_CLAUSE})*\s*\)?)?\s*(?:;.*)?")
# pip's name of a framework, and the name it is searched by.
_FRAMEWORKS = {
    "jax": "jax",
    "keras": "keras",
    "mxnet": "mxnet",
    "paddlepaddle": "paddlepaddle",
    "scikit-learn": "scikit-learn",
    "tensorflow": "tensorflow",
    "tensorflow-gpu": "tensorflow",
    "torch": "pytorch",
}


def recognises(document: Document) -> bool:
    """Tell whether the document has the keys of a SABATH model or data set."""
    try:
        if not _MENTIONS.search(document.text):
            return False
        data = document.json()
    except InvalidDocument:
        return _looks_broken(document)
    if not isinstance(data, dict) or "@context" in data or "@graph" in data:
        return False
    git = data.get("git")
    has_origin = isinstance(git, dict) and "origin" in git
    return "fragments" in data or has_origin or ("run" in data and bool(_MODEL_KEYS & data.keys()))


def _looks_broken(document: Document) -> bool:
    """Tell whether text that is no JSON was meant to be SABATH's, so that its reader can say what is wrong."""
    try:
        text = document.text
        return "@context" not in text and ('"fragments"' in text or ('"run"' in text and '"git"' in text))
    except InvalidDocument:
        return False


def read(document: Document) -> list[Draft]:
    """Return the data set, or the model with its program, environment and one workflow for each key of `run`."""
    fields = Fields(document, document.json())
    if "fragments" in fields.data:
        return [_dataset(fields)]
    if not ({"run", "git"} & fields.data.keys()):
        raise document.refuse(
            "is not a SABATH file: it has neither fragments nor git nor run",
            hint="a data set lists fragments; a model has git and run",
        )
    return _Model(fields).drafts()


def _name(fields: Fields) -> str:
    return fields.required("name", hint="a SABATH file says its name under the key 'name'")


def _warn_of_name(draft: Draft, fields: Fields, name: str) -> None:
    file_name = fields.document.file_name
    stem = file_name.removesuffix(".json").casefold()
    # Files copied out of SABATH's tree are named datasets-a-<name>: the end decides.
    if file_name.endswith(".json") and stem != name.casefold() and not stem.endswith("-" + name.casefold()):
        draft.warn("name", f"{name!r} does not match the file name {file_name!r}, by which SABATH finds it")


def _dataset(fields: Fields) -> Draft:
    name = _name(fields)
    draft = Draft("dataset", {"name": name})
    _warn_of_name(draft, fields, name)
    for key in ("version", "license", "description"):
        draft.put(key, fields.text(key))
    if not isinstance(fields.data["fragments"], list):
        raise fields.refuse("fragments", f"expected a list, found {kind_of(fields.data['fragments'])}")
    fragments = fields.mappings("fragments")
    if not fragments:
        raise fields.refuse("fragments", "is empty: the data set has no file", hint="list at least one {id, url, type}")
    names: set[str] = set()
    for fragment in fragments:
        _fragment(draft, fragment, names)
    keep_rest(draft, fields.rest())
    return settle_typed(draft)


def _fragment(draft: Draft, fragment: Fields, names: set[str]) -> None:
    where = fragment.path
    url = fragment.required("url", hint="give the address from which the fragment is fetched")
    label = fragment.text("id")
    if label is None:
        draft.warn(f"{where}.id", "is missing: commands cannot refer to this fragment")
    method = fragment.text("type")
    if method is not None and method not in _FETCH_METHODS:
        draft.warn(f"{where}.type", f"{method!r} is none of {', '.join(_FETCH_METHODS)}; kept as given")
    page, address = _raw_address(url)
    if page:
        draft.warn(f"{where}.url", f"{url!r} is a web page, not the file; raw address is {address!r}, used instead")
    if is_pickle(address):
        draft.warn(f"{where}.url", f"{address!r} is a Python pickle: loading it executes code that it contains")
    checksum = fragment.mapping("checksum")
    checksums = (
        {key: checksum.take(key) for key in ("md5", "sha1", "sha256", "sha512") if key in checksum} if checksum else {}
    )
    if not checksums:
        draft.warn(f"{where}.checksum", f"fragment {label or url!r} has no checksum: its bytes cannot be verified")
    limit = fragment.take("limit")
    name = _file_name(address, label, names)
    entry = draft.add_file(
        name=name,
        url=address,
        size=fragment.text("size"),
        media_type=media_type(name),
        checksums=checksums,
        fetchMethod=method,
    )
    if page:
        entry["url"] = url
    if label is not None:
        entry["@id"] = label
    if limit is not None:
        entry["additionalProperty"] = [{"@type": "PropertyValue", "name": "limit", "value": limit}]


def _raw_address(url: str) -> tuple[bool, str]:
    match = _BLOB_PAGE.fullmatch(url)
    if match is None:
        return False, url
    owner, repository, path = match.groups()
    return True, f"https://raw.githubusercontent.com/{owner}/{repository}/{path}"


def _file_name(url: str, label: str | None, names: set[str]) -> str:
    """Return a name for the file that no other file of the data set has and that stays in its folder."""
    name = url.split("#")[0].split("?")[0].rstrip("/").rsplit("/", 1)[-1]
    name = name if name not in ("", ".", "..") else slug(label or "file")
    if name in names and label:
        name = f"{slug(label, keep_case=True)}/{name}"
    stem, number = name, 1
    while name in names:
        number += 1
        name = f"{number}/{stem}"
    names.add(name)
    return name


class _Model:
    """The drafts that one model file becomes, and the ids that link them."""

    def __init__(self, fields: Fields) -> None:
        self.fields = fields
        self.name = _name(fields)
        given = fields.text("version")
        self.version = given or DIGEST_VERSION_PREFIX + fields.document.sha256[:12]
        self.model = self._draft("model", self.name)
        if given is None:
            self.model.warn("version", "the source gives no version; named by the digest of the source document")
        self.program: Draft | None = None
        self.environment: Draft | None = None

    def _draft(self, kind: str, name: str, version: str = "") -> Draft:
        version = version or self.version
        iri = mint_iri(kind, name, version, origin=self.fields.document.sha256)
        return Draft(kind, {"@id": iri, "name": name, "version": version})

    def drafts(self) -> list[Draft]:
        """Return the model first, then its program, its environment and its workflows."""
        fields, model = self.fields, self.model
        _warn_of_name(model, fields, self.name)
        for key in ("abstract", "description", "license"):
            model.put(key, fields.text(key))
        homepage = fields.text("homepage")
        model.put("url", homepage)
        model.put("citation", fields.texts("references"))
        self._read_environment()
        self._read_program(homepage)
        if self.program:
            model.put("hasPart", [self.program.body["@id"]])
        workflows = self._workflows()
        keep_rest(model, fields.rest())
        drafts = [model, *(each for each in (self.program, self.environment) if each), *workflows]
        return [settle_typed(draft) for draft in drafts]

    def _read_program(self, homepage: str | None) -> None:
        git = self.fields.mapping("git")
        forks = _forks(self.fields)
        if git is None and not forks:
            return
        origin = git.text("origin") if git else None
        revisions = {key: text for key in ("branch", "tag", "commit") if git and (text := git.text(key))}
        # A commit says exactly which code, a tag nearly, a branch does not.
        exact = revisions.get("commit") or revisions.get("tag") or ""
        program = self.program = self._draft("program", self.name, exact)
        if origin is None:
            self.model.warn("git.origin", "is missing: the code cannot be fetched")
        if not exact:
            program.warn("version", "the source pins neither tag nor commit: the code may change under the same name")
        program.put("codeRepository", origin)
        program.put("url", homepage)
        if _COMMIT.fullmatch(revisions.get("commit", "")):
            program.put("identifier", f"swh:1:rev:{revisions['commit']}")
        facts = [*revisions.items(), *(("fork", fork) for fork in forks)]
        program.put(
            "additionalProperty", [{"@type": "PropertyValue", "name": key, "value": text} for key, text in facts]
        )
        if self.environment:
            program.put("softwareRequirements", [self.environment.body["@id"]])

    def _read_environment(self) -> None:
        needs = self.fields.mapping("requirements")
        variables = self.fields.mapping("env_vars")
        if needs is None and variables is None:
            return
        environment = self.environment = self._draft("environment", self.name)
        if needs is not None:
            python = needs.text("python")
            packages = needs.texts("pip")
            listed = [f"python{python}" if python[0] in "<>=!~" else f"python {python}"] if python else []
            listed += [_requirement(text, f"requirements.pip[{n}]", environment) for n, text in enumerate(packages)]
            environment.put("softwareRequirements", listed)
            environment.put("modules", needs.texts("system_modules"))
            names = [re.split(r"[^A-Za-z0-9._-]", text.strip(), maxsplit=1)[0].lower() for text in packages]
            frameworks = list(dict.fromkeys(_FRAMEWORKS[name] for name in names if name in _FRAMEWORKS))
            self.model.put("machineLearningFramework", frameworks)
        if variables is not None:
            environment.put("environmentVariables", _variables(variables))

    def _workflows(self) -> list[Draft]:
        run = self.fields.mapping("run")
        if run is None:
            self.model.warn("run", "is missing: the source names no data set for the model")
            return []
        accepted: list[str] = []
        trained: list[str] = []
        workflows: dict[str, Draft] = {}
        for key in list(run.data):
            commands = run.texts(key)
            dataset = self._dataset_of(key, commands)
            workflow = self._workflow(key, commands, dataset)
            number = 1
            while workflow.body["@id"] in workflows:
                number += 1
                workflow = self._workflow(f"{key} {number}", commands, dataset)
                workflow.warn("name", f"{key!r} differs from another key of run only in spelling; numbered")
            workflows[workflow.body["@id"]] = workflow
            if dataset:
                accepted.append(dataset)
                if any(re.search(r"(?<![a-z])train", line, re.IGNORECASE) for line in commands):
                    trained.append(dataset)
        self.model.put("acceptsDataset", list(dict.fromkeys(accepted)))
        self.model.put("trainedOn", list(dict.fromkeys(trained)))
        return list(workflows.values())

    def _dataset_of(self, key: str, commands: list[str]) -> str | None:
        """Return the data set that a key of `run` means, with a warning where it cannot be the key itself."""
        own = self.name.casefold()
        if key.casefold() == own:
            self.model.warn(
                f"run.{key}", f"{key!r} is the name of the model itself, not of a data set; no link is made"
            )
            return None
        if any(f"{{dataset.{key}}}" in line or f"{{dataset.{key}." in line for line in commands):
            own_set = f"{self.name!r}, the set named like the model"
            self.model.warn(f"run.{key}", f"{key!r} is a fragment, not a data set; assumed to belong to {own_set}")
            return self.name
        if not _alike(own, key.casefold()):
            message = f"{key!r} is not similar to the model's name {self.name!r}: it may belong to another model"
            self.model.warn(f"run.{key}", message)
        return key

    def _workflow(self, key: str, commands: list[str], dataset: str | None) -> Draft:
        draft = self._draft("workflow", f"{self.name} on {key}")
        draft.put("description", f"Runs {self.name} on {key} by the commands of its SABATH file.")
        draft.put("programmingLanguage", "Shell")
        draft.put("command", commands)
        draft.put("about", [self.model.body["@id"]])
        draft.put("input", [{"@type": "FormalParameter", "name": "dataset", "defaultValue": dataset or key}])
        draft.put("object", [dataset] if dataset else [])
        if self.program:
            draft.put("hasPart", [self.program.body["@id"]])
        if self.environment:
            draft.put("softwareRequirements", [self.environment.body["@id"]])
        if not commands:
            draft.warn("command", "the source lists no command")
        if any("{dataset}" in line for line in commands):
            draft.warn("command", "{dataset} names no fragment: SABATH puts no path there")
        return draft


def _alike(one: str, other: str) -> bool:
    """Tell whether two names share a word or their first four letters."""
    if one[:4] == other[:4]:
        return True
    words = [
        {word for word in re.split(r"[^a-z0-9]+|(?<=[a-z])(?=[0-9])", text) if len(word) > 3} for text in (one, other)
    ]
    return bool(words[0] & words[1]) or one in other or other in one


def _variables(fields: Fields) -> dict[str, str]:
    variables = {}
    for name, value in fields.data.items():
        text = scalar_text(value)
        if text is None:
            raise fields.refuse(name, f"expected a text, found {kind_of(value)}")
        variables[name] = text
    fields.data.clear()
    return variables


def _forks(fields: Fields) -> list[str]:
    origins: list[str] = []
    for fork in fields.mappings("forks"):
        git: Any = fork.data.get("git")
        if isinstance(git, dict):
            inner = fork.mapping("git")
            origins += inner.texts("origin") if inner else []
        else:
            origins += fork.texts("git")
    return origins


def _requirement(text: str, where: str, draft: Draft) -> str:
    """Return a pinned pip requirement as a purl and any other as it is written."""
    plain = " ".join(text.split())
    pinned = _PINNED.fullmatch(plain)
    if pinned:
        return f"pkg:pypi/{re.sub(r'[-_.]+', '-', pinned[1]).lower()}@{pinned[2]}"
    if re.fullmatch(_NAME, plain):
        return f"pkg:pypi/{re.sub(r'[-_.]+', '-', plain).lower()}"
    if not _LOOSE.fullmatch(plain):
        hint = "; one = pins a version for conda, pip wants ==" if re.fullmatch(rf"{_NAME}=[^=].*", plain) else ""
        draft.warn(where, f"{text!r} is not a requirement that pip understands{hint}")
    return text
