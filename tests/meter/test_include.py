from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from made_once import made_once

import fairmile.meter
from fairmile.meter.lines import Log, Spans, event_files, read_log

INCLUDE = Path(fairmile.meter.include())
STRICT = ("-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pedantic", "-pthread")
WHOLE = '#define FAIRMILE_METER_IMPLEMENTATION\n#include "fairmile_meter.h"\n'
# Another file of the same program has the implementation; what the tests themselves call comes from the system.
BEGIN = (
    "#define _GNU_SOURCE\n"
    + "".join(f"#include <{name}.h>\n" for name in ("stdio", "stdlib", "string", "sys/stat", "sys/wait", "unistd"))
    + '#include "fairmile_meter.h"\n'
)
QUIET = {name: text for name, text in os.environ.items() if not name.startswith(("FAIRMILE_", "OMPI_", "PMI"))}
RANKS = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")

Compile = Callable[..., Path]

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
needs_fortran = pytest.mark.skipif(shutil.which("gfortran") is None, reason="no Fortran compiler")


@pytest.fixture(scope="module")
def implementation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The implementation as a file of its own, which takes most of the compiler's time."""

    def make(folder: Path) -> None:
        (folder / "meter.c").write_text(WHOLE)
        command = ["cc", "-std=c99", *STRICT, f"-I{INCLUDE}", "-c", "meter.c"]
        subprocess.run(command, cwd=folder, check=True)

    return made_once(tmp_path_factory, "meter-implementation", make) / "meter.o"


@pytest.fixture
def compile(tmp_path: Path, request: pytest.FixtureRequest) -> Compile:
    def compile(text: str, *, name: str = "main.c", options: tuple[str, ...] = ("-std=c99",), cc: str = "cc") -> Path:
        (tmp_path / name).write_text(text)
        program = tmp_path / Path(name).stem
        others = [request.getfixturevalue("implementation")] if text.startswith(BEGIN) else []
        done = subprocess.run(
            [cc, *options, *STRICT, f"-I{INCLUDE}", "-o", program, tmp_path / name, *others, "-lm"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return program

    return compile


def run(program: Path, *words: str, env: dict[str, str] | None = None, check: int = 0) -> Log:
    """Run a program as part of a run whose folder is `log` beside it; return what the folder's logs hold."""
    folder = program.parent / "log"
    folder.mkdir(exist_ok=True)
    quiet = {name: text for name, text in QUIET.items() if name not in RANKS}
    environment = {**quiet, "FAIRMILE_EVENTS": str(folder / "events.jsonl"), **(env or {})}
    done = subprocess.run([program, *words], env=environment, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (check, "")
    return read_log(event_files(folder))


def spans_of(log: Log, name: str) -> Spans:
    (found,) = [spans for spans in log.spans if spans.name == name]
    return found


EVERYTHING = (
    WHOLE
    + r"""
int main(void) {
  int32_t step = fairmile_timer("step"), queue = fairmile_counter("queue");
  int32_t field = fairmile_exchange(FAIRMILE_PUT, "field", "trainer");
  int n;
  if (!fairmile_recording()) return 3;
  if (fairmile_timer("step") != step || !step) return 4;
  fairmile_component("solver");
  fairmile_metadata("grid", "64 x \"64\"");
  fairmile_metadata("scheme", NULL);
  fairmile_register_thread("first");
  for (n = 0; n < 3; n++) {
    fairmile_phase_start("iteration", n + 10);
    fairmile_start(step);
    fairmile_start(step);
    fairmile_stop(step);
    fairmile_stop(step);
    fairmile_exchange_begin(field);
    if (n == 1) fairmile_exchange_ready(field);
    fairmile_exchange_end(field, n, 4096 * n);
    fairmile_sample(queue, n / 4.0);
    fairmile_phase_stop("iteration", n + 10);
  }
  fairmile_sample(queue, NAN);
  fairmile_sample(queue, -INFINITY);
  fairmile_start_string("by name");
  fairmile_stop_string("by name");
  fairmile_event("checkpoint");
  return 0;
}
"""
)


@pytest.mark.parametrize(
    ("cc", "options", "name"),
    [
        ("cc", ("-std=c99",), "main.c"),
        ("cc", ("-std=c11", "-O3"), "main.c"),
        ("c++", ("-std=c++11",), "main.cpp"),
        ("c++", ("-std=c++20",), "main.cpp"),
    ],
)
def test_all_that_a_program_can_tell_comes_back(compile: Compile, cc: str, options: tuple[str, ...], name: str) -> None:
    log = run(compile(EVERYTHING, cc=cc, options=options, name=name))
    assert log.damaged == 0
    (writer,) = log.writers
    assert (writer.host, writer.rank) == (os.uname().nodename, None)
    assert log.components == {writer: "solver"}
    assert log.about == {writer: {"grid": '64 x "64"', "scheme": ""}}
    assert log.threads == {(writer, 0): "first"}
    step = spans_of(log, "step")
    assert (step.thread, step.exchange, len(step.starts_ns)) == (0, None, 6)
    assert all(duration >= 0 for duration in step.durations_ns)
    inner, outer = step.durations_ns[0], step.durations_ns[1]
    assert inner <= outer and step.starts_ns[1] <= step.starts_ns[0]
    assert spans_of(log, "iteration").attributes == [{"n": 10}, {"n": 11}, {"n": 12}]
    assert len(spans_of(log, "by name").starts_ns) == 1
    put = spans_of(log, "put field")
    assert put.exchange is not None
    assert (put.exchange.how, put.exchange.key, put.exchange.peer) == ("put", "field", "trainer")
    assert list(put.exchange.bytes) == [0, 4096, 8192] and list(put.exchange.versions) == [0, 1, 2]
    waits = put.exchange.waits_ns
    assert (waits[0], waits[2]) == (-1, -1) and 0 <= waits[1] <= put.durations_ns[1]
    (queue,) = log.counters
    assert list(map(str, queue.values)) == ["0.0", "0.25", "0.5", "nan", "-inf"]
    assert [event.name for event in log.events] == ["checkpoint"]
    for moment in [*queue.at_ns, log.events[0].at_ns, *step.starts_ns]:
        assert abs(moment - writer.wall_ns) < 60e9


@pytest.mark.parametrize("variables", [{"FAIRMILE_EVENTS": ""}, {}])
def test_outside_of_a_run_nothing_is_written_and_handles_are_nothing(
    compile: Compile, variables: dict[str, str]
) -> None:
    program = compile(
        BEGIN
        + r"""
int main(void) {
  int32_t timer = fairmile_timer("a"), counter = fairmile_counter("b"), put = fairmile_exchange(0, "c", NULL);
  fairmile_component("x"); fairmile_metadata("y", "z"); fairmile_register_thread("t"); fairmile_event("e");
  fairmile_start(timer); fairmile_stop(timer); fairmile_sample(counter, 1.0); fairmile_start_string("s");
  fairmile_stop_string("s"); fairmile_phase_start("p", 1); fairmile_phase_stop("p", 1);
  fairmile_exchange_begin(put); fairmile_exchange_ready(put); fairmile_exchange_end(put, 1, 1);
  fairmile_pause(); fairmile_resume(); fairmile_initialise(); fairmile_flush(); fairmile_finalise();
  return timer || counter || put || fairmile_recording();
}
"""
    )
    before = set(program.parent.iterdir())
    quiet = {name: text for name, text in QUIET.items() if name != "FAIRMILE_EVENTS"}
    done = subprocess.run([program], env=quiet | variables, cwd=program.parent, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert set(program.parent.iterdir()) == before


def test_more_events_than_a_ring_holds_are_all_there(compile: Compile) -> None:
    log = run(
        compile(
            BEGIN
            + r"""
int main(void) {
  int32_t a = fairmile_timer("a"), b = fairmile_timer("b"), q = fairmile_counter("q");
  int32_t x = fairmile_exchange(FAIRMILE_GET, "k", "");
  for (int n = 0; n < 10007; n++) {
    fairmile_start(a); fairmile_start(b); fairmile_stop(b); fairmile_stop(a); fairmile_sample(q, n * 0.5);
    fairmile_exchange_begin(x); fairmile_exchange_end(x, n, INT64_C(1) << 40);
    fairmile_phase_start("p", -n); fairmile_phase_stop("p", -n);
  }
  return 0;
}
"""
        )
    )
    count = 10_007
    assert log.damaged == 0
    a, b = spans_of(log, "a"), spans_of(log, "b")
    assert len(a.starts_ns) == len(b.starts_ns) == count
    for outer, length, inner, part in zip(a.starts_ns, a.durations_ns, b.starts_ns, b.durations_ns, strict=True):
        assert outer <= inner and inner + part <= outer + length
    assert list(log.counters[0].values) == [n * 0.5 for n in range(count)]
    assert list(log.counters[0].at_ns) == sorted(log.counters[0].at_ns)
    got = spans_of(log, "get k").exchange
    assert got is not None
    assert list(got.versions) == list(range(count)) and set(got.bytes) == {1 << 40}
    assert [each and each["n"] for each in spans_of(log, "p").attributes] == [-n for n in range(count)]


@pytest.mark.thorough
def test_names_of_any_kind_and_length_are_told_as_json(compile: Compile) -> None:
    program = compile(
        BEGIN
        + r"""
int main(void) {
  static char huge[300000];
  memset(huge, 'x', sizeof huge - 1);
  fairmile_event("quote \" backslash \\ newline \n tab \t bell \a end");
  fairmile_event("gr\xc3\xb6\xc3\x9f" "e \xe2\x88\x87 \xf0\x9f\x8c\x8a");
  fairmile_event("broken \xff\xc3 \xed\xa0\x80 \xf5\x80\x80\x80 \xc0\x80 \xe2\x82");
  fairmile_event(huge);
  fairmile_event("");
  fairmile_event(NULL);
  fairmile_metadata(huge, huge);
  fairmile_component(huge);
  int32_t put = fairmile_exchange(FAIRMILE_PUT, huge, huge);
  fairmile_exchange_begin(put);
  fairmile_exchange_end(put, 1, 2);
  return 0;
}
"""
    )
    log = run(program)
    assert log.damaged == 0
    names = [event.name for event in log.events]
    assert names[:2] == ['quote " backslash \\ newline \n tab \t bell \a end', "größe ∇ 🌊"]
    assert names[2].startswith("broken �� ���") and "é" not in names[2]
    assert set(names[3]) == {"x"} and 60_000 < len(names[3]) <= 1 << 16
    assert names[4:] == ["", ""]
    (component,) = log.components.values()
    assert component == "x" * (1 << 16) + "…"
    (about,) = log.about.values()
    assert about == {component: "x" * 299_999}


def test_a_stop_without_a_start_costs_nothing_but_is_told(compile: Compile) -> None:
    log = run(
        compile(
            BEGIN
            + r"""
int main(void) {
  int32_t timer = fairmile_timer("t"), counter = fairmile_counter("c"), put = fairmile_exchange(0, "k", "");
  fairmile_stop(timer); fairmile_stop_string("other"); fairmile_exchange_end(put, 1, 1); fairmile_phase_stop("p", 1);
  fairmile_phase_start("p", 1); fairmile_phase_stop("p", 2); fairmile_phase_stop("p", 1);
  fairmile_start(counter); fairmile_stop(counter); fairmile_sample(timer, 1.0); fairmile_start(put);
  fairmile_start(-1); fairmile_stop(0x7fffffff); fairmile_start(timer + 1000);
  fairmile_start(timer); fairmile_stop(timer);
  return 0;
}
"""
        )
    )
    assert {spans.name: len(spans.starts_ns) for spans in log.spans} == {"p": 1, "t": 1}
    (lost,) = log.events
    assert lost.name == "meter.lost"
    assert lost.attributes == {"stops_without_start": 5, "names_lost": 0, "records_lost": 0}


@pytest.mark.thorough
def test_what_happens_in_a_pause_is_not_recorded(compile: Compile) -> None:
    log = run(
        compile(
            BEGIN
            + r"""
int main(void) {
  int32_t timer = fairmile_timer("t");
  fairmile_start(timer);
  fairmile_pause();
  if (fairmile_recording()) return 3;
  fairmile_stop(timer);
  fairmile_event("unseen");
  fairmile_resume();
  fairmile_event("seen");
  fairmile_start(timer); fairmile_stop(timer);
  fairmile_finalise();
  fairmile_event("after the end");
  fairmile_initialise();
  fairmile_event("again");
  return 0;
}
"""
        )
    )
    assert [event.name for event in log.events] == ["seen", "again"]
    assert len(spans_of(log, "t").starts_ns) == 1
    assert len(log.writers) == 1  # a process that begins again is still one


THREADS = (
    WHOLE
    + r"""
static void *work(void *name) {
  int32_t timer = fairmile_timer("work");
  fairmile_register_thread((const char *)name);
  for (int n = 0; n < 5000; n++) {
    fairmile_start(timer); fairmile_stop(timer);
    fairmile_start_string("shared"); fairmile_stop_string("shared");
    if (n % 1000 == 0) fairmile_flush();
  }
  return NULL;
}
int main(void) {
  pthread_t threads[4];
  char names[4][16];
  for (int round = 0; round < 3; round++) {
    for (int n = 0; n < 4; n++) {
      snprintf(names[n], sizeof names[n], "w%d", n);
      if (pthread_create(&threads[n], NULL, work, names[n])) return 3;
    }
    work((void *)"main");
    for (int n = 0; n < 4; n++) pthread_join(threads[n], NULL);
  }
  return 0;
}
"""
)


@pytest.mark.thorough
def test_each_thread_has_its_own_calls(compile: Compile) -> None:
    log = run(compile(THREADS))
    assert log.damaged == 0 and log.events == []
    calls = {spans.thread: len(spans.starts_ns) for spans in log.spans if spans.name == "work"}
    assert calls == {0: 15_000, **dict.fromkeys(range(1, 13), 5_000)}
    assert sorted(log.threads.values()) == sorted(["main", *(f"w{n}" for n in range(4) for _ in range(3))])
    assert sum(len(spans.starts_ns) for spans in log.spans if spans.name == "shared") == 75_000


FORKS = (
    WHOLE
    + r"""
#include <sys/wait.h>
int main(void) {
  int32_t timer = fairmile_timer("t");
  fairmile_start(timer); fairmile_stop(timer);
  fairmile_event("parent before");
  fairmile_start(timer);
  for (int n = 0; n < 3; n++) {
    pid_t child = fork();
    if (child == 0) {
      fairmile_stop(timer); /* its start is the parent's */
      for (int k = 0; k < 3000; k++) { fairmile_start(timer); fairmile_stop(timer); }
      fairmile_event("child");
      return 0;
    }
    if (child < 0) return 3;
  }
  int status;
  while (wait(&status) > 0) if (status) return 4;
  fairmile_stop(timer);
  fairmile_event("parent after");
  return 0;
}
"""
)


def test_a_forked_process_is_a_writer_of_its_own(compile: Compile) -> None:
    log = run(compile(FORKS))
    assert log.damaged == 0 and len(log.writers) == 4
    counts = sorted(len(spans.starts_ns) for spans in log.spans)
    assert counts == [2, 3000, 3000, 3000]
    names = sorted(event.name for event in log.events)
    assert names == ["child"] * 3 + ["meter.lost"] * 3 + ["parent after", "parent before"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("text", "sanitizer"),
    [
        (EVERYTHING, "address,undefined"),
        (THREADS, "address,undefined"),
        (FORKS, "address,undefined"),
        (EVERYTHING, "thread"),
        (THREADS, "thread"),  # a fork beside threads is nothing that it can follow
    ],
    ids=["memory", "memory of threads", "memory of forks", "races", "races of threads"],
)
def test_sanitizers_find_nothing(compile: Compile, text: str, sanitizer: str) -> None:
    try:
        program = compile(text, options=("-std=gnu99", f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all"))
    except AssertionError as error:
        if "cannot find" in str(error):
            pytest.skip("the compiler has no sanitizers")
        raise
    if sanitizer == "thread":
        probe = subprocess.run([program], capture_output=True, text=True, env=QUIET)
        if "unexpected memory mapping" in probe.stderr:
            pytest.skip("the kernel's layout of memory is not what the sanitizer knows")
    # It cannot look for leaks beside a parent that has threads.
    assert run(program, env={"ASAN_OPTIONS": f"detect_leaks={int(text is not FORKS)}"}).damaged == 0


def test_a_crash_keeps_all_but_the_last_second(compile: Compile) -> None:
    program = compile(
        BEGIN + 'int main(void) { fairmile_event("kept"); fairmile_flush(); fairmile_event("lost"); abort(); }\n'
    )
    log = run(program, check=-6)
    assert (log.damaged, [event.name for event in log.events]) == (0, ["kept"])


@pytest.mark.thorough
def test_lines_are_written_each_second_without_a_word_of_the_program(compile: Compile) -> None:
    program = compile(
        BEGIN
        + r"""
int main(void) {
  struct stat found;
  fairmile_event("early");
  for (int n = 0; n < 600; n++) { /* until somebody wrote it */
    usleep(100000);
    if (stat(getenv("FAIRMILE_EVENTS"), &found) == 0 && found.st_size > 0) _exit(0);
  }
  return 3;
}
"""
    )
    assert [event.name for event in run(program).events] == ["early"]


def test_the_rank_and_the_host_are_those_of_the_environment(compile: Compile) -> None:
    program = compile(BEGIN + 'int main(void) { fairmile_event("here"); return 0; }\n')
    run(program, env={"SLURM_PROCID": "07", "RANK": "no number"})
    run(program, env={"FAIRMILE_EVENTS_HOST": "an.other-host", "FAIRMILE_COMPONENT": "solver"})
    run(program, env={"FAIRMILE_EVENTS_HOST": os.uname().nodename, "PMI_RANK": "3"})
    files = event_files(program.parent / "log")
    assert [file.name for file in files] == ["events.jsonl", f"events.{os.uname().nodename}.jsonl"]
    here, elsewhere = read_log(files[:1]), read_log(files[1:])
    assert [writer.rank for writer in here.writers] == [7, 3]
    assert list(elsewhere.components.values()) == ["solver"] and here.components == {}


def test_a_relative_place_is_where_the_program_began(compile: Compile) -> None:
    program = compile(BEGIN + 'int main(void) { fairmile_event("x"); return chdir("/") ? 3 : 0; }\n')
    done = subprocess.run([program], cwd=program.parent, env=QUIET | {"FAIRMILE_EVENTS": "here.jsonl"})
    assert done.returncode == 0
    assert len(read_log([program.parent / "here.jsonl"]).events) == 1


@pytest.mark.thorough
def test_a_line_that_another_process_left_half_written_spoils_no_other(compile: Compile) -> None:
    program = compile(BEGIN + 'int main(void) { fairmile_event("mine"); return 0; }\n')
    (program.parent / "log").mkdir()
    (program.parent / "log" / "events.jsonl").write_text('{"event": "of a process that di')
    log = run(program)
    assert (log.damaged, [event.name for event in log.events]) == (1, ["mine"])


def test_a_disk_that_refuses_is_told_once_and_the_program_goes_on(compile: Compile) -> None:
    program = compile(
        BEGIN
        + r"""
int main(void) {
  fairmile_event("a"); fairmile_flush(); fairmile_event("b"); fairmile_flush();
  if (mkdir(getenv("LATER"), 0777)) return 3;
  fairmile_event("c");
  return 0;
}
"""
    )
    folder = program.parent / "later"
    env = QUIET | {"FAIRMILE_EVENTS": str(folder / "events.jsonl"), "LATER": str(folder)}
    done = subprocess.run([program], env=env, capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stderr.splitlines() == [
        f"fairmile: cannot write {folder}/events.jsonl: its folder no longer exists; "
        "the program continues and keeps its records for now"
    ]
    log = read_log(event_files(folder))
    assert sorted(event.name for event in log.events) == ["a", "b", "c", "meter.write_failed"]


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["SIG_IGN", "SIG_DFL"])
def test_a_full_disk_loses_no_line_that_fits_later_and_ends_nothing(compile: Compile, tmp_path: Path, how: str) -> None:
    program = compile(
        BEGIN
        + r"""
#include <sys/resource.h>
int main(void) {
  struct rlimit limit = {700, RLIM_INFINITY};
  signal(SIGXFSZ, HOW);
  if (setrlimit(RLIMIT_FSIZE, &limit)) return 3;
  for (int n = 0; n < 20; n++) { char name[16]; snprintf(name, sizeof name, "event %d", n); fairmile_event(name); }
  fairmile_flush();
  fairmile_flush(); /* the first took what fits, this one meets the limit */
  limit.rlim_cur = RLIM_INFINITY;
  if (setrlimit(RLIMIT_FSIZE, &limit)) return 4;
  return 0;
}
""".replace("HOW", how)
    )
    file = tmp_path / "events.jsonl"
    done = subprocess.run([program], env=QUIET | {"FAIRMILE_EVENTS": str(file)}, capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr.count("\n") == 1
    log = read_log([file])
    assert [event.name for event in log.events if event.name.startswith("event")] == [f"event {n}" for n in range(20)]
    assert log.damaged <= 1


FORTRAN = """\
program coupled
  use fairmile_meter
  implicit none
  integer(c_int32_t) :: step, field, queue
  integer :: n
  if (.not. fairmile_recording()) stop 3
  call fairmile_component('solver   ')
  call fairmile_metadata('grid', '64 x 64   ')
  step = fairmile_timer('step')
  queue = fairmile_counter('queue')
  field = fairmile_exchange(fairmile_put, 'field', 'trainer')
  do n = 1, 3
    call fairmile_phase_start('iteration', n)
    call fairmile_start(step)
    call fairmile_stop(step)
    call fairmile_exchange_begin(field)
    call fairmile_exchange_ready(field)
    call fairmile_exchange_end(field, n, 8_c_int64_t * 4096)
    call fairmile_sample(queue, 0.5 * n)
    call fairmile_sample(queue, 0.25d0 * n)
    call fairmile_phase_stop('iteration', n)
  end do
  field = fairmile_exchange(fairmile_get, 'weights')
  call fairmile_exchange_begin(field)
  call fairmile_exchange_end(field, -1, 16)
  call fairmile_start_string('by name')
  call fairmile_stop_string('by name')
  call fairmile_event('done')
end program
"""


@needs_fortran
@pytest.mark.parametrize(
    "options", [("-std=f2008",), ("-fdefault-real-8", "-fdefault-double-8", "-fdefault-integer-8")]
)
def test_a_fortran_program_tells_the_same(tmp_path: Path, options: tuple[str, ...]) -> None:
    (tmp_path / "main.f90").write_text(
        FORTRAN if "-std=f2008" in options else FORTRAN.replace(", -1, 16", ", -1_8, 16_8")
    )
    program = tmp_path / "main"
    subprocess.run(["cc", "-c", INCLUDE / "fairmile_meter.c", "-o", tmp_path / "c.o"], check=True)
    sources = [INCLUDE / "fairmile_meter.f90", tmp_path / "main.f90", tmp_path / "c.o"]
    flags = ["-Wall", "-Wextra", "-Werror", "-pthread", "-J", str(tmp_path)]
    done = subprocess.run(["gfortran", *options, *flags, "-o", program, *sources], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    log = run(program)
    assert log.damaged == 0
    assert list(log.components.values()) == ["solver"] and list(log.about.values()) == [{"grid": "64 x 64"}]
    assert spans_of(log, "iteration").attributes == [{"n": 1}, {"n": 2}, {"n": 3}]
    put, got = spans_of(log, "put field").exchange, spans_of(log, "get weights").exchange
    assert put is not None and got is not None
    assert (put.peer, list(put.versions), list(put.bytes)) == ("trainer", [1, 2, 3], [32768] * 3)
    assert all(wait >= 0 for wait in put.waits_ns)
    assert (got.peer, list(got.versions), list(got.bytes)) == ("", [-1], [16])
    assert list(log.counters[0].values) == [0.5, 0.25, 1.0, 0.5, 1.5, 0.75]
    assert len(spans_of(log, "step").starts_ns) == 3 and len(spans_of(log, "by name").starts_ns) == 1
    assert [event.name for event in log.events] == ["done"]


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="no MPI")
@pytest.mark.thorough
def test_ranks_of_mpi_write_one_log(compile: Compile) -> None:
    program = compile(BEGIN + 'int main(void) { for (int n = 0; n < 3000; n++) fairmile_event("turn"); return 0; }\n')
    mpirun = shutil.which("mpirun")
    assert mpirun is not None
    folder = program.parent / "log"
    folder.mkdir()
    env = {name: text for name, text in QUIET.items() if name not in RANKS}
    env |= {"FAIRMILE_EVENTS": str(folder / "events.jsonl"), "OMPI_MCA_rmaps_base_oversubscribe": "1"}
    words = [mpirun, "--allow-run-as-root", "-np", "3", str(program)]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    log = read_log(event_files(folder))
    assert sorted(writer.rank or 0 for writer in log.writers) == [0, 1, 2]
    assert (log.damaged, len(log.events)) == (0, 9000)


SOLVER = (
    BEGIN
    + r"""
int main(void) {
  double field[512], weight = 0.0;
  int32_t put = fairmile_exchange(FAIRMILE_PUT, "field", "trainer");
  int32_t get = fairmile_exchange(FAIRMILE_GET, "weight", "trainer");
  fairmile_component("solver");
  for (int step = 0; step < 5; step++) {
    fairmile_phase_start("step", step);
    for (int n = 0; n < 512; n++) field[n] = n * weight + step;
    fairmile_exchange_begin(put);
    if (write(1, field, sizeof field) != sizeof field) return 3;
    fairmile_exchange_end(put, step, sizeof field);
    fairmile_exchange_begin(get);
    if (read(0, &weight, sizeof weight) != sizeof weight) return 4;
    fairmile_exchange_end(get, step, sizeof weight);
    fairmile_phase_stop("step", step);
  }
  return 0;
}
"""
)

TRAINER = """\
import struct, subprocess, sys
from fairmile.meter import component, exchange, sample, span

component("trainer")
solver = subprocess.Popen(sys.argv[1], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
for step in range(5):
    with exchange("get", "field", peer="solver", version=step) as got:
        data = b""
        while len(data) < 4096:
            data += solver.stdout.read(4096 - len(data))
            got.ready()
        got.bytes = len(data)
    with span("train", n=step):
        weight = sum(struct.unpack("512d", data)) / 1e6
    sample("weight", weight)
    with exchange("put", "weight", peer="solver", version=step, bytes=8):
        solver.stdin.write(struct.pack("d", weight))
sys.exit(solver.wait())
"""


def test_a_solver_in_c_and_a_trainer_in_python_write_one_log_of_one_schema(compile: Compile, tmp_path: Path) -> None:
    program = compile(SOLVER)
    env = QUIET | {
        "FAIRMILE_EVENTS": str(tmp_path / "events.jsonl"),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    done = subprocess.run([sys.executable, "-c", TRAINER, program], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    log = read_log([tmp_path / "events.jsonl"])
    assert log.damaged == 0
    assert sorted(log.components.values()) == ["solver", "trainer"]
    found = {}
    for spans in log.spans:
        if spans.exchange is not None:
            assert spans.exchange.peer != log.components[spans.writer]
            found[log.components[spans.writer], spans.exchange.how, spans.exchange.key] = spans
    assert set(found) == {
        ("solver", "put", "field"),
        ("trainer", "get", "field"),
        ("trainer", "put", "weight"),
        ("solver", "get", "weight"),
    }
    for key, sender, receiver, size in (("field", "solver", "trainer", 4096), ("weight", "trainer", "solver", 8)):
        put, got = found[sender, "put", key], found[receiver, "get", key]
        assert put.exchange is not None and got.exchange is not None
        assert list(put.exchange.versions) == list(got.exchange.versions) == list(range(5))
        assert list(put.exchange.bytes) == list(got.exchange.bytes) == [size] * 5
        for place in range(5):  # on one clock: nothing is there before it was sent
            assert got.starts_ns[place] + got.durations_ns[place] >= put.starts_ns[place]
    assert all(wait >= 0 for wait in found["trainer", "get", "field"].exchange.waits_ns)  # type: ignore[union-attr]


def test_a_library_in_c_and_the_python_that_loads_it_are_one_writer(tmp_path: Path) -> None:
    library = tmp_path / "lib.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-pthread", INCLUDE / "fairmile_meter.c", "-o", library], check=True)
    text = (
        "import ctypes, sys\nfrom fairmile import meter\nmeter.event('python')\nmeter.flush()\n"
        "lib = ctypes.CDLL(sys.argv[1])\nlib.fairmile_event(b'c')\nlib.fairmile_flush()\nmeter.event('python again')\n"
    )
    env = QUIET | {"FAIRMILE_EVENTS": str(tmp_path / "e.jsonl"), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run([sys.executable, "-c", text, library], env=env, check=True)
    log = read_log([tmp_path / "e.jsonl"])
    assert [event.name for event in log.events] == ["python", "c", "python again"]
    assert len(log.writers) == 1


@pytest.mark.thorough
def test_a_library_can_be_unloaded_while_threads_that_used_it_go_on(tmp_path: Path) -> None:
    library = tmp_path / "lib.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-pthread", INCLUDE / "fairmile_meter.c", "-o", library], check=True)
    text = (
        "import _ctypes, ctypes, sys, threading\n"
        "lib = ctypes.CDLL(sys.argv[1])\nused, unloaded = threading.Event(), threading.Event()\n"
        "def work():\n    lib.fairmile_event(b'c')\n    used.set()\n    unloaded.wait()\n"
        "thread = threading.Thread(target=work)\nthread.start()\nused.wait()\n_ctypes.dlclose(lib._handle)\n"
        "assert sys.argv[1] not in open('/proc/self/maps').read()\nunloaded.set()\nthread.join()\n"
    )
    env = QUIET | {"FAIRMILE_EVENTS": str(tmp_path / "e.jsonl")}
    done = subprocess.run([sys.executable, "-c", text, library], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert [event.name for event in read_log([tmp_path / "e.jsonl"]).events] == ["c"]


def test_the_folder_of_the_header_is_printed() -> None:
    words = [sys.executable, "-m", "fairmile.meter"]
    done = subprocess.run([*words, "--include"], capture_output=True, text=True, check=True)
    folder = Path(done.stdout.strip())
    assert {file.name for file in folder.iterdir()} >= {"fairmile_meter.h", "fairmile_meter.c", "fairmile_meter.f90"}
    assert subprocess.run(words, capture_output=True).returncode == 2
