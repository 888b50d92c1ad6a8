"""Measures candidates against each other: `python -m …explore.program JSON [source=FILE…]`, in the folder of a run.

Each candidate is a process that waits while another has its turn, so that all see the same machine. Rounds go on until
the order is decided or the time is over. `exploration.json` has the result.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import field
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

from fairmile.base.cores import usable_cores
from fairmile.base.errors import FairmileError, Unsupported
from fairmile.base.quick_dataclass import dataclass
from fairmile.meter import log
from fairmile.models.explore.energy import check_counted
from fairmile.models.explore.order import Order, median_interval, order_of, rounds_needed
from fairmile.models.explore.preparing import PREPARED
from fairmile.models.explore.processes import Worker, read_kib, run_module
from fairmile.models.explore.request import Candidate, Exploring, Prepared, refusal
from fairmile.models.explore.results import CandidateDict, MachineDict, candidate_name, cost_text

RESULT = "exploration.json"
_MOST_CALLS = 1000  # of one turn
_P99_CALLS = 100
_TURN_S, _ENERGY_TURN_S = 0.1, 0.5
_ROOM = 1.5  # times the memory of the largest worker so far must be free for another


@dataclass()
class Measured:
    """A candidate, its process, and its turns."""

    candidate: Candidate
    worker: Worker
    known: dict[str, Any]
    turns: list[dict[str, Any]] = field(default_factory=list)

    def is_allowed(self, max_loss: float) -> bool:
        return self.known["loss"] is not None and self.known["loss"] <= max_loss

    def cost(self, best: str, done: Mapping[str, Any]) -> float:
        """Return the cost of one turn by a criterion: the lower, the better."""
        if best == "energy":
            return float(done["energy_j"]) / (len(done["times"]) * self.candidate.batch)
        call_s = float(median(done["times"]))
        return call_s / self.candidate.batch if best == "throughput" else call_s


class Exploration:
    """One exploration, from its processes to its rows."""

    def __init__(self, asked: Exploring, folder: Path) -> None:
        self._asked, self._folder = asked, folder
        self._refused: list[CandidateDict] = []
        self._measured: dict[str, Measured] = {}
        self._order: Order | None = None
        self._rounds = 0
        self._measured_s = 0.0
        self._load = [os.getloadavg()[0]]

    def run(self) -> dict[str, Any]:
        """Prepare, measure, and return the result."""
        if self._asked.best == "energy":
            check_counted(self._asked.device)
        prepared = self._prepare()
        scratch = Path(tempfile.mkdtemp(prefix="fairmile-explore-"))
        try:
            self._start(self._asked.candidates(prepared.fixed_batch), prepared, scratch)
            self._check()
            self._measure()
        finally:
            for each in self._measured.values():
                each.worker.close()
            shutil.rmtree(scratch, ignore_errors=True)
        self._load.append(os.getloadavg()[0])
        return self._result(prepared)

    def _prepare(self) -> Prepared:
        _say("preparing the model")
        run_module("fairmile.models.explore.preparing", self._asked.to_json(), self._folder)
        file = self._folder / PREPARED
        content = json.loads(file.read_text()) if file.is_file() else {}
        if "error" in content:
            raise _Failed(content["error"])
        if not content:
            raise Unsupported("the model cannot be prepared: the process that loads it ended early")
        return Prepared(**content)

    def _start(self, candidates: Sequence[Candidate], prepared: Prepared, scratch: Path) -> None:
        """Start the processes of candidates, and keep those that can compute.

        Their runtimes are imported side by side, on as many cores as there are. Models are loaded and called the first
        time one after the other, since that is measured.
        """
        possible: list[Candidate] = []
        for candidate in candidates:
            reason = refusal(candidate)
            if not reason and prepared.fixed_batch not in (None, candidate.batch):
                reason = f"the model takes a batch of {prepared.fixed_batch} only"
            if reason:
                self._refuse(candidate, reason)
            else:
                possible.append(candidate)
        at_once = usable_cores()
        for place in range(0, len(possible), at_once):
            pairs = [(each, self._worker(each, scratch)) for each in possible[place : place + at_once]]
            try:
                for _, worker in pairs:
                    worker.wait_imported()
                for candidate, worker in pairs:
                    self._load_model(candidate, worker)
            finally:
                for candidate, worker in pairs:
                    if candidate.name not in self._measured:
                        worker.close()

    def _worker(self, candidate: Candidate, scratch: Path) -> Worker:
        job = {"candidate": dataclasses.asdict(candidate), "model": self._asked.model.to_json()}
        return Worker(json.dumps(job), self._folder, scratch / candidate.name.replace(" ", "-"))

    def _load_model(self, candidate: Candidate, worker: Worker) -> None:
        reason = self._no_room()
        known = {} if reason else worker.load()
        reason = reason or known.get("refused", "")
        if reason:
            self._refuse(candidate, reason)
            return
        self._measured[candidate.name] = Measured(candidate, worker, known)
        _say(f"{candidate.name}: ready")

    def _refuse(self, candidate: Candidate, reason: str) -> None:
        _say(f"{candidate.name}: {reason}")
        row: Any = {**dataclasses.asdict(candidate), "state": "refused", "verdict": "", "reason": reason}
        self._refused.append(row)

    def _no_room(self) -> str:
        used = max((each.worker.memory_bytes() for each in self._measured.values()), default=0)
        free = read_kib("/proc/meminfo", "MemAvailable") * 1024
        return "" if free > _ROOM * used else "too little memory is free to keep it beside the others"

    def _check(self) -> None:
        if not self._measured:
            reasons = "; ".join(f"{candidate_name(each)}: {each['reason']}" for each in self._refused[:3])
            raise Unsupported(f"no combination can be run: {reasons}")

    @property
    def _energy_source(self) -> str:
        return next((each.known["energy_source"] for each in self._measured.values()), "")

    def _measure(self) -> None:
        """Give turns to all candidates, round by round, and drop those that are decided."""
        energy = bool(self._energy_source)
        turn_s = self._asked.turn_s or (_ENERGY_TURN_S if energy else _TURN_S)
        looks, active = rounds_needed(len(self._measured)), list(self._measured.values())
        shuffled, start = random.Random(self._asked.model.seed), time.monotonic()
        while self._rounds < looks[-1]:
            shuffled.shuffle(active)
            for each in active:
                calls = max(1, min(_MOST_CALLS, round(turn_s / max(each.known["call_s"], 1e-7))))
                done = each.worker.ask({"calls": calls, "energy": energy})
                if self._asked.best == "energy" and done["energy_j"] is None:
                    raise Unsupported(f"the energy counter {self._energy_source} stopped answering")
                each.turns.append(done)
            self._rounds += 1
            is_over = time.monotonic() - start > self._asked.time_s
            if self._rounds in looks or is_over:
                active = self._still_open(active)
            if is_over or (self._order is not None and self._order.is_decided):
                break
        self._measured_s = time.monotonic() - start

    def _still_open(self, active: Sequence[Measured]) -> list[Measured]:
        """Return the leader and those that cannot be told from it yet."""
        best = self._asked.best
        allowed = [each for each in self._measured.values() if each.is_allowed(self._asked.max_loss)]
        if not allowed:
            return []
        if best == "size":
            least = min(each.known["size_bytes"] for each in allowed)
            allowed = [each for each in allowed if each.known["size_bytes"] == least]
        costs = {each.candidate.name: [each.cost(best, done) for done in each.turns] for each in allowed}
        self._order = order_of(costs, len(self._measured))
        names = {self._order.leader, *self._order.equal, *self._order.open}
        return [each for each in active if each.candidate.name in names]

    def _result(self, prepared: Prepared) -> dict[str, Any]:
        rows = sorted((self._row(each) for each in self._measured.values()), key=self._rank)
        winner = next((each for each in rows if each["verdict"] == "best"), None)
        if winner is not None:
            log(latency=winner["latency_s"], throughput=winner["throughput_per_s"], size=winner["size_bytes"])
        return {
            "best": self._asked.best,
            "decided": self._order is not None and self._order.is_decided,
            "answer": self._answer(rows),
            "quality": {
                "metric": prepared.quality,
                "source": prepared.expected_quality,
                "rows": prepared.rows,
                "max_loss": self._asked.max_loss,
            },
            "machine": self._machine(prepared),
            "rounds": self._rounds,
            "measured_s": self._measured_s,
            "candidates": rows + self._refused,
            "inputs": prepared.inputs,
        }

    def _rank(self, row: CandidateDict) -> tuple[bool, float, float]:
        best = self._asked.best
        cost = {
            "latency": row["latency_s"],
            "throughput": -row["throughput_per_s"],
            "energy": row.get("energy_per_sample_j", 0.0),
            "size": float(row["size_bytes"]),
        }[best]
        return row["verdict"] != "best", cost, row["latency_s"]

    def _row(self, each: Measured) -> CandidateDict:
        times = sorted(one for done in each.turns for one in done["times"])
        interval = median_interval([median(done["times"]) for done in each.turns])
        joules = [done["energy_j"] for done in each.turns]
        known = each.known
        row: dict[str, Any] = {
            **dataclasses.asdict(each.candidate),
            "state": "measured",
            "verdict": self._verdict(each),
            "latency_s": median(times),
            "throughput_per_s": each.candidate.batch / median(times),
            "memory_bytes": max(done["memory_bytes"] for done in each.turns),
            "rounds": len(each.turns),
            "calls": len(times),
        }
        row |= {
            name: known[name] for name in ("first_call_s", "load_s", "size_bytes", "error", "typical_error", "loss")
        }
        row |= {name: known[name] for name in ("quality", "way", "provider") if known[name] not in (None, "")}
        if interval is not None:
            row |= {"latency_low_s": interval.low, "latency_high_s": interval.high}
        if len(times) >= _P99_CALLS:
            row["p99_s"] = times[int(0.99 * len(times))]
        if joules and None not in joules:
            row["energy_per_sample_j"] = sum(joules) / (len(times) * each.candidate.batch)
        ratio = self._order.ratios.get(each.candidate.name) if self._order is not None else None
        if ratio is not None and ratio.low > 0:
            row |= {"ratio": ratio.middle, "ratio_low": ratio.low, "ratio_high": ratio.high}
        return row  # type: ignore[return-value]

    def _verdict(self, each: Measured) -> str:
        name, order = each.candidate.name, self._order
        if not each.is_allowed(self._asked.max_loss):
            return "not the same"
        if order is None or name in order.open:
            return "open"
        if name == order.leader:
            return "best" if order.is_decided else "open"
        return "equal" if name in order.equal else "slower"

    def _answer(self, rows: Sequence[CandidateDict]) -> str:
        """Return which candidate to take, in one sentence."""
        best = self._asked.best
        if self._order is None:
            return "no combination keeps its loss within what is allowed"
        if not self._order.is_decided:
            names = [self._order.leader, *self._order.open]
            return f"cannot tell which has the best {best}: {'; '.join(names[:4])}"
        winner = next(each for each in rows if each["verdict"] == "best")
        text = f"{candidate_name(winner)}: {cost_text(winner, best)}"
        equal = [candidate_name(each) for each in rows if each["verdict"] == "equal"]
        return text + (f"; within 5 %: {'; '.join(equal[:3])}" if equal else "")

    def _machine(self, prepared: Prepared) -> MachineDict:
        versions = {}
        for package in ("torch", "onnxruntime", "openvino"):
            try:
                versions[package] = metadata.version(package)
            except metadata.PackageNotFoundError:
                continue
        return {
            "name": _processor(),
            "cores": usable_cores(),
            "gpu": prepared.gpu,
            "load": self._load,
            "versions": versions,
            "energy_source": self._energy_source,
        }


def _say(text: str) -> None:
    """Write a line to the log of the run."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _processor() -> str:
    """Return the name of the processor, or its kind where the kernel has no name for it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _asked(argv: Sequence[str]) -> Exploring:
    """Return what is asked for; words after the first say where files are, as source=FILE."""
    asked = Exploring.from_json(argv[0])
    files: dict[str, Any] = dict(word.split("=", 1) for word in argv[1:])
    return dataclasses.replace(asked, model=dataclasses.replace(asked.model, **files))


class _Failed(FairmileError):
    """An error that another process met."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        super().__init__(str(content["message"]))
        self.content = dict(content)


def main(argv: list[str]) -> int:
    folder = Path.cwd()
    try:
        written: dict[str, Any] = Exploration(_asked(argv), folder).run()
    except _Failed as error:
        written = {"error": error.content}
    except FairmileError as error:
        written = {"error": error.to_dict()}
    (folder / RESULT).write_text(json.dumps(written))
    return 1 if "error" in written else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
