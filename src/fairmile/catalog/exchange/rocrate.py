"""RO-Crate 1.0 to 1.3 and the run crates read, and 1.1 written.

Reading. The root data entity becomes a data set; where its main entity is a workflow, program or model, both become
one card of that kind. Each CreateAction (UpdateAction, ActivateAction) becomes a run, each of its instruments and each
workflow a card of its own. Files become the distribution of the root. Contextual entities are laid into what they
describe; those that describe nothing that became a card are kept verbatim. Ids that mean something only inside the
crate become arcp addresses below the digest of the document, so that links between the cards resolve.

Writing. The asset is the main entity of the crate and keeps its own id; the root data entity repeats its name,
description, licence and authors, and says of itself that it only wraps a card. A run is written as Process Run Crate
0.5. Files are web-based entities; those without an address have an id local to the document. Assets that the card
links to are entities that say nothing but their id. Values with no place in a flat graph stand as JSON text in
`fx:verbatim`, from which the reader restores them; on reading it wins.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from fairmile.base.errors import UsageError
from fairmile.catalog.card import as_list, id_of, text_of
from fairmile.catalog.exchange.common.jsonld import (
    ADMINISTRATIVE,
    CHECKSUMS,
    VERBATIM,
    add_described_file,
    canonical_iri,
    is_text,
    json_text,
    keep_value,
    one_text,
    parsed,
    restore,
    restored,
    settle_any,
    vocabulary,
)
from fairmile.catalog.exchange.draft import EMPTY, Document, Draft
from fairmile.catalog.exchange.rocrate_graph import (
    CRATE_PROFILE,
    FILE_TYPES,
    METADATA_FILES,
    OWN_ID,
    REFERENCE,
    UNTYPED,
    Graph,
    find_descriptor,
    normal_id,
    references,
    types_of,
)
from fairmile.catalog.exchange.rocrate_writer import CARD_CRATE, is_made_by_export, root_summary
from fairmile.catalog.exchange.rocrate_writer import KINDS as KINDS
from fairmile.catalog.exchange.rocrate_writer import write as write
from fairmile.catalog.identity import VOLATILE_KEYS, is_iri
from fairmile.catalog.kinds import kind_of_types
from fairmile.catalog.licences import licence_iri

# What a file says of its bytes; the rest of an entity that is a file and an asset is about the asset.
_FILE_KEYS = ("contentUrl", "contentSize", "encodingFormat", *CHECKSUMS)
_DESCRIPTOR_KEYS = {"@id", "@type", "about", "conformsTo"}


def recognises(document: Document) -> bool:
    """Tell whether the document is the metadata of an RO-Crate."""
    if document.file_name.endswith(METADATA_FILES):
        return True
    try:
        source = document.json()
    except UsageError:
        return False
    if not isinstance(source, dict) or not isinstance(source.get("@graph"), list):
        return False
    entities = [each for each in source["@graph"] if isinstance(each, dict) and isinstance(each.get("@id"), str)]
    return find_descriptor({normal_id(each["@id"]): each for each in entities}) is not None


def read(document: Document) -> list[Draft]:
    """Return every asset the crate describes, the root first."""
    source = document.json()
    if not isinstance(source, dict) or not isinstance(source.get("@graph"), list):
        raise document.refuse("is not a JSON object with a list @graph", hint="RO-Crate metadata is flattened JSON-LD")
    graph = Graph(document, source)
    if graph.root is None:
        raise document.refuse(
            "describes no root data entity",
            field="@graph",
            hint="expected an entity ro-crate-metadata.json whose `about` points to the root, usually ./",
        )
    return _Reading(graph, graph.root).drafts(source)


class _Reading:
    """Makes the drafts of one crate."""

    def __init__(self, graph: Graph, root: str) -> None:
        self.graph = graph
        self.root = root
        self.nodes = graph.nodes
        main = next(iter(references(self.nodes[root].get("mainEntity"))), "")
        self.is_card = CARD_CRATE in [id_of(each) for each in as_list(self.nodes[root].get("additionalType"))]
        self._choose_assets(main)
        self.main = main if main in graph.assets else None
        if self.main:
            graph.same[root] = self.main
        self.titles = {graph.absolute(key): one_text(node.get("name")) for key, node in self.nodes.items()}

    def _choose_assets(self, main: str) -> None:
        actions = [node for node in self.nodes.values() if _kind(node) == "run"]
        used = {each for node in actions for each in references(node.get("instrument"))} | {main}
        for identifier, node in self.nodes.items():
            kind = _kind(node)
            if identifier in (self.root, self.graph.descriptor) or kind is None:
                continue
            if kind == "dataset":
                kind = kind if self.is_card and identifier == main else None
            elif kind == "program":
                kind = kind if identifier in used else None
            if kind:
                self.graph.assets[identifier] = kind

    def drafts(self, source: Mapping[str, Any]) -> list[Draft]:
        root = Draft(self.graph.assets[self.main] if self.main else _kind(self.nodes[self.root]) or "dataset", {})
        parts = self._parts([self.root, *([self.main] if self.main else [])])
        files = [key for key, node in self.nodes.items() if set(types_of(node)) & FILE_TYPES]
        placed = {*self.graph.files, *self.graph.assets, self.graph.descriptor, self.root}
        loose = [key for key in files if key not in placed]
        self.graph.files.update(loose)
        # Files first: what a draft keeps of them must not meet a foreign key of the same name.
        self._distribution(root, parts, loose)
        self._asset(root, self.main or self.root)
        if self.main:
            self._root_beneath(root)
        others = [key for key in self.graph.assets if key != self.main]
        made = [(key, Draft(self.graph.assets[key], {})) for key in others]
        for key, draft in made:
            if set(types_of(self.nodes[key])) & FILE_TYPES:
                self._file(draft, key)
            self._asset(draft, key)
        for draft in (root, *(draft for _, draft in made)):
            self._settle(draft)
        self._keep_the_rest(root, source)
        return [root, *(draft for _, draft in made)]

    def _asset(self, draft: Draft, identifier: str) -> None:
        types = self.graph.names.types(self.graph.raw[identifier].get("@type"))
        fitting = kind_of_types(types) == draft.kind
        draft.body["@id"] = self.graph.absolute(identifier)
        if types and fitting:
            draft.body["@type"] = types if len(types) > 1 else types[0]
        elif types:
            keep_value(draft, "@type", self.graph.raw[identifier]["@type"])
        raw = self.graph.raw[identifier]
        if set(types) & FILE_TYPES:
            raw = {key: value for key, value in raw.items() if self.graph.names.term(key) not in _FILE_KEYS}
        self._properties(draft, raw)
        if "distribution" in draft.body:
            draft.body["distribution"] = draft.body.pop("distribution")

    def _properties(self, draft: Draft, raw: Mapping[str, Any]) -> None:
        for key, value in raw.items():
            if key in ("@id", "@type"):
                continue
            name = "creator" if key == "author" else self.graph.names.term(key) or self.graph.names.compact(key)
            if name == VERBATIM:
                draft.body[name] = parsed(value)
            elif name is None or name in VOLATILE_KEYS or name in ADMINISTRATIVE or value in EMPTY:
                keep_value(draft, key, value)
            elif name == "hasPart":
                self._links_to_parts(draft, key, value)
            elif name == "distribution":
                if not _only_links(value) or not all(each in self.graph.files for each in references(value)):
                    keep_value(draft, key, value)
            elif name == "license":
                self._licence(draft, key, value)
            elif name == "creator":
                values = as_list(self.graph.value(name, self.graph.names.rename(value), draft))
                known = as_list(draft.body.get(name))
                every = [*known, *(each for each in values if each not in known)]
                draft.body[name] = every[0] if len(every) == 1 and not isinstance(value, list) else every
            elif name in draft.body:
                keep_value(draft, key, value)
            elif name in vocabulary().json_terms:
                draft.body[name] = parsed(value)
            else:
                draft.body[name] = self.graph.value(name, self.graph.names.rename(value), draft)

    def _links_to_parts(self, draft: Draft, key: str, value: Any) -> None:
        if not _only_links(value):
            keep_value(draft, key, value)
        links = []
        for each in as_list(self.graph.names.rename(value)):
            identifier = next(iter(references(each)), None)
            if identifier is not None and (identifier in self.graph.files or identifier == self.main):
                continue
            links.append(self.graph.value("hasPart", each, draft))
        unique = {json_text(each): each for each in [*as_list(draft.body.get("hasPart")), *links]}
        if unique:
            draft.body["hasPart"] = list(unique.values())

    def _licence(self, draft: Draft, key: str, value: Any) -> None:
        """Take the text by which the licence is recognised; the entity that describes it stays with the others."""
        texts: list[str] = []
        for each in as_list(value):
            identifier = next(iter(references(each)), None)
            node = self.nodes.get(identifier, {}) if identifier else {}
            known = [id_of(each), *(node.get(name) for name in ("url", "identifier", "name"))]
            choices = [text for text in (one_text(choice) for choice in known) if text]
            best = sorted(choices, key=lambda text: (licence_iri(text) is None, not is_iri(text), text.startswith("#")))
            texts += best[:1]
            if not is_text(each) and not (isinstance(each, Mapping) and set(each) == {"@id"}):
                keep_value(draft, key, value)
        if texts and "license" not in draft.body:
            draft.body["license"] = texts if len(texts) > 1 else texts[0]
        elif texts and texts != as_list(draft.body["license"]):
            keep_value(draft, key, value)

    def _root_beneath(self, draft: Draft) -> None:
        """Lay what the root says beneath what its main entity says of itself; where they differ, both are kept."""
        raw = dict(self.graph.raw[self.root])
        if self.is_card and self.main:
            derived = root_summary(self.graph.raw[self.main], self.graph.raw)
            for key, value in derived.items():
                if value is None or raw.get(key) == value:
                    raw.pop(key, None)
        other = Draft(draft.kind, {})
        if _only_links(raw.get("mainEntity")):
            del raw["mainEntity"]
        self._properties(other, raw)
        draft.warnings += other.warnings
        for key, value in other.body.items():
            if key not in draft.body:
                draft.body[key] = value
            elif draft.body[key] != value:
                draft.shelf("root")[key] = value
        for key, value in other.foreign.items():
            keep_value(draft, key, value)

    def _parts(self, owners: list[str]) -> list[str]:
        """Return the files and folders that the owners have, and those in them, in the order of the crate."""
        parts: list[str] = []
        seen = set(owners)
        todo = deque(
            each
            for owner in owners
            for key in ("hasPart", "distribution")
            for each in references(self.nodes[owner].get(key))
        )
        if self.main and set(types_of(self.nodes[self.main])) & FILE_TYPES:
            parts.append(self.main)
        while todo:
            identifier = todo.popleft()
            node = self.nodes.get(identifier)
            if node is None or identifier in seen:
                continue
            seen.add(identifier)
            if identifier not in self.graph.assets:
                if set(types_of(node)) & (FILE_TYPES | {"Dataset"}):
                    parts.append(identifier)
                todo += references(node.get("hasPart"))
        self.graph.files.update(each for each in parts if each != self.main)
        return parts

    def _distribution(self, draft: Draft, parts: list[str], loose: list[str]) -> None:
        for identifier in parts:
            self._file(draft, identifier)
        for identifier in loose:
            self._file(draft, identifier)
            draft.warn("distribution", f"{identifier!r} is described, but no part of the crate")

    def _file(self, draft: Draft, identifier: str) -> None:
        described = self.nodes[identifier]
        if identifier in self.graph.assets:
            described = {key: value for key, value in described.items() if key in (*_FILE_KEYS, OWN_ID, VERBATIM)}
        node = self.graph.properties({**described, "@id": identifier}, draft)
        types, given_name = types_of(node), one_text(node.get("name"))
        verbatim, own = parsed(node.pop(VERBATIM, None)), node.pop(OWN_ID, None)
        is_folder = "Dataset" in types and not set(types) & FILE_TYPES
        is_set = is_folder or "FileSet" in types
        remote = is_iri(identifier)
        path = unquote(identifier)
        if "contentUrl" not in node and not identifier.startswith(("#", "_:")):
            node["contentUrl"] = identifier if remote else path
        if is_folder:
            node.setdefault("includes", path.rstrip("/") + "/**")
        label = self.graph.absolute(identifier)
        made = add_described_file(draft, node, label=label, is_set=is_set, verbatim=verbatim)
        made["name"] = given_name or identifier.rstrip("/").rsplit("/", 1)[-1] or identifier
        if not remote and own is None and not identifier.startswith(("#", "_:")):
            # Inside a crate a file is known by its path; the name of its description is a title.
            made["name"] = path
            if given_name and given_name != path:
                made["alternateName"] = [*as_list(made.get("alternateName")), given_name]
        extra = [each for each in types if each not in ("File", "MediaObject", "Dataset", made["@type"])]
        if extra:
            made["@type"] = [made["@type"], *extra]
        if is_text(own):
            made["@id"] = own
        restored(made, verbatim)

    def _settle(self, draft: Draft) -> None:
        body = draft.body
        restore(draft, body.pop(VERBATIM, None), "rocrate")
        if draft.kind == "run":
            _settle_run(draft, self.titles)
        elif "version" not in body and is_text(body.get("softwareVersion")):
            body["version"] = body["softwareVersion"]
        settle_any(draft)

    def _keep_the_rest(self, draft: Draft, source: Mapping[str, Any]) -> None:
        graph = self.graph
        descriptor = graph.raw.get(graph.descriptor or "", {})
        profiles = [id_of(each) for each in as_list(graph.nodes.get(graph.descriptor or "", {}).get("conformsTo"))]
        texts = [text for text in profiles if text and is_iri(text)]
        known = as_list(draft.body.get("conformsTo"))
        if [*texts, *known]:
            draft.body["conformsTo"] = list(dict.fromkeys([*known, *texts]))
        if descriptor and (not self.is_card or set(descriptor) - _DESCRIPTOR_KEYS):
            keep_value(draft, "descriptor", descriptor)
        if not self._is_published(source.get("@context")):
            keep_value(draft, "@context", source["@context"])
        for key, value in source.items():
            if key not in ("@context", "@graph"):
                keep_value(draft, key, value)
        rest = [each for each in graph.unplaced() if not (self.is_card and is_made_by_export(each))]
        if rest:
            keep_value(draft, "@graph", rest)
        for field, message in graph.problems:
            draft.warn(field, message)

    def _is_published(self, context: Any) -> bool:
        names, spaces = self.graph.names, set(vocabulary().prefixes.values())
        for part in as_list(context):
            if isinstance(part, Mapping):
                for key, value in part.items():
                    iri = canonical_iri(names.expand(key) or "")
                    fits = names.term(key) == key or iri in spaces or names.compact(key) == key or key == UNTYPED
                    if not fits or not isinstance(value, str):
                        return False
            elif not isinstance(part, str) or not part.startswith((CRATE_PROFILE, "https://w3id.org/ro/terms/")):
                return False
        return True


def _only_links(value: Any) -> bool:
    """Tell whether the value is nothing but links: nodes that have an id and no more."""
    return all(isinstance(each, Mapping) and set(each) == {"@id"} for each in as_list(value) or [None])


def _kind(node: Mapping[str, Any]) -> str | None:
    """Return the kind of asset an entity is; a file alone, or a mere reference to an asset, is none."""
    if REFERENCE in [id_of(each) for each in as_list(node.get("additionalType"))]:
        return None
    return kind_of_types(each for each in types_of(node) if each not in FILE_TYPES)


def _settle_run(draft: Draft, titles: Mapping[str, str | None]) -> None:
    body = draft.body
    if _only_links(body.get("actionStatus")) and not isinstance(body["actionStatus"], list):
        body["actionStatus"] = text_of(body["actionStatus"]) or body["actionStatus"]
    for key in ("instrument", "object", "result"):
        if isinstance(body.get(key), str):
            body[key] = [body[key]]
    if not one_text(body.get("name")):
        tool = one_text(body.get("instrument"))
        tool = titles.get(tool or "") or tool
        name = one_text(body.get("description")) or (f"run of {tool}" if tool else None)
        if name:
            body["name"] = name[:80]
            draft.warn("name", f"the source gives no name; called {name[:80]!r}")
