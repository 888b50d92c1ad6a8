"""`fairmile watch`, run as a user does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from printed_results import assert_printed, assert_sound

from fairmile.base.registry import Plugin, Registry
from fairmile.cli.watch import _Live
from fairmile.meter.footprint import Supply
from fairmile.meter.lines import Channel, read_log
from fairmile.meter.sources import Where
from fairmile.meter.watching import list_sources, plan_watch, read_report, watch

Fairmile = Callable[..., Any]

PATIENCE_S = 60.0
FAIRMILE = [sys.executable, "-m", "fairmile", "watch"]
SHARED = Path(os.environ.get("FAIRMILE_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data"))
A100 = SHARED / "predecessors" / "gpu-log" / "earthquake-a100-gpu0.log"
GPU_LOG = """\
time, 0 id, 0 power_draw W, 1 id, 1 power_draw W,
2024-01-01T00:00:00.000000, 0, 100.0, 1, 300.0
2024-01-01T00:00:10.000000, 0, 100.0, 1, 300.0
broken
"""


@pytest.fixture
def gpu_log(place: Path) -> Path:
    file = place / "gpu.log"
    file.write_text(GPU_LOG)
    return file


def real(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own, since the output of a program is not Python's."""
    return subprocess.run(
        [*FAIRMILE, *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        **options,  # type: ignore[call-overload, no-any-return]
    )


def test_the_output_and_exit_code_are_those_of_the_program() -> None:
    done = real("--", "sh", "-c", "echo data; echo talk >&2; exit 7")
    assert done.returncode == 7
    assert done.stdout == "data\n"
    assert done.stderr.startswith("talk\n")
    assert "process.cpu_time" in done.stderr and "samples in" in done.stderr


def test_its_input_is_that_of_the_program() -> None:
    assert real("cat", input="through\n").stdout == "through\n"


def test_a_program_ended_by_a_signal_gives_the_code_of_a_shell() -> None:
    assert real("sh", "-c", "kill -TERM $$").returncode == 128 + signal.SIGTERM


def test_options_behind_the_program_are_its_own() -> None:
    assert real("echo", "--json", "--for").stdout == "--json --for\n"


def test_with_json_the_numbers_follow_the_output_of_the_program() -> None:
    done = real("--json", "--", "sh", "-c", "echo first; exit 2")
    first, _, rest = done.stdout.partition("\n")
    found = json.loads(rest)
    assert (first, done.returncode, done.stderr) == ("first", 2, "")
    assert (found["exit_code"], found["command"]) == (2, ["sh", "-c", "echo first; exit 2"])
    assert {"energy_j", "energies", "channels", "missing", "watch_cpu_percent", "elapsed_s"} <= set(found)
    names = {channel["name"] for channel in found["channels"]}
    assert {"process.memory", "host.memory"} <= names
    assert all(channel["source"] and channel["scope"] and channel["error"] for channel in found["channels"])


def test_python_returns_what_the_command_prints(fairmile: Fairmile, gpu_log: Path) -> None:
    report = read_report(gpu_log, supply=Supply("FI"))
    assert_printed(fairmile, report, "watch", "--read", str(gpu_log), "--region", "FI")
    assert_sound(report.samples)
    assert repr(report).endswith("gpu.log: 4000 J measured, 2 samples>")
    plan = plan_watch(["touch", "mark"], sources=["host"], period_s=0.1)
    assert_printed(fairmile, plan, "watch", "--source", "host", "--every", "10Hz", "--dry-run", "--", "touch", "mark")
    assert_printed(fairmile, list_sources(), "watch", "--list")
    measured = watch(["true"], sources=["host"], log=Path("samples.jsonl"))
    assert_sound(measured)
    printed = fairmile("watch", "--source", "host", "--log", "samples.jsonl", "--json", "--", "true").json
    assert list(printed) == list(measured.to_dict())
    assert printed["log"] == measured.to_dict()["log"] == "samples.jsonl"


def test_where_nothing_measures_energy_it_is_said_and_an_estimate_is_labelled(fairmile: Fairmile) -> None:
    without = fairmile("watch", "--source", "host", "--for", "0.01s", "--json").json
    assert without["energy_j"] is None
    asked = fairmile("watch", "--source", "host", "--for", "0.01s", "--estimate", "100", "--json").json
    assert asked["energy_j"] > 0 and asked["energy_is_estimate"] is True
    assert asked["energies"][0]["method"] == "estimate"
    told = fairmile("watch", "--source", "host", "--for", "0.01s", "--estimate", "100").out
    assert "J estimated" in told and "nothing measured" in told


def test_every_sample_goes_to_the_log_which_is_read_again(fairmile: Fairmile, place: Path) -> None:
    file = place / "samples.jsonl"
    written = fairmile("watch", "--source", "host", "--for", "50ms", "--every", "100Hz", "--log", str(file), "--json")
    log = read_log([file])
    assert log.damaged == 0
    assert len(log.samples[0].at_ns) == written.json["samples"] >= 2
    again = fairmile("watch", "--read", str(file), "--json").json
    assert [channel["mean"] for channel in again["channels"]] == [
        channel["mean"] for channel in written.json["channels"]
    ]


def test_a_log_of_cloudmesh_gpu_gives_its_energy(fairmile: Fairmile, gpu_log: Path) -> None:
    done = fairmile("watch", "--read", str(gpu_log), "--json")
    assert (done.code, done.err) == (0, "")
    assert done.json["energy_j"] == pytest.approx(4000)
    assert [each["joules"] for each in done.json["energies"]] == pytest.approx([1000, 3000])
    assert done.json["damaged_lines"] == 1


@pytest.mark.skipif(not A100.exists(), reason="needs the shared data")
def test_the_log_of_a_real_training_gives_its_known_energy(fairmile: Fairmile) -> None:
    found = fairmile("watch", "--read", str(A100), "--region", "FI", "--json").json
    assert found["energy_j"] == pytest.approx(1_079_987, rel=1e-3)
    assert found["footprint"]["kwh"] == pytest.approx(0.3, rel=1e-3)


def test_a_person_is_told_energy_money_and_carbon_with_year_and_source(fairmile: Fairmile, gpu_log: Path) -> None:
    out = fairmile("watch", "--read", str(gpu_log), "--region", "FI").out
    assert "energy: 4 kJ measured (gpu0.power, gpu1.power)" in out
    assert "0.001111 kWh in Finland" in out
    assert "79 g/kWh, 2023, Our World in Data" in out
    assert "EUR (0.0711 a kWh, 2025, Eurostat" in out
    assert "1 line of the log could not be read" in out


def test_a_table_of_ones_own_is_used(fairmile: Fairmile, gpu_log: Path, place: Path) -> None:
    (place / "table.yaml").write_text("regions: {HERE: {carbon: {g_per_kwh: 9, year: 2025, source: roof}}}\n")
    arguments = ("--region", "here", "--table", "table.yaml", "--pue", "2", "--json")
    found = fairmile("watch", "--read", str(gpu_log), *arguments).json["footprint"]
    assert found["co2e_g"] == pytest.approx(4000 * 2 / 3.6e6 * 9)
    assert found["carbon"]["source"] == "roof"


def test_the_list_shows_what_there_is_and_why_not_the_rest(fairmile: Fairmile) -> None:
    found = fairmile("watch", "--list", "--json").json
    assert {"host", "process"} <= set(found["sources"])
    assert set(found["sources"]) | set(found["missing"]) >= {"nvidia", "amd", "rapl", "cray", "slurm"}
    shown = fairmile("watch", "--list")
    assert "host.memory" in shown.out
    assert all(f"missing: {sentence}" in shown.err for sentence in found["missing"].values())


def test_a_dry_run_runs_nothing(fairmile: Fairmile, place: Path) -> None:
    done = fairmile("watch", "--dry-run", "--every", "10Hz", "--log", "log", "--", "touch", "mark")
    assert done.code == 0
    assert done.out.startswith("would run `touch mark` and measure every 100 ms:")
    assert not (place / "mark").exists() and not (place / "log").exists()
    told = fairmile("watch", "--dry-run", "--json", "--", "touch", "mark").json
    assert (told["command"], told["period_s"], told["dry_run"]) == (["touch", "mark"], 1.0, True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--every", "often", "--for", "1s"), "--every often: expected a time or a rate"),
        (("--every", "0Hz", "--for", "1s"), "expected a time or a rate"),
        (("--every", "1us", "--for", "1s"), "the shortest period is 10 ms"),
        (("--every", "nanHz", "--for", "1s"), "the shortest period is 10 ms"),
        (("--for", "1s", "--", "true"), "--for, --read and --list exclude each other"),
        (("--source", "nvida", "--", "true"), "did you mean 'nvidia'?"),
        (("--region", "XX", "--", "touch", "mark"), "no region 'XX' in the table"),
        (("--region", "DE", "--pue", "0.5", "--", "touch", "mark"), "PUE 0.5 is impossible"),
        (("--pue", "1.2", "--", "touch", "mark"), "--table and --pue need --region"),
        (("--region", "DE", "--pue", "nan", "--", "touch", "mark"), "PUE nan is impossible"),
        (("--region", "DE", "--pue", "much", "--", "touch", "mark"), "'much' is not a valid float"),
        (("--region", " ", "--", "touch", "mark"), "no region ' ' in the table"),
        (("--gpu", "first", "--", "touch", "mark"), "'first' is neither the number nor the UUID of a GPU"),
        (("--gpu", "-1", "--", "touch", "mark"), "--gpu -1: '-1' is neither"),
        (("--gpu", "0,,1", "--list"), "--gpu 0,,1: '' is neither"),
        (("--gpu", "", "--dry-run", "--", "touch", "mark"), "'' is neither"),
        (("--gpu", "0", "--source", "host", "--", "touch", "mark"), "--gpu does not apply to host"),
        (("--source", ",", "--", "touch", "mark"), "--source: expected the name of a source"),
        (("--estimate", "-3", "--", "touch", "mark"), "-3.0 W is not a power"),
        (("--read", "missing.log"), "no such file: missing.log"),
        (("--read", "lake.jsonld"), "lake.jsonld: it is not an event log"),
    ],
)
def test_what_cannot_be_used_is_said_in_one_sentence_before_anything_runs(
    fairmile: Fairmile, place: Path, arguments: tuple[str, ...], said: str
) -> None:
    done = fairmile("watch", *arguments)
    assert done.code == 2
    assert said in done.err + done.out
    assert not (place / "mark").exists()


def test_a_source_asked_for_by_name_must_be_there(fairmile: Fairmile, place: Path) -> None:
    done = fairmile("watch", "--source", "host,cray", "--", "touch", "mark")
    assert done.code == 3
    assert done.err.startswith("error: cray: no /sys/cray/pm_counters on this machine")
    assert not (place / "mark").exists()


class OneGpu:
    """A machine with one GPU."""

    name = "nvidia"

    def __init__(self, where: Where) -> None:
        self._channels = (Channel("gpu0.power", "W", "gauge", "nvml", "device 0 (H200, GPU-5d5b)", "5 %"),)
        if where.devices and not {"0", "GPU-5d5b"} & set(where.devices):
            self._channels = ()

    def channels(self) -> tuple[Channel, ...]:
        return self._channels

    def read(self) -> list[float | None]:
        return [100.0 for _ in self._channels]

    def close(self) -> None:
        pass


def test_of_several_gpus_one_that_is_not_there_is_refused(
    fairmile: Fairmile, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = {"nvidia": Plugin(f"{__name__}:OneGpu"), "nvidia_energy": Plugin(f"{__name__}:OneGpu")}
    monkeypatch.setattr("fairmile.meter.sources.SOURCES", Registry("source of measurements", table))
    monkeypatch.setattr("fairmile.meter.watching.SOURCES", Registry("source of measurements", table))
    done = fairmile("watch", "--gpu", "0,7", "--", "touch", "mark")
    assert (done.code, done.err.splitlines()[0]) == (2, "error: --gpu 7: no such GPU here")
    assert not (place / "mark").exists()
    for known in ("0", "GPU-5d5b"):
        assert fairmile("watch", "--gpu", known, "--for", "10ms", "--json").code == 0


def test_a_log_that_cannot_be_written_is_said_before_anything_runs(fairmile: Fairmile, place: Path) -> None:
    done = fairmile("watch", "--log", "missing/log", "--", "touch", "mark")
    assert done.code == 3
    assert "cannot write missing/log" in done.err
    assert not (place / "mark").exists()


def test_a_program_that_is_not_there_is_an_error_of_the_machine(fairmile: Fairmile) -> None:
    done = fairmile("watch", "--", "no-such-program-of-ours")
    assert done.code == 3
    assert done.err.startswith("error: no-such-program-of-ours: command not found")


def test_ctrl_c_ends_the_looking_with_the_summary(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with subprocess.Popen(
        [*FAIRMILE, "--source", "host", "--every", "100Hz", "--log", str(log)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as watch:
        while not log.exists() or log.read_text().count("sample") < 4:
            assert watch.poll() is None
        watch.send_signal(signal.SIGINT)
        out, err = watch.communicate(timeout=PATIENCE_S)
    assert watch.returncode == 0
    assert all(line.startswith("note: ") for line in err.splitlines())  # a busy machine may be late
    assert "host.memory" in out and "samples in" in out


def test_a_terminal_shows_one_block_that_is_taken_away_in_the_end() -> None:
    parent, child = os.openpty()
    argv = [*FAIRMILE, "--source", "host", "--for", "0.7s", "--every", "10Hz"]
    with subprocess.Popen(argv, stdin=child, stdout=subprocess.PIPE, stderr=child, text=True) as watch:
        os.close(child)
        shown = b""
        while True:
            try:
                data = os.read(parent, 4096)
            except OSError:  # the other end is closed
                break
            if not data:
                break
            shown += data
        out, _ = watch.communicate(timeout=PATIENCE_S)
    os.close(parent)
    lines = shown.count(b"host.memory")
    up = [part.partition(b"A")[0] for part in shown.split(b"\033[")[1:] if part.split(b"A")[0].isdigit()]
    assert lines >= 2
    assert len(up) == lines and set(up) == {up[0]}  # each block, and the clearing, goes back to where it began
    assert shown.partition(b"note: ")[0].endswith(b"\033[J")  # a busy machine may leave samples out, and notes it
    assert "samples in" in out and "\033" not in out


CHANNELS = (
    Channel("gpu0.power", "W"),
    Channel("gpu0.energy", "J", "counter"),
    Channel("host.read", "bytes", "counter"),
    Channel("bad\033[2J\nname", "%"),
)


class Looked:
    """What the live view needs of a watch."""

    channels = CHANNELS
    period_s = 0.1


def test_the_block_shows_a_counter_that_is_read_less_often_than_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    now = [100.0]
    monkeypatch.setattr("fairmile.cli.watch.time.monotonic", lambda: now[0])
    live = _Live()
    monkeypatch.setattr(live, "_write", written.append)
    for number in range(31):  # three seconds at 10 Hz, the counter of energy once a second
        now[0] = 100.0 + 0.1 * number
        slow = 1000.0 + 30.0 * number if number % 10 == 0 else None
        live.show(Looked(), (float(number), slow, 1024.0 * number, None))  # type: ignore[arg-type]
    block = [line.split("\033[K")[0].split() for line in written[-1].split("\r")[1:]]
    assert block[0][1:] == ["30", "W"]
    assert block[1][1:] == ["300", "W"]
    assert block[2][1:] == ["10.0", "KiB/s"]
    assert block[3] == ["bad\\x1b[2J", "name", "–"]


def test_a_value_that_no_longer_comes_is_not_shown_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    now = [100.0]
    monkeypatch.setattr("fairmile.cli.watch.time.monotonic", lambda: now[0])
    live = _Live()
    monkeypatch.setattr(live, "_write", written.append)
    live.show(Looked(), (250.0, None, None, None))  # type: ignore[arg-type]
    assert "250 W" in written[-1]
    now[0] += 60
    live.show(Looked(), (None, None, None, None))  # type: ignore[arg-type]
    assert "250 W" not in written[-1]


def test_a_log_of_somebody_else_steers_no_terminal(fairmile: Fairmile, place: Path) -> None:
    (place / "evil.jsonl").write_text(
        '{"writer": {"host": "n\\u001b[2J", "rank": null, "wall_ns": 0, "clock_ns": 0}, "p": 1}\n'
        '{"channels": [{"name": "g\\u001b]0;x\\u0007\\nenergy: 0 J", "unit": "W", "scope": "device 0\\u001b[2J"}],'
        ' "watch": "w", "p": 1}\n'
        '{"sample": [1.0], "at": 0, "watch": "w", "p": 1}\n'
        '{"sample": [1.0], "at": 5000000000, "watch": "w", "p": 1}\n'
        '{"spans": "a\\u001b[2J\\nb", "at": [0, 1000000000], "p": 1}\n'
    )
    done = fairmile("watch", "--read", "evil.jsonl")
    assert done.code == 0
    assert "\033" not in done.out and "\007" not in done.out
    assert "energy: 0 J" not in done.out.splitlines()


def test_no_terminal_no_block() -> None:
    done = real("--source", "host", "--for", "0.05s")
    assert "\033" not in done.stdout + done.stderr
