"""What each container runtime is told, word for word, and what is read from its answers."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from fairmile.base.errors import SystemFailure, UsageError
from fairmile.envs.runtimes import Bind, Container, Options, Recipe, Runtime, split_reference
from fairmile.envs.runtimes.apptainer import Apptainer
from fairmile.envs.runtimes.charliecloud import Charliecloud
from fairmile.envs.runtimes.docker import Docker
from fairmile.envs.runtimes.podman import Podman

D = "sha256:" + "5c" * 32
IMAGE = f"docker.io/library/python@{D}"
CONTAINER = Container(
    IMAGE,
    binds=(Bind("/data/cosmo", "/data"), Bind("/scratch/out", "/out", read_only=False)),
    variables={"OMP_NUM_THREADS": "4", "TITLE": "two words"},
    gpu="nvidia",
    folder="/out",
    options=("--network=none",),
    program_options=("--log-level=error",),
)
RECIPE = Recipe(
    IMAGE,
    files=(("requirements.txt", "/opt/fairmile/requirements.txt"),),
    lines=("python3 -m pip install --no-cache-dir -r /opt/fairmile/requirements.txt",),
    variables={"MODEL_HOME": "/model", "GREETING": 'say "hi" to $MODEL_HOME'},
    labels={"fairmile.environment": "cosmoflow"},
)
ALL: list[Runtime] = [Apptainer(), Podman(), Docker(), Charliecloud()]


def test_apptainer_runs_a_program() -> None:
    assert Apptainer().command(CONTAINER, ["python", "train.py"]) == [
        *("apptainer", "--log-level=error", "exec", "--no-home", "--nv"),
        *("--bind=/data/cosmo:/data:ro", "--bind=/scratch/out:/out:rw"),
        *("--env=OMP_NUM_THREADS=4", "--env=TITLE=two words", "--pwd=/out", "--network=none"),
        *(f"docker://{IMAGE}", "python", "train.py"),
    ]
    assert Apptainer("singularity").command(Container("/images/a.sif", gpu="amd"), ["true"]) == [
        *("singularity", "exec", "--no-home", "--rocm", "/images/a.sif", "true")
    ]


def test_podman_and_docker_run_a_program() -> None:
    shared = [
        *("run", "--rm", "--interactive", "--entrypoint=", "--pid=host"),
        "--mount=type=bind,source=/data/cosmo,target=/data,readonly",
        "--mount=type=bind,source=/scratch/out,target=/out",
        *("--env=OMP_NUM_THREADS=4", "--env=TITLE=two words"),
    ]
    end = ["--workdir=/out", "--network=none", IMAGE, "python", "train.py"]
    argv = ["python", "train.py"]
    assert Podman().command(CONTAINER, argv) == [
        *("podman", "--log-level=error", *shared, "--device=nvidia.com/gpu=all", *end)
    ]
    assert Docker().command(CONTAINER, argv) == ["docker", "--log-level=error", *shared, "--gpus=all", *end]


def test_charliecloud_runs_a_program_and_prepares_what_it_cannot_do_itself() -> None:
    own = ("--set-env=PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "--set-env=HOME=/root")
    words = Charliecloud().command(CONTAINER, ["python", "train.py"])
    run = words.index("ch-run")
    assert words[run:] == [
        *("ch-run", "--env-no-expand", *own, "--bind=/data/cosmo:/data", "--bind=/scratch/out:/out"),
        *("--set-env=OMP_NUM_THREADS=4", "--set-env=TITLE=two words", "--cd=/out", "--network=none"),
        *(IMAGE, "--", "python", "train.py"),
    ]
    assert words[:7] == ["unshare", "--user", "--map-current-user", "--keep-caps", "--mount", "sh", "-c"]
    assert words[8:run] == [*("sh", "/data/cosmo", "--", IMAGE, "/data/cosmo", "/data", "/scratch/out", "/out", "--")]
    assert Charliecloud().command(Container("/images/a"), ["true"]) == [
        *("ch-run", "--env-no-expand", *own, "/images/a", "--", "true")
    ]


def test_dockerfiles_take_their_base_by_digest() -> None:
    text = f"""\
FROM {IMAGE}
COPY ["requirements.txt", "/opt/fairmile/requirements.txt"]
ENV MODEL_HOME="/model"
ENV GREETING="say \\"hi\\" to ${{MODEL_HOME}}"
RUN python3 -m pip install --no-cache-dir -r /opt/fairmile/requirements.txt
LABEL fairmile.environment="cosmoflow"
"""
    assert Docker().definition(RECIPE) == ("Dockerfile", text)
    assert Podman().definition(RECIPE) == ("Containerfile", text)
    assert Charliecloud().definition(RECIPE) == ("Dockerfile", text)


def test_apptainer_definitions_take_their_base_by_digest() -> None:
    assert Apptainer().definition(RECIPE) == (
        "image.def",
        f"""\
Bootstrap: docker
From: {IMAGE}

%files
    requirements.txt /opt/fairmile/requirements.txt

%environment
    export MODEL_HOME="/model"
    export GREETING="say \\"hi\\" to ${{MODEL_HOME:-}}"

%post
    set -eu
    export MODEL_HOME="/model"
    export GREETING="say \\"hi\\" to ${{MODEL_HOME:-}}"
    python3 -m pip install --no-cache-dir -r /opt/fairmile/requirements.txt

%labels
    fairmile.environment cosmoflow
""",
    )
    assert Apptainer().definition(Recipe("/images/a.sif"))[1] == "Bootstrap: localimage\nFrom: /images/a.sif\n"


def test_images_are_built_and_brought() -> None:
    options = Options(program=("--debug",), build=("--no-cache",))
    assert Apptainer().build_commands("image.def", "/env/image.sif", "/work", options) == [
        ["apptainer", "--debug", "build", "--force", "--no-cache", "/env/image.sif", "image.def"]
    ]
    assert Apptainer().pull_commands(IMAGE, "/env/image.sif", "/work", options) == [
        ["apptainer", "--debug", "pull", "--force", "/env/image.sif", f"docker://{IMAGE}"]
    ]
    assert Docker().build_commands("Dockerfile", "localhost/fairmile/a:1", "/work", options) == [
        ["docker", "--debug", "build", "--no-cache", "--tag=localhost/fairmile/a:1", "--file=Dockerfile", "."]
    ]
    assert Docker().pull_commands(IMAGE, IMAGE, "/work", options) == [["docker", "--debug", "pull", "--quiet", IMAGE]]
    assert Charliecloud().build_commands("Dockerfile", "/env/image", "/work", options) == [
        [
            *("ch-image", "--storage=/work/charliecloud", "--debug", "build"),
            *("--no-cache", "--tag=made", "--file=Dockerfile", "."),
        ],
        [
            *("ch-convert", "--storage=/work/charliecloud", "--in-fmt=ch-image", "--out-fmt=dir"),
            *("made", "/env/image"),
        ],
    ]
    assert Charliecloud().pull_commands(IMAGE, "/env/image", "/work", options)[0] == [
        *("ch-image", "--storage=/work/charliecloud", "--debug", "pull", IMAGE, "brought")
    ]


def test_an_inspected_image_is_known_by_the_digest_of_its_manifest() -> None:
    other = "sha256:" + "00" * 32
    listed = [f"mirror.example/python@{other}", f"docker.io/library/python@{D}"]
    said = json.dumps([{"Id": "ab" * 32, "RepoDigests": listed}])
    for runtime in (Podman(), Docker()):
        found = runtime.parse_identity("docker.io/library/python:3.12", said)
        assert (found.digest, found.kind, found.reference) == (D, "manifest", IMAGE)


def test_an_image_that_was_made_here_is_known_by_its_configuration() -> None:
    said = json.dumps([{"Id": "sha256:" + "ab" * 32, "RepoDigests": None}])
    found = Docker().parse_identity("localhost/fairmile/a:1", said)
    assert (found.digest, found.kind) == ("sha256:" + "ab" * 32, "configuration")
    assert found.reference == found.digest


def test_an_image_file_or_folder_is_known_by_its_bytes() -> None:
    assert Apptainer().parse_identity("/a.sif", f"{'ab' * 32}  /a.sif\n").digest == "sha256:" + "ab" * 32
    assert Charliecloud().parse_identity("/images/a", f"{'ab' * 32}  -\n").kind == "tree"
    assert Charliecloud().parse_identity("/a.sqfs", f"{'ab' * 32}  /a.sqfs\n").kind == "file"


@pytest.mark.parametrize("runtime", ALL, ids=lambda runtime: runtime.name)
@pytest.mark.parametrize("said", ["", "nothing known", "[]", "[{}]", '[{"Id": "x"}]', "[[]]"])
def test_an_answer_that_names_no_image_is_said_to(runtime: Runtime, said: str) -> None:
    with pytest.raises(SystemFailure, match="image"):
        runtime.parse_identity("waves", said)


@pytest.mark.parametrize("path", ["relative", "/with:colon", "/with,comma", "/with\nline", '/with"quote', ""])
def test_what_no_runtime_can_bind_is_refused(path: str) -> None:
    with pytest.raises(UsageError, match="cannot be bound"):
        Bind(path, "/data")
    with pytest.raises(UsageError, match="cannot be bound"):
        Bind("/data", path)


def test_nothing_is_bound_over_the_whole_container() -> None:
    with pytest.raises(UsageError, match="over the whole container"):
        Bind("/data", "/")


@pytest.mark.parametrize("line", ["one\ntwo", "goes on \\", " "])
def test_a_definition_holds_whole_lines_only(line: str) -> None:
    for runtime in ALL:
        with pytest.raises(UsageError, match="whole line"):
            runtime.definition(Recipe(IMAGE, lines=(line,)))


def test_a_reference_is_split_at_its_digest() -> None:
    assert split_reference(IMAGE) == ("docker.io/library/python", D)
    assert split_reference("127.0.0.1:5000/python:3.12") == ("127.0.0.1:5000/python:3.12", "")
    with pytest.raises(UsageError, match="not a digest"):
        split_reference("python@sha256:12")


HOSTILE = '$(touch live) `touch live` "; touch live; " $((1+1)) \\$WORD ${WORD:-$(touch live)} $$'


def test_nothing_but_references_is_live_in_a_value_of_a_definition(tmp_path: Path) -> None:
    made = Apptainer().definition(Recipe("/a.sif", variables={"A": HOSTILE, "B": "<${WORD}> <$WORD> <$NONE>"}))[1]
    script = "set -eu\n" + made.partition("%environment\n")[2] + 'printf "%s\\n" "$A" "$B"\n'
    ended = subprocess.run(["sh", "-c", script], cwd=tmp_path, env={"WORD": "w"}, capture_output=True, text=True)
    assert ended.stdout.splitlines() == [HOSTILE.replace("\\$WORD", "\\w"), "<w> <w> <>"], ended.stderr
    assert not list(tmp_path.iterdir())
    text = Docker().definition(Recipe("a", variables={"A": '$(x) ${B:-c} $B \\ "'}, labels={"l": "$B"}))[1]
    assert text == 'FROM a\nENV A="\\$(x) \\${B:-c} ${B} \\\\ \\""\nLABEL l="\\$B"\n'
