from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from cases import for_each

from fairmile.base.commands import MissingProgram
from fairmile.base.errors import Conflict, UsageError
from fairmile.meter.lines import event_files, read_log
from fairmile.runs.record.layout import RECORDING
from fairmile.traces.reading import read_traces
from fairmile.traces.record import Recorded, RecordSettings, record, variables

pytest.importorskip("torch")

QUICK = RecordSettings(skip=2, steps=3, after_s=600)
TRAINING = """\
import os, sys, torch
from torch.utils.data import DataLoader, TensorDataset
from fairmile.meter import span
torch.set_num_threads(1)
ranked = int(os.environ.get("WORLD_SIZE", 1)) > 1
if ranked:
    torch.distributed.init_process_group("gloo")
model = torch.nn.Linear(4, 1)
if ranked:
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for n, (x, y) in enumerate(DataLoader(TensorDataset(torch.randn(32, 4), torch.randn(32, 1)), batch_size=4)):
    with span("step", n=n):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    END
if ranked:
    torch.distributed.destroy_process_group()
"""

Python = Callable[..., Recorded]


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    clear_environment(monkeypatch)


def clear_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("FAIRMILE_", "OMPI_", "PMI"))]:
        monkeypatch.delenv(name)
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture
def python(tmp_path: Path) -> Python:
    """Return what records a Python program, given as text."""

    def run(text: str, *before: str, settings: RecordSettings = QUICK, watch: bool = False) -> Recorded:
        (tmp_path / "program.py").write_text(text)
        words = [*(before or (sys.executable,)), str(tmp_path / "program.py")]
        return record(words, tmp_path / "recorded", settings=settings, watch=watch, period_s=0.1)

    return run


def read(recorded: Recorded, place: int = 0) -> dict[str, Any]:
    file = recorded.traced[place].file
    assert file is not None, recorded.notes
    found: dict[str, Any] = json.loads((recorded.folder / file).read_bytes())
    return found


def annotations(trace: dict[str, Any], start: str) -> list[dict[str, Any]]:
    found = [each for each in trace["traceEvents"] if each.get("ph") == "X" and each["name"].startswith(start)]
    return sorted(found, key=lambda each: each["ts"])


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """What two ranks of torchrun left, torch's own notes of collectives among it."""
    folder = tmp_path_factory.mktemp("ranks")
    (folder / "program.py").write_text(TRAINING.replace("END", "pass"))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    settings = replace(QUICK, flight_recorder=True)
    with pytest.MonkeyPatch.context() as patch:
        clear_environment(patch)
        return record([*torchrun, str(folder / "program.py")], folder / "recorded", settings=settings, period_s=0.1)


@pytest.mark.thorough
def test_ranks_of_torchrun_leave_a_trace_each_on_one_clock_with_spans_and_samples(two_ranks: Recorded) -> None:
    recorded = two_ranks
    assert (recorded.exit_code, recorded.notes) == (0, ())
    assert [(each.rank, each.world, each.first_step, each.last_step) for each in recorded.traced] == [
        (0, 2, 2, 4),
        (1, 2, 2, 4),
    ]
    log = read_log(event_files(recorded.folder))
    assert log.damaged == 0 and len(log.samples) == 1
    spans = {each.writer.rank: each for each in log.spans if each.name == "step"}
    assert sorted(rank for rank in spans if rank is not None) == [0, 1]
    for place, traced in enumerate(recorded.traced):
        trace = read(recorded, place)
        assert trace["fairmile"]["rank"] == trace["distributedInfo"]["rank"] == place
        assert len(annotations(trace, "gloo:all_reduce")) >= 3
        steps = annotations(trace, "ProfilerStep#")
        assert [each["name"] for each in steps] == ["ProfilerStep#2", "ProfilerStep#3", "ProfilerStep#4"]
        assert len(annotations(trace, "input")) == 3
        clocks = annotations(trace, "fairmile.clock ")
        assert [each["name"] for each in clocks] == [each["name"] for each in traced.clocks]
        # Step n of the profiler holds span n of the meter, on the clock that the marks tell.
        offset_ns = traced.clocks[0]["wall_ns"] - 1e3 * (clocks[0]["ts"] + clocks[0]["dur"] / 2)
        writer = spans[place].writer
        assert abs(writer.wall(traced.clocks[0]["monotonic_ns"]) - traced.clocks[0]["wall_ns"]) < 50e6
        for number, step in enumerate(steps, start=2):
            begin_ns = step["ts"] * 1e3 + offset_ns
            moment_ns = spans[place].starts_ns[number] + writer.clock_ns - writer.wall_ns
            moment_ns += traced.clocks[0]["wall_ns"] - traced.clocks[0]["monotonic_ns"]
            assert begin_ns - 1e6 <= moment_ns <= begin_ns + step["dur"] * 1e3 + 1e6
    document = json.loads((recorded.folder / RECORDING).read_text())
    assert document == json.loads(json.dumps(recorded.document()))
    assert not (recorded.folder / "processes").exists()


@pytest.mark.thorough
def test_torchs_own_notes_of_collectives_are_kept_on_demand_and_not_told_twice(two_ranks: Recorded) -> None:
    notes = sorted(two_ranks.folder.glob("nccl_trace_rank_*"))
    assert [each.name for each in notes] == ["nccl_trace_rank_0", "nccl_trace_rank_1"]
    entries = json.loads(notes[0].read_bytes())["entries"]
    assert len(entries) > 3 and all(each["profiling_name"].startswith("gloo:") for each in entries)
    table = read_traces(two_ranks.folder)
    assert {each.format for each in table.processes} == {"kineto", "meter"}
    left_out = "skipped nccl_trace_rank_0, nccl_trace_rank_1: the profiler recorded the same collectives"
    assert left_out in table.notes


@pytest.mark.thorough
def test_a_program_that_fails_keeps_its_exit_code_and_what_was_recorded_before(
    python: Python, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "sitecustomize.py").write_text("import sys\nsys.stdout.write('mine ran first\\n')\n")
    monkeypatch.setenv("PYTHONPATH", f"{mine}{os.pathsep}{os.environ['PYTHONPATH']}")
    recorded = python(TRAINING.replace("END", "assert n < 3, 'as told'"))
    out, err = capfd.readouterr()
    assert out == "mine ran first\n"  # the program's own start still runs
    assert err.rstrip().endswith("AssertionError: as told") and "profiler" not in err
    assert recorded.exit_code == 1
    (traced,) = recorded.traced
    assert (traced.reason, traced.first_step, traced.last_step) == ("the program ended while recording", 2, 3)
    trace = read(recorded)
    optimizer, steps = annotations(trace, "Optimizer.step#"), annotations(trace, "ProfilerStep#")
    assert len(optimizer) == 2 and len(steps) == 3
    for before, after in pairwise(steps):  # a mark of torch lies within one step
        assert before["ts"] + before["dur"] <= after["ts"]
        assert any(before["ts"] <= each["ts"] and each["ts"] + each["dur"] <= after["ts"] for each in optimizer)


@pytest.mark.thorough
def test_a_killed_program_is_told_as_such(python: Python) -> None:
    recorded = python(TRAINING.replace("END", "n == 3 and os.kill(os.getpid(), 9)"))
    assert recorded.exit_code == 128 + signal.SIGKILL
    assert [(each.file, each.reason) for each in recorded.traced] == [(None, "killed before its trace was written")]
    assert len(recorded.notes) == 1


@pytest.mark.thorough
def test_a_program_of_few_steps_says_why_there_is_no_trace(python: Python) -> None:
    recorded = python(TRAINING.replace("END", "pass"), settings=RecordSettings(skip=20, after_s=600))
    (traced,) = recorded.traced
    assert (traced.file, traced.reason) == (None, "the program ended after 8 steps, and the first 20 are skipped")


def test_windows_come_again_every_so_many_steps(python: Python) -> None:
    recorded = python(TRAINING.replace("END", "pass"), settings=RecordSettings(skip=1, steps=1, every=3, after_s=600))
    assert [each.first_step for each in recorded.traced] == [1, 4, 7]
    assert [each.reason for each in recorded.traced] == ["", "", ""]
    names = [annotations(read(recorded, place), "ProfilerStep#")[0]["name"] for place in range(3)]
    assert names == ["ProfilerStep#1", "ProfilerStep#4", "ProfilerStep#7"]


@pytest.mark.thorough
def test_what_was_recorded_on_the_way_to_the_first_step_is_dropped(python: Python) -> None:
    wait = (
        "import glob, os, time, torch\n"
        "while not glob.glob(os.path.dirname(__file__) + '/recorded/traces/*.json'): time.sleep(0.01)\n"
    )
    recorded = python(
        wait + TRAINING.replace("END", "pass"),
        settings=RecordSettings(skip=2, steps=3, after_s=0.01, seconds=0.01),
    )
    (traced,) = recorded.traced
    assert (traced.by, traced.first_step) == ("steps", 2)
    assert [f"traces/{file.name}" for file in (recorded.folder / "traces").iterdir()] == [traced.file]


@pytest.mark.thorough
def test_a_profiler_of_the_program_comes_first(python: Python, capfd: pytest.CaptureFixture[str]) -> None:
    recorded = python(
        "import torch\nparameter = torch.nn.Parameter(torch.zeros(4))\noptimizer = torch.optim.SGD([parameter], 0.1)\n"
        "def step():\n    parameter.sum().backward()\n    optimizer.step()\n"
        "for _ in range(3): step()\n"
        "with torch.profiler.profile() as profiler:\n    for _ in range(3): step()\n"
        "print(sum(each.name == 'Optimizer.step#SGD.step' for each in profiler.events()))\n"
    )
    assert (recorded.exit_code, capfd.readouterr().out) == (0, "3\n")
    (traced,) = recorded.traced
    assert traced.reason == "recording ended when the program started its own profiler"
    assert len(annotations(read(recorded), "Optimizer.step#")) == 1


@pytest.mark.thorough
def test_processes_that_a_program_forks_and_spawns_are_recorded_each(python: Python) -> None:
    recorded = python(
        "import multiprocessing, torch\ntorch.set_num_threads(1)\n"
        "def train(rank):\n"
        "    parameter = torch.nn.Parameter(torch.zeros(4))\n    optimizer = torch.optim.SGD([parameter], 0.1)\n"
        "    for _ in range(7):\n        parameter.sum().backward()\n        optimizer.step()\n"
        "if __name__ == '__main__':\n"
        "    for way in ('fork', 'spawn'):\n"
        "        child = multiprocessing.get_context(way).Process(target=train, args=(0,))\n"
        "        child.start()\n        child.join()\n        assert child.exitcode == 0\n"
    )
    assert recorded.exit_code == 0
    assert sorted(each.file is not None for each in recorded.traced) == [False, True, True]


@pytest.mark.thorough
def test_a_process_that_leaves_without_a_word_is_told_as_such(python: Python) -> None:
    recorded = python("import os, torch\nos._exit(3)\n")
    assert recorded.exit_code == 3
    (traced,) = recorded.traced
    assert traced.file is None and "os._exit" in traced.reason and traced.reason in recorded.notes[0]


LOOKS = """\
import importlib.util, sys, warnings
warnings.simplefilter('error')
assert importlib.util.find_spec('torch') is not None and 'torch' not in sys.modules
import torch
print(type(torch.__loader__).__name__, type(torch.__spec__.loader).__name__)
assert importlib.util.find_spec('json').name == 'json' and importlib.util.find_spec('nothing') is None
warnings.resetwarnings()
"""


@pytest.mark.thorough
def test_a_program_that_clears_its_environment_is_recorded_and_torch_looks_as_if_nobody_had_waited_for_it(
    python: Python, capfd: pytest.CaptureFixture[str]
) -> None:
    recorded = python("import os\nos.environ.clear()\n" + LOOKS + TRAINING.replace("END", "pass"))
    assert (recorded.exit_code, recorded.notes) == (0, ())
    assert recorded.traced[0].last_step == 4
    assert capfd.readouterr().out == "SourceFileLoader SourceFileLoader\n"


@pytest.mark.thorough
def test_a_folder_that_cannot_be_written_costs_the_program_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    env = {**os.environ, **variables(tmp_path / "file", QUICK)}
    text = TRAINING.replace("END", "pass").replace("from fairmile.meter import span", "from contextlib import suppress")
    text = text.replace('span("step", n=n)', "suppress()") + "assert not torch.autograd._profiler_enabled()\n"
    done = subprocess.run([sys.executable, "-c", text], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_settings_that_are_broken_cost_the_program_nothing(tmp_path: Path) -> None:
    env = {**os.environ, **variables(tmp_path, QUICK), "FAIRMILE_TRACE": "{"}
    (tmp_path / "torch.py").write_text("print('imported')")  # what is wrong shows before anything of torch is used
    words = [sys.executable, "-c", "import torch"]
    done = subprocess.run(words, env=env, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "imported\n", "")


@pytest.mark.thorough
@pytest.mark.skipif(shutil.which("mpirun") is None, reason="there is no MPI")
def test_ranks_of_mpi_leave_a_trace_each_and_without_an_optimizer_it_is_of_some_time(python: Python) -> None:
    text = (
        "import glob, os, time, torch\ntorch.set_num_threads(1)\nmodel = torch.nn.Linear(9, 9)\n"
        "while len(glob.glob(os.path.dirname(__file__) + '/recorded/traces/*.json')) < 2:\n"
        "    with torch.no_grad():\n        model(torch.randn(100, 9)) @ torch.randn(9, 9)\n"
        "    time.sleep(0.01)\n"
    )
    words = ("mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", sys.executable)
    recorded = python(text, *words, settings=RecordSettings(after_s=0.01, seconds=0.2))
    assert recorded.exit_code == 0
    assert [(each.rank, each.world, each.by, each.first_step) for each in recorded.traced] == [
        (0, 2, "seconds", None),
        (1, 2, "seconds", None),
    ]
    for rank in (0, 1):
        trace = read(recorded, rank)
        assert trace["fairmile"]["rank"] == rank
        assert len(annotations(trace, "aten::linear")) > 1


def test_a_program_without_torch_leaves_spans_and_samples(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    text = "from fairmile.meter import span\nwith span('work'): print('hello')\nraise SystemExit(5)"
    recorded = record([sys.executable, "-c", text], tmp_path / "recorded", period_s=0.05)
    assert (recorded.exit_code, capfd.readouterr().out) == (5, "hello\n")
    assert recorded.traced == () and "imported torch" in recorded.notes[0]
    log = read_log(event_files(recorded.folder))
    assert [each.name for each in log.spans] == ["work"] and len(log.samples) == 1
    assert recorded.events == ("events.jsonl",)


def test_a_program_that_is_no_python_at_all_is_run_as_it_is(tmp_path: Path) -> None:
    recorded = record(["sh", "-c", 'test -n "$FAIRMILE_EVENTS" && exit 3'], tmp_path / "recorded", watch=False)
    assert recorded.exit_code == 3 and recorded.events == ()
    with pytest.raises(MissingProgram):
        record(["no-such-program"], tmp_path / "other")


def test_inside_of_a_run_its_log_keeps_what_the_program_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outer = tmp_path / "run"
    outer.mkdir()
    monkeypatch.setenv("FAIRMILE_EVENTS", str(outer / "events.jsonl"))
    text = "from fairmile.meter import log\nlog(loss=0.5)\n"
    recorded = record([sys.executable, "-c", text], tmp_path / "recorded", watch=False)
    assert [each.value for each in read_log(event_files(outer)).metrics] == [0.5]
    assert recorded.events == ("events.run.jsonl",)
    assert [each.value for each in read_log(event_files(recorded.folder)).metrics] == [0.5]


def test_a_folder_with_something_in_it_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "something").touch()
    with pytest.raises(Conflict, match="not empty"):
        record(["true"], tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["something"]


@for_each("given", [{"skip": 0}, {"steps": 0}, {"seconds": 0.0}, {"after_s": -1.0}, {"steps": 10, "every": 11}])
def test_settings_that_cannot_be_kept_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"expected a number of at least|cannot record"):
        RecordSettings(**given)
    with pytest.raises(UsageError, match="is empty"):
        record([], Path("nowhere"))


def test_variables_that_somebody_set_stay(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOROVOD_TIMELINE", "mine.json")
    added = variables(tmp_path, RecordSettings(flight_recorder=True))
    assert "HOROVOD_TIMELINE" not in added
    assert added["TORCH_FR_DUMP_TEMP_FILE"] == str(tmp_path / "nccl_trace_rank_")
    assert added["PYTHONPATH"].endswith(os.environ["PYTHONPATH"])
    assert json.loads(added["FAIRMILE_TRACE"])["skip"] == 5
