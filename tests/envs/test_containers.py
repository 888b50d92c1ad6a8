"""A model runs in a container with data from outside: for real with Charliecloud and with Podman."""

from __future__ import annotations

import hashlib
import json
import os
import select
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from busybox_image import make_image

from fairmile.base.commands import Here, Result
from fairmile.base.errors import Integrity, NotFound, Unsupported, UsageError
from fairmile.envs.containers import RUNTIMES, ContainerStep, make_steps, package, parse_bind, pick, wrap
from fairmile.envs.runtimes import Container
from fairmile.envs.runtimes.apptainer import Apptainer
from fairmile.envs.runtimes.podman import Podman
from fairmile.envs.spec import parse_spec
from fairmile.envs.steps import Tools

# What Podman needs here (see its manual): limits no higher than ours, an OCI runtime that knows this machine's
# control groups, no network, and a storage of its own.
_PODMAN_OPTIONS = ["--network=none", "--ulimit=nofile=1024:1024", "--ulimit=nproc=4096:4096"]


@dataclass(frozen=True)
class Ready:
    """A runtime that works here, and the container part of a specification that uses the busybox image with it."""

    runtime: str
    spec: Mapping[str, Any]
    tree: Path | None = None

    def __str__(self) -> str:
        return self.runtime


@pytest.fixture(scope="session")
def charliecloud(tmp_path_factory: pytest.TempPathFactory) -> Ready:
    if shutil.which("ch-run") is None or shutil.which("unshare") is None:
        pytest.skip("needs the programs ch-run and unshare")
    tree = make_image(tmp_path_factory.mktemp("charliecloud") / "image")
    return Ready("charliecloud", {"runtime": "charliecloud", "image": str(tree)}, tree)


@pytest.fixture(scope="session")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ready]:
    if shutil.which("podman") is None or shutil.which("runc") is None:
        pytest.skip("needs the programs podman and runc")
    if os.geteuid() != 0:
        pytest.skip("Podman without root needs more than a test can set up")
    folder = tmp_path_factory.mktemp("podman")
    tree = make_image(folder / "image")
    with tarfile.open(folder / "image.tar", "w") as archive:
        archive.add(tree, arcname=".")
    short = tempfile.mkdtemp(prefix="podman-", dir="/tmp")  # Podman takes no more than 50 letters here
    storage = [f"--root={folder}/storage", f"--runroot={short}", "--storage-driver=vfs", "--runtime=runc"]
    subprocess.run(
        ["podman", *storage, "import", "--quiet", str(folder / "image.tar"), "localhost/waves:1"],
        check=True,
        capture_output=True,
    )
    spec = {"runtime": "podman", "image": "localhost/waves:1", "options": _PODMAN_OPTIONS, "program_options": storage}
    yield Ready("podman", spec)
    # What a failed test left would keep its folder busy.
    subprocess.run(["podman", *storage, "rm", "--all", "--force", "--time=0"], check=True, capture_output=True)
    shutil.rmtree(short)


@pytest.fixture(params=["charliecloud", "podman"])
def ready(request: pytest.FixtureRequest) -> Ready:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Ready)
    return found


@pytest.fixture
def tools(tmp_path: Path) -> Tools:
    def none(*_: Any) -> Any:
        raise AssertionError("images are brought by their runtime")

    (tmp_path / "work").mkdir()
    return Tools(Here(), bring=none, unpack=none, work=tmp_path / "work", cache=tmp_path / "cache", environ={})


def made(tools: Tools, container: Mapping[str, Any], **more: Any) -> ContainerStep:
    (step,) = make_steps(parse_spec({"name": "waves", "container": container, **more}), tools)
    assert isinstance(step, ContainerStep)
    return step


def run_in(step: ContainerStep, prefix: Path, argv: Sequence[str], cwd: Path, **env: str) -> Result:
    return Here().run([*step.use(prefix).wrap, *argv], cwd=cwd, env=env, check=False, timeout_s=120)


def test_a_model_in_the_image_reads_data_from_outside_and_writes_where_it_may(
    ready: Ready, tools: Tools, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/waves.csv").write_text("1\n2\n3\n")
    (tmp_path / "out").mkdir()
    (tmp_path / "job").mkdir()
    (tmp_path / "env").mkdir()
    binds = [f"{tmp_path}/data:/new/data", f"{tmp_path}/out:/new/out:rw"]
    step = made(tools, {**ready.spec, "binds": binds})
    before = step.run(tmp_path / "env", tools)

    ended = run_in(step, tmp_path / "env", ["/model/count.sh", "/new/data/waves.csv", "/new/out/n"], tmp_path / "job")
    assert (ended.exit_code, ended.stderr) == (0, "")
    assert (tmp_path / "out/n").read_text() == "3\n"

    ended = run_in(step, tmp_path / "env", ["/model/count.sh", "/new/data/waves.csv", "/new/data/n"], tmp_path / "job")
    assert "Read-only" in ended.stderr
    assert ended.exit_code != 0
    assert [file.name for file in (tmp_path / "data").iterdir()] == ["waves.csv"]
    assert step.run(tmp_path / "env", tools)["digest"] == before["digest"], "the image has changed"


def test_the_exit_code_and_the_variables_of_the_job_pass(ready: Ready, tools: Tools, tmp_path: Path) -> None:
    step = made(tools, ready.spec)
    (tmp_path / "rows").write_text("1\n")
    argv = ["/model/count.sh", str(tmp_path / "rows"), "n"]
    assert run_in(step, tmp_path / "env", argv, tmp_path, MODEL_EXIT="7").exit_code == 7
    assert (tmp_path / "n").read_text() == "1\n", "the folder that the job runs in can be written"
    text = "a 'b' \"c\" $d\n--env=PATH"
    ended = run_in(step, tmp_path / "env", ["sh", "-c", 'printf %s "$GREETING"'], tmp_path, GREETING=text)
    assert ended.stdout == text


def test_where_things_lie_outside_is_not_seen_inside(ready: Ready, tools: Tools, tmp_path: Path) -> None:
    outside = {"PATH": f"{tmp_path}/mine:{os.environ['PATH']}", "HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    outside |= {"SHELL": f"{tmp_path}/zsh", "BASH_ENV": f"{tmp_path}/rc", "XDG_RUNTIME_DIR": str(tmp_path)}
    ended = run_in(made(tools, ready.spec), tmp_path / "env", ["env"], tmp_path, **outside)
    assert ended.exit_code == 0, ended.stderr
    seen = dict(line.split("=", 1) for line in ended.stdout.splitlines() if "=" in line)
    assert [name for name, value in seen.items() if str(tmp_path) in value and name != "PWD"] == []
    assert "/bin" in seen["PATH"].split(":")


def test_a_program_ends_when_its_job_is_cancelled(ready: Ready, tools: Tools, tmp_path: Path) -> None:
    step = made(tools, ready.spec)
    program = "trap 'echo reached' CONT; while :; do sleep 0.1; done"
    argv = [*step.use(tmp_path).wrap, "sh", "-c", program]
    with subprocess.Popen(argv, cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        deadline = time.monotonic() + 120
        # Podman passes signals on only from some moment after the start; this one does no harm before it.
        while not select.select([process.stdout], [], [], 0.2)[0] and time.monotonic() < deadline:
            process.send_signal(signal.SIGCONT)
        process.terminate()
        assert process.wait(timeout=120) != 0
        assert process.stdout.read().startswith(b"reached\n")


def test_variables_and_a_folder_can_be_given_one_by_one(ready: Ready, tools: Tools, tmp_path: Path) -> None:
    lock = made(tools, ready.spec).run(tmp_path, tools)
    runtime = RUNTIMES[ready.runtime]()
    container = Container(
        lock["image"],
        variables={"GREETING": "it's $HOME, and more"},
        folder="/model",
        options=tuple(ready.spec.get("options", ())),
        program_options=tuple(ready.spec.get("program_options", ())),
    )
    argv = runtime.command(container, ["sh", "-c", 'echo "$GREETING"; pwd'])
    assert Here().run(argv, env={"USER": "somebody"}).stdout == "it's $HOME, and more\n/model\n"


def test_a_folder_named_by_the_shell_is_bound_too(ready: Ready, tools: Tools, tmp_path: Path) -> None:
    step = made(tools, ready.spec)
    for name in ("job", "connection files"):
        (tmp_path / name).mkdir()
    other = tmp_path / "connection files"
    (other / "kernel.json").write_text("{}\n")
    argv = ["cat", str(other / "kernel.json")]
    assert run_in(step, tmp_path / "env", argv, tmp_path / "job", FAIRMILE_BIND=str(other)).stdout == "{}\n"


def test_programs_of_the_prefix_are_found_inside(ready: Ready, tools: Tools, tmp_path: Path) -> None:
    prefix = tmp_path / "it's env"
    (prefix / "bin").mkdir(parents=True)
    (prefix / "bin/hail").write_text("#!/bin/sh\necho hail from $0\ntouch $0.changed\n")
    (prefix / "bin/hail").chmod(0o755)
    (tmp_path / "job").mkdir()
    with pytest.raises(UsageError, match="cannot be bound"):
        made(tools, ready.spec, conda={"packages": ["hail"]}).use(prefix)
    prefix = prefix.rename(tmp_path / "my env")
    step = made(tools, ready.spec, conda={"packages": ["hail"]})
    path = f"{prefix}/bin:{os.environ['PATH']}"
    ended = run_in(step, prefix, ["hail"], tmp_path / "job", PATH=path)
    assert ended.stdout == f"hail from {prefix}/bin/hail\n"
    assert not (prefix / "bin/hail.changed").exists()


def test_an_image_is_known_by_its_digest(ready: Ready, tools: Tools, tmp_path: Path) -> None:
    step = made(tools, ready.spec)
    lock = step.run(tmp_path, tools)
    assert lock["digest"].startswith("sha256:")
    assert json.loads((tmp_path / "container.json").read_text()) == lock
    pinned = made(tools, {**ready.spec, "digest": lock["digest"]}).run(tmp_path, tools)
    assert "unpinned" not in pinned
    assert (pinned["image"], pinned["digest"]) == (lock["image"], lock["digest"])
    if ready.tree is None:
        said = f"localhost/waves:1 may change; set digest: {lock['digest']} to pin this image"
        assert lock["unpinned"] == said
        assert lock["image"] == f"localhost/waves@{lock['digest']}"
        assert lock["content"] == {"of": "manifest", "digest": lock["digest"]}


def test_an_image_with_another_digest_is_refused(charliecloud: Ready, tools: Tools, tmp_path: Path) -> None:
    wrong = "sha256:" + "00" * 32
    with pytest.raises(Integrity, match=f"of its tree, the specification says {wrong}"):
        made(tools, {**charliecloud.spec, "digest": wrong}).run(tmp_path, tools)
    assert not (tmp_path / "container.json").exists()
    with pytest.raises(UsageError, match=r"but container\.digest says"):
        made(tools, {"runtime": "podman", "image": f"waves@sha256:{'11' * 32}", "digest": wrong})


def test_the_same_image_is_the_same_material_wherever_it_lies(
    charliecloud: Ready, tools: Tools, tmp_path: Path
) -> None:
    assert charliecloud.tree is not None
    copy = tmp_path / "copy"
    shutil.copytree(charliecloud.tree, copy, symlinks=True)
    first = made(tools, charliecloud.spec).material()
    assert made(tools, {**charliecloud.spec, "image": str(copy)}).material() == first
    (copy / "model/count.sh").write_text("#!/bin/sh\n")
    assert made(tools, {**charliecloud.spec, "image": str(copy)}).material() != first
    with pytest.raises(NotFound, match="no image"):
        made(tools, {**charliecloud.spec, "image": str(tmp_path / "none")}).material()


def test_a_model_is_packaged_into_an_image_of_its_own(podman: Ready, tools: Tools, tmp_path: Path) -> None:
    digest = made(tools, podman.spec).run(tmp_path, tools)["digest"]
    odd = "$(id) `id` \\ \" ${WEIGHTS:-x} '"
    (tmp_path / "predict.sh").write_text('printf "%s\\n" "$ODD"; echo predicted with $WEIGHTS\n')
    spec = parse_spec(
        {
            "name": "Waves",
            "container": {**podman.spec, "digest": digest},
            "variables": {"WEIGHTS": "/model/w 1", "ODD": odd},
        }
    )
    packaged = package(spec, Podman(), files={"/model/predict.sh": tmp_path / "predict.sh"})
    definition = packaged.write(tmp_path / "build")
    assert definition.read_text().startswith(f"FROM localhost/waves:1@{digest}\n")
    assert packaged.notes == ()
    own = {key: value for key, value in podman.spec.items() if key != "image"}
    own |= {"definition": str(definition), "build_options": ["--isolation=chroot", "--pull=never"]}
    step = made(tools, own)
    (tmp_path / "env").mkdir()
    lock = step.run(tmp_path / "env", tools)
    assert lock["image"].startswith("localhost/fairmile/waves@sha256:")
    ended = run_in(step, tmp_path / "env", ["sh", "/model/predict.sh"], tmp_path)
    assert ended.stdout == f"{odd}\npredicted with /model/w 1\n"
    (tmp_path / "build/files/0").write_text("echo changed\n")
    assert made(tools, own).material() != step.material()


def test_python_packages_go_into_the_definition_and_the_systems_modules_do_not(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").touch()
    spec = parse_spec(
        {
            "name": "cosmoflow",
            "modules": ["cuda/11.8.0"],
            "python": {"packages": ["numpy>=2", "wandb"], "project": str(tmp_path), "extras": ["gpu"]},
            "conda": {"packages": ["hdf5 >=1.14,<2"]},
            "variables": {"HOROVOD_CUDA_HOME": "$CUDA_HOME"},
        }
    )
    packaged = package(spec, Apptainer(), base="docker.io/library/python:3.12")
    inside = f"/opt/fairmile/packages/0/{tmp_path.name}"
    assert packaged.texts["requirements.txt"] == "numpy>=2\nwandb\n"
    assert packaged.copies == {f"packages/0/{tmp_path.name}": tmp_path}
    text = packaged.texts["image.def"]
    assert "--channel conda-forge 'hdf5 >=1.14,<2'" in text
    assert "python3 -m pip install --no-cache-dir -r /opt/fairmile/requirements.txt" in text
    assert f"python3 -m pip install --no-cache-dir '{inside}[gpu]'" in text
    assert packaged.notes == (
        "the base docker.io/library/python:3.12 is not pinned by a digest: the same definition may build another image",
        "the base must have micromamba or conda, which installs the conda packages",
        "the modules cuda/11.8.0 belong to the system and are not in the image",
        "HOROVOD_CUDA_HOME refers to CUDA_HOME, which the base image must set",
    )


def test_a_login_in_requirements_never_reaches_an_image(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("--index-url https://me:hush@packages.example/simple\nnumpy\n")
    spec = parse_spec({"name": "waves", "python": {"requirements": str(tmp_path / "requirements.txt")}})
    with pytest.raises(UsageError, match="an address with a login") as caught:
        package(spec, Podman(), base="python:3.12")
    assert "hush" not in str(caught.value)


def test_an_image_needs_a_base() -> None:
    with pytest.raises(UsageError, match="needs a base"):
        package(parse_spec({"name": "waves"}), Podman())


class _FakeApptainer:
    """Stands in for Apptainer, which no test machine has: it writes a file where an image is pulled to."""

    def __init__(self) -> None:
        self.seen: list[list[str]] = []

    def run(self, argv: Sequence[str], **_: Any) -> Result:
        words = list(argv)
        if "pull" in words:
            self.seen.append(words[words.index("apptainer") :])
            Path(words[-2]).write_bytes(b"image")
        if words[0] == "sha256sum" and Path(words[-1]).exists():
            return Here().run(words)
        return Result(tuple(words), 0 if "pull" in words else 1, "", "", 0.0)


def test_apptainer_is_told_to_pull_once_and_its_file_lies_in_the_prefix(tools: Tools, tmp_path: Path) -> None:
    runner = _FakeApptainer()
    there = replace(tools, runner=runner)
    digest = "sha256:" + "ab" * 32
    spec = parse_spec({"name": "a", "container": {"runtime": "apptainer", "image": "python:3.12", "digest": digest}})
    assert spec.container is not None
    step = ContainerStep("a", spec.container, Apptainer(), runner)
    lock = step.run(tmp_path, there)
    file = f"{tmp_path}/image.sif"
    assert runner.seen == [["apptainer", "pull", "--force", file, f"docker://python:3.12@{digest}"]]
    assert (lock["image"], lock["digest"]) == (file, digest)
    assert lock["content"] == {"of": "file", "digest": "sha256:" + hashlib.sha256(b"image").hexdigest()}
    assert step.run(tmp_path, there) == lock
    assert len(runner.seen) == 1
    loose = ContainerStep("a", spec.container.model_copy(update={"digest": None}), Apptainer(), runner)
    lock = loose.run(tmp_path, there)
    assert lock["digest"] is None
    assert lock["unpinned"] == "python:3.12 may change; set container.digest to pin this image"


class _Has:
    """A system that has some programs."""

    def __init__(self, *programs: str) -> None:
        self.programs = programs

    def run(self, argv: Sequence[str], **_: Any) -> Result:
        there = [word for word in argv if word in self.programs]
        return Result(tuple(argv), 0, "".join(f"{word}\n" for word in there), "", 0.0)


def test_the_runtime_is_the_first_that_is_there_by_the_sites_wish() -> None:
    assert pick(_Has("podman", "ch-run")).name == "podman"
    assert pick(_Has("podman", "ch-run"), ["charliecloud", "podman"]).name == "charliecloud"
    found = pick(_Has("singularity", "docker"))
    assert (found.name, found.program) == ("apptainer", "singularity")
    with pytest.raises(Unsupported, match="no container runtime: none of the programs apptainer, singularity, podman"):
        pick(_Has())
    with pytest.raises(NotFound, match="did you mean 'podman'"):
        pick(_Has(), ["podmann"])


def test_this_machine_is_really_asked(charliecloud: Ready) -> None:
    assert pick(Here(), ["charliecloud"]).program == "ch-run"


def test_a_bind_is_read_only_unless_it_says_rw() -> None:
    assert parse_bind("/data").read_only
    assert parse_bind("/data:/inside").inside == "/inside"
    assert parse_bind("/data:ro").inside == "/data"
    assert not parse_bind("/data:rw").read_only
    assert not parse_bind("/data:/inside:rw").read_only
    for text in ("/data:/inside:wr", "/data:/a:/b:rw", "data", ""):
        with pytest.raises(UsageError):
            parse_bind(text)


def test_apptainer_is_not_handed_what_lies_outside() -> None:
    script = wrap(Apptainer(), Container("/images/a.sif"))[2]
    taken = next(line for line in script.splitlines() if line.startswith("unset OLDPWD"))
    assert {"TMPDIR", "LD_PRELOAD", "BASH_ENV", "SHELL"} <= set(taken.split())


def test_a_home_folder_that_nobody_has_is_said_so(tools: Tools) -> None:
    with pytest.raises(UsageError, match="no user ~nosuch"):
        parse_bind("~nosuch/data")
    with pytest.raises(UsageError, match="no user ~nosuch"):
        made(tools, {"runtime": "charliecloud", "image": "~nosuch/image"})


def test_values_cannot_break_out_of_the_wrapping_shell(tmp_path: Path) -> None:
    container = Container("/images/it's $(touch x)", options=("--label=$(touch y)", "`touch z`"))
    words = wrap(Podman(), container)
    fake = tmp_path / "podman"
    fake.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    fake.chmod(0o755)
    printed = Here().run([*words, "a b", "$c"], cwd=tmp_path, env={"PATH": f"{tmp_path}:{os.environ['PATH']}"}).stdout
    assert printed.splitlines()[-5:] == ["--label=$(touch y)", "`touch z`", "/images/it's $(touch x)", "a b", "$c"]
    assert f"--mount=type=bind,source={tmp_path},target={tmp_path}" in printed
    assert [file.name for file in tmp_path.iterdir()] == ["podman"]


def test_the_plan_says_what_would_be_done(tools: Tools) -> None:
    digest = "sha256:" + "ab" * 32
    assert made(tools, {"runtime": "apptainer", "image": "docker.io/library/python:3.12"}).describe() == (
        "pull the image docker.io/library/python:3.12, whose tag names no digest with apptainer"
    )
    assert made(tools, {"runtime": "docker", "image": "python:3.12", "digest": digest}).describe() == (
        f"pull the image python:3.12@{digest} with docker"
    )
    assert make_steps(parse_spec({"name": "none"}), tools) == []
