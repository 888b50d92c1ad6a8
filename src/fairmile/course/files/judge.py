"""Judges an RO-Crate with roc-validator, without a network.

The validator asks the web for the JSON-LD context of RO-Crate 1.1. The package rocrate brings the context of 1.3, from
which this module takes what came after 1.1, and lays the rest into the cache of the validator.
"""

import json
import tempfile
from importlib import resources
from pathlib import Path
from typing import Any

CONTEXT = "https://w3id.org/ro/crate/1.1/context"
AFTER_1_1 = {
    *("OperatingSystem", "RuntimePlatform", "buildInstructions", "continuousIntegration", "data", "source", "sha256"),
    *("developmentStatus", "isSourceCodeOf", "issueTracker", "readme", "referencePublication", "softwareSuggestions"),
}
BIOSCHEMAS = "https://bioschemas.org/"
MOVED = {
    "ComputationalWorkflow": f"{BIOSCHEMAS}ComputationalWorkflow",
    "FormalParameter": f"{BIOSCHEMAS}FormalParameter",
    "input": f"{BIOSCHEMAS}ComputationalWorkflow#input",
    "output": f"{BIOSCHEMAS}ComputationalWorkflow#output",
}


def problems_of(crate: str, profile: str = "ro-crate-1.1") -> list[str]:
    """Return what the validator finds wrong with the crate in a folder; an empty list if it passes."""
    from rocrate_validator import services
    from rocrate_validator.models import Severity

    with tempfile.TemporaryDirectory(prefix="judge-") as scratch:
        cache = Path(scratch) / "web"
        lay_context(cache)
        settings = services.ValidationSettings(
            rocrate_uri=str(crate),
            profile_identifier=profile,
            requirement_severity=Severity["REQUIRED"],
            cache_path=cache,
            offline=True,
        )
        result = services.validate(settings)
    problems = [" ".join(str(issue.message).split()) for issue in result.get_issues()]
    return problems if problems or result.passed() else ["the crate does not pass, and no issue is named"]


def lay_context(cache: Path) -> None:
    """Lay the context into the cache as the validator keeps what it got from the web."""
    from requests.structures import CaseInsensitiveDict
    from requests_cache import CachedSession
    from requests_cache.models.request import CachedRequest
    from requests_cache.models.response import CachedResponse

    text = resources.files("rocrate").joinpath("data/ro-crate.jsonld").read_text("utf-8")
    terms = {name: each for name, each in json.loads(text)["@context"].items() if name not in AFTER_1_1}
    session: Any = CachedSession(cache_name=str(cache), backend="sqlite")
    response = CachedResponse(
        status_code=200,
        url=CONTEXT,
        headers=CaseInsensitiveDict({"Content-Type": "application/ld+json"}),
        content=json.dumps({"@context": terms | MOVED}).encode(),
        request=CachedRequest(method="GET", url=CONTEXT),
    )
    session.cache.save_response(response)
    session.close()
