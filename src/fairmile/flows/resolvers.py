"""Words that name flows: a file, or a flow that was run; `workflow` of the catalog stands in `catalog.resolvers`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fairmile.base.words import closest
from fairmile.flows.files import READERS
from fairmile.resolve import RESOLVERS, Nouns, Resolver, Target, Word


class _FlowFile(Resolver):
    """A file with `steps:`, or one of another tool's format; behind `flow` any file, which reading it then judges."""

    def find(self, word: Word, nouns: Nouns) -> Target | None:
        if not word.path.is_file():
            return None
        if not word.verb:
            data = word.located.data if word.located is not None else None
            if not isinstance(data, Mapping) or "@type" in data:
                return None
            if not isinstance(data.get("steps"), Mapping) and not any(
                READERS[name].recognises(data) for name in READERS.names()
            ):
                return None
        return Target(word.text, "flow-file", path=word.path)


class _FlowId(Resolver):
    """A flow that was run, by its id, by `last`, or by its name where the catalog has none of that name."""

    def find(self, word: Word, nouns: Nouns) -> Target | None:
        if nouns.flows is None or "/" in word.text:
            return None
        flows = nouns.flows().ls()
        matches = flows[:1] if word.text == "last" else [each for each in flows if each.id == word.text]
        if not matches and RESOLVERS["workflow"].find(word, nouns) is None:
            matches = [each for each in flows if each.name == word.text]
        if len(matches) != 1 or not matches[0].file:
            return None
        info = matches[0]
        return Target(word.text, "flow", id=info.id, load=lambda: info)

    def near(self, word: Word, nouns: Nouns) -> Sequence[str]:
        return closest(word.text, [each.id for each in nouns.flows().ls()], 1) if nouns.flows is not None else ()


FLOW_FILE = _FlowFile()
FLOW_ID = _FlowId()
