from __future__ import annotations

import importlib.util
import inspect
import pkgutil
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fairmile as fm
from fairmile.base.errors import FairmileError
from fairmile.base.nouns import first_sentence, public_members
from fairmile.catalog.card import Card
from fairmile.catalog.catalog import Catalog
from fairmile.catalog.results import SearchResult
from fairmile.catalog.verbs import Datasets, Models, Workflows
from fairmile.envs.envs import Envs
from fairmile.jobs.machines import Machines
from fairmile.jobs.queue import Jobs
from fairmile.jobs.spec import JobSpec
from fairmile.workspace import Workspace


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without settings, in a folder without a project."""
    monkeypatch.setenv("FAIRMILE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


def body(type: str, name: str, **more: Any) -> dict[str, Any]:
    return {"@context": "x", "@type": type, "name": name, "version": "1.0", **more}


def fresh(script: str) -> str:
    """Return what a script prints in an interpreter of its own."""
    command = [sys.executable, "-c", textwrap.dedent(script)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_what_is_listed_is_what_is_visible() -> None:
    assert fm.__all__ == sorted(fm.__all__)
    assert [name for name in dir(fm) if not name.startswith("_")] == fm.__all__
    for name in fm.__all__:
        assert getattr(fm, name) is not None
    assert fresh("from fairmile import *; print(sorted(n for n in dir() if not n.startswith('_')))") == str(fm.__all__)


def public_functions() -> Iterator[tuple[str, Any]]:
    """Yield every call and property that completion offers below `fm` and its nouns."""
    for name in fm.__all__:
        if name not in fm._NOUNS:
            yield name, getattr(fm, name)
            continue
        offered = dict(public_members(type(getattr(fm, name))))
        assert dir(getattr(fm, name)) == sorted(offered)
        for member, function in offered.items():
            yield f"{name}.{member}", function


def test_every_public_name_is_described_in_a_plain_sentence() -> None:
    sentence = re.compile(r"[A-Z`].*[.]")
    described = {name: first_sentence(each) for name, each in public_functions()}
    nouns = {name: first_sentence(type(getattr(fm, name))) for name in fm._NOUNS}
    assert {name: text for name, text in (described | nouns).items() if not sentence.fullmatch(text)} == {}


def test_every_public_name_has_types() -> None:
    untyped = []
    for name, function in public_functions():
        if inspect.isclass(function):
            continue
        signature = inspect.signature(function)
        kinds = {each.name: each.annotation for each in signature.parameters.values() if each.name != "self"}
        empty = [each for each, kind in kinds.items() if kind is inspect.Parameter.empty]
        if empty or signature.return_annotation is inspect.Signature.empty:
            untyped.append((name, empty))
    assert untyped == []


def test_public_names_are_words_of_the_field() -> None:
    odd = {"around", "equipped", "far", "foresee", "found", "held", "laid", "lay", "meant", "near", "said", "told"}
    odd |= {"tell", "standing"}
    names = []
    for name, function in public_functions():
        parameters = () if inspect.isclass(function) else inspect.signature(function).parameters
        names += [name, *(f"{name}({each})" for each in parameters)]
    assert [name for name in names if odd & set(re.split(r"[^a-z]+", name))] == []


@pytest.mark.parametrize(
    ("noun", "name", "instead"),
    [("assets", "laid", "materialize"), ("store", "lay", "materialize"), ("jobs", "equipped", "in_environment")],
)
def test_an_old_name_warns_and_does_what_the_new_one_does(
    noun: str, name: str, instead: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = getattr(fm, noun)
    monkeypatch.setattr(type(owner), instead, lambda *args, **options: "done")
    parameters = inspect.signature(getattr(owner, name)).parameters.values()
    given = [each.name for each in parameters if each.default is each.empty]
    with pytest.warns(DeprecationWarning, match=f"is now [A-Za-z]+.{instead}"):
        assert getattr(owner, name)(*given) == "done"


def test_a_name_that_is_not_there_is_an_error() -> None:
    with pytest.raises(AttributeError, match="module 'fairmile' has no attribute 'serach'"):
        fm.serach  # noqa: B018


def test_nouns_are_nouns() -> None:
    assert isinstance(fm.catalog, Catalog)
    assert isinstance(fm.models, Models)
    assert isinstance(fm.datasets, Datasets)
    assert isinstance(fm.workflows, Workflows)
    assert isinstance(fm.systems, Machines)
    assert isinstance(fm.envs, Envs)
    assert isinstance(fm.jobs, Jobs)
    assert fm.JobSpec is JobSpec
    assert fm.Workspace is Workspace
    assert fm.Card is Card
    assert fm.FairmileError is FairmileError


@pytest.mark.parametrize(
    "statement",
    [
        "import fairmile.catalog.card",
        "import fairmile.catalog",
        "from fairmile.catalog import card",
        "import importlib; importlib.import_module('fairmile.catalog.index')",
        "from fairmile.catalog.catalog import Catalog",
        "import fairmile.compat.hpcfair_model",
        "import fairmile.systems.registry, fairmile.envs.spec, fairmile.jobs.queue",
        "pass",
    ],
)
def test_a_noun_stays_one_when_the_folder_of_its_name_is_imported(statement: str) -> None:
    script = f"""
        {statement}
        import fairmile as fm
        {statement}
        from fairmile import catalog
        nouns = (fm.catalog, catalog, fm.models, fm.systems, fm.envs, fm.jobs)
        print(*(type(noun).__name__ for noun in nouns))
    """
    assert fresh(script) == "Catalog Catalog Models Machines Envs Jobs"


def test_importing_the_package_imports_nothing_but_its_version() -> None:
    script = (
        "import sys; import fairmile; print([n for n in sys.modules if n.startswith(('fairmile.', 'click', 're2'))])"
    )
    assert fresh(script) == "['fairmile.base', 'fairmile.base.version']"


def test_the_verbs_work_on_the_workspace_of_the_settings(home: Path) -> None:
    fm.catalog.add(body("MLModel", "Net of ours", scienceDomain="optics", trainedOn="rays-of-ours"))
    fm.catalog.add(body("Dataset", "Rays of ours"))
    assert (home / "index.sqlite").exists()
    result = fm.search("ours", kind="model")
    assert isinstance(result, SearchResult)
    assert [hit.handle for hit in result] == ["local/model/net-of-ours@1.0"]
    assert fm.search("ours", limit=1)[0].title in ("Net of ours", "Rays of ours")
    assert fm.show("net-of-ours")["scienceDomain"] == "optics"
    assert fm.search("ours", kind="model")[0].row.uses == 1
    (pair,) = fm.match(model="net-of-ours")
    assert (pair.dataset, pair.reasons[0].kind) == ("local/dataset/rays-of-ours@1.0", "declared")
    with pytest.raises(fm.FairmileError, match="is not a file here or a dataset of the catalog"):
        fm.show("net-of-ours", kind="dataset")


def test_the_verbs_of_the_kinds_have_their_shapes() -> None:
    fm.catalog.add(body("MLModel", "Net of ours", keywords=["surrogate", "dark matter"]))
    fm.catalog.add(body("MLModel", "Nut of ours", keywords=["surrogate"]))
    fm.catalog.add(body("Dataset", "Rays of ours", hasPart=[{"@id": "clean.py"}], distribution=[{"name": "rays.h5"}]))
    fm.catalog.add(body("ComputationalWorkflow", "Flow of ours"))
    for names, expected in (
        (fm.models.list_models(), "net-of-ours"),
        (fm.datasets.list_datasets(), "rays-of-ours"),
        (fm.workflows.list_workflows(), "flow-of-ours"),
    ):
        assert expected in names
        assert names == sorted(names)
    one = fm.models.get_metadata("net-of-ours")
    assert one == dict(fm.catalog.get("net-of-ours"))
    assert fm.models.get_metadata(["net-of-ours", "nut-of-ours"])[0] == one  # type: ignore[index]
    assert fm.datasets.list_supporting_files("rays-of-ours") == ["clean.py", "rays.h5"]


def test_a_kind_is_searched_by_words_tags_and_patterns() -> None:
    fm.catalog.add(body("MLModel", "Net of ours", keywords=["surrogate", "dark matter"]))
    fm.catalog.add(body("MLModel", "Nut of ours", keywords=["surrogate", 'odd "tag"']))
    fm.catalog.add(body("Dataset", "Net data of ours", keywords=["surrogate"]))

    def names_found(*words: str, **how: Any) -> list[str]:
        return sorted(hit.row.name for hit in fm.models.search(*words, **how))

    assert names_found("ours") == ["net-of-ours", "nut-of-ours"]
    assert names_found("ours", tags=["surrogate", "dark matter"]) == ["net-of-ours"]
    assert names_found(tags=['odd "tag"']) == ["nut-of-ours"]
    assert names_found("ours", regex="^n[eu]t of") == ["net-of-ours", "nut-of-ours"]
    assert names_found("net", regex="of ours$") == ["net-of-ours"]
    assert names_found("ours", limit=1) in (["net-of-ours"], ["nut-of-ours"])


@pytest.mark.thorough
def test_every_asset_is_listed_however_many_there_are() -> None:
    catalog = fm.catalog
    with catalog.open_index() as index, index.held():
        generation = catalog.local.touch_generation()
        for number in range(1300):
            card = Card(body("MLModel", f"Net {number:04} of ours"))
            catalog.local.write(card)
            index.put(catalog.local, card, generation)
    assert sum(name.endswith("-of-ours") for name in fm.models.list_models()) == 1300


def test_a_job_is_submitted_and_its_output_read() -> None:
    job = fm.jobs.submit(fm.JobSpec(argv=("echo", "high tide"), name="tides"))
    (ended,) = fm.jobs.wait(["tides"], timeout_s=60)
    assert (ended.id, ended.state, ended.status.exit_code) == (job.id, "done", 0)
    assert fm.jobs.log(job.id) == b"high tide\n"


def test_a_system_gives_scripts_and_module_lines() -> None:
    jureca = fm.systems["jureca"]
    assert "jureca" in fm.systems.names()
    script = jureca.script(fm.JobSpec(argv=("python", "train.py"), software=("ddp",)))
    assert jureca.modules("ddp").text in script.text
    assert script.request.partition == "dc-gpu"


def test_an_environment_is_built_and_a_job_runs_in_it() -> None:
    file = Path("surge.yaml")
    file.write_text("variables: {SURGE: '3 m'}\n")
    assert fm.envs.plan(file).state == "absent"
    assert fm.envs.build(file).ready
    spec = fm.jobs.in_environment(fm.JobSpec(argv=("sh", "-c", "echo $SURGE")), fm.envs, "surge")
    job = fm.jobs.submit(spec)
    fm.jobs.wait([job.id], timeout_s=60)
    assert fm.jobs.log(job.id) == b"3 m\n"


def test_only_models_and_data_sets_are_converted() -> None:
    for noun in (fm.models, fm.datasets):
        assert hasattr(noun, "convert")
    for noun in (fm, fm.workflows, fm.catalog):
        assert not hasattr(noun, "convert")


def modules_of(noun: str) -> list[str]:
    """Return the modules in the package of a noun's name."""
    package = importlib.util.find_spec(f"fairmile.{noun}")
    folders = package.submodule_search_locations if package is not None else None
    return [each.name for each in pkgutil.iter_modules(folders)] if folders else []


@pytest.mark.parametrize("noun", [noun for noun in fm._NOUNS if modules_of(noun)])
def test_a_module_can_be_imported_under_another_name(noun: str) -> None:
    owner = getattr(fm, noun)
    for name in modules_of(noun):
        names: dict[str, Any] = {}
        exec(f"import fairmile.{noun}.{name} as module; from fairmile.{noun} import {name} as same", names)
        assert names["same"] is sys.modules[f"fairmile.{noun}.{name}"]
        is_call = name in vars(owner) or hasattr(type(owner), name)  # `fm.runs.rerun` is the call, not the module
        assert (names["module"] is names["same"]) is not is_call
