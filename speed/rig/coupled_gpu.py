"""Measures a solver in C that asks a surrogate on a GPU at every step, beside the same surrogate without a solver.

    PYTHONPATH=src python speed/rig/coupled_gpu.py OUT.json [--device cpu] [--seconds 0.25] [--kilobytes 8 64]

The solver spreads a field and adds the surrogate's answer to it. The surrogate is a perceptron for each column, or a
convolutional network over the whole field, with random weights. `bare` is the surrogate alone in a Python loop: copy
the field to the device, compute, copy the answer back. `shm` and `mpi` are whole steps of the solver, with the model in
shared memory or as a rank of its MPI job; lag 1 takes the answer to the step before. `cuda` copies as people write it,
`pinned` registers the memory of the fields with CUDA first, and `cpu` computes with all cores but the solver's. Beside
them stand parts of a step of `shm`: the solver's own work; the surrogate; and the copies and the kernels, from a few
more steps in which each of these is waited for.

The first steps are also computed by the same surrogate with NumPy in place of the solver: the fields must agree to the
bit. Times are medians of wall times. It needs a C compiler, NumPy and PyTorch; for MPI also mpicc, mpirun and mpi4py.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import mmap
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from fairmile import coupling

SOLVER = r"""
#define _GNU_SOURCE
#ifdef WITH_MPI
#include <mpi.h>
#endif
#define FAIRMILE_COUPLE_IMPLEMENTATION
#include "fairmile_couple.h"
static float *field, *other, *answer;
static int64_t shape[3], cells = 1;
static void step(void) {
  int64_t n;
  int sweep;
  fairmile_couple_step();
  for (n = 0; n < cells; n++) field[n] = field[n] + 0.05f * answer[n];
  for (sweep = 0; sweep < 4; sweep++) {
    float *from = sweep % 2 ? other : field, *to = sweep % 2 ? field : other;
    to[0] = from[0], to[cells - 1] = from[cells - 1];
    for (n = 1; n < cells - 1; n++) to[n] = from[n] + 0.1f * ((from[n + 1] - 2.0f * from[n]) + from[n - 1]);
  }
}
static void save(const char *folder, const char *what, const char *number, const void *values, size_t bytes) {
  char path[512];
  FILE *file;
  snprintf(path, sizeof path, "%s/%s-%s", folder, what, number);
  file = fopen(path, "wb");
  if (!file || fwrite(values, 1, bytes, file) != bytes || fclose(file)) exit(4);
}
int main(int count, char **words) { /* folder number lag checked timed parted shape */
  int number = atoi(words[2]), checked = atoi(words[4]), timed = atoi(words[5]), parted = atoi(words[6]), n;
  double *took = (double *)calloc((size_t)timed + 1, sizeof(double));
#ifdef WITH_MPI
  int is_turn = !number, is_over = 0, size;
  MPI_Request over;
  MPI_Init(&count, &words);
  MPI_Comm_size(fairmile_couple_comm(), &size);
  for (; !is_turn; usleep(2000)) /* one after the other; who waits leaves its core alone */
    MPI_Iprobe(number - 1, 0, fairmile_couple_comm(), &is_turn, MPI_STATUS_IGNORE);
#else
  (void)count;
  fairmile_couple_rank(number, 1);
#endif
  setenv("FAIRMILE_COUPLE_LAG", words[3], 1);
  for (n = 0; n < 3; n++) cells *= shape[n] = atoll(words[7 + n]);
  field = (float *)calloc((size_t)cells, sizeof(float));
  other = (float *)calloc((size_t)cells, sizeof(float));
  answer = (float *)calloc((size_t)cells, sizeof(float));
  for (n = 0; n < cells; n++) field[n] = (float)(n % 97) / 97.0f;
  fairmile_couple_out("field", field, FAIRMILE_FLOAT, 3, shape);
  fairmile_couple_in("answer", answer, FAIRMILE_FLOAT, 3, shape);
  for (n = 0; n < checked; n++) step();
  save(words[1], "field", words[2], field, (size_t)cells * sizeof(float));
  for (n = 0; n < timed; n++) {
    double start = fairmile_couple_now();
    step();
    took[n] = fairmile_couple_now() - start;
  }
  for (n = 0; n < parted; n++) step();
  fairmile_couple_end();
  save(words[1], "took", words[2], took, (size_t)timed * sizeof(double));
#ifdef WITH_MPI
  if (number < size - 1) MPI_Send(&n, 0, MPI_INT, number + 1, 0, fairmile_couple_comm());
  if (number) MPI_Recv(&n, 0, MPI_INT, number - 1, 0, fairmile_couple_comm(), MPI_STATUS_IGNORE);
  MPI_Ibarrier(fairmile_couple_comm(), &over);
  for (; !is_over; usleep(2000)) MPI_Test(&over, &is_over, MPI_STATUS_IGNORE);
  MPI_Finalize();
#endif
  return 0;
}
"""
CHECKED, PARTED, FEWEST, MOST, ALONE = 3, 5, 4, 1000, 50  # steps
LEVELS, WIDTH, CHANNELS = 32, 128, 48
PARTS = ("to device", "kernels", "to host")


@dataclass(frozen=True)
class Case:
    """A surrogate on a device, for a field of some size, asked in one way."""

    network: str
    kilobytes: int
    device: str
    lag: int = 0
    steps: int = 0

    @property
    def shape(self) -> tuple[int, int, int]:
        """Levels of columns, or channels of a grid."""
        cells = self.kilobytes * 1024 // 4
        if self.network == "perceptron":
            return cells // LEVELS, LEVELS, 1
        height = int((cells // 8) ** 0.5)
        return 4, height, 2 * height

    @property
    def parted(self) -> int:
        """How many steps show their parts."""
        return 0 if self.device == "cpu" else PARTED

    @property
    def words(self) -> list[str]:
        """Return the solver's arguments."""
        return list(map(str, (self.lag, CHECKED, self.steps, self.parted, *self.shape)))


class Surrogate:
    """A network on a device that answers fields in memory of the host."""

    def __init__(self, case: Case) -> None:
        self._kind, self._is_pinned = case.device.split(", ")[0], "pinned" in case.device
        self._net = make_network(case.network).to(self._kind)
        self._field = torch.empty(case.shape, device=self._kind)
        self._tensors: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._pinned = list[int]()

    def answer(self, field: Any, answer: Any, note: Callable[[str], None] | None = None) -> None:
        """Compute the answer to a field; `note` hears when each part is done."""
        given, back = self._tensors.get(field.ctypes.data) or self._meet(field, answer)
        with torch.inference_mode():
            if self._kind == "cpu":
                back.copy_(self._net(given))
                return
            self._field.copy_(given, non_blocking=self._is_pinned)
            if note:
                torch.cuda.synchronize()
                note(PARTS[0])
            computed = self._net(self._field)
            if note:
                torch.cuda.synchronize()
                note(PARTS[1])
            back.copy_(computed, non_blocking=self._is_pinned)
            torch.cuda.synchronize()
            if note:
                note(PARTS[2])

    def close(self) -> None:
        """Release the memory of the fields."""
        for address in self._pinned:
            torch.cuda.cudart().cudaHostUnregister(address)
        self._pinned.clear()
        self._tensors.clear()  # the memory goes with the last of them

    def _meet(self, field: Any, answer: Any) -> tuple[torch.Tensor, torch.Tensor]:
        if self._is_pinned and not self._pinned:
            memory = np.frombuffer(memory_of(field), "u1")
            failure = torch.cuda.cudart().cudaHostRegister(memory.ctypes.data, memory.nbytes, 0)
            if int(failure):
                raise SystemExit(f"{memory.nbytes} bytes of host memory cannot be pinned: {failure}")
            self._pinned.append(memory.ctypes.data)
        pair = self._tensors[field.ctypes.data] = torch.from_numpy(field), torch.from_numpy(answer)
        return pair


def memory_of(array: Any) -> mmap.mmap:
    """Return the memory that an array is a view of."""
    while not isinstance(array, mmap.mmap):
        array = array.obj if isinstance(array, memoryview) else array.base
    return array


class Columns(torch.nn.Module):
    """The same small perceptron for each column."""

    def __init__(self) -> None:
        super().__init__()
        sizes = (LEVELS, WIDTH, WIDTH, LEVELS)
        layers = [(torch.nn.Linear(*pair), torch.nn.Tanh()) for pair in pairwise(sizes)]
        self.layers = torch.nn.Sequential(*(each for pair in layers for each in pair))

    def forward(self, field: torch.Tensor) -> torch.Tensor:
        """Answer columns of levels."""
        answer: torch.Tensor = self.layers(field[:, :, 0])
        return answer[:, :, None]


class Grid(torch.nn.Module):
    """Convolutions over four channels of a grid."""

    def __init__(self) -> None:
        super().__init__()
        sizes = (4, CHANNELS, CHANNELS, CHANNELS, 4)
        layers = [(torch.nn.Conv2d(*pair, 3, padding=1), torch.nn.Tanh()) for pair in pairwise(sizes)]
        self.layers = torch.nn.Sequential(*(each for pair in layers for each in pair))

    def forward(self, field: torch.Tensor) -> torch.Tensor:
        """Answer channels of a grid."""
        answer: torch.Tensor = self.layers(field[None])
        return answer[0]


def make_network(name: str) -> torch.nn.Module:
    """Return a network with the same weights every time."""
    torch.manual_seed(1)
    return {"perceptron": Columns, "convolutions": Grid}[name]().eval()


class Clock:
    """Notes how long the parts of steps take."""

    def __init__(self) -> None:
        self.parts: dict[str, list[float]] = {}
        self._last = 0.0

    def start(self) -> None:
        """Begin a step."""
        self._last = time.perf_counter()

    def note(self, part: str) -> None:
        """Note the end of a part."""
        now = time.perf_counter()
        self.parts.setdefault(part, []).append(now - self._last)
        self._last = now


def answer_timed(surrogate: Surrogate, case: Case, step: int, field: Any, answer: Any, clock: Clock) -> None:
    """Answer a step: some are checked, some timed, and some timed in parts."""
    clock.start()
    if step < CHECKED + case.steps:
        surrogate.answer(field, answer)
        if step >= CHECKED:
            clock.note("surrogate")
    else:
        surrogate.answer(field, answer, clock.note)


def serve(cases: list[Case], out: Path) -> None:
    """Answer all solvers, whose ranks are the numbers of their cases."""
    clocks = [Clock() for _ in cases]
    met, surrogate = -1, Surrogate(cases[0])
    for exchange in coupling.serve(solvers=len(cases)):
        number = exchange.solver.rank
        if number != met:
            surrogate.close()
            met, surrogate = number, Surrogate(cases[number])
        fields = exchange.fields["field"], exchange.answers["answer"]
        answer_timed(surrogate, cases[number], exchange.step, *fields, clocks[number])
    surrogate.close()
    out.write_text(json.dumps([clock.parts for clock in clocks]))


def compute_bare(cases: list[Case], out: Path, seconds: float) -> None:
    """Time the surrogates without a solver, and write what fields they lead to with each lag."""
    measured = []
    for number, case in enumerate(cases):
        surrogate, bytes_each = Surrogate(case), 4 * int(np.prod(case.shape))
        memory = mmap.mmap(-1, 2 * bytes_each)
        field, answer = (np.ndarray(case.shape, "f4", memory, at * bytes_each) for at in range(2))
        for lag in (0, 1):
            answer[...] = 0
            field[...] = ((np.arange(field.size) % 97).astype("f4") / np.float32(97)).reshape(case.shape)
            for _ in range(CHECKED):
                before = answer.copy()
                surrogate.answer(field, answer)
                field[...] = spread(field, before if lag else answer)
            (out.parent / f"bare-{number}-{lag}").write_bytes(field.tobytes())
        began = time.perf_counter()
        surrogate.answer(field, answer)
        steps = int(min(max(seconds / (time.perf_counter() - began), FEWEST), MOST))
        clock, timed = Clock(), Case(**{**asdict(case), "steps": steps})
        for step in range(CHECKED, CHECKED + steps + case.parted):
            answer_timed(surrogate, timed, step, field, answer, clock)
        surrogate.close()
        measured.append({**asdict(timed), "bare": clock.parts})
    out.write_text(json.dumps(measured))


def spread(field: Any, answer: Any) -> Any:
    """Do what the solver does in a step, to the bit."""
    values = (field + np.float32(0.05) * answer).ravel()
    for _ in range(4):
        inner = values[1:-1] + np.float32(0.1) * ((values[2:] - np.float32(2) * values[1:-1]) + values[:-2])
        values = np.concatenate([values[:1], inner, values[-1:]])
    return values.reshape(field.shape)


class Rig:
    """A folder with the compiled solvers, and what was measured so far."""

    def __init__(self, folder: Path, seconds: float, limit_s: float) -> None:
        self.folder, self._seconds, self._until = folder, seconds, time.monotonic() + limit_s
        (folder / "solver.c").write_text(SOLVER)
        self._compile("gcc", "solver")
        self.cases: list[Case] = []
        self.measured: list[dict[str, Any]] = []

    def _compile(self, compiler: str, program: str, *more: str) -> None:
        words = [compiler, "-O3", "-ffp-contract=off", f"-I{coupling.include()}", *more, "solver.c", "-o", program]
        done = subprocess.run([*words, "-ldl", "-pthread"], cwd=self.folder, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(words)} fails:\n{done.stderr}")

    def measure_bare(self, cases: list[Case]) -> None:
        """Time the surrogates alone, and the solver alone."""
        subprocess.run([*self._python(cases, "bare"), f"--seconds={self._seconds}"], check=True, timeout=self._left_s())
        self.measured = json.loads((self.folder / "bare.json").read_text())
        for number, each in enumerate(self.measured):
            case = Case(**{key: each[key] for key in asdict(cases[0])})
            self.cases.append(case)
            words = [str(self.folder), str(number), "0", "0", str(ALONE), "0", *map(str, case.shape)]
            subprocess.run([self.folder / "solver", *words], env=environ(""), check=True, timeout=self._left_s())
            each["own"] = self._took(number)

    def measure_shared(self) -> None:
        """Time steps of a solver beside a model that shares its memory."""
        cases = self._with_lags()
        place = environ(str(self.folder / "socket"))
        with subprocess.Popen(self._python(cases, "shm"), env=place) as model:
            try:
                for number, case in enumerate(cases):
                    words = [str(self.folder / "solver"), str(self.folder), str(number), *case.words]
                    subprocess.run(words, env=place, check=True, timeout=self._left_s())
                model.wait(self._left_s())
            finally:
                model.kill()
        self._collect(cases, "shm")

    def measure_ranks(self) -> None:
        """Time steps of solvers whose model is a rank of their job; they take turns."""
        self._compile("mpicc", "ranks", "-DWITH_MPI")
        cases = self._with_lags()
        words = ["mpirun", *(["--allow-run-as-root"] if os.geteuid() == 0 else []), "--oversubscribe"]
        words += ["--bind-to", "none"]
        for number, case in enumerate(cases):
            words += ["-n", "1", str(self.folder / "ranks"), str(self.folder), str(number), *case.words, ":"]
        words += ["-n", "1", *self._python(cases, "mpi")]
        subprocess.run(words, env=environ("mpi"), check=True, timeout=self._left_s())
        self._collect(cases, "mpi")

    def _left_s(self) -> float:
        return max(self._until - time.monotonic(), 0.1)

    def _python(self, cases: list[Case], work: str) -> list[str]:
        file = self.folder / f"{work}-cases.json"
        file.write_text(json.dumps([asdict(case) for case in cases]))
        return [sys.executable, __file__, str(self.folder / f"{work}.json"), "--work", work]

    def _with_lags(self) -> list[Case]:
        return [Case(**{**asdict(case), "lag": lag}) for case in self.cases for lag in (0, 1)]

    def _collect(self, cases: list[Case], way: str) -> None:
        parts = json.loads((self.folder / f"{way}.json").read_text())
        for number, case in enumerate(cases):
            each, name = self.measured[number // 2], way + (", lag 1" if case.lag else "")
            bare = (self.folder / f"bare-{number // 2}-{case.lag}").read_bytes()
            is_same = (self.folder / f"field-{number}").read_bytes() == bare
            each[name] = {"step": self._took(number), **parts[number], "is same": is_same}

    def _took(self, number: int) -> list[float]:
        took: list[float] = np.fromfile(self.folder / f"took-{number}").tolist()
        return took


def environ(place: str) -> dict[str, str]:
    """Return the environment of a solver or a model."""
    return os.environ | {coupling.SOCKET: place, "FAIRMILE_COUPLE_LAG": "0"}


def print_table(measured: list[dict[str, Any]]) -> None:
    """Print a row of milliseconds for each surrogate, size and device."""
    ways = [way for way in ("shm", "shm, lag 1", "mpi", "mpi, lag 1") if way in measured[0]]
    heads = ["bare", *ways, "own", "surrogate", *PARTS]
    print("milliseconds".ljust(38), *(head.rjust(11) for head in heads), "  bits")
    for each in measured:
        shm = each.get("shm", {})
        times = [each["bare"]["surrogate"], *(each[way]["step"] for way in ways), each["own"]]
        times += [shm.get(part, []) for part in ("surrogate", *PARTS)]
        cells = [f"{median(values) * 1e3:11.3f}" if values else " " * 11 for values in times]
        bits = ("same" if all(each[way]["is same"] for way in ways) else "DIFFERENT") if ways else "not compared"
        print(f"{each['network']:<13} {each['kilobytes']:>6} KiB {each['device']:<13}", *cells, f"  {bits}")


def main() -> None:
    """Measure, print a table and write all times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--seconds", type=float, default=0.25, help="seconds per case; there are about 120")
    parser.add_argument("--limit", type=float, default=95, help="stop measuring after this many seconds")
    parser.add_argument("--kilobytes", type=int, nargs="+", default=[8, 64, 1024, 8192])
    parser.add_argument("--work", choices=["bare", "shm", "mpi"], help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        torch.backends.cudnn.deterministic = True
        torch.set_num_threads(max(len(os.sched_getaffinity(0)) - 1, 1))
        cases = [Case(**each) for each in json.loads(given.out.with_name(f"{given.work}-cases.json").read_text())]
        return compute_bare(cases, given.out, given.seconds) if given.work == "bare" else serve(cases, given.out)
    devices = ["cuda", "cuda, pinned", "cpu"] if given.device == "cuda" else ["cpu"]
    sizes, networks = given.kilobytes, ("perceptron", "convolutions")
    cases = [Case(name, size, device) for name in networks for size in sizes for device in devices]
    about = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if given.device == "cuda" else platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
    }
    with tempfile.TemporaryDirectory(prefix="coupled-") as folder:
        rig = Rig(Path(folder), given.seconds, given.limit)
        works = [lambda: rig.measure_bare(cases), rig.measure_shared]
        if shutil.which("mpicc") and shutil.which("mpirun") and importlib.util.find_spec("mpi4py"):
            works.append(rig.measure_ranks)
        else:
            print("MPI is left out: it needs mpicc, mpirun and mpi4py")
        for work in works:
            began = time.monotonic()
            try:
                work()
            except (subprocess.SubprocessError, OSError) as error:
                print(f"a part is left out: {str(error)[-300:]}")
            print(f"{time.monotonic() - began:.1f} s", file=sys.stderr)
            given.out.write_text(json.dumps({"about": about, "measured": rig.measured}))
    print(json.dumps(about))
    if rig.measured:
        print_table(rig.measured)


if __name__ == "__main__":
    main()
