"""The nine kinds of asset, and what the profile asks of each."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

CONTEXT_IRI = "https://w3id.org/fairmile/card/1.0/context"
PROFILE_IRI = "https://w3id.org/fairmile/card/1.0"


class Kind(NamedTuple):
    """One kind of asset: its JSON-LD types and the properties its card must and should have."""

    name: str
    types: tuple[str, ...]
    required: tuple[str, ...]
    rich: tuple[str, ...]
    also: tuple[str, ...] = ()


_KINDS = (
    Kind(
        "benchmark",
        ("Benchmark",),
        ("name", "version", "description", "license", "matchSpec"),
        ("matchSpec", "mlTask", "evaluationMetrics", "evaluationResults", "baselines", "command"),
    ),
    Kind(
        "model",
        ("MLModel", "CreativeWork"),
        ("name", "version", "license", "mlTask"),
        ("mlTask", "trainedOn", "evaluationMetrics", "modelRisksBiasLimitations", "hyperparameters", "signature"),
        also=("LearnedModel", "AIModel"),
    ),
    Kind(
        "dataset",
        ("Dataset",),
        ("name", "version", "description", "license", "creator", "distribution"),
        ("distribution", "recordSet", "variableMeasured", "scienceDomain", "citation", "isLiveDataset"),
    ),
    Kind(
        "environment",
        ("Environment", "SoftwareApplication"),
        ("name", "version", "softwareRequirements"),
        ("softwareRequirements", "containerImage", "operatingSystem", "environmentVariables", "processorRequirements"),
    ),
    Kind(
        "workflow",
        ("ComputationalWorkflow", "SoftwareSourceCode", "HowTo"),
        ("name", "version", "programmingLanguage"),
        ("input", "output", "step", "programmingLanguage", "hasPart", "softwareRequirements"),
        also=("Workflow",),
    ),
    Kind(
        "run",
        ("CreateAction", "MLModelEvaluation"),
        ("name", "instrument", "object", "startTime", "actionStatus"),
        ("instrument", "object", "result", "environment", "runsOn", "seed", "evaluationResults"),
        also=("UpdateAction", "ActivateAction"),
    ),
    Kind(
        "system",
        ("SuperComputer",),
        ("name", "version"),
        (
            "cpuCorePerNode",
            "cpuModel",
            "gpuModel",
            "gpuArchitecture",
            "coprocessorCountPerNode",
            "interconnect",
            "operatingSystem",
        ),
        also=("Cluster", "Computer"),
    ),
    Kind(
        "binary",
        ("Binary", "SoftwareApplication"),
        ("name", "version", "license", "distribution"),
        ("distribution", "operatingSystem", "processorRequirements", "softwareRequirements", "codeRepository"),
    ),
    Kind(
        "program",
        ("SoftwareSourceCode",),
        ("name", "version", "license", "codeRepository"),
        (
            "codeRepository",
            "programmingLanguage",
            "softwareRequirements",
            "readme",
            "issueTracker",
            "developmentStatus",
        ),
        also=("SoftwareApplication", "File"),
    ),
)
# The order decides which asset a bare name means, and which kind a card of several types is.
KINDS: dict[str, Kind] = {kind.name: kind for kind in _KINDS}
# What people type for a kind in other systems.
KIND_SYNONYMS = {
    "code": "program",
    "script": "program",
    "software": "program",
    "env": "environment",
    "experiment": "workflow",
    "result": "run",
    "data": "dataset",
    "machine": "system",
    "executable": "binary",
    "library": "binary",
    "object": "binary",
}


def kind_of_types(types: Iterable[str]) -> str | None:
    """Return the kind a card with these JSON-LD types is of."""
    return _kind_of(tuple(types))


@lru_cache(maxsize=100)
def _kind_of(types: tuple[str, ...]) -> str | None:
    local = {text.rsplit("/", 1)[-1].rsplit("#", 1)[-1].rsplit(":", 1)[-1] for text in types}
    for kind in _KINDS:
        if kind.types[0] in local or local & set(kind.also):
            return kind.name
    return None
