"""What an exploration returns: candidates with what was measured of each, and which one to take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NotRequired, TypedDict

from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result
from fairmile.base.units import format_duration, format_size
from fairmile.models.explore.request import InputDict


class CandidateDict(TypedDict):
    runtime: str
    precision: str
    batch: int
    threads: int
    device: str
    state: str  # measured, refused; planned in a plan
    verdict: str  # best, equal, open, slower, not the same; empty if refused
    reason: NotRequired[str]
    latency_s: NotRequired[float]  # the median of all calls
    latency_low_s: NotRequired[float]
    latency_high_s: NotRequired[float]
    p99_s: NotRequired[float]  # of at least 100 calls
    throughput_per_s: NotRequired[float]
    energy_per_sample_j: NotRequired[float]
    first_call_s: NotRequired[float]
    load_s: NotRequired[float]
    memory_bytes: NotRequired[int]
    size_bytes: NotRequired[int]
    error: NotRequired[float | None]  # null where an output is not finite, or of another shape
    typical_error: NotRequired[float | None]
    quality: NotRequired[float | None]
    loss: NotRequired[float | None]
    ratio: NotRequired[float]  # of its cost to that of the best
    ratio_low: NotRequired[float]
    ratio_high: NotRequired[float]
    predicted_s: NotRequired[float]
    predicted_low_s: NotRequired[float]
    predicted_high_s: NotRequired[float]
    predicted_memory_bytes: NotRequired[int]
    unpredicted: NotRequired[str]  # why nothing is predicted of it
    rounds: NotRequired[int]
    calls: NotRequired[int]
    way: NotRequired[str]
    provider: NotRequired[str]  # that ONNX Runtime computed with


class QualityDict(TypedDict):
    metric: str  # empty: the largest relative difference of outputs
    source: float | None
    rows: int
    max_loss: float


class MachineDict(TypedDict):
    name: str
    cores: int
    gpu: str
    load: list[float]  # the load average before and after
    versions: dict[str, str]
    energy_source: str


class ExplorationDict(TypedDict):
    model: str
    best: str
    decided: bool
    answer: str
    candidates: list[CandidateDict]
    run: str  # empty for a plan, which has none of what follows
    script: NotRequired[str]  # of a plan: the job on a system
    quality: NotRequired[QualityDict]
    machine: NotRequired[MachineDict]
    rounds: NotRequired[int]
    measured_s: NotRequired[float]
    inputs: NotRequired[dict[str, dict[str, InputDict]]]  # of one call, by batch size and name


WORDS = {
    "best": "recommended",
    "equal": "equal",
    "open": "cannot tell from the best",
    "slower": "",
    "not the same": "loses more than allowed",
}


def candidate_name(row: CandidateDict) -> str:
    """Return a candidate in a few words, such as `onnxruntime fp32, batch 8, 2 threads`."""
    where = "cuda" if row["device"] == "cuda" else f"{row['threads']} thread" + ("s" if row["threads"] > 1 else "")
    return f"{row['runtime']} {row['precision']}, batch {row['batch']}, {where}"


def runtime_name(row: CandidateDict) -> str:
    """Return a runtime, with the provider that ONNX Runtime computed by, such as `onnxruntime (CUDA)`."""
    provider = row.get("provider", "").removesuffix("ExecutionProvider")
    return f"{row['runtime']} ({provider})" if provider else row["runtime"]


def cost_text(row: CandidateDict, best: str) -> str:
    """Return the number of a candidate that a criterion is about."""
    if best == "throughput":
        return f"{row['throughput_per_s']:,.4g} samples/s"
    if best == "energy":
        return f"{row.get('energy_per_sample_j', 0.0):.3g} J per sample"
    return format_size(row["size_bytes"]) if best == "size" else format_duration(row["latency_s"])


@dataclass(frozen=True, repr=False)
class Exploration(Result):
    """Ways to run a model, the best first, with the run that measured them."""

    rows_field = "candidates"

    data: ExplorationDict

    @property
    def candidates(self) -> Sequence[CandidateDict]:
        """Those that were measured, the best first, then those that were refused."""
        return self.data["candidates"]

    @property
    def recommended(self) -> CandidateDict | None:
        """The best candidate, None where it cannot be told."""
        return next((each for each in self.candidates if each["verdict"] == "best"), None)

    @property
    def warning(self) -> str:
        """What to know before these numbers are trusted: other programs kept the machine busy."""
        machine = self.data["machine"]
        if machine["load"][0] <= machine["cores"]:
            return ""
        return (
            f"the machine was busy before the exploration began (load {machine['load'][0]:.1f} on {machine['cores']} "
            "cores): the order holds for a machine as busy as that, and runtimes with several threads lose most"
        )

    @property
    def run(self) -> str:
        return self.data["run"]

    def to_dict(self) -> ExplorationDict:
        return self.data

    def summary(self) -> str:
        return f"{self.data['model']}: {self.data['answer']}"


def exploration_columns(explored: Exploration) -> list[str]:
    """Return the columns of the table of candidates; those that nothing was measured for are left out."""
    rows = [each for each in explored.candidates if each["state"] == "measured"]
    names = ["runtime", "precision", "batch", "threads", "latency", "interval", "verdict", "p99", "samples/s"]
    names += ["first call", "memory", "size", "error"]
    if any("energy_per_sample_j" in each for each in rows):
        names.append("J/sample")
    names.append("predicted")
    if any("predicted_memory_bytes" in each for each in rows):
        names.append("predicted memory")
    if explored.data["quality"]["metric"]:
        names.append(explored.data["quality"]["metric"])
    return names


def exploration_row(explored: Exploration, row: CandidateDict, columns: Sequence[str]) -> list[str]:
    """Return the cells of one measured candidate."""
    error, joules, quality = row["error"], row.get("energy_per_sample_j"), row.get("quality")
    low, high = row.get("latency_low_s"), row.get("latency_high_s")
    predicted, foreseen_bytes = row.get("predicted_s"), row.get("predicted_memory_bytes")
    cells = {
        "runtime": runtime_name(row),
        "precision": row["precision"],
        "batch": str(row["batch"]),
        "threads": str(row["threads"]),
        "latency": format_duration(row["latency_s"]),
        "interval": "–" if low is None or high is None else f"{format_duration(low)} to {format_duration(high)}",
        "p99": format_duration(row["p99_s"]) if "p99_s" in row else "–",
        "samples/s": f"{row['throughput_per_s']:,.4g}"
        if row["throughput_per_s"] < 1e4
        else f"{row['throughput_per_s']:,.0f}",
        "first call": format_duration(row["first_call_s"]),
        "memory": format_size(row["memory_bytes"]),
        "size": format_size(row["size_bytes"]),
        "error": "not finite" if error is None else f"{error:.1e}",
        "J/sample": "–" if joules is None else f"{joules:.3g}",
        "predicted": "–" if predicted is None else format_duration(predicted),
        "predicted memory": "–" if foreseen_bytes is None else format_size(foreseen_bytes),
        explored.data["quality"]["metric"]: "–" if quality is None else f"{quality:.4g}",
        "verdict": verdict_text(row),
    }
    return [cells[name] for name in columns]


def unpredicted_reasons(explored: Exploration) -> dict[str, str]:
    """Return why combinations have no prediction, by what they have in common."""
    rows = [each for each in explored.candidates if each["state"] == "measured" and "unpredicted" in each]
    if len({each["unpredicted"] for each in rows}) == 1:
        return {"not predicted": rows[0]["unpredicted"]}
    return {f"not predicted, {each['runtime']} {each['precision']}": each["unpredicted"] for each in rows}


def verdict_text(row: CandidateDict) -> str:
    """Return how a candidate compares with the best."""
    if row["verdict"] == "slower" and "ratio" in row:
        return f"× {row['ratio']:.3g} ({row['ratio_low']:.3g} to {row['ratio_high']:.3g})"
    return WORDS[row["verdict"]]
