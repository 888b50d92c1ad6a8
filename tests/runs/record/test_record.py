"""The record of a run: typed, complete, and able to read whatever an earlier version wrote."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest
from run_documents import training

from fairmile.base.errors import SystemFailure
from fairmile.cli import main
from fairmile.runs.record.layout import CARD, RECORD, parse_record, read_record, write_record
from fairmile.runs.record.record import (
    FORMAT,
    Attempt,
    CapturedInput,
    DeclaredMetric,
    JobReference,
    RecordedSpec,
    RunRecord,
    RunResult,
    TrialReference,
)
from fairmile.runs.record.run import Run, RunState
from fairmile.runs.record.spec import MetricSpec, RunSpec
from fairmile.runs.runs import Runs

SAMPLES = Path(__file__).parent / "samples"
FOLDERS = sorted(file.parent for file in SAMPLES.glob("*/*/run.json"))
PACKED, CRATE = SAMPLES / "first-packed.zip", SAMPLES / "first-crate.zip"

every_sample = pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: f"{folder.parent.name}/{folder.name}")


def lost(stated: Any, kept: Any, place: str = "") -> list[str]:
    """Return the places of what one document states and another one does not."""
    if isinstance(stated, Mapping) and isinstance(kept, Mapping):
        return [each for key, value in stated.items() for each in lost(value, kept.get(key, "lost"), f"{place}.{key}")]
    if isinstance(stated, list) and isinstance(kept, list) and len(stated) == len(kept):
        pairs = enumerate(zip(stated, kept, strict=True))
        return [each for index, (one, other) in pairs for each in lost(one, other, f"{place}.{index}")]
    return [] if stated == kept else [place]


def copy_sample(folder: Path, runs: Runs) -> str:
    """Put a sample among the runs of a workspace."""
    shutil.copytree(folder, runs.root / folder.name)
    return folder.name


class TestSamples:
    def test_there_is_one_of_every_earlier_version(self) -> None:
        known = {"first", "covered", "untouched", "trial", "foreign", "last"}
        assert {folder.parent.name for folder in FOLDERS} == known

    @every_sample
    def test_nothing_that_a_file_states_is_lost(self, folder: Path) -> None:
        stated = json.loads((folder / RECORD).read_bytes())
        record = read_record(folder)
        assert lost(stated, record.to_dict()) == []
        assert RunRecord.from_dict(record.to_dict()) == record
        assert record.extra == {}

    @every_sample
    def test_a_reader_gets_all_of_it(self, folder: Path) -> None:
        run = Run(read_record(folder), folder)
        assert run.state.is_end and run.result is not None
        assert run.spec.name == run.name and run.argv and run.elapsed_s is not None
        assert run.captured.code.snapshot or run.captured.code.trouble or not run.captured.code.is_known
        assert run.system == "n1" and run.record.attempts[-1].host == "n1"
        assert run.log().damaged == 0

    @every_sample
    def test_runs_show_shows_it(
        self,
        folder: Path,
        runs: Runs,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        id = copy_sample(folder, runs)
        monkeypatch.setenv("FAIRMILE_HOME", str(tmp_path / "home"))
        assert main.run(["runs", "show", id]) == 0
        assert f"{id}: {read_record(folder).state}" in capsys.readouterr().out
        assert main.run(["runs", "show", id, "--json"]) == 0
        assert lost(json.loads((folder / RECORD).read_bytes()), json.loads(capsys.readouterr().out)) == []

    @every_sample
    def test_it_is_listed_exported_and_imported(self, folder: Path, runs: Runs, tmp_path: Path) -> None:
        id = copy_sample(folder, runs)
        assert [(row.id, row.state) for row in runs.rows()] == [(id, runs.get(id).state)]
        record = runs.get(id).record
        record.captured.code.snapshot = ""  # which the store of this test does not have
        write_record(runs.root / id, record)
        (crate,) = runs.export(id, "rocrate", tmp_path / "crate.zip")
        runs.remove([id])
        (again,) = runs.import_runs(crate)
        assert (again.record.spec, again.record.result) == (record.spec, record.result)

    def test_what_the_first_version_wrote_means_what_it_meant(self) -> None:
        (folder,) = (SAMPLES / "first").glob("train-*")
        run = Run(read_record(folder), folder)
        assert (run.state, run.params, run.spec.seed, run.tags) == (RunState.DONE, {"lr": 0.1}, 3, ["nightly"])
        assert run.metrics["loss"].value == 0.5 and list(run.outputs) == ["model.txt"]
        assert run.captured.inputs["data"].size_bytes == 2 and run.captured.code.git is not None
        (failed,) = (SAMPLES / "first").glob("sh-*")
        assert Run(read_record(failed), failed).reason == "exit code 3"

    def test_what_later_versions_added_is_read(self) -> None:
        by_name: dict[str, list[RunRecord]] = {}
        for folder in FOLDERS:
            by_name.setdefault(folder.parent.name, []).append(read_record(folder))
        assert by_name["first"][0].captured.coverage is None
        assert by_name["covered"][0].captured.coverage is not None
        assert by_name["untouched"][0].result.untouched == ["data.txt"]  # type: ignore[union-attr]
        trial = by_name["trial"][0].trial
        assert trial is not None and (trial.number, trial.objectives) == (0, {"loss": "lower"})
        imported, again = sorted(by_name["foreign"], key=lambda record: record.foreign)
        assert imported.imported["from"] == "the crate c.zip" and again.rerun_of == imported.id

    def test_a_packed_run_is_read_and_unpacked(self, runs: Runs) -> None:
        (folder,) = (SAMPLES / "first").glob("train-*")
        runs.root.mkdir(parents=True)
        shutil.copy(PACKED, runs.root / f"{folder.name}.zip")
        run = runs.get(folder.name)
        assert run.packed and run.record == read_record(folder)
        assert runs.unpack(folder.name) == runs.root / folder.name

    def test_the_crate_of_the_first_version_is_done_again(self, runs: Runs) -> None:
        with pytest.raises(SystemFailure, match="is damaged"):
            parse_record(b"{}", "x")
        done = runs.rerun(str(CRATE), trust=True)
        assert done.again.state is RunState.DONE, runs.output(done.again.id)
        assert done.reproduced, done.verdicts
        assert done.again.record.foreign and done.again.record.rerun_of == done.original.id


class TestFiles:
    def test_keys_that_nobody_knows_stay_where_they_are(self, tmp_path: Path) -> None:
        document = training()
        document["colour"] = "blue"
        document["spec"]["shape"] = [1]
        document["captured"]["code"]["git"]["signed"] = True
        document["result"]["metrics"]["loss"]["p99"] = 1.5
        write_record(tmp_path, RunRecord.from_dict(document))
        assert lost(document, json.loads((tmp_path / RECORD).read_bytes())) == []

    @pytest.mark.parametrize("written", ["fairmile-run/2", "fairmile-run/17.1"])
    def test_one_of_a_later_version_is_refused_in_one_sentence(self, written: str, runs: Runs) -> None:
        (runs.root / "new-abcdef").mkdir(parents=True)
        file = runs.root / "new-abcdef" / RECORD
        file.write_text(json.dumps({**training("new-abcdef"), "format": written}))
        with pytest.raises(SystemFailure) as caught:
            runs.get("new-abcdef")
        assert str(caught.value) == f"{file} has the format {written}, and this version of Fairmile reads {FORMAT}"
        assert caught.value.hint and "update" in caught.value.hint
        (row,) = runs.rows()
        assert row.state is RunState.INTERRUPTED and written in row.reason

    @pytest.mark.parametrize(
        ("place", "value", "expected"),
        [
            (["result", "exit_code"], "zero", "result.exit_code is 'zero', expected a whole number"),
            (["result", "state"], "splendid", "result.state is 'splendid', expected one of queued, running"),
            (["result", "metrics", "loss", "value"], "much", "result.metrics.loss.value is 'much', expected a number"),
            (["result", "outputs"], [], "result.outputs is [], expected an object"),
            (["captured", "code", "files"], [1], "captured.code.files.0 is 1, expected an object"),
            (["spec", "argv"], ["a", None], "spec.argv.1 is None, expected a text"),
            (["spec", "anyway"], 1, "spec.anyway is 1, expected true or false"),
            (["attempts"], {}, "attempts is {}, expected a list"),
            (["format"], "other/1", "format is 'other/1', expected fairmile-run/1"),
            (["id"], "", "id is missing, expected the record of a run"),
            (["spec"], None, "spec is missing, expected the record of a run"),
        ],
    )
    def test_an_error_names_the_file_and_the_field(
        self, place: list[str], value: Any, expected: str, tmp_path: Path
    ) -> None:
        document = training()
        inner: Any = document
        for key in place[:-1]:
            inner = inner[key]
        inner[place[-1]] = value
        (tmp_path / RECORD).write_text(json.dumps(document))
        with pytest.raises(SystemFailure) as caught:
            read_record(tmp_path)
        assert str(caught.value).startswith(f"{tmp_path / RECORD} is damaged: {expected}")

    @pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"[]", b"1", b"null"])
    def test_what_is_no_json_object_is_told(self, data: bytes, tmp_path: Path) -> None:
        (tmp_path / RECORD).write_bytes(data)
        with pytest.raises(SystemFailure, match=str(tmp_path / RECORD)):
            read_record(tmp_path)


class TestParts:
    def test_a_recorded_specification_has_the_fields_and_defaults_of_the_one_that_is_asked_for(self) -> None:
        for recorded, asked in ((RecordedSpec, RunSpec), (DeclaredMetric, MetricSpec)):
            assert [each.name for each in fields(recorded) if each.name != "extra"] == list(asked.model_fields)
            for each in fields(recorded):
                if each.name == "extra":
                    continue
                default = each.default if each.default_factory is MISSING else each.default_factory()
                if asked.model_fields[each.name].is_required():
                    continue
                meant = asked.model_fields[each.name].default
                meant = list(meant) if isinstance(meant, tuple) else meant
                meant = meant.model_dump(exclude_defaults=True) if hasattr(meant, "model_dump") else meant
                assert default == meant, each.name

    def test_a_copy_can_be_changed_without_changing_the_other(self) -> None:
        record = RunRecord.from_dict(training())
        other = record.copy()
        assert other == record
        other.attempts.append(Attempt(started=1.0))
        other.captured.inputs["my data"].there = "/elsewhere"
        other.spec.argv.append("-v")
        assert record == RunRecord.from_dict(training())

    def test_what_many_runs_share_has_no_id(self) -> None:
        shared = RunRecord(spec=RecordedSpec(name="x", argv=["x"]))
        assert "id" not in shared.to_dict() and RunRecord.from_dict(shared.to_dict()) == shared

    def test_small_parts_are_written_as_before(self) -> None:
        assert JobReference(key="k", system="s").to_dict() == {"key": "k", "system": "s"}
        assert JobReference(key="k", system="s", task=0).to_dict() == {"key": "k", "system": "s", "task": 0}
        assert CapturedInput(sha256="a", place="data").to_dict() == {"sha256": "a", "place": "data"}
        assert TrialReference(study="s", number=0, objectives={"loss": "lower"}).to_dict() == {
            **{"study": "s", "number": 0},
            "objectives": {"loss": "lower"},
        }
        record = RunRecord(id="a", spec=RecordedSpec(argv=["x"]), result=RunResult(state=RunState.DONE))
        assert (record.to_dict()["format"], record.to_dict()["job"]) == (FORMAT, None)
        assert "untouched" not in record.to_dict()["result"]

    def test_an_agent_that_is_only_a_name_is_read(self) -> None:
        document = training()
        document["captured"]["agent"] = "Zoë"
        assert RunRecord.from_dict(document).captured.agent == {"name": "Zoë"}

    def test_the_record_needs_nothing_that_a_bare_machine_lacks(self) -> None:
        script = (
            "import sys\nimport fairmile.runs.record.layout, fairmile.runs.record.record\n"
            "print([name for name in sys.modules if name.split('.')[0] in ('pydantic', 'yaml', 'numpy', 'rfc8785')])\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", script], check=True, capture_output=True, text=True, env={"PATH": os.defpath}
        )
        assert done.stdout == "[]\n"

    def test_a_card_is_made_from_any_sample(self, tmp_path: Path) -> None:
        from fairmile.runs.record.crate import card_text

        for folder in FOLDERS:
            stated = json.loads((folder / CARD).read_bytes())["@graph"]
            made = json.loads(card_text(read_record(folder), folder))["@graph"]
            action = next(each for each in made if each["@id"] == f"urn:fairmile:run:{folder.name}")
            before = next(each for each in stated if each["@id"] == f"urn:fairmile:run:{folder.name}")
            for key in ("startTime", "endTime", "actionStatus", "error", "seed", "keywords"):
                assert action.get(key) == before.get(key)
