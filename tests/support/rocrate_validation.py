"""RO-Crates judged by roc-validator without a network, for the tests and for the demo.

The validator asks the web for the JSON-LD context of RO-Crate 1.1. The rocrate package brings that of 1.3; this module
turns it back into 1.1 as far as cards are concerned: the terms that came after 1.1 and that a card may use are taken
out, so that a crate which leaves them undefined is still refused, and the four that moved get their old addresses. It
lays the result into the validator's cache of web answers, in a folder of its own that is removed afterwards.
"""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

CONTEXT_ADDRESS = "https://w3id.org/ro/crate/1.1/context"
_AFTER_1_1 = (
    "OperatingSystem",
    "RuntimePlatform",
    "buildInstructions",
    "continuousIntegration",
    "data",
    "developmentStatus",
    "isSourceCodeOf",
    "issueTracker",
    "readme",
    "referencePublication",
    "sha256",
    "softwareSuggestions",
    "source",
)
_MOVED = {
    "ComputationalWorkflow": "https://bioschemas.org/ComputationalWorkflow",
    "FormalParameter": "https://bioschemas.org/FormalParameter",
    "input": "https://bioschemas.org/ComputationalWorkflow#input",
    "output": "https://bioschemas.org/ComputationalWorkflow#output",
}


def context_1_1() -> dict[str, Any]:
    """Return the context document of RO-Crate 1.1, made from the one that the rocrate package brings."""
    text = resources.files("rocrate").joinpath("data/ro-crate.jsonld").read_text("utf-8")
    terms: dict[str, Any] = json.loads(text)["@context"]
    return {"@context": {key: value for key, value in (terms | _MOVED).items() if key not in _AFTER_1_1}}


def seed_cache(cache: Path, documents: Mapping[str, Any]) -> None:
    """Lay the documents into a cache as the validator keeps what it got from the web."""
    from requests.structures import CaseInsensitiveDict
    from requests_cache import CachedSession
    from requests_cache.models.request import CachedRequest
    from requests_cache.models.response import CachedResponse

    session: Any = CachedSession(cache_name=str(cache), backend="sqlite")
    try:
        for address, document in documents.items():
            response = CachedResponse(
                status_code=200,
                url=address,
                headers=CaseInsensitiveDict({"Content-Type": "application/ld+json"}),
                content=json.dumps(document).encode(),
                request=CachedRequest(method="GET", url=address),
            )
            session.cache.save_response(response)
    finally:
        session.close()


@functools.cache
def _prepare_once() -> None:
    """The validator parses the same few queries and files of shapes for every crate, which takes most of its time."""
    from rdflib.plugins.sparql import processor
    from rocrate_validator.requirements.shacl import utils

    utils.load_shapes_from_file = functools.cache(utils.load_shapes_from_file)
    parse, translate = processor.parseQuery, processor.translateQuery

    @functools.cache
    def prepare(query: str, base: str | None, prefixes: frozenset[tuple[str, Any]]) -> Any:
        return translate(parse(query), base, dict(prefixes))

    def prepared(query: str, base: str | None, prefixes: Mapping[str, Any]) -> Any:
        return prepare(_in_order(query), base, frozenset(prefixes.items()))

    processor.parseQuery, processor.translateQuery = str, prepared


def _in_order(query: str) -> str:
    """Return a query whose prefixes, which the validator puts before it in any order, are sorted."""
    lines = query.splitlines()
    prefixes = {line.strip() for line in lines if line.lstrip().startswith("PREFIX ")}
    return "\n".join([*sorted(prefixes), *(line for line in lines if line.strip() not in prefixes)])


def validate_crate(folder: Path, profile: str, *, severity: str = "REQUIRED") -> list[str]:
    """Return what roc-validator finds wrong with the crate, nothing when it passes.

    `profile` is one of the validator's, such as `ro-crate-1.1` or `process-run-crate-0.5`; `severity` is the lowest
    that counts, REQUIRED, RECOMMENDED or OPTIONAL.
    """
    from rocrate_validator import services
    from rocrate_validator.models import Severity

    _prepare_once()
    with tempfile.TemporaryDirectory(prefix="fairmile-crate-") as scratch:
        cache = Path(scratch) / "web"
        seed_cache(cache, {CONTEXT_ADDRESS: context_1_1()})
        settings = services.ValidationSettings(
            rocrate_uri=str(folder),
            profile_identifier=profile,
            requirement_severity=Severity[severity],
            cache_path=cache,
            offline=True,
        )
        result = services.validate(settings)
        issues = [f"{issue.severity.name}: {' '.join(str(issue.message).split())}" for issue in result.get_issues()]
        return issues if issues or result.passed() else ["REQUIRED: the crate does not pass, but no issue is named"]
