"""A run on disk, and packages that believe to be at home in the folder of the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from run_documents import lay_run, training

from fairmile.runs.record.crate import card_text
from fairmile.runs.record.layout import CARD
from fairmile.runs.record.record import RunRecord
from fairmile.runs.record.run import Run


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """MLflow, ClearML and OpenML write into the home folder as soon as they are imported."""
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(folder))
        for name in ("XDG_CONFIG_HOME", "XDG_CACHE_HOME", "CLEARML_CACHE_DIR"):
            patch.setenv(name, str(folder / name.lower()))
        patch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
        yield folder


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A training that is over, in its folder."""
    document = training()
    folder = lay_run(tmp_path / "runs", document)
    record = RunRecord.from_dict(document)
    (folder / CARD).write_text(card_text(record, folder), encoding="utf-8")
    return Run(record, folder)
