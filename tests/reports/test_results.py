"""Scores and figures of a benchmark in the report of its run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from run_documents import sha256, trivial

from fairmile.meter.footprint import Supply
from fairmile.reports.one_run import document_of
from fairmile.reports.page import report
from fairmile.reports.results import results_of
from fairmile.runs.record.layout import WORK
from fairmile.runs.record.record import OutputFile, RunRecord
from fairmile.runs.record.run import Run

RESULTS = {
    "benchmark": "Quake",
    "data": "a made-up catalog",
    "metric": {"name": "nnse", "better": "higher", "target": 0.8},
    "seed": 3,
    "scores": [
        {"kind": "trivial", "name": "mean", "values": {"nnse": 0.5}, "note": ""},
        {"kind": "model", "name": "tft <b>", "values": {"nnse": 0.734567, "skill": 0.1}, "note": "three seeds"},
    ],
    "published": [{"name": "TFT", "metric": "nnse", "value": 0.937, "source": "doi:10.3390/geohazards3020011"}],
    "notes": ["Windows overlap."],
    "figures": ["map_of_scores.svg", "../secret.svg", "program.html"],
}
SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'


@pytest.fixture
def run(tmp_path: Path) -> Run:
    work = tmp_path / "run-k3x9qa" / WORK
    work.mkdir(parents=True)
    files = {"results.json": json.dumps(RESULTS).encode(), "map_of_scores.svg": SVG, "program.html": b"<p>"}
    for name, data in files.items():
        (work / name).write_bytes(data)
    (work.parent / "secret.svg").write_bytes(SVG)
    outputs = {name: {"size_bytes": len(data), "sha256": sha256(data)} for name, data in files.items()}
    outputs["../secret.svg"] = {"size_bytes": len(SVG), "sha256": sha256(SVG)}
    return Run(RunRecord.from_dict(trivial(outputs=outputs)), work.parent)


def test_every_method_stands_in_one_table_with_what_was_published(run: Run) -> None:
    text = report([run], supply=Supply()).markdown()
    assert "Quake on a made-up catalog, seed 3." in text
    assert "| mean | trivial | 0.5 |" in text
    assert "0.7346" in text
    assert "three seeds" in text
    assert "the target of the benchmark is 0.8" in text
    assert "| TFT | nnse | 0.937 | doi:10.3390/geohazards3020011 |" in text
    assert "Windows overlap." in text


def test_of_many_metrics_each_has_a_row_and_each_method_a_column(run: Run) -> None:
    values = {f"nnse_{week}wk": week / 100 for week in range(12)}
    scores = [{"kind": kind, "name": kind, "values": values, "note": "weighted"} for kind in ("trivial", "model")]
    data = json.dumps({**RESULTS, "scores": scores}).encode()
    (run.folder / WORK / "results.json").write_bytes(data)
    run.result.outputs["results.json"] = OutputFile(size_bytes=len(data), sha256=sha256(data))
    text = report([run], supply=Supply()).markdown()
    assert "| metric | model | trivial |" in text
    assert r"| nnse\_11wk | 0.11 | 0.11 |" in text
    assert "model: weighted" in text


def test_a_figure_is_an_image_and_never_markup(run: Run) -> None:
    page = report([run], supply=Supply()).html()
    assert '<img alt="Map of scores" src="data:image/svg+xml;base64,' in page
    assert "alert(1)" not in page
    assert "tft &lt;b&gt;" in page
    assert "tft <b>" not in page


def test_no_file_outside_of_the_folder_and_no_other_format_is_shown(run: Run) -> None:
    page = report([run], supply=Supply()).html()
    assert page.count("<img ") == 1


def test_the_data_of_the_report_has_the_scores(run: Run) -> None:
    assert document_of(run, Supply())["results"]["scores"][1]["values"]["nnse"] == 0.734567


@pytest.mark.parametrize("text", ["", "{", "[]", '{"scores": 3}', '{"benchmark": "x"}'])
def test_a_file_of_that_name_that_is_no_result_is_left_alone(run: Run, text: str) -> None:
    data = text.encode()
    (run.folder / WORK / "results.json").write_bytes(data)
    run.result.outputs["results.json"] = OutputFile(size_bytes=len(data), sha256=sha256(data))
    assert results_of(run) is None
    assert "Scores" not in report([run], supply=Supply()).markdown()


def test_other_bytes_than_the_record_tells_of_are_not_shown(run: Run) -> None:
    changed = {**RESULTS, "seed": 4}
    (run.folder / WORK / "results.json").write_text(json.dumps(changed))
    assert results_of(run) is None


@pytest.mark.parametrize(
    "odd",
    [
        {"metric": "nnse"},
        {"metric": {"name": "nnse", "better": "higher", "target": "high"}},
        {"notes": 3, "published": "TFT", "figures": {"a": 1}},
        {"published": ["TFT", {"value": 10**400}], "figures": [None, 3]},
        {"scores": [3, {"values": 3}, {"kind": "model", "values": {"nnse": 10**400, "skill": "much"}}]},
    ],
)
def test_parts_that_a_program_wrote_otherwise_do_not_break_the_report(run: Run, odd: dict[str, object]) -> None:
    data = json.dumps({**RESULTS, **odd}).encode()
    (run.folder / WORK / "results.json").write_bytes(data)
    run.result.outputs["results.json"] = OutputFile(size_bytes=len(data), sha256=sha256(data))
    assert "Quake on a made-up catalog, seed 3." in report([run], supply=Supply()).markdown()


def given_out(tmp_path: Path, **files: bytes) -> Run:
    """Return a plain run with these outputs; `_` in a name stands for the dot."""
    work = tmp_path / "run-k3x9qa" / WORK
    work.mkdir(parents=True)
    outputs = {}
    for word, data in files.items():
        name = word.replace("_", ".")
        (work / name).write_bytes(data)
        outputs[name] = {"size_bytes": len(data), "sha256": sha256(data)}
    return Run(RunRecord.from_dict(trivial(outputs=outputs)), work.parent)


PNG = b"\x89PNG\r\n\x1a\n" + b"\0\0\0\rIHDR" + (4).to_bytes(4, "big") * 2


def test_images_and_tables_that_any_run_gives_out_are_shown(tmp_path: Path) -> None:
    rows = "\n".join(f"S{at},{at / 10}" for at in range(80))
    run = given_out(
        tmp_path, fit_svg=SVG, field_png=PNG, stations_csv=f"station,bias\n{rows}\n".encode(), log_txt=b"a,b"
    )
    page = report([run], supply=Supply()).html()
    assert "Images and tables" in page
    assert "data:image/png;base64" in page
    assert "<script>alert" not in page
    assert "stations.csv. The first 50 of 80 rows are shown." in page
    assert '<td class="number" data-sort="0.10000000000000001">0.1</td>' in page
    assert "S49" in page
    assert "S50" not in page


def test_an_image_has_the_title_that_it_states_or_that_of_its_file(tmp_path: Path) -> None:
    titled = b"<svg xmlns='http://www.w3.org/2000/svg'>\n <title>Skill &amp; <b>error</b></title></svg>"
    run = given_out(tmp_path, a_svg=titled.replace(b"<b>error</b>", b"error"), b_svg=titled, mapc_svg=SVG)
    page = report([run], supply=Supply()).html()
    assert '<img alt="Skill &amp; error"' in page
    assert '<img alt="B"' in page and '<img alt="Mapc"' in page


@pytest.mark.parametrize(
    "files",
    [
        {"fake_png": b"<html>"},
        {"bomb_png": PNG[:16] + (60_000).to_bytes(4, "big") * 2},
        {"empty_csv": b""},
        {"line_csv": b"only a heading\n"},
        {"bytes_csv": b"a,b\n\x00\xff" + b"x" * 200_000},
    ],
    ids=lambda files: next(iter(files)),
)
def test_what_is_no_image_or_table_is_left_out_or_cut(tmp_path: Path, files: dict[str, bytes]) -> None:
    page = report([given_out(tmp_path, **files)], supply=Supply()).html()
    assert "data:image/png" not in page
    assert len(page) < 60_000
