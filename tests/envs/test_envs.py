"""Environments as a group of people and jobs meets them: planned, built once, resumed, checked, shared, removed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from busybox_image import MODEL, make_image
from env_making import make_wheel

from fairmile.base.commands import Here
from fairmile.base.errors import Conflict, NotFound, SystemFailure, Unsupported, UsageError
from fairmile.envs import building
from fairmile.envs.envs import Envs
from fairmile.envs.spec import parse_spec

DEADLINE_S = 120.0


@pytest.fixture
def envs(tmp_path: Path) -> Envs:
    return Envs(tmp_path / "envs", Here(), environ=os.environ, version="1.2.3")


def commands(name: str, *lines: str, **more: Any) -> dict[str, Any]:
    """Return a build that is nothing but shell lines; they see a folder of the test in $NOTES."""
    return {"name": name, "folder": "source", "system": "commands", "commands": list(lines), **more}


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write a specification whose builds note what they do in the folder `notes`."""
    for folder in ("source", "notes"):
        (tmp_path / folder).mkdir()
    (tmp_path / "source" / "file").write_text("")

    def call(*builds: Mapping[str, Any], checks: list[Any] | None = None, **more: Any) -> Path:
        data = {"builds": builds, "checks": checks or [], "variables": {"NOTES": str(tmp_path / "notes")}, **more}
        file = tmp_path / "demo.json"
        file.write_text(json.dumps(data))
        return file

    return call


def noted(folder: Path, name: str) -> int:
    """Return how often a build noted something."""
    file = folder / "notes" / name
    return len(file.read_text().splitlines()) if file.exists() else 0


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def test_a_plan_says_what_would_be_done_and_changes_nothing(envs: Envs, write: Callable[..., Path]) -> None:
    file = write(commands("one", "true"), checks=[{"run": ["echo", "a b"]}])
    plan = envs.plan(file)
    assert (plan.name, plan.state, plan.builder) == ("demo", "absent", "")
    assert [(each.name, each.done) for each in plan.steps] == [("build-one", False)]
    assert plan.checks == ("echo 'a b'",)
    assert plan.folder.name == f"{plan.digest[:16]}-demo"
    assert not envs.root.exists()
    assert envs.build(file).digest == plan.digest
    assert (envs.plan(file).state, envs.plan(file).steps[0].done) == ("ready", True)


def test_what_needs_modules_that_are_not_here_is_planned_but_not_built(envs: Envs, write: Callable[..., Path]) -> None:
    file = write(commands("one", "true"), modules=["no-such-module/99"])
    plan = envs.plan(file)
    assert "demo needs modules that this machine does not have" in plan.trouble
    assert (plan.digest, [each.name for each in plan.steps]) == ("", ["modules", "build-one"])
    with pytest.raises(SystemFailure, match="modules that this machine does not have"):
        envs.build(file)
    assert not envs.root.exists()


def test_the_record_says_who_what_when_and_how_long(envs: Envs, write: Callable[..., Path]) -> None:
    built = envs.build(write(commands("one", "echo built"), checks=[{"run": "echo checked"}]))
    record = built.record
    assert (record["name"], record["digest"], record["fairmile"]) == ("demo", built.digest, "1.2.3")
    assert record["machine"] == os.uname().nodename
    assert record["began"] <= record["ended"]
    assert record["steps"][0]["duration_s"] >= 0
    assert record["checks"][0]["output"] == "checked"
    assert "built" in (built.folder / "log.txt").read_text()
    assert not (built.folder / "work").exists()


def test_what_is_ready_is_not_built_again(envs: Envs, write: Callable[..., Path], tmp_path: Path) -> None:
    file = write(commands("one", "echo x >> $NOTES/one"))
    assert envs.build(file).digest == envs.build(file).digest
    assert noted(tmp_path, "one") == 1


def test_every_input_has_a_part_in_the_digest(envs: Envs, write: Callable[..., Path], tmp_path: Path) -> None:
    digests = {
        envs.plan(write(commands("one", "true"))).digest,
        envs.plan(write(commands("one", "true; true"))).digest,
        envs.plan(write(commands("one", "true", variables={"A": "1"}))).digest,
        envs.plan(write(commands("one", "true"), name="other")).digest,
        envs.plan(write(commands("one", "true"), modules=["ml list"])).digest,
        envs.plan(write(commands("one", "true"), python={})).digest,
    }
    (tmp_path / "source" / "file").write_text("changed")
    digests.add(envs.plan(write(commands("one", "true"))).digest)
    assert len(digests) == 7


def test_a_check_is_shown_as_it_was_written(envs: Envs, write: Callable[..., Path]) -> None:
    lines: list[str] = []
    envs.build(write(commands("one", "true"), checks=[{"run": "echo 'high tide'"}]), on_line=lines.append)
    assert lines[-2:] == ["$ echo 'high tide'", "high tide"]


def test_checks_have_no_part_in_the_digest_but_new_ones_are_run(
    envs: Envs, write: Callable[..., Path], tmp_path: Path
) -> None:
    first = envs.build(write(commands("one", "echo x >> $NOTES/one"), checks=[{"run": "echo 1"}]))
    second = envs.build(write(commands("one", "echo x >> $NOTES/one"), checks=[{"run": "echo 2"}]))
    assert second.digest == first.digest
    assert second.record["checks"][0]["output"] == "2"
    assert noted(tmp_path, "one") == 1


def test_two_variants_live_side_by_side_under_one_name(envs: Envs, write: Callable[..., Path]) -> None:
    old = envs.build(write(commands("one", 'echo old > "$PREFIX/which"')))
    new = envs.build(write(commands("one", 'echo new > "$PREFIX/which"')))
    assert {each.digest for each in envs.ls()} == {old.digest, new.digest}
    assert {(each.prefix / "which").read_text() for each in envs.ls()} == {"old\n", "new\n"}
    assert envs.show(old.digest[:8]).digest == old.digest
    with pytest.raises(Conflict, match="matches 2 environments"):
        envs.rm("demo")
    envs.rm(old.digest[:16])
    assert [each.digest for each in envs.ls()] == [new.digest]


def test_a_failing_check_leaves_it_not_ready_with_the_output_kept(
    envs: Envs, write: Callable[..., Path], tmp_path: Path
) -> None:
    build = commands("one", "echo x >> $NOTES/one")
    with pytest.raises(SystemFailure, match=r"the check `echo the reason; exit 5` ended with exit code 5:\nthe reason"):
        envs.build(write(build, checks=[{"run": "echo the reason; exit 5"}]))
    found = envs.show("demo")
    assert (found.state, found.failure["at"]) == ("failed", "checks")
    assert "the reason" in found.failure["message"]
    with pytest.raises(NotFound, match="is not ready: its build failed: the check"):
        envs.preamble("demo")
    with pytest.raises(SystemFailure, match="did not print /right/"):
        envs.build(write(build, checks=[{"run": "echo wrong", "expect": "right"}]))
    assert envs.build(write(build, checks=[{"run": "echo right", "expect": "right"}])).ready
    assert noted(tmp_path, "one") == 1


def test_a_build_that_failed_goes_on_where_it_stopped(envs: Envs, write: Callable[..., Path], tmp_path: Path) -> None:
    file = write(commands("one", "echo x >> $NOTES/one"), commands("two", "echo x >> $NOTES/two", "test -e $NOTES/go"))
    with pytest.raises(SystemFailure):
        envs.build(file)
    assert envs.show("demo").failure["at"] == "build-two"
    assert [each.done for each in envs.plan(file).steps] == [True, False]
    (tmp_path / "notes" / "go").write_text("")
    assert envs.build(file).ready
    assert (noted(tmp_path, "one"), noted(tmp_path, "two")) == (1, 2)


BUILD = """
import os, sys
from pathlib import Path
from fairmile.base.commands import Here
from fairmile.envs.envs import Envs
Envs(Path(sys.argv[1]), Here(), environ=os.environ).build(Path(sys.argv[2]))
"""


def start(envs: Envs, file: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", BUILD, str(envs.root), str(file)], start_new_session=True)


def test_a_killed_builder_is_taken_over(envs: Envs, write: Callable[..., Path], tmp_path: Path) -> None:
    wait = "until test -e $NOTES/go; do sleep 0.05; done"
    end = "echo x >> $NOTES/end"
    file = write(commands("one", "echo x >> $NOTES/one"), commands("two", "echo x >> $NOTES/two", wait, end))
    process = start(envs, file)
    try:
        wait_for(lambda: noted(tmp_path, "two") == 1)
        assert envs.show("demo").state == "building"
        assert f"process {process.pid} " in envs.plan(file).builder
        with pytest.raises(Conflict, match=f"is being built by process {process.pid}"):
            envs.rm("demo")
        assert envs.gc(older_than_s=0) == []
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert envs.show("demo").state == "unfinished"
    second = start(envs, file)
    try:
        wait_for(lambda: noted(tmp_path, "two") == 2)
        (tmp_path / "notes" / "go").write_text("")
        assert second.wait(DEADLINE_S) == 0
    finally:
        second.kill()
        second.wait()
    assert envs.build(file).ready
    # What the killed builder had started was ended, and wrote nothing beside its successor.
    assert (noted(tmp_path, "one"), noted(tmp_path, "two"), noted(tmp_path, "end")) == (1, 2, 1)


@pytest.mark.thorough
def test_of_twenty_who_want_it_at_once_one_builds(envs: Envs, write: Callable[..., Path], tmp_path: Path) -> None:
    file = write(commands("one", "echo x >> $NOTES/one", "sleep 0.3", "echo x >> $NOTES/one"))
    processes = [start(envs, file) for _ in range(20)]
    try:
        assert [process.wait(DEADLINE_S) for process in processes] == [0] * 20
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert envs.show("demo").ready
    assert noted(tmp_path, "one") == 2
    assert not any((envs.root / ".locks").iterdir())


def test_what_was_built_cannot_be_changed_by_accident(
    envs: Envs, write: Callable[..., Path], unprivileged: list[str]
) -> None:
    built = envs.build(write(commands("one", 'echo x > "$PREFIX/file"', 'mkdir "$PREFIX/sub"')))
    for place in (built.prefix / "file", built.prefix / "sub", built.prefix):
        assert not stat.S_IMODE(place.stat().st_mode) & 0o222
    tried = subprocess.run([*unprivileged, "touch", str(built.prefix / "sub" / "new")], capture_output=True)
    assert tried.returncode != 0
    envs.rm("demo")
    assert not built.folder.exists()


def test_a_group_shares_what_its_folder_allows(envs: Envs, write: Callable[..., Path]) -> None:
    envs.root.mkdir()
    envs.root.chmod(0o2770)
    before = os.umask(0o077)
    try:
        lines = ('echo x > "$PREFIX/file"', 'echo x > "$PREFIX/tool"', 'chmod +x "$PREFIX/tool"')
        built = envs.build(write(commands("one", *lines)))
    finally:
        os.umask(before)
    assert stat.S_IMODE(built.folder.stat().st_mode) == 0o2770
    assert stat.S_IMODE((built.prefix / "file").stat().st_mode) == 0o440
    assert stat.S_IMODE((built.prefix / "tool").stat().st_mode) == 0o550
    assert (built.folder / "record.json").stat().st_mode & stat.S_IRGRP


def test_a_program_sees_prefix_and_variables(envs: Envs, write: Callable[..., Path]) -> None:
    make = (
        'mkdir -p "$PREFIX/bin"',
        'printf \'#!/bin/sh\\necho tool "$WORD"\\n\' > "$PREFIX/bin/tool"',
        'chmod +x "$PREFIX/bin/tool"',
    )
    envs.build(write(commands("one", *make), variables={"WORD": "a'b $HOME", "HOME_TOO": "${HOME}/x"}))
    for shell, program in (("bash", "bash"), ("sh", "dash")):
        script = "\n".join(["set -eu", *envs.preamble("demo", shell), "tool", 'echo "$HOME_TOO"'])
        done = subprocess.run([program, "-c", script], env={"PATH": "/usr/bin:/bin", "HOME": "/h"}, capture_output=True)
        assert done.stdout.decode().splitlines() == ["tool a'b /h", "/h/x"], done.stderr
    command = envs.shell("demo", ["tool"])
    ran = subprocess.run(command.argv, env={**os.environ, **command.env, "HOME": "/h"}, capture_output=True, text=True)
    assert ran.stdout == "tool a'b /h\n"


def test_what_is_in_use_is_not_removed(envs: Envs, write: Callable[..., Path]) -> None:
    built = envs.build(write(commands("one", "true")))
    envs.note_use("demo")
    with pytest.raises(Conflict, match=f"is in use by process {os.getpid()}"):
        envs.rm("demo")
    assert envs.gc(older_than_s=0) == []
    assert envs.rm("demo", force=True, dry_run=True).environment.digest == built.digest
    assert built.folder.exists()
    envs.rm("demo", force=True)
    assert not built.folder.exists()


def test_gc_takes_what_is_unfinished_or_unused_for_long(envs: Envs, write: Callable[..., Path]) -> None:
    with pytest.raises(SystemFailure):
        envs.build(write(commands("one", "false")))
    ready = envs.build(write(commands("one", "true")))
    assert envs.gc(older_than_s=3600) == []
    for each in envs.ls():
        for name in ("used", "record.json", "spec.json"):
            if (each.folder / name).exists():
                os.utime(each.folder / name, (time.time() - 10 * 86_400,) * 2)
    plan = envs.gc(older_than_s=86_400, dry_run=True)
    assert sorted(each.reason for each in plan) == ["not used for 10 days", "unfinished for 10 days"]
    assert len(envs.ls()) == 2
    assert len(envs.gc(older_than_s=86_400, keep=lambda each: each.digest == ready.digest)) == 1
    envs.preamble("demo")
    assert envs.gc(older_than_s=86_400) == []


def test_a_name_is_looked_up_in_the_catalog(tmp_path: Path, write: Callable[..., Path]) -> None:
    given = parse_spec({"name": "from-a-card", "variables": {"A": "1"}}), ("half of it could not be said",)
    envs = Envs(tmp_path / "envs", Here(), environ={}, find=lambda name: given if name == "model/x" else None)
    assert envs.plan("model/x").notes == given[1]
    told: list[str] = []
    assert envs.build("model/x", on_line=told.append).name == "from-a-card"
    assert told[0] == "note: half of it could not be said"
    assert envs.show("from-a-card").ready
    with pytest.raises(NotFound, match="did you mean 'from-a-card'"):
        envs.show("from-a-crad")


@pytest.mark.thorough
def test_python_with_a_changed_requirement_is_another_prefix(envs: Envs, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "wheels", "alpha", "1.0")
    spec = {"name": "demo", "python": {"packages": [str(wheel)]}, "checks": [{"run": "python -c 'import alpha'"}]}
    first = envs.build(parse_spec(spec))
    make_wheel(tmp_path / "wheels", "alpha", "1.0", code="CHANGED = True\n")
    second = envs.build(parse_spec(spec))
    assert second.prefix != first.prefix
    ran = subprocess.run([second.prefix / "bin" / "python", "-c", "import alpha; alpha.CHANGED"], capture_output=True)
    assert ran.returncode == 0


def test_exports_say_exactly_what_was_built(envs: Envs, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "wheels", "alpha", "1.0")
    spec = {"name": "demo", "python": {"packages": [str(wheel)]}, "variables": {"A": "$B"}}
    built = envs.build(parse_spec(spec))
    requirements = envs.export("demo", "requirements")
    assert f"alpha @ file://{wheel} \\\n    --hash=sha256:" in requirements.texts["requirements.txt"]
    assert requirements.notes == ("it also has variables, which a requirements file cannot express",)
    (tmp_path / "again.yaml").write_text(envs.export("demo", "yaml").texts["environment.yaml"])
    again = envs.plan(tmp_path / "again.yaml")
    assert again.name == "demo" and str(wheel) in again.steps[0].words
    assert json.loads(envs.export("demo", "lock").texts["lock.json"])["digest"] == built.digest
    assert 'export A="${B:-}"' in envs.export("demo", "bash").texts["activate.bash"]
    docker = envs.export("demo", "dockerfile", base="docker.io/library/python:3.12")
    assert docker.texts[docker.definition].startswith("FROM docker.io/library/python:3.12")
    with pytest.raises(NotFound, match="did you mean 'apptainer'"):
        envs.export("demo", "aptainer")
    with pytest.raises(UsageError, match="base image"):
        envs.export("demo", "yaml", base="x")


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path, write: Callable[..., Path]) -> None:
    (tmp_path / "envs").write_text("a file")
    with pytest.raises(SystemFailure, match="cannot write"):
        Envs(tmp_path / "envs", Here(), environ={}).build(write(commands("one", "true")))


def test_programs_of_an_environment_with_a_container_run_in_it(
    envs: Envs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("ch-run") is None:
        pytest.skip("needs Charliecloud")
    monkeypatch.setenv("USER", "tester")
    image = make_image(tmp_path / "image")
    spec = {
        "name": "demo",
        "container": {"image": str(image), "runtime": "charliecloud"},
        "variables": {"WORD": "hello"},
        # A line is read by the shell of the image, which has no bash.
        "checks": [{"run": "test -x /model/count.sh && echo inside $WORD", "expect": "^inside hello"}],
    }
    built = envs.build(parse_spec(spec))
    assert built.wrap
    command = envs.shell("demo", ["cat", "/model/count.sh"])
    ran = subprocess.run(command.argv, env={**os.environ, **command.env}, capture_output=True, text=True)
    assert ran.stdout == MODEL


def test_who_uses_it_on_this_machine_counts_for_as_long_as_it_lives(envs: Envs, write: Callable[..., Path]) -> None:
    built = envs.build(write(commands("one", "true")))
    envs.note_use("demo")
    (note,) = (built.folder / "uses").iterdir()
    long_ago = time.time() - 86_400
    os.utime(note, (long_ago, long_ago))
    assert built.holders() == [f"process {os.getpid()} on {os.uname().nodename}"]
    note.write_text(note.read_text().replace(os.uname().nodename, "elsewhere"))
    assert len(built.holders()) == 1
    os.utime(note, (long_ago, long_ago))
    assert built.holders() == []


def test_after_new_checks_the_specification_is_the_new_one(envs: Envs, write: Callable[..., Path]) -> None:
    envs.root.mkdir()
    envs.root.chmod(0o2770)
    before = os.umask(0o077)
    try:
        envs.build(write(commands("one", "true")))
        again = envs.build(write(commands("one", "true"), checks=[{"run": "echo new"}], description="better"))
    finally:
        os.umask(before)
    assert [each["run"] for each in again.spec["checks"]] == ["echo new"]
    assert again.spec["description"] == "better"
    assert stat.S_IMODE((again.folder / "record.json").stat().st_mode) == 0o660
    assert not (again.folder / "work").exists()


def test_a_new_check_that_fails_says_that_the_environment_stays_ready(envs: Envs, write: Callable[..., Path]) -> None:
    built = envs.build(write(commands("one", "true")))
    with pytest.raises(
        SystemFailure, match=r"demo is ready, but a new check fails.*`echo why; false` ended with"
    ) as caught:
        envs.build(write(commands("one", "true"), checks=[{"run": "echo why; false"}]))
    assert "why" in caught.value.message and "not ready" not in caught.value.hint
    assert envs.show("demo").ready and envs.show("demo").spec["checks"] == []
    assert not (built.folder / "work").exists()


def test_a_check_that_takes_too_long_is_named_with_what_it_said(envs: Envs, write: Callable[..., Path]) -> None:
    line = "echo waiting for the tide; sleep 600"
    with pytest.raises(SystemFailure, match=f"the check `{line}` did not finish within 1 s:\nwaiting for the tide"):
        envs.build(write(checks=[{"run": line, "timeout_s": 1}]))
    assert line in envs.show("demo").failure["message"]


def test_a_removal_by_force_ends_the_build(envs: Envs, write: Callable[..., Path], tmp_path: Path) -> None:
    builder = start(envs, write(commands("one", "echo x >> $NOTES/began", "sleep 600")))
    wait_for(lambda: noted(tmp_path, "began") == 1)
    with pytest.raises(Conflict, match=f"is being built by process {builder.pid} on this machine") as caught:
        envs.rm("demo")
    assert "--force" in caught.value.hint
    envs.rm("demo", force=True)
    assert builder.wait(DEADLINE_S) != 0
    assert envs.ls() == []


def test_a_build_on_another_machine_is_said_to_be_out_of_reach(envs: Envs, write: Callable[..., Path]) -> None:
    built = envs.build(write(commands("one", "true")))
    lock = envs.root / ".locks" / built.digest[:16]
    lock.write_text("host=node3\npid=17\ntoken=ab\nplace=x/1\nstarted=1\n")
    with pytest.raises(Conflict, match="is being built by process 17 on node3, which cannot be stopped from here"):
        envs.rm("demo", force=True)


def test_any_fault_of_a_build_is_kept(envs: Envs, monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(*_: Any) -> None:
        raise OSError(28, "No space left on device", "/scratch/x")

    monkeypatch.setattr(building, "share_read_only", fault)
    with pytest.raises(SystemFailure, match="/scratch/x: No space left on device"):
        envs.build(parse_spec({"name": "demo"}))
    assert "No space left" in envs.show("demo").failure["message"]


def test_the_folder_of_all_environments_is_shared_as_the_home_is(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(0o2775)
    before = os.umask(0o077)
    try:
        Envs(home / "envs", Here(), environ=os.environ).build(parse_spec({"name": "demo"}))
    finally:
        os.umask(before)
    assert stat.S_IMODE((home / "envs").stat().st_mode) == 0o2775


def test_what_is_no_file_of_a_person_is_not_read(envs: Envs, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    for file in ("/dev/zero", str(tmp_path / "pipe.yaml")):
        with pytest.raises(SystemFailure, match="it is not a regular file"):
            envs.plan(file)
    with open(tmp_path / "large.yaml", "wb") as stream:
        stream.truncate(1 << 30)
    with pytest.raises(SystemFailure, match="it is larger than"):
        envs.plan(tmp_path / "large.yaml")
    with pytest.raises(UsageError, match="is not a regular file"):
        envs.plan(parse_spec({"name": "x", "python": {"packages": ["/dev/zero"]}}))
    with pytest.raises(UsageError, match="no user ~nosuch"):
        envs.plan("~nosuch/demo.yaml")


def test_a_definition_that_is_not_there_is_refused_in_the_plan(envs: Envs, tmp_path: Path) -> None:
    given = {"definition": str(tmp_path / "Dockerfile"), "runtime": "podman"}
    with pytest.raises(NotFound, match=r"no definition .*Dockerfile"):
        envs.plan(parse_spec({"name": "x", "container": given}))


def test_a_changed_missing_or_added_file_is_found_and_repaired(
    envs: Envs, write: Callable[..., Path], tmp_path: Path
) -> None:
    lines = ("mkdir -p $PREFIX/bin", "echo one > $PREFIX/bin/tool", "echo two > $PREFIX/data")
    file = write(commands("a", *lines, "ln -s /bin/sh $PREFIX/bin/sh", 'echo x >> "$NOTES/built"'))
    built = envs.build(file)
    verified = envs.verify("demo")
    assert (verified.ok, verified.files, verified.tree) == (True, 3, built.record["tree"])
    assert not envs.repair("demo").rebuilt
    for path in (built.prefix, built.prefix / "bin", built.prefix / "data"):
        path.chmod(0o755)
    (built.prefix / "data").write_text("four")
    (built.prefix / "bin" / "tool").unlink()
    (built.prefix / "bin" / "extra").write_text("")
    (built.prefix / "__pycache__").mkdir()
    (built.prefix / "__pycache__" / "tool.pyc").write_text("")
    damaged = envs.verify("demo")
    assert (damaged.changed, damaged.missing, damaged.added) == (("data",), ("bin/tool",), ("bin/extra",))
    assert not envs.repair("demo", dry_run=True).rebuilt
    assert noted(tmp_path, "built") == 1
    assert envs.repair("demo").rebuilt
    assert noted(tmp_path, "built") == 2
    assert envs.verify("demo").ok
    assert (built.prefix / "data").read_text() == "two\n"


def test_a_repair_that_fails_leaves_the_environment_as_it_was(
    envs: Envs, write: Callable[..., Path], tmp_path: Path
) -> None:
    file = write(commands("a", "echo one > $PREFIX/data", "echo not here; test ! -e $NOTES/broken"))
    built = envs.build(file)
    built.prefix.chmod(0o755)
    (built.prefix / "added").write_text("")
    (tmp_path / "notes" / "broken").write_text("")
    with pytest.raises(SystemFailure, match="not here") as failed:
        envs.repair("demo")
    assert envs.verify("demo").added == ("added",)
    log = str(failed.value.hint).removeprefix("the log is ")
    assert "not here" in Path(log).read_text()
    (tmp_path / "notes" / "broken").unlink()
    assert envs.repair("demo").rebuilt
    assert envs.verify("demo").ok
    assert sorted(each.name for each in envs.root.iterdir()) == [".cache", ".locks", built.folder.name]


def test_a_repair_that_is_killed_is_gone_on_with_by_the_next_build(
    envs: Envs, write: Callable[..., Path], tmp_path: Path
) -> None:
    file = write(commands("a", "echo one > $PREFIX/data", "echo x >> $NOTES/at", "test ! -e $NOTES/hang || sleep 1000"))
    built = envs.build(file)
    built.prefix.chmod(0o755)
    (built.prefix / "data").unlink()
    (tmp_path / "notes" / "hang").write_text("")
    script = (
        "import os, sys; from pathlib import Path; from fairmile.base.commands import Here; "
        "from fairmile.envs.envs import Envs; Envs(Path(sys.argv[1]), Here(), environ=os.environ).repair('demo')"
    )
    repair = subprocess.Popen([sys.executable, "-c", script, str(envs.root)])
    try:
        wait_for(lambda: noted(tmp_path, "at") == 2)
    finally:
        repair.kill()
        repair.wait()
    assert envs.show("demo").state == "unfinished"
    (tmp_path / "notes" / "hang").unlink()
    assert envs.build(file).ready
    assert envs.verify("demo").ok
    assert sorted(each.name for each in envs.root.iterdir()) == [".cache", ".locks", built.folder.name]


def test_an_environment_whose_inputs_changed_is_not_repaired(
    envs: Envs, write: Callable[..., Path], tmp_path: Path
) -> None:
    built = envs.build(write(commands("a", "echo one > $PREFIX/data")))
    built.prefix.chmod(0o755)
    (built.prefix / "data").unlink()
    (tmp_path / "source" / "file").write_text("changed")
    with pytest.raises(Conflict, match="the inputs of demo have changed"):
        envs.repair("demo")


def test_a_build_of_an_earlier_version_has_no_digests(envs: Envs, write: Callable[..., Path]) -> None:
    built = envs.build(write(commands("a", "true")))
    (built.folder / "files.tsv").unlink()
    with pytest.raises(Unsupported, match="was built without digests"):
        envs.verify("demo")
