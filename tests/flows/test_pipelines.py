"""Scripts applied to data sets of the catalog, with arguments that they declare."""

from __future__ import annotations

from pathlib import Path

import pytest
from pipeline_cards import card

from fairmile.base.errors import NotFound, RunFailed, UsageError
from fairmile.compat import hpcfair_dataset
from fairmile.workspace import Workspace

SCRIPT = """\
import argparse, pathlib
parser = argparse.ArgumentParser()
parser.add_argument("data")
parser.add_argument("--num_threads", type=int, default=1)
given = parser.parse_args()
rows = sorted(pathlib.Path(given.data, "raw.txt").read_text().split())
pathlib.Path("clean.txt").write_text(f"{' '.join(rows)} by {given.num_threads}")
"""


@pytest.fixture
def data(workspace: Workspace, tmp_path: Path) -> Workspace:
    """A workspace with a data set that brings its own script, and a program that reads it."""
    folder = tmp_path / "data"
    folder.mkdir()
    for name, text in (("raw.txt", "3\n1\n2\n"), ("sort.py", SCRIPT)):
        (folder / name).write_text(text)
    workspace.catalog.add(card("Dataset", "gauges", [folder / "raw.txt", folder / "sort.py"]))
    program = card("SoftwareSourceCode", "sorter", [folder / "sort.py"], command="{python} sort.py {inputs.data}")
    workspace.catalog.add(program)
    return workspace


def test_a_script_is_applied_to_a_data_set_once(data: Workspace) -> None:
    Path("clean.py").write_text(SCRIPT)
    done = data.datasets.apply("gauges", "clean.py", num_threads=4)
    assert done.to_dict() | {"run": ""} == {
        "dataset": "local/dataset/gauges@1.0",
        "script": "clean.py",
        "folder": str(Path("gauges-clean").absolute()),
        "files": ["clean.txt"],
        "run": "",
    }
    assert Path(done, "clean.txt").read_text() == "1 2 3 by 4"
    assert data.datasets.apply("gauges", "clean.py", num_threads=4).run == done.run
    assert data.datasets.apply("gauges", "clean.py", num_threads=2).run != done.run
    assert data.runs.get(done.run).spec.inputs["data"].asset == "local/dataset/gauges@1.0"


def test_a_script_may_be_a_file_of_the_data_set_or_an_asset(data: Workspace) -> None:
    done = data.datasets.apply("gauges", "sort.py", to="own", num_threads=3)
    assert Path(done, "clean.txt").read_text() == "1 2 3 by 3"
    assert Path(data.datasets.apply("gauges", "sorter"), "clean.txt").read_text() == "1 2 3 by 1"


def test_the_published_call_takes_a_folder(data: Workspace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FAIRMILE_HOME", str(tmp_path / "home"))
    assert hpcfair_dataset.apply("gauges", "here", "sort.py", num_threads=2).files == ["clean.txt"]
    assert Path("here/clean.txt").read_text() == "1 2 3 by 2"


def test_a_script_that_fails_or_is_not_there_is_an_error(data: Workspace) -> None:
    Path("bad.py").write_text("raise SystemExit(3)\n")
    Path("notes.txt").touch()
    with pytest.raises(RunFailed, match=r"bad\.py on local/dataset/gauges@1\.0"):
        data.datasets.apply("gauges", "bad.py")
    with pytest.raises(UsageError, match="nothing uses the parameter threads"):
        data.datasets.apply("gauges", "bad.py", threads=4)
    with pytest.raises(UsageError, match=r"notes\.txt is not a program"):
        data.datasets.apply("gauges", "notes.txt")
    with pytest.raises(NotFound, match=r"none\.py: no such file here, and local/dataset/gauges@1\.0 has no supporting"):
        data.datasets.apply("gauges", "none.py")
    with pytest.raises(NotFound):
        data.datasets.apply("gauges", "nothing")
    assert not Path("gauges-nothing").exists()
