"""What a word means to each verb, and the one sentence where it means nothing or two things."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from cases import for_each

from fairmile.base.errors import FairmileError, NotFound, UsageError
from fairmile.base.registry import Plugin
from fairmile.catalog.card import Card
from fairmile.catalog.kinds import CONTEXT_IRI
from fairmile.resolve import RESOLVERS, VERBS, Nouns, Resolver, Target, Word, resolve
from fairmile.workspace import Workspace

CARD = {
    "@context": CONTEXT_IRI,
    "@type": "SoftwareSourceCode",
    "name": "High Tide",
    "version": "1.0",
    "license": "https://spdx.org/licenses/MIT",
    "description": "Says how high the tide is.",
    "command": ["sh", "tide.sh"],
}
SABATH = {"name": "Tiny", "git": {"origin": "https://example.org/a/b"}, "run": {"tiny_data": ["true"]}}
FILES = {
    "run.yaml": "argv: echo tide\n",
    "card.json": json.dumps(CARD),
    "card.yaml": "\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in CARD.items()),
    "tide/card.jsonld": json.dumps(CARD),
    "mnist/card.jsonld": json.dumps(CARD),
    "bare/notes.md": "",
    "flow.yaml": "steps: {a: {command: echo}}\n",
    "sweep.yaml": "command: echo {lr}\naxes: {lr: [1, 2]}\n",
    "project.yaml": "experiment: {lr: '1,2'}\n",
    "config.py": "experiment = {'lr': '1,2'}\n",
    "gpt.yaml": "kind: transformer\nlayers: 2\nhidden: 64\nheads: 4\nvocab: 100\nseq: 16\nbatch: 2\n",
    "tiny.json": json.dumps(SABATH),
    "list.json": "[1]",
    "train.py": "def build(): ...\n",
    "data.txt": "1 2 3\n",
    "levels": "1 2 3\n",
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    here = tmp_path / "here"
    for name, text in FILES.items():
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text(text)
    monkeypatch.chdir(here)
    return here


@pytest.fixture
def workspace(place: Path, tmp_path: Path, indexed_home: Callable[[Path], Path]) -> Workspace:
    environ = {**os.environ, "HOME": str(tmp_path), "FAIRMILE_HOME": str(indexed_home(tmp_path / "home"))}
    return Workspace.open(environ=environ, cwd=place)


MEANINGS = [
    ("run", "run.yaml", "run-file", "run.yaml"),
    ("run", "./run.yaml", "run-file", "run.yaml"),
    ("run", "card.json", "card-file", "card.json"),
    ("run", "./card.yaml", "card-file", "card.yaml"),
    ("run", "./tide", "folder", "tide/card.jsonld"),
    ("run", "tide/", "folder", "tide/card.jsonld"),
    ("run", "tide", "folder", "tide/card.jsonld"),
    ("run", "tiny.json", "sabath", "tiny.json"),
    ("run", "cosmoflow", "benchmark", "builtin/benchmark/cosmoflow@3.0"),
    ("run", "benchmark/mnist", "benchmark", "builtin/benchmark/mnist@1.0"),
    ("run", "./mnist", "folder", "mnist/card.jsonld"),
    ("run", "train.py", "program", "train.py"),
    ("run", "model/cosmoflow", "asset", "builtin/model/cosmoflow@1.0"),
    ("sweep", "sweep.yaml", "definition", "sweep.yaml"),
    ("flow", "flow.yaml", "flow-file", "flow.yaml"),
    ("", "flow.yaml", "flow-file", "flow.yaml"),
    ("sweep", "run.yaml", "definition", "run.yaml"),
    ("sweep", "project.yaml", "cloudmesh", "project.yaml"),
    ("sweep", "config.py", "cloudmesh", "config.py"),
    ("sweep", "tiny.json", "sabath", "tiny.json"),
    ("sweep", "card.json", "card-file", "card.json"),
    ("sweep", "./tide", "folder", "tide/card.jsonld"),
    ("sweep", "cosmoflow", "benchmark", "builtin/benchmark/cosmoflow@3.0"),
    ("tune", "sweep.yaml", "definition", "sweep.yaml"),
    ("predict", "train.py", "python-file", "HERE/train.py"),
    ("predict", "./train.py:other", "python-file", "HERE/train.py"),
    ("predict", "gpt.yaml", "description", "gpt.yaml"),
    ("predict", "card.json", "card-file", "card.json"),
    ("predict", "./tide", "folder", "tide/card.jsonld"),
    ("predict", "cosmoflow", "benchmark", "builtin/benchmark/cosmoflow@3.0"),
    ("predict", "model/cosmoflow", "asset", "builtin/model/cosmoflow@1.0"),
    ("show", "card.json", "card-file", "card.json"),
    ("show", "./mnist", "folder", "mnist/card.jsonld"),
    ("show", "dataset/mnist", "asset", "builtin/dataset/mnist@1.0"),
    ("fetch", "data.txt", "path", "data.txt"),
    ("fetch", "./card.json", "path", "card.json"),
    ("fetch", "bare", "path", "bare"),
    ("fetch", "levels", "path", "levels"),
    ("fetch", "dataset/mnist", "asset", "builtin/dataset/mnist@1.0"),
    ("fetch", "mnist", "asset", "builtin/benchmark/mnist@1.0"),
    ("fetch", "./mnist", "path", "mnist"),
    ("fetch", "https://example.org/a.csv", "address", "https://example.org/a.csv"),
    ("fetch", "zenodo:123", "address", "zenodo:123"),
    ("", "run.yaml", "run-file", "run.yaml"),
    ("", "sweep.yaml", "definition", "sweep.yaml"),
    ("", "gpt.yaml", "description", "gpt.yaml"),
    ("", "project.yaml", "cloudmesh", "project.yaml"),
    ("", "data.txt", "path", "data.txt"),
    ("", "train.py", "python-file", "HERE/train.py"),
    ("", "cosmoflow", "benchmark", "builtin/benchmark/cosmoflow@3.0"),
    ("", "https://example.org/a.csv", "address", "https://example.org/a.csv"),
]


@for_each("verb, word, kind, origin", MEANINGS)
def test_a_word_means_one_thing_to_a_verb(
    workspace: Workspace, place: Path, verb: str, word: str, kind: str, origin: str
) -> None:
    target = workspace.resolve(word, for_=verb)
    assert (target.kind, target.origin) == (kind, origin.replace("HERE", str(place)))
    assert target.word == word


REFUSALS = [
    ("run", "data.txt", "data.txt is not a card file, a SABATH model, a run file or a program: `fairmile run` expects "
     "a card, a folder with card.jsonld, a model file of SABATH, a YAML file with argv or a program", ""),
    ("run", "list.json", "list.json is not a card file, a SABATH model, a run file or a program: `fairmile run`", ""),
    ("run", "./bare", "./bare is a folder without card.jsonld: `fairmile run` expects a card", ""),
    ("run", "bare", "bare is a folder without card.jsonld: `fairmile run` expects a card", ""),
    ("run", "levels", "levels is not a card file, a SABATH model, a run file or a program: `fairmile run`", ""),
    ("run", "./rum.yaml", "no such file: rum.yaml", "did you mean run.yaml?"),
    ("run", "rum.yaml", "no such file: rum.yaml", "did you mean run.yaml?"),
    ("run", "./cosmoflow", "no such file: cosmoflow", "expected a card"),
    ("run", "cosmoflo", "'cosmoflo' is not a file here, a benchmark or an asset of the catalog",
     "did you mean the benchmark cosmoflow, the asset cosmoflow or the asset cosmoflow-pipeline?"),
    ("run", "tidee", "'tidee' is not a file here, a benchmark or an asset of the catalog",
     "did you mean the file tide"),
    ("run", "https://example.org/x", "'https://example.org/x' is not a file here, a benchmark or an asset",
     "`fairmile fetch https://example.org/x` downloads it"),
    ("run", "mnist", "'mnist' may be the folder mnist or the benchmark builtin/benchmark/mnist@1.0",
     "write ./mnist or builtin/benchmark/mnist@1.0"),
    ("run", " ", "the name is empty", "pass a name"),
    ("sweep", "cosmoflo", "'cosmoflo' is not a file here, a sweep, a benchmark or an asset of the catalog",
     "did you mean the benchmark cosmoflow"),
    ("sweep", "./bare", "./bare is a folder without card.jsonld: `fairmile sweep` expects a card", ""),
    ("tune", "swep.yaml", "no such file: swep.yaml", "did you mean sweep.yaml?"),
    ("tune", "last", "no sweep named 'last'", "`fairmile sweep ls` lists them"),
    ("predict", "data.txt", "data.txt is not a Python file, a card file or a description: `fairmile predict` expects "
     "FILE.py or FILE.py:FUNCTION, a card, a folder with card.jsonld or a model described in YAML", ""),
    ("predict", "nosuch.py:build", "no such file: nosuch.py", ""),
    ("predict", "train.py:1", "train.py:1: '1' is not a function name", "write FILE.py:FUNCTION"),
    ("predict", "cosmoflo", "'cosmoflo' is not a file here, a benchmark or an asset of the catalog", "cosmoflow"),
    ("show", "data.txt", "data.txt is not a card file: `fairmile show` expects a card or a folder with card.jsonld",
     "`fairmile catalog describe data.txt` drafts a card"),
    ("show", "./bare", "./bare is a folder without card.jsonld: `fairmile show` expects a card",
     "`fairmile catalog describe bare` drafts a card"),
    ("show", "tiny.json", "tiny.json is not a card file: `fairmile show` expects a card or a folder with card.jsonld",
     "`fairmile catalog add tiny.json` reads other formats"),
    ("show", "cosmoflo", "'cosmoflo' is not a file here or an asset of the catalog",
     "did you mean the asset cosmoflow or the asset cosmoflow-pipeline?"),
    ("show", "cosmoflow@99", "'cosmoflow' has no version '99'", "versions: "),
    ("show", "a//b", "'a//b' is not a name of an asset", "expected [catalog/][kind/]name[@version]"),
    ("fetch", "cosmoflo", "'cosmoflo' is not a file here, an asset of the catalog or an address", "cosmoflow"),
    ("fetch", "./nosuch", "no such file: nosuch", ""),
    ("boil", "x", "nothing is resolved for 'boil'", "verbs: "),
]  # fmt: skip


@for_each("verb, word, message, hint", REFUSALS)
def test_a_word_that_means_nothing_or_two_things_is_one_sentence(
    workspace: Workspace, verb: str, word: str, message: str, hint: str
) -> None:
    with pytest.raises(FairmileError) as caught:
        workspace.resolve(word, for_=verb)
    assert isinstance(caught.value, UsageError | NotFound)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
    assert hint in (caught.value.hint or "")


@for_each("verb", VERBS)
@for_each("word", ["./data.txt", "data.txt", "./nosuch", "nosuch.yaml", "~/nosuch", "/nosuch", "x/"])
def test_what_is_written_as_a_path_never_goes_to_the_catalog(workspace: Workspace, verb: str, word: str) -> None:
    def refuse() -> None:
        raise AssertionError("the catalog was opened")

    try:
        target = resolve(word, Nouns(catalog=refuse, sweeps=refuse), for_=verb)
    except FairmileError as error:
        assert "catalog" not in str(error)
    else:
        assert target.path is not None


def test_what_a_target_holds_is_read_when_it_is_asked_for(workspace: Workspace, place: Path) -> None:
    target = workspace.resolve("card.json", for_="show")
    (place / "card.json").unlink()
    assert isinstance(target.content, Card) and target.content.title == "High Tide"
    folder = workspace.resolve("./tide", for_="show")
    (place / "tide" / "card.jsonld").write_text(json.dumps({**CARD, "name": "Low Tide"}))
    assert folder.content.title == "Low Tide"
    assert folder.content is folder.content


def test_ids_of_runs_and_sweeps_are_words_too(workspace: Workspace) -> None:
    run = workspace.runs.run(["true"])
    assert workspace.resolve(run.id).content.id == run.id
    assert workspace.resolve("last").id == run.id
    definition, source, _ = workspace.sweeps.define(["echo", "{n}"], params={"n": [1, 2]})
    sweep = workspace.sweeps.create(definition, source)
    for word in (sweep.id, "echo", "last"):
        target = workspace.resolve(word, for_="sweep")
        assert (target.kind, target.id, target.content.id) == ("sweep", sweep.id, sweep.id)
    with pytest.raises(NotFound, match="is not a file here, a benchmark or an asset of the catalog"):
        workspace.resolve(sweep.id, for_="sweep", without=["sweep"])


def test_the_start_of_an_id_that_is_also_a_name_is_ambiguous(workspace: Workspace) -> None:
    definition, source, _ = workspace.sweeps.define(["echo", "{n}"], params={"n": [1, 2]})
    sweep = workspace.sweeps.create(replace(definition, name="cosmoflow"), source)
    message = f"'cosmoflow' may be the sweep {sweep.id} or the benchmark builtin/benchmark/cosmoflow@3.0"
    with pytest.raises(UsageError) as caught:
        workspace.resolve("cosmoflow", for_="sweep")
    assert str(caught.value) == message
    assert caught.value.hint == f"write {sweep.id} or builtin/benchmark/cosmoflow@3.0"


def test_an_asset_tells_what_else_its_name_could_mean_and_may_be_of_one_kind(workspace: Workspace) -> None:
    target = workspace.resolve("cosmoflow", for_="show")
    assert "builtin/benchmark/cosmoflow@3.0" in [each.handle for each in (target.row, *target.others)]
    assert workspace.resolve("cosmoflow", for_="show", kind="benchmark").handle == "builtin/benchmark/cosmoflow@3.0"
    with pytest.raises(NotFound, match="'cosmoflow' is not a file here or a program of the catalog"):
        workspace.resolve("cosmoflow", for_="show", kind="program")


def test_an_imported_asset_is_run_by_the_resolver_of_its_format(workspace: Workspace, place: Path) -> None:
    workspace.catalog.add(place / "tiny.json")
    target = workspace.resolve("tiny", for_="run", set="other")
    assert (target.kind, target.handle.partition("@")[0]) == ("sabath", "local/model/tiny")
    assert (target.content.model.name, target.content.set_name) == ("Tiny", "other")
    assert workspace.resolve("tiny", for_="show").kind == "asset"


def test_an_option_that_would_change_nothing_is_refused(workspace: Workspace) -> None:
    with pytest.raises(UsageError, match="--set applies to a SABATH model, but earthquake is a benchmark"):
        workspace.resolve("earthquake", for_="run", set="other")
    with pytest.raises(UsageError, match="--set applies to a SABATH model, but echo 1 is a command"):
        workspace.runs.plan(["echo", "1"], options={"set": "other"})


class Harbour(Resolver):
    """A resolver as another package may bring it."""

    verbs = ("run",)

    def find(self, word: Word, nouns: Nouns) -> Target | None:
        return Target(word.text, "harbour", id=word.text) if word.text.startswith("port-") else None


HARBOUR = Harbour()


def test_a_resolver_of_another_package_is_asked_last_and_for_its_verbs(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RESOLVERS, "_installed", {"harbour": Plugin(f"{__name__}:HARBOUR")})
    assert workspace.resolve("port-of-call", for_="run").kind == "harbour"
    assert workspace.resolve("cosmoflow", for_="run").kind == "benchmark"
    with pytest.raises(NotFound):
        workspace.resolve("port-of-call", for_="show")


@for_each("kind", RESOLVERS.names())
def test_every_registered_resolver_can_be_loaded(kind: str) -> None:
    assert callable(RESOLVERS[kind].find)


def test_a_target_is_short_in_a_notebook_and_data_in_json(workspace: Workspace) -> None:
    target = workspace.resolve("train.py:build", for_="predict")
    assert repr(target) == f"<Target: python-file {Path('train.py').absolute()}>"
    assert json.loads(json.dumps(target.to_dict())) == {
        "word": "train.py:build",
        "kind": "python-file",
        "path": str(Path("train.py").absolute()),
        "function": "build",
    }


def test_a_run_is_shown_by_its_own_command(workspace: Workspace) -> None:
    run = workspace.runs.run(["true"])
    with pytest.raises(NotFound) as refusal:
        workspace.resolve("last", for_="show")
    assert refusal.value.hint == f"`fairmile runs show {run.id}` shows the run"
