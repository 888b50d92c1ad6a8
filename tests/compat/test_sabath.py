"""SABATH models on SABATH data sets: every shipped pair is planned, and a small one runs from git clone to metric."""

from __future__ import annotations

import functools
import hashlib
import io
import json
import os
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairmile.base.digest import merkle_root, scan_tree
from fairmile.base.errors import Integrity, NotFound, UsageError
from fairmile.catalog.exchange.draft import Document
from fairmile.compat import sabath
from fairmile.compat.sabath import SabathDataset, SabathModel
from fairmile.runs.execute.materials import bring, materialize, plan_materials
from fairmile.workspace import Workspace

SHARED = Path(os.environ.get("FAIRMILE_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data"))
SHIPPED = SHARED / "predecessors" / "sabath"
with_shipped = pytest.mark.skipif(not SHIPPED.is_dir(), reason="SABATH's own files are not on this machine")


# Own files, as SABATH writes them


def model_of(run: dict[str, Any], **more: Any) -> SabathModel:
    data = {"name": "Tiny", "abstract": "a", "git": {"origin": "https://example.org/a/b"}, "run": run, **more}
    return sabath.read_model(Document("tiny.json", json.dumps(data).encode()))


def dataset_of(*fragments: dict[str, Any], name: str = "tiny_data") -> SabathDataset:
    data = {"name": name, "fragments": list(fragments)}
    return sabath.read_dataset(Document(f"{name}.json", json.dumps(data).encode()))


def file_of(label: str, **more: Any) -> dict[str, Any]:
    return {"id": label, "url": f"https://example.org/{label}.csv", "type": "file", **more}


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    environ = {"HOME": str(tmp_path), "FAIRMILE_HOME": str(tmp_path / "fairmile"), "FAIRMILE_TRANSFER_RETRIES": "1"}
    return Workspace.open(environ=environ, cwd=tmp_path)


def find_model(workspace: Workspace, what: str) -> SabathModel:
    """Return the model that a name or a file means to somebody who runs it."""
    target = workspace.resolve(what, for_="run")
    assert target.kind == "sabath"
    model: SabathModel = target.content.model
    return model


def run_line(workspace: Workspace, line: str, folder: Path, config: dict[str, Any] | None = None) -> str:
    """Return what a model of one line prints when it runs in a folder."""
    planned = sabath.plan(workspace.catalog, model_of({"tiny_data": [line]}), dataset_of(file_of("x")), config=config)
    folder.mkdir(parents=True, exist_ok=True)
    return subprocess.run(planned.spec.argv, cwd=folder, check=True, capture_output=True, text=True).stdout


# What was shipped

PAIRS = {
    ("AutoPhaseNN", "autoPhaseNN_aicdi"): "autophasenn",
    ("AutoPhaseNN", "autoPhaseNN_aicdi_sample"): "autophasenn",
    ("CosmoFlow", "cosmoUniverse_2019_05_4parE_tf_v2"): "cosmoUniverse_2019_05_4parE_tf_v2",
    ("CosmoFlow", "cosmoUniverse_2019_05_4parE_tf_v2_mini"): "cosmoUniverse_2019_05_4parE_tf_v2_mini",
    ("Nanoconfinement", "nanoconfinement_4050"): "autophasenn",
    ("PtychoNN", "ptychonn_20191008_39"): "ptychonn_20191008_39",
    ("miniWeatherML", "miniWeatherML"): "community_benchmark",
}


def shipped() -> tuple[dict[str, SabathModel], dict[str, SabathDataset]]:
    models = [sabath.read_model(path) for path in sorted(SHIPPED.glob("models-*.json"))]
    datasets = [sabath.read_dataset(path) for path in sorted(SHIPPED.glob("datasets-*.json"))]
    return {each.name: each for each in models}, {each.name: each for each in datasets}


@with_shipped
def test_every_shipped_pair_is_planned_with_its_own_commands_and_every_other_is_refused(workspace: Workspace) -> None:
    models, datasets = shipped()
    assert (len(models), len(datasets)) == (5, 7)
    for model in models.values():
        for dataset in datasets.values():
            expected = PAIRS.get((model.name, dataset.name))
            if expected is None:
                with pytest.raises(UsageError, match=f"{model.name} has no commands for the data set {dataset.name}"):
                    sabath.plan(workspace.catalog, model, dataset)
            else:
                assert sabath.plan(workspace.catalog, model, dataset).set_name == expected


@with_shipped
@pytest.mark.parametrize("pair", PAIRS)
def test_the_script_of_every_shipped_pair_is_valid_and_has_no_placeholder_left(
    workspace: Workspace, pair: tuple[str, str]
) -> None:
    models, datasets = shipped()
    planned = sabath.plan(workspace.catalog, models[pair[0]], datasets[pair[1]])
    assert "{source}" not in planned.script and "{dataset" not in planned.script
    assert planned.script.count(") || sabath_failed") == len(models[pair[0]].sets[planned.set_name])
    subprocess.run(["bash", "-n", "-c", planned.script], check=True)
    assert planned.code == "git+" + models[pair[0]].git["origin"]


@with_shipped
def test_the_full_data_set_gets_its_own_commands_and_not_the_first_ones(workspace: Workspace) -> None:
    models, datasets = shipped()
    full = sabath.plan(workspace.catalog, models["CosmoFlow"], datasets["cosmoUniverse_2019_05_4parE_tf_v2"])
    assert "n_train: 524288" in full.script and "n_train: 1024" not in full.script


@with_shipped
def test_what_the_shipped_files_leave_open_is_told(workspace: Workspace) -> None:
    models, datasets = shipped()

    def notes(model: str, dataset: str) -> str:
        return "\n".join(sabath.plan(workspace.catalog, models[model], datasets[dataset]).notes)

    mini = notes("CosmoFlow", "cosmoUniverse_2019_05_4parE_tf_v2_mini")
    assert "{dataset} names no fragment; taken as the folder of the only one, 'main'" in mini
    assert "{dataset.main.dir} is taken as the folder that 'main' is fetched to" in notes(
        "AutoPhaseNN", "autoPhaseNN_aicdi"
    )
    assert "the only set is called 'autophasenn', not 'nanoconfinement_4050'" in notes(
        "Nanoconfinement", "nanoconfinement_4050"
    )
    weather = notes("miniWeatherML", "miniWeatherML")
    assert "are fragments of miniWeatherML, not data sets; 'community_benchmark' is taken" in weather
    assert "git.PnetCDF" in weather and "is a web page, not the file" in weather


@with_shipped
def test_the_fragments_of_the_shipped_data_sets_keep_address_size_digest_and_limit() -> None:
    _, datasets = shipped()
    (mini,) = datasets["cosmoUniverse_2019_05_4parE_tf_v2_mini"].fragments
    assert (mini.size_bytes, mini.unpack, mini.path) == (5943306240, True, "data/main")
    assert mini.checksums["sha256"].startswith("8bf2edfa") and mini.checksums["md5"].startswith("117fe38c")
    (sample,) = datasets["autoPhaseNN_aicdi_sample"].fragments
    assert sample.address.startswith("list+https://github.com/") and sample.address.endswith("aicdi_data.txt#limit=100")
    weather = datasets["miniWeatherML"].fragments
    assert all(each.address.startswith("https://raw.githubusercontent.com/") for each in weather)


@with_shipped
def test_one_of_several_sets_of_fragments_can_be_named_and_only_its_fragment_is_fetched(workspace: Workspace) -> None:
    models, datasets = shipped()
    planned = sabath.plan(workspace.catalog, models["miniWeatherML"], datasets["miniWeatherML"], set_name="simple_city")
    assert [each.id for each in planned.fragments] == ["simple_city"]
    assert "experiments/simple_city" in planned.script and planned.needs_repository


@with_shipped
def test_the_environment_is_that_of_the_model_and_absent_where_the_model_states_none(workspace: Workspace) -> None:
    models, datasets = shipped()
    cosmoflow = sabath.plan(workspace.catalog, models["CosmoFlow"], datasets["cosmoUniverse_2019_05_4parE_tf_v2"])
    assert cosmoflow.spec.environment == models["CosmoFlow"].reference
    found = workspace.envs.plan(cosmoflow.spec.environment)
    assert found.name == "CosmoFlow"
    ptychonn = sabath.plan(workspace.catalog, models["PtychoNN"], datasets["ptychonn_20191008_39"])
    assert ptychonn.spec.environment == ""


def test_a_model_and_data_set_of_the_catalog_give_the_same_commands_as_their_files(
    workspace: Workspace, tmp_path: Path
) -> None:
    model = {
        "name": "Tiny",
        "git": {"origin": "https://example.org/a/b"},
        "run": {"tiny_data": ["cat {dataset.x.dir}"]},
    }
    (tmp_path / "tiny.json").write_text(json.dumps(model))
    (tmp_path / "tiny_data.json").write_text(json.dumps({"name": "tiny_data", "fragments": [file_of("x")]}))
    for name in ("tiny.json", "tiny_data.json"):
        workspace.catalog.add(tmp_path / name)
    from_files = sabath.plan(
        workspace.catalog, find_model(workspace, str(tmp_path / "tiny.json")), str(tmp_path / "tiny_data.json")
    )
    from_catalog = sabath.plan(workspace.catalog, find_model(workspace, "model/tiny"), "tiny_data")
    assert (from_catalog.script, from_catalog.fragments) == (from_files.script, from_files.fragments)
    assert from_catalog.spec.asset.startswith("local/model/tiny@")
    assert from_catalog.spec.dataset.startswith("local/dataset/tiny_data@")
    # Its only data set need not be named.
    assert sabath.plan(workspace.catalog, find_model(workspace, "model/tiny")).spec == from_catalog.spec
    # A workflow of it is the model with that set.
    workflow = find_model(workspace, "workflow/tiny-on-tiny_data")
    assert workflow.chosen == "tiny_data"
    assert sabath.plan(workspace.catalog, workflow).spec == from_catalog.spec


@with_shipped
def test_a_data_set_that_stands_in_the_catalog_without_ids_is_used_where_it_is_one_file_only(
    workspace: Workspace,
) -> None:
    # The built-in catalog describes SABATH's data sets by their files.
    models, _ = shipped()
    with pytest.raises(UsageError, match=r"unknown placeholder \{dataset\.data\}") as caught:
        sabath.plan(workspace.catalog, models["PtychoNN"], "ptychonn_20191008_39")
    assert "the SABATH file of the data set tells which is which" in (caught.value.hint or "")
    one = model_of({"ptychonn_20191008_39": ["cat {dataset.x}"], "t": ["cat {dataset.main}"]})
    planned = sabath.plan(workspace.catalog, one, "cosmouniverse-mini", set_name="t")
    assert planned.fragments[0].unpack and "the only file of builtin/dataset/cosmouniverse-mini" in planned.notes[-1]


def test_what_is_no_sabath_model_is_left_to_others(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(UsageError, match=r"other\.json is not a card file, a SABATH model, a run file"):
        workspace.resolve(str(tmp_path / "other.json"), for_="run")
    assert workspace.resolve("model/cosmoflow", for_="run").kind == "asset"


# Sets and placeholders


def test_an_unknown_placeholder_is_an_error_with_its_name_the_file_and_the_set(workspace: Workspace) -> None:
    model = model_of({"tiny_data": ["true", "cat {dataset.nothing}"]})
    with pytest.raises(UsageError) as caught:
        sabath.plan(workspace.catalog, model, dataset_of(file_of("x")))
    assert str(caught.value) == "tiny.json run.tiny_data[1]: unknown placeholder {dataset.nothing}"
    assert caught.value.hint == "the fragments of tiny_data are x"
    with pytest.raises(UsageError, match=r"run\.tiny_data\[0\]: unknown placeholder \{sauce\}"):
        sabath.plan(workspace.catalog, model_of({"tiny_data": ["ls {sauce}"]}), dataset_of(file_of("x")))
    with pytest.raises(UsageError, match=r"\{config\.epochs\} has no value") as caught:
        sabath.plan(workspace.catalog, model_of({"tiny_data": ["t {config.epochs}"]}), dataset_of(file_of("x")))
    assert caught.value.hint == "set it with -p epochs=VALUE"


def test_a_set_that_is_not_there_is_an_error_with_the_nearest(workspace: Workspace) -> None:
    model = model_of({"small": ["true"], "large": ["true"]})
    with pytest.raises(NotFound, match="has no set 'smal'; did you mean 'small'"):
        sabath.plan(workspace.catalog, model, dataset_of(file_of("x")), set_name="smal")
    assert sabath.plan(workspace.catalog, model, dataset_of(file_of("x")), set_name="large").set_name == "large"


def test_a_data_set_that_only_shares_a_set_count_with_the_model_is_refused(workspace: Workspace) -> None:
    with pytest.raises(UsageError, match="Tiny has no commands for the data set huge"):
        sabath.plan(workspace.catalog, model_of({"train": ["true"]}), dataset_of(file_of("x"), name="huge"))


def test_two_fragments_of_one_name_are_refused() -> None:
    with pytest.raises(UsageError, match="two fragments are named 'x'"):
        dataset_of(file_of("x"), {**file_of("x"), "url": "https://example.org/y"})


def test_a_login_in_an_address_is_refused_without_repeating_it() -> None:
    with pytest.raises(UsageError, match="contains a login") as caught:
        model_of({"a": ["true"]}, git={"origin": "https://me:hunter2@example.org/a"})
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("git", "address"),
    [
        ({"origin": "https://h/a"}, "git+https://h/a"),
        ({"origin": "https://h/a", "branch": "dev", "tag": "v1"}, "git+https://h/a@v1"),
        ({"origin": "https://h/a", "tag": "v1", "commit": "0" * 40}, "git+https://h/a@" + "0" * 40),
        ({"origin": "git@h.org:a/b.git"}, "git+ssh://git@h.org/a/b.git"),
        ({"origin": "/srv/a"}, "git+file:///srv/a"),
    ],
)
def test_the_last_revision_that_sabath_would_check_out_counts(git: dict[str, str], address: str) -> None:
    assert model_of({"a": ["true"]}, git=git).git["address"] == address


def test_code_on_this_machine_is_refused_where_the_file_comes_from_elsewhere() -> None:
    data = json.dumps({"name": "T", "git": {"origin": "/srv/a"}, "run": {"a": ["true"]}}).encode()
    with pytest.raises(UsageError, match="names a local folder"):
        sabath.read_model(Document("t.json", data), trusted=False)


def test_the_braces_of_shell_awk_and_json_stay(workspace: Workspace, tmp_path: Path) -> None:
    line = """echo "${HOME:+set} $(echo 7 8 | awk '{print $2}') {{x}} {} {a,b}" '{"k": 1}' # {not.a.placeholder}"""
    assert run_line(workspace, line, tmp_path / "w") == 'set 8 {x} {} {a,b} {"k": 1}\n'


@pytest.mark.parametrize(
    "line", ["echo {config.v}", 'echo "{config.v}"', "echo '{config.v}'", "echo \"a'{config.v}'\""]
)
@given(value=st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=30))
def test_a_value_comes_through_the_shell_as_it_is_wherever_it_stands(
    tmp_path_factory: pytest.TempPathFactory, line: str, value: str
) -> None:
    line = line.replace("echo", "printf %s")
    model, dataset = model_of({"tiny_data": [line]}), dataset_of(file_of("x"))
    workspace = Workspace.open(environ={"HOME": "/nowhere", "FAIRMILE_HOME": "/nowhere/f"}, cwd=Path("/"))
    planned = sabath.plan(workspace.catalog, model, dataset, config={"v": value})
    done = subprocess.run(planned.spec.argv, check=True, capture_output=True)
    assert done.stdout.decode() == (f"a'{value}'" if "a'" in line else value)


def test_paths_with_blanks_quotes_and_dollars_reach_the_commands_whole(workspace: Workspace, tmp_path: Path) -> None:
    folder = tmp_path / "a b $(touch pwned) 'c'"
    said = run_line(workspace, "printf '%s|' {source} \"{dataset.x}\" '{dataset.x.dir}/y'", folder)
    assert said == f"{folder}/source|{folder}/data/x/x.csv|{folder}/data/x/y|"
    assert not (folder / "pwned").exists()


def test_a_folder_that_sed_would_misread_ends_the_run_before_it_begins(workspace: Workspace, tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError) as caught:
        run_line(workspace, "echo x | sed 's!x!{source}!'", tmp_path / "a&b")
    assert caught.value.returncode == 2 and "cannot work in" in caught.value.stderr


def test_each_command_starts_in_the_folder_and_the_first_failure_ends_the_run(
    workspace: Workspace, tmp_path: Path
) -> None:
    lines = ["mkdir sub && cd sub && x=1", "pwd; echo ${x:-unset}", "false; true", "exit 7", "echo never"]
    planned = sabath.plan(workspace.catalog, model_of({"tiny_data": lines}), dataset_of(file_of("x")))
    done = subprocess.run(planned.spec.argv, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (7, f"{tmp_path}\nunset\n")
    assert done.stderr == "command 4 of 5 ended with exit code 7\n"


def test_a_command_with_an_open_quote_is_refused_with_its_place(workspace: Workspace) -> None:
    with pytest.raises(UsageError, match=r"tiny\.json run\.tiny_data\[0\]: the command ends inside '…'"):
        sabath.plan(workspace.catalog, model_of({"tiny_data": ["echo 'x"]}), dataset_of(file_of("x")))


def test_a_set_may_be_one_text_and_its_script_is_the_same_in_every_folder(workspace: Workspace) -> None:
    planned = sabath.plan(workspace.catalog, model_of({"tiny_data": "ls {source}"}), dataset_of(file_of("x")))
    assert planned.script.count("sabath_failed 1") == 1
    assert str(workspace.home) not in planned.script


# A small one of our own, end to end

TRAIN = """\
import pathlib, sys
table, folder, listed = map(pathlib.Path, sys.argv[1:4])
total = sum(int(line) for line in table.read_text().split())
total += sum(int(path.read_text()) for path in sorted(folder.rglob("*.txt")))
count = len(list(listed.iterdir()))
config = pathlib.Path(__file__).with_name("config.yaml").read_text().strip()
print(f"epochs={sys.argv[4]} loss={total} files={count} {config}")
"""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder and the address at which a web server of the standard library offers it."""
    folder = tmp_path / "served"
    folder.mkdir()

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield folder, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "train.py").write_text(TRAIN)
    (folder / "config.yaml").write_text("data_dir: nowhere\n")
    (folder / "go.sh").write_text("#!/bin/sh\n")
    (folder / "go.sh").chmod(0o755)
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")
    return folder


def git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    return subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def fill(folder: Path) -> None:
    (folder / "table.csv").write_text("1\n2\n3\n")
    with tarfile.open(folder / "more.tar.gz", "w:gz") as archive:
        for name, text in (("more/a.txt", b"10"), ("more/deep/b.txt", b"20")):
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text))
    for number in range(4):
        (folder / f"part{number}.bin").write_bytes(bytes(number))
    (folder / "list.txt").write_text("".join(f"part{number}.bin\n" for number in range(4)))


def small_files(tmp_path: Path, served: tuple[Path, str], origin: str, **checksum: str) -> tuple[Path, Path]:
    """Write a model and a data set of three fragments, one of each type, and return their files."""
    folder, address = served
    fill(folder)
    table = {"id": "table", "url": f"{address}/table.csv", "type": "file", "size": 6}
    more = {"id": "more", "url": f"{address}/more.tar.gz", "type": "archive"}
    more["checksum"] = {"md5": hashlib.md5((folder / "more.tar.gz").read_bytes()).hexdigest()}  # type: ignore[assignment]
    parts = {"id": "parts", "url": f"{address}/list.txt", "type": "file_list", "limit": 3}
    if checksum:
        table["checksum"] = checksum
    model = {
        "name": "Tiny",
        "abstract": "adds numbers",
        "env_vars": {"TINY": "1"},
        "git": {"origin": origin},
        "run": {
            "other": ["false"],
            "tiny_data": [
                "sed -i 's!data_dir: .*!data_dir: \"{dataset.more}\"!' {source}/config.yaml",
                "cd {source} && git rev-parse HEAD > ../head && test -x go.sh",
                "test $TINY = 1",
                "python3 {source}/train.py {dataset.table} {dataset.more.dir} {dataset.parts} {config.epochs}",
            ],
        },
    }
    files = tmp_path / "tiny.json", tmp_path / "tiny_data.json"
    files[0].write_text(json.dumps(model))
    files[1].write_text(json.dumps({"name": "tiny_data", "fragments": [table, more, parts]}))
    return files


def test_a_small_model_runs_from_clone_and_fetch_to_its_metric(
    workspace: Workspace, tmp_path: Path, served: tuple[Path, str], repository: Path
) -> None:
    files = small_files(tmp_path, served, str(repository))
    model = find_model(workspace, str(files[0]))
    planned = sabath.plan(workspace.catalog, model, str(files[1]), config={"epochs": 3})
    steps = plan_materials(planned.materials, workspace.assets)
    assert [text.partition(":")[0] for text, _ in steps] == ["code", "table", "more", "parts"]
    assert steps[1][1] == 6

    inputs = bring(planned.materials, workspace.assets)
    commit = git(repository, "rev-parse", "HEAD")
    assert inputs["source"]["asset"] == f"git+file://{repository}@{commit}"
    assert {name: each["files"] for name, each in inputs.items()} == {
        "source": 3,
        "dataset.table": 1,
        "dataset.more": 2,
        "dataset.parts": 3,
    }
    work = tmp_path / "work"
    values = materialize(inputs, workspace.assets, work)
    assert values["dataset.table"] == str(work / "data" / "table" / "table.csv")
    workspace.envs.build(planned.spec.environment)
    command = workspace.envs.shell(planned.spec.environment, planned.spec.argv)
    done = subprocess.run(command.argv, cwd=work, check=True, capture_output=True, text=True)
    assert done.stdout == f'epochs=3 loss=36 files=3 data_dir: "{work}/data/more"\n'
    assert (work / "head").read_text().strip() == commit
    assert "nowhere" in (repository / "config.yaml").read_text()


def test_code_is_a_copy_of_its_own_that_changes_neither_the_store_nor_another_run(
    workspace: Workspace, tmp_path: Path, served: tuple[Path, str], repository: Path
) -> None:
    model, dataset = small_files(tmp_path, served, str(repository))
    planned = sabath.plan(workspace.catalog, find_model(workspace, str(model)), str(dataset), config={"epochs": 1})
    inputs = bring(planned.materials, workspace.assets)
    materialize(inputs, workspace.assets, tmp_path / "one")
    with (tmp_path / "one" / "source" / "config.yaml").open("a") as stream:
        stream.write("changed")
    materialize(inputs, workspace.assets, tmp_path / "two")
    assert (tmp_path / "two" / "source" / "config.yaml").read_text() == "data_dir: nowhere\n"
    materialize(inputs, workspace.assets, tmp_path / "one")  # a second time, as when a run is resumed
    assert (tmp_path / "one" / "source" / "config.yaml").read_text() == "data_dir: nowhere\n"
    assert git(tmp_path / "one" / "source", "status", "--porcelain") == ""
    assert workspace.store.verify().damaged == ()


def test_a_rerun_gets_the_commit_of_the_record_although_the_branch_moved_on(
    workspace: Workspace, tmp_path: Path, served: tuple[Path, str], repository: Path
) -> None:
    model, dataset = small_files(tmp_path, served, str(repository))
    planned = sabath.plan(workspace.catalog, find_model(workspace, str(model)), str(dataset), config={"epochs": 1})
    inputs = json.loads(json.dumps(bring(planned.materials, workspace.assets)))
    (repository / "config.yaml").write_text("data_dir: later\n")
    git(repository, "commit", "-q", "-a", "-m", "second")
    materialize(inputs, workspace.assets, tmp_path / "again")
    assert (tmp_path / "again" / "source" / "config.yaml").read_text() == "data_dir: nowhere\n"
    assert bring(planned.materials, workspace.assets)["source"]["sha256"] != inputs["source"]["sha256"]


def test_data_that_changed_since_it_was_recorded_is_an_integrity_error(
    workspace: Workspace, tmp_path: Path, served: tuple[Path, str], repository: Path
) -> None:
    model, dataset = small_files(tmp_path, served, str(repository))
    planned = sabath.plan(workspace.catalog, find_model(workspace, str(model)), str(dataset), config={"epochs": 1})
    inputs = bring(planned.materials, workspace.assets)
    (served[0] / "list.txt").write_text("part2.bin\npart3.bin\n")
    with pytest.raises(Integrity, match=r"list\.txt#limit=3 has different files than when it was fetched"):
        materialize({"dataset.parts": inputs["dataset.parts"]}, workspace.assets, tmp_path / "w")


@pytest.mark.parametrize("checksum", [{"sha256": "0" * 64}, {"md5": "0" * 32}, {"sha1": "0" * 40}])
def test_a_wrong_digest_is_found_whichever_it_is(
    workspace: Workspace, tmp_path: Path, served: tuple[Path, str], repository: Path, checksum: dict[str, str]
) -> None:
    model, dataset = small_files(tmp_path, served, str(repository), **checksum)
    planned = sabath.plan(workspace.catalog, find_model(workspace, str(model)), str(dataset), config={"epochs": 1})
    with pytest.raises(Integrity):
        bring(planned.materials, workspace.assets)


def test_a_wrong_size_is_found_where_no_digest_is_stated(
    workspace: Workspace, tmp_path: Path, served: tuple[Path, str], repository: Path
) -> None:
    model, dataset = small_files(tmp_path, served, str(repository))
    dataset.write_text(dataset.read_text().replace('"size": 6', '"size": 7'))
    planned = sabath.plan(workspace.catalog, find_model(workspace, str(model)), str(dataset), config={"epochs": 1})
    with pytest.raises(Integrity, match="has 6 bytes, expected 7"):
        bring(planned.materials, workspace.assets)


def test_the_first_digits_of_a_commit_are_enough(
    workspace: Workspace, tmp_path: Path, served: tuple[Path, str], repository: Path
) -> None:
    model, dataset = small_files(tmp_path, served, str(repository))
    commit = git(repository, "rev-parse", "HEAD")
    (repository / "more").write_text("x")
    git(repository, "add", ".")
    git(repository, "commit", "-q", "-m", "second")
    data = json.loads(model.read_text())
    data["git"]["commit"] = commit[:9]
    model.write_text(json.dumps(data))
    planned = sabath.plan(workspace.catalog, find_model(workspace, str(model)), str(dataset), config={"epochs": 1})
    assert bring(planned.materials, workspace.assets)["source"]["asset"].endswith(f"@{commit}")


def test_a_source_that_cannot_be_asked_is_a_step_that_says_so(workspace: Workspace) -> None:
    unreachable = {"id": "x", "url": "http://127.0.0.1:9/x.csv", "type": "file", "size": 77}
    model = model_of({"tiny_data": ["cat {dataset.x}"]}, git={"branch": "main"})
    materials = sabath.plan(workspace.catalog, model, dataset_of(unreachable)).materials
    ((text, size_bytes),) = plan_materials(materials, workspace.assets)
    assert "unavailable now" in text and size_bytes == 77


def test_what_lies_in_the_folder_is_what_the_record_says(
    workspace: Workspace, tmp_path: Path, served: tuple[Path, str], repository: Path
) -> None:
    model, dataset = small_files(tmp_path, served, str(repository))
    planned = sabath.plan(workspace.catalog, find_model(workspace, str(model)), str(dataset), config={"epochs": 1})
    inputs = bring(planned.materials, workspace.assets)
    materialize(inputs, workspace.assets, tmp_path / "w")
    for name in ("dataset.more", "dataset.parts"):
        assert merkle_root(list(scan_tree(tmp_path / "w" / inputs[name]["place"]))) == inputs[name]["sha256"]


def test_points_of_a_sweep_would_all_run_the_command_of_the_first(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "tiny.json").write_text(json.dumps({"name": "Tiny", "run": {"tiny_data": ["echo {config.lr}"]}}))
    (tmp_path / "tiny_data.json").write_text(json.dumps({"name": "tiny_data", "fragments": [file_of("x")]}))
    workspace.catalog.add(tmp_path / "tiny_data.json")
    workspace.catalog.add(tmp_path / "tiny.json", format="sabath")
    definition, _, _ = workspace.sweeps.define("model/tiny", params={"lr": [1, 2]})
    with pytest.raises(UsageError, match="model/tiny builds its command itself"):
        workspace.sweeps.plan(definition)
