from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from trusted_projects import trusted_project

import fairmile as fm
from fairmile.base.errors import InvalidDocument, UsageError
from fairmile.jobs.spec import JobSpec
from fairmile.settings import PROJECT_FILE, options
from fairmile.workspace import Workspace


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """The environment of a user without settings."""
    return {"HOME": str(tmp_path / "user")}


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def user_file(environ: dict[str, str], text: str) -> Path:
    return write(Path(environ["HOME"]) / ".config" / "fairmile" / "config.yaml", text)


def opened(environ: dict[str, str], cwd: Path, **overrides: str) -> Workspace:
    return Workspace.open(environ=environ, cwd=cwd, overrides=overrides)


def test_without_settings_everything_lies_below_the_users_data(environ: dict[str, str], tmp_path: Path) -> None:
    workspace = opened(environ, tmp_path)
    assert workspace.home == tmp_path / "user" / ".local" / "share" / "fairmile"
    assert workspace.config.origin("home") == "default"
    assert workspace.catalog.home == workspace.home
    assert not workspace.home.exists()


def test_the_folders_of_the_desktop_standard_are_respected(environ: dict[str, str], tmp_path: Path) -> None:
    environ |= {"XDG_DATA_HOME": str(tmp_path / "data"), "XDG_CONFIG_HOME": str(tmp_path / "config")}
    workspace = opened(environ, tmp_path)
    assert workspace.home == tmp_path / "data" / "fairmile"
    assert workspace.user_file == tmp_path / "config" / "fairmile" / "config.yaml"


def test_the_last_setting_wins_and_each_knows_where_it_came_from(environ: dict[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    mine = user_file(environ, "home: /of/user\ncatalog:\n  base: https://user.example.net\n")
    assert opened(environ, folder).home == Path("/of/user")
    assert opened(environ, folder).config.origin("home") == f"{mine}:1"
    theirs = trusted_project(folder, "# ours\n\nhome: /of/project\n", environ)
    assert opened(environ, folder).home == Path("/of/project")
    assert opened(environ, folder).config.origin("home") == f"{theirs}:3"
    assert opened(environ, folder).config["catalog.base"] == "https://user.example.net"
    assert opened(environ, folder).config.origin("catalog.base") == f"{mine}:3"
    environ["FAIRMILE_HOME"] = "/of/environment"
    assert opened(environ, folder).home == Path("/of/environment")
    assert opened(environ, folder).config.origin("home") == "environment FAIRMILE_HOME"
    workspace = opened(environ, folder, home="/of/command")
    assert (workspace.home, workspace.config.origin("home")) == (Path("/of/command"), "command line")


def test_the_project_file_is_found_upwards_and_the_nearest_counts(environ: dict[str, str], tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b" / "c"
    deep.mkdir(parents=True)
    trusted_project(tmp_path / "a", "home: /of/a\n", environ)
    assert opened(environ, deep).home == Path("/of/a")
    trusted_project(tmp_path / "a" / "b", "home: /of/b\n", environ)
    assert opened(environ, deep).home == Path("/of/b")
    assert opened(environ, tmp_path).config.origin("home") == "default"


def test_sources_of_all_files_are_joined_in_order(environ: dict[str, str], tmp_path: Path) -> None:
    mine = user_file(environ, "sources:\n  partner: https://partner.example.net/cards\n  lab: /data/lab\n")
    theirs = trusted_project(
        tmp_path, "sources:\n  lab: {location: /data/other, type: folder}\n  team: /team\n", environ
    )
    workspace = opened(environ, tmp_path)
    names = [folder.name for folder in workspace.catalog.folders()]
    assert names == ["local", "partner", "lab", "team", "builtin"]
    assert workspace.config.origin("sources.partner") == f"{mine}:2"
    assert workspace.config.origin("sources.lab") == f"{theirs}:2"
    locations = {each["name"]: each["location"] for each in workspace.catalog.catalogs()}
    assert (locations["partner"], locations["lab"]) == ("https://partner.example.net/cards", "/data/other")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hoem: /x\n", "config.yaml:1 hoem: no such setting; did you mean 'home'?"),
        ("# x\nhome: [a]\n", "config.yaml:2 home: expected a folder, found ['a']"),
        ("catalog:\n  base: 5\n", "config.yaml:2 catalog.base: expected a text, found 5"),
        ("sources: here\n", "config.yaml:1 sources: expected name: location pairs, found 'here'"),
        ("catalog:\n\n  colour: red\n", "config.yaml:3 catalog.colour: no such setting"),
        ("home: 'x\n", "config.yaml:"),
        ("- a\n", "config.yaml:1: expected keys with values"),
    ],
)
def test_a_bad_setting_is_named_with_file_and_line(
    environ: dict[str, str], tmp_path: Path, text: str, message: str
) -> None:
    user_file(environ, text)
    with pytest.raises(UsageError) as caught:
        opened(environ, tmp_path)
    assert message in str(caught.value)


def test_a_bad_setting_of_a_project_is_named_with_its_file(environ: dict[str, str], tmp_path: Path) -> None:
    trusted_project(tmp_path, "home: ''\n", environ)
    with pytest.raises(UsageError, match=f"{PROJECT_FILE}:1 home: expected a folder"):
        opened(environ, tmp_path)


def test_all_unknown_settings_of_a_file_are_listed(environ: dict[str, str], tmp_path: Path) -> None:
    user_file(environ, "hoem: /x\ncolour: red\n")
    with pytest.raises(InvalidDocument) as caught:
        opened(environ, tmp_path)
    assert [(problem.field, problem.line) for problem in caught.value.problems] == [("hoem", 1), ("colour", 2)]


def test_a_source_that_is_added_is_seen_by_the_next_workspace(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "cards").mkdir()
    opened(environ, tmp_path).catalog.add_source("lab", str(tmp_path / "cards"))
    workspace = opened(environ, tmp_path)
    assert workspace.config["sources"] == {"lab": {"location": str(tmp_path / "cards")}}
    assert workspace.config.origin("sources.lab").startswith(str(workspace.user_file))
    workspace.catalog.remove_source("lab")
    assert opened(environ, tmp_path).config["sources"] == {}


def test_the_nouns_share_one_catalog(environ: dict[str, str], tmp_path: Path) -> None:
    environ["FAIRMILE_CATALOG_BASE"] = "https://site.example.net"
    workspace = opened(environ, tmp_path)
    assert workspace.catalog is workspace.catalog
    body = {"@context": "x", "@type": "MLModel", "name": "Net of ours", "version": "1"}
    workspace.catalog.add(body)
    assert "net-of-ours" in workspace.models.list_models()
    assert workspace.catalog.get("net-of-ours").iri == "https://site.example.net/a/model/net-of-ours/1"
    assert "net-of-ours" not in workspace.datasets.list_datasets()
    assert "net-of-ours" not in workspace.workflows.list_workflows()


def test_opening_imports_nothing_heavy() -> None:
    script = (
        "import sys; from fairmile.workspace import Workspace; Workspace.open().catalog;"
        "print([n for n in ('pydantic', 'rich', 'ruamel.yaml', 'license_expression', 're2') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_local_run_and_a_flow_import_no_catalog_no_queue_and_no_environments() -> None:
    heavy = ("catalog.catalog", "jobs.queue", "jobs.machines", "systems.model", "envs.spec", "transfer.http")
    script = (
        "import sys, fairmile.flows.flows; from fairmile.workspace import Workspace; Workspace.open().runs;"
        f"print([n for n in (*(f'fairmile.{{each}}' for each in {heavy}), 'packaging', 'pynvml') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_wrong_source_is_named_with_the_file_and_line_that_declares_it(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path)}
    trusted_project(tmp_path, f"home: {tmp_path / 'home'}\nsources:\n  lab:\n    location: 7\n", environ)
    workspace = Workspace.open(environ=environ, cwd=tmp_path)
    (report,) = workspace.catalog.sync()
    assert f"{tmp_path / 'fairmile.yaml'}:3 sources.lab" in report.error


def test_folders_in_a_settings_file_are_seen_from_that_file(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path)}
    text = "home: store\nsources:\n  a: cards\n  b: {location: ../b}\n  c: https://x.net/c\n"
    trusted_project(tmp_path, f"{text}systems:\n  box: {{host: x, ssh_config: ./ssh, file: ~/box.yaml}}\n", environ)
    (tmp_path / "sub").mkdir()
    workspace = Workspace.open(environ=environ, cwd=tmp_path / "sub")
    assert workspace.systems._reaches["box"].ssh_config == str(tmp_path / "ssh")
    assert workspace.systems._reaches["box"].file == "~/box.yaml"
    assert workspace.home == tmp_path / "store"
    assert workspace.sources == {
        "a": str(tmp_path / "cards"),
        "b": {"location": str(tmp_path / "../b")},
        "c": "https://x.net/c",
    }


SAFE = {
    *(
        "catalog.base",
        "flows.host_timeout",
        "footprint.region",
        "footprint.pue",
        "notify.after",
        "transfer.connections",
        "transfer.segment",
    ),
    *("transfer.stall", "transfer.retries", "transfer.socket_buffer", "transfer.limits"),
}


def test_every_other_setting_of_a_project_needs_trust(environ: dict[str, str]) -> None:
    assert {key for key, option in options(environ).items() if option.safe} == SAFE


def test_what_a_project_may_not_set_is_said_once(
    environ: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path / PROJECT_FILE, "home: ./data\nsystems: {laptop: x}\ncatalog: {base: https://a.example}\n")
    workspace = opened(environ, tmp_path)
    opened(environ, tmp_path)
    note = f"{file}: home, systems have no effect until you trust this file: read it, then run `fairmile trust`"
    assert capsys.readouterr().err == f"note: {note}\n"
    assert workspace.home == tmp_path / "user" / ".local" / "share" / "fairmile"
    assert workspace.config["catalog.base"] == "https://a.example"


def test_a_file_that_the_user_names_is_trusted_and_stands_in_for_the_project_s(
    environ: dict[str, str], tmp_path: Path
) -> None:
    write(tmp_path / PROJECT_FILE, "catalog: {base: https://a.example}\n")
    write(tmp_path / "ci.yaml", "home: ./data\n")
    environ["FAIRMILE_CONFIG"] = "ci.yaml"
    workspace = opened(environ, tmp_path)
    assert (workspace.home, workspace.config["catalog.base"]) == (tmp_path / "data", "")
    environ["FAIRMILE_CONFIG"] = "cj.yaml"
    with pytest.raises(UsageError, match=r"FAIRMILE_CONFIG: .*cj\.yaml is not a file"):
        opened(environ, tmp_path)


def test_a_long_process_notices_when_trust_begins_and_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    for name in ("FAIRMILE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    write(tmp_path / "ssh", "Host *\n")
    write(tmp_path / PROJECT_FILE, "home: ./data\nsystems: {laptop: {host: x, ssh_config: ./ssh}}\n")
    assert Workspace.current().config.ignored == ("home", "systems")
    fm.trust(tmp_path)
    assert Workspace.current().home == tmp_path / "data"
    assert Workspace.current() is Workspace.current()
    write(tmp_path / "ssh", "Host *\n  ProxyCommand false\n")
    assert Workspace.current().config.ignored == ("home", "systems")


def test_a_project_file_of_somebody_else_is_passed_over(tmp_path: Path) -> None:
    planted = tmp_path / "fairmile.yaml"
    planted.write_text("home: /elsewhere\n")
    if os.getuid() == 0:
        os.chown(planted, 12345, 12345)
        workspace = Workspace.open(environ={"HOME": str(tmp_path)}, cwd=tmp_path)
        assert workspace.home == tmp_path / ".local" / "share" / "fairmile"


def test_without_home_the_password_database_knows_the_folder(tmp_path: Path) -> None:
    assert Workspace.open(environ={}, cwd=tmp_path).home.is_absolute()


def test_systems_environments_and_jobs_lie_in_the_home(environ: dict[str, str], tmp_path: Path) -> None:
    workspace = opened(environ, tmp_path)
    assert workspace.jobs.root == workspace.home / "jobs"
    assert workspace.envs.root == workspace.home / "envs"
    assert workspace.jobs.machines is workspace.systems
    assert not workspace.home.exists()
    write(workspace.home / "systems" / "box.yaml", "name: box\ntitle: Box\n" + BOX)
    assert "box" in opened(environ, tmp_path).systems


BOX = "scheduler: {dialect: shell}\npartitions: {all: {}}\n"


def test_the_settings_say_how_a_system_is_reached(environ: dict[str, str], tmp_path: Path) -> None:
    described = write(tmp_path / "box.yaml", "name: box\ntitle: Box\n" + BOX)
    user_file(
        environ,
        f"systems:\n  jureca: {{host: jsc, account: tides, partition: dc-gpu}}\n  lumi: lumi\n"
        f"  box: {{file: {described}}}\n",
    )
    systems = opened(environ, tmp_path).systems
    assert systems["jureca"].reach.host == "jsc"
    assert systems["jureca-dc"].reach.account == "tides"
    assert systems["lumi"].reach.host == "lumi"
    assert systems["box"].system.title == "Box"
    request = systems["jureca"].script(JobSpec(argv=("true",))).request
    assert (request.account, request.partition) == ("tides", "dc-gpu")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("{hots: jsc}", "systems.jureca: no field named 'hots'; did you mean 'host'?"),
        ("{host: 7}", "systems.jureca.host: expected a text, found 7"),
        ("[jsc]", "systems.jureca: expected a host or fields"),
    ],
)
def test_a_bad_setting_of_a_system_is_named(environ: dict[str, str], tmp_path: Path, given: str, message: str) -> None:
    user_file(environ, f"systems:\n  jureca: {given}\n")
    with pytest.raises(UsageError) as caught:
        opened(environ, tmp_path).systems.names()
    assert message in str(caught.value)


def test_a_model_s_environment_comes_from_the_catalog(environ: dict[str, str], tmp_path: Path) -> None:
    workspace = opened(environ, tmp_path)
    body = {"@context": "x", "@type": "Environment", "name": "Surge", "version": "1"}
    workspace.catalog.add({**body, "environmentVariables": {"LEVEL": "3"}})
    assert workspace.envs.build("environment/surge").spec["variables"] == {"LEVEL": "3"}


def test_a_process_opens_its_workspace_again_only_where_something_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FAIRMILE_HOME", str(tmp_path / "one"))
    first = Workspace.current()
    assert Workspace.current() is first
    monkeypatch.setenv("FAIRMILE_HOME", str(tmp_path / "two"))
    assert Workspace.current().home == tmp_path / "two"
    (tmp_path / "fairmile.yaml").write_text("catalog: {base: https://example.org/}\n")
    changed = Workspace.current()
    assert changed.config["catalog.base"] == "https://example.org/"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert Workspace.current() is not changed


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("stall: .inf", "of a day at most"),
        ("stall: 1e12", "of a day at most"),
        ("socket_buffer: 1 EB", "at most 1 GiB"),
    ],
)
def test_a_project_file_cannot_set_what_no_socket_takes(tmp_path: Path, setting: str, message: str) -> None:
    (tmp_path / "fairmile.yaml").write_text(f"transfer: {{{setting}}}\n")
    with pytest.raises(UsageError, match=message):
        Workspace.open(environ={"HOME": str(tmp_path / "home")}, cwd=tmp_path)
