"""`fairmile env`: what a user sees of environments."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from env_making import make_wheel
from printed_results import assert_printed, assert_sound
from processes import is_running

from fairmile.workspace import Workspace

Fairmile = Callable[..., Any]


@pytest.fixture
def demo(place: Path) -> Path:
    """A file that needs no index: one wheel made here, a variable, a check."""
    wheel = make_wheel(place / "wheels", "alpha", "1.0")
    file = place / "demo.yaml"
    file.write_text(
        f"python:\n  packages: [{wheel}]\nvariables: {{WORD: hello}}\n"
        "checks:\n- run: python -c 'import alpha; print(alpha.__version__)'\n  expect: '1.0'\n"
    )
    return file


@pytest.fixture
def plain(place: Path) -> Path:
    """An environment that is made in no time."""
    (place / "plain.yaml").write_text("variables: {WORD: hello}\nchecks:\n- run: echo checked\n")
    return place / "plain.yaml"


def test_a_dry_run_prints_the_plan_and_changes_nothing(fairmile: Fairmile, demo: Path) -> None:
    done = fairmile("env", "build", "demo.yaml", "--dry-run")
    assert done.code == 0
    assert "would do  python: install " in done.out
    assert "then check  python -c 'import alpha" in done.out
    told = fairmile("env", "build", "demo.yaml", "--dry-run", "--json").json
    assert (told["state"], told["steps"][0]["done"]) == ("absent", False)
    assert fairmile("env", "ls", "--json").json == {"environments": []}


def test_built_listed_shown_exported_removed(fairmile: Fairmile, demo: Path) -> None:
    built = fairmile("env", "build", "demo.yaml")
    assert built.code == 0, built.err
    assert built.out.startswith("ready demo ")
    listed = fairmile("env", "ls")
    assert "ready" in listed.out and "demo" in listed.out
    shown = fairmile("env", "show", "demo")
    assert "alpha" in shown.out and "check python -c" in shown.out and "WORD" in shown.out
    assert fairmile("env", "show", "demo", "--json").json["lock"]["python"]["packages"]
    exported = fairmile("env", "export", "demo", "--format", "requirements")
    assert "alpha @ file://" in exported.out
    assert "note: it also has variables" in exported.err
    dry = fairmile("env", "rm", "demo", "--dry-run")
    assert dry.out.startswith("would remove demo ")
    assert fairmile("env", "rm", "demo").code == 0
    assert fairmile("env", "show", "demo").code == 2


def test_python_returns_what_the_commands_print(fairmile: Fairmile, plain: Path) -> None:
    envs = Workspace.open().envs
    assert_printed(fairmile, envs.plan(plain), "env", "build", str(plain), "--dry-run")
    assert_sound(envs.build(plain))
    shell = envs.shell("plain", ["echo", "a b"])
    assert_printed(fairmile, shell, "env", "shell", "plain", "--", "echo", "a b")
    assert repr(shell).endswith(": echo 'a b'>")
    bash = envs.export("plain", "bash")
    assert_printed(fairmile, bash, "env", "export", "plain", "--format", "bash")
    fish = envs.export("plain", "fish", to="out/", dry_run=True)
    assert_printed(fairmile, fish, "env", "export", "plain", "--format", "fish", "--to", "out/", "--dry-run")
    assert_printed(fairmile, envs.kernel("plain", dry_run=True), "env", "kernel", "plain", "--dry-run")
    assert_printed(fairmile, envs.ls(), "env", "ls")
    assert_printed(fairmile, envs.show("plain"), "env", "show", "plain")
    assert_printed(fairmile, envs.rm("plain", dry_run=True), "env", "rm", "plain", "--dry-run")
    old = envs.gc(older_than_s=0, dry_run=True)
    assert_printed(fairmile, old, "env", "gc", "--older-than", "0s", "--dry-run")
    assert_sound(old[0])
    assert list(old.to_pandas()["reason"]) == ["not used for 0 days"]
    assert list(envs.ls().to_pandas()["name"]) == ["plain"]
    assert fairmile("env", "build", "plain", "--json").json.keys() == envs.ls()[0].to_dict().keys()


def test_a_shell_runs_a_program_inside(fairmile: Fairmile, plain: Path) -> None:
    assert fairmile("env", "build", "plain.yaml").code == 0
    words = [sys.executable, "-m", "fairmile", "env", "shell", "plain", "--", "sh", "-c", "echo $WORD; exit 7"]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert (ran.stdout, ran.returncode) == ("hello\n", 7), ran.stderr
    assert fairmile("env", "shell", "plain", "--json", "--", "echo").json["argv"][-1] == "echo"
    assert fairmile("env", "shell", "plain", "--dry-run", "--", "echo", "a b").out.endswith(" echo 'a b'\n")


def test_an_export_is_written_to_a_folder(fairmile: Fairmile, plain: Path, place: Path) -> None:
    fairmile("env", "build", "plain.yaml")
    assert "would write out/activate.fish" in fairmile(*_EXPORT, "--dry-run").out
    assert not (place / "out").exists()
    assert fairmile(*_EXPORT).code == 0
    assert (place / "out" / "activate.fish").read_text() == "set -gx WORD 'hello'\n"


_EXPORT = ("env", "export", "plain", "--format", "fish", "--to", "out")


def test_a_failing_check_ends_with_3_and_the_reason(fairmile: Fairmile, place: Path) -> None:
    (place / "bad.yaml").write_text("checks:\n- run: echo the reason; false\n")
    failed = fairmile("env", "build", "bad.yaml")
    assert failed.code == 3
    assert "the reason" in failed.err
    assert "failed" in fairmile("env", "ls").out
    shown = fairmile("env", "show", "bad")
    assert "the last build failed at checks" in shown.err
    assert fairmile("env", "shell", "bad").code == 2


def test_a_mistake_in_the_file_is_told_with_its_line(fairmile: Fairmile, place: Path) -> None:
    (place / "wrong.yaml").write_text("name: wrong\npyton: {}\n")
    failed = fairmile("env", "build", "wrong.yaml")
    assert failed.code == 2
    assert "wrong.yaml:2 pyton: no such field; did you mean 'python'?" in failed.err


def test_gc_says_what_it_would_take(fairmile: Fairmile, plain: Path) -> None:
    fairmile("env", "build", "plain.yaml")
    assert "nothing to remove" in fairmile("env", "gc", "--dry-run").out
    assert fairmile("env", "gc", "--older-than", "0s", "--dry-run", "--json").json["removed"][0]["name"] == "plain"
    assert "removed plain" in fairmile("env", "gc", "--older-than", "0s").out
    assert fairmile("env", "ls").err.startswith("no environments yet")


def test_a_kernel_needs_ipykernel(fairmile: Fairmile, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(place / "jupyter"))
    alpha = make_wheel(place / "wheels", "alpha", "1.0")
    (place / "without.yaml").write_text(f"python: {{packages: [{alpha}]}}\n")
    assert fairmile("env", "build", "without.yaml").code == 0
    failed = fairmile("env", "kernel", "without")
    assert failed.code == 3 and "ipykernel" in failed.err
    # A stand-in for the real package: enough to be found.
    stand_in = make_wheel(place / "wheels", "ipykernel", "7.0")
    (place / "with.yaml").write_text(f"python: {{packages: [{stand_in}]}}\n")
    assert fairmile("env", "build", "with.yaml").code == 0
    assert "would install" in fairmile("env", "kernel", "with", "--dry-run").out
    told = fairmile("env", "kernel", "with", "--json").json
    spec = json.loads((Path(told["folder"]) / "kernel.json").read_text())
    assert spec["display_name"] == "with"


def test_a_sabath_file_and_its_card_in_the_catalog_give_the_same_environment(fairmile: Fairmile, place: Path) -> None:
    needs = {"python": ">=3.8", "pip": ["numpy", "netcdf4=1.5.3", "two words here"]}
    model = {"name": "Waves", "requirements": needs, "env_vars": {"LEVEL": "3"}, "git": {"origin": "https://x.org/w"}}
    (place / "waves.json").write_text(json.dumps({**model, "run": {"tides": ["python train.py"]}}))
    from_file = fairmile("env", "build", "waves.json", "--dry-run", "--json").json
    assert fairmile("catalog", "add", "waves.json").code == 0
    from_card = fairmile("env", "build", "model/waves", "--dry-run", "--json").json
    assert from_file == from_card
    assert "numpy, netcdf4==1.5.3" in from_file["steps"][0]["words"]
    assert len(from_file["notes"]) == 2
    assert "note: softwareRequirements: 'two words here'" in fairmile("env", "build", "waves.json", "--dry-run").err


def test_a_sabath_file_without_an_environment_is_said_so(fairmile: Fairmile, place: Path) -> None:
    (place / "bare.json").write_text(json.dumps({"name": "Bare", "git": {"origin": "https://x.org/w"}, "run": {}}))
    done = fairmile("env", "build", "bare.json", "--dry-run")
    assert done.code != 0
    assert "the model Bare states no requirements" in done.err
    assert "environment file" in done.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_build_that_is_stopped_ends_its_programs_and_goes_on_later(
    fairmile: Fairmile, place: Path, number: signal.Signals
) -> None:
    (place / "source").mkdir()
    (place / "source" / "Makefile").write_text(
        "all:\n\t@echo x >> $(NOTES)/first\n\t@sleep 1000 & echo $$! > $(NOTES)/pid; test -e $(NOTES)/go || wait\n"
        "install:\n\t@true\n"
    )
    notes = place / "notes"
    notes.mkdir()
    (place / "slow.yaml").write_text(
        f"builds:\n- {{name: done, folder: source, system: commands, commands: ['echo x >> {notes}/done']}}\n"
        f"- {{name: slow, folder: source, system: make, options: [NOTES={notes}]}}\n"
    )
    argv = [sys.executable, "-m", "fairmile", "env", "build", "slow.yaml"]
    build = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        while not ((notes / "pid").exists() and (notes / "pid").read_text()):
            assert build.poll() is None
            time.sleep(0.02)
        build.send_signal(number)
        assert build.wait(60) in (130, 128 + number)
    finally:
        build.kill()
        build.wait()
    assert not is_running(int((notes / "pid").read_text()))
    (environment,) = fairmile("env", "ls", "--json").json["environments"]
    assert environment["state"] == "unfinished"
    (notes / "go").write_text("")
    again = fairmile("env", "build", "slow.yaml")
    assert again.code == 0, again.err
    assert "build-done: finished before" in again.err
    assert [(notes / name).read_text() for name in ("done", "first")] == ["x\n", "x\nx\n"]
