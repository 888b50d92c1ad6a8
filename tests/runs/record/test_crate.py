"""The card of a run: what it says, that the validator accepts it, and that the catalog reads it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from cases import for_each
from rocrate_validation import validate_crate
from run_documents import CREATED, lay_run, sha256, training, trivial

from fairmile.catalog.catalog import Catalog
from fairmile.catalog.exchange import read
from fairmile.catalog.exchange.common.jsonld import vocabulary
from fairmile.catalog.exchange.draft import Document
from fairmile.catalog.folder import CatalogFolder
from fairmile.runs.record.crate import FileFacts, card, card_text
from fairmile.runs.record.layout import CARD
from fairmile.runs.record.record import RunRecord


@pytest.fixture(scope="module")
def offline_rocrate_validator() -> Callable[..., list[str]]:
    """The function that has a crate judged by roc-validator without a network."""
    pytest.importorskip("rocrate_validator", reason="roc-validator is not installed")
    pytest.importorskip("rocrate", reason="the rocrate package, which brings the context, is not installed")
    return validate_crate


Entities = Mapping[str, Mapping[str, Any]]


def entities(document: Mapping[str, Any], files: Mapping[str, FileFacts] | Path | None = None) -> Entities:
    return {
        each["@id"]: each for each in card(RunRecord.from_dict(document), files if files is not None else {})["@graph"]
    }


def action(found: Entities) -> Mapping[str, Any]:
    [only] = [each for each in found.values() if "CreateAction" in each["@type"]]
    return only


def behind(found: Entities, value: Any) -> list[Mapping[str, Any]]:
    links = value if isinstance(value, list) else [value]
    return [found[each["@id"]] for each in links]


def write_run(root: Path, document: Mapping[str, Any]) -> Path:
    folder = lay_run(root, document)
    (folder / CARD).write_text(card_text(RunRecord.from_dict(document), folder), encoding="utf-8")
    return folder


# What it says


def test_an_action_says_what_ran_with_what_and_what_came_out() -> None:
    found = entities(training())
    run = action(found)
    assert run["description"] == "python train.py --note 'two words'"
    assert (run["startTime"], run["endTime"]) == ("2026-11-17T04:33:20.125+00:00", "2026-11-17T04:33:20.375+00:00")
    assert run["actionStatus"] == "http://schema.org/CompletedActionStatus" and "error" not in run
    [program] = behind(found, run["instrument"])
    assert program["@type"] == "SoftwareSourceCode"
    assert program["version"] == f"{'c' * 40}+{sha256(b'+x' + bytes([10]))[:12]}"
    assert program["codeRepository"] == "https://git.example.net/p.git"
    assert program["softwareRequirements"] == ["numpy==2.1.0", "torch==2.4"]
    [code] = behind(found, program["hasPart"])
    assert (code["name"], code["sha256"]) == ("train.py", sha256(b"code"))
    inputs = behind(found, run["object"])
    assert (inputs[0]["name"], inputs[0]["sha256"], inputs[0]["identifier"]) == (
        "my data",
        sha256(b"in"),
        "dataset/mnist",
    )
    assert {each["name"]: each["value"] for each in inputs[1:]} == {
        "lr": 0.1,
        "epochs": 2,
        "deep": True,
        "note": "größer als 1",
        "none": "null",
    }
    results = {each["name"]: each for each in behind(found, run["result"])}
    assert results["model é.pt"]["sha256"] == sha256(b"weights")
    assert results["loss"]["value"] == 0.5
    assert results["val accuracy/größe"]["unitText"] == "%"
    assert (results["energy"]["value"], results["energy"]["unitText"]) == (1234.5, "J")
    assert "nvml" in results["energy"]["measurementTechnique"], "a measured number names its source"
    [agent] = behind(found, run["agent"])
    assert (agent["@type"], agent["name"]) == ("Person", "Ada Løvelace")
    [machine] = behind(found, run["runsOn"])
    assert (machine["gpuModel"], machine["coprocessorCountPerNode"]) == ("NVIDIA H200", 2)
    assert (run["seed"], run["computeNodeCount"], run["keywords"]) == (42, 2, "nightly")
    [variable] = behind(found, run["environment"])
    assert (variable["name"], variable["value"]) == ("OMP_NUM_THREADS", "4")
    assert {each["name"] for each in behind(found, run["resourceUsage"])} >= {"cpu_s", "max_rss_bytes", "elapsed_s"}


def test_a_failed_run_says_why() -> None:
    run = action(entities(trivial("failed", reason="exit code 3")))
    assert (run["actionStatus"], run["error"]) == ("http://schema.org/FailedActionStatus", "exit code 3")


@for_each(
    "result, error",
    [
        ({"reason": "", "signal": "KILL", "exit_code": 137}, "failed: killed by KILL"),
        ({"reason": "", "signal": "", "exit_code": 9}, "failed: exit code 9"),
        ({"reason": "", "signal": "", "exit_code": None}, "failed"),
    ],
)
def test_a_failure_without_a_reason_says_what_is_known(result: Mapping[str, Any], error: str) -> None:
    assert action(entities(trivial("failed", **result)))["error"] == error


def test_a_run_that_goes_on_has_no_end() -> None:
    run = action(entities(trivial() | {"result": None, "state": "running"}))
    assert run["actionStatus"] == "http://schema.org/ActiveActionStatus"
    assert "endTime" not in run and "error" not in run


def test_numbers_that_json_cannot_say_are_texts() -> None:
    document = training()
    document["spec"]["params"] = {"limit": float("inf")}
    document["result"]["metrics"]["loss"]["value"] = "NaN"
    found = {each["name"]: each.get("value") for each in entities(document).values() if "value" in each}
    assert (found["limit"], found["loss"]) == ("Infinity", "NaN")
    json.loads(
        card_text(RunRecord.from_dict(document), {}), parse_constant=lambda name: pytest.fail(f"{name} is no JSON")
    )


def test_names_that_are_no_utf_8_do_not_spoil_the_card(tmp_path: Path) -> None:
    document = training()
    document["result"]["outputs"] = {"a\udcff.bin": {"sha256": sha256(b"weights"), "size_bytes": 7}}
    text = card_text(RunRecord.from_dict(document), {"work/a\udcff.bin": FileFacts(7, sha256(b"weights"))})
    text.encode()
    assert "work/a%FF.bin" in {each["@id"] for each in json.loads(text)["@graph"]}


def test_the_files_of_a_folder_are_parts_with_size_and_digest(tmp_path: Path) -> None:
    document = training()
    folder = lay_run(tmp_path, document)
    found = entities(document, folder)
    parts = {each["name"]: each for each in behind(found, found["./"]["hasPart"])}
    assert set(parts) == {"run.json", "events.jsonl", "output.log", "work/model é.pt"}
    assert parts["output.log"]["sha256"] == sha256(b"epoch 1\nepoch 2\n")
    assert parts["output.log"]["contentSize"] == "16"
    assert "sha256" not in parts["run.json"], "the record is replaced when the run is collected"
    assert parts["work/model é.pt"]["@id"] == "work/model%20%C3%A9.pt"
    assert {"@id": "work/model%20%C3%A9.pt"} in action(found)["result"]


def test_an_output_outside_of_the_folder_is_named_by_its_digest(tmp_path: Path) -> None:
    document = training()
    document["spec"]["folder"] = "/somewhere/else"
    found = entities(document, lay_run(tmp_path, document))
    [output] = [each for each in behind(found, action(found)["result"]) if each["name"] == "model é.pt"]
    assert output["@id"].startswith("#") and output["sha256"] == sha256(b"weights")


def test_a_folder_that_vanished_still_gets_a_card(tmp_path: Path) -> None:
    assert "hasPart" not in entities(trivial(), tmp_path / "gone")["./"]


def test_terms_have_the_addresses_that_the_catalog_knows_them_by() -> None:
    own = card(RunRecord.from_dict(trivial()), {})["@context"][1]
    known = vocabulary().iris
    assert {name: iri for name, iri in own.items() if known.get(name) != iri} == {}


def test_no_secret_gets_in_through_the_variables_of_the_specification() -> None:
    document = training()
    document["spec"]["env"] = {"HF_TOKEN": "hf_secret"}
    assert "hf_secret" not in card_text(RunRecord.from_dict(document), {})


def test_the_card_needs_nothing_heavy() -> None:
    script = (
        "import sys, fairmile.runs.record.crate\n"
        "assert not {'pydantic', 'rocrate', 'numpy', 'fairmile.catalog'} & set(sys.modules), sorted(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_no_entity_stands_twice_in_the_graph() -> None:
    document = training()
    document["captured"]["code"]["files"] *= 2
    document["result"]["usage"]["elapsed_s"] = 1.0
    ids = [each["@id"] for each in card(RunRecord.from_dict(document), {})["@graph"]]
    assert len(ids) == len(set(ids))


# The validator


def _interrupted() -> dict[str, Any]:
    document = trivial("interrupted", reason="", ended=None, elapsed_s=None, exit_code=None, usage={})
    document["spec"]["argv"] = ["sleep", "größe mit blank"]
    return document


def _odd() -> dict[str, Any]:
    document = training("odd-1")
    document["spec"]["argv"] = ["./run me.sh", "日本語", "a:b", "--x=#%?"]
    document["spec"]["asset"] = ""
    document["captured"]["code"] = {"files": []}
    document["captured"]["agent"] = "Zoë"
    document["result"]["outputs"] = {
        name: {"sha256": sha256(b"weights"), "size_bytes": 7} for name in ("a b.txt", "ü#1?.bin", "c:d", "100%.csv")
    }
    return document


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "document",
    [
        pytest.param(trivial(), id="done", marks=pytest.mark.thorough),
        pytest.param(training(), id="training"),
        pytest.param(trivial("failed"), id="failed", marks=pytest.mark.thorough),
        pytest.param(_interrupted(), id="killed", marks=pytest.mark.thorough),
        pytest.param(_odd(), id="odd names", marks=pytest.mark.thorough),
        pytest.param(trivial() | {"result": None, "state": "running"}, id="running", marks=pytest.mark.thorough),
    ],
)
def test_the_validator_accepts_it_as_process_run_crate(
    document: dict[str, Any], tmp_path: Path, offline_rocrate_validator: Callable[..., list[str]]
) -> None:
    assert offline_rocrate_validator(write_run(tmp_path, document), "process-run-crate-0.5") == []


@pytest.mark.filterwarnings("ignore")
def test_the_validator_would_notice(tmp_path: Path, offline_rocrate_validator: Callable[..., list[str]]) -> None:
    folder = write_run(tmp_path, training())
    text = (folder / CARD).read_text(encoding="utf-8")
    (folder / CARD).write_text(text.replace('"instrument"', '"about"'), encoding="utf-8")
    (folder / "output.log").unlink()
    found = " ".join(offline_rocrate_validator(folder, "process-run-crate-0.5"))
    assert "instrument" in found and "output.log" in found


# The catalog


def test_the_catalog_reads_a_run_and_its_program(tmp_path: Path) -> None:
    folder = write_run(tmp_path, training())
    run, program = read(Document.from_file(folder / CARD))
    assert (run.kind, program.kind) == ("run", "program")
    assert run.iri == "urn:fairmile:run:train-k3x9qa"
    assert run["name"] == "train-k3x9qa"
    assert run["instrument"] == [program.iri]
    assert {each["name"]: each["value"] for each in run["evaluationResults"]}["loss"] == 0.5
    assert run["runsOn"]["gpuModel"] == "NVIDIA H200"
    files = {each["name"]: each for each in run["distribution"]}
    assert files["work/model é.pt"]["sha256"] == sha256(b"weights")
    assert program["version"].startswith("c" * 40)
    assert not [each for each in run.get("warnings", []) if each["field"] != "license"]


def test_a_run_is_found_in_the_catalog_after_it_was_added(tmp_path: Path) -> None:
    folder = write_run(tmp_path, training())
    catalog = Catalog(tmp_path / "home", builtin=CatalogFolder("builtin", tmp_path / "builtin"))
    catalog.add(folder / CARD)
    [hit] = catalog.search("train", kind="run")
    assert str(hit.handle).startswith("local/run/train-k3x9qa@")
    assert catalog.get(str(hit.handle))["startTime"].startswith("2026-11-17T04:33:20")


def test_the_times_of_a_card_are_utc() -> None:
    document = trivial(started=0.0, ended=0.0005)
    document["created"] = CREATED
    run = action(entities(document))
    assert run["endTime"] == "1970-01-01T00:00:00.000+00:00"
