"""Modules through a real Lmod, and through environment-modules where its program can be had."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from fairmile.base.commands import Here
from fairmile.base.errors import SystemFailure
from fairmile.envs.envs import Envs
from fairmile.envs.shells import ModuleLine, render
from fairmile.envs.spec import parse_spec

LMOD = Path("/usr/share/lmod/lmod/init/bash")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A folder of modules: a tool in two versions, and one that only the first makes visible."""
    tree = tmp_path / "modules"
    for version in ("1.0", "2.0"):
        file = tree / "base" / "tool" / version
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(
            f"#%Module1.0\nsetenv TOOL_HOME /opt/tool/{version}\nprepend-path PATH /opt/tool/{version}/bin\n"
            f"module use {tree}/above\n"
        )
    file = tree / "above" / "library" / "3.1"
    file.parent.mkdir(parents=True)
    file.write_text("#%Module1.0\nsetenv LIBRARY_HOME /opt/library\n")
    return tree


@pytest.fixture
def lmod(tree: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    if not LMOD.exists():
        pytest.skip("needs Lmod")
    monkeypatch.delenv("MODULEPATH", raising=False)
    return tree


def envs(folder: Path) -> Envs:
    return Envs(folder / "envs", Here(), environ=os.environ)


def test_names_are_loaded_and_lines_stay_as_they_are(lmod: Path, tmp_path: Path) -> None:
    given = {
        "name": "demo",
        "modules": [f"module use {lmod}/base", "tool/1.0", "ml library/3.1"],
        "variables": {"WHERE": "$TOOL_HOME/lib"},
        "checks": [
            {"run": "echo $TOOL_HOME $LIBRARY_HOME $WHERE", "expect": "^/opt/tool/1.0 /opt/library /opt/tool/1"}
        ],
    }
    built = envs(tmp_path).build(parse_spec(given))
    assert built.lock["modules"]["modules"] == ["tool/1.0", "library/3.1"]
    assert built.lock["modules"]["system"].startswith("Lmod ")
    assert set(built.lock["modules"]["files"]) == {f"{lmod}/base/tool/1.0", f"{lmod}/above/library/3.1"}
    for settings in ("", "set -eu"):
        script = "\n".join([settings, *envs(tmp_path).preamble("demo"), "echo $TOOL_HOME $-"])
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        home, flags = done.stdout.split()
        assert home == "/opt/tool/1.0"
        assert ("u" in flags) == bool(settings)


def test_the_lines_work_in_dash_too(lmod: Path) -> None:
    if shutil.which("dash") is None:
        pytest.skip("needs the program dash")
    acts = [ModuleLine(f"module use {lmod}/base"), ModuleLine("module load tool/2.0")]
    script = "\n".join(["set -eu", *render(acts, "sh"), "echo $TOOL_HOME"])
    done = subprocess.run(["dash", "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("/opt/tool/2.0\n", 0), done.stderr


def test_a_module_that_is_not_there_is_named_with_the_nearest(lmod: Path, tmp_path: Path) -> None:
    spec = parse_spec({"name": "demo", "modules": [f"module use {lmod}/base", "tool/1.0", "libary/3.1"]})
    with pytest.raises(SystemFailure, match=r"`module load libary/3.1` failed: .*unknown") as caught:
        envs(tmp_path).build(spec)
    assert caught.value.hint == "did you mean 'library/3.1'?"
    assert envs(tmp_path).ls() == []


def test_a_script_ends_when_a_module_is_gone(lmod: Path, tmp_path: Path) -> None:
    envs(tmp_path).build(parse_spec({"name": "demo", "modules": [f"module use {lmod}/base", "tool/1.0"]}))
    shutil.rmtree(lmod / "base" / "tool")
    script = "\n".join([*envs(tmp_path).preamble("demo"), "echo went on"])
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (3, "")
    assert "fairmile: failed: module load tool/1.0" in done.stderr


def test_a_machine_without_modules_is_told_so(tmp_path: Path) -> None:
    script = "\n".join(
        line.replace("/usr/share", "/none").replace("/etc/profile.d", "/none") for line in render([ModuleLine("ml a")])
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", script], env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True
    )
    assert done.returncode == 3
    assert "neither Lmod nor environment-modules" in done.stderr


@pytest.fixture(scope="session")
def environment_modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home of environment-modules 5: its own program, with an init file of ours since Lmod owns the real place."""
    if shutil.which("tclsh") is None or shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        pytest.skip("needs tclsh, and apt-get and dpkg to bring environment-modules")
    folder = tmp_path_factory.mktemp("environment-modules")
    got = subprocess.run(["apt-get", "download", "environment-modules"], cwd=folder, capture_output=True, timeout=120)
    package = next(folder.glob("*.deb"), None)
    if got.returncode or package is None:
        pytest.skip("the package environment-modules cannot be had here")
    subprocess.run(["dpkg", "-x", package, folder / "all"], check=True)
    command = next((folder / "all").rglob("modulecmd.tcl"))
    init = folder / "home" / "init"
    init.mkdir(parents=True)
    text = f'export MODULES_CMD={command}\nmodule() {{ eval "$(tclsh {command} bash "$@")"; }}\n'
    (init / "bash").write_text(text)
    return folder / "home"


@pytest.mark.thorough
def test_environment_modules_do_as_well(
    environment_modules: Path, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODULESHOME", str(environment_modules))
    monkeypatch.delenv("MODULEPATH", raising=False)
    for name in [name for name in os.environ if name.startswith(("LMOD", "BASH_FUNC", "BASH_ENV"))]:
        monkeypatch.delenv(name)
    given = {
        "name": "demo",
        "modules": [f"module use {tree}/base", "tool/2.0"],
        "checks": [{"run": ["printenv", "TOOL_HOME"], "expect": "/opt/tool/2.0"}],
    }
    built = envs(tmp_path).build(parse_spec(given))
    assert built.lock["modules"]["modules"] == ["tool/2.0"]
    assert built.lock["modules"]["system"] == "environment-modules"
    with pytest.raises(SystemFailure, match="module load tool/9"):
        envs(tmp_path).build(parse_spec({**given, "modules": [f"module use {tree}/base", "tool/9"]}))
