"""Measures the generation of sweeps: 10,000 points of a project like cloudmask, beside cloudmesh-ee in the same run.

Run: python speed/sweeps.py [--points N] [--peer-points N] [--peer PYTHON | --no-peer]

    plan      CPU and peak memory of finding out what would be written, every point tried
    generate  CPU, seconds and peak memory of writing folders, scripts, configurations, code, manifest, submit scripts
    bare      the file system's part of that: the same folders, files and links with as many bytes and nothing else
    peer      the same project with cloudmesh-ee 5.0.5, which is installed into a temporary environment; `--peer` names
              a Python that has it. Where it cannot be had that is said. Its points are fewer: it needs over half an
              hour of CPU for 10,000.

The project has as many settings as cloudmask's and two axes, `epoch` and `repeat`. CPU is user and system time of a
command with its start, peak the largest resident set of one process. What both wrote is compared for one point.
System time depends on the file system: ext4 without a journal looks, for minutes after many files were removed, at each
of them before it makes a new one, so that a second measurement in a row can show several seconds more.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

PACKAGE = "cloudmesh-ee==5.0.5"
EPOCHS = 10
CONFIG = """\
name: cloudmask-speed
sbatch: {time: "10:00:00", mode: h, dir: scratch}
ee: {time: "10:00:00", mode: h, dir: scratch}
run:
  filesystem: "/scratch/someone"
  target: rivanna-singularity
  fit-verbose: 1
  host: rivanna
  venvpath: "/scratch/{os.USER}/ENV3"
  datadir: "/scratch/{os.USER}/data"
  branch: main
  mode: parallel
submission:
  benchmark: cloudmask
  name: cloudmask
  submitter: Some One
  email: some.one@example.org
  org: Some University
  division: open
  version: cloudmask-v0.5
  github_commit_version: TBD
  status: completed
  platform: rivanna
  accelerators_per_node: 1
experiment:
  directive: "a100-dgx"
  gpu_count: "1"
  cpu_num: 1
  mem: "64GB"
  repeat: "REPEATS"
  epoch: "EPOCHS"
  seed: 1234
  learning_rate: 0.001
  batch_size: 32
  train_split: 0.8
  clip_offset: 15
  no_cache: False
  nodes: 1
  gpu: 1
  early_stoppage_patience: "25"
  early_stoppage: "False"
identifier: "{experiment.directive}_{experiment.early_stoppage}_{experiment.epoch}_{experiment.repeat}"
system:
  host: rivanna
  python: "3.10.8"
  num_cpus: 1
  platform: rivanna
  accelerators_per_node: 1
  constraint: ""
  reservation: ""
mask: float
training: {loss: binary_crossentropy, metrics: accuracy}
output:
  directory: "."
  model_file: "./cloudModel.h5"
  log_file: "./cloudmask_final.log"
  mlperf_logfile: "./mlperf_cloudmask_final.log"
data:
  scratch: "/scratch/{os.USER}/data/cloudmask/data"
  training: "{data.scratch}/one-day"
  inference: "{data.scratch}/ssts"
  model: cloudModel.h5
  output: "./outputs"
log: {file: c_cloudmask_run.log, mlperf: c_mlperf_cloudmask.log}
image: {PATCH_SIZE: 256, IMAGE_H: 1200, IMAGE_W: 1500, N_CHANNELS: 9, MIN_SST: 273.15, CROP_SIZE: 80}
training_loss: binary_crossentropy
training_metrics: accuracy
"""
TEMPLATE = """\
#!/usr/bin/env bash
#SBATCH --job-name={experiment.repeat}-{experiment.epoch}-cloudmask
#SBATCH --nodes={experiment.nodes}
#SBATCH --mem={experiment.mem}
#SBATCH --time={ee.time}
{slurm.sbatch}
#SBATCH -o %u-%j-{ee.identifier}.out
set -uxe
USER_SCRATCH=/scratch/$USER
PROJECT_DIR="$(pwd)"
PYTHON_DIR="{run.venvpath}"
PYTHON_VERSION="{system.python}"
CODE_DIR="${PROJECT_DIR:-.}"
export TRAINING={data.training} INFERENCE={data.inference} OUTPUT={data.output}
echo "# cloudmesh status=running progress=1 pid=$$"
nvidia-smi --query-gpu=name --format=csv | awk '{print $1}'
source "${PYTHON_DIR}/bin/activate"
mkdir -p {output.directory} "{data.output}"
for i in $(seq {experiment.gpu_count}); do
    python train.py --config=config.yaml --epochs {experiment.epoch} --seed {experiment.seed} \\
        --lr {experiment.learning_rate} --batch {experiment.batch_size} --card {experiment.card_name} \\
        --patience {experiment.early_stoppage_patience} --model {output.model_file} --log {log.file}
done
echo "# cloudmesh status=done progress=100 pid=$$"
"""
PROGRAM = "import yaml\nprint(yaml.safe_load(open('config.yaml'))['experiment'])\n"
OURS = """\
import os, sys
from pathlib import Path
from fairmile.compat.cloudmesh import read_project
from fairmile.sweeps.generate import generate, plan_generation
definition = read_project([Path("config.yaml")], environ=os.environ)
given = {"name": "speed", "copy": ["train.py"], "environ": os.environ}
what = plan_generation if sys.argv[1] == "plan" else generate
print(what(definition, Path("cloudmask.in.slurm"), Path("out"), **given).count)
"""
BARE = """\
import os
data = b"x" * 2000
os.mkdir("bare")
for name in os.listdir("out"):
    if os.path.isdir(f"out/{name}") and not name.startswith("."):
        os.mkdir(f"bare/{name}")
        for file in ("cloudmask.slurm", "config.yaml"):
            fd = os.open(f"bare/{name}/{file}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            os.write(fd, data)
            os.close(fd)
        os.link("train.py", f"bare/{name}/train.py")
"""


@dataclass(frozen=True)
class Measured:
    """What a command took."""

    user_s: float
    system_s: float
    wall_s: float
    peak_bytes: int
    rc: int
    output: str

    @property
    def cpu_s(self) -> float:
        return self.user_s + self.system_s

    def __str__(self) -> str:
        cpu = f"{self.cpu_s:8.2f} s CPU ({self.system_s:.2f} s system)"
        return f"{cpu} {self.wall_s:8.2f} s wall {self.peak_bytes / 1e6:7.0f} MB peak"


def measure(argv: list[str], folder: Path, home: Path) -> Measured:
    """Run a command and return what it and its children took."""
    environ = {**os.environ, "HOME": str(home), "USER": "someone", "FAIRMILE_HOME": str(home / "fairmile")}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryFile() as output:
        start = time.monotonic()
        process = subprocess.Popen(
            argv, cwd=folder, env=environ, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = time.monotonic() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(max(0, output.seek(0, os.SEEK_END) - 2000))
        tail = output.read().decode(errors="replace")
    return Measured(usage.ru_utime, usage.ru_stime, wall_s, usage.ru_maxrss * 1024, process.returncode, tail)


def write_project(folder: Path, points: int) -> None:
    folder.mkdir(parents=True)
    epochs = ",".join(str(10 * (epoch + 1)) for epoch in range(EPOCHS))
    config = CONFIG.replace("REPEATS", f"[1-{points // EPOCHS}]").replace("EPOCHS", epochs)
    (folder / "config.yaml").write_text(config)
    (folder / "cloudmask.in.slurm").write_text(TEMPLATE)
    (folder / "train.py").write_text(PROGRAM)


def ours(folder: Path, points: int) -> Measured:
    write_project(folder, points)
    code = [sys.executable, "-c", OURS]
    measure([*code, "plan"], folder, folder)  # the first start writes bytecode
    for what in ("plan", "generate"):
        taken = measure([*code, what], folder, folder)
        if taken.rc or taken.output.strip() != str(points):
            raise SystemExit(f"{what} failed: {taken.output}")
        print(f"  {'ours, ' + what:<22} {points:>7,} points {taken}")
    print(f"  {'bare file system':<22} {points:>7,} points {measure([sys.executable, '-c', BARE], folder, folder)}")
    return taken


def peer_python(given: Path | None, folder: Path) -> Path | str:
    """Return a Python that has the peer, or why there is none."""
    if given is not None:
        return given
    steps = [[sys.executable, "-m", "venv", str(folder)]]
    # It imports pkg_resources, which newer versions of setuptools lack.
    steps += [[str(folder / "bin/python"), "-m", "pip", "install", "-q", PACKAGE, "setuptools<81"]]
    for step in steps:
        done = subprocess.run(step, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            return (done.stdout.strip().splitlines() or ["no reason given"])[-1]
    return folder / "bin/python"


def theirs(python: Path, folder: Path, points: int) -> Measured | None:
    write_project(folder, points)
    command = (
        "ee generate --source=cloudmask.in.slurm --config=config.yaml --name=speed --output_dir=out --source_dir=."
    )
    argv = [
        str(python),
        str(python.parent / "cms"),
        *command.split(),
        "--copycode=train.py",
        "--noos",
        "--os=USER",
        "--nocm",
    ]
    taken = measure(argv, folder, folder)
    made = len(list(folder.glob("out/*/config.yaml")))
    if made != points:
        print(f"  cloudmesh-ee: left out, it made {made} of {points} points: {taken.output[-300:]}")
        return None
    print(f"  {'cloudmesh-ee':<22} {points:>7,} points {taken}")
    return taken


def compare(our: Path, their: Path) -> None:
    """Say in what the script of a point differs that both wrote, and the fields of its entry in the manifest."""
    name = next(path.name for path in sorted(their.glob("out/*/")) if (our / "out" / path.name).is_dir())
    left, right = ((each / "out" / name / "cloudmask.slurm").read_text().rstrip() for each in (our, their))
    lines = zip_longest(left.split("\n"), right.split("\n"))
    differ = "; ".join(f"{one!r} here, {other!r} there" for one, other in lines if one != other)
    print(f"  the script of {name[:40]}… is {f'different: {differ}' if differ else 'the same in both'}")
    fields = [set(json.loads(path.read_text())[name]) for path in (our / "out/speed.json", their / "speed.json")]
    print(f"  its entry in the manifest has {'the same' if fields[0] == fields[1] else 'other'} fields")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--points", type=int, default=10_000)
    parser.add_argument("--peer-points", type=int, default=1_000)
    parser.add_argument("--peer", type=Path, metavar="PYTHON")
    parser.add_argument("--no-peer", action="store_true")
    given = parser.parse_args()
    print("a project like cloudmask: folders, scripts, configurations, code, manifest")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        our = ours(folder / "ours", given.points // EPOCHS * EPOCHS)
        if given.no_peer:
            return
        python = peer_python(given.peer, folder / "peer")
        if isinstance(python, str):
            print(f"  cloudmesh-ee: left out, it cannot be installed: {python}")
            return
        their = theirs(python, folder / "theirs", given.peer_points // EPOCHS * EPOCHS)
        if their is None:
            return
        compare(folder / "ours", folder / "theirs")
        mine_ms, other_ms = our.cpu_s / given.points * 1e3, their.cpu_s / given.peer_points * 1e3
        print(
            f"  CPU of a point: ours {mine_ms:.3f} ms, cloudmesh-ee {other_ms:.1f} ms, {other_ms / mine_ms:.0f} × ours"
        )


if __name__ == "__main__":
    main()
