"""Answers of hubs in the shapes that their interfaces document, for a server that replays them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from replay import Replay, Reply

SAMPLES = Path(__file__).parents[1] / "catalog" / "exchange" / "samples"
RECORD = json.loads((SAMPLES / "zenodo" / "record.json").read_text())
FLOWERS = json.loads((SAMPLES / "openml" / "flowers.json").read_text())
COMMIT = "0123456789abcdef0123456789abcdef01234567"
README = "---\nlicense: cc-by-4.0\ntask_categories:\n- time-series-forecasting\n---\n# Lakes\n\nLevels of lakes.\n"
MODEL = {
    "_id": "621ffdc036468d709f17434d",
    "id": "institute/lake-net",
    "sha": COMMIT,
    "private": False,
    "gated": False,
    "downloads": 12,
    "likes": 3,
    "pipeline_tag": "time-series-forecasting",
    "tags": ["pytorch", "license:apache-2.0", "region:us"],
    "siblings": [{"rfilename": "README.md"}],
}
DATASET = {
    "id": "institute/lakes",
    "sha": COMMIT,
    "private": False,
    "description": "Levels of   lakes.",
    "tags": ["license:cc-by-4.0", "size_categories:1K<n<10K"],
}
SOURCE = {
    "data_id": 61,
    "name": "lake-flowers",
    "version": 1,
    "description": "Flowers at\nthe lake.",
    "licence": "CC0",
    "format": "ARFF",
    "status": "active",
}


@contextmanager
def recorded_hubs() -> Iterator[Replay]:
    """Serve the recorded answers to a search for `lake`."""
    with Replay() as replay:
        replay.replies |= {
            "/api/models?search=lake&limit=20&full=true": Reply([MODEL]),
            "/api/datasets?search=lake&limit=20&full=true": Reply([DATASET, {**DATASET, "private": True}]),
            "/api/records?q=lake&type=dataset&size=20": Reply({"hits": {"hits": [RECORD], "total": 1}}),
            "/api/records?q=lake&type=software&size=20": Reply({"hits": {"hits": [], "total": 0}}),
            "/data/_search?q=lake&default_operator=AND&size=20": Reply(
                {"hits": {"hits": [{"_source": SOURCE}, {"_source": {**SOURCE, "status": "deactivated"}}]}}
            ),
            "/api/records/10734921": Reply(RECORD),
            "/api/v1/json/data/61": Reply(FLOWERS),
            "/api/datasets/institute/lakes/revision/main": Reply({"sha": COMMIT, "gated": False}),
            f"/api/datasets/institute/lakes/tree/{COMMIT}?recursive=true&expand=false": Reply(
                [
                    {"type": "file", "path": "README.md", "size": len(README), "oid": "a" * 40},
                    {
                        "type": "file",
                        "path": "a.csv",
                        "size": 9,
                        "oid": "b" * 40,
                        "lfs": {"oid": "c" * 64, "size": 900},
                    },
                ]
            ),
            f"/datasets/institute/lakes/resolve/{COMMIT}/README.md": Reply(README.encode()),
        }
        yield replay


def settings(url: str) -> dict[str, str]:
    """Return the addresses of all hubs as those of one server."""
    return {"huggingface": url, "zenodo": url, "openml": url, "openml_search": url}
