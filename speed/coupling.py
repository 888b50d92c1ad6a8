"""Measures what an event costs in C and in Python, ours beside a clock and a printf as people write them by hand.

Run: python speed/coupling.py [--calls N] [--repeats N]

CPU is user and system time of the whole process, its threads included, over N calls and the last flush, in nanoseconds
for one event; a start and its stop are two, as are begin and end of an exchange. Ours includes turning events into
lines and appending these to a file. By hand: read the clock and fprintf() a line for each event, or json.dumps() and
write() in Python. `no run` is what is left in a program that nobody watches. Entrants take turns, so that all meet the
same machine; figures are the best and the median over the repeats. All takes about half a minute.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from fairmile.meter import include

C = r"""
#define FAIRMILE_METER_IMPLEMENTATION
#include "fairmile_meter.h"
#include <sys/resource.h>
static double used(void) {
  struct rusage all;
  getrusage(RUSAGE_SELF, &all);
  return all.ru_utime.tv_sec + all.ru_stime.tv_sec + (all.ru_utime.tv_usec + all.ru_stime.tv_usec) * 1e-6;
}
static FILE *by_hand;
static void print_now(const char *what, long version) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  fprintf(by_hand, "{\"event\": \"%s\", \"at\": %ld%09ld, \"version\": %ld}\n", what, (long)now.tv_sec, now.tv_nsec,
          version);
}
int main(int count, char **words) {
  const char *what = words[1];
  long calls = atol(words[2]), n;
  int32_t timer = fairmile_timer("step"), queue = fairmile_counter("queue");
  int32_t put = fairmile_exchange(FAIRMILE_PUT, "field", "trainer");
  double start;
  int events = 2;
  (void)count;
  by_hand = fopen(words[3], "w");
  if (!by_hand) return 3;
  start = used();
  if (!strcmp(what, "timer")) for (n = 0; n < calls; n++) { fairmile_start(timer); fairmile_stop(timer); }
  else if (!strcmp(what, "string"))
    for (n = 0; n < calls; n++) { fairmile_start_string("step"); fairmile_stop_string("step"); }
  else if (!strcmp(what, "phase"))
    for (n = 0; n < calls; n++) { fairmile_phase_start("step", n); fairmile_phase_stop("step", n); }
  else if (!strcmp(what, "exchange"))
    for (n = 0; n < calls; n++) { fairmile_exchange_begin(put); fairmile_exchange_end(put, n, 4096); }
  else if (!strcmp(what, "counter")) { events = 1; for (n = 0; n < calls; n++) fairmile_sample(queue, n * 0.5); }
  else if (!strcmp(what, "event")) { events = 1; for (n = 0; n < calls; n++) fairmile_event("turn"); }
  else for (n = 0; n < calls; n++) { print_now("start", n); print_now("stop", n); }
  fairmile_flush();
  fflush(by_hand);
  printf("%.17g\n", (used() - start) / calls / events * 1e9);
  return 0;
}
"""

PYTHON = """\
import json, resource, sys, time
what, calls, file = sys.argv[1], int(sys.argv[2]), open(sys.argv[3], "w")
from fairmile.meter import exchange, flush, phase, sample, span
def used():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
def timer():
    for n in range(calls):
        with span("step"): pass
def turn():
    for n in range(calls):
        with phase("step", n): pass
def put():
    for n in range(calls):
        with exchange("put", "field", peer="trainer", bytes=4096, version=n): pass
def counter():
    for n in range(calls): sample("queue", n * 0.5)
def by_hand():
    for n in range(calls):
        file.write(json.dumps({"event": "start", "at": time.monotonic_ns(), "version": n}) + "\\n")
        file.write(json.dumps({"event": "stop", "at": time.monotonic_ns(), "version": n}) + "\\n")
work = {"timer": timer, "phase": turn, "exchange": put, "counter": counter, "by hand": by_hand}[what]
start = used()
work(); flush(); file.flush()
print((used() - start) / calls / (1 if what == "counter" else 2) * 1e9)
"""

IN_C = ("timer", "string", "phase", "exchange", "counter", "event", "by hand")
IN_PYTHON = ("timer", "phase", "exchange", "counter", "by hand")
WORDS = {
    "timer": "start, stop by handle",
    "string": "start, stop by name",
    "phase": "phase with its iteration",
    "exchange": "exchange: begin, end",
    "counter": "counter",
    "event": "event",
    "by hand": "by hand: clock and print",
}


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=1_000_000, help="calls in C; a tenth of them in Python")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    compiler = shutil.which("cc")
    with tempfile.TemporaryDirectory() as folder:
        programs: dict[str, tuple[list[str], int, tuple[str, ...]]] = {
            "Python": ([sys.executable, "-c", PYTHON], max(options.calls // 10, 1), IN_PYTHON)
        }
        if compiler is None:
            print("there is no C compiler: C is left out")
        else:
            program = Path(folder, "main")
            Path(folder, "main.c").write_text(C)
            words = [compiler, "-O2", f"-I{include()}", "-o", program, Path(folder, "main.c"), "-pthread", "-lm"]
            subprocess.run(words, check=True)
            programs = {"C": ([str(program)], options.calls, IN_C), **programs}
        measured: dict[tuple[str, str, bool], list[float]] = {}
        for _ in range(options.repeats):
            for language, (words, calls, entrants) in programs.items():
                for name in entrants:
                    for in_run in (True, False) if name != "by hand" else (True,):
                        found = measure(words, name, calls, Path(folder), in_run=in_run)
                        measured.setdefault((language, name, in_run), []).append(found)
    print(f"{'ns for one event':<36}{'best':>9}{'median':>9}{'no run':>9}{'by hand ÷ ours':>17}")
    for (language, name, in_run), figures in measured.items():
        if not in_run:
            continue
        best = min(figures)
        idle = measured.get((language, name, False))
        ratio = min(measured[language, "by hand", True]) / best
        shown = f"{min(idle):>9.1f}" if idle else f"{'':>9}"
        print(f"{f'{language}: {WORDS[name]}':<36}{best:>9.0f}{statistics.median(figures):>9.0f}{shown}{ratio:>16.1f}×")


def measure(words: list[str], name: str, calls: int, folder: Path, *, in_run: bool) -> float:
    """Return the CPU time of one event in nanoseconds."""
    log, other = folder / "events.jsonl", folder / "by-hand.jsonl"
    env = {"FAIRMILE_EVENTS": str(log) if in_run else "", "PATH": "/usr/bin:/bin"}
    done = subprocess.run([*words, name, str(calls), str(other)], env=env, check=True, capture_output=True, text=True)
    for file in (log, other):
        file.unlink(missing_ok=True)
    return float(done.stdout)


if __name__ == "__main__":
    main()
