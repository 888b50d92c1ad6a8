from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairmile.base.errors import UsageError
from fairmile.compat.stopwatch import StopWatch, StopWatchBlock, benchmark, progress
from fairmile.meter import Meter
from fairmile.meter.mllog import read_mllog

# What cloudmesh-common 5.0.64 printed for two timers, one of them with a comma in its message.
PUBLISHED = """
+--------+----------+--------+
| Name   | Status   |   Time |
|--------+----------+--------|
+--------+----------+--------+
# csv,timer,status,time,sum,start,tag,msg,uname.node,user,uname.system,platform.version
# csv,a 1,ok,0.01,0.01,2026-11-16 05:41:05,,None,vm,root,Linux,#1 SMP PREEMPT_DYNAMIC @0
# csv,b 2,ok,0.01,0.01,2026-11-16 05:41:05,,hello, you,vm,root,Linux,#1 SMP PREEMPT_DYNAMIC @0
"""


@pytest.fixture(autouse=True)
def no_timers() -> Iterator[None]:
    StopWatch.clear()
    yield
    StopWatch.clear()


def spend(name: str, seconds: float = 0.0) -> None:
    StopWatch.start(name)
    time.sleep(seconds)
    StopWatch.stop(name)


def test_the_last_time_and_the_sum_are_told_in_seconds() -> None:
    spend("a", 0.02)
    spend("a", 0.01)
    last, whole = StopWatch.get("a"), StopWatch.sum("a")
    assert isinstance(last, float) and isinstance(whole, float)
    assert 0.01 <= last < whole and whole >= 0.03
    assert StopWatch.get("a", digits=1) == round(last, 1)
    assert StopWatch.get("never") == StopWatch.sum("never") == "undefined"
    assert StopWatch.keys() == ["a"]


def test_the_clock_of_the_wall_may_be_set_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    StopWatch.start("a")
    monkeypatch.setattr(time, "time", lambda: 0.0)
    StopWatch.stop("a")
    got = StopWatch.get("a")
    assert isinstance(got, float) and 0 <= got < 60


def test_a_stop_without_a_start_is_refused_and_poisons_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="timer 'never' was stopped but not started"):
        StopWatch.stop("never")
    spend("a")
    with pytest.raises(UsageError, match="'a'"):
        StopWatch.stop("a")
    StopWatch.benchmark(sysinfo=False)
    assert "never" not in capsys.readouterr().out
    assert StopWatch.keys() == ["a"]


def test_a_timer_that_runs_shows_as_running(capsys: pytest.CaptureFixture[str]) -> None:
    StopWatch.start("a")
    assert StopWatch.get("a") is None
    row = StopWatch.get_benchmark(sysinfo=False)["benchmark"]["a"]
    assert (row["status"], row["time"], row["stop"]) == ("running", None, None)
    StopWatch.benchmark(sysinfo=False)
    assert "# csv,a,running,," in capsys.readouterr().out
    StopWatch.stop("a")
    assert StopWatch.get_benchmark(sysinfo=False)["benchmark"]["a"]["status"] == "ok"


def test_a_timer_that_is_started_twice_starts_anew() -> None:
    StopWatch.start("a")
    time.sleep(0.05)
    again = time.monotonic()
    StopWatch.start("a")
    StopWatch.stop("a")
    took = time.monotonic() - again
    assert StopWatch.get_benchmark(sysinfo=False)["benchmark"]["a"]["status"] == "ok"
    got = StopWatch.sum("a", digits=None)
    assert isinstance(got, float) and got <= took


def test_four_threads_on_one_name_add_up() -> None:
    threads = [threading.Thread(target=spend, args=("a", 0.1)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    whole = StopWatch.sum("a")
    assert isinstance(whole, float) and whole >= 0.4
    assert StopWatch.get_benchmark(sysinfo=False)["benchmark"]["a"]["status"] == "ok"


def test_every_call_is_in_the_meter_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    meter = Meter()
    monkeypatch.setattr("fairmile.compat.stopwatch.current", lambda: meter)
    for _ in range(3):
        spend("a")
    assert [(each.name, each.count) for each in meter.summary()] == [("a", 3)]


def test_status_message_and_event_are_kept() -> None:
    spend("a")
    StopWatch.status("a", False)
    StopWatch.message("a", "hello, you")
    StopWatch.event("e", "msg", values={"k": 0})
    rows = StopWatch.get_benchmark(sysinfo=False)["benchmark"]
    assert (rows["a"]["status"], rows["a"]["msg"]) == ("failed", "hello, you")
    assert (rows["e"]["status"], rows["e"]["time"], rows["e"]["msg"]) == ("ok", 0.0, "msg")
    assert rows["e"]["start"] == rows["e"]["stop"]
    assert (StopWatch.get_status("a"), StopWatch.get_message("a")) == (False, "hello, you")


def test_a_value_of_zero_is_kept() -> None:
    StopWatch.event("e", values=0)
    assert StopWatch._timers["e"].values == 0


def test_the_short_report_has_cloudmeshs_shape(capsys: pytest.CaptureFixture[str]) -> None:
    spend("a")
    StopWatch.benchmark(sysinfo=False, attributes="short")
    lines = [line for line in capsys.readouterr().out.splitlines() if line]
    assert re.fullmatch(r"\+-+\+-+\+-+\+", lines[0]) and lines[0] == lines[4]
    assert re.fullmatch(r"\| Name *\| Status *\| *Time *\|", lines[1])
    assert re.fullmatch(r"\|-+\+-+\+-+\|", lines[2])
    assert re.fullmatch(r"\| a *\| ok *\| *0\.\d+ \|", lines[3])
    assert lines[5] == "# csv,timer,status,time"
    assert re.fullmatch(r"# csv,a,ok,0\.\d+", lines[6])
    assert len({len(line) for line in lines[:5]}) == 1


def test_the_whole_report_has_cloudmeshs_columns_and_goes_to_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spend("a")
    StopWatch.benchmark(node="n1", user="u", tag="t", version="v", total=True, filename=str(tmp_path / "log"))
    out = capsys.readouterr().out
    assert "| Attribute " in out and "| uname.machine " in out and "Total: " in out
    assert "# csv,timer,status,time,sum,start,tag,msg,uname.node,user,uname.system,platform.version" in out
    assert re.search(r"^# csv,a,ok,[\d.e-]+,[\d.e-]+,\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,t,,n1,u,\w+,v$", out, re.MULTILINE)
    assert (tmp_path / "log").read_text() == out.removesuffix("\n")


def test_chosen_columns_and_no_csv(capsys: pytest.CaptureFixture[str]) -> None:
    spend("a")
    StopWatch.benchmark(sysinfo=False, csv=False, attributes=["timer", "tag"], tag="mine")
    out = capsys.readouterr().out
    assert "# csv" not in out and "| timer" in out and "mine" in out


def test_without_timers_the_report_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    StopWatch.benchmark(sysinfo=False)
    assert "ERROR: No timers found" in capsys.readouterr().out
    assert "benchmark" not in StopWatch.get_benchmark(sysinfo=False)


def test_a_report_is_loaded_again_with_commas_and_newlines_in_messages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, message in (("a 1", 'say "x", and\ny'), ("b 2", "plain")):
        spend(name)
        StopWatch.message(name, message)
    StopWatch.benchmark(filename=str(tmp_path / "log"))
    loaded = StopWatch.load(str(tmp_path / "log"), label=["name", "n"], attributes=["timer", "status", "msg"])
    assert loaded == {
        "headers": ["timer", "status", "msg", "name", "n"],
        "data": [["a 1", "ok", 'say "x", and y', "a", "1"], ["b 2", "ok", "plain", "b", "2"]],
    }


def test_a_report_of_cloudmesh_itself_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(PUBLISHED)
    loaded = StopWatch.load(str(tmp_path / "log"), attributes=["timer", "msg", "uname.node", "platform.version"])
    assert loaded["data"][1] == ["b 2", "hello, you", "vm", "#1 SMP PREEMPT_DYNAMIC @0", "b", "2"]
    with pytest.raises(UsageError, match="no column 'weight'"):
        StopWatch.load(str(tmp_path / "log"), attributes=["timer", "weight"])
    (tmp_path / "empty").write_text("nothing")
    with pytest.raises(UsageError, match="line with column names"):
        StopWatch.load(str(tmp_path / "empty"))


def test_a_block_times_itself_and_writes_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with StopWatchBlock("total"):
        pass
    assert re.fullmatch(r"# total, [\d.e-]+, \d{4}-.*, \d{4}-.*\n", capsys.readouterr().out)
    log = str(tmp_path / "a.log")
    data = {"step": 1}
    with StopWatchBlock("one", data=data, log=log):
        data["step"] = 2
    with pytest.raises(ZeroDivisionError), StopWatchBlock("two", log=log, mode="a"):
        raise ZeroDivisionError
    first, second = Path(log).read_text().splitlines()
    assert first.startswith("# one, ") and first.endswith("{'step': 2}")
    assert second.startswith("# two, ")
    assert StopWatch.get_status("two") is False


def test_the_decorator_returns_the_value_and_times_failures_too() -> None:
    @benchmark
    def double(number: int) -> int:
        """Double it."""
        if number < 0:
            raise ValueError
        return 2 * number

    assert double(4) == 8
    assert (double.__name__, double.__doc__) == ("double", "Double it.")
    assert StopWatch.get_status("double") is True
    with pytest.raises(ValueError):
        double(-1)
    assert StopWatch.get_status("double") is False
    assert double(1) == 2


def test_progress_is_one_line_on_both_streams_and_in_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    file = tmp_path / "log"
    line = progress(filename=str(file), status="running", progress=50, pid=7, time=True, epoch=3, append="end")
    assert re.fullmatch(r"# cloudmesh status=running progress=50 pid=7 time='[^']+' epoch=3 end", line)
    captured = capsys.readouterr()
    assert captured.out == captured.err == file.read_text() == line + "\n"
    monkeypatch.setenv("SLURM_JOB_ID", "123")
    assert StopWatch.progress(10, stdout=False, stderr=False) == "# cloudmesh status=running progress=10 pid=123"


def test_the_system_table_names_this_machine() -> None:
    table = StopWatch.systeminfo({"extra": "mine"})
    assert "| extra " in table and sys.platform in table and "mem.total" in table
    assert StopWatch.get_sysinfo(node="n", user="u")["uname.node"] == "n"


def test_labels_are_printed_with_two_digits(capsys: pytest.CaptureFixture[str]) -> None:
    spend("a")
    StopWatch.print("took", "a")
    StopWatch.output("a")
    assert re.fullmatch(r"took \d+\.\d\d s\na \d+\.\d\d s\n", capsys.readouterr().out)
    assert re.match(r"a \d+\.\d+ \d+\.\d+ ", str(StopWatch()))


@pytest.fixture
def mllog(tmp_path: Path) -> Iterator[Path]:
    file = tmp_path / "mllog.log"
    StopWatch.activate_mllog(filename=file)
    yield file
    StopWatch.deactivate_mllog()


def test_timers_and_events_are_written_to_the_log_of_mlperf(mllog: Path) -> None:
    assert StopWatch.mllogging
    StopWatch.start("total", mllog_key="RUN_START")
    StopWatch.event("number_of_ranks", value=4)
    StopWatch.event("only the log", values={"a": 1}, suppress_stopwatch=True)
    StopWatch.event("only the timer", suppress_mllog=True)
    StopWatch.stop("total", mllog_key="RUN_STOP")
    records = read_mllog(mllog).records
    assert [(each.type, each.key, each.value) for each in records] == [
        ("INTERVAL_START", "run_start", None),
        ("POINT_IN_TIME", "number_of_ranks", 4),
        ("POINT_IN_TIME", "only the log", {"a": 1}),
        ("INTERVAL_END", "run_stop", None),
    ]
    assert {each.metadata["file"] for each in records} == {__file__}
    assert '"namespace": "cloudmesh"' in mllog.read_text()
    assert StopWatch.keys() == ["total", "number_of_ranks", "only the timer"]


def test_who_submits_is_logged_from_a_file_or_arguments(
    mllog: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    StopWatch.organization_mllog(benchmark={"name": "Earthquake", "user": "A. Tester", "badkey": "ignored"})
    config = tmp_path / "config.yaml"
    config.write_text("submission:\n  name: cloudmask\n  org: Institute\n")
    StopWatch.organization_submission(configfile=config)
    StopWatch.status_submission(success=False)
    assert [(each.key, each.value) for each in read_mllog(mllog).records] == [
        ("submission_benchmark", "Earthquake"),
        ("submission_poc_name", "A. Tester"),
        ("submission_benchmark", "cloudmask"),
        ("submission_org", "Institute"),
        ("submission_status", "aborted"),
    ]
    assert "MLPerf log without benchmark.e-mail" in capsys.readouterr().err
