"""Measures a solver in C that asks a Python model at every step, beside MPI_Sendrecv and memcpy in the same run.

Run: python speed/couple.py [--repeats N] [--json FILE]

A step sends a field, and receives one of the same size. `coupled`: fairmile_couple_step() beside a model that copies
its field into its answer by NumPy. `MPI_Sendrecv`: two ranks of mpirun in C exchange the same bytes, and the second one
copies them, too. `memcpy`: the three copies of a step alone. `off`: fairmile_couple_step() without a model. Wall time
of one step, the best and the median over the repeats; entrants take turns. Two processes wait for each other, so this
needs two quiet cores. All takes about half a minute.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from fairmile import coupling

SOLVER = r"""
#define _GNU_SOURCE
#define FAIRMILE_COUPLE_IMPLEMENTATION
#include "fairmile_couple.h"
#ifdef WITH_MPI
#include <mpi.h>
#endif
int main(int count, char **words) {
  int64_t size[1], n, steps = atoll(words[3]), warm = steps / 10 + 1;
  double *out, *in, *other, start = 0;
  const char *what = words[1];
  int rank = 0;
  (void)count;
  size[0] = atoll(words[2]) / 8;
  out = (double *)calloc((size_t)size[0], 8);
  in = (double *)calloc((size_t)size[0], 8);
  other = (double *)calloc((size_t)size[0], 8);
  for (n = 0; n < size[0]; n++) out[n] = (double)n;
#ifdef WITH_MPI
  MPI_Init(&count, &words);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
#else
  fairmile_couple_out("field", out, FAIRMILE_DOUBLE, 1, size);
  fairmile_couple_in("answer", in, FAIRMILE_DOUBLE, 1, size);
#endif
  for (n = -warm; n < steps; n++) {
    if (n == 0) start = fairmile_couple_now();
#ifdef WITH_MPI
    if (rank == 0) {
      MPI_Sendrecv(out, (int)size[0], MPI_DOUBLE, 1, 0, in, (int)size[0], MPI_DOUBLE, 1, 0, MPI_COMM_WORLD,
                   MPI_STATUS_IGNORE);
    } else {
      MPI_Sendrecv(other, (int)size[0], MPI_DOUBLE, 0, 0, in, (int)size[0], MPI_DOUBLE, 0, 0, MPI_COMM_WORLD,
                   MPI_STATUS_IGNORE);
      memcpy(other, in, (size_t)size[0] * 8);
    }
#else
    if (!strcmp(what, "memcpy")) {
      memcpy(other, out, (size_t)size[0] * 8);
      memcpy(in, other, (size_t)size[0] * 8);
      memcpy(other, in, (size_t)size[0] * 8);
      __asm__ volatile("" : : "r"(other) : "memory");
    } else {
      fairmile_couple_step();
    }
#endif
  }
  if (rank == 0) printf("%.17g\n", (fairmile_couple_now() - start) / (double)steps);
#ifdef WITH_MPI
  MPI_Finalize();
#endif
  return 0;
}
"""
MODEL = """
from fairmile import coupling
for exchange in coupling.serve():
    exchange.answers["answer"][...] = exchange.fields["field"]
"""
STEPS = {8_000: 20_000, 1_000_000: 2_000}


class Programs:
    """The compiled programs, and how one step of each is timed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "solver.c").write_text(SOLVER)
        (folder / "model.py").write_text(MODEL)
        include = f"-I{coupling.include()}"
        subprocess.run(["gcc", "-O2", include, "solver.c", "-o", "solver"], cwd=folder, check=True)
        self.entrants = ["coupled", "memcpy", "off"]
        words = ["mpicc", "-O2", "-DWITH_MPI", include, "solver.c", "-o", "ranks"]
        if shutil.which("mpicc") and subprocess.run(words, cwd=folder, capture_output=True).returncode == 0:
            self.entrants.insert(1, "MPI_Sendrecv")
        else:
            print("MPI_Sendrecv is left out: it needs mpicc and the headers of MPI (Debian: libopenmpi-dev)")

    def time_step(self, entrant: str, size: int) -> float:
        steps = str(STEPS[size])
        if entrant == "coupled":
            return self._coupled(size, steps)
        if entrant == "MPI_Sendrecv":
            root = ["--allow-run-as-root"] if os.getuid() == 0 else []
            return self._run(["mpirun", *root, "-n", "2", "./ranks", "mpi", str(size), steps], {})
        return self._run(["./solver", entrant, str(size), steps], {})

    def _coupled(self, size: int, steps: str) -> float:
        environ = {coupling.SOCKET: str(self.folder / "socket")}
        with subprocess.Popen([sys.executable, "model.py"], cwd=self.folder, env=os.environ | environ) as model:
            seconds = self._run(["./solver", "coupled", str(size), steps], environ)
            model.wait(60)
        return seconds

    def _run(self, command: list[str], variables: Mapping[str, str]) -> float:
        environ = os.environ | dict(variables)
        done = subprocess.run(command, cwd=self.folder, env=environ, check=True, capture_output=True, text=True)
        return float(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    times: dict[int, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory(prefix="couple-") as folder:
        programs = Programs(Path(folder))
        for size in STEPS:
            times[size] = {entrant: [] for entrant in programs.entrants}
            for _ in range(options.repeats):
                for entrant in programs.entrants:
                    times[size][entrant].append(programs.time_step(entrant, size))
    for size, entrants in times.items():
        coupled = min(entrants["coupled"])
        for entrant, seconds in entrants.items():
            is_peer = entrant not in ("coupled", "off")
            ratio = f"coupled takes {coupled / min(seconds):.2f} of it" if is_peer else ""
            best, median = min(seconds) * 1e6, statistics.median(seconds) * 1e6
            print(f"{size:>9,} B  {entrant:<13} {best:9.2f} µs (median {median:9.2f})  {ratio}")
    if options.json:
        options.json.write_text(json.dumps({str(size): entrants for size, entrants in times.items()}))


if __name__ == "__main__":
    main()
