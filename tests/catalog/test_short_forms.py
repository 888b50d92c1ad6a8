"""Short texts in place of JSON: what each property makes of them."""

from __future__ import annotations

from typing import Any

import pytest
from cases import for_each
from hypothesis import given
from hypothesis import strategies as st

from fairmile.base.errors import UsageError
from fairmile.catalog.principles import rules
from fairmile.catalog.short_forms import expand, extended

ORCID = "https://orcid.org/0000-0002-1825-0097"
SHA = "8bf2edfa0f7d4acf4ac17585f05ab8f9ab8ad05f6b0dde24f7e555d5a2704c68"


@for_each(
    "key, text, value",
    [
        ("creator", "Ada Lovelace (0000-0002-1825-0097)", {"@type": "Person", "@id": ORCID, "name": "Ada Lovelace"}),
        ("creator", f"Ada Lovelace ({ORCID})", {"@type": "Person", "@id": ORCID, "name": "Ada Lovelace"}),
        (
            "publisher",
            "An Institute (05v3mvq14)",
            {"@type": "Organization", "@id": "https://ror.org/05v3mvq14", "name": "An Institute"},
        ),
        ("contactPoint", "Ada <ada@institute.edu>", {"name": "Ada", "email": "ada@institute.edu"}),
        ("creator", "Ada Lovelace", "Ada Lovelace"),
        ("creator", "Los Alamos National Laboratory (LANL)", "Los Alamos National Laboratory (LANL)"),
        ("variableMeasured", "depth [m]", {"@type": "PropertyValue", "name": "depth", "unitText": "m"}),
        (
            "evaluationResults",
            "mae=0.25 K",
            {"@type": "PropertyValue", "propertyID": "mae", "value": 0.25, "unitText": "K"},
        ),
        ("baselines", "mae=0.5", {"metric": "mae", "value": 0.5}),
        ("hyperparameters", "lr=0.1, layers=3, loss=mse", {"lr": 0.1, "layers": 3, "loss": "mse"}),
        ("environmentVariables", "OMP_NUM_THREADS=4", {"OMP_NUM_THREADS": "4"}),
        (
            "matchSpec",
            "domain=cosmology, models=a, models=b, metric=mae",
            {"domain": "cosmology", "models": ["a", "b"], "metric": "mae"},
        ),
        (
            "signature",
            "image float32 1x28x28 -> digit int64 1",
            {
                "inputs": [{"name": "image", "dtype": "float32", "shape": [1, 28, 28]}],
                "outputs": [{"name": "digit", "dtype": "int64", "shape": [1]}],
            },
        ),
        (
            "recordSet",
            "lake: time date, depth float [m]",
            {
                "@type": "RecordSet",
                "name": "lake",
                "field": [
                    {"@type": "Field", "name": "time", "dataType": "sc:Date"},
                    {"@type": "Field", "name": "depth", "dataType": "sc:Float", "unitText": "m"},
                ],
            },
        ),
        (
            "containerImage",
            f"docker.io/org/torch:2.4@sha256:{SHA}",
            {"@type": "ContainerImage", "registry": "docker.io", "name": "org/torch", "tag": "2.4", "sha256": SHA},
        ),
        ("input", "data text/csv", {"@type": "FormalParameter", "name": "data", "encodingFormat": "text/csv"}),
        ("@context", "colour=https://w3id.org/mine#colour", {"colour": "https://w3id.org/mine#colour"}),
        ("@context", "https://w3id.org/fairmile/card/1.0/context", "https://w3id.org/fairmile/card/1.0/context"),
        ("description", "a=b", "a=b"),
        ("creator", {"name": "kept (0000-0002-1825-0097)"}, {"name": "kept (0000-0002-1825-0097)"}),
    ],
)
def test_a_text_means_the_object_of_its_property(key: str, text: Any, value: Any) -> None:
    assert expand(key, text) == value
    assert expand(key, [text]) == [value]


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        ("creator", "Ada (0000-0002-1825-0098)", "0000-0002-1825-0098 is not an ORCID"),
        ("recordSet", "lake: depth", "'depth' is not NAME TYPE"),
        ("signature", "image -> digit int64", "'image' is not NAME TYPE SIZExSIZE"),
    ],
)
def test_a_text_that_has_a_mistake_is_refused(key: str, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        expand(key, text)


def test_adding_a_person_who_is_there_completes_the_entry() -> None:
    before = [{"name": "Ada", "affiliation": "ANL"}, "Charles"]
    after = extended("creator", before, "Ada (0000-0002-1825-0097)")
    assert after == [{"name": "Ada", "affiliation": "ANL", "@type": "Person", "@id": ORCID}, "Charles"]
    assert extended("creator", after, "Charles (0000-0002-1825-0097)")[1]["@id"] == ORCID
    assert len(extended("creator", after, "Mary (0000-0002-1825-0097)")) == 3


def test_adding_a_package_that_is_there_replaces_its_version() -> None:
    assert extended("softwareRequirements", ["torch>=2", "numpy"], "torch==2.4") == ["torch==2.4", "numpy"]
    assert extended("softwareRequirements", "torch", "torchvision==1") == ["torch", "torchvision==1"]


@given(key=st.sampled_from(sorted(rules()["placeholders"])), text=st.text(max_size=60))
def test_any_text_is_taken_or_refused(key: str, text: str) -> None:
    try:
        expand(key, text)
    except UsageError as error:
        assert str(error)
