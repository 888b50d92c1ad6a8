"""One candidate in a process of its own: `python -m fairmile.models.explore.worker JSON`.

It imports its runtime and waits for a line of its input. Then it loads the model, compares its outputs with those of
the source, and waits for turns: a number of calls on each line of its input, the times of these calls on a line of its
output.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from fairmile.base.errors import FairmileError
from fairmile.models.convert.proof import Array, difference
from fairmile.models.convert.request import Request
from fairmile.models.explore.energy import Counter
from fairmile.models.explore.engines import Engine, engine_of, import_runtime, limit_threads
from fairmile.models.explore.preparing import PREPARED, TARGETS, inputs_file
from fairmile.models.explore.processes import read_kib
from fairmile.models.explore.quality import loss_of, quality_of
from fairmile.models.explore.request import Candidate, Prepared

_WARM_S = 0.3
_WARM_CALLS = 3
_LEAD_S = 0.15  # before energy is read: counters of GPUs follow late
_TICK_S = 0.25  # the longest wait for a counter to move; those of GPUs do so ten times a second
_LOOK_S = 0.005  # between two readings meanwhile
_TRIES = 3  # of a turn whose counter of energy started again at 0


def load(job: dict[str, Any], folder: Path) -> tuple[Engine, dict[str, Any]]:
    """Return a candidate's engine, warmed up, and what is known of it before it is timed."""
    candidate = Candidate(**job["candidate"])
    fields = json.loads((folder / PREPARED).read_text())
    prepared = Prepared(**fields)
    start = time.perf_counter()
    engine = engine_of(candidate, Request.from_json(job["model"]), prepared, folder)
    loaded = time.perf_counter()
    content = np.load(folder / inputs_file(candidate.batch))
    portions = _portions(content)
    engine.settle(portions[0][0])
    begun = time.perf_counter()
    engine.take(portions[0][0])
    engine.call()
    first = time.perf_counter() - begun
    known: dict[str, Any] = {"load_s": loaded - start, "first_call_s": first}
    known |= _compare(engine, portions, content, prepared)
    engine.take(portions[0][0])
    known["call_s"] = _warm_up(engine)
    known |= {"size_bytes": engine.size_bytes, "way": engine.way, "provider": engine.provider}
    return engine, known


def _portions(content: Any) -> list[tuple[dict[str, Array], list[Array]]]:
    portions: dict[str, tuple[dict[str, Array], list[Array]]] = {}
    for key in content.files:
        number, _, rest = key.partition("/")
        side, _, name = rest.partition("/")
        if side:
            inputs, outputs = portions.setdefault(number, ({}, []))
            if side == "in":
                inputs[name] = content[key]
            else:
                outputs.append(content[key])
    return list(portions.values())


def _compare(engine: Engine, portions: Any, content: Any, prepared: Prepared) -> dict[str, Any]:
    """Return by how much the outputs differ from those of the source, and the metric of the data set."""
    largest, typical, answers = 0.0, list[float](), list[list[Array]]()
    for inputs, expected in portions:
        engine.take(inputs)
        engine.call()
        answers.append(engine.read())
        worst, usual = difference(expected, answers[-1])
        largest, typical = max(largest, worst), [*typical, usual]
    known: dict[str, Any] = {
        "error": largest if np.isfinite(largest) else None,
        "typical_error": float(np.median(typical)) if np.all(np.isfinite(typical)) else None,
        "quality": None,
        "loss": largest if np.isfinite(largest) else None,
    }
    if prepared.quality and prepared.expected_quality is not None:
        metric, value = quality_of(answers, content[TARGETS])
        known |= {"quality": value, "loss": loss_of(metric, value, prepared.expected_quality)}
    return known


def _warm_up(engine: Engine) -> float:
    """Call until calls are of one length, and return that."""
    end = time.perf_counter() + _WARM_S
    times: list[float] = []
    while len(times) < _WARM_CALLS or time.perf_counter() < end:
        begun = time.perf_counter()
        engine.call()
        times.append(time.perf_counter() - begun)
    return float(np.median(times[len(times) // 2 :]))


def turn(engine: Engine, counter: Counter, calls: int, *, with_energy: bool) -> dict[str, Any]:
    """Make this many calls; return their times and, if asked for, their joules.

    Joules are counted between two moves of the counter, which takes more calls; these get their share.
    """
    energy: float | None = None
    for _ in range(_TRIES if with_energy else 1):
        before = _call_until_counted(engine, counter, _LEAD_S)[0] if with_energy else None
        times: list[float] = []
        for _ in range(calls):
            begun = time.perf_counter()
            engine.call()
            times.append(time.perf_counter() - begun)
        after, more = _call_until_counted(engine, counter, 0.0) if with_energy else (None, 0)
        if before is not None and after is not None and after > before:
            energy = (after - before) * calls / (calls + more)
        if energy is not None:
            break
    return {"times": times, "energy_j": energy}


def _call_until_counted(engine: Engine, counter: Counter, least_s: float) -> tuple[float | None, int]:
    """Call for so long, and on until the counter moves; return what it shows then, and the number of calls."""
    calls, end = 0, time.perf_counter() + least_s
    while time.perf_counter() < end:
        engine.call()
        calls += 1
    seen, look_at, until = counter.read(), 0.0, time.perf_counter() + _TICK_S
    while True:
        engine.call()
        calls += 1
        now = time.perf_counter()
        if now < look_at:
            continue
        value, look_at = counter.read(), now + _LOOK_S
        if value is None or value != seen or now > until:
            return value, calls


def memory_bytes(device: str) -> int:
    """Return the most memory this process has had: on the GPU, or of the host."""
    if device == "cuda":
        torch: Any = importlib.import_module("torch")
        if torch.cuda.is_initialized():
            return int(torch.cuda.max_memory_allocated())
    return read_kib("/proc/self/status", "VmHWM") * 1024


def main(argv: list[str]) -> int:
    # Libraries print what they like: only this process writes to the pipe of answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    job = json.loads(argv[0])
    candidate = Candidate(**job["candidate"])
    limit_threads(candidate.threads)
    os.environ.setdefault("KERAS_BACKEND", "torch")
    try:
        import_runtime(candidate)
        print(json.dumps({"imported": candidate.runtime}), file=answers)
        if not sys.stdin.readline():
            return 0
        engine, known = load(job, Path.cwd())
    except FairmileError as error:
        print(json.dumps({"refused": error.message}), file=answers)
        return 0
    except Exception as error:  # noqa: BLE001  each runtime has errors of its own, and each is a reason
        text = (str(error).strip() or type(error).__name__).splitlines()[0]
        print(json.dumps({"refused": f"{type(error).__name__}: {text[:200]}"}), file=answers)
        return 0
    counter = Counter(candidate.device)
    known["energy_source"] = counter.source
    print(json.dumps(known), file=answers)
    for line in sys.stdin:
        asked = json.loads(line)
        done = turn(engine, counter, asked["calls"], with_energy=asked["energy"])
        print(json.dumps({**done, "memory_bytes": memory_bytes(candidate.device)}), file=answers)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
