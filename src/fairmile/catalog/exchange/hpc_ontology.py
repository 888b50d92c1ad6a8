"""Data in the terms of the HPC Ontology, in Turtle: models, data sets, workflows, programs and systems."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fairmile.base.errors import InvalidDocument
from fairmile.base.words import slug
from fairmile.catalog.card import as_list
from fairmile.catalog.exchange.common.media_types import extension, is_pickle, media_type
from fairmile.catalog.exchange.common.taking import settle_typed
from fairmile.catalog.exchange.draft import Document, Draft
from fairmile.catalog.exchange.hpc_ontology_graph import NAMESPACES, Literal, Node, Ref, Writer, load_graph, local_name
from fairmile.catalog.identity import DIGEST_VERSION_PREFIX, mint_iri

_KINDS = {
    "AIModel": "model",
    "MachineLearningModel": "model",
    "DecisionTree": "model",
    "Dataset": "dataset",
    "Data": "dataset",
    "Experiment": "workflow",
    "Workflow": "workflow",
    "Software": "program",
    "Cluster": "system",
    "SuperComputer": "system",
    "Supercomputer": "system",
    "Computer": "system",
}
_TASKS = ("classification", "regression", "clustering", "prediction", "segmentation", "detection")
_LANGUAGES = {"py": "Python", "sh": "Shell", "ipynb": "Jupyter Notebook", "r": "R", "jl": "Julia"}
# Term, and the property that takes its values as they are.
_TEXTS = {
    "abstract": "abstract",
    "subject": "keywords",
    "keywords": "keywords",
    "publication": "citation",
    "citation": "citation",
    "award": "award",
    "awardID": "award",
    "dateCreated": "dateCreated",
    "dateModified": "dateModified",
    "datePublished": "datePublished",
    "modelType": "modelCategory",
    "machineLearningFramework": "machineLearningFramework",
    "programmingLanguage": "programmingLanguage",
    "processorCorePerNode": "cpuCorePerNode",
    "cpuCorePerNode": "cpuCorePerNode",
    "CoProcessorCountPerNode": "coprocessorCountPerNode",
    "coprocessorCountPerNode": "coprocessorCountPerNode",
    "coprocessorModel": "gpuModel",
    "gpuModel": "gpuModel",
    "gpuArchitecture": "gpuArchitecture",
    "cpuArchitecture": "cpuModel",
    "interconnectFamily": "interconnect",
    "interconnect": "interconnect",
    "hasOperatingSystem": "operatingSystem",
    "operatingSystem": "operatingSystem",
    "computeNodeCount": "computeNodeCount",
}
_TRUTHS = {
    "isTunable": "isTunable",
    "supportsAccelerator": "supportsAccelerator",
    "isPubliclyAccessible": "isAccessibleForFree",
}
_TEXT_ONLY = ("keywords", "citation", "dateCreated", "dateModified", "datePublished", "machineLearningFramework")
_INPUTS = ("input", "hadInput", "hasInput", "used", "uses")
_OUTPUTS = ("output", "hadOutput", "hasOutput", "generated", "generates")
_LINKS = {
    "generatedBy": "wasGeneratedBy",
    "wasGeneratedBy": "wasGeneratedBy",
    "associatedSoftware": "softwareRequirements",
    "associatedHardware": "runsOn",
    "runsOn": "runsOn",
    "targetMachine": "targetMachine",
    "isPartOf": "isPartOf",
    "hasPart": "hasPart",
    "consistsOf": "hasPart",
}
_USED_BY = ("usedBy", "wasUsedBy", "feed")
_PARTS = ("experiment", "aiModel", "dataset", "data", "workflow", "software")


def recognises(document: Document) -> bool:
    """Tell whether the document is Turtle that uses one of the ontology's name spaces."""
    try:
        text = document.text
    except InvalidDocument:
        return False
    start = text[:4096].lstrip()[:200]
    if start.startswith(("{", "<?", "<!", "<rdf:")) or not any(namespace in text for namespace in NAMESPACES):
        return False
    named = document.file_name.lower().endswith((".ttl", ".nt", ".n3", ".turtle"))
    return named or start.lower().startswith(("@prefix", "@base", "prefix", "base", "#", "<http", "_:"))


def read(document: Document) -> list[Draft]:
    """Return a draft for every model, data set, workflow, program and system the document describes."""
    nodes = load_graph(document)
    drafts = _Reading(document, nodes).drafts()
    if not drafts:
        raise document.refuse(
            "describes no AIModel, Dataset, Experiment, Workflow, Software, Cluster or SuperComputer",
            hint="definitions of the ontology itself are not imported",
        )
    return drafts


def _texts(values: Iterable[Ref | Literal]) -> list[Any]:
    """Return literals as texts, truths and whole numbers, links as their ids; empty texts are dropped."""
    texts = [value.value if isinstance(value, Literal) else value.id for value in values]
    return [each.strip() if isinstance(each, str) else each for each in texts if each != ""]


def _words(node: Node, *terms: str) -> list[Any]:
    """Take out values that are words, numbers or addresses; a blank node has none of these and stays."""
    words: list[Any] = []
    for term in terms:
        if not any(isinstance(value, Ref) and value.id.startswith("_:") for value in node.facts.get(term, ())):
            words += _texts(node.take(term))
    return words


def _one_or_many(values: list[Any]) -> Any:
    # True and 1 are equal in Python, and are two values here.
    distinct = list({(type(each), each): each for each in values}.values())
    return distinct[0] if len(distinct) == 1 else distinct


class _Reading:
    """One document on its way to drafts."""

    def __init__(self, document: Document, nodes: dict[str, Node]) -> None:
        self.document = document
        self.nodes = self._named(nodes)
        self.writer = Writer(self.nodes)
        self.kinds = {key: kind for key, node in self.nodes.items() if (kind := self._kind(node))}
        self.by_id: dict[str, Draft] = {}
        self.used: dict[tuple[str, str], list[str]] = {}
        self.files: dict[str, list[str]] = {}
        for key, node in self.nodes.items():
            if self._is_a(node, "File"):
                self.files.setdefault(_last(key), []).append(key)

    def _named(self, nodes: dict[str, Node]) -> dict[str, Node]:
        """Return the nodes with an id for each asset that has none, so that links to it resolve."""
        names = {
            key: mint_iri(kind, key, "", origin=self.document.sha256)
            for key, node in nodes.items()
            if key.startswith("_:") and (kind := self._kind(node))
        }
        if not names:
            return nodes
        for node in nodes.values():
            node.id = names.get(node.id, node.id)
            for values in node.facts.values():
                values[:] = [Ref(names.get(each.id, each.id)) if isinstance(each, Ref) else each for each in values]
        return {node.id: node for node in nodes.values()}

    @staticmethod
    def _is_a(node: Node, name: str) -> bool:
        return any(local_name(each) == name for each in node.types)

    @staticmethod
    def _kind(node: Node) -> str | None:
        kinds = [_KINDS[name] for each in node.types if (name := local_name(each)) in _KINDS]
        return kinds[0] if kinds else None

    def drafts(self) -> list[Draft]:
        """Return the drafts, with every fact either in its place or among the foreign ones."""
        # Who leads where is asked before anything is taken from the nodes.
        seen: set[str] = set()
        refers = {key: self._reachable(key, seen) for key in self.kinds}
        for key, kind in self.kinds.items():
            self.by_id[key] = Draft(kind, {"@id": key})
            if kind == "system":
                names = [local_name(each) for each in self.nodes[key].types]
                self.by_id[key].body["@type"] = next(
                    (name for name in names if name in ("Cluster", "Computer")), "SuperComputer"
                )
        for key, draft in self.by_id.items():
            self._describe(draft, self.nodes[key], key)
        for key in self.nodes:
            if self._is_a(self.nodes[key], "Project"):
                self._give_project(key)
        for key, draft in self.by_id.items():
            self._relate(draft, self.nodes[key], key)
        for (key, place), users in self.used.items():
            self._link(self.by_id[key], place, users)
        self._tell_apart()
        for key, draft in self.by_id.items():
            self._keep(draft, key, refers[key])
        if self.by_id:
            first = next(iter(self.by_id.values()))
            left = [key for key in self.nodes if key not in self.writer.written]
            self._write_nodes(first, left)
        return [settle_typed(draft) for draft in self.by_id.values()]

    def _reachable(self, key: str, seen: set[str]) -> list[str]:
        """Return the supporting nodes that this asset is the first to lead to, not beyond other assets."""
        reached: list[str] = []
        todo = [key]
        while todo:
            for values in self.nodes[todo.pop()].facts.values():
                ids = [value.id for value in values if isinstance(value, Ref) and value.id in self.nodes]
                new = [each for each in dict.fromkeys(ids) if each not in seen and each not in self.kinds]
                seen.update(new)
                reached += new
                todo += new
        return reached

    def _keep(self, draft: Draft, key: str, reachable: list[str]) -> None:
        rest = self.writer.node(key)
        for term, value in rest.items():
            draft.foreign[term if term != "nodes" else "nodes'"] = value
        self._write_nodes(draft, [other for other in reachable if other not in self.writer.written])

    def _write_nodes(self, draft: Draft, keys: list[str]) -> None:
        # Named nodes first: a blank one then stands inside the node it belongs to.
        for key in sorted(keys, key=lambda each: each.startswith("_:")):
            if key not in self.writer.written:
                draft.foreign.setdefault("nodes", {})[key] = self.writer.node(key)

    def _describe(self, draft: Draft, node: Node, key: str) -> None:
        """Take what is said in words and numbers."""
        names = _words(node, "name", "title")
        if names:
            draft.put("name", str(names[0]))
        else:
            draft.put("name", _last(key))
            draft.warn("name", f"the source gives no name; called {_last(key)!r} after its id")
        draft.put("alternateName", _one_or_many([*names[1:], *_words(node, "alternateName")]))
        draft.put("description", "\n\n".join(str(each) for each in _words(node, "description")))
        draft.put("license", _one_or_many([str(each) for each in _words(node, "license")]))
        versions = [str(each) for each in _words(node, "version")]
        draft.put("version", next(iter(versions), None))
        if versions[1:]:
            draft.foreign["version"] = versions[1:]
        addresses = _words(node, "url", "homepage")
        draft.put("url", _one_or_many(addresses))
        if draft.kind == "program":
            draft.put("codeRepository", next((each for each in addresses if _is_repository(each)), None))
        for term, place in _TEXTS.items():
            values = [str(each) if place in _TEXT_ONLY else each for each in _words(node, term)]
            draft.put(place, _one_or_many([*as_list(draft.body.get(place)), *values]))
        for term, place in _TRUTHS.items():
            truths = _texts(node.facts.get(term, []))
            if len(truths) == 1 and isinstance(truths[0], bool):
                draft.body[place] = truths[0]
                node.take(term)
        self._model(draft, node)
        self._system(draft, node)
        columns = [name.strip() for text in _words(node, "hasColumnNames") for name in str(text).strip('"').split(",")]
        draft.put("variableMeasured", [{"@type": "PropertyValue", "name": name} for name in columns if name])

    def _model(self, draft: Draft, node: Node) -> None:
        formats = [str(each) for each in _words(node, "modelFormat")]
        draft.put("modelFormat", _one_or_many([media_type(text) or text for text in formats]))
        for text in formats:
            if is_pickle(text):
                draft.warn("modelFormat", f"{text!r} is Python's pickle: loading it executes code that it contains")
        tasks = [each for each in as_list(draft.body.get("modelCategory")) if str(each).lower() in _TASKS]
        draft.put("mlTask", _one_or_many([str(each).lower() for each in tasks]))
        if draft.kind == "workflow" and "programmingLanguage" not in draft.body:
            named = [str(draft.body["name"]), *(str(each) for each in as_list(draft.body.get("url")))]
            draft.put(
                "programmingLanguage",
                next((_LANGUAGES[end] for text in named if (end := extension(text)) in _LANGUAGES), None),
            )

    def _system(self, draft: Draft, node: Node) -> None:
        if draft.kind != "system":
            return
        for terms, place in (
            (("hasRpeak", "totalClusterPeakPerformance"), "hasRpeak"),
            (("memorySize",), "memoryPerNode"),
        ):
            for term in terms:
                if place not in draft.body and (quantity := self._quantity(node, term)):
                    draft.put(place, quantity)

    def _quantity(self, node: Node, term: str) -> dict[str, Any] | None:
        """Return a number with its unit where the fact is just that, and take it out."""
        values = node.facts.get(term, [])
        if len(values) != 1 or not isinstance(values[0], Ref) or values[0].id not in self.nodes:
            return None
        facts = self.nodes[values[0].id].facts
        number, unit = facts.get("http://qudt.org/schema/qudt/value"), facts.get("http://qudt.org/schema/qudt/unit")
        if not number or len(facts) > 2 or (len(facts) == 2 and not unit) or not isinstance(number[0], Literal):
            return None
        if len(number) > 1 or (unit and len(unit) > 1):
            return None
        node.take(term)
        self.writer.written.add(values[0].id)
        quantity: dict[str, Any] = {"@type": "PropertyValue", "value": number[0].value}
        if unit:
            code = str(_texts(unit)[0])
            quantity |= {"unitText": _last(code), "unitCode": code}
        return quantity

    def _relate(self, draft: Draft, node: Node, key: str) -> None:
        """Take what leads to other nodes."""
        for place, terms in (("creator", ("creator", "contributor", "author")), ("submitter", ("submitter",))):
            draft.put(place, [self._person(draft, value, place) for value in node.take(*terms)])
        projects = [self._project(draft, value) for value in node.take("project")]
        draft.put("project", [*as_list(draft.body.get("project")), *projects])
        for value in node.take("file"):
            self._file(draft, value)
        inputs, outputs = (
            self._ids(draft, node.take(*_INPUTS), "input"),
            self._ids(draft, node.take(*_OUTPUTS), "output"),
        )
        self._link(
            draft,
            "trainedOn" if draft.kind == "model" else "wasDerivedFrom" if draft.kind == "dataset" else "object",
            inputs,
        )
        self._link(draft, "result", outputs)
        for term, place in _LINKS.items():
            self._link(draft, place, self._ids(draft, node.take(term), term))
        self._used_by(draft, node, key)
        if draft.kind == "system":
            self._parts_of_system(draft, node)

    def _link(self, draft: Draft, place: str, targets: list[str]) -> None:
        draft.put(place, list(dict.fromkeys([*as_list(draft.body.get(place)), *targets])))

    def _ids(self, draft: Draft, values: list[Ref | Literal], term: str) -> list[str]:
        ids = [str(each) for each in _texts(values)]
        for value in values:
            if isinstance(value, Ref) and value.id not in self.nodes:
                draft.warn(term, f"{value.id!r} is not described in this document")
        return ids

    def _used_by(self, draft: Draft, node: Node, key: str) -> None:
        """Turn "A is used by B" into what B says of A; what B is not known for is kept as it stands."""
        for term in _USED_BY:
            kept: list[Ref | Literal] = []
            for value in node.facts.get(term, []):
                if not isinstance(value, Ref) or value.id not in self.by_id:
                    kept.append(value)
                    if isinstance(value, Ref) and value.id not in self.nodes:
                        draft.warn(term, f"{value.id!r} is not described in this document")
                    continue
                place = {"program": "softwareRequirements", "workflow": "hasPart"}.get(draft.kind, "object")
                if self.by_id[value.id].kind == "model" and draft.kind == "dataset":
                    place = "trainedOn"
                self.used.setdefault((value.id, place), []).append(key)
            node.facts.pop(term, None)
            if kept:
                node.facts[term] = kept

    def _parts_of_system(self, draft: Draft, node: Node) -> None:
        """Give a cluster what its nodes, and a node what its processors are."""
        for value in node.facts.get("hasNode", []):
            if isinstance(value, Ref) and value.id in self.by_id:
                self._link(draft, "hasPart", [value.id])
                part = self.nodes[value.id]
                for place in ("cpuCorePerNode", "coprocessorCountPerNode", "gpuArchitecture"):
                    if place not in draft.body:
                        draft.put(place, self.by_id[value.id].body.get(place))
                self._processors(draft, part)
        self._ids(draft, node.facts.get("hasNode", []), "hasNode")
        self._processors(draft, node)

    def _processors(self, draft: Draft, node: Node) -> None:
        for terms, place in ((("coProcessor", "coprocessor", "gpu"), "gpuModel"), (("processor", "cpu"), "cpuModel")):
            for term in terms:
                for value in node.facts.get(term, []):
                    if isinstance(value, Ref) and value.id in self.nodes:
                        names = [str(each) for each in _texts(self.nodes[value.id].facts.get("name", []))]
                        draft.put(place, _one_or_many([*as_list(draft.body.get(place)), *names]))
                    elif isinstance(value, Ref):
                        draft.warn(term, f"{value.id!r} is not described in this document")

    def _person(self, draft: Draft, value: Ref | Literal, place: str) -> Any:
        if isinstance(value, Literal):
            return value.text
        node = self.nodes.get(value.id)
        if node is None:
            draft.warn(place, f"{value.id!r} is not described in this document")
            return value.id
        facts = {term: [str(each) for each in _texts(values)] for term, values in node.facts.items()}
        person: dict[str, Any] = {
            "@type": "Organization" if self._is_a(node, "Organization") else "Person",
            "@id": value.id,
        }
        given, family = " ".join(facts.get("givenName", [])), " ".join(facts.get("familyName", []))
        name = " ".join(facts.get("name", [])) or f"{given} {family}".strip() or _last(value.id)
        pairs = [("name", name), ("givenName", given), ("familyName", family)]
        pairs += [(place, text) for term, place in _PERSON.items() for text in facts.get(term, [])[:1]]
        return person | {place: text for place, text in pairs if text}

    def _project(self, draft: Draft, value: Ref | Literal) -> Any:
        if isinstance(value, Literal):
            return value.value
        node = self.nodes.get(value.id)
        if node is None:
            draft.warn("project", f"{value.id!r} is not described in this document")
            return {"@type": "Project", "@id": value.id}
        project: dict[str, Any] = {"@type": "Project", "@id": value.id}
        for term, place in _PROJECT.items():
            texts = _texts(node.facts.get(term, []))
            if texts:
                project[place] = _one_or_many([*as_list(project.get(place)), *texts])
        return project

    def _give_project(self, key: str) -> None:
        """Name the project on everything the project lists, also where that thing does not point back."""
        for term in _PARTS:
            for value in self.nodes[key].facts.get(term, []):
                draft = self.by_id.get(value.id) if isinstance(value, Ref) else None
                if draft is None or not isinstance(value, Ref):
                    continue
                if Ref(key) not in self.nodes[value.id].facts.get("project", []):
                    draft.put("project", [*as_list(draft.body.get("project")), self._project(draft, Ref(key))])

    def _file(self, draft: Draft, value: Ref | Literal) -> None:
        if isinstance(value, Literal):
            draft.add_file(
                name=value.text.rstrip("/").rsplit("/", 1)[-1], url=value.text, media_type=media_type(value.text)
            )
            return
        known, same_end = value.id, self.files.get(_last(value.id), [])
        if known not in self.nodes and len(same_end) == 1:
            known = same_end[0]
            draft.warn(
                "file",
                f"{value.id!r} is not described in this document; taken to be {known!r}, the only file of that number",
            )
        node = self.nodes.get(known)
        if node is None:
            draft.warn("file", f"{value.id!r} is not described in this document")
            draft.foreign.setdefault("file", []).append(value.id)
            return
        url = next((str(each) for each in _texts(node.facts.get("url", []))), None)
        name = next((str(each) for each in _texts(node.facts.get("name", []))), _last(known))
        form = next((str(each) for each in _texts(node.facts.get("format", []))), "")
        taken = {entry["name"] for entry in draft.body.get("distribution", ())}
        name = slug(name, keep_case=True) if name.strip("./") != name or "/" in name else name
        entry = draft.add_file(
            name=name if name not in taken else f"{slug(_last(known))}/{name}",
            url=url,
            media_type=media_type(form) or media_type(name),
        )
        entry["@id"] = value.id

    def _tell_apart(self) -> None:
        """Give assets of one kind, name and version each its own version, for a handle must name one of them."""
        seen: set[tuple[str, str, str]] = set()
        for key, draft in self.by_id.items():
            version = str(draft.body.get("version") or "")
            handle = (draft.kind, slug(str(draft.body["name"])), version)
            if handle in seen:
                base = version or DIGEST_VERSION_PREFIX + self.document.sha256[:12]
                draft.body["version"] = f"{base}+{slug(_last(key), keep_case=True)}"
                draft.warn(
                    "version", "another asset of this document has the same name and version; distinguished by its id"
                )
            seen.add((handle[0], handle[1], str(draft.body.get("version") or "")))


_PERSON = {"affiliation": "affiliation", "email": "email", "ID": "identifier", "homepage": "url", "url": "url"}
_PROJECT = {
    "name": "name",
    "alternateName": "alternateName",
    "description": "description",
    "url": "url",
    "fundedBy": "funder",
    "funding": "funding",
    "awardID": "award",
    "award": "award",
    "programArea": "keywords",
    "subject": "keywords",
    "publication": "citation",
}


def _last(iri: str) -> str:
    """Return the last part of an address."""
    return iri.rstrip("/#").replace("#", "/").rsplit("/", 1)[-1] or iri


def _is_repository(address: Any) -> bool:
    text = str(address)
    return text.endswith(".git") or any(
        f"//{host}/" in text for host in ("github.com", "gitlab.com", "bitbucket.org", "codeberg.org")
    )
