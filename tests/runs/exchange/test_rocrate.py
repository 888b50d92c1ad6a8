"""A run as RO-Crate: complete, valid, and proven by its digests when another workspace takes it."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rocrate_validation import validate_crate
from run_documents import lay_run, sha256, training, trivial

from fairmile.base.digest import merkle_root, scan_tree
from fairmile.base.errors import Conflict, Integrity, InvalidDocument, NotFound, UsageError
from fairmile.runs.exchange import EXCHANGES
from fairmile.runs.record.layout import CARD, RECORD, write_record
from fairmile.runs.record.packing import extract, pack, read_packed
from fairmile.runs.record.record import CapturedInput, RunRecord
from fairmile.runs.record.run import Run

rocrate = EXCHANGES["rocrate"]


def entities(crate: Path) -> dict[str, Any]:
    with zipfile.ZipFile(crate) as opened:
        return {each["@id"]: each for each in json.loads(opened.read(CARD))["@graph"]}


def members(crate: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(crate) as opened:
        return {name: opened.read(name) for name in opened.namelist()}


def rewritten(crate: Path, change: Callable[[dict[str, bytes]], object]) -> Path:
    """Write the crate anew with other members, as a program would that knows nothing of cards."""
    content = members(crate)
    change(content)
    with zipfile.ZipFile(crate, "w") as opened:
        for name, data in content.items():
            opened.writestr(name, data)
    return crate


def given_input(run: Run, path: Path) -> None:
    """Let the record say that the input lies there."""
    run.captured.inputs["my data"].path = str(path)
    write_record(run.folder, run.record)


@pytest.fixture
def crate(run: Run, tmp_path: Path) -> Path:
    """The crate of a run with its program and its input."""
    data = tmp_path / "x.csv"
    data.write_bytes(b"in")
    given_input(run, data)
    program = tmp_path / "program"
    (program / "lib").mkdir(parents=True)
    for name in ("train.py", "lib/größe.py"):
        (program / name).write_bytes(b"code")
    run.captured.code.snapshot = merkle_root(scan_tree(program))
    write_record(run.folder, run.record)

    def code() -> Iterator[tuple[str, Path]]:
        yield from ((name, program / name) for name in ("train.py", "lib/größe.py"))

    [made] = rocrate.export(run, tmp_path / "crates" / "one.zip", code=code, most_input_bytes=100)
    return made


# Out


def test_a_run_gives_the_same_crate_whenever_it_is_exported(run: Run, tmp_path: Path) -> None:
    crates = []
    for name in ("first", "second"):
        code = tmp_path / f"{name}.py"
        code.write_text("print()")
        os.utime(code, (1e9, 1e9 if name == "first" else 2e9))
        rocrate.export(run, tmp_path / name, code=lambda code=code: [("tide.py", code)])  # type: ignore[misc]
        crates.append((tmp_path / name).read_bytes())
    assert crates[0] == crates[1]


def test_the_card_lists_every_file_with_its_digest(crate: Path) -> None:
    found = entities(crate)
    content = members(crate)
    assert set(content) == {
        *(RECORD, CARD, "events.jsonl", "output.log", "work/model é.pt"),
        *("code/train.py", "code/lib/größe.py", "inputs/my data"),
    }
    by_name = {each["name"]: each for each in found.values() if "File" in each["@type"]}
    assert {name: each["sha256"] for name, each in by_name.items()} == {
        name: sha256(data) for name, data in content.items() if name != CARD
    }


def test_the_action_points_to_the_program_and_the_input_in_the_crate(crate: Path) -> None:
    found = entities(crate)
    action = found["urn:fairmile:run:train-k3x9qa"]
    assert action["object"][0] == {"@id": "inputs/my%20data"}
    assert {"@id": "code/train.py"} in found["#program"]["hasPart"]


@pytest.mark.filterwarnings("ignore")
def test_the_validator_accepts_the_crate(crate: Path, tmp_path: Path) -> None:
    pytest.importorskip("rocrate_validator", reason="roc-validator is not installed")
    extract(crate, tmp_path / "crate")
    assert validate_crate(tmp_path / "crate", "process-run-crate-0.5") == []


def test_the_crate_is_a_packed_run_as_well(crate: Path, run: Run) -> None:
    assert read_packed(crate) == run.record


def test_an_input_that_is_a_folder_is_taken_with_all_its_files(run: Run, tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "deep").mkdir(parents=True)
    (data / "a.txt").write_bytes(b"a")
    (data / "deep" / "b.txt").write_bytes(b"bb")
    digest = merkle_root(list(scan_tree(data)))
    run.captured.inputs = {"set": CapturedInput(path=str(data), sha256=digest, size_bytes=3, files=2)}
    write_record(run.folder, run.record)
    [made] = rocrate.export(run, tmp_path / "x.zip", most_input_bytes=3)
    assert members(made)["inputs/set/deep/b.txt"] == b"bb"
    folder = entities(made)["inputs/set/"]
    assert folder["@type"] == "Dataset" and len(folder["hasPart"]) == 2
    assert rocrate.read(made)[0].record == run.record


@pytest.mark.parametrize(
    ("most_bytes", "content"), [(0, b"in"), (1, b"in"), (100, b"it changed")], ids=["not asked", "too large", "changed"]
)
def test_an_input_that_is_not_taken_is_named_by_its_digest(
    most_bytes: int, content: bytes, run: Run, tmp_path: Path
) -> None:
    (tmp_path / "x.csv").write_bytes(content)
    given_input(run, tmp_path / "x.csv")
    [made] = rocrate.export(run, tmp_path / "x.zip", most_input_bytes=most_bytes)
    assert not [name for name in members(made) if name.startswith("inputs/")]
    assert entities(made)["#input/my%20data"]["sha256"] == sha256(b"in")


def test_a_packed_run_is_exported_like_any_other(run: Run, tmp_path: Path) -> None:
    [plain] = rocrate.export(run, tmp_path / "plain.zip")
    packed = Run(run.record, pack(run.folder), packed=True)
    [made] = rocrate.export(packed, tmp_path / "packed.zip")
    assert members(made) == members(plain)


def test_a_folder_as_target_gets_a_file_named_after_the_run_and_none_is_replaced(run: Run, tmp_path: Path) -> None:
    assert rocrate.export(run, tmp_path) == [tmp_path / "train-k3x9qa.zip"]
    with pytest.raises(Conflict, match="already exists"):
        rocrate.export(run, tmp_path)


def test_an_export_that_fails_leaves_nothing(run: Run, tmp_path: Path) -> None:
    def code() -> Iterator[tuple[str, Path]]:
        yield "../evil.py", run.folder / RECORD

    with pytest.raises(UsageError, match="leaves its folder"):
        rocrate.export(run, tmp_path / "out" / "x.zip", code=code)
    assert list((tmp_path / "out").iterdir()) == []


# In


def test_another_workspace_gets_the_same_run(crate: Path, run: Run, tmp_path: Path) -> None:
    [imported] = rocrate.read(crate)
    assert imported.record == run.record
    assert "code/train.py" in imported.files and "inputs/my data" in imported.files
    again = imported.lay(tmp_path / "other" / imported.id)
    assert (again.folder / "code" / "train.py").read_bytes() == b"code"
    assert (again.folder / "work" / "model é.pt").read_bytes() == b"weights"
    assert json.loads((again.folder / RECORD).read_bytes()) == run.to_dict()
    assert again.metrics == run.metrics
    assert [(each.name, each.value, each.step) for each in again.log().metrics] == [
        (each.name, each.value, each.step) for each in run.log().metrics
    ]


def test_a_crate_that_somebody_unpacked_is_read_too(crate: Path, run: Run, tmp_path: Path) -> None:
    extract(crate, tmp_path / "unpacked")
    [imported] = rocrate.read(tmp_path / "unpacked")
    assert imported.record == run.record
    imported.lay(tmp_path / "again")
    assert (tmp_path / "again" / "code" / "lib" / "größe.py").read_bytes() == b"code"


@pytest.mark.parametrize("name", ["code/train.py", "work/model é.pt", "inputs/my data", "events.jsonl", RECORD])
def test_a_file_that_was_changed_is_named(name: str, crate: Path) -> None:
    def change(content: dict[str, bytes]) -> None:
        content[name] = content[name].replace(b"e", b"E").replace(b"in", b"im")
        if name == RECORD:
            content[name] = content[name].replace(b"fairmilE", b"fairmile").replace(b"E", b"e") + b" "

    with pytest.raises(Integrity, match=name):
        rocrate.read(rewritten(crate, change))


def test_a_file_that_the_card_does_not_list_is_refused(crate: Path, tmp_path: Path) -> None:
    planted = rewritten(crate, lambda content: content.update({"code/json.py": b"evil"}))
    with pytest.raises(Integrity, match=r"code/json\.py is not listed in ro-crate-metadata\.json"):
        rocrate.read(planted)
    extract(planted, tmp_path / "unpacked")
    with pytest.raises(Integrity, match=r"code/json\.py is not listed"):
        rocrate.read(tmp_path / "unpacked")


def list_too(content: dict[str, bytes], name: str, **facts: str) -> None:
    card = json.loads(content[CARD])
    card["@graph"].append({"@id": name, "@type": "File", "name": name, **facts})
    content[CARD] = json.dumps(card).encode()


def test_a_program_that_was_added_to_the_card_as_well_is_not_the_one_of_the_record(crate: Path) -> None:
    def plant(content: dict[str, bytes]) -> None:
        content["code/json.py"] = b"evil"
        list_too(content, "code/json.py", sha256=sha256(b"evil"))

    with pytest.raises(Integrity, match=r"files below code/ have the digest \w+, but run\.json has the digest"):
        rocrate.read(rewritten(crate, plant))


def test_code_that_is_listed_without_a_digest_is_refused(crate: Path) -> None:
    def plant(content: dict[str, bytes]) -> None:
        content["code/json.py"] = b"evil"
        list_too(content, "code/json.py")

    with pytest.raises(Integrity, match=r"code/json\.py is listed in .* without a sha256"):
        rocrate.read(rewritten(crate, plant))


def test_a_file_of_another_size_than_listed_is_refused(crate: Path) -> None:
    def shorten(content: dict[str, bytes]) -> None:
        content["more.log"] = b"four"
        list_too(content, "more.log", contentSize="5")

    with pytest.raises(Integrity, match=r"more\.log has 4 bytes, but the card says 5"):
        rocrate.read(rewritten(crate, shorten))


@pytest.mark.parametrize("target", ["/etc/passwd", "run.json"])
def test_a_link_in_a_crate_that_was_unpacked_is_refused(target: str, crate: Path, tmp_path: Path) -> None:
    extract(crate, tmp_path / "unpacked")
    (tmp_path / "unpacked" / "code" / "more.py").symlink_to(target)
    with pytest.raises(UsageError, match=r"more\.py is a symbolic link"):
        rocrate.read(tmp_path / "unpacked")


@pytest.mark.thorough
def test_a_small_crate_that_unpacks_to_gigabytes_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as bomb:
        bomb.writestr(RECORD, "{}")
        with bomb.open("zeros", "w") as member:
            for _ in range(1040):
                member.write(bytes(1 << 20))
    with pytest.raises(UsageError, match="more than 200 times as large as the archive"):
        rocrate.read(tmp_path / "bomb.zip")


def test_a_file_that_is_missing_is_named(crate: Path) -> None:
    with pytest.raises(Integrity, match=r"code/train\.py is listed in the card, but missing"):
        rocrate.read(rewritten(crate, lambda content: content.pop("code/train.py")))


def test_half_a_crate_is_damaged(crate: Path) -> None:
    crate.write_bytes(crate.read_bytes()[:-200])
    with pytest.raises(Integrity, match="damaged"):
        rocrate.read(crate)


def test_a_crate_of_another_program_is_for_the_catalog(crate: Path) -> None:
    with pytest.raises(UsageError, match=r"holds no run.json") as caught:
        rocrate.read(rewritten(crate, lambda content: content.pop(RECORD)))
    assert "catalog add" in (caught.value.hint or "")
    with pytest.raises(UsageError):
        rocrate.read(rewritten(crate, lambda content: content.clear()))


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"id": "../../evil"}, "id"),
        ({"id": ""}, "id"),
        ({"format": "other/1"}, "format"),
        ({"created": "yesterday"}, "created"),
        ({"created": 1e999}, "number"),
        ({"spec": {"name": "x", "argv": []}}, "spec.argv"),
        ({"spec": {"name": "../x", "argv": ["x"]}}, "spec.name"),
        ({"spec": None}, "spec"),
        ({"result": {"state": "splendid"}}, "state"),
        ({"captured": [1]}, "captured"),
    ],
)
def test_a_record_that_is_none_of_ours_is_refused_with_its_field(
    change: dict[str, Any], field: str, crate: Path, run: Run
) -> None:
    def damage(content: dict[str, bytes]) -> None:
        content[RECORD] = json.dumps({**run.to_dict(), **change}).encode()
        graph = json.loads(content[CARD])
        for each in graph["@graph"]:
            if each["@id"] == RECORD:
                each["sha256"] = sha256(content[RECORD])
        content[CARD] = json.dumps(graph).encode()

    with pytest.raises(InvalidDocument, match=field):
        rocrate.read(rewritten(crate, damage))


def test_what_is_not_there_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        rocrate.read(tmp_path / "nowhere.zip")


def test_runs_of_every_end_go_out_and_come_back(tmp_path: Path) -> None:
    for state in ("done", "failed", "timeout", "cancelled", "interrupted"):
        document = trivial(state) | {"id": f"run-{state}"}
        record = RunRecord.from_dict(document)
        [made] = rocrate.export(Run(record, lay_run(tmp_path, document)), tmp_path / f"{state}.zip")
        assert rocrate.read(made)[0].record == record


def test_every_format_is_in_the_registry_and_a_wrong_word_gets_the_nearest() -> None:
    assert EXCHANGES.names()[:6] == ["rocrate", "mlflow", "clearml", "openml", "zenodo", "tensorboard"]
    with pytest.raises(NotFound, match="did you mean 'rocrate'"):
        EXCHANGES["rocrat"]


def test_training_documents_are_what_the_model_takes() -> None:
    assert Run(RunRecord.from_dict(training()), Path()).spec.seed == 42
