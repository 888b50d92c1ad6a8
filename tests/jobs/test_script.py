"""The batch script: byte for byte what it was, taken by the real programs, and right when it runs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from processes import processes_of_session
from slurm_cluster import SlurmCluster

from fairmile.base.errors import UsageError
from fairmile.jobs import script as module
from fairmile.jobs.request import JobFiles
from fairmile.jobs.request_rules import make_request
from fairmile.jobs.schedulers import SCHEDULERS
from fairmile.jobs.script import make_script, write_script
from fairmile.jobs.spec import Array, JobSpec, Resources, Signal
from fairmile.systems.model import System
from fairmile.systems.registry import Systems

KNOWN = Systems()
GOLDEN = Path(__file__).parent / "golden"
TRAIN = ("python", "train.py", "--epochs", "10")
HOUR = 3600.0

# Each golden file: the system, the job, and whether the job has a folder of its own.
CASES: dict[str, tuple[str, dict[str, Any], bool]] = {
    "jureca-ddp": ("jureca", {"software": ("ddp",), "resources": {"nodes": 2, "account": "zam"}}, True),
    "jureca-ddp-by-hand": ("jureca", {"software": ("ddp",), "resources": {"nodes": 2}}, False),
    "juwels-booster-ddp": ("juwels", {"software": ("ddp",), "resources": {"nodes": 4}, "signal": Signal()}, True),
    "deep-horovod": ("deep", {"software": ("horovod",), "resources": {"nodes": 4, "account": "deepext"}}, True),
    "lumi-ddp": ("lumi", {"software": ("ddp",), "resources": {"nodes": 2, "partition": "dev-g"}}, True),
    "cte-amd-ddp": ("cte-amd", {"software": ("ddp",), "resources": {"nodes": 2, "qos": "bsc_case"}}, True),
    "summit-jsrun": ("summit", {"launch": "jsrun", "resources": {"nodes": 2, "account": "abc123"}}, True),
    "summit-array": ("summit", {"array": Array(count=10, at_once=2), "signal": Signal()}, True),
    "polaris-ddp": ("polaris", {"launch": "torchrun", "resources": {"nodes": 2, "account": "datascience"}}, True),
    "polaris-by-hand": ("polaris", {"launch": "mpiexec", "resources": {"nodes": 2}}, False),
    "tuolumne-ddp": ("tuolumne", {"launch": "torchrun", "resources": {"nodes": 2}, "signal": Signal()}, True),
    "tuolumne-flux": ("tuolumne", {"launch": "flux", "resources": {"nodes": 2}}, True),
    "laptop-plain": ("laptop", {}, True),
    "laptop-array": ("laptop", {"array": Array(count=3)}, True),
    "laptop-torchrun": ("laptop", {"launch": "torchrun", "resources": {"tasks_per_node": 2}}, True),
}


def made(name: str) -> str:
    system, given, has_folder = CASES[name]
    resources = Resources(**{"time_s": HOUR, **given.get("resources", {})})
    spec = JobSpec(**{"argv": TRAIN, "name": "train", **given, "resources": resources})
    return make_script(spec, KNOWN[system], folder="/scratch/jobs/j1" if has_folder else "").text


class TestGoldenFiles:
    @pytest.fixture(autouse=True)
    def day(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The lines of a system get old, and scripts say so."""

        class Day(date):
            @classmethod
            def today(cls) -> Day:
                return cls(2026, 11, 18)

        monkeypatch.setattr("fairmile.systems.model.date", Day)

    @pytest.mark.parametrize("name", CASES)
    def test_a_script_is_byte_for_byte_what_it_was(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """FAIRMILE_UPDATE_GOLDEN=1 writes the files anew; read the difference before you keep it."""
        monkeypatch.setattr(module, "__version__", "0")
        text, file = made(name), GOLDEN / f"{name}.sh"
        if os.environ.get("FAIRMILE_UPDATE_GOLDEN"):
            file.parent.mkdir(exist_ok=True)
            file.write_text(text, encoding="utf-8")
        assert text == file.read_text(encoding="utf-8")

    def test_there_is_no_file_without_a_case(self) -> None:
        assert {file.stem for file in GOLDEN.glob("*")} == set(CASES)

    @pytest.mark.parametrize("name", CASES)
    def test_bash_can_read_it(self, name: str) -> None:
        checked = subprocess.run(["bash", "-n", str(GOLDEN / f"{name}.sh")], capture_output=True, text=True)
        assert (checked.returncode, checked.stderr) == (0, "")


def laptop(**changes: Any) -> System:
    return KNOWN["laptop"].model_copy(update=changes)


class Running:
    """A script of the shell's dialect that runs in a session of its own, as the queue starts it."""

    def __init__(self, place: Path, system: System | None = None, /, **given: Any) -> None:
        self.folder = place
        text = make_script(JobSpec(**given), system or laptop(), folder=str(place)).text
        (place / "script.sh").write_text(text, encoding="utf-8")
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> Running:
        env = {name: value for name, value in os.environ.items() if not name.startswith("FAIRMILE")}
        command = ["bash", "script.sh"]
        self.process = subprocess.Popen(command, cwd=self.folder, env=env, start_new_session=True)
        return self

    def finish(self) -> int:
        if self.process is None:
            self.start()
        assert self.process is not None
        return self.process.wait(timeout=60)

    def wait_for(self, name: str) -> None:
        deadline = time.monotonic() + 60
        while not (self.folder / name).exists():
            assert time.monotonic() < deadline, f"{name} did not come"
            time.sleep(0.02)

    def note(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / name).read_text().splitlines()[-1])
        return found

    def read(self, name: str) -> str:
        return (self.folder / name).read_text(encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "my job's \u00fc folder"
    place.mkdir()
    yield place


class TestRunning:
    @pytest.mark.parametrize("code", [0, 7])
    def test_the_exit_code_is_kept_and_noted(self, tmp_path: Path, code: int) -> None:
        job = Running(tmp_path, argv=("sh", "-c", f"echo out; echo err >&2; exit {code}"))
        assert job.finish() == code
        assert job.note("ended")["exit_code"] == code
        assert "signal" not in job.note("ended")
        assert (job.read("out.log"), job.read("err.log")) == ("out\n", "err\n")

    def test_start_and_end_are_noted_with_their_times(self, tmp_path: Path) -> None:
        job = Running(tmp_path, argv=("true",))
        before = time.time()
        job.finish()
        started, ended = job.note("started"), job.note("ended")
        assert started["attempt"] == 1
        assert started["job"] == ended["job"] != ""
        assert int(before) <= started["time"] <= ended["time"] <= time.time()
        assert started["host"] == os.uname().nodename
        assert sorted(file.name for file in tmp_path.iterdir()) == [
            "ended",
            "err.log",
            "out.log",
            "script.sh",
            "started",
        ]

    def test_a_program_that_is_not_there_ends_with_127(self, tmp_path: Path) -> None:
        job = Running(tmp_path, argv=("no-such-program",))
        assert job.finish() == 127
        assert "no-such-program: not found" in job.read("err.log")

    def test_a_program_that_a_signal_ended(self, tmp_path: Path) -> None:
        job = Running(tmp_path, argv=("sh", "-c", "kill -KILL $$"))
        assert job.finish() == 137
        assert job.note("ended")["exit_code"] == 137

    def test_a_second_start_is_noted_below_the_first_and_the_old_end_goes(self, tmp_path: Path) -> None:
        job = Running(tmp_path, argv=("sh", "-c", "test ! -e ended && echo again"))
        (tmp_path / "ended").write_text('{"exit_code": 1}\n')
        (tmp_path / "started").write_text('{"attempt": 1}\n')
        assert job.finish() == 0
        assert [json.loads(line)["attempt"] for line in job.read("started").splitlines()] == [1, 2]

    def test_every_word_and_variable_arrives_as_it_was_given(self, folder: Path) -> None:
        words = ("a b", "it's", '"q"', "$(touch bad)", "`touch bad`", "$HOME", "ü*", "", "two\nlines", "\\", "-n", "%s")
        show = (
            "import json, os, sys; names = json.loads(os.environ['NAMES']); "
            "print(json.dumps([sys.argv[1:], {name: os.environ[name] for name in names}]))"
        )
        env = {f"V{number}": word for number, word in enumerate(words)}
        job = Running(
            folder, argv=(sys.executable, "-c", show, *words), env=env | {"NAMES": json.dumps(list(env))}, name="a.b-c"
        )
        assert job.finish() == 0
        assert json.loads(job.read("out.log")) == [list(words), env]
        assert not (folder / "bad").exists()

    def test_the_program_sees_where_it_is(self, folder: Path) -> None:
        job = Running(folder, argv=("sh", "-c", 'pwd; echo "$FAIRMILE_JOB_FOLDER"; echo "$FAIRMILE_NODES"; cat'))
        job.finish()
        assert job.read("out.log").splitlines() == [str(folder), str(folder), os.uname().nodename]

    def test_it_runs_in_the_folder_that_was_asked_for(self, tmp_path: Path) -> None:
        (tmp_path / "elsewhere").mkdir()
        job = Running(tmp_path, argv=("pwd",), folder=str(tmp_path / "elsewhere"))
        job.finish()
        assert job.read("out.log").strip() == str(tmp_path / "elsewhere")

    def test_a_folder_that_is_not_there_ends_it(self, tmp_path: Path) -> None:
        job = Running(tmp_path, argv=("touch", "ran"), folder=str(tmp_path / "missing"))
        assert job.finish() == 78
        assert "missing" in job.read("err.log")
        assert not (tmp_path / "ran").exists()

    def test_the_tasks_of_an_array_note_their_ends_apart(self, tmp_path: Path) -> None:
        job = Running(
            tmp_path,
            argv=("sh", "-c", 'echo "$FAIRMILE_ARRAY_INDEX"; exit $FAIRMILE_ARRAY_INDEX'),
            array=Array(count=3),
        )
        job.finish()
        assert [job.note(f"ended.{index}")["exit_code"] for index in range(3)] == [0, 1, 2]
        assert [job.read(f"out.{index}.log").strip() for index in range(3)] == ["0", "1", "2"]


class TestModules:
    def software(self, *lines: str) -> System:
        described = {**KNOWN["laptop"].model_dump(exclude_unset=True), "software": {"tool": {"lines": lines}}}
        return System.model_validate(described)

    def test_a_line_that_fails_ends_the_job_and_is_named(self, tmp_path: Path) -> None:
        ml = 'ml() { if [ "$2" = missing/2.0 ]; then false; return 1; fi; }'
        system = self.software(ml, "ml load found/1.0", "ml load missing/2.0", "ml load found/3.0")
        job = Running(tmp_path, system, argv=("touch", "ran"), software=("tool",))
        assert job.finish() == 78
        assert job.note("ended")["exit_code"] == 78
        assert job.read("err.log") == "fairmile: this line failed with exit code 1: ml load missing/2.0\n"
        assert not (tmp_path / "ran").exists()

    def test_without_modules_in_the_shell_the_job_ends_as_clearly(self, tmp_path: Path) -> None:
        job = Running(tmp_path, self.software("no-module-command load x"), argv=("touch", "ran"), software=("tool",))
        assert job.finish() == 78
        assert "exit code 127: no-module-command load x" in job.read("err.log")

    def test_a_line_of_the_environment_that_fails_ends_the_job_too(self, tmp_path: Path) -> None:
        job = Running(tmp_path, argv=("touch", "ran"), preamble=(". /nowhere/activate",))
        assert job.finish() == 78
        assert ": . /nowhere/activate" in job.read("err.log")

    def test_a_condition_that_does_not_hold_is_no_failure(self, tmp_path: Path) -> None:
        job = Running(tmp_path, argv=("sh", "-c", "false; exit 3"), preamble=('[ -n "$NOT_SET" ] && echo set',))
        assert job.finish() == 3

    def test_a_line_that_leaves_the_shell_is_an_end_that_is_noted(self, tmp_path: Path) -> None:
        job = Running(tmp_path, argv=("true",), preamble=("exit 4",))
        assert job.finish() == 4
        assert job.note("ended")["exit_code"] == 4


LISTENS = """
import os, signal, sys, time
def told(number, frame):
    with open("told", "a") as stream: stream.write(signal.Signals(number).name + "\\n")
for name in ("TERM", "INT", "HUP", "USR1", "USR2"): signal.signal(getattr(signal, "SIG" + name), told)
open("ready", "w").close()
while not os.path.exists("go"): time.sleep(0.02)
sys.exit(5)
"""


@pytest.fixture(params=["shell", "slurm"])
def system(request: pytest.FixtureRequest) -> System:
    """This machine, without a scheduler and as if one were there: the first gives programs a group of their own."""
    return laptop(scheduler=KNOWN["laptop"].scheduler.model_copy(update={"dialect": request.param}))


class TestSignals:
    @pytest.mark.parametrize("name", ["TERM", "INT", "HUP", "USR1", "USR2"])
    @pytest.mark.parametrize("to", ["script", "everyone"])
    def test_a_signal_reaches_the_program_once(self, tmp_path: Path, system: System, name: str, to: str) -> None:
        job = Running(tmp_path, system, argv=(sys.executable, "-c", LISTENS)).start()
        job.wait_for("ready")
        assert job.process is not None
        number = signal.Signals[f"SIG{name}"]
        (os.kill if to == "script" else os.killpg)(job.process.pid, number)
        job.wait_for("told")
        time.sleep(0.6)  # for a second one, which must not come
        (tmp_path / "go").touch()
        assert job.finish() == 5
        assert job.read("told") == f"SIG{name}\n"
        assert job.note("ended").get("signal") == (name if name in ("TERM", "INT", "HUP") else None)

    def test_a_warning_and_then_the_end(self, tmp_path: Path, system: System) -> None:
        job = Running(tmp_path, system, argv=(sys.executable, "-c", LISTENS)).start()
        job.wait_for("ready")
        assert job.process is not None
        os.kill(job.process.pid, signal.SIGUSR1)
        job.wait_for("told")
        time.sleep(0.6)
        os.kill(job.process.pid, signal.SIGTERM)
        deadline = time.monotonic() + 60
        while job.read("told").count("\n") < 2:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        (tmp_path / "go").touch()
        assert job.finish() == 5
        assert job.read("told") == "SIGUSR1\nSIGTERM\n"

    @pytest.mark.parametrize("to", ["script", "everyone"])
    def test_a_program_that_does_not_listen_is_ended(self, tmp_path: Path, system: System, to: str) -> None:
        job = Running(tmp_path, system, argv=("sh", "-c", ": > ready; sleep 600 & wait")).start()
        job.wait_for("ready")
        assert job.process is not None
        (os.kill if to == "script" else os.killpg)(job.process.pid, signal.SIGTERM)
        assert job.finish() == 143
        assert job.note("ended") | {"time": 0, "job": ""} == {"exit_code": 143, "signal": "TERM", "time": 0, "job": ""}
        while processes_of_session(job.process.pid):  # the program's own child goes too
            time.sleep(0.02)

    def test_a_signal_between_the_start_of_the_program_and_its_note_reaches_it(
        self, tmp_path: Path, system: System
    ) -> None:
        job = Running(tmp_path, system, argv=("sh", "-c", "trap 'exit 3' TERM; : > ready; while :; do :; done"))
        text, note = job.read("script.sh"), "\nfairmile_program=$!\n"
        assert text.count(note) == 1
        at_that_moment = "\nwhile [ ! -e ready ]; do :; done; kill -TERM $$"
        (tmp_path / "script.sh").write_text(text.replace(note, at_that_moment + note))
        assert job.finish() == 3
        assert job.note("ended")["signal"] == "TERM"

    @pytest.mark.parametrize("name", ["TERM", "USR1"])
    def test_the_code_is_that_of_a_program_that_ends_while_its_signal_is_handled(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        # With a witness the script pauses while it handles a signal: here until the program, told by it too, is gone.
        system = laptop(scheduler=KNOWN["laptop"].scheduler.model_copy(update={"dialect": "slurm"}))
        pause = tmp_path / "bin" / "sleep"
        pause.parent.mkdir()
        pause.write_text('#!/bin/sh\n: > handled\nread -r pid < pid\nwhile [ -e "/proc/$pid" ]; do :; done\n')
        pause.chmod(0o755)
        monkeypatch.setenv("PATH", f"{pause.parent}:{os.environ['PATH']}")
        end = "while [ ! -e handled ]; do :; done; exit 3"
        listens = f"trap '{end}' {name}; echo $$ > pid; : > ready; while :; do :; done"
        job = Running(tmp_path, system, argv=("sh", "-c", listens)).start()
        job.wait_for("ready")
        assert job.process is not None
        os.killpg(job.process.pid, signal.Signals[f"SIG{name}"])
        assert job.finish() == 3
        assert job.note("ended")["exit_code"] == 3

    def test_a_signal_before_the_program_starts_ends_the_job(self, tmp_path: Path, system: System) -> None:
        wait = ": > ready; while [ ! -e go ]; do sleep 0.02; done"
        job = Running(tmp_path, system, argv=("touch", "ran"), preamble=(wait,)).start()
        job.wait_for("ready")
        assert job.process is not None
        os.kill(job.process.pid, signal.SIGTERM)
        (tmp_path / "go").touch()
        assert job.finish() == 143
        assert job.note("ended")["signal"] == "TERM"
        assert not (tmp_path / "ran").exists()

    @pytest.mark.parametrize("moment", ["later", "before the script has noted it"])
    def test_a_program_that_is_stopped_and_goes_on_has_not_ended(
        self, tmp_path: Path, system: System, monkeypatch: pytest.MonkeyPatch, moment: str
    ) -> None:
        if moment != "later":  # a busy machine may have other things to do between the start and `set +m`
            stops = "until read -r _ _ state _ </proc/$!/stat && [ $state = T ]; do sleep 0.02; done"
            monkeypatch.setenv("BASH_FUNC_set%%", f'() {{ [ "$1" != +m ] || {stops}; builtin set "$@"; }}')
        job = Running(tmp_path, system, argv=("sh", "-c", "echo $$ > pid; kill -STOP $$; exit 3")).start()
        job.wait_for("pid")
        pid = int(job.read("pid"))
        while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            time.sleep(0.02)
        assert job.process is not None
        os.kill(job.process.pid, signal.SIGUSR1)  # the script wakes up, too
        while not _is_pending(pid, signal.SIGUSR1):
            time.sleep(0.02)
        assert not (tmp_path / "ended").exists()
        os.kill(pid, signal.SIGCONT)
        job.finish()
        assert job.note("ended")["exit_code"] == 128 + signal.SIGUSR1


def _is_pending(pid: int, number: signal.Signals) -> bool:
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return bool(int(lines["ShdPnd"], 16) >> (number - 1) & 1)


class TestOtherDialects:
    def test_scripts_of_lsf_pbs_and_flux_write_their_own_logs(self, tmp_path: Path) -> None:
        for name in ("summit", "polaris", "tuolumne"):
            place = tmp_path / name
            place.mkdir()
            spec = JobSpec(argv=("sh", "-c", "echo hi; echo bad >&2"), launch="plain")
            text = make_script(spec, KNOWN[name], folder=str(place)).text
            (place / "script.sh").write_text(text)
            # Neither program of theirs is here; the script only asks them for the names of the nodes.
            env = {"PATH": os.environ["PATH"], "LSB_JOBID": "1", "PBS_JOBID": "1", "HOME": "/"}
            for variable in ("PBS_NODEFILE", "LSB_DJOB_HOSTFILE"):
                env[variable] = "/dev/null"
            done = subprocess.run(["bash", str(place / "script.sh")], env=env, capture_output=True, text=True)
            assert done.returncode == 0
            assert (place / "out.log").read_text() == "hi\n"
            assert (place / "err.log").read_text() == "bad\n"
            assert json.loads((place / "ended").read_text())["exit_code"] == 0

    def test_a_relative_folder_is_refused(self) -> None:
        spec = JobSpec(argv=("true",))
        with pytest.raises(UsageError, match="absolute"):
            write_script(make_request(spec, laptop()), JobFiles("jobs/1", ""), SCHEDULERS["shell"](), laptop())

    def test_the_profile_is_read_where_batch_shells_lack_modules(self) -> None:
        rules = KNOWN["jureca"].scheduler.model_copy(update={"source_profile": True})
        system = KNOWN["jureca"].model_copy(update={"scheduler": rules})
        assert "\n. /etc/profile\n" in make_script(JobSpec(argv=("true",)), system).text
        assert "profile" not in make_script(JobSpec(argv=("true",)), KNOWN["jureca"]).text

    def test_a_script_for_a_person_notes_nothing_and_leaves_the_exit_code_to_the_program(self) -> None:
        text = make_script(JobSpec(argv=TRAIN), KNOWN["jureca"]).text
        assert text.endswith("\nexec python train.py --epochs 10\n")
        assert "ended" not in text
        warned = make_script(JobSpec(argv=TRAIN, signal=Signal()), KNOWN["jureca"]).text
        assert "fairmile_pass" in warned


class TestRealSlurm:
    """Slurm's own sbatch takes our scripts, and they do there what they say."""

    def system(self, **changes: Any) -> System:
        described = {
            "name": "test",
            "title": "Test",
            "scheduler": {"dialect": "slurm", **changes},
            "default_partition": "cpu",
            "partitions": {
                "cpu": {"nodes": 3, "cores": 2, "max_time": "1:00:00"},
                "gpu": {"nodes": 1, "cores": 2, "max_time": "1:00:00", "gpu": {"count": 2, "model": "fake"}},
            },
            "launch": {"launcher": "srun"},
        }
        return System.model_validate(described)

    @pytest.mark.parametrize(
        "given",
        [
            {},
            {"resources": {"nodes": 2, "tasks_per_node": 2, "memory_gib": 0.5}},
            {"resources": {"partition": "gpu"}},
            {"array": {"count": 5, "at_once": 2}, "signal": {"name": "USR1", "before_s": 120}, "requeue": False},
            {"resources": {"exclusive": True, "constraint": "cpu", "options": ["--hint=nomultithread"]}},
        ],
    )
    def test_sbatch_takes_it(self, slurm_cluster: SlurmCluster, folder: Path, given: dict[str, Any]) -> None:
        spec = JobSpec.model_validate({"argv": ("hostname",), **given})
        for place in (str(folder), ""):
            file = folder / "script.sh"
            file.write_text(make_script(spec, self.system(), folder=place).text)
            assert slurm_cluster.refusal(file) == ""

    @pytest.mark.parametrize("option", ["gres", "both", "gpus-per-node"])
    def test_sbatch_takes_every_way_to_ask_for_gpus(
        self, slurm_cluster: SlurmCluster, tmp_path: Path, option: str
    ) -> None:
        file = tmp_path / "script.sh"
        spec = JobSpec(argv=("hostname",), resources=Resources(partition="gpu"))
        file.write_text(make_script(spec, self.system(gpu_option=option), folder=str(tmp_path)).text)
        assert slurm_cluster.refusal(file) == ""

    def test_a_job_of_two_nodes_runs_and_notes_its_end(self, slurm_cluster: SlurmCluster, folder: Path) -> None:
        # The task that fails ends the other: it waits until that one has said its line.
        turn = 'if [ "$SLURM_PROCID" = 0 ]; then touch said; else until [ -e said ]; do sleep 0.05; done; fi'
        show = f'echo "$SLURM_PROCID $FAIRMILE_NODES $1"; {turn}; exit "$SLURM_PROCID"'
        spec = JobSpec(argv=("sh", "-c", show, "sh", "it's $HOME"), resources=Resources(nodes=2, memory_gib=0.1))
        self.submit(slurm_cluster, folder, spec)
        lines = sorted((folder / "out.log").read_text().splitlines())
        assert [line.split(" ", 3)[0] for line in lines] == ["0", "1"]
        assert all(line.endswith(" it's $HOME") for line in lines)
        assert json.loads((folder / "ended").read_text())["exit_code"] == 1

    @pytest.mark.thorough
    def test_the_signal_before_the_limit_reaches_the_program(self, slurm_cluster: SlurmCluster, tmp_path: Path) -> None:
        # Slurm looks every half minute: with a warning as long as the job, the first look sends it.
        wait = "trap 'echo saved; exit 3' USR1; while :; do sleep 0.1; done"
        resources = Resources(time_s=60, memory_gib=0.1)
        spec = JobSpec(argv=("bash", "-c", wait), resources=resources, signal=Signal(before_s=60))
        self.submit(slurm_cluster, tmp_path, spec)
        assert (tmp_path / "out.log").read_text() == "saved\n"
        end = json.loads((tmp_path / "ended").read_text())
        assert (end["exit_code"], "signal" in end) == (3, False)

    def submit(self, cluster: SlurmCluster, folder: Path, spec: JobSpec) -> None:
        file = folder / "script.sh"
        file.write_text(make_script(spec, self.system(), folder=str(folder)).text)
        cluster.run("sbatch", "--wait", str(file), check=False, timeout_s=180)
        deadline = time.monotonic() + 60
        while not (folder / "ended").exists():
            assert time.monotonic() < deadline, cluster.logs()
            time.sleep(0.1)


class TestContainersOfSoftware:
    @pytest.mark.parametrize("system", KNOWN.names())
    def test_what_a_script_says_of_containers_is_what_it_starts(self, system: str) -> None:
        for software in KNOWN[system].software:
            spec = JobSpec(argv=TRAIN, software=(software,), resources=Resources(time_s=HOUR))
            script = make_script(spec, KNOWN[system])
            _, _, command = script.text.rpartition("\nexec ")
            starts = any(word in command for word in ("singularity", "apptainer", "podman", "shifter"))
            says = any(" is in a container" in note for note in script.notes)
            assert starts == says, (software, script.notes)

    def test_the_launcher_starts_the_container_and_that_torchrun(self) -> None:
        resources = Resources(time_s=HOUR, nodes=2)
        text = make_script(JobSpec(argv=TRAIN, software=("ddp",), resources=resources), KNOWN["lumi"]).text
        assert re.search(r"exec srun .*\\\n.*\\\n +singularity run \S+\.sif torchrun --nnodes=2", text)

    def test_an_environment_of_ones_own_goes_before_that_of_the_system(self) -> None:
        spec = JobSpec(argv=TRAIN, software=("ddp",), wrap=("mine", "exec"), resources=Resources(time_s=HOUR))
        text = make_script(spec, KNOWN["lumi"]).text
        assert "mine exec torchrun" in text and "singularity run" not in text.rpartition("\nexec ")[2]


@pytest.mark.parametrize("where", ["argv", "env"])
def test_no_value_becomes_an_option_of_a_scheduler(where: str) -> None:
    evil = "x\n#SBATCH -A theirs\n#BSUB -P theirs\n#PBS -A theirs\n#flux: -N 9"
    given = {"argv": ("echo", evil)} if where == "argv" else {"argv": ("echo",), "env": {"NOTE": evil}}
    with pytest.raises(UsageError, match="which a scheduler reads as an option"):
        make_script(JobSpec(**given), laptop())
