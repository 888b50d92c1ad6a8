"""HPCFAIR listings: JSON-LD with the terms of its paper, which are only in part those of its ontology."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from fairmile.base.errors import InvalidDocument
from fairmile.base.strict_json import load_json
from fairmile.catalog.card import as_list, text_of
from fairmile.catalog.exchange.common.media_types import is_code, is_pickle, media_type
from fairmile.catalog.exchange.common.taking import Fields, keep_rest, kind_of, scalar_text, settle_typed, unused
from fairmile.catalog.exchange.draft import Document, Draft
from fairmile.catalog.exchange.hpc_ontology_graph import NAMESPACES
from fairmile.catalog.identity import DIGEST_VERSION_PREFIX, doi_of, is_iri, mint_iri
from fairmile.catalog.kinds import CONTEXT_IRI

_MODEL_KEYS = ("modelFormat", "modelType", "hyperParams")
_MODEL_HINTS = ("isTunable", "machineLearningFramework", "acceleratorSupport", "supportsAccelerator")
_WORKFLOW_KEYS = ("associatedModel", "associatedDataset")
_ENVIRONMENT_KEYS = ("reqSoftwares", "reqHardware", "sysConfig")
_OWN_KEYS = frozenset(
    {
        "associatedFiles",
        "associatedExpt",
        "associatedWorkflow",
        *_MODEL_KEYS,
        *_MODEL_HINTS,
        *_WORKFLOW_KEYS,
        *_ENVIRONMENT_KEYS,
    }
)
_KEYS = _OWN_KEYS | {"submitter", "tags", "citation", "metrics"}
_NO_PREFIX = ("title", "description", "url", "name", "license", "version")
_TYPES = {
    "AIModel": "model",
    "Dataset": "dataset",
    "Data": "dataset",
    "Workflow": "workflow",
    "Experiment": "workflow",
    "Software": "program",
    "Script": "program",
    "Cluster": "system",
    "SuperComputer": "system",
}
_TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_MOST_LISTINGS = 10_000


def recognises(document: Document) -> bool:
    """Tell whether the document is a listing in HPCFAIR's terms, also one that its paper's notation makes invalid."""
    try:
        text = document.text
        if not ("hpc" in text.lower() or "@title" in text or any(f'"{key}"' in text for key in _OWN_KEYS)):
            return False
        if text[:4096].lstrip()[:1] not in ("{", "["):
            return False
        data, _ = _parse(document)
    except InvalidDocument:
        return _looks_broken(document)
    listings = _listings(data)
    crate = any(isinstance(each, dict) and str(each.get("@id")).endswith("ro-crate-metadata.json") for each in listings)
    return not crate and any(_is_listing(each) for each in listings)


def _looks_broken(document: Document) -> bool:
    try:
        text = document.text
    except InvalidDocument:
        return False
    return text[:4096].lstrip()[:1] in ("{", "[") and (
        '"@title"' in text or any(f'"hpc:{key}"' in text for key in _KEYS)
    )


def _is_listing(data: Any) -> bool:
    if not isinstance(data, dict):
        return False
    # Croissant, RO-Crate and cards of our own may carry terms of the ontology as well.
    if {"conformsTo", "distribution", "recordSet", "dct:conformsTo"} & data.keys():
        return False
    if CONTEXT_IRI in as_list(data.get("@context")):
        return False
    prefixes = _prefixes(data.get("@context"))
    marked = [key for key in data if isinstance(key, str) and _local(key, prefixes) != key]
    if "@title" in data or any(_local(key, prefixes) in _KEYS for key in marked if not key.startswith("@")):
        return True
    return len(_OWN_KEYS & data.keys()) > 1


def _listings(data: Any) -> list[Any]:
    if isinstance(data, dict) and isinstance(data.get("@graph"), list):
        return list(data["@graph"])
    return data if isinstance(data, list) else [data]


def read(document: Document) -> list[Draft]:
    """Return one draft for each listing, and one for its environment where the listing asks for software."""
    data, repaired = _parse(document)
    listings = _listings(data)
    if not listings or len(listings) > _MOST_LISTINGS:
        raise document.refuse(f"holds {len(listings)} listings; expected between 1 and {_MOST_LISTINGS}")
    context = data.get("@context") if isinstance(data, dict) else None
    drafts: list[Draft] = []
    for number, listing in enumerate(listings):
        path = "" if listing is data else f"@graph[{number}]" if isinstance(data, dict) else f"[{number}]"
        drafts += _Listing(document, listing, path, context).drafts()
    if repaired:
        drafts[0].warn("", 'is not JSON: lists that hold keys, as in ["Version" : 0.1], were read as mappings')
    if isinstance(data, dict) and listings[0] is not data:
        keep_rest(drafts[0], {key: value for key, value in data.items() if key != "@graph"})
    return drafts


def _parse(document: Document) -> tuple[Any, bool]:
    """Return the data, and whether lists with keys had to be read as mappings."""
    try:
        return document.json(), False
    except InvalidDocument:
        repaired = _keyed_lists_to_mappings(document.text)
        if repaired is None:
            raise
        return load_json(repaired, file=document.name), True


def _keyed_lists_to_mappings(text: str) -> str | None:
    """Return the text with every list that holds `key : value` in braces instead; None when there is none."""
    stack: list[int] = []
    keyed: set[int] = set()
    closing: dict[int, int] = {}
    for match in re.finditer(r'"(?:[^"\\]|\\.)*"|[{}\[\]:]', text, re.DOTALL):
        token, at = match[0], match.start()
        if token in "[{":
            stack.append(at)
        elif token in "]}" and stack:
            closing[stack.pop()] = at
        elif token == ":" and stack and text[stack[-1]] == "[":
            keyed.add(stack[-1])
    if not keyed or not all(start in closing and text[closing[start]] == "]" for start in keyed):
        return None
    braces = dict.fromkeys(keyed, "{") | dict.fromkeys((closing[start] for start in keyed), "}")
    pieces, last = [], 0
    for at in sorted(braces):
        pieces += [text[last:at], braces[at]]
        last = at + 1
    return "".join([*pieces, text[last:]])


def _prefixes(context: Any) -> tuple[str, ...]:
    """Return what may stand before a term of the ontology, longest first."""
    prefixes = {"hpc:", *NAMESPACES}
    for part in as_list(context):
        if isinstance(part, dict):
            prefixes |= {
                f"{key}:" for key, value in part.items() if value in NAMESPACES and not str(key).startswith("@")
            }
    return tuple(sorted(prefixes, key=len, reverse=True))


def _local(key: str, prefixes: Iterable[str]) -> str:
    """Return the bare term of a key: `hpc:tags`, its full address and `@title` are tags and title."""
    for prefix in prefixes:
        if key.startswith(prefix):
            return key[len(prefix) :]
    return key[1:] if key[:1] == "@" and key[1:] in _NO_PREFIX else key


def _value(value: Any) -> Any:
    """Return what a JSON-LD value object or reference stands for."""
    if isinstance(value, list):
        return [_value(each) for each in value]
    if isinstance(value, dict) and value and set(value) <= {"@value", "@type", "@language"} and "@value" in value:
        return value["@value"]
    if isinstance(value, dict) and set(value) in ({"@id"}, {"@set"}, {"@list"}):
        return _value(next(iter(value.values())))
    return value


def _split(texts: Iterable[str]) -> list[str]:
    parts = [part.strip() for text in texts for part in re.split(r"[,;]", text)]
    return list(dict.fromkeys(part for part in parts if part))


def _part(text: str, address: str) -> dict[str, Any]:
    """Return a supporting file as a part of the asset; a script is one that prepares the data."""
    code = is_code(address) or is_code(text)
    part: dict[str, Any] = {"@type": "SoftwareSourceCode" if code else "MediaObject"}
    if is_iri(address):
        part |= {"@id": address, "url": address}
    part["name"] = text.split("?")[0].rstrip("/").rsplit("/", 1)[-1] or text
    others = [other for other in dict.fromkeys((text, address)) if other not in (part["name"], part.get("@id"))]
    if others:
        part["alternateName"] = others
    return part | {"role": "preprocess"} if code else part


class _Listing:
    """One listing on its way to drafts."""

    def __init__(self, document: Document, data: Any, path: str, context: Any) -> None:
        if not isinstance(data, dict):
            raise document.refuse(f"expected a listing, found {kind_of(data)}", field=path)
        self.document = document
        prefixes = _prefixes([*as_list(data.get("@context")), *as_list(context)])
        self.names: dict[str, str] = {}
        plain: dict[str, Any] = {}
        for key, value in data.items():
            local = _local(key, prefixes)
            # Of two spellings of one term the first counts; the second is kept as it stands.
            name = local if local not in plain else key
            plain[name] = _value(value) if local in _KEYS or local in _NO_PREFIX else value
            self.names[name] = key
        self.fields = Fields(document, plain, path)
        self.kind = self._kind()
        self.draft = Draft(self.kind, {})

    def _kind(self) -> str:
        fields = self.fields
        for text in as_list(fields.data.get("@type")):
            local = re.split(r"[:#/]", str(text))[-1]
            if local in _TYPES:
                return _TYPES[local]
        if any(key in fields for key in _MODEL_KEYS):
            return "model"
        if any(key in fields for key in _WORKFLOW_KEYS):
            return "workflow"
        if any(key in fields for key in _ENVIRONMENT_KEYS):
            return "environment"
        if any(key in fields for key in _MODEL_HINTS):
            return "model"
        named = [scalar_text(fields.data.get(key)) or "" for key in ("url", "title", "name")]
        return "program" if any(is_code(text) for text in named) else "dataset"

    def drafts(self) -> list[Draft]:
        """Return the draft of the listing, and after it that of its environment."""
        fields, draft = self.fields, self.draft
        draft.put("@id", fields.text("@id"))
        title = fields.text("title")
        name = title or fields.text("name")
        if title and "name" in fields:
            draft.put("alternateName", fields.text("name"))
        draft.put("name", name)
        for key in ("description", "version", "license"):
            draft.put(key, fields.text(key))
        url = fields.text("url")
        draft.put("url", url)
        if draft.kind == "program":
            draft.put("codeRepository", url)
        submitter = self._references("submitter")
        draft.put("submitter", submitter)
        draft.put("sharedBy", submitter)
        self._tags()
        self._files()
        self._citation()
        self._model()
        self._links()
        environment = self._environment()
        keep_rest(draft, {self.names.get(key, key): value for key, value in fields.rest().items()})
        return [settle_typed(draft), environment] if environment else [settle_typed(draft)]

    def _where(self, key: str) -> str:
        return self.fields.where(self.names.get(key, key))

    def _texts(self, key: str) -> list[str]:
        if key in self.fields and not isinstance(self.fields.data[key], (list, dict)):
            self.fields.data[key] = scalar_text(self.fields.data[key])
        return self.fields.texts(key)

    def _references(self, key: str) -> list[str]:
        """Return names or ids of other things; of a mapping that describes one, its id, and keep the mapping."""
        value = self.fields.data.get(key)
        if any(isinstance(each, (dict, list)) for each in as_list(value)):
            references = []
            for number, each in enumerate(as_list(value)):
                text = text_of(each)
                if text is None:
                    raise self.fields.refuse(f"{key}[{number}]", f"expected a name or an id, found {kind_of(each)}")
                references.append(str(each["@id"]) if isinstance(each, dict) and "@id" in each else text)
            return references
        return self._texts(key)

    def _tags(self) -> None:
        value = self.fields.take("tags")
        named: dict[str, Any] = {}
        words: list[str] = []
        for part in as_list(value):
            if isinstance(part, dict):
                for key, each in part.items():
                    named[unused(key, named)] = _value(each)
            elif (text := scalar_text(part)) is not None:
                words.append(text)
            else:
                raise self.fields.refuse("tags", f"expected words or pairs of key and value, found {kind_of(part)}")
        places = {"version": "version", "license": "license", "licence": "license", "tasks": "mlTask", "task": "mlTask"}
        places |= {"category": "keywords", "keywords": "keywords"}
        if self.kind == "model":
            places |= {"dataset": "trainedOn", "datasets": "trainedOn"}
        kept: dict[str, Any] = {}
        for key, each in named.items():
            place = places.get(key.strip(" '").lower())
            texts = [text for inner in as_list(each) if (text := scalar_text(inner)) is not None]
            if place is None or len(texts) != len(as_list(each)):
                kept[key] = each
            elif place in ("version", "license"):
                if self.draft.body.get(place) is not None or len(texts) != 1:
                    kept[key] = each
                else:
                    self.draft.put(place, texts[0])
            elif place == "keywords":
                words += _split(texts)
            else:
                self.draft.put(place, [*as_list(self.draft.body.get(place)), *_split(texts)])
        self.draft.put("keywords", list(dict.fromkeys(words)))
        self.draft.put("tags", kept)

    def _files(self) -> None:
        value = self.fields.take("associatedFiles")
        table = self._is_file_table(value)
        entries = [{"name": key, "url": each} for key, each in value.items()] if table else as_list(value)
        parts = []
        for number, entry in enumerate(entries):
            text = text_of(entry)
            if text is None:
                where = f"associatedFiles[{number}]"
                raise self.fields.refuse(where, f"expected the name or address of a file, found {kind_of(entry)}")
            address = text
            if isinstance(entry, dict):
                given = entry.get("url") or entry.get("@id")
                address = given if isinstance(given, str) else text
                if not (table and given is address):
                    self.draft.foreign.setdefault("associatedFiles", []).append(entry)
            parts.append(_part(text, address))
        self.draft.put("hasPart", parts)

    @staticmethod
    def _is_file_table(value: Any) -> bool:
        """Tell whether a mapping lists files by name rather than describing one."""
        return isinstance(value, dict) and not ({"name", "url", "@id", "@value"} & value.keys())

    def _citation(self) -> None:
        citations: list[Any] = []
        for number, value in enumerate(as_list(self.fields.take("citation"))):
            if isinstance(value, dict):
                # A citation that is described already is kept as it is.
                citations.append(value)
                continue
            text = scalar_text(value)
            if text is None:
                raise self.fields.refuse(f"citation[{number}]", f"expected a citation, found {kind_of(value)}")
            if not text.lstrip().startswith("@"):
                citations.append(text)
                continue
            article: dict[str, Any] = {"@type": "ScholarlyArticle"}
            title = re.search(r"\btitle\s*=\s*[{\"]+([^{}\"]+)", text, re.IGNORECASE)
            doi = re.search(r"\bdoi\s*=\s*[{\"]+\s*([^{}\"\s]+)", text, re.IGNORECASE)
            if title:
                article["name"] = " ".join(title[1].split())
            if doi:
                article["identifier"] = f"https://doi.org/{doi_of(doi[1]) or doi[1]}"
            citations.append({**article, "text": text})
        self.draft.put("citation", citations)

    def _model(self) -> None:
        draft, fields = self.draft, self.fields
        formats = self._texts("modelFormat")
        draft.put("modelFormat", list(dict.fromkeys(media_type(text) or text for text in formats)))
        for text in formats:
            if is_pickle(text):
                draft.warn(
                    self._where("modelFormat"),
                    f"{text!r} is Python's pickle: loading it executes code that it contains",
                )
        draft.put("modelCategory", self._texts("modelType"))
        draft.put("machineLearningFramework", _split(self._texts("machineLearningFramework")))
        self._truth("isTunable", "isTunable")
        for key in ("acceleratorSupport", "supportsAccelerator"):
            self._truth(key, "supportsAccelerator", or_text=True)
        parameters = fields.take("hyperParams")
        pairs = [each for each in as_list(parameters) if isinstance(each, dict) and len(each) == 1]
        if (
            isinstance(parameters, list)
            and pairs == parameters
            and len({key for each in pairs for key in each}) == len(pairs)
        ):
            parameters = {key: value for each in pairs for key, value in each.items()}
        draft.put("hyperparameters", parameters)
        self._metrics()

    def _truth(self, key: str, place: str, *, or_text: bool = False) -> None:
        value = self.fields.data.get(key)
        if isinstance(value, bool):
            self.draft.body[place] = self.fields.take(key)
        elif isinstance(value, str) and value.strip().lower() in _TRUTH:
            self.draft.body[place] = _TRUTH[value.strip().lower()]
            self.draft.warn(self._where(key), f"the text {value!r} is read as {str(self.draft.body[place]).lower()}")
            self.fields.take(key)
        elif value is not None and or_text and all(isinstance(each, str) for each in as_list(value)):
            self.draft.put(place, self.fields.take(key))
        elif value is not None:
            self.draft.warn(self._where(key), f"{str(value)[:80]!r} is neither true nor false; kept as given")

    def _metrics(self) -> None:
        names: list[str] = []
        results: list[dict[str, Any]] = []
        for value in as_list(self.fields.take("metrics")):
            if isinstance(value, dict):
                for name, each in value.items():
                    names.append(name)
                    results.append({"@type": "PropertyValue", "name": name, "value": each})
            elif (text := scalar_text(value)) is not None:
                names += _split([text])
            else:
                raise self.fields.refuse("metrics", f"expected names of metrics, found {kind_of(value)}")
        self.draft.put("evaluationMetrics", list(dict.fromkeys(names)))
        self.draft.put("evaluationResults", results)

    def _links(self) -> None:
        draft = self.draft
        draft.put("isPartOf", self._references("associatedExpt"))
        draft.put("instrument", self._references("associatedWorkflow"))
        datasets, models = self._references("associatedDataset"), self._references("associatedModel")
        if self.kind == "workflow":
            draft.put("object", [*datasets, *models])
        elif self.kind == "model":
            draft.put("trainedOn", list(dict.fromkeys([*as_list(draft.body.get("trainedOn")), *datasets])))
            draft.put("mentions", models)
        else:
            draft.put("mentions", [*datasets, *models])

    def _environment(self) -> Draft | None:
        """Return the environment the listing asks for, or None; a listing of nothing else is that environment."""
        if not any(key in self.fields for key in _ENVIRONMENT_KEYS):
            return None
        own = self.kind == "environment"
        name = str(self.draft.body.get("name") or self.document.file_name)
        version = str(self.draft.body.get("version") or DIGEST_VERSION_PREFIX + self.document.sha256[:12])
        # The number of the listing keeps apart environments of listings with one name.
        origin = f"{self.document.sha256}{self.fields.path}"
        iri = mint_iri("environment", name, version, origin=origin)
        draft = self.draft if own else Draft("environment", {"@id": iri, "name": name, "version": version})
        draft.put("softwareRequirements", self._named_texts("reqSoftwares"))
        draft.put("processorRequirements", self._named_texts("reqHardware"))
        configuration = self.fields.take("sysConfig")
        if isinstance(configuration, dict):
            draft.put("environmentVariables", configuration)
        elif configuration is not None:
            draft.put("additionalProperty", [{"@type": "PropertyValue", "name": "sysConfig", "value": configuration}])
        if own:
            return None
        self.draft.put("softwareRequirements", [iri])
        return draft

    def _named_texts(self, key: str) -> list[str]:
        """Return a list of words, or of `name value` for a mapping of names to versions or amounts."""
        texts: list[str] = []
        for value in as_list(self.fields.take(key)):
            pairs = value.items() if isinstance(value, dict) else [("", value)]
            for name, each in pairs:
                text = scalar_text(each)
                if text is None:
                    raise self.fields.refuse(key, f"expected names, or names with versions, found {kind_of(each)}")
                texts.append(f"{name} {text}".strip())
        return texts
