"""Python in an environment, with real uv and real pip and packages made here, so that no index is needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from env_making import make_wheel

from fairmile.base.commands import Here, Result
from fairmile.base.errors import Conflict, NotFound, SystemFailure, UsageError
from fairmile.envs import python as python_module
from fairmile.envs.envs import Envs
from fairmile.envs.python import Interpreter, PythonStep, find_interpreter, pinned, uv_index_settings
from fairmile.envs.records import Environment
from fairmile.envs.spec import PythonSpec, parse_spec
from fairmile.envs.steps import Tools

Build = Callable[..., Environment]


@pytest.fixture(params=["uv", pytest.param("pip", marks=pytest.mark.thorough)])
def installer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both installers, each where it is here."""
    if request.param == "uv":
        pytest.importorskip("uv", reason="needs uv")
    else:
        monkeypatch.setattr(python_module, "find_uv", lambda tools: None)
    return str(request.param)


@pytest.fixture
def links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of wheels that both installers are set to, and no index."""
    folder = tmp_path / "links"
    make_wheel(folder, "alpha", "1.0", needs="beta>=2")
    make_wheel(folder, "alpha", "1.1", needs="beta>=2")
    make_wheel(folder, "beta", "2.5")
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv-cache"))
    yield folder


@pytest.fixture
def build(tmp_path: Path, links: Path) -> Build:
    def call(python: Mapping[str, Any], *, check: str = "", expect: str = "") -> Environment:
        checks = [{"run": check, "expect": expect}] if check else []
        spec = parse_spec({"name": "demo", "python": python, "checks": checks}, folder=tmp_path)
        return Envs(tmp_path / "envs", Here(), environ=os.environ).build(spec)

    return call


def versions(environment: Environment) -> dict[str, str]:
    packages = environment.lock["python"]["packages"]
    return {each["name"]: each["version"] for each in packages if each["name"] not in ("pip", "setuptools")}


def test_packages_and_what_they_need_are_installed_and_locked(build: Build, links: Path, installer: str) -> None:
    built = build(
        {"packages": ["alpha<1.1"]}, check="python -c 'import alpha, beta; print(beta.__version__)'", expect="2.5"
    )
    assert versions(built) == {"alpha": "1.0", "beta": "2.5"}
    assert built.lock["python"]["installer"] == installer
    digests = {each["name"]: each["sha256"] for each in built.lock["python"]["packages"]}
    from hashlib import sha256

    wheel = links / "alpha-1.0-py3-none-any.whl"
    assert sha256(wheel.read_bytes()).hexdigest() in digests["alpha"]
    text, notes = pinned(built.lock["python"]["packages"])
    assert f"--hash=sha256:{digests['beta'][0]}" in text and notes == ()


@pytest.mark.thorough
def test_a_requirements_file_with_what_it_includes(build: Build, tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text(
        "-r more.txt  # all of it\n-c pins.txt\n./my wheel/gamma-3-py3-none-any.whl\n"
    )
    (tmp_path / "more.txt").write_text("alpha\n")
    (tmp_path / "pins.txt").write_text("alpha<1.1\n")
    make_wheel(tmp_path / "my wheel", "gamma", "3")
    first = build({"requirements": "requirements.txt"})
    assert versions(first) == {"alpha": "1.0", "beta": "2.5", "gamma": "3"}
    (tmp_path / "pins.txt").write_text("alpha>=1.1\n")
    second = build({"requirements": "requirements.txt"})
    assert second.digest != first.digest
    assert versions(second)["alpha"] == "1.1"


@pytest.mark.thorough
def test_a_project_is_built_from_a_copy(build: Build, tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / "src").mkdir(parents=True)
    (project / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        '[project]\nname = "delta"\nversion = "4"\noptional-dependencies = {more = ["beta"]}\n'
    )
    # The smallest of build back ends, which needs nothing that is not here.
    (project / "backend.py").write_text(BACKEND)
    built = build({"project": "project", "extras": ["more"]}, check="python -c 'import delta'")
    assert versions(built) == {"beta": "2.5", "delta": "4"}
    entry = next(each for each in built.lock["python"]["packages"] if each["name"] == "delta")
    assert "tree" in entry and "from" not in entry
    assert sorted(each.name for each in project.iterdir()) == ["backend.py", "pyproject.toml", "src"]
    assert "was built from a folder" in pinned([entry])[0]


BACKEND = """
import zipfile
from pathlib import Path

NAME = "delta-4-py3-none-any.whl"
MORE = "Provides-Extra: more\\nRequires-Dist: beta; extra == 'more'\\n"
META = f"Metadata-Version: 2.1\\nName: delta\\nVersion: 4\\n{MORE}"


def build_wheel(folder, config_settings=None, metadata_directory=None):
    Path("leftover.txt").write_text("builds leave files beside the sources")
    with zipfile.ZipFile(Path(folder, NAME), "w") as wheel:
        wheel.writestr("delta.py", "")
        wheel.writestr("delta-4.dist-info/METADATA", META)
        wheel.writestr("delta-4.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr("delta-4.dist-info/RECORD", "delta.py,,\\n")
    return NAME
"""


@pytest.mark.thorough
def test_what_a_killed_installation_left_is_not_trusted(build: Build, tmp_path: Path, installer: str) -> None:
    """Half of a package lies there, with all that makes an installer believe in it."""
    spec = parse_spec({"name": "demo", "python": {"packages": ["beta"]}})
    envs = Envs(tmp_path / "envs", Here(), environ=os.environ)
    folder = envs.plan(spec).folder
    tools = Tools(Here(), lambda *_: tmp_path, lambda *_: None, folder / "work", tmp_path / "cache", os.environ)
    step = PythonStep(PythonSpec(packages=("beta",)), find_interpreter(PythonSpec(), tools))
    (folder / "work").mkdir(parents=True)
    (folder / "prefix").mkdir()
    step.run(folder / "prefix", tools)
    site = next((folder / "prefix" / "lib").glob("python3*")) / "site-packages"
    (site / "beta.py").unlink()
    step.run(folder / "prefix", tools)
    assert (site / "beta.py").exists()


def test_inputs_that_change_between_plan_and_build_are_refused(tmp_path: Path, links: Path) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text("alpha\n")
    tools = Tools(Here(), lambda *_: tmp_path, lambda *_: None, tmp_path, tmp_path, os.environ)
    step = PythonStep(PythonSpec(requirements=str(file)), find_interpreter(PythonSpec(), tools))
    file.write_text("beta\n")
    with pytest.raises(Conflict, match=r"requirements\.txt changed"):
        step.run(tmp_path / "prefix", tools)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("-e ./here\n", "editable"),
        ("-e./here\n", "editable"),
        ("--edit ./here\n", "editable"),
        ("--index-url https://me:pw@host/simple\n", "login"),
        ("numpy @ git+https://ghp_a1@host/numpy\n", "login"),
        ("-r https://host/more.txt\n", "may change"),
        ("-r requirements.txt\n", "includes itself"),
    ],
)
def test_requirements_that_could_not_be_told_apart_are_refused(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "requirements.txt").write_text(text)
    with pytest.raises(UsageError, match=told):
        PythonStep(PythonSpec(requirements=str(tmp_path / "requirements.txt")), None)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"none\.txt"):
        PythonStep(PythonSpec(requirements=str(tmp_path / "none.txt")), None)
    with pytest.raises(NotFound, match=r"no pyproject\.toml"):
        PythonStep(PythonSpec(project=str(tmp_path)), None)
    with pytest.raises(NotFound, match=r"none\.whl"):
        PythonStep(PythonSpec(packages=(str(tmp_path / "none.whl"),)), None)


def test_a_package_that_nobody_has_is_told_in_the_installers_words(build: Build) -> None:
    with pytest.raises(SystemFailure, match="no-such-package"):
        build({"packages": ["no-such-package"]})


class FakeRunner:
    """Answers for machines that this one is not; what is run is kept."""

    def __init__(self, pythons: Mapping[str, str]) -> None:
        self.pythons = pythons
        self.ran: list[Sequence[str]] = []

    def run(self, argv: Sequence[str], **_: Any) -> Result:
        inner = list(argv)[6:]  # behind the shell and its script
        self.ran.append(inner)
        if inner[:2] == ["bash", "-c"] and "type -P uv" in inner[2]:
            return Result(tuple(inner), 0, "/usr/bin/uv\n", "", 0)
        if inner[0] == "bash":
            return Result(tuple(inner), 0, "".join(f"{each}\n" for each in self.pythons), "", 0)
        version = self.pythons.get(inner[0])
        if not version:
            return Result(tuple(inner), 127, "", "not installed", 0)
        told = Interpreter(inner[0], version, "cpython", "linux-x86_64", "abi", "glibc 2.34")
        return Result(tuple(inner), 0, json.dumps(told.__dict__), "", 0)


def fake_tools(tmp_path: Path, pythons: Mapping[str, str]) -> tuple[Tools, FakeRunner]:
    runner = FakeRunner(pythons)
    return Tools(runner, lambda *_: tmp_path, lambda *_: None, tmp_path, tmp_path, {}), runner


def test_the_interpreter_that_fits_is_chosen(tmp_path: Path) -> None:
    pythons = {"/m/python3": "3.9.6", "/u/python3.12": "3.12.1", "/u/python3.11": "3.11.4", "/shim/python3.10": ""}
    tools, _ = fake_tools(tmp_path, pythons)
    for wanted, found in (("", "3.9.6"), ("3.11", "3.11.4"), (">=3.10", "3.12.1"), ("<3.12,>3.9.9", "3.11.4")):
        interpreter = find_interpreter(PythonSpec(version=wanted), tools)
        assert interpreter is not None and interpreter.version == found
    with pytest.raises(NotFound, match=r"no Python 3\.13 on this machine; on PATH: 3\.9\.6, 3\.12\.1, 3\.11\.4"):
        find_interpreter(PythonSpec(version="3.13"), tools)
    assert find_interpreter(PythonSpec(version="3.13", managed=True), tools) is None


def test_only_uv_is_asked_to_download_an_interpreter_and_only_when_wanted(tmp_path: Path) -> None:
    # Held against the command line: nothing is downloaded here.
    tools, runner = fake_tools(tmp_path, {})
    step = PythonStep(PythonSpec(version="3.13", managed=True), None)
    with pytest.raises(SystemFailure):
        step.run(tmp_path / "prefix", replace(tools))
    assert runner.ran[-1] == [
        *("/usr/bin/uv", "venv", "--quiet", "--allow-existing", "--managed-python", "--python", "3.13"),
        str(tmp_path / "prefix"),
    ]
    assert "uv downloads" in step.describe()


def test_uv_is_led_to_the_indexes_of_pip(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "c")}
    (tmp_path / "c" / "pip").mkdir(parents=True)
    (tmp_path / "c" / "pip" / "pip.conf").write_text(
        "[global]\nindex-url = https://mirror/simple\nfind-links =\n  /a\n  /b\n[install]\nno-index = false\n"
    )
    found = uv_index_settings({**home, "PIP_EXTRA_INDEX_URL": "https://x/simple https://y/simple"})
    assert found["UV_DEFAULT_INDEX"] == "https://mirror/simple"
    assert found["UV_INDEX"] == "https://x/simple https://y/simple"
    assert found["UV_FIND_LINKS"] == "/a,/b"
    assert "UV_NO_INDEX" not in found
    assert uv_index_settings({**home, "UV_INDEX": "https://mine"}) == {}


@pytest.mark.parametrize(
    "line",
    ["wheels/gamma-3-py3-none-any.whl", "gamma @ {uri}", "gamma@{uri}", "{uri}", "--find-links wheels", "-fwheels"],
)
def test_what_a_local_package_holds_is_part_of_the_digest(tmp_path: Path, line: str) -> None:
    def material() -> list[Any]:
        uri = (tmp_path / "wheels" / "gamma-3-py3-none-any.whl").as_uri()
        (tmp_path / "requirements.txt").write_text(line.format(uri=uri) + "\n")
        packages = (line.format(uri=uri),) if "@" in line else ()
        of_file = PythonStep(PythonSpec(requirements=str(tmp_path / "requirements.txt")), None).material()
        return [of_file["requirements"], PythonStep(PythonSpec(packages=packages), None).material()["packages"]]

    make_wheel(tmp_path / "wheels", "gamma", "3")
    before = material()
    make_wheel(tmp_path / "wheels", "gamma", "3", code="changed = True\n")
    after = material()
    assert before[0] != after[0]
    assert "@" not in line or before[1] != after[1]


def test_a_folder_of_packages_that_is_not_there_is_named(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("--find-links nowhere\nnumpy\n")
    with pytest.raises(NotFound, match="nowhere"):
        PythonStep(PythonSpec(requirements=str(tmp_path / "requirements.txt")), None)


@pytest.mark.thorough
def test_only_what_was_installed_is_locked_beside_packages_of_the_interpreter_so_that_an_export_can_be_installed(
    build: Build, links: Path, tmp_path: Path, installer: str
) -> None:
    wheel = make_wheel(tmp_path / "own", "gamma", "3")
    built = build({"packages": ["alpha", str(wheel)], "system_packages": installer == "pip"})
    assert [each["name"] for each in built.lock["python"]["packages"]] == ["alpha", "beta", "gamma"]
    settings = (built.prefix / "pyvenv.cfg").read_text()
    assert ("include-system-site-packages = true" in settings) == (installer == "pip")
    envs = Envs(tmp_path / "envs", Here(), environ=os.environ)
    made = envs.export("demo", "requirements")
    made.write(tmp_path / "out")
    again = build({"requirements": str(tmp_path / "out" / "requirements.txt")})
    assert versions(again) == {"alpha": "1.1", "beta": "2.5", "gamma": "3"}


def test_digests_stand_in_an_export_for_all_or_for_none() -> None:
    known = {"name": "alpha", "version": "1", "sha256": ["ab" * 32]}
    text, notes = pinned([known, {"name": "beta", "version": "2", "sha256": []}])
    assert text == "alpha==1\nbeta==2\n"
    assert notes == ("no digest of beta is known, so it has none: installers need all digests or none",)


@pytest.mark.thorough
def test_the_users_own_packages_do_not_leak_in(build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "leak").mkdir()
    (tmp_path / "leak" / "leaked.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "leak"))
    built = build({"packages": ["beta"]}, check="! python -c 'import leaked' 2>/dev/null && echo alone", expect="alone")
    assert built.ready


@pytest.mark.thorough
def test_a_package_from_the_real_index(tmp_path: Path) -> None:
    probe = subprocess.run(
        [sys.executable, "-m", "pip", "download", "--no-deps", "-q", "-d", str(tmp_path / "probe"), "iniconfig"],
        capture_output=True,
    )
    if probe.returncode:
        pytest.skip("no package index can be reached")
    spec = parse_spec({"name": "demo", "python": {"packages": ["iniconfig"]}})
    built = Envs(tmp_path / "envs", Here(), environ=os.environ).build(spec)
    assert built.lock["python"]["packages"][0]["sha256"]
