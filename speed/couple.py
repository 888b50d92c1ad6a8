"""Measures a solver in C that asks a Python model at every step, beside MPI_Sendrecv and memcpy in the same run.

Run: python speed/couple.py [--repeats N] [--json FILE]

A step sends a field, and receives one of the same size. `coupled`: fairmile_couple_step() beside a model that copies
its field into its answer by NumPy. `MPI, C` and `MPI, Python`: two ranks of mpirun, of which the second receives,
copies and sends the bytes back, in C or by mpi4py and NumPy. `coupled, lag 1` takes the answer to the step before, and
`MPI_Sendrecv` does so, too: both ranks send and receive at once. `memcpy`: the three copies of a step alone. `off`:
fairmile_couple_step() without a model. Wall time of one step: the fastest of many short stretches of steps, since
another process that takes a core for a while makes both sides wait, and the median of them; entrants take turns.

Then a model of 104 parameters as an ONNX file: `in process` is fairmile_couple_step(), `bare call` is Run() of ONNX
Runtime's C interface for the same session and tensors; CPU time of one call. All takes about half a minute.
"""

from __future__ import annotations

import argparse
import importlib.util
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
#ifdef WITH_MPI
#include <mpi.h>
#endif
#include "fairmile_couple.h"
#define COUNT (int)size[0], MPI_DOUBLE
enum { STRETCHES = 100 };
static double *out, *in, *other;
static int64_t size[1];
static const char *what;
static int rank;
static void step(void) {
#ifdef WITH_MPI
  if (rank == 0) {
    MPI_Sendrecv(out, COUNT, 1, 0, in, COUNT, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  } else if (!strcmp(what, "MPI_Sendrecv")) {
    MPI_Sendrecv(other, COUNT, 0, 0, in, COUNT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    memcpy(other, in, (size_t)size[0] * 8);
  } else {
    MPI_Recv(in, COUNT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    memcpy(other, in, (size_t)size[0] * 8);
    MPI_Send(other, COUNT, 0, 0, MPI_COMM_WORLD);
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
int main(int count, char **words) {
  int64_t steps = atoll(words[3]) / STRETCHES, n;
  int stretch;
  double start;
  (void)count;
  what = words[1];
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
  for (n = 0; n < steps; n++) step();
  for (stretch = 0; stretch < STRETCHES; stretch++) {
    start = fairmile_couple_now();
    for (n = 0; n < steps; n++) step();
    if (rank == 0) printf("%.17g\n", (fairmile_couple_now() - start) / (double)steps);
  }
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
MPI_MODEL = """
import sys
import numpy as np
from mpi4py import MPI
world, (size, steps) = MPI.COMM_WORLD, map(int, sys.argv[1:])
field, answer = np.empty(size // 8), np.empty(size // 8)
for step in range(101 * (steps // 100)):
    world.Recv(field, 0)
    answer[...] = field
    world.Send(answer, 0)
"""
ONNX_SOLVER = r"""
#define _GNU_SOURCE
#define FAIRMILE_COUPLE_IMPLEMENTATION
#include "fairmile_couple.h"
#include <sys/resource.h>
static double used(void) {
  struct rusage all;
  getrusage(RUSAGE_SELF, &all);
  return (double)(all.ru_utime.tv_sec + all.ru_stime.tv_sec) +
         1e-6 * (double)(all.ru_utime.tv_usec + all.ru_stime.tv_usec);
}
int main(int count, char **words) {
  int64_t in[] = {1, 3}, out[] = {1, 8}, steps = atoll(words[2]), n;
  float state[3] = {0.1f, 0.2f, 0.3f}, rates[8];
  fairmile_ort answers[1];
  double start;
  (void)count;
  fairmile_couple_out("state", state, FAIRMILE_FLOAT, 2, in);
  fairmile_couple_in("rates", rates, FAIRMILE_FLOAT, 2, out);
  for (n = 0; n < 1000; n++)
    if (fairmile_couple_step() != FAIRMILE_ANSWERED) return 1;
  answers[0] = fairmile_coupled_model.tensors[1][0].values[0];
  start = used();
  if (!strcmp(words[1], "bare call"))
    for (n = 0; n < steps; n++)
      FAIRMILE_ORT(FAIRMILE_ORT_RUN, (fairmile_ort, fairmile_ort, const char *const *, const fairmile_ort *, size_t,
                                      const char *const *, size_t, fairmile_ort *))
      (fairmile_coupled_model.session, NULL, fairmile_coupled_model.names[0],
       fairmile_coupled_model.tensors[0][0].values, 1, fairmile_coupled_model.names[1], 1, answers);
  else
    for (n = 0; n < steps; n++) fairmile_couple_step();
  printf("%.17g\n", (used() - start) / (double)steps);
  return 0;
}
"""
CALLS = 100_000
STEPS = {8_000: 4_000, 1_000_000: 400}


class Programs:
    """The compiled programs, and how one step of each is timed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "solver.c").write_text(SOLVER)
        (folder / "model.py").write_text(MODEL)
        include = f"-I{coupling.include()}"
        subprocess.run(["gcc", "-O2", include, "solver.c", "-o", "solver"], cwd=folder, check=True)
        (folder / "mpi_model.py").write_text(MPI_MODEL)
        self.entrants = ["coupled", "coupled, lag 1", "memcpy", "off"]
        words = ["mpicc", "-O2", "-DWITH_MPI", include, "solver.c", "-o", "ranks"]
        if shutil.which("mpicc") and subprocess.run(words, cwd=folder, capture_output=True).returncode == 0:
            self.entrants[1:1] = ["MPI, C", "MPI, Python"]
            self.entrants[4:4] = ["MPI_Sendrecv"]
        else:
            print("MPI is left out: it needs mpicc and the headers of MPI (Debian: libopenmpi-dev)")

    def time_steps(self, entrant: str, size: int) -> list[float]:
        """Return the seconds of a step in each of many stretches."""
        words = [entrant, str(size), str(STEPS[size])]
        if entrant.startswith("coupled"):
            return self._coupled(words, {"FAIRMILE_COUPLE_LAG": "1" if "lag" in entrant else "0"})
        if entrant.startswith("MPI"):
            mpirun = ["mpirun", *(["--allow-run-as-root"] if os.getuid() == 0 else []), "-n"]
            model = [sys.executable, "mpi_model.py", *words[1:]] if "Python" in entrant else ["./ranks", *words]
            return self._run([*mpirun, "1", "./ranks", *words, ":", "-n", "1", *model], {})
        return self._run(["./solver", *words], {})

    def _coupled(self, words: list[str], variables: Mapping[str, str]) -> list[float]:
        environ = {coupling.SOCKET: str(self.folder / "socket"), **variables}
        with subprocess.Popen([sys.executable, "model.py"], cwd=self.folder, env=os.environ | environ) as model:
            seconds = self._run(["./solver", *words], environ)
            model.wait(60)
        return seconds

    def _run(self, command: list[str], variables: Mapping[str, str]) -> list[float]:
        environ = os.environ | dict(variables)
        done = subprocess.run(command, cwd=self.folder, env=environ, check=True, capture_output=True, text=True)
        return [float(line) for line in done.stdout.split()]


def write_model(file: Path) -> None:
    """Write a network of 104 parameters: 3 values in, 8 in between, 8 out."""
    import numpy as np
    import onnx

    rng = np.random.default_rng(1)
    shapes = {"w1": (3, 8), "b1": (8,), "w2": (8, 8), "b2": (8,)}
    weights = [
        onnx.numpy_helper.from_array(rng.normal(size=shape).astype("float32"), name) for name, shape in shapes.items()
    ]
    nodes = [
        onnx.helper.make_node("Gemm", ["state", "w1", "b1"], ["a"]),
        onnx.helper.make_node("Tanh", ["a"], ["h"]),
        onnx.helper.make_node("Gemm", ["h", "w2", "b2"], ["rates"]),
    ]
    values = onnx.helper.make_tensor_value_info
    given, answer = values("state", onnx.TensorProto.FLOAT, (1, 3)), values("rates", onnx.TensorProto.FLOAT, (1, 8))
    graph = onnx.helper.make_graph(nodes, "surrogate", [given], [answer], weights)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), file)


def compare_in_process(folder: Path, repeats: int) -> dict[str, list[float]]:
    """Return CPU seconds of one call of an ONNX file, through the coupling and bare."""
    (folder / "inside.c").write_text(ONNX_SOLVER)
    write_model(folder / "surrogate.onnx")
    words = ["gcc", "-O2", f"-I{coupling.include()}", "inside.c", "-o", "inside", "-ldl", "-pthread"]
    subprocess.run(words, cwd=folder, check=True)
    variables = {coupling.SOCKET: "surrogate.onnx", "FAIRMILE_COUPLE_RUNTIME": str(coupling.onnx_runtime())}
    seconds: dict[str, list[float]] = {"in process": [], "bare call": []}
    for _ in range(repeats):
        for entrant, each in seconds.items():
            command = ["./inside", entrant, str(CALLS)]
            environ = os.environ | variables
            done = subprocess.run(command, cwd=folder, env=environ, check=True, capture_output=True, text=True)
            each.append(float(done.stdout))
    return seconds


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
                    times[size][entrant] += programs.time_steps(entrant, size)
        inside: dict[str, list[float]] = {}
        if all(importlib.util.find_spec(name) for name in ("onnx", "onnxruntime")):
            inside = compare_in_process(Path(folder), options.repeats)
        else:
            print("in process is left out: it needs the packages onnx and onnxruntime")
    for size, entrants in times.items():
        fastest = {entrant: min(seconds) * 1e6 for entrant, seconds in entrants.items()}
        for entrant, seconds in entrants.items():
            ours = "coupled, lag 1" if entrant == "MPI_Sendrecv" else "coupled"
            is_peer = not entrant.startswith(("coupled", "off"))
            ratio = f"{ours} takes {fastest[ours] / fastest[entrant]:.2f} of it" if is_peer else ""
            median = statistics.median(seconds) * 1e6
            print(f"{size:>9,} B  {entrant:<14} {fastest[entrant]:9.2f} µs (median {median:9.2f})  {ratio}".rstrip())
    for entrant, seconds in inside.items():
        ratio = f"{min(seconds) / min(inside['bare call']):.2f} of a bare call" if entrant == "in process" else ""
        best, median = min(seconds) * 1e6, statistics.median(seconds) * 1e6
        print(f"ONNX         {entrant:<13} {best:9.2f} µs CPU (median {median:9.2f})  {ratio}".rstrip())
    if options.json:
        document = {str(size): entrants for size, entrants in times.items()}
        options.json.write_text(json.dumps(document | ({"onnx": inside} if inside else {})))


if __name__ == "__main__":
    main()
