"""Synthetic cards for measurements: Zipf-distributed text, so that a few words are in almost every card."""

from __future__ import annotations

import bisect
import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

VOCABULARY = 30_000
KINDS = ("Dataset", "MLModel", "SoftwareSourceCode", "Benchmark")
DOMAINS = ("cosmology", "climate", "materials", "seismology", "genomics", "fusion", "chemistry", "astronomy")
FRAMEWORKS = ("pytorch", "tensorflow", "jax", "keras")


class Writer:
    """Draws words by Zipf's law; the same seed gives the same cards."""

    def __init__(self, seed: int = 1) -> None:
        self.random = random.Random(seed)
        letters = "abcdefghijklmnopqrstuvwxyz"
        self.words = ["".join(self.random.choices(letters, k=self.random.randint(4, 9))) for _ in range(VOCABULARY)]
        self._weights = list(itertools.accumulate(1 / (rank + 1) for rank in range(VOCABULARY)))

    def word(self) -> str:
        return self.words[bisect.bisect(self._weights, self.random.random() * self._weights[-1])]

    def text(self, count: int) -> str:
        return " ".join(self.word() for _ in range(count))

    def card(self, number: int) -> dict[str, Any]:
        digest = f"{self.random.getrandbits(256):064x}"
        return {
            "@context": "https://w3id.org/fairmile/card/1.0/context",
            "@id": f"https://w3id.org/fairmile/speed/{number}",
            "@type": self.random.choice(KINDS),
            "name": f"{self.word()} {self.random.choice(self.words)} {number}",
            "version": "1.0",
            "description": self.text(self.random.randint(40, 120)),
            "keywords": [self.word() for _ in range(5)],
            "license": "https://spdx.org/licenses/CC-BY-4.0",
            "scienceDomain": self.random.choice(DOMAINS),
            "machineLearningFramework": self.random.choice(FRAMEWORKS),
            "creator": [{"@type": "Organization", "name": self.text(2)}],
            "distribution": [
                {
                    "@type": "FileObject",
                    "name": f"{number}.h5",
                    "contentUrl": f"https://data.example.org/{number}.h5",
                    "contentSize": f"{self.random.randint(1, 10**9)} B",
                    "encodingFormat": "application/x-hdf5",
                    "sha256": digest,
                }
            ],
        }


def write_catalog(root: Path, count: int, writer: Writer) -> Iterator[int]:
    """Write a catalog folder of that many cards; yields the number written."""
    from fairmile.catalog.card import Card

    for number in range(1, count + 1):
        body = writer.card(number)
        handle = Card(body).handle
        path = root / "cards" / handle.kind / handle.name / f"{handle.version}.jsonld"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(body), encoding="utf-8")
        yield number
